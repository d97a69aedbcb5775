"""Revocations: how a process learns that a token, a session, a link or an administrator's right was taken away.

All revocations share one number in the database. A process with running requests or remembered callers reads the number
once a second. When the number has changed, the process forgets the remembered callers and reads the rows behind its
running requests. A request ends only if the rows that were read no longer admit the caller: while the database is away,
all requests go on. An idle process does not ask.
"""

import asyncio
import logging
import time
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextvars import Context
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, TypeVar

from uploader.database import links, rights
from uploader.database.engine import Connection, Database
from uploader.database.rights import Authority, authority_of_context
from uploader.domain.links import LinkEnd, Visit
from uploader.errors import Forbidden, Unauthenticated, UploaderError
from uploader.runtime.clock import Clock
from uploader.runtime.tasks import ended

__all__ = ["Authority", "Remembered", "Revocations", "Running", "SlowDown", "authority_of_context"]

T = TypeVar("T")
# Delays a caller after wrong guesses from the same address. Raises TooManyRequests if others are waiting there already.
SlowDown = Callable[[], Awaitable[None]]

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
# After this long without a request a process stops asking, and forgets its callers.
_QUIET_SECONDS = 10.0
_BATCH = 200
_MOST_REMEMBERED = 10_000


def _current_task() -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    assert task is not None
    return task


@dataclass(eq=False, slots=True)
class Running:
    """A running request, and the rows that admitted its caller. `error`: why the request was ended."""

    authority: Authority | None = None
    visit: Visit | None = None
    error: UploaderError | None = None
    task: "asyncio.Task[Any]" = field(default_factory=_current_task)
    # True when the request is over; its task may go on with other work.
    has_left: bool = False

    def cut(self, error: UploaderError) -> None:
        if self.error is None and not self.has_left:
            self.error = error
            self.task.cancel()

    def check(self) -> None:
        """Raise the error that ended the request, if any."""
        if self.error is not None:
            self.task.uncancel()
            raise self.error


class Remembered(Generic[T]):
    """Callers as their rows were when last read. An entry is valid for `seconds` after that or, if `confirmed`, after
    the last look that found no revocation. Keys that were once valid are known for longer: 10,000 of them."""

    def __init__(self, revocations: "Revocations", seconds: float, *, confirmed: bool = True) -> None:
        self._revocations = revocations
        self._seconds = seconds
        self._confirmed = confirmed
        # The generation, the moment of reading, and the value.
        self._entries: OrderedDict[str, tuple[int, float, T]] = OrderedDict()

    def get(self, key: str) -> T | None:
        entry = self._entries.get(key)
        if entry is None or entry[0] != self._revocations.generation:
            return None
        since = max(entry[1], self._revocations.confirmed_at) if self._confirmed else entry[1]
        if since + self._seconds <= time.monotonic():
            return None
        self._revocations.look_after()
        return entry[2]

    def put(self, key: str, value: T, generation: int) -> None:
        """Remember a value that was read in this generation. A value from before a revocation is not valid any more."""
        self._revocations.look_after()
        self._entries[key] = (generation, time.monotonic(), value)
        self._entries.move_to_end(key)
        if len(self._entries) > _MOST_REMEMBERED:
            self._entries.popitem(last=False)

    def knows(self, key: str) -> bool:
        """Return whether this process has seen the key as valid, however long ago."""
        return key in self._entries

    def drop(self, key: str) -> None:
        self._entries.pop(key, None)

    def clear(self) -> None:
        self._entries.clear()


@dataclass(eq=False, repr=False)
class Revocations:
    database: Database
    clock: Clock
    # `generation` grows when remembered callers become invalid. `confirmed_at` is the moment of the last look that
    # found no revocation, by the monotonic clock.
    generation: int = field(default=0, init=False)
    confirmed_at: float = field(default=0.0, init=False)
    _number: str | None = field(default=None, init=False)
    _running: dict[Running, None] = field(default_factory=dict, init=False)
    _used_at: float = field(default=0.0, init=False)
    _watching: "asyncio.Task[None] | None" = field(default=None, init=False)

    async def begin(self) -> None:
        """Read the number from which this process counts. Raises Unavailable."""
        self._number = await self.database.read(rights.number, brief=True)

    def enter(self, running: Running) -> None:
        """Watch over a request, until `leave`."""
        self._running[running] = None
        self.look_after()

    def leave(self, running: Running) -> None:
        running.has_left = True
        self._running.pop(running, None)

    def look_after(self) -> None:
        """Keep asking for revocations, or begin to."""
        self._used_at = time.monotonic()
        if self._watching is None:
            # In an empty context: the first request must not pay for the looks.
            self._watching = asyncio.get_running_loop().create_task(
                self._watch(), name="looking for revocations", context=Context()
            )

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not self._running and time.monotonic() - self._used_at > _QUIET_SECONDS:
                self.generation += 1  # from here on nobody notices revocations
                self._watching = None
                return
            self._end_expired()
            try:
                await self._look()
            except UploaderError:
                continue  # the database is away
            except Exception:
                logger.exception("revocations could not be looked for")

    def _end_expired(self) -> None:
        """End the requests of visitors whose link has expired, by the clock of this process."""
        now = self.clock.now()
        for running in list(self._running):
            if running.visit is not None and running.visit.link.expires_at <= now:
                running.cut(links.gone(LinkEnd.EXPIRED))

    async def _look(self) -> None:
        began = time.monotonic()
        number = await self.database.read(rights.number, brief=True)
        if number == self._number:
            self.confirmed_at = began
            return
        self.generation += 1
        tokens, administrators, sessions = (defaultdict[str, list[Running]](list) for _ in range(3))
        for running in self._running:
            authority, visit = running.authority, running.visit
            if visit is not None:
                sessions[visit.session_id].append(running)
            elif authority is not None and authority.token_sha256 is not None:
                tokens[authority.token_sha256].append(running)
            elif authority is not None and authority.is_admin:
                administrators[authority.user_id].append(running)
        await self._each(tokens, rights.tokens_in_force, self._check_token)
        await self._each(administrators, rights.administrators, self._check_administrator)
        await self._each(sessions, links.visits, self._check_session)
        # Last: if a row could not be read, the next look starts over.
        self._number = number

    async def _each(
        self,
        wanted: dict[str, list[Running]],
        read: Callable[[Connection, Collection[str]], Awaitable[T]],
        check: Callable[[T, str, Iterable[Running]], None],
    ) -> None:
        keys = iter(wanted)
        while some := list(islice(keys, _BATCH)):
            found = await self.database.read(read, some)
            for key in some:
                check(found, key, wanted[key])

    def _check_token(self, found: dict[str, bool], token_sha256: str, requests: Iterable[Running]) -> None:
        for running in requests:
            if token_sha256 not in found:
                running.cut(Unauthenticated())
            elif running.authority is not None and running.authority.is_admin and not found[token_sha256]:
                running.cut(Forbidden())

    def _check_administrator(self, found: set[str], user_id: str, requests: Iterable[Running]) -> None:
        if user_id not in found:
            for running in requests:
                running.cut(Forbidden())

    def _check_session(self, found: dict[str, Visit], session_id: str, requests: Iterable[Running]) -> None:
        visit, now = found.get(session_id), self.clock.now()
        for running in requests:
            if visit is None:
                running.cut(Unauthenticated())
            elif (end := visit.link_end(now)) is not None:
                running.cut(links.gone(end))
            else:
                running.visit = visit  # the link may have another expiry now

    async def close(self) -> None:
        if self._watching is not None:
            await ended(self._watching)
