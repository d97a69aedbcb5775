"""Each reason that `/readyz` gives, caused as it comes about, told in the words of the page; and the answer is in time."""

import asyncio
import errno
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.conftest import MakeStack
from tests.support.clock import ManualClock
from tests.support.content import KIB, Content
from tests.support.faults import failing_call, paused_call
from tests.support.layout import blob_path
from tests.support.newer import newer_version
from tests.support.rot import flip_bit, ruin_a_table
from tests.support.servers import PrivateRedis
from tests.support.stack import Stack
from uploader.accounting.redis import can_write
from uploader.database import meta, migrate
from uploader.database.meta import Held, Mishap
from uploader.diagnosis import health
from uploader.domain import reasons
from uploader.domain.reasons import REASONS, Check, Reason

CONTENT = Content(3 * 64 * KIB)
DAY = 86_400.0
TESTS = Path(__file__).parents[1]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def stack(make_stack: MakeStack, sqlite_url: str, clock: ManualClock) -> AsyncIterator[Stack]:
    async with make_stack(database_url=sqlite_url, clock=clock) as made:
        yield made


async def told(stack: Stack, check: Check, status: int = 200) -> str:
    """The reason of a check, asked anew."""
    stack.services.health._told.clear()
    ready = await stack.anonymous().get("/readyz")
    assert ready.status_code == status, ready.text
    found = ready.json()["checks"].get(check, {"ok": True, "reason": None})
    assert found["ok"] is (status == 200)
    return found["reason"] or ""


def is_of(reason: Reason, said: str) -> bool:
    """Whether this reason is among them, whatever its facts."""
    what = "(.+?)".join(re.escape(part) for part in re.split(r"\{\w+\}", reason.what))
    return re.search(rf"(^|; ){what}, {re.escape(reason.do)}($|; )", said) is not None


async def ask_a_damaged_page(stack: Stack, _clock: ManualClock) -> None:
    path = stack.services.settings.sqlite_path
    assert path is not None
    await stack.open(CONTENT)
    async with stack.services.database.engine.connect() as connection:
        await connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))
    await stack.services.database.engine.dispose()
    ruin_a_table(path, "upload")
    assert (await stack.client.get("/uploads")).status_code == 503


async def migrate_as_a_newer_version(stack: Stack, _clock: ManualClock) -> None:
    with newer_version(stack.data.parent / "migrations", (True,)):
        await migrate.upgrade(stack.services.database)


async def copy_no_more(stack: Stack, clock: ManualClock) -> None:
    await stack.services.copies.make()
    clock.advance(3 * 3600.0)


async def have_it_slow(stack: Stack, _clock: ManualClock) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(health, "_SLOW_SECONDS", -1.0)
        for _ in range(2):
            stack.services.health._probed_until = 0.0
            await told(stack, Check.STORAGE)
    stack.services.health._probed_until = float("inf")  # until somebody has looked


async def use_the_ballast(stack: Stack, _clock: ManualClock) -> None:
    ballast = stack.services.ballast
    assert await asyncio.to_thread(ballast.fill)
    assert ballast.free()


async def doubt_the_filesystem(stack: Stack, _clock: ManualClock) -> None:
    stack.services.storage.doubt = "UPLOADER_DATA lies on nfs"


async def have_a_mishap(stack: Stack, clock: ManualClock) -> None:
    await stack.services.database.transact(meta.note_mishap, Mishap.LOST_UPLOAD, clock.now())


async def damage_a_content(stack: Stack, _clock: ManualClock) -> None:
    await stack.upload(CONTENT)
    flip_bit(blob_path(stack.data, CONTENT.sha256))
    await stack.services.files.healing.examine(CONTENT.sha256)


async def hold_contents(stack: Stack, clock: ManualClock) -> None:
    await stack.services.database.transact(meta.hold_contents, Held(clock.now(), clock.now()))


async def scrub_nothing(stack: Stack, clock: ManualClock) -> None:
    await stack.upload(CONTENT)
    clock.advance(400 * DAY)


async def reconcile_what_drifted(stack: Stack, _clock: ManualClock) -> None:
    await stack.upload(CONTENT)
    async with stack.services.database.engine.begin() as connection:
        await connection.execute(text("UPDATE user_info SET use_space_finished = 1"))
    await stack.services.reconciling.reconcile()


