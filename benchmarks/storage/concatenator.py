"""The server to compare with, on the same stack: a file for each chunk; the last chunk has them copied into one, which is
then read again for its digests. `python -m benchmarks.storage.concatenator DIRECTORY PORT`.
"""

import asyncio
import hashlib
import os
import shutil
import sys
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

_COPY_BYTES = 1 << 20


class Concatenator:
    """One upload at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def put(self, request: Request) -> Response:
        count, number = request.path_params["count"], request.path_params["number"]
        body = bytearray()
        async for piece in request.stream():
            body += piece
        await asyncio.to_thread(self._store, number, body)
        if number + 1 < count:
            return JSONResponse({})
        return JSONResponse(await asyncio.to_thread(self._finish, count))

    def _store(self, number: int, body: bytearray) -> None:
        with (self._directory / str(number)).open("wb") as file:
            file.write(body)
            os.fdatasync(file.fileno())

    def _finish(self, count: int) -> dict[str, str]:
        whole = self._directory / "whole"
        with whole.open("wb") as target:
            for number in range(count):
                chunk = self._directory / str(number)
                with chunk.open("rb") as source:
                    shutil.copyfileobj(source, target, _COPY_BYTES)
                chunk.unlink()
            target.flush()
            os.fdatasync(target.fileno())
        md5, sha256 = hashlib.md5(), hashlib.sha256()
        with whole.open("rb") as file:
            while piece := file.read(_COPY_BYTES):
                md5.update(piece)
                sha256.update(piece)
        return {"md5": md5.hexdigest(), "sha256": sha256.hexdigest()}

    async def clear(self, _request: Request) -> Response:
        (self._directory / "whole").unlink()
        return JSONResponse({})


async def _ready(_request: Request) -> Response:
    return JSONResponse({})


def main() -> None:
    server = Concatenator(Path(sys.argv[1]))
    routes = [
        Route("/{count:int}/{number:int}", server.put, methods=["PUT"]),
        Route("/", server.clear, methods=["DELETE"]),
        Route("/readyz", _ready),
    ]
    uvicorn.run(Starlette(routes=routes), port=int(sys.argv[2]), log_level="warning")


if __name__ == "__main__":
    main()
