"""Clients of a stack in this process, and the wire between them, which tests watch and break."""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2

from tests.support.content import KIB
from tests.support.stack import Stack
from uploader.client import AsyncClient, Patience

PATIENCE = Patience(give_up_after_seconds=30, first_pause_seconds=0.01, longest_pause_seconds=0.1)
_CHUNK = re.compile(r"PUT /(?:uploads|files)/(\w+)/chunks/(\d+)")

Hook = Callable[[httpx2.Request], Awaitable[None]]


async def _nothing(_request: httpx2.Request) -> None:
    pass


class Wire(httpx2.AsyncBaseTransport):
    """Carries requests to the application and remembers them. Hooks run before a request and before its answer is
    handed on; what they raise is what the client sees."""

    def __init__(self, stack: Stack) -> None:
        self._inner = httpx2.ASGITransport(app=stack.app)
        self.requests: list[str] = []
        self._handled: set[asyncio.Task[httpx2.Response]] = set()
        self.before: Hook = _nothing
        self.after: Hook = _nothing

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(f"{request.method} {request.url.path}")
        await self.before(request)
        # Here, so that what reading the source raises is the client's, as on a real connection, and not the server's.
        await request.aread()
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

    def count(self, pattern: str) -> int:
        return sum(re.fullmatch(pattern, each) is not None for each in self.requests)


async def client_on(stack: Stack, wire: Wire, user_id: str = "alice", **options: Any) -> AsyncClient:
    """A client of a user; files of more than 256 KiB are large to it."""
    token = await stack.services.accounts.create_token(user_id, admin=False, total_space=None)
    defaults: dict[str, Any] = {"chunk_size": 64 * KIB, "hash_first_bytes": 256 * KIB, "patience": PATIENCE}
    return AsyncClient("http://test", token, http_transport=wire, **(defaults | options))
