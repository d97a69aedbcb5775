"""A commit whose answer is lost: nobody knows whether it came."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import URL


class LostCommit:
    """Between a server and its database: loses one connection at its commit, which arrives all the same, later; or never."""

    def __init__(self, url: URL, *, comes: bool) -> None:
        self._url = url
        self._comes = comes
        self._armed = False
        self.arrives = asyncio.Event()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """The URL of the database by this way."""
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as listener:
            try:
                here = self._url.set(host="127.0.0.1", port=listener.sockets[0].getsockname()[1])
                yield here.render_as_string(hide_password=False)
            finally:
                self.arrives.set()

    def arm(self) -> None:
        self._armed = True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, commands = await asyncio.open_connection(self._url.host, self._url.port or 3306)
        answering = asyncio.create_task(self._answer(answers, writer))
        while command := await reader.read(1 << 16):
            if self._armed and command.endswith(b"COMMIT"):
                self._armed = False
                writer.transport.abort()
                if not self._comes:
                    break
                await self.arrives.wait()
            commands.write(command)
        commands.close()
        await answering

    async def _answer(self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while answer := await answers.read(1 << 16):
            if not writer.is_closing():
                writer.write(answer)
        writer.close()
