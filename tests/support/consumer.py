"""An HTTP server that is told of events, as whoever runs one would write it; it can be made to refuse and to hang."""

import asyncio
import base64
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from ssl import SSLContext
from typing import Any

SECRETS = ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD")


@dataclass(frozen=True)
class Request:
    """One that was answered, or is to be."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> Any:
        return json.loads(self.body)

    def is_signed_with(self, secret: str) -> bool:
        key = base64.b64decode(secret.removeprefix("whsec_"))
        content = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + self.body
        expected = "v1," + base64.b64encode(hmac.digest(key, content, "sha256")).decode()
        return expected in self.headers["webhook-signature"].split(" ")


@dataclass
class Consumer:
    """What it was told, in the order of the requests, and what it answers: `status`, with `body` and more `head`."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    status: int = 204
    body: bytes = b""
    head: str = ""
    # Of those that are still to be answered.
    going_on: asyncio.Event = field(default_factory=asyncio.Event)
    # Is done before each answer.
    before_answer: Callable[[], Awaitable[None]] | None = None
    waiting: int = 0

    @property
    def events(self) -> list[Any]:
        return [request.event for request in self.requests]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Cancelled: its loop ends before its clients do.
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.requests.append(Request(head[0].split(" ")[1], headers, body))
                self.waiting += 1
                await self.going_on.wait()
                if self.before_answer is not None:
                    await self.before_answer()
                self.waiting -= 1
                length = f"Content-Length: {len(self.body)}\r\n"
                writer.write(f"HTTP/1.1 {self.status} So\r\n{length}{self.head}\r\n".encode() + self.body)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def consuming(ssl: SSLContext | None = None, port: int = 0) -> AsyncIterator[Consumer]:
    """A server that runs meanwhile."""
    consumer = Consumer()
    consumer.going_on.set()
    server = await asyncio.start_server(consumer.serve, "127.0.0.1", port, ssl=ssl)
    consumer.url = f"{'http' if ssl is None else 'https'}://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    try:
        yield consumer
    finally:
        consumer.going_on.set()
        server.close()


def events_file(directory: Path, text: str) -> Path:
    """The file of UPLOADER_EVENTS, beside the two secrets `new` and `old`."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, secret in zip(("new", "old"), SECRETS, strict=True):
        (directory / f"{name}.secret").write_text(secret)
    path = directory / "events.toml"
    path.write_text(text)
    return path


def webhook(name: str, url: str, *, types: str = "", secrets: str = '"new.secret"') -> str:
    """The table of a webhook."""
    told = f"types = {types}\n" if types else ""
    return f'[sinks.{name}]\ntype = "webhook"\nurl = "{url}"\nsecret_file = {secrets}\n{told}'


def asked_of(url: str, on_failure: str = "refuse") -> str:
    """The table of a pre-create hook."""
    return f'[pre_create]\nurl = "{url}"\nsecret_file = "new.secret"\non_failure = "{on_failure}"\n'
