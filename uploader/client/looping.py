"""An event loop in a thread of its own, for programs that have none."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_AT_ONCE = 1000


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="uploader-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_seconds: float | None = None) -> T:
        """Run it there and wait here; whatever interrupts the waiting ends the work first."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_seconds)
        except BaseException:
            future.cancel()
            raise

    def stop(self, last: Coroutine[Any, Any, None]) -> None:
        """End everything that runs there, do one thing more, then end the thread."""
        self.run(_end_all_others())
        self.run(last)
        self.run(self._loop.shutdown_asyncgens())
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end_all_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def call(function: Callable[[], T]) -> T:
    """An event loop's own things are used in its thread only."""
    return function()


async def next_of(found: AsyncIterator[T]) -> list[T]:
    """A page or so, because the way between two threads is long. Empty at the end."""
    some = []
    async for each in found:
        some.append(each)
        if len(some) == _AT_ONCE:
            break
    return some
