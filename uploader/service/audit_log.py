"""The actor of the context, the acts that transactions write, and the pages of the audit log.

A request or a job puts its actor into the context. Without an actor in the context, a command acts. Transactions run in
threads without the context, so the service makes the act, and the transaction writes it.
"""

import os
import pwd
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta

from uploader.database import audit_log
from uploader.database.audit_log import Wanted
from uploader.database.engine import Database
from uploader.database.reports import Page
from uploader.domain.audit_log import Act, Action, Actor, Via
from uploader.runtime.clock import Clock
from uploader.service.ids import cursor, new_id, parse_cursor

__all__ = ["Act", "Action", "Actor", "AuditLog", "AuditLogReports", "Via", "Wanted", "act", "actor", "actor_of_context"]


_MOST_ADDRESS = 64
# A function, called only when an act is made: most requests make no act, and finding their address takes a while.
actor_of_context: ContextVar[Callable[[], Actor] | None] = ContextVar("actor", default=None)


def actor() -> Actor:
    found = actor_of_context.get()
    return Actor(Via.COMMAND, _os_user()) if found is None else found()


def act(
    action: Action,
    now: datetime,
    *,
    subject: str,
    user_id: str | None = None,
    by: Actor | None = None,
    details: Mapping[str, object] | None = None,
) -> Act:
    """Make an act for a transaction to write. `by`: the actor, by default the actor of the context."""
    by = by or actor()
    return Act(
        id=new_id(),
        created_at=now,
        action=action.value,
        via=by.via.value,
        actor=by.name,
        token_id=by.token_id,
        address=by.address and by.address[:_MOST_ADDRESS],  # an IPv6 address may have a scope of any length
        user_id=user_id,
        subject=subject,
        details=details or {},
        token_made_by=by.token_made_by,
    )


def _os_user() -> str:
    """Ask the kernel: anybody can change the environment."""
    number = os.getuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"uid {number}"


@dataclass(eq=False, repr=False)
class AuditLog:
    """Notes acts that change no row: acts on the disk, in Redis, or on the whole installation."""

    # `retention_seconds`: how long acts are kept; 0: for ever.
    database: Database
    clock: Clock
    _: KW_ONLY
    retention_seconds: float

    async def note(
        self,
        action: Action,
        *,
        subject: str,
        user_id: str | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        """Note an act that the actor of this context has just done. Raises Unavailable."""
        done = act(action, self.clock.now(), subject=subject, user_id=user_id, details=details)
        await self.database.transact(audit_log.note, done)

    async def forget_old(self, limit: int) -> int:
        """Delete at most `limit` acts older than the retention. Return how many. Raises Unavailable."""
        if not self.retention_seconds:
            return 0
        before = self.clock.now() - timedelta(seconds=self.retention_seconds)
        return await self.database.transact(audit_log.forget, before, limit)


_SORT = "created_at"
_BATCH = 1000


@dataclass(eq=False, repr=False)
class AuditLogReports:
    database: Database

    async def page(self, wanted: Wanted, *, limit: int, after: str | None) -> tuple[list[Act], str | None]:
        """Return a page of acts and the cursor of the next. Raises InvalidRequest for an unknown cursor, Unavailable."""
        position = None if after is None else parse_cursor(after, _SORT, "moment")
        found = await self._read(wanted, limit + 1, position)
        if len(found) <= limit:
            return found, None
        last = found[limit - 1]
        return found[:limit], cursor(_SORT, last.created_at, last.id)

    async def all(self, wanted: Wanted) -> AsyncIterator[list[Act]]:
        """Yield every act, in batches. A slow reader holds no connection of the database. Raises Unavailable."""
        after = None
        while found := await self._read(wanted, _BATCH, after):
            yield found
            after = (found[-1].created_at, found[-1].id)

    async def _read(self, wanted: Wanted, limit: int, after: tuple[object, str] | None) -> list[Act]:
        page = Page(sort=_SORT, descending=True, limit=limit, after=after)
        return await self.database.read(audit_log.acts, wanted, page)
