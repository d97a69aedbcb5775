"""Users, their quotas and their tokens: the rows that administrators make."""

from datetime import datetime

from sqlalchemy import insert, update
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.database import models, queries
from uploader.database.transactions.rows import changed


async def create_user(connection: AsyncConnection, user_id: str, total_space: int) -> None:
    """Raises Duplicate (from the engine) if the user is there."""
    await connection.execute(insert(models.user_info).values(user_id=user_id, total_space=total_space))


async def set_total_space(connection: AsyncConnection, user_id: str, total_space: int) -> bool:
    """Whether there is such a user. What is used already stays, even above the new total."""
    change = update(models.user_info).where(models.user_info.c.user_id == user_id).values(total_space=total_space)
    return await changed(connection, change) == 1


async def create_token(connection: AsyncConnection, token: queries.Token) -> None:
    values = {name: getattr(token, name) for name in queries.Token.__dataclass_fields__}
    await connection.execute(insert(models.token).values(**values))


async def revoke_token(connection: AsyncConnection, token_sha256: str, now: datetime) -> bool:
    """Whether there was such a token in force."""
    table = models.token.c
    revoke = update(models.token).where(table.token_sha256 == token_sha256, table.revoked_at.is_(None))
    return await changed(connection, revoke.values(revoked_at=now)) == 1
