"""What an upload is and the states it goes through, as literal tables.

Owns the words for a state in SQL, Redis and the API, and which change may follow which. Refuses to know where an
upload is stored or who asks.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from uploader.domain.chunks import UNBOUNDED_CHUNK_COUNT


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
    """The state that a word stands for. Another word is in a row that is damaged: nothing that is open may be lost by it."""
    return _STATES.get(word) or (State.FAILED if is_closed else State.OPEN)


class UploadKind(StrEnum):
    """What an upload is, if it does not become a file of the bytes that its client sends."""

    # A piece of a whole that is to come.
    PART = "part"
    # Made of parts.
    WHOLE = "whole"


_KINDS = {kind.value: kind for kind in UploadKind}


def kind_of(word: str | None) -> UploadKind | None:
    """The kind that a word stands for; None for that of most uploads, and of a row that is damaged."""
    return _KINDS.get(word or "")


class IfExists(StrEnum):
    """What happens to the files of its user that have the name of a new one, as the API says it."""

    # Let both be.
    KEEP = "keep"
    # Remove them in the transaction that makes the new one.
    REPLACE = "replace"
    # Make no new one.
    FAIL = "fail"


_IF_EXISTS = {choice.value: choice for choice in IfExists}


def if_exists_of(word: str | None) -> IfExists:
    """The choice that a word stands for. Rows of earlier versions have none; for the word of a damaged one nothing goes."""
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
REDIS_WORDS: dict[State, str] = {
    State.DONE: "done",
    State.CANCELLED: "cancelled",
    State.EXPIRED: "expired",
    State.FAILED: "failed",
    State.CONSUMED: "consumed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """One row of `upload`."""

    id: str
    user_id: str
    md5: str | None
    sha256: str | None
    name: str
    size: int
    chunk_size: int
    flushed_bytes: int
    flushed_generation: int
    generation: int
    state: State
    close_reason: str | None
    file_id: str | None
    # Where the store keeps its bytes, in a word of the store's own.
    place: str
    idempotency_key: str | None
    created_at: datetime
    updated_at: datetime
    closed_at: datetime | None
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
    def extent(self) -> int:
        """The bytes that its chunks are counted by: its size; while that is not known, more than may ever come."""
        return self.size if self.length_known else UNBOUNDED_CHUNK_COUNT * self.chunk_size

    @property
    def needs_md5(self) -> bool:
        """Whether its MD5 has to be known when it becomes a file."""
        return self.computes_md5 or self.md5 is not None

    @property
    def is_part(self) -> bool:
        """Whether it never becomes a file of its own, and waits for its whole once it is complete."""
        return self.kind is UploadKind.PART

    @property
    def is_whole(self) -> bool:
        """Whether its bytes come from its parts, and nobody may send any."""
        return self.kind is UploadKind.WHOLE


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One row of `file`: a user's named reference to a blob; and whether that is known to be damaged."""

    id: str
    user_id: str
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

    def may_be(self, md5: str | None, sha256: str | None, size: int) -> bool:
        """Whether its content may be what is claimed to be of this MD5. Where its own is not known, the SHA-256 tells, if
        that is claimed, too."""
        if md5 is None or self.size != size:
            return False
        return sha256 in (None, self.sha256) if self.md5 is None else self.md5 == md5
