"""The gate of an upload: whoever ends it gets in past any number of writers that never pause."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.bodies import InPieces
from tests.support.content import KIB
from tests.support.local import until
from tests.support.rows import upload_row
from uploader.domain.upload import Upload
from uploader.storage.disk import try_lock
from uploader.storage.local import chunks, locks
from uploader.storage.store import Store

CHUNK_BYTES = 64 * KIB
CLOSINGS = 10


class Writers:
    """Each sends its chunk again and again without a pause, and counts its turns."""

    def __init__(self, storage: Store, upload: Upload) -> None:
        self._storage = storage
        self._upload = upload
        self._stopping = False
        self.turns = 0

    async def _write(self, number: int) -> None:
        while not self._stopping:
            held = await self._storage.hold_chunk(self._upload, number, InPieces(bytes(CHUNK_BYTES)))
            self.turns += 1
            held.release()

    @asynccontextmanager
    async def writing(self, count: int) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._write(number)) for number in range(count)]
        try:
            yield
        finally:
            self._stopping = True
            await asyncio.gather(*tasks)

    async def get_through(self, turns: int) -> None:
        """Wait until they had so many turns more."""
        goal = self.turns + turns
        await until(lambda: self.turns >= goal)


@pytest.mark.parametrize("count", [8, 16])
async def test_writers_that_never_pause_do_not_keep_a_closer_out(
    storage: Store, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in turns of the writers: those that have looked at the gate before are all it waits for."""
    asked_at: list[int] = []

    def dawdle_and_lock(descriptor: int, start: int, length: int) -> bool:
        time.sleep(0.002)  # as a thread does that waits for the interpreter between the gate and its record
        return try_lock(descriptor, start, length)

    def note_and_lock(descriptor: int, start: int, length: int) -> bool:
        asked_at.append(writers.turns)
        return try_lock(descriptor, start, length)

    monkeypatch.setattr(chunks, "try_lock", dawdle_and_lock)
    monkeypatch.setattr(locks, "try_lock", note_and_lock)
    upload = upload_row(size=count * CHUNK_BYTES, chunk_size=CHUNK_BYTES)
    await storage.create(upload)
    writers = Writers(storage, upload)
    async with writers.writing(count):
        for _ in range(CLOSINGS):
            await writers.get_through(2 * count)
            asked_at.clear()
            async with storage.closing(upload):
                got_at = writers.turns
                await storage.read_map(upload)
                assert writers.turns == got_at
            assert got_at - asked_at[0] <= count
        await writers.get_through(count)
    await storage.drain()
