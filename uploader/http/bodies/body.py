"""Request bodies, while they arrive and afterwards: in reused memory or in a file of the spool, whole or as slices. Touching
a fresh page of memory costs more than all later work on its bytes, so free segments are kept. Memory is charged to a budget
of the process, and each user may take a share of it.
"""

import asyncio
import mmap
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from uploader.domain.links import Caller
from uploader.runtime.tasks import uninterrupted
from uploader.service.append import Part, a_newer_one
from uploader.storage.store import Spool, SpooledBytes

# Bytes to collect before a write to the spool. Slow bodies collect less, because there may be many.
_BATCH_BYTES = 256 << 10
_SLOW_BATCH_BYTES = 64 << 10
_USER_SHARE = 4
_NO_ROOM = memoryview(b"")
_LARGE_BYTES = 1 << 20
# Limits the size of large segments, so that a user's share of a small budget holds several.
_MIN_LARGE = 16
# The first segment of a body is small, because many bodies may begin at once.
_SMALL_BYTES = 64 << 10
_SMALL_SHARE = 4


class BodyBudget:
    """Bytes of memory for bodies: a total for the process, and a quarter of it for each user."""

    def __init__(self, total_bytes: int) -> None:
        self._total = self._free = total_bytes
        self._user_share = total_bytes // _USER_SHARE
        self._charged: dict[Caller, int] = {}
        self._released = asyncio.Event()

    def charge(self, caller: Caller, length_bytes: int) -> bool:
        """Return False if process or user have too little left."""
        charged = self._charged.get(caller, 0) + length_bytes
        if length_bytes > self._free or charged > self._user_share:
            return False
        self._free -= length_bytes
        self._charged[caller] = charged
        return True

    def release(self, caller: Caller, length_bytes: int) -> None:
        self._free += length_bytes
        left = self._charged.pop(caller, 0) - length_bytes
        if left > 0:
            self._charged[caller] = left
        self._released.set()

    async def wait_for_release(self, own_bytes: int, until: float) -> bool:
        """Return True once memory is released; False at `until` (loop clock), or if the caller holds all charged bytes."""
        if self._total - self._free <= own_bytes:
            return False
        self._released.clear()
        try:
            async with asyncio.timeout_at(until):
                return await self._released.wait()
        except TimeoutError:
            return False


