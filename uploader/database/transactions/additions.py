"""How files are made, whatever they come from, and what happens to others of their names.

Names are read before anything is locked. Then all contents concerned are locked, in the order of their SHA-256; then the
user's row, if a name or the quota is to be decided on; and then the names are read again: what was decided on is what is
there. A file that came by meanwhile, whose content is not locked, has the whole transaction run again.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.database import contents, queries
from uploader.database.engine import Duplicate
from uploader.database.events.outbox import tell, tell_all
from uploader.database.transactions import statements
from uploader.database.transactions.rows import BlobLost, add_refs, changed, close_row, insert_files
from uploader.domain import events
from uploader.domain.quota import Usage
from uploader.domain.upload import SUPERSEDED, File, IfExists, State, Upload
from uploader.errors import NameTaken, QuotaExceeded


class NamesChanged(Duplicate):
    """A name was taken by a file whose content is not locked."""


@dataclass(frozen=True, slots=True)
class Added:
    """A file that was made, or that is the same and was there already."""

    file: File
    is_new: bool


# What became of a file that was to be made.
Verdict = Added | NameTaken | QuotaExceeded


@dataclass(slots=True)
class Changes:
    """What became of files that were to be made, in their order, and what is done for it."""

    verdicts: list[Verdict] = field(default_factory=list)
    # To be added to `use_space_finished`.
    finished_bytes: int = 0
    made: list[File] = field(default_factory=list)
    removed: list[File] = field(default_factory=list)
    # Of contents, how many refs are too many.
    dropped: Counter[str] = field(default_factory=Counter)

    def only(self) -> Added:
        """Of a single file. Raises NameTaken, QuotaExceeded."""
        (verdict,) = self.verdicts
        if isinstance(verdict, Added):
            return verdict
        raise verdict


async def lock_contents(
    connection: AsyncConnection, files: Sequence[File], if_exists: IfExists, now: datetime, *, brings_bytes: bool = True
) -> set[str]:
    """Lock the contents of files that are to be made, and of those that they may replace; count a ref for each of the
    former. Returns what is locked.

    `brings_bytes`: the caller places them; without, raises BlobLost where there are none. Raises NameTaken for a single
    file that is sure to be refused, so that its bytes are not placed for nothing.
    """
    own = sorted(file.sha256 for file in files)
    locked = set(own)
    if if_exists is not IfExists.KEEP:
        standing = await _read_names(connection, files, if_exists)
        if len(files) == 1:
            _refuse_taken(files[0], standing[files[0].name], if_exists)
        if if_exists is IfExists.REPLACE:
            locked.update(other.sha256 for others in standing.values() for other in others)
    if len(locked) > len(set(own)):
        await contents.known_blobs(connection, sorted(locked), lock=True)
    if brings_bytes:
        by_content = {file.sha256: file for file in files}
        await add_refs(connection, [by_content[sha256] for sha256 in own], now)
        return locked
    for sha256 in own:
        if await changed(connection, statements.TAKE_REF, taken=sha256) == 0:
            raise BlobLost(sha256)
    return locked


async def add_files(
    connection: AsyncConnection,
    files: Sequence[File],
    if_exists: IfExists,
    locked: set[str],
    *,
    freed_bytes: int | None,
) -> Changes:
    """Make files of one user and of different names, after `lock_contents`; the caller adds `finished_bytes` to the user's
    account.

    `freed_bytes`: what an upload that is closed by it gives back of the quota; None if the quota is not asked, because all
    that is needed was reserved. Raises NamesChanged, BlobLost if the user's row has gone.
    """
    usage = None
    if freed_bytes is not None or if_exists is not IfExists.KEEP:
        usage = await queries.usage(connection, files[0].user_id, lock=True)
        if usage is None:
            raise BlobLost(files[0].user_id)
    making = _Making(
        if_exists, await _read_names(connection, files, if_exists), None if freed_bytes is None else usage, freed_bytes
    )
    for file in files:
        making.decide(file)
    changes = making.changes
    if not {file.sha256 for file in changes.removed} <= locked:
        raise NamesChanged
    await _carry_out(connection, changes)
    return changes


async def close_by(
    connection: AsyncConnection, upload: Upload, added: Added, now: datetime, *, is_superseded: bool = False
) -> None:
    """End an upload in a file; `is_superseded`: its bytes came in another way. One that was there already is told of once
    more: this upload is finished by it."""
    reason = SUPERSEDED if is_superseded else None
    file = added.file
    await close_row(connection, upload, State.DONE, now, close_reason=reason, file_id=file.id, md5=file.md5)
    if not added.is_new:
        await tell(connection, events.file_finished, added.file)


class _Making:
    """Decides of files, each after those before it."""

    def __init__(
        self, if_exists: IfExists, standing: dict[str, list[File]], usage: Usage | None, freed_bytes: int | None
    ) -> None:
        """`standing`: by name, the files there are; `usage`: None if the quota is not asked."""
        self._if_exists = if_exists
        self._standing = standing
        self._usage = usage
        self._freed_bytes = freed_bytes or 0
        self.changes = Changes()

    def decide(self, file: File) -> None:
        changes, of_name = self.changes, self._standing[file.name]
        same = next((other for other in of_name if other.sha256 == file.sha256), None)
        replaced = [other for other in of_name if other is not same] if self._if_exists is IfExists.REPLACE else []
        more = (0 if same else file.size) - sum(other.size for other in replaced)
        refusal = None if same else self._refusal(file, of_name, more)
        if same or refusal:
            changes.dropped[file.sha256] += 1
        if refusal:
            changes.verdicts.append(refusal)
            return
        for other in replaced:
            changes.dropped[other.sha256] += 1
        changes.removed += replaced
        if same is None:
            changes.made.append(file)
        changes.finished_bytes += more
        changes.verdicts.append(Added(same or file, is_new=same is None))

    def _refusal(self, file: File, of_name: Sequence[File], more: int) -> NameTaken | QuotaExceeded | None:
        try:
            _refuse_taken(file, of_name, self._if_exists)
        except NameTaken as error:
            return error
        usage = self._usage
        if usage is None:
            return None
        finished = usage.use_space_finished + self.changes.finished_bytes
        # Negative, if an administrator lowered the total below what is used. What replaces more than it takes is let in.
        room = usage.total_space - finished - usage.reserved + self._freed_bytes
        if more <= room or more <= 0 < file.size:
            return None
        return QuotaExceeded(
            total_space=usage.total_space,
            use_space_finished=finished,
            use_space_unfinished=usage.use_space_unfinished,
            reserved=usage.reserved,
            requested=file.size,
        )


def _refuse_taken(file: File, of_name: Sequence[File], if_exists: IfExists) -> None:
    """Raises NameTaken. The same content is no other file."""
    if if_exists is IfExists.FAIL and of_name and all(other.sha256 != file.sha256 for other in of_name):
        raise NameTaken("You have another file of this name.")


async def _carry_out(connection: AsyncConnection, changes: Changes) -> None:
    if changes.made:
        await insert_files(connection, changes.made)
    if changes.removed:
        for file_id, name in sorted((file.id, file.name) for file in changes.removed):
            if await changed(connection, statements.DELETE_NAMED_FILE, removed=file_id, of_name=name) == 0:
                raise NamesChanged
    if changes.dropped:
        dropped = [{"dropped": sha256, "fewer": fewer} for sha256, fewer in sorted(changes.dropped.items())]
        await connection.execute(statements.DROP_REFS, dropped)
    await tell_all(connection, events.file_finished, changes.made)
    await tell_all(connection, events.file_deleted, changes.removed, events.REPLACED)


async def _read_names(connection: AsyncConnection, files: Sequence[File], if_exists: IfExists) -> dict[str, list[File]]:
    """By name, the user's files that could be replaced or in the way, and always those that are the same."""
    user_id = files[0].user_id
    if if_exists is not IfExists.KEEP:
        found = await queries.files_of_names(connection, user_id, sorted({file.name for file in files}))
    elif len(files) == 1:
        same = await queries.file_by_content(connection, user_id, files[0].sha256, files[0].name)
        found = [] if same is None else [same]
    else:
        equals = sorted({(file.sha256, file.name) for file in files})
        found = await queries.files_by_contents(connection, user_id, equals)
    standing: dict[str, list[File]] = defaultdict(list)
    for file in found:
        standing[file.name].append(file)
    return standing
