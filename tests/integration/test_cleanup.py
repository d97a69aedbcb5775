"""The cleanup: what it removes, what it leaves alone, and that it may run beside everything else."""

import asyncio
import errno
import logging
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeStack
from tests.support.background import (
    cleaner_of,
    collector_of,
    flush_due,
    open_with_chunks,
    reconciler_of,
    settle_without_merge,
    still_waits,
    until,
    while_paused,
)
from tests.support.clock import ManualClock
from tests.support.content import KIB, Content
from tests.support.faults import failing_call, paused_call
from tests.support.invariants import Account, checked_accounts
from tests.support.layout import blob_path
from tests.support.rows import upload_row
from tests.support.servers import PrivateRedis
from tests.support.stack import Stack, go_on
from tests.support.storing import running_storage
from tests.support.waiting import eventually
from uploader.database import models, transactions
from uploader.domain.upload import Reason, Upload
from uploader.errors import StorageFailed
from uploader.service import cleanup
from uploader.service.cleanup import Cleaned
from uploader.service.ids import new_id
from uploader.service.reconcile import Kind
from uploader.storage.base import Arrival, BytesBody
from uploader.storage.local import directories
from uploader.storage.local.directories import month_path
from uploader.storage.store import Store

CONTENT = Content(3 * 64 * KIB - 100)
HOUR, DAY = 3600.0, 86_400.0
# After every month that these tests make.
ALL = datetime(9999, 12, 1, tzinfo=UTC)
MAY = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.fixture
def clock() -> ManualClock:
    """Begins 40 days ago, so that what is opened at first lies in a past month."""
    clock = ManualClock()
    clock.advance(-40 * DAY)
    return clock


def last_written(stack: Stack, upload: Upload, ago_seconds: float) -> None:
    """Let the last chunk have come so long ago, by the clock of the machine."""
    moment = datetime.now(UTC).timestamp() - ago_seconds
    os.utime(stack.data / upload.place / "map", (moment, moment))


async def close_without_tidying(stack: Stack, upload: Upload) -> None:
    """As a worker that died after its commit."""
    await stack.services.database.transact(
        lambda connection: transactions.uploads.close_upload(
            connection, upload.id, Reason.CANCELLED, stack.services.clock.now()
        )
    )


async def place_stray_blob(stack: Stack, content: Content = CONTENT) -> Upload:
    """As a merge that died after its link: the bytes are a blob without a row, and the upload is open."""
    upload = await settle_without_merge(stack, content)
    go_on(stack)
    await stack.services.storage.digest(upload)
    async with stack.services.storage.closing(upload) as closer:
        await closer.place_blob(content.sha256)
    return upload


@pytest.fixture
async def stack(make_stack: MakeStack, clock: ManualClock) -> AsyncIterator[Stack]:
    async with make_stack(clock=clock) as made:
        yield made


@pytest.fixture
async def stack_on(make_stack_on: MakeStack, clock: ManualClock) -> AsyncIterator[Stack]:
    """On each kind of database: where rows are locked."""
    async with make_stack_on(clock=clock) as made:
        yield made


def everything(stack: Stack) -> dict[str, float]:
    """All that lies in temp and blobs, and when it last changed."""
    paths = [path for name in ("temp", "blobs") for path in (stack.data / name).rglob("*")]
    return {str(path.relative_to(stack.data)): path.lstat().st_ctime for path in paths}


async def a_stray_directory(stack: Stack) -> Path:
    directory = stack.data / "temp" / "2001" / "04" / new_id()
    directory.mkdir(parents=True)
    return directory


def a_stray_blob(stack: Stack, name: str = "0" * 64, size: int = 1) -> Path:
    """It may as well be a file of a merge that died."""
    blob = stack.data / "blobs" / name[:2] / name[2:4] / name
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(bytes(size))
    return blob


async def rows(stack: Stack) -> list[Any]:
    async with stack.services.database.engine.connect() as connection:
        tables = (models.upload, models.blob, models.file, models.user_info)
        return [list((await connection.execute(table.select())).all()) for table in tables]


# Uploads that are open


async def test_an_idle_upload_of_a_past_month_expires_and_its_month_goes(stack: Stack, clock: ManualClock) -> None:
    upload = await open_with_chunks(stack, CONTENT, 0)
    clock.advance(40 * DAY)
    last_written(stack, upload, 2 * DAY)
    cleaned = await stack.services.cleanup.clean(idle_seconds=DAY)
    assert (cleaned.expired_uploads, cleaned.quota_bytes) == (1, CONTENT.size)
    assert cleaned.disk_bytes >= CONTENT.chunk_size
    assert list((stack.data / "temp").iterdir()) == []
    assert await checked_accounts(stack.services.database) == {"alice": Account()}
    assert (await stack.put(CONTENT, 1)).json()["reason"] == "expired"


