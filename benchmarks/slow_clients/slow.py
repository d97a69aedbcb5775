"""Slow clients, in a process of their own: `python -m benchmarks.slow_clients.slow`, told on standard input what to do.

A quarter each sends headers, sends a chunk's body, says nothing, or takes an answer; a byte a second, and again from the
start as often as the server ends it. They come one after the other, so that they are not ended all at once, either.
Ends with its standard input.
"""

import asyncio
import json
import resource
import socket
import sys
from contextlib import suppress

# The upload that each of their users has open.
SLOW_MD5, SLOW_BYTES = "0" * 32, 65536
_SECONDS_A_BYTE = 1.0
_ARRIVAL_SECONDS = 10.0


class Crowd:
    """All slow clients."""

    def __init__(self, port: int, tokens: list[str], file_id: str, count: int) -> None:
        self._address = ("127.0.0.1", port)
        self._tokens = tokens
        self._file_id = file_id
        self._count = count
        self.complete = asyncio.Event()
        self.connected = 0
        self.refused = 0

    async def run(self, number: int) -> None:
        """One client, for ever."""
        await asyncio.sleep(_ARRIVAL_SECONDS * number / self._count)
        token = self._tokens[number // 4 % len(self._tokens)]
        head = f"Host: a\r\nAuthorization: Bearer {token}\r\n"
        what = (
            (f"GET /me/usage HTTP/1.1\r\n{head}X-Slow: ", True),
            (f"PUT /files/{SLOW_MD5}/chunks/0 HTTP/1.1\r\n{head}Content-Length: {SLOW_BYTES}\r\n\r\n", True),
            ("", False),
            (f"GET /me/files/{self._file_id}/content HTTP/1.1\r\n{head}\r\n", False),
        )[number % 4]
        while True:
            with suppress(OSError):
                await self._once(*what, reads=number % 4 == 3)
            await asyncio.sleep(0.2)

    async def _once(self, start: str, sends: bool, *, reads: bool) -> None:
        loop = asyncio.get_running_loop()
        with socket.socket() as connection:
            connection.setblocking(False)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await loop.sock_connect(connection, self._address)
            self.connected += 1
            if self.connected >= 0.95 * self._count:
                self.complete.set()
            try:
                await loop.sock_sendall(connection, start.encode())
                while True:
                    await asyncio.sleep(_SECONDS_A_BYTE)
                    if sends:
                        await loop.sock_sendall(connection, b"x")
                    elif reads:
                        await loop.sock_recv(connection, 1)
                    if not reads:
                        self._look(connection)
            finally:
                self.connected -= 1

    def _look(self, connection: socket.socket) -> None:
        """Notice an answer, or the end."""
        try:
            answer = connection.recv(4096)
        except BlockingIOError:
            return
        if b" 503 " in answer[:20]:
            self.refused += 1
        raise ConnectionError


async def main() -> None:
    told = json.loads(sys.stdin.readline())
    crowd = Crowd(told["port"], told["tokens"], told["file_id"], told["count"])
    tasks = [asyncio.create_task(crowd.run(number)) for number in range(told["count"])]
    await crowd.complete.wait()
    print("connected", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(json.dumps({"connected": crowd.connected, "refused": crowd.refused}), flush=True)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


if __name__ == "__main__":
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(main())
