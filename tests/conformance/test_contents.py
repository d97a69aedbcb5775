"""Contents and the trash, in every store."""

import pytest

from tests.support.bodies import InPieces
from tests.support.content import Content
from tests.support.stores import CHUNK, CONTENT, Process
from uploader.domain import delta
from uploader.errors import Md5Mismatch, Sha256Mismatch
from uploader.storage.base import Arrival, Digests, Found, Gone
from uploader.storage.store import Store

SMALL = Content(1000, seed=2)


async def listed(store: Store) -> list[str]:
    return sorted([found.name async for batch in store.list_blobs() for found in batch if not found.is_draft])


async def trashed(store: Store) -> list[Found]:
    return [found async for batch in store.list_trash() for found in batch]


# Contents that come whole


async def test_contents_that_come_whole(process: Process, another: Process) -> None:
    arrivals = [Arrival(InPieces(data), None, None) for data in (SMALL.data, CONTENT.data, SMALL.data, b"")]
    arrivals.append(Arrival(InPieces(b"x"), "0" * 32, None))
    arrivals.append(Arrival(InPieces(b"x"), None, "0" * 64))
    await process.store.store_arrivals(arrivals)
    assert [type(arrival.error) for arrival in arrivals] == [type(None)] * 4 + [Md5Mismatch, Sha256Mismatch]
    assert arrivals[0].digests == Digests(SMALL.md5, SMALL.sha256)
    places = process.store.place_arrivals(arrivals[:4])
    for content in (SMALL, CONTENT, Content(0)):
        await process.name(content.sha256, content.size, places.get(content.sha256))
        assert await another.read(content.sha256, content.size) == content.data
    assert await listed(another.store) == sorted(each.sha256 for each in (SMALL, CONTENT, Content(0)))


# Reading


async def test_a_content_is_read_at_any_place(process: Process) -> None:
    store, sha256 = process.store, await process.arrive(CONTENT)
    ranges = [(5, 10), (0, 0), (CHUNK - 1, 2), (CONTENT.size - 1, 1), (0, CONTENT.size)]
    expected = [CONTENT.data[offset : offset + length] for offset, length in ranges]
    assert await store.read_blob(sha256, ranges) == expected
    blob = await store.open_blob(sha256, CONTENT.size)
    assert await blob.read_all(ranges) == expected
    assert await blob.read(10, CONTENT.size - 5) == CONTENT.data[-5:]
    assert await blob.read(10, CONTENT.size) == b""
    assert await blob.read(10, 3) == CONTENT.data[3:13]
    await blob.close()
    assert await store.blob_sizes([SMALL.sha256, sha256]) == [None, CONTENT.size]
    wanted = [(sha256, CONTENT.size), (SMALL.sha256, SMALL.size), (sha256, CONTENT.size - 1)]
    assert await store.read_contents(wanted) == [CONTENT.data, None, None]


async def test_what_is_not_there_is_gone(process: Process) -> None:
    store, sha256 = process.store, await process.arrive(CONTENT)
    for wanted in (
        store.open_blob(SMALL.sha256, SMALL.size),
        store.open_blob(sha256, CONTENT.size - 1),
        store.read_signature(SMALL.sha256, SMALL.size),
        store.read_blob(SMALL.sha256, [(0, 1)]),
    ):
        with pytest.raises(Gone):
            await wanted
    assert await store.find_blob(SMALL.sha256) is None


async def test_digests_are_those_of_the_bytes_that_are_there(process: Process) -> None:
    store, paced = process.store, list[int]()
    found = await store.find_blob(await process.arrive(CONTENT))
    assert found is not None
    assert await store.hash_blob(found, None, with_md5=True) == Digests(CONTENT.md5, CONTENT.sha256)
    assert await store.hash_blob(found, paced.append, with_md5=False) == Digests(None, CONTENT.sha256)
    assert sum(paced) == CONTENT.size
    await process.unname(CONTENT.sha256)
    assert await store.remove(found)
    assert await store.hash_blob(found, None, with_md5=False) is None


@pytest.mark.parametrize("content", [CONTENT, SMALL, Content(0)])
async def test_a_signature_is_of_all_of_a_content(process: Process, another: Process, content: Content) -> None:
    sha256 = await process.arrive(content)
    for each in (process, another, process):
        told = await each.store.read_signature(sha256, content.size)
        assert told.startswith(delta.head_of(content.size, sha256))
        records = told[len(delta.head_of(content.size, sha256)) :]
        assert sum(length for length, _ in delta.RECORD.iter_unpack(records)) == content.size
    assert await listed(process.store) == [sha256]


# The trash


async def test_what_was_put_away_comes_back(process: Process, another: Process) -> None:
    store, sha256 = process.store, await process.merge(await process.full())
    away = await process.put_away(sha256)
    assert (away.name, await trashed(another.store)) == (sha256, [away])
    assert await another.store.hash_blob(away, None, with_md5=False) == Digests(None, sha256)
    assert await store.find_blob(sha256) is None
    await process.name(sha256, CONTENT.size, await another.store.restore_blob(away))
    assert await process.read(sha256, CONTENT.size) == CONTENT.data


async def test_what_was_put_away_goes_for_good(process: Process) -> None:
    store = process.store
    away = await process.put_away(await process.arrive(CONTENT))
    assert await store.remove(away)
    assert not await store.remove(away)
    with pytest.raises(Gone):
        await store.restore_blob(away)
    assert await trashed(store) == []
    assert await listed(store) == []


async def test_of_copies_the_last_one_comes_first(process: Process) -> None:
    for _ in range(2):
        await process.put_away(await process.arrive(SMALL))
    copies = await process.store.copies(SMALL.sha256)
    assert len(copies) == 2
    assert copies[0].changed_at >= copies[1].changed_at
    assert await process.store.copies(CONTENT.sha256) == []