class Segments:
    """Free segments of two sizes. The last used one is taken first, because it is still in the caches."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._made_bytes = 0
        self._free: dict[int, list[memoryview]] = defaultdict(list)
        self.large_bytes = max(min(_LARGE_BYTES, budget_bytes // _MIN_LARGE), 1)
        self.small_bytes = max(min(_SMALL_BYTES, self.large_bytes // _SMALL_SHARE), 1)

    def take(self, size_bytes: int) -> memoryview:
        """Return memory with arbitrary old content. Raises OSError if the system has none."""
        if mine := self._free[size_bytes]:
            return mine.pop()
        # Free segments of the other size to stay within the budget.
        for free in self._free.values():
            while free and self._made_bytes + size_bytes > self._budget_bytes:
                self._made_bytes -= len(free.pop())
        # Private, because the kernel merges private neighbours into one mapping; the number of mappings per process is
        # limited.
        made = mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._made_bytes += size_bytes
        return memoryview(made)

    def give_back(self, segments: list[memoryview]) -> None:
        for segment in segments:
            self._free[len(segment)].append(segment)


class ReceivedBody:
    """A body in memory or in an unlinked file. Call `close` once, and once more for each `keep`."""

    def __init__(
        self, budget: BodyBudget, segments: Segments, spool: Spool, caller: Caller, expected_bytes: int
    ) -> None:
        self._budget = budget
        self._pool = segments
        self._spool = spool
        self._caller = caller
        self._segments: list[memoryview] = []
        self._segment_bytes = segments.small_bytes
        self._spooled: SpooledBytes | None = None
        self._batch = memoryview(b"")
        self._batched = 0
        self._expected = expected_bytes
        self._keepers = 1
        self.in_memory = True
        self.length = 0

    async def make_room(self, *, slow: bool, patience_seconds: float = 0.0) -> None:
        """Make sure that the body has room for a next byte. Waits up to `patience_seconds` for memory before it moves the
        body to the spool. Raises StorageFull."""
        if self._spooled is None and (slow or not await self._wait_for_segment(patience_seconds)):
            await uninterrupted(self._move_to_spool(_SLOW_BATCH_BYTES if slow else _BATCH_BYTES))
        elif self._spooled is not None and self._batched == len(self._batch):
            await uninterrupted(self._write_batch(self._spooled))

    def room(self) -> memoryview:
        left = self._expected - self.length
        if not left:
            return _NO_ROOM
        if self._spooled is not None:
            return self._batch[self._batched :][:left]
        if not self._has_segment():
            return _NO_ROOM
        return self._segments[-1][self.length % self._segment_bytes :][:left]

    def advance(self, count: int) -> None:
        self.length += count
        if self._spooled is not None:
            self._batched += count

    async def append(self, content: memoryview, *, slow: bool) -> None:
        """Raises StorageFull."""
        while content:
            await self.make_room(slow=slow)
            room = self.room()
            count = min(len(room), len(content))
            room[:count] = content[:count]
            self.advance(count)
            content = content[count:]

    async def end(self) -> None:
        """Write the last batch. Raises StorageFull."""
        if self._spooled is not None and self._batched:
            await uninterrupted(self._write_batch(self._spooled))
        self._batch = memoryview(b"")

    def pieces(self) -> Iterable[memoryview]:
        """Return the pieces of the body. In memory it is a list, so hashing and storing need no thread change per piece."""
        if self._spooled is not None:
            return self._spooled.pieces(0, self.length)
        size = self._segment_bytes
        used = -(-self.length // size)  # the last segment may be unused
        return [segment[: self.length - number * size] for number, segment in enumerate(self._segments[:used])]

    def pieces_of(self, start: int, length: int) -> Iterable[memoryview]:
        if self._spooled is not None:
            return self._spooled.pieces(start, length)
        return _cut(self.pieces(), start, length)

    def keep(self) -> None:
        self._keepers += 1

    def close(self) -> None:
        self._keepers -= 1
        if self._keepers:
            return
        self._release_segments()
        self._batch = memoryview(b"")
        if self._spooled is not None:
            self._spooled.close()

    def _has_segment(self) -> bool:
        """Return True if there is memory for the next byte; take a segment if needed."""
        if self.length < len(self._segments) * self._segment_bytes:
            return True
        if not self._segments:
            return self._take(self._segment_bytes)
        if not self._take(self._pool.large_bytes):
            return False
        if self._segment_bytes < self._pool.large_bytes:
            small = self._segments.pop(0)
            self._segments[0][: len(small)] = small
            self._give_back([small])
            self._segment_bytes = self._pool.large_bytes
        return True

    async def _wait_for_segment(self, patience_seconds: float) -> bool:
        """Return True once there is memory for the next byte. Waits until others release memory, or the patience ends."""
        until = asyncio.get_running_loop().time() + patience_seconds
        while not self._has_segment():
            own_bytes = len(self._segments) * self._segment_bytes
            if not (patience_seconds and await self._budget.wait_for_release(own_bytes, until)):
                return False
        return True

    def _take(self, size_bytes: int) -> bool:
        if not self._budget.charge(self._caller, size_bytes):
            return False
        try:
            self._segments.append(self._pool.take(size_bytes))
        except OSError:
            self._budget.release(self._caller, size_bytes)
            return False
        return True

    def _give_back(self, segments: list[memoryview]) -> None:
        self._pool.give_back(segments)
        self._budget.release(self._caller, sum(map(len, segments)))

    def _release_segments(self) -> None:
        segments, self._segments = self._segments, []
        if segments:
            self._give_back(segments)

    async def _move_to_spool(self, batch_bytes: int) -> None:
        """Move completely or not at all, to keep the body in one place."""
        spooled = await self._spool.open()
        try:
            for piece in self.pieces():
                await spooled.append(piece)
        except BaseException:
            spooled.close()
            raise
        self._spooled, self.in_memory = spooled, False
        self._release_segments()
        self._batch = memoryview(bytearray(min(batch_bytes, self._expected - self.length)))

    async def _write_batch(self, spooled: SpooledBytes) -> None:
        """Write the batch once; the caller does not interrupt this, because a second write would repeat bytes."""
        await spooled.append(self._batch[: self._batched])
        self._batched = 0


class WholeBody:
    """A body that was complete in the parser's buffer, and stays there uncopied. Call `close` once, and once more for each
    `keep`."""

    def __init__(self, budget: BodyBudget, caller: Caller, content: bytes) -> None:
        """The caller has already charged the length to the budget."""
        self._budget = budget
        self._caller = caller
        self._content = content
        self._keepers = 1
        self.length = len(content)

    def pieces(self) -> Iterable[memoryview]:
        return (memoryview(self._content),)

    def pieces_of(self, start: int, length: int) -> Iterable[memoryview]:
        return _cut(self.pieces(), start, length)

    def keep(self) -> None:
        self._keepers += 1

    def close(self) -> None:
        self._keepers -= 1
        if not self._keepers:
            self._content = b""
            self._budget.release(self._caller, self.length)


def _cut(pieces: Iterable[memoryview], start: int, length: int) -> list[memoryview]:
    found = []
    for piece in pieces:
        part = piece[start : start + length]
        start, length = max(start - len(piece), 0), length - len(part)
        if len(part):
            found.append(part)
    return found


@dataclass(frozen=True, slots=True)
class BodySlice:
    body: ReceivedBody | WholeBody
    start: int
    length: int

    def __post_init__(self) -> None:
        self.body.keep()

    def pieces(self) -> Iterable[memoryview]:
        return self.body.pieces_of(self.start, self.length)

    def keep(self) -> None:
        self.body.keep()

    def close(self) -> None:
        self.body.close()


class Reread:
    def __init__(self, body: ReceivedBody | WholeBody) -> None:
        self._body = body
        self._position = 0
        self.declared_bytes = body.length

    async def receive_part(self, _caller: Caller, limit_bytes: int, goes_on: Callable[[], bool]) -> Part:
        if not goes_on():
            return Part(BodySlice(self._body, self._position, 0), ended=False, error=a_newer_one())
        length = min(limit_bytes, self.declared_bytes - self._position)
        part = BodySlice(self._body, self._position, length)
        self._position += length
        return Part(part, ended=self._position == self.declared_bytes)

    def stored(self, offset: int) -> None:
        """Do nothing: nobody waits for the progress (`Incoming.stored`)."""

    def close(self) -> None:
        self._body.close()
