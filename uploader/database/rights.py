"""The rights of callers, as their rows have them, and the counter of revocations.

Each revocation adds one to a row of `meta`, as the last statement of its transaction. The lock of that row is the last lock,
so a reader of the number sees all revocations up to the number. A transaction that acts on rights reads the rows of its
caller under a lock, so a committed revocation is never overlooked. How a caller proves an identity is not known here.
"""

from collections.abc import Awaitable, Callable, Collection
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects.mysql import insert as mysql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from uploader.database import models
from uploader.database.connection import AsyncConnection
from uploader.errors import Forbidden, LastAdministrator, Unauthenticated, UploaderError

T = TypeVar("T")

# Keys of a connection's `info`: the transaction takes rights away; the authority by which the transaction acts, until this
# is checked.
_REVOKES, _ACTS_FOR = "revokes", "acts for"
_USERS, _TOKENS, _META = models.user_info.c, models.token.c, models.meta.c
_COUNTER = "revocations"
_FIRST = {"name": _COUNTER, "value": "1"}
_COUNT: dict[str, sa.Insert] = {
    "sqlite": sqlite_insert(models.meta).on_conflict_do_update(
        index_elements=["name"], set_={"value": sa.literal_column("CAST(CAST(meta.value AS INTEGER) + 1 AS BLOB)")}
    ),
    "mysql": mysql_insert(models.meta).on_duplicate_key_update(
        value=sa.literal_column("CAST(CAST(meta.value AS UNSIGNED) + 1 AS BINARY)")
    ),
}
_NUMBER = sa.select(_META.value).where(_META.name == sa.bindparam("of_name"))
# Shared locks: many transactions of one token run at once, and a revocation waits for them.
_TOKEN = sa.select(_TOKENS.revoked_at, _TOKENS.admin).where(_TOKENS.token_sha256 == sa.bindparam("of_token"))
_LOCKED_TOKEN = _TOKEN.with_for_update(read=True)
_ADMIN = sa.select(_USERS.admin).where(_USERS.user_id == sa.bindparam("of_user"))
_KEPT_ADMIN, _LOCKED_ADMIN = _ADMIN.with_for_update(read=True), _ADMIN.with_for_update()
_ADMINISTRATORS = sa.select(_USERS.user_id).where(_USERS.admin == sa.true())
_IN_FORCE = (_USERS.admin == sa.true(), _TOKENS.admin == sa.true(), _TOKENS.revoked_at.is_(None))
_SIGN_IN = sa.select(_TOKENS.token_sha256).join(models.user_info, _USERS.user_id == _TOKENS.user_id).where(*_IN_FORCE)


@dataclass(frozen=True, slots=True)
class Authority:
    """The right by which a caller acts: as an administrator or not, and by which token, if the token is in the database."""

    user_id: str
    token_sha256: str | None
    is_admin: bool


# The authority of the current request, if the request acts on rights.
authority_of_context: ContextVar[Authority | None] = ContextVar("authority", default=None)


async def whole_transaction(
    connection: AsyncConnection, authority: Authority | None, work: Callable[[], Awaitable[T]]
) -> T:
    """Run `work`, check the authority, and count the revocations that `work` has noted. Raises the errors of `work`, and as
    `check`: a caller without a right hears of no other error."""
    info = connection.info
    before = {name: info.get(name) for name in (_REVOKES, _ACTS_FOR)}  # of the surrounding transaction, if there is one
    info.update({_REVOKES: False, _ACTS_FOR: authority})
    try:
        try:
            result = await work()
        except UploaderError:
            await check(connection)
            raise
        await check(connection)
        if info[_REVOKES]:
            await connection.execute(_COUNT[connection.dialect.name], _FIRST)
        return result
    finally:
        info.update(before)


async def check(connection: AsyncConnection) -> None:
    """Read the rows of the caller, once in a transaction, and lock them against changes: at the end of the transaction, or
    before the transaction changes one of these rows. Raises Unauthenticated, Forbidden."""
    authority: Authority | None = connection.info.get(_ACTS_FOR)
    if authority is None:
        return
    connection.info[_ACTS_FOR] = None
    if authority.token_sha256 is not None:
        token = (await connection.execute(_LOCKED_TOKEN, {"of_token": authority.token_sha256})).first()
        if token is None or token[0] is not None:
            raise Unauthenticated()
        if authority.is_admin and not token[1]:
            raise Forbidden()
    if authority.is_admin and not (await connection.execute(_KEPT_ADMIN, {"of_user": authority.user_id})).scalar():
        raise Forbidden()


def note_revocation(connection: AsyncConnection) -> None:
    """Count this transaction as a revocation, at its end."""
    connection.info[_REVOKES] = True


async def number(connection: AsyncConnection) -> str | None:
    """Return a word that each revocation changes."""
    stored: str | None = (await connection.execute(_NUMBER, {"of_name": _COUNTER})).scalar()
    return stored


# Administrators


async def is_admin(connection: AsyncConnection, user_id: str, *, lock: bool = False) -> bool | None:
    """Return None if nobody has decided about the user, or there is no such user."""
    stored: Any = (await connection.execute(_LOCKED_ADMIN if lock else _ADMIN, {"of_user": user_id})).scalar()
    return None if stored is None else bool(stored)


async def administrators(connection: AsyncConnection, user_ids: Collection[str]) -> set[str]:
    return set((await connection.execute(_ADMINISTRATORS.where(_USERS.user_id.in_(user_ids)))).scalars())


async def tokens_in_force(connection: AsyncConnection, hashes: Collection[str]) -> dict[str, bool]:
    """Return the tokens in force among some tokens, and whether each gives the right of an administrator."""
    query = sa.select(_TOKENS.token_sha256, _TOKENS.admin, _USERS.admin).outerjoin_from(
        models.token, models.user_info, _USERS.user_id == _TOKENS.user_id
    )
    query = query.where(_TOKENS.token_sha256.in_(hashes), _TOKENS.revoked_at.is_(None))
    return {
        token_sha256: bool(of_token and of_user) for token_sha256, of_token, of_user in await connection.execute(query)
    }


async def set_admin(connection: AsyncConnection, user_id: str, admin: bool) -> bool:
    """Make a user an administrator, or take that right away. Return False if the row said the same before."""
    before = await is_admin(connection, user_id, lock=True)
    if before is admin:
        return False
    await connection.execute(sa.update(models.user_info).where(_USERS.user_id == user_id).values(admin=admin))
    if before is not None:  # processes may have cached tokens of this user
        note_revocation(connection)
    return True


async def keep_one(connection: AsyncConnection, *conditions: sa.ColumnElement[bool]) -> None:
    """Raises LastAdministrator unless an administrator's token that meets the conditions is in force. Each transaction that
    takes an administrator's right away locks the rows of all administrators first, so no two of them rely on each other's
    administrator."""
    found = sorted((await connection.execute(_ADMINISTRATORS)).scalars())
    lock = _ADMINISTRATORS.where(_USERS.user_id.in_(found)).order_by(_USERS.user_id).with_for_update()
    await connection.execute(lock)
    if (await connection.execute(_SIGN_IN.where(*conditions).limit(1))).first() is None:
        raise LastAdministrator()
