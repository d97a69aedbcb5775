"""The rights that docs/redis.md gives to the user of Redis: everything works with them, and each one is needed."""

import re
import shlex
from functools import partial
from pathlib import Path

import pytest
from redis import Redis

from tests.conftest import MakeStack
from tests.integration.test_proof_of_possession import ask, prove
from tests.support.background import flush_due, succeeds
from tests.support.content import KIB, Content
from tests.support.problems import problem
from tests.support.resumable import Tus
from tests.support.servers import PrivateCluster, PrivateRedis, PrivateSentinel
from tests.support.stack import Stack
from tests.support.waiting import eventually
from uploader import bootstrap
from uploader.accounting.keys import KINDS
from uploader.accounting.queue import POLL_SECONDS, DelayQueue
from uploader.accounting.refusals import refusals_of
from uploader.bootstrap.application import reset_redis

HALF = 64 * KIB + 5
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "redis.md").read_text()
SCRIPTS = ROOT / "uploader" / "accounting" / "scripts"
_LINE = re.search(r"redis-cli (ACL SETUSER uploader .*?)\n```", PAGE, re.DOTALL)
assert _LINE is not None
WORDS = shlex.split(_LINE[1].replace("\\\n", ""))
RIGHTS = [word for word in WORDS if word[0] in "+~&"]
# What is asked in vain, and does without.
OPTIONAL = {("command", "config|get"), ("command", "client|setinfo")}
# Which only wake workers.
WAKING = ["&wake:*", "+publish", "+subscribe"]
CONTENT, TAIL = Content(5 * 64 * KIB), Content(3 * 64 * KIB, seed=1, name="tail")


@pytest.fixture
def limited(own_redis: PrivateRedis) -> str:
    """The URL for the user of the page."""
    own_redis.command(*WORDS)
    return own_redis.url.replace("//", "//uploader:password@")


def more_rights(where: str) -> list[str]:
    row = re.search(rf"^\| {where}[^|]*\| (.*) \|$", PAGE, re.MULTILINE)
    assert row is not None
    return [right for words in re.findall(r"`(\+[^`]+)`", row[1]) for right in words.split()]


def lacking_in(said: str) -> list[str]:
    """The rights that a line says are missing."""
    return [right for found in re.findall(r" lacks ([^,;]*)", said) for right in found.split()]


def denied(server: PrivateRedis) -> set[tuple[str, str]]:
    with Redis(port=server.port) as asked:
        return {(entry["reason"], entry["object"]) for entry in asked.acl_log()}


async def redis_check(stack: Stack) -> tuple[bool, str]:
    stack.services.health._told.clear()
    found = (await stack.anonymous().get("/readyz")).json()["checks"]["redis"]
    return found["ok"], found["reason"] or ""


async def do_everything(stack: Stack, redis: PrivateRedis) -> None:
    """Whatever touches Redis, but for `redis reset`."""
    services = stack.services
    opened = await stack.open(CONTENT)
    for number in range(3):
        assert (await stack.put(CONTENT, number)).status_code == 200
    await services.pending.lease(opened.json()["upload"]["id"])
    tus = Tus(stack.client)
    path = await tus.created(TAIL.size, Upload_Metadata="filename dGFpbA==")
    tus.check(await tus.patch(path, 0, TAIL.data[:HALF]), 204)
    root = await stack.client_of("root", admin=True)
    assert (await root.get("/admin/queue")).json()["tasks"] >= 1
    await services.costs.tell()
    assert (await root.get("/admin/cost")).status_code == 200
    await stack.metrics()
    redis.raw("FLUSHALL")
    await services.sweeping.sweep(0)
    await services.pending.reset()
    await services.sweeping.sweep(0)
    await services.reconciling.reconcile(repair=True)
    tus.check(await tus.patch(path, HALF, TAIL.data[HALF:]), 204)
    for number in range(CONTENT.chunk_count):
        assert (await stack.put(CONTENT, number)).is_success
    await flush_due(stack)
    queue = DelayQueue(services.redis, services.pending.shards, "any")
    await queue.schedule({"task": 0})
    (task,) = await queue.claim(lease_seconds=60)
    assert await queue.ack(task)
    bob = await stack.client_of("bob")
    challenge = (await ask(bob, CONTENT)).json()["challenge"]
    assert (await prove(bob, challenge, CONTENT)).status_code == 201
    wrong = (await ask(await stack.client_of("carol"), CONTENT)).json()["challenge"]
    assert (await services.instant.challenges.take("carol", wrong["id"])) is not None


