"""A storage on a real directory: the layout, the locks, the order of effects, and faults at every system call."""

import asyncio
import errno
import os
import shutil
import stat
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from zlib import crc32

import pytest

from tests.conftest import MakeStack
from tests.support.bodies import InPieces
from tests.support.content import KIB, Content
from tests.support.faults import failing_call, left_open, open_files_under, paused_call, recorded_calls, short_writes
from tests.support.layout import blob_path
from tests.support.local import Local, running_local, until, waits
from tests.support.maps import parsed_map, shape_of
from tests.support.rot import NO_FILES
from tests.support.rows import upload_row
from tests.support.storing import new_storage
from tests.support.waiting import PATIENCE_SECONDS
from uploader.database import queries
from uploader.domain.upload import Upload
from uploader.errors import ConfigurationError, StorageFailed, StorageFull, Unavailable, Unverified, UploaderError
from uploader.storage.base import Busy, Digests, Gone
from uploader.storage.disk import is_locked, try_lock, write
from uploader.storage.local import chunks, digests, locks
from uploader.storage.local import store as local_store
from uploader.storage.modes import close_to_others
from uploader.storage.store import Spool

CONTENT = Content(8 * 64 * KIB + 1000)
OTHER = Content(CONTENT.size, seed=1)
LAST = CONTENT.chunk_count - 1
RIGHT = Digests(CONTENT.md5, CONTENT.sha256)
FULL_OR_BROKEN = [(errno.ENOSPC, StorageFull), (errno.EDQUOT, StorageFull), (errno.EIO, StorageFailed)]


