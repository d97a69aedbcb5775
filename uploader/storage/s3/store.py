"""The store on an S3-compatible server, behind `storage/base.py`: its life, its mark and its housekeeping.

Rows say which chunks were acknowledged and where blobs lie (`ledger.py`); S3 holds the bytes. A node keeps nothing but
caches in its memory, so any node may go on with any upload.
"""

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime

from uploader.domain.diagnosis import Diagnosis, diagnoses_of_skew
from uploader.domain.upload import Upload
from uploader.errors import ConfigurationError, StorageFull
from uploader.runtime.clock import Clock
from uploader.runtime.crashpoints import crash_point
from uploader.storage import store as stores
from uploader.storage.base import BytesBody, Found, Gone, Stretch
from uploader.storage.s3 import bucket
from uploader.storage.s3.blobs import S3Blobs
from uploader.storage.s3.bucket import Bucket, Stat
from uploader.storage.s3.ledger import Ledger
from uploader.storage.s3.multipart import S3Endings
from uploader.storage.s3.parts import Multipart, multipart_of
from uploader.storage.s3.probe import diagnoses_of, probe
from uploader.units import format_size

_LIST_BATCH = 250
# Answers are dated to the second.
_DATE_SECONDS = 1.0


# The mark of a bucket: the object `marks/installation`, and `marks/proposed/<id>` during a first start.
#
# On S3 no writer can be the first: of two at the same time, the later one wins. So each first start proposes under a key of
# its own, and the database decides between them. The winner is found among the proposals, whatever was written afterwards.


# The version of everything in the bucket.
FORMAT = 1
MARK, PROPOSALS = "marks/installation", "marks/proposed/"


