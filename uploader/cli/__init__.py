"""The command line: commands for those who run the server, commands for those who upload, and what both need.

Refuses to decide anything about uploads: a command asks a service or a client, and prints.
"""

import atexit
import gc
import os
import sys
from functools import partial
from importlib import import_module

import click

from uploader import __version__


class Later(click.Command):
    """A command of a module that is imported when the command is called, and not to list it."""

    def __init__(self, name: str, module: str, begin: str) -> None:
        """`begin`: of its help, as lists of commands show it."""
        super().__init__(name, help=begin)
        self.module = module

    def load(self) -> click.Command:
        command: click.Command = getattr(import_module(f"uploader.cli.{self.module}"), str(self.name).replace("-", "_"))
        return command


class Commands(click.Group):
    """The commands in two lists: a user who uploads need not know those of the server."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if sys.platform == "win32":  # before a module is imported that needs more of POSIX
            from uploader.cli.terminal import EXIT_CONFIGURATION, fail

            fail("this needs Linux or macOS; on Windows it runs in WSL: wsl --install", EXIT_CONFIGURATION)
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, Later) else command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        limit = formatter.width - 6 - max(map(len, self.commands))
        for title, of_server in (("Commands of those who upload", False), ("Commands of those who run a server", True)):
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (name, each.get_short_help_str(limit))
                        for name, each in self.commands.items()
                        if is_of_server(each) is of_server
                    ]
                )


def commands_of(group: click.Group) -> dict[str, click.Command]:
    """All of them, imported."""
    return {name: each.load() if isinstance(each, Later) else each for name, each in group.commands.items()}


def is_of_server(command: click.Command) -> bool:
    return isinstance(command, Later) and command.module.startswith("server.")


_COMMANDS = (
    Later("serve", "server.serve", "Run the server, and the background jobs with it."),
    Later("work", "server.serve", "Run the background jobs only."),
    Later("config", "server.maintenance", "Print the settings in force, secrets masked."),
    Later(
        "doctor",
        "server.maintenance",
        "Look at an installation, and say what is wrong and what to do, the worst first.",
    ),
    Later("db", "server.maintenance", "The database."),
    Later("redis", "server.maintenance", "Redis, the accounting store."),
    Later("installation", "server.maintenance", "Show the ids of store, database and Redis."),
    Later("adopt", "server.maintenance", "Let store, database and Redis belong together."),
    Later("cleanup", "server.maintenance", "Give back what idle uploads and crashes left."),
    Later("reset-unfinished", "server.maintenance", "Cancel every open upload of every user."),
    Later("reconcile", "server.maintenance", "Recount every figure, and print each that drifted."),
    Later("report", "server.reports", "Report totals, growth, the largest users, idle uploads."),
    Later("queue", "server.reports", "Show what waits to be accounted or merged, by minute."),
    Later("audit", "server.reports", "Print who did what to whom, the newest first."),
    Later("scrub", "server.maintenance", "Read all stored content again, and report what rotted."),
    Later("backup", "server.backup", "Back up the database, and the blobs that it names, into DIRECTORY."),
    Later("restore", "server.backup", "Make an installation of a backup in DIRECTORY."),
    Later("trash", "server.maintenance", "List, restore or remove deleted content."),
    Later("events", "server.events", "Show and replay events: see UPLOADER_EVENTS and docs/events.md."),
    Later("token", "server.accounts", "Tokens of users."),
    Later("user", "server.accounts", "Users and their quotas."),
    Later(
        "put",
        "client.put",
        "Upload files, and directories with all regular files in them; or standard input, as `-`, with",
    ),
    Later("get", "client.get", "Download files, folders with all that is in them, and what patterns match."),
    Later(
        "sync", "client.sync", "Make the contents of a folder those of another one: of one here and one on the server."
    ),
    Later("ls", "client.files", "List files: id, when they were made, size, name."),
    Later("rm", "client.files", "Delete files, what patterns match, and with -r folders."),
    Later("mv", "client.files", "Rename or move a file or a folder."),
    Later("usage", "client.files", "Show how much space is used, and how much is left."),
    Later("uploads", "client.files", "List your open uploads, also of other devices."),
    Later("cancel", "client.files", "Cancel open uploads."),
    Later("login", "client.connection", "Keep a server's URL and your token, after trying them."),
    Later("man", "shell", "Write the manual pages into a directory."),
)


@click.group(
    cls=Commands, commands=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="uploader")
@click.pass_context
def main(context: click.Context) -> None:
    """A resumable chunked-upload server, and its client.

    Those who upload talk to a server that runs anywhere: the one that `uploader login` keeps, or UPLOADER_URL and
    UPLOADER_TOKEN. Those who run a server set it up by UPLOADER_* environment variables: `uploader config` shows what is in
    force, docs/configuration.md explains each. Their commands can run while a server runs on the same data directory.

    \b
    Exit codes of the server: 0 ok, 1 failed, 2 bad usage or configuration.
    Exit codes of the client: 0 ok, 2 bad usage, 3 authentication, 4 quota,
    5 try again, 6 failed, 130 interrupted.
    """
    # The process gives all back at its end: to look through it for cycles before would cost more than a small upload.
    atexit.register(gc.freeze)
    if is_of_server(main.commands[context.invoked_subcommand or ""]):
        # Whatever they make, and what Valkey and SQLite make for them, is nobody else's to read.
        context.call_on_close(partial(os.umask, os.umask(0o077)))


if "_UPLOADER_COMPLETE" in os.environ:
    from uploader.cli import shell  # noqa: F401  (it registers itself)
