"""What the soak consists of: each part does one fault on one kind of installation, and ends in its time."""

import asyncio
import math
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from tests.soak.flips.round import run_flips
from tests.soak.installation import Installation, Setup
from tests.soak.kills import run_round
from tests.soak.leases import run_leases
from tests.soak.races.course import course
from tests.soak.races.table import BY_NAME
from tests.soak.result import Result

ROOT = Path(__file__).parents[2]
# What is tried at each place that there is, and not at those that a commit chooses; races with all racers.
PLACES = {
    "crash-points": [
        "tests/acceptance/test_crash_points.py",
        *(
            f"tests/acceptance/long/test_{name}.py"
            for name in ("s3_crash_points", "interrupted_migrations", "client_survives")
        ),
    ],
    "links": ["tests/integration/test_links.py"],
    "places": [f"tests/integration/test_{name}.py" for name in ("every_fault", "power_cuts", "damaged_parts")],
}
FAULTS = ("kills", "failovers", "storms", "leases", "flips", "races", *PLACES)
# What it takes at the most to end all processes.
STOP_SECONDS = 10.0

# Appends results, until a moment of the monotonic clock; also if that comes before its end.
Run = Callable[[list[Result], Path, float], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Part:
    """One of what is to be done."""

    fault: str
    on: str
    run: Run
    needs: Setup = Setup("sqlite")


class _TimeIsOver(SystemExit):
    """Wherever the part is at this moment, also where it waits without its loop; which such an exception leaves."""


def run(part: Part, directory: Path, deadline: float, count: int) -> list[Result]:
    """To its end, or to that of its time: then what it had begun is not judged. It is the first of so many that have the
    rest of the time."""
    seconds = max(1.0, (deadline - time.monotonic()) / count - STOP_SECONDS)
    print(f"{part.fault}, {part.on}, for {seconds:.0f} s", file=sys.stderr, flush=True)
    started, cut, results = time.monotonic(), Result(part.fault, part.on, "-"), list[Result]()
    signal.signal(signal.SIGALRM, _end_it)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        asyncio.run(part.run(results, directory, started + seconds))
        return results
    except _TimeIsOver:
        cut.found = {"cut off by the time, and not judged": 1}
    except Exception:
        cut.wrong = [traceback.format_exc()]
        cut.found = {"ended with a trace": 1}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    cut.seconds = time.monotonic() - started
    return [*results, cut]


def _end_it(_number: int, _frame: object) -> None:
    raise _TimeIsOver


async def kill(setup: Setup, seed: int, results: list[Result], directory: Path, ends_at: float) -> None:
    results.append(await run_round(directory, seconds=math.inf, ends_at=ends_at, seed=seed, setup=setup))


async def hand_out(setup: Setup, seed: int, results: list[Result], directory: Path, ends_at: float) -> None:
    results.append(await run_leases(directory, seconds=math.inf, seed=seed, setup=setup, ends_at=ends_at))


async def flip(seed: int, results: list[Result], directory: Path, ends_at: float) -> None:
    seconds = 0.7 * (ends_at - time.monotonic())
    results.append(await run_flips(directory, seed=seed, seconds=seconds))


async def race(seed: int, names: list[str], results: list[Result], directory: Path, ends_at: float) -> None:
    races = [BY_NAME[name] for name in names]
    for kind in dict.fromkeys(race.database for race in races):
        place = directory / kind
        async with (
            _stores(place, kind) as installation,
            course(place, installation.database_url, installation.redis.url) as made,
        ):
            for race in (race for race in races if race.database == kind):
                rest = (ends_at - STOP_SECONDS - time.monotonic()) / (len(races) - len(results))
                results.append(await made.run(race, seed // 100 * 100, sys.maxsize // 4, rest))
                if results[-1].wrong:  # what it has left would be in the way of others
                    return


@asynccontextmanager
async def _stores(directory: Path, database: str) -> AsyncIterator[Installation]:
    """A database and a Valkey, and nobody who uses them."""
    installation = Installation(directory, Setup(database))
    try:
        await installation.start_stores()
        yield installation
    finally:
        installation.stop()


async def try_all_places(seed: int, fault: str, results: list[Result], directory: Path, ends_at: float) -> None:
    """The tests of some files, at all places that there are."""
    files = random.Random(seed).sample(PLACES[fault], len(PLACES[fault]))
    directory.mkdir(parents=True)
    started, found = time.monotonic(), directory / "found.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={directory / 'tests'}"]
    more = {"UPLOADER_TEST_PLACES": "1000000", "UPLOADER_TEST_SEED": str(seed)}
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--timeout=0", f"--junitxml={found}", *files],
            cwd=ROOT,
            env=os.environ | more,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            while process.poll() is None and time.monotonic() < ends_at - 2 * STOP_SECONDS:
                await asyncio.sleep(0.1)
            is_cut = process.poll() is None
            if is_cut:
                process.send_signal(signal.SIGINT)  # it ends what it has started
            await asyncio.to_thread(process.wait, STOP_SECONDS)
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
    done = {"tests at all places": len(tests)} | ({"and then the time was over": 1} if is_cut else {})
    spent = time.monotonic() - started
    results.append(Result(fault, "all places", seed, spent, done, {"failures": len(wrong)}, wrong))
