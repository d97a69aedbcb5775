"""The bytes of open uploads, in every store."""

import asyncio
import random
from dataclasses import replace

import pytest

from tests.support.bodies import joined
from tests.support.chosen import seed
from tests.support.content import Content, parts_around_chunks
from tests.support.stores import CHUNK, CONTENT, Process
from tests.support.waiting import eventually
from uploader.errors import BytesConflict, Unverified
from uploader.storage.base import Digests, Gone

OTHER = Content(CONTENT.size, seed=1, chunk_size=CHUNK)
LAST = CONTENT.chunk_count - 1
DIGESTS = Digests(CONTENT.md5, CONTENT.sha256)


# Chunks


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [1, 3, 0, 2]])
async def test_chunks_in_any_order_become_the_content(process: Process, another: Process, order: list[int]) -> None:
    upload = await process.open()
    for sent, number in enumerate(order, start=1):
        chosen = (process, another)[sent % 2]
        assert await chosen.put(upload, number)
        found = await process.store.read_map(upload)
        assert set(await process.present(upload)) == set(order[:sent])
        assert found.complete == (sent == len(order))
        assert found.received_bytes == sum(len(CONTENT.chunk(each)) for each in order[:sent])
    assert await process.digest(upload) == DIGESTS
    await another.merge(upload)
    assert await process.read(CONTENT.sha256, CONTENT.size) == CONTENT.data


@pytest.mark.parametrize("size", [0, 1, CHUNK, CHUNK + 1])
async def test_uploads_of_any_length_become_contents(process: Process, size: int) -> None:
    content = Content(size, chunk_size=CHUNK)
    upload = await process.full(content)
    assert (await process.store.read_map(upload)).complete
    assert await process.digest(upload) == Digests(content.md5, content.sha256)
    await process.merge(upload)
    assert await process.read(content.sha256, size) == content.data


async def test_the_first_bytes_of_a_chunk_stand(process: Process, another: Process) -> None:
    upload = await process.open()
    assert await process.put(upload, 1)
    assert not await another.put(upload, 1, OTHER)
    held = await another.store.hold_chunk(upload, 1, None)
    held.release()
    assert not held.written
    with pytest.raises(Gone):
        await another.store.hold_chunk(upload, 0, None)
    await process.put_these(upload, 0, 2, 3)
    assert await another.digest(upload) == DIGESTS


