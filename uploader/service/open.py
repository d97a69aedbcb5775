"""The use cases that begin an upload: check free space, open, resume, and take the digests of an upload opened by id.

Before an upload opens, `instant.py` checks if it can finish without bytes.
"""

import asyncio
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

from uploader import errors
from uploader.database import queries, transactions, trash
from uploader.database.engine import Connection, Database, Duplicate
from uploader.database.transactions.rows import BlobLost, NotOpen
from uploader.domain.creations import UPLOAD
from uploader.domain.digest import EMPTY_MD5, EMPTY_SHA256, Challenge
from uploader.domain.upload import ChunkSizes, IfExists, Room, State, Upload, UploadKind, Usage, floor_of
from uploader.runtime.clock import Clock
from uploader.runtime.crashpoints import crash_point
from uploader.runtime.observability import QUOTA_REFUSALS
from uploader.runtime.tasks import uninterrupted
from uploader.service.chunk import Receiving
from uploader.service.ids import new_id
from uploader.service.instant import NO_SOURCE, Instant, Source
from uploader.service.links import Visitors
from uploader.service.precreate import PreCreateHook
from uploader.service.results import Complete, Opening, StillMerging, Target, UploadStatus, check_sent_name
from uploader.service.status import ATTEMPTS, PAUSE_SECONDS, Uploads
from uploader.service.trash import TrashKeeping
from uploader.settings import Settings
from uploader.storage.base import Gone, Housekeeping, Space, UploadBytes

_MOMENT_SECONDS = 1.0
# The space of an unbounded store: more than anybody will ever send, but within the integers of all databases.
UNBOUNDED = Space(total=1 << 62, free=1 << 62, trash=0)


@dataclass(eq=False, repr=False)
class Admission:
    """Checks free space for a new file, above the floor and beyond the bytes promised to open uploads. The sum of promised
    bytes reads all users, so a file that fits is admitted by figures up to a second old. A refusal always uses fresh
    figures. The check is approximate; the floor absorbs the error. Space of the trash counts as free, because the trash
    gives way."""

    settings: Settings
    database: Database
    storage: Housekeeping
    trash: TrashKeeping
    clock: Clock
    _known: Room | None = field(default=None, init=False)
    _known_at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._floor_bytes = self.settings.free_space_floor_bytes

    async def room(self, promised_bytes: int) -> Room:
        space = await self.storage.space() or UNBOUNDED
        return Room(
            total_bytes=space.total,
            free_bytes=space.free,
            trash_bytes=space.trash,
            floor_bytes=floor_of(space.total, self._floor_bytes),
            promised_bytes=promised_bytes,
        )

    async def check(self, size: int) -> None:
        """Raises StorageFull if there is no room for a file of this size."""
        now = self.clock.monotonic()
        is_recent = now - self._known_at < _MOMENT_SECONDS
        if self._known is not None and is_recent and self._known.lacking_bytes(size) == 0:
            return
        self._known = room = await self.room(await self.database.read(queries.promised_bytes))
        self._known_at = now
        if size > room.limit_bytes:
            raise errors.StorageTooSmall(requested=size, limit=room.limit_bytes)
        if not room.fits(size):
            raise errors.StorageFull(
                "The disk has no room for a file of this size; try again later.",
                requested=size,
                available=room.available_bytes,
            )
        lacking_bytes = room.lacking_bytes(size)
        if lacking_bytes:
            self._known = None
            if (await self.trash.make_room(lacking_bytes)).disk_bytes < lacking_bytes:
                raise errors.StorageFull("The disk has no room for a file of this size at the moment; try again soon.")

    async def keep_floor(self) -> None:
        """Make the trash give way if something else has filled the disk. Raises Unavailable."""
        room = await self.room(0)
        lacking_bytes = min(room.lacking_bytes(0), room.trash_bytes)
        if lacking_bytes:
            await self.trash.make_room(lacking_bytes)

    def promise(self, size: int) -> None:
        if self._known is not None:
            self._known = replace(self._known, promised_bytes=self._known.promised_bytes + size)


# Errors of the opening transaction before the commit.
_ROLLED_BACK = (Duplicate, BlobLost, errors.Refused, errors.LinkGone)
_TOO_FAST = "This upload is changing too fast, or its bytes can't be found; try again."


def chunk_sizes_of(settings: Settings) -> ChunkSizes:
    return ChunkSizes(settings.chunk_size_bytes, settings.min_chunk_size_bytes, settings.max_chunk_size_bytes)


