"""Shared by uploads and downloads: progress, the caller's handle, and the state that all transfers of a client share:
settings, connections, abilities and space of the server. Moves no bytes itself."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar
from weakref import WeakValueDictionary

from msgspec.structs import asdict

from uploader.client import plan
from uploader.client.api import Api
from uploader.client.errors import Cancelled, NotFound, ServerProblem, Stopped
from uploader.client.model import IfExists
from uploader.client.pace import error_of

_WINDOW_SECONDS = 10.0
_SHORTEST_INTERVAL_SECONDS = 0.1

State = Literal["hashing", "uploading", "merging", "downloading", "complete"]

T = TypeVar("T")

_PAGE_FILES = 1000
# Servers round chunk sizes up to a multiple of this.
_STEP_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Progress:
    """A transfer at one moment. Figures are bytes."""

    name: str
    size: int
    state: State
    # Known to have arrived: acknowledged by the server, or written to the disk by a download.
    received_bytes: int
    # On their way, beyond the received ones.
    in_flight_bytes: int
    # Moved over the network by this run, arrived or not.
    moved_bytes: int
    hashed_bytes: int
    merged_bytes: int
    # Over the last ten seconds, including bytes that were spared; None while there is nothing to measure.
    bytes_per_second: float | None
    seconds_left: float | None
    # Of the arrived chunks, bytes that the server had already.
    spared_bytes: int = 0


OnProgress = Callable[[Progress], None]


class Speed:
    """The growth of a figure over the last ten seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def sample(self, now: float, figure: int) -> None:
        self._samples.append((now, figure))
        while now - self._samples[0][0] > _WINDOW_SECONDS:
            self._samples.popleft()

    def per_second(self, shortest_seconds: float = 0.0) -> float | None:
        """Return the speed; None without samples over at least `shortest_seconds`."""
        if not self._samples:
            return None
        (then, before), (now, figure) = self._samples[0], self._samples[-1]
        return (figure - before) / (now - then) if now - then > 0 and now - then >= shortest_seconds else None


