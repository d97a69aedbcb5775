"""One connection to a Redis for all calls of a process: those of one turn of the event loop go together.

redis-py costs several times as much per call, and a chunk is one call. It still finds the server, logs in and pools the
connections for everything else; this module takes over one connection once redis-py has made it. To do so it touches private
parts of redis-py, which `tests/unit/test_private_parts.py` names.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import hiredis
from redis.asyncio.connection import AbstractConnection, DefaultParser
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from uploader.tasks import ended

# Calls whose replies are outstanding. A call beyond takes a connection of the pool, or waits for one.
_MAX_OUTSTANDING = 1000


def packed_script(sha: str, numkeys: int, keys_and_args: Sequence[Any]) -> bytes:
    """The command that runs a script, as it is sent."""
    command: bytes = hiredis.pack_command(("EVALSHA", sha, numkeys, *keys_and_args))
    return command


class Pipeline:
    """The pipe to one server, made when it is first needed, and anew when it was lost."""

    def __init__(self, connection_class: type[AbstractConnection], options: Mapping[str, Any]) -> None:
        """`options`: those of redis-py for its connections."""
        self._connection_class = connection_class
        self._options = options
        self._pipe: _Pipe | None = None
        self._connecting: asyncio.Task[_Pipe] | None = None
        self._closed = False

    @property
    def is_connected(self) -> bool:
        """Whether a call need not wait for a connection."""
        return self._pipe is not None and not self._pipe.lost

    async def call(self, command: bytes) -> Any:
        """The reply. Raises PipelineFull, and as redis-py."""
        pipe = self._pipe
        if pipe is None or pipe.lost:
            pipe = await self._connect()
        return await pipe.call(command)

    async def _connect(self) -> "_Pipe":
        """All calls that wait for a connection share one attempt to make it."""
        if self._closed:
            raise RedisConnectionError("The client is closed.")
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._make_pipe(), name="connecting to redis")
        connecting = self._connecting
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if connecting.cancelled() and caller is not None and not caller.cancelling():  # by `aclose`
                raise RedisConnectionError("The client is closed.") from None
            raise

    async def _make_pipe(self) -> "_Pipe":
        once = {"retry": Retry(NoBackoff(), 0), "protocol": 2}  # each call tries again by itself
        connection = self._connection_class(**{**self._options, **once})
        try:
            async with asyncio.timeout(self._options["socket_connect_timeout"]):  # with the log-in
                await connection.connect()  # type: ignore[no-untyped-call]
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        writer, connection._writer = connection._writer, None
        assert writer is not None
        self._pipe = _Pipe(writer, connection.socket_timeout)
        return self._pipe

    async def aclose(self) -> None:
        """Every waiting call raises ConnectionError, and each further one."""
        self._closed = True
        if self._connecting is not None:
            await ended(self._connecting)
        if self._pipe is not None:
            self._pipe.end(RedisConnectionError("The client is closed."))


class PipelineFull(Exception):
    """So many replies are outstanding that the pipe sends no more commands."""


class _Pipe(asyncio.Protocol):
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
        """The reply to come. Raises PipelineFull, and ConnectionError if the connection is lost."""
        if self.lost:
            raise RedisConnectionError("The connection was lost.")
        if self._clogged or len(self._outstanding) >= _MAX_OUTSTANDING:
            raise PipelineFull
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
            while not self.lost and (reply := self._parser.gets()) is not False:
                self._take(reply)
        except (RedisError, IndexError) as error:  # the server sent no reply, or one too many
            self.end(RedisConnectionError(f"The server broke the protocol: {error}"))

    def _take(self, reply: Any) -> None:
        waiting, _ = self._outstanding.popleft()
        if isinstance(reply, ReadOnlyError):
            _refuse(waiting, reply)
            self.end(RedisConnectionError("The server takes no writes any more."))
        elif isinstance(reply, Exception):
            _refuse(waiting, reply)
        elif not waiting.done():  # or the call was cancelled
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
        for call, _ in self._outstanding:
            _refuse(call, error)
        self._outstanding.clear()


def _refuse(waiting: "asyncio.Future[Any]", error: Exception) -> None:
    if waiting.done():
        return
    waiting.set_exception(error)
    waiting.exception()  # retrieved, because the call may be cancelled at this moment and never ask