async def reconcile_no_more(stack: Stack, clock: ManualClock) -> None:
    await stack.services.reconciling.reconcile()
    clock.advance(DAY + 3600.0)


async def take_no_more_snapshots(stack: Stack, clock: ManualClock) -> None:
    await stack.services.overview.take_day()
    clock.advance(3 * DAY)


async def back_up_what_is_damaged(stack: Stack, _clock: ManualClock) -> None:
    await stack.upload(CONTENT)
    flip_bit(blob_path(stack.data, CONTENT.sha256))
    await stack.services.backups.back_up(stack.data.parent / "backups", lambda *_: None)


async def back_up_no_more(stack: Stack, clock: ManualClock) -> None:
    await stack.services.backups.back_up(stack.data.parent / "backups", lambda *_: None)
    clock.advance(9 * DAY)


CAUSES: dict[Reason, Callable[[Stack, ManualClock], Awaitable[None]]] = {
    reasons.DATABASE_DAMAGED: ask_a_damaged_page,
    reasons.SCHEMA_AHEAD: migrate_as_a_newer_version,
    reasons.COPY_OLD: copy_no_more,
    reasons.DISK_SLOW: have_it_slow,
    reasons.BALLAST_USED: use_the_ballast,
    reasons.FILESYSTEM_DOUBTFUL: doubt_the_filesystem,
    reasons.MISHAP: have_a_mishap,
    reasons.DAMAGED_CONTENTS: damage_a_content,
    reasons.CONTENTS_HELD: hold_contents,
    reasons.NOT_SCRUBBED: scrub_nothing,
    reasons.DRIFTS: reconcile_what_drifted,
    reasons.RECONCILE_OLD: reconcile_no_more,
    reasons.SNAPSHOT_OLD: take_no_more_snapshots,
    reasons.BACKUP_LACKS: back_up_what_is_damaged,
    reasons.BACKUP_OLD: back_up_no_more,
}
# By the words of a test that has the means.
ELSEWHERE = {
    reasons.DATABASE_FAILS: ("integration/test_installation.py", "removed or replaced"),
    reasons.DATABASE_BUSY: ("integration/test_connection_pools.py", "reasons.DATABASE_BUSY("),
    reasons.DATABASE_FULL: ("integration/test_failovers.py", "reasons.DATABASE_FULL("),
    reasons.NOT_DURABLE: ("integration/test_http_operations.py", "innodb_flush_log_at_trx_commit is 2, not 1"),
    reasons.SQL_MODE_CHANGED: ("integration/test_sql_text.py", "with NO_BACKSLASH_ESCAPES"),
    reasons.REDIS_FAILS: ("integration/test_readiness.py", "is_of(reasons.REDIS_FAILS"),
    reasons.STORAGE_FAILS: ("integration/test_readiness.py", "is_of(reasons.STORAGE_FAILS"),
    reasons.REDIS_EVICTS: ("integration/test_http_operations.py", "reasons.REDIS_EVICTS("),
    reasons.REDIS_FORGETS: ("integration/test_http_operations.py", "reasons.REDIS_FORGETS("),
    reasons.REDIS_ASIDE: ("acceptance/test_damaged_redis.py", 'aside.name in found["reason"]'),
    reasons.EMBEDDED_MISCONF: ("acceptance/test_failing_valkey.py", "reasons.EMBEDDED_MISCONF()"),
    reasons.REDIS_MUTE: ("integration/test_redis_rights.py", "right in WAKING"),
    reasons.REDIS_REFUSES: ("integration/test_refusing_redis.py", 'refusal("UNKNOWN")'),
    **{reason: ("integration/test_refusing_redis.py", f'"{code}"') for code, reason in reasons.REFUSALS.items()},
    reasons.DISK_FULL: ("integration/test_readiness.py", "is_of(reasons.DISK_FULL"),
    reasons.UNREADABLE_CONTENTS: ("integration/test_healing.py", "contents that can't be read: 1, see the log"),
    reasons.STRAYS_KEPT: ("integration/test_cleanup.py", "blobs that no row names: 101,"),
    reasons.EVENTS_UNNAMED: ("integration/test_relaying.py", "3 wait for hook, which UPLOADER_EVENTS does not name"),
    reasons.EVENTS_OFF: ("integration/test_relaying.py", "reasons.EVENTS_OFF("),
    reasons.EVENTS_LATE: ("integration/test_relaying.py", "reasons.EVENTS_LATE("),
    reasons.EVENTS_DEAD: ("integration/test_relaying.py", "reasons.EVENTS_DEAD("),
}


