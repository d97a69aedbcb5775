"""The trash: what was deleted is kept for a while, comes back when a row names it, and gives way when the disk is short."""

import asyncio
import errno
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.conftest import MakeStack
from tests.support.background import keeper_of, open_with_chunks, still_waits, until, while_paused
from tests.support.clock import ManualClock
from tests.support.content import KIB, Content
from tests.support.faults import failing_call, paused_call
from tests.support.gateways import PART_BYTES, settings_of
from tests.support.layout import blob_path
from tests.support.problems import problem
from tests.support.rot import flip_bit
from tests.support.stack import Stack
from uploader.addresses import BucketAddress
from uploader.database import models
from uploader.jobs.maintenance import TrashKeeper
from uploader.service.trash import Purged
from uploader.storage.base import Digests, Found, Pace, Space

CONTENT = Content(3 * 64 * KIB - 100)
# Has checksums of its blocks beside it.
LARGE = Content(5 * 64 * KIB)
OTHERS = [Content(100 * KIB + seed, seed=seed, name=f"{seed}.bin") for seed in range(1, 4)]
DAY = 86_400.0


async def _dump(stack: Stack) -> dict[Any, list[dict[str, Any]]]:
    tables = (models.user_info, models.blob, models.file, models.trashed_file, models.folder)
    async with stack.services.database.engine.connect() as connection:
        return {table: [row._asdict() for row in await connection.execute(table.select())] for table in tables}


async def _restore_dump(stack: Stack, dump: dict[Any, list[dict[str, Any]]]) -> None:
    async with stack.services.database.engine.begin() as connection:
        for table, rows in dump.items():
            await connection.execute(table.delete())
            if rows:
                await connection.execute(table.insert(), rows)


async def _delete_all(stack: Stack) -> None:
    for file in (await stack.client.get("/me/files")).json()["files"]:
        assert (await stack.client.delete(f"/me/files/{file['id']}")).status_code == 204


async def _contents(stack: Stack) -> list[bytes]:
    files = (await stack.client.get("/me/files")).json()["files"]
    return [(await stack.client.get(f"/me/files/{file['id']}/content")).content for file in files]


async def _names(stack: Stack) -> list[str]:
    return [found.name for found in await stack.services.trash.entries()]


async def test_deleted_content_is_in_the_trash_and_a_restored_dump_has_it_again(stack: Stack) -> None:
    assert (await stack.upload(CONTENT)).status_code == 201
    dump = await _dump(stack)
    await _delete_all(stack)
    assert (await _names(stack), stack.bytes_on_disk()) == ([CONTENT.sha256], [])
    assert await stack.services.trash.restore_named() == 0, "no row names it"
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": 0}

    await _restore_dump(stack, dump)
    assert await stack.services.trash.empty() == Purged(), "a row names it, and has no other bytes"
    assert await stack.services.trash.restore_named() == 1
    assert (await _names(stack), await _contents(stack)) == ([], [CONTENT.data])
    assert (await stack.services.reconciling.reconcile()).drifts == []


async def test_a_job_puts_back_what_a_restored_dump_names(make_stack: MakeStack) -> None:
    async with make_stack() as stack:
        assert (await stack.upload(CONTENT)).status_code == 201
        dump = await _dump(stack)
        await _delete_all(stack)
        await _restore_dump(stack, dump)
    async with make_stack(jobs=True) as stack:
        await until(lambda: blob_path(stack.data, CONTENT.sha256).exists())
        assert await _contents(stack) == [CONTENT.data]


async def test_what_went_bad_in_the_trash_does_not_come_back(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await stack.upload(CONTENT)).status_code == 201
    dump = await _dump(stack)
    await _delete_all(stack)
    (found,) = await stack.services.trash.entries()
    flip_bit(stack.data / found.place)
    await _restore_dump(stack, dump)
    read: list[str] = []
    storage = stack.services.storage
    before = storage.hash_blob

    async def counted(found: Found, pace: Pace | None, *, with_md5: bool) -> Digests | None:
        read.append(found.name)
        return await before(found, pace, with_md5=with_md5)

    monkeypatch.setattr(storage, "hash_blob", counted)
    for _ in range(2):
        assert await stack.services.trash.restore_named() == 0
    assert read == [CONTENT.sha256], "once is enough"
    (file,) = (await stack.client.get("/me/files")).json()["files"]
    assert file["damaged"] is True
    problem(await stack.client.get(f"/me/files/{file['id']}/content"), 500, "content-damaged")
    assert await stack.services.trash.empty() == Purged(), "nobody deletes what somebody may still want to look at"


