"""Functions of the application that this server is a part of, as sinks. Short, because all that makes telling reliable is
above it: who is told again, when, and by whom, the relay knows.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import isawaitable, iscoroutinefunction
from typing import Any

import msgspec

from uploader.sinks.base import Envelope, NotTaken, Outcomes

# Less than for how long an event is one process's alone.
_TIMEOUT_SECONDS = 45.0


@dataclass(eq=False, slots=True)
class HandlerSink:
    """Gives the event as a `dict`; one that raises, or takes too long, is told again."""

    handler: Callable[[dict[str, Any]], Any]
    # One by one: each has its own time.
    batch: int = 1

    async def deliver(self, envelopes: Sequence[Envelope]) -> Outcomes:
        return [await self._call(msgspec.json.decode(envelope.body)) for envelope in envelopes]

    async def _call(self, event: dict[str, Any]) -> NotTaken | None:
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                if iscoroutinefunction(self.handler):
                    await self.handler(event)
                    return None
                told = await asyncio.to_thread(self.handler, event)  # it may block
                if isawaitable(told):
                    await told
        except Exception as error:
            return NotTaken(f"{type(error).__name__}: {error}", answered=True)
        return None

    async def close(self) -> None:
        """It holds nothing."""
