"""The handlers of `/admin`, for administrators."""

import csv
import io
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.responses import Response, StreamingResponse

from uploader.clock import Clock
from uploader.database.queries import REPORT_SORTS, UserReport
from uploader.domain.names import check_user_id
from uploader.errors import InvalidRequest
from uploader.http import wire
from uploader.http.native import answer
from uploader.http.operation import Call
from uploader.service.accounts import Accounts
from uploader.service.reports import Reports


@dataclass(frozen=True, slots=True)
class AdminHandlers:
    """Reports and quotas."""

    reports: Reports
    accounts: Accounts
    clock: Clock

    async def usage(self, call: Call) -> Response:
        sort = call.query_word("sort", "use_space_finished", REPORT_SORTS)
        default_order = "asc" if sort == "user_id" else "desc"
        descending = call.query_word("order", default_order, ("asc", "desc")) == "desc"
        containing = call.query("q")
        form = call.query_word("format", "", ("csv", "json"))
        limit = call.query_int("limit", 100, 1, 1000)
        if form == "csv" or (not form and "text/csv" in call.request.headers.get("accept", "")):
            rows = self._csv(sort, descending, containing)
            headers = {"Content-Disposition": 'attachment; filename="usage.csv"'}
            return StreamingResponse(rows, 200, headers, "text/csv")
        as_of = self.clock.now()
        users, cursor = await self.reports.usage(
            sort=sort, descending=descending, limit=limit, after=call.query("after"), containing=containing
        )
        return answer(wire.UserUsageList([_row(user) for user in users], cursor, as_of))

    async def _csv(self, sort: str, descending: bool, containing: str | None) -> AsyncIterator[str]:
        names = wire.UserUsage.__struct_fields__
        yield _csv_lines([names])
        async for page in self.reports.all_usage(sort=sort, descending=descending, containing=containing):
            rows = [_row(user) for user in page]
            yield _csv_lines([tuple(getattr(row, name) for name in names) for row in rows])

    async def set_total_space(self, call: Call) -> Response:
        try:
            user_id = check_user_id(call.request.path_params["user_id"])
        except ValueError as error:
            raise InvalidRequest.field("user_id", str(error)) from error
        body = await call.json(wire.SetTotalSpace)
        usage = await self.accounts.set_total_space(user_id, body.total_space)
        return answer(
            wire.UserAccount(
                usage.user_id,
                usage.total_space,
                usage.use_space_finished,
                usage.use_space_unfinished,
                usage.reserved,
            )
        )


def _row(report: UserReport) -> wire.UserUsage:
    usage = report.usage
    return wire.UserUsage(
        usage.user_id,
        usage.total_space,
        usage.use_space_finished,
        usage.use_space_unfinished,
        usage.reserved,
        report.files,
        report.open_uploads,
    )


def _csv_lines(rows: "list[tuple[object, ...]]") -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()
