"""Concatenations on a real directory: the bytes of parts of any length, and what becomes of those that went bad."""

import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tests.support.bodies import InPieces
from tests.support.content import KIB, Content
from tests.support.faults import left_open
from tests.support.rows import upload_row
from uploader.domain.upload import Upload
from uploader.errors import StorageFailed
from uploader.storage.base import Busy, Gone, PartDamaged
from uploader.storage.local.store import LocalStore

CHUNK = 64 * KIB


@pytest.fixture(name="local")
async def its_own_kind(storage: LocalStore) -> AsyncIterator[LocalStore]:
    """Drained before its threads end, for who looks after what was stored."""
    yield storage
    await storage.drain()


async def complete(storage: LocalStore, content: Content) -> Upload:
    part = upload_row(size=content.size, chunk_size=content.chunk_size)
    await storage.create(part)
    for number in range(content.chunk_count):
        (await storage.hold_chunk(part, number, InPieces(content.chunk(number)))).release()
    return part


async def joined(storage: LocalStore, parts: Sequence[Upload]) -> Upload:
    whole = upload_row(size=sum(part.size for part in parts), chunk_size=CHUNK)
    await storage.create(whole, parts)
    return whole


async def read(storage: LocalStore, whole: Upload, numbers: Sequence[int] | None = None) -> bytes:
    count = -(-whole.size // CHUNK)
    async with storage.filling(whole) as read_part:
        bodies = [await read_part(number) for number in (numbers or range(count))]
    return b"".join(bytes(piece) for body in bodies for piece in body.pieces())


def contents(chance: random.Random) -> list[Content]:
    """Parts of lengths around those of chunks, with chunks of other lengths than the whole's."""
    sizes = [chance.choice([0, 1, CHUNK - 1, CHUNK, CHUNK + 1, chance.randrange(1, 5 * CHUNK)]) for _ in range(6)]
    return [Content(size, seed=n, chunk_size=chance.choice([1, 2, 3]) * CHUNK) for n, size in enumerate(sizes)]


@pytest.mark.parametrize("seed", range(8))
async def test_a_whole_has_the_bytes_of_its_parts_whatever_becomes_of_them(
    local: LocalStore, tmp_path: Path, seed: int
) -> None:
    made = contents(random.Random(seed))
    parts = [await complete(local, content) for content in made]
    whole = await joined(local, [*parts, parts[0]])
    for part in parts:
        assert await local.discard(part)
    expected = b"".join(content.data for content in [*made, made[0]])
    assert await read(local, whole) == expected
    assert await left_open(local, tmp_path) == []
    assert await local.discard(whole)
    assert not list(tmp_path.glob("temp/*/*/*"))


@pytest.mark.parametrize("seed", range(8))
async def test_any_byte_of_a_part_that_went_bad_is_seen(local: LocalStore, tmp_path: Path, seed: int) -> None:
    """Also by who begins in the middle, once it comes to the end of the part's chunk."""
    chance = random.Random(seed)
    made = [content for content in contents(chance) if content.size]
    whole = await joined(local, [await complete(local, content) for content in made])
    position = chance.randrange(len(made))
    bad = chance.randrange(made[position].size)
    with (tmp_path / whole.place / f"part-{position:04}").open("r+b") as data:
        data.seek(bad)
        data.write(bytes([made[position].data[bad] ^ 1]))
    with pytest.raises(PartDamaged):
        await read(local, whole)
    offset = sum(content.size for content in made[:position]) + bad
    with pytest.raises(PartDamaged):
        await read(local, whole, range(offset // CHUNK, -(-whole.size // CHUNK)))


async def test_an_attempt_that_did_not_commit_is_made_anew(local: LocalStore) -> None:
    one, two = await complete(local, Content(100, seed=1)), await complete(local, Content(200, seed=2))
    whole = await joined(local, [one, two])
    await local.create(whole, [two, one])
    assert await read(local, whole) == Content(200, seed=2).data + Content(100, seed=1).data


async def test_one_fills_and_where_nothing_is_nobody_does(local: LocalStore, tmp_path: Path) -> None:
    whole = await joined(local, [await complete(local, Content(100))])
    async with local.filling(whole) as read_part:
        with pytest.raises(Busy):
            await read(local, whole)
        await local.discard(whole)
        with pytest.raises(Gone):
            await read_part(0)
    with pytest.raises(Gone):
        await read(local, whole)
    whole = await joined(local, [await complete(local, Content(100))])
    (tmp_path / whole.place / "parts").write_bytes(b"?")
    with pytest.raises(StorageFailed):
        await read(local, whole)
    assert await left_open(local, tmp_path) == []
