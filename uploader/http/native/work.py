"""`/queues/{name}`: workers claim, extend, acknowledge and release tasks, and download the files of the tasks.
`/admin/work`: a report of all queues.
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import Response

from uploader.domain.events import MAX_LEASE_SECONDS, MIN_LEASE_SECONDS
from uploader.errors import InvalidRequest
from uploader.http.native.download import download
from uploader.http.shared.operation import Call, Operation, header, or_none
from uploader.http.shared.responses import Json
from uploader.runtime.tasks import ended
from uploader.service.gates import Verdict
from uploader.service.work import Handed, Work, WorkReport

_MAX_CLAIMED, _MAX_WAIT_SECONDS = 100, 30
_MAX_DELAY_SECONDS, _MAX_ERROR_LENGTH, _MAX_LEASE_LENGTH = 7 * 86_400, 1024, 64

_work = partial(Operation, tag="work", access="worker")
_LEASE = header("Lease", "The lease of the claim.", required=True)

Seconds = Annotated[float, Meta(ge=MIN_LEASE_SECONDS, le=MAX_LEASE_SECONDS, description="Seconds.")]
Lease = Annotated[str, Meta(min_length=1, max_length=_MAX_LEASE_LENGTH, description="As the claim told it.")]


class ClaimTasks(Struct, forbid_unknown_fields=True):
    """Claim `max` tasks at most, for `lease_seconds`; wait `wait_seconds` at most for the first."""

    max: Annotated[int, Meta(ge=1, le=_MAX_CLAIMED)] = 1
    lease_seconds: Seconds | UnsetType = UNSET
    wait_seconds: Annotated[float, Meta(ge=0, le=_MAX_WAIT_SECONDS)] = 0.0


class ExtendLease(Struct, forbid_unknown_fields=True):
    """A lease, and its new duration from now."""

    lease: Lease
    lease_seconds: Seconds


class AckTask(Struct, forbid_unknown_fields=True):
    """The lease of a finished task; for a gate also the verdict on the file, and the reason of a refusal."""

    lease: Lease
    verdict: Verdict | UnsetType = UNSET
    reason: Annotated[str, Meta(max_length=_MAX_ERROR_LENGTH)] | UnsetType = UNSET


class ReleaseTask(Struct, forbid_unknown_fields=True):
    """The lease of a task to give back, the delay until it is due again, and the reason."""

    lease: Lease
    delay_seconds: Annotated[float, Meta(ge=0, le=_MAX_DELAY_SECONDS)] = 0.0
    error: Annotated[str, Meta(max_length=_MAX_ERROR_LENGTH)] | UnsetType = UNSET


class TaskSchema(Struct):
    """A task, leased until `lease_until`. `fence` grows with each claim of the task; `event` is a CloudEvent."""

    id: str
    lease: str
    fence: int
    lease_until: datetime
    attempt: int
    event: msgspec.Raw


class TaskList(Struct):
    """Claimed tasks, oldest first."""

    tasks: list[TaskSchema]


def _task(handed: Handed) -> TaskSchema:
    return TaskSchema(
        handed.id, handed.lease, handed.fence, handed.lease_until, handed.attempt, msgspec.Raw(handed.event)
    )


@dataclass(frozen=True, slots=True)
class WorkHandlers:
    work: Work

    @_work(
        "POST /queues/{name}/claim",
        "Take tasks of a queue for a while, and wait for one",
        takes=ClaimTasks,
        takes_optional=True,
        responses={200: TaskList},
        problems=("not-found",),
    )
    async def claim(self, call: Call) -> Response:
        queue = self.work.queue(call.in_path("name"))
        asked = await call.json(ClaimTasks, optional=True)
        claim = partial(queue.claim, call.user_id, asked.max, lease_seconds=or_none(asked.lease_seconds))
        if not asked.wait_seconds:
            return Json(TaskList([_task(handed) for handed in await claim()]))
        if call.cost is not None:
            call.cost.pause()  # waiting does not use the user's turn
        # The body has ended, so the next message means that the connection ended, or that the client sent something more. A
        # client that only half-closes the connection gets its answer at once.
        gone = asyncio.ensure_future(call.request.receive())
        try:
            found = await claim(wait_seconds=asked.wait_seconds, gone=gone)
        finally:
            await ended(gone)
        return Json(TaskList([_task(handed) for handed in found]))

    @_work(
        "POST /queues/{name}/tasks/{id}/extend",
        "Let a lease end later",
        takes=ExtendLease,
        responses={200: TaskSchema},
        problems=("not-found", "lease-lost"),
    )
    async def extend(self, call: Call) -> Response:
        queue = self.work.queue(call.in_path("name"))
        asked = await call.json(ExtendLease)
        return Json(_task(await queue.extend(call.in_path("id"), asked.lease, asked.lease_seconds)))

    @_work(
        "POST /queues/{name}/tasks/{id}/ack",
        "End a task: it is done; of a gate, let its file pass or refuse it",
        takes=AckTask,
        responses={204: None},
        problems=("not-found", "lease-lost"),
    )
    async def ack(self, call: Call) -> None:
        queue = self.work.queue(call.in_path("name"))
        done = await call.json(AckTask)
        await queue.ack(call.in_path("id"), done.lease, or_none(done.verdict), or_none(done.reason))

    @_work(
        "POST /queues/{name}/tasks/{id}/release",
        "Give a task back, at once or for later",
        takes=ReleaseTask,
        responses={204: None},
        problems=("not-found", "lease-lost"),
    )
    async def release(self, call: Call) -> None:
        queue = self.work.queue(call.in_path("name"))
        asked = await call.json(ReleaseTask)
        await queue.release(call.in_path("id"), asked.lease, asked.delay_seconds, or_none(asked.error))

    @_work(
        "GET /queues/{name}/tasks/{id}/content",
        "Download the file that a task is about, whole or in ranges",
        parameters=(_LEASE,),
        responses={200: None, 206: None, 304: None},
        problems=("not-found", "lease-lost", "file-not-found", "range-not-satisfiable", "content-damaged"),
    )
    async def get_content(self, call: Call) -> Response:
        queue = self.work.queue(call.in_path("name"))
        lease = call.request.headers.get("lease")
        if lease is None:
            raise InvalidRequest.field("Lease", "is missing")
        return await download(call.request, await queue.file_of(call.in_path("id"), lease), queue.files)

    @Operation(
        "GET /admin/work",
        "Queues: how much waits, who holds what, and what is dead",
        tag="administration",
        access="admin",
        responses={200: WorkReport},
    )
    async def figures(self, _call: Call) -> Response:
        return Json(await self.work.report())
