"""The connections that all scripts of a process share to the masters of a Cluster: whatever moves, each caller gets its own
reply, or an error within bounded time."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, suppress
from typing import Any

import pytest
from redis.asyncio import RedisCluster
from redis.crc import key_slot
from redis.exceptions import NoScriptError, RedisError

from tests.support.background import stopped
from tests.support.crowds import many_of_whom_some_give_up
from tests.support.servers import PrivateCluster, PrivateRedis
from tests.support.waiting import PATIENCE_SECONDS, eventually
from uploader.accounting.redis import connect

WRITE = "return redis.call('SET', KEYS[1], ARGV[1])"
COUNT = "return redis.call('INCR', KEYS[1])"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateCluster]:
    """For all tests of this file: what one moves it moves back."""
    made = PrivateCluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


class Client:
    """A client of it, and the calls of scripts that it left to redis-py."""

    def __init__(self, redis: Any) -> None:
        self.redis = redis
        self.left = 0
        self.shas: dict[str, str] = {}

    async def run(self, source: str, key: str, *arguments: object) -> Any:
        if source not in self.shas:
            self.shas[source] = await self.redis.script_load(source)
        return await self.redis.evalsha(self.shas[source], 1, key, *(str(argument) for argument in arguments))

    async def echo(self, key: str, number: int) -> None:
        assert await self.run("return {KEYS[1], ARGV[1]}", key, number) == [key.encode(), b"%d" % number]


@pytest.fixture
async def client(
    cluster: PrivateCluster, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[Client]:
    """A parameter is its time-out in seconds."""
    async with aclosing(connect(cluster.url, timeout_seconds=getattr(request, "param", 60))) as connected:
        made = Client(connected)
        evalsha = RedisCluster.evalsha

        async def noted(redis: Any, *arguments: Any) -> Any:
            made.left += 1
            return await evalsha(redis, *arguments)

        monkeypatch.setattr(RedisCluster, "evalsha", noted)
        yield made


def master_of(cluster: PrivateCluster, key: str) -> PrivateRedis:
    for node in cluster.nodes:
        if node.raw("EXISTS", key).startswith(b":"):
            return node
    raise AssertionError(key)


def id_of(node: PrivateRedis) -> str:
    return node.raw("CLUSTER", "MYID").split(b"\r\n")[1].decode()


def begin_to_move(key: str, source: PrivateRedis, target: PrivateRedis) -> None:
    target.command("CLUSTER", "SETSLOT", key_slot(key.encode()), "IMPORTING", id_of(source))
    source.command("CLUSTER", "SETSLOT", key_slot(key.encode()), "MIGRATING", id_of(target))


def end_to_move(cluster: PrivateCluster, key: str, source: PrivateRedis, target: PrivateRedis) -> None:
    source.raw("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
    for node in (target, source, *cluster.nodes):
        node.command("CLUSTER", "SETSLOT", key_slot(key.encode()), "NODE", id_of(target))


async def test_hundreds_of_callers_of_whom_many_give_up_each_get_their_own_reply(
    cluster: PrivateCluster, client: Client
) -> None:
    await client.echo("first", 0)
    left = client.left
    for first in range(0, 6_000, 2_000):
        await many_of_whom_some_give_up(
            lambda number: client.echo(f"key-{number}", number), first, callers=200, giving_up=70
        )
    assert client.left == left
    used = [node for node in cluster.nodes if b"cmdstat_evalsha" in node.raw("INFO", "commandstats")]
    assert len(used) == 3


async def test_a_slot_that_moves_is_followed_and_no_call_is_lost(cluster: PrivateCluster, client: Client) -> None:
    key = "moving"
    source = master_of(cluster, key)
    target = next(node for node in cluster.nodes if node is not source)
    for begin, end in ((source, target), (target, source)):
        first = await client.run(COUNT, key)
        counting = asyncio.gather(*(client.run(COUNT, key) for _ in range(50)))
        begin_to_move(key, begin, end)
        assert sorted(await counting) == list(range(first + 1, first + 51))
        assert await client.run(COUNT, key) == first + 51
        assert await client.run(WRITE, f"{{{key}}}:new", 1) == b"OK"  # which only the new one may have by now
        begin.raw("DEL", f"{{{key}}}:new")
        end_to_move(cluster, key, begin, end)
        assert await client.run(COUNT, key) == first + 52

        async def goes_to_it() -> bool:
            left = client.left
            await client.run("return 1", key)
            return client.left == left

        await eventually(goes_to_it)


async def test_a_connection_that_a_master_closed_is_replaced_and_nobody_learns_of_it(
    cluster: PrivateCluster, client: Client
) -> None:
    await client.echo("key", 0)
    node = master_of(cluster, "key")
    for _ in range(3):
        calls = [asyncio.create_task(client.echo("key", number)) for number in range(100)]
        await asyncio.sleep(0)
        node.raw("CLIENT", "KILL", "TYPE", "normal")
        await asyncio.gather(*calls)
    left = client.left
    await client.echo("key", 1)
    await client.echo("key", 2)
    assert client.left <= left + 1


@pytest.mark.parametrize("client", [4], indirect=True)
async def test_a_master_that_hangs_holds_up_nobody_for_long_and_the_others_not_at_all(
    cluster: PrivateCluster, client: Client
) -> None:
    await client.echo("key", 0)
    node = master_of(cluster, "key")
    others = [f"other-{number}" for number in range(20)]
    keys = [key for key in others if master_of(cluster, key) is not node]
    with stopped(node):
        async with asyncio.timeout(PATIENCE_SECONDS):
            waiting = [asyncio.create_task(client.echo("key", number)) for number in range(5)]
            for key in keys:
                await client.echo(key, 1)
            results = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(result, RedisError) for result in results), results

    async def all_answer() -> bool:
        try:
            await client.echo("key", 1)
        except RedisError:
            return False
        return all(b"cluster_state:ok" in node.raw("CLUSTER", "INFO") for node in cluster.nodes)

    await eventually(all_answer)


@pytest.mark.parametrize("client", [2], indirect=True)
async def test_a_slot_whose_master_hangs_is_not_asked_until_another_one_has_it(
    cluster: PrivateCluster, client: Client
) -> None:
    await client.echo("handed-over", 0)
    node = master_of(cluster, "handed-over")
    target = next(other for other in cluster.nodes if other is not node)
    slot = key_slot(b"handed-over")
    with stopped(node):
        assert all(
            isinstance(result, RedisError)
            for result in await asyncio.gather(
                *(client.echo("handed-over", 0) for _ in range(3)), return_exceptions=True
            )
        )
        with pytest.raises(RedisError, match="has not answered since"):
            await client.echo("handed-over", 0)
        for other in cluster.nodes:
            if other is not node:
                other.command("CLUSTER", "SETSLOT", slot, "NODE", id_of(target))

        async def is_found() -> bool:
            with suppress(RedisError):
                await client.echo("handed-over", 1)
                return True
            return False

        await eventually(is_found)
    end_to_move(cluster, "handed-over", target, node)


async def test_a_master_that_does_not_know_a_script_says_so(cluster: PrivateCluster, client: Client) -> None:
    await client.echo("key", 0)
    left = client.left
    master_of(cluster, "key").command("SCRIPT", "FLUSH")
    with pytest.raises(NoScriptError):
        await client.echo("key", 1)
    assert client.left == left
