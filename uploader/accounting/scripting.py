"""Runs the Lua scripts."""

import hashlib
import logging
import re
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from importlib.resources import files
from typing import Any

from redis.asyncio import Redis, RedisCluster
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from uploader.accounting.keys import FORMAT
from uploader.accounting.pipeline import Pipeline, PipelineFull, packed_script
from uploader.errors import Unavailable
from uploader.patience import LEAST, patience, waiting

logger = logging.getLogger(__name__)

_STORE = "redis"

RedisConnection = Redis | RedisCluster

# What the client raises when the server is away. RuntimeError is what uvloop raises if a connection closes while a command
# is written to it.
AWAY = (RedisError, OSError, TimeoutError, RuntimeError)

_FOLDER = files("uploader.accounting.scripts")
PRELUDES = ("_delay.lua", "_era.lua", "_upload.lua")
_COMMENT = re.compile(r"^ *--.*\n", re.MULTILINE)
_DEFINITION = re.compile(r"^(?=local (?:function )?(\w+))", re.MULTILINE)


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
            if isinstance(error, ResponseError) and not isinstance(error, ReadOnlyError):
                # Redis is there and refuses (out of memory, or a fault in a script): somebody has to look. What a failover
                # demoted refuses as well, for a moment.
                logger.error("Redis refuses a script", extra={"script": self.name, "reason": str(error)})
            raise away(redis, error) from error


def away(redis: RedisConnection, error: Exception) -> Unavailable:
    """That Redis is away, as `error` says, to be raised."""
    how = "is read-only, as after a failover" if isinstance(error, ReadOnlyError) else "is away"
    inside = f"Redis at {_place_of(redis)} {how}: {str(error) or type(error).__name__}"
    return Unavailable(f"The accounting store {how}; nothing was acknowledged.", inside=inside)


def is_refusal(error: BaseException | None) -> bool:
    """Whether Redis is there and does not let in who asks: waiting does not help."""
    return isinstance(error, (AuthenticationError, NoPermissionError))


def _place_of(redis: RedisConnection) -> str:
    """What whoever runs the server knows it by."""
    if isinstance(redis, RedisCluster):
        return f"{', '.join(redis.nodes_manager.startup_nodes)} (UPLOADER_REDIS_URL)"
    facts = vars(redis.connection_pool) | redis.connection_pool.connection_kwargs
    if "path" in facts:
        return str(facts["path"])
    if "service_name" in facts:  # a Sentinel's pool knows its master by name
        asked = [sentinel.connection_pool.connection_kwargs for sentinel in facts["sentinel_manager"].sentinels]
        sentinels = ", ".join(f"{each['host']}:{each['port']}" for each in asked)
        return f"{facts['service_name']} of the Sentinels {sentinels} (UPLOADER_REDIS_URL)"
    return f"{facts['host']}:{facts['port']} (UPLOADER_REDIS_URL)"


def assembled(*parts: str) -> str:
    """The last part with those definitions of the others before it that it names, or that these name: each function that a
    script defines costs every run of it."""
    *preludes, source = (_COMMENT.sub("", part) for part in parts)
    _, *pieces = _DEFINITION.split("\n".join((f"local FORMAT = {FORMAT}", *preludes)))
    for name, definition in reversed(list(zip(pieces[::2], pieces[1::2], strict=True))):
        if re.search(rf"\b{name}\b", source):
            source = definition + source
    return source


def answering(timeout_seconds: float) -> AbstractAsyncContextManager[None]:
    """One call of Redis, with all that it is tried again and all connections that are made for it. Raises TimeoutError of
    redis-py."""
    return waiting(_STORE, timeout_seconds, RedisTimeoutError)


def time_argument(now_ms: int | None) -> int | str:
    """What the scripts take as `now_ms`: '' lets them ask Redis `TIME`; tests pass a time."""
    return "" if now_ms is None else now_ms


class PipelinedRedis(Redis):
    """A client of one server whose scripts share a connection."""

    _pipeline: Pipeline | None = None

    async def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any:
        """As of redis-py, with its retries: for scripts that may be run twice."""
        command = packed_script(sha, numkeys, keys_and_args)
        try:
            return await self._call(command)
        except PipelineFull:
            return await super().evalsha(sha, numkeys, *keys_and_args)

    async def _call(self, command: bytes) -> Any:
        pipeline, timeout_seconds = self._shared(), self._timeout_seconds
        own, began = patience(), time.monotonic()
        if pipeline.is_connected and own.left(_STORE, timeout_seconds) == timeout_seconds:
            try:
                # It gives up in that time by itself: a timer for each call would cost half as much as all else of a call.
                return await pipeline.call(command)
            except RedisConnectionError:
                pass  # the server closed it meanwhile
            except RedisTimeoutError:
                own.give_up(_STORE)
                raise
            finally:
                own.note(began, timeout_seconds * LEAST)
        retry = self.connection_pool.connection_kwargs["retry"]
        async with answering(timeout_seconds):
            return await retry.call_with_retry(lambda: pipeline.call(command), _try_again)

    @property
    def _timeout_seconds(self) -> float:
        seconds: float = self.connection_pool.connection_kwargs["socket_timeout"]
        return seconds

    def _shared(self) -> Pipeline:
        if self._pipeline is None:
            pool = self.connection_pool
            self._pipeline = Pipeline(pool.connection_class, pool.connection_kwargs)
        return self._pipeline

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """As of redis-py. The connections to a server that takes no writes any more are dropped: by its address, or from its
        Sentinels, the next ones may find the one that took its place."""
        try:
            async with answering(self._timeout_seconds):
                return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        except ReadOnlyError:
            await self.connection_pool.disconnect(inuse_connections=False)
            raise

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await self._shared().aclose()  # also one that nobody has used: nobody is let in after
        await super().aclose(close_connection_pool)


async def _try_again(_error: Exception) -> None:
    """Nothing to tidy up: the next call replaces a lost connection."""
