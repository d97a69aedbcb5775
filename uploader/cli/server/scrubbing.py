"""`uploader scrub`: looks for rot, blob by blob."""

import json
import sys
from typing import TYPE_CHECKING

import click

from uploader.cli.exits import EXIT_OK
from uploader.cli.options import RATE
from uploader.cli.server.running import EXIT_FAILED, load_settings, with_services

if TYPE_CHECKING:
    from uploader.bootstrap import Services
    from uploader.service.heal import Damage
    from uploader.service.scrub import ScrubProgress


@click.command()
@click.option("--rate", type=RATE, default="50MiB/s", show_default=True, help="Bytes a second; 0: all the disk gives.")
@click.option("--restart", is_flag=True, help="Begin with the first blob, even if the last run did not end.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON object a line: every damaged blob, then the summary."
)
def scrub(rate: int, restart: bool, as_json: bool) -> None:
    """Read all stored content again, and report what rotted. Works while the server runs.

    What is damaged is healed by a good copy from the trash, if there is one, or else marked, so that nobody is given its
    bytes. Interrupted, it goes on where it was. Servers and workers do the same all the time, at UPLOADER_SCRUB_RATE.

    Exit codes: 0 no damage, 1 any damage, also if it was healed, or an earlier run of the same pass found it.
    """

    from uploader.service.scrub import RateLimit

    async def run(services: "Services") -> "ScrubProgress":
        await services.storage.prepare()
        try:
            async for damage in services.scrubbing.scrub(RateLimit(rate), restart=restart):
                click.echo(_as_json(damage) if as_json else _as_text(damage))
                sys.stdout.flush()
        finally:
            services.storage.stop()
        return services.scrubbing.progress

    progress = with_services(load_settings(), run)
    checked, found = {"blobs": progress.blobs, "bytes": progress.bytes}, progress.damaged
    if as_json:
        click.echo(json.dumps({"event": "summary", "checked": checked, "damaged": found}))
    else:
        click.echo(f"{found} damaged; checked {checked['blobs']} blobs, {checked['bytes']} bytes")
    sys.exit(EXIT_FAILED if found else EXIT_OK)


def _as_json(damage: "Damage") -> str:
    files = [{"user_id": file.user_id, "id": file.id, "name": file.name} for file in damage.files]
    facts = {"sha256": damage.sha256, "size": damage.size, "problem": damage.problem, "healed": damage.healed}
    return json.dumps({"event": "damaged", **facts, "files": files})


def _as_text(damage: "Damage") -> str:
    # Names are the users' own: shown so that none can pass for another line.
    files = ", ".join(f"{file.id} {file.name!a} of {file.user_id}" for file in damage.files)
    problem = f"{damage.problem}, and healed" if damage.healed else damage.problem
    return f"{problem}: {damage.sha256}, {damage.size} bytes; files: {files}"
