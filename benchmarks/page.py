"""How fast the web page takes a folder of small files, and whether it stays awake: `python -m benchmarks.page`.

A real Chromium and a server of its own on this machine share its cores. Each round drops a new folder onto a page that was
just loaded, from the drop until the page says that all is stored; then the same folder once more, which is there already,
dropped and chosen. A task of the page lasts as long as the clock says, waiting for a core included; what it worked is told
beside.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Request, expect

from benchmarks import report
from benchmarks.report import Row
from tests.support.browser import Visitor, running_chromium, visiting
from tests.support.process import UPLOADER, Server, ended, owner_token

PAGE = Path(__file__).parents[1] / "docs" / "capacity.md"
SECTION = "page"

_FILE_BYTES = 4096
_FILES_PER_SECOND = 300
_LONGEST_TASK_MS = 50
_UNCHANGED_REQUESTS = 30
# The browser tells of tasks over 50 ms, and of no others.
_OBSERVE = """
window.longTasks = [];
new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map((entry) => entry.duration)))
    .observe({ type: "longtask", buffered: true });
"""


_TRACED = ("toplevel", "devtools.timeline")


@dataclass
class Figures:
    """One for each round."""

    files_per_second: list[float] = field(default_factory=list)
    longest_task_ms: list[float] = field(default_factory=list)
    longest_work_ms: list[float] = field(default_factory=list)
    unchanged_seconds: list[float] = field(default_factory=list)
    unchanged_requests: list[float] = field(default_factory=list)
    unchanged_longest_task_ms: list[float] = field(default_factory=list)
    unchanged_longest_work_ms: list[float] = field(default_factory=list)
    chosen_browser_ms: list[float] = field(default_factory=list)
    chosen_work_ms: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round; the page stays as it is")
    parser.add_argument("--files", type=int, default=10_000, help="how many files the folder has")
    arguments = parser.parse_args()
    machine = report.machine(())
    rows = asyncio.run(_measure(arguments.files, 1 if arguments.quick else 3))
    section = f"{machine}.\n\n{report.table(rows)}"
    print(section)
    if not arguments.quick:
        report.write(PAGE, SECTION, section)


async def _measure(files: int, rounds: int) -> list[Row]:
    async with running_chromium() as browser:
        return await measure(browser, files, rounds)


async def measure(browser: Browser, files: int, rounds: int) -> list[Row]:
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="benchmark-", ignore_cleanup_errors=True) as directory:
        root = Path(directory)
        server = Server(root / "log", {"DATA": str(root / "data")}, program=(UPLOADER,))
        with ended(server):
            for number in range(rounds):
                folder = _a_folder(root / f"round-{number}", files)
                await _round(browser, server.url, owner_token(root / "data"), folder, files, figures)
    return _rows(files, figures)


def _rows(files: int, figures: Figures) -> list[Row]:
    dropped = f"{files:,} files of 4 KiB dropped on the page"
    longest = "longest task of the page meanwhile (0: none over 50 ms)"
    work = "the most that a task worked, without waiting for a core"
    chosen = "the same folder chosen: what the browser works before the page is told"
    return [
        report.at_least(dropped, _FILES_PER_SECOND, figures.files_per_second, "files/s"),
        report.at_most(longest, _LONGEST_TASK_MS, figures.longest_task_ms, "ms"),
        report.at_most(work, _LONGEST_TASK_MS, figures.longest_work_ms, "ms"),
        report.compared("the same folder once more", figures.unchanged_seconds, "s"),
        report.at_most("requests for that", _UNCHANGED_REQUESTS, figures.unchanged_requests, ""),
        report.at_most(longest, _LONGEST_TASK_MS, figures.unchanged_longest_task_ms, "ms"),
        report.at_most(work, _LONGEST_TASK_MS, figures.unchanged_longest_work_ms, "ms"),
        report.compared(chosen, figures.chosen_browser_ms, "ms"),
        report.at_most("the most that a task of the page worked then", _LONGEST_TASK_MS, figures.chosen_work_ms, "ms"),
    ]


def _a_folder(folder: Path, files: int) -> Path:
    folder.mkdir()
    for number in range(files):
        (folder / f"{number}.dat").write_bytes(os.urandom(_FILE_BYTES))
    return folder


async def _round(browser: Browser, url: str, token: str, folder: Path, files: int, figures: Figures) -> None:
    async with _at(browser, url, token) as visitor:
        taken = await _taken(browser, visitor, visitor.drop(folder), files)
        figures.files_per_second.append(files / taken.seconds)
        figures.longest_task_ms.append(taken.longest_task_ms)
        figures.longest_work_ms.append(taken.longest_work_ms)
    async with _at(browser, url, token) as visitor:
        taken = await _taken(browser, visitor, visitor.drop(folder), files)
        figures.unchanged_seconds.append(taken.seconds)
        figures.unchanged_longest_task_ms.append(taken.longest_task_ms)
        figures.unchanged_longest_work_ms.append(taken.longest_work_ms)
        figures.unchanged_requests.append(taken.requests)
    async with _at(browser, url, token) as visitor:
        taken = await _taken(browser, visitor, visitor.page.set_input_files("#folder-input", folder), files)
        figures.chosen_browser_ms.append(taken.browser_ms)
        figures.chosen_work_ms.append(taken.longest_work_ms)


@asynccontextmanager
async def _at(browser: Browser, url: str, token: str) -> AsyncIterator[Visitor]:
    async with visiting(browser, url, token=token) as visitor:
        await visitor.page.add_init_script(_OBSERVE)
        await visitor.page.reload()
        await visitor.page.locator("#app").wait_for()
        await visitor.page.wait_for_load_state("networkidle")
        yield visitor


@dataclass
class Taken:
    """What it took until all was there; of tasks over 50 ms the longest (0: none)."""

    seconds: float
    longest_task_ms: float
    longest_work_ms: float
    browser_ms: float
    requests: int


async def _taken(browser: Browser, visitor: Visitor, given: Awaitable[None], files: int) -> Taken:
    requests: list[Request] = []
    visitor.page.on("request", lambda request: requests.append(request))  # noqa: PLW0108 it has to be a function
    await visitor.page.evaluate("longTasks.length = 0")
    await browser.start_tracing(page=visitor.page, categories=_TRACED)
    started = time.perf_counter()
    await given
    done = f"{files:,} of {files:,} files done"
    await expect(visitor.page.locator("#total-words")).to_contain_text(done, timeout=1_000_000)
    seconds = time.perf_counter() - started
    work_ms, browser_ms = _work(json.loads(await browser.stop_tracing())["traceEvents"])
    longest_ms = await visitor.page.evaluate("Math.max(0, ...longTasks)")
    return Taken(seconds, longest_ms, work_ms, browser_ms, len(requests))


def _work(events: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """The most processor time, in ms, of a task of the page; and what the browser took of one in which it told the page of
    files that were chosen."""
    pages = {_thread(event) for event in events if event.get("args", {}).get("name") == "CrRendererMain"}
    ours = [event for event in events if _thread(event) in pages and "tdur" in event]
    told = [event for event in ours if event.get("args", {}).get("data", {}).get("type") == "change"]
    tasks = [event for event in ours if event["name"].endswith("RunTask")]
    telling = [task for task in tasks if any(_holds(task, event) for event in told)]
    told_ms = max((event["tdur"] for event in told), default=0) / 1000
    telling_ms = max((task["tdur"] for task in telling), default=0) / 1000
    page_ms = max((task["tdur"] for task in tasks if task not in telling), default=0) / 1000
    return max(page_ms, told_ms), telling_ms - told_ms


def _thread(event: dict[str, Any]) -> tuple[int, int]:
    return event["pid"], event["tid"]


def _holds(task: dict[str, Any], event: dict[str, Any]) -> bool:
    return bool(task["ts"] <= event["ts"] <= task["ts"] + task["dur"])


if __name__ == "__main__":
    main()
