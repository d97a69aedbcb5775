"""Which chunks of an upload are there, as the ledger has it."""

from dataclasses import dataclass

from uploader.domain.ledger import Entry
from uploader.domain.upload import Tail, Upload, chunk_count, chunk_length, received_bytes
from uploader.storage.base import Defect


@dataclass(frozen=True, slots=True)
class PartMap:
    """As `PresentChunks`."""

    present: bytearray
    tail: Tail | None
    size: int
    chunk_size: int
    # When a chunk last arrived, in seconds since the epoch.
    written_at: float
    # False: the row has the length, and what makes the tail the last chunk of it was not done yet.
    settled: bool = True

    @property
    def complete(self) -> bool:
        return all(self.present)

    @property
    def received_bytes(self) -> int:
        return received_bytes(self.present, self.size, self.chunk_size, self.tail)

    @property
    def leading_bytes(self) -> int:
        leading = self.present.find(0) if 0 in self.present else len(self.present)
        return min(leading * self.chunk_size, self.size) + (self.tail.length if self.tail else 0)

    @property
    def defect(self) -> Defect | None:
        """None shows without asking S3; a merge does."""
        return None


def map_of(upload: Upload, entry: Entry) -> PartMap:
    """A tail counts if it is of the first chunk that is not there."""
    size, chunk_size, written_at = upload.extent, upload.chunk_size, entry.written_at.timestamp()
    count = chunk_count(size, chunk_size)
    present = bytearray(count)
    for number in entry.parts:
        if number < count:
            present[number] = 1
    tail = entry.tail
    if tail is None or tail.number >= count or present.find(0) != tail.number:
        return PartMap(present, None, size, chunk_size, written_at)
    if tail.length < chunk_length(tail.number, size, chunk_size):
        return PartMap(present, Tail(tail.number, tail.length), size, chunk_size, written_at)
    # Its length was told after its last byte had come.
    present[tail.number] = 1
    return PartMap(present, None, size, chunk_size, written_at, settled=False)
