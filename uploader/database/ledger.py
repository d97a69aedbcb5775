"""The ledger of the store on S3, in the database: the chunks of open uploads that count, the locations of contents, and the
objects that are put away.

First come the statements, then transactions of several statements, then `LedgerRows`, where each method is one transaction.
A transaction that writes chunks locks the row of the upload. `entry` takes a shared lock, and reads row and chunks as of one
moment. A frozen upload gets no more chunks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BindParameter,
    Executable,
    RowMapping,
    and_,
    bindparam,
    delete,
    insert,
    or_,
    select,
    union_all,
    update,
)

from uploader.database.connection import AsyncConnection
from uploader.database.engine import Database, Duplicate, Ts, Work
from uploader.database.models import blob, chunk, multipart, piece, put_away
from uploader.database.transactions.rows import PUT_AWAY, changed, given
from uploader.domain.ledger import Entry, PartNoted, PutAway, SavedDigest, StoredPart, TailObject

# The values for one run of a statement.
Values = Mapping[str, Any]

_rows = multipart.c
_OF_UPLOAD = _rows.upload_id == bindparam("of_upload")
READ = select(multipart).where(_OF_UPLOAD)
# A shared lock: nobody changes the chunks meanwhile, and others may read.
READ_SHARED = READ.with_for_update(read=True)
LOCK = READ.with_for_update()
APPENDER = select(_rows.appender).where(_OF_UPLOAD)
OPENED_BEFORE = (
    select(multipart)
    .where(_rows.opened_at < bindparam("moment"), _rows.upload_id > bindparam("after"))
    .order_by(_rows.upload_id)
    .limit(bindparam("most"))
)
OPEN = insert(multipart)
FORGET = delete(multipart).where(_OF_UPLOAD)

_CHANGE = update(multipart).where(_OF_UPLOAD)
_BYTES = given("tail_key", "tail_number", "tail_length", "written_at")
NOTE_BYTES = _CHANGE.values(_BYTES)
CLAIM = _CHANGE.values(appender=bindparam("new_appender"))
FREEZE = _CHANGE.values(frozen=True, fence=_rows.fence + 1)
_NO_DIGEST = dict.fromkeys(("digest_position", "digest_state", "digest_md5", "digest_sha256"))
_DIGEST = given(*_NO_DIGEST)
NOTE_BYTES_AND_DIGEST = _CHANGE.values(_BYTES | _DIGEST)
FORGET_DIGEST = _CHANGE.values(_NO_DIGEST)
WITHDRAW = _CHANGE.values(
    given("tail_key", "tail_number", "tail_length", "multipart_id")
    | {"frozen": False, "fence": _rows.fence + 1}
    | _NO_DIGEST
)
_position = bindparam("new_digest_position", type_=_rows.digest_position.type)
_SAME_PLACE = and_(
    _rows.digest_position == _position,
    or_(_rows.digest_sha256.is_(None), bindparam("new_digest_sha256", type_=_rows.digest_sha256.type).is_not(None)),
)
# The digest progress only moves forward.
SAVE_DIGEST = _CHANGE.where(
    _rows.fence == bindparam("of_fence"),
    or_(_rows.digest_position.is_(None), _rows.digest_position < _position, _SAME_PLACE),
).values(_DIGEST)

_chunks = chunk.c
_OF_CHUNKS = _chunks.upload_id == bindparam("of_upload")
CHUNKS = select(_chunks.number, _chunks.etag, _chunks.object_key).where(_OF_CHUNKS).order_by(_chunks.number)
HAS_CHUNK = select(_chunks.number).where(_OF_CHUNKS, _chunks.number == bindparam("of_number"))
CHUNK = CHUNKS.where(_chunks.number == bindparam("of_number"))
ADD_CHUNK = insert(chunk)
WITHDRAW_CHUNKS = delete(chunk).where(_OF_CHUNKS, _chunks.number.in_(bindparam("numbers", expanding=True)))
FORGET_CHUNKS = delete(chunk).where(_OF_CHUNKS)

_pieces = piece.c
_OF_WHOLE = _pieces.whole_id == bindparam("of_whole")
PIECES = select(_pieces.object_key, _pieces.size).where(_OF_WHOLE).order_by(_pieces.position)
ADD_PIECE = insert(piece)
FORGET_PIECES = delete(piece).where(_OF_WHOLE)

OTHER_OBJECTS = union_all(
    select(_chunks.object_key).where(_OF_CHUNKS, _chunks.object_key != bindparam("of_key")),
    select(_pieces.object_key).where(_OF_WHOLE),
)

_KEYS: BindParameter[list[str]] = bindparam("keys", expanding=True)
LOCATIONS = select(blob.c.sha256, blob.c.location).where(
    blob.c.sha256.in_(bindparam("sha256s", expanding=True)), blob.c.location.is_not(None)
)
CONTENTS_AT = select(blob.c.location, blob.c.sha256).where(blob.c.location.in_(_KEYS))
_NAMING = (blob.c.location, chunk.c.object_key, multipart.c.tail_key, _pieces.object_key, put_away.c.object_key)
# One statement: between two statements, a key could move from one table to the other.
NAMED = union_all(*(select(column).where(column.in_(_KEYS)) for column in _NAMING))
KEPT = union_all(
    *(select(column).where(column.in_(_KEYS)) for column in (blob.c.location, put_away.c.object_key)),
    select(_pieces.object_key).where(_pieces.object_key.in_(_KEYS), _pieces.whole_id != bindparam("but_of")),
)
UPLOADS_OF = select(_rows.upload_id, _rows.multipart_id).where(
    _rows.upload_id.in_(bindparam("upload_ids", expanding=True))
)

_kept = put_away.c
LOCK_CONTENT_AT = select(blob.c.sha256).where(blob.c.location == bindparam("of_key")).with_for_update()
ALL_PUT_AWAY = (
    select(put_away).where(_kept.object_key > bindparam("after")).order_by(_kept.object_key).limit(bindparam("most"))
)
COPIES = (
    select(put_away).where(_kept.name == bindparam("of_content")).order_by(_kept.created_at.desc(), _kept.object_key)
)
TAKE_OUT = delete(put_away).where(_kept.object_key == bindparam("of_key"))


async def _rows_of(connection: AsyncConnection, query: Executable, values: Values) -> list[Any]:
    return list((await connection.execute(query, values)).all())


async def _changes(connection: AsyncConnection, statement: Executable, values: Values) -> bool:
    """Return whether the statement found a row."""
    return await changed(connection, statement, **values) > 0


async def _look_at_chunk(connection: AsyncConnection, upload_id: str, number: int) -> Entry | None:
    row = await _row(connection, upload_id, READ)
    if row is None:
        return None
    return _entry_of(row, await _rows_of(connection, CHUNK, {"of_upload": upload_id, "of_number": number}))


async def _set_pieces(connection: AsyncConnection, whole_id: str, pieces: Sequence[tuple[str, int]]) -> None:
    await connection.execute(FORGET_PIECES, {"of_whole": whole_id})
    rows = [
        {"whole_id": whole_id, "position": position, "object_key": key, "size": size}
        for position, (key, size) in enumerate(pieces)
    ]
    if rows:
        await connection.execute(ADD_PIECE, rows)


async def _opened_before(connection: AsyncConnection, moment: datetime, after: str, limit: int) -> list[Entry]:
    values = {"moment": moment, "after": after, "most": limit}
    return [_entry_of(row, ()) for row in (await connection.execute(OPENED_BEFORE, values)).mappings()]


async def _add_part(
    connection: AsyncConnection,
    upload_id: str,
    fence: int,
    part: StoredPart,
    now: datetime,
    digest: SavedDigest | None,
) -> PartNoted:
    """Raises Duplicate (from the engine) if the chunk exists."""
    row = await _locked(connection, upload_id, fence)
    if row is None:
        return PartNoted.REFUSED
    values = {"upload_id": upload_id, "number": part.number, "etag": part.etag, "object_key": part.key}
    await connection.execute(ADD_CHUNK, values | {"created_at": now})
    tail = _tail_of(row)
    await _note_bytes(connection, row, None if tail and tail.number == part.number else tail, now, digest)
    return PartNoted.ADDED


async def _move_tail(
    connection: AsyncConnection,
    upload_id: str,
    fence: int,
    before: TailObject | None,
    after: TailObject | None,
    now: datetime,
) -> bool:
    row = await _locked(connection, upload_id, fence)
    if row is None or _tail_of(row) != before:
        return False
    if after is not None:
        asked = {"of_upload": upload_id, "of_number": after.number}
        if (await connection.execute(HAS_CHUNK, asked)).first() is not None:
            return False
    await _note_bytes(connection, row, after, now)
    return True


async def _freeze(connection: AsyncConnection, upload_id: str) -> tuple[Entry | None, bool]:
    """Freeze an upload. Return its entry, and True if the upload was not frozen before."""
    row = await _row(connection, upload_id, LOCK)
    freezes = row is not None and not row["frozen"]
    if freezes:
        await connection.execute(FREEZE, {"of_upload": upload_id})
    return await _entry(connection, upload_id, READ), freezes


async def _withdraw(
    connection: AsyncConnection,
    upload_id: str,
    numbers: Sequence[int],
    multipart_id: str | None,
    instead_of: str | None,
) -> bool:
    found = await _entry(connection, upload_id, LOCK)
    if found is None:
        return False
    if instead_of is not None and found.multipart_id != instead_of:
        return found.multipart_id == multipart_id
    if instead_of is not None and multipart_id != instead_of:
        numbers = list(found.parts)
    if numbers:
        await connection.execute(WITHDRAW_CHUNKS, {"of_upload": upload_id, "numbers": list(numbers)})
    tail = found.tail
    if tail is not None and numbers and tail.number >= min(numbers):
        tail = None
    values = {"of_upload": upload_id, "new_multipart_id": multipart_id, **_columns_of(tail)}
    await connection.execute(WITHDRAW, values)
    return True


async def _digest(connection: AsyncConnection, upload_id: str) -> SavedDigest | None:
    row = await _row(connection, upload_id, READ)
    return None if row is None else _digest_of(row)


async def _forget(connection: AsyncConnection, upload_id: str) -> bool:
    found = {"of_upload": upload_id}
    if await _row(connection, upload_id, LOCK) is None:
        return False
    await connection.execute(FORGET_CHUNKS, found)
    await connection.execute(FORGET_PIECES, {"of_whole": upload_id})
    await connection.execute(FORGET, found)
    return True


async def _forget_placed(connection: AsyncConnection, upload_id: str, key: str) -> bool:
    row = await _row(connection, upload_id, LOCK)
    if row is None or not row["frozen"] or _tail_of(row) is not None:
        return False
    others = {"of_upload": upload_id, "of_whole": upload_id, "of_key": key}
    if (await connection.execute(OTHER_OBJECTS, others)).first():
        return False
    if (await connection.execute(CONTENTS_AT, {"keys": [key]})).first() is None:
        return False
    return await _forget(connection, upload_id)


async def _put_away(connection: AsyncConnection, put: PutAway) -> bool:
    """Put an object away, unless it is the location of a content; return whether this was done. The new row comes first, and
    `relocate` deletes that row last: the later transaction of the two sees the other one's row."""
    values = {"object_key": put.key, "name": put.name, "size": put.size, "created_at": put.created_at}
    await connection.execute(PUT_AWAY[connection.dialect.name], values)
    of_key = {"of_key": put.key}
    if (await connection.execute(LOCK_CONTENT_AT, of_key)).first() is None:
        return True
    await connection.execute(TAKE_OUT, of_key)
    return False


