"""Sinks that said that they want no more events (410): a fact for each, until somebody puts it in force again."""

from datetime import datetime

from uploader.database import meta
from uploader.database.engine import Connection

# Of its name in `meta`, which holds 64 bytes; the name of a sink has at most 48.
_PREFIX = "sink off "


async def is_off(connection: Connection, sink: str) -> bool:
    return await meta.fact(connection, f"{_PREFIX}{sink}") is not None


async def switch_off(connection: Connection, sink: str, now: datetime) -> None:
    await meta.replace_fact(connection, f"{_PREFIX}{sink}", now.isoformat())


async def switch_on(connection: Connection, sink: str) -> None:
    await meta.forget_fact(connection, f"{_PREFIX}{sink}")
