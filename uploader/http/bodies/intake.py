"""The body of a chunk: received whole before anything is written to its upload, counted as it arrives.

It gathers in memory, charged to one budget of the process and a share of each user; where there is no budget, or where
it is slow, it moves to an unlinked file. So nobody is refused for lack of memory, and nobody slow holds it.
"""

import asyncio
from collections.abc import Iterator

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from uploader.errors import BodyTimeout, ChunkLengthMismatch, InvalidRequest, TooManyRequests
from uploader.http.bodies.segments import Segments
from uploader.http.bodies.source import BodySource
from uploader.settings import Settings
from uploader.storage.base import Body, Spool, Storage
from uploader.tasks import uninterrupted

_PIECE_BYTES = 1 << 20
# What a spooled body gathers before it is written. Of slow ones there may be many.
_BATCH_BYTES = 256 << 10
_SLOW_BATCH_BYTES = 64 << 10
# A body that takes longer than this moves out of memory; the minimum rate is asked for from here on, too.
_GRACE_SECONDS = 10.0
_USER_SHARE = 4
# JSON is small, and there is no place for it but memory: it has a budget of its own, so that chunks never starve it.
MAX_JSON_BYTES = 256 << 10
_JSON_BUDGET_BYTES = 64 << 20
_NO_ROOM = memoryview(b"")


class BodyBudget:
    """Bytes of memory for bodies: of the process, and of each user a quarter of that."""

    def __init__(self, total_bytes: int) -> None:
        self._free = total_bytes
        self._user_share = total_bytes // _USER_SHARE
        self._charged: dict[str, int] = {}

    @property
    def charged_bytes(self) -> int:
        """What bodies hold now."""
        return sum(self._charged.values())

    def charge(self, user_id: str, length_bytes: int) -> bool:
        """Take memory; False if there is none left for this user."""
        charged = self._charged.get(user_id, 0) + length_bytes
        if length_bytes > self._free or charged > self._user_share:
            return False
        self._free -= length_bytes
        self._charged[user_id] = charged
        return True

    def release(self, user_id: str, length_bytes: int) -> None:
        """Give memory back."""
        self._free += length_bytes
        left = self._charged.pop(user_id, 0) - length_bytes
        if left > 0:
            self._charged[user_id] = left


