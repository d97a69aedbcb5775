"""Every way in which the client of Redis says that the server is away is the same to the rest of the server."""

from typing import Any, NoReturn

import pytest
from redis.asyncio import RedisCluster
from redis.exceptions import ConnectionError as RedisConnectionError

from uploader.accounting.keys import Shards
from uploader.accounting.pending import Pending
from uploader.accounting.redis import away, connect
from uploader.errors import Unavailable
from uploader.settings import Settings

DELAYS = Settings(quiet_interval_seconds=5, max_delay_seconds=60, max_pending_bytes=1, claim_lease_seconds=30)


LOST = (RedisConnectionError("reset"), ConnectionResetError(), TimeoutError(), RuntimeError("the handler is closed"))


@pytest.mark.parametrize("error", LOST, ids=repr)
async def test_a_connection_lost_within_a_script_is_unavailable(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def evalsha(*_arguments: object) -> NoReturn:
        raise error

    redis = connect("redis://127.0.0.1:9/0")
    monkeypatch.setattr(redis, "evalsha", evalsha)
    with pytest.raises(Unavailable):
        await Pending(redis, shards=Shards(1), settings=DELAYS).read("upload")
    await redis.aclose()


@pytest.mark.parametrize("losses", [1, 3, 1000])
async def test_a_call_to_a_cluster_is_made_again_but_not_for_ever(losses: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []

    async def execute_command(_self: RedisCluster, *command: Any, **_options: Any) -> str:
        calls.append(command)
        if len(calls) <= losses:
            raise AttributeError("'NoneType' object has no attribute 'writelines'")
        return "done"

    monkeypatch.setattr(RedisCluster, "execute_command", execute_command)
    cluster = connect("redis+cluster://127.0.0.1:9")
    if losses < 1000:
        assert await cluster.execute_command("PING") == "done"
        assert calls == [("PING",)] * (losses + 1)
    else:
        with pytest.raises(Unavailable):
            await Pending(cluster, shards=Shards(1), settings=DELAYS).read("upload")
    await cluster.aclose()


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://me:a-secret@127.0.0.1:9/0", "127.0.0.1:9 (UPLOADER_REDIS_URL)"),
        ("redis://nowhere.invalid", "nowhere.invalid:6379 (UPLOADER_REDIS_URL)"),
        ("unix:///nowhere/redis.sock", "/nowhere/redis.sock"),
        ("redis+cluster://me:a-secret@127.0.0.1:9", "127.0.0.1:9 (UPLOADER_REDIS_URL)"),
        ("redis+sentinel://:a-secret@127.0.0.1:9/main", "main of the Sentinels 127.0.0.1:9 (UPLOADER_REDIS_URL)"),
    ],
)
async def test_whoever_runs_the_server_is_told_which_redis_is_away(url: str, place: str) -> None:
    redis = connect(url)
    error = away(redis, RedisConnectionError("refused"))
    assert error.reason == f"Redis at {place} is away: refused"
    assert (error.detail, error.fields) == ("The accounting store is away; nothing was acknowledged.", {})
    await redis.aclose()
