"""This server as a contender: a real `uploader serve` with its own Valkey and SQLite, users with tokens, open uploads."""

import asyncio
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.ingest.load import Plan, Request, head
from benchmarks.ingest.scale import Load
from benchmarks.storage.client import Connection
from tests.support.process import UPLOADER, Server, ended
from uploader.bootstrap import Services
from uploader.settings import Settings

_UNDIGESTED = (sys.executable, "-m", "benchmarks.ingest.undigested")
_UNLANED = (sys.executable, "-m", "benchmarks.ingest.unlaned")
_UNMETERED = (sys.executable, "-m", "benchmarks.ingest.unmetered")
_USERS = 16
_names = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """How it runs. As shipped it has digests and `power`, and charges what comes to its user."""

    digests: bool = True
    durability: str = "power"
    workers: int = 1
    charges: bool = True
    lanes: bool = True

    @property
    def program(self) -> Sequence[str | Path]:
        if not self.charges:
            return _UNMETERED
        if not self.lanes:
            return _UNLANED
        return (UPLOADER,) if self.digests else _UNDIGESTED

    def __str__(self) -> str:
        if not self.charges:
            return "that charges nobody"
        if not self.lanes:
            return "that hashes without lanes"
        workers = f", {self.workers} workers" if self.workers > 1 else ""
        return f"`{self.durability}`, digests {'on' if self.digests else 'off'}{workers}"


class Ours:
    """A running server; the connections of a load are spread over its users, with an upload for each."""

    def __init__(self, server: Server, tokens: Sequence[str]) -> None:
        self.server, self.tokens = server, tokens
        self.port = server.port
        self._open: list[tuple[str, str]] = []

    @property
    def pids(self) -> Sequence[int]:
        return [self.server.process.pid]

    def plan(self, load: Load) -> Plan:
        """Uploads have one chunk more than is sent, so none is merged."""
        with Connection(self.port) as connection:
            return Plan(self.port, [self._puts(connection, number, load) for number in range(load.connections)])

    def _puts(self, connection: Connection, number: int, load: Load) -> list[Request]:
        bearer = self.bearer(number)
        upload_id = self.open(connection, bearer, load.chunk_bytes, load.chunks + 1)
        return [
            Request(
                head("PUT", f"/uploads/{upload_id}/chunks/{chunk}", load.chunk_bytes, bearer),
                load.chunk_bytes,
            )
            for chunk in range(load.chunks)
        ]

    def bearer(self, number: int) -> dict[str, str]:
        """The header of one of the users."""
        return {"Authorization": f"Bearer {self.tokens[number % len(self.tokens)]}"}

    def open(self, connection: Connection, bearer: dict[str, str], chunk_bytes: int, chunks: int) -> str:
        """Open an upload; its id."""
        opening = {"name": f"{next(_names)}.bin", "size": chunk_bytes * chunks, "chunk_size": chunk_bytes}
        reply = connection.expect({201}, "POST", "/uploads", json.dumps(opening).encode(), bearer)
        upload_id: str = reply.json()["upload"]["id"]
        self._open.append((upload_id, bearer["Authorization"]))
        return upload_id

    def clear(self) -> None:
        """Cancel what is open."""
        with Connection(self.port) as connection:
            for upload_id, authorization in self._open:
                connection.expect({204}, "DELETE", f"/uploads/{upload_id}", b"", {"Authorization": authorization})
        self._open.clear()


@contextmanager
def ours(directory: Path, mode: Mode, users: int = _USERS, **more: str) -> Iterator[Ours]:
    """A server as it is by default but for `mode`, and `more` settings."""
    directory.mkdir(parents=True)
    settings = {"DATA": str(directory / "data"), "DURABILITY": mode.durability, "WORKERS": str(mode.workers), **more}
    server = Server(directory / "log", settings, program=mode.program)
    with ended(server):
        yield Ours(server, asyncio.run(_make_users(directory / "data", users)))
        server.stop()  # with its Valkey, so that the directory can go


async def _make_users(data: Path, count: int) -> list[str]:
    services = Services(Settings(data=data))
    try:
        return [
            await services.accounts.create_token(f"user-{number}", admin=False, total_space=1 << 50)
            for number in range(count)
        ]
    finally:
        await services.close()