class ReceivedBody:
    """A body while it gathers and after: in memory, or in an unlinked file. Close it, once for each that keeps it."""

    def __init__(
        self, budget: BodyBudget, segments: Segments, storage: Storage, user_id: str, expected_bytes: int
    ) -> None:
        self._budget = budget
        self._pool = segments
        self._storage = storage
        self._user_id = user_id
        self._segments: list[memoryview] = []
        self._segment_bytes = segments.small_bytes
        self._spool: Spool | None = None
        self._batch = memoryview(b"")
        self._batched = 0
        self._expected = expected_bytes
        self._keepers = 1
        self.length = 0

    @property
    def in_memory(self) -> bool:
        return self._spool is None

    async def make_room(self, *, slow: bool) -> None:
        """There is room after this, in memory or not. The body is not whole. Raises StorageFull."""
        if self._spool is None and (slow or not self._has_segment()):
            await self._move_to_spool(_SLOW_BATCH_BYTES if slow else _BATCH_BYTES)
        elif self._spool is not None and self._batched == len(self._batch):
            await self._write_batch()

    def room(self) -> memoryview:
        left = self._expected - self.length
        if not left:
            return _NO_ROOM
        if self._spool is not None:
            return self._batch[self._batched :][:left]
        if not self._has_segment():
            return _NO_ROOM
        return self._segments[-1][self.length % self._segment_bytes :][:left]

    def advance(self, count: int) -> None:
        self.length += count
        if self._spool is not None:
            self._batched += count

    async def end(self) -> None:
        """No more bytes will come. Raises StorageFull."""
        if self._batched:
            await self._write_batch()
        self._batch = memoryview(b"")

    def pieces(self) -> Iterator[memoryview]:
        if self._spool is None:
            for number, segment in enumerate(self._segments):
                yield segment[: self.length - number * self._segment_bytes]
            return
        for offset in range(0, self.length, _PIECE_BYTES):
            yield memoryview(self._spool.read(_PIECE_BYTES, offset))

    def keep(self) -> None:
        self._keepers += 1

    def close(self) -> None:
        self._keepers -= 1
        if self._keepers:
            return
        self._release_segments()
        self._batch = memoryview(b"")
        if self._spool is not None:
            self._spool.close()

    def _has_segment(self) -> bool:
        """Whether there is memory for the next byte, taking some if need be."""
        if self.length < len(self._segments) * self._segment_bytes:
            return True
        if not self._segments:
            return self._take(self._segment_bytes)
        if not self._take(self._pool.large_bytes):
            return False
        if self._segment_bytes < self._pool.large_bytes:
            self._move_to_large()
        return True

    def _take(self, size_bytes: int) -> bool:
        if not self._budget.charge(self._user_id, size_bytes):
            return False
        try:
            self._segments.append(self._pool.take(size_bytes))
        except OSError:
            self._budget.release(self._user_id, size_bytes)
            return False
        return True

    def _move_to_large(self) -> None:
        """What began in a small segment goes on in the large one after it."""
        small = self._segments.pop(0)
        self._segments[0][: len(small)] = small
        self._give_back(small)
        self._segment_bytes = self._pool.large_bytes

    def _give_back(self, segment: memoryview) -> None:
        self._pool.give_back(segment)
        self._budget.release(self._user_id, len(segment))

    def _release_segments(self) -> None:
        for segment in self._segments:
            self._give_back(segment)
        self._segments = []

    async def _move_to_spool(self, batch_bytes: int) -> None:
        pieces = list(self.pieces())
        await uninterrupted(self._open_spool(pieces))
        self._release_segments()
        self._batch = memoryview(bytearray(min(batch_bytes, self._expected - self.length)))

    async def _open_spool(self, pieces: list[memoryview]) -> None:
        self._spool = await self._storage.open_spool()
        for piece in pieces:
            await self._spool.append(piece)

    async def _write_batch(self) -> None:
        assert self._spool is not None
        await uninterrupted(self._spool.append(self._batch[: self._batched]))
        self._batched = 0


class WholeBody:
    """A body that was there before anybody asked: it stays where the parser left it. Close it, as one that gathers."""

    def __init__(self, budget: BodyBudget, user_id: str, content: bytes) -> None:
        """Its length is charged to the budget already."""
        self._budget = budget
        self._user_id = user_id
        self._content = content
        self._keepers = 1
        self.length = len(content)

    def pieces(self) -> Iterator[memoryview]:
        yield memoryview(self._content)

    def keep(self) -> None:
        self._keepers += 1

    def close(self) -> None:
        self._keepers -= 1
        if not self._keepers:
            self._content = b""
            self._budget.release(self._user_id, self.length)


class _Excess:
    """Room for the one byte that is too many."""

    def __init__(self) -> None:
        self.length = 0

    def room(self) -> memoryview:
        return memoryview(bytearray(1 - self.length))

    def advance(self, count: int) -> None:
        self.length += count


