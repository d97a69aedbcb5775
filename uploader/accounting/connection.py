"""Connects to Redis or Valkey by URL: a server, a Cluster, or the master that Sentinels name."""

import asyncio
from contextlib import suppress
from typing import Any

from redis.asyncio import BlockingConnectionPool, Connection, RedisCluster, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    ReadOnlyError,
    RedisClusterException,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from uploader.accounting.pipeline import Pipeline, PipelineFull, packed_script
from uploader.accounting.scripting import PipelinedRedis, RedisConnection, answering
from uploader.settings.addresses import RedisAddress, RedisKind, Tls, parse_redis_url

CONNECTIONS = 64
TIMEOUT_SECONDS = 5.0
# A log-in that takes longer is none.
_CONNECT_SECONDS = 2.0
# Of those that are asked one after the other, some may hang.
_SENTINEL_SECONDS = 0.5
_PAUSES_SECONDS = (0.01, 0.05, 0.25, 1.0)
# What a node of a Cluster says, or does, that has a key no more: each script may be run twice.
_ELSEWHERE: tuple[type[Exception], ...] = (MovedError, AskError, TryAgainError, ClusterDownError, MasterDownError)
_ELSEWHERE += (ReadOnlyError, RedisConnectionError, RedisTimeoutError, OSError)


def connect(url: str, *, connections: int = CONNECTIONS, timeout_seconds: float = TIMEOUT_SECONDS) -> RedisConnection:
    """A client that connects when it is first used, by any of the URLs that docs/operations.md lists.

    `connections`: how many at most (of a Cluster: to each node), beside the one of all scripts. `timeout_seconds`: how long
    an answer may take. Raises ValueError with what is wrong with the URL.
    """
    address = parse_redis_url(url)
    options = _options(timeout_seconds) | _credentials(address.username, address.password) | _tls_options(address.tls)
    if address.kind is RedisKind.CLUSTER:
        return _connect_to_cluster(address, connections, timeout_seconds, options)
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
    """As `connect`, to a Unix socket whose path need not fit into a URL."""
    return _connect(UnixDomainSocketConnection, connections, _options(timeout_seconds), path=path)


def _connect(kind: Any, connections: int, options: dict[str, Any], **place: Any) -> RedisConnection:
    return PipelinedRedis.from_pool(  # which it closes
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


def _credentials(username: str | None, password: str | None) -> dict[str, Any]:
    return {"username": username, "password": password}


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
    # A retry covers a connection that the server closed meanwhile. It is safe, because every script is idempotent. Who does
    # not answer is not asked again: the caller has waited long enough.
    return Retry(ExponentialBackoff(cap=0.2, base=0.02), retries=2, supported_errors=(RedisConnectionError,))


# A Cluster


def _connect_to_cluster(
    address: RedisAddress, connections: int, timeout_seconds: float, options: dict[str, Any]
) -> RedisConnection:
    nodes = [ClusterNode(host, port) for host, port in address.hosts]
    # Each call tries again by itself, and other nodes tell what becomes of one that hangs.
    options = options | {"socket_timeout": timeout_seconds / 2}
    # As many again: redis-py looks for the nodes beside the calls.
    return _Cluster(connections, timeout_seconds, startup_nodes=nodes, max_connections=2 * connections, **options)


class _Cluster(RedisCluster):
    """Bounds what redis-py does not, and calls again what it breaks off.

    When one call reads the slots anew, redis-py closes the connections of all other calls, even unfinished ones, and those
    calls raise AttributeError. To call again is safe, because every script is idempotent.
    """

    def __init__(self, connections: int, timeout_seconds: float, **options: Any) -> None:
        super().__init__(**options)
        # redis-py refuses a call that finds no connection, instead of letting it wait.
        self._turns = asyncio.Semaphore(connections)
        self._timeout_seconds = timeout_seconds
        # To each master, by its name.
        self._pipelines: dict[str, Pipeline] = {}

    async def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any:
        """As of redis-py: over the pipeline to the master that has the keys. Where it has them no more, or is away, redis-py
        looks for them, and the next call finds them."""
        async with answering(self._timeout_seconds):
            pipeline = self._pipeline_to(keys_and_args[0])
            if pipeline is not None:
                with suppress(PipelineFull, *_ELSEWHERE):
                    return await pipeline.call(packed_script(sha, numkeys, keys_and_args))
            return await super().evalsha(sha, numkeys, *keys_and_args)

    def _pipeline_to(self, key: str) -> Pipeline | None:
        """That to the node which has a key, as far as it is known."""
        nodes = self.nodes_manager.slots_cache.get(key_slot(key.encode()))
        if not nodes:
            return None
        node = nodes[0]  # its master
        pipeline = self._pipelines.get(node.name)
        if pipeline is None:
            pipeline = self._pipelines[node.name] = Pipeline(node.connection_class, node.connection_kwargs)
        return pipeline

    async def aclose(self) -> None:
        """Let go of all connections. redis-py does so by itself when it has been sent elsewhere often; who calls afterwards
        connects anew."""
        pipelines, self._pipelines = self._pipelines, {}
        for pipeline in pipelines.values():
            await pipeline.aclose()
        await super().aclose()

    async def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        try:
            async with answering(self._timeout_seconds), self._turns:
                return await self._call(*args, **kwargs)
        except RedisClusterException as error:  # which is no RedisError: no node answers, or slots have no master
            raise RedisConnectionError(str(error)) from error

    async def _call(self, *args: Any, **kwargs: Any) -> Any:
        for pause_seconds in _PAUSES_SECONDS:
            try:
                return await super().execute_command(*args, **kwargs)
            except AttributeError:
                await asyncio.sleep(pause_seconds)
        raise RedisConnectionError("The connections to the Cluster keep being closed.")


# Sentinels


def _connect_by_sentinel(address: RedisAddress, connections: int, options: dict[str, Any]) -> RedisConnection:
    asking = options | _credentials(address.sentinel_username, address.sentinel_password)
    asking |= {"socket_timeout": _SENTINEL_SECONDS, "socket_connect_timeout": _SENTINEL_SECONDS}
    asking["retry"] = Retry(NoBackoff(), 0)  # the next one is asked instead
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
    """As the pool of one server: who finds all connections in use waits for one, instead of being refused."""


class _MasterBySentinel(PipelinedRedis):
    """Closes the connections to its Sentinels, too."""

    asked: Sentinel

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await super().aclose(close_connection_pool)
        await self.asked.aclose()