async def test_an_upload_stays_that_is_not_idle_or_of_this_month_or_where_none_is_to_expire(
    stack: Stack, clock: ManualClock
) -> None:
    upload = await open_with_chunks(stack, CONTENT, 0)
    present = month_path(clock.now())
    clock.advance(2 * HOUR)
    if month_path(clock.now()) != present:  # these two hours are the first of a month
        clock.advance(-2 * HOUR)
    last_written(stack, upload, 50 * DAY)
    assert await stack.services.cleanup.clean(idle_seconds=1) == Cleaned()
    clock.advance(40 * DAY)
    assert await stack.services.cleanup.clean() == Cleaned()
    await cleaner_of(stack).run_once()  # it leaves them to the expirer
    assert await stack.services.cleanup.last() is not None
    assert (await stack.put(CONTENT, 1)).status_code == 200
    last_written(stack, upload, 0)
    assert await stack.services.cleanup.clean(idle_seconds=DAY) == Cleaned()
    last_written(stack, upload, 50 * DAY)
    assert (await stack.services.cleanup.clean(idle_seconds=1, opened_before=ALL)).expired_uploads == 1


async def test_an_upload_that_is_complete_is_put_up_for_its_merge(stack: Stack, clock: ManualClock) -> None:
    upload = await place_stray_blob(stack)
    await stack.services.redis.flushall()
    clock.advance(40 * DAY)
    last_written(stack, upload, 30 * DAY)
    assert (await stack.services.cleanup.clean(idle_seconds=DAY, dry_run=True)).expired_uploads == 0
    assert (await stack.services.cleanup.clean(idle_seconds=DAY)).expired_uploads == 0
    assert await stack.services.pending.merge_queues[0].next_due() is not None


async def test_a_cleanup_waits_for_a_writer_and_then_lets_its_upload_live(stack: Stack, clock: ManualClock) -> None:
    upload = await open_with_chunks(stack, CONTENT, 0)
    clock.advance(40 * DAY)
    last_written(stack, upload, 2 * DAY)
    with paused_call("pwrite") as pause:
        put = await while_paused(pause, stack.put(CONTENT, 1))
        cleaning = asyncio.create_task(stack.services.cleanup.clean(idle_seconds=DAY))
        assert await still_waits(cleaning)
        pause.go_on.set()
        assert (await put).status_code == 200
    assert await cleaning == Cleaned()
    assert (await stack.put(CONTENT, 2)).status_code == 201


# Directories that no open upload has


async def test_a_directory_without_a_row_goes_after_an_hour_whatever_is_in_it(stack: Stack, clock: ManualClock) -> None:
    month = stack.data / "temp" / month_path(clock.now())
    for files in ([], ["data"], ["data", "digest", "map"], ["something.tmp"]):
        directory = month / new_id()
        directory.mkdir(parents=True)
        for name in files:
            (directory / name).write_bytes(bytes(8192))
    clock.advance(40 * DAY)
    assert await stack.services.cleanup.clean() == Cleaned(unsettled=4)
    clock.advance(HOUR + 60)
    assert await stack.services.cleanup.clean() == Cleaned(directories=4, disk_bytes=5 * 8192)
    assert list((stack.data / "temp").iterdir()) == []


async def test_a_directory_of_a_closed_upload_goes_with_what_redis_knows_of_it(
    stack: Stack, clock: ManualClock
) -> None:
    upload = await open_with_chunks(stack, CONTENT, 0)
    await close_without_tidying(stack, upload)
    clock.advance(40 * DAY + 2 * HOUR)
    cleaned = await stack.services.cleanup.clean()
    assert (cleaned.directories, cleaned.quota_bytes, cleaned.left) == (1, 0, 0)
    assert cleaned.disk_bytes >= CONTENT.chunk_size
    assert stack.bytes_on_disk() == []
    assert await stack.services.pending.flush_queues[0].next_due() is None


