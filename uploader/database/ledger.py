"""The ledger of the store on S3, in the database: what is written down of open uploads, where contents lie, and what is
put away.

The statements, put together once; one function for each change and each question; and `LedgerRows`, each of whose
methods is one transaction. Whoever changes the chunks of an upload has its row locked, and so has whoever reads both:
what is read is of one moment, and what is frozen stays as it is.
"""

from collections.abc import Sequence
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
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.database.engine import Database, Duplicate, Ts, Work
from uploader.database.models import blob, chunk, multipart, piece, put_away
from uploader.database.transactions.rows import PUT_AWAY, changed
from uploader.domain.ledger import Entry, PartNoted, PutAway, SavedDigest, StoredPart, TailObject

_rows = multipart.c
_OF_UPLOAD = _rows.upload_id == bindparam("of_upload")
READ = select(multipart).where(_OF_UPLOAD)
# Nobody changes its chunks meanwhile, and others may read, too.
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
_BYTES: dict[str, BindParameter[Any]] = {
    name: bindparam(f"new_{name}") for name in ("tail_key", "tail_number", "tail_length", "written_at")
}
NOTE_BYTES = _CHANGE.values(_BYTES)
CLAIM = _CHANGE.values(appender=bindparam("new_appender"))
FREEZE = _CHANGE.values(frozen=True, fence=_rows.fence + 1)

_NO_DIGEST = dict.fromkeys(("digest_position", "digest_state", "digest_md5", "digest_sha256"))
_DIGEST: dict[str, BindParameter[Any]] = {name: bindparam(f"new_{name}") for name in _NO_DIGEST}
NOTE_BYTES_AND_DIGEST = _CHANGE.values(_BYTES | _DIGEST)
FORGET_DIGEST = _CHANGE.values(_NO_DIGEST)
WITHDRAW = _CHANGE.values(
    {name: bindparam(f"new_{name}") for name in ("tail_key", "tail_number", "tail_length", "multipart_id")}
    | {"frozen": False, "fence": _rows.fence + 1}
    | _NO_DIGEST
)
_position = bindparam("new_digest_position", type_=_rows.digest_position.type)
_SAME_PLACE = and_(
    _rows.digest_position == _position,
    or_(_rows.digest_sha256.is_(None), bindparam("new_digest_sha256", type_=_rows.digest_sha256.type).is_not(None)),
)
# Only forwards.
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
# One statement, so that a key that moves from one place to another is seen in one of them.
NAMED = union_all(
    *(
        select(column).where(column.in_(_KEYS))
        for column in (
            blob.c.location,
            chunk.c.object_key,
            multipart.c.tail_key,
            _pieces.object_key,
            put_away.c.object_key,
        )
    )
)
KEPT = union_all(
    *(select(column).where(column.in_(_KEYS)) for column in (blob.c.location, put_away.c.object_key)),
    select(_pieces.object_key).where(_pieces.object_key.in_(_KEYS), _pieces.whole_id != bindparam("but_of")),
)
UPLOADS_OF = select(_rows.upload_id, _rows.multipart_id).where(
    _rows.upload_id.in_(bindparam("upload_ids", expanding=True))
)


_kept = put_away.c
_OF_KEY = _kept.object_key == bindparam("of_key")
LOCK_CONTENT_AT = select(blob.c.sha256).where(blob.c.location == bindparam("of_key")).with_for_update()
ALL_PUT_AWAY = (
    select(put_away).where(_kept.object_key > bindparam("after")).order_by(_kept.object_key).limit(bindparam("most"))
)
COPIES = (
    select(put_away).where(_kept.name == bindparam("of_content")).order_by(_kept.created_at.desc(), _kept.object_key)
)
TAKE_OUT = delete(put_away).where(_OF_KEY)


async def open_upload(connection: AsyncConnection, upload_id: str, multipart_id: str | None, now: datetime) -> None:
    """Raises Duplicate (from the engine) if it is there."""
    values = {"upload_id": upload_id, "multipart_id": multipart_id, "opened_at": now, "written_at": now}
    await connection.execute(OPEN, values)


async def entry(connection: AsyncConnection, upload_id: str) -> Entry | None:
    """What is written down of an upload, with its chunks."""
    return await _entry(connection, upload_id, READ_SHARED)


