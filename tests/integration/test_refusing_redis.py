"""A Redis that answers with an error: `/readyz` and the doctor name it, the log has it once, and all goes on by itself."""

import asyncio
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from redis import Redis, RedisError

from tests.conftest import MakeStack
from tests.support.background import succeeds
from tests.support.clock import ManualClock
from tests.support.content import KIB, Content
from tests.support.problems import problem
from tests.support.servers import PrivateCluster, PrivateRedis
from tests.support.stack import Stack
from tests.support.waiting import SERVER_SECONDS, eventually
from uploader import bootstrap
from uploader.accounting.keys import tag_of
from uploader.accounting.probe import Probe
from uploader.domain.diagnosis import Diagnosis
from uploader.domain.reasons import REDIS_REFUSES, REFUSALS, spell
from uploader.errors import ConfigurationError, Unavailable
from uploader.service.recovery import RedisRecovery

CONTENT = Content(40 * 64 * KIB)
BEGINS = {"Redis refuses what it is asked", "Redis takes no writes for now"}
ENDS = "Redis takes everything again"
_USER = ("ACL", "SETUSER", "uploader")
_THROW_OUT = ("CLIENT", "KILL", "USER", "uploader")
_LOSE_MASTER = ("REPLICAOF", "127.0.0.1", "9")
_PROMOTE = ("REPLICAOF", "NO", "ONE")


def _set(name: str, value: str) -> tuple[str, ...]:
    return ("CONFIG", "SET", name, value)


Commands = Sequence[Sequence[str]]
# The commands of an administrator by which a server comes to answer each error, and no longer.
CAUSES: dict[str, tuple[Commands, Commands]] = {
    "OOM": ([_set("maxmemory", "1")], [_set("maxmemory", "0")]),
    "NOREPLICAS": ([_set("min-replicas-to-write", "1")], [_set("min-replicas-to-write", "0")]),
    "READONLY": ([_LOSE_MASTER], [_PROMOTE]),
    "MASTERDOWN": ([_set("replica-serve-stale-data", "no"), _LOSE_MASTER], [_PROMOTE]),
    # A directory is in the place of its snapshot.
    "MISCONF": ([_set("save", "3600 1"), ("SET", "key", "1"), ("BGSAVE",)], [_set("save", "")]),
    "NOPERM": ([(*_USER, "-info")], [(*_USER, "+info")]),
    "WRONGPASS": ([(*_USER, "resetpass", ">other"), _THROW_OUT], [(*_USER, ">password")]),
    "NOAUTH": ([_set("requirepass", "secret"), ("CLIENT", "KILL", "USER", "default")], [_set("requirepass", "")]),
    "MAXCLIENTS": ([_set("maxclients", "1"), _THROW_OUT], [_set("maxclients", "1000")]),
}
# By a test of its own.
ELSEWHERE = {"BUSY", "LOADING", "CLUSTERDOWN", "MOVED", "NOCLUSTER", "OLD"}


def refusal(code: str, rights: str = "+info") -> Diagnosis:
    return REFUSALS.get(code, REDIS_REFUSES)(code=code, rights=rights, version="6.2.5")


async def check_that_it_is_told(stack: Stack, wanted: Diagnosis, caplog: pytest.LogCaptureFixture) -> None:
    """A chunk, `/readyz` and the doctor say the same, again and again; the log says it once."""
    await eventually(lambda: _is_refused(stack))
    for _ in range(3):
        refused = await stack.put(CONTENT, 1)
        problem(refused, 503, "unavailable")
        assert int(refused.headers["retry-after"]) > 0
        ready = await stack.anonymous().get("/readyz")
        assert (ready.status_code, ready.json()["checks"]["redis"]["reason"]) == (503, spell([wanted]))
    assert wanted in await bootstrap.examine(stack.services.settings)
    told = [record for record in caplog.records if record.message in BEGINS]
    # The doctor is another client, as another process is.
    assert len([record for record in told if record.__dict__["error"] == told[0].__dict__["error"]]) <= 2


async def check_that_it_goes_on(stack: Stack, caplog: pytest.LogCaptureFixture) -> None:
    await succeeds(lambda: stack.put(CONTENT, 1))

    async def is_well() -> bool:
        return bool((await stack.anonymous().get("/readyz")).status_code == 200)

    await eventually(is_well)
    await eventually(lambda: _has_ended(caplog))
    caplog.clear()
    assert (await stack.put(CONTENT, 2)).status_code == 200
    assert not [record for record in caplog.records if record.message in BEGINS | {ENDS}]


