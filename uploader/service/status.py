"""The use cases of an upload as a whole: find, report the state, merge, cancel. Knows nothing of HTTP."""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from uploader.accounting.pending import Pending
from uploader.database import queries, transactions
from uploader.database.engine import Connection, Database
from uploader.database.transactions.rows import NotOpen
from uploader.domain.links import Caller
from uploader.domain.upload import REFUSED, File, Reason, State, Upload, chunk_count, missing_ranges
from uploader.errors import Forbidden, Unavailable, UploadActive, UploadGone, UploadNotFound
from uploader.runtime.clock import Clock
from uploader.runtime.observability import level_of
from uploader.service.close import Closers
from uploader.service.merge import Merging
from uploader.service.results import Complete, StillMerging, Target, UploadStatus
from uploader.settings import Settings
from uploader.storage.base import Gone, PresentChunks
from uploader.storage.store import Store

logger = logging.getLogger(__name__)

# How often a call is repeated when other requests close or open the same upload meanwhile.
ATTEMPTS = 5
PAUSE_SECONDS = 0.02


@dataclass(eq=False, repr=False)
class Uploads:
    settings: Settings
    database: Database
    storage: Store
    pending: Pending
    closers: Closers
    merging: Merging
    clock: Clock

    # Finding

    async def find(self, target: Target, *, newest_file: bool = False) -> Upload | Complete:
        """Return the open upload, or the file that it became. `newest_file`: for an MD5 return the newest file,
        whatever became of earlier uploads. Raises UploadNotFound, UploadGone."""
        if target.md5 is None:
            upload = await self.known(target)
            return upload if upload.state is State.OPEN else await self.ended(upload)
        if target.upload_id is None:
            return await self._find_by_md5(target.caller, target.md5, newest_file=newest_file)
        row = await self._by_id(target)
        if row is not None and row.md5 == target.md5:
            return row if row.state is State.OPEN else await self.ended(row)
        await self._find_by_md5(target.caller, target.md5, newest_file=True)
        raise UploadGone("This MD5 has another upload now.", reason="unknown")

    async def by_md5(self, caller: Caller, md5: str | None) -> Upload | None:
        """Return the open upload with this MD5; None without an MD5."""
        if md5 is None:
            return None
        return await self.database.read(queries.open_upload_by_md5, caller, md5, brief=True)

    async def known(self, target: Target) -> Upload:
        """Return an upload as its row says, open or closed. Raises UploadNotFound."""
        upload = await self._by_id(target)
        if upload is None:
            raise UploadNotFound()
        return upload

    async def forget_metadata(self, target: Target) -> None:
        await self.database.transact(transactions.uploads.forget_metadata, target.upload_id or "")

    async def forget(self, target: Target) -> None:
        """Forget an upload that became a file; the file stays. Raises UploadNotFound."""
        upload = await self.known(target)
        await self.closers.tidy(upload.id)  # first: without the row, nobody knows whose bytes these are
        await self.database.transact(transactions.uploads.purge_uploads, [upload.id])

    async def _by_id(self, target: Target) -> Upload | None:
        upload = await self.database.read(queries.upload_by_id, target.upload_id or "", brief=True)
        return upload if upload is not None and upload.caller == target.caller else None

    async def _find_by_md5(self, caller: Caller, md5: str, *, newest_file: bool) -> Upload | Complete:
        async def look(connection: Connection) -> tuple[Upload | None, tuple[File, bool] | None]:
            upload = await queries.open_upload_by_md5(connection, caller, md5)
            if upload is not None:
                return upload, None
            upload = await queries.newest_closed_upload(connection, caller, md5)
            known = upload if upload is not None and self._is_remembered(upload) else None
            return known, await queries.newest_sent(connection, caller, md5)

        upload, sent = await self.database.read(look, brief=True)
        if upload is not None and (upload.state is State.OPEN or sent is None):
            return upload if upload.state is State.OPEN else await self.ended(upload)
        if sent is None:
            raise UploadNotFound()
        file, refused = sent
        if upload is not None:
            # A repeated request gets the result of its own upload, even if the caller has older files of this content. Ids
            # tell the order: `closed_at` and `created_at` may come from servers whose clocks differ.
            is_its_result = max(upload.id, upload.file_id or "") >= file.id
            is_newest_refused = upload.is_refused and (upload.file_id or "") > file.id
            if is_newest_refused or (is_its_result and not newest_file):
                return await self.ended(upload)
        if refused and not caller.session:
            raise UploadGone(reason=REFUSED)
        return Complete(file=file, created=False)

    def _is_remembered(self, upload: Upload) -> bool:
        """Return whether a closed upload is within the retention of closed uploads."""
        since = self.clock.now() - timedelta(seconds=self.settings.closed_retention_seconds)
        return upload.closed_at is not None and upload.closed_at > since

    async def ended(self, upload: Upload) -> Complete:
        """Return the file that a closed upload became. Raises UploadGone, or UploadNotFound if the file was deleted or
        the upload was closed too long ago."""
        if not self._is_remembered(upload):
            raise UploadNotFound()
        if upload.state is not State.DONE:
            raise UploadGone(reason=upload.close_reason)
        file = await self.database.read(queries.file_of_upload, upload, brief=True)
        if file is None and upload.is_refused:
            raise UploadGone(reason=REFUSED)
        if file is None:
            raise UploadNotFound()
        return Complete(file=file, created=False)

    # Asking

    async def status(self, target: Target) -> UploadStatus | Complete:
        """Return the state of an upload. Raises UploadNotFound, UploadGone, Unavailable."""
        for _ in range(ATTEMPTS):
            try:
                match await self.find(target, newest_file=True):
                    case Upload() as upload:
                        return await self.status_of(upload)
                    case complete:
                        return complete
            except (Gone, NotOpen):
                await asyncio.sleep(PAUSE_SECONDS)  # the upload was closed between the two looks
        raise Unavailable("The bytes of this upload can't be found.")

    async def status_of(self, upload: Upload) -> UploadStatus:
        chunk_map = await self.closers.read_map(upload)
        await self._compare_with_redis(upload, chunk_map)
        reserved = chunk_count(upload.size, upload.chunk_size)  # more may come while the length is unknown
        return UploadStatus(
            upload=upload,
            merging=chunk_map.complete and not upload.is_part,
            received_bytes=chunk_map.received_bytes,
            missing=missing_ranges(chunk_map.present[:reserved]),
            merged_bytes=await self.storage.digested_bytes(upload) if chunk_map.complete else 0,
            expires_at=self.expires_at(chunk_map.written_at),
        )

    async def era(self, upload_id: str) -> str:
        """Return the era of Redis; an empty text while Redis is away."""
        try:
            return (await self.pending.read(upload_id)).era
        except Unavailable:
            return ""

    async def begun(self, upload: Upload, era: str, made_at: float) -> UploadStatus:
        """Return the state of a new upload, without reading its bytes. `era`: read before the opening."""
        if era and not upload.is_part:
            with suppress(Unavailable):  # the first chunk will introduce the upload
                await self.pending.introduce(upload, era=era)
        return UploadStatus(
            upload=upload,
            merging=False,
            received_bytes=0,
            missing=missing_ranges(bytearray(chunk_count(upload.size, upload.chunk_size))),
            merged_bytes=0,
            expires_at=self.expires_at(made_at),
            created=True,
        )

    def expires_at(self, written_at: float | None = None) -> datetime:
        written = self.clock.now() if written_at is None else datetime.fromtimestamp(written_at, UTC)
        return written + timedelta(seconds=self.settings.upload_expiry_seconds)

    async def _compare_with_redis(self, upload: Upload, stored: PresentChunks) -> None:
        """Hydrate an upload that Redis lacks, or knows differently than the disk. Without Redis the disk answers."""
        try:
            known = await self.pending.read(upload.id)
            differs = known.received != stored.received_bytes or (known.state == "open" and stored.complete)
            if not known.state or (known.state in ("open", "merging") and differs):
                await self.closers.hydrate(upload)
        except Unavailable:
            return

    async def list_open(self, caller: Caller) -> list[UploadStatus]:
        """Return open uploads, newest first, without those whose bytes can't be read now. Raises Unavailable."""
        uploads = await self.database.read(queries.open_uploads, caller)
        statuses = []
        for upload in uploads:
            try:
                statuses.append(await self.status_of(upload))
            except (Gone, NotOpen):
                continue  # closed meanwhile
            except Unavailable as error:
                await self.storage.check()
                logger.log(
                    level_of(error), "an upload is not listed", extra={"upload_id": upload.id, "reason": error.reason}
                )
        return statuses

    async def states(self, caller: Caller, md5s: list[str]) -> dict[str, str]:
        """Return for each MD5 the state of the caller's own: `complete`, `held`, `uploading`, `merging` or `absent`."""

        async def look(connection: Connection) -> tuple[list[queries.Blob], dict[str, Upload], set[str]]:
            blobs = await queries.contents_by_md5(connection, caller, md5s)
            held = await queries.held_md5s(connection, caller, md5s)
            return blobs, await queries.open_md5s(connection, caller, md5s), held

        blobs, open_uploads, held = await self.database.read(look)
        sizes = await self.storage.blob_sizes([blob.sha256 for blob in blobs])
        finished = {blob.md5 for blob, size in zip(blobs, sizes, strict=True) if size == blob.size}
        if caller.session:  # a visitor does not learn of gates
            finished, held = finished | held, set()
        states = {}
        for md5 in md5s:
            if md5 in open_uploads:
                states[md5] = await self._state_of(open_uploads[md5], md5 in finished)
            else:
                states[md5] = "held" if md5 in held else "complete" if md5 in finished else "absent"
        return states

    async def _state_of(self, upload: Upload, finished: bool) -> str:
        try:
            return "merging" if (await self.closers.read_map(upload)).complete else "uploading"
        except (Gone, NotOpen):
            return "complete" if finished else "absent"
        except Unavailable as error:
            logger.log(
                level_of(error),
                "an upload does not tell its state",
                extra={"upload_id": upload.id, "reason": error.reason},
            )
            return "uploading"

    # Merging

    async def merge(self, target: Target) -> StillMerging | Complete:
        """Merge again, for a client that lost the answer. Raises ChunksMissing, and as the merge does."""
        match await self.find(target):
            case Upload(is_part=True):
                raise Forbidden("This upload is a part: it is merged with its whole.")
            case Upload() as upload:
                return await self.merge_now(upload)
            case complete:
                return complete

    async def merge_now(self, upload: Upload) -> StillMerging | Complete:
        """Merge while the request waits. The file is `created` if this merge made it. Raises as the merge does."""
        complete = await self.merging.wait(upload.id)
        if complete is not None:
            return complete
        try:
            return StillMerging(await self.status_of(upload))
        except (Gone, NotOpen):
            return await self.merging.finish(upload.id)  # the upload is closed: `finish` only reads the outcome

    def begin_merge(self, upload: Upload) -> None:
        self.merging.start(upload.id)

    # Cancelling

    async def cancel(self, target: Target, reason: Reason = Reason.CANCELLED) -> None:
        """End an open upload without a file, even during its merge. Raises UploadNotFound, UploadGone."""
        if target.upload_id is None:
            upload = await self.by_md5(target.caller, target.md5)
            if upload is None:
                raise UploadNotFound()
        else:
            upload = await self._find_open(target)
        try:
            await self.closers.close(upload, reason)
        except NotOpen as error:
            if target.upload_id is not None:
                await self.find(target)  # raises the reason why the upload is gone
            raise UploadNotFound() from error

    async def _find_open(self, target: Target) -> Upload:
        match await self.find(target):
            case Upload() as upload:
                return upload
            case Complete():
                raise UploadNotFound()

    async def expire(self, upload_id: str, idle_seconds: float) -> None:
        """Expire an open upload of any user now. With `idle_seconds`, keep an upload that received bytes in the
        meantime; the check happens under the locks. Raises UploadNotFound, UploadGone, UploadActive, Unavailable."""
        upload = await self.database.read(queries.upload_by_id, upload_id, brief=True)
        if upload is None:
            raise UploadNotFound()
        if upload.state is State.OPEN:
            with suppress(NotOpen):
                if not idle_seconds:
                    await self.closers.close(upload, Reason.EXPIRED)
                    return
                if await self.closers.expire(upload, idle_seconds):
                    return
        await self._find_open(Target(upload.caller, upload_id=upload_id))
        raise UploadActive()
