"""The body of a chunk: received whole before anything is written to its upload, counted as it arrives.

It gathers in memory, charged to one budget of the process and a share of each user; where there is no budget, or where
it is slow, it moves to an unlinked file. So nobody is refused for lack of memory, and nobody slow holds it.
"""

import asyncio
import mmap
from collections.abc import Iterator

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from uploader.errors import BodyTimeout, ChunkLengthMismatch, InvalidRequest, TooManyRequests
from uploader.settings import Settings
from uploader.storage.base import Spool, Storage
from uploader.tasks import uninterrupted

_PIECE_BYTES = 1 << 20
_SPOOL_BATCH_BYTES = 256 << 10
# A body that takes longer than this moves out of memory; the minimum rate is asked for from here on, too.
_GRACE_SECONDS = 10.0
_USER_SHARE = 4
# JSON is small, and there is no place for it but memory: it has a budget of its own, so that chunks never starve it.
MAX_JSON_BYTES = 256 << 10
_JSON_BUDGET_BYTES = 64 << 20


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

    def __init__(self, budget: BodyBudget, storage: Storage, user_id: str, capacity_bytes: int) -> None:
        self._budget = budget
        self._storage = storage
        self._user_id = user_id
        # Anonymous pages cost nothing until they are written to, so a slow body holds what has arrived and no more.
        self._memory: mmap.mmap | None = mmap.mmap(-1, capacity_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._charged = 0
        self._spool: Spool | None = None
        self._batch = bytearray()
        self._keepers = 1
        self.length = 0

    async def append(self, piece: bytes, *, slow: bool) -> None:
        """Take the next bytes; the caller has checked that they fit. Raises StorageFull."""
        if self._memory is not None and (slow or not self._budget.charge(self._user_id, len(piece))):
            await self._move_to_spool()
        if self._memory is not None:
            self._memory[self.length : self.length + len(piece)] = piece
            self._charged += len(piece)
        else:
            self._batch += piece
            if len(self._batch) >= _SPOOL_BATCH_BYTES:
                await self._write_batch()
        self.length += len(piece)

    async def end(self) -> None:
        """No more bytes will come. Raises StorageFull."""
        if self._batch:
            await self._write_batch()

    def pieces(self) -> Iterator[memoryview]:
        if self._memory is not None:
            yield memoryview(self._memory)[: self.length]
            return
        assert self._spool is not None
        for offset in range(0, self.length, _PIECE_BYTES):
            yield memoryview(self._spool.read(_PIECE_BYTES, offset))

    def keep(self) -> None:
        self._keepers += 1

    def close(self) -> None:
        self._keepers -= 1
        if self._keepers:
            return
        self._memory = None  # unmapped with its last view
        self._batch = bytearray()
        self._budget.release(self._user_id, self._charged)
        self._charged = 0
        if self._spool is not None:
            self._spool.close()
            self._spool = None

    async def _move_to_spool(self) -> None:
        assert self._memory is not None
        await uninterrupted(self._open_spool())
        self._batch += memoryview(self._memory)[: self.length]
        self._memory = None
        self._budget.release(self._user_id, self._charged)
        self._charged = 0
        if self._batch:
            await self._write_batch()

    async def _open_spool(self) -> None:
        self._spool = await self._storage.open_spool()

    async def _write_batch(self) -> None:
        assert self._spool is not None
        batch, self._batch = self._batch, bytearray()
        await uninterrupted(self._spool.append(memoryview(batch)))


class Intake:
    """Takes in the bodies of one process, within its limits."""

    def __init__(self, settings: Settings, storage: Storage) -> None:
        self._storage = storage
        self._budget = BodyBudget(settings.body_budget_bytes)
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

    async def receive(self, receive: Receive, user_id: str, expected_bytes: int) -> ReceivedBody:
        """A body of exactly `expected_bytes`; one that is longer is cut off at the limit.

        Raises ChunkLengthMismatch, BodyTimeout, StorageFull, and ClientDisconnect if the client went away.
        """
        body = ReceivedBody(self._budget, self._storage, user_id, expected_bytes)
        try:
            await self._fill(body, receive, expected_bytes)
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

    async def _fill(self, body: ReceivedBody, receive: Receive, expected_bytes: int) -> None:
        started = asyncio.get_running_loop().time()
        more = True
        while more:
            message = await self._next(receive, started, body.length)
            if message["type"] == "http.disconnect":
                raise ClientDisconnect()
            piece = message.get("body", b"")
            more = message.get("more_body", False)
            if body.length + len(piece) > expected_bytes:
                raise ChunkLengthMismatch(expected=expected_bytes, received=body.length + len(piece))
            if piece:
                slow = asyncio.get_running_loop().time() - started > _GRACE_SECONDS
                await body.append(piece, slow=slow)
        if body.length != expected_bytes:
            raise ChunkLengthMismatch(expected=expected_bytes, received=body.length)

    async def _next(self, receive: Receive, started: float, length: int) -> Message:
        """The next message, within the idle time-out and before the body is slower than it may be."""
        now = asyncio.get_running_loop().time()
        too_slow_at = started + max(_GRACE_SECONDS, length / self._min_rate_bytes if self._min_rate_bytes else 1e9)
        try:
            async with asyncio.timeout_at(min(now + self._idle_timeout_seconds, too_slow_at)):
                return await receive()
        except TimeoutError as error:
            raise BodyTimeout() from error
