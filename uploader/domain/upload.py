"""What an upload is and the states it goes through, as literal tables.

Owns the words for a state in SQL, Redis and the API, and which change may follow which. Refuses to know where an
upload is stored or who asks.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class State(StrEnum):
    """The state of an upload in SQL. A merge in progress is still OPEN: until it commits, the upload can be cancelled."""

    OPEN = "OPEN"
    DONE = "DONE"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"
    FAILED = "FAILED"


_STATES = {state.value: state for state in State}


def state_of(word: str, *, is_closed: bool) -> State:
    """The state that a word stands for. Another word is in a row that is damaged: nothing that is open may be lost by it."""
    return _STATES.get(word) or (State.FAILED if is_closed else State.OPEN)


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


# From each state, the states that may follow. Only OPEN moves: every other state is final.
TRANSITIONS: dict[State, frozenset[State]] = {
    State.OPEN: frozenset({State.DONE, State.CANCELLED, State.EXPIRED, State.FAILED}),
    State.DONE: frozenset(),
    State.CANCELLED: frozenset(),
    State.EXPIRED: frozenset(),
    State.FAILED: frozenset(),
}

# The reasons that go with each way to end without a file.
STATE_OF_REASON: dict[Reason, State] = {
    Reason.CANCELLED: State.CANCELLED,
    Reason.EXPIRED: State.EXPIRED,
    Reason.MD5_MISMATCH: State.FAILED,
    Reason.SHA256_MISMATCH: State.FAILED,
    Reason.NAME_TAKEN: State.FAILED,
}

# How Redis calls an upload that is closed in SQL. An OPEN one is `open` there, or `merging` once its last chunk is in.
REDIS_WORDS: dict[State, str] = {
    State.DONE: "done",
    State.CANCELLED: "cancelled",
    State.EXPIRED: "expired",
    State.FAILED: "failed",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One row of `file`: a user's named reference to a blob; and whether that is known to be damaged."""

    id: str
    user_id: str
    md5: str
    sha256: str
    name: str
    size: int
    instant: bool
    created_at: datetime
    # When the person's own file was changed, as its client told.
    modified_at: datetime | None = None
    damaged: bool = False
