"""A storage on a real directory: the layout, the locks, the order of effects, and faults at every system call."""

import asyncio
import errno
import os
import shutil
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from tests.conftest import MakeStack
from tests.support.bodies import InPieces
from tests.support.content import KIB, Content
from tests.support.faults import failing_call, left_open, open_files_under, paused_call, recorded_calls, short_writes
from tests.support.layout import blob_path
from tests.support.maps import parsed_map, shape_of
from tests.support.rot import NO_FILES
from tests.support.rows import upload_row
from tests.support.storing import new_storage, running_storage
from tests.support.waiting import PATIENCE_SECONDS
from uploader.database import queries
from uploader.domain.upload import Upload
from uploader.errors import ConfigurationError, StorageFailed, StorageFull, Unavailable, Unverified, UploaderError
from uploader.storage.base import Busy, Digests, Gone, Stopping
from uploader.storage.disk import close_to_others, is_locked, try_lock, write
from uploader.storage.local import chunks, digests, locks
from uploader.storage.local import store as local
from uploader.storage.store import Spool, Store

CONTENT = Content(8 * 64 * KIB + 1000)
OTHER = Content(CONTENT.size, seed=1)
LAST = CONTENT.chunk_count - 1


@pytest.fixture(autouse=True)
def nobody_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digests wait for the merge, or the calls of the thread that advances them would be counted here, too; how they
    follow the chunks has its own tests (test_frontier.py)."""
    monkeypatch.setattr(digests, "states_are_portable", lambda: False)


@pytest.fixture
async def quick(tmp_path: Path) -> AsyncIterator[Store]:
    """As `storage`, but what it acknowledges need not survive a power cut."""
    async with running_storage(tmp_path, durable=False) as made:
        yield made


@pytest.fixture
async def upload(storage: Store) -> Upload:
    """An upload that was opened and has no chunks yet."""
    return await a_new_upload(storage)


@pytest.fixture
async def full(storage: Store, upload: Upload) -> Upload:
    """An upload of which every chunk is there."""
    await put_all(storage, upload)
    return upload


async def a_new_upload(storage: Store) -> Upload:
    made = upload_row(size=CONTENT.size)
    await storage.create(made)
    return made


async def put(storage: Store, upload: Upload, number: int, content: Content = CONTENT) -> None:
    (await storage.hold_chunk(upload, number, InPieces(content.chunk(number)))).release()


async def put_all(storage: Store, upload: Upload, content: Content = CONTENT) -> None:
    for number in range(content.chunk_count):
        await put(storage, upload, number, content)


async def present(storage: Store, upload: Upload) -> list[int]:
    """The chunks that are on the map."""
    return [number for number, there in enumerate((await storage.read_map(upload)).present) if there]


async def waits(task: "asyncio.Task[Any]") -> bool:
    """Whether a task is still waiting after a while."""
    await asyncio.wait({task}, timeout=0.03)
    return not task.done()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.001)


def place_blob(storage: Store, upload: Upload) -> Awaitable[None]:
    async def placed() -> None:
        async with storage.closing(upload) as closer:
            await closer.place_blob(CONTENT.sha256)

    return placed()


# Setting up and opening


async def test_an_installation_and_an_upload_have_the_layout_of_the_design(
    storage: Store, tmp_path: Path, upload: Upload
) -> None:
    await Spool(tmp_path).prepare()
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    directory = f"temp/2030/01/{upload.id}"
    assert found == {
        *("temp", "blobs", "trash", "spool", "temp/2030", "temp/2030/01", directory),
        *(f"{directory}/data", f"{directory}/map", f"{directory}/digest"),
    }
    for name in found:
        status = (tmp_path / name).stat()
        assert status.st_mode & 0o777 == (0o700 if stat.S_ISDIR(status.st_mode) else 0o600)


def test_what_is_open_to_others_is_closed_and_no_link_is_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outside, link, wide, shared = (tmp_path / name for name in ("outside", "link", "wide", "shared"))
    for path in (outside, wide):
        path.write_bytes(b"")
        path.chmod(0o664)
    shared.mkdir()
    shared.chmod(0o2775)
    link.symlink_to(outside)
    paths = [link, wide, shared, tmp_path / "missing"]
    close_to_others(paths)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (outside, wide, shared)] == [0o664, 0o600, 0o2700]
    [said] = caplog.messages
    assert said == f"other accounts of this machine had access to {wide}, {shared}: not any more"
    close_to_others(paths)
    assert len(caplog.messages) == 1


async def test_a_new_upload_takes_no_room_and_has_an_empty_map(storage: Store, tmp_path: Path, upload: Upload) -> None:
    data = (tmp_path / upload.place / "data").stat()
    assert (data.st_size, data.st_blocks) == (CONTENT.size, 0)
    content = (tmp_path / upload.place / "map").read_bytes()
    assert shape_of(content) == chunks.MapShape(CONTENT.size, CONTENT.chunk_size, CONTENT.chunk_count)
    chunk_map = parsed_map(content)
    assert chunk_map.boot_id == "", "each chunk will be synced, so that none depends on this boot"
    assert list(chunk_map.present) == [0] * CONTENT.chunk_count


async def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    unfit = new_storage(tmp_path / "file", durable=True)
    with pytest.raises(ConfigurationError, match="UPLOADER_DATA"):
        await unfit.prepare()
    unfit.close()


async def test_the_bytes_of_an_upload_are_never_made_twice(storage: Store, full: Upload) -> None:
    with pytest.raises(StorageFailed):
        await storage.create(full)
    assert (await storage.read_map(full)).complete


@pytest.mark.parametrize("name", ["mkdir", "open", "pwrite", "ftruncate", "fsync"])
@pytest.mark.parametrize(("number", "error"), [(errno.ENOSPC, StorageFull), (errno.EIO, StorageFailed)])
async def test_an_opening_that_fails_at_any_call_leaves_nothing(
    storage: Store, tmp_path: Path, name: str, number: int, error: type[UploaderError]
) -> None:
    for at in count(1):
        refused = upload_row(size=CONTENT.size)
        with failing_call(name, number, at=at) as fault, suppress(error):
            await storage.create(refused)
        if not fault.hits:
            break
        assert not (tmp_path / refused.place).exists()
        assert await left_open(storage, tmp_path) == []
    assert at > 1
    assert await present(storage, refused) == [], "without a fault it succeeds"


async def test_an_opening_is_durable_before_it_returns(storage: Store) -> None:
    opened = upload_row(size=CONTENT.size)
    with recorded_calls("fsync", "fdatasync") as calls:
        await storage.create(opened)
    synced = [name for _, name in calls]
    assert synced == ["temp", "2030", "map", opened.id, "01"], "and the entries of the new month"


# Writers


@pytest.mark.parametrize("number", [0, 3, LAST])
async def test_a_chunk_is_written_to_its_place_and_recorded_with_its_checksum(
    storage: Store, tmp_path: Path, upload: Upload, number: int
) -> None:
    await put(storage, upload, number)
    data = (tmp_path / upload.place / "data").read_bytes()
    start = number * CONTENT.chunk_size
    assert data[start : start + CONTENT.chunk_size] == CONTENT.chunk(number)
    assert data.count(0) >= CONTENT.size - CONTENT.chunk_size, "nothing else was written"
    assert len(data) == CONTENT.size
    record = (tmp_path / upload.place / "map").read_bytes()[chunks.map_record_offset(number) :][:8]
    assert record == chunks.map_record(crc32(CONTENT.chunk(number)))
    assert await present(storage, upload) == [number]
    assert await left_open(storage, tmp_path) == []


async def test_a_chunk_on_the_map_is_never_written_again(storage: Store, tmp_path: Path, full: Upload) -> None:
    with recorded_calls("pwrite", "fdatasync") as calls:
        await put(storage, full, 2, OTHER)
    assert calls == []
    assert (tmp_path / full.place / "data").read_bytes() == CONTENT.data


async def test_without_a_body_a_chunk_has_to_be_there(storage: Store, tmp_path: Path, upload: Upload) -> None:
    await put(storage, upload, 1)
    (await storage.hold_chunk(upload, 1, None)).release()
    with pytest.raises(Gone):
        await storage.hold_chunk(upload, 0, None)
    assert await left_open(storage, tmp_path) == []


async def test_of_two_writers_of_one_chunk_the_second_waits_and_writes_nothing(
    storage: Store, tmp_path: Path, upload: Upload
) -> None:
    held = await storage.hold_chunk(upload, 0, InPieces(CONTENT.chunk(0)))
    second = asyncio.create_task(storage.hold_chunk(upload, 0, InPieces(OTHER.chunk(0))))
    assert await waits(second)
    held.release()
    (await second).release()
    assert (tmp_path / upload.place / "data").read_bytes()[: CONTENT.chunk_size] == CONTENT.chunk(0)


async def test_a_writer_that_waited_for_one_that_failed_writes_its_own(
    storage: Store, tmp_path: Path, upload: Upload
) -> None:
    with failing_call("fdatasync"), paused_call("fdatasync") as pause:
        first = asyncio.create_task(put(storage, upload, 0, OTHER))
        assert await asyncio.to_thread(pause.reached.wait, 10)
        second = asyncio.create_task(put(storage, upload, 0))
        assert await waits(second)
        pause.go_on.set()
        with pytest.raises(StorageFailed):
            await first
        await second
    assert await present(storage, upload) == [0]
    assert (tmp_path / upload.place / "data").read_bytes()[: CONTENT.chunk_size] == CONTENT.chunk(0)


async def test_writers_of_other_chunks_do_not_wait(storage: Store, upload: Upload) -> None:
    held = [await storage.hold_chunk(upload, number, InPieces(CONTENT.chunk(number))) for number in range(LAST + 1)]
    assert (await storage.read_map(upload)).complete
    for chunk in held:
        chunk.release()


async def test_many_writers_of_all_chunks_at_once_leave_the_content(
    storage: Store, tmp_path: Path, upload: Upload
) -> None:
    await asyncio.gather(*(put(storage, upload, number) for number in [*range(LAST + 1)] * 4))
    assert (tmp_path / upload.place / "data").read_bytes() == CONTENT.data
    assert await left_open(storage, tmp_path) == []


async def test_a_writer_whose_upload_is_unlinked_between_its_look_and_its_lock_finds_it_gone(
    storage: Store, tmp_path: Path, full: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlink_and_lock(descriptor: int, start: int, length: int) -> bool:
        (tmp_path / full.place / "map").unlink(missing_ok=True)
        return try_lock(descriptor, start, length)

    monkeypatch.setattr(chunks, "try_lock", unlink_and_lock)
    with pytest.raises(Gone):
        await put(storage, full, 0)
    assert await left_open(storage, tmp_path) == []


async def test_a_writer_that_waits_too_long_gives_up(
    storage: Store, tmp_path: Path, upload: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = await storage.hold_chunk(upload, 0, InPieces(CONTENT.chunk(0)))
    for module in (local, locks):
        monkeypatch.setattr(module, "LOCK_TIMEOUT_SECONDS", 0.02)
    with pytest.raises(Unavailable):
        await put(storage, upload, 0)
    with pytest.raises(Unavailable):
        await place_blob(storage, upload)
    held.release()
    assert await left_open(storage, tmp_path) == []


async def test_a_write_tells_when_the_last_chunk_arrived(storage: Store, tmp_path: Path, upload: Upload) -> None:
    os.utime(tmp_path / upload.place / "map", (1000, 1000))
    assert await storage.last_write(upload) == 1000
    await put(storage, upload, 0)
    written = await storage.last_write(upload)
    assert written > 1000
    await put(storage, upload, 0)
    assert await storage.last_write(upload) == written, "a repeated chunk writes nothing"


async def test_nothing_is_written_in_long_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content, lengths, written = os.urandom(300 * KIB + 1), list[int](), os.pwrite

    def noting(descriptor: int, piece: memoryview, offset: int) -> int:
        lengths.append(len(piece))
        return written(descriptor, piece, offset)

    monkeypatch.setattr(os, "pwrite", noting)
    with (tmp_path / "long").open("wb") as file:
        write(file.fileno(), memoryview(content), 7)
    assert lengths == [128 * KIB, 128 * KIB, 44 * KIB + 1]
    assert (tmp_path / "long").read_bytes() == bytes(7) + content


# The order of effects


async def test_the_data_is_synced_before_the_map_says_so_and_the_map_before_the_answer(
    storage: Store, upload: Upload
) -> None:
    with recorded_calls("pwrite", "fdatasync") as calls:
        await put(storage, upload, 0)
    assert calls == [
        ("pwrite", "data"),
        ("pwrite", "data"),
        ("fdatasync", "data"),
        ("pwrite", "map"),
        ("fdatasync", "map"),
    ]


async def test_against_the_end_of_a_process_nothing_is_synced_until_the_merge(quick: Store) -> None:
    upload = await a_new_upload(quick)
    with recorded_calls("fdatasync", "fsync") as calls:
        await put_all(quick, upload)
    assert calls == []
    with recorded_calls("fdatasync", "fsync") as calls:
        await quick.digest(upload)
    assert calls == [("fdatasync", "data")]


async def test_a_merge_that_could_not_sync_the_data_never_believes_it_later(quick: Store) -> None:
    upload = await a_new_upload(quick)
    await put_all(quick, upload)
    with failing_call("fdatasync", errno.EIO) as fault, pytest.raises(StorageFailed):
        await quick.digest(upload)
    assert fault.hits == 1
    for _ in range(2):
        with pytest.raises(StorageFailed, match="lost bytes"):
            await quick.digest(upload)


async def test_against_power_cuts_every_chunk_is_synced_twice(storage: Store, upload: Upload) -> None:
    with recorded_calls("fdatasync") as calls:
        await put_all(storage, upload)
        assert len(calls) == 2 * CONTENT.chunk_count
        await storage.digest(upload)
    assert len(calls) == 2 * CONTENT.chunk_count, "and so the merge has nothing to sync"


# Faults while writing


@pytest.mark.parametrize("name", ["open", "pwrite", "fdatasync"])
@pytest.mark.parametrize(
    ("number", "error"), [(errno.ENOSPC, StorageFull), (errno.EDQUOT, StorageFull), (errno.EIO, StorageFailed)]
)
async def test_a_chunk_whose_write_fails_at_any_call_is_missing_and_can_be_sent_again(
    storage: Store, tmp_path: Path, upload: Upload, name: str, number: int, error: type[UploaderError]
) -> None:
    for chunk in count():
        with failing_call(name, number, at=chunk + 1) as fault, suppress(error):
            await put(storage, upload, chunk)
        if not fault.hits:
            break
        assert chunk not in await present(storage, upload)
        assert await left_open(storage, tmp_path) == []
    assert await present(storage, upload) == [chunk]
    assert chunk >= 2, "the data and the map, at least"
    await put_all(storage, upload)
    assert (tmp_path / upload.place / "data").read_bytes() == CONTENT.data


@pytest.mark.parametrize("at", [1, 2])
async def test_while_syncing_fails_no_chunk_is_ever_present(storage: Store, upload: Upload, at: int) -> None:
    with failing_call("fdatasync", errno.EIO, at=at, times=None):
        for _ in range(3):
            with pytest.raises(StorageFailed):
                await put(storage, upload, 0)
            assert await present(storage, upload) == []


async def test_a_failed_sync_is_not_repeated_for_the_same_body(storage: Store, upload: Upload) -> None:
    with failing_call("fdatasync", errno.EIO) as fault, pytest.raises(StorageFailed):
        await put(storage, upload, 0)
    assert (fault.calls, fault.hits) == (1, 1)


async def test_a_fault_at_one_chunk_loses_no_other(storage: Store, tmp_path: Path, upload: Upload) -> None:
    await put(storage, upload, 0)
    with failing_call("pwrite", errno.ENOSPC, at=2), pytest.raises(StorageFull):
        await put(storage, upload, 1)
    assert await present(storage, upload) == [0]
    assert (tmp_path / upload.place / "data").read_bytes()[: CONTENT.chunk_size] == CONTENT.chunk(0)


@pytest.mark.parametrize("limit", [100, 3])
async def test_writes_that_stop_short_are_gone_on_with(
    storage: Store, tmp_path: Path, upload: Upload, limit: int
) -> None:
    with short_writes(limit) as fault:
        await put(storage, upload, LAST)
    assert fault.hits > 0
    assert (tmp_path / upload.place / "data").read_bytes().endswith(CONTENT.chunk(LAST))
    record = (tmp_path / upload.place / "map").read_bytes()[-8:]
    assert record == chunks.map_record(crc32(CONTENT.chunk(LAST)))


# Closers


async def test_a_closer_waits_for_the_writers_and_keeps_out_new_ones(
    storage: Store, tmp_path: Path, upload: Upload
) -> None:
    held = await storage.hold_chunk(upload, 0, InPieces(CONTENT.chunk(0)))
    inside, leave = asyncio.Event(), asyncio.Event()

    async def close() -> None:
        async with storage.closing(upload) as closer:
            inside.set()
            assert list((await closer.read_map()).present)[:2] == [1, 0]
            await leave.wait()

    closing = asyncio.create_task(close())
    probe = os.open(tmp_path / upload.place / "map", os.O_RDWR | os.O_CLOEXEC)
    await until(lambda: is_locked(probe, chunks.GATE_OFFSET, chunks.GATE_LENGTH))
    os.close(probe)
    # The gate is held, so a new writer of a chunk that nobody holds waits though the closer itself still waits.
    new_writer = asyncio.create_task(put(storage, upload, 1))
    assert await waits(new_writer)
    assert not inside.is_set()
    held.release()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await inside.wait()
    assert await waits(new_writer)
    leave.set()
    await closing
    await new_writer
    assert await present(storage, upload) == [0, 1]


async def test_two_closers_exclude_each_other(storage: Store, full: Upload) -> None:
    async def close() -> None:
        async with storage.closing(full):
            pass

    async with storage.closing(full):
        second = asyncio.create_task(close())
        assert await waits(second)
    await second


async def test_what_waited_for_a_closer_that_unlinked_finds_the_upload_gone(
    storage: Store, tmp_path: Path, upload: Upload
) -> None:
    async with storage.closing(upload) as closer:
        writer = asyncio.create_task(put(storage, upload, 0))
        other_closer = asyncio.create_task(storage.closing(upload).__aenter__())
        assert await waits(writer)
        assert await waits(other_closer)
        await closer.unlink()
        await closer.unlink()
    for waiting in (writer, other_closer):
        with pytest.raises(Gone):
            await waiting
    assert not (tmp_path / upload.place).exists()
    assert await left_open(storage, tmp_path) == []


async def test_a_closer_that_fails_gives_up_its_locks(storage: Store, tmp_path: Path, upload: Upload) -> None:
    with pytest.raises(ValueError, match="broken"):
        async with storage.closing(upload):
            raise ValueError("broken")
    await put(storage, upload, 0)
    assert await left_open(storage, tmp_path) == []


# Discarding


async def test_discarding_is_repeatable_and_takes_what_was_never_made(
    storage: Store, tmp_path: Path, full: Upload
) -> None:
    await storage.discard(full)
    await storage.discard(full)
    await storage.discard(upload_row())
    assert list((tmp_path / "temp/2030/01").iterdir()) == []


@pytest.mark.parametrize("name", ["unlink", "rmdir"])
async def test_a_discard_that_failed_at_any_call_is_finished_by_the_next(
    storage: Store, tmp_path: Path, name: str
) -> None:
    for at in count(1):
        upload = await a_new_upload(storage)
        with failing_call(name, errno.EIO, at=at) as fault:
            try:
                await storage.discard(upload)
            except StorageFailed:
                assert at == 1 or not (tmp_path / upload.place / "map").exists(), "the map goes first"
        await storage.discard(upload)
        assert not (tmp_path / upload.place).exists()
        if not fault.hits:
            break
    assert at == {"unlink": 4, "rmdir": 2}[name]


# Blobs


async def test_a_blob_is_the_data_itself_without_a_copy(storage: Store, tmp_path: Path, full: Upload) -> None:
    await place_blob(storage, full)
    blob = blob_path(tmp_path, CONTENT.sha256)
    assert blob.samefile(tmp_path / full.place / "data")
    await storage.discard(full)
    assert blob.read_bytes() == CONTENT.data
    assert blob.stat().st_nlink == 1


async def test_a_blob_and_its_directories_are_durable_when_it_is_placed(storage: Store, full: Upload) -> None:
    digest = CONTENT.sha256
    with recorded_calls("fsync", "link", "mkdir") as calls:
        await place_blob(storage, full)
    # `link` is recorded by its first argument: the data.
    assert calls == [
        ("mkdir", digest[:2]),
        ("fsync", "blobs"),
        ("mkdir", digest[2:4]),
        ("fsync", digest[:2]),
        ("link", "data"),
        ("fsync", digest[2:4]),
    ]


async def test_placing_a_blob_again_changes_nothing(storage: Store, tmp_path: Path, full: Upload) -> None:
    for _ in range(3):
        await place_blob(storage, full)
    blob = blob_path(tmp_path, CONTENT.sha256)
    assert blob.stat().st_nlink == 2
    assert list(blob.parent.iterdir()) == [blob]


async def test_bytes_that_were_just_verified_win_over_bytes_that_are_there(
    storage: Store, tmp_path: Path, full: Upload
) -> None:
    blob = blob_path(tmp_path, CONTENT.sha256)
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"left over")
    await place_blob(storage, full)
    assert blob.samefile(tmp_path / full.place / "data")
    assert list(blob.parent.iterdir()) == [blob]
    (trashed,) = await storage.copies(CONTENT.sha256)
    assert (tmp_path / trashed.place).read_bytes() == b"left over"


async def test_bytes_that_are_displaced_have_a_name_at_every_moment(
    storage: Store, tmp_path: Path, full: Upload
) -> None:
    twin = await a_new_upload(storage)
    await put_all(storage, twin)
    await place_blob(storage, twin)
    with recorded_calls("link", "fsync", "rename") as calls:
        await place_blob(storage, full)
    fan = CONTENT.sha256[:2]
    draft = f"{CONTENT.sha256}.{full.id}"
    assert [call for call in calls if call[0] != "fsync" or call[1] == fan][-4:] == [
        ("link", CONTENT.sha256),  # to the trash
        ("fsync", fan),
        ("link", "data"),  # to a draft
        ("rename", draft),
    ]
    blob = blob_path(tmp_path, CONTENT.sha256)
    assert blob.samefile(tmp_path / full.place / "data")
    (trashed,) = await storage.copies(CONTENT.sha256)
    assert (tmp_path / trashed.place).samefile(tmp_path / twin.place / "data")


@pytest.mark.parametrize(
    ("leftover", "name"),
    [
        *((False, name) for name in ("open", "fsync", "mkdir", "link")),
        *((True, name) for name in ("open", "fsync", "mkdir", "link", "unlink", "rename")),
    ],
)
async def test_placing_a_blob_that_failed_at_any_call_can_be_repeated(
    storage: Store, tmp_path: Path, full: Upload, leftover: bool, name: str
) -> None:
    blob = blob_path(tmp_path, CONTENT.sha256)
    for at in count(1):
        shutil.rmtree(tmp_path / "blobs" / blob.parts[-3], ignore_errors=True)
        if leftover:
            blob.parent.mkdir(parents=True)
            blob.write_bytes(b"left over")
        async with storage.closing(full) as closer:
            with failing_call(name, errno.ENOSPC, at=at) as fault, suppress(StorageFull):
                await closer.place_blob(CONTENT.sha256)
            await closer.place_blob(CONTENT.sha256)
        assert blob.samefile(tmp_path / full.place / "data")
        assert list(blob.parent.iterdir()) == [blob]
        if not fault.hits:
            break
    assert at > 1
    assert blob.read_bytes() == CONTENT.data


async def test_a_blob_that_is_another_one_by_now_stays(storage: Store, tmp_path: Path, full: Upload) -> None:
    await place_blob(storage, full)
    found = await storage.find_blob(CONTENT.sha256)
    assert found is not None
    await asyncio.sleep(0.02)  # a tick of the kernel, which is as exact as its times are
    other = Path(shutil.copy(blob_path(tmp_path, CONTENT.sha256), tmp_path / "other"))
    other.replace(blob_path(tmp_path, CONTENT.sha256))
    assert not await storage.remove(found)
    assert blob_path(tmp_path, CONTENT.sha256).read_bytes() == CONTENT.data


# Digests


async def test_both_digests_are_computed(storage: Store, full: Upload) -> None:
    assert await storage.digested_bytes(full) == 0
    assert await storage.digest(full) == Digests(CONTENT.md5, CONTENT.sha256)
    assert await storage.digested_bytes(full) == CONTENT.size


async def test_digests_are_saved_and_not_computed_again(storage: Store, full: Upload) -> None:
    await storage.digest(full)
    with failing_call("preadv", times=None) as fault:
        assert await storage.digest(full) == Digests(CONTENT.md5, CONTENT.sha256)
    assert fault.calls == 0


@pytest.mark.parametrize("saved", [b'{"md5":"ab', b"\0" * 50, b"{}", b"\xff"])
async def test_digests_that_were_not_saved_whole_are_computed_again(
    storage: Store, tmp_path: Path, full: Upload, saved: bytes
) -> None:
    (tmp_path / full.place / "digest").write_bytes(saved)
    for _ in range(2):
        assert await storage.digest(full) == Digests(CONTENT.md5, CONTENT.sha256)


async def test_only_one_worker_computes_the_digests(storage: Store, tmp_path: Path, full: Upload) -> None:
    other = os.open(tmp_path / full.place / "digest", os.O_RDWR | os.O_CLOEXEC)
    assert try_lock(other, 0, 0)
    with pytest.raises(Busy):
        await storage.digest(full)
    os.close(other)
    assert await storage.digest(full) == Digests(CONTENT.md5, CONTENT.sha256)
    assert await left_open(storage, tmp_path) == []


@pytest.mark.parametrize(("number", "error"), [(errno.ENOSPC, StorageFull), (errno.EIO, StorageFailed)])
async def test_digests_that_cannot_be_saved_fail_and_are_right_the_next_time(
    storage: Store, tmp_path: Path, full: Upload, number: int, error: type[UploaderError]
) -> None:
    with failing_call("pwrite", number) as fault, pytest.raises(error):
        await storage.digest(full)
    assert fault.hits == 1
    assert await storage.digest(full) == Digests(CONTENT.md5, CONTENT.sha256)
    assert await left_open(storage, tmp_path) == []


async def test_a_data_file_of_the_wrong_size_is_no_content(storage: Store, tmp_path: Path, full: Upload) -> None:
    os.truncate(tmp_path / full.place / "data", CONTENT.size - 1)
    with pytest.raises(StorageFailed):
        await storage.digest(full)


async def test_computing_digests_ends_when_the_process_is_to_stop(storage: Store, full: Upload) -> None:
    storage.stop()
    with pytest.raises(Stopping):
        await storage.digest(full)


async def test_computing_digests_ends_when_the_upload_is_cancelled(
    storage: Store, tmp_path: Path, full: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "_TURN_BYTES", CONTENT.chunk_size)
    with paused_call("preadv") as pause:
        computing = asyncio.create_task(storage.digest(full))
        assert await asyncio.to_thread(pause.reached.wait, 10)
        assert await storage.discard(full)
        pause.go_on.set()
        with pytest.raises(Gone):
            await computing
    assert await left_open(storage, tmp_path) == []


# Room


async def test_the_room_is_that_of_the_disk(storage: Store, tmp_path: Path) -> None:
    space = await storage.space()
    assert space is not None
    figures = os.statvfs(tmp_path)
    assert space.total == figures.f_blocks * figures.f_frsize
    assert 0 < space.free <= space.total


async def test_a_spool_file_has_no_name(storage: Store, tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    await spool.prepare()
    spooled = await spool.open()
    [opened] = open_files_under(tmp_path / "spool")
    assert opened.endswith("(deleted)")
    assert list((tmp_path / "spool").iterdir()) == []
    spooled.close()
    spool.close()
    assert await left_open(storage, tmp_path) == []


async def test_a_spool_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "spool").symlink_to(tmp_path / "elsewhere")
    spool = Spool(tmp_path)
    with pytest.raises(ConfigurationError, match="UPLOADER_DATA"):
        await spool.prepare()
    spool.close()


# Cancellation


@pytest.mark.parametrize("where", ["pwrite", "fdatasync"])
async def test_a_cancelled_put_leaves_no_lock_and_no_descriptor(make_stack: MakeStack, where: str) -> None:
    async with make_stack() as stack:
        await stack.open(CONTENT)
        with paused_call(where) as pause:
            task = asyncio.create_task(stack.put(CONTENT, 0))
            assert await asyncio.to_thread(pause.reached.wait, 10)
            task.cancel()
            assert await waits(task), "the thread that holds the lock is not abandoned"
            pause.go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await left_open(stack.services.storage, stack.data / "temp") == []
        again = (await stack.put(CONTENT, 0)).json()
        assert (again["duplicate"], again["received_bytes"]) == (True, CONTENT.chunk_size)


async def test_a_put_that_is_cancelled_while_it_waits_for_its_chunk_leaves_nothing(make_stack: MakeStack) -> None:
    async with make_stack() as stack:
        upload_id = (await stack.open(CONTENT)).json()["upload"]["id"]
        upload = await stack.services.database.read(lambda connection: queries.upload_by_id(connection, upload_id))
        assert upload is not None
        held = await stack.services.storage.hold_chunk(upload, 0, InPieces(CONTENT.chunk(0)))
        task = asyncio.create_task(stack.put(CONTENT, 0))
        assert await waits(task)
        task.cancel()
        held.release()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await left_open(stack.services.storage, stack.data / "temp") == []
        async with stack.services.storage.closing(upload) as closer:
            assert sum((await closer.read_map()).present) == 1


# What is no file


@pytest.mark.parametrize("instead", NO_FILES)
@pytest.mark.parametrize("planted", ["map", "data", "digest"])
async def test_nothing_waits_for_what_is_no_file_of_an_upload(
    storage: Store, tmp_path: Path, full: Upload, planted: str, instead: str
) -> None:
    await storage.drain()
    path = tmp_path / full.place / planted
    NO_FILES[instead](path)
    for work in (
        lambda: put(storage, full, 0),
        lambda: storage.read_map(full),
        lambda: storage.find_bad_chunks(full),
        lambda: storage.digest(full),
    ):
        with suppress(StorageFailed, Unverified, Gone):
            await work()
    if path.is_file():  # it was made anew
        NO_FILES[instead](path)
    await storage.discard(full)
    assert not (tmp_path / full.place).exists()
    assert await left_open(storage, tmp_path) == []


@pytest.mark.parametrize("instead", NO_FILES)
async def test_what_is_no_file_is_no_blob(storage: Store, tmp_path: Path, full: Upload, instead: str) -> None:
    await place_blob(storage, full)
    path = blob_path(tmp_path, CONTENT.sha256)
    for _ in range(2):
        NO_FILES[instead](path)
        for size in (CONTENT.size, path.stat().st_size):
            with pytest.raises(Gone):
                await storage.open_blob(CONTENT.sha256, size)
        assert await storage.blob_sizes([CONTENT.sha256]) == [None]
        found = await storage.find_blob(CONTENT.sha256)
        assert found is not None
        assert await storage.hash_blob(found, None, with_md5=False) is None
        assert await left_open(storage, tmp_path) == []
        await place_blob(storage, full)
        assert path.read_bytes() == CONTENT.data
    NO_FILES[instead](path)
    found = await storage.find_blob(CONTENT.sha256)
    assert found is not None
    await storage.put_away(found)
    assert not path.exists()


# Symlinks


@pytest.mark.parametrize(
    "planted", ["temp", "temp/2030", "temp/2030/01", "upload", "upload/map", "upload/data", "upload/digest"]
)
async def test_no_symlink_in_temp_is_followed(storage: Store, tmp_path: Path, full: Upload, planted: str) -> None:
    path = tmp_path / planted.replace("upload", full.place)
    outside = tmp_path / "outside"
    path.rename(outside)
    path.symlink_to(outside)
    before = _everything_under(outside)
    other = upload_row(size=CONTENT.size)
    refused = 0
    for work in (
        lambda: put(storage, full, 0),
        lambda: storage.read_map(full),
        lambda: storage.find_bad_chunks(full),
        lambda: storage.digest(full),
        lambda: storage.discard(full),
        lambda: storage.create(other),
    ):
        try:
            await work()
        except (StorageFailed, Unverified, Gone):
            refused += 1
    assert refused
    assert path.is_symlink() or not path.exists(), "the link itself may go"
    assert _everything_under(outside) == before
    assert await left_open(storage, tmp_path) == []


@pytest.mark.parametrize("planted", ["blobs", "ab", "cd", "blob"])
async def test_no_symlink_in_blobs_is_followed(storage: Store, tmp_path: Path, full: Upload, planted: str) -> None:
    await place_blob(storage, full)
    blob = blob_path(tmp_path, CONTENT.sha256)
    path = {"blobs": blob.parents[2], "ab": blob.parents[1], "cd": blob.parent, "blob": blob}[planted]
    outside = tmp_path / "outside"
    path.rename(outside)
    path.symlink_to(outside)
    before = _everything_under(outside)
    with pytest.raises(StorageFailed):
        await storage.open_blob(CONTENT.sha256, CONTENT.size)
    with suppress(StorageFailed):
        assert [found async for found in storage.list_blobs()] == []
    with suppress(StorageFailed):
        await place_blob(storage, full)
    with suppress(StorageFailed):
        found = await storage.find_blob(CONTENT.sha256)
        assert found is not None  # the link itself
        assert await storage.remove(found)
    assert _everything_under(outside) == before
    assert await left_open(storage, tmp_path) == []


@pytest.mark.parametrize("path", ["../outside", "temp/../../outside", "/etc", "temp//x", "."])
async def test_no_path_leads_out_of_the_data_directory(storage: Store, tmp_path: Path, path: str) -> None:
    (tmp_path / "outside").mkdir()
    with pytest.raises(StorageFailed):
        await storage.read_map(upload_row(place=path))


def _everything_under(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file): file.read_bytes() for file in files}
