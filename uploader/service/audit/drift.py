"""What a recount or a reconciliation finds: each difference is a Drift, and may have a repair."""

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What can drift, and what it is compared with."""

    # Rows of SQLite, with its indexes and with what their columns can hold.
    DATABASE = "database"
    # In the database, of a user: the sums over uploads and files; what they must stay below.
    USE_SPACE_FINISHED = "use_space_finished"
    USE_SPACE_UNFINISHED = "use_space_unfinished"
    RESERVED = "reserved"
    OVER_RESERVED = "over-reserved"
    OVER_TOTAL_SPACE = "over-total-space"
    # Of a blob: the number of its files; its size; whether it has a row.
    REFS = "refs"
    BLOB_BYTES = "blob-bytes"
    STRAY_BLOB = "stray-blob"
    # Of a file: what its blob repeats of it.
    FILE = "file"
    # Of an upload: its directory; its files, by what shows without reading all of them; a directory that outlived it.
    TEMP = "temp"
    MAP = "map"
    DATA = "data"
    LEFTOVER = "leftover"
    # The bytes on disk, twice; the bytes on disk and the bits in Redis; where the first chunk that is not whole ends so far.
    FLUSHED_BYTES = "flushed_bytes"
    FLUSHED = "flushed"
    CHUNKS = "chunks"
    TAIL = "tail"
    RECEIVED = "received"
    STATE = "state"
    TASK = "task"
    # Of a minute bucket: the hash of the upload that waits there; whether it exists.
    STRAY_TASK = "stray-task"
    INDEX = "index"


@dataclass(frozen=True, slots=True)
class Drift:
    """A figure that is not what its definition makes it; None where there is nothing."""

    kind: Kind
    subject: str
    expected: int | str | None
    actual: int | str | None

    def __str__(self) -> str:
        expected, actual = ("nothing" if value is None else value for value in (self.expected, self.actual))
        return f"{self.kind} of {self.subject}: expected {expected}, actual {actual}"


Repair = Callable[[], Coroutine[Any, Any, bool]]


async def cannot_be_repaired() -> bool:
    return False


@dataclass(slots=True)
class Findings:
    """What one look found; the repair of each drift has its index. `notes` are no drifts: users that hold more than an
    administrator has left them."""

    drifts: list[Drift] = field(default_factory=list)
    notes: list[Drift] = field(default_factory=list)
    checked: dict[str, int] = field(default_factory=dict)
    repaired: int = 0
    repairs: list[Repair] = field(default_factory=list)

    def add(self, drifts: Iterable[Drift], repair: Repair) -> None:
        for drift in drifts:
            self.drifts.append(drift)
            self.repairs.append(repair)