async def _row(connection: AsyncConnection, upload_id: str, query: Executable) -> RowMapping | None:
    found: RowMapping | None = (await connection.execute(query, {"of_upload": upload_id})).mappings().first()
    return found


async def _locked(connection: AsyncConnection, upload_id: str, fence: int) -> RowMapping | None:
    """Lock the row of an upload that may still get chunks; None if it is frozen, has another fence, or is gone."""
    row = await _row(connection, upload_id, LOCK)
    return None if row is None or row["frozen"] or row["fence"] != fence else row


async def _note_bytes(
    connection: AsyncConnection,
    row: RowMapping,
    tail: TailObject | None,
    now: datetime,
    digest: SavedDigest | None = None,
) -> None:
    """Note the tail, and the digest progress unless the row has further progress. The clocks of two machines differ, so the
    later time counts."""
    values = {"of_upload": row["upload_id"], "new_written_at": max(row["written_at"], now), **_columns_of(tail)}
    if digest is None or digest.position <= (row["digest_position"] or 0):
        await connection.execute(NOTE_BYTES, values)
    else:
        await connection.execute(NOTE_BYTES_AND_DIGEST, values | _columns_of_digest(digest))


async def _entry(connection: AsyncConnection, upload_id: str, query: Executable) -> Entry | None:
    row = await _row(connection, upload_id, query)
    return None if row is None else _entry_of(row, await _rows_of(connection, CHUNKS, {"of_upload": upload_id}))