async def test_a_file_that_is_deleted_and_sent_again_has_bytes_of_its_own(stack: Stack) -> None:
    assert (await stack.upload(CONTENT)).status_code == 201
    await _delete_all(stack)
    assert (await stack.open(CONTENT)).json()["state"] == "uploading"
    assert (await stack.upload(CONTENT)).status_code == 201
    assert await _names(stack) == [CONTENT.sha256]
    assert (await stack.services.trash.empty()).entries == 1
    assert await _contents(stack) == [CONTENT.data]


async def _keep(keeper: TrashKeeper, clock: ManualClock, runs: int, every_seconds: float) -> None:
    for _ in range(runs):
        clock.advance(every_seconds)
        await keeper.run_once()


async def test_the_trash_is_purged_after_the_retention_but_not_after_a_jump_of_the_clock(
    make_stack: MakeStack, clock: ManualClock
) -> None:
    async with make_stack(clock=clock) as stack:
        assert (await stack.upload(LARGE)).status_code == 201
        await _delete_all(stack)
        keeper = keeper_of(stack)
        await _keep(keeper, clock, 6 * 24, 3600)
        assert await _names(stack) == [LARGE.sha256]
        await _keep(keeper, clock, 2 * 24, 3600)
        assert await _names(stack) == [LARGE.sha256], "after an outage, as it seems, nothing goes for an hour"
        await _keep(keeper, clock, 50, 60)
        clock.jump(365 * DAY)
        await keeper.run_once()
        await _keep(keeper, clock, 50, 60)
        assert await _names(stack) == [LARGE.sha256]
        await _keep(keeper, clock, 70, 60)
        assert await _names(stack) == []
        assert [path for path in (stack.data / "trash").rglob("*") if path.is_file()] == [], "no checksums either"


@pytest.mark.parametrize(("retention_seconds", "most"), [(0, 10), (0.001, 600), (10, 120), (7 * DAY, 10)])
async def test_an_idle_trash_is_looked_at_seldom(
    make_stack: MakeStack, clock: ManualClock, retention_seconds: float, most: int
) -> None:
    async with make_stack(clock=clock, trash_retention_seconds=retention_seconds) as stack:
        keeper = keeper_of(stack)
        runs, ends_at = 0, clock.monotonic() + 600
        while clock.monotonic() < ends_at:
            clock.advance(await keeper.run_once())
            runs += 1
        assert 1 <= runs <= most


async def test_without_a_retention_the_objects_of_a_bucket_go_with_the_next_look(
    make_stack: MakeStack, clock: ManualClock, s3_address: BucketAddress
) -> None:
    bucket = settings_of(s3_address) | {"min_chunk_size_bytes": PART_BYTES}
    async with make_stack(clock=clock, trash_retention_seconds=0, **bucket) as stack:
        keeper = keeper_of(stack)
        assert await keeper.run_once() == 1
        assert (await stack.upload(Content(1000))).status_code == 201
        await _delete_all(stack)
        assert len(await _names(stack)) == 1
        clock.advance(1)
        await keeper.run_once()
        assert await _names(stack) == []


async def test_what_an_earlier_retention_left_goes_with_the_first_look(
    make_stack: MakeStack, clock: ManualClock
) -> None:
    async with make_stack(clock=clock) as stack:
        assert (await stack.upload(CONTENT)).status_code == 201
        await _delete_all(stack)
        assert await _names(stack) == [CONTENT.sha256]
    clock.advance(60)
    async with make_stack(clock=clock, trash_retention_seconds=0) as stack:
        await keeper_of(stack).run_once()
        assert await _names(stack) == []


