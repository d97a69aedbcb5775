"""`uploader scrub`: looks for rot, blob by blob."""

import json
import sys
import time
from typing import TYPE_CHECKING

import click

from uploader.cli.exits import EXIT_OK
from uploader.cli.options import RATE
from uploader.cli.server.running import EXIT_FAILED, load_settings, with_services

if TYPE_CHECKING:
    from uploader.bootstrap import Services
    from uploader.service.upkeep.scrubbing import Damage, ScrubProgress


class _RateLimit:
    """Keeps a stream of reads at a rate of bytes a second; 0 is as fast as the disk."""

    def __init__(self, rate_bytes_per_second: int) -> None:
        self._rate = rate_bytes_per_second
        self._due = time.monotonic()

    def __call__(self, read_bytes: int) -> None:
        if not self._rate:
            return
        now = time.monotonic()
        # What was lost to a slow disk is caught up for a second at most: then the rate is all that it is asked for.
        self._due = max(self._due, now - 1) + read_bytes / self._rate
        time.sleep(max(0.0, self._due - now))


@click.command()
@click.option("--rate", type=RATE, default="50MiB/s", show_default=True, help="Bytes a second; 0: all the disk gives.")
@click.option("--restart", is_flag=True, help="Begin with the first blob, even if the last run did not end.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON object a line: every damaged blob, then the summary."
)
def scrub(rate: int, restart: bool, as_json: bool) -> None:
    """Read every blob again and report each whose bytes are not what was stored. Works while the server runs.

    Interrupted, it goes on where it was. Nothing is moved, mended or deleted: see docs/operations.md.

    Exit codes: 0 no damage, 1 any damage, also if an earlier run of the same pass found it.
    """

    async def run(services: "Services") -> "ScrubProgress":
        await services.storage.prepare()
        try:
            async for damage in services.scrubbing.scrub(_RateLimit(rate), restart=restart):
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
    facts = {"sha256": damage.sha256, "size": damage.size, "problem": damage.problem, "files": files}
    return json.dumps({"event": "damaged", **facts})


def _as_text(damage: "Damage") -> str:
    # Names are the users' own: shown so that none can pass for another line.
    files = ", ".join(f"{file.id} {file.name!a} of {file.user_id}" for file in damage.files)
    return f"{damage.problem}: {damage.sha256}, {damage.size} bytes; files: {files}"
