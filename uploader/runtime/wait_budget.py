"""The time that a request may wait for silent stores, in the sum of all calls to all stores.

Time that a request waited in vain reduces the time-out of its next call. Only waits count, not the request's own work,
such as receiving a body. So the budget is a sum, not a deadline. Jobs have the full time-out for each call, because no
client waits for them. Work that a request starts beside itself, such as a merge, shares the request's budget.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

# The most that a request may wait for other stores after it gave a store up, even if those stores are at work.
IN_ALL_SECONDS = 8.0
# The minimum for each call, as a share of the time-out: a store that answers within it is not silent, and one silent
# store is no reason to refuse a call to another store.
LEAST = 0.2


# True: the caller can go on without the store that is called now.
_in_passing = ContextVar("in_passing", default=False)


class WaitBudget:
    """The remaining time that a request may wait. Holds no other data of the request, because tasks that keep the
    context keep this object too."""

    def __init__(self) -> None:
        self._waited_seconds = 0.0
        # The part of these seconds in which a store was at work, by store.
        self._worked_seconds: defaultdict[str, float] = defaultdict(float)
        # When the last wait ended; None: there was no wait.
        self._until: float | None = None
        self._given_up: set[str] = set()

    def left(self, store: str, timeout_seconds: float) -> float:
        """Return the time-out for a call to `store`; 0 if the request gave it up. A wait that ended longer ago than
        `timeout_seconds` no longer counts, because some requests last for hours."""
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
        """Return the seconds to wait for a store that is at work but has not answered; None: no limit."""
        return max(IN_ALL_SECONDS - self._waited_seconds, 1.0) if self._given_up else None

    def note(self, began: float, short_seconds: float, worked: str = "") -> None:
        """Count a wait that has ended, for a store or for another task that may have waited for a store. Waits up to
        `short_seconds` do not count; simultaneous waits count once. `worked`: a store that was at work meanwhile, whose
        own time-out is not reduced."""
        now = time.monotonic()
        if now - began > short_seconds:
            waited_seconds = now - max(began, self._until or began)
            self._waited_seconds += waited_seconds
            self._worked_seconds[worked] += waited_seconds
            self._until = now

    def give_up(self, store: str) -> None:
        """Give a store up that did not answer in time: this request does not ask it again."""
        self._until = time.monotonic()
        self._given_up.add(store)


# None outside of a request.
wait_budget_of_request: ContextVar[WaitBudget | None] = ContextVar("wait_budget", default=None)


@contextmanager
def in_passing() -> Iterator[None]:
    """Give each call inside only the minimum time, because the caller can go on without the store."""
    token = _in_passing.set(True)
    try:
        yield
    finally:
        _in_passing.reset(token)


def wait_budget() -> WaitBudget:
    """Return the budget of the current request; outside of a request, a full one."""
    return wait_budget_of_request.get() or WaitBudget()


@asynccontextmanager
async def waiting(store: str, timeout_seconds: float, silent: Callable[[str], Exception]) -> AsyncIterator[None]:
    """Limit one call to a store to the time-out, or to the rest of the budget. Raises `silent`."""
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