async def look_at_chunk(connection: AsyncConnection, upload_id: str, number: int) -> Entry | None:
    """As `entry`, of one chunk alone."""
    row = (await connection.execute(READ, {"of_upload": upload_id})).mappings().first()
    if row is None:
        return None
    found = await connection.execute(CHUNK, {"of_upload": upload_id, "of_number": number})
    return _entry_of(row, [StoredPart(*chunk) for chunk in found])


async def set_pieces(connection: AsyncConnection, whole_id: str, pieces: Sequence[tuple[str, int]]) -> None:
    """Write down the objects of the parts of a whole, instead of those before."""
    await connection.execute(FORGET_PIECES, {"of_whole": whole_id})
    rows = [
        {"whole_id": whole_id, "position": position, "object_key": key, "size": size}
        for position, (key, size) in enumerate(pieces)
    ]
    if rows:
        await connection.execute(ADD_PIECE, rows)


async def pieces(connection: AsyncConnection, whole_id: str) -> list[tuple[str, int]]:
    """The objects of the parts of a whole, and their sizes."""
    return [(key, size) for key, size in await connection.execute(PIECES, {"of_whole": whole_id})]


async def appender(connection: AsyncConnection, upload_id: str) -> str | None:
    """Who appends to it."""
    found: str | None = (await connection.execute(APPENDER, {"of_upload": upload_id})).scalar()
    return found


async def opened_before(connection: AsyncConnection, moment: datetime, after: str, limit: int) -> list[Entry]:
    """Uploads that were opened before a moment, by id, after the id `after`; without their chunks."""
    values = {"moment": moment, "after": after, "most": limit}
    return [_entry_of(row, ()) for row in (await connection.execute(OPENED_BEFORE, values)).mappings()]


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
    await connection.execute(ADD_CHUNK, values | {"created_at": now})
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
        if (await connection.execute(HAS_CHUNK, asked)).first() is not None:
            return False
    await _note_bytes(connection, row, after, now)
    return True


async def claim(connection: AsyncConnection, upload_id: str, appender: str) -> bool:
    """Whether there is such an upload, to which this one appends now."""
    return await changed(connection, CLAIM, of_upload=upload_id, new_appender=appender) > 0


async def freeze(connection: AsyncConnection, upload_id: str) -> tuple[Entry | None, bool]:
    """What is written down of an upload that takes no chunk any more, and whether it did before."""
    row = (await connection.execute(LOCK, {"of_upload": upload_id})).mappings().first()
    freezes = row is not None and not row["frozen"]
    if freezes:
        await connection.execute(FREEZE, {"of_upload": upload_id})
    return await _entry(connection, upload_id, READ), freezes


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


async def save_digest(connection: AsyncConnection, upload_id: str, fence: int, digest: SavedDigest) -> bool:
    """Whether nobody has come further, and the fence is the same."""
    values = {"of_upload": upload_id, "of_fence": fence, **_columns_of_digest(digest)}
    return await changed(connection, SAVE_DIGEST, **values) > 0


async def digest(connection: AsyncConnection, upload_id: str) -> SavedDigest | None:
    """How far the digests of an upload have come."""
    row = (await connection.execute(READ, {"of_upload": upload_id})).mappings().first()
    return None if row is None else _digest_of(row)


async def forget_digest(connection: AsyncConnection, upload_id: str) -> None:
    """Let the digests be computed anew."""
    await connection.execute(FORGET_DIGEST, {"of_upload": upload_id})


async def forget(connection: AsyncConnection, upload_id: str) -> bool:
    """Whether there was such an upload."""
    found = {"of_upload": upload_id}
    if (await connection.execute(LOCK, found)).first() is None:
        return False
    await connection.execute(FORGET_CHUNKS, found)
    await connection.execute(FORGET_PIECES, {"of_whole": upload_id})
    await connection.execute(FORGET, found)
    return True


async def forget_placed(connection: AsyncConnection, upload_id: str, key: str) -> bool:
    """Whether there was such an upload, all of which is the content at this key."""
    found = {"of_upload": upload_id}
    row = (await connection.execute(LOCK, found)).mappings().first()
    if row is None or not row["frozen"] or _tail_of(row) is not None:
        return False
    if (await connection.execute(OTHER_OBJECTS, {**found, "of_whole": upload_id, "of_key": key})).first():
        return False
    if (await connection.execute(CONTENTS_AT, {"keys": [key]})).first() is None:
        return False
    return await forget(connection, upload_id)