def _entry_of(row: RowMapping, chunks: Sequence[Any]) -> Entry:
    return Entry(
        upload_id=row["upload_id"],
        multipart_id=row["multipart_id"],
        fence=row["fence"],
        frozen=bool(row["frozen"]),
        opened_at=row["opened_at"],
        written_at=row["written_at"],
        tail=_tail_of(row),
        digest=_digest_of(row),
        parts={number: StoredPart(number, etag, key) for number, etag, key in chunks},
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


@dataclass(eq=False, repr=False)
class LedgerRows:
    """Implements the protocol in `storage/s3/ledger.py`, which describes each method."""

    database: Database

    # Uploads

    async def open(self, upload_id: str, multipart_id: str | None, now: datetime) -> None:
        values = {"upload_id": upload_id, "multipart_id": multipart_id, "opened_at": now, "written_at": now}
        try:
            await self.database.transact(_changes, OPEN, values)
        except Duplicate:
            await self.database.sync()

    async def entry(self, upload_id: str) -> Entry | None:
        return await self.database.read_durably(_entry, upload_id, READ_SHARED)

    async def glance(self, upload_id: str, number: int) -> Entry | None:
        return await self.database.read(_look_at_chunk, upload_id, number, brief=True)

    async def look(self, upload_id: str, number: int, digested_bytes: int = 0) -> Entry | None:
        found = await self.glance(upload_id, number)
        if found is None:
            return None
        is_further = found.digest is not None and found.digest.position > digested_bytes
        if found.parts or is_further:  # the caller acknowledges the chunk again, or goes on from the digests
            await self.database.sync()
        return found

    async def add_part(
        self, upload_id: str, fence: int, part: StoredPart, now: datetime, digest: SavedDigest | None = None
    ) -> PartNoted:
        try:
            noted = await self.database.transact(_add_part, upload_id, fence, part, now, digest)
        except Duplicate:
            noted = PartNoted.PRESENT
        if noted is not PartNoted.ADDED:
            await self.database.sync()
        return noted

    async def move_tail(
        self, upload_id: str, fence: int, before: TailObject | None, after: TailObject | None, now: datetime
    ) -> bool:
        return await self._done(_move_tail, upload_id, fence, before, after, now)

    async def claim(self, upload_id: str, appender: str) -> bool:
        return await self._done(_changes, CLAIM, {"of_upload": upload_id, "new_appender": appender})

    async def appender(self, upload_id: str) -> str | None:
        found = await self.database.read(_rows_of, APPENDER, {"of_upload": upload_id}, brief=True)
        return found[0][0] if found else None

    async def freeze(self, upload_id: str) -> Entry | None:
        found, freezes = await self.database.transact(_freeze, upload_id)
        if not freezes:
            await self.database.sync()
        return None if found is None else replace(found, newly_frozen=freezes)

    async def withdraw(
        self, upload_id: str, numbers: Sequence[int], *, multipart_id: str | None, instead_of: str | None = None
    ) -> bool:
        return await self._done(_withdraw, upload_id, numbers, multipart_id, instead_of)

    async def save_digest(self, upload_id: str, fence: int, digest: SavedDigest) -> bool:
        values = {"of_upload": upload_id, "of_fence": fence, **_columns_of_digest(digest)}
        return await self._done(_changes, SAVE_DIGEST, values)

    async def digest(self, upload_id: str, beyond_bytes: int) -> SavedDigest | None:
        found = await self.database.read(_digest, upload_id, brief=True)
        if found is None or found.position <= beyond_bytes:
            return None
        await self.database.sync()
        return found

    async def forget_digest(self, upload_id: str) -> None:
        await self.database.transact(_changes, FORGET_DIGEST, {"of_upload": upload_id})

    async def forget(self, upload_id: str) -> bool:
        return await self._done(_forget, upload_id)

    async def forget_placed(self, upload_id: str, key: str) -> bool:
        return await self.database.transact(_forget_placed, upload_id, key)

    async def opened_before(self, moment: datetime, *, after: str, limit: int) -> list[Entry]:
        return await self.database.read(_opened_before, moment, after, limit)

    async def set_pieces(self, whole_id: str, pieces: Sequence[tuple[str, int]]) -> None:
        await self.database.transact(_set_pieces, whole_id, pieces)

    async def pieces(self, whole_id: str) -> list[tuple[str, int]]:
        return [(key, size) for key, size in await self.database.read(_rows_of, PIECES, {"of_whole": whole_id})]

    # Contents

    async def locations(self, sha256s: Sequence[str]) -> dict[str, str]:
        asked = {"sha256s": list(sha256s)}
        return dict(await self.database.read(_rows_of, LOCATIONS, asked, brief=len(sha256s) == 1))

    async def contents_at(self, keys: Sequence[str]) -> dict[str, str]:
        return dict(await self.database.read_durably(_rows_of, CONTENTS_AT, {"keys": list(keys)}))

    async def named(self, keys: Sequence[str]) -> set[str]:
        return {key for (key,) in await self.database.read_durably(_rows_of, NAMED, {"keys": list(keys)})}

    async def kept(self, keys: Sequence[str], *, but_of: str = "") -> set[str]:
        asked = {"keys": list(keys), "but_of": but_of}
        return {key for (key,) in await self.database.read_durably(_rows_of, KEPT, asked)}

    async def uploads_of(self, upload_ids: Sequence[str]) -> dict[str, str | None]:
        return dict(await self.database.read_durably(_rows_of, UPLOADS_OF, {"upload_ids": list(upload_ids)}))

    # The trash

    async def put_away(self, put: PutAway) -> bool:
        return await self._done(_put_away, put)

    async def all_put_away(self, *, after: str, limit: int) -> list[PutAway]:
        found = await self.database.read(_rows_of, ALL_PUT_AWAY, {"after": after, "most": limit})
        return [PutAway(*row) for row in found]

    async def copies(self, sha256: str) -> list[PutAway]:
        return [PutAway(*row) for row in await self.database.read(_rows_of, COPIES, {"of_content": sha256})]

    async def take_out(self, key: str) -> bool:
        return await self._done(_changes, TAKE_OUT, {"of_key": key})

    async def _done(self, work: Work[*Ts, bool], *of: *Ts) -> bool:
        """Run a transaction. A False makes all data durable that the transaction may have read, because the caller decides
        by the answer."""
        done = await self.database.transact(work, *of)
        if not done:
            await self.database.sync()
        return done
