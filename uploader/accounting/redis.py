"""Connects to Redis or Valkey by URL (a server, a Cluster, or the master of Sentinels), runs the Lua scripts, and marks
the keys with the id of their installation."""

import asyncio
import hashlib
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, cached_property, partial
from importlib.resources import files
from typing import Any
from weakref import WeakKeyDictionary

import hiredis
from redis import exceptions
from redis.asyncio import (
    BlockingConnectionPool,
    Connection,
    Redis,
    RedisCluster,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import AbstractConnection, DefaultParser
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.crc import key_slot

from uploader.accounting.keys import FORMAT, INSTALLATION
from uploader.accounting.refusals import RedisTooOld, refusals_of
from uploader.addresses import RedisAddress, RedisKind, Tls, parse_redis_url
from uploader.errors import ConfigurationError, ServerBusy, Unavailable
from uploader.runtime.breaker import MOMENT_SECONDS, Breaker, Silent
from uploader.runtime.observability import Trouble
from uploader.runtime.tasks import ended
from uploader.runtime.wait_budget import LEAST, wait_budget, waiting


def packed_script(sha: str, numkeys: int, keys_and_args: Sequence[Any]) -> bytes:
    """Return the bytes of the command that runs a script."""
    command: bytes = hiredis.pack_command(("EVALSHA", sha, numkeys, *keys_and_args))
    return command


@dataclass(eq=False, repr=False)
class Pipeline:
    """The connection to a server for all scripts of a process. Sends the calls of one turn of the event loop together.

    redis-py costs several times as much per call, and a chunk is one call. redis-py still finds the server, logs in and
    pools connections for everything else. This class takes over a connection of redis-py.
    `tests/unit/test_private_parts.py` names the private parts of redis-py that are used here.
    """

    # redis-py's options for connections.
    connection_class: type[AbstractConnection]
    options: Mapping[str, Any]
    _pipe: "_Pipe | None" = field(default=None, init=False)
    _connecting: "asyncio.Task[_Pipe] | None" = field(default=None, init=False)
    _closed: bool = field(default=False, init=False)

    def send(self, command: bytes) -> "asyncio.Future[Any] | None":
        """Return the future reply; None without a connection."""
        pipe = self._pipe
        return None if pipe is None or pipe.lost else pipe.call(command)

    async def call(self, command: bytes) -> Any:
        """Send a command and return the reply. Raises the errors of redis-py."""
        return await (self.send(command) or (await self._connect()).call(command))

    async def _connect(self) -> "_Pipe":
        """Connect. All waiting calls share one attempt."""
        if self._closed:
            raise exceptions.ConnectionError("The client is closed.")
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._make_pipe(), name="connecting to redis")
            # Retrieve the error: by now all waiting calls may have given up.
            self._connecting.add_done_callback(lambda made: made.cancelled() or made.exception())
        connecting = self._connecting
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if connecting.cancelled() and caller is not None and not caller.cancelling():  # by `aclose`
                raise exceptions.ConnectionError("The client is closed.") from None
            raise

    async def _make_pipe(self) -> "_Pipe":
        once = {"retry": Retry(NoBackoff(), 0), "protocol": 2}  # no retries, because each call retries by itself
        connection = self.connection_class(**{**self.options, **once})
        try:
            async with asyncio.timeout(self.options["socket_connect_timeout"]):  # includes the log-in
                await connection.connect()  # type: ignore[no-untyped-call]
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        writer, connection._writer = connection._writer, None
        assert writer is not None
        self._pipe = _Pipe(writer, connection.socket_timeout)
        return self._pipe

    async def aclose(self) -> None:
        """Close the connection. All waiting and later calls raise ConnectionError."""
        self._closed = True
        if self._connecting is not None:
            await ended(self._connecting)
        if self._pipe is not None:
            self._pipe.end(exceptions.ConnectionError("The client is closed."))


