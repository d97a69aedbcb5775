"""A breaker before a store that has fallen silent: after several calls in a row without an answer it is not asked any more,
so that nobody waits for its time-outs, and nobody sends a body that it would not take.

Then one caller at a time tries it by a call that is cheap, at most once a second, before its own. The first answer closes
the breaker. It is of one process: each finds out by itself. A Redis Cluster has one for each slot that is used.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Lock
from weakref import WeakSet

from uploader.runtime.observability import OPEN_BREAKERS

logger = logging.getLogger(__name__)

# One may be the fault of a connection, or of a call that takes long.
_CALLS = 3
_TRY_SECONDS = 1.0
# How long callers wait for a try that is under way, where that costs them nothing.
MOMENT_SECONDS = 0.5


# Of this process: while there is none, nobody need ask any of them.
OPEN: "WeakSet[Breaker]" = WeakSet()
_open_lock = Lock()


class Silent(Exception):
    """The store is not asked now; the message says since when, after its name."""


class Breaker:
    """Counts the calls of one store that got no answer, and says whether it is asked. For many threads at once."""

    def __init__(self, store: str) -> None:
        """`store`: as the metric and the log name it."""
        self._store = store
        self._lock = Lock()
        # For who asks before each call, which costs nothing then: calls in a row, and whether they were too many.
        self.unanswered_calls = 0
        self.is_open = False
        self._opened_at: datetime | None = None
        # When it may be tried again; None: somebody tries it.
        self._try_at: float | None = 0.0
        self._tell()

    def answered(self) -> None:
        """Note an answer, whatever it says."""
        if self.unanswered_calls:
            with self._lock:
                self.unanswered_calls = 0
                self.is_open = False
                opened_at, self._opened_at = self._opened_at, None
                self._tell()
            if opened_at is not None:
                seconds = round((datetime.now(UTC) - opened_at).total_seconds(), 1)
                logger.warning("a store answers again", extra={"store": self._store, "silent_seconds": seconds})

    def unanswered(self, reason: str) -> None:
        """Note a call that got no answer."""
        with self._lock:
            self.unanswered_calls += 1
            opens = not self.is_open and self.unanswered_calls >= _CALLS
            if opens:
                self._opened_at, self._try_at = datetime.now(UTC), time.monotonic()
                self.is_open = True
                self._tell()
        if opens:
            logger.warning("a store does not answer, and is not asked", extra={"store": self._store, "reason": reason})

    def _tell(self) -> None:
        with _open_lock:
            (OPEN.add if self.is_open else OPEN.discard)(self)
            OPEN_BREAKERS.labels(self._store).set(sum(each._store == self._store for each in OPEN))

    def check(self) -> None:
        """Raises Silent if it is open, and it is not the time to try the store, or somebody else does."""
        if self.is_open and (self._try_at is None or time.monotonic() < self._try_at):
            raise self.silent()

    def silent(self) -> Silent:
        since = self._opened_at or datetime.now(UTC)
        return Silent(f"has not answered since {since:%H:%M:%S} UTC, and is tried again each second")

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Try the store by a cheap call within this, before another one, where the breaker is open. Raises Silent."""
        with self._lock:
            self.check()
            self._try_at = None
        try:
            yield
            self.answered()
        finally:
            with self._lock:
                self._try_at = time.monotonic() + _TRY_SECONDS
