"""Sends the scripts of a process over one connection, those of one turn of the event loop together.

redis-py costs ten times as much per call, and a chunk is one call. It still finds the server, logs in and pools the
connections for everything else; here is only what happens on a connection that stands.
"""

import asyncio
from collections import deque
from typing import Any

import hiredis
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection, DefaultParser
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from uploader.tasks import ended

# Calls whose replies are outstanding; what comes beyond takes a connection of the pool, or waits for one.
_MAX_OUTSTANDING = 1000


class PipelinedRedis(Redis):
    """A client of one server whose scripts share a connection."""

    _link: "_Link | None" = None
    _connecting: "asyncio.Task[_Link] | None" = None
    _closed = False

    async def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any:
        """As of redis-py, with its retries: for scripts that may be run twice."""
        command = hiredis.pack_command(("EVALSHA", sha, numkeys, *keys_and_args))
        retry: Retry = self.connection_pool.connection_kwargs["retry"]
        try:
            return await retry.call_with_retry(lambda: self._call(command), _try_again)
        except _Full:
            return await super().evalsha(sha, numkeys, *keys_and_args)

    async def _call(self, command: bytes) -> Any:
        link = self._link
        if link is None or link.lost:
            link = await self._connect()
        return await link.call(command)

    async def _connect(self) -> "_Link":
        """One at a time, for all that wait for it."""
        if self._closed:
            raise RedisConnectionError("The client is closed.")
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._make_link(), name="connecting to redis")
        return await asyncio.shield(self._connecting)

    async def _make_link(self) -> "_Link":
        pool = self.connection_pool
        once = {"retry": Retry(NoBackoff(), 0), "protocol": 2}  # the callers try again themselves
        connection: AbstractConnection = pool.connection_class(**{**pool.connection_kwargs, **once})
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        writer, connection._writer = connection._writer, None
        assert writer is not None
        self._link = _Link(writer, connection.socket_timeout)
        return self._link

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        self._closed = True
        if self._connecting is not None:
            await ended(self._connecting)
        if self._link is not None:
            self._link.end(RedisConnectionError("The client is closed."))
        await super().aclose(close_connection_pool)


async def _try_again(_error: Exception) -> None:
    """Nothing to tidy up: a connection that was lost is replaced by the next call."""


class _Full(Exception):
    """So much is outstanding that no more is sent."""


class _Link(asyncio.Protocol):
    """A connection that redis-py made and logged in, taken over from it: replies come in the order of the commands."""

    def __init__(self, writer: asyncio.StreamWriter, timeout_seconds: float | None) -> None:
        self._timeout_seconds = timeout_seconds
        self._loop = asyncio.get_running_loop()
        self._writer = writer  # it closes the transport when nobody refers to it
        self._transport = writer.transport
        self._transport.set_protocol(self)
        self._parser = hiredis.Reader(protocolError=InvalidResponse, replyError=DefaultParser.parse_error)
        self._unsent: list[bytes] = []
        # Of all that was sent or is about to be, with the time; a caller that is gone stays, so that its reply finds it.
        self._outstanding: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._watch: asyncio.TimerHandle | None = None
        self._clogged = False
        self.lost = False

    def call(self, command: bytes) -> "asyncio.Future[Any]":
        """The reply to come. Raises _Full, and ConnectionError if the connection is lost."""
        if self.lost:
            raise RedisConnectionError("The connection was lost.")
        if self._clogged or len(self._outstanding) >= _MAX_OUTSTANDING:
            raise _Full
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent.append(command)
        reply = self._loop.create_future()
        now = self._loop.time()
        self._outstanding.append((reply, now))
        if self._watch is None and self._timeout_seconds is not None:
            self._watch = self._loop.call_at(now + self._timeout_seconds, self._look_for_late_replies)
        return reply

    def _send(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self.lost:
            return
        try:
            self._transport.write(b"".join(unsent))
        except (OSError, RuntimeError) as error:  # it is closing, and connection_lost still to come
            self.end(RedisConnectionError(f"Error while writing: {error}"))

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed(data)
            while (reply := self._parser.gets()) is not False:
                self._take(reply)
        except (RedisError, IndexError) as error:  # this is no reply, or nobody asked for it
            self.end(RedisConnectionError(f"The server broke the protocol: {error}"))

    def _take(self, reply: Any) -> None:
        waiting, _ = self._outstanding.popleft()
        if waiting.done():
            return  # its caller is gone
        if isinstance(reply, Exception):
            _refuse(waiting, reply)
        else:
            waiting.set_result(reply)

    def _look_for_late_replies(self) -> None:
        """One timer for all: the first reply that is outstanding is the oldest."""
        self._watch = None
        if self.lost or not self._outstanding or self._timeout_seconds is None:
            return
        due = self._outstanding[0][1] + self._timeout_seconds
        if due <= self._loop.time():
            self.end(RedisTimeoutError("The server does not answer."))
        else:
            self._watch = self._loop.call_at(due, self._look_for_late_replies)

    def pause_writing(self) -> None:
        self._clogged = True

    def resume_writing(self) -> None:
        self._clogged = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(RedisConnectionError(f"The server closed the connection: {exc}"))

    def end(self, error: RedisError) -> None:
        """Let go of the connection; whoever waits gets `error`."""
        if self.lost:
            return
        self.lost = True
        if self._watch is not None:
            self._watch.cancel()
        self._transport.abort()
        for waiting, _ in self._outstanding:
            if not waiting.done():
                _refuse(waiting, error)
        self._outstanding.clear()


def _refuse(waiting: "asyncio.Future[Any]", error: Exception) -> None:
    waiting.set_exception(error)
    waiting.exception()  # seen: its caller may be cancelled at this moment
