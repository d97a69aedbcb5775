"""The command line: commands for those who run the server, commands for those who upload, and what both need.

Refuses to decide anything about uploads: a command asks a service or a client, and prints.
"""

import os
from functools import partial

import click

from uploader import __version__
from uploader.cli.client import filing, login, transferring, unfinished
from uploader.cli.client.syncing.command import sync
from uploader.cli.manual import man
from uploader.cli.server import accounts, adopting, backups, events, maintenance, scrubbing, serving, trash
from uploader.cli.server.reports import auditing, reporting


class Commands(click.Group):
    """The commands in two lists: whoever uploads need not know those of the server."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        limit = formatter.width - 6 - max(map(len, self.commands))
        for title, of_server in (("Commands of those who upload", False), ("Commands of those who run a server", True)):
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (name, each.get_short_help_str(limit))
                        for name, each in self.commands.items()
                        if _is_of_server(each) is of_server
                    ]
                )


def _is_of_server(command: click.Command) -> bool:
    return command.callback.__module__.startswith("uploader.cli.server.")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="uploader")
@click.pass_context
def main(context: click.Context) -> None:
    """A resumable chunked-upload server, and its client.

    Those who upload talk to a server that runs anywhere: the one that `uploader login` keeps, or UPLOADER_URL and
    UPLOADER_TOKEN. Those who run a server set it up by UPLOADER_* environment variables: `uploader config` shows what is in
    force, the README explains each. Their commands can run while a server runs on the same data directory.

    \b
    Exit codes of the server: 0 ok, 1 failed, 2 bad usage or configuration.
    Exit codes of the client: 0 ok, 2 bad usage, 3 authentication, 4 quota,
    5 try again, 6 failed, 130 interrupted.
    """
    if _is_of_server(main.commands[context.invoked_subcommand or ""]):
        # Whatever they make, and what Valkey and SQLite make for them, is nobody else's to read.
        context.call_on_close(partial(os.umask, os.umask(0o077)))


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
    reporting.queue,
    auditing.audit,
    scrubbing.scrub,
    backups.backup,
    backups.restore,
    trash.trash,
    events.events,
    accounts.token,
    accounts.user,
    transferring.put,
    transferring.get,
    sync,
    filing.ls,
    filing.rm,
    filing.mv,
    filing.usage,
    unfinished.uploads,
    unfinished.cancel,
    login.login,
    man,
):
    main.add_command(command)

if "_UPLOADER_COMPLETE" in os.environ:
    from uploader.cli import completing  # noqa: F401  (it registers itself)
