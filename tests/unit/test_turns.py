"""Turns of hashing that are taken together: with the digests of hashlib, and what befalls one befalls no other."""

import asyncio
import hashlib
import logging
import os
import struct
import zlib
from collections.abc import AsyncIterator, Callable

import pytest

from uploader.errors import StorageFailed, UploaderError
from uploader.runtime.meter import Kind, cost_of_request
from uploader.runtime.observability import request_id
from uploader.runtime.tasks import Pool
from uploader.storage import disk, hashes
from uploader.storage.hashes import BLOCK_BYTES, BlockChecksums, PrefixHashes, Turn
from uploader.storage.local import turns
from uploader.storage.local.turns import Company

CONTENT = memoryview(bytearray(os.urandom(3_000_000)))
STEP = 100_000


class Work:
    """Turns that note in which order they went on."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.ended: list[int] = []

    def turn(self, number: int, length: int, error: Exception | None = None) -> Callable[[memoryview], Turn[str]]:
        def take(room: memoryview) -> Turn[str]:
            made = PrefixHashes(with_md5=number % 3 != 0, blocks=BlockChecksums())
            try:
                for start in range(0, length, STEP):
                    assert made.position == start
                    piece = room[: min(STEP, length - start)]
                    piece[:] = CONTENT[start : start + len(piece)]
                    self.steps.append(number)
                    yield made, piece
                if error is not None:
                    raise error
                digests = made.digests()
                assert digests.md5 == (hashlib.md5(CONTENT[:length]).hexdigest() if number % 3 else None)
                assert made.blocks is not None
                assert made.blocks.end() == checksums(length)
                return digests.sha256
            finally:
                self.ended.append(number)

        return take


def checksums(length: int) -> bytes:
    blocks = [CONTENT[start : min(start + BLOCK_BYTES, length)] for start in range(0, length, BLOCK_BYTES)]
    return b"".join(struct.pack("<I", zlib.crc32(block)) for block in blocks)


def sha256(length: int) -> str:
    return hashlib.sha256(CONTENT[:length]).hexdigest()


@pytest.fixture
async def company(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Company]:
    monkeypatch.setattr(turns, "_COMPANY_SECONDS", 3600.0)
    pool = Pool(1, "turns", translate=disk.refusal)
    yield Company(pool)
    pool.shutdown()


@pytest.mark.parametrize("count", [1, 2, 7, 21])
async def test_turns_of_any_lengths_go_on_step_by_step_and_have_the_digests_of_hashlib(
    company: Company, count: int
) -> None:
    work, lengths = Work(), [number * 130_001 for number in range(count)]
    outcomes = [company.take(work.turn(number, length), most=99) for number, length in enumerate(lengths)]
    company.hurry()
    assert await asyncio.gather(*outcomes) == [sha256(length) for length in lengths]
    together = min(count, 8)
    assert work.steps[: together - 1] == list(range(1, together))  # nobody has its second before all had their first
    assert sorted(work.ended) == list(range(count))


async def test_it_begins_when_all_wait_who_may_come_or_enough_of_them(company: Company) -> None:
    work = Work()
    assert await company.take(work.turn(0, 5), most=1) == sha256(5)
    first = company.take(work.turn(1, 6), most=2)
    await asyncio.sleep(0.05)
    assert not first.done()
    assert await company.take(work.turn(2, 7), most=2) == sha256(7)
    assert await first == sha256(6)
    many = [company.take(work.turn(number, 8), most=1000) for number in range(8)]
    assert await asyncio.gather(*many) == [sha256(8)] * 8


class Paid:
    """What a request is charged."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def add(self, kind: Kind, seconds: float) -> None:
        assert kind is Kind.THREADS
        self.seconds.append(seconds)


async def test_each_pays_for_its_own_bytes_however_they_come_together(company: Company) -> None:
    paid, outcomes, mine = [Paid(), Paid(), Paid()], [], cost_of_request.get()
    for number, each in enumerate(paid):
        cost_of_request.set(each)  # type: ignore[arg-type]
        outcomes.append(company.take(Work().turn(number, 400_000 * number), most=3))
    still: object = cost_of_request.get()
    assert still is paid[2]
    cost_of_request.set(mine)
    await asyncio.gather(*outcomes)
    (nothing,), (half,), (most,) = (each.seconds for each in paid)
    assert most == pytest.approx(2 * half)
    assert half > nothing == 0


async def test_nobody_waits_for_long(company: Company, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_COMPANY_SECONDS", 0.01)
    assert await company.take(Work().turn(0, 9), most=2) == sha256(9)


async def test_an_error_of_one_is_nobody_elses(company: Company, caplog: pytest.LogCaptureFixture) -> None:
    work, gone, outcomes = Work(), UploaderError(), []
    errors: list[Exception | None] = [None, OSError(5, "bad"), None, gone, None]
    for n, error in enumerate(errors):
        token = request_id.set(f"request {n}")
        outcomes.append(company.take(work.turn(n, 150_000 * n, error), most=99))
        request_id.reset(token)
    outcomes[4].cancel()
    asked: list[str] = []

    def note(_record: logging.LogRecord) -> bool:
        asked.append(request_id.get())
        return True

    caplog.handler.addFilter(note)
    company.hurry()
    found = await asyncio.gather(*outcomes, return_exceptions=True)
    assert [found[0], found[2]] == [sha256(0), sha256(300_000)]
    assert isinstance(found[1], StorageFailed)
    assert asked == ["request 1"]
    assert found[3] is gone
    assert isinstance(found[4], asyncio.CancelledError)


async def test_if_the_hashing_fails_all_know_and_none_stays_open(
    company: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_steps: object) -> None:
        raise MemoryError

    monkeypatch.setattr(hashes, "update_together", fail)
    work = Work()
    outcomes = [company.take(work.turn(number, STEP), most=2) for number in range(2)]
    assert all(isinstance(each, MemoryError) for each in await asyncio.gather(*outcomes, return_exceptions=True))
    assert sorted(work.ended) == [0, 1]


async def test_after_the_end_of_its_threads_everybody_hears(company: Company) -> None:
    company._pool.shutdown()
    with pytest.raises(RuntimeError):
        await company.take(Work().turn(0, 1), most=1)
