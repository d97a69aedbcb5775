"""The part of the route table that is for administrators."""

from typing import Any

from uploader.domain.reports import UPLOAD_SORTS, USER_SORTS
from uploader.http.admin import schemas as wire
from uploader.http.admin.events import EventHandlers
from uploader.http.admin.handlers import MAX_HISTORY_DAYS, MAX_IDLE_SECONDS, AdminHandlers
from uploader.http.admin.tokens import TokenHandlers
from uploader.http.admin.trail import ACTIONS, TrailHandlers
from uploader.http.shared.operation import AFTER, LIMIT, PREFIX, Operation, Parameter
from uploader.service.reports import OpenUploadList, QueueReport, Summary

_STRING = {"type": "string"}
_ORDER = Parameter(name="order", schema={"type": "string", "enum": ["asc", "desc"]}, about="Ascending or descending.")
_FORMAT = Parameter(
    name="format", schema={"type": "string", "enum": ["json", "csv"]}, about="`csv` streams the whole list."
)
_OF_USERS = Parameter(name="q", schema=_STRING, about="Only users whose id contains this.")
_OF_UPLOAD = Parameter(name="upload_id", schema=_STRING, about="Only that of this upload.")
_OF_USER = Parameter(name="user_id", schema=_STRING, about="Only those of this user.")


_MOMENT = {"type": "string", "format": "date-time"}
_AUDIT_PARAMETERS = (
    Parameter(name="since", schema=_MOMENT, about="Only what was done from then on."),
    Parameter(name="until", schema=_MOMENT, about="Only what was done before."),
    Parameter(name="user_id", schema=_STRING, about="Only what this user did, and what was done to them."),
    Parameter(name="action", schema={"type": "string", "enum": list(ACTIONS)}, about="Only this."),
    _FORMAT,
    LIMIT,
    AFTER,
)


def _sort(words: tuple[str, ...], default: str) -> Parameter:
    schema = {"type": "string", "enum": list(words), "default": default}
    return Parameter(name="sort", schema=schema, about="The column.")


def _whole(name: str, minimum: int, maximum: int, default: int, about: str) -> Parameter:
    schema = {"type": "integer", "minimum": minimum, "maximum": maximum, "default": default}
    return Parameter(name=name, schema=schema, about=about)


_USAGE_PARAMETERS = (_sort(USER_SORTS, "use_space_finished"), _ORDER, _OF_USERS, _FORMAT, LIMIT, AFTER)
_IDLE_FOR = _whole("idle_for", 0, MAX_IDLE_SECONDS, 0, "Only those that nothing was accounted for so many seconds.")
_UPLOADS_PARAMETERS = (_IDLE_FOR, _OF_USER, _sort(UPLOAD_SORTS, "updated_at"), _ORDER, _FORMAT, LIMIT, AFTER)


