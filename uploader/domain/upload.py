"""An upload, the states it goes through, as literal tables, and the arithmetic of its chunks: chunk *n* lies at
offset `n * chunk_size`, and every chunk but the last is exactly `chunk_size` bytes long.

Owns the words for a state in SQL, Redis and the API, which change may follow which, and how much may be opened. Refuses to
know where an upload is stored or who asks.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from uploader.domain.links import Caller

MAX_CHUNK_COUNT = 10_000
# Of an upload whose length is not known: one more than it may ever have, so that none of its chunks is the last.
UNBOUNDED_CHUNK_COUNT = MAX_CHUNK_COUNT + 1
CHUNK_SIZE_STEP_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ChunkSizes:
    """The server's bounds for chunk sizes, in bytes."""

    default: int
    minimum: int
    maximum: int

    def choose(self, asked: int | None, size: int) -> int:
        """Return the chunk size of a new upload of `size` bytes: clamped, a multiple of 64 KiB, at most 10,000 chunks."""
        wanted = self.default if asked is None else asked
        wanted = max(wanted, -(-size // MAX_CHUNK_COUNT))
        rounded = -(-max(wanted, self.minimum) // CHUNK_SIZE_STEP_BYTES) * CHUNK_SIZE_STEP_BYTES
        # A maximum that is no multiple of the step is rounded down: it is a limit of the operator's.
        return min(rounded, max(self.maximum // CHUNK_SIZE_STEP_BYTES, 1) * CHUNK_SIZE_STEP_BYTES)

    def max_file_size(self) -> int:
        """Return the largest file that fits into 10,000 chunks of the largest size, in bytes."""
        return max(self.maximum // CHUNK_SIZE_STEP_BYTES, 1) * CHUNK_SIZE_STEP_BYTES * MAX_CHUNK_COUNT


def chunk_count(size: int, chunk_size: int) -> int:
    """Return how many chunks a file of `size` bytes has; none if it is empty."""
    return -(-size // chunk_size)


def chunk_length(number: int, size: int, chunk_size: int) -> int:
    """Return the length of chunk `number` in bytes: `chunk_size`, or the rest for the last one."""
    return min(chunk_size, size - number * chunk_size)


@dataclass(frozen=True, slots=True)
class Tail:
    """The first bytes of the first chunk that is not whole, `length` of them, as appends have brought them."""

    number: int
    length: int


def received_bytes(present: Sequence[bool] | bytearray, size: int, chunk_size: int, tail: Tail | None = None) -> int:
    """Return the bytes of the chunks that are present, and of a tail."""
    if not present:
        return 0
    last = bool(present[-1])
    whole = (sum(map(bool, present)) - last) * chunk_size + last * chunk_length(len(present) - 1, size, chunk_size)
    return whole + (tail.length if tail else 0)


def missing_ranges(present: Sequence[bool] | bytearray) -> list[tuple[int, int]]:
    """Return the inclusive ranges of chunk numbers that are not present, in order."""
    return as_ranges(number for number, there in enumerate(present) if not there)


def as_ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the inclusive ranges that rising chunk numbers make up."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def to_bitmap(present: Sequence[bool] | bytearray) -> bytes:
    """Return the chunks as a Redis bitmap: bit 0 is the highest bit of the first byte (https://redis.io/docs SETBIT)."""
    bitmap = bytearray(-(-len(present) // 8))
    for number, there in enumerate(present):
        if there:
            bitmap[number >> 3] |= 0x80 >> (number & 7)
    return bytes(bitmap)


def from_bitmap(bitmap: bytes, count: int) -> bytearray:
    """Return the first `count` chunks of a Redis bitmap, 1 or 0 each; what it is too short for is 0."""
    padded = bitmap.ljust(-(-count // 8), b"\0")
    return bytearray((padded[number >> 3] >> (7 - (number & 7))) & 1 for number in range(count))


class State(StrEnum):
    """The state of an upload in SQL. A merge in progress is still OPEN: until it commits, the upload can be cancelled."""

    OPEN = "OPEN"
    DONE = "DONE"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"
    FAILED = "FAILED"
    # Of a part: it became a piece of its whole.
    CONSUMED = "CONSUMED"


_STATES = {state.value: state for state in State}


def state_of(word: str, *, is_closed: bool) -> State:
    """Return the state that a word stands for. Another word is in a row that is damaged: nothing that is open may be
    lost by it."""
    return _STATES.get(word) or (State.FAILED if is_closed else State.OPEN)


class UploadKind(StrEnum):
    """The kind of an upload that does not become a file of the bytes that its client sends."""

    # A piece of a whole that is to come.
    PART = "part"
    # Made of parts.
    WHOLE = "whole"


_KINDS = {kind.value: kind for kind in UploadKind}


def kind_of(word: str | None) -> UploadKind | None:
    """Return the kind that a word stands for; None for that of most uploads, and of a row that is damaged."""
    return _KINDS.get(word or "")


class IfExists(StrEnum):
    """The fate of an older file that has the name of a new one, in the words of the API."""

    # Let both be: the new one has the first free number.
    KEEP = "keep"
    # Remove the old one in the transaction that makes the new one.
    REPLACE = "replace"
    # Make no new one.
    FAIL = "fail"


_IF_EXISTS = {choice.value: choice for choice in IfExists}


def if_exists_of(word: str | None) -> IfExists:
    """Return the choice that a word stands for. Rows of earlier versions have none; for the word of a damaged one
    nothing goes."""
    return _IF_EXISTS.get(word or "", IfExists.KEEP)


class Reason(StrEnum):
    """Why an upload ended without a file, as the API says it."""

    CANCELLED = "cancelled"
    EXPIRED = "expired"
    MD5_MISMATCH = "md5-mismatch"
    SHA256_MISMATCH = "sha256-mismatch"
    NAME_TAKEN = "name-taken"
    # Of a whole.
    PART_DAMAGED = "part-damaged"
    LENGTH_EXCEEDED = "length-exceeded"


# In the place of a reason, of an upload that ended in a file whose bytes came in another way: its own are dropped.
SUPERSEDED = "superseded"
# In the place of a reason, of an upload that ended in a file that a gate refused.
REFUSED = "refused"

# From each state, the states that may follow. Only OPEN moves: every other state is final.
TRANSITIONS: dict[State, frozenset[State]] = {
    State.OPEN: frozenset({State.DONE, State.CANCELLED, State.EXPIRED, State.FAILED, State.CONSUMED}),
    State.DONE: frozenset(),
    State.CANCELLED: frozenset(),
    State.EXPIRED: frozenset(),
    State.FAILED: frozenset(),
    State.CONSUMED: frozenset(),
}

# The reasons that go with each way to end without a file.
STATE_OF_REASON: dict[Reason, State] = {
    Reason.CANCELLED: State.CANCELLED,
    Reason.EXPIRED: State.EXPIRED,
    Reason.MD5_MISMATCH: State.FAILED,
    Reason.SHA256_MISMATCH: State.FAILED,
    Reason.NAME_TAKEN: State.FAILED,
    Reason.PART_DAMAGED: State.FAILED,
    Reason.LENGTH_EXCEEDED: State.FAILED,
}

# How Redis calls an upload that is closed in SQL. An OPEN one is `open` there, or `merging` once its last chunk is in.
REDIS_WORDS: dict[State, str] = {state: state.value.lower() for state in State if state is not State.OPEN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    id: str
    user_id: str
    # Of a visitor of a link; empty of the user's own. `name` is below the folder of the link then, wherever that is.
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
    # Where the store keeps its bytes, in a word of the store's own.
    place: str
    idempotency_key: str | None = None
    created_at: datetime
    updated_at: datetime
    closed_at: datetime | None = None
    if_exists: IfExists = IfExists.KEEP
    # When the person's own file was changed, as its client told.
    modified_at: datetime | None = None
    # What its client says of it in its own protocol, as it was sent.
    metadata: str | None = None
    # While it is not, `size` is what is reserved for it, which grows before its bytes come.
    length_known: bool = True
    # Whether its MD5 is computed as its bytes come, though nobody told one.
    computes_md5: bool = True
    kind: UploadKind | None = None

    @property
    def caller(self) -> Caller:
        return Caller(self.user_id, self.session)

    def may_be(self, sha256: str, size: int) -> bool:
        """Tell whether it may be of this content, and is no twin: other content with the same MD5."""
        return self.size == size and self.sha256 in (None, sha256)

    @property
    def extent(self) -> int:
        """The bytes that its chunks are counted by: its size; while that is not known, more than may ever come."""
        return self.size if self.length_known else UNBOUNDED_CHUNK_COUNT * self.chunk_size

    @property
    def needs_md5(self) -> bool:
        """Return whether its MD5 has to be known when it becomes a file."""
        return self.computes_md5 or self.md5 is not None

    @property
    def is_refused(self) -> bool:
        """Return whether a gate refused its file, which a visitor is not told."""
        return self.close_reason == REFUSED and not self.session

    @property
    def is_part(self) -> bool:
        """Return whether it never becomes a file of its own, and waits for its whole once it is complete."""
        return self.kind is UploadKind.PART

    @property
    def is_whole(self) -> bool:
        """Return whether its bytes come from its parts, and nobody may send any."""
        return self.kind is UploadKind.WHOLE


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One row of `file`: a user's named reference to a blob; and whether that is known to be damaged."""

    id: str
    user_id: str
    # Of the visitor of a link who sent it, and the name that they asked for; it says nothing to others.
    session: str
    asked_name: str | None = None
    # None: nobody has computed it so far.
    md5: str | None
    sha256: str
    name: str
    size: int
    instant: bool
    created_at: datetime
    # When the person's own file was changed, as its client told.
    modified_at: datetime | None = None
    damaged: bool = False
    # A gate has not let it pass so far: `name` is the one that it is to have.
    held: bool = False

    @property
    def caller(self) -> Caller:
        return Caller(self.user_id, self.session)

    def name_for(self, caller: Caller) -> str:
        """Return the name that a caller sees: a visitor the one that they asked for."""
        if not caller.session:
            return self.name
        return self.asked_name or self.name.rpartition("/")[2]

    def is_held_for(self, caller: Caller | None) -> bool:
        """Tell whether a caller is told that a gate holds it: a visitor's file is complete for the visitor, whatever gates
        say."""
        return self.held and (caller is None or not caller.session)

    def may_be(self, md5: str | None, sha256: str | None, size: int) -> bool:
        """Tell whether its content may be of this MD5; where its own is not known, a claimed SHA-256 tells."""
        if md5 is None or self.size != size:
            return False
        return sha256 in (None, self.sha256) if self.md5 is None else self.md5 == md5


class TrashReason(StrEnum):
    """Why a file is in the trash of its owner, in the words of the API."""

    DELETED = "deleted"
    # Another one took its name.
    REPLACED = "replaced"
    # A gate refused it.
    REFUSED = "refused"
    # An administrator deleted it.
    ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashedFile(File):
    """One row of `trashed_file`: a file that its owner may have back. `damaged` is said of a content that has a row."""

    deleted_at: datetime
    reason: str
    # Not where it was held when it went.
    passed: bool = True
    # Why a gate refused it.
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewConcatenation:
    """An order: which parts of the caller's, by their ids, and what is said of the file that they become."""

    id: str
    user_id: str
    session: str
    name: str
    metadata: str | None
    # As its client ordered it, byte by byte.
    ordered: str
    part_ids: tuple[str, ...]

    @property
    def caller(self) -> Caller:
        return Caller(self.user_id, self.session)

    @property
    def parts_sha256(self) -> str:
        """The same for the same list of parts."""
        return hashlib.sha256(" ".join(self.part_ids).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Concatenation(NewConcatenation):
    """One row of `concatenation`, with its parts in their order. Its id is that of the upload that it becomes."""

    created_at: datetime


# Who may open how much

_DEFAULT_FLOOR_BYTES = 1 << 30
_DEFAULT_FLOOR_SHARE = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The disk, in bytes, and how much room it has: the one formula, for the admission of uploads and for reports.
    `promised_bytes` is what open uploads may still write."""

    total_bytes: int
    # With what the trash holds, which gives way when it is needed.
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
        """Return whether a file of `size` bytes may be opened; an empty one may only while the floor is kept."""
        return self.free_bytes - self.promised_bytes - size >= self.floor_bytes

    def lacking_bytes(self, size: int) -> int:
        """Return how much of the trash has to give way for a file of `size` bytes."""
        needed = self.floor_bytes + self.promised_bytes + size
        return max(0, needed - (self.free_bytes - self.trash_bytes))


def floor_of(total_bytes: int, set_bytes: int | None) -> int:
    """Return the space that new uploads leave free: as it is set, else the larger of 5 % and 1 GiB."""
    return max(total_bytes // _DEFAULT_FLOOR_SHARE, _DEFAULT_FLOOR_BYTES) if set_bytes is None else set_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The accounts of one user, in bytes: one row of `user_info`. Who may store how much is the one formula, for
    people; the decision itself is the conditional UPDATE in the database. `files` counts open uploads, too."""

    user_id: str
    total_space: int
    use_space_finished: int
    use_space_unfinished: int
    reserved: int
    files: int

    @property
    def available(self) -> int:
        """The bytes that new uploads may still reserve. Not negative, even if the total was lowered below what is used."""
        return max(0, self.total_space - self.use_space_finished - self.reserved)

    def fits(self, size: int) -> bool:
        """Return whether a file of `size` bytes may be opened; an empty one may only while nothing is over the total."""
        return size <= self.total_space - self.use_space_finished - self.reserved

    def takes_files(self, more: int, max_files: int) -> bool:
        """Return whether so many more may come about. What takes the place of as many needs no room."""
        return more <= 0 or self.files + more <= max_files

    def figures(self, requested: int) -> dict[str, Any]:
        """Return what is told of a refusal."""
        return {
            "total_space": self.total_space,
            "use_space_finished": self.use_space_finished,
            "use_space_unfinished": self.use_space_unfinished,
            "reserved": self.reserved,
            "requested": requested,
        }
