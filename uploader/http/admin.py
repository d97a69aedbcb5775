"""`/admin`, for administrators: reports, quotas, everybody's uploads and tokens, the sinks of events, the audit log. In
answers, `as_of` is the time of the figures.
"""

import logging
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import Response, StreamingResponse

from uploader.domain.audit_log import Act, Action
from uploader.domain.names import MAX_USER_ID_BYTES, check_user_id
from uploader.domain.reports import UPLOAD_SORTS, USER_SORTS
from uploader.errors import InvalidRequest, NotFound, TokensUnused
from uploader.http.shared.operation import (
    AFTER,
    LIMIT,
    PREFIX,
    Call,
    Operation,
    Parameter,
    Size,
    Time,
    or_none,
    whole_number,
)
from uploader.http.shared.responses import Json
from uploader.runtime.clock import Clock
from uploader.service.access import Accounts, Token, new_token
from uploader.service.audit_log import AuditLogReports, Wanted
from uploader.service.costs import CostReport, Costs
from uploader.service.events import Reviewing, SinkFigures, Watching
from uploader.service.files import Files
from uploader.service.reconcile import Recounting
from uploader.service.reports import (
    HistoryDay,
    Idle,
    OpenUploadList,
    OpenUploadReport,
    Order,
    Overview,
    QueueReport,
    Queues,
    Reports,
    Summary,
    UserUsage,
    csv_lines,
    user_of,
)
from uploader.service.status import Uploads
from uploader.units import parse_moment

logger = logging.getLogger(__name__)

_MAX_IDLE_SECONDS = 100 * 365 * 86400

_admin = partial(Operation, tag="administration", access="admin")


def _one_of(name: str, words: Iterable[str], about: str, **more: str) -> Parameter:
    return Parameter(name, about, {"type": "string", "enum": list(words), **more})


_ORDER = _one_of("order", ("asc", "desc"), "Ascending or descending.")
_FORMAT = _one_of("format", ("json", "csv"), "`csv` streams the whole list.")
_DAYS = whole_number("days", 1, 3660, 30, "How many days back, today included.")
_IDLE_FOR = whole_number(
    "idle_for", 0, _MAX_IDLE_SECONDS, 0, "Only those that nothing was accounted for so many seconds."
)
_IF_IDLE_FOR = replace(_IDLE_FOR, about="Only if nothing arrived for so many seconds.")
_MAX_REASON_LENGTH = 500
_REASON = Parameter("reason", "Why, for the audit log.", {"type": "string", "maxLength": _MAX_REASON_LENGTH})
_OF_UPLOAD = Parameter("upload_id", "Only that of this upload.")
_OF_USER = Parameter("user_id", "Only those of this user.")
_USAGE_PARAMETERS = (
    _one_of("sort", USER_SORTS, "The column.", default="use_space_finished"),
    _ORDER,
    Parameter("q", "Only users whose id contains this."),
    *(_FORMAT, LIMIT, AFTER),
)
_UPLOADS_PARAMETERS = (
    _IDLE_FOR,
    _OF_USER,
    _one_of("sort", UPLOAD_SORTS, "The column.", default="updated_at"),
    *(_ORDER, _FORMAT, LIMIT, AFTER),
)
_MOMENT = {"type": "string", "format": "date-time"}
_AUDIT_PARAMETERS = (
    Parameter("since", "Only what was done from then on.", _MOMENT),
    Parameter("until", "Only what was done before.", _MOMENT),
    Parameter("user_id", "Only entries by or about this user."),
    _one_of("action", Action, "Only entries of this action."),
    *(_FORMAT, LIMIT, AFTER),
)


class ChangeUser(Struct, forbid_unknown_fields=True):
    """A user's quota, and whether the user is an administrator."""

    total_space: Size | UnsetType = UNSET
    admin: bool | UnsetType = UNSET


