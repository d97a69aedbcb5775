"""The naive way to receive a file with Starlette, for comparison: every piece of the body is awaited, then written; or
dropped, which is what Starlette and uvicorn cost by themselves.
"""

import sys
from pathlib import Path

import aiofiles
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


class Naive:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def put(self, request: Request) -> Response:
        async with aiofiles.open(self._directory / request.path_params["name"], "wb") as file:
            async for piece in request.stream():
                await file.write(piece)
        return Response(status_code=201)

    async def drop(self, request: Request) -> Response:
        async for _ in request.stream():
            pass
        return Response(status_code=201)


def main() -> None:
    server = Naive(Path(sys.argv[1]))
    put = {"put": server.put, "drop": server.drop}[sys.argv[3]]
    routes = [Route("/{name}", put, methods=["PUT"])]
    uvicorn.run(Starlette(routes=routes), port=int(sys.argv[2]), log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
