"""Makes files of contents that came whole: what is sure to be refused is refused, the bytes are made durable, and one
transaction makes the files. No upload is opened for them, and nothing is asked of Redis.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial

from uploader.clock import Clock
from uploader.crashpoints import crash_point
from uploader.database import queries, transactions
from uploader.database.engine import Connection, Database, Duplicate
from uploader.database.transactions import Added, BlobLost, NotOpen
from uploader.domain.upload import File, IfExists, Upload
from uploader.errors import FileTooLarge, NameTaken, NotAllowed, QuotaExceeded, StorageFull, Unavailable, UploaderError
from uploader.observability import BYTES_RECEIVED, QUOTA_REFUSALS, WHOLE_FILES
from uploader.service.events.asking import Asking, Question
from uploader.service.ids import new_id
from uploader.service.uploads.admission import Admission
from uploader.service.uploads.closers import Closers
from uploader.service.uploads.results import Complete, NewFile
from uploader.service.uploads.status import ATTEMPTS, PAUSE_SECONDS, Uploads
from uploader.storage.base import Arrival, Arrivals, Body
from uploader.tasks import all_or_none

Outcome = Complete | UploaderError


class Storing:
    """Stores contents, and makes files of them."""

    def __init__(
        self,
        database: Database,
        arrivals: Arrivals,
        closers: Closers,
        uploads: Uploads,
        admission: Admission,
        asking: Asking,
        clock: Clock,
        *,
        max_bytes: int,
    ) -> None:
        """`max_bytes`: of one file; it is received as a chunk is."""
        self._database = database
        self._arrivals = arrivals
        self._closers = closers
        self._uploads = uploads
        self._admission = admission
        self._asking = asking
        self._clock = clock
        self.max_bytes = max_bytes

    # Before

    async def refuse_early(self, new: NewFile, size: int) -> None:
        """Refuse what is sure to be refused before anything is written; the transaction decides.

        Raises FileTooLarge, NameTaken, QuotaExceeded, StorageFull.
        """
        if size > self.max_bytes:
            raise FileTooLarge(limit=self.max_bytes)
        if new.if_exists is IfExists.FAIL or not await self._fits(new.user_id, size):
            await self._database.read(lambda connection: _refuse(connection, new, size))
        await self._admission.check(size)

    async def _fits(self, user_id: str, size: int) -> bool:
        usage = await self._database.read(lambda connection: queries.usage(connection, user_id), brief=True)
        return usage is not None and usage.fits(size)

    async def has_room(self, user_id: str, size: int) -> bool:
        if not await self._fits(user_id, size):
            return False
        try:
            await self._admission.check(size)
        except StorageFull:
            return False
        return True

    # Storing

    async def store(self, files: Sequence[NewFile], bodies: Sequence[Body]) -> list[Outcome]:
        """Digest, compare, make durable, and make files of what is as it was claimed to be, and allowed. Raises
        Unavailable."""
        if not self._asking.is_on:
            return await self._store(files, bodies)
        refusals = await all_or_none(map(self._refusal, files, bodies))
        allowed = [pair for pair, refusal in zip(zip(files, bodies, strict=True), refusals, strict=True) if not refusal]
        stored = iter(await self._store(*zip(*allowed, strict=True)) if allowed else ())
        return [refusal or next(stored) for refusal in refusals]

    async def _refusal(self, new: NewFile, body: Body) -> NotAllowed | None:
        try:
            await self._asking.ask(Question(new.user_id, new.name, body.length, md5=new.md5, sha256=new.sha256))
        except NotAllowed as error:
            return error
        return None

    async def _store(self, files: Sequence[NewFile], bodies: Sequence[Body]) -> list[Outcome]:
        arrivals = [Arrival(body, new.md5, new.sha256) for new, body in zip(files, bodies, strict=True)]
        try:
            await self._arrivals.store(arrivals)
            whole = [(new, arrival) for new, arrival in zip(files, arrivals, strict=True) if arrival.error is None]
            made = iter(await self._make(whole) if whole else [])
        except StorageFull as error:
            return [error] * len(arrivals)
        outcomes = [arrival.error or next(made) for arrival in arrivals]
        for outcome, body in zip(outcomes, bodies, strict=True):
            _count(outcome, body.length)
        return outcomes

    async def _make(self, whole: Sequence[tuple[NewFile, Arrival]]) -> list[Outcome]:
        def place(contents: Collection[str]) -> Mapping[str, str]:
            return self._arrivals.place_blobs([arrival for _, arrival in whole if arrival.sha256_of_bytes in contents])

        add = partial(
            transactions.add_whole_files,
            files=[self._file(new, arrival) for new, arrival in whole],
            if_exists=whole[0][0].if_exists,
            place_blobs=self._database.in_thread(place),
        )
        for _ in range(ATTEMPTS):
            try:
                verdicts = await self._database.transact(add)
            except (Duplicate, BlobLost):
                await asyncio.sleep(PAUSE_SECONDS)  # somebody else was faster
                continue
            crash_point("whole.after_commit")
            return [
                await self._make_closing(*each) if verdict is None else _outcome(verdict)
                for each, verdict in zip(whole, verdicts, strict=True)
            ]
        raise Unavailable("Files of these names are changing too fast; try again.")

    async def _make_closing(self, new: NewFile, arrival: Arrival) -> Outcome:
        """A file whose MD5 has an open upload: if it is the same content, it is closed by it."""
        sha256 = arrival.sha256_of_bytes
        place = self._database.in_thread(lambda: self._arrivals.place_blobs([arrival]).get(sha256))
        for _ in range(ATTEMPTS):
            file = self._file(new, arrival)
            existing = await self._uploads.by_md5(new.user_id, file.md5)
            if existing is not None and (existing.size != file.size or existing.sha256 not in (None, sha256)):
                existing = None  # a twin: other content with the same MD5
            try:
                return _outcome(await self._commit(file, new.if_exists, existing, place))
            except (NameTaken, QuotaExceeded, StorageFull) as error:
                return error
            except (Duplicate, NotOpen, BlobLost):
                await asyncio.sleep(PAUSE_SECONDS)
        raise Unavailable("This upload is changing too fast; try again.")

    async def _commit(
        self, file: File, if_exists: IfExists, existing: Upload | None, place: Callable[[], Awaitable[str | None]]
    ) -> Added:
        replaced_id = None if existing is None else existing.id

        async def commit() -> Added:
            return await self._database.transact(
                lambda connection: transactions.add_whole_file(
                    connection, file, if_exists, replaced_upload_id=replaced_id, place_blob=place
                )
            )

        return await (commit() if existing is None else self._closers.close_by(existing, commit))

    def _file(self, new: NewFile, arrival: Arrival) -> File:
        assert arrival.digests is not None
        return File(
            id=new_id(),
            user_id=new.user_id,
            md5=arrival.digests.md5,
            sha256=arrival.digests.sha256,
            name=new.name,
            size=arrival.body.length,
            instant=False,
            created_at=self._clock.now(),
            modified_at=new.modified_at,
        )


async def _refuse(connection: Connection, new: NewFile, size: int) -> None:
    """Raises NameTaken, QuotaExceeded, unless this may be a file that is there already, or takes the place of others."""
    of_name = await queries.files_of_names(connection, new.user_id, [new.name])
    if any((file.size == size and new.md5 is None) or file.may_be(new.md5, new.sha256, size) for file in of_name):
        return
    if new.if_exists is IfExists.FAIL and of_name:
        raise NameTaken("You have another file of this name.")
    usage = await queries.usage(connection, new.user_id)
    replaced = sum(file.size for file in of_name) if new.if_exists is IfExists.REPLACE else 0
    existing = None if new.md5 is None else await queries.open_upload_by_md5(connection, new.user_id, new.md5)
    reserved = existing.size if existing is not None and existing.size == size else 0
    if usage is None or usage.fits(size - replaced - reserved):
        return
    QUOTA_REFUSALS.inc()
    raise usage.refusal(size)


def _outcome(verdict: transactions.Verdict) -> Outcome:
    return Complete(file=verdict.file, created=verdict.is_new) if isinstance(verdict, Added) else verdict


def _count(outcome: Outcome, length_bytes: int) -> None:
    if isinstance(outcome, Complete):
        WHOLE_FILES.labels("created" if outcome.created else "present").inc()
        BYTES_RECEIVED.inc(length_bytes if outcome.created else 0)
        return
    WHOLE_FILES.labels(outcome.code).inc()
    if isinstance(outcome, QuotaExceeded):
        QUOTA_REFUSALS.inc()
