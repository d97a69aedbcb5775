"""Transactions on users, their quotas and their tokens, as administrators make them."""

from datetime import datetime

from sqlalchemy import insert, update

from uploader.database import models, queries, rights
from uploader.database.audit_log import note
from uploader.database.connection import AsyncConnection
from uploader.database.transactions.rows import changed
from uploader.domain.audit_log import Act

_TOKENS, _USERS = models.token.c, models.user_info.c


async def create_user(connection: AsyncConnection, user_id: str, total_space: int, act: Act | None = None) -> None:
    """Raises Duplicate (from the engine) if the user exists."""
    await connection.execute(insert(models.user_info).values(user_id=user_id, total_space=total_space))
    await note(connection, act, total_space=total_space)


async def set_total_space(connection: AsyncConnection, user_id: str, total_space: int, act: Act | None = None) -> bool:
    """Return whether the user exists. Files stay, even if they take more than the new total."""
    before = await queries.usage(connection, user_id, lock=True)
    if before is None:
        return False
    if before.total_space != total_space:
        change = update(models.user_info).where(_USERS.user_id == user_id).values(total_space=total_space)
        await connection.execute(change)
        await note(connection, act, **{"from": before.total_space, "to": total_space})
    return True


async def set_admin(
    connection: AsyncConnection, user_id: str, admin: bool, *, keeps_one: bool, act: Act | None = None
) -> None:
    """Make a user an administrator, or take that right away. `keeps_one`: raises LastAdministrator if no other administrator
    could sign in."""
    if keeps_one and not admin and await rights.is_admin(connection, user_id):
        await rights.keep_one(connection, _TOKENS.user_id != user_id)
    await rights.check(connection)  # now, because the user may be the caller
    if await rights.set_admin(connection, user_id, admin):
        await note(connection, act, admin=admin)


async def claim_admin(connection: AsyncConnection, user_id: str, act: Act | None = None) -> bool:
    """Make a user an administrator, as the user's authentication claims, unless somebody has decided about the user before.
    Return whether the user is an administrator."""
    before = await rights.is_admin(connection, user_id, lock=True)
    if before is None and await rights.set_admin(connection, user_id, admin=True):
        await note(connection, act, admin=True)
    return before is not False


async def create_token(connection: AsyncConnection, token: queries.Token, act: Act | None = None) -> None:
    """Put a token into force. An administrator's token makes its user an administrator."""
    values = {name: getattr(token, name) for name in queries.Token.__dataclass_fields__}
    if token.admin:
        await rights.set_admin(connection, token.user_id, admin=True)
    await connection.execute(insert(models.token).values(**values))
    scope = {} if token.scope is None else {"scope": token.scope}
    await note(connection, act, admin=token.admin, **scope)


async def revoke_token(
    connection: AsyncConnection, token_sha256: str, now: datetime, *, keeps_one: bool = False, act: Act | None = None
) -> bool:
    """Return whether the token was in force. `keeps_one`: raises LastAdministrator if no administrator could sign in without
    the token."""
    if keeps_one and (await rights.tokens_in_force(connection, [token_sha256])).get(token_sha256):
        await rights.keep_one(connection, _TOKENS.token_sha256 != token_sha256)
    revoke = update(models.token).where(_TOKENS.token_sha256 == token_sha256, _TOKENS.revoked_at.is_(None))
    revoked = await changed(connection, revoke.values(revoked_at=now)) == 1
    if revoked:
        rights.note_revocation(connection)
        await note(connection, act)
    return revoked
