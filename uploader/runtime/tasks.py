"""Work that is never left half done: asyncio tasks, and their work in threads."""

import asyncio
import ctypes
import os
import platform
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from uploader.runtime.cores import run_anywhere
from uploader.runtime.meter import Cost, Kind, cost_of_request

K = TypeVar("K")
T = TypeVar("T")
# Runs in a thread. Returns a function for the event loop, or None if nobody waits any more.
_Attempt = Callable[[], Callable[[], None] | None]

_PATIENCE_SECONDS = 0.1
# Small, so that the first result of a batch does not wait long for the last.
_MAX_BATCH = 32
# The niceness of a thread that gives way: it gets about a third of a competing thread's time (sched(7)).
_NICENESS = 5
_LAST_NICENESS = 19
# The number of the system call, for which glibc has no function; a thread, here the caller; the idle class in its bits.
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IOPRIO_WHO_THREAD = 1
_IOPRIO_IDLE = 3 << 13


async def uninterrupted(work: Awaitable[T]) -> T:
    """Run `work` to its end even if the caller is cancelled meanwhile; raise the cancellation afterwards. So a
    cancelled request leaves no lock, no connection in mid-command and no thread behind."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await _end_of(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # retrieved, because the caller is gone
        raise cancelled
    return task.result()


async def all_or_none(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Gather like `asyncio.gather`. If one fails, or the caller is cancelled, the others end before this returns."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        if left := [ended(task) for task in tasks if not task.done()]:
            await uninterrupted(asyncio.gather(*left))


class OnePerKey(Generic[T]):
    """Runs one piece of work at a time for each key. Callers with the same key meanwhile wait for the same work."""

    def __init__(self) -> None:
        self._under_way: dict[str, asyncio.Future[T]] = {}

    def start(self, key: str, begin: Callable[[], Awaitable[T]]) -> "asyncio.Future[T]":
        """Begin the work, unless it is under way. Nobody has to wait for it."""
        work = self._under_way.get(key)
        if work is None:
            work = self._under_way[key] = asyncio.ensure_future(begin())
            work.add_done_callback(lambda done: self._end(key, done))
        return work

    async def run(self, key: str, begin: Callable[[], Awaitable[T]]) -> T:
        """Return the result of the work. The work goes on if its caller goes away."""
        return await asyncio.shield(self.start(key, begin))

    def _end(self, key: str, done: "asyncio.Future[T]") -> None:
        del self._under_way[key]
        if not done.cancelled():
            done.exception()  # retrieved, in case nobody waits any more


class Rounds(Generic[K, T]):
    """Work on items that costs little more for many than for a single item: items that come during a round are done
    together in the next round. A single item does not wait."""

    def __init__(self, do: Callable[[Sequence[K]], Awaitable[Sequence[T]]], most: int) -> None:
        """`do`: returns the results of up to `most` items."""
        self._do = do
        self._most = most
        self._waiting: list[tuple[K, asyncio.Future[T]]] = []
        self._under_way: asyncio.Task[None] | None = None

    async def run(self, asked: K) -> T:
        """Return the result of an item. The work is done even if the caller is cancelled meanwhile."""
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, outcome))
        if self._under_way is None:
            # An empty context: the task continues for other callers, and its cost is not the first caller's alone.
            self._under_way = asyncio.create_task(self._go_on(), name="rounds", context=Context())
        return await outcome

    async def _go_on(self) -> None:
        while self._waiting:
            some, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            try:
                results = await self._do([asked for asked, _ in some])
            except Exception as error:
                settled: list[Callable[[], None]] = [partial(_fail, outcome, error) for _, outcome in some]
            else:
                settled = [
                    partial(_succeed, outcome, result) for (_, outcome), result in zip(some, results, strict=True)
                ]
            for settle in settled:
                settle()
        self._under_way = None

    async def close(self) -> None:
        """Wait for the remaining rounds."""
        if self._under_way is not None:
            await asyncio.wait({self._under_way})


def _end_of(task: "asyncio.Task[Any]") -> "asyncio.Future[None]":
    """Wait like `asyncio.wait`, in half the time: each chunk needs it."""
    end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    task.add_done_callback(lambda _: None if end.done() else end.set_result(None))
    return end


async def ended(task: "asyncio.Task[Any]") -> None:
    """Cancel an endless task, and wait for its end. Ignore its errors.

    One cancellation may not suffice: `asyncio.wait_for` of Python 3.11, through which redis-py sends, drops a
    cancellation that comes at the moment of its result (https://github.com/python/cpython/issues/86296).
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_PATIENCE_SECONDS)
    if not task.cancelled():
        task.exception()


# In threads


def give_way() -> None:
    """Lower this thread's priority: long work should not delay the event loop. On Linux, process
    id 0 is the calling thread (setpriority(2))."""
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + _NICENESS)


def give_way_anywhere() -> None:
    """Give way like `give_way`, on every core: the longest work stays off the core that short work shares."""
    run_anywhere()
    give_way()


