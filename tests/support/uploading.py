"""Clients of a stack in this process, and the wire between them, which tests watch and break."""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest

from tests.support.content import KIB
from tests.support.stack import Stack
from tests.support.waiting import eventually
from uploader.cli.client.events import Event
from uploader.cli.client.reporters import Reporter
from uploader.client import AsyncClient, AsyncTransfer, Patience, Stopped

PATIENCE = Patience(give_up_after_seconds=300, first_pause_seconds=0.01, longest_pause_seconds=0.1)
_CHUNK = re.compile(r"PUT /(?:uploads|files)/(\w+)/chunks/(\d+)")

Hook = Callable[[httpx2.Request], Awaitable[None]]


async def nothing(_request: httpx2.Request) -> None:
    pass


def is_chunk(request: httpx2.Request, number: int | None = None) -> bool:
    return request.method == "PUT" and (number is None or request.url.path.endswith(f"/chunks/{number}"))


class Wire(httpx2.AsyncBaseTransport):
    """Carries requests to the application and remembers them. Hooks run before a request and before its answer is
    handed on; what they raise is what the client sees."""

    def __init__(self, stack: Stack) -> None:
        self._inner = httpx2.ASGITransport(app=stack.app)
        self.requests: list[str] = []
        self._handled: set[asyncio.Task[httpx2.Response]] = set()
        self.before: Hook = nothing
        self.after: Hook = nothing
        # A proxy before the server takes no longer bodies.
        self.most_body_bytes: int | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(f"{request.method} {request.url.path}")
        await self.before(request)
        # Here, so that what reading the source raises is the client's, as on a real connection, and not the server's.
        body = await request.aread()
        if self.most_body_bytes is not None and len(body) > self.most_body_bytes:
            return httpx2.Response(413, text="<h1>413 Request Entity Too Large</h1>")
        # A server goes on with a request whose client went away.
        handling = asyncio.create_task(self._inner.handle_async_request(request))
        self._handled.add(handling)
        response = await asyncio.shield(handling)
        await self.after(request)
        return response

    async def aclose(self) -> None:
        await asyncio.gather(*self._handled, return_exceptions=True)

    def chunks_sent(self) -> Counter[tuple[str, int]]:
        """How often each chunk of each upload was sent."""
        matches = [_CHUNK.fullmatch(each) for each in self.requests]
        return Counter((match[1], int(match[2])) for match in matches if match is not None)

    def hold_chunks(self, after: int) -> None:
        """Let so many pass, and no other one arrive."""

        async def before(request: httpx2.Request) -> None:
            if is_chunk(request) and self.chunks_sent().total() > after:
                await asyncio.Event().wait()

        self.before = before

    def count(self, pattern: str) -> int:
        return sum(re.fullmatch(pattern, each) is not None for each in self.requests)


class Listening(Reporter):
    """Hears what a command would tell."""

    def __init__(self) -> None:
        self.heard: list[Event] = []

    def show(self, event: Event) -> None:
        self.heard.append(event)


async def arrived(transfer: AsyncTransfer[Any], chunks: int) -> None:
    """Wait until the server has so many chunks of 64 KiB."""

    async def so_many() -> bool:
        return transfer.progress.received_bytes >= chunks * 64 * KIB

    await eventually(so_many)


async def stopped(transfer: AsyncTransfer[Any]) -> None:
    await transfer.stop()
    with pytest.raises(Stopped):
        await transfer


async def client_on(stack: Stack, wire: Wire, user_id: str = "alice", **options: Any) -> AsyncClient:
    """A client of a user; files of more than 256 KiB are large to it."""
    token = await stack.services.accounts.create_token(user_id, admin=False, total_space=None)
    defaults: dict[str, Any] = {"chunk_size": 64 * KIB, "hash_first_bytes": 256 * KIB, "patience": PATIENCE}
    return AsyncClient("http://test", token, http_transport=wire, **(defaults | options))
