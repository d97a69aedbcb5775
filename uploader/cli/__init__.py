"""The command line: commands for operators of a server, commands for users, and shared parts. Decides nothing about uploads:
a command calls a service or a client, and prints the result.
"""

import atexit
import gc
import io
import os
import sys
from functools import partial
from importlib import import_module
from typing import Any

import click

from uploader import __version__
from uploader.cli.terminal import guard_traces, shown_usage


class Later(click.Command):
    """A command whose module is imported when the command is called, not when commands are listed."""

    def __init__(self, name: str, module: str, begin: str) -> None:
        """`begin`: the first sentence of the help, for lists of commands."""
        super().__init__(name, help=begin)
        self.module = module

    def load(self) -> click.Command:
        command: click.Command = getattr(import_module(f"uploader.cli.{self.module}"), str(self.name).replace("-", "_"))
        if is_of_server(self) and self.name not in _NEVER_WAITING:
            from uploader.cli.server.services import let_wait

            let_wait(command)
        return command


class Loading(click.Group):
    """A group whose `Later` commands are imported when they are called."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, Later) else command, rest


class Commands(Loading):
    """Lists the commands for users apart from the commands for operators."""

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        with shown_usage():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with shown_usage():
            return super().invoke(ctx)

    def main(self, *args: Any, **options: Any) -> Any:
        """Run without click's expansion of patterns on Windows, which would also expand patterns of names on the server."""
        return super().main(*args, **{"windows_expand_args": False, **options})

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
    """Import and return all commands of a group."""
    return {name: each.load() if isinstance(each, Later) else each for name, each in group.commands.items()}


def is_of_server(command: click.Command) -> bool:
    return isinstance(command, Later) and command.module.startswith("server.")


# Thresholds of the garbage collector.
_COLLECTED = (10_000, 20, 50)
# These commands wait without a limit, need no store, or report the stores that are away.
_NEVER_WAITING = ("serve", "work", "config", "doctor", "restore-backup")
_COMMANDS = (
    Later("serve", "server.serve", "Run the server, and the background jobs with it."),
    Later("work", "server.serve", "Run the background jobs only."),
    Later("config", "server.maintenance", "Print the settings in force, secrets masked."),
    Later("doctor", "server.maintenance", "Say what is wrong with an installation."),
    Later("db", "server.maintenance", "Migrate the database."),
    Later("redis", "server.maintenance", "Reset Redis, the accounting store."),
    Later("installation", "server.maintenance", "Show the ids of store, database and Redis."),
    Later("adopt", "server.maintenance", "Give store, database and Redis one installation id."),
    Later("cleanup", "server.maintenance", "Free the space of idle uploads and of crashes."),
    Later("reset-unfinished", "server.maintenance", "Cancel every open upload of every user."),
    Later("reconcile", "server.maintenance", "Recount all figures, and print those that drifted."),
    Later("report", "server.reports", "Report totals, growth, the largest users, idle uploads."),
    Later("queue", "server.reports", "Show uploads that wait, by minute; show and do tasks."),
    Later("audit", "server.reports", "Print who did what to whom, newest first."),
    Later("scrub", "server.maintenance", "Read all stored contents again, and report damaged ones."),
    Later("backup", "server.backup", "Back up database and contents into DIRECTORY."),
    Later(
        "restore-backup",
        "server.backup",
        "Restore an installation from a backup in DIRECTORY, or its database from the last copy.",
    ),
    Later("store-trash", "server.maintenance", "List, restore or remove deleted contents."),
    Later("events", "server.events", "Show, replay and test events."),
    Later("token", "server.accounts", "Make, list and revoke tokens."),
    Later("user", "server.accounts", "Set quotas and administrators."),
    Later("put", "client.put", "Upload files, directories or standard input (-)."),
    Later("get", "client.get", "Download files and folders."),
    Later("sync", "client.sync", "Bring a folder up to date with another one."),
    Later("ls", "client.files", "List files: id, date, size, name."),
    Later("rm", "client.files", "Delete files and folders."),
    Later("mkdir", "client.folders", "Make empty folders on the server, and those that they lie in."),
    Later("mv", "client.files", "Rename or move a file or a folder."),
    Later("trash", "client.files", "List deleted files, or remove them for good."),
    Later("restore", "client.files", "Restore deleted files."),
    Later("usage", "client.files", "Show used and free space."),
    Later(
        "uploads",
        "client.files",
        "List your open uploads.",
    ),
    Later("cancel", "client.files", "Cancel open uploads."),
    Later("share", "client.links", "Make a link to a file or a folder."),
    Later("links", "client.links", "List your links, newest first."),
    Later("unshare", "client.links", "End links, and what runs by them."),
    Later("login", "client.connection", "Try a server's URL and your token, and keep them."),
    Later("man", "shell", "Write the manual pages into a directory."),
)


@click.group(
    cls=Commands, commands=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="uploader")
@click.pass_context
def main(context: click.Context) -> None:
    """A resumable chunked-upload server, and its client.

    Commands that upload talk to the server of `uploader login`, or of UPLOADER_URL and UPLOADER_TOKEN. Commands that run a
    server take their settings from UPLOADER_* environment variables: `uploader config` prints them, docs/configuration.md
    explains them. They can run while a server runs on the same data directory. They wait `--wait SECONDS`, 30 by default,
    for what is away.

    \b
    Exit codes of the server: 0 ok, 1 failed, 2 bad usage or configuration.
    Exit codes of the client: 0 ok, 2 bad usage, 3 authentication, 4 quota,
    5 try again, 6 failed, 130 interrupted.
    """
    if sys.platform == "win32":  # by default it would use a local code page for files and pipes
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(encoding="utf-8")
    guard_traces()
    # The process ends anyway; a last garbage collection would cost more than a small upload.
    atexit.register(gc.freeze)
    if is_of_server(main.commands[context.invoked_subcommand or ""]):
        # Files of the command, of Valkey and of SQLite are readable only for this account.
        context.call_on_close(partial(os.umask, os.umask(0o077)))
    else:
        # With thousands of files, frequent collections cost much and free nothing: the command keeps all objects.
        gc.set_threshold(*_COLLECTED)


if "_UPLOADER_COMPLETE" in os.environ:
    from uploader.cli import shell  # noqa: F401  (it registers itself)
