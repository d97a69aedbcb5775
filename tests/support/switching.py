"""An address behind which one server takes the place of another, as that of a proxy or of a name does.

`python -m tests.support.switching PORT TARGET` is one as a process of its own; `SwitchProcess` tells it where to lead.
"""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from uploader.runtime.embedded import end_with_parent


class Left(StrEnum):
    """What becomes of the connections that there are when the address moves."""

    KEPT = "kept"  # to the server of their time
    CUT = "cut"
    SILENT = "silent"  # open, and nobody answers any more: a machine that is gone


@dataclass(eq=False)
class _Link:
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    is_silent: bool = False


class Switch:
    """Passes connections on to a port of this machine."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self._links: set[_Link] = set()

    def lead_to(self, target: int, left: Left) -> None:
        """New connections go to `target`."""
        self.target = target
        for link in self._links:
            match left:
                case Left.CUT:
                    link.client.transport.abort()
                    link.server.transport.abort()
                case Left.SILENT:
                    link.is_silent = True
                    link.server.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(writer, server_writer)
        self._links.add(link)
        await asyncio.gather(_from_client(link, reader), _from_server(link, server_reader), return_exceptions=True)
        self._links.discard(link)


async def _from_client(link: _Link, reader: asyncio.StreamReader) -> None:
    try:
        while content := await reader.read(1 << 16):
            if not link.is_silent:
                link.server.write(content)
                await link.server.drain()
    finally:
        link.server.close()
        link.client.close()


async def _from_server(link: _Link, reader: asyncio.StreamReader) -> None:
    try:
        while content := await reader.read(1 << 16):
            link.client.write(content)
            await link.client.drain()
    finally:
        if not link.is_silent:
            link.client.close()


@asynccontextmanager
async def switched(target: int, port: int = 0) -> AsyncIterator[Switch]:
    """A switch that leads to `target` at first; `port`: 0 for a free one."""
    switch = Switch(target)
    async with await asyncio.start_server(switch.serve, "127.0.0.1", port) as listener:
        switch.port = listener.sockets[0].getsockname()[1]
        yield switch


class SwitchProcess:
    """A switch beside this process, so that neither waits for the other."""

    def __init__(self, port: int, target: int) -> None:
        """Ready when this returns. It ends with the thread that started it."""
        command = [sys.executable, "-m", "tests.support.switching", str(port), str(target)]
        self._process = subprocess.Popen(
            command,
            cwd=Path(__file__).parents[2],
            preexec_fn=end_with_parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._wait()

    def lead_to(self, target: int, left: Left) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{target} {left}\n".encode())
        self._process.stdin.flush()
        self._wait()

    def _wait(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"done\n"

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


async def _run(port: int, target: int) -> None:
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    async with switched(target, port) as switch:
        print("done", flush=True)
        while order := await orders.readline():
            new_target, left = order.decode().split()
            switch.lead_to(int(new_target), Left(left))
            print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(_run(*map(int, sys.argv[1:])))
