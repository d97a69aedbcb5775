"""The command line: one module for each kind of command."""

import click

from uploader import __version__
from uploader.cli import accounts, maintenance, scrubbing, serving


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="uploader")
def main() -> None:
    """A resumable chunked-upload server.

    Settings are UPLOADER_* environment variables: `uploader config` shows what is in force, the README explains each.
    Every command can run while a server runs on the same data directory.

    \b
    Exit codes: 0 ok, 1 failed, 2 bad usage or configuration.
    """


for command in (
    serving.serve,
    serving.work,
    maintenance.config,
    maintenance.db,
    maintenance.redis,
    maintenance.cleanup,
    maintenance.reset_unfinished,
    maintenance.reconcile,
    scrubbing.scrub,
    accounts.token,
    accounts.user,
):
    main.add_command(command)