async def _is_refused(stack: Stack) -> bool:
    return bool((await stack.put(CONTENT, 1)).status_code == 503)


async def _has_ended(caplog: pytest.LogCaptureFixture) -> bool:
    return any(record.message == ENDS for record in caplog.records)


@pytest.fixture(autouse=True)
def heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "uploader")


@pytest.fixture
def administrator(own_redis: PrivateRedis) -> Iterator[Any]:
    """By one connection, which is there before any other."""
    with Redis(port=own_redis.port, single_connection_client=True, socket_timeout=SERVER_SECONDS) as asking:
        asking.execute_command(*_USER, "on", ">password", "~*", "&*", "+@all")
        yield asking


@pytest.fixture
def url(own_redis: PrivateRedis, administrator: Any) -> str:
    return own_redis.url.replace("//", "//uploader:password@")


def test_each_error_with_a_remedy_is_caused_by_a_test() -> None:
    assert CAUSES.keys() | ELSEWHERE == REFUSALS.keys()


@pytest.mark.parametrize("code", CAUSES)
async def test_an_error_is_named_while_it_lasts_and_no_longer(
    make_stack: MakeStack,
    own_redis: PrivateRedis,
    administrator: Any,
    url: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    code: str,
) -> None:
    begins, ends = CAUSES[code]
    url = own_redis.url if code == "NOAUTH" else url
    (tmp_path / "own-redis" / "dump.rdb").mkdir()
    async with make_stack(redis_url=url) as stack:
        await stack.open(CONTENT)
        assert (await stack.put(CONTENT, 0)).status_code == 200
        for words in begins:
            administrator.execute_command(*words)
        await check_that_it_is_told(stack, refusal(code), caplog)
        for words in ends:
            administrator.execute_command(*words)
        await check_that_it_goes_on(stack, caplog)


async def test_a_server_that_another_script_keeps_busy_is_named(
    make_stack: MakeStack, administrator: Any, url: str, own_redis: PrivateRedis, caplog: pytest.LogCaptureFixture
) -> None:
    administrator.execute_command(*_set("busy-reply-threshold", "1"))
    async with make_stack(redis_url=url) as stack:
        await stack.open(CONTENT)
        with endless_script(own_redis.port):
            await check_that_it_is_told(stack, refusal("BUSY"), caplog)
            administrator.execute_command("SCRIPT", "KILL")
        await check_that_it_goes_on(stack, caplog)


@contextmanager
def endless_script(port: int) -> Iterator[None]:
    def run() -> None:
        with suppress(RedisError), Redis(port=port, socket_timeout=SERVER_SECONDS) as client:
            client.eval("while true do end", 0)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join()


async def test_a_server_that_loads_its_files_is_named(
    make_stack: MakeStack, own_redis: PrivateRedis, caplog: pytest.LogCaptureFixture
) -> None:
    with Redis(port=own_redis.port) as redis, redis.pipeline(transaction=False) as pipeline:
        for number in range(150_000):
            pipeline.set(f"key {number}", number)
        pipeline.execute()
    async with make_stack(redis_url=own_redis.url) as stack:
        await stack.open(CONTENT)
        assert (await stack.put(CONTENT, 0)).status_code == 200
        own_redis.kill()
        # It answers after each thousand of its 150,000 keys.
        starting = asyncio.create_task(asyncio.to_thread(own_redis.start, "--key-load-delay", "200"))
        await eventually(lambda: _loads(own_redis))
        await check_that_it_is_told(stack, refusal("LOADING"), caplog)
        own_redis.kill()
        own_redis.start()
        await starting
        await check_that_it_goes_on(stack, caplog)


async def _loads(server: PrivateRedis) -> bool:
    with suppress(OSError):
        return server.raw("PING").startswith(b"-LOADING")
    return False


