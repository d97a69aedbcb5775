"""Wakes tasks that sleep until something happens. Any module may import it."""

import asyncio


class Bell:
    """Never reset: each listener remembers the number of rings at its last look, and so misses no ring while listeners
    are awake."""

    def __init__(self) -> None:
        self.rings = 0
        self._asleep: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        self.rings += 1
        for each in self._asleep:
            if not each.done():
                each.set_result(None)

    async def listen(self, rings: int, until: float) -> None:
        """Return when the bell has rung more than `rings` times, or at `until` on the event loop's clock."""
        if self.rings != rings:
            return
        loop = asyncio.get_running_loop()
        rung = loop.create_future()
        timer = loop.call_at(until, _wake, rung)
        self._asleep.add(rung)
        try:
            await rung
        finally:
            timer.cancel()
            self._asleep.discard(rung)


def _wake(asleep: "asyncio.Future[None]") -> None:
    if not asleep.done():
        asleep.set_result(None)
