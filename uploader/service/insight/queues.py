"""The delay queues of uploads as administrators see them: what waits in which minute, and how late it is."""

from datetime import UTC, datetime

from msgspec import Struct

from uploader.accounting.pending import Pending
from uploader.accounting.queues import Measured, MinuteBucket, added_up
from uploader.clock import Clock
from uploader.database import queries
from uploader.database.engine import Connection, Database
from uploader.domain.upload import Upload
from uploader.errors import NotFound, UploadNotFound


class WaitingMinute(Struct):
    """A minute bucket of all shards. A task that is pushed back stays in its minute until that has come; `minute` is null
    where what stands there is none."""

    queue: str
    minute: datetime | None
    tasks: int
    pending_bytes: int


class QueueReport(Struct):
    """What waits: by queue and minute, and in all. `pending_bytes` came and are not yet in the database; `lateness_seconds`
    is by how much the earliest task is overdue."""

    buckets: list[WaitingMinute]
    tasks: int
    pending_bytes: int
    lateness_seconds: float
    as_of: datetime


class Queues:
    """Looks into the queues; changes nothing."""

    def __init__(self, database: Database, pending: Pending, clock: Clock) -> None:
        self._database = database
        self._pending = pending
        self._clock = clock

    async def report(self, *, user_id: str | None = None, upload_id: str | None = None) -> QueueReport:
        """Of everybody, of a user, of an upload, or of an upload if it is this user's. Raises NotFound, UploadNotFound,
        Unavailable."""
        as_of = self._clock.now()
        if user_id is None and upload_id is None:
            return _report_of(await self._pending.measure_all(), as_of)
        uploads = await self._database.read(lambda connection: _uploads_of(connection, user_id, upload_id))
        found: dict[str, list[Measured]] = {}
        for upload in uploads:
            for name, measured in (await self._pending.measure(upload.id)).items():
                found.setdefault(name, []).append(measured)
        return _report_of({name: added_up(queues) for name, queues in found.items()}, as_of)


async def _uploads_of(connection: Connection, user_id: str | None, upload_id: str | None) -> list[Upload]:
    if upload_id is not None:
        upload = await queries.upload_by_id(connection, upload_id)
        if upload is None or user_id not in (None, upload.user_id):
            raise UploadNotFound()
        return [upload]
    assert user_id is not None
    if await queries.usage(connection, user_id) is None:
        raise NotFound("There is no such user.")
    return await queries.open_uploads(connection, user_id)


def _report_of(queues: dict[str, Measured], as_of: datetime) -> QueueReport:
    return QueueReport(
        buckets=[_waiting(name, bucket) for name, queue in queues.items() for bucket in queue.buckets],
        tasks=sum(queue.tasks for queue in queues.values()),
        pending_bytes=sum(queue.pending_bytes for queue in queues.values()),
        lateness_seconds=max((queue.lag_seconds for queue in queues.values()), default=0.0),
        as_of=as_of,
    )


def _waiting(name: str, bucket: MinuteBucket) -> WaitingMinute:
    minute = None if bucket.minute is None else datetime.fromtimestamp(bucket.minute * 60, UTC)
    return WaitingMinute(name, minute, bucket.tasks, bucket.pending_bytes)
