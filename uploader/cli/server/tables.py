"""The output of `uploader report` and `uploader queue`: tables for people, single figures for programs."""

import sys
from collections.abc import Iterator
from typing import Any

import msgspec
from rich.table import Table
from rich.text import Text

from uploader.cli.terminal import human_seconds, say, say_drawn, shown
from uploader.service.costs import CostReport
from uploader.service.reports import QueueReport, Report
from uploader.service.work import WorkReport
from uploader.units import human_bytes

# The width without a terminal; no column is cut.
_WIDTH = 160


def figures(report: Report) -> Iterator[tuple[str, str, str, object]]:
    """Yield each figure of a report: section, subject, name, value."""
    summary: dict[str, Any] = msgspec.to_builtins(report.summary)
    yield from (("totals", "", name, value) for name, value in summary.items() if not isinstance(value, list | dict))
    yield from (("disk", "", name, value) for name, value in summary["disk"].items())
    yield from _rows("temp", "month", summary["temp"])
    yield from _rows("growth", "days", summary["growth"])
    yield from _rows("users", "user_id", msgspec.to_builtins(report.users))
    yield from (("idle", "", name, value) for name, value in msgspec.to_builtins(report.idle.total).items())
    yield from _rows("idle", "upload_id", msgspec.to_builtins(report.idle.uploads))


def _rows(section: str, key: str, rows: list[dict[str, Any]]) -> Iterator[tuple[str, str, str, object]]:
    for row in rows:
        yield from ((section, row[key], name, value) for name, value in row.items() if name != key)


def print_report(report: Report) -> None:
    """Print the tables. Names and ids come from users, and are not parsed as markup."""
    _print(*_tables(report))


def print_queue(queue: QueueReport) -> None:
    late, pending = human_seconds(queue.lateness_seconds), human_bytes(queue.pending_bytes)
    say(f"As of {queue.as_of:%Y-%m-%d %H:%M:%S} UTC: {queue.tasks} tasks, {pending} pending, {late} late")
    table = _table("Waiting", " queue", " minute (UTC)", "tasks", "pending")
    for bucket in queue.buckets:
        minute = "unreadable" if bucket.minute is None else f"{bucket.minute:%Y-%m-%d %H:%M}"
        _add(table, bucket.queue, minute, str(bucket.tasks), human_bytes(bucket.pending_bytes))
    _print(table)


def print_tasks(report: WorkReport) -> None:
    say(f"As of {report.as_of:%Y-%m-%d %H:%M:%S} UTC")
    table = _table("Queues", " queue", "waiting", "held", "oldest", "most attempts", "dead")
    told = _table(
        "Tasks that are held or dead", " queue", " task", " state", "attempt", " worker", " since or until", " error"
    )
    for queue in report.queues:
        counts = [f"{count:,}" for count in (queue.waiting, queue.held, queue.attempts, queue.dead)]
        _add(table, queue.queue, *counts[:2], human_seconds(queue.lag_seconds), *counts[2:])
        for state, tasks in (("held", queue.holders), ("dead", queue.given_up)):
            for task in tasks:
                when = f"{task.due_at:%Y-%m-%d %H:%M:%S}"
                _add(
                    told, queue.queue, task.id, state, str(task.attempt), task.worker or "", when, task.last_error or ""
                )
    _print(table, told)


def print_costs(costs: CostReport) -> None:
    say(f"The last {costs.hours} hours as of {costs.as_of:%Y-%m-%d %H:%M:%S} UTC")
    table = _table("Users whose requests cost most", " user", "CPU seconds")
    for user in costs.users:
        _add(table, user.user_id, f"{user.cpu_seconds:,.3f}")
    _print(table)


def _print(*tables: Table) -> None:
    width = None if sys.stdout.isatty() else _WIDTH
    say_drawn(*(table if table.row_count else Text(shown(f"{table.title}: none")) for table in tables), width=width)


