"""Rolling copies of a SQLite: made while everything goes on, good or not there, and brought back by hand."""

import os
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import MakeStack
from tests.integration.test_cleanup import place_stray_blob
from tests.support.clock import ManualClock
from tests.support.content import KIB, Content
from tests.support.dying import Death, dying
from tests.support.layout import blob_path
from tests.support.rot import ruin_a_table
from tests.support.stack import Stack
from uploader.bootstrap import Services, prepare_database
from uploader.database import copies, damage, meta, migrate
from uploader.database.copies import RollingCopies
from uploader.database.engine import Database
from uploader.errors import ConfigurationError, DatabaseDamaged, StorageFailed
from uploader.jobs.maintenance import CopyKeeper
from uploader.runtime.clock import Clock
from uploader.settings import Settings
from uploader.storage.backups import BackupRefused

CONTENT = Content(100 * KIB)
HOUR = 3600.0


@pytest.fixture
async def stack(make_stack: MakeStack, sqlite_url: str, clock: ManualClock) -> AsyncIterator[Stack]:
    async with make_stack(database_url=sqlite_url, clock=clock) as made:
        yield made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "test.db"


@pytest.fixture
def kept(path: Path) -> RollingCopies:
    return RollingCopies(path, Clock())


def files_in(path: Path) -> list[bytes]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as opened:
        return [name for (name,) in opened.execute("SELECT name FROM file ORDER BY name")]


async def test_copies_are_hourly_and_two_are_kept(
    stack: Stack, clock: ManualClock, path: Path, kept: RollingCopies
) -> None:
    job, seen = CopyKeeper(stack.services.copies.keep), []
    for hour in range(4):
        await stack.upload(Content(10 * KIB, seed=hour, name=f"{hour}"))
        for _ in range(2):
            await job.run_once()
        seen.append([files_in(copy.path) for copy in kept.listed()])
        clock.advance(HOUR)
    names = [b"0", b"1", b"2", b"3"]
    assert seen == [[names[:1]], [names[:2], names[:1]], [names[:3], names[:2]], [names, names[:3]]]
    for copy in kept.listed():
        assert copy.path.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in path.parent.glob("test.db*-*")) == sorted(
        [*(copy.path.name for copy in kept.listed()), "test.db-shm", "test.db-wal"]
    )


async def test_interrupted_copy_leaves_no_copy_and_the_next_succeeds(
    stack: Stack, clock: ManualClock, path: Path, kept: RollingCopies
) -> None:
    keeping = stack.services.copies
    first = await keeping.make()
    clock.advance(HOUR)
    with pytest.raises(Death), dying(1):
        await keeping.make()
    assert kept.listed() == [first]
    draft = path.with_name("test.db.copy")
    draft.write_bytes(os.urandom(100_000))
    with pytest.raises(Death), dying(2):
        await keeping.make()  # it has its name, and none was removed
    clock.advance(HOUR)
    await keeping.make()
    assert [files_in(copy.path) for copy in kept.listed()] == [[], []]
    with copies._locked(draft):
        assert await keeping.make() is None, "another process makes one"
    draft.unlink()


async def test_damaged_database_replaces_no_good_copy(
    stack: Stack, clock: ManualClock, path: Path, kept: RollingCopies
) -> None:
    await stack.upload(CONTENT)
    good = await stack.services.copies.make()
    with closing(damage.opened(path, "rw")) as opened:
        opened.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    ruin_a_table(path, "file")
    clock.advance(HOUR)
    with pytest.raises(DatabaseDamaged) as raised:
        await stack.services.copies.keep()
    assert "table file" in raised.value.reason
    assert kept.listed() == [good]
    with pytest.raises(ConfigurationError, match=r"table file: .*`uploader restore-backup --last`"):
        kept.refuse_damaged()
    assert await CopyKeeper(stack.services.copies.keep).run_once() == 600.0, "not every moment"