class S3Marks(stores.MarkFiles):
    """The objects that name the installation of a store."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.store = stores.StoreName(f"bucket {bucket.url}", "UPLOADER_STORAGE", "is it the right one?")

    def read(self, known: str | None = None) -> stores.Marks:
        proposed = frozenset(key.removeprefix(PROPOSALS) for key in self._proposals())
        proposals = frozenset(filter(stores.INSTALLATION_ID.fullmatch, proposed))
        found = self._mark(known)
        if found is None:
            return stores.Marks(None, proposals)
        return stores.Marks(found.installation, proposals, not found.is_checked, found.is_damaged)

    def propose(self, installation: str, marks: stores.Marks) -> None:
        if not marks.proposed:
            self._write(f"{PROPOSALS}{installation}", installation)
            crash_point("mark.after_proposal")

    def write(self, installation: str, *, replace: bool) -> None:
        self._write(MARK, installation)
        if not replace:
            crash_point("mark.after_mark")

    def forget_proposals(self, *, is_durable: bool = True) -> None:
        proposals = self._proposals()
        if proposals:
            self._bucket.delete(proposals)

    def _proposals(self) -> list[str]:
        return [stat.key for batch in self._bucket.list_keys(PROPOSALS) for stat in batch]

    def _write(self, key: str, installation: str) -> None:
        self._bucket.put(key, BytesBody(stores.mark_of(FORMAT, installation)))

    def _mark(self, known: str | None) -> stores.Mark | None:
        stat = self._bucket.head(MARK)
        if stat is None:
            return None
        try:
            content = self._bucket.get(MARK, 0, min(stat.size, stores.MAX_MARK_BYTES))
        except Gone:
            return None
        found = stores.parse_mark(content, FORMAT, known)
        if found is not None and found.version > FORMAT:
            raise ConfigurationError(
                f"UPLOADER_STORAGE: it was written in format {found.version}, newer than this version's {FORMAT}: install "
                "a newer one"
            )
        if found is None or not stores.INSTALLATION_ID.fullmatch(found.installation):
            raise ConfigurationError(
                f"UPLOADER_STORAGE: the object {MARK} in it is damaged: remove it and run `uploader adopt`"
            )
        return found


class S3Store(S3Endings, S3Blobs):
    """The store in a bucket, with its ledger."""

    keeps_files = False
    # Objects go to the trash for any retention: they are removed after the transaction that released them.
    keeps_trash = True
    lists_by_location = True

    def __init__(self, bucket: Bucket, ledger: Ledger, clock: Clock, *, min_chunk_size_bytes: int) -> None:
        super().__init__(bucket, ledger, clock)
        self._min_chunk_size_bytes = min_chunk_size_bytes
        self.marks = stores.InstallationMark(S3Marks(bucket), self._requests)

    # Its life

    async def prepare(self) -> None:
        min_part_bytes = await self._requests.run(probe, self._bucket)
        if min_part_bytes is not None and self._min_chunk_size_bytes < min_part_bytes:
            raise ConfigurationError(
                f"UPLOADER_MIN_CHUNK_SIZE: chunks are parts, and {self._bucket.place} takes none below "
                f"{format_size(min_part_bytes)}"
            )

    async def diagnoses(self, *, upload_expiry_seconds: float) -> list[Diagnosis]:
        found = await self._requests.run(diagnoses_of, self._bucket, upload_expiry_seconds)
        found += diagnoses_of_skew("the store on S3", await self._clock_ahead(), within_seconds=_DATE_SECONDS)
        return found

    async def check(self) -> None:
        try:
            await self._requests.run(self._bucket.check)
            self.is_full = False
        except StorageFull:
            self.is_full = True

    async def check_answers(self) -> None:
        if self._bucket.is_to_be_tried():
            await self._requests.run(self._bucket.try_writing)

    def close(self) -> None:
        super().close()
        self._requests.shutdown()
        self._bucket.close()

    # Housekeeping lists and removes objects, whatever the rows say. A new object gets its row later, so objects have to be
    # of some age. Ages are computed with the clock of the store, because the store dates the objects.

    async def list_uploads(self, opened_before: datetime) -> AsyncIterator[list[Found]]:
        """List the uploads in the ledger, then the multipart uploads that the ledger does not know."""
        after = ""
        while batch := await self._ledger.opened_before(opened_before, after=after, limit=_LIST_BATCH):
            self.check_stopping()
            yield [
                Found(entry.upload_id, f"{bucket.UPLOADS}{entry.upload_id}", 0, entry.written_at.timestamp(), 0)
                for entry in batch
            ]
            after = max(entry.upload_id for entry in batch)
        async for multiparts in self._multiparts():
            yield multiparts

    async def _multiparts(self) -> AsyncIterator[list[Found]]:
        ahead = await self._clock_ahead()
        async for batch in self.in_batches(self._requests, self._bucket.list_multiparts()):
            begun = [(Multipart(key, multipart_id), at) for key, multipart_id, at in batch if bucket.upload_of_key(key)]
            uploads = await self._ledger.uploads_of([bucket.upload_of_key(multipart.key) for multipart, _ in begun])
            known = set(uploads.values())
            yield [
                Found(bucket.upload_of_key(multipart.key), multipart.word(), 0, at.timestamp() - ahead, 0)
                for multipart, at in begun
                if multipart.word() not in known
            ]

    async def _clock_ahead(self) -> float:
        """Return how many seconds the clock of the store is ahead of ours."""
        return (await self._requests.run(self._bucket.clock)).timestamp() - self._clock.now().timestamp()

    async def remaining(self, uploads: list[Upload]) -> list[Upload]:
        known = await self._ledger.uploads_of([upload.id for upload in uploads])
        return [upload for upload in uploads if upload.id in known]

    async def holds_chunks(self, found: Found) -> bool:
        if ":" in found.place:
            return False  # a multipart upload without a row: this database has acknowledged none of its parts
        entry = await self._ledger.entry(found.name)
        return entry is not None and bool(entry.parts or entry.tail)

    async def remove(self, found: Found) -> bool:
        if found.in_trash:
            return await self._remove_from_trash(found)
        if ":" in found.place:
            multipart = multipart_of(found.place)
            await self._requests.run(self._bucket.abort, multipart.key, multipart.id)
            return True
        if found.is_blob:
            if await self._ledger.named([found.place]):
                return False
            await self._requests.run(self._bucket.delete, [found.place])
            return True
        return await self._remove_upload(found.name)

    # Contents

    async def list_blobs(self, after: str = "") -> AsyncIterator[Stretch]:
        """List the objects of blobs and the objects without a row, by key. A signature without its blob is a draft."""
        ahead = await self._clock_ahead()
        for prefix in sorted((bucket.UPLOADS, bucket.WHOLES, bucket.SIGNATURES)):
            begin = after if after.startswith(prefix) else ""
            listed = self._bucket.list_keys(prefix, begin) if begin or prefix > after else iter(())
            async for batch in self.in_batches(self._requests, listed):
                if batch:
                    find = self._signatures_of if prefix == bucket.SIGNATURES else self._blobs_of
                    yield Stretch(await find(batch, ahead), max(stat.key for stat in batch))
        yield Stretch([], None)

    async def _signatures_of(self, batch: Sequence[Stat], ahead: float) -> list[Found]:
        """Find the signatures without their blobs."""
        owners = {stat.key: stat.key.removeprefix(bucket.SIGNATURES) for stat in batch}
        kept = await self._ledger.kept(list(owners.values()))
        return [_found(stat, None, ahead, is_draft=True) for stat in batch if owners[stat.key] not in kept]

    async def _blobs_of(self, batch: Sequence[Stat], ahead: float) -> list[Found]:
        listed = [stat.key for stat in batch]
        contents = await self._ledger.contents_at(listed)
        named = await self._ledger.named(listed)
        open_uploads = await self._completed_of([key for key in listed if key not in named])
        return [
            _found(stat, contents.get(stat.key), ahead)
            for stat in batch
            if stat.key in contents or (stat.key not in named and stat.key not in open_uploads)
        ]

    async def _completed_of(self, listed: Sequence[str]) -> set[str]:
        """Return the keys at which open uploads are completed, on their way to become blobs."""
        known = await self._ledger.uploads_of(
            [upload_id for upload_id in map(bucket.upload_of_key, listed) if upload_id]
        )
        completed = {multipart_of(word).key for word in known.values() if word is not None}
        return completed | set(map(bucket.key_of_empty, known))


def _found(stat: Stat, sha256: str | None, ahead: float, *, is_draft: bool = False) -> Found:
    changed_at = stat.modified_at.astimezone(UTC).timestamp() - ahead
    return bucket.found_at_key(stat.key, name=sha256, changed_at=changed_at, size=stat.size, is_draft=is_draft)
