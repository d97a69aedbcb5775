"""A breaker keeps callers from a silent store: after several calls in a row without an answer the store is not asked,
so that nobody waits for time-outs or sends a body in vain.

Then one caller at a time tries the store by a cheap call, at most once a second. The first answer closes the breaker.
Each process has its own breakers. A Redis Cluster has one for each slot in use.
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

# A single call may fail because of its connection, or because it takes long.
_CALLS = 3
_TRY_SECONDS = 1.0
# How long callers wait for a running try, if waiting costs them nothing.
MOMENT_SECONDS = 0.5


# The open breakers of this process. While the set is empty, no breaker need be asked.
OPEN: "WeakSet[Breaker]" = WeakSet()
_open_lock = Lock()


class Silent(Exception):
    """The store is not asked now. The message, after the store's name, says since when."""


class Breaker:
    """Counts unanswered calls to a store, and decides whether callers may ask the store. Thread-safe."""

    def __init__(self, store: str) -> None:
        """`store`: its name in the metric and the log."""
        self._store = store
        self._lock = Lock()
        # Plain attributes, because each call looks at them: unanswered calls in a row, and whether they
        # were too many.
        self.unanswered_calls = 0
        self.is_open = False
        self._opened_at: datetime | None = None
        # When the store may be tried again; None: a try is running.
        self._try_at: float | None = 0.0
        self._tell()

    def answered(self) -> None:
        """Record an answer of any kind."""
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
        """Record a call without an answer."""
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
        """Raises Silent if the breaker is open, and it is too early to try the store or another caller tries it."""
        if self.is_open and (self._try_at is None or time.monotonic() < self._try_at):
            raise self.silent()

    def silent(self) -> Silent:
        since = self._opened_at or datetime.now(UTC)
        return Silent(f"has not answered since {since:%H:%M:%S} UTC, and is tried again each second")

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Try a silent store: make a cheap call inside. Raises Silent."""
        with self._lock:
            self.check()
            self._try_at = None
        try:
            yield
            self.answered()
        finally:
            with self._lock:
                self._try_at = time.monotonic() + _TRY_SECONDS
