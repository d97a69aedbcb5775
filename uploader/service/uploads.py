"""The use cases of uploads: open, send a chunk, ask, tell the digests, merge, cancel.

Answers with where an upload stands (`Standing`), with the acknowledgement of a chunk (`Acknowledged`) or with the file
that it became (`Complete`); everything else is an error of `errors.py`. Knows nothing of HTTP.
"""

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from uploader.accounting.pending import Figures, Known, Pending, Word
from uploader.clock import Clock
from uploader.database import queries, transactions
from uploader.database.engine import Connection, Database, Duplicate
from uploader.database.transactions import Lost, NotOpen
from uploader.domain.chunks import ChunkSizes, chunk_count, chunk_length, missing_ranges, received_bytes
from uploader.domain.digest import EMPTY_MD5, EMPTY_SHA256
from uploader.domain.months import month_path
from uploader.domain.quota import Usage
from uploader.domain.upload import REDIS_WORDS, File, Reason, State, Upload
from uploader.errors import (
    ChunkLengthMismatch,
    ChunkNumberOutOfRange,
    FileTooLarge,
    InvalidRequest,
    Md5Conflict,
    Md5Mismatch,
    QuotaExceeded,
    Sha256Conflict,
    Sha256Mismatch,
    SizeMismatch,
    StorageFull,
    TooManyUploads,
    Unavailable,
    UploaderError,
    UploadExists,
    UploadGone,
    UploadNotFound,
)
from uploader.observability import BYTES_RECEIVED, CHUNK_SECONDS, CHUNKS, INSTANT_UPLOADS, QUOTA_REFUSALS
from uploader.service.closers import Closers
from uploader.service.ids import new_id
from uploader.service.merging import Merging
from uploader.settings import Settings
from uploader.storage.base import Body, Gone, Storage
from uploader.tasks import uninterrupted

# How many open uploads a process remembers the unchanging facts of.
_REMEMBERED_UPLOADS = 10_000
# How often a call is tried again when others close or open the same upload meanwhile.
_ATTEMPTS = 5
_DEFAULT_FLOOR_BYTES = 1 << 30
_DEFAULT_FLOOR_SHARE = 20


@dataclass(frozen=True, slots=True)
class Target:
    """Which upload a caller means: the open one of an MD5, one by id, or both (then they must agree)."""

    user_id: str
    md5: str | None = None
    upload_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A request to upload; `name` is normalised, `md5` is None where it is not known yet."""

    user_id: str
    md5: str | None
    sha256: str | None
    name: str
    size: int
    chunk_size: int | None
    instant: bool
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where an open upload stands."""

    upload: Upload
    merging: bool
    received_bytes: int
    missing: list[tuple[int, int]]
    merged_bytes: int
    expires_at: datetime
    created: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """A chunk that counts."""

    received_bytes: int
    received_chunks: int
    chunk_count: int
    duplicate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """The upload is a file; `created` says whether this call made it so."""

    file: File
    created: bool