async def test_many_writers_of_all_chunks_at_once_leave_the_content(process: Process, another: Process) -> None:
    upload = await process.open()
    writers = [(process, another)[n % 2].put(upload, n // 2) for n in range(2 * CONTENT.chunk_count)]
    stored = await asyncio.gather(*writers)
    assert sum(stored) == CONTENT.chunk_count
    assert await process.digest(upload) == DIGESTS


async def test_what_is_not_open_is_gone(process: Process, another: Process) -> None:
    never, ended = process.row(), await process.full()
    assert await another.store.discard(ended)
    assert not await process.store.discard(ended)
    assert not await process.store.discard(never)
    for upload in (never, ended):
        store = process.store
        for wanted in (
            process.put(upload, 0),
            store.read_map(upload),
            store.last_write(upload),
            store.digest(upload),
            store.find_bad_chunks(upload),
        ):
            with pytest.raises(Gone):
                await wanted
        for locked in (store.closing(upload), store.appending(upload)):
            with pytest.raises(Gone):
                async with locked:
                    pass
    assert await process.store.remaining([never, ended]) == []


# Tails


async def test_a_tail_grows_and_becomes_chunks(process: Process, another: Process) -> None:
    upload, start = await process.open(), 0
    ends = [1, 1000, CHUNK, CHUNK + 5, 2 * CHUNK, 3 * CHUNK, CONTENT.size - 1, CONTENT.size]
    for number, end in enumerate(ends):
        chosen = (process, another)[number % 2]
        async with chosen.store.appending(upload) as appender:
            assert (await appender.read_map()).leading_bytes == start
            assert await chosen.append(upload, CONTENT.data[start:end], start)
        found = await process.store.read_map(upload)
        assert (found.leading_bytes, found.received_bytes) == (end, end)
        start = end
    assert await another.digest(upload) == DIGESTS


async def test_a_tail_goes_on_only_where_it_ends(process: Process, another: Process) -> None:
    upload = await process.open()
    with pytest.raises(Gone):
        await process.append(upload, b"x", 5)
    assert await process.send(upload, 0, 100)
    for start, end in [(0, 50), (99, 200), (101, 200), (CHUNK, CHUNK + 1), (CHUNK + 1, CHUNK + 2)]:
        with pytest.raises(Gone):
            await another.send(upload, start, end)
    assert (await process.store.read_map(upload)).leading_bytes == 100


async def test_appends_and_chunks_that_meet_make_one_content(process: Process, another: Process) -> None:
    upload = await process.open()
    await process.put(upload, 1)
    await another.send(upload, 0, 10)
    assert (await process.store.read_map(upload)).received_bytes == CHUNK + 10
    await process.send(upload, 10, CHUNK)
    await another.send(upload, 2 * CHUNK, 2 * CHUNK + 100)
    await process.put(upload, 3)
    for other in (b"?" + CONTENT.chunk(2)[1:], of_the_same_checksum(CONTENT.chunk(2))):
        with pytest.raises(BytesConflict):
            await another.append(upload, other, 2 * CHUNK)
    assert await another.put(upload, 2)
    found = await process.store.read_map(upload)
    assert (found.tail, found.received_bytes) == (None, CONTENT.size)
    assert await process.digest(upload) == DIGESTS


def of_the_same_checksum(data: bytes) -> bytes:
    """Bytes whose CRC-32 is the same, from the first hundred on: else somebody could give a content other bytes."""
    forged = bytearray(data)
    for place, bits in enumerate((0x1DB710641).to_bytes(5, "little"), 50):  # the polynomial: its remainder is 0
        forged[place] ^= bits
    return bytes(forged)


@pytest.mark.parametrize("size", [3 * CHUNK + 1000, CHUNK, 1000, 0])
async def test_the_tail_becomes_the_last_chunk_when_the_length_is_told(
    process: Process, another: Process, size: int
) -> None:
    content = Content(size, chunk_size=CHUNK)
    upload = await process.open(Content(0, chunk_size=CHUNK), length_known=False, md5=None)
    for start in range(0, size, CHUNK):
        await process.append(upload, content.data[start : start + CHUNK], start)
    told = replace(upload, size=size, length_known=True)
    if size % CHUNK:
        with pytest.raises(Unverified):
            await another.store.read_map(told)
    async with another.store.closing(told) as closer:
        await closer.settle_length(told)
        assert not await closer.settle_length(told)
    assert (await process.store.read_map(told)).complete
    assert (await another.digest(told)).sha256 == content.sha256
    await another.merge(told)
    assert await process.read(content.sha256, size) == content.data


async def test_who_appends_hears_of_whoever_comes_next(process: Process, another: Process) -> None:
    upload = await process.open()

    async def take_over() -> int:
        async with another.store.appending(upload) as appender:
            return (await appender.read_map()).leading_bytes

    async def is_claimed() -> bool:
        return first.is_claimed

    async with process.store.appending(upload) as first:
        assert not first.is_claimed
        await process.append(upload, CONTENT.data[:100], 0)
        next_one = asyncio.create_task(take_over())
        await eventually(is_claimed)
    assert await next_one == 100


# All chunks at once


async def test_withdrawn_chunks_are_missing_and_may_be_others(process: Process, another: Process) -> None:
    upload = await process.full(OTHER, md5=None)
    for number in (0, 2):
        assert await process.store.find_bad_chunks(upload) == []
        await another.withdraw(upload, [number], generation=upload.generation + 1)
        upload = replace(upload, generation=upload.generation + 1)
        assert number not in await process.present(upload)
        assert await process.put(upload, number, CONTENT)
    expected = b"".join((CONTENT, OTHER)[number % 2].chunk(number) for number in range(LAST + 1))
    mixed = await process.merge(upload)
    assert await another.read(mixed, CONTENT.size) == expected


@pytest.mark.parametrize(("withdrawn", "left"), [([1], CHUNK), ([0], 0), ([2], 2 * CHUNK), ([], 2 * CHUNK + 1000)])
async def test_a_tail_goes_with_its_chunk_and_with_those_before_it(
    process: Process, another: Process, withdrawn: list[int], left: int
) -> None:
    upload = await process.open()
    await process.put_these(upload, 0, 1)
    await process.send(upload, 2 * CHUNK, 2 * CHUNK + 1000)
    await process.put(upload, 3)
    async with process.store.closing(upload) as closer:
        await closer.withdraw(withdrawn, generation=1)
        assert (await closer.read_map()).leading_bytes == left
    upload = replace(upload, generation=1)
    for number in withdrawn:
        await another.put(upload, number)
    again = CONTENT.size if withdrawn == [2] else 2 * CHUNK + (0 if withdrawn else 1000)
    assert (await process.store.read_map(upload)).leading_bytes == again, "what was withdrawn is not there by itself"


async def test_placing_and_ending_are_repeatable(process: Process) -> None:
    upload = await process.full()
    digests = await process.digest(upload)
    async with process.store.closing(upload) as closer:
        places = {await closer.place_blob(digests.sha256) for _ in range(3)}
        await process.name(digests.sha256, upload.size, *places)
        assert await closer.unlink()
        assert not await closer.unlink()
    assert await process.read(digests.sha256, upload.size) == CONTENT.data


# Digests


async def test_digests_that_are_forgotten_are_computed_anew(process: Process, another: Process) -> None:
    upload = await process.full()
    assert await process.digest(upload) == DIGESTS
    await process.store.forget_digests(upload)
    assert await another.digest(upload) == DIGESTS


async def test_an_md5_that_nobody_needs_is_not_computed_until_it_is_claimed(process: Process, another: Process) -> None:
    upload = await process.full(md5=None, computes_md5=False)
    assert await process.digest(upload) == Digests(None, CONTENT.sha256)
    assert await another.digest(replace(upload, md5=CONTENT.md5)) == DIGESTS
    assert (await process.digest(upload)).sha256 == CONTENT.sha256, "nobody goes back"


# Concatenations


async def test_a_whole_has_the_bytes_of_its_parts_whatever_becomes_of_them(process: Process, another: Process) -> None:
    """Of any lengths: others for each commit."""
    chance = random.Random(f"{seed()} parts")
    made = [*parts_around_chunks(chance, CHUNK), *(Content(size, seed=9) for size in (CHUNK + 1, 0, 10))]
    parts = [await process.full(content) for content in made]
    made, parts = [*made, made[0], *made[-3:-2] * 2], [*parts, parts[0], *parts[-3:-2] * 2]
    whole = process.row(size=sum(content.size for content in made), chunk_size=CHUNK, md5=None)
    await process.store.create(whole, parts[::-1])  # which did not commit
    await process.store.create(whole, parts)
    for part in parts[:-3]:
        assert await another.store.discard(part)
    async with another.store.filling(whole) as read_part:
        for number in range(-(-whole.size // CHUNK)):
            await another.append(whole, joined(await read_part(number)), number * CHUNK)
    sha256 = await process.merge(whole)
    assert await another.read(sha256, whole.size) == b"".join(content.data for content in made)
