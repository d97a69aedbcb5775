"""Bodies of which no more comes."""

import asyncio
from typing import Any, Self

import httpx2


class _Stalled(httpx2.AsyncByteStream):
    """No generator: whoever asks for more and gives up finds it as it was, as with a connection."""

    def __init__(self, first: bytes) -> None:
        self._first = first

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        first, self._first = self._first, b""
        if not first:
            await asyncio.Event().wait()
        return first


async def send_stalled(client: httpx2.AsyncClient, method: str, url: str, first: bytes, **options: Any) -> Any:
    """Send a request whose body stands still after its first bytes; the response."""
    request = client.build_request(method, url, **options)
    request.headers.pop("Content-Length", None)  # of no body
    request.stream = _Stalled(first)
    return await client.send(request)