class MakeToken(Struct, forbid_unknown_fields=True):
    """A token to make. `scope` limits the token to one purpose; `total_space` is the quota if the user is new."""

    admin: bool = False
    scope: (
        Annotated[str, Meta(pattern="^(metrics|queue:[A-Za-z0-9][A-Za-z0-9._-]{0,47})$", max_length=54)] | UnsetType
    ) = UNSET
    total_space: Size | UnsetType = UNSET


class Recount(Struct, forbid_unknown_fields=True):
    """The scope of a recount: everything, or one user."""

    user_id: Annotated[str, Meta(min_length=1, max_length=MAX_USER_ID_BYTES)] | UnsetType = UNSET


class Replay(Struct, forbid_unknown_fields=True):
    """Send dead events once more, to every sink or to one."""

    sink: Annotated[str, Meta(min_length=1, max_length=64)] | UnsetType = UNSET


class UserUsageList(Struct):
    """A page of users; `next` is the cursor of the following one."""

    users: list[UserUsage]
    next: str | None
    as_of: Time


class UserDetail(UserUsage, kw_only=True):
    """A user. `available` is the space for new uploads."""

    available: int
    as_of: Time


class UserFile(Struct):
    """A file of a user. The digests are left out, because an administrator could use them to get the content by an instant
    upload."""

    id: str
    name: str
    size: int
    created_at: Time
    modified_at: Time | None
    instant: bool


class UserFiles(Struct):
    """A page of a user's files; `next` is the cursor of the following one."""

    files: list[UserFile]
    next: str | None
    as_of: Time


class UserAccount(Struct):
    """A user's account after a change, in bytes."""

    user_id: str
    total_space: int
    use_space_finished: int
    use_space_unfinished: int
    reserved: int


class TokenSchema(Struct):
    """A token, without its secret. `scope` is its only purpose; null: everything that its user may do. `made_by` says how
    and by whom the token was made; null if unknown."""

    id: str
    admin: bool
    created_at: Time
    revoked_at: Time | None
    scope: str | None
    made_by: str | None


class TokenList(Struct):
    """The tokens of a user, newest first."""

    tokens: list[TokenSchema]


class NewToken(TokenSchema, kw_only=True):
    """A new token. No later answer shows `token` again."""

    user_id: str
    token: str


class History(Struct):
    """One row per day, in order. Days without a running server are missing."""

    days: list[HistoryDay]
    as_of: Time


class SinkList(Struct):
    """All sinks of events, and former sinks with waiting or dead deliveries."""

    sinks: list[SinkFigures]
    as_of: Time


class Replayed(Struct):
    """The number of deliveries that are due again."""

    deliveries: int


class ActList(Struct):
    """A page of the audit log, the newest first; `next` is the cursor of the following one."""

    acts: list[Act]
    next: str | None
    as_of: Time


class DriftSchema(Struct):
    """A figure that differs from its recount. `expected` or `actual` is null if there is no value."""

    kind: str
    subject: str
    expected: int | str | None
    actual: int | str | None


class Recounted(Struct):
    """The result of a recount. `notes` are not errors: they name users who hold more than their quota, after it was
    lowered."""

    checked: dict[str, int]
    drifts: list[DriftSchema]
    notes: list[DriftSchema]
    as_of: Time


def token_of(token: Token) -> TokenSchema:
    return TokenSchema(token.token_id, token.admin, token.created_at, token.revoked_at, token.scope, token.made_by)