async def _locked(connection: AsyncConnection, upload_id: str, fence: int) -> RowMapping | None:
    """The row of an upload that may still get chunks, locked."""
    row = (await connection.execute(LOCK, {"of_upload": upload_id})).mappings().first()
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
        await connection.execute(NOTE_BYTES, values)
    else:
        await connection.execute(NOTE_BYTES_AND_DIGEST, values | _columns_of_digest(digest))


async def _entry(connection: AsyncConnection, upload_id: str, query: Executable) -> Entry | None:
    row = (await connection.execute(query, {"of_upload": upload_id})).mappings().first()
    if row is None:
        return None
    found = await connection.execute(CHUNKS, {"of_upload": upload_id})
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


async def locations(connection: AsyncConnection, sha256s: Sequence[str]) -> dict[str, str]:
    """The keys of those contents that have a row and a key."""
    rows = await connection.execute(LOCATIONS, {"sha256s": list(sha256s)})
    return {sha256: location for sha256, location in rows}  # noqa: C416 (rows are no pairs to `dict`)


async def contents_at(connection: AsyncConnection, keys: Sequence[str]) -> dict[str, str]:
    """By key, the contents that lie at one of these."""
    rows = await connection.execute(CONTENTS_AT, {"keys": list(keys)})
    return {location: sha256 for location, sha256 in rows}  # noqa: C416


async def named(connection: AsyncConnection, keys: Sequence[str]) -> set[str]:
    """Those of these keys that a row names, whatever for."""
    return set((await connection.execute(NAMED, {"keys": list(keys)})).scalars())


async def kept(connection: AsyncConnection, keys: Sequence[str], but_of: str) -> set[str]:
    """Those that a content lies at, that are put away, or that are pieces of another whole than `but_of`."""
    found = await connection.execute(KEPT, {"keys": list(keys), "but_of": but_of})
    return set(found.scalars())


async def uploads_of(connection: AsyncConnection, upload_ids: Sequence[str]) -> dict[str, str | None]:
    """Those uploads that are written down, each with what its multipart upload is called."""
    rows = await connection.execute(UPLOADS_OF, {"upload_ids": list(upload_ids)})
    return {upload_id: word for upload_id, word in rows}  # noqa: C416


async def note_put_away(connection: AsyncConnection, put: PutAway) -> bool:
    """Whether no content lies there. Its own row comes first, and `relocate` takes that out last: whichever of the two is
    later sees what the other one did."""
    values = {"object_key": put.key, "name": put.name, "size": put.size, "created_at": put.created_at}
    await connection.execute(PUT_AWAY[connection.dialect.name], values)
    if (await connection.execute(LOCK_CONTENT_AT, {"of_key": put.key})).first() is None:
        return True
    await take_out(connection, put.key)
    return False


async def all_put_away(connection: AsyncConnection, after: str, limit: int) -> list[PutAway]:
    """By key, after the key `after`."""
    return await _found(connection, ALL_PUT_AWAY, after=after, most=limit)


async def copies(connection: AsyncConnection, sha256: str) -> list[PutAway]:
    """Those of a content, the last one first."""
    return await _found(connection, COPIES, of_content=sha256)


async def take_out(connection: AsyncConnection, key: str) -> bool:
    """Whether it was put away."""
    return await changed(connection, TAKE_OUT, of_key=key) > 0


async def _found(connection: AsyncConnection, query: Executable, **values: object) -> list[PutAway]:
    rows = (await connection.execute(query, values)).mappings()
    return [PutAway(row["object_key"], row["name"], row["size"], row["created_at"]) for row in rows]