class _Pipe(asyncio.Protocol):
    """A logged-in connection, taken over from redis-py. The server replies in the order of the commands."""

    def __init__(self, writer: asyncio.StreamWriter, timeout_seconds: float | None) -> None:
        self._timeout_seconds = timeout_seconds
        self._loop = asyncio.get_running_loop()
        self._writer = writer  # kept, because a writer without references closes its transport
        self._transport = writer.transport
        self._transport.set_protocol(self)
        self._parser = hiredis.Reader(protocolError=exceptions.InvalidResponse, replyError=DefaultParser.parse_error)
        self._unsent: list[bytes] = []
        # An entry per command, sent or unsent, with the time. A cancelled call keeps its entry, because the reply still
        # comes.
        self._outstanding: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._watch: asyncio.TimerHandle | None = None
        self.lost = False

    def call(self, command: bytes) -> "asyncio.Future[Any]":
        """Return the future reply. Raises ConnectionError if the connection is lost."""
        if self.lost:
            raise exceptions.ConnectionError("The connection was lost.")
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
            self.end(exceptions.ConnectionError(f"Error while writing: {error}"))

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed(data)
            while not self.lost and (reply := self._parser.gets()) is not False:
                self._take(reply)
        except (exceptions.RedisError, IndexError) as error:  # no valid reply, or a reply too many
            self.end(exceptions.ConnectionError(f"The server broke the protocol: {error}"))

    def _take(self, reply: Any) -> None:
        waiting, _ = self._outstanding.popleft()
        if isinstance(reply, exceptions.ReadOnlyError):
            _refuse(waiting, reply)
            self.end(exceptions.ConnectionError("The server takes no writes any more."))
        elif isinstance(reply, Exception):
            _refuse(waiting, reply)
        elif not waiting.done():  # or the call was cancelled
            waiting.set_result(reply)

    def _look_for_late_replies(self) -> None:
        """Check for late replies by one timer for all calls: the first outstanding reply is the oldest."""
        self._watch = None
        if self.lost or not self._outstanding or self._timeout_seconds is None:
            return
        due = self._outstanding[0][1] + self._timeout_seconds
        if due <= self._loop.time():
            self.end(exceptions.TimeoutError("The server does not answer."))
        else:
            self._watch = self._loop.call_at(due, self._look_for_late_replies)

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(exceptions.ConnectionError(f"The server closed the connection: {exc}"))

    def end(self, error: exceptions.RedisError) -> None:
        """Drop the connection. All waiting calls raise `error`."""
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
    waiting.exception()  # retrieved, because the call may be cancelled now and never retrieve it


_STORE = "redis"

RedisConnection = Redis | RedisCluster

# Errors of the client while the server is away. uvloop raises RuntimeError if a connection closes during a write.
AWAY = (exceptions.RedisError, OSError, TimeoutError, RuntimeError)

_FOLDER = files("uploader.accounting.scripts")
PRELUDES = ("_delay.lua", "_era.lua", "_upload.lua")
# The position in a script, dropped from messages: the same error from several scripts counts as one.
_IN_SCRIPT = re.compile(r" script: \S*,? ?on @user_script.*$", re.DOTALL)
_COMMENT = re.compile(r"^ *--.*\n", re.MULTILINE)
_DEFINITION = re.compile(r"^(?=local (?:function )?(\w+))", re.MULTILINE)


@cache
def _preludes() -> tuple[str, ...]:
    return tuple((_FOLDER / part).read_text() for part in PRELUDES)


class Script:
    """A verb: a Lua file with the definitions it uses from the preludes. Runs by SHA-1 (`EVALSHA`), first by `EVAL`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.source = assembled(*_preludes(), (_FOLDER / f"{name}.lua").read_text())
        # Redis names scripts by SHA-1, which needs no security here.
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    async def run(self, redis: RedisConnection, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run the script and return its reply. The client may retry: every script is idempotent. Raises Unavailable."""
        try:
            try:
                reply = await redis.evalsha(self.sha, len(keys), *keys, *arguments)
            except exceptions.NoScriptError:
                reply = await redis.eval(self.source, len(keys), *keys, *arguments)
        except AWAY as error:
            raise away(redis, error) from error
        _worked(redis)
        return reply


