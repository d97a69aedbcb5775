"""`report`, `queue` and `audit`: the reports of `/admin` on a terminal, read from the stores without a server."""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click

from uploader.cli import Later, Loading
from uploader.cli.server.services import load_settings, with_services
from uploader.cli.terminal import DURATION, WHEN, say, say_csv, shown
from uploader.domain.audit_log import Act, Action

if TYPE_CHECKING:
    from uploader.bootstrap import Services
    from uploader.service.reports import Report

_MAX_ROWS = 1000  # as in a page of the API


@click.command()
@click.option(
    "--top", type=click.IntRange(1, _MAX_ROWS), default=20, show_default=True, help="Users and idle uploads to show."
)
@click.option(
    "--idle",
    type=DURATION,
    default="24h",
    show_default=True,
    help="Count uploads as idle that received nothing for so long.",
)
@click.option("--cost", is_flag=True, help="Show the users whose requests cost most in the last 24 hours instead.")
@click.option("--csv", "as_csv", is_flag=True, help="Print one figure a line: section, subject, figure, value.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with the figures of /admin.")
def report(top: int, idle: float, cost: bool, as_csv: bool, as_json: bool) -> None:
    """Report totals, growth, the largest users, idle uploads."""
    if as_csv and as_json:
        raise click.UsageError("--csv and --json exclude each other")

    if cost:
        _report_costs(top, as_csv=as_csv, as_json=as_json)
        return

    async def run(services: "Services") -> "Report":
        from uploader.service.reports import Idle, OpenUploadList, Order, Report

        summary = await services.overview.summary()
        by_size = Order(sort="use_space_finished", descending=True)
        users, _ = await services.reports.usage(by_size, limit=top, after=None, containing=None)
        oldest_first, idle_for = Order(sort="updated_at", descending=False), Idle(seconds=idle)
        uploads, cursor, total = await services.reports.uploads(oldest_first, idle_for, limit=top, after=None)
        return Report(summary, users, idle, OpenUploadList(uploads, cursor, total, summary.as_of))

    asked = with_services(load_settings(), run, stores=True)
    if as_json:
        say(_json(asked))
    elif as_csv:
        from uploader.cli.server.tables import figures

        _print_csv([("section", "subject", "figure", "value"), *figures(asked)])
    else:
        from uploader.cli.server.tables import print_report

        print_report(asked)


def _report_costs(top: int, *, as_csv: bool, as_json: bool) -> None:
    asked = with_services(load_settings(), lambda services: services.costs.report(top))
    if as_json:
        say(_json(asked))
    elif as_csv:
        rows = [("cost", user.user_id, "cpu_seconds", user.cpu_seconds) for user in asked.users]
        _print_csv([("section", "subject", "figure", "value"), *rows])
    else:
        from uploader.cli.server.tables import print_costs

        print_costs(asked)


@click.group(
    cls=Loading,
    invoke_without_command=True,
    commands=[Later("work", "client.work", "Run COMMAND for each task of QUEUE, until SIGTERM.")],
)
@click.option("--user", "user_id", help="Show uploads of this user only.")
@click.option("--upload", "upload_id", help="Show this upload only.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, as GET /admin/queue does.")
@click.pass_context
def queue(context: click.Context, user_id: str | None, upload_id: str | None, as_json: bool) -> None:
    """Show uploads that wait, by minute; show and do tasks."""
    if context.invoked_subcommand is not None:
        return
    asked = with_services(
        load_settings(), lambda services: services.queues.report(user_id=user_id, upload_id=upload_id)
    )
    if as_json:
        say(_json(asked))
    else:
        from uploader.cli.server.tables import print_queue

        print_queue(asked)


@queue.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, as GET /admin/work does.")
def tasks(as_json: bool) -> None:
    """Show queues of tasks: how many wait, which are held or dead, and their workers."""
    asked = with_services(load_settings(), lambda services: services.work.report())
    if as_json:
        say(_json(asked))
    else:
        from uploader.cli.server.tables import print_tasks

        print_tasks(asked)


@queue.command()
@click.argument("queue")
@click.argument("task_id", required=False)
def replay(queue: str, task_id: str | None) -> None:
    """Hand dead tasks out once more, all or one."""

    async def replay(services: "Services") -> int:
        services.work.queue(queue)  # refuse sinks: `events replay` is for them
        return await services.reviewing.replay(sink=queue, event_id=task_id, since=None, dead=True)

    say(f"tasks to be handed out once more: {with_services(load_settings(), replay)}")


@click.command()
@click.option("--since", type=WHEN, help="Only entries since a time, or a duration such as 24h.")
@click.option("--until", type=WHEN, help="Only entries before a time, or older than a duration.")
@click.option("--user", "user_id", help="Only entries by or about this user.")
@click.option(
    "--action",
    type=click.Choice([action.value for action in Action]),
    metavar="ACTION",
    help="Only entries of this action, such as quota.changed.",
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, as GET /admin/audit does.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object a line.")
def audit(
    since: datetime | None, until: datetime | None, user_id: str | None, action: str | None, as_csv: bool, as_json: bool
) -> None:
    """Print who did what to whom, newest first.

    Covers tokens, users, quotas, expiries, repairs, adoptions, backups and restores of the last UPLOADER_AUDIT_RETENTION.
    """
    if as_csv and as_json:
        raise click.UsageError("--csv and --json exclude each other")

    async def run(services: "Services") -> None:
        from uploader.service.audit_log import Wanted

        columns = tuple(Act.__dataclass_fields__)
        if as_csv:
            _print_csv([columns])
        wanted = Wanted(since=since, until=until, user_id=user_id, action=action)
        async for batch in services.audit_log_reports.all(wanted):
            if as_csv:
                _print_csv([[getattr(act, column) for column in columns] for act in batch])
                continue
            for act in batch:
                say(_json(act) if as_json else _line(act))

    with_services(load_settings(), run)


def _print_csv(rows: Iterable[Sequence[object]]) -> None:
    from uploader.service.reports import csv_lines

    # A line break in a cell would look like the end of a row.
    say_csv(csv_lines([shown(cell) if isinstance(cell, str) else cell for cell in row] for row in rows))


def _json(told: object) -> str:
    import msgspec

    return msgspec.json.encode(told).decode()


def _line(act: Act) -> str:
    words = [f"{act.created_at:%Y-%m-%d %H:%M:%S}", f"{act.action:<21}", act.subject]
    if act.user_id not in (None, act.subject):
        words.append(f"of {act.user_id}")
    words.append(f"by {act.via} {act.actor or 'of nobody known'}")
    if act.token_id:
        words.append(f"token {act.token_id}" + (f" made by {act.token_made_by}" if act.token_made_by else ""))
    if act.address:
        words.append(f"from {act.address}")
    if act.details:
        words.append(json.dumps(act.details, ensure_ascii=False))
    return "  ".join(words)
