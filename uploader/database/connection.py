"""The types of what transactions are given, as SQLAlchemy has them for drivers that wait on the event loop.

To those who run they are words: the package that has them loads SQLAlchemy's ORM, too, which takes a tenth of a start.
"""

from typing import TYPE_CHECKING, Any

__all__ = ["AsyncConnection", "AsyncEngine"]

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
else:
    AsyncConnection = AsyncEngine = Any