@dataclass(frozen=True, slots=True)
class AdminHandlers:
    files: Files
    reports: Reports
    overview: Overview
    recounting: Recounting
    accounts: Accounts
    uploads: Uploads
    queues: Queues
    costs: Costs
    clock: Clock

    # Reports

    @_admin(
        "GET /admin/usage",
        "Who uses how much",
        responses={200: UserUsageList},
        media_types=("text/csv",),
        parameters=_USAGE_PARAMETERS,
    )
    async def usage(self, call: Call) -> Response:
        order = _order(call, USER_SORTS, "use_space_finished", ascending="user_id")
        containing, limit = call.query("q"), call.query_int(LIMIT)
        if wants_csv(call):
            users = self.reports.all_usage(order, containing=containing)
            return csv_stream("usage", UserUsage.__struct_fields__, users)
        as_of = self.clock.now()
        page, cursor = await self.reports.usage(order, limit=limit, after=call.query("after"), containing=containing)
        return Json(UserUsageList(page, cursor, as_of))

    @_admin("GET /admin/usage/summary", "What everything adds up to, and how fast it grows", responses={200: Summary})
    async def summary(self, _call: Call) -> Response:
        return Json(await self.overview.summary())

    @_admin("GET /admin/usage/history", "The totals of the last days", responses={200: History}, parameters=(_DAYS,))
    async def history(self, call: Call) -> Response:
        days = call.query_int(_DAYS)
        as_of = self.clock.now()
        return Json(History(await self.overview.history(days), as_of))

    @_admin(
        "POST /admin/usage/recount",
        "Recount the accounts from uploads and files; changes nothing",
        takes=Recount,
        takes_optional=True,
        responses={200: Recounted},
        problems=("not-found",),
    )
    async def recount(self, call: Call) -> Response:
        body = await call.json(Recount, optional=True)
        user_id = None if body.user_id is UNSET else checked_user_id(body.user_id)
        as_of = self.clock.now()
        found = await self.recounting.recount(user_id)
        if user_id is not None and not found.checked["users"] and not found.drifts:
            raise NotFound("There is no such user.")
        drifts, notes = (
            [DriftSchema(drift.kind.value, drift.subject, drift.expected, drift.actual) for drift in some]
            for some in (found.drifts, found.notes)
        )
        return Json(Recounted(found.checked, drifts, notes, as_of))

    @_admin(
        "GET /admin/queue",
        "What waits to be accounted or merged, by minute",
        responses={200: QueueReport},
        problems=("not-found", "upload-not-found"),
        parameters=(_OF_USER, _OF_UPLOAD),
    )
    async def queue(self, call: Call) -> Response:
        user_id, upload_id = call.query("user_id"), call.query("upload_id")
        return Json(await self.queues.report(user_id=user_id and checked_user_id(user_id), upload_id=upload_id))

    @_admin(
        "GET /admin/cost",
        "The users whose requests cost most of late",
        responses={200: CostReport},
        parameters=(LIMIT,),
    )
    async def cost(self, call: Call) -> Response:
        return Json(await self.costs.report(call.query_int(LIMIT)))

    # Users

    @_admin(
        "GET /admin/users/{user_id}",
        "One user's accounts",
        responses={200: UserDetail},
        problems=("not-found", "invalid-request"),
    )
    async def user(self, call: Call) -> Response:
        as_of = self.clock.now()
        report = await self.reports.user(user_in(call))
        usage = msgspec.structs.asdict(user_of(report))
        return Json(UserDetail(**usage, available=report.usage.available, as_of=as_of))

    @_admin(
        "GET /admin/users/{user_id}/files",
        "One user's files, newest first",
        responses={200: UserFiles},
        problems=("not-found",),
        parameters=(LIMIT, AFTER, PREFIX),
    )
    async def user_files(self, call: Call) -> Response:
        user_id, limit = user_in(call), call.query_int(LIMIT)
        as_of = self.clock.now()
        files, cursor = await self.reports.files_of(
            user_id, limit=limit, after=call.query("after"), prefix=call.query("prefix")
        )
        return Json(UserFiles(msgspec.convert(files, list[UserFile], from_attributes=True), cursor, as_of))

    @_admin(
        "PUT /admin/users/{user_id}",
        "Change a user: the quota, and whether the user is an administrator; make a missing user",
        takes=ChangeUser,
        responses={200: UserAccount},
        problems=("last-administrator",),
    )
    async def change_user(self, call: Call) -> Response:
        user_id, body = user_in(call), await call.json(ChangeUser)
        usage = await self.accounts.change_user(
            user_id, total_space=or_none(body.total_space), admin=or_none(body.admin)
        )
        return Json(msgspec.convert(usage, UserAccount, from_attributes=True))

    @_admin(
        "DELETE /admin/files/{id}",
        "Delete a file of anybody, into the trash of its owner",
        responses={204: None},
        problems=("file-not-found", "invalid-request"),
        parameters=(_REASON,),
    )
    async def delete_file(self, call: Call) -> None:
        reason = call.query("reason")
        if reason is not None and len(reason) > _MAX_REASON_LENGTH:
            raise InvalidRequest.field("reason", f"is longer than {_MAX_REASON_LENGTH} characters")
        await self.files.delete_any(call.in_path("id"), reason)

    # Open uploads

    @_admin(
        "GET /admin/uploads",
        "Open uploads of everybody, and what they would give back",
        responses={200: OpenUploadList},
        media_types=("text/csv",),
        parameters=_UPLOADS_PARAMETERS,
    )
    async def open_uploads(self, call: Call) -> Response:
        order = _order(call, UPLOAD_SORTS, "updated_at", ascending="updated_at")
        user_id, limit = call.query("user_id"), call.query_int(LIMIT)
        idle = Idle(seconds=call.query_int(_IDLE_FOR), user_id=user_id and checked_user_id(user_id))
        if wants_csv(call):
            return csv_stream("uploads", OpenUploadReport.__struct_fields__, self.reports.all_uploads(order, idle))
        as_of = self.clock.now()
        page, cursor, total = await self.reports.uploads(order, idle, limit=limit, after=call.query("after"))
        return Json(OpenUploadList(page, cursor, total, as_of))

    @_admin(
        "DELETE /admin/uploads/{upload_id}",
        "Expire an open upload of anybody",
        responses={204: None},
        problems=("upload-not-found", "upload-gone", "upload-active"),
        parameters=(_IF_IDLE_FOR,),
    )
    async def expire_upload(self, call: Call) -> None:
        await self.uploads.expire(call.in_path("upload_id"), call.query_int(_IF_IDLE_FOR))


