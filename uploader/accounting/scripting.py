"""Runs the Lua scripts: over one connection, those of one turn of the event loop together.

redis-py costs ten times as much per call, and a chunk is one call. It still finds the server, logs in and pools the
connections for everything else; this module takes over one connection once redis-py has made it. To do so it touches private
parts of redis-py, which `tests/unit/test_private_parts.py` names.
"""

import asyncio
import hashlib
import logging
import re
from collections import deque
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import hiredis
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.connection import AbstractConnection, DefaultParser
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from uploader.accounting.keys import FORMAT
from uploader.errors import Unavailable
from uploader.tasks import ended

logger = logging.getLogger(__name__)

RedisConnection = Redis | RedisCluster

# What the client raises when the server is away. RuntimeError is what uvloop raises if a connection closes while a command
# is written to it.
AWAY = (RedisError, OSError, TimeoutError, RuntimeError)

_FOLDER = files("uploader.accounting.scripts")
PRELUDES = ("_delay.lua", "_era.lua", "_upload.lua")
_COMMENT = re.compile(r"^ *--.*\n", re.MULTILINE)
_DEFINITION = re.compile(r"^(?=local (?:function )?(\w+))", re.MULTILINE)
# Calls whose replies are outstanding. A call beyond takes a connection of the pool, or waits for one.
_MAX_OUTSTANDING = 1000


class Script:
    """One verb: a Lua file with what it needs of the preludes before it, run by its SHA-1 and loaded where the server does
    not have it (`EVALSHA`, `EVAL`)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.source = assembled(*((_FOLDER / part).read_text() for part in (*PRELUDES, f"{name}.lua")))
        # Redis names scripts by their SHA-1; nothing secret hangs on it.
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    async def run(self, redis: RedisConnection, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """The script's reply. Every script is idempotent, so the client's own retries are safe.

        Raises Unavailable if Redis is away.
        """
        try:
            try:
                return await redis.evalsha(self.sha, len(keys), *keys, *arguments)
            except NoScriptError:
                return await redis.eval(self.source, len(keys), *keys, *arguments)
        except AWAY as error:
            if isinstance(error, ResponseError):
                # Redis is there and refuses (out of memory, read-only, or a fault in a script): somebody has to look.
                logger.error("Redis refuses a script", extra={"script": self.name, "reason": str(error)})
            raise Unavailable("The accounting store is away; nothing was acknowledged.") from error


def assembled(*parts: str) -> str:
    """The last part with those definitions of the others before it that it names, or that these name: each function that a
    script defines costs every run of it."""
    *preludes, source = (_COMMENT.sub("", part) for part in parts)
    _, *pieces = _DEFINITION.split("\n".join((f"local FORMAT = {FORMAT}", *preludes)))
    for name, definition in reversed(list(zip(pieces[::2], pieces[1::2], strict=True))):
        if re.search(rf"\b{name}\b", source):
            source = definition + source
    return source


def time_argument(now_ms: int | None) -> int | str:
    """What the scripts take as `now_ms`: '' lets them ask Redis `TIME`; tests pass a time."""
    return "" if now_ms is None else now_ms


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
        """All calls that wait for a connection share one attempt to make it."""
        if self._closed:
            raise RedisConnectionError("The client is closed.")
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._make_link(), name="connecting to redis")
        return await asyncio.shield(self._connecting)

    async def _make_link(self) -> "_Link":
        pool = self.connection_pool
        once = {"retry": Retry(NoBackoff(), 0), "protocol": 2}  # each call tries again by itself
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
    """Nothing to tidy up: the next call replaces a lost connection."""


class _Full(Exception):
    """So many replies are outstanding that the link sends no more commands."""


class _Link(asyncio.Protocol):
    """A connection that was taken over from redis-py, logged in. The server replies in the order of the commands."""

    def __init__(self, writer: asyncio.StreamWriter, timeout_seconds: float | None) -> None:
        self._timeout_seconds = timeout_seconds
        self._loop = asyncio.get_running_loop()
        self._writer = writer  # kept, because a writer without references closes its transport
        self._transport = writer.transport
        self._transport.set_protocol(self)
        self._parser = hiredis.Reader(protocolError=InvalidResponse, replyError=DefaultParser.parse_error)
        self._unsent: list[bytes] = []
        # One entry a command, sent or about to be, with its time. A cancelled call keeps its entry, because its reply comes.
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
        except (OSError, RuntimeError) as error:  # the transport closes; `connection_lost` is still to come
            self.end(RedisConnectionError(f"Error while writing: {error}"))

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed(data)
            while (reply := self._parser.gets()) is not False:
                self._take(reply)
        except (RedisError, IndexError) as error:  # the server sent no reply, or one too many
            self.end(RedisConnectionError(f"The server broke the protocol: {error}"))

    def _take(self, reply: Any) -> None:
        waiting, _ = self._outstanding.popleft()
        if waiting.done():
            return  # the call was cancelled
        if isinstance(reply, Exception):
            _refuse(waiting, reply)
        else:
            waiting.set_result(reply)

    def _look_for_late_replies(self) -> None:
        """One timer serves all calls: the first outstanding reply is the oldest."""
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
        """Let go of the connection; every waiting call raises `error`."""
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
    waiting.exception()  # retrieved, because the call may be cancelled at this moment and never ask
