"""Users, their quotas and their tokens: the rows that administrators make."""

from datetime import datetime

from sqlalchemy import insert, update

from uploader.database import models, queries
from uploader.database.audit_log import note
from uploader.database.connection import AsyncConnection
from uploader.database.transactions.rows import changed
from uploader.domain.audit_log import Act


async def create_user(connection: AsyncConnection, user_id: str, total_space: int, act: Act | None = None) -> None:
    """Raises Duplicate (from the engine) if the user is there."""
    await connection.execute(insert(models.user_info).values(user_id=user_id, total_space=total_space))
    await note(connection, act, total_space=total_space)


async def set_total_space(connection: AsyncConnection, user_id: str, total_space: int, act: Act | None = None) -> bool:
    """Return whether there is such a user. What is used already stays, even above the new total."""
    before = await queries.usage(connection, user_id, lock=True)
    if before is None:
        return False
    if before.total_space != total_space:
        change = update(models.user_info).where(models.user_info.c.user_id == user_id).values(total_space=total_space)
        await connection.execute(change)
        await note(connection, act, **{"from": before.total_space, "to": total_space})
    return True


async def create_token(connection: AsyncConnection, token: queries.Token, act: Act | None = None) -> None:
    values = {name: getattr(token, name) for name in queries.Token.__dataclass_fields__}
    await connection.execute(insert(models.token).values(**values))
    scope = {} if token.scope is None else {"scope": token.scope}
    await note(connection, act, admin=token.admin, **scope)


async def revoke_token(connection: AsyncConnection, token_sha256: str, now: datetime, act: Act | None = None) -> bool:
    """Return whether there was such a token in force."""
    table = models.token.c
    revoke = update(models.token).where(table.token_sha256 == token_sha256, table.revoked_at.is_(None))
    revoked = await changed(connection, revoke.values(revoked_at=now)) == 1
    if revoked:
        await note(connection, act)
    return revoked
