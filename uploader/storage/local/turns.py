"""Takes the turns of hashing of many uploads together, in one thread, step by step, so that the same hash of many contents
is computed at once (docs/decisions/0041)."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from uploader.runtime.meter import Kind, cost_of_request
from uploader.runtime.tasks import Pool
from uploader.storage import disk
from uploader.storage.hashes import Turn, room, take_together

T = TypeVar("T")

# This many turns fill half of the lanes, which is enough.
_ENOUGH = 8
# A turn waits this long for other turns, in seconds. Whoever waits for the result may cut this short for all of them.
_COMPANY_SECONDS = 0.1


@dataclass(eq=False)
class _Waiting:
    begin: Callable[[memoryview], Turn[Any]]
    # The context of the request, which pays for its share; disk errors are logged in this context.
    context: Context = field(default_factory=copy_context)
    outcome: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def settle(self, found: Any) -> None:
        if self.outcome.done():
            return
        if isinstance(found, BaseException):
            self.outcome.set_exception(found)
        else:
            self.outcome.set_result(found)


class Company:
    """Collects turns and runs them together. A turn begins with a buffer to read into."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._waiting: list[_Waiting] = []
        self._timer: asyncio.TimerHandle | None = None

    def take(self, begin: Callable[[memoryview], Turn[T]], most: int) -> "asyncio.Future[T]":
        """Add a turn. Run all waiting turns if `most` wait, or enough of them; otherwise after a short time."""
        waiting = _Waiting(begin)
        self._waiting.append(waiting)
        if len(self._waiting) >= min(most, _ENOUGH):
            self.hurry()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_COMPANY_SECONDS, self.hurry)
        return waiting.outcome

    def hurry(self) -> None:
        """Run the waiting turns now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._waiting = self._waiting, []
        if not batch:
            return
        token = cost_of_request.set(None)  # otherwise the last request pays for all
        try:
            taken = self._pool.run(_take_all, batch)
        except RuntimeError as error:  # the pool was shut down
            for each in batch:
                each.settle(error)
        else:
            taken.add_done_callback(partial(_told, batch))
        finally:
            cost_of_request.reset(token)


def _take_all(batch: Sequence[_Waiting]) -> tuple[list[tuple[Any, int]], float]:
    """Run the turns. Return the outcome and the hashed bytes of each, and the CPU seconds of this thread."""
    began = time.thread_time()
    taken = zip(batch, take_together([each.begin(room(number)) for number, each in enumerate(batch)]), strict=True)
    found = [(each.context.run(_meant, outcome), length) for each, (outcome, length) in taken]
    return found, time.thread_time() - began


def _meant(found: Any) -> Any:
    if not isinstance(found, OSError):
        return found
    meant = disk.refusal(found)
    meant.__cause__ = found
    return meant


def _told(batch: Sequence[_Waiting], taken: "asyncio.Future[tuple[list[tuple[Any, int]], float]]") -> None:
    if (error := taken.exception()) is not None:
        for each in batch:
            each.settle(error)
        return
    found, seconds = taken.result()
    hashed_bytes = sum(length for _, length in found)
    for each, (outcome, length) in zip(batch, found, strict=True):
        cost = each.context.get(cost_of_request)
        if cost is not None and hashed_bytes:
            cost.add(Kind.THREADS, seconds * length / hashed_bytes)
        each.settle(outcome)