def _order(call: Call, sorts: tuple[str, ...], default: str, *, ascending: str) -> Order:
    """Return the requested order. Columns sort from the largest by default, `ascending` from the smallest. Raises
    InvalidRequest."""
    sort = call.query_word("sort", default, sorts)
    default_order = "asc" if sort == ascending else "desc"
    return Order(sort=sort, descending=call.query_word("order", default_order, ("asc", "desc")) == "desc")


def wants_csv(call: Call) -> bool:
    form = call.query_word("format", "", ("csv", "json"))
    return form == "csv" or (not form and "text/csv" in call.request.headers.get("accept", ""))


def user_in(call: Call) -> str:
    return checked_user_id(call.in_path("user_id"))


def checked_user_id(text: str) -> str:
    """Raises InvalidRequest."""
    try:
        return check_user_id(text)
    except ValueError as error:
        raise InvalidRequest.field("user_id", str(error)) from error


def csv_stream(name: str, columns: Sequence[str], batches: AsyncIterable[list[Any]]) -> StreamingResponse:
    """Stream the fields `columns` as a CSV download, with one batch in memory at a time."""

    async def lines() -> AsyncIterator[str]:
        yield csv_lines([columns])
        async for batch in batches:
            yield csv_lines([getattr(row, column) for column in columns] for row in batch)

    headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
    return StreamingResponse(lines(), 200, headers, "text/csv")