@pytest.fixture(autouse=True)
def nobody_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digests wait for the merge, or the calls of the thread that advances them would be counted here, too; how they
    follow the chunks has its own tests (test_frontier.py)."""
    monkeypatch.setattr(digests, "states_are_portable", lambda: False)


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[Local]:
    """What it acknowledges survives a power cut."""
    async with running_local(tmp_path, CONTENT) as made:
        yield made


@pytest.fixture
async def quick(tmp_path: Path) -> AsyncIterator[Local]:
    """What it acknowledges need not survive a power cut."""
    async with running_local(tmp_path, CONTENT, durable=False) as made:
        yield made


@pytest.fixture
async def upload(local: Local) -> Upload:
    return await local.open()


@pytest.fixture
async def full(local: Local, upload: Upload) -> Upload:
    await local.put_all(upload)
    return upload


# Setting up and opening


async def test_an_installation_and_an_upload_have_the_layout_of_the_design(local: Local, upload: Upload) -> None:
    await Spool(local.root).prepare()
    found = {str(path.relative_to(local.root)) for path in local.root.rglob("*")}
    directory = f"temp/2030/01/{upload.id}"
    assert found == {
        *("temp", "blobs", "trash", "spool", "temp/2030", "temp/2030/01", directory),
        *(f"{directory}/data", f"{directory}/map", f"{directory}/digest"),
    }
    for name in found:
        status = (local.root / name).stat()
        assert status.st_mode & 0o777 == (0o700 if stat.S_ISDIR(status.st_mode) else 0o600)
    data = local.file(upload, "data").stat()
    assert (data.st_size, data.st_blocks) == (CONTENT.size, 0), "it takes no room"
    content = local.file(upload, "map").read_bytes()
    assert shape_of(content) == chunks.MapShape(CONTENT.size, CONTENT.chunk_size, CONTENT.chunk_count)
    chunk_map = parsed_map(content)
    assert chunk_map.boot_id == "", "each chunk will be synced, so that none depends on this boot"
    assert list(chunk_map.present) == [0] * CONTENT.chunk_count


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


async def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    unfit = new_storage(tmp_path / "file", durable=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "spool").symlink_to(tmp_path / "elsewhere")
    spool = Spool(tmp_path)
    for place in (unfit, spool):
        with pytest.raises(ConfigurationError, match="UPLOADER_DATA"):
            await place.prepare()
        place.close()


async def test_the_bytes_of_an_upload_are_never_made_twice(local: Local, full: Upload) -> None:
    with pytest.raises(StorageFailed):
        await local.store.create(full)
    assert (await local.store.read_map(full)).complete


@pytest.mark.parametrize("name", ["mkdir", "open", "pwrite", "ftruncate", "fsync"])
@pytest.mark.parametrize(("number", "error"), [FULL_OR_BROKEN[0], FULL_OR_BROKEN[2]])
async def test_an_opening_that_fails_at_any_call_leaves_nothing(
    local: Local, name: str, number: int, error: type[UploaderError]
) -> None:
    for at in count(1):
        refused = local.row()
        with failing_call(name, number, at=at) as fault, suppress(error):
            await local.store.create(refused)
        if not fault.hits:
            break
        assert not (local.root / refused.place).exists()
        assert await left_open(local.store, local.root) == []
    assert at > 1
    assert await local.present(refused) == [], "without a fault it succeeds"


async def test_an_opening_is_durable_before_it_returns(local: Local) -> None:
    with recorded_calls("fsync", "fdatasync") as calls:
        opened = await local.open()
    synced = [name for _, name in calls]
    assert synced == ["temp", "2030", "map", opened.id, "01"], "and the entries of the new month"


# Writers


@pytest.mark.parametrize("number", [0, 3, LAST])
async def test_a_chunk_is_written_to_its_place_and_recorded_with_its_checksum(
    local: Local, upload: Upload, number: int
) -> None:
    os.utime(local.file(upload, "map"), (1000, 1000))
    assert await local.store.last_write(upload) == 1000
    await local.put(upload, number)
    data, start = local.data(upload), number * CONTENT.chunk_size
    assert data[start : start + CONTENT.chunk_size] == CONTENT.chunk(number)
    assert data.count(0) >= CONTENT.size - CONTENT.chunk_size, "nothing else was written"
    assert len(data) == CONTENT.size
    record = local.file(upload, "map").read_bytes()[chunks.map_record_offset(number) :][:8]
    assert record == chunks.map_record(crc32(CONTENT.chunk(number)))
    assert await local.present(upload) == [number]
    written = await local.store.last_write(upload)
    assert written > 1000
    with recorded_calls("pwrite", "fdatasync") as calls:
        await local.put(upload, number, OTHER)
    assert calls == [], "a chunk on the map is never written again"
    assert local.data(upload) == data
    assert await local.store.last_write(upload) == written


async def test_of_two_writers_of_one_chunk_the_second_waits_and_those_of_others_do_not(
    local: Local, upload: Upload
) -> None:
    held = [await local.store.hold_chunk(upload, number, InPieces(CONTENT.chunk(number))) for number in range(LAST + 1)]
    second = asyncio.create_task(local.store.hold_chunk(upload, 0, InPieces(OTHER.chunk(0))))
    assert await waits(second)
    for chunk in held:
        chunk.release()
    (await second).release()
    assert local.data(upload) == CONTENT.data


async def test_a_writer_that_waited_for_one_that_failed_writes_its_own(local: Local, upload: Upload) -> None:
    with failing_call("fdatasync"), paused_call("fdatasync") as pause:
        first = asyncio.create_task(local.put(upload, 0, OTHER))
        assert await asyncio.to_thread(pause.reached.wait, PATIENCE_SECONDS)
        second = asyncio.create_task(local.put(upload, 0))
        assert await waits(second)
        pause.go_on.set()
        with pytest.raises(StorageFailed):
            await first
        await second
    assert await local.present(upload) == [0]
    assert local.data(upload)[: CONTENT.chunk_size] == CONTENT.chunk(0)


async def test_a_writer_whose_upload_is_unlinked_between_its_look_and_its_lock_finds_it_gone(
    local: Local, full: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlink_and_lock(descriptor: int, start: int, length: int) -> bool:
        local.file(full, "map").unlink(missing_ok=True)
        return try_lock(descriptor, start, length)

    monkeypatch.setattr(chunks, "try_lock", unlink_and_lock)
    with pytest.raises(Gone):
        await local.put(full, 0)


async def test_a_writer_that_waits_too_long_gives_up(
    local: Local, upload: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = await local.store.hold_chunk(upload, 0, InPieces(CONTENT.chunk(0)))
    for module in (local_store, locks):
        monkeypatch.setattr(module, "LOCK_TIMEOUT_SECONDS", 0.02)
    with pytest.raises(Unavailable):
        await local.put(upload, 0)
    with pytest.raises(Unavailable):
        await local.place_blob(upload)
    held.release()


async def test_nothing_is_written_in_long_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content, lengths, written = os.urandom(1100 * KIB + 1), list[int](), os.pwrite

    def noting(descriptor: int, piece: memoryview, offset: int) -> int:
        lengths.append(len(piece))
        return written(descriptor, piece, offset)

    monkeypatch.setattr(os, "pwrite", noting)
    with (tmp_path / "long").open("wb") as file:
        write(file.fileno(), memoryview(content), 7)
    assert lengths == [512 * KIB, 512 * KIB, 76 * KIB + 1]
    assert (tmp_path / "long").read_bytes() == bytes(7) + content


# The order of effects


async def test_the_data_is_synced_before_the_map_says_so_and_the_map_before_the_answer(
    local: Local, upload: Upload
) -> None:
    with recorded_calls("pwrite", "fdatasync") as calls:
        await local.put(upload, 0)
    assert calls == [
        ("pwrite", "data"),
        ("pwrite", "data"),
        ("fdatasync", "data"),
        ("pwrite", "map"),
        ("fdatasync", "map"),
    ]
    await local.put_all(upload)
    with recorded_calls("fdatasync") as calls:
        await local.digest(upload)
    assert calls == [], "and so the merge has nothing to sync"


async def test_against_the_end_of_a_process_nothing_is_synced_until_the_merge(quick: Local) -> None:
    with recorded_calls("fdatasync", "fsync") as calls:
        upload = await quick.open()
        calls.clear()
        await quick.put_all(upload)
        assert calls == []
        await quick.digest(upload)
    assert calls == [("fdatasync", "data")]


async def test_a_merge_that_could_not_sync_the_data_never_believes_it_later(quick: Local) -> None:
    upload = await quick.full()
    with failing_call("fdatasync", errno.EIO) as fault, pytest.raises(StorageFailed):
        await quick.digest(upload)
    assert fault.hits == 1
    for _ in range(2):
        with pytest.raises(StorageFailed, match="lost bytes"):
            await quick.digest(upload)


# Faults while writing


@pytest.mark.parametrize("name", ["open", "pwrite", "fdatasync"])
@pytest.mark.parametrize(("number", "error"), FULL_OR_BROKEN)
async def test_a_chunk_whose_write_fails_at_any_call_is_missing_and_can_be_sent_again(
    local: Local, name: str, number: int, error: type[UploaderError]
) -> None:
    upload = await local.open()
    if name != "open":  # whose files are kept open from the first chunk on
        await local.put(upload, LAST)
    there = await local.present(upload)
    for chunk in count():
        with failing_call(name, number, at=chunk + 1) as fault, suppress(error):
            await local.put(upload, chunk)
        if not fault.hits:
            break
        assert await local.present(upload) == there, "nor is another one lost"
        assert await left_open(local.store, local.root) == []
    assert await local.present(upload) == [chunk, *there]
    assert chunk >= 2, "the data and the map, at least"
    await local.put_all(upload)
    assert local.data(upload) == CONTENT.data


@pytest.mark.parametrize("at", [1, 2])
async def test_while_syncing_fails_no_chunk_is_ever_present(local: Local, upload: Upload, at: int) -> None:
    with failing_call("fdatasync", errno.EIO, at=at, times=None) as fault:
        for tries in (1, 2, 3):
            with pytest.raises(StorageFailed):
                await local.put(upload, 0)
            assert await local.present(upload) == []
            assert fault.hits == tries, "a failed sync is not repeated for the same body"


@pytest.mark.parametrize("limit", [100, 3])
async def test_writes_that_stop_short_are_gone_on_with(local: Local, upload: Upload, limit: int) -> None:
    with short_writes(limit) as fault:
        await local.put(upload, LAST)
    assert fault.hits > 0
    assert local.data(upload).endswith(CONTENT.chunk(LAST))
    assert local.file(upload, "map").read_bytes()[-8:] == chunks.map_record(crc32(CONTENT.chunk(LAST)))


# Closers


async def test_a_closer_waits_for_the_writers_and_keeps_out_new_ones(local: Local, upload: Upload) -> None:
    held = await local.store.hold_chunk(upload, 0, InPieces(CONTENT.chunk(0)))
    inside, leave = asyncio.Event(), asyncio.Event()

    async def close() -> None:
        async with local.store.closing(upload) as closer:
            inside.set()
            assert list((await closer.read_map()).present)[:2] == [1, 0]
            await leave.wait()

    closing = asyncio.create_task(close())
    probe = os.open(local.file(upload, "map"), os.O_RDWR | os.O_CLOEXEC)
    await until(lambda: is_locked(probe, chunks.GATE_OFFSET, chunks.GATE_LENGTH))
    os.close(probe)
    # The gate is held, so a new writer of a chunk that nobody holds waits though the closer itself still waits.
    new_writer = asyncio.create_task(local.put(upload, 1))
    assert await waits(new_writer)
    assert not inside.is_set()
    held.release()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await inside.wait()
    assert await waits(new_writer)
    leave.set()
    await closing
    await new_writer
    assert await local.present(upload) == [0, 1]


async def test_two_closers_exclude_each_other_and_one_that_fails_gives_up_its_locks(local: Local, full: Upload) -> None:
    async def close() -> None:
        async with local.store.closing(full):
            pass

    with pytest.raises(ValueError, match="broken"):
        async with local.store.closing(full):
            second = asyncio.create_task(close())
            assert await waits(second)
            raise ValueError("broken")
    await second
    await local.put(full, 0)


async def test_what_waited_for_a_closer_that_unlinked_finds_the_upload_gone(local: Local, upload: Upload) -> None:
    async with local.store.closing(upload) as closer:
        writer = asyncio.create_task(local.put(upload, 0))
        other_closer = asyncio.create_task(local.store.closing(upload).__aenter__())
        assert await waits(writer)
        assert await waits(other_closer)
        await closer.unlink()
        await closer.unlink()
    for waiting in (writer, other_closer):
        with pytest.raises(Gone):
            await waiting
    assert not (local.root / upload.place).exists()


@pytest.mark.parametrize(("name", "last"), [("unlink", 4), ("rmdir", 2)])
async def test_a_discard_that_failed_at_any_call_is_finished_by_the_next(local: Local, name: str, last: int) -> None:
    for at in count(1):
        upload = await local.open()
        with failing_call(name, errno.EIO, at=at) as fault:
            try:
                await local.store.discard(upload)
            except StorageFailed:
                assert at == 1 or not local.file(upload, "map").exists(), "the map goes first"
        await local.store.discard(upload)
        assert not (local.root / upload.place).exists()
        if not fault.hits:
            break
    assert at == last


# Blobs


async def test_a_blob_is_the_data_itself_without_a_copy(local: Local, full: Upload) -> None:
    blob = blob_path(local.root, CONTENT.sha256)
    for _ in range(3):
        await local.place_blob(full)
        assert blob.samefile(local.file(full, "data"))
        assert list(blob.parent.iterdir()) == [blob]
    await local.store.discard(full)
    assert blob.read_bytes() == CONTENT.data
    assert blob.stat().st_nlink == 1


async def test_a_blob_and_its_directories_are_durable_when_it_is_placed(local: Local, full: Upload) -> None:
    digest = CONTENT.sha256
    with recorded_calls("fsync", "link", "mkdir") as calls:
        await local.place_blob(full)
    # `link` is recorded by its first argument: the data.
    assert calls == [
        ("mkdir", digest[:2]),
        ("fsync", "blobs"),
        ("mkdir", digest[2:4]),
        ("fsync", digest[:2]),
        ("link", "data"),
        ("fsync", digest[2:4]),
    ]


async def test_bytes_that_are_displaced_have_a_name_at_every_moment(local: Local, full: Upload) -> None:
    """By those that were just verified, whatever they are themselves."""
    blob = blob_path(local.root, CONTENT.sha256)
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"left over")
    with recorded_calls("link", "fsync", "rename") as calls:
        await local.place_blob(full)
    fan = CONTENT.sha256[:2]
    assert [call for call in calls if call[0] != "fsync" or call[1] == fan][-6:] == [
        ("link", CONTENT.sha256),  # to the trash
        ("link", f"{CONTENT.sha256}.checksums"),  # it has none
        ("fsync", fan),
        ("link", "data"),  # to a draft
        ("rename", f"{CONTENT.sha256}.{full.id}"),
        ("rename", "checksums"),
    ]
    assert blob.samefile(local.file(full, "data"))
    assert list(blob.parent.iterdir()) == [blob]
    (trashed,) = await local.store.copies(CONTENT.sha256)
    assert (local.root / trashed.place).read_bytes() == b"left over"


@pytest.mark.parametrize(
    ("leftover", "name"),
    [
        *((False, name) for name in ("open", "fsync", "mkdir", "link")),
        *((True, name) for name in ("open", "fsync", "mkdir", "link", "unlink", "rename")),
    ],
)
async def test_placing_a_blob_that_failed_at_any_call_can_be_repeated(
    local: Local, full: Upload, leftover: bool, name: str
) -> None:
    blob = blob_path(local.root, CONTENT.sha256)
    for at in count(1):
        shutil.rmtree(local.root / "blobs" / blob.parts[-3], ignore_errors=True)
        if leftover:
            blob.parent.mkdir(parents=True)
            blob.write_bytes(b"left over")
        async with local.store.closing(full) as closer:
            with failing_call(name, errno.ENOSPC, at=at) as fault, suppress(StorageFull):
                await closer.place_blob(CONTENT.sha256)
            await closer.place_blob(CONTENT.sha256)
        assert blob.samefile(local.file(full, "data"))
        assert list(blob.parent.iterdir()) == [blob]
        if not fault.hits:
            break
    assert at > 1
    assert blob.read_bytes() == CONTENT.data


async def test_a_blob_that_is_another_one_by_now_stays(local: Local, full: Upload) -> None:
    await local.place_blob(full)
    found = await local.store.find_blob(CONTENT.sha256)
    assert found is not None
    await asyncio.sleep(0.02)  # a tick of the kernel, which is as exact as its times are
    blob = blob_path(local.root, CONTENT.sha256)
    Path(shutil.copy(blob, local.root / "other")).replace(blob)
    assert not await local.store.remove(found)
    assert blob.read_bytes() == CONTENT.data


# Digests


async def test_digests_are_saved_and_not_computed_again_unless_they_were_not_saved_whole(
    local: Local, full: Upload
) -> None:
    assert await local.store.digested_bytes(full) == 0
    other = os.open(local.file(full, "digest"), os.O_RDWR | os.O_CLOEXEC)
    assert try_lock(other, 0, 0)
    with pytest.raises(Busy):
        await local.store.digest(full)
    os.close(other)
    assert await local.store.digest(full) == RIGHT
    assert await local.store.digested_bytes(full) == CONTENT.size
    with failing_call("preadv", times=None) as fault:
        assert await local.digest(full) == RIGHT
    assert fault.calls == 0
    for saved in (b'{"md5":"ab', b"\0" * 50, b"{}", b"\xff"):
        local.file(full, "digest").write_bytes(saved)
        for _ in range(2):
            assert await local.digest(full) == RIGHT


@pytest.mark.parametrize(("number", "error"), [FULL_OR_BROKEN[0], FULL_OR_BROKEN[2]])
async def test_digests_that_cannot_be_saved_fail_and_are_right_the_next_time(
    local: Local, full: Upload, number: int, error: type[UploaderError]
) -> None:
    with failing_call("pwrite", number, only=lambda path: path.name == "digest") as fault, pytest.raises(error):
        await local.digest(full)
    assert fault.hits == 1
    assert await local.digest(full) == RIGHT


async def test_a_data_file_of_the_wrong_size_is_no_content(local: Local, full: Upload) -> None:
    os.truncate(local.file(full, "data"), CONTENT.size - 1)
    with pytest.raises(StorageFailed):
        await local.digest(full)


async def test_computing_digests_ends_when_the_upload_is_cancelled(
    local: Local, full: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "_TURN_BYTES", CONTENT.chunk_size)
    with paused_call("preadv") as pause:
        computing = asyncio.create_task(local.digest(full))
        assert await asyncio.to_thread(pause.reached.wait, PATIENCE_SECONDS)
        assert await local.store.discard(full)
        pause.go_on.set()
        with pytest.raises(Gone):
            await computing


# Room


async def test_the_room_is_that_of_the_disk(local: Local) -> None:
    space = await local.store.space()
    assert space is not None
    figures = os.statvfs(local.root)
    assert space.total == figures.f_blocks * figures.f_frsize
    assert 0 < space.free <= space.total


async def test_a_spool_file_has_no_name(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    await spool.prepare()
    spooled = await spool.open()
    [opened] = open_files_under(tmp_path / "spool")
    assert opened.endswith("(deleted)")
    assert list((tmp_path / "spool").iterdir()) == []
    spooled.close()
    spool.close()
    assert open_files_under(tmp_path) == []


# Cancellation


@pytest.mark.parametrize("where", ["pwrite", "fdatasync"])
async def test_a_cancelled_put_leaves_no_lock_and_no_descriptor(make_stack: MakeStack, where: str) -> None:
    async with make_stack() as stack:
        await stack.open(CONTENT)
        with paused_call(where) as pause:
            task = asyncio.create_task(stack.put(CONTENT, 0))
            assert await asyncio.to_thread(pause.reached.wait, PATIENCE_SECONDS)
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


# What is no file, and symlinks


@pytest.mark.parametrize("instead", NO_FILES)
@pytest.mark.parametrize("planted", ["map", "data", "digest"])
async def test_nothing_waits_for_what_is_no_file_of_an_upload(
    local: Local, full: Upload, planted: str, instead: str
) -> None:
    await local.store.drain()
    path = local.file(full, planted)
    NO_FILES[instead](path)
    for work in (local.store.read_map, local.store.find_bad_chunks, local.store.digest):
        with suppress(StorageFailed, Unverified, Gone):
            await local.put(full, 0)
        with suppress(StorageFailed, Unverified, Gone):
            await work(full)
    if path.is_file():  # it was made anew
        NO_FILES[instead](path)
    await local.store.discard(full)
    assert not (local.root / full.place).exists()


@pytest.mark.parametrize("instead", NO_FILES)
async def test_what_is_no_file_is_no_blob(local: Local, full: Upload, instead: str) -> None:
    await local.place_blob(full)
    path, store = blob_path(local.root, CONTENT.sha256), local.store
    for _ in range(2):
        NO_FILES[instead](path)
        for size in (CONTENT.size, path.stat().st_size):
            with pytest.raises(Gone):
                await store.open_blob(CONTENT.sha256, size)
        assert await store.blob_sizes([CONTENT.sha256]) == [None]
        found = await store.find_blob(CONTENT.sha256)
        assert found is not None
        assert await store.hash_blob(found, None, with_md5=False) is None
        await local.place_blob(full)
        assert path.read_bytes() == CONTENT.data
    NO_FILES[instead](path)
    found = await store.find_blob(CONTENT.sha256)
    assert found is not None
    await store.put_away(found)
    assert not path.exists()


def linked_outside(path: Path, outside: Path) -> dict[str, bytes]:
    """Move something out, and leave a link to it; returns what is there then."""
    path.rename(outside)
    path.symlink_to(outside)
    return everything_under(outside)


def everything_under(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file): file.read_bytes() for file in files}


@pytest.mark.parametrize(
    "planted", ["temp", "temp/2030", "temp/2030/01", "upload", "upload/map", "upload/data", "upload/digest"]
)
async def test_no_symlink_in_temp_is_followed(local: Local, full: Upload, planted: str) -> None:
    path, outside, store = local.root / planted.replace("upload", full.place), local.root / "outside", local.store
    before, refused = linked_outside(path, outside), 0
    for work in (
        lambda: local.put(full, 0),
        lambda: store.read_map(full),
        lambda: store.find_bad_chunks(full),
        lambda: store.digest(full),
        lambda: store.discard(full),
        local.open,
    ):
        try:
            await work()
        except (StorageFailed, Unverified, Gone):
            refused += 1
    assert refused
    assert path.is_symlink() or not path.exists(), "the link itself may go"
    assert everything_under(outside) == before


@pytest.mark.parametrize("planted", ["blobs", "ab", "cd", "blob"])
async def test_no_symlink_in_blobs_is_followed(local: Local, full: Upload, planted: str) -> None:
    await local.place_blob(full)
    blob, outside, store = blob_path(local.root, CONTENT.sha256), local.root / "outside", local.store
    path = {"blobs": blob.parents[2], "ab": blob.parents[1], "cd": blob.parent, "blob": blob}[planted]
    before = linked_outside(path, outside)
    with pytest.raises(StorageFailed):
        await store.open_blob(CONTENT.sha256, CONTENT.size)
    with suppress(StorageFailed):
        assert [found async for stretch in store.list_blobs() for found in stretch.found] == []
    with suppress(StorageFailed):
        await local.place_blob(full)
    with suppress(StorageFailed):
        found = await store.find_blob(CONTENT.sha256)
        assert found is not None  # the link itself
        assert await store.remove(found)
    assert everything_under(outside) == before


@pytest.mark.parametrize("path", ["../outside", "temp/../../outside", "/etc", "temp//x", "."])
async def test_no_path_leads_out_of_the_data_directory(local: Local, path: str) -> None:
    (local.root / "outside").mkdir()
    with pytest.raises(StorageFailed):
        await local.store.read_map(upload_row(place=path))
