"""The handlers of `/admin`, for administrators."""

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET
from starlette.responses import Response, StreamingResponse

from uploader.clock import Clock
from uploader.domain.names import check_user_id
from uploader.domain.reports import UPLOAD_SORTS, USER_SORTS
from uploader.errors import InvalidRequest, NotFound
from uploader.http.admin import schemas as wire
from uploader.http.shared.operation import Call
from uploader.http.shared.responses import Json
from uploader.service.access import Accounts
from uploader.service.reconcile import Recounting
from uploader.service.reports import (
    Idle,
    OpenUploadList,
    OpenUploadReport,
    Order,
    Overview,
    Queues,
    Reports,
    UserUsage,
    csv_lines,
)
from uploader.service.status import Uploads

MAX_IDLE_SECONDS = 100 * 365 * 86400
MAX_HISTORY_DAYS = 3660


@dataclass(frozen=True, slots=True)
class AdminHandlers:
    """Reports, quotas and the uploads of everybody."""

    reports: Reports
    overview: Overview
    recounting: Recounting
    accounts: Accounts
    uploads: Uploads
    queues: Queues
    clock: Clock

    # Reports

    async def usage(self, call: Call) -> Response:
        order = _order(call, USER_SORTS, "use_space_finished", ascending="user_id")
        containing, limit = call.query("q"), limit_of(call)
        if wants_csv(call):
            users = self.reports.all_usage(order, containing=containing)
            return csv_stream("usage", UserUsage.__struct_fields__, users)
        as_of = self.clock.now()
        page, cursor = await self.reports.usage(order, limit=limit, after=call.query("after"), containing=containing)
        return Json(wire.UserUsageList(page, cursor, as_of))

    async def summary(self, _call: Call) -> Response:
        return Json(await self.overview.summary())

    async def history(self, call: Call) -> Response:
        days = call.query_int("days", 30, 1, MAX_HISTORY_DAYS)
        as_of = self.clock.now()
        return Json(wire.History(await self.overview.history(days), as_of))

    async def recount(self, call: Call) -> Response:
        body = await call.json(wire.Recount, optional=True)
        user_id = None if body.user_id is UNSET else checked_user_id(body.user_id)
        as_of = self.clock.now()
        found = await self.recounting.recount(user_id)
        if user_id is not None and not found.checked["users"] and not found.drifts:
            raise NotFound("There is no such user.")
        return Json(wire.recounted_of(found, as_of))

    async def queue(self, call: Call) -> Response:
        user_id, upload_id = call.query("user_id"), call.query("upload_id")
        return Json(await self.queues.report(user_id=user_id and checked_user_id(user_id), upload_id=upload_id))

    # Users

    async def user(self, call: Call) -> Response:
        as_of = self.clock.now()
        return Json(wire.detail_of(await self.reports.user(user_of(call)), as_of))

    async def user_files(self, call: Call) -> Response:
        user_id, limit = user_of(call), limit_of(call)
        as_of = self.clock.now()
        files, cursor = await self.reports.files_of(
            user_id, limit=limit, after=call.query("after"), prefix=call.query("prefix")
        )
        return Json(wire.UserFiles([wire.file_of(file) for file in files], cursor, as_of))

    async def set_total_space(self, call: Call) -> Response:
        user_id = user_of(call)
        body = await call.json(wire.SetTotalSpace)
        return Json(wire.account_of(await self.accounts.set_total_space(user_id, body.total_space)))

    # Open uploads

    async def open_uploads(self, call: Call) -> Response:
        order = _order(call, UPLOAD_SORTS, "updated_at", ascending="updated_at")
        user_id, limit = call.query("user_id"), limit_of(call)
        idle = Idle(seconds=_idle_for(call), user_id=user_id and checked_user_id(user_id))
        if wants_csv(call):
            return csv_stream("uploads", OpenUploadReport.__struct_fields__, self.reports.all_uploads(order, idle))
        as_of = self.clock.now()
        page, cursor, total = await self.reports.uploads(order, idle, limit=limit, after=call.query("after"))
        return Json(OpenUploadList(page, cursor, total, as_of))

    async def expire_upload(self, call: Call) -> Response:
        await self.uploads.expire(call.request.path_params["upload_id"], _idle_for(call))
        return Response(status_code=204)


def _order(call: Call, sorts: tuple[str, ...], default: str, *, ascending: str) -> Order:
    """The order asked for; the largest first, but for the sort `ascending`. Raises InvalidRequest."""
    sort = call.query_word("sort", default, sorts)
    default_order = "asc" if sort == ascending else "desc"
    return Order(sort=sort, descending=call.query_word("order", default_order, ("asc", "desc")) == "desc")


def _idle_for(call: Call) -> int:
    return call.query_int("idle_for", 0, 0, MAX_IDLE_SECONDS)


def limit_of(call: Call) -> int:
    """How many a page has at the most. Raises InvalidRequest."""
    return call.query_int("limit", 100, 1, 1000)


def wants_csv(call: Call) -> bool:
    """Whether the query or the `Accept` of a request asks for it. Raises InvalidRequest."""
    form = call.query_word("format", "", ("csv", "json"))
    return form == "csv" or (not form and "text/csv" in call.request.headers.get("accept", ""))


def user_of(call: Call) -> str:
    """The user that the path names. Raises InvalidRequest."""
    return checked_user_id(call.request.path_params["user_id"])


def checked_user_id(text: str) -> str:
    """Raises InvalidRequest."""
    try:
        return check_user_id(text)
    except ValueError as error:
        raise InvalidRequest.field("user_id", str(error)) from error


def csv_stream(name: str, columns: Sequence[str], batches: AsyncIterable[list[Any]]) -> StreamingResponse:
    """A download of the fields `columns` of all rows. One batch is in memory at a time."""

    async def lines() -> AsyncIterator[str]:
        yield csv_lines([columns])
        async for batch in batches:
            yield csv_lines([getattr(row, column) for column in columns] for row in batch)

    headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
    return StreamingResponse(lines(), 200, headers, "text/csv")