@dataclass(frozen=True, slots=True)
class TokenHandlers:
    accounts: Accounts
    auth: str

    @Operation(
        "GET /me/tokens",
        "Your tokens, newest first, revoked ones too, and who made them",
        tag="files",
        responses={200: TokenList},
        problems=("tokens-unused",),
    )
    async def own(self, call: Call) -> Response:
        self._check_used()
        return Json(TokenList([token_of(token) for token in await self.accounts.tokens_of(call.user_id)]))

    @_admin(
        "GET /admin/users/{user_id}/tokens",
        "One user's tokens, newest first, revoked ones too",
        responses={200: TokenList},
        problems=("not-found", "tokens-unused", "invalid-request"),
    )
    async def tokens(self, call: Call) -> Response:
        self._check_used()
        return Json(TokenList([token_of(token) for token in await self.accounts.tokens_of(user_in(call))]))

    @_admin(
        "POST /admin/users/{user_id}/tokens",
        "Make a token, and the user if need be; the answer alone shows it",
        takes=MakeToken,
        takes_optional=True,
        responses={201: NewToken},
        problems=("tokens-unused",),
    )
    async def make(self, call: Call) -> Response:
        self._check_used()
        user_id = user_in(call)
        body = await call.json(MakeToken, optional=True)
        secret = new_token()
        made = await self.accounts.add_token(
            secret, user_id, admin=body.admin, total_space=or_none(body.total_space), scope=or_none(body.scope)
        )
        logger.info("token made", extra={"token_id": made.token_id, "of": user_id, "admin": made.admin})
        told = msgspec.structs.asdict(token_of(made))
        return Json(NewToken(**told, user_id=user_id, token=secret), 201)

    @_admin(
        "DELETE /admin/tokens/{token_id}",
        "Revoke a token, but not the one that you call with",
        responses={204: None},
        problems=("not-found", "token-in-use", "last-administrator", "tokens-unused"),
    )
    async def revoke(self, call: Call) -> None:
        self._check_used()
        token_id = call.in_path("token_id")
        await self.accounts.revoke_for(call.identity, token_id)
        logger.info("token revoked", extra={"token_id": token_id})

    def _check_used(self) -> None:
        if self.auth != "token":
            raise TokensUnused()


@dataclass(frozen=True, slots=True)
class EventHandlers:
    watching: Watching
    reviewing: Reviewing
    clock: Clock

    @_admin("GET /admin/events", "How far the sinks of events are", responses={200: SinkList})
    async def sinks(self, _call: Call) -> Response:
        as_of = self.clock.now()
        return Json(SinkList(await self.watching.sinks(), as_of))

    @_admin(
        "POST /admin/events/replay",
        "Tell sinks once more of the events that they have not taken in all attempts",
        takes=Replay,
        takes_optional=True,
        responses={200: Replayed},
        problems=("not-found",),
    )
    async def replay(self, call: Call) -> Response:
        body = await call.json(Replay, optional=True)
        sink = None if body.sink is UNSET else body.sink
        count = await self.reviewing.replay(sink=sink, event_id=None, since=None, dead=True)
        logger.info("dead events are told once more", extra={"sink": sink, "deliveries": count})
        return Json(Replayed(count))


@dataclass(frozen=True, slots=True)
class AuditLogHandlers:
    audit_log: AuditLogReports
    clock: Clock

    @_admin(
        "GET /admin/audit",
        "Who did what to whom, the newest first",
        responses={200: ActList},
        media_types=("text/csv",),
        parameters=_AUDIT_PARAMETERS,
    )
    async def acts(self, call: Call) -> Response:
        user_id, limit = call.query("user_id"), call.query_int(LIMIT)
        wanted = Wanted(
            since=_moment(call, "since"),
            until=_moment(call, "until"),
            user_id=user_id and checked_user_id(user_id),
            action=call.query_word("action", "", tuple(Action)) or None,
        )
        if wants_csv(call):
            return csv_stream("audit", tuple(Act.__dataclass_fields__), self.audit_log.all(wanted))
        as_of = self.clock.now()
        page, cursor = await self.audit_log.page(wanted, limit=limit, after=call.query("after"))
        return Json(ActList(page, cursor, as_of))


def _moment(call: Call, name: str) -> datetime | None:
    """Parse a time, in UTC unless a zone is given. Raises InvalidRequest."""
    text = call.query(name)
    if text is None:
        return None
    try:
        return parse_moment(text)
    except ValueError as error:
        raise InvalidRequest.field(name, "is not a time such as 2026-11-22T13:00:00Z") from error
