"""How fast the web page hashes one large file, and what that costs: `python -m benchmarks.page_hashing`.

A real Chromium reads a file that is in the page cache, as the page does it; nothing is sent. CPU is that of all processes of
the browser, which on a machine that does other things, too, says more than the rate.
"""

import argparse
import asyncio
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from playwright.async_api import Browser, Page, Route

from benchmarks import report
from benchmarks.report import Row
from tests.support.browser import running_chromium
from tests.support.process import UPLOADER, Server, ended

PAGE = Path(__file__).parents[1] / "docs" / "capacity.md"
SECTION = "page-hashing"

_GIB = 1 << 30
_MD5_MB_PER_SECOND = 400
# Up to 64 MiB a file is hashed at once: see `plan.js`.
_SMALL_BYTES = 64 << 20
_HASH = """async (number) => {
  const { Hasher } = await import("/static/pages/client/hasher.js");
  window.hasher ??= new Hasher();
  await hasher.resumeKey(new File([], ""), "");
  const begun = performance.now();
  const { md5, both } = hasher.digests(document.querySelector("input").files[number]);
  const seconds = (promise) => promise.then(() => (performance.now() - begun) / 1000);
  return Promise.all([seconds(md5), seconds(both)]);
}"""


@dataclass
class Figures:
    """One for each round."""

    md5_mb_per_second: list[float] = field(default_factory=list)
    both_mb_per_second: list[float] = field(default_factory=list)
    cpu_seconds_per_gib: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page_hashing", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round; the page stays as it is")
    arguments = parser.parse_args()
    machine = report.machine(())
    rows = asyncio.run(_measure(1 if arguments.quick else 5))
    section = f"{machine}.\n\n{report.table(rows)}"
    print(section)
    if not arguments.quick:
        report.write(PAGE, SECTION, section)


async def _measure(rounds: int) -> list[Row]:
    async with running_chromium() as browser:
        return await measure(browser, _GIB, rounds)


async def measure(browser: Browser, large_bytes: int, rounds: int) -> list[Row]:
    large, small = Figures(), Figures()
    with tempfile.TemporaryDirectory(prefix="benchmark-", ignore_cleanup_errors=True) as directory:
        root = Path(directory)
        paths = [_a_file(root / "large", large_bytes), _a_file(root / "small", min(large_bytes, _SMALL_BYTES))]
        server = Server(root / "log", {"DATA": str(root / "data")}, program=(UPLOADER,))
        with ended(server):
            page = await _a_page(browser, server.url, paths)
            sizes = [path.stat().st_size for path in paths]
            for _ in range(rounds):
                for number, figures in enumerate((large, small)):
                    await _round(page, number, sizes[number], figures)
            await page.context.close()
    return [
        report.at_least("MD5 of a file of 1 GiB", _MD5_MB_PER_SECOND, large.md5_mb_per_second, "MB/s"),
        report.compared("both digests of it", large.both_mb_per_second, "MB/s"),
        report.compared("CPU of the browser for that", large.cpu_seconds_per_gib, "s/GiB"),
        report.compared("both digests of a file of 64 MiB", small.both_mb_per_second, "MB/s"),
        report.compared("CPU of the browser for that", small.cpu_seconds_per_gib, "s/GiB"),
    ]


def _a_file(path: Path, size_bytes: int) -> Path:
    block = os.urandom(1 << 20)
    with path.open("wb") as file:
        for _ in range(0, size_bytes, len(block)):
            file.write(block)
    return path


async def _a_page(browser: Browser, url: str, paths: list[Path]) -> Page:
    async def serve(route: Route) -> None:
        await route.fulfill(content_type="text/html", body='<!doctype html><input type="file" multiple />')

    context = await browser.new_context()
    await context.route(f"{url}/empty", serve)
    page = await context.new_page()
    await page.goto(f"{url}/empty")
    await page.set_input_files("input", paths)
    return page


async def _round(page: Page, number: int, size_bytes: int, figures: Figures) -> None:
    before = _browser_cpu_seconds()
    md5_seconds, both_seconds = await page.evaluate(_HASH, number)
    figures.cpu_seconds_per_gib.append((_browser_cpu_seconds() - before) / size_bytes * _GIB)
    figures.md5_mb_per_second.append(size_bytes / md5_seconds / 1e6)
    figures.both_mb_per_second.append(size_bytes / both_seconds / 1e6)


def _browser_cpu_seconds() -> float:
    """Of every process that this one's children have started, but for the server, which has nothing to do."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        process = int(stat.parent.name)
        parents[process], ticks[process] = int(fields[1]), int(fields[11]) + int(fields[12])

    def is_ours(process: int) -> bool:
        while process in parents and process != os.getpid():
            process = parents[process]
        return process == os.getpid()

    total = sum(spent for process, spent in ticks.items() if process != os.getpid() and is_ours(process))
    return total / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
