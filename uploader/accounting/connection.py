"""Connects to Redis or Valkey by URL: a server, a Cluster, or the master that Sentinels name."""

import asyncio
from typing import Any
from urllib.parse import parse_qs, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as RedisConnectionError

from uploader.accounting.scripting import PipelinedRedis, RedisConnection

_CONNECTIONS = 64
_PAUSES_SECONDS = (0.01, 0.05, 0.25, 1.0)
_OPTIONS: dict[str, Any] = {"socket_timeout": 5, "socket_connect_timeout": 2, "protocol": 2}


def connect(url: str) -> RedisConnection:
    """A client that connects when it is first used.

    `redis://`, `rediss://`, `unix://`; `redis+cluster://host:port`, any node of a Cluster;
    `redis+sentinel://host:port,host:port/service`, the Sentinels and the name of their master.
    """
    if url.startswith("redis+cluster://"):
        return _Cluster.from_url(url.replace("redis+cluster://", "redis://", 1), **_OPTIONS)
    if url.startswith("redis+sentinel://"):
        return _connect_by_sentinel(url)
    return PipelinedRedis.from_pool(  # which it closes
        BlockingConnectionPool.from_url(url, max_connections=_CONNECTIONS, timeout=10, retry=_retry(), **_OPTIONS)
    )


def connect_to_socket(path: str) -> RedisConnection:
    """As `connect`, to a Unix socket whose path need not fit into a URL."""
    return PipelinedRedis.from_pool(
        BlockingConnectionPool(
            connection_class=UnixDomainSocketConnection,
            path=path,
            max_connections=_CONNECTIONS,
            timeout=10,
            retry=_retry(),
            **_OPTIONS,
        )
    )


class _Cluster(RedisCluster):
    """Calls again what redis-py breaks off.

    When one call reads the slots anew, redis-py closes the connections of all other calls, even unfinished ones, and those
    calls raise AttributeError. To call again is safe, because every script is idempotent.
    """

    async def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        for pause_seconds in _PAUSES_SECONDS:
            try:
                return await super().execute_command(*args, **kwargs)
            except AttributeError:
                await asyncio.sleep(pause_seconds)
        raise RedisConnectionError("The connections to the Cluster keep being closed.")


def _connect_by_sentinel(url: str) -> Redis:
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2]
    addresses = []
    for address in hosts.split(","):
        host, _, port = address.rpartition(":")
        addresses.append((host, int(port)))
    options = dict(_OPTIONS, password=parts.password, username=parts.username)
    options["db"] = int(parse_qs(parts.query).get("db", ["0"])[0])
    sentinel = Sentinel(addresses, sentinel_kwargs=_OPTIONS)  # type: ignore[no-untyped-call]
    master: _MasterBySentinel = sentinel.master_for(parts.path.strip("/"), redis_class=_MasterBySentinel, **options)
    master.sentinels = sentinel.sentinels
    return master


class _MasterBySentinel(Redis):
    """Closes the connections to its Sentinels, too."""

    sentinels: list[Redis]

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await super().aclose(close_connection_pool)
        for sentinel in self.sentinels:
            await sentinel.aclose()


def _retry() -> Retry:
    # A retry covers a connection that the server closed meanwhile. It is safe, because every script is idempotent.
    return Retry(ExponentialBackoff(cap=0.2, base=0.02), retries=2)