def admin_operations(
    handlers: AdminHandlers, tokens: TokenHandlers, events: EventHandlers, trail: TrailHandlers
) -> list[Operation]:
    """For administrators; and what they make for others, for these."""

    def admin(method: str, path: str, **more: Any) -> Operation:
        return Operation(method=method, path=path, tag="administration", access="admin", **more)

    return [
        admin(
            "GET",
            "/admin/usage",
            handler=handlers.usage,
            summary="Who uses how much",
            responses={200: wire.UserUsageList},
            media_types=("text/csv",),
            problems=("invalid-request",),
            parameters=_USAGE_PARAMETERS,
        ),
        admin(
            "GET",
            "/admin/usage/summary",
            handler=handlers.summary,
            summary="What everything adds up to, and how fast it grows",
            responses={200: Summary},
        ),
        admin(
            "GET",
            "/admin/usage/history",
            handler=handlers.history,
            summary="The totals of the last days",
            responses={200: wire.History},
            problems=("invalid-request",),
            parameters=(_whole("days", 1, MAX_HISTORY_DAYS, 30, "How many days back, today included."),),
        ),
        admin(
            "POST",
            "/admin/usage/recount",
            handler=handlers.recount,
            summary="Recount the accounts from uploads and files; changes nothing",
            takes=wire.Recount,
            takes_optional=True,
            responses={200: wire.Recounted},
            problems=("not-found", "invalid-request"),
        ),
        admin(
            "GET",
            "/admin/uploads",
            handler=handlers.open_uploads,
            summary="Open uploads of everybody, and what they would give back",
            responses={200: OpenUploadList},
            media_types=("text/csv",),
            problems=("invalid-request",),
            parameters=_UPLOADS_PARAMETERS,
        ),
        admin(
            "DELETE",
            "/admin/uploads/{upload_id}",
            handler=handlers.expire_upload,
            summary="Expire an open upload of anybody",
            responses={204: None},
            problems=("upload-not-found", "upload-gone", "upload-active", "invalid-request"),
            parameters=(_whole("idle_for", 0, MAX_IDLE_SECONDS, 0, "Only if nothing arrived for so many seconds."),),
        ),
        admin(
            "GET",
            "/admin/queue",
            handler=handlers.queue,
            summary="What waits to be accounted or merged, by minute",
            responses={200: QueueReport},
            problems=("not-found", "upload-not-found", "invalid-request"),
            parameters=(_OF_USER, _OF_UPLOAD),
        ),
        admin(
            "GET",
            "/admin/users/{user_id}",
            handler=handlers.user,
            summary="One user's accounts",
            responses={200: wire.UserDetail},
            problems=("not-found", "invalid-request"),
        ),
        admin(
            "PUT",
            "/admin/users/{user_id}",
            handler=handlers.set_total_space,
            summary="Set a user's quota, making the user if need be",
            takes=wire.SetTotalSpace,
            responses={200: wire.UserAccount},
            problems=("invalid-request",),
        ),
        admin(
            "GET",
            "/admin/users/{user_id}/files",
            handler=handlers.user_files,
            summary="One user's files, newest first",
            responses={200: wire.UserFiles},
            problems=("not-found", "invalid-request"),
            parameters=(LIMIT, AFTER, PREFIX),
        ),
        Operation(
            method="GET",
            path="/me/tokens",
            handler=tokens.own,
            summary="Your tokens, newest first, revoked ones too, and who made them",
            tag="files",
            responses={200: wire.TokenList},
            problems=("tokens-unused",),
        ),
        admin(
            "GET",
            "/admin/users/{user_id}/tokens",
            handler=tokens.tokens,
            summary="One user's tokens, newest first, revoked ones too",
            responses={200: wire.TokenList},
            problems=("not-found", "tokens-unused", "invalid-request"),
        ),
        admin(
            "POST",
            "/admin/users/{user_id}/tokens",
            handler=tokens.make,
            summary="Make a token, and the user if need be; it is told this once",
            takes=wire.MakeToken,
            takes_optional=True,
            responses={201: wire.NewToken},
            problems=("tokens-unused", "invalid-request"),
        ),
        admin(
            "DELETE",
            "/admin/tokens/{token_id}",
            handler=tokens.revoke,
            summary="Revoke a token, but not the one that you call with",
            responses={204: None},
            problems=("not-found", "token-in-use", "tokens-unused"),
        ),
        admin(
            "GET",
            "/admin/audit",
            handler=trail.acts,
            summary="Who did what to whom, the newest first",
            responses={200: wire.ActList},
            media_types=("text/csv",),
            problems=("invalid-request",),
            parameters=_AUDIT_PARAMETERS,
        ),
        admin(
            "GET",
            "/admin/events",
            handler=events.sinks,
            summary="How far the sinks of events are",
            responses={200: wire.SinkList},
        ),
        admin(
            "POST",
            "/admin/events/replay",
            handler=events.replay,
            summary="Tell sinks once more of the events that they have not taken in all attempts",
            takes=wire.Replay,
            takes_optional=True,
            responses={200: wire.Replayed},
            problems=("not-found", "invalid-request"),
        ),
    ]
