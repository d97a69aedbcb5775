"""An act is what somebody did, one row of the audit log. It names tokens by their ids and never holds a secret."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class Action(StrEnum):
    USER_CREATED = "user.created"
    QUOTA_CHANGED = "quota.changed"
    # A user was made an administrator, or is none any more.
    ADMIN_CHANGED = "admin.changed"
    TOKEN_CREATED = "token.created"  # noqa: S105 (a word)
    TOKEN_REVOKED = "token.revoked"  # noqa: S105 (a word)
    LINK_CREATED = "link.created"
    LINK_CHANGED = "link.changed"
    LINK_REVOKED = "link.revoked"
    # By a job, an administrator or a command; what users do with their own uploads is not told.
    UPLOAD_EXPIRED = "upload.expired"
    UPLOAD_CANCELLED = "upload.cancelled"
    # By an administrator, into the trash of its owner.
    FILE_DELETED = "file.deleted"
    # What a gate refused, to go through it once more.
    FILE_RESTORED = "file.restored"
    # A drift that `reconcile --repair` mended.
    USER_REPAIRED = "user.repaired"
    LINK_REPAIRED = "link.repaired"
    UPLOAD_REPAIRED = "upload.repaired"
    CONTENT_REPAIRED = "content.repaired"
    QUEUE_REPAIRED = "queue.repaired"
    # Bytes from the trash took their place again.
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
    """The actor: the user of a request, the user of the operating system who runs a command, or a job by its name. Of a
    request also with which token, who made that, and from where; None where that is not known."""

    via: Via
    name: str | None
    token_id: str | None = None
    address: str | None = None
    token_made_by: str | None = None

    def __str__(self) -> str:
        """Name who acts, as the one who made something; a maker of things for others by requests is an administrator."""
        return f"{'administrator' if self.via is Via.REQUEST else self.via.value} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """A deed of somebody. `subject`: to what; `user_id`: whose that is."""

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
