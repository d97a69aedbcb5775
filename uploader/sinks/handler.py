"""Functions of the surrounding application as sinks. Short, because the relay has all the logic for reliable delivery:
when, and by which process, an event is told again."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import isawaitable, iscoroutinefunction
from typing import Any

import msgspec

from uploader.sinks.base import Envelope, NotTaken, Outcomes

# Less than the lease of an event.
_TIMEOUT_SECONDS = 45.0


@dataclass(eq=False, slots=True)
class HandlerSink:
    """Calls the function with the event as a `dict`. If it raises or takes too long, the event is told again."""

    handler: Callable[[dict[str, Any]], Any]
    # One by one: each event has its own time limit.
    batch: int = 1

    async def deliver(self, envelopes: Sequence[Envelope]) -> Outcomes:
        return [await self._call(msgspec.json.decode(envelope.body)) for envelope in envelopes]

    async def _call(self, event: dict[str, Any]) -> NotTaken | None:
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                if iscoroutinefunction(self.handler):
                    await self.handler(event)
                    return None
                told = await asyncio.to_thread(self.handler, event)  # may block
                if isawaitable(told):
                    await told
        except Exception as error:
            return NotTaken(f"{type(error).__name__}: {error}", answered=True)
        return None

    async def close(self) -> None:
        """Do nothing: the sink has no resources."""