def give_way_to_all() -> None:
    """Let this thread have a core and the disk only when no other thread wants them (ioprio_set(2), IOPRIO_CLASS_IDLE,
    which not every disk scheduler heeds)."""
    run_anywhere()
    os.setpriority(os.PRIO_PROCESS, 0, _LAST_NICENESS)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None).syscall(number, _IOPRIO_WHO_THREAD, 0, _IOPRIO_IDLE)


def run_in(
    pool: ThreadPoolExecutor,
    work: Callable[..., T],
    *arguments: object,
    translate: Callable[[OSError], Exception] | None = None,
) -> "asyncio.Future[T]":
    """Run like `run_in_executor`, with fewer steps, because each chunk needs some. If cancelled before a thread began
    the work, the work is not done; later, its result is dropped."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()
    attempt = _attempt_later(outcome, work, arguments, translate)

    def run() -> None:
        settle = attempt()
        if settle is not None:
            loop.call_soon_threadsafe(settle)

    pool.submit(run)
    return outcome


def in_thread(work: Callable[..., T], *arguments: object) -> "asyncio.Future[T]":
    """Run like `asyncio.to_thread`, and charge the cost to the request."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()
    attempt = _attempt_later(outcome, work, arguments, None)
    settled = loop.run_in_executor(None, attempt)
    settled.add_done_callback(_settle)
    return outcome


def _settle(settled: "asyncio.Future[Callable[[], None] | None]") -> None:
    settle = None if settled.cancelled() else settled.result()
    if settle is not None:
        settle()


class Pool:
    def __init__(
        self,
        threads: int,
        name: str,
        *,
        translate: Callable[[OSError], Exception],
        initializer: Callable[[], None] | None = None,
    ) -> None:
        """`translate`: makes the callers' error from an operating system's error, in the thread."""
        self._translate = translate
        self.executor = ThreadPoolExecutor(threads, thread_name_prefix=name, initializer=initializer)

    def run(self, work: Callable[..., T], *arguments: object) -> "asyncio.Future[T]":
        """Run like `run_in`, with operating system errors translated."""
        return run_in(self.executor, work, *arguments, translate=self._translate)

    def shutdown(self) -> None:
        self.executor.shutdown(wait=False)


@dataclass(eq=False, repr=False)
class Batches:
    """Short work that waits for nothing. Work from one turn of the event loop, and work that comes while the thread is
    busy, goes to a thread as one batch, and the results come back together."""

    pool: ThreadPoolExecutor
    _: KW_ONLY
    translate: Callable[[OSError], Exception] | None = None
    _waiting: list[tuple[asyncio.Future[Any], _Attempt]] = field(default_factory=list, init=False)
    _busy: bool = field(default=False, init=False)

    def run(self, work: Callable[..., T], *arguments: object) -> "asyncio.Future[T]":
        """Run like `run_in`, one after another."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()
        self._waiting.append((outcome, _attempt_later(outcome, work, arguments, self.translate)))
        if not self._busy:
            self._busy = True
            loop.call_soon(self._begin, loop)
        return outcome

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        batch, self._waiting = self._waiting[:_MAX_BATCH], self._waiting[_MAX_BATCH:]

        def run() -> None:
            settled = [attempt() for _, attempt in batch]
            loop.call_soon_threadsafe(self._end, loop, settled)

        try:
            self.pool.submit(run)
        except RuntimeError as error:  # the pool was shut down
            self._end(loop, [partial(_fail, outcome, error) for outcome, _ in batch])

    def _end(self, loop: asyncio.AbstractEventLoop, settled: list[Callable[[], None] | None]) -> None:
        for settle in settled:
            if settle is not None:
                settle()
        self._busy = bool(self._waiting)
        if self._busy:
            self._begin(loop)


def _attempt_later(
    outcome: "asyncio.Future[T]",
    work: Callable[..., T],
    arguments: tuple[object, ...],
    translate: Callable[[OSError], Exception] | None,
) -> _Attempt:
    """Return an attempt that runs in a copy of the current context, so that log lines from the thread have the
    request's id."""

    def attempt() -> Callable[[], None] | None:
        if outcome.cancelled():
            return None
        try:
            return partial(_succeed, outcome, work(*arguments))
        except OSError as error:
            if translate is None:
                return partial(_fail, outcome, error)
            meant = translate(error)
            meant.__cause__ = error
            return partial(_fail, outcome, meant)
        except BaseException as error:
            return partial(_fail, outcome, error)

    def attempt_and_charge(cost: Cost) -> Callable[[], None] | None:
        began = time.thread_time()
        settle = attempt()
        return None if settle is None else partial(_charge, cost, time.thread_time() - began, settle)

    cost = cost_of_request.get()
    context = copy_context()
    return partial(context.run, attempt) if cost is None else partial(context.run, attempt_and_charge, cost)


def _charge(cost: Cost, seconds: float, settle: Callable[[], None]) -> None:
    cost.add(Kind.THREADS, seconds)
    settle()


def _succeed(outcome: "asyncio.Future[T]", result: T) -> None:
    if not outcome.done():
        outcome.set_result(result)


def _fail(outcome: "asyncio.Future[T]", error: BaseException) -> None:
    if not outcome.done():
        outcome.set_exception(error)
