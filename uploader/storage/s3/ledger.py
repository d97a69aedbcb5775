"""The ledger of the store on S3, which is a part of the database.

S3 holds bytes. Which of them were acknowledged, and under which key a content lies, only rows say: an object or a part that
no row names is nothing. The database implements this (`uploader/database/objects`), because the layers below the services
never use one another; so nothing here knows SQL.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from uploader.domain.ledger import Entry, PartNoted, PutAway, SavedDigest, StoredPart, TailObject


class Ledger(Protocol):
    """Each method is one transaction of its own. All raise Unavailable."""

    # Uploads

    async def open(self, upload_id: str, multipart_id: str | None, now: datetime) -> None:
        """Write down a new upload, before it has a row of its own; it has fence 0. Repeatable: what is there stays."""

    async def entry(self, upload_id: str) -> Entry | None:
        """Read the record of an upload with its parts, as of one moment, committed durably."""

    async def glance(self, upload_id: str, number: int) -> Entry | None:
        """Read as `entry`, of one chunk alone; perhaps not durable yet: for a caller that commits something after
        it."""

    async def look(self, upload_id: str, number: int, digested_bytes: int = 0) -> Entry | None:
        """Read as `entry`, of one chunk alone. Durable are the chunk and, where it is more than so many bytes, how far
        the digests have come; all else perhaps not yet."""

    async def add_part(
        self, upload_id: str, fence: int, part: StoredPart, now: datetime, digest: SavedDigest | None = None
    ) -> PartNoted:
        """Write down a chunk. The tail, if it is of this chunk, is none any more. The first one counts; the row of the
        upload is locked meanwhile, so that it is not frozen. `digest`: how far the digests have come once it is there;
        saved unless somebody has come further."""

    async def move_tail(
        self, upload_id: str, fence: int, before: TailObject | None, after: TailObject | None, now: datetime
    ) -> bool:
        """Let the tail be another one, if it still is `before`, the fence is the same, the upload is not frozen and has no
        such chunk; whether that was done."""

    async def claim(self, upload_id: str, appender: str) -> bool:
        """Make somebody the appender, in place of the present one; return whether there is such an upload."""

    async def appender(self, upload_id: str) -> str | None:
        """Return the present appender."""

    async def freeze(self, upload_id: str) -> Entry | None:
        """Let no part be written down any more, and no tail: the fence grows, unless it is frozen already. What is written
        down then, and whether it was frozen by this call (`newly_frozen`)."""

    async def withdraw(
        self, upload_id: str, numbers: Sequence[int], *, multipart_id: str | None, instead_of: str | None = None
    ) -> bool:
        """Take chunks back, and the tail if it is of one of them or comes after one. The fence grows, the upload is not
        frozen any more, its digests are forgotten. `multipart_id`: of its multipart upload from now on. Whether it was done.
        Repeatable.

        One that takes the place of `instead_of` takes all parts back, also one that came at this moment; none where another
        one was faster.
        """

    async def save_digest(self, upload_id: str, fence: int, digest: SavedDigest) -> bool:
        """Save how far the digests have come, if the fence is the same and nobody has come further; whether it was done."""

    async def digest(self, upload_id: str, beyond_bytes: int) -> SavedDigest | None:
        """Return how far the digests have come, durably; None where that is no more than so many bytes."""

    async def forget_digest(self, upload_id: str) -> None:
        """Let them be computed anew."""

    async def forget(self, upload_id: str) -> bool:
        """Forget an upload and its parts, once S3 holds no byte of it that no blob is; whether there was one."""

    async def forget_placed(self, upload_id: str, key: str) -> bool:
        """Forget an upload that became the content at this key, if a content lies there and nothing else is left of it;
        whether that was so."""

    async def opened_before(self, moment: datetime, *, after: str, limit: int) -> list[Entry]:
        """Uploads that were opened before a moment, by id, after the id `after`; without their parts."""

    async def set_pieces(self, whole_id: str, pieces: Sequence[tuple[str, int]]) -> None:
        """Write down the objects of the parts of a whole, in order, each with its size in bytes; instead of those before."""

    async def pieces(self, whole_id: str) -> list[tuple[str, int]]:
        """Return the pieces, in order."""

    # Contents

    async def locations(self, sha256s: Sequence[str]) -> dict[str, str]:
        """Return the keys of those contents that have a row and a key."""

    async def contents_at(self, keys: Sequence[str]) -> dict[str, str]:
        """Return, by key, the contents that lie at one of these."""

    async def named(self, keys: Sequence[str]) -> set[str]:
        """Return those of these keys that a row names: as the place of a content, as a chunk, as a tail, as put away,
        as a piece. What a multipart upload was completed to is named by its id: `uploads_of` tells of that."""

    async def kept(self, keys: Sequence[str], *, but_of: str = "") -> set[str]:
        """Return those of these keys that a content lies at, that are put away, or that are pieces of a whole;
        `but_of`: other than this one."""

    async def uploads_of(self, upload_ids: Sequence[str]) -> dict[str, str | None]:
        """Return those that are written down, each with its `multipart_id`."""

    # The trash

    async def put_away(self, put: PutAway) -> bool:
        """Write down that an object is kept for a while, unless a content lies there; whether that was done. Repeatable."""

    async def all_put_away(self, *, after: str, limit: int) -> list[PutAway]:
        """Return all that is put away, by key, after the key `after`."""

    async def copies(self, sha256: str) -> list[PutAway]:
        """Return those of a content, the last one first."""

    async def take_out(self, key: str) -> bool:
        """Forget that an object was put away; whether it was."""
