"""The ledger of the store on S3: rows of the database.

S3 holds bytes. Only rows say which bytes were acknowledged and at which key a blob lies: an object or a part without a row
counts for nothing. The database implements this (`uploader/database/ledger.py`), because the layers below the services never
use one another. So this module knows no SQL.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from uploader.domain.ledger import Entry, PartNoted, PutAway, SavedDigest, StoredPart, TailObject


class Ledger(Protocol):
    """Each method is one transaction. All raise Unavailable."""

    # Uploads

    async def open(self, upload_id: str, multipart_id: str | None, now: datetime) -> None:
        """Write down a new upload with fence 0, before its own row. Repeatable: an existing record stays."""

    async def entry(self, upload_id: str) -> Entry | None:
        """Return the record of an upload with all parts, as of one moment. The record is durable."""

    async def glance(self, upload_id: str, number: int) -> Entry | None:
        """Return the record with one chunk at most. It may not be durable yet: for callers that commit something
        afterwards."""

    async def look(self, upload_id: str, number: int, digested_bytes: int = 0) -> Entry | None:
        """Return the record with one chunk at most. The chunk is durable, and so is the position of the digests if this is
        more than `digested_bytes`. Nothing else needs to be durable yet."""

    async def add_part(
        self, upload_id: str, fence: int, part: StoredPart, now: datetime, digest: SavedDigest | None = None
    ) -> PartNoted:
        """Write down a chunk; the first row of a chunk counts. A tail of this chunk is removed. The row of the upload is
        locked meanwhile against a freeze. `digest`: the digests with this chunk, saved unless their position is behind the
        saved one."""

    async def move_tail(
        self, upload_id: str, fence: int, before: TailObject | None, after: TailObject | None, now: datetime
    ) -> bool:
        """Replace the tail. Return False if the present tail is not `before`, the fence is another one, the upload is
        frozen, or the chunk is there already."""

    async def claim(self, upload_id: str, appender: str) -> bool:
        """Make `appender` the appender in place of the present one. Return whether the upload exists."""

    async def appender(self, upload_id: str) -> str | None:
        """Return the present appender."""

    async def freeze(self, upload_id: str) -> Entry | None:
        """Freeze an upload: no part or tail can be written down any more. The fence grows unless the upload was frozen
        before. Return the record; `newly_frozen` is true if this call froze the upload."""

    async def withdraw(
        self, upload_id: str, numbers: Sequence[int], *, multipart_id: str | None, instead_of: str | None = None
    ) -> bool:
        """Remove chunks, and the tail if it belongs to the first of them or to a later chunk. The fence grows, the upload is
        no longer frozen, its digests are forgotten. `multipart_id`: its multipart upload from now on. Return whether this
        was done. Repeatable.

        `instead_of`: the multipart upload to be replaced. A new one removes all chunks, also a chunk that came at this
        moment; nothing is removed if another call has replaced it before.
        """

    async def save_digest(self, upload_id: str, fence: int, digest: SavedDigest) -> bool:
        """Save the digests, if the fence is the same and no saved position is further. Return whether they were saved."""

    async def digest(self, upload_id: str, beyond_bytes: int) -> SavedDigest | None:
        """Return the saved digests, durably; None if their position is not beyond `beyond_bytes`."""

    async def forget_digest(self, upload_id: str) -> None:
        """Forget the digests: they will be computed anew."""

    async def forget(self, upload_id: str) -> bool:
        """Forget an upload and its chunks, when S3 holds no bytes of it except blobs. Return whether there was a record."""

    async def forget_placed(self, upload_id: str, key: str) -> bool:
        """Forget an upload that became the blob at `key`, if a blob lies there and the upload has no other objects. Return
        whether it was forgotten."""

    async def opened_before(self, moment: datetime, *, after: str, limit: int) -> list[Entry]:
        """Return the uploads that were opened before `moment`, by id, after the id `after`, without their parts."""

    async def set_pieces(self, whole_id: str, pieces: Sequence[tuple[str, int]]) -> None:
        """Write down the objects of the parts of a whole, in order, each with its size in bytes, in place of earlier
        ones."""

    async def pieces(self, whole_id: str) -> list[tuple[str, int]]:
        """Return the objects of the parts of a whole, in order."""

    # Contents

    async def locations(self, sha256s: Sequence[str]) -> dict[str, str]:
        """Return the keys of the blobs that have a row with a key."""

    async def contents_at(self, keys: Sequence[str]) -> dict[str, str]:
        """Return, by key, the SHA-256 of each blob that lies at one of these keys."""

    async def named(self, keys: Sequence[str]) -> set[str]:
        """Return the keys that a row names: as the location of a blob, as a chunk, as a tail, as put away, as a piece. The
        key of a completed multipart upload is not among them: `uploads_of` gives it."""

    async def kept(self, keys: Sequence[str], *, but_of: str = "") -> set[str]:
        """Return the keys at which a blob lies, or an object that is put away, or a piece of a whole other than `but_of`."""

    async def uploads_of(self, upload_ids: Sequence[str]) -> dict[str, str | None]:
        """Return the `multipart_id` of each of these uploads that has a record."""

    # The trash

    async def put_away(self, put: PutAway) -> bool:
        """Note that an object is kept for a while, unless a blob lies at its key. Return whether this was done.
        Repeatable."""

    async def all_put_away(self, *, after: str, limit: int) -> list[PutAway]:
        """Return the objects that are put away, by key, after the key `after`."""

    async def copies(self, sha256: str) -> list[PutAway]:
        """Return the objects of a content that are put away, the latest first."""

    async def take_out(self, key: str) -> bool:
        """Forget that an object was put away. Return whether there was such a row."""
