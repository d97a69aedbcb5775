"""Wakes those who sleep until something happens. Below everything: whoever makes things happen rings it."""

import asyncio


class Bell:
    """Nobody resets it: who listens remembers how often it had rung when he looked, and so misses no ring that came while
    he, or another who listens, was awake."""

    def __init__(self) -> None:
        self.rings = 0
        self._asleep: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        self.rings += 1
        for each in self._asleep:
            if not each.done():
                each.set_result(None)

    async def listen(self, rings: int, until: float) -> None:
        """Return once it has rung more often than that, or when the event loop's clock says `until`."""
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
