"""Webhooks, signed by Standard Webhooks: only to addresses of the settings, with TLS verified."""

import asyncio
import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import cast
from urllib.parse import urlsplit

import httptools

from uploader.runtime.clock import Clock
from uploader.runtime.tasks import in_thread
from uploader.sinks.base import CONTENT_TYPE, Envelope, NotTaken, Outcomes, not_taken
from uploader.sinks.configuration import Signed, signed_headers

_MAX_ANSWER_BYTES = 64 << 10
_OK = 200
# Shorter than servers and proxies keep an idle connection; some drop it without a word.
_MAX_IDLE_SECONDS = 10.0


class NoAnswer(Exception):
    """No answer in time, or not in HTTP; `str` says why."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes


class _Wire(asyncio.Protocol):
    def __init__(self) -> None:
        self.is_open = self._headed = False
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None

    async def exchange(self, request: bytes) -> Answer:
        """Send a request and return the answer. Raises ConnectionError, and any error of the parser."""
        if self._transport is None or not self.is_open:
            raise ConnectionResetError("closed")
        self._parser, self._body, self._headed = httptools.HttpResponseParser(self), bytearray(), False
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._answer
        except BaseException:  # also if the caller is cancelled at the moment of the answer
            self.close()
            raise

    @property
    def _is_answered(self) -> bool:
        return self._answer is None or self._answer.done()

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        if self._is_answered:
            self.close()  # unrequested bytes, which must not count as the answer to the next request
            return
        try:
            self._parser.feed_data(data)
        except Exception as error:  # also HttpParserUpgrade, which is no HttpParserError
            self._fail(error)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._headed and error is None:  # an answer may end with its connection
            self._succeed()
        self._fail(error or ConnectionResetError("closed before an answer"))

    # Called by the parser

    def on_message_begin(self) -> None:
        if self._is_answered:
            self.close()

    def on_headers_complete(self) -> None:
        self._headed = self._parser.get_status_code() >= _OK

    def on_body(self, part: bytes) -> None:
        self._body += part
        if len(self._body) >= _MAX_ANSWER_BYTES:
            self._succeed()
            self.close()

    def on_message_complete(self) -> None:
        if not self._headed:
            return  # an interim response
        keeps = self._parser.should_keep_alive()
        self._succeed()
        if not keeps:
            self.close()

    def _succeed(self) -> None:
        if self._answer is not None and not self._is_answered:
            self._answer.set_result(Answer(self._parser.get_status_code(), bytes(self._body[:_MAX_ANSWER_BYTES])))

    def _fail(self, error: Exception) -> None:
        self.close()
        if self._answer is not None and not self._is_answered:
            self._answer.set_exception(error)


class Poster:
    """HTTP/1.1 over kept connections, for POSTs alone. A general client takes five times the CPU for each request, and
    would need settings against redirects, proxies from the environment and decompression."""

    def __init__(self, url: str, *, timeout_seconds: float) -> None:
        self._parts = urlsplit(url)
        self._timeout_seconds = timeout_seconds
        self._tls: ssl.SSLContext | None = None
        # The longest idle first.
        self._idle: deque[_Wire] = deque()

    async def send(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """Send a POST and return the answer. Raises NoAnswer."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._send(self._request(headers, body))
        except TimeoutError as error:
            self.close()  # other connections may hang for the same reason
            raise NoAnswer(f"no answer within {self._timeout_seconds:g} s") from error
        except Exception as error:
            raise NoAnswer(f"{type(error).__name__}: {error}") from error

    def _request(self, headers: Mapping[str, str], body: bytes) -> bytes:
        target = self._parts.path or "/"
        if self._parts.query:
            target += f"?{self._parts.query}"
        more = {"host": self._parts.netloc, "user-agent": "uploader", "content-length": str(len(body)), **headers}
        lines = [f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in more.items()), "", ""]
        return "\r\n".join(lines).encode() + body

    async def _send(self, request: bytes) -> Answer:
        oldest = asyncio.get_running_loop().time() - _MAX_IDLE_SECONDS
        while self._idle and self._idle[0].idle_since < oldest:
            self._idle.popleft().close()
        while self._idle:
            wire = self._idle.pop()
            with suppress(ConnectionError):  # closed meanwhile; a request that was taken is sent twice
                return await self._exchange(wire, request)
        return await self._exchange(await self._connect(), request)

    async def _exchange(self, wire: _Wire, request: bytes) -> Answer:
        answer = await wire.exchange(request)
        if wire.is_open:
            wire.idle_since = asyncio.get_running_loop().time()
            self._idle.append(wire)
        return answer

    async def _connect(self) -> _Wire:
        secure = self._parts.scheme == "https"
        if secure and self._tls is None:
            self._tls = ssl.create_default_context()
        port = self._parts.port or (443 if secure else 80)
        _, wire = await asyncio.get_running_loop().create_connection(
            _Wire, self._parts.hostname or "", port, ssl=self._tls if secure else None
        )
        return wire

    def close(self) -> None:
        """Close the idle connections."""
        for wire in self._idle:
            wire.close()
        self._idle.clear()


_TIMEOUT_SECONDS = 15.0
_AT_ONCE = 64
_SHOWN_CHARACTERS = 200
# Longer messages are signed in a thread.
_MAX_BYTES_ON_LOOP = 256 << 10


class SignedPost(Poster):
    def __init__(self, to: Signed, clock: Clock, *, timeout_seconds: float) -> None:
        super().__init__(to.url, timeout_seconds=timeout_seconds)
        self._secrets = to.secrets
        self._clock = clock

    async def sign_and_send(self, message_id: str, body: bytes, content_type: str) -> Answer:
        """Sign, send and return the answer. Raises NoAnswer."""
        sign = partial(signed_headers, self._secrets, message_id, self._clock.now(), body)
        headers = sign() if len(body) <= _MAX_BYTES_ON_LOOP else await in_thread(sign)
        return await self.send({**headers, "content-type": content_type}, body)


class WebhookSink:
    batch = _AT_ONCE

    def __init__(self, to: Signed, clock: Clock) -> None:
        self._post = SignedPost(to, clock, timeout_seconds=_TIMEOUT_SECONDS)

    async def deliver(self, envelopes: Sequence[Envelope]) -> Outcomes:
        outcomes = await asyncio.gather(*map(self._deliver, envelopes), return_exceptions=True)
        return [not_taken(outcome) if isinstance(outcome, BaseException) else outcome for outcome in outcomes]

    async def _deliver(self, envelope: Envelope) -> NotTaken | None:
        try:
            answer = await self._post.sign_and_send(envelope.message.id, envelope.body, CONTENT_TYPE)
        except NoAnswer as error:
            return NotTaken(str(error))
        if HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
            return None
        said = answer.body.decode(errors="replace")[:_SHOWN_CHARACTERS]
        return NotTaken(
            f"{answer.status} {said}".strip(),
            answered=answer.status < HTTPStatus.INTERNAL_SERVER_ERROR and answer.status != HTTPStatus.TOO_MANY_REQUESTS,
            gone=answer.status == HTTPStatus.GONE,
        )

    async def close(self) -> None:
        self._post.close()