def _table(title: str, *columns: str) -> Table:
    """Make a table. Columns whose name begins with a blank hold words, the others figures."""
    table = Table(title=title, title_justify="left", title_style="bold", min_width=40)
    for column in columns:
        table.add_column(column.strip(), justify="left" if column.startswith(" ") else "right", overflow="fold")
    return table


def _add(table: Table, *cells: str) -> None:
    table.add_row(*(Text(shown(cell), overflow="fold") for cell in cells))


def _tables(report: Report) -> Iterator[Table]:
    summary, disk = report.summary, report.summary.disk
    table = _table(f"Totals as of {summary.as_of:%Y-%m-%d %H:%M:%S} UTC", " what", "how much")
    share = 100 * summary.saved_bytes / summary.logical_bytes if summary.logical_bytes else 0
    _add(table, "users", str(summary.users))
    _add(table, "files", str(summary.files))
    _add(table, "contents", str(summary.blobs))
    _add(table, "… damaged", str(summary.damaged_blobs))
    _add(table, "open uploads", str(summary.open_uploads))
    _add(table, "size of all files", human_bytes(summary.logical_bytes))
    _add(table, "… on the disk", human_bytes(summary.physical_bytes))
    _add(table, "… saved by deduplication", f"{human_bytes(summary.saved_bytes)} ({share:.1f} %)")
    _add(table, "unfinished", human_bytes(summary.use_space_unfinished))
    _add(table, "reserved by open uploads", human_bytes(summary.reserved))
    _add(table, "disk", human_bytes(disk.total_bytes))
    _add(table, "… free", human_bytes(disk.free_bytes))
    _add(table, "… in the trash", human_bytes(disk.trash_bytes))
    _add(table, "… open to new uploads", human_bytes(disk.available_bytes))
    yield table

    table = _table("Growth", "days", " since", "files", "on the disk", "a day", "full in")
    for growth in report.summary.growth:
        if growth.since is None or growth.use_space_finished is None or growth.physical_bytes is None:
            _add(table, str(growth.days), "no snapshot that old", "–", "–", "–", "–")
            continue
        grown = (growth.use_space_finished, growth.physical_bytes, round(growth.physical_bytes_per_day or 0))
        signed = [f"{'-' if size_bytes < 0 else '+'}{human_bytes(abs(size_bytes))}" for size_bytes in grown]
        full = "–" if growth.days_until_full is None else f"{growth.days_until_full:,.1f} days"
        _add(table, str(growth.days), f"{growth.since:%Y-%m-%d}", *signed, full)
    yield table

    table = _table("Users by size", " user", "finished", "unfinished", "reserved", "total", "files", "open uploads")
    for user in report.users:
        spaces = (user.use_space_finished, user.use_space_unfinished, user.reserved, user.total_space)
        _add(table, user.user_id, *map(human_bytes, spaces), str(user.files), str(user.open_uploads))
    yield table

    table = _table("Open uploads by month of their opening (UTC)", " month", "open uploads", "on the disk", "reserved")
    for month in report.summary.temp:
        sizes = (human_bytes(month.disk_bytes), human_bytes(month.quota_bytes))
        _add(table, month.month, str(month.open_uploads), *sizes)
    yield table

    total = report.idle.total
    title = (
        f"Idle for {human_seconds(report.idle_seconds)}: {total.open_uploads} uploads; "
        f"{human_bytes(total.disk_bytes)} of disk, {human_bytes(total.quota_bytes)} of quota to give back"
    )
    table = _table(title, " upload", " user", " last accounted", "disk", "quota", " name")
    for upload in report.idle.uploads:
        sizes = (human_bytes(upload.disk_bytes), human_bytes(upload.quota_bytes))
        _add(table, upload.upload_id, upload.user_id, f"{upload.updated_at:%Y-%m-%d %H:%M}", *sizes, upload.name)
    yield table
