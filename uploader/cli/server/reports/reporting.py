"""`uploader report` and `uploader queue`: the reports of `/admin` on a terminal, asked of the stores themselves."""

import sys
from typing import TYPE_CHECKING

import click

from uploader.cli.options import DURATION
from uploader.cli.server.running import load_settings, with_services

if TYPE_CHECKING:
    from uploader.bootstrap import Services
    from uploader.service.reports import QueueReport, Report

# As in a page of the API.
_MAX_ROWS = 1000


@click.command()
@click.option(
    "--top", type=click.IntRange(1, _MAX_ROWS), default=20, show_default=True, help="Users and idle uploads to show."
)
@click.option(
    "--idle", type=DURATION, default="24h", show_default=True, help="For how long nothing arrived of an idle upload."
)
@click.option("--csv", "as_csv", is_flag=True, help="Print one figure a line: section, subject, figure, value.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with the figures of /admin.")
def report(top: int, idle: float, as_csv: bool, as_json: bool) -> None:
    """Report totals, growth, the largest users, idle uploads. Works while the server runs.

    Exit codes: 0 ok, 1 failed, 2 bad usage or configuration.
    """
    if as_csv and as_json:
        raise click.UsageError("--csv and --json: one of them")

    async def run(services: "Services") -> "Report":
        await services.storage.prepare()
        try:
            return await _ask(services, top, idle)
        finally:
            services.storage.stop()

    asked = with_services(load_settings(), run)
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(asked))
    elif as_csv:
        from uploader.cli.server.tables import figures
        from uploader.service.reports import csv_lines

        sys.stdout.write(csv_lines([("section", "subject", "figure", "value"), *figures(asked)]))
    else:
        from uploader.cli.server.tables import print_report

        print_report(asked)


async def _ask(services: "Services", top: int, idle_seconds: float) -> "Report":
    from uploader.service.reports import Idle, OpenUploadList, Order, Report

    summary = await services.overview.summary()
    by_size = Order(sort="use_space_finished", descending=True)
    users, _ = await services.reports.usage(by_size, limit=top, after=None, containing=None)
    oldest_first, idle = Order(sort="updated_at", descending=False), Idle(seconds=idle_seconds)
    uploads, cursor, total = await services.reports.uploads(oldest_first, idle, limit=top, after=None)
    return Report(
        summary=summary,
        users=users,
        idle_seconds=idle_seconds,
        idle=OpenUploadList(uploads, cursor, total, summary.as_of),
    )


@click.command()
@click.option("--user", "user_id", help="Only what waits of this user.")
@click.option("--upload", "upload_id", help="Only what waits of this upload.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, as GET /admin/queue does.")
def queue(user_id: str | None, upload_id: str | None, as_json: bool) -> None:
    """Show what waits to be accounted or merged, by minute. Works while the server runs.

    Exit codes: 0 ok, 1 failed, 2 bad usage or configuration.
    """

    async def run(services: "Services") -> "QueueReport":
        return await services.queues.report(user_id=user_id, upload_id=upload_id)

    asked = with_services(load_settings(), run)
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(asked))
    else:
        from uploader.cli.server.tables import print_queue

        print_queue(asked)