async def test_a_purge_waits_for_the_row_of_its_content(make_stack_on: MakeStack) -> None:
    """A merge of the same content that is just under way: both find their way."""
    async with make_stack_on() as stack:
        assert (await stack.upload(CONTENT)).status_code == 201
        await _delete_all(stack)
        (found,) = await stack.services.trash.entries()
        with paused_call("unlink", only=lambda path: path == stack.data / found.place) as pause:
            purging = await while_paused(pause, stack.services.trash.empty())
            uploading = asyncio.create_task(stack.upload(CONTENT))
            assert await still_waits(uploading)
            pause.go_on.set()
            assert (await purging).entries == 1
            assert (await uploading).status_code == 201
        assert await _contents(stack) == [CONTENT.data]
        assert (await stack.services.reconciling.reconcile()).drifts == []


# Room


async def test_a_disk_that_is_short_takes_from_the_trash_the_oldest_first(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_stack(free_space_floor_bytes=0, instant="off") as stack:
        for content in OTHERS:
            assert (await stack.upload(content)).status_code == 201
            await _delete_all(stack)
            await asyncio.sleep(0.02)  # a tick of the kernel, which is as exact as its times are
        trash = [found.disk_bytes for found in await stack.services.trash.entries()]
        assert await _names(stack) == [content.sha256 for content in OTHERS]
        free = CONTENT.size + trash[2]

        async def space() -> Space:
            held = sum(found.disk_bytes for found in await stack.services.trash.entries())
            return Space(total=10**9, free=free, trash=held)

        monkeypatch.setattr(stack.services.storage, "space", space)
        monkeypatch.setattr(stack.services.admission, "_known", None)
        problem(await stack.open(Content(free + 1)), 507, "storage-full")
        assert len(await _names(stack)) == 3, "it would not have been enough"
        assert (await stack.open(CONTENT)).status_code == 201
        assert await _names(stack) == [OTHERS[2].sha256]
        await stack.services.admission.keep_floor()
        assert await _names(stack) == [OTHERS[2].sha256]
        free = trash[2] - 1  # something else fills the disk
        await stack.services.admission.keep_floor()
        assert await _names(stack) == []


async def test_the_trash_counts_as_free_disk(stack: Stack) -> None:
    admin = await stack.client_of("root", admin=True)
    before = (await admin.get("/admin/usage/summary")).json()["disk"]
    content = Content(4 << 20)
    assert (await stack.upload(content)).status_code == 201
    await _delete_all(stack)
    after = (await admin.get("/admin/usage/summary")).json()["disk"]
    assert before["trash_bytes"] == 0
    assert content.size <= after["trash_bytes"] <= content.size + 64 * KIB
    stack.services.gauges._asked_at = float("-inf")
    assert f"uploader_trash_bytes {after['trash_bytes'] / 1e6}e+06" in await stack.metrics()


async def test_uploads_that_lost_their_row_come_back_where_it_is_open_again(stack: Stack) -> None:
    """And only there: the trash of one that was closed since is purged."""
    for content in (CONTENT, OTHERS[0]):
        await open_with_chunks(stack, content, 0)
    await stack.services.storage.drain()  # or the digests are saved after the look
    async for batch in stack.services.storage.list_uploads(datetime(9999, 12, 1, tzinfo=UTC)):
        for found in batch:
            assert await stack.services.storage.put_away(found)
    assert (await stack.client.delete(f"/files/{OTHERS[0].md5}")).status_code == 204
    assert await stack.services.trash.restore_named() == 1
    for number in (1, 2):
        last = await stack.put(CONTENT, number)
    assert last.status_code == 201
    assert await _contents(stack) == [CONTENT.data]
    assert (await stack.services.trash.empty()).entries == 1
    assert await _names(stack) == []


async def test_what_finds_no_room_to_go_gets_it_from_the_ballast(stack: Stack) -> None:
    ballast = stack.services.ballast
    assert await asyncio.to_thread(ballast.fill)
    content = Content(100 * KIB)
    file = (await stack.upload(content)).json()["file"]
    with failing_call("mkdir", errno.ENOSPC) as fault:
        assert (await stack.client.delete(f"/me/files/{file['id']}")).status_code == 204
    assert fault.hits == 1
    assert [each.name for each in await stack.services.trash.entries()] == [content.sha256]
    assert ballast.is_used
    assert (await stack.client.put(f"/files/{content.md5}?name=again", content=content.data)).status_code == 507