@dataclass(frozen=True, slots=True)
class _Found:
    """Rows for a request to open an upload. The account is read only if there is neither an existing upload nor a source for
    an instant upload."""

    existing: Upload | None
    source: Source
    usage: Usage | None = None
    open_uploads: int = 0
    has_room: bool = True


@dataclass(eq=False, repr=False)
class Openings:
    settings: Settings
    database: Database
    storage: UploadBytes
    instant: Instant
    uploads: Uploads
    receiving: Receiving
    admission: Admission
    pre_create_hook: PreCreateHook
    visitors: Visitors
    clock: Clock

    def __post_init__(self) -> None:
        self.chunk_sizes = chunk_sizes_of(self.settings)
        self.max_file_size_bytes = min(self.settings.max_file_size_bytes, self.chunk_sizes.max_file_size())

    async def open(self, opening: Opening) -> UploadStatus | Complete | Challenge:
        """Open or resume an upload, or finish it at once. Raises the errors of `POST /files/{md5}` and `POST /uploads`."""
        check_sent_name(opening.caller, opening.name)
        if opening.size > self.max_file_size_bytes:
            raise errors.FileTooLarge(limit=self.max_file_size_bytes)
        if opening.length_known and opening.size == 0:
            _check_empty(opening)
        for _ in range(ATTEMPTS):
            try:
                return await self._open_once(opening)
            except (Duplicate, Gone, NotOpen, BlobLost):
                await asyncio.sleep(PAUSE_SECONDS)  # another request was faster: look at the new state
        raise errors.Unavailable(_TOO_FAST)

    async def _open_once(self, opening: Opening) -> UploadStatus | Complete | Challenge:
        found = await self.database.read(self._look, opening, brief=True)
        existing, md5 = found.existing, opening.md5
        if md5 is not None:
            if existing is not None:
                _check_claims(existing, opening.size, opening.sha256)
            if not opening.brings_bytes:
                complete = await self.instant.finish(_completed(opening, existing), md5, found.source, existing)
                at_once = complete or await self.instant.challenge(opening, md5)
                if at_once is not None:
                    return at_once
        elif existing is not None and existing.state is not State.OPEN:
            return await self.uploads.ended(existing)
        if existing is not None:
            return await self._resume(existing, opening)
        if opening.caller.session:
            await self.visitors.refuse_early(opening.caller, opening.name, opening.size)
        self._refuse_early(opening, found)
        await self.admission.check(opening.size)
        if (
            self.pre_create_hook.is_on and opening.kind is not UploadKind.PART
        ):  # a part has no name: the hook is asked for the whole
            size = opening.size if opening.length_known else None
            allowed = await self.visitors.ask(
                self.pre_create_hook, UPLOAD, opening.caller, opening.name, size, opening.md5, opening.sha256
            )
            if allowed.name != opening.name:
                opening = replace(opening, name=allowed.name)
                await self.database.read(self._refuse_taken, opening, None)
            if opening.tells_metadata and allowed.metadata is not None:
                opening = replace(opening, metadata=allowed.metadata)
        return await self._open_new(opening)

    async def _look(self, connection: Connection, opening: Opening) -> _Found:
        existing, source = None, NO_SOURCE
        if opening.md5 is not None:
            existing = await queries.open_upload_by_md5(connection, opening.caller, opening.md5)
            source = await self.instant.source(connection, _completed(opening, existing), opening.md5)
        elif opening.idempotency_key is not None:
            existing = await self._by_idempotency_key(connection, opening, opening.idempotency_key)
        if existing is None or existing.state is State.OPEN:
            await self._refuse_taken(connection, _completed(opening, existing), existing)
        if existing is not None or (opening.instant and source != NO_SOURCE):
            return _Found(existing, source)
        usage = await queries.usage(connection, opening.caller.user_id)
        if usage is not None:
            usage = await trash.without_spare(connection, usage, 1, self.settings.max_files)
        has_room = usage is None or usage.takes_files(1, self.settings.max_files)
        has_room = has_room or bool(await queries.left_folders(connection, opening.caller.user_id, 1))
        opened = await queries.count_open_uploads(connection, opening.caller)
        return _Found(None, source, usage, opened, has_room=has_room)

    async def _refuse_taken(self, connection: Connection, opening: Opening, existing: Upload | None) -> None:
        """Raises NameTaken early. A file with the same content does not count: the upload may heal the file."""
        if opening.if_exists in (None, IfExists.KEEP):
            return
        name = opening.name if existing is None else existing.name
        names = transactions.names.Names(connection, opening.caller.user_id)
        await names.read([name])
        if not any(file.may_be(opening.md5, opening.sha256, opening.size) for file in names.standing([name])):
            await names.find(name, opening.if_exists)

    async def _by_idempotency_key(self, connection: Connection, opening: Opening, key: str) -> Upload | None:
        upload = await queries.upload_by_idempotency_key(connection, opening.caller, key)
        if upload is None:
            return None
        # The hook or a move of the folder may have renamed the upload.
        may_be_renamed = self.pre_create_hook.is_on or _last_segment(upload.name) == _last_segment(opening.name)
        if upload.size != opening.size or (upload.name != opening.name and not may_be_renamed):
            raise errors.InvalidRequest.field("Idempotency-Key", "was used with another name or size")
        return upload

    async def _resume(self, upload: Upload, opening: Opening) -> UploadStatus | Complete:
        if opening.sha256 is not None and upload.sha256 is None:
            upload = await self._tell(upload, None, opening.sha256)
        wanted = _completed(opening, upload)
        if (wanted.if_exists, wanted.modified_at) != (upload.if_exists, upload.modified_at):
            await self.database.transact(
                transactions.uploads.choose, upload.id, wanted.if_exists or IfExists.KEEP, wanted.modified_at
            )
        if upload.length_known and upload.size == 0:
            return await self._merge_empty(upload)
        status = await self.uploads.status_of(upload)
        self.receiving.expect(upload)
        return status

    async def _merge_empty(self, upload: Upload) -> UploadStatus | Complete:
        match await self.uploads.merge_now(upload):
            case StillMerging(status):
                return status
            case complete:
                return complete

    async def _open_new(self, opening: Opening) -> UploadStatus | Complete:
        now = self.clock.now()
        upload_id = opening.id or new_id()
        upload = Upload(
            id=upload_id,
            user_id=opening.caller.user_id,
            session=opening.caller.session,
            md5=opening.md5,
            sha256=opening.sha256,
            name=opening.name,
            size=opening.size,
            chunk_size=self.chunk_sizes.choose(
                opening.chunk_size, opening.size if opening.length_known else self.max_file_size_bytes
            ),
            place=self.storage.place_of(upload_id, now),
            idempotency_key=opening.idempotency_key,
            created_at=now,
            updated_at=now,
            if_exists=opening.if_exists or UPLOAD.if_exists,
            modified_at=opening.modified_at,
            metadata=opening.metadata,
            length_known=opening.length_known,
            computes_md5=opening.computes_md5,
            kind=opening.kind,
        )
        era = await self.uploads.era(upload_id)
        made_at = await uninterrupted(self._create(upload))
        crash_point("open.after_commit")
        self.admission.promise(upload.size)
        if upload.length_known and upload.size == 0 and not upload.is_part:
            return await self._merge_empty(upload)
        self.receiving.expect(upload)
        return await self.uploads.begun(upload, era, made_at)

    async def _create(self, upload: Upload) -> float:
        """Make the directory before the row: with a row and no directory, acknowledged bytes would be lost."""
        made_at = await self.storage.create(upload)
        crash_point("open.after_create")
        insert = partial(
            transactions.uploads.open_upload,
            max_open_uploads=self.settings.max_open_uploads,
            max_files=self.settings.max_files,
            expires_at=upload.created_at + timedelta(seconds=self.settings.upload_expiry_seconds),
        )
        try:
            await self.database.transact(insert, upload)
        except Exception as error:
            if isinstance(error, _ROLLED_BACK) or not await self._may_have_committed(upload):
                await self.storage.discard(upload)
            if isinstance(error, errors.QuotaExceeded):
                QUOTA_REFUSALS.inc()
            raise
        return made_at

    async def _may_have_committed(self, upload: Upload) -> bool:
        """Return whether the row may exist. If the answer of the database was lost, the commit may still happen, and then
        the directory has to stay."""
        try:
            return await self.database.transact(queries.is_inserted, upload.id)
        except errors.Unavailable:
            return True

    def _refuse_early(self, opening: Opening, found: _Found) -> None:
        """Refuse early, before anything is written. The transaction decides."""
        usage = found.usage
        if usage is not None and not usage.fits(opening.size):
            QUOTA_REFUSALS.inc()
            raise errors.QuotaExceeded(**usage.figures(opening.size))
        if not found.has_room:
            raise errors.TooManyFiles(limit=self.settings.max_files)
        if found.open_uploads >= self.settings.max_open_uploads:
            raise errors.TooManyUploads(limit=self.settings.max_open_uploads)

    # Telling the digests

    async def tell(self, target: Target, md5: str, sha256: str | None) -> UploadStatus | Complete | Challenge:
        """Take the digests of an upload opened by id, when its client has computed them. Raises LengthUnknown, Md5Conflict,
        Sha256Conflict, UploadExists, UploadNotFound, UploadGone, Unavailable."""
        for _ in range(ATTEMPTS):
            try:
                match await self.uploads.find(target):
                    case Upload() as upload:
                        return await self._tell_once(upload, md5, sha256)
                    case Complete(file=file) as complete:
                        if file.md5 not in (None, md5):
                            raise errors.Md5Conflict("The upload is complete, with another MD5.")
                        return complete
            except (NotOpen, Gone, BlobLost, Duplicate):
                await asyncio.sleep(PAUSE_SECONDS)
        raise errors.Unavailable(_TOO_FAST)

    async def _tell_once(self, upload: Upload, md5: str, sha256: str | None) -> UploadStatus | Complete | Challenge:
        if not upload.length_known:
            raise errors.LengthUnknown()
        if upload.is_part:
            raise errors.Forbidden("This upload is a part: it becomes no file of its own.")
        if upload.md5 not in (None, md5):
            raise errors.Md5Conflict()
        if sha256 is not None and upload.sha256 not in (None, sha256):
            raise errors.Sha256Conflict()
        other = await self.uploads.by_md5(upload.caller, md5)
        if other is not None and other.id != upload.id:
            raise errors.UploadExists(id=other.id)
        opening = Opening(
            caller=upload.caller,
            md5=md5,
            sha256=sha256,
            name=upload.name,
            size=upload.size,
            if_exists=upload.if_exists,
            modified_at=upload.modified_at,
        )
        known = _completed(opening, upload)
        source = await self.database.read(self.instant.source, known, md5, brief=True)
        complete = await self.instant.finish(known, md5, source, upload)
        if complete is not None:
            return replace(complete, created=True)
        told = await self._tell(upload, md5, sha256)
        return await self.instant.challenge(opening, md5) or await self.uploads.status_of(told)

    async def _tell(self, upload: Upload, md5: str | None, sha256: str | None) -> Upload:
        """Store claimed digests. Digests that another request has claimed meanwhile stay. Raises Md5Conflict,
        Sha256Conflict."""
        told = await self.database.transact(transactions.uploads.tell_digests, upload.id, md5, sha256)
        crash_point("tell.after_commit")
        if md5 is not None and told.md5 != md5:
            raise errors.Md5Conflict()
        if sha256 is not None and told.sha256 != sha256:
            raise errors.Sha256Conflict()
        if told.needs_md5 and not upload.needs_md5:
            self.storage.follow(told)
        return told


def _last_segment(name: str) -> str:
    return name.rpartition("/")[2]


def _completed(opening: Opening, existing: Upload | None) -> Opening:
    if existing is None:
        return opening
    return replace(
        opening,
        sha256=opening.sha256 or existing.sha256,
        if_exists=opening.if_exists or existing.if_exists,
        modified_at=opening.modified_at or existing.modified_at,
    )


def _check_claims(upload: Upload, size: int, sha256: str | None) -> None:
    if upload.size != size:
        raise errors.SizeMismatch(f"Your open upload of this MD5 has {upload.size} bytes.", size=upload.size)
    if sha256 is not None and upload.sha256 not in (None, sha256):
        raise errors.Sha256Conflict()


def _check_empty(opening: Opening) -> None:
    """Check the digests claimed for an empty file. Raises Md5Mismatch, Sha256Mismatch."""
    if opening.md5 not in (None, EMPTY_MD5):
        raise errors.Md5Mismatch("This is not the MD5 of nothing.", expected=opening.md5, actual=EMPTY_MD5)
    if opening.sha256 not in (None, EMPTY_SHA256):
        raise errors.Sha256Mismatch("This is not the SHA-256 of nothing.", expected=opening.sha256, actual=EMPTY_SHA256)
