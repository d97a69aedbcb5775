"""Acts that have no transaction of their own, and the end of all: they are forgotten when they are old."""

from collections.abc import Mapping
from datetime import timedelta

from uploader.clock import Clock
from uploader.database.engine import Database
from uploader.database.trail import acts
from uploader.domain.trail.acts import Action
from uploader.service.trail.acting import act

__all__ = ["Action", "Trail"]


class Trail:
    """Notes what the database knows nothing else of: an act on the disk, in Redis, or on all of the installation."""

    def __init__(self, database: Database, clock: Clock, *, retention_seconds: float) -> None:
        """`retention_seconds`: for how long acts are kept; 0: for ever."""
        self._database = database
        self._clock = clock
        self._retention_seconds = retention_seconds

    async def note(
        self,
        action: Action,
        *,
        subject: str,
        user_id: str | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        """Note what was just done by the actor of this context. Raises Unavailable."""
        done = act(action, self._clock.now(), subject=subject, user_id=user_id, details=details)
        await self._database.transact(lambda connection: acts.note(connection, done))

    async def forget_old(self, limit: int) -> int:
        """Forget at most so many acts that are older than the retention; how many. Raises Unavailable."""
        if not self._retention_seconds:
            return 0
        before = self._clock.now() - timedelta(seconds=self._retention_seconds)
        return await self._database.transact(lambda connection: acts.forget(connection, before, limit))
