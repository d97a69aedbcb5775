"""The whole server in this process, on real stores: services, the application over them, and a client."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx2

from tests.support.clock import ManualClock
from tests.support.content import Content
from tests.support.gateways import gateway_of_tests, prefix_of, settings_of
from tests.support.waiting import SERVER_SECONDS
from uploader.bootstrap import Services, build_application, running
from uploader.database.engine import Database
from uploader.settings import Settings
from uploader.storage.local.store import LocalStore

GIB = 1 << 30
# For servers on a busy machine, the most that may be set: where silence is tried, a test says how long it is waited for.
STORES_TIME = {"database_timeout_seconds": 60.0, "redis_timeout_seconds": 60.0}


def patient(database_url: str) -> Database:
    """A database that is waited for as long as it takes, however busy its machine is."""
    return Database(database_url, read_timeout_seconds=None, timeout_seconds=SERVER_SECONDS)


@dataclass
class Stack:
    """Services that run, and a client of a user."""

    services: Services
    app: Any
    data: Path
    clock: ManualClock | None
    client: httpx2.AsyncClient = field(init=False)
    _scraper: httpx2.AsyncClient | None = None

    async def client_of(
        self, user_id: str, *, admin: bool = False, total_space: int | None = None
    ) -> httpx2.AsyncClient:
        """A client with a token of its own; the caller closes it, or leaves that to the end of the test."""
        token = await self.services.accounts.create_token(user_id, admin=admin, total_space=total_space)
        return self._client(token)

    def _client(self, token: str | None) -> httpx2.AsyncClient:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        transport = httpx2.ASGITransport(app=self.app, raise_app_exceptions=True)
        return httpx2.AsyncClient(transport=transport, base_url="http://test", headers=headers)

    def anonymous(self) -> httpx2.AsyncClient:
        return self._client(None)

    async def metrics(self) -> str:
        """What `/metrics` tells whoever has a token for it."""
        if self._scraper is None:
            self._scraper = self._client(
                await self.services.accounts.create_token("alice", admin=False, scope="metrics")
            )
        response = await self._scraper.get("/metrics")
        assert response.status_code == 200, response.text
        return response.text

    async def open(self, content: Content, client: httpx2.AsyncClient | None = None, **more: Any) -> httpx2.Response:
        body = {"name": content.name, "size": content.size, "chunk_size": content.chunk_size, **more}
        return await (client or self.client).post(f"/files/{content.md5}", json=body)

    async def put(
        self, content: Content, number: int, client: httpx2.AsyncClient | None = None, **more: Any
    ) -> httpx2.Response:
        url = f"/files/{content.md5}/chunks/{number}"
        return await (client or self.client).put(url, content=content.chunk(number), **more)

    async def upload(self, content: Content, client: httpx2.AsyncClient | None = None, **more: Any) -> httpx2.Response:
        """Open and send every chunk; the answer to the last one (or to the opening, if that completed it)."""
        response = await self.open(content, client, **more)
        for number in range(content.chunk_count if response.json().get("state") == "uploading" else 0):
            response = await self.put(content, number, client)
        return response

    async def usage(self, user_id: str) -> dict[str, int]:
        """The accounts of a user as they stand in the database."""
        of = await self.services.files.usage(user_id)
        return {"finished": of.use_space_finished, "unfinished": of.use_space_unfinished, "reserved": of.reserved}

    def bytes_on_disk(self) -> list[Path]:
        """Every file under temp and blobs, but for the checksums of what is there."""
        files = {path for name in ("temp", "blobs") for path in (self.data / name).rglob("*") if path.is_file()}
        return sorted(path for path in files if path.suffix != ".checksums" or path.with_suffix("") not in files)


def go_on(stack: Stack) -> None:
    """After `storage.stop()`: long work need not end any more."""
    storage = stack.services.storage
    assert isinstance(storage, LocalStore)
    storage._stopping.clear()


@asynccontextmanager
async def without_database(stack: Stack) -> AsyncIterator[None]:
    """Within, its SQLite can't be opened, though it is there."""
    engine = stack.services.database.engine

    def refuse(*_: Any, **__: Any) -> None:
        raise sqlite3.OperationalError("unable to open database file")

    await engine.dispose()
    with patch.object(engine.dialect, "connect", refuse):
        yield


def settings_of_store(data: Path) -> dict[str, Any]:
    """Where bytes are: below `data`; or, for .ci/run, in a bucket, under a prefix for each `data`."""
    gateway = gateway_of_tests()
    return {} if gateway is None else settings_of(gateway.address(prefix_of(data)))


@asynccontextmanager
async def running_stack(
    data: Path,
    database_url: str,
    redis_url: str,
    *,
    jobs: bool = False,
    clock: ManualClock | None = None,
    adopts: bool = False,
    **settings: Any,
) -> AsyncIterator[Stack]:
    """A stack with the user `alice`; `settings` are fields of Settings. `adopts`: data, database and Redis belong together
    from now on, whatever they say."""
    defaults: dict[str, Any] = {"free_space_floor_bytes": 0, "min_chunk_size_bytes": 64 << 10}
    defaults |= STORES_TIME
    defaults |= settings_of_store(data)
    in_force = Settings(data=data, database_url=database_url, redis_url=redis_url, **(defaults | settings))
    services = Services(in_force, clock)
    if adopts:
        await services.installation.adopt()
    async with running(services, jobs=jobs):
        app = build_application(services)
        stack = Stack(services, app, data, clock)
        stack.client = await stack.client_of("alice", total_space=10 * GIB)
        yield stack
