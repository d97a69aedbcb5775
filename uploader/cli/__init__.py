"""The command line: commands for those who run the server, commands for those who upload, and what both need.

Refuses to decide anything about uploads: a command asks a service or a client, and prints.
"""

import click

from uploader import __version__
from uploader.cli.client import filing, login, transferring, unfinished
from uploader.cli.server import accounts, adopting, maintenance, reporting, scrubbing, serving, trash


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="uploader")
def main() -> None:
    """A resumable chunked-upload server, and its client.

    put, get, ls, rm, mv, usage, uploads, cancel and login are for those who upload: they talk to a server that runs
    anywhere. All other commands are for those who run it.

    The server's settings are UPLOADER_* environment variables: `uploader config` shows what is in force, the README
    explains each. Every command can run while a server runs on the same data directory.

    \b
    Exit codes: 0 ok, 1 failed, 2 bad usage or configuration; those of the client are in the README.
    """


for command in (
    serving.serve,
    serving.work,
    maintenance.config,
    maintenance.db,
    maintenance.redis,
    adopting.installation,
    adopting.adopt,
    maintenance.cleanup,
    maintenance.reset_unfinished,
    maintenance.reconcile,
    reporting.report,
    scrubbing.scrub,
    trash.trash,
    accounts.token,
    accounts.user,
    transferring.put,
    transferring.get,
    filing.ls,
    filing.rm,
    filing.mv,
    filing.usage,
    unfinished.uploads,
    unfinished.cancel,
    login.login,
):
    main.add_command(command)
