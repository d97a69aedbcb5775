"""After a loss of Redis everything is rebuilt from the disk and the database, touched or not; shards, Cluster, Sentinel."""

import asyncio
from pathlib import Path

import pytest
from redis.asyncio import Redis

from tests.conftest import MakeStack
from tests.support.background import becomes, flush_due, is_in_state, succeeds
from tests.support.content import KIB, Content
from tests.support.process import run_cli
from tests.support.servers import PrivateCluster, PrivateSentinel
from tests.support.stack import Stack
from uploader.accounting.keys import tag_of
from uploader.bootstrap.application import reset_redis
from uploader.database import meta
from uploader.errors import ConfigurationError

CONTENT = Content(200 * KIB)
HELD = 2 * CONTENT.chunk_size


async def _half_sent(stack: Stack) -> str:
    """An upload with two of its chunks acknowledged; its id."""
    opened = await stack.open(CONTENT)
    for number in (0, 1):
        assert (await stack.put(CONTENT, number)).status_code == 200
    upload_id: str = opened.json()["upload"]["id"]
    return upload_id


async def _unfinished(stack: Stack) -> int:
    return (await stack.usage("alice"))["unfinished"]


async def _flush_redis(stack: Stack) -> None:
    assert isinstance(stack.services.redis, Redis)
    await stack.services.redis.flushall()


async def test_one_of_several_workers_rebuilds_an_upload_that_nobody_touches_once_an_era(
    make_stack: MakeStack,
) -> None:
    async with make_stack() as one, make_stack() as two:
        upload_id, touched = await _half_sent(one), Content(CONTENT.size, seed=1)
        await one.open(touched)
        await _flush_redis(one)
        assert (await one.put(touched, 2)).status_code == 200
        rebuilt = await asyncio.gather(one.services.sweeping.sweep(0), two.services.sweeping.sweep(0))
        assert sorted(rebuilt) == [0, 1]
        known = await two.services.pending.read(upload_id)
        assert (known.state, known.received, known.chunks) == ("open", HELD, 2)
        assert await one.services.sweeping.sweep(0) == 0


async def test_another_worker_takes_over_a_sweep_whose_worker_died(make_stack: MakeStack) -> None:
    async with make_stack(claim_lease_seconds=0.2) as one, make_stack(claim_lease_seconds=0.2) as two:
        await _half_sent(one)
        await _flush_redis(one)
        assert await one.services.pending.claim_sweep(0) is not None
        assert await two.services.sweeping.sweep(0) == 0
        await becomes(lambda: two.services.sweeping.sweep(0), 1)


async def test_a_loss_in_the_middle_of_a_sweep_is_swept_again(stack: Stack) -> None:
    upload_id = await _half_sent(stack)
    era = await stack.services.pending.claim_sweep(0)
    assert era is not None
    await _flush_redis(stack)
    await stack.services.pending.end_sweep(0, era)
    assert await stack.services.sweeping.sweep(0) == 1
    assert (await stack.services.pending.read(upload_id)).received == HELD


async def test_another_number_of_shards_is_refused_until_redis_is_reset(make_stack: MakeStack) -> None:
    async with make_stack() as stack:
        upload_id = await _half_sent(stack)
        settings = stack.services.settings
    with pytest.raises(ConfigurationError, match="redis reset"):
        async with make_stack(shards=4):
            raise AssertionError("it started")

    names = {"DATA": str(settings.data), "DATABASE_URL": settings.database_url, "REDIS_URL": settings.redis_url}
    environment = {name: value for name, value in names.items() if value is not None} | {"SHARDS": "4"}
    assert run_cli(environment, "redis", "reset").returncode == 2
    done = run_cli(environment, "redis", "reset", "--yes")
    assert (done.returncode, done.stdout.split()[1:]) == (0, ["keys", "deleted"]), done.stderr

    async with make_stack(shards=4) as stack:
        shard = stack.services.pending.shards.of(upload_id)
        assert await stack.services.sweeping.sweep(shard) == 1
        assert (await stack.services.pending.read(upload_id)).received == HELD
        for number in range(2, CONTENT.chunk_count):
            response = await stack.put(CONTENT, number)
        assert response.status_code == 201
    async with make_stack(shards=4, jobs=True, quiet_interval_seconds=0.2) as stack:
        await check_that_all_is_accounted_for(stack, 12)


