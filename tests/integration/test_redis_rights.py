"""The rights that docs/redis.md gives to the user of Redis: everything works with them, and each one is needed."""

import re
import shlex
from pathlib import Path

import pytest
from redis import Redis

from tests.conftest import MakeStack
from tests.integration.test_proof_of_possession import ask, prove
from tests.support.background import flush_due, succeeds
from tests.support.content import KIB, Content
from tests.support.resumable import Tus
from tests.support.servers import PrivateCluster, PrivateRedis, PrivateSentinel
from tests.support.stack import Stack
from tests.support.waiting import eventually
from uploader import bootstrap
from uploader.accounting.keys import KINDS
from uploader.accounting.queue import DelayQueue
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
OPTIONAL = {(b"command", b"config|get"), (b"command", b"client|setinfo")}
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


def denied(server: PrivateRedis) -> set[tuple[bytes, bytes]]:
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
    assert (await root.get("/admin/costs")).status_code == 200
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
    queue = DelayQueue(services.redis, services.pending.shards, 0, "any")
    await queue.schedule("task", 0)
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


@pytest.mark.parametrize("right", RIGHTS)
async def test_a_right_that_is_missing_is_named_until_it_is_there(
    make_stack: MakeStack, own_redis: PrivateRedis, limited: str, right: str
) -> None:
    """Here a wake-up is lost, or every chunk is refused: both are told beforehand, and end by themselves."""
    settings = {"redis_url": limited, "jobs": right in WAKING, "quiet_interval_seconds": 0.2}
    own_redis.command(*[word for word in WORDS if word != right], *([f"-{right[1:]}"] if right[0] == "+" else []))
    own_redis.raw("SCRIPT", "FLUSH")
    async with make_stack(**settings) as stack:
        ok, reason = await redis_check(stack)
        assert ok is (right in WAKING), reason
        assert right in lacking_in(reason), reason
        doctor = [str(each) for each in await bootstrap.examine(stack.services.settings)]
        assert any(right in lacking_in(line) for line in doctor), doctor
        if right in WAKING:
            opened = await stack.open(CONTENT)
            assert (await stack.put(CONTENT, 0)).status_code == 200
            assert opened.status_code == 201
            await eventually(lambda: is_accounted(stack))
        own_redis.command(*WORDS)
        await succeeds(lambda: stack.open(TAIL))
        await eventually(lambda: told_alone(stack))


async def is_accounted(stack: Stack) -> bool:
    return (await stack.usage("alice"))["unfinished"] == CONTENT.chunk_size


async def test_a_cluster_and_a_master_of_sentinels_need_what_the_page_says(
    make_stack: MakeStack, tmp_path: Path
) -> None:
    cluster, sentinel = PrivateCluster(tmp_path / "cluster"), PrivateSentinel(tmp_path / "sentinel")
    try:
        for made, servers, more in (
            (cluster, cluster.nodes, more_rights("a Cluster")),
            (sentinel, [sentinel.master, sentinel.replica], []),
        ):
            made.start()
            for server in servers:
                server.command(*WORDS, *more)
            url = made.url.replace("//", "//uploader:password@")
            async with make_stack(redis_url=url, shards=2, data=tmp_path / servers[0].url[-8:-2]) as stack:
                await stack.upload(CONTENT)
                assert await told_alone(stack)
                await reset_redis(stack.services)
            for server in servers:
                assert denied(server) <= OPTIONAL
    finally:
        cluster.stop()
        sentinel.stop()