# For each client: the fault of a Redis that does not answer, logged once. `Refusals` has the errors of a Redis
# that answers.
_troubles: "WeakKeyDictionary[RedisConnection, Trouble]" = WeakKeyDictionary()
# redis-py's message when no connection came back to the pool in time.
_POOL_FULL = "No connection available"


def _worked(redis: RedisConnection) -> None:
    if (trouble := _troubles.get(redis)) is not None and trouble.is_open:
        trouble.worked()


def away(redis: RedisConnection, error: Exception) -> Unavailable:
    """Return the error to raise for `error`: Redis is away, busy, or refuses a command. Note it; a fault that lasts is
    logged once."""
    refusals = refusals_of(redis)
    code, place = refusals.note(error), f"Redis at {_place_of(redis)}"
    meant: Unavailable
    said = _IN_SCRIPT.sub("", str(error)) or type(error).__name__
    if code is None and said.startswith(_POOL_FULL):
        most = redis.connection_pool.max_connections if isinstance(redis, Redis) else 0
        advice = f"all {most} connections are in use: set UPLOADER_REDIS_CONNECTIONS to {2 * most}"
        kind, message, meant = "full", "Redis is busy", ServerBusy(inside=f"{place}: {advice}")
    else:
        how = "is away" if code is None else f"answers {code}"
        if isinstance(error, exceptions.ReadOnlyError):
            how = "is read-only, as after a failover"
        elif isinstance(error, RedisTooOld):
            how = "is too old"
        kind, message = type(error).__name__, "a store fails"
        meant = Unavailable(f"The accounting store {how}; nothing was acknowledged.", inside=f"{place} {how}: {said}")
    if code is None:
        trouble = _troubles.setdefault(redis, Trouble("redis"))
        meant.is_told = trouble.note(message, kind=kind, reason=meant.reason)
    else:
        meant.is_told = refusals.lasts
    return meant


@contextmanager
def asking(redis: RedisConnection) -> Iterator[None]:
    """Translate the errors of commands to Redis. Raises Unavailable."""
    try:
        yield
    except AWAY as error:
        raise away(redis, error) from error
    _worked(redis)


def is_refusal(error: BaseException | None) -> bool:
    """Return whether Redis rejects the user or password."""
    return isinstance(error, exceptions.AuthenticationError)


def _place_of(redis: RedisConnection) -> str:
    if isinstance(redis, RedisCluster):
        return f"{', '.join(redis.nodes_manager.startup_nodes)} (UPLOADER_REDIS_URL)"
    facts = vars(redis.connection_pool) | redis.connection_pool.connection_kwargs
    if "path" in facts:
        return str(facts["path"])
    if "service_name" in facts:  # the pool of a Sentinel knows the master by name
        asked = [sentinel.connection_pool.connection_kwargs for sentinel in facts["sentinel_manager"].sentinels]
        sentinels = ", ".join(f"{each['host']}:{each['port']}" for each in asked)
        return f"{facts['service_name']} of the Sentinels {sentinels} (UPLOADER_REDIS_URL)"
    return f"{facts['host']}:{facts['port']} (UPLOADER_REDIS_URL)"


def assembled(*parts: str) -> str:
    """Return the last part with the definitions of the other parts that it needs, directly or by other definitions.
    Every definition costs time in every run of a script."""
    *preludes, source = parts
    source = _COMMENT.sub("", source)
    for name, definition in _definitions(*preludes):
        if name.search(source):
            source = definition + source
    return source


