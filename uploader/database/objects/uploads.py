"""What is written down of open uploads on S3: one function for each change, and for each question.

Whoever changes the chunks of an upload has its row locked, and so has whoever reads both: what is read is of one moment, and
what is frozen stays as it is.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Executable, RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.database.objects import statements
from uploader.database.transactions.rows import changed
from uploader.domain.objects import Entry, PartNoted, SavedDigest, StoredPart, TailObject


async def open_upload(connection: AsyncConnection, upload_id: str, multipart_id: str | None, now: datetime) -> None:
    """Raises Duplicate (from the engine) if it is there."""
    values = {"upload_id": upload_id, "multipart_id": multipart_id, "opened_at": now, "written_at": now}
    await connection.execute(statements.OPEN, values)


async def entry(connection: AsyncConnection, upload_id: str) -> Entry | None:
    """What is written down of an upload, with its chunks."""
    return await _entry(connection, upload_id, statements.READ_SHARED)


async def look_at_chunk(connection: AsyncConnection, upload_id: str, number: int) -> Entry | None:
    """As `entry`, of one chunk alone."""
    row = (await connection.execute(statements.READ, {"of_upload": upload_id})).mappings().first()
    if row is None:
        return None
    found = await connection.execute(statements.CHUNK, {"of_upload": upload_id, "of_number": number})
    return _entry_of(row, [StoredPart(*chunk) for chunk in found])


async def set_pieces(connection: AsyncConnection, whole_id: str, pieces: Sequence[tuple[str, int]]) -> None:
    """Write down the objects of the parts of a whole, instead of those before."""
    await connection.execute(statements.FORGET_PIECES, {"of_whole": whole_id})
    rows = [
        {"whole_id": whole_id, "position": position, "object_key": key, "size": size}
        for position, (key, size) in enumerate(pieces)
    ]
    if rows:
        await connection.execute(statements.ADD_PIECE, rows)


async def pieces(connection: AsyncConnection, whole_id: str) -> list[tuple[str, int]]:
    """The objects of the parts of a whole, and their sizes."""
    return [(key, size) for key, size in await connection.execute(statements.PIECES, {"of_whole": whole_id})]


async def appender(connection: AsyncConnection, upload_id: str) -> str | None:
    """Who appends to it."""
    found: str | None = (await connection.execute(statements.APPENDER, {"of_upload": upload_id})).scalar()
    return found


async def opened_before(connection: AsyncConnection, moment: datetime, after: str, limit: int) -> list[Entry]:
    """Uploads that were opened before a moment, by id, after the id `after`; without their chunks."""
    values = {"moment": moment, "after": after, "most": limit}
    return [_entry_of(row, ()) for row in (await connection.execute(statements.OPENED_BEFORE, values)).mappings()]


async def add_part(
    connection: AsyncConnection,
    upload_id: str,
    fence: int,
    part: StoredPart,
    now: datetime,
    digest: SavedDigest | None,
) -> PartNoted:
    """Write down a chunk, if the upload may still get it, and how far the digests have come with it. Raises Duplicate (from
    the engine) if there is such a chunk."""
    row = await _locked(connection, upload_id, fence)
    if row is None:
        return PartNoted.REFUSED
    values = {"upload_id": upload_id, "number": part.number, "etag": part.etag, "object_key": part.key}
    await connection.execute(statements.ADD_CHUNK, values | {"created_at": now})
    tail = _tail_of(row)
    await _note_bytes(connection, row, None if tail and tail.number == part.number else tail, now, digest)
    return PartNoted.ADDED


async def move_tail(
    connection: AsyncConnection,
    upload_id: str,
    fence: int,
    before: TailObject | None,
    after: TailObject | None,
    now: datetime,
) -> bool:
    """Whether the tail was `before`, and is `after` now; it is of a chunk that is not there."""
    row = await _locked(connection, upload_id, fence)
    if row is None or _tail_of(row) != before:
        return False
    if after is not None:
        asked = {"of_upload": upload_id, "of_number": after.number}
        if (await connection.execute(statements.HAS_CHUNK, asked)).first() is not None:
            return False
    await _note_bytes(connection, row, after, now)
    return True


async def claim(connection: AsyncConnection, upload_id: str, appender: str) -> bool:
    """Whether there is such an upload, to which this one appends now."""
    return await changed(connection, statements.CLAIM, of_upload=upload_id, new_appender=appender) > 0


async def freeze(connection: AsyncConnection, upload_id: str) -> tuple[Entry | None, bool]:
    """What is written down of an upload that takes no chunk any more, and whether it did before."""
    row = (await connection.execute(statements.LOCK, {"of_upload": upload_id})).mappings().first()
    freezes = row is not None and not row["frozen"]
    if freezes:
        await connection.execute(statements.FREEZE, {"of_upload": upload_id})
    return await _entry(connection, upload_id, statements.READ), freezes


async def withdraw_chunks(
    connection: AsyncConnection,
    upload_id: str,
    numbers: Sequence[int],
    multipart_id: str | None,
    instead_of: str | None = None,
) -> bool:
    """Take chunks back, with the tail if it is of one of them or comes after one, and let others come. Return whether that
    was done.

    A multipart upload that takes the place of `instead_of` takes all chunks back, also one that came at this moment; none
    where it has that place already, or another one has.
    """
    found = await _entry(connection, upload_id, statements.LOCK)
    if found is None:
        return False
    if instead_of is not None and found.multipart_id != instead_of:
        return found.multipart_id == multipart_id
    if instead_of is not None and multipart_id != instead_of:
        numbers = list(found.parts)
    if numbers:
        await connection.execute(statements.WITHDRAW_CHUNKS, {"of_upload": upload_id, "numbers": list(numbers)})
    tail = found.tail
    if tail is not None and numbers and tail.number >= min(numbers):
        tail = None
    values = {"of_upload": upload_id, "new_multipart_id": multipart_id, **_columns_of(tail)}
    await connection.execute(statements.WITHDRAW, values)
    return True


async def save_digest(connection: AsyncConnection, upload_id: str, fence: int, digest: SavedDigest) -> bool:
    """Whether nobody has come further, and the fence is the same."""
    values = {"of_upload": upload_id, "of_fence": fence, **_columns_of_digest(digest)}
    return await changed(connection, statements.SAVE_DIGEST, **values) > 0


async def digest(connection: AsyncConnection, upload_id: str) -> SavedDigest | None:
    """How far the digests of an upload have come."""
    row = (await connection.execute(statements.READ, {"of_upload": upload_id})).mappings().first()
    return None if row is None else _digest_of(row)


async def forget_digest(connection: AsyncConnection, upload_id: str) -> None:
    """Let the digests be computed anew."""
    await connection.execute(statements.FORGET_DIGEST, {"of_upload": upload_id})


async def forget(connection: AsyncConnection, upload_id: str) -> bool:
    """Whether there was such an upload."""
    found = {"of_upload": upload_id}
    if (await connection.execute(statements.LOCK, found)).first() is None:
        return False
    await connection.execute(statements.FORGET_CHUNKS, found)
    await connection.execute(statements.FORGET_PIECES, {"of_whole": upload_id})
    await connection.execute(statements.FORGET, found)
    return True


async def forget_placed(connection: AsyncConnection, upload_id: str, key: str) -> bool:
    """Whether there was such an upload, all of which is the content at this key."""
    found = {"of_upload": upload_id}
    row = (await connection.execute(statements.LOCK, found)).mappings().first()
    if row is None or not row["frozen"] or _tail_of(row) is not None:
        return False
    if (await connection.execute(statements.OTHER_OBJECTS, {**found, "of_whole": upload_id, "of_key": key})).first():
        return False
    if (await connection.execute(statements.CONTENTS_AT, {"keys": [key]})).first() is None:
        return False
    return await forget(connection, upload_id)


async def _locked(connection: AsyncConnection, upload_id: str, fence: int) -> RowMapping | None:
    """The row of an upload that may still get chunks, locked."""
    row = (await connection.execute(statements.LOCK, {"of_upload": upload_id})).mappings().first()
    return None if row is None or row["frozen"] or row["fence"] != fence else row


async def _note_bytes(
    connection: AsyncConnection,
    row: RowMapping,
    tail: TailObject | None,
    now: datetime,
    digest: SavedDigest | None = None,
) -> None:
    """Say that bytes came, which are of the tail now, and how far the digests have come, unless somebody else has come
    further. The clocks of two machines differ: the later one counts."""
    values = {"of_upload": row["upload_id"], "new_written_at": max(row["written_at"], now), **_columns_of(tail)}
    if digest is None or digest.position <= (row["digest_position"] or 0):
        await connection.execute(statements.NOTE_BYTES, values)
    else:
        await connection.execute(statements.NOTE_BYTES_AND_DIGEST, values | _columns_of_digest(digest))


async def _entry(connection: AsyncConnection, upload_id: str, query: Executable) -> Entry | None:
    row = (await connection.execute(query, {"of_upload": upload_id})).mappings().first()
    if row is None:
        return None
    found = await connection.execute(statements.CHUNKS, {"of_upload": upload_id})
    return _entry_of(row, [StoredPart(number, etag, key) for number, etag, key in found])


def _entry_of(row: RowMapping, parts: Sequence[StoredPart]) -> Entry:
    return Entry(
        upload_id=row["upload_id"],
        multipart_id=row["multipart_id"],
        fence=row["fence"],
        frozen=bool(row["frozen"]),
        opened_at=row["opened_at"],
        written_at=row["written_at"],
        tail=_tail_of(row),
        digest=_digest_of(row),
        parts={part.number: part for part in parts},
    )


def _tail_of(row: RowMapping) -> TailObject | None:
    key, number, length = row["tail_key"], row["tail_number"], row["tail_length"]
    return None if key is None else TailObject(key, number, length)


def _digest_of(row: RowMapping) -> SavedDigest | None:
    position, state, sha256 = row["digest_position"], row["digest_state"], row["digest_sha256"]
    if position is None:
        return None
    return SavedDigest(position, state or b"", None if sha256 is None else (row["digest_md5"], sha256))


def _columns_of(tail: TailObject | None) -> dict[str, object]:
    key, number, length = (None, None, None) if tail is None else (tail.key, tail.number, tail.length)
    return {"new_tail_key": key, "new_tail_number": number, "new_tail_length": length}


def _columns_of_digest(digest: SavedDigest) -> dict[str, object]:
    md5, sha256 = digest.digests or (None, None)
    columns = {"new_digest_position": digest.position, "new_digest_state": digest.state}
    return columns | {"new_digest_md5": md5, "new_digest_sha256": sha256}