class Intake:
    """Takes in the bodies of one process, within its limits."""

    def __init__(self, settings: Settings, storage: Storage) -> None:
        self._storage = storage
        self._budget = BodyBudget(settings.body_budget_bytes)
        self._segments = Segments(settings.body_budget_bytes)
        self._json_budget = BodyBudget(_JSON_BUDGET_BYTES)
        self._idle_timeout_seconds = settings.body_idle_timeout_seconds
        self._min_rate_bytes = settings.min_body_rate_bytes
        self._max_per_user = settings.max_concurrent_chunks
        self._bodies: dict[str, int] = {}

    def enter(self, user_id: str) -> None:
        """Count a body of a user. Raises TooManyRequests; call `leave` otherwise."""
        count = self._bodies.get(user_id, 0)
        if count >= self._max_per_user:
            raise TooManyRequests(limit=self._max_per_user)
        self._bodies[user_id] = count + 1

    def leave(self, user_id: str) -> None:
        count = self._bodies.pop(user_id) - 1
        if count:
            self._bodies[user_id] = count

    async def receive(self, source: BodySource, user_id: str, expected_bytes: int) -> Body:
        """A body of exactly `expected_bytes`; one that is longer is cut off at the limit.

        Raises ChunkLengthMismatch, BodyTimeout, StorageFull, and ClientDisconnect if the client went away.
        """
        if source.is_whole and self._budget.charge(user_id, source.waiting_bytes):
            return _checked(WholeBody(self._budget, user_id, source.take()), expected_bytes)
        body = ReceivedBody(self._budget, self._segments, self._storage, user_id, expected_bytes)
        try:
            await self._fill(body, source, expected_bytes)
            await body.end()
        except BaseException:
            body.close()
            raise
        return body

    async def receive_json(self, receive: Receive, user_id: str) -> bytes:
        """A small body, within the idle time-out as a whole.

        Raises InvalidRequest if it is not small, TooManyRequests, BodyTimeout, and ClientDisconnect.
        """
        content, more = bytearray(), True
        try:
            async with asyncio.timeout(self._idle_timeout_seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnect()
                    piece, more = message.get("body", b""), message.get("more_body", False)
                    if len(content) + len(piece) > MAX_JSON_BYTES:
                        raise InvalidRequest.field("body", f"is longer than {MAX_JSON_BYTES} bytes")
                    if not self._json_budget.charge(user_id, len(piece)):
                        raise TooManyRequests()
                    content += piece
        except TimeoutError as error:
            raise BodyTimeout() from error
        finally:
            self._json_budget.release(user_id, len(content))
        return bytes(content)

    async def _fill(self, body: ReceivedBody, source: BodySource, expected_bytes: int) -> None:
        loop = asyncio.get_running_loop()
        pace = _Pace(loop.time(), self._idle_timeout_seconds, self._min_rate_bytes)
        excess = _Excess()
        while not source.ended:
            whole = body.length == expected_bytes
            if not whole:
                began = loop.time()
                await body.make_room(slow=began >= pace.slow_at)
                if loop.time() != began:
                    pace.ready_at = loop.time()
            look_again_at = pace.late_at(source.progressed_at, body.length)
            if body.in_memory and loop.time() < pace.slow_at:
                look_again_at = min(look_again_at, pace.slow_at)
            await source.pour(excess if whole else body, look_again_at)
            if excess.length:
                raise ChunkLengthMismatch(
                    expected=expected_bytes, received=expected_bytes + excess.length + source.waiting_bytes
                )
            if loop.time() >= pace.late_at(source.progressed_at, body.length):
                raise BodyTimeout()
        if body.length != expected_bytes:
            raise ChunkLengthMismatch(expected=expected_bytes, received=body.length)


def _checked(body: WholeBody, expected_bytes: int) -> WholeBody:
    if body.length != expected_bytes:
        body.close()
        raise ChunkLengthMismatch(expected=expected_bytes, received=body.length)
    return body


class _Pace:
    """When a body stands still for too long, or is slower than it may be; by the loop's clock, in seconds."""

    def __init__(self, started_at: float, idle_timeout_seconds: float, min_rate_bytes: int) -> None:
        self._started_at = started_at
        self._idle_timeout_seconds = idle_timeout_seconds
        self._min_rate_bytes = min_rate_bytes
        self.slow_at = started_at + _GRACE_SECONDS
        # Since when it is waited for: what a busy disk takes is not the client's.
        self.ready_at = started_at

    def late_at(self, progressed_at: float, length: int) -> float:
        """For a body that gets no further than this."""
        still_at = max(progressed_at, self.ready_at) + self._idle_timeout_seconds
        if not self._min_rate_bytes:
            return still_at
        return min(still_at, max(self.slow_at, self._started_at + length / self._min_rate_bytes))
