"""Tells what the bucket holds, whatever the rows say, and removes it.

What no row names may be on its way: so its age counts, by the clock of the store that it has its date from.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import UTC, datetime

from uploader.clock import Clock
from uploader.domain.upload import Upload
from uploader.storage.base import Found
from uploader.storage.s3 import keys
from uploader.storage.s3.bucket import Bucket, Stat
from uploader.storage.s3.completing import Completing
from uploader.storage.s3.ledger import Ledger
from uploader.storage.s3.parts import Multipart, multipart_of
from uploader.tasks import Pool

_LIST_BATCH = 250


class S3Housekeeping:
    """As `Housekeeping`."""

    def __init__(
        self,
        bucket: Bucket,
        ledger: Ledger,
        pool: Pool,
        completing: Completing,
        clock: Clock,
        check_stopping: Callable[[], None],
    ) -> None:
        self._bucket = bucket
        self._ledger = ledger
        self._pool = pool
        self._completing = completing
        self._clock = clock
        self._check_stopping = check_stopping

    # Uploads

    async def list_uploads(self, opened_before: datetime) -> AsyncIterator[list[Found]]:
        """Those that the ledger knows; then multipart uploads that it does not."""
        after = ""
        while batch := await self._ledger.opened_before(opened_before, after=after, limit=_LIST_BATCH):
            self._check_stopping()
            yield [
                Found(entry.upload_id, f"{keys.UPLOADS}{entry.upload_id}", 0, entry.written_at.timestamp(), 0)
                for entry in batch
            ]
            after = max(entry.upload_id for entry in batch)
        async for multiparts in self._multiparts():
            yield multiparts

    async def _multiparts(self) -> AsyncIterator[list[Found]]:
        ahead = await self._clock_ahead()
        listed = self._bucket.list_multiparts()
        while (batch := await self._next(listed)) is not None:
            begun = [(Multipart(key, multipart_id), at) for key, multipart_id, at in batch if keys.upload_in(key)]
            known = await self._known_multiparts([multipart for multipart, _ in begun])
            yield [
                Found(keys.upload_in(multipart.key), multipart.word(), 0, at.timestamp() - ahead, 0)
                for multipart, at in begun
                if multipart.word() not in known
            ]

    async def _known_multiparts(self, multiparts: Sequence[Multipart]) -> set[str]:
        """Those that the ledger names, in its words."""
        known = await self._ledger.uploads_of([keys.upload_in(each.key) for each in multiparts])
        return {word for word in known.values() if word is not None}

    async def _next(
        self, listed: "Iterator[list[tuple[str, str, datetime]]]"
    ) -> list[tuple[str, str, datetime]] | None:
        self._check_stopping()
        return await self._pool.run(lambda: next(listed, None))

    async def _clock_ahead(self) -> float:
        """By how many seconds the store's clock is ahead of ours."""
        return (await self._pool.run(self._bucket.clock)).timestamp() - self._clock.now().timestamp()

    async def remaining(self, uploads: list[Upload]) -> list[Upload]:
        known = await self._ledger.uploads_of([upload.id for upload in uploads])
        return [upload for upload in uploads if upload.id in known]

    async def holds_chunks(self, found: Found) -> bool:
        if ":" in found.place:
            return False  # a multipart upload without a row: to this database none of its parts was ever acknowledged
        entry = await self._ledger.entry(found.name)
        return entry is not None and bool(entry.parts or entry.tail)

    async def remove(self, found: Found) -> bool:
        if ":" in found.place:
            multipart = multipart_of(found.place)
            await self._pool.run(self._bucket.abort, multipart.key, multipart.id)
            return True
        if found.is_blob:
            if await self._ledger.named([found.place]):
                return False
            await self._pool.run(self._bucket.delete, [found.place])
            return True
        return await self._completing.remove(found.name)

    # Contents

    async def list_blobs(self) -> AsyncIterator[list[Found]]:
        """Objects that contents lie at, and those that no row names. Signatures without their contents are drafts."""
        ahead = await self._clock_ahead()
        for prefix in (keys.UPLOADS, keys.WHOLES, keys.SIGNATURES):
            listed = self._bucket.list_keys(prefix)
            while True:
                self._check_stopping()
                batch = await self._pool.run(lambda listed=listed: next(listed, None))
                if batch is None:
                    break
                if prefix == keys.SIGNATURES:
                    yield await self._stray_signatures(batch, ahead)
                else:
                    yield await self._blobs_of(batch, ahead)

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
        """Those that open uploads were completed to, on their way to become contents."""
        known = await self._ledger.uploads_of([upload_id for upload_id in map(keys.upload_in, listed) if upload_id])
        completed = {multipart_of(word).key for word in known.values() if word is not None}
        return completed | set(map(keys.of_empty, known))

    async def _stray_signatures(self, batch: Sequence[Stat], ahead: float) -> list[Found]:
        owners = {stat.key: stat.key.removeprefix(keys.SIGNATURES) for stat in batch}
        kept = await self._ledger.kept(list(owners.values()))
        return [_found(stat, None, ahead, is_draft=True) for stat in batch if owners[stat.key] not in kept]


def _found(stat: Stat, sha256: str | None, ahead: float, *, is_draft: bool = False) -> Found:
    changed_at = stat.modified_at.astimezone(UTC).timestamp() - ahead
    return keys.found(stat.key, name=sha256, changed_at=changed_at, size=stat.size, is_draft=is_draft)
