"""Concatenations on a real directory: what becomes of the bytes of parts that went bad, and who fills."""

import random
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from tests.support.bodies import joined
from tests.support.content import KIB, Content, parts_around_chunks
from tests.support.local import Local, running_local
from uploader.domain.upload import Upload
from uploader.errors import StorageFailed
from uploader.storage.base import Busy, Gone, PartDamaged

CHUNK = 64 * KIB
PART = Content(100)


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[Local]:
    async with running_local(tmp_path, PART) as made:
        yield made


async def whole_of(local: Local, *contents: Content) -> Upload:
    parts = [await local.full(content) for content in contents]
    whole = local.row(size=sum(content.size for content in contents), chunk_size=CHUNK)
    await local.store.create(whole, parts)
    return whole


async def read(local: Local, whole: Upload, numbers: Iterable[int] = (0,)) -> bytes:
    async with local.store.filling(whole) as read_part:
        return b"".join([joined(await read_part(number)) for number in numbers])


@pytest.mark.parametrize("seed", range(8))
async def test_any_byte_of_a_part_that_went_bad_is_seen(local: Local, seed: int) -> None:
    """Also by who begins in the middle, once it comes to the end of the part's chunk."""
    chance = random.Random(seed)
    made = [content for content in parts_around_chunks(chance, CHUNK) if content.size]
    whole = await whole_of(local, *made)
    position = chance.randrange(len(made))
    bad = chance.randrange(made[position].size)
    with local.file(whole, f"part-{position:04}").open("r+b") as data:
        data.seek(bad)
        data.write(bytes([made[position].data[bad] ^ 1]))
    offset = sum(content.size for content in made[:position]) + bad
    for first in (0, offset // CHUNK):
        with pytest.raises(PartDamaged):
            await read(local, whole, range(first, -(-whole.size // CHUNK)))
    assert await local.store.discard(whole)
    assert not local.file(whole, "parts").parent.exists()


async def test_one_fills_and_where_nothing_is_nobody_does(local: Local) -> None:
    whole = await whole_of(local, PART)
    async with local.store.filling(whole) as read_part:
        with pytest.raises(Busy):
            await read(local, whole)
        await local.store.discard(whole)
        with pytest.raises(Gone):
            await read_part(0)
    with pytest.raises(Gone):
        await read(local, whole)
    whole = await whole_of(local, PART)
    local.file(whole, "parts").write_bytes(b"?")
    with pytest.raises(StorageFailed):
        await read(local, whole)
