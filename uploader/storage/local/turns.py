"""Turns of hashing that many uploads want at the same time are taken together: by one thread, step by step, so that the same
hash of many contents is computed at once (docs/decisions/0041)."""

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

# So many fill half of the lanes, and are enough.
_ENOUGH = 8
# A turn waits for others for so long, in seconds; what waits for its end hurries all of them.
_COMPANY_SECONDS = 0.1


@dataclass(eq=False)
class _Waiting:
    begin: Callable[[memoryview], Turn[Any]]
    # Of the request that pays for its share, and that an error of the disk is logged with.
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
    """Brings turns together. A turn is begun with the memory that it reads into."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._waiting: list[_Waiting] = []
        self._timer: asyncio.TimerHandle | None = None

    def take(self, begin: Callable[[memoryview], Turn[T]], most: int) -> "asyncio.Future[T]":
        """Take a turn with those of others, at once if `most` wait, or enough of them."""
        waiting = _Waiting(begin)
        self._waiting.append(waiting)
        if len(self._waiting) >= min(most, _ENOUGH):
            self.hurry()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_COMPANY_SECONDS, self.hurry)
        return waiting.outcome

    def hurry(self) -> None:
        """Wait for no more company."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._waiting = self._waiting, []
        if not batch:
            return
        token = cost_of_request.set(None)  # else who comes last pays for all
        try:
            taken = self._pool.run(_take_all, batch)
        except RuntimeError as error:  # it was shut down
            for each in batch:
                each.settle(error)
        else:
            taken.add_done_callback(partial(_told, batch))
        finally:
            cost_of_request.reset(token)


def _take_all(batch: Sequence[_Waiting]) -> tuple[list[tuple[Any, int]], float]:
    """Returns the seconds that it took, too."""
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
