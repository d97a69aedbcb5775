"""`uploader audit`: who did what to whom, and when."""

import json
import sys
from datetime import datetime
from typing import TYPE_CHECKING

import click

from uploader.cli.options import WHEN
from uploader.cli.server.running import load_settings, with_services
from uploader.domain.audit_log import Act, Action

if TYPE_CHECKING:
    from uploader.bootstrap import Services


@click.command()
@click.option("--since", type=WHEN, help="Only what was done since a time, or so long ago, such as 24h.")
@click.option("--until", type=WHEN, help="Only what was done before a time, or so long ago.")
@click.option("--user", "user_id", help="Only what this user did, and what was done to them.")
@click.option("--action", type=click.Choice([action.value for action in Action]), help="Only this.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, as GET /admin/audit does.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object a line.")
def audit(
    since: datetime | None, until: datetime | None, user_id: str | None, action: str | None, as_csv: bool, as_json: bool
) -> None:
    """Print who did what to whom, the newest first. Works while the server runs.

    Of tokens, users, quotas, expiries, repairs, adoptions, backups and restores. UPLOADER_AUDIT_RETENTION says for how long
    it is kept.

    Exit codes: 0 ok, 1 failed, 2 bad usage or configuration.
    """
    if as_csv and as_json:
        raise click.UsageError("--csv and --json: one of them")

    async def run(services: "Services") -> None:
        from uploader.service.audit_log import Wanted
        from uploader.service.reports import csv_lines

        columns = tuple(Act.__dataclass_fields__)
        if as_csv:
            sys.stdout.write(csv_lines([columns]))
        async for batch in services.trail_reports.all(Wanted(since=since, until=until, user_id=user_id, action=action)):
            if as_csv:
                sys.stdout.write(csv_lines([getattr(act, column) for column in columns] for act in batch))
                continue
            for act in batch:
                click.echo(_json(act) if as_json else _line(act))

    with_services(load_settings(), run)


def _json(act: Act) -> str:
    import msgspec

    return msgspec.json.encode(act).decode()


def _line(act: Act) -> str:
    """When, what, to what, whose that is, by whom, from where, and the rest."""
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
