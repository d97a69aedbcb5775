"""The types of connections and engines: SQLAlchemy's async classes.

Only the type checker needs the real classes. At run time the names are `Any`: the package with the classes also loads
SQLAlchemy's ORM, which takes a tenth of a start.
"""

from typing import TYPE_CHECKING, Any

__all__ = ["AsyncConnection", "AsyncEngine"]

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
else:
    AsyncConnection = AsyncEngine = Any
