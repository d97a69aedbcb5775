"""Transactions of a user's trash: restore deleted files, or remove them for good."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime

import sqlalchemy as sa

from uploader.database import models, queries
from uploader.database.connection import AsyncConnection
from uploader.database.transactions import links, rows
from uploader.database.transactions.files import PlaceBlob, Room, Verdict, add_files, lock_contents, relocate
from uploader.database.trash import forget_oldest, take_out
from uploader.domain.creations import RESTORE
from uploader.domain.upload import File, IfExists, TrashedFile

_BLOBS = models.blob.c
_WITH_REFS = (
    sa.select(_BLOBS.sha256, _BLOBS.refs)
    .where(_BLOBS.sha256.in_(sa.bindparam("of_contents", expanding=True)))
    .order_by(_BLOBS.sha256)
    .with_for_update()
)
_INSERT_BLOB = sa.insert(models.blob)
# Returns, while the rows are locked, the contents without refs whose bytes are still in place and unchanged.
AreThere = Callable[[Sequence[str]], Awaitable[set[str]]]


async def restore_files(
    connection: AsyncConnection,
    trashed: Sequence[TrashedFile],
    if_exists: IfExists,
    now: datetime,
    *,
    are_there: AreThere,
) -> dict[str, Verdict]:
    """Restore the files whose contents the store has; return verdicts by file id. The other files get no verdict: their
    contents are in the trash of the store, or lost. Raises NamesChanged, BlobLost."""
    contents = sorted({file.sha256 for file in trashed})
    found = await connection.execute(_WITH_REFS, {"of_contents": contents})
    refs_of = {row.sha256: row.refs for row in found}
    without_refs = [sha256 for sha256, refs in refs_of.items() if not refs]
    lost = {*contents} - {*refs_of}
    if without_refs:
        lost |= {*without_refs} - await are_there(without_refs)
    trashed = [file for file in trashed if file.sha256 not in lost]
    files = [file_of(file) for file in trashed]
    if not files:
        return {}
    revived = [sha256 for sha256 in without_refs if sha256 not in lost]
    if revived:  # `lock_contents` needs a ref
        await connection.execute(sa.update(models.blob).where(_BLOBS.sha256.in_(revived)).values(refs=1))
    locked = await lock_contents(connection, files, if_exists, now, brings_bytes=False)
    if revived:
        fewer = [{"dropped": sha256, "fewer": 1} for sha256 in revived]
        await connection.execute(rows.DROP_REFS, fewer)
    verdicts = await _restore(connection, trashed, if_exists, locked, now)
    return {file.id: verdict for file, verdict in zip(files, verdicts, strict=True)}


async def restore_placed(
    connection: AsyncConnection,
    trashed: Sequence[TrashedFile],
    if_exists: IfExists,
    now: datetime,
    place_blobs: PlaceBlob,
) -> dict[str, Verdict]:
    """Restore files and place their bytes; return verdicts by file id. In a store with locations, `trashed` is one file.
    Raises NamesChanged, BlobLost, and NameTaken for a single file."""
    files = [file_of(file) for file in trashed]
    locked = await lock_contents(connection, files, if_exists, now)
    if (location := await place_blobs()) is not None:
        await relocate(connection, {files[0].sha256: location}, now)
    verdicts = await _restore(connection, trashed, if_exists, locked, now)
    return {file.id: verdict for file, verdict in zip(files, verdicts, strict=True)}


async def _restore(
    connection: AsyncConnection, trashed: Sequence[TrashedFile], if_exists: IfExists, locked: set[str], now: datetime
) -> list[Verdict]:
    """Restore files whose contents are locked. Files that never passed go through the present gates."""
    passed, files = [file.id for file in trashed if file.passed], [file_of(file) for file in trashed]
    known = await queries.blobs_by_sha256(connection, sorted({file.sha256 for file in files}))
    # The MD5 may have been computed since the deletion.
    files = [replace(file, md5=known[file.sha256].md5) for file in files]
    await links.end_of_files(connection, [file.id for file in files], now)
    await links.lock_of(connection, files)
    changes = await add_files(connection, files, if_exists, locked, room=Room(), creation=RESTORE, passed=passed)
    await links.count(connection, come=changes.made)
    await rows.add_finished(connection, files[0].user_id, changes.finished_bytes, changes.more_files)
    return changes.verdicts


def file_of(trashed: TrashedFile) -> File:
    return File(**{name: getattr(trashed, name) for name in queries.FILE_COLUMNS})


async def expect_contents(connection: AsyncConnection, trashed: Sequence[TrashedFile], now: datetime) -> None:
    """Insert a row without refs for each content that has none, so that after a crash the collector finds the placed
    bytes."""
    by_content = {file.sha256: file for file in trashed}
    known = await queries.known_blobs(connection, sorted(by_content))
    rows = [
        {"sha256": sha256, "md5": file.md5, "size": file.size, "refs": 0, "created_at": now}
        for sha256, file in sorted(by_content.items())
        if sha256 not in known
    ]
    if rows:
        await connection.execute(_INSERT_BLOB, rows)


async def forget_files(connection: AsyncConnection, user_id: str, ids: Sequence[str]) -> int:
    """Remove files from a user's trash for good; return the number removed."""
    await queries.usage(connection, user_id, lock=True)
    return await _account(connection, user_id, await take_out(connection, user_id, ids))


async def empty(connection: AsyncConnection, user_id: str, most: int) -> int:
    """Remove up to `most` files from a user's trash for good, oldest first; return the number removed."""
    await queries.usage(connection, user_id, lock=True)
    return await _account(connection, user_id, await forget_oldest(connection, user_id, most))


async def _account(connection: AsyncConnection, user_id: str, forgotten: int) -> int:
    await rows.add_finished(connection, user_id, 0, -forgotten)
    return forgotten
