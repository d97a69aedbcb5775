"""Recounts what the database keeps of users and contents, against its own rows: see `reconciling.py` for the other stores.

Users and contents are recounted a slice at a time, each in a snapshot of its own, so that no transaction is long. Looking
changes nothing.
"""

from functools import partial

from uploader.clock import Clock
from uploader.database.audit import recounts, repairs
from uploader.database.audit.recounts import RecountedUser, Sums
from uploader.database.engine import Database
from uploader.domain.quota import Usage
from uploader.domain.trail.acts import Action
from uploader.service.audit.drift import Drift, Findings, Kind, cannot_be_repaired
from uploader.service.trail.acting import act

_SLICE = 2000


class Recounting:
    """Several at once are safe: every repair recounts under its locks."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def recount(self, user_id: str | None = None) -> Findings:
        """Recount everything, or one user; a user that is not there is not checked. Raises Unavailable."""
        found = Findings()
        if user_id is None:
            await self.check(found)
        else:
            await self._check_user(found, user_id)
        return found

    async def check(self, found: Findings) -> None:
        """Recount all users, then the refs of all contents, whose files have their sizes and MD5s."""
        found.checked |= {"users": 0, "blobs": 0}
        for check_slice in (self._check_users, self._check_refs):
            after: str | None = ""
            while after is not None:
                after = await check_slice(found, after)

    async def _check_users(self, found: Findings, after: str) -> str | None:
        """Recount the users after `after`; returns the last one, or None where no more follow."""
        users = await self._database.read(partial(recounts.users_after, after=after, count=_SLICE), snapshot=True)
        found.checked["users"] += users.count
        for user in users.rows:
            self._add(found, user)
        return users.until

    async def _check_user(self, found: Findings, user_id: str) -> None:
        user = await self._database.read(partial(recounts.recounted_user, user_id=user_id), snapshot=True)
        found.checked["users"] = 0 if user.stored is None else 1
        self._add(found, user)

    def _add(self, found: Findings, user: RecountedUser) -> None:
        found.add(_drifts_of_user(*user), partial(self._repair_user, user.user_id))
        found.notes += _notes_of_user(user.stored)

    async def _repair_user(self, user_id: str) -> bool:
        told = act(Action.USER_REPAIRED, self._clock.now(), subject=user_id, user_id=user_id)
        return await self._database.transact(lambda connection: repairs.repair_user(connection, user_id, told))

    async def _check_refs(self, found: Findings, after: str) -> str | None:
        """Recount the refs, and compare the files, of the contents after `after`; returns the last one, or None where no
        more follow."""
        contents = await self._database.read(partial(recounts.refs_after, after=after, count=_SLICE), snapshot=True)
        found.checked["blobs"] += contents.count
        for sha256, refs, files in contents.rows:
            found.add([Drift(Kind.REFS, sha256, files, refs)], partial(self._repair_refs, sha256))
        unlike = await self._database.read(partial(recounts.files_unlike_blobs, after=after, until=contents.until))
        found.add((Drift(Kind.FILE, *file) for file in unlike), cannot_be_repaired)
        return contents.until

    async def _repair_refs(self, sha256: str) -> bool:
        told = act(Action.CONTENT_REPAIRED, self._clock.now(), subject=sha256)
        return await self._database.transact(lambda connection: repairs.repair_refs(connection, sha256, told))


def _drifts_of_user(user_id: str, stored: Usage | None, counted: Sums) -> list[Drift]:
    drifts = []
    for kind in (Kind.USE_SPACE_FINISHED, Kind.USE_SPACE_UNFINISHED, Kind.RESERVED):
        expected = getattr(counted, kind.value)
        actual = None if stored is None else getattr(stored, kind.value)
        if actual != expected and (expected or stored is not None):
            drifts.append(Drift(kind, user_id, expected, actual))
    # Where the figures themselves are wrong, that is all there is to say.
    if stored is not None and not drifts and stored.use_space_unfinished > stored.reserved:
        drifts.append(Drift(Kind.OVER_RESERVED, user_id, stored.reserved, stored.use_space_unfinished))
    return drifts


def _notes_of_user(stored: Usage | None) -> list[Drift]:
    """A user may hold more than the total space, where an administrator lowered it."""
    if stored is None or stored.use_space_finished + stored.reserved <= stored.total_space:
        return []
    held = stored.use_space_finished + stored.reserved
    return [Drift(Kind.OVER_TOTAL_SPACE, stored.user_id, stored.total_space, held)]
