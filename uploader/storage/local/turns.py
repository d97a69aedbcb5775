"""Turns of hashing that many uploads want at the same time are taken together: by one thread, step by step, so that the same
hash of many contents is computed at once (docs/decisions/0041)."""

import asyncio
import threading
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, TypeVar

from uploader.storage import disk
from uploader.storage.hashes import PrefixHashes, update_together
from uploader.tasks import Pool

T = TypeVar("T")
# It yields what is to be hashed next, and returns once nothing of its turn is left.
Turn = Generator[tuple[PrefixHashes, memoryview], None, T]

# Of one upload at once.
READ_BYTES = 512 << 10
# So many fill half of the lanes, and are enough.
_ENOUGH = 8
# A turn waits for others for so long, in seconds; what waits for its end hurries all of them.
_COMPANY_SECONDS = 0.1

_memory = threading.local()


def room(number: int = 0) -> memoryview:
    """Return memory of this thread to read into. It is never freed: to get fresh memory costs more than to read into it."""
    rooms: list[memoryview] = _memory.__dict__.setdefault("rooms", [])
    while len(rooms) <= number:
        rooms.append(disk.room_for(READ_BYTES))
    return rooms[number]


def take(turn: Turn[T]) -> T:
    """Take a turn alone."""
    (outcome,) = _take_all([turn])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _take_all(turns: Sequence[Turn[T]]) -> list[T | Exception]:
    """Take turns together; what one of them raises is its outcome, and harms no other."""
    outcomes: dict[int, T | Exception] = {}
    try:
        while len(outcomes) < len(turns):
            steps = []
            for number, turn in enumerate(turns):
                if number not in outcomes:
                    try:
                        steps.append(next(turn))
                    except StopIteration as end:
                        outcomes[number] = end.value
                    except Exception as error:
                        outcomes[number] = error
            update_together(steps)
    finally:
        for turn in turns:
            turn.close()
    return [outcomes[number] for number in range(len(turns))]


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
    found = _take_all([begin(room(number)) for number, begin in enumerate(begins)])
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