async def test_a_directory_that_is_not_ours_stays(stack: Stack, clock: ManualClock, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    target = outside / "04" / new_id()
    target.mkdir(parents=True)
    (target / "data").write_bytes(b"precious")
    temp = stack.data / "temp"
    (temp / "2001").symlink_to(outside)
    (temp / "2002").mkdir()
    (temp / "2002" / "04").symlink_to(outside / "04")
    (temp / "2003" / "04").mkdir(parents=True)
    (temp / "2003" / "04" / new_id()).symlink_to(target)
    (temp / "2003" / "04" / "notes").mkdir()
    (temp / "2003" / "13").mkdir()
    (stack.data / "blobs" / "aa" / "bb").mkdir(parents=True)
    (stack.data / "blobs" / "aa" / "bb" / f"aabb{'0' * 60}").symlink_to(target / "data")
    (stack.data / "blobs" / "aa" / "bb" / "README").write_bytes(b"mine")
    (stack.data / "blobs" / "cc").symlink_to(outside)
    before = everything(stack)
    clock.advance(80 * DAY)
    assert await stack.services.cleanup.clean(opened_before=ALL) == Cleaned()
    assert everything(stack) == before
    assert (target / "data").read_bytes() == b"precious"


async def test_a_directory_that_can_not_be_removed_holds_up_no_other_and_a_symlink_goes_without_its_target(
    stack: Stack, clock: ManualClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    stuck, free = await a_stray_directory(stack), await a_stray_directory(stack)
    (stuck / "directory").mkdir()
    (free / "data").symlink_to(precious)
    clock.advance(80 * DAY)
    cleaned = await stack.services.cleanup.clean()
    assert (cleaned.directories, cleaned.left) == (1, 1)
    assert (stuck.exists(), free.exists()) == (True, False)
    assert precious.read_bytes() == b"precious"
    assert caplog.records[-1].message == "not cleaned up for now"


async def test_an_opening_under_way_keeps_its_directory(stack_on: Stack, clock: ManualClock) -> None:
    clock.advance(40 * DAY)
    # Held up between the directory and its row.
    async with stack_on.services.database.engine.begin() as connection:
        await connection.execute(models.user_info.update().values(total_space=models.user_info.c.total_space))
        opening = asyncio.create_task(stack_on.open(CONTENT))
        await until(lambda: len(stack_on.bytes_on_disk()) == 3)
        assert await stack_on.services.cleanup.clean(opened_before=ALL) == Cleaned(unsettled=1)
    assert (await opening).status_code == 201
    for number in range(CONTENT.chunk_count):
        last = await stack_on.put(CONTENT, number)
    assert last.status_code == 201


async def test_a_row_that_came_after_the_look_at_its_directory_keeps_it(stack_on: Stack, clock: ManualClock) -> None:
    """An opening that hung for more than an hour, and ended between the look at a batch and the removal."""
    services = stack_on.services
    uploads = [upload_row(place=f"temp/2026/04/{new_id()}") for _ in range(2)]
    uploads = [replace(upload, id=upload.place[-32:]) for upload in uploads]
    for upload in uploads:
        await services.storage.create(upload)
    clock.advance(40 * DAY + 2 * HOUR)
    with paused_call("rmdir") as pause:
        cleaning = await while_paused(pause, services.cleanup.clean(opened_before=ALL))
        [late] = [upload for upload in uploads if (stack_on.data / upload.place / "map").exists()]
        await services.database.transact(
            lambda connection: transactions.uploads.open_upload(
                connection, late, max_open_uploads=10, max_files=10, expires_at=late.created_at
            )
        )
        pause.go_on.set()
        assert (await cleaning).directories == 1
    assert len((await services.storage.read_map(late)).present) == 1


async def test_two_cleanups_at_once_give_everything_back_once(stack_on: Stack, clock: ManualClock) -> None:
    for seed in range(6):
        await open_with_chunks(stack_on, Content(CONTENT.size, seed=seed), 0)
    for path in (stack_on.data / "temp").rglob("map"):
        moment = datetime.now(UTC).timestamp() - 30 * DAY
        os.utime(path, (moment, moment))
    for number in range(6):
        directory = stack_on.data / "temp" / "2001" / f"{1 + number % 2:02}" / new_id()
        directory.mkdir(parents=True)
        (directory / "data").write_bytes(b"0")
        a_stray_blob(stack_on, f"{number:02x}" * 32)
    clock.advance(40 * DAY + 2 * HOUR)
    both = await asyncio.gather(*(stack_on.services.cleanup.clean(idle_seconds=DAY, all_strays=True) for _ in range(2)))
    assert sum(cleaned.expired_uploads for cleaned in both) == 6
    assert sum(cleaned.directories for cleaned in both) == 6
    assert sum(cleaned.blobs for cleaned in both) == 6
    assert sum(cleaned.quota_bytes for cleaned in both) == 6 * CONTENT.size
    assert [cleaned.left for cleaned in both] == [0, 0]
    assert list((stack_on.data / "temp").iterdir()) == []
    assert stack_on.bytes_on_disk() == []
    assert await checked_accounts(stack_on.services.database) == {"alice": Account()}


async def test_a_dry_run_changes_nothing_and_says_what_a_cleanup_does(stack: Stack, clock: ManualClock) -> None:
    idle = await open_with_chunks(stack, CONTENT, 0)
    last_written(stack, idle, 30 * DAY)
    alive = await open_with_chunks(stack, Content(CONTENT.size, seed=1), 0)
    closed = await open_with_chunks(stack, Content(CONTENT.size, seed=2), 0)
    await close_without_tidying(stack, closed)
    (stack.data / "temp" / "2001" / "04" / new_id()).mkdir(parents=True)
    a_stray_blob(stack, size=8192)
    await stack.upload(Content(1000, seed=3))
    clock.advance(40 * DAY + 2 * HOUR)
    last_written(stack, alive, -2 * HOUR)
    await stack.services.storage.drain()  # or the digests are saved between the two looks

    before = (everything(stack), await rows(stack), await stack.services.redis.keys("*"))
    told = await stack.services.cleanup.clean(idle_seconds=DAY, all_strays=True, dry_run=True)
    after = (everything(stack), await rows(stack), await stack.services.redis.keys("*"))
    assert before == after
    assert (told.expired_uploads, told.directories, told.blobs, told.left) == (1, 2, 1, 0)
    assert told.disk_bytes >= 2 * CONTENT.chunk_size + 8192
    assert await stack.services.cleanup.clean(idle_seconds=DAY, all_strays=True) == told
    assert (await stack.put(Content(CONTENT.size, seed=1), 1)).status_code == 200


# Months that are emptied


async def test_an_upload_is_created_though_its_month_is_removed_at_that_moment(storage: Store, tmp_path: Path) -> None:
    upload = upload_row(place=f"temp/2026/04/{new_id()}")
    with paused_call("mkdir", only=lambda path: str(path).endswith(upload.place)) as pause:
        creating = await while_paused(pause, storage.create(upload))
        await storage.remove_emptied(MAY)
        assert not (tmp_path / "temp" / "2026").exists()
        pause.go_on.set()
        await creating
    assert len((await storage.read_map(upload)).present) == 1


async def test_uploads_and_blobs_come_and_go_while_their_directories_are_removed_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directories, "_EMPTY_SECONDS", -60)
    async with running_storage(tmp_path, durable=False) as storage:

        async def uploads() -> None:
            for _ in range(40):
                upload = upload_row(place=f"temp/2026/04/{new_id()}")
                await storage.create(upload)
                assert len((await storage.read_map(upload)).present) == 1
                await storage.discard(upload)

        async def blobs(content: Content) -> None:
            for number in range(40):
                arrival = Arrival(BytesBody(content.data), None, None)
                await storage.store_arrivals([arrival])
                if number % 2:  # as where somebody has changed it since
                    arrival.place = None
                await asyncio.to_thread(storage.place_arrivals, [arrival])
                found = await storage.find_blob(content.sha256)
                assert found is not None
                assert found.size == content.size
                assert await storage.remove(found)

        for works in ([uploads() for _ in range(3)], [blobs(Content(100, seed)) for seed in range(3)]):
            coming_and_going = asyncio.gather(*works)
            while not coming_and_going.done():
                await storage.remove_emptied(MAY)
            await coming_and_going
            await storage.remove_emptied(MAY)
        for name in ("temp", "blobs"):
            assert list((tmp_path / name).iterdir()) == []


async def test_a_directory_of_blobs_goes_an_hour_after_its_last_blob(stack: Stack) -> None:
    assert (await stack.upload(CONTENT)).status_code == 201
    named = blob_path(stack.data, CONTENT.sha256).parent
    empty = [stack.data / "blobs" / name for name in ("zz", "00/00", "00/01", f"{named.parent.name}/zz")]
    for directory in empty:
        directory.mkdir(parents=True, exist_ok=True)
    old = datetime.now(UTC).timestamp() - HOUR - 60
    os.utime(empty[1], (old, old))
    os.utime(named, (old, old))
    await stack.services.cleanup.clean()
    assert [directory.exists() for directory in (named, *empty)] == [True, True, False, True, True]
    os.utime(empty[2], (old, old))
    await stack.services.cleanup.clean()
    assert not empty[2].parent.exists()


async def test_a_month_is_not_made_where_it_can_not_be(storage: Store, tmp_path: Path) -> None:
    (tmp_path / "temp" / "2026").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StorageFailed):
        await storage.create(upload_row(place=f"temp/2026/04/{new_id()}"))


