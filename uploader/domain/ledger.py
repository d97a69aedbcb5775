"""The records of bytes that lie on S3, in words that the store and the database share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A chunk that was acknowledged, or may be: S3 has it, and its row is committed."""

    number: int
    # What S3 said of its bytes, without quotes.
    etag: str
    # The object that it is; None if it is a part of the multipart upload.
    key: str | None


@dataclass(frozen=True, slots=True)
class TailObject:
    """The first bytes of the first chunk that is not whole: an object, which is replaced whole."""

    key: str
    number: int
    length: int


@dataclass(frozen=True, slots=True)
class SavedDigest:
    """The position of an upload's digests, with the state to go on from; or what they are (`digests`)."""

    position: int
    state: bytes
    # The MD5 (or None) and the SHA-256 of the whole.
    digests: tuple[str | None, str] | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """The ledger's record of an open upload, as of one moment."""

    upload_id: str
    # The id that S3 gave to its multipart upload; None if it is a single object.
    multipart_id: str | None
    # Grows with each freeze and each withdrawal: what began before it does not count any more.
    fence: int
    # Whether its parts are as they are, because it is about to be completed, or removed.
    frozen: bool
    # When it was opened, and when bytes last came, by the application's clock.
    opened_at: datetime
    written_at: datetime
    tail: TailObject | None
    digest: SavedDigest | None
    parts: Mapping[int, StoredPart] = field(default_factory=dict)
    # True if this call froze the upload, False if it was frozen before.
    newly_frozen: bool = field(default=False, compare=False)


class PartNoted(Enum):
    ADDED = auto()
    # Another one was faster: that one counts.
    PRESENT = auto()
    # The upload is frozen, has another fence, or is no more.
    REFUSED = auto()


@dataclass(frozen=True, slots=True)
class PutAway:
    """An object that would be deleted otherwise."""

    key: str
    # The SHA-256 of the content.
    name: str
    size: int
    created_at: datetime
