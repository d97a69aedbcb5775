"""What goes over the wire under `/admin` beside the figures of reports. `as_of` is the moment that the figures are of."""

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from uploader.domain.audit_log import Act
from uploader.domain.reports import Usage, UserReport
from uploader.domain.upload import File
from uploader.http.shared.schemas import Size
from uploader.service.access import Token
from uploader.service.events import SinkFigures
from uploader.service.reconcile import Drift, Findings
from uploader.service.reports import HistoryDay, UserUsage, user_of

# Requests


class SetTotalSpace(Struct, forbid_unknown_fields=True):
    """A user's quota."""

    total_space: Size


class MakeToken(Struct, forbid_unknown_fields=True):
    """What a token may do, and the quota of a user who is made by this. `scope`: all that it is good for."""

    admin: bool = False
    scope: Literal["metrics"] | UnsetType = UNSET
    total_space: Size | UnsetType = UNSET


class Recount(Struct, forbid_unknown_fields=True):
    """What to recount: everything, or one user."""

    user_id: Annotated[str, Meta(min_length=1, max_length=255)] | UnsetType = UNSET


class Replay(Struct, forbid_unknown_fields=True):
    """Whom to tell once more: every sink, or one."""

    sink: Annotated[str, Meta(min_length=1, max_length=64)] | UnsetType = UNSET


# Answers


class UserUsageList(Struct):
    """A page of users; `next` is the cursor of the following one."""

    users: list[UserUsage]
    next: str | None
    as_of: datetime


class UserDetail(UserUsage, kw_only=True):
    """One user; `available` is what they may still open."""

    available: int
    as_of: datetime


class UserFile(Struct):
    """Somebody's file. Without its digests: with them an administrator could ask for the content by instant upload."""

    id: str
    name: str
    size: int
    created_at: datetime
    modified_at: datetime | None
    instant: bool


class UserFiles(Struct):
    """A page of a user's files; `next` is the cursor of the following one."""

    files: list[UserFile]
    next: str | None
    as_of: datetime


class UserAccount(Struct):
    """A user's accounts after a change, in bytes."""

    user_id: str
    total_space: int
    use_space_finished: int
    use_space_unfinished: int
    reserved: int


class TokenSchema(Struct):
    """A token, which itself is nowhere; `id` names it. `scope`: all that it is good for; null: whatever its user may do.
    `made_by`: how it was made and by whom; null where that is not known."""

    id: str
    admin: bool
    created_at: datetime
    revoked_at: datetime | None
    scope: str | None
    made_by: str | None


class TokenList(Struct):
    """A user's tokens, the newest first."""

    tokens: list[TokenSchema]


class NewToken(TokenSchema, kw_only=True):
    """A token that was just made. `token` is told this once."""

    user_id: str
    token: str


class History(Struct):
    """One row a day, in order. Days on which nothing ran have none."""

    days: list[HistoryDay]
    as_of: datetime


class SinkList(Struct):
    """All sinks of events, and the names that are none any more and of which some still wait or are dead."""

    sinks: list[SinkFigures]
    as_of: datetime


class Replayed(Struct):
    """How many deliveries are due again."""

    deliveries: int


class ActList(Struct):
    """A page of the trail, the newest first; `next` is the cursor of the following one."""

    acts: list[Act]
    next: str | None
    as_of: datetime


class DriftSchema(Struct):
    """A figure that is not what its definition makes it; null where there is nothing."""

    kind: str
    subject: str
    expected: int | str | None
    actual: int | str | None


class Recounted(Struct):
    """What a recount found. `notes` are no drifts: users that hold more than an administrator has left them."""

    checked: dict[str, int]
    drifts: list[DriftSchema]
    notes: list[DriftSchema]
    as_of: datetime


# From the service's words to the wire's


def detail_of(report: UserReport, as_of: datetime) -> UserDetail:
    return UserDetail(**msgspec.structs.asdict(user_of(report)), available=report.usage.available, as_of=as_of)


def account_of(usage: Usage) -> UserAccount:
    return UserAccount(**{name: getattr(usage, name) for name in UserAccount.__struct_fields__})


def file_of(file: File) -> UserFile:
    return UserFile(file.id, file.name, file.size, file.created_at, file.modified_at, file.instant)


def token_of(token: Token) -> TokenSchema:
    return TokenSchema(token.token_id, token.admin, token.created_at, token.revoked_at, token.scope, token.made_by)


def new_token_of(token: Token, secret: str) -> NewToken:
    return NewToken(**msgspec.structs.asdict(token_of(token)), user_id=token.user_id, token=secret)


def recounted_of(found: Findings, as_of: datetime) -> Recounted:
    return Recounted(found.checked, list(map(_drift_of, found.drifts)), list(map(_drift_of, found.notes)), as_of)


def _drift_of(drift: Drift) -> DriftSchema:
    return DriftSchema(drift.kind.value, drift.subject, drift.expected, drift.actual)
