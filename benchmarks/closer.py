"""How long whoever ends an upload waits for writers that never pause: `python -m benchmarks.closer`.

The writers are in two processes, the closer in a third, all on the storage of the product; no writer stops for anything
but the closer.
"""

import argparse
import asyncio
import multiprocessing
import random
import statistics
import tempfile
import time
from datetime import UTC, datetime
from multiprocessing.synchronize import Event
from pathlib import Path

from benchmarks import interpreter, report
from benchmarks.report import Row
from tests.support.bodies import InPieces
from uploader.domain.upload import State, Upload
from uploader.storage.local.store import LocalStore

PAGE = Path(__file__).parents[1] / "docs" / "capacity.md"
SECTION = "closer"

_CHUNK_BYTES = 64 << 10
_CHUNK_COUNT = 10_000
_WRITERS = (8, 16)
_PROCESSES = 2
_TARGET_MS = 100
_CLOSINGS = 50
_FIRST_TURNS_SECONDS = 0.3
_SPAWN = multiprocessing.get_context("spawn")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.closer", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of each; the page stays as it is")
    arguments = parser.parse_args()
    interpreter.choose()
    machine = report.machine(())
    rows = [_row(writers, again, 1 if arguments.quick else 7) for again in (False, True) for writers in _WRITERS]
    section = f"{machine}\n\n{report.table(rows)}"
    print(section)
    if not arguments.quick:
        report.write(PAGE, SECTION, section)


def _row(writers: int, again: bool, rounds: int) -> Row:
    waits_ms = [_round(writers, again) for _ in range(rounds)]
    median = statistics.median(wait for waits in waits_ms for wait in waits)
    what = "chunks that are there already" if again else "new chunks, each synced"
    return report.at_most(
        f"longest of {_CLOSINGS} waits, {writers} writers of {what}",
        _TARGET_MS,
        [max(waits) for waits in waits_ms],
        "ms",
        f"median wait {report.amount(median)} ms",
    )


def _round(writers: int, again: bool) -> list[float]:
    """The waits of a closer, in milliseconds. `again`: every writer sends one chunk over and over, so turns are short."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as directory:
        return asyncio.run(_close_again_and_again(Path(directory), writers, again))


async def _close_again_and_again(root: Path, writers: int, again: bool) -> list[float]:
    storage = LocalStore(root, durable=True)
    await storage.prepare()
    upload = _upload()
    await storage.create(upload)
    stop, going = _SPAWN.Event(), [_SPAWN.Event() for _ in range(_PROCESSES)]
    shares = [range(first, writers, _PROCESSES) for first in range(_PROCESSES)]
    processes = [
        _SPAWN.Process(target=_write, args=(root, upload, list(share), writers, again, begun, stop))
        for share, begun in zip(shares, going, strict=True)
    ]
    for process in processes:
        process.start()
    try:
        for begun in going:
            await asyncio.to_thread(begun.wait)
        await asyncio.sleep(_FIRST_TURNS_SECONDS)
        return [await _wait_ms(storage, upload) for _ in range(_CLOSINGS)]
    finally:
        stop.set()
        for process in processes:
            await asyncio.to_thread(process.join)
        storage.close()


async def _wait_ms(storage: LocalStore, upload: Upload) -> float:
    await asyncio.sleep(random.uniform(0.005, 0.02))
    started = time.perf_counter()
    async with storage.closing(upload):
        return (time.perf_counter() - started) * 1000


def _write(
    root: Path, upload: Upload, numbers: list[int], writers: int, again: bool, begun: Event, stop: Event
) -> None:
    """A process with a share of the writers."""
    asyncio.run(_write_without_a_pause(root, upload, numbers, writers, again, begun, stop))


async def _write_without_a_pause(
    root: Path, upload: Upload, numbers: list[int], writers: int, again: bool, begun: Event, stop: Event
) -> None:
    storage = LocalStore(root, durable=True)
    await storage.prepare()

    async def write(number: int) -> None:
        while not stop.is_set():
            (await storage.hold_chunk(upload, number % _CHUNK_COUNT, InPieces(bytes(_CHUNK_BYTES)))).release()
            begun.set()
            number += 0 if again else writers

    await asyncio.gather(*map(write, numbers))
    await storage.drain()
    storage.close()


def _upload() -> Upload:
    now = datetime.now(UTC)
    return Upload(
        id="closer",
        user_id="alice",
        session="",
        md5=None,
        sha256=None,
        name="closer.bin",
        size=_CHUNK_BYTES * _CHUNK_COUNT,
        chunk_size=_CHUNK_BYTES,
        flushed_bytes=0,
        flushed_generation=0,
        generation=0,
        state=State.OPEN,
        close_reason=None,
        file_id=None,
        place="temp/2030/01/closer",
        idempotency_key=None,
        created_at=now,
        updated_at=now,
        closed_at=None,
    )


if __name__ == "__main__":
    main()
