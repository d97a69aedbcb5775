"""The benchmarks run: each at a scale that says nothing, so that they can't rot. What they measure is not looked at."""

from pathlib import Path

import pytest
from playwright.async_api import Browser

from benchmarks import events, nodes, patches, pieces, report, s3
from benchmarks.accounting.__main__ import BENCHMARKS, PAGE, SECTION
from benchmarks.accounting.scale import TINY
from benchmarks.ingest.places import Places
from benchmarks.page import measure as measure_page
from benchmarks.page_hashing import measure as measure_page_hashing
from benchmarks.reports import __main__ as reports
from benchmarks.reports.rows import TINY as TINY_REPORTS
from uploader.database.engine import Database


@pytest.mark.parametrize("database", ["mariadb"])  # a private one
# What takes long at any scale is left out.
@pytest.mark.parametrize("name", [name for name in BENCHMARKS if name not in ("lateness", "writes")])
async def test_a_benchmark_runs_and_its_figures_make_a_table(name: str, database: str, tmp_path: Path) -> None:
    rows = await BENCHMARKS[name](tmp_path / database, TINY)
    lines = report.table(rows).splitlines()
    assert len(lines) == 2 + len(rows) > 2
    assert {line.count("|") for line in lines} == {5}


async def test_the_benchmark_of_the_reports_runs(mariadb_url: str, tmp_path: Path) -> None:
    database = Database(mariadb_url)
    rows = await reports.measure_on(database, tmp_path, TINY_REPORTS)
    await database.close()
    assert rows[-1].met  # the totals are those of a recount
    assert {line.count("|") for line in report.table(rows).splitlines()} == {5}


def test_the_benchmark_of_large_patches_runs(tmp_path: Path) -> None:
    # What has to be installed is no business of the tests.
    taking_part = patches.entries(with_peers=False, on_disk=False)
    rows = patches.measure(Places(tmp_path, tmp_path), patches.TINY, taking_part)
    assert {line.count("|") for line in report.table(rows).splitlines()} == {5}
    assert not [row for row in rows if "not available" in row.measured]


def test_the_benchmark_of_s3_runs() -> None:
    rows = s3.measure(s3.TINY)
    assert {line.count("|") for line in report.table(rows).splitlines()} == {5}


def test_the_benchmark_of_nodes_runs() -> None:
    rows = nodes.measure(nodes.TINY)
    assert {line.count("|") for line in report.table(rows).splitlines()} == {5}


def test_the_benchmark_of_the_pieces_runs(tmp_path: Path) -> None:
    rows = pieces.measure(Places(tmp_path, tmp_path), size=8 << 20, rounds=1)
    assert {line.count("|") for line in report.table(rows).splitlines()} == {5}


def test_the_benchmark_of_the_events_runs() -> None:
    rows = events.measure(events.TINY)
    assert {line.count("|") for line in report.table(rows).splitlines()} == {5}


async def test_the_benchmark_of_the_page_runs(browser: Browser) -> None:
    rows = await measure_page(browser, files=5, rounds=1)
    rows += await measure_page_hashing(browser, large_bytes=1 << 20, rounds=1)
    assert {line.count("|") for line in report.table(rows).splitlines()} == {5}


async def test_a_section_of_the_page_is_replaced_and_the_rest_stays(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    report.write(page, SECTION, "first")
    once = page.read_text()
    report.write(page, SECTION, "second")
    assert page.read_text() == once.replace("\nfirst\n", "\nsecond\n") != once
    report.write(page, SECTION, "first")
    assert page.read_text() == once
