"""Where contents lie on S3, which keys rows name, and what is put away."""

from collections.abc import Sequence

from sqlalchemy import Executable
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.database.objects import statements
from uploader.database.transactions.rows import changed
from uploader.database.transactions.statements import PUT_AWAY
from uploader.domain.objects import PutAway


async def locations(connection: AsyncConnection, sha256s: Sequence[str]) -> dict[str, str]:
    """The keys of those contents that have a row and a key."""
    rows = await connection.execute(statements.LOCATIONS, {"sha256s": list(sha256s)})
    return {sha256: location for sha256, location in rows}  # noqa: C416 (rows are no pairs to `dict`)


async def contents_at(connection: AsyncConnection, keys: Sequence[str]) -> dict[str, str]:
    """By key, the contents that lie at one of these."""
    rows = await connection.execute(statements.CONTENTS_AT, {"keys": list(keys)})
    return {location: sha256 for location, sha256 in rows}  # noqa: C416


async def named(connection: AsyncConnection, keys: Sequence[str]) -> set[str]:
    """Those of these keys that a row names, whatever for."""
    return set((await connection.execute(statements.NAMED, {"keys": list(keys)})).scalars())


async def kept(connection: AsyncConnection, keys: Sequence[str], but_of: str) -> set[str]:
    """Those that a content lies at, that are put away, or that are pieces of another whole than `but_of`."""
    found = await connection.execute(statements.KEPT, {"keys": list(keys), "but_of": but_of})
    return set(found.scalars())


async def uploads_of(connection: AsyncConnection, upload_ids: Sequence[str]) -> dict[str, str | None]:
    """Those uploads that are written down, each with what its multipart upload is called."""
    rows = await connection.execute(statements.UPLOADS_OF, {"upload_ids": list(upload_ids)})
    return {upload_id: word for upload_id, word in rows}  # noqa: C416


async def put_away(connection: AsyncConnection, put: PutAway) -> bool:
    """Whether no content lies there. Its own row comes first, and `relocate` takes that out last: whichever of the two is
    later sees what the other one did."""
    values = {"object_key": put.key, "name": put.name, "size": put.size, "created_at": put.created_at}
    await connection.execute(PUT_AWAY[connection.dialect.name], values)
    if (await connection.execute(statements.LOCK_CONTENT_AT, {"of_key": put.key})).first() is None:
        return True
    await take_out(connection, put.key)
    return False


async def all_put_away(connection: AsyncConnection, after: str, limit: int) -> list[PutAway]:
    """By key, after the key `after`."""
    return await _found(connection, statements.ALL_PUT_AWAY, after=after, most=limit)


async def copies(connection: AsyncConnection, sha256: str) -> list[PutAway]:
    """Those of a content, the last one first."""
    return await _found(connection, statements.COPIES, of_content=sha256)


async def take_out(connection: AsyncConnection, key: str) -> bool:
    """Whether it was put away."""
    return await changed(connection, statements.TAKE_OUT, of_key=key) > 0


async def _found(connection: AsyncConnection, query: Executable, **values: object) -> list[PutAway]:
    rows = (await connection.execute(query, values)).mappings()
    return [PutAway(row["object_key"], row["name"], row["size"], row["created_at"]) for row in rows]
