"""The snapshots of days: one row of `usage_daily` each."""

from dataclasses import fields
from datetime import date
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.database import models
from uploader.domain.reports import Day, Totals

_TOTALS_COLUMNS = [models.usage_daily.c[field.name] for field in fields(Totals)]
_DAY_COLUMNS = [models.usage_daily.c[name] for name in ("day", "taken_at", "free_disk_bytes")]


async def has_day(connection: AsyncConnection, day: date) -> bool:
    query = select(models.usage_daily.c.day).where(models.usage_daily.c.day == day)
    return (await connection.execute(query)).first() is not None


async def add_day(connection: AsyncConnection, day: Day) -> None:
    """Raises Duplicate (from the engine) if somebody else was faster."""
    figures = {field.name: getattr(day.totals, field.name) for field in fields(Totals)}
    values = {"day": day.day, "taken_at": day.taken_at, "free_disk_bytes": day.free_disk_bytes}
    await connection.execute(insert(models.usage_daily).values(**values, **figures))


async def days_since(connection: AsyncConnection, first: date) -> list[Day]:
    """The days from `first` on, in order. Those on which nobody looked are not there."""
    table = models.usage_daily.c
    query = select(*_DAY_COLUMNS, *_TOTALS_COLUMNS).where(table.day >= first).order_by(table.day)
    return [_day_of(row) for row in await connection.execute(query)]


async def newest_day_until(connection: AsyncConnection, last: date) -> Day | None:
    """The newest day that is not after `last`."""
    table = models.usage_daily.c
    query = select(*_DAY_COLUMNS, *_TOTALS_COLUMNS).where(table.day <= last).order_by(table.day.desc()).limit(1)
    row = (await connection.execute(query)).first()
    return None if row is None else _day_of(row)


def _day_of(row: Any) -> Day:
    day, taken_at, free_disk_bytes, *figures = row
    names = [field.name for field in fields(Totals)]
    return Day(
        day=day,
        taken_at=taken_at,
        free_disk_bytes=free_disk_bytes,
        totals=Totals(**dict(zip(names, figures, strict=True))),
    )
