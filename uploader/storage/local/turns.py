"""Turns of hashing that many uploads want at the same time are taken together: by one thread, step by step, so that the same
hash of many contents is computed at once (docs/decisions/0041)."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from uploader.storage import disk
from uploader.storage.hashes import Turn, room, take_together
from uploader.tasks import Pool

T = TypeVar("T")

# So many fill half of the lanes, and are enough.
_ENOUGH = 8
# A turn waits for others for so long, in seconds; what waits for its end hurries all of them.
_COMPANY_SECONDS = 0.1


class Company:
    """Brings turns together. A turn is begun with the memory that it reads into."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._waiting: list[tuple[Callable[[memoryview], Turn[Any]], asyncio.Future[Any]]] = []
        self._timer: asyncio.TimerHandle | None = None

    def take(self, begin: Callable[[memoryview], Turn[T]], most: int) -> "asyncio.Future[T]":
        """Take a turn with those of others, at once if `most` wait, or enough of them."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()
        self._waiting.append((begin, outcome))
        if len(self._waiting) >= min(most, _ENOUGH):
            self.hurry()
        elif self._timer is None:
            self._timer = loop.call_later(_COMPANY_SECONDS, self.hurry)
        return outcome

    def hurry(self) -> None:
        """Wait for no more company."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._waiting = self._waiting, []
        if not batch:
            return
        outcomes = [outcome for _, outcome in batch]
        try:
            taken = self._pool.run(_begin_all, [begin for begin, _ in batch])
        except RuntimeError as error:  # it was shut down
            _settle(outcomes, [error] * len(batch))
        else:
            taken.add_done_callback(partial(_told, outcomes))


def _begin_all(begins: Sequence[Callable[[memoryview], Turn[Any]]]) -> list[Any]:
    found = take_together([begin(room(number)) for number, begin in enumerate(begins)])
    return [disk.refusal(each) if isinstance(each, OSError) else each for each in found]


def _told(outcomes: Sequence["asyncio.Future[Any]"], taken: "asyncio.Future[list[Any]]") -> None:
    error = taken.exception()
    _settle(outcomes, taken.result() if error is None else [error] * len(outcomes))


def _settle(outcomes: Sequence["asyncio.Future[Any]"], found: Sequence[Any]) -> None:
    for outcome, each in zip(outcomes, found, strict=True):
        if outcome.done():
            continue
        if isinstance(each, BaseException):
            outcome.set_exception(each)
        else:
            outcome.set_result(each)