class Uploads:
    """All that can be done to uploads."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        storage: Storage,
        pending: Pending,
        closers: Closers,
        merging: Merging,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._database = database
        self._storage = storage
        self._pending = pending
        self._closers = closers
        self._merging = merging
        self._clock = clock
        self.chunk_sizes = ChunkSizes(
            settings.chunk_size_bytes, settings.min_chunk_size_bytes, settings.max_chunk_size_bytes
        )
        self.max_file_size_bytes = min(settings.max_file_size_bytes, self.chunk_sizes.max_file_size())
        self._remembered: OrderedDict[Target, Upload] = OrderedDict()

    # Opening

    async def open(self, opening: Opening) -> Standing | Complete:
        """Open, resume or finish at once. Raises as `POST /files/{md5}` and `POST /uploads` say."""
        if opening.size > self.max_file_size_bytes:
            raise FileTooLarge(limit=self.max_file_size_bytes)
        if opening.size == 0:
            _check_empty(opening)
        for _ in range(_ATTEMPTS):
            try:
                return await self._open_once(opening)
            except (Duplicate, Gone, NotOpen, Lost):
                await asyncio.sleep(0.02)  # somebody else was faster: what they did is the answer now
        raise Unavailable("This upload is changing too fast; try again.")

    async def _open_once(self, opening: Opening) -> Standing | Complete:
        if opening.md5 is None:
            existing = await self._by_idempotency_key(opening)
        else:
            existing = await self._database.read(
                lambda connection: queries.open_upload_by_md5(connection, opening.user_id, opening.md5 or "")
            )
        if existing is not None and opening.md5 is not None:
            _check_claims(existing, opening.size, opening.sha256)
        if opening.md5 is not None:
            complete = await self._finish_at_once(opening, opening.md5, existing)
            if complete is not None:
                return complete
        if existing is None:
            return await self._open_new(opening)
        if existing.state is not State.OPEN:
            return await self._ended(existing)
        return await self._resume(existing, opening.sha256)

    async def _by_idempotency_key(self, opening: Opening) -> Upload | None:
        key = opening.idempotency_key
        if key is None:
            return None
        upload = await self._database.read(
            lambda connection: queries.upload_by_idempotency_key(connection, opening.user_id, key)
        )
        if upload is not None and (upload.name, upload.size) != (opening.name, opening.size):
            raise InvalidRequest.field("Idempotency-Key", "was used with another name or size")
        return upload

    async def _resume(self, upload: Upload, sha256: str | None) -> Standing | Complete:
        if sha256 is not None and upload.sha256 is None:
            upload = await self._database.transact(
                lambda connection: transactions.tell_digests(connection, upload.id, None, sha256)
            )
        if upload.size == 0:
            return await self._merge(upload)
        return await self._standing(upload)

    async def _open_new(self, opening: Opening) -> Standing | Complete:
        await self._refuse_early(opening)
        now = self._clock.now()
        upload_id = new_id()
        upload = Upload(
            id=upload_id,
            user_id=opening.user_id,
            md5=opening.md5,
            sha256=opening.sha256,
            name=opening.name,
            size=opening.size,
            chunk_size=self.chunk_sizes.choose(opening.chunk_size, opening.size),
            flushed_bytes=0,
            flushed_generation=0,
            generation=0,
            state=State.OPEN,
            close_reason=None,
            file_id=None,
            temp_path=f"temp/{month_path(now)}/{upload_id}",
            idempotency_key=opening.idempotency_key,
            created_at=now,
            updated_at=now,
            closed_at=None,
        )
        await uninterrupted(self._create(upload))
        if upload.size == 0:
            return await self._merge(upload)
        return replace(await self._standing(upload), created=True)

    async def _create(self, upload: Upload) -> None:
        """The directory first, then the row: a row without bytes would lose what is acknowledged."""
        await self._storage.create(upload)
        try:
            await self._database.transact(
                lambda connection: transactions.open_upload(
                    connection, upload, max_open_uploads=self._settings.max_open_uploads
                )
            )
        except BaseException as error:
            # An answer that was lost may hide a commit: then the row stands, and its directory has to.
            if not isinstance(error, Unavailable):
                await self._storage.discard(upload)
            if isinstance(error, QuotaExceeded):
                QUOTA_REFUSALS.inc()
            raise

    async def _refuse_early(self, opening: Opening) -> None:
        """Refuse what is sure to be refused before anything is written; the transaction decides."""

        async def look(connection: Connection) -> tuple[Usage | None, int, int]:
            usage = await queries.usage(connection, opening.user_id)
            count = await queries.count_open_uploads(connection, opening.user_id)
            return usage, count, await queries.promised_bytes(connection)

        usage, count, promised_bytes = await self._database.read(look)
        if usage is not None and not usage.fits(opening.size):
            QUOTA_REFUSALS.inc()
            raise QuotaExceeded(
                total_space=usage.total_space,
                use_space_finished=usage.use_space_finished,
                use_space_unfinished=usage.use_space_unfinished,
                reserved=usage.reserved,
                requested=opening.size,
            )
        if count >= self._settings.max_open_uploads:
            raise TooManyUploads(limit=self._settings.max_open_uploads)
        space = await self._storage.space()
        floor_bytes = self._settings.free_space_floor_bytes
        if floor_bytes is None:
            floor_bytes = max(space.total // _DEFAULT_FLOOR_SHARE, _DEFAULT_FLOOR_BYTES)
        if space.free - promised_bytes - opening.size < floor_bytes:
            raise StorageFull("The disk has no room for a file of this size; try again later.")

    # Finishing without bytes

    async def _finish_at_once(self, opening: Opening, md5: str, existing: Upload | None) -> Complete | None:
        """The file, if the caller has it under this name, or if its content is there and may be used instantly."""
        same, sha256 = await self._instant_source(opening, md5)
        if same is not None:
            if existing is not None and opening.instant:
                return await self._add_instant_file(opening, md5, same.sha256, existing)
            return Complete(file=same, created=False)
        if sha256 is None or not opening.instant:
            return None
        try:
            return await self._add_instant_file(opening, md5, sha256, existing)
        except Lost:
            return None  # the blob went at this moment: the bytes are needed after all

    async def _instant_source(self, opening: Opening, md5: str) -> tuple[File | None, str | None]:
        mode = self._settings.instant

        async def look(connection: Connection) -> tuple[File | None, str | None]:
            ask = partial(
                queries.newest_file, connection, opening.user_id, md5, size=opening.size, sha256=opening.sha256
            )
            same = await ask(name=opening.name)
            if same is not None or mode == "off":
                return same, None
            own = await ask()
            if own is not None:
                return None, own.sha256
            if mode != "trust":
                return None, None
            blobs = await queries.blobs_by_md5(connection, md5, opening.size)
            fitting = [blob.sha256 for blob in blobs if opening.sha256 in (None, blob.sha256)]
            return None, fitting[0] if fitting else None

        return await self._database.read(look)

    async def _add_instant_file(self, opening: Opening, md5: str, sha256: str, replaced: Upload | None) -> Complete:
        file = File(
            id=new_id(),
            user_id=opening.user_id,
            md5=md5,
            sha256=sha256,
            name=opening.name,
            size=opening.size,
            instant=True,
            created_at=self._clock.now(),
        )
        complete = await uninterrupted(self._commit_instant_file(file, replaced))
        INSTANT_UPLOADS.inc()
        return complete

    async def _commit_instant_file(self, file: File, replaced: Upload | None) -> Complete:
        replaced_id = None if replaced is None else replaced.id

        async def commit() -> Complete:
            result, is_new = await self._database.transact(
                lambda connection: transactions.add_instant_file(connection, file, replaced_upload_id=replaced_id)
            )
            return Complete(file=result, created=is_new)

        if replaced is None:
            return await commit()
        async with self._storage.closing(replaced) as closer:
            complete = await commit()
            await self._closers.clear(replaced, REDIS_WORDS[State.DONE], closer)
        return complete

    # Finding

    async def find(self, target: Target) -> Upload | Complete:
        """The open upload that is meant, or the file it became. Raises UploadNotFound, UploadGone."""
        if target.md5 is None:
            upload = await self._by_id(target)
            if upload is None:
                raise UploadNotFound()
            return upload if upload.state is State.OPEN else await self._ended(upload)
        if target.upload_id is None:
            return await self._find_by_md5(target.user_id, target.md5)
        upload = await self._by_id(target)
        if upload is not None and upload.md5 == target.md5:
            return upload if upload.state is State.OPEN else await self._ended(upload)
        await self._find_by_md5(target.user_id, target.md5)
        raise UploadGone("This MD5 has another upload now.", reason="unknown")

    async def _by_id(self, target: Target) -> Upload | None:
        upload = await self._database.read(lambda connection: queries.upload_by_id(connection, target.upload_id or ""))
        return upload if upload is not None and upload.user_id == target.user_id else None

    async def _find_by_md5(self, user_id: str, md5: str) -> Upload | Complete:
        async def look(connection: Connection) -> Upload | Complete | None:
            upload = await queries.open_upload_by_md5(connection, user_id, md5)
            if upload is not None:
                return upload
            file = await queries.newest_file(connection, user_id, md5)
            if file is not None:
                return Complete(file=file, created=False)
            return await queries.newest_closed_upload(connection, user_id, md5, self._remembered_since())

        found = await self._database.read(look)
        if found is None:
            raise UploadNotFound()
        if isinstance(found, Complete) or found.state is State.OPEN:
            return found
        return await self._ended(found)

    def _remembered_since(self) -> datetime:
        return self._clock.now() - timedelta(seconds=self._settings.closed_retention_seconds)

    async def _ended(self, upload: Upload) -> Complete:
        """What a closed upload became. Raises UploadGone, or UploadNotFound if its file was deleted or it is long ago."""
        if upload.closed_at is None or upload.closed_at <= self._remembered_since():
            raise UploadNotFound()
        if upload.state is not State.DONE:
            raise UploadGone(reason=upload.close_reason)
        file_id = upload.file_id or ""
        file = await self._database.read(lambda connection: queries.file_by_id(connection, upload.user_id, file_id))
        if file is None:
            raise UploadNotFound()
        return Complete(file=file, created=False)

    # Chunks

    async def find_for_chunk(self, target: Target) -> Upload | Complete:
        """As `find`, from memory if this process has met the upload: its size, chunk size and place do not change."""
        upload = self._remembered.get(target)
        if upload is not None:
            self._remembered.move_to_end(target)
            return upload
        return await self._find_and_remember(target)

    async def _find_and_remember(self, target: Target) -> Upload | Complete:
        self._remembered.pop(target, None)
        found = await self.find(target)
        if isinstance(found, Upload):
            self._remembered[target] = found
            if len(self._remembered) > _REMEMBERED_UPLOADS:
                self._remembered.popitem(last=False)
        return found

    async def put_chunk(
        self, target: Target, upload: Upload, number: int, body: Body
    ) -> Acknowledged | Standing | Complete:
        """Store a chunk that was received whole and has the right length; merge if it was the last one missing."""
        started = time.perf_counter()
        try:
            result = await self._put_or_find_again(target, upload, number, body)
        except UploaderError as error:
            CHUNKS.labels(error.code).inc()
            raise
        if isinstance(result, Acknowledged):
            CHUNK_SECONDS.observe(time.perf_counter() - started)
        return result

    async def _put_or_find_again(
        self, target: Target, upload: Upload, number: int, body: Body
    ) -> Acknowledged | Standing | Complete:
        for _ in range(2):
            try:
                figures = await uninterrupted(self._hold_and_record(upload, number, body))
            except (Gone, NotOpen):
                figures = None
            if figures is not None and figures.word in (Word.RECORDED, Word.DUPLICATE, Word.MERGING):
                return await self._answer(upload, number, figures)
            # What this process remembers is out of date: the upload was closed, perhaps opened anew.
            found = await self._find_and_remember(target)
            if isinstance(found, Complete):
                return found
            upload = found
            check_chunk(upload, number, body.length)
        raise Unavailable("This upload is changing too fast; try again.")

    async def _hold_and_record(self, upload: Upload, number: int, body: Body | None) -> Figures:
        """Disk, then Redis, under the lock of the chunk's record. A chunk on the map is recorded all the same, because a
        crash may have come between the two."""
        for _ in range(_ATTEMPTS):
            held = await self._storage.hold_chunk(upload, number, body)
            try:
                length = chunk_length(number, upload.size, upload.chunk_size)
                figures = await self._pending.record_chunk(upload.id, number, length)
            finally:
                held.release()
            if figures.word is not Word.REHYDRATE:
                return figures
            # Hydrating adds the chunk: it is on the map. It is recorded again to learn where the upload stands.
            await self._closers.hydrate(upload)
        raise Unavailable("The accounting store keeps restarting; try again.")

    async def _answer(self, upload: Upload, number: int, figures: Figures) -> Acknowledged | Standing | Complete:
        CHUNKS.labels(figures.word.value).inc()
        if figures.word is Word.RECORDED:
            BYTES_RECEIVED.inc(chunk_length(number, upload.size, upload.chunk_size))
        if not figures.settled:
            return Acknowledged(
                received_bytes=figures.received,
                received_chunks=figures.chunks,
                chunk_count=figures.chunk_count,
                duplicate=figures.word is Word.DUPLICATE,
            )
        complete = await self._merge(upload)
        if isinstance(complete, Complete) and figures.word is not Word.RECORDED:
            return replace(complete, created=False)
        return complete

    async def refuse_chunk(
        self, target: Target, number: int, error: UploaderError
    ) -> Acknowledged | Standing | Complete:
        """What a chunk with a bad body is answered: the state of the upload and a duplicate go before `error`."""
        found = await self._find_and_remember(target)
        if isinstance(found, Complete):
            return found
        check_chunk_number(found, number)
        try:
            if (await self._storage.read_map(found)).present[number]:
                figures = await uninterrupted(self._hold_and_record(found, number, None))
                if figures.word in (Word.RECORDED, Word.DUPLICATE, Word.MERGING):
                    answer = await self._answer(found, number, figures)
                    return replace(answer, duplicate=True) if isinstance(answer, Acknowledged) else answer
        except (Gone, NotOpen):
            pass
        CHUNKS.labels(error.code).inc()
        raise error

    # Asking

    async def status(self, target: Target) -> Standing | Complete:
        """Where an upload stands. Raises UploadNotFound, UploadGone, Unavailable."""
        for _ in range(_ATTEMPTS):
            found = await self.find(target)
            if isinstance(found, Complete):
                return found
            try:
                return await self._standing(found)
            except (Gone, NotOpen):
                await asyncio.sleep(0.02)  # it was closed between the two looks
        raise Unavailable("The bytes of this upload can't be found.")

    async def _standing(self, upload: Upload) -> Standing:
        chunk_map = await self._storage.read_map(upload)
        last_write = await self._storage.last_write(upload)
        known = await self._compare_with_redis(upload, sum(chunk_map.present))
        expiry = timedelta(seconds=self._settings.upload_expiry_seconds)
        return Standing(
            upload=upload,
            merging=chunk_map.complete,
            received_bytes=received_bytes(chunk_map.present, upload.size, upload.chunk_size),
            missing=missing_ranges(chunk_map.present),
            merged_bytes=max(self._merging.merged_bytes(upload.id), 0 if known is None else known.merged),
            expires_at=datetime.fromtimestamp(last_write, UTC) + expiry,
        )

    async def _compare_with_redis(self, upload: Upload, chunks_on_disk: int) -> Known | None:
        """Hydrate where Redis does not know, or knows less than the disk. Without Redis the disk alone answers."""
        try:
            known = await self._pending.read(upload.id)
            if not known.state or (known.state in ("open", "merging") and known.chunks < chunks_on_disk):
                await self._closers.hydrate(upload)
        except Unavailable:
            return None
        return known

    async def list_open(self, user_id: str) -> list[Standing]:
        """Where all open uploads of a user stand, newest first."""
        uploads = await self._database.read(lambda connection: queries.open_uploads(connection, user_id))
        standings = []
        for upload in uploads:
            try:
                standings.append(await self._standing(upload))
            except (Gone, NotOpen):
                continue  # closed meanwhile
        return standings

    async def states(self, user_id: str, md5s: list[str]) -> dict[str, str]:
        """For each MD5 `complete`, `uploading`, `merging` or `absent`, of the caller's own."""

        async def look(connection: Connection) -> tuple[set[str], dict[str, Upload]]:
            finished = await queries.finished_md5s(connection, user_id, md5s)
            return finished, await queries.open_md5s(connection, user_id, md5s)

        finished, open_uploads = await self._database.read(look)
        states = {}
        for md5 in md5s:
            if md5 in open_uploads:
                states[md5] = await self._state_of(open_uploads[md5], md5 in finished)
            else:
                states[md5] = "complete" if md5 in finished else "absent"
        return states

    async def _state_of(self, upload: Upload, finished: bool) -> str:
        try:
            return "merging" if (await self._storage.read_map(upload)).complete else "uploading"
        except Gone:
            return "complete" if finished else "absent"

    # Telling the digests

    async def tell(self, target: Target, md5: str, sha256: str | None) -> Standing | Complete:
        """Take the digests of an upload that was opened by id, as soon as its client knows them.

        Raises Md5Conflict, Sha256Conflict, UploadExists, UploadNotFound, UploadGone, Unavailable.
        """
        for _ in range(_ATTEMPTS):
            found = await self.find(target)
            if isinstance(found, Complete):
                if found.file.md5 != md5:
                    raise Md5Conflict("The upload is complete, with another MD5.")
                return found
            try:
                return await self._tell_once(found, md5, sha256)
            except (NotOpen, Gone, Lost, Duplicate):
                await asyncio.sleep(0.02)
        raise Unavailable("This upload is changing too fast; try again.")

    async def _tell_once(self, upload: Upload, md5: str, sha256: str | None) -> Standing | Complete:
        if upload.md5 not in (None, md5):
            raise Md5Conflict()
        if sha256 is not None and upload.sha256 not in (None, sha256):
            raise Sha256Conflict()
        other = await self._database.read(
            lambda connection: queries.open_upload_by_md5(connection, upload.user_id, md5)
        )
        if other is not None and other.id != upload.id:
            raise UploadExists(id=other.id)
        opening = Opening(
            user_id=upload.user_id,
            md5=md5,
            sha256=sha256 or upload.sha256,
            name=upload.name,
            size=upload.size,
            chunk_size=None,
            instant=True,
        )
        complete = await self._finish_at_once(opening, md5, upload)
        if complete is not None:
            return replace(complete, created=True)
        told = await self._database.transact(
            lambda connection: transactions.tell_digests(connection, upload.id, md5, sha256)
        )
        if told.md5 != md5:
            raise Md5Conflict()
        return await self._standing(told)

    # Merging

    async def merge(self, target: Target) -> Standing | Complete:
        """Merge again, for a client that lost the answer. Raises ChunksMissing and as the merge does."""
        found = await self.find(target)
        if isinstance(found, Complete):
            return found
        return await self._merge(found)

    async def _merge(self, upload: Upload) -> Standing | Complete:
        file = await self._merging.wait(upload.id)
        if file is not None:
            return Complete(file=file, created=True)
        try:
            return await self._standing(upload)
        except (Gone, NotOpen):
            return await self.status(Target(upload.user_id, upload_id=upload.id))

    # Cancelling

    async def cancel(self, target: Target) -> None:
        """Cancel an open upload, also while it is merging. Raises UploadNotFound, UploadGone; never touches a file."""
        if target.upload_id is None:
            upload = await self._database.read(
                lambda connection: queries.open_upload_by_md5(connection, target.user_id, target.md5 or "")
            )
            if upload is None:
                raise UploadNotFound()
        else:
            found = await self.find(target)
            if isinstance(found, Complete):
                raise UploadNotFound()
            upload = found
        try:
            await self._closers.close(upload, Reason.CANCELLED)
        except NotOpen as error:
            raise UploadNotFound() from error


