"""What transactions tell, and what was told of it to whom."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select

from tests.support.rows import NOW
from uploader.database import models
from uploader.database.engine import Connection, Database
from uploader.database.outbox import Outbox
from uploader.domain.events import EventType
from uploader.service.ids import new_id


@dataclass(frozen=True)
class Written:
    """An event as it lies in the outbox, and whom it is for."""

    type: str
    subject: str
    user_id: str
    data: dict[str, Any]
    sinks: frozenset[str]


@dataclass
class Woken:
    """Counts who was woken."""

    times: int = 0

    async def __call__(self, _told: object) -> None:
        self.times += 1


def outbox_of(sinks: dict[str, tuple[EventType, ...]], wake: Woken | None = None, now: datetime = NOW) -> Outbox:
    """For sinks by their names, and what they are told of."""
    return Outbox(
        lambda kind: tuple(name for name, types in sinks.items() if kind in types), new_id, lambda: now, wake or Woken()
    )


async def written(database: Database) -> list[Written]:
    """All events, in their order."""

    async def read(connection: Connection) -> list[Written]:
        deliveries = (await connection.execute(select(models.delivery.c.outbox_id, models.delivery.c.sink))).all()
        rows = list((await connection.execute(select(models.outbox).order_by(models.outbox.c.id))).mappings())
        assert {event_id for event_id, _ in deliveries} == {row["id"] for row in rows}
        return [
            Written(
                *(row["type"], row["subject"], row["user_id"], json.loads(row["data"])),
                frozenset(sink for event_id, sink in deliveries if event_id == row["id"]),
            )
            for row in rows
        ]

    return await database.read(read, snapshot=True)