async def test_a_directory_that_changed_since_the_walk_stays(storage: Store, tmp_path: Path) -> None:
    upload = upload_row(place=f"temp/2026/04/{new_id()}")
    await storage.create(upload)
    [[found]] = [batch async for batch in storage.list_uploads(MAY)]
    os.utime(tmp_path / upload.place / "map")
    assert not await storage.remove(found)
    [[found]] = [batch async for batch in storage.list_uploads(MAY)]
    assert await storage.remove(found)
    assert not await storage.remove(found)


# What no row names


async def test_many_blobs_without_a_row_stay_until_somebody_says_that_they_may_go(
    stack: Stack, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """As after an older dump was restored: it is reported everywhere."""
    assert (await stack.upload(CONTENT)).status_code == 201
    blobs = [a_stray_blob(stack, f"{number:064x}") for number in range(101)]
    clock.advance(40 * DAY + 2 * HOUR)
    before = stack.bytes_on_disk()
    for _ in range(2):
        await cleaner_of(stack).run_once()
        clock.advance(HOUR)  # it is another worker's start
    assert stack.bytes_on_disk() == before
    kept = [record for record in caplog.records if record.levelno == logging.WARNING and "kept" in record.message]
    facts = [(record.blobs, record.remove_by) for record in kept]  # type: ignore[attr-defined]
    assert facts == [(101, "uploader cleanup --yes")] * 2
    content = (await stack.client.get("/readyz")).json()["checks"]["content"]
    assert content["ok"]
    assert "blobs that no row names: 101," in content["reason"]
    assert "uploader_kept_stray_blobs 101.0" in await stack.metrics()

    blobs[0].unlink()  # a hundred are no more than what crashes leave
    cleaned = await stack.services.cleanup.clean(dry_run=True)
    assert (cleaned.blobs, cleaned.stray_blobs) == (100, 0)
    blobs[0].write_bytes(b"0")
    clock.advance(2 * HOUR)
    cleaned = await stack.services.cleanup.clean(all_strays=True)
    assert (cleaned.blobs, cleaned.stray_blobs) == (101, 0)
    assert stack.bytes_on_disk() == [blob_path(stack.data, CONTENT.sha256)]
    assert {found.name for found in await stack.services.trash.entries()} == {blob.name for blob in blobs}
    clock.advance(61)
    stack.services.gauges._asked_at = float("-inf")
    assert "uploader_kept_stray_blobs 0.0" in await stack.metrics()


async def test_of_many_blobs_one_in_a_hundred_may_have_no_row(
    stack: Stack, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup, "_MAX_STRAYS", 1)
    facts = {"md5": "0" * 32, "size": 0, "refs": 1, "created_at": clock.now()}
    named = [facts | {"sha256": f"{number:064x}"} for number in range(1_500)]
    async with stack.services.database.engine.begin() as connection:
        await connection.execute(models.blob.insert(), named)
    strays = [f"{number:064x}" for number in range(20_000, 20_015)]
    directory = stack.data / "blobs" / "00" / "00"
    directory.mkdir(parents=True)
    for name in [*(str(row["sha256"]) for row in named), *strays]:
        (directory / name).touch()
    clock.advance(40 * DAY + 2 * HOUR)
    cleaned = await stack.services.cleanup.clean(dry_run=True)
    assert (cleaned.blobs, cleaned.stray_blobs) == (15, 0)
    (directory / f"{30_000:064x}").touch()
    (directory / f"{30_001:064x}").touch()
    clock.advance(2 * HOUR)
    cleaned = await stack.services.cleanup.clean(dry_run=True)
    assert (cleaned.blobs, cleaned.stray_blobs) == (0, 17)


@pytest.mark.parametrize("restarted", [True, False])
async def test_an_upload_goes_on_after_the_jobs_of_a_database_that_does_not_name_it(
    make_stack: MakeStack, own_redis: PrivateRedis, sqlite_template: Path, tmp_path: Path, restarted: bool
) -> None:
    """They drop it from Redis, which may be started anew each time, as the embedded one is."""
    forgotten = tmp_path / "forgotten.db"
    shutil.copy(sqlite_template, forgotten)
    async with make_stack(redis_url=own_redis.url) as stack:
        upload = await open_with_chunks(stack, CONTENT, 0)

    def restart() -> None:
        if restarted:
            own_redis.kill()
            own_redis.start()

    restart()
    async with make_stack(
        redis_url=own_redis.url,
        database_url=f"sqlite:///{forgotten}",
        adopts=True,
        jobs=True,
        quiet_interval_seconds=0.05,
    ) as stack:
        pending = stack.services.pending

        async def dropped() -> bool:
            return (await pending.read(upload.id)).state == ""

        await eventually(dropped)
    restart()
    async with make_stack(redis_url=own_redis.url, jobs=True) as stack:
        told = (await stack.client.get(f"/files/{CONTENT.md5}")).json()["upload"]
        assert (told["received_bytes"], told["missing"]) == (CONTENT.chunk_size, [[1, 2]])
        assert [(await stack.put(CONTENT, number)).status_code for number in (1, 2)] == [200, 201]


async def test_chunks_of_uploads_without_a_row_go_to_the_trash_and_come_back_with_it(
    stack: Stack, clock: ManualClock
) -> None:
    """However damaged the headers of their maps are."""
    gone, before = await open_with_chunks(stack, Content(1000)), dict[Path, bytes]()
    for damaged in (0, 8, 60, 127):
        upload = await open_with_chunks(stack, Content(CONTENT.size, seed=damaged), 2)
        chunk_map = stack.data / upload.place / "map"
        with chunk_map.open("r+b") as damage:
            damage.seek(damaged)
            damage.write(b"\xff")
        before[chunk_map] = chunk_map.read_bytes()
    kept = [row._asdict() for row in (await rows(stack))[0] if row.id != gone.id]
    async with stack.services.database.engine.begin() as connection:
        await connection.execute(models.upload.delete())
    clock.advance(40 * DAY + 2 * HOUR)
    assert (await stack.services.cleanup.clean(dry_run=True)).directories == 5
    assert (await stack.services.cleanup.clean()).directories == 5
    assert list((stack.data / "temp").iterdir()) == []
    names = {found.name for found in await stack.services.trash.entries()}
    assert names == {row["id"] for row in kept}, "the other had no chunk"
    assert await stack.services.trash.restore_named() == 0

    async with stack.services.database.engine.begin() as connection:
        await connection.execute(models.upload.insert(), kept)
    assert await stack.services.trash.restore_named() == 4
    assert {path: path.read_bytes() for path in before} == before
    assert not (stack.data / gone.place).exists()
    assert await stack.services.trash.entries() == []


async def test_bytes_without_a_row_go_to_the_trash_and_those_on_their_way_to_a_blob_for_good(
    stack: Stack, clock: ManualClock
) -> None:
    kept = Content(100 * KIB, seed=1)
    assert (await stack.upload(kept)).status_code == 201
    upload = await place_stray_blob(stack)
    stray = blob_path(stack.data, CONTENT.sha256)
    own = stray.with_name(f"{CONTENT.sha256}.{upload.id}")
    own.write_bytes(bytes(4096))
    assert (await stack.client.delete(f"/files/{CONTENT.md5}")).status_code == 204
    clock.advance(40 * DAY)
    assert await stack.services.cleanup.clean() == Cleaned(unsettled=2)
    assert (await stack.services.reconciling.reconcile()).drifts == []
    clock.advance(2 * HOUR)
    found = await stack.services.reconciling.reconcile(repair=True)
    assert [(drift.kind, drift.subject) for drift in found.drifts] == [(Kind.STRAY_BLOB, CONTENT.sha256)]
    assert found.repaired == 0
    cleaned = await stack.services.cleanup.clean()
    assert (cleaned.blobs, cleaned.stray_blobs, cleaned.directories, cleaned.left) == (2, 0, 0, 0)
    assert cleaned.disk_bytes >= CONTENT.size + 4096
    assert [path.name for path in stack.bytes_on_disk()] == [kept.sha256]
    assert [found.name for found in await stack.services.trash.entries()] == [CONTENT.sha256]
    assert await checked_accounts(stack.services.database) == {"alice": Account(finished=kept.size)}
    assert (await stack.services.reconciling.reconcile()).drifts == []


async def test_old_bytes_that_were_just_linked_may_still_get_their_row(make_stack: MakeStack) -> None:
    """A link renews the ctime alone: the bytes of a merge are as old as the last chunk that it took."""
    async with make_stack() as stack:
        await place_stray_blob(stack)
        stray = blob_path(stack.data, CONTENT.sha256)
        assert (await stack.client.delete(f"/files/{CONTENT.md5}")).status_code == 204
        os.utime(stray, (0, 0))
        assert (await stack.services.reconciling.reconcile()).drifts == []
        assert await stack.services.cleanup.clean(all_strays=True) == Cleaned(unsettled=1)
        assert stack.bytes_on_disk() == [stray]


async def test_a_blob_without_refs_is_left_to_the_collector(stack: Stack, clock: ManualClock) -> None:
    file_id = (await stack.upload(CONTENT)).json()["file"]["id"]
    file = await stack.services.files.get("alice", file_id)
    await stack.services.database.transact(transactions.files.delete_file, file, clock.now())
    clock.advance(41 * DAY)
    assert await stack.services.cleanup.clean() == Cleaned()
    assert len(stack.bytes_on_disk()) == 1


async def test_a_merge_waits_for_the_removal_of_its_stray_blob_and_places_its_own_bytes(
    stack_on: Stack, clock: ManualClock
) -> None:
    """The merge finds its own link from an earlier attempt, and must not believe it while it is being removed."""
    upload = await place_stray_blob(stack_on)
    clock.advance(40 * DAY + 2 * HOUR)
    blob = blob_path(stack_on.data, CONTENT.sha256)
    with paused_call("unlink", only=lambda path: path == blob) as pause:
        cleaning = await while_paused(pause, stack_on.services.cleanup.clean(all_strays=True))
        merging = asyncio.create_task(stack_on.services.merging.wait(upload.id))
        assert await still_waits(merging)
        pause.go_on.set()
        assert (await cleaning).blobs == 1
    await merging
    assert blob.read_bytes() == CONTENT.data
    assert await checked_accounts(stack_on.services.database) == {"alice": Account(finished=CONTENT.size)}


async def test_what_a_merge_is_just_placing_is_no_stray(stack_on: Stack, clock: ManualClock) -> None:
    """Linked by an earlier attempt, long ago: the row is written and not committed while others look."""
    upload = await place_stray_blob(stack_on)
    clock.advance(40 * DAY + 2 * HOUR)
    with paused_call("fsync", only=lambda path: path == blob_path(stack_on.data, CONTENT.sha256).parent) as pause:
        merging = await while_paused(pause, stack_on.services.merging.wait(upload.id))
        reconciling = asyncio.create_task(stack_on.services.reconciling.reconcile())
        assert await still_waits(reconciling)
        pause.go_on.set()
        await merging
    assert Kind.STRAY_BLOB not in {drift.kind for drift in (await reconciling).drifts}


async def test_a_merge_that_commits_after_the_look_keeps_its_blob(stack_on: Stack, clock: ManualClock) -> None:
    upload = await place_stray_blob(stack_on)
    # In the same batch, and before it; that it is removed needs no transaction.
    first = a_stray_blob(stack_on, f"{'0' * 64}.{upload.id}")
    clock.advance(40 * DAY + 2 * HOUR)
    with paused_call("unlink", only=lambda path: path == first) as pause:
        cleaning = await while_paused(pause, stack_on.services.cleanup.clean(all_strays=True))
        await stack_on.services.merging.wait(upload.id)
        pause.go_on.set()
        cleaned = await cleaning
    assert (cleaned.blobs, cleaned.left) == (1, 0)
    assert [path.name for path in stack_on.bytes_on_disk()] == [CONTENT.sha256]
    assert await checked_accounts(stack_on.services.database) == {"alice": Account(finished=CONTENT.size)}


async def test_a_stray_blob_that_the_disk_keeps_is_left_and_no_row_stays(stack: Stack, clock: ManualClock) -> None:
    stray = a_stray_blob(stack)
    clock.advance(40 * DAY + 2 * HOUR)
    for call in ("link", "unlink"):
        with failing_call(call, errno.EIO) as fault:
            assert await stack.services.cleanup.clean(all_strays=True) == Cleaned(left=1)
        assert fault.hits == 1
        assert stray.exists()
        clock.advance(2 * HOUR)  # the link has changed it
    assert (await rows(stack))[1] == []
    assert (await stack.services.cleanup.clean(all_strays=True)).blobs == 1
    assert (await rows(stack))[1] == []


async def test_a_merge_and_cleanups_race_and_the_file_is_whole_every_time(stack_on: Stack, clock: ManualClock) -> None:
    contents = [Content(1000 + seed, seed=seed, chunk_size=64 * KIB) for seed in range(8)]
    uploads = [await place_stray_blob(stack_on, content) for content in contents]
    clock.advance(40 * DAY + 2 * HOUR)
    cleaning = [stack_on.services.cleanup.clean(all_strays=True) for _ in range(2)]
    merging = [stack_on.services.merging.wait(upload.id) for upload in uploads]
    await asyncio.gather(*merging, *cleaning)
    for content in contents:
        assert blob_path(stack_on.data, content.sha256).read_bytes() == content.data
    finished = sum(content.size for content in contents)
    assert await checked_accounts(stack_on.services.database) == {"alice": Account(finished=finished)}


async def test_what_a_dead_process_left_of_a_closed_upload_goes_with_the_next_collection(
    stack: Stack, clock: ManualClock
) -> None:
    """In whatever month it was opened."""
    collector = collector_of(stack)
    await close_without_tidying(stack, await open_with_chunks(stack, CONTENT, 0))
    await collector.run_once()
    assert stack.bytes_on_disk() != [], "its end may be under way"
    clock.advance(61)
    await collector.run_once()
    assert stack.bytes_on_disk() == []


# The job


async def test_the_job_cleans_up_what_the_reconciler_finds_once_an_hour(stack: Stack, clock: ManualClock) -> None:
    clock.advance(40 * DAY)
    cleaner, reconciler = cleaner_of(stack), reconciler_of(stack)
    assert (await stack.upload(CONTENT)).status_code == 201
    await cleaner.run_once()
    blob = a_stray_blob(stack)
    clock.advance(40 * 60)
    assert [await job.run_once() for job in (reconciler, cleaner)] == [60, 60]
    assert blob.exists(), "it is young"
    clock.advance(50 * 60)
    await cleaner.run_once()
    assert blob.exists(), "nobody has looked"
    clock.advance(10 * 60)
    await reconciler.run_once()
    await cleaner.run_once()
    assert [found.name for found in await stack.services.trash.entries()] == [blob.name]


async def test_of_several_workers_one_cleans_up_and_another_one_where_that_is_dead(
    stack: Stack, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = cleaner_of(stack), cleaner_of(stack)
    cleaned = []

    async def die(**_: object) -> None:
        cleaned.append("began")
        raise SystemError

    monkeypatch.setattr(stack.services.cleanup, "clean", die)
    with pytest.raises(SystemError):
        await first.run_once()
    await second.run_once()
    assert cleaned == ["began"], "it is the first one's for a minute"
    clock.advance(61)
    with pytest.raises(SystemError):
        await second.run_once()
    await first.run_once()
    assert cleaned == ["began"] * 2


async def test_the_job_cleans_up_after_the_start_and_once_in_every_month(
    stack: Stack, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    clock.advance((datetime(2100, 1, 30, 12, tzinfo=UTC) - clock.now()).total_seconds())
    cleaner = cleaner_of(stack)
    with caplog.at_level(logging.INFO):
        directory = await a_stray_directory(stack)
        stack.services.storage.stop()
        await cleaner.run_once()
        assert directory.exists(), "a stop ends it"
        go_on(stack)
        await cleaner.run_once()
        assert not directory.exists()

        directory = await a_stray_directory(stack)
        clock.advance(DAY)
        await cleaner.run_once()
        assert directory.exists(), "it is done for this month"
        clock.advance(DAY / 2)
        await cleaner.run_once()
        assert not directory.exists(), "the first of February has begun"
    ended = [record for record in caplog.records if record.message == "cleanup ended"]
    assert [record.directories for record in ended] == [1, 1]  # type: ignore[attr-defined]


async def test_a_server_with_jobs_cleans_up_a_while_after_its_start(
    make_stack: MakeStack, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uploader.jobs.maintenance._CLEANUP_GRACE_SECONDS", 0.1)
    clock.advance(80 * DAY)
    async with make_stack(clock=clock) as stack:
        directory = await a_stray_directory(stack)
    async with make_stack(clock=clock, jobs=True):
        await until(lambda: not directory.exists())


# The reset


async def test_two_resets_at_once_cancel_every_open_upload_once_and_nothing_else(make_stack_on: MakeStack) -> None:
    async with make_stack_on(max_pending_bytes=1) as stack:
        kept = Content(1000, seed=9)
        await stack.upload(kept)
        bob = await stack.client_of("bob")
        for seed, client in enumerate((stack.client, stack.client, stack.client, bob)):
            content = Content(CONTENT.size, seed=seed)
            await stack.open(content, client)
            await stack.put(content, 0, client)
        await flush_due(stack)
        both = await asyncio.gather(*(stack.services.cleanup.reset_unfinished() for _ in range(2)))
        assert sum(reset.uploads for reset in both) == 4
        assert sum(reset.quota_bytes for reset in both) == 4 * CONTENT.size
        assert [reset.left for reset in both] == [0, 0]
        accounts = await checked_accounts(stack.services.database)
        assert accounts == {"alice": Account(finished=kept.size), "bob": Account()}
        assert [path.name for path in stack.bytes_on_disk()] == [kept.sha256]
        assert await stack.services.pending.flush_queues[0].next_due() is None
        refused = await stack.put(Content(CONTENT.size, seed=0), 1)
        assert (refused.status_code, refused.json()["reason"]) == (410, "cancelled")
        assert (await stack.services.cleanup.reset_unfinished()).uploads == 0