def check_chunk_number(upload: Upload, number: int) -> None:
    """Raises ChunkNumberOutOfRange."""
    count = chunk_count(upload.size, upload.chunk_size)
    if number >= count:
        raise ChunkNumberOutOfRange(f"This upload has {count} chunks, from 0 to {count - 1}.")


def check_chunk(upload: Upload, number: int, length_bytes: int) -> None:
    """Raises ChunkNumberOutOfRange, ChunkLengthMismatch."""
    check_chunk_number(upload, number)
    expected = chunk_length(number, upload.size, upload.chunk_size)
    if length_bytes != expected:
        raise ChunkLengthMismatch(expected=expected, received=length_bytes)


def _check_claims(upload: Upload, size: int, sha256: str | None) -> None:
    if upload.size != size:
        raise SizeMismatch(f"Your open upload of this MD5 has {upload.size} bytes.", size=upload.size)
    if sha256 is not None and upload.sha256 not in (None, sha256):
        raise Sha256Conflict()


def _check_empty(opening: Opening) -> None:
    """The one content whose digests are known before it is sent."""
    if opening.md5 not in (None, EMPTY_MD5):
        raise Md5Mismatch("This is not the MD5 of nothing.", expected=opening.md5, actual=EMPTY_MD5)
    if opening.sha256 not in (None, EMPTY_SHA256):
        raise Sha256Mismatch("This is not the SHA-256 of nothing.", expected=opening.sha256, actual=EMPTY_SHA256)
