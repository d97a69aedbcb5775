"""`tests/soak/run`: everything that can be made to go wrong here, one fault after the other, within so many minutes. Prints
the table of docs/reliability.md; fails if anything was found wrong, and keeps what the processes left then."""

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.soak.flips.round import run_flips
from tests.soak.installation import STORES, Installation, Setup
from tests.soak.kills import run_round
from tests.soak.races.course import course
from tests.soak.races.table import BY_NAME
from tests.soak.result import Result, as_table
from tests.support.servers import PRIVATE_DATABASES
from uploader.units import parse_size

ROOT = Path(__file__).parents[2]
# What is tried at each place that there is, and not at those that a commit chooses.
PLACES = {
    "crash-points": (
        *("acceptance/test_crash_points.py", "acceptance/long/test_s3_crash_points.py"),
        *("acceptance/long/test_interrupted_migrations.py", "acceptance/long/test_client_survives.py"),
    ),
    "places": tuple(f"integration/test_{name}.py" for name in ("every_fault", "power_cuts", "damaged_parts")),
}
FAULTS = ("kills", "failovers", "storms", "flips", "races", *PLACES)
# Of the time for a part, what it takes to end: a round is healed, comes to rest, is looked at, and all processes end.
_END_SECONDS, _MOST_TO_END = 100.0, 0.6
_STOP_SECONDS = 10.0

# Appends results; also if its time ends before it has come to its end.
Run = Callable[[list[Result], Path, float], Awaitable[None]]


@dataclass(frozen=True)
class Part:
    """One of what is to be done; `run` has a directory, and so many seconds."""

    fault: str
    on: str
    run: Run
    needs: Setup = Setup("sqlite")


def main() -> int:
    """The exit code: 1 if anything was found wrong."""
    parser = argparse.ArgumentParser(prog="tests/soak/run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0, help="it ends by then (default: 3)")
    parser.add_argument(
        "--faults", type=_several(FAULTS), default=FAULTS, help=f"of {', '.join(FAULTS)} (default: all)"
    )
    parser.add_argument(
        "--stores", type=_several(STORES), default=STORES, help=f"of {', '.join(STORES)} (default: all)"
    )
    parser.add_argument("--database", choices=("sqlite", *PRIVATE_DATABASES), default=Setup.database)
    parser.add_argument("--durability", choices=("power", "process"), default=Setup.durability)
    parser.add_argument("--chunk-size", type=parse_size, metavar="SIZE", help="64KiB to 64MiB; on Ceph 5MiB at least")
    parser.add_argument("--race", choices=BY_NAME, action="append", metavar="NAME", help="; ".join(BY_NAME))
    parser.add_argument("--seed", type=int, default=None, help="what goes wrong when (default: random)")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="all that was done and found")
    given = parser.parse_args()
    given.seed = random.randrange(1 << 32) if given.seed is None else given.seed
    deadline, results = time.monotonic() + given.minutes * 60, list[Result]()
    all_parts = list(_parts(given))
    missing = [
        f"left out: {each.fault}, {each.on}: {each.needs.lacks} is not here" for each in all_parts if each.needs.lacks
    ]
    parts = [each for each in all_parts if not each.needs.lacks]
    directory = Path(tempfile.mkdtemp(prefix="soak-"))
    for number, part in enumerate(parts):
        seconds = (deadline - time.monotonic()) / (len(parts) - number)
        results += _run(part, directory / str(number), seconds - _STOP_SECONDS)
    print(as_table(results), *missing, sep="\n")
    if given.json:
        given.json.write_text(json.dumps([asdict(result) for result in results], indent=2))
    wrong = [f"{result.fault}, {result.on}: {what}" for result in results for what in result.wrong]
    late = [f"late, {result.fault}, {result.on}: {what}" for result in results for what in result.late]
    if wrong or late:
        print("", *wrong, *late, f"kept for a look: {directory}", sep="\n", file=sys.stderr)
        return 1
    shutil.rmtree(directory)
    return 0


