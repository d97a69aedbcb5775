"""Facts about this installation that do not belong into settings, and facts about the database server."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Insert, bindparam, delete, insert, select, text, update
from sqlalchemy.dialects.mysql import insert as mysql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from uploader.database import models
from uploader.database.connection import AsyncConnection
from uploader.database.engine import Database, Duplicate

Kept = TypeVar("Kept", bound=msgspec.Struct)
_GIVEN: dict[str, Any] = {"name": bindparam("of_name"), "value": bindparam("new_value")}
_NEW: dict[str, Any] = {"value": bindparam("new_value")}
_REPLACE: dict[str, Insert] = {
    "sqlite": sqlite_insert(models.meta).values(_GIVEN).on_conflict_do_update(index_elements=["name"], set_=_NEW),
    "mysql": mysql_insert(models.meta).values(_GIVEN).on_duplicate_key_update(**_NEW),
}
_VALUE = select(models.meta.c.value).where(models.meta.c.name == bindparam("of_name"))
# Days for which a mishap is reported: long enough for a person who looks once a week.
_TOLD_DAYS = 7


class Mishap(StrEnum):
    """A fault that the server has mended. A person should look for the cause. The value is the text for people."""

    ACCESS = "other accounts of this machine had access to what is kept here"
    DAMAGED_MARK = "the mark of the installation was damaged, and written anew"
    LOST_UPLOAD = "an open upload lost its files, and began anew"


async def note_mishap(connection: AsyncConnection, mishap: Mishap, now: datetime) -> None:
    """Let all processes report a mishap for a week."""
    await replace_fact(connection, mishap, now.isoformat())


async def recent_mishaps(connection: AsyncConnection, now: datetime) -> dict[Mishap, datetime]:
    """Return the mishaps of the last week, each with its last time."""
    query = select(models.meta.c.name, models.meta.c.value).where(models.meta.c.name.in_(list(Mishap)))
    noted = {Mishap(name): _moment(value, now) for name, value in await connection.execute(query)}
    since = now - timedelta(days=_TOLD_DAYS)
    return {mishap: at for mishap, at in noted.items() if at > since}


async def durability(connection: AsyncConnection) -> dict[str, str]:
    """Return the settings that make a commit survive a crash or not. Empty for SQLite: the engine sets SQLite's."""
    if connection.dialect.name == "sqlite":
        return {}
    names = ("innodb_flush_log_at_trx_commit", "sync_binlog", "log_bin")
    row = (await connection.execute(text(f"SELECT {', '.join(f'@@{name}' for name in names)}"))).one()
    return {name: str(value) for name, value in zip(names, row, strict=True)}


@dataclass(frozen=True, slots=True)
class DatabaseServer:
    """A MySQL or MariaDB server: the time of its clock, and the settings on which writes depend, as far as the server tells
    them."""

    now: datetime
    settings: Mapping[str, str]


async def look_at_server(connection: AsyncConnection) -> DatabaseServer | None:
    """Return None for SQLite, which has no server."""
    if connection.dialect.name == "sqlite":
        return None
    now: datetime = (await connection.execute(text("SELECT UTC_TIMESTAMP(6)"))).scalar_one()
    names = "'log_bin', 'binlog_format', 'innodb_doublewrite', 'version'"
    rows = await connection.execute(text(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})"))
    return DatabaseServer(now.replace(tzinfo=UTC), {str(name): str(value) for name, value in rows})


async def sqlite_pragmas(connection: AsyncConnection) -> dict[str, str]:
    """Return the pragmas of this SQLite connection that make a commit survive a crash or not. Empty for other databases."""
    if connection.dialect.name != "sqlite":
        return {}
    names = ("journal_mode", "synchronous")
    return {name: str((await connection.execute(text(f"PRAGMA {name}"))).scalar_one()) for name in names}


async def replace_fact(connection: AsyncConnection, name: str, value: str) -> None:
    await connection.execute(_REPLACE[connection.dialect.name], {"of_name": name, "new_value": value})


