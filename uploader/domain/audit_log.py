"""The acts in the audit log: one row for each action of somebody. An act names tokens by their ids and holds no
secret."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class Action(StrEnum):
    USER_CREATED = "user.created"
    QUOTA_CHANGED = "quota.changed"
    # A user became an administrator, or stopped being one.
    ADMIN_CHANGED = "admin.changed"
    TOKEN_CREATED = "token.created"  # noqa: S105 (a word)
    TOKEN_REVOKED = "token.revoked"  # noqa: S105 (a word)
    LINK_CREATED = "link.created"
    LINK_CHANGED = "link.changed"
    LINK_REVOKED = "link.revoked"
    # By a job, an administrator or a command. The audit log does not record what users do with their own uploads.
    UPLOAD_EXPIRED = "upload.expired"
    UPLOAD_CANCELLED = "upload.cancelled"
    # By an administrator, into the trash of its owner.
    FILE_DELETED = "file.deleted"
    # By an administrator, out of the trash of its owner.
    FILE_RESTORED = "file.restored"
    # `reconcile --repair` corrected a figure.
    USER_REPAIRED = "user.repaired"
    LINK_REPAIRED = "link.repaired"
    UPLOAD_REPAIRED = "upload.repaired"
    CONTENT_REPAIRED = "content.repaired"
    QUEUE_REPAIRED = "queue.repaired"
    # Bytes from the trash became the content again.
    CONTENT_HEALED = "content.healed"
    UPLOAD_RESTORED = "upload.restored"
    TRASH_EMPTIED = "trash.emptied"
    BACKUP_MADE = "backup.made"
    DISK_CLEANED = "disk.cleaned"
    REDIS_RESET = "redis.reset"
    INSTALLATION_ADOPTED = "installation.adopted"
    INSTALLATION_RESTORED = "installation.restored"
    EVENTS_REPLAYED = "events.replayed"
    SINK_ENABLED = "sink.enabled"


class Via(StrEnum):
    REQUEST = "request"
    COMMAND = "command"
    JOB = "job"


@dataclass(frozen=True, slots=True)
class Actor:
    """The actor of an act: the user of a request, the operating system's user who runs a command, or the name of a job.
    A request also has its token, the maker of the token, and the address; None: not known."""

    via: Via
    name: str | None
    token_id: str | None = None
    address: str | None = None
    token_made_by: str | None = None

    def __str__(self) -> str:
        """Return the name for "made by". Somebody who makes things for other users by a request is an administrator."""
        return f"{'administrator' if self.via is Via.REQUEST else self.via.value} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """An act. `subject`: the thing that was changed; `user_id`: the owner of that thing."""

    id: str
    created_at: datetime
    action: str
    via: str
    actor: str | None
    token_id: str | None
    token_made_by: str | None = None
    address: str | None
    user_id: str | None
    subject: str
    details: Mapping[str, Any]