@cache
def _definitions(*preludes: str) -> list[tuple[re.Pattern[str], str]]:
    """Return the definitions, the last one first, each with a pattern for its name."""
    plain = (_COMMENT.sub("", part) for part in preludes)
    _, *pieces = _DEFINITION.split("\n".join((f"local FORMAT = {FORMAT}", *plain)))
    pairs = zip(pieces[::2], pieces[1::2], strict=True)
    return [(re.compile(rf"\b{name}\b"), definition) for name, definition in pairs][::-1]


def answering(timeout_seconds: float) -> AbstractAsyncContextManager[None]:
    """Limit the time of a call of Redis, including retries and new connections. Raises TimeoutError of redis-py."""
    return waiting(_STORE, timeout_seconds, exceptions.TimeoutError)


def time_argument(now_ms: int | None) -> int | str:
    """Return the argument `now_ms` of the scripts: '' for Redis `TIME`; tests pass a time."""
    return "" if now_ms is None else now_ms


@dataclass(eq=False, repr=False)
class _Gate:
    """The breaker of a server, or of the node of a Cluster with a slot. Lets calls through until the server is silent;
    then tries it by `ping` from time to time."""

    ping: Callable[[], Awaitable[Any]]
    ping_seconds: float
    timeout_seconds: float
    breaker: Breaker = field(default_factory=lambda: Breaker(_STORE), init=False)
    _trying: asyncio.Task[None] | None = field(default=None, init=False)

    async def ask(
        self, call: Callable[[], Awaitable[Any]], send: Callable[[], "asyncio.Future[Any] | None"] | None = None
    ) -> Any:
        """Return the reply of `send`, which uses an open connection, or else of `call`, bounded as in `answering`. Tell
        the breaker the outcome. Raises as `check_answers`."""
        if self.breaker.is_open:
            await self.check_answers()
        own, seconds, began = wait_budget(), self.timeout_seconds, time.monotonic()
        left = own.left(_STORE, seconds)
        try:
            try:
                # `send` times out by itself: a timer for each call would cost half as much as the rest of a call.
                sent = send() if send is not None and left == seconds else None
                reply = None if sent is None else await sent
            except exceptions.ConnectionError:  # the server closed the connection meanwhile
                sent = None
            finally:
                own.note(began, seconds * LEAST)
            if sent is None:
                async with answering(seconds):
                    reply = await call()
        except exceptions.TimeoutError as error:
            if sent is not None:
                own.give_up(_STORE)
            if left:  # without time left, the silence was known before
                self.breaker.unanswered(str(error))
            raise
        if self.breaker.unanswered_calls:
            self.breaker.answered()
        return reply

    async def check_answers(self) -> None:
        """Raises TimeoutError of redis-py if the server is known to be silent and does not answer a `ping` at once."""
        if not self.breaker.is_open:
            return
        try:
            if self._trying is None or self._trying.done():
                self.breaker.check()
                self._trying = asyncio.create_task(self._try(), name="asking a silent redis")
            await asyncio.wait({self._trying}, timeout=MOMENT_SECONDS)
            if self.breaker.is_open:
                raise self.breaker.silent()
        except Silent as silent:
            raise exceptions.TimeoutError(f"it {silent}") from None

    async def _try(self) -> None:
        with suppress(Silent, *AWAY), self.breaker.trying():
            async with asyncio.timeout(self.ping_seconds):
                await self.ping()

    async def aclose(self) -> None:
        """End a running `ping`, unless the caller is that `ping`."""
        if self._trying is not None and self._trying is not asyncio.current_task():
            await ended(self._trying)


