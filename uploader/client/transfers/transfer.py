"""What a caller holds while bytes move: wait for the result, pause, resume, stop, cancel. Moves nothing itself."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from uploader.client.errors import Cancelled, NotFound, Stopped
from uploader.client.transfers.progress import Meter, Progress

T = TypeVar("T")


class AsyncTransfer(Generic[T]):
    """An upload or a download that runs. `await` it for its result; it must be used in its own event loop."""

    def __init__(
        self,
        work: Coroutine[Any, Any, T],
        gate: asyncio.Event,
        meter: Meter,
        discard: Callable[[], Awaitable[None]],
    ) -> None:
        """`work` goes on while `gate` is set; `discard` makes the server forget what it was sent."""
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
        """Begin no further chunk; those that are on their way arrive."""
        self._gate.clear()

    def resume(self) -> None:
        self._gate.set()

    async def stop(self) -> None:
        """End it and keep what has arrived: the same call goes on from there, also elsewhere."""
        await self._end(Stopped())

    async def cancel(self) -> None:
        """End it and keep nothing. Does nothing if it has ended."""
        if await self._end(Cancelled()):
            with contextlib.suppress(NotFound):
                await self._discard()

    async def _end(self, ending: Stopped) -> bool:
        """Whether it was this call that ended it."""
        if self._task.done():
            return False
        self._ending = self._ending or ending
        self._task.cancel()
        await asyncio.wait({self._task})
        return self._task.cancelled()

    async def wait(self) -> None:
        """Until it is over, however it ends. A cancelled wait does not end it."""
        await asyncio.wait({self._task})

    async def result(self) -> T:
        """What came of it. Raises Stopped, Cancelled, ClientError. A cancelled `await` stops it."""
        try:
            return await self._task
        except asyncio.CancelledError:
            if self._ending is not None and self._task.cancelled():
                raise self._ending from None
            raise

    def __await__(self) -> Generator[Any, None, T]:
        return self.result().__await__()
