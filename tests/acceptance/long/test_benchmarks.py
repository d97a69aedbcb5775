"""The benchmarks run: each at a scale that says nothing, so that they can't rot. What they measure is not looked at."""

import asyncio
import platform
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from playwright.async_api import Browser

from benchmarks import (
    events,
    fairness,
    floods,
    folders,
    housekeeping,
    interpreter,
    lanes,
    listing,
    nodes,
    pieces,
    report,
    s3,
    work,
)
from benchmarks.accounting import __main__ as accounting
from benchmarks.accounting.scale import TINY as TINY_ACCOUNTING
from benchmarks.all import __main__ as command
from benchmarks.all import pages, plots
from benchmarks.all.questions import QUESTIONS, TINY
from benchmarks.ingest import __main__ as ingest
from benchmarks.ingest.places import Places
from benchmarks.ingest.scale import TINY as TINY_INGEST
from benchmarks.page import measure as measure_page
from benchmarks.page_hashing import measure as measure_page_hashing
from benchmarks.reports import __main__ as reports
from benchmarks.reports.rows import TINY as TINY_REPORTS
from benchmarks.small_files import __main__ as small_files
from benchmarks.small_files.scale import TINY as TINY_SMALL_FILES
from benchmarks.storage import __main__ as storage
from benchmarks.storage.scale import TINY as TINY_STORAGE
from benchmarks.tables import Cell, Table
from uploader.database.engine import Database

RECEIVING = ("metering", "latency", "open")


def make_a_table(rows: Sequence[report.Row]) -> None:
    lines = report.table(rows).splitlines()
    assert len(lines) == 2 + len(rows) > 2
    assert {line.count("|") for line in lines} == {5}
    assert not [row for row in rows if "not available" in row.measured]


@pytest.mark.parametrize("database", ["mariadb"])  # a private one
# What takes long at any scale is left out.
@pytest.mark.parametrize("name", [name for name in accounting.BENCHMARKS if name not in ("lateness", "writes")])
async def test_the_benchmarks_of_the_accounting(name: str, database: str, tmp_path: Path) -> None:
    make_a_table(await accounting.BENCHMARKS[name](tmp_path / database, TINY_ACCOUNTING))


async def test_the_benchmark_of_the_reports(mariadb_url: str, tmp_path: Path) -> None:
    database = Database(mariadb_url)
    rows = await reports.measure_on(database, tmp_path, TINY_REPORTS)
    await database.close()
    assert rows[-1].met  # the totals are those of a recount
    make_a_table(rows)


async def test_the_benchmark_of_housekeeping(tmp_path: Path) -> None:
    rows = await housekeeping.measure(tmp_path, 30)
    make_a_table(rows)
    assert [row.met for row in rows if row.target != "–"] == [True, True]


async def test_the_benchmarks_of_what_requests_cost(tmp_path: Path) -> None:
    request = Namespace(connections=3, seconds=0.3, rounds=1, database=None, request="GET /me/files")
    assert "times" in await asyncio.to_thread(fairness.measure, request)
    assert "`/livez`" in await asyncio.to_thread(floods.measure, 0.2, 1)
    assert "uploads" in await asyncio.to_thread(floods.measure_rows, 2, 1)
    make_a_table(await listing.measure(tmp_path, (150,), 1))


async def test_the_benchmark_of_folders() -> None:
    make_a_table(await asyncio.to_thread(folders.measure, folders.Size(600, 300, 50, 0.5, collects=False), ["SQLite"]))


@pytest.mark.parametrize("name", RECEIVING)
async def test_the_benchmarks_of_receiving(name: str, tmp_path: Path) -> None:
    places = Places(tmp_path, tmp_path).of(name)
    make_a_table(await asyncio.to_thread(ingest.BENCHMARKS[name], places, TINY_INGEST))


@pytest.mark.parametrize("name", small_files.BENCHMARKS)
async def test_the_benchmarks_of_small_files(name: str, tmp_path: Path) -> None:
    places = Places(tmp_path, tmp_path).of(name)
    make_a_table(await asyncio.to_thread(small_files.BENCHMARKS[name], places, TINY_SMALL_FILES))


# tuspyserver comes from a registry, and is no business of the tests.
@pytest.mark.parametrize("name", [name for name in storage.BENCHMARKS if name != "tus"])
async def test_the_benchmarks_of_the_storage(name: str, tmp_path: Path) -> None:
    make_a_table(storage.BENCHMARKS[name](tmp_path / name, TINY_STORAGE))


OTHERS: dict[str, Callable[[Places], Sequence[report.Row]]] = {
    "S3": lambda _: s3.measure(s3.TINY),
    "lanes": lambda _: lanes.measure(1),
    "pieces": lambda places: pieces.measure(places, size=8 << 20, rounds=1),
    "events": lambda _: events.measure(events.TINY),
    "work": lambda _: work.measure(work.TINY),
}


@pytest.mark.parametrize("measure", OTHERS.values(), ids=OTHERS)
def test_the_other_benchmarks(measure: Callable[[Places], Sequence[report.Row]], tmp_path: Path) -> None:
    make_a_table(measure(Places(tmp_path, tmp_path)))


# What has to be installed is no business of the tests, and does not take part.
@pytest.mark.parametrize("name", QUESTIONS)
def test_each_question_is_answered_on_both_pages(name: str, tmp_path: Path) -> None:
    table = QUESTIONS[name].measure(Places(tmp_path, tmp_path).of(name), TINY)
    assert [line.problem for line in table.lines] == [""] * len(table.lines)
    lines = pages.markdown(["facts"], {name: table}).splitlines()
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1
    page = plots.html(["facts"], {name: table})
    assert page.count("<svg") == page.count("</svg>") == len(table.measured)
    assert msgspec.json.decode(msgspec.json.encode(table), type=Table) == table


def test_a_question_that_fails_or_takes_too_long_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for limit_seconds, told in ((60.0, "ImportError: broken"), (0.0, "took longer than 0 s")):
        (tmp_path / "sitecustomize.py").write_text("raise SystemExit('ImportError: broken')")
        (answer,) = command.measure(replace(TINY, limit_seconds=limit_seconds), ["idle"], tmp_path, quick=True).values()
        assert told in answer.markdown(spread=True)


def test_a_bound_that_is_missed_says_so() -> None:
    cells = [Cell([3, 1, 2], at_most=2), Cell([3, 1, 2], at_most=1), Cell([2], at_least=4), Cell([2])]
    told = ["2 (1 to 3; ≤ 2)", "2 (1 to 3; ≤ 1, missed by 100%)", "2 (≥ 4, missed by 50%)", "2"]
    assert [cell.text(spread=True) for cell in cells] == told


def test_the_benchmark_of_nodes() -> None:
    rows = nodes.measure(nodes.TINY)
    make_a_table(rows)
    assert [row for row in rows if row.met is False and "beyond" not in row.figure] == []


async def test_the_benchmark_of_the_page(browser: Browser) -> None:
    rows = await measure_page(browser, files=5, rounds=1)
    make_a_table(rows + await measure_page_hashing(browser, large_bytes=1 << 20, rounds=1))


def test_a_section_of_the_page_is_replaced_and_says_which_python_it_is_of(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(accounting.PAGE.read_text())
    report.write(page, accounting.SECTION, "first")
    once = page.read_text()
    report.write(page, accounting.SECTION, "second")
    assert page.read_text() == once.replace("\nfirst\n", "\nsecond\n") != once
    report.write(page, accounting.SECTION, "first")
    assert page.read_text() == once
    assert f"Python {platform.python_version()} (" in report.machine(())
    assert interpreter.described() in report.machine(())