class PipelinedRedis(Redis):
    """A client of a single server. Scripts share a connection."""

    async def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any:
        """Run a script with redis-py's retries: every script may run twice."""
        command, retry = packed_script(sha, numkeys, keys_and_args), self.connection_pool.connection_kwargs["retry"]
        call = partial(self._pipeline.call, command)
        return await self._gate.ask(
            lambda: retry.call_with_retry(call, _try_again), partial(self._pipeline.send, command)
        )

    async def check_answers(self, _key: str) -> None:
        """Raises TimeoutError of redis-py if the server is known to be silent."""
        await self._gate.check_answers()

    @cached_property
    def _gate(self) -> _Gate:
        seconds: float = self.connection_pool.connection_kwargs["socket_timeout"]
        return _Gate(partial(super().execute_command, "PING"), min(seconds, _CONNECT_SECONDS), seconds)

    @cached_property
    def _pipeline(self) -> Pipeline:
        return Pipeline(self.connection_pool.connection_class, self.connection_pool.connection_kwargs)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command by redis-py. If the server became read-only, drop its connections: new connections may find
        its successor at the same address or by the Sentinels."""
        try:
            return await self._gate.ask(partial(super().execute_command, *args, **options))
        except exceptions.ReadOnlyError:
            await self.connection_pool.disconnect(inuse_connections=False)
            raise

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await self._gate.aclose()
        await self._pipeline.aclose()  # also an unused pipeline, which then refuses later calls
        await super().aclose(close_connection_pool)


async def _try_again(_error: Exception) -> None:
    """Do nothing: the next call replaces a lost connection."""


CONNECTIONS = 64
TIMEOUT_SECONDS = 5.0
# A log-in may take no longer.
_CONNECT_SECONDS = 2.0
# Short, because Sentinels are asked one after the other, and some may hang.
_SENTINEL_SECONDS = 0.5
_PAUSES_SECONDS = (0.01, 0.05, 0.25, 1.0)
# The errors of a Cluster's node that has lost a key, or is down. Then the script may run twice.
_ELSEWHERE = (
    *(exceptions.AskError, exceptions.TryAgainError, exceptions.ClusterDownError, exceptions.ReadOnlyError),
    *(exceptions.ConnectionError, exceptions.TimeoutError, OSError),
)


def connect(url: str, *, connections: int = CONNECTIONS, timeout_seconds: float = TIMEOUT_SECONDS) -> RedisConnection:
    """Return a client for a URL that docs/redis.md allows. It connects at the first use. `connections`: the most, for a
    Cluster to each node, besides the connection of the scripts. Raises ValueError with the fault of the URL."""
    address = parse_redis_url(url)
    options = _options(timeout_seconds) | {"username": address.username, "password": address.password}
    options |= _tls_options(address.tls)
    if address.kind is RedisKind.CLUSTER:
        nodes = [ClusterNode(host, port) for host, port in address.hosts]
        # Half, because each call retries by itself, and other nodes know the successor of a silent node.
        options["socket_timeout"] = timeout_seconds / 2
        # Twice as many, because redis-py uses connections of its own to find the nodes.
        return PipelinedCluster(
            connections, timeout_seconds, startup_nodes=nodes, max_connections=2 * connections, **options
        )
    if address.kind is RedisKind.SENTINEL:
        return _connect_by_sentinel(address, connections, options)
    if address.kind is RedisKind.SOCKET:
        return _connect(UnixDomainSocketConnection, connections, options, path=address.path, db=address.database)
    ((host, port),) = address.hosts
    kind = SSLConnection if address.tls else Connection
    return _connect(kind, connections, options, host=host, port=port, db=address.database)


def connect_to_socket(
    path: str, *, connections: int = CONNECTIONS, timeout_seconds: float = TIMEOUT_SECONDS
) -> RedisConnection:
    """Connect, as `connect`, to a Unix socket. Its path may not fit into a URL."""
    return _connect(UnixDomainSocketConnection, connections, _options(timeout_seconds), path=path)


def _connect(kind: Any, connections: int, options: dict[str, Any], **place: Any) -> RedisConnection:
    return PipelinedRedis.from_pool(  # the client closes the pool
        BlockingConnectionPool(
            connection_class=kind,
            max_connections=connections,
            timeout=_CONNECT_SECONDS,
            retry=_retry(),
            **place,
            **{name: value for name, value in options.items() if name != "ssl"},
        )
    )


def _options(timeout_seconds: float) -> dict[str, Any]:
    connecting = min(timeout_seconds, _CONNECT_SECONDS)
    return {"socket_timeout": timeout_seconds, "socket_connect_timeout": connecting, "protocol": 2}


def _tls_options(tls: Tls | None) -> dict[str, Any]:
    if tls is None:
        return {}
    return {
        "ssl": True,
        "ssl_ca_certs": tls.ca,
        "ssl_certfile": tls.certificate,
        "ssl_keyfile": tls.key,
        "ssl_check_hostname": tls.checks_hostname,
    }


def _retry() -> Retry:
    # A retry helps if the server closed the connection meanwhile. It is safe, because every script is idempotent. After
    # a time-out there is no retry: the caller has waited long enough.
    return Retry(ExponentialBackoff(cap=0.2, base=0.02), retries=2, supported_errors=(exceptions.ConnectionError,))


class PipelinedCluster(RedisCluster):
    """A client of a Cluster that limits connections and time, and retries calls that redis-py breaks off: when one call
    reads the slots anew, redis-py closes the connections of all other calls, which raise AttributeError. A retry is
    safe, because every script is idempotent."""

    def __init__(self, connections: int, timeout_seconds: float, **options: Any) -> None:
        super().__init__(**options)
        # Without this, redis-py refuses a call that finds no connection, instead of letting the call wait.
        self._turns = asyncio.Semaphore(connections)
        self._timeout_seconds = timeout_seconds
        # The pipeline to each master, by the master's name.
        self._pipelines: dict[str, Pipeline] = {}
        # By slot, not by node, because another node may take over a slot.
        self._gates: dict[int, _Gate] = {}

    async def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any:
        """Run a script over the pipeline to the master that has the keys. If that fails, call by redis-py and so find
        the new master."""
        find_anew = partial(super().evalsha, sha, numkeys, *keys_and_args)

        async def call() -> Any:
            pipeline = self._pipeline_to(keys_and_args[0])
            if pipeline is not None:
                with suppress(*_ELSEWHERE):
                    return await pipeline.call(packed_script(sha, numkeys, keys_and_args))
            return await find_anew()

        return await self._gate_to(keys_and_args[0]).ask(call)

    async def check_answers(self, key: str) -> None:
        """Raises TimeoutError of redis-py if the node that has the key is known to be silent."""
        await self._gate_to(key).check_answers()

    def _gate_to(self, key: str) -> _Gate:
        slot = key_slot(key.encode())
        gate = self._gates.get(slot)
        if gate is None:
            # The time-out is long enough for redis-py to find the node silent and to ask the other nodes.
            ping = partial(self._call, "EXISTS", key)
            gate = self._gates[slot] = _Gate(ping, self._timeout_seconds, self._timeout_seconds)
        return gate

    def _pipeline_to(self, key: str) -> Pipeline | None:
        """Return the pipeline to the known master of a key; None if no node is known."""
        nodes = self.nodes_manager.slots_cache.get(key_slot(key.encode()))
        if not nodes:
            return None
        node = nodes[0]  # the master
        pipeline = self._pipelines.get(node.name)
        if pipeline is None:
            pipeline = self._pipelines[node.name] = Pipeline(node.connection_class, node.connection_kwargs)
        return pipeline

    async def aclose(self) -> None:
        """Drop all connections. redis-py calls this after many redirects, so the next call connects again."""
        for gate in [*self._gates.values()]:
            await gate.aclose()
        pipelines, self._pipelines = self._pipelines, {}
        for pipeline in pipelines.values():
            await pipeline.aclose()
        await super().aclose()

    async def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        async with answering(self._timeout_seconds), self._turns:
            return await self._call(*args, **kwargs)

    async def _call(self, *args: Any, **kwargs: Any) -> Any:
        try:
            for pause_seconds in _PAUSES_SECONDS:
                try:
                    return await super().execute_command(*args, **kwargs)
                except AttributeError:
                    await asyncio.sleep(pause_seconds)
        except exceptions.RedisClusterException as error:  # not a RedisError: no node answers, or slots have no master
            raise exceptions.ConnectionError(str(error)) from error
        raise exceptions.ConnectionError("The connections to the Cluster keep being closed.")


def _connect_by_sentinel(address: RedisAddress, connections: int, options: dict[str, Any]) -> RedisConnection:
    asking = options | {"username": address.sentinel_username, "password": address.sentinel_password}
    asking |= {"socket_timeout": _SENTINEL_SECONDS, "socket_connect_timeout": _SENTINEL_SECONDS}
    asking["retry"] = Retry(NoBackoff(), 0)  # no retries: the next Sentinel is asked instead
    sentinel = Sentinel(address.hosts, sentinel_kwargs=asking)  # type: ignore[no-untyped-call]
    master: _MasterBySentinel = sentinel.master_for(
        address.service,
        redis_class=_MasterBySentinel,
        connection_pool_class=_PoolBySentinel,
        db=address.database,
        max_connections=connections,
        timeout=_CONNECT_SECONDS,
        retry=_retry(),
        **options,
    )
    master.asked = sentinel
    return master


class _PoolBySentinel(SentinelConnectionPool, BlockingConnectionPool):
    """A pool whose callers wait for a free connection, instead of being refused."""


class _MasterBySentinel(PipelinedRedis):
    asked: Sentinel

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await super().aclose(close_connection_pool)
        await self.asked.aclose()


async def time_of(redis: RedisConnection) -> datetime | None:
    """Return the time of the server's clock, or None if the server does not report it. Raises Unavailable."""
    with asking(redis):
        told: dict[str, Any] = await redis.info("server")
    microseconds = told.get("server_time_usec")
    return None if microseconds is None else datetime.fromtimestamp(int(microseconds) / 1e6, UTC)


