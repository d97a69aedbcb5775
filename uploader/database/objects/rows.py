"""The ledger of the store on S3, in the database: each of its methods is one transaction."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from uploader.database.engine import Database, Duplicate, Work
from uploader.database.objects import contents, uploads
from uploader.domain.objects import Entry, PartNoted, PutAway, SavedDigest, StoredPart, TailObject


class ObjectRows:
    """What the store on S3 has written down; `storage/s3/ledger.py` says what each method does."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # Uploads

    async def open(self, upload_id: str, multipart_id: str | None, now: datetime) -> None:
        work = partial(uploads.open_upload, upload_id=upload_id, multipart_id=multipart_id, now=now)
        try:
            await self._database.transact(work)
        except Duplicate:
            await self._database.sync()

    async def entry(self, upload_id: str) -> Entry | None:
        return await self._database.read_durably(partial(uploads.entry, upload_id=upload_id))

    async def glance(self, upload_id: str, number: int) -> Entry | None:
        return await self._database.read(partial(uploads.look_at_chunk, upload_id=upload_id, number=number), brief=True)

    async def look(self, upload_id: str, number: int, digested_bytes: int = 0) -> Entry | None:
        found = await self.glance(upload_id, number)
        if found is None:
            return None
        is_further = found.digest is not None and found.digest.position > digested_bytes
        if found.parts or is_further:  # it is acknowledged once more, or gone on from
            await self._database.sync()
        return found

    async def add_part(
        self, upload_id: str, fence: int, part: StoredPart, now: datetime, digest: SavedDigest | None = None
    ) -> PartNoted:
        work = partial(uploads.add_part, upload_id=upload_id, fence=fence, part=part, now=now, digest=digest)
        try:
            noted = await self._database.transact(work)
        except Duplicate:
            noted = PartNoted.PRESENT
        if noted is not PartNoted.ADDED:
            await self._database.sync()
        return noted

    async def move_tail(
        self, upload_id: str, fence: int, before: TailObject | None, after: TailObject | None, now: datetime
    ) -> bool:
        return await self._done(
            partial(uploads.move_tail, upload_id=upload_id, fence=fence, before=before, after=after, now=now)
        )

    async def claim(self, upload_id: str, appender: str) -> bool:
        return await self._done(partial(uploads.claim, upload_id=upload_id, appender=appender))

    async def appender(self, upload_id: str) -> str | None:
        return await self._database.read(partial(uploads.appender, upload_id=upload_id), brief=True)

    async def freeze(self, upload_id: str) -> Entry | None:
        found, freezes = await self._database.transact(partial(uploads.freeze, upload_id=upload_id))
        if not freezes:
            await self._database.sync()
        return None if found is None else replace(found, newly_frozen=freezes)

    async def withdraw(
        self, upload_id: str, numbers: Sequence[int], *, multipart_id: str | None, instead_of: str | None = None
    ) -> bool:
        return await self._done(
            partial(
                uploads.withdraw_chunks,
                upload_id=upload_id,
                numbers=numbers,
                multipart_id=multipart_id,
                instead_of=instead_of,
            )
        )

    async def save_digest(self, upload_id: str, fence: int, digest: SavedDigest) -> bool:
        return await self._done(partial(uploads.save_digest, upload_id=upload_id, fence=fence, digest=digest))

    async def digest(self, upload_id: str, beyond_bytes: int) -> SavedDigest | None:
        found = await self._database.read(partial(uploads.digest, upload_id=upload_id), brief=True)
        if found is None or found.position <= beyond_bytes:
            return None
        await self._database.sync()
        return found

    async def forget_digest(self, upload_id: str) -> None:
        await self._database.transact(partial(uploads.forget_digest, upload_id=upload_id))

    async def forget(self, upload_id: str) -> bool:
        return await self._done(partial(uploads.forget, upload_id=upload_id))

    async def forget_placed(self, upload_id: str, key: str) -> bool:
        return await self._database.transact(partial(uploads.forget_placed, upload_id=upload_id, key=key))

    async def opened_before(self, moment: datetime, *, after: str, limit: int) -> list[Entry]:
        return await self._database.read(partial(uploads.opened_before, moment=moment, after=after, limit=limit))

    async def set_pieces(self, whole_id: str, pieces: Sequence[tuple[str, int]]) -> None:
        await self._database.transact(partial(uploads.set_pieces, whole_id=whole_id, pieces=pieces))

    async def pieces(self, whole_id: str) -> list[tuple[str, int]]:
        return await self._database.read(partial(uploads.pieces, whole_id=whole_id))

    # Contents

    async def locations(self, sha256s: Sequence[str]) -> dict[str, str]:
        return await self._database.read(partial(contents.locations, sha256s=sha256s), brief=len(sha256s) == 1)

    async def contents_at(self, keys: Sequence[str]) -> dict[str, str]:
        return await self._database.read_durably(partial(contents.contents_at, keys=keys))

    async def named(self, keys: Sequence[str]) -> set[str]:
        return await self._database.read_durably(partial(contents.named, keys=keys))

    async def kept(self, keys: Sequence[str], *, but_of: str = "") -> set[str]:
        return await self._database.read_durably(partial(contents.kept, keys=keys, but_of=but_of))

    async def uploads_of(self, upload_ids: Sequence[str]) -> dict[str, str | None]:
        return await self._database.read_durably(partial(contents.uploads_of, upload_ids=upload_ids))

    # The trash

    async def put_away(self, put: PutAway) -> bool:
        return await self._done(partial(contents.put_away, put=put))

    async def all_put_away(self, *, after: str, limit: int) -> list[PutAway]:
        return await self._database.read(partial(contents.all_put_away, after=after, limit=limit))

    async def copies(self, sha256: str) -> list[PutAway]:
        return await self._database.read(partial(contents.copies, sha256=sha256))

    async def take_out(self, key: str) -> bool:
        return await self._done(partial(contents.take_out, key=key))

    async def _done(self, work: Work[bool]) -> bool:
        """Whether a transaction did something. If not, nothing was written: what it has read instead is made durable,
        because the caller decides by it."""
        done = await self._database.transact(work)
        if not done:
            await self._database.sync()
        return done