def _several(all_of_them: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        if not set(names) <= set(all_of_them):
            raise argparse.ArgumentTypeError(f"{text} is not of {', '.join(all_of_them)}")
        return names

    return parse


def _parts(given: argparse.Namespace) -> Iterator[Part]:
    chosen = {"database": given.database, "durability": given.durability}
    if given.chunk_size is not None:
        chosen["chunk_size"] = given.chunk_size
    seed = given.seed
    for fault in given.faults:
        match fault:
            case "kills":
                for store in given.stores:
                    yield _killing(fault, Setup.on(store, **chosen), seed)
            case "failovers":
                yield _killing(fault, Setup(**chosen | {"database": "mysql"}, failovers=True), seed)
            case "storms":
                yield _killing(fault, Setup(**chosen, tells=True), seed)
            case "flips":
                yield Part(fault, "disk", partial(_flips, seed))
            case "races":
                yield Part(fault, "disk", partial(_races, seed, given.race or list(BY_NAME)), Setup())
            case _:
                for path in PLACES[fault]:
                    needs = Setup("sqlite", store="juicefs" if "s3" in path else "disk")
                    yield Part(fault, path, partial(_pytest, seed, fault, path), needs)


def _run(part: Part, directory: Path, seconds: float) -> list[Result]:
    """To its end, or to that of its time: then what it had begun is not judged."""
    print(f"{part.fault}, {part.on}, for {seconds:.0f} s", file=sys.stderr, flush=True)
    started, cut, results = time.monotonic(), Result(part.fault, part.on, "-"), list[Result]()
    try:
        asyncio.run(_within(part, results, directory, seconds))
        return results
    except TimeoutError:
        cut.found = {"cut off by the time, and not judged": 1}
    except Exception:
        cut.wrong = [traceback.format_exc()]
        cut.found = {"ended with a trace": 1}
    cut.seconds = time.monotonic() - started
    return [*results, cut]


async def _within(part: Part, results: list[Result], directory: Path, seconds: float) -> None:
    async with asyncio.timeout(seconds):
        await part.run(results, directory, seconds)


def _killing(fault: str, setup: Setup, seed: int) -> Part:
    async def run(results: list[Result], directory: Path, seconds: float) -> None:
        seconds -= min(_END_SECONDS, _MOST_TO_END * seconds)
        results.append(await run_round(directory, seconds=seconds, seed=seed, setup=setup))

    return Part(fault, setup.store, run, setup)


async def _flips(seed: int, results: list[Result], directory: Path, seconds: float) -> None:
    results.append(await run_flips(directory, seed=seed, seconds=0.7 * seconds))


async def _races(seed: int, names: list[str], results: list[Result], directory: Path, seconds: float) -> None:
    deadline, left = time.monotonic() + 0.9 * seconds, len(names)
    races = [BY_NAME[name] for name in names]
    for kind in dict.fromkeys(race.database for race in races):
        place = directory / kind
        async with (
            _stores(place, kind) as installation,
            course(place, installation.database_url, installation.redis.url) as made,
        ):
            for race in (race for race in races if race.database == kind):
                rest = (deadline - time.monotonic()) / left
                results.append(await made.run(race, seed // 100 * 100, sys.maxsize // 4, rest))
                left -= 1


@asynccontextmanager
async def _stores(directory: Path, database: str) -> AsyncIterator[Installation]:
    """A database and a Valkey, and nobody who uses them."""
    installation = Installation(directory, Setup(database))
    try:
        await installation.start_stores()
        yield installation
    finally:
        installation.stop()


async def _pytest(seed: int, fault: str, path: str, results: list[Result], directory: Path, seconds: float) -> None:
    """The tests of one file, at all places that there are."""
    directory.mkdir(parents=True)
    started, found = time.monotonic(), directory / "found.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={directory / 'tests'}"]
    more = {"UPLOADER_TEST_PLACES": "1000000", "UPLOADER_TEST_SEED": str(seed)}
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--timeout=0", f"--junitxml={found}", f"tests/{path}"],
            cwd=ROOT,
            env=os.environ | more,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            while process.poll() is None and time.monotonic() < started + seconds - 2 * _STOP_SECONDS:
                await asyncio.sleep(0.1)
            if process.poll() is None:
                process.send_signal(signal.SIGINT)  # it ends what it has started
            await asyncio.to_thread(process.wait, _STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            process.kill()
    tests = list(ET.parse(found).iter("testcase")) if found.exists() else []
    wrong = [
        f"{test.get('name')}: {each.get('message')}"
        for test in tests
        for each in (*test.iter("failure"), *test.iter("error"))
    ]
    done = {"tests at all places": len(tests)} | ({"ended by the time": 1} if process.returncode in (2, -9) else {})
    spent = time.monotonic() - started
    results.append(Result(fault, path, seed, spent, done, {"failures": len(wrong)}, wrong))


if __name__ == "__main__":
    sys.exit(main())
