"""Files that are kept open from chunk to chunk: spared calls, and nothing else that anybody notices."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.background import reached, still_waits, until
from tests.support.bodies import InPieces
from tests.support.content import KIB, Content
from tests.support.faults import failing_call, left_open, open_files_under, paused_call, recorded_calls
from tests.support.rows import upload_row
from tests.support.storing import running_storage
from uploader.domain.upload import Upload
from uploader.errors import StorageFailed, StorageFull, Unverified
from uploader.storage.base import Gone, HeldChunk
from uploader.storage.local import chunks, digests, directories
from uploader.storage.store import Store

CONTENT = Content(8 * 64 * KIB)


@pytest.fixture(autouse=True)
def nobody_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digests open files, too."""
    monkeypatch.setattr(digests, "states_are_portable", lambda: False)


@pytest.fixture(autouse=True)
def time_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is, nothing is closed because of it."""
    monkeypatch.setattr(directories, "_KEPT_SECONDS", 3600.0)


@pytest.fixture(params=["power", "process"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with running_storage(tmp_path, durable=request.param == "power") as made:
        yield made
        assert await left_open(made, tmp_path) == []


@pytest.fixture
async def another(tmp_path: Path) -> AsyncIterator[Store]:
    """As another process has one."""
    async with running_storage(tmp_path, durable=True) as made:
        yield made
        await made.drain()


@pytest.fixture
async def upload(storage: Store) -> Upload:
    return await a_new_upload(storage)


async def a_new_upload(storage: Store) -> Upload:
    made = upload_row(size=CONTENT.size)
    await storage.create(made)
    return made


def hold(storage: Store, upload: Upload, number: int) -> "asyncio.Task[HeldChunk]":
    return asyncio.create_task(storage.hold_chunk(upload, number, InPieces(CONTENT.chunk(number))))


async def put(storage: Store, upload: Upload, *numbers: int) -> None:
    for number in numbers:
        (await hold(storage, upload, number)).release()


async def put_at_once(storage: Store, uploads: list[Upload], number: int) -> list[BaseException | None]:
    """What goes wrong with each."""
    return await asyncio.gather(*(put(storage, upload, number) for upload in uploads), return_exceptions=True)


async def present(storage: Store, upload: Upload) -> list[int]:
    return [number for number, there in enumerate((await storage.read_map(upload)).present) if there]


def files_of(upload: Upload, root: Path, pairs: int = 1) -> list[str]:
    return sorted([f"{root / upload.place}/{name}" for name in ("data", "map")] * pairs)


async def soon_open(root: Path, count: int) -> None:
    await until(lambda: len(open_files_under(root)) == count)


async def test_the_next_chunk_opens_nothing(storage: Store, tmp_path: Path, upload: Upload) -> None:
    await put(storage, upload, 0)
    with recorded_calls("open", "close") as calls:
        await put(storage, upload, *range(1, CONTENT.chunk_count))
    assert calls == []
    assert (tmp_path / upload.place / "data").read_bytes() == CONTENT.data
    assert open_files_under(tmp_path) == files_of(upload, tmp_path)


async def test_who_holds_a_chunk_shares_a_descriptor_with_nobody(
    storage: Store, tmp_path: Path, upload: Upload
) -> None:
    await put(storage, upload, 0)
    held = [await hold(storage, upload, number) for number in (1, 2, 3)]
    assert open_files_under(tmp_path) == files_of(upload, tmp_path, pairs=3)
    for chunk in held:
        chunk.release()
    with recorded_calls("open") as calls:
        await asyncio.gather(*(put(storage, upload, number) for number in (4, 5, 6)))
    assert calls == []


async def test_a_chunk_that_was_released_is_not_locked(storage: Store, another: Store, upload: Upload) -> None:
    await put(storage, upload, 0)
    async with another.closing(upload):
        waiting = hold(storage, upload, 1)
        assert await still_waits(waiting), "it looks at the gate as ever"
    (await waiting).release()
    assert await present(another, upload) == [0, 1]


async def test_an_upload_that_another_process_ended_is_gone(
    storage: Store, another: Store, tmp_path: Path, upload: Upload
) -> None:
    held = [await hold(storage, upload, number) for number in (0, 1)]
    for chunk in held:
        chunk.release()
    async with another.closing(upload) as closer:
        assert await closer.unlink()
    with recorded_calls("pwrite") as calls, pytest.raises(Gone):
        await put(storage, upload, 2)
    assert calls == []
    await soon_open(tmp_path / "temp", 0)


@pytest.mark.parametrize("lost", ["directory", "map", "data"])
async def test_files_that_were_replaced_are_opened_anew(
    storage: Store, tmp_path: Path, upload: Upload, lost: str
) -> None:
    await put(storage, upload, 0)
    path = tmp_path / upload.place / ("" if lost == "directory" else lost)
    aside = tmp_path / "aside"
    path.rename(aside)
    if lost == "data":
        aside.unlink()
    with recorded_calls("pwrite") as calls, pytest.raises(Unverified if lost == "data" else Gone):
        await put(storage, upload, 1)
    assert calls == []
    if lost == "directory":
        await storage.create(upload)
        await put(storage, upload, 1)
        assert await present(storage, upload) == [1]


async def test_the_end_of_an_upload_closes_its_files(storage: Store, tmp_path: Path, upload: Upload) -> None:
    await put(storage, upload, 0)
    other = await a_new_upload(storage)
    await put(storage, other, 0)
    async with storage.closing(upload) as closer:
        assert await closer.unlink()
    assert open_files_under(tmp_path) == files_of(other, tmp_path)


async def test_files_are_closed_some_time_after_the_last_chunk(
    storage: Store, tmp_path: Path, upload: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directories, "_KEPT_SECONDS", 0.02)
    for number in (0, 1):
        await put(storage, upload, number)
        await soon_open(tmp_path, 0)


async def test_only_so_many_files_are_kept(storage: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directories, "_MAX_KEPT", 2)
    uploads = [await a_new_upload(storage) for _ in range(4)]
    for number in (0, 1):
        assert await put_at_once(storage, uploads, number) == [None] * 4
    await soon_open(tmp_path, 4)
    await put(storage, uploads[0], 2)
    await put(storage, uploads[1], 2)
    await soon_open(tmp_path, 4)
    assert open_files_under(tmp_path) == sorted(files_of(uploads[0], tmp_path) + files_of(uploads[1], tmp_path))


@pytest.mark.parametrize("name", ["pwrite", "stat", "fstat", "pread"])
async def test_files_by_which_something_failed_are_not_used_again(
    storage: Store, tmp_path: Path, upload: Upload, name: str
) -> None:
    """A descriptor that was told of an error might not be told of the next one."""
    await put(storage, upload, 0)
    with failing_call(name, errno.EIO), pytest.raises(StorageFailed):
        await put(storage, upload, 1)
    assert open_files_under(tmp_path) == []
    await put(storage, upload, 1)
    assert await present(storage, upload) == [0, 1]


async def test_a_lock_that_cannot_be_given_up_goes_with_its_descriptor(
    storage: Store, another: Store, tmp_path: Path, upload: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(chunks, "unlock_all", fail)
    await put(storage, upload, 0)
    assert open_files_under(tmp_path) == []
    async with another.closing(upload):
        pass


async def test_of_chunks_that_go_to_the_disk_together_each_has_its_own_end(
    storage: Store, another: Store, tmp_path: Path
) -> None:
    uploads = [await a_new_upload(storage) for _ in range(4)]
    assert await put_at_once(storage, uploads, 0) == [None] * 4
    async with another.closing(uploads[1]) as closer:
        assert await closer.unlink()

    def of_the_third(path: Path) -> bool:
        return path.parent.name == uploads[2].id and path.name == "data"

    with failing_call("pwrite", errno.ENOSPC, only=of_the_third):
        outcomes = await put_at_once(storage, uploads, 1)
    assert [type(outcome) for outcome in outcomes] == [type(None), Gone, StorageFull, type(None)]
    assert [await present(storage, uploads[number]) for number in (0, 2, 3)] == [[0, 1], [0], [0, 1]]
    await put(storage, uploads[2], 1)
    assert await present(storage, uploads[2]) == [0, 1]


@pytest.mark.parametrize("begun", [True, False])
async def test_callers_that_are_cancelled_leave_no_lock_and_no_descriptor(
    storage: Store, another: Store, tmp_path: Path, upload: Upload, begun: bool
) -> None:
    await put(storage, upload, 0)
    with paused_call("pread", only=lambda path: path.name == "map") as pause:
        task = hold(storage, upload, 1)
        if begun:
            await reached(pause)
        else:
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    del task
    await soon_open(tmp_path / "temp", 0)
    async with another.closing(upload):
        assert set(await present(another, upload)) <= {0, 1}