async def test_damage_that_was_found_stays_so_if_there_is_no_time_to_look_again(
    stack: Stack, path: Path, kept: RollingCopies, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stack.upload(CONTENT)
    with closing(damage.opened(path, "rw")) as opened:
        opened.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    ruin_a_table(path, "file")
    is_late, read = threading.Event(), damage._can_be_read

    def read_until_late(path: Path) -> bool:
        is_late.set()
        return read(path)

    monkeypatch.setattr(damage, "_can_be_read", read_until_late)
    monkeypatch.setattr(damage, "_STEPS", 1)
    assert "table file" in damage.damage_of(path, gives_up=is_late.is_set)[0]
    assert damage.damage_of(path, gives_up=is_late.is_set) == [], "it gives up before it has found anything"


async def test_without_room_there_is_no_copy(
    stack: Stack, kept: RollingCopies, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = os.statvfs_result((4096, 4096, 1000, 2, 2, 9, 9, 9, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    with pytest.raises(StorageFailed) as raised:
        await stack.services.copies.make()
    assert "No space left" in raised.value.reason
    assert kept.listed() == []


async def test_a_migration_is_copied_before(tmp_path: Path, sqlite_template: Path) -> None:
    settings = Settings(data=tmp_path)
    path = tmp_path / "uploader.db"
    path.write_bytes(sqlite_template.read_bytes())
    await prepare_database(settings)
    assert RollingCopies(path, Clock()).listed() == [], "nothing was to migrate"
    database = Database(f"sqlite:///{path}")
    await migrate.downgrade(database, "0013")
    await database.close()
    await prepare_database(settings)
    (copy,) = RollingCopies(path, Clock()).listed()
    with closing(sqlite3.connect(copy.path)) as opened:
        assert opened.execute("SELECT version_num FROM alembic_version").fetchall() == [("0013",)]


# Bringing it back


@pytest.mark.parametrize("at", [None, 1, 2, 3, 4])
async def test_the_newest_good_copy_comes_back(
    make_stack: MakeStack, sqlite_url: str, clock: ManualClock, path: Path, kept: RollingCopies, at: int | None
) -> None:
    make = partial(make_stack, database_url=sqlite_url, clock=clock)
    new = Content(90 * KIB, seed=1, name="new")
    async with make() as stack:
        await stack.upload(CONTENT)
        good = await stack.services.copies.make()
        clock.advance(HOUR)
        worse = await stack.services.copies.make()
        assert good is not None
        assert worse is not None
        await stack.upload(new)
        with pytest.raises(BackupRefused, match="is in use"):
            await stack.services.restoring.look_for_last()
        log = path.with_name("test.db-wal")
        committed = log.read_bytes()
    ruin_a_table(worse.path, "file")
    damaged = path.read_bytes()
    # As a server leaves it that was killed, and a restore that died.
    for left in (log, log.with_name("test.db.new-wal")):
        left.write_bytes(committed)
    services = Services(stack.services.settings, clock)
    try:
        found = await services.restoring.look_for_last()
        assert (found.copy, list(found.damaged)) == (good, [worse.path.name])
        if at is not None:
            with pytest.raises(Death), dying(at):
                await services.restoring.restore_last(found)
        await services.restoring.restore_last(await services.restoring.look_for_last())
    finally:
        await services.close()
    asides = list(path.parent.glob("test.db.damaged-*"))
    assert damaged in [path.read_bytes() for path in asides]
    async with make() as stack:
        assert files_in(path) == [CONTENT.name.encode()]
        assert [each.found.name async for each in stack.services.cleanup.unnamed()] == [new.sha256]
        reason = (await stack.client.get("/readyz")).json()["checks"]["content"]["reason"]
        assert "brought back from its copy" in reason
        assert (await stack.upload(new)).status_code == 201


async def test_without_a_good_copy_nothing_changes(stack: Stack, kept: RollingCopies) -> None:
    services = Services(stack.services.settings)
    await stack.services.database.close()
    with pytest.raises(BackupRefused, match="there is no good copy"):
        await services.restoring.look_for_last()
    await services.close()


async def test_what_the_copy_can_not_name_stays_until_somebody_says_so(make_stack: MakeStack, sqlite_url: str) -> None:
    clock = ManualClock(Clock().now())
    async with make_stack(database_url=sqlite_url, clock=clock) as stack:
        services, now = stack.services, clock.now()
        await place_stray_blob(stack, CONTENT)
        tombstone = Content(50 * KIB, seed=2, name="tombstone")
        file = (await stack.upload(tombstone)).json()["file"]
        held = meta.Held(now - timedelta(hours=1), now + timedelta(hours=1))
        await services.database.transact(meta.hold_contents, held)
        assert (await stack.client.delete(f"/me/files/{file['id']}")).status_code == 204
        clock.advance(3 * HOUR)
        for _ in range(2):
            cleaned = await services.cleanup.clean()
            assert (cleaned.blobs, cleaned.stray_blobs) == (0, 2)
        assert {each.found.name async for each in services.cleanup.unnamed()} == {CONTENT.sha256, tombstone.sha256}
        assert blob_path(stack.data, tombstone.sha256).exists()
        assert (await services.cleanup.clean(all_strays=True)).blobs == 2
        assert await services.database.read(meta.held_contents) is None
        assert [each async for each in services.cleanup.unnamed()] == []