class Meter:
    """Counts one transfer, and reports to a callback. An exception of the callback ends the transfer."""

    def __init__(
        self, name: str, size: int, on_progress: OnProgress | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._size = size
        self._on_progress = on_progress
        self._clock = clock
        self._state: State = "hashing"
        self._received = self._in_flight = self._merged = 0
        self.moved_bytes = self.spared_bytes = self.hashed_bytes = 0
        self._speed = Speed()
        self._told_at = float("-inf")

    def enter(self, state: State) -> None:
        """Change the state, and report it."""
        if state != self._state:
            self._state = state
            self.tell()

    def hashed(self, length_bytes: int) -> None:
        self.hashed_bytes += length_bytes
        self._tell_now_and_then()

    def merged(self, merged_bytes: int) -> None:
        self._merged = merged_bytes
        self._tell_now_and_then()

    def received(self, received_bytes: int) -> None:
        """Note the figure of the other end. Answers may overtake each other: the largest counts."""
        self._received = max(self._received, received_bytes)
        self._tell_now_and_then()

    def moving(self, length_bytes: int) -> None:
        self.moved_bytes += length_bytes
        self._in_flight += length_bytes
        self._tell_now_and_then()

    def spared(self, length_bytes: int) -> None:
        """Note bytes that arrived without being sent."""
        self.spared_bytes += length_bytes

    def landed(self, length_bytes: int) -> None:
        """Note bytes that are not on their way any more: they arrived, or are lost."""
        self._in_flight -= length_bytes

    def begin_anew(self) -> None:
        self._received = self._merged = 0
        self.tell()

    def _tell_now_and_then(self) -> None:
        if self._on_progress is not None and self._clock() - self._told_at >= _SHORTEST_INTERVAL_SECONDS:
            self.tell()

    def tell(self) -> None:
        self._told_at = self._clock()
        if self._on_progress is not None:
            self._on_progress(self.progress())

    def progress(self) -> Progress:
        self._speed.sample(self._clock(), self.moved_bytes + self.spared_bytes)
        rate = self._speed.per_second()
        left = max(0, self._size - self._received - self._in_flight)
        return Progress(
            name=self._name,
            size=self._size,
            state=self._state,
            received_bytes=min(self._received, self._size),
            in_flight_bytes=max(0, min(self._in_flight, self._size - self._received)),
            moved_bytes=self.moved_bytes,
            hashed_bytes=self.hashed_bytes,
            merged_bytes=self._merged,
            bytes_per_second=rate,
            seconds_left=left / rate if rate else None,
            spared_bytes=self.spared_bytes,
        )


class AsyncTransfer(Generic[T]):
    """A running upload or download. `await` the transfer for the result, in its own event loop."""

    def __init__(
        self, work: Coroutine[Any, Any, T], gate: asyncio.Event, meter: Meter, discard: Callable[[], Awaitable[None]]
    ) -> None:
        """`work` runs while `gate` is set; `discard` makes the server forget the sent bytes."""
        self._meter = meter
        self._discard = discard
        self._gate = gate
        self._gate.set()
        self._ending: Stopped | None = None
        self._task = asyncio.create_task(work)

    @property
    def progress(self) -> Progress:
        return self._meter.progress()

    @property
    def done(self) -> bool:
        return self._task.done()

    def pause(self) -> None:
        """Begin no further chunk; chunks on their way arrive."""
        self._gate.clear()

    def resume(self) -> None:
        self._gate.set()

    async def stop(self) -> None:
        """End the transfer and keep the received bytes: the same call resumes it, also elsewhere."""
        await self._end(Stopped())

    async def cancel(self) -> None:
        """End the transfer and keep nothing. Does nothing if the transfer has ended."""
        if await self._end(Cancelled()):
            with contextlib.suppress(NotFound):
                await self._discard()

    async def _end(self, ending: Stopped) -> bool:
        """End the transfer. Return whether this call did so."""
        if self._task.done():
            return False
        self._ending = self._ending or ending
        self._task.cancel()
        await asyncio.wait({self._task})
        return self._task.cancelled()

    async def wait(self) -> None:
        """Wait until the transfer is over, in any way. A cancelled wait does not end it."""
        await asyncio.wait({self._task})

    async def result(self) -> T:
        """Wait for the result. Raises Stopped, Cancelled, ClientError. A cancelled `await` stops the transfer."""
        try:
            return await self._task
        except asyncio.CancelledError:
            if self._ending is not None and self._task.cancelled():
                raise self._ending from None
            raise

    def __await__(self) -> Generator[Any, None, T]:
        return self.result().__await__()


@dataclass(slots=True)
class Shared:
    connections: int
    hash_first_bytes: int
    chunk_size: int | None
    most_bytes_per_second: float | None = None
    # True: only the changes are sent when a file replaces another one; False: never; None: on a slow line.
    delta: bool | None = None
    # Limit for bodies, after refusals by a proxy.
    most_body_bytes: int = field(init=False, default=1 << 62)
    # Bytes sent by all uploads, except batches.
    moved_bytes: int = field(init=False, default=0)
    slots: asyncio.Semaphore = field(init=False)
    _locks: "WeakValueDictionary[str, asyncio.Lock]" = field(init=False, default_factory=WeakValueDictionary)
    _asking: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    _at_once_bytes: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.slots = asyncio.Semaphore(self.connections)

    def alone(self, md5: str) -> asyncio.Lock:
        """Return the lock held while this content is sent: the next upload of the content then finds it on the server."""
        return self._locks.setdefault(md5, asyncio.Lock())

    async def at_once_bytes(self, api: Api) -> int:
        """Return the largest size of a file in one request, which is the size of a chunk. 0: the server is too old for
        this, and for batches, times and `if_exists`. Asks the server once."""
        async with self._asking:
            if self._at_once_bytes is None and await api.takes_batches():
                offered = (await api.config()).chunk_size
                self._at_once_bytes = min(self.chunk_size or offered.default, offered.max)
            self._at_once_bytes = self._at_once_bytes or 0
        return min(self._at_once_bytes, self.most_body_bytes)

    async def halve(self, api: Api, error: ServerProblem) -> None:
        """Halve the bodies from now on, after a refusal. Raises `error` if the server takes no smaller chunks."""
        refused_bytes, least_bytes = int(error.fields["body_bytes"]), (await api.config()).chunk_size.min
        if refused_bytes <= least_bytes:
            raise error
        self.most_body_bytes = min(
            self.most_body_bytes, max(least_bytes, refused_bytes // 2 // _STEP_BYTES * _STEP_BYTES)
        )
        self.chunk_size = min(self.chunk_size or self.most_body_bytes, self.most_body_bytes)


async def check_room(api: Api, name: str, size: int, if_exists: IfExists) -> None:
    """Raises QuotaExceeded for a file that can't fit, before reading."""
    if size <= plan.ASK_FOR_ROOM_BYTES or not api.has_account:
        return
    usage = await api.usage()
    free_bytes = usage.total_space - usage.use_space_finished - usage.reserved
    if size <= free_bytes:
        return
    # The server may still take the file, since its digests are not known yet: it may exist under this name, replace
    # others of the name, or be the content of an open upload, whose space is reserved.
    page = await api.page(None, name, _PAGE_FILES, one_level=True)
    of_name = [file for file in page.files if file.name == name]
    freed = sum(file.size for file in of_name) if if_exists == "replace" else 0
    if page.next is not None or any(file.size == size for file in of_name) or size - freed <= max(0, free_bytes):
        return
    if any(upload.size == size for upload in await api.uploads()):
        return
    problem = {"code": "quota-exceeded", "detail": "The file does not fit into your total space."}
    raise error_of(problem | asdict(usage) | {"requested": size}, 413)


async def needs_no_place(api: Api, name: str, size: int, if_exists: IfExists) -> bool:
    """Return whether the server may take a file in spite of too many files: it may exist under this name, replace
    another one, or belong to an open upload."""
    page = await api.page(None, name, _PAGE_FILES, one_level=True)
    of_name = [file.size for file in page.files if file.name == name]
    if page.next is not None or size in of_name or (if_exists == "replace" and of_name):
        return True
    return any(upload.size == size for upload in await api.uploads())


async def all_or_none(works: Iterable[Awaitable[T]]) -> list[T]:
    """Run all. The first error cancels the others, and waits for their end."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def end(task: "asyncio.Task[Any]") -> None:
    """Cancel a task, and wait until it is over, in any way."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
