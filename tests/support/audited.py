"""What the audit log has to say of each command of those who run a server: a command that is new has to be here."""

from collections.abc import Iterator

import click

from uploader.cli import commands_of, main
from uploader.domain.audit_log import Action

# None: it changes nothing that the audit log tells of.
COMMANDS: dict[str, Action | None] = {
    "serve": None,
    "work": None,
    "config": None,
    "doctor": None,
    "db upgrade": None,
    "redis reset": Action.REDIS_RESET,
    "installation": None,
    "adopt": Action.INSTALLATION_ADOPTED,
    "cleanup": Action.UPLOAD_EXPIRED,
    "reset-unfinished": Action.UPLOAD_CANCELLED,
    "reconcile": Action.USER_REPAIRED,
    "backup": Action.BACKUP_MADE,
    "restore-backup": Action.INSTALLATION_RESTORED,
    "report": None,
    "queue": None,
    "queue tasks": None,
    "queue replay": Action.EVENTS_REPLAYED,
    "audit": None,
    "scrub": Action.CONTENT_HEALED,
    "store-trash list": None,
    "store-trash restore": Action.CONTENT_HEALED,
    "store-trash empty": Action.TRASH_EMPTIED,
    "events list": None,
    "events show": None,
    "events replay": Action.EVENTS_REPLAYED,
    "events test": Action.SINK_ENABLED,
    "token create": Action.TOKEN_CREATED,
    "token list": None,
    "token revoke": Action.TOKEN_REVOKED,
    "user set-quota": Action.QUOTA_CHANGED,
    "user set-admin": Action.ADMIN_CHANGED,
}


def server_commands(group: click.Group = main, prefix: str = "") -> Iterator[str]:
    """All that there are, in words."""
    for name, command in commands_of(group).items():
        words = f"{prefix}{name}"
        if isinstance(command, click.Group):
            yield from server_commands(command, f"{words} ")
        if isinstance(command, click.Group) and not command.invoke_without_command:
            continue
        if command.callback is not None and command.callback.__module__.startswith("uploader.cli.server."):
            yield words