async def forget_fact(connection: AsyncConnection, name: str) -> None:
    await connection.execute(delete(models.meta).where(models.meta.c.name == name))


async def fact(connection: AsyncConnection, name: str) -> str | None:
    stored: str | None = (await connection.execute(_VALUE, {"of_name": name})).scalar()
    return stored


async def keep(connection: AsyncConnection, name: str, struct: msgspec.Struct) -> None:
    await replace_fact(connection, name, msgspec.json.encode(struct).decode())


async def kept(connection: AsyncConnection, name: str, kind: type[Kept]) -> Kept | None:
    """Return the struct that is stored under a name; None if there is none, or if its row is damaged."""
    with suppress(msgspec.MsgspecError):
        stored = await fact(connection, name)
        return None if stored is None else msgspec.json.decode(stored, type=kind)
    return None


# A margin for clocks that differ, and for changes in progress while the copy was made.
_HELD_MARGIN = timedelta(minutes=10)
_HELD = "restored copy"


@dataclass(frozen=True, slots=True)
class Held:
    """The time between a copy of the database and its restore. The copy names no contents of that time."""

    since: datetime
    until: datetime

    def holds(self, changed_at: float) -> bool:
        return (self.since - _HELD_MARGIN).timestamp() <= changed_at <= self.until.timestamp()


async def hold_contents(connection: AsyncConnection, held: Held) -> None:
    """Keep the bytes of that time, although no row names them, until somebody releases them."""
    await replace_fact(connection, _HELD, f"{held.since.isoformat()} {held.until.isoformat()}")


async def held_contents(connection: AsyncConnection) -> Held | None:
    """Return None if no bytes are held."""
    stored = await fact(connection, _HELD)
    if stored is None:
        return None
    since, _, until = stored.partition(" ")
    always = datetime.min.replace(tzinfo=UTC) + _HELD_MARGIN, datetime.max.replace(tzinfo=UTC)
    return Held(_moment(since, always[0]), _moment(until, always[1]))


async def release_contents(connection: AsyncConnection) -> None:
    await forget_fact(connection, _HELD)


async def moment(connection: AsyncConnection, name: str) -> datetime:
    """Return the moment that a fact holds; the earliest possible moment if there is no such fact."""
    return _moment(await fact(connection, name) or "", datetime.min.replace(tzinfo=UTC))


async def lease(connection: AsyncConnection, name: str, owner: str, *, now: datetime, until: datetime) -> bool:
    """Lease the work `name` to `owner` until a moment; return whether `owner` has the lease. Nobody gets a lease that
    another owner still holds. Raises Duplicate (from the engine) if two owners are the first at once."""
    stored: str | None = (await connection.execute(_VALUE.with_for_update(), {"of_name": name})).scalar()
    holder, _, ends_at = (stored or "").partition(" ")
    if holder not in ("", owner) and now < _moment(ends_at, now) <= until:
        return False
    value = f"{owner} {until.isoformat()}"
    if stored is None:
        await connection.execute(insert(models.meta).values(name=name, value=value))
    else:
        await connection.execute(update(models.meta).where(models.meta.c.name == name).values(value=value))
    return True


def _moment(text: str, fallback: datetime) -> datetime:
    """Parse a moment. Return `fallback` if that fails: a damaged row must hold up nobody."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return fallback


async def remember(database: Database, name: str, value: str) -> str:
    """Store a value unless the fact has one; return the stored value. Raises Unavailable."""
    try:
        return await database.transact(_store_unless_there, name, value)
    except Duplicate:  # another process was faster, and has stored a value
        return await database.transact(_store_unless_there, name, value)


async def _store_unless_there(connection: AsyncConnection, name: str, value: str) -> str:
    stored = await fact(connection, name)
    if stored is None:
        await connection.execute(insert(models.meta).values(name=name, value=value))
        return value
    return stored
