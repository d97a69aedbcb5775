"""The transactions of many files of one user at once: what lies below a prefix goes, or gets another one."""

from collections import Counter
from collections.abc import Mapping, Sequence

from sqlalchemy import bindparam, update
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.database import contents, models, queries
from uploader.database.events.outbox import tell_all
from uploader.database.transactions import statements
from uploader.database.transactions.rows import add_finished, changed
from uploader.domain import events
from uploader.domain.upload import File

_FILES = models.file.c
_RENAME = (
    update(models.file)
    .where(_FILES.id == bindparam("renamed"), _FILES.name == bindparam("former"))
    .values(name=bindparam("new_name"))
)


async def delete_files(connection: AsyncConnection, files: Sequence[File], reason: str | None = None) -> int:
    """Delete files of one user that were read before; returns how many were still there. Their blobs stay, perhaps without
    refs. `reason`: for who is told of it, if not that the user wanted it."""
    if not files:
        return 0
    await contents.known_blobs(connection, sorted({file.sha256 for file in files}), lock=True)
    return await _delete_locked(connection, files, reason)


async def _delete_locked(connection: AsyncConnection, files: Sequence[File], reason: str | None) -> int:
    gone = [file for file in files if await _deleted(connection, file)]
    refs = Counter(file.sha256 for file in gone)
    if refs:
        dropped = [{"dropped": sha256, "fewer": fewer} for sha256, fewer in sorted(refs.items())]
        await connection.execute(statements.DROP_REFS, dropped)
        await add_finished(connection, gone[0].user_id, -sum(file.size for file in gone))
        await tell_all(connection, events.file_deleted, gone, reason)
    return len(gone)


async def _deleted(connection: AsyncConnection, file: File) -> bool:
    """Unless it went, or was renamed, meanwhile."""
    return await changed(connection, statements.DELETE_NAMED_FILE, removed=file.id, of_name=file.name) == 1


async def move_files(connection: AsyncConnection, files: Sequence[File], names: Mapping[str, str]) -> int:
    """Give files of one user, which were read before, other names, by their ids and one after the other; returns how many
    were still there.

    A file whose content has the new name already goes: it would be a twin, unless that one is to be moved itself, which then
    has to come first. Raises Duplicate (from the engine) if one came at this moment.
    """
    equals = [(file.sha256, names[file.id]) for file in files]
    there = await queries.files_by_contents(connection, files[0].user_id, equals)
    taken = {(file.sha256, file.name) for file in there if file.id not in names}
    twins = [file for file in files if (file.sha256, names[file.id]) in taken]
    moved = await delete_files(connection, twins, events.REPLACED)
    for file in files:
        if file not in twins:
            values = {"renamed": file.id, "former": file.name, "new_name": names[file.id]}
            moved += await changed(connection, _RENAME, **values)
    return moved
