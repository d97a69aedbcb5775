"""An upload: states as literal tables, and the arithmetic of chunks. Chunk *n* lies at offset `n * chunk_size`,
and every chunk but the last is exactly `chunk_size` bytes long.

Owns the words for a state in SQL, Redis and the API, the transitions between states, and the formulas for free space
and quota. Refuses to know where an upload is stored or who asks.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from uploader.domain.links import Caller

MAX_CHUNK_COUNT = 10_000
# The chunk count of an upload with deferred length: one more than the maximum, so no chunk is ever the last.
UNBOUNDED_CHUNK_COUNT = MAX_CHUNK_COUNT + 1
CHUNK_SIZE_STEP_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ChunkSizes:
    """The server's limits for chunk sizes, in bytes."""

    default: int
    minimum: int
    maximum: int

    def choose(self, asked: int | None, size: int) -> int:
        """Return the chunk size for an upload of `size` bytes: within the limits, a multiple of 64 KiB, at most 10,000
        chunks."""
        wanted = self.default if asked is None else asked
        wanted = max(wanted, -(-size // MAX_CHUNK_COUNT))
        rounded = -(-max(wanted, self.minimum) // CHUNK_SIZE_STEP_BYTES) * CHUNK_SIZE_STEP_BYTES
        # Rounded down to the step, because the operator set it as a limit.
        return min(rounded, max(self.maximum // CHUNK_SIZE_STEP_BYTES, 1) * CHUNK_SIZE_STEP_BYTES)

    def max_file_size(self) -> int:
        """Return the size of 10,000 chunks of the largest size, in bytes."""
        return max(self.maximum // CHUNK_SIZE_STEP_BYTES, 1) * CHUNK_SIZE_STEP_BYTES * MAX_CHUNK_COUNT


def chunk_count(size: int, chunk_size: int) -> int:
    """Return the number of chunks of a file of `size` bytes; 0 for an empty file."""
    return -(-size // chunk_size)


def chunk_length(number: int, size: int, chunk_size: int) -> int:
    """Return the length of chunk `number` in bytes: `chunk_size`, or less for the last chunk."""
    return min(chunk_size, size - number * chunk_size)


@dataclass(frozen=True, slots=True)
class Tail:
    """The first `length` bytes of the first incomplete chunk, as appends brought them."""

    number: int
    length: int


def received_bytes(present: Sequence[bool] | bytearray, size: int, chunk_size: int, tail: Tail | None = None) -> int:
    """Return the bytes of the present chunks and of the tail."""
    if not present:
        return 0
    last = bool(present[-1])
    whole = (sum(map(bool, present)) - last) * chunk_size + last * chunk_length(len(present) - 1, size, chunk_size)
    return whole + (tail.length if tail else 0)


def missing_ranges(present: Sequence[bool] | bytearray) -> list[tuple[int, int]]:
    """Return the inclusive ranges of missing chunk numbers, in order."""
    return as_ranges(number for number, there in enumerate(present) if not there)


def as_ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the inclusive ranges of rising chunk numbers."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def to_bitmap(present: Sequence[bool] | bytearray) -> bytes:
    """Return the chunks as a Redis bitmap: bit 0 is the highest bit of the first byte (https://redis.io/docs
    SETBIT)."""
    bitmap = bytearray(-(-len(present) // 8))
    for number, there in enumerate(present):
        if there:
            bitmap[number >> 3] |= 0x80 >> (number & 7)
    return bytes(bitmap)


def from_bitmap(bitmap: bytes, count: int) -> bytearray:
    """Return the first `count` chunks of a Redis bitmap as 0 or 1. Chunks beyond the bitmap's end are 0."""
    padded = bitmap.ljust(-(-count // 8), b"\0")
    return bytearray((padded[number >> 3] >> (7 - (number & 7))) & 1 for number in range(count))


class State(StrEnum):
    """The state of an upload in SQL. During a merge it is still OPEN: until the merge commits, the upload can be
    cancelled."""

    OPEN = "OPEN"
    DONE = "DONE"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"
    FAILED = "FAILED"
    # A part whose bytes went into a whole.
    CONSUMED = "CONSUMED"


_STATES = {state.value: state for state in State}


def state_of(word: str, *, is_closed: bool) -> State:
    """Return the state for a word from a row. An unknown word comes from a damaged row: then an upload that is not
    closed counts as OPEN, to lose no bytes."""
    return _STATES.get(word) or (State.FAILED if is_closed else State.OPEN)


class UploadKind(StrEnum):
    """The kind of an upload in a concatenation."""

    # A piece of a later whole.
    PART = "part"
    # Made of parts.
    WHOLE = "whole"


_KINDS = {kind.value: kind for kind in UploadKind}


def kind_of(word: str | None) -> UploadKind | None:
    """Return the kind for a word from a row. None: an ordinary upload, or a damaged row."""
    return _KINDS.get(word or "")


class IfExists(StrEnum):
    """The choice about an older file with the name of the new file, in the words of the API."""

    # Keep both: the new file gets the first free number.
    KEEP = "keep"
    # Remove the old file in the transaction that makes the new file.
    REPLACE = "replace"
    # Make no new file.
    FAIL = "fail"


_IF_EXISTS = {choice.value: choice for choice in IfExists}


def if_exists_of(word: str | None) -> IfExists:
    """Return the choice for a word from a row. Rows of earlier versions have no word. A damaged word means KEEP, which
    deletes nothing."""
    return _IF_EXISTS.get(word or "", IfExists.KEEP)


class Reason(StrEnum):
    """Why an upload ended without a file, in the words of the API."""

    CANCELLED = "cancelled"
    EXPIRED = "expired"
    MD5_MISMATCH = "md5-mismatch"
    SHA256_MISMATCH = "sha256-mismatch"
    NAME_TAKEN = "name-taken"
    # Only a whole.
    PART_DAMAGED = "part-damaged"
    LENGTH_EXCEEDED = "length-exceeded"


# Stored as the reason of an upload whose bytes were dropped, because the file came in another way.
SUPERSEDED = "superseded"
# Stored as the reason of an upload whose file a gate refused.
REFUSED = "refused"

# The states that may follow each state. Only OPEN moves: every other state is final.
TRANSITIONS: dict[State, frozenset[State]] = {
    State.OPEN: frozenset({State.DONE, State.CANCELLED, State.EXPIRED, State.FAILED, State.CONSUMED}),
    State.DONE: frozenset(),
    State.CANCELLED: frozenset(),
    State.EXPIRED: frozenset(),
    State.FAILED: frozenset(),
    State.CONSUMED: frozenset(),
}

# The state that follows from each reason.
STATE_OF_REASON: dict[Reason, State] = {
    Reason.CANCELLED: State.CANCELLED,
    Reason.EXPIRED: State.EXPIRED,
    Reason.MD5_MISMATCH: State.FAILED,
    Reason.SHA256_MISMATCH: State.FAILED,
    Reason.NAME_TAKEN: State.FAILED,
    Reason.PART_DAMAGED: State.FAILED,
    Reason.LENGTH_EXCEEDED: State.FAILED,
}

# The word in Redis for a closed upload. An OPEN upload is `open` there, or `merging` after its last chunk.
REDIS_WORDS: dict[State, str] = {state: state.value.lower() for state in State if state is not State.OPEN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    id: str
    user_id: str
    # The session of a link's visitor; empty for the user's own uploads. With a session, `name` is relative to the
    # folder of the link.
    session: str
    md5: str | None = None
    sha256: str | None = None
    name: str
    size: int
    chunk_size: int
    flushed_bytes: int = 0
    flushed_generation: int = 0
    generation: int = 0
    state: State = State.OPEN
    close_reason: str | None = None
    file_id: str | None = None
    # The store's own word for where it keeps the bytes.
    place: str
    idempotency_key: str | None = None
    created_at: datetime
    updated_at: datetime
    closed_at: datetime | None = None
    if_exists: IfExists = IfExists.KEEP
    # When the user's local file was last modified, as the client said.
    modified_at: datetime | None = None
    # The metadata from the client in the client's protocol, unchanged.
    metadata: str | None = None
    # False: `size` is the reserved space and grows before bytes come.
    length_known: bool = True
    # True: compute the MD5 while bytes come, even if the client named no MD5.
    computes_md5: bool = True
    kind: UploadKind | None = None

    @property
    def caller(self) -> Caller:
        return Caller(self.user_id, self.session)

    def may_be(self, sha256: str, size: int) -> bool:
        """Return whether the upload may have this content, by size and SHA-256. Other content can have the same MD5."""
        return self.size == size and self.sha256 in (None, sha256)

    @property
    def extent(self) -> int:
        """The bytes that the chunk count follows from: the size; with deferred length, more than can ever come."""
        return self.size if self.length_known else UNBOUNDED_CHUNK_COUNT * self.chunk_size

    @property
    def needs_md5(self) -> bool:
        """Return whether the file needs an MD5."""
        return self.computes_md5 or self.md5 is not None

    @property
    def is_refused(self) -> bool:
        """Return whether a gate refused the file. False for a visitor, who is not told."""
        return self.close_reason == REFUSED and not self.session

    @property
    def is_part(self) -> bool:
        """Return whether the upload is a part: a part never becomes a file, and waits for its whole once complete."""
        return self.kind is UploadKind.PART

    @property
    def is_whole(self) -> bool:
        """Return whether the upload is a whole: the bytes come from parts, and clients may not send any."""
        return self.kind is UploadKind.WHOLE


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One row of `file`: a user's named reference to a blob. `damaged`: the blob is known to be damaged."""

    id: str
    user_id: str
    # The session of the visitor who sent the file, and the name that they asked for. Only the visitor sees this name.
    session: str
    asked_name: str | None = None
    # None: the MD5 was never computed.
    md5: str | None
    sha256: str
    name: str
    size: int
    instant: bool
    created_at: datetime
    # When the user's local file was last modified, as the client said.
    modified_at: datetime | None = None
    damaged: bool = False
    # True: the file waits for a gate, and gets `name` when it passes.
    held: bool = False

    @property
    def caller(self) -> Caller:
        return Caller(self.user_id, self.session)

    def name_for(self, caller: Caller) -> str:
        """Return the name for a caller. A visitor sees the name that they asked for."""
        if not caller.session:
            return self.name
        return self.asked_name or self.name.rpartition("/")[2]

    def is_held_for(self, caller: Caller | None) -> bool:
        """Return whether to tell the caller about a gate that holds the file. A visitor never is: for them the file is
        complete."""
        return self.held and (caller is None or not caller.session)

    def may_be(self, md5: str | None, sha256: str | None, size: int) -> bool:
        """Return whether the content may have this MD5. If the own MD5 is not known, a claimed SHA-256 decides."""
        if md5 is None or self.size != size:
            return False
        return sha256 in (None, self.sha256) if self.md5 is None else self.md5 == md5


class TrashReason(StrEnum):
    """Why a file is in the trash of its owner, in the words of the API."""

    DELETED = "deleted"
    # Another file took its name.
    REPLACED = "replaced"
    # A gate refused it.
    REFUSED = "refused"
    # An administrator deleted it.
    ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashedFile(File):
    """One row of `trashed_file`: a file that its owner may restore. `damaged` is known only while the content has a
    row."""

    deleted_at: datetime
    reason: str
    # False: the file was held when it was deleted.
    passed: bool = True
    # Why a gate refused the file.
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewConcatenation:
    """An order: the ids of the caller's parts, and the name and metadata of the resulting file."""

    id: str
    user_id: str
    session: str
    name: str
    metadata: str | None
    # The order as the client sent it, byte by byte.
    ordered: str
    part_ids: tuple[str, ...]

    @property
    def caller(self) -> Caller:
        return Caller(self.user_id, self.session)

    @property
    def parts_sha256(self) -> str:
        """Return a digest that is equal for equal lists of parts."""
        return hashlib.sha256(" ".join(self.part_ids).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Concatenation(NewConcatenation):
    """One row of `concatenation`, with the parts in order. The resulting upload gets the same id."""

    created_at: datetime


# Free space and quota

_DEFAULT_FLOOR_BYTES = 1 << 30
_DEFAULT_FLOOR_SHARE = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The space of the disk, in bytes: the one formula for the admission of uploads and for reports. `promised_bytes`
    is what open uploads may still write."""

    total_bytes: int
    # Includes the trash, which is emptied if uploads need the space.
    free_bytes: int
    trash_bytes: int
    floor_bytes: int
    promised_bytes: int

    @property
    def available_bytes(self) -> int:
        """The bytes that new uploads may still reserve."""
        return max(0, self.free_bytes - self.promised_bytes - self.floor_bytes)

    @property
    def limit_bytes(self) -> int:
        """The bytes that the empty disk could hold."""
        return max(0, self.total_bytes - self.floor_bytes)

    def fits(self, size: int) -> bool:
        """Return whether a file of `size` bytes may be opened. Even an empty file needs the floor to be free."""
        return self.free_bytes - self.promised_bytes - size >= self.floor_bytes

    def lacking_bytes(self, size: int) -> int:
        """Return how many bytes the trash has to free for a file of `size` bytes."""
        needed = self.floor_bytes + self.promised_bytes + size
        return max(0, needed - (self.free_bytes - self.trash_bytes))


def floor_of(total_bytes: int, set_bytes: int | None) -> int:
    """Return the space that new uploads leave free: the setting, else the larger of 5 % and 1 GiB."""
    return max(total_bytes // _DEFAULT_FLOOR_SHARE, _DEFAULT_FLOOR_BYTES) if set_bytes is None else set_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The accounts of one user, in bytes: one row of `user_info`. This formula is for display; the conditional UPDATE
    in the database decides. `files` includes open uploads."""

    user_id: str
    total_space: int
    use_space_finished: int
    use_space_unfinished: int
    reserved: int
    files: int

    @property
    def available(self) -> int:
        """The bytes that new uploads may still reserve; 0 if the total was lowered below the used space."""
        return max(0, self.total_space - self.use_space_finished - self.reserved)

    def fits(self, size: int) -> bool:
        """Return whether a file of `size` bytes may be opened. Even an empty file is refused while the account is over
        the total."""
        return size <= self.total_space - self.use_space_finished - self.reserved

    def takes_files(self, more: int, max_files: int) -> bool:
        """Return whether `more` files may be added. Replacing as many needs no space."""
        return more <= 0 or self.files + more <= max_files

    def figures(self, requested: int) -> dict[str, Any]:
        """Return the figures for a refusal."""
        return {
            "total_space": self.total_space,
            "use_space_finished": self.use_space_finished,
            "use_space_unfinished": self.use_space_unfinished,
            "reserved": self.reserved,
            "requested": requested,
        }
