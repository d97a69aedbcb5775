"""For how long one request waits for stores that are silent: once, and not once for each store and each call.

What a request has waited in vain is taken off the time that the next store has to answer it. Only waits count: what it does
in between, above all to receive a body, takes as long as it takes. So this is a sum, and no deadline. Jobs have all their
time for each call, because nobody waits for them; what a request begins beside itself, as a merge, is a part of it.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

# What a request whose store was given up may wait for others in all, however busily they work.
IN_ALL_SECONDS = 8.0
# A part of the time-out. Who answers within it is not silent; and so much each call has, because one store that is silent is
# no reason to refuse what needs another one.
LEAST = 0.2


# Whether what is called now is gone on without.
_in_passing = ContextVar("in_passing", default=False)


class WaitBudget:
    """The time that one request may still wait. Nothing of the request is in here: whatever keeps its context keeps
    this, too."""

    def __init__(self) -> None:
        self._waited_seconds = 0.0
        # Of these, by the store that worked as long.
        self._worked_seconds: defaultdict[str, float] = defaultdict(float)
        # When the last wait ended, if there was one.
        self._until: float | None = None
        self._given_up: set[str] = set()

    def left(self, store: str, timeout_seconds: float) -> float:
        """Return how long that store may take to answer; 0 if it was given up. A wait that ended longer ago than the
        time-out is forgotten: some requests go on for hours."""
        if self._until is not None and time.monotonic() - self._until > timeout_seconds:
            self._waited_seconds = 0.0
            self._worked_seconds.clear()
            self._given_up.clear()
        if store in self._given_up:
            return 0.0
        least = timeout_seconds * LEAST
        if _in_passing.get():
            return least
        return max(timeout_seconds - self._waited_seconds + self._worked_seconds[store], least)

    def left_in_all(self) -> float | None:
        """Return for how many seconds to wait for a store that is at work but has not answered; None: without an end."""
        return max(IN_ALL_SECONDS - self._waited_seconds, 1.0) if self._given_up else None

    def note(self, began: float, short_seconds: float, worked: str = "") -> None:
        """Note that a wait for a store has ended, or one for somebody who may have waited for it; a short one does not
        count. What was waited for side by side counts once. `worked`: a store that was not silent meanwhile, so it has
        no less time."""
        now = time.monotonic()
        if now - began > short_seconds:
            waited_seconds = now - max(began, self._until or began)
            self._waited_seconds += waited_seconds
            self._worked_seconds[worked] += waited_seconds
            self._until = now

    def give_up(self, store: str) -> None:
        """Note that it did not answer in its time: this request does not ask it again, where it goes on without."""
        self._until = time.monotonic()
        self._given_up.add(store)


# None: nobody's request.
wait_budget_of_request: ContextVar[WaitBudget | None] = ContextVar("wait_budget", default=None)


@contextmanager
def in_passing() -> Iterator[None]:
    """For what goes on without the store that is called: it has no more time than each call has in any case."""
    token = _in_passing.set(True)
    try:
        yield
    finally:
        _in_passing.reset(token)


def wait_budget() -> WaitBudget:
    """Return the budget of the request in whose context this runs; without one, all there may be."""
    return wait_budget_of_request.get() or WaitBudget()


@asynccontextmanager
async def waiting(store: str, timeout_seconds: float, silent: Callable[[str], Exception]) -> AsyncIterator[None]:
    """One call of a store, which has so much time to answer, or what is left of it. Raises `silent`."""
    own = wait_budget()
    seconds = own.left(store, timeout_seconds)
    if not seconds:
        raise silent("it did not answer this request before")
    began, bound = time.monotonic(), asyncio.timeout(seconds)
    try:
        async with bound:
            yield
    except TimeoutError:
        if not bound.expired():
            raise
        own.give_up(store)
        raise silent(f"no answer within {seconds:.3g} s") from None
    finally:
        own.note(began, timeout_seconds * LEAST)