def test_the_probe_tries_each_command_that_is_used_and_the_page_names_it() -> None:
    others = "".join(path.read_text() for path in SCRIPTS.glob("*.lua") if path.name != "probe.lua")
    used = set(re.findall(r"redis\.p?call\('(\w+)'", others))
    tried = set(re.findall(r"^try\('(\w+)'", (SCRIPTS / "probe.lua").read_text(), re.MULTILINE))
    sources = "".join(path.read_text() for path in SCRIPTS.parent.glob("*.py"))
    used |= {word for word in tried if re.search(rf"\.{word.lower()}(_iter)?\(|\"{word}\"", sources)}
    assert used == tried
    commands = {right[1:].upper() for right in RIGHTS if right[0] == "+"}
    assert commands == tried | {"EVAL", "EVALSHA", "SUBSCRIBE"}
    assert {right for right in RIGHTS if right[0] == "~"} == {"~installation", *(f"~{kind}:*" for kind in KINDS)}


async def test_everything_works_with_the_rights_of_the_page(
    make_stack: MakeStack, own_redis: PrivateRedis, limited: str
) -> None:
    async with make_stack(redis_url=limited, jobs=True, quiet_interval_seconds=0.2) as stack:
        await do_everything(stack, own_redis)
        await eventually(lambda: told_alone(stack))
        assert refusals_of(stack.services.redis).mute == set()
    async with make_stack(redis_url=limited) as stack:
        await reset_redis(stack.services)
    assert denied(own_redis) <= OPTIONAL


async def told_alone(stack: Stack) -> bool:
    return await redis_check(stack) == (True, "")


def take(server: PrivateRedis, right: str) -> None:
    """Leave the user all other rights."""
    server.command(*[word for word in WORDS if word != right], *([f"-{right[1:]}"] if right[0] == "+" else []))
    server.raw("SCRIPT", "FLUSH")


async def test_each_right_is_named_while_it_is_missing(
    make_stack: MakeStack, own_redis: PrivateRedis, limited: str
) -> None:
    async with make_stack(redis_url=limited) as stack:
        for right in RIGHTS:
            take(own_redis, right)
            ok, reason = await redis_check(stack)
            assert (ok, right in lacking_in(reason)) == (right in WAKING, True), (right, reason)
            if right in ("+info", "~era:*", *WAKING):
                doctor = [str(each) for each in await bootstrap.examine(stack.services.settings)]
                assert any(right in lacking_in(line) for line in doctor), doctor
            own_redis.command(*WORDS)
            await eventually(partial(told_alone, stack))


@pytest.mark.parametrize("right", WAKING)
async def test_a_wake_up_that_is_refused_costs_a_second_and_no_chunk(
    make_stack: MakeStack, own_redis: PrivateRedis, limited: str, caplog: pytest.LogCaptureFixture, right: str
) -> None:
    take(own_redis, right)
    async with make_stack(redis_url=limited, jobs=True, quiet_interval_seconds=0.2) as stack:
        await stack.open(CONTENT)
        assert (await stack.put(CONTENT, 0)).status_code == 200
        await eventually(lambda: is_accounted(stack))
        assert refusals_of(stack.services.redis).mute == {right}
        assert await stack.services.pending.flush_queues[0].pause_seconds() <= POLL_SECONDS
        assert len([record for record in caplog.records if "not woken by Redis" in record.message]) <= 1


async def test_chunks_go_on_without_a_restart_once_a_right_is_there(
    make_stack: MakeStack, own_redis: PrivateRedis, limited: str
) -> None:
    take(own_redis, "+info")
    async with make_stack(redis_url=limited) as stack:
        await stack.open(CONTENT)
        problem(await stack.put(CONTENT, 0), 503, "unavailable")
        own_redis.command(*WORDS)
        await succeeds(lambda: stack.put(CONTENT, 0))
        await eventually(lambda: told_alone(stack))


async def is_accounted(stack: Stack) -> bool:
    return (await stack.usage("alice"))["unfinished"] == CONTENT.chunk_size


async def test_a_cluster_needs_what_the_page_says(make_stack: MakeStack, tmp_path: Path) -> None:
    cluster, more = PrivateCluster(tmp_path / "cluster"), more_rights("a Cluster")
    try:
        cluster.start()
        url = cluster.url.replace("//", "//uploader:password@")
        for lacking in ("", *more):
            for server in cluster.nodes:
                server.command(*WORDS, *[right for right in more if right != lacking])
            async with make_stack(redis_url=url, shards=2) as stack:
                ok, reason = await redis_check(stack)
                assert (ok, lacking_in(reason)) == (not lacking, [lacking] if lacking else []), reason
                if ok:
                    await stack.upload(CONTENT)
                    assert [denied(server) <= OPTIONAL for server in cluster.nodes] == [True] * len(cluster.nodes)
    finally:
        cluster.stop()


async def test_a_master_of_sentinels_needs_what_any_server_needs(make_stack: MakeStack, tmp_path: Path) -> None:
    sentinel = PrivateSentinel(tmp_path / "sentinel")
    try:
        sentinel.start()
        sentinel.master.command(*WORDS)
        async with make_stack(redis_url=sentinel.url.replace("//", "//uploader:password@")) as stack:
            await stack.upload(CONTENT)
            assert await told_alone(stack)
            assert denied(sentinel.master) <= OPTIONAL
    finally:
        sentinel.stop()