@dataclass(eq=False, repr=False)
class LedgerRows:
    """What the store on S3 has written down; `storage/s3/ledger.py` says what each method does."""

    database: Database

    # Uploads

    async def open(self, upload_id: str, multipart_id: str | None, now: datetime) -> None:
        try:
            await self.database.transact(open_upload, upload_id, multipart_id, now)
        except Duplicate:
            await self.database.sync()

    async def entry(self, upload_id: str) -> Entry | None:
        return await self.database.read_durably(entry, upload_id)

    async def glance(self, upload_id: str, number: int) -> Entry | None:
        return await self.database.read(look_at_chunk, upload_id, number, brief=True)

    async def look(self, upload_id: str, number: int, digested_bytes: int = 0) -> Entry | None:
        found = await self.glance(upload_id, number)
        if found is None:
            return None
        is_further = found.digest is not None and found.digest.position > digested_bytes
        if found.parts or is_further:  # it is acknowledged once more, or gone on from
            await self.database.sync()
        return found

    async def add_part(
        self, upload_id: str, fence: int, part: StoredPart, now: datetime, digest: SavedDigest | None = None
    ) -> PartNoted:
        try:
            noted = await self.database.transact(add_part, upload_id, fence, part, now, digest)
        except Duplicate:
            noted = PartNoted.PRESENT
        if noted is not PartNoted.ADDED:
            await self.database.sync()
        return noted

    async def move_tail(
        self, upload_id: str, fence: int, before: TailObject | None, after: TailObject | None, now: datetime
    ) -> bool:
        return await self._done(move_tail, upload_id, fence, before, after, now)

    async def claim(self, upload_id: str, appender: str) -> bool:
        return await self._done(claim, upload_id, appender)

    async def appender(self, upload_id: str) -> str | None:
        return await self.database.read(appender, upload_id, brief=True)

    async def freeze(self, upload_id: str) -> Entry | None:
        found, freezes = await self.database.transact(freeze, upload_id)
        if not freezes:
            await self.database.sync()
        return None if found is None else replace(found, newly_frozen=freezes)

    async def withdraw(
        self, upload_id: str, numbers: Sequence[int], *, multipart_id: str | None, instead_of: str | None = None
    ) -> bool:
        return await self._done(withdraw_chunks, upload_id, numbers, multipart_id, instead_of)

    async def save_digest(self, upload_id: str, fence: int, digest: SavedDigest) -> bool:
        return await self._done(save_digest, upload_id, fence, digest)

    async def digest(self, upload_id: str, beyond_bytes: int) -> SavedDigest | None:
        found = await self.database.read(digest, upload_id, brief=True)
        if found is None or found.position <= beyond_bytes:
            return None
        await self.database.sync()
        return found

    async def forget_digest(self, upload_id: str) -> None:
        await self.database.transact(forget_digest, upload_id)

    async def forget(self, upload_id: str) -> bool:
        return await self._done(forget, upload_id)

    async def forget_placed(self, upload_id: str, key: str) -> bool:
        return await self.database.transact(forget_placed, upload_id, key)

    async def opened_before(self, moment: datetime, *, after: str, limit: int) -> list[Entry]:
        return await self.database.read(opened_before, moment, after, limit)

    async def set_pieces(self, whole_id: str, pieces: Sequence[tuple[str, int]]) -> None:
        await self.database.transact(set_pieces, whole_id, pieces)

    async def pieces(self, whole_id: str) -> list[tuple[str, int]]:
        return await self.database.read(pieces, whole_id)

    # Contents

    async def locations(self, sha256s: Sequence[str]) -> dict[str, str]:
        return await self.database.read(locations, sha256s, brief=len(sha256s) == 1)

    async def contents_at(self, keys: Sequence[str]) -> dict[str, str]:
        return await self.database.read_durably(contents_at, keys)

    async def named(self, keys: Sequence[str]) -> set[str]:
        return await self.database.read_durably(named, keys)

    async def kept(self, keys: Sequence[str], *, but_of: str = "") -> set[str]:
        return await self.database.read_durably(kept, keys, but_of)

    async def uploads_of(self, upload_ids: Sequence[str]) -> dict[str, str | None]:
        return await self.database.read_durably(uploads_of, upload_ids)

    # The trash

    async def put_away(self, put: PutAway) -> bool:
        return await self._done(note_put_away, put)

    async def all_put_away(self, *, after: str, limit: int) -> list[PutAway]:
        return await self.database.read(all_put_away, after, limit)

    async def copies(self, sha256: str) -> list[PutAway]:
        return await self.database.read(copies, sha256)

    async def take_out(self, key: str) -> bool:
        return await self._done(take_out, key)

    async def _done(self, work: Work[*Ts, bool], *of: *Ts) -> bool:
        """Whether a transaction did something. If not, nothing was written: what it has read instead is made durable,
        because the caller decides by it."""
        done = await self.database.transact(work, *of)
        if not done:
            await self.database.sync()
        return done