async def test_an_installation_keeps_the_tags_that_it_has_until_redis_is_reset(make_stack: MakeStack) -> None:
    async with make_stack() as stack:  # with the one tag that a single shard always has
        await stack.services.database.transact(lambda connection: meta.replace_fact(connection, "shards", "4"))
    for _ in range(2):  # as 0.1.0 left it, and once more
        async with make_stack(shards=4, jobs=True) as stack:
            upload_id = (await stack.open(CONTENT)).json()["upload"]["id"]
            shard = stack.services.pending.shards.of(upload_id)
            assert await stack.services.redis.exists(f"up:{{s{shard:02d}}}:{upload_id}")
    async with make_stack(shards=4) as stack:
        await reset_redis(stack.services)
        assert await stack.services.redis.keys() == []
    async with make_stack(shards=4, jobs=True) as stack:
        await stack.put(CONTENT, 0)
        assert await stack.services.redis.exists(f"up:{tag_of(shard, 4)}:{upload_id}")
        assert await reset_redis(stack.services) > 0  # a job may make it known again at once


async def check_that_all_is_accounted_for(stack: Stack, count: int) -> None:
    """So many uploads of two chunks, half-way and in the end."""
    before = (await stack.usage("alice"))["finished"]
    contents = [Content(100 * KIB, seed=seed, name=f"{seed}.bin") for seed in range(count)]
    for content in contents:
        await stack.open(content)
        assert (await stack.put(content, 0)).status_code == 200
    expected = sum(content.chunk_size for content in contents)

    await becomes(lambda: _unfinished(stack), expected)
    for content in contents:
        assert (await stack.put(content, 1)).status_code == 201
    total = sum(content.size for content in contents)
    assert await stack.usage("alice") == {"finished": before + total, "unfinished": 0, "reserved": 0}


async def test_everything_works_on_a_cluster_of_three_masters(make_stack: MakeStack, tmp_path: Path) -> None:
    cluster = PrivateCluster(tmp_path / "cluster")
    try:
        cluster.start()
        settings = {"redis_url": cluster.url, "shards": 16, "jobs": True, "quiet_interval_seconds": 0.2}
        async with make_stack(**settings) as stack:
            await check_that_all_is_accounted_for(stack, 16)
            assert await stack.services.pending.reset() > 0
        used = [node for node in cluster.nodes if b"calls=" in node.raw("INFO", "commandstats")]
        assert len(used) == 3
    finally:
        cluster.stop()


async def test_a_failover_to_a_replica_loses_no_chunk(make_stack: MakeStack, tmp_path: Path) -> None:
    sentinel = PrivateSentinel(tmp_path / "sentinel")
    try:
        sentinel.start()
        async with make_stack(redis_url=sentinel.url, jobs=True, quiet_interval_seconds=0.2) as stack:
            await _half_sent(stack)
            sentinel.master.kill()
            sentinel.wait_for_failover()
            await succeeds(lambda: stack.put(CONTENT, 2))

            await becomes(lambda: _unfinished(stack), HELD + CONTENT.chunk_size)
            # Another connection than before may meet the old master still: 503, and the client tries again.
            await is_in_state(lambda: stack.put(CONTENT, 3), "complete")
            assert await stack.usage("alice") == {"finished": CONTENT.size, "unfinished": 0, "reserved": 0}
    finally:
        sentinel.stop()


async def test_a_closed_upload_that_a_rollback_opened_again_in_redis_is_forgotten(stack: Stack) -> None:
    upload_id = await _half_sent(stack)
    redis = stack.services.redis
    assert isinstance(redis, Redis)
    await flush_due(stack)
    older = {key: await redis.dump(key) or b"" for key in await redis.keys("[^e]*")}
    await stack.client.delete(f"/files/{CONTENT.md5}")
    await redis.flushall()
    for key, value in older.items():
        await redis.restore(key, 0, value)
    assert await redis.hget(f"up:{{s00}}:{upload_id}", "state") == b"open"
    await stack.services.sweeping.sweep(0)
    assert await redis.hget(f"up:{{s00}}:{upload_id}", "state") == b"cancelled"
