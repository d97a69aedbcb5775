"""The handler of the trail, for administrators."""

from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.responses import Response

from uploader.clock import Clock
from uploader.domain.audit_log import Act, Action
from uploader.errors import InvalidRequest
from uploader.http.admin import schemas as wire
from uploader.http.admin.handlers import checked_user_id, csv_stream, limit_of, wants_csv
from uploader.http.shared.operation import Call
from uploader.http.shared.responses import Json
from uploader.service.audit_log import AuditLogReports, Wanted

ACTIONS = tuple(action.value for action in Action)


@dataclass(frozen=True, slots=True)
class TrailHandlers:
    """Who did what to whom, and when."""

    trail: AuditLogReports
    clock: Clock

    async def acts(self, call: Call) -> Response:
        user_id, limit = call.query("user_id"), limit_of(call)
        wanted = Wanted(
            since=_moment(call, "since"),
            until=_moment(call, "until"),
            user_id=user_id and checked_user_id(user_id),
            action=call.query_word("action", "", ACTIONS) or None,
        )
        if wants_csv(call):
            return csv_stream("audit", tuple(Act.__dataclass_fields__), self.trail.all(wanted))
        as_of = self.clock.now()
        page, cursor = await self.trail.page(wanted, limit=limit, after=call.query("after"))
        return Json(wire.ActList(page, cursor, as_of))


def _moment(call: Call, name: str) -> datetime | None:
    """A time of the query; without a zone it is one of UTC. Raises InvalidRequest."""
    text = call.query(name)
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest.field(name, "is no time such as 2026-11-22T13:00:00Z") from error
