"""Honest clients: each sends chunk after chunk over one connection, and says how long each took."""

import asyncio
import hashlib
import json
import time

from tests.support.content import KIB

CHUNK_BYTES = 256 * KIB
_CHUNKS = 64
_CLIENTS = 4
_THINK_SECONDS = 0.02


async def send_for(seconds: float, port: int, token: str, salt: str) -> tuple[list[float], int]:
    """The milliseconds of each chunk, and how many requests failed."""
    clients = [_Client(port, token, f"{salt}/{number}") for number in range(_CLIENTS)]
    await asyncio.gather(*(client.send_for(seconds) for client in clients))
    return [took for client in clients for took in client.took_ms], sum(client.failures for client in clients)


class _Client:
    def __init__(self, port: int, token: str, salt: str) -> None:
        self._port = port
        self._token = token
        self._salt = salt
        self.took_ms: list[float] = []
        self.failures = 0

    async def send_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        upload = 0
        while time.monotonic() < end:
            upload += 1
            # The content is never finished, so its MD5 need not be right.
            md5 = hashlib.md5(f"{self._salt}/{upload}".encode(), usedforsecurity=False).hexdigest()
            size = (_CHUNKS + 1) * CHUNK_BYTES
            opening = json.dumps({"name": "a", "size": size, "chunk_size": CHUNK_BYTES}).encode()
            await self._request(reader, writer, "POST", f"/files/{md5}", opening, 201)
            for number in range(_CHUNKS):
                begin = time.perf_counter()
                await self._request(reader, writer, "PUT", f"/files/{md5}/chunks/{number}", bytes(CHUNK_BYTES), 200)
                self.took_ms.append((time.perf_counter() - begin) * 1000)
                await asyncio.sleep(_THINK_SECONDS)
                if time.monotonic() > end:
                    break
            await self._request(reader, writer, "DELETE", f"/files/{md5}", b"", 204)
        writer.close()
        await writer.wait_closed()

    async def _request(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        method: str,
        path: str,
        body: bytes,
        wanted: int,
    ) -> None:
        head = f"{method} {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {self._token}\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = answer.partition("content-length: ")[2].partition("\r\n")[0]
        await reader.readexactly(int(length or 0))
        self.failures += int(answer.split()[1]) != wanted
