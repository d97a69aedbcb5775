"""`uploader report`: the same figures as a table, as CSV and as JSON, while nothing else runs."""

import asyncio
import csv
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support.rows import Transactions, upload_row
from uploader.cli import main
from uploader.database.engine import Database

NOW = datetime.now(UTC)


@pytest.fixture
async def settings(sqlite_url: str, tmp_path: Path) -> dict[str, str]:
    """An installation with files of two users, one content in common, and two open uploads, one of them idle."""
    database = Database(sqlite_url)
    act = Transactions(database)
    for user_id in ("alice", "=bob", "[red]carol"):
        await act.create_user(user_id, 10**6)
    await act.upload_and_merge("alice", 1000, "both")
    await act.upload_and_merge("=bob", 1000, "both")
    await act.upload_and_merge("alice", 5000, "hers")
    await act.open(upload_row("alice", 300, updated_at=NOW - timedelta(hours=1)))
    idle = NOW - timedelta(days=3)
    await act.open(upload_row("=bob", 400, name="@old[/].bin", updated_at=idle, flushed_bytes=100))
    await database.close()
    return {"UPLOADER_DATA": str(tmp_path / "data"), "UPLOADER_DATABASE_URL": sqlite_url}


async def run(settings: dict[str, str], *options: str) -> Result:
    return await asyncio.to_thread(CliRunner(env=settings).invoke, main, ["report", *options])


async def test_the_tables_show_who_has_what(settings: dict[str, str]) -> None:
    result = await run(settings)
    assert result.exit_code == 0, result.output
    for words in (
        "saved by deduplication │ 1 KB (14.3 %)",
        "no snapshot that old",
        "│ =bob       │",
        "│ [red]carol │",
        "│ 2030-01 │",
        "Idle for 1 d 0 h: 1 uploads; 100 B of disk, 400 B of quota to give back",
        "│ @old[/].bin │",
    ):
        assert words in result.stdout, result.stdout
    lines = result.stdout.splitlines()
    assert [words in line for words in ("│ alice ", "│ =bob ") for line in lines].count(True) == 3
    assert "none" in (await run(settings, "--idle", "30d")).stdout


async def test_as_json_and_as_csv_the_figures_are_the_same(settings: dict[str, str]) -> None:
    result = await run(settings, "--json", "--top", "1", "--idle", "1s")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["summary"]["logical_bytes"], report["summary"]["physical_bytes"]) == (7000, 6000)
    assert [user["user_id"] for user in report["users"]] == ["alice"]
    assert report["users"][0]["use_space_finished"] == 6000
    (late,) = report["idle"]["uploads"]
    assert (late["name"], report["idle_seconds"]) == ("@old[/].bin", 1)
    assert report["idle"]["total"] == {"open_uploads": 2, "quota_bytes": 700, "disk_bytes": 100}
    output = await run(settings, "--csv", "--idle", "1s")
    head, *rows = csv.reader(io.StringIO(output.stdout))
    assert head == ["section", "subject", "figure", "value"]
    figures = {(section, subject, figure): value for section, subject, figure, value in rows}
    assert len(figures) == len(rows)
    assert figures["totals", "", "physical_bytes"] == "6000"
    assert figures["users", "'=bob", "use_space_finished"] == "1000"
    assert figures["temp", "2030-01", "quota_bytes"] == "700"
    assert figures["idle", late["upload_id"], "name"] == "'@old[/].bin"
    assert {section for section, _, _ in figures} == {"totals", "disk", "temp", "growth", "users", "idle"}


async def test_bad_usage_and_a_database_that_is_not_migrated_are_refused(
    settings: dict[str, str], tmp_path: Path
) -> None:
    for options in (("--csv", "--json"), ("--top", "0"), ("--top", "1001"), ("--idle", "0"), ("--idle", "x")):
        assert (await run(settings, *options)).exit_code == 2, options
    result = await run(settings | {"UPLOADER_DATABASE_URL": f"sqlite:///{tmp_path}/empty.db"})
    assert (result.exit_code, result.stdout) == (2, "")
    assert "run `uploader db upgrade`" in result.stderr
