"""What a store holds, whatever the rows say, and of which installation it says that it is."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.content import Content
from tests.support.stores import CONTENT, MakeProcess, Process
from uploader.storage.base import Stopping
from uploader.storage.store import Marks

LATER = datetime(9999, 12, 31, tzinfo=UTC)
IDS = [digit * 32 for digit in "1234"]


async def uploads(process: Process) -> list[str]:
    return sorted([found.name async for batch in process.store.list_uploads(LATER) for found in batch])


async def blobs(process: Process) -> list[str]:
    return [found.name async for batch in process.store.list_blobs() for found in batch]


async def test_it_tells_what_it_holds(process: Process, another: Process) -> None:
    empty, begun = await process.open(), await process.open()
    await process.put(begun, 1)
    assert await uploads(another) == sorted([empty.id, begun.id])
    assert [each.id for each in await another.store.remaining([empty, begun])] == [empty.id, begun.id]
    async for batch in another.store.list_uploads(LATER):
        for found in batch:
            assert await another.store.holds_chunks(found) == (found.name == begun.id)
            assert not found.is_blob
            assert await another.store.remove(found)
            assert not await another.store.remove(found)
    await another.store.remove_emptied(LATER)
    assert await uploads(process) == []
    await process.open()


async def test_a_content_without_a_row_is_found_and_removed(process: Process) -> None:
    sha256 = await process.arrive(CONTENT)
    await process.unname(sha256)
    (found,) = [found async for batch in process.store.list_blobs() for found in batch]
    assert await process.store.remove(found)
    assert [found async for batch in process.store.list_blobs() for found in batch] == []


async def test_blobs_are_listed_in_order_and_from_where_a_walk_has_come_to(process: Process) -> None:
    contents = {await process.arrive(Content(1000, seed=seed)) for seed in range(9)}
    stretches = [stretch async for stretch in process.store.list_blobs()]
    assert stretches[-1].until is None
    listed = [found for stretch in stretches for found in stretch]
    keys = [found.place if process.store.lists_by_location else found.name for found in listed]
    assert keys == sorted(keys)
    assert {found.name for found in listed} == contents
    for stretch in stretches[:-1]:
        assert stretch.until is not None
        assert max(key for key in keys if key <= stretch.until) == stretch.until
    for number, key in enumerate(keys):
        rest = [found.place async for stretch in process.store.list_blobs(key) for found in stretch]
        assert rest == [found.place for found in listed[number + 1 :]]


async def test_it_is_listed_before_it_is_prepared(make_process: MakeProcess, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    first = make_process()
    assert await first.store.marks.read() == Marks(None, frozenset())
    assert await uploads(first) == await blobs(first) == []
    await first.store.prepare()
    begun = await first.open()
    await first.put(begun, 1)
    sha256 = await first.arrive(CONTENT)
    second = make_process()
    await second.store.marks.read()
    assert (await uploads(second), await blobs(second)) == ([begun.id], [sha256])


async def test_it_is_ready_more_than_once(process: Process) -> None:
    upload = await process.full(Content(10))
    await process.store.prepare()
    await process.store.check()
    assert (await process.store.read_map(upload)).complete


async def test_long_work_ends_where_the_process_is_to_stop(process: Process) -> None:
    found = await process.store.find_blob(await process.arrive(CONTENT))
    assert found is not None
    upload = await process.full()
    await process.store.forget_digests(upload)
    process.store.stop()
    for wanted in (
        process.store.hash_blob(found, None, with_md5=False),
        process.store.digest(upload),
        process.store.find_bad_chunks(upload),
    ):
        with pytest.raises(Stopping):
            await wanted


# Marks


async def test_one_of_many_first_starts_counts(process: Process, another: Process) -> None:
    assert await process.store.marks.read() == Marks(None, frozenset())
    marks = [process.store.marks, another.store.marks] * 2
    proposed = await asyncio.gather(*(each.propose(own) for each, own in zip(marks, IDS, strict=True)))
    found = await process.store.marks.read()
    assert found.installation is None
    assert set(proposed) & found.proposed
    chosen = await another.store.marks.propose(IDS[0])
    await asyncio.gather(*(each.settle(chosen) for each in marks))
    assert await process.store.marks.read() == Marks(chosen, frozenset())
    assert await process.store.marks.propose(IDS[3]) == chosen
    await another.store.marks.settle(IDS[3])
    assert await process.store.marks.read() == Marks(chosen, frozenset())


async def test_a_mark_is_replaced_only_where_it_is_asked_for(process: Process) -> None:
    await process.store.marks.settle(IDS[0])
    await process.store.marks.propose(IDS[1])
    await process.store.marks.replace(IDS[1])
    assert await process.store.marks.read() == Marks(IDS[1], frozenset())