async def can_write(redis: RedisConnection) -> bool:
    """Return whether the last write to the append-only file succeeded. True without such a file. Raises Unavailable."""
    with asking(redis):
        told: dict[str, Any] = await redis.info("persistence")
    return bool(told.get("aof_last_write_status", "ok") == "ok")


_MARK = re.compile(r"([0-9]+) ([0-9a-f]{32})")


@dataclass(eq=False, repr=False)
class RedisMark:
    """The key that names the installation and the format of all keys in Redis."""

    redis: RedisConnection

    async def read(self) -> str | None:
        """Return the id of the installation; None without a mark. Raises ConfigurationError, Unavailable."""
        return _parse(await self._tried(self.redis.get(INSTALLATION)))[1]

    async def names(self, installation: str) -> bool:
        """Return whether the mark has this installation and the present format. Writes nothing. Raises as `read`."""
        return _parse(await self._tried(self.redis.get(INSTALLATION))) == (FORMAT, installation)

    async def claim(self, installation: str) -> str:
        """Mark an unmarked Redis, or renew a mark with an older format. Return the installation of the mark. Raises as
        `read`."""
        there = await self._tried(self.redis.set(INSTALLATION, f"{FORMAT} {installation}", nx=True, get=True))
        version, marked = _parse(there)
        if marked == installation and version < FORMAT:
            await self.replace(installation)
        return marked or installation

    async def replace(self, installation: str) -> None:
        """Raises Unavailable."""
        await self._tried(self.redis.set(INSTALLATION, f"{FORMAT} {installation}"))

    async def _tried(self, command: Awaitable[Any]) -> Any:
        with asking(self.redis):
            return await command


def _parse(value: bytes | None) -> tuple[int, str | None]:
    if value is None:
        return FORMAT, None
    mark = _MARK.fullmatch(value.decode(errors="replace"))
    if mark is None:
        raise ConfigurationError(
            f"Redis has a key {INSTALLATION} that is not this program's: give it a Redis of its own"
        )
    if int(mark[1]) > FORMAT:
        raise ConfigurationError(f"Redis has keys of format {mark[1]}, newer than this version's {FORMAT}")
    return int(mark[1]), mark[2]