def test_each_reason_is_caused_by_a_test() -> None:
    assert {*CAUSES, *ELSEWHERE} == {*REASONS}
    for path, words in ELSEWHERE.values():
        assert words in (TESTS / path).read_text()


@pytest.mark.parametrize("reason", CAUSES, ids=lambda reason: reason.what[:30])
async def test_what_is_the_matter_is_told_with_what_to_do(stack: Stack, clock: ManualClock, reason: Reason) -> None:
    assert not is_of(reason, await told(stack, reason.check))
    await CAUSES[reason](stack, clock)
    said = await told(stack, reason.check)
    assert is_of(reason, said), said


async def test_a_node_whose_schema_is_gone_says_so(stack: Stack, tmp_path: Path) -> None:
    with newer_version(tmp_path / "newer", (False,)):
        await migrate.upgrade(stack.services.database)
    assert "at revision 9001, newer than this version's" in await told(stack, Check.DATABASE, 503)


@pytest.mark.parametrize(
    ("call", "number", "status"),
    [
        ("open", errno.ENOSPC, 200),
        ("open", errno.EROFS, 503),
        ("fdatasync", errno.EIO, 503),
        ("open", errno.ESTALE, 503),
    ],
)
async def test_a_chunk_and_the_check_say_the_same_of_the_disk(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, call: str, number: int, status: int
) -> None:
    monkeypatch.setattr(health, "_STORAGE_CHECK_SECONDS", -1.0)
    await stack.open(CONTENT)
    with failing_call(call, number, times=None):
        said = await told(stack, Check.STORAGE, status)
        refused = await stack.put(CONTENT, 0)
    if number == errno.ENOSPC:
        assert is_of(reasons.DISK_FULL, said)
        assert refused.status_code == 507
    else:
        assert is_of(reasons.STORAGE_FAILS, said)
        assert refused.status_code == 503
        assert said.startswith(refused.json()["detail"].rstrip("."))
        assert ("can only be read" in said) is (number == errno.EROFS)
    assert await told(stack, Check.STORAGE) == ""


async def test_a_disk_that_hangs_has_one_thread_however_often_it_is_asked(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_PATIENCE_SECONDS", 0.2)
    waiting: list[Path] = []

    def is_probe(path: Path) -> bool:
        if "temp" in path.parts:
            waiting.append(path)
        return "temp" in path.parts

    with paused_call("fdatasync", only=is_probe) as pause:
        for _ in range(3):
            ready = await stack.anonymous().get("/readyz")
            assert ready.status_code == 503
            assert "did not answer within" in ready.json()["checks"]["storage"]["reason"]
        assert pause.reached.is_set()
        assert len(waiting) == 1
    monkeypatch.setattr(health, "_PATIENCE_SECONDS", 60.0)
    assert await told(stack, Check.STORAGE) == ""


async def test_who_is_away_is_named_with_what_to_do(make_stack: MakeStack, own_redis: PrivateRedis) -> None:
    async with make_stack(redis_url=own_redis.url) as stack:
        own_redis.kill()
        said = await told(stack, Check.REDIS, 503)
        assert is_of(reasons.REDIS_FAILS, said)
        assert own_redis.url not in said


async def test_a_redis_without_room_for_its_log_gets_the_ballast(
    make_stack: MakeStack, own_redis: PrivateRedis
) -> None:
    """As the embedded one tells it, on the same disk; that of others has a disk of its own."""
    async with make_stack(redis_url=own_redis.url) as stack:
        services = stack.services
        keeping, ballast = services.ballast_keeping, services.ballast
        assert await asyncio.to_thread(ballast.fill)
        own_redis.kill()
        with failing_call("pwrite", errno.ENOSPC, times=None):
            await keeping.look()
            seen = [ballast.is_used]
            keeping.redis = services.redis
            await keeping.look()
            seen.append(ballast.is_used)
        assert seen == [False, True]
        own_redis.start()
        assert await can_write(services.redis)
        await keeping.make(first=False)
        assert not ballast.is_used
