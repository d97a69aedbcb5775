"""The accounting that writes through, for comparison: a server that stores a chunk and adds its length to a row of MariaDB
before it answers."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import uvicorn
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.ingest.contender import PutContender, running
from benchmarks.ingest.installing import NotAvailable
from tests.support.servers import PrivateMariaDB, free_port

_UPLOADS = 256
_TABLE = "CREATE TABLE IF NOT EXISTS upload (id INT PRIMARY KEY, received BIGINT NOT NULL)"
_ADD = text("UPDATE upload SET received = received + :length WHERE id = :id")


class PerChunk:
    def __init__(self, directory: Path, engine: AsyncEngine) -> None:
        self._engine = engine
        flags = os.O_WRONLY | os.O_CREAT
        self._files = [os.open(directory / f"{number}", flags, 0o644) for number in range(_UPLOADS)]

    async def put(self, request: Request) -> Response:
        upload, number = request.path_params["upload"], request.path_params["number"]
        body = await request.body()
        await asyncio.to_thread(os.pwrite, self._files[upload], body, number * len(body))
        async with self._engine.begin() as connection:
            await connection.execute(_ADD, {"length": len(body), "id": upload})
        return Response(status_code=201)

    @asynccontextmanager
    async def lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        async with self._engine.begin() as connection:
            await connection.execute(text(_TABLE))
            rows = ", ".join(f"({number}, 0)" for number in range(_UPLOADS))
            await connection.execute(text(f"INSERT INTO upload VALUES {rows}"))
        yield
        await self._engine.dispose()


class PerChunkContender(PutContender):
    """Its files stay open, so they are not removed but written again."""

    def clear(self) -> None:
        return None


@contextmanager
def per_chunk(directory: Path) -> Iterator[PutContender]:
    if not PrivateMariaDB.is_installed():
        raise NotAvailable("no MariaDB")
    files = directory / "files"
    files.mkdir(parents=True)
    database = PrivateMariaDB(directory).start()
    try:
        port = free_port()
        command = [sys.executable, "-m", "benchmarks.ingest.per_chunk", str(files), str(port), database.url("test")]
        with running(command, directory, port) as pid:
            yield PerChunkContender(port, [pid, int((directory / "data" / "pid").read_text())], files)
    finally:
        database.stop()


async def _create(url: str) -> None:
    base, _, name = url.partition("?")[0].rpartition("/")
    engine = create_async_engine(f"{base}/mysql")
    async with engine.begin() as connection:
        await connection.execute(text(f"CREATE DATABASE {name}"))
    await engine.dispose()


def main() -> None:
    directory, port, url = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    asyncio.run(_create(url))
    server = PerChunk(directory, create_async_engine(url, pool_size=16))
    routes = [Route("/{upload:int}-{number:int}", server.put, methods=["PUT"])]
    application = Starlette(routes=routes, lifespan=partial(server.lifespan))
    uvicorn.run(application, port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