async def test_a_cluster_without_a_slot_and_a_node_without_its_cluster_are_named(
    make_stack: MakeStack, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = PrivateCluster(tmp_path / "cluster")
    try:
        cluster.start()
        async with make_stack(redis_url=cluster.url) as stack:
            await stack.open(CONTENT)
            assert (await stack.put(CONTENT, 0)).status_code == 200
            (owner,) = [node for node in cluster.nodes if node.raw("EXISTS", f"era:{tag_of(0)}").startswith(b":1")]
            slot = owner.raw("CLUSTER", "KEYSLOT", f"era:{tag_of(0)}")[1:].decode().strip()
            for node in cluster.nodes:
                node.command("CLUSTER", "DELSLOTS", slot)
            await check_that_it_is_told(stack, refusal("CLUSTERDOWN"), caplog)
            owner.command("CLUSTER", "ADDSLOTS", slot)
            await check_that_it_goes_on(stack, caplog)
        (other, *_) = [node for node in cluster.nodes if node is not owner]
        async with make_stack(redis_url=other.url) as stack:
            # Until the owner has told it so, the node takes the slot for nobody's.
            await eventually(lambda: names_moved(stack))
    finally:
        cluster.stop()


async def names_moved(stack: Stack) -> bool:
    stack.services.health._told.clear()
    ready = await stack.anonymous().get("/readyz")
    return bool(ready.json()["checks"]["redis"]["reason"] == spell([refusal("MOVED")]))


async def test_a_server_that_is_too_old_is_named_with_its_version(
    make_stack: MakeStack, old_redis: PrivateRedis, caplog: pytest.LogCaptureFixture
) -> None:
    async with make_stack(redis_url=old_redis.url) as stack:
        for _ in range(2):
            ready = await stack.anonymous().get("/readyz")
            assert (ready.status_code, ready.json()["checks"]["redis"]["reason"]) == (503, spell([refusal("OLD")]))
        settings = stack.services.settings
        assert refusal("OLD") in await bootstrap.examine(settings)
        with pytest.raises(
            ConfigurationError, match=r"^UPLOADER_REDIS_URL: this is Redis 6\.2\.5; Redis 7\.0 or newer"
        ):
            await bootstrap.prepare_start(settings, lambda: None)
    told = [record.__dict__["reason"] for record in caplog.records if record.message in BEGINS]
    assert told and all("this is Redis 6.2.5" in reason for reason in told)


async def test_another_error_is_named_by_its_code(make_stack: MakeStack, own_redis: PrivateRedis) -> None:
    own_redis.kill()
    own_redis.start("--rename-command", "EVALSHA", "EVALUATE")
    async with make_stack(redis_url=own_redis.url) as stack:
        ready = await stack.anonymous().get("/readyz")
        assert ready.json()["checks"]["redis"]["reason"] == spell([refusal("UNKNOWN")])


async def test_a_redis_that_refuses_nothing_is_not_probed_and_another_one_is_not_restarted(
    make_stack: MakeStack, administrator: Any, url: str
) -> None:
    async with make_stack(redis_url=url) as stack:
        services = stack.services
        assert services.redis_recovery.restart is None
        administrator.delete(f"up:{tag_of(0)}:probe")
        assert await services.redis_recovery.look() > 60
        assert not administrator.exists(f"up:{tag_of(0)}:probe")
        await services.probe.run()
        assert 0 < administrator.ttl(f"up:{tag_of(0)}:probe") <= 60
        assert [key for key in administrator.scan_iter() if b":probe" in key] == [f"up:{tag_of(0)}:probe".encode()]


async def test_restarts_come_later_each_time_and_begin_anew_once_writes_are_taken(
    make_stack: MakeStack, administrator: Any, url: str, tmp_path: Path
) -> None:
    """As of the embedded one. Its run goes on here, because nobody ends it."""
    clock, asked, began = ManualClock(), list[float](), 0.0
    begins, ends = CAUSES["MISCONF"]
    (tmp_path / "own-redis" / "dump.rdb").mkdir()
    async with make_stack(redis_url=url) as stack:
        probe = stack.services.probe
        recovery = RedisRecovery(probe, lambda _: asked.append(clock.monotonic() - began), monotonic=clock.monotonic)
        for commands in (begins, begins[:1]):  # the snapshot that failed is remembered
            for words in commands:
                administrator.execute_command(*words)
            await eventually(lambda: _fails(probe))
            asked, began = [], clock.monotonic()
            for _ in range(150):
                assert await recovery.look() <= 1.0
                clock.advance(1.0)
            assert asked == [5.0, 15.0, 35.0, 75.0, 115.0], "after 5 s, and then 10, 20, 40 and 40"
            for words in ends:
                administrator.execute_command(*words)
            probe.refusals._codes.clear()  # nobody waits until it is settled
            assert await recovery.look() > 60


async def _fails(probe: Probe) -> bool:
    try:
        await probe.run()
    except Unavailable:
        return True
    return False
