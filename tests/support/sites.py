"""A server in this process, whose requests the test holds in its hands, for pages and terminals."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from tests.conftest import MakeStack
from tests.support.content import MIB, Content
from tests.support.sockets import Server, serving_stack
from tests.support.stack import Stack
from tests.support.waiting import eventually

# As many chunks as the page sends at once, and as many batches.
CONNECTIONS, BATCHES_AT_ONCE = 4, 2
_CHUNK = re.compile(r"/(?:uploads|files)/\w+/chunks/\d+")
_PROBLEM = b'{"code": "unavailable", "detail": "The database is away.", "retryable": true, "status": 503}'
# What the page sends to learn whether it may send batches is smaller.
_PROBE_BYTES = 1024


# Below which the pages are tested; without one they are the same but for it.
PREFIX = "/store"


class Gate:
    """Stands before the application: some requests wait while it is closed. Its paths are those without the prefix."""

    def __init__(self, app: ASGIApp, concerns: Callable[[Scope], object]) -> None:
        self._app = app
        self._concerns = concerns
        self._allowed = asyncio.Semaphore(0)
        self._open = asyncio.Event()
        self._open.set()
        self._is_away = False
        # By the last part of the address.
        self.begun: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        # All requests.
        self.asked: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").removeprefix(PREFIX)
        self.asked.append(f"{scope.get('method')} {path}")
        if not self._concerns({**scope, "path": path}):
            await self._app(scope, receive, send)
            return
        last = path.rpartition("/")[2]
        self.begun[last] += 1
        if not self._open.is_set():
            passing = [asyncio.ensure_future(self._allowed.acquire()), asyncio.ensure_future(self._open.wait())]
            await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
            for future in passing:
                future.cancel()
        try:
            await (_refuse(receive, send) if self._is_away else self._app(scope, receive, send))
        finally:
            self.ended[last] += 1

    def close(self, but: int = 0) -> None:
        """Let so many pass."""
        self._allowed = asyncio.Semaphore(but)
        self._open.clear()

    def let_pass(self, count: int) -> None:
        for _ in range(count):
            self._allowed.release()

    def open(self) -> None:
        self._is_away = False
        self._open.set()

    def refuse(self) -> None:
        """Say of all, also of those that wait, that they may come again."""
        self._is_away = True
        self._open.set()

    async def wait_until_ended(self, count: int) -> None:
        async def so_many() -> bool:
            return self.ended.total() >= count

        await eventually(so_many)

    async def wait_until_held(self, count: int = CONNECTIONS) -> None:
        """Until so many are on their way, and none of them arrives."""

        async def all_held() -> bool:
            return self.begun.total() - self.ended.total() >= count

        await eventually(all_held)


async def _refuse(receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(_PROBLEM)).encode())]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": _PROBLEM})


def is_chunk(scope: Scope) -> bool:
    return scope.get("method") == "PUT" and _CHUNK.fullmatch(scope["path"]) is not None


def is_batch(scope: Scope) -> bool:
    return scope.get("path") == "/files/batch" and int(dict(scope["headers"])[b"content-length"]) > _PROBE_BYTES


@dataclass
class Site:
    """A server, and what its users have."""

    server: Server
    gate: Gate

    @property
    def url(self) -> str:
        return f"{self.server.url}{PREFIX}"

    @property
    def stack(self) -> Stack:
        return self.server.stack

    async def token(self, user_id: str = "alice", *, admin: bool = False, total_space: int | None = None) -> str:
        return await self.stack.services.accounts.create_token(user_id, admin=admin, total_space=total_space)

    async def give_space(self, user_id: str, total_space: int) -> None:
        root = await self.stack.client_of("root", admin=True)
        assert (await root.put(f"/admin/users/{user_id}", json={"total_space": total_space})).status_code == 200

    async def files(self, user_id: str = "alice") -> list[dict[str, Any]]:
        client, files, after = await self.stack.client_of(user_id), list[dict[str, Any]](), ""
        while True:
            page = (await client.get(f"/me/files?limit=1000{after}")).json()
            files += page["files"]
            if page["next"] is None:
                return files
            after = f"&after={page['next']}"

    async def sha256s(self, user_id: str = "alice") -> dict[str, str]:
        """The contents of the files of a user by their names."""
        return {file["name"]: file["sha256"] for file in await self.files(user_id)}

    async def sizes(self, user_id: str) -> list[tuple[str, int]]:
        return sorted((file["name"], file["size"]) for file in await self.files(user_id))

    async def until_there_are(self, *names: str) -> None:
        async def so() -> bool:
            return sorted(file["name"] for file in await self.files()) == sorted(names)

        await eventually(so)


@asynccontextmanager
async def a_site(
    make_stack: MakeStack, *, concerns: Callable[[Scope], object] = is_chunk, **settings: Any
) -> AsyncIterator[Site]:
    """A site whose gate holds requests that `concerns` finds."""
    gates: list[Gate] = []

    def around(app: ASGIApp) -> ASGIApp:
        gates.append(Gate(app, concerns))
        return gates[0]

    settings |= {"public_url": f"http://127.0.0.1{PREFIX}"}
    settings = {"jobs": True, "durability": "process", "chunk_size_bytes": MIB, **settings}
    async with serving_stack(make_stack, around=around, **settings) as server:
        try:
            yield Site(server, gates[0])
        finally:
            gates[0].open()


def a_file(path: Path, content: Content | bytes) -> Path:
    """Write one, and the folders that it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.data if isinstance(content, Content) else content)
    return path
