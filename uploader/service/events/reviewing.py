"""Events by hand: what was told to whom, telling it once more, and trying a sink."""

from collections.abc import Mapping
from datetime import datetime
from functools import partial

import msgspec

from uploader.clock import Clock
from uploader.database.engine import Connection, Database
from uploader.database.events import deliveries
from uploader.database.events.deliveries import Delivery
from uploader.database.trail.acts import note
from uploader.domain.events import Message
from uploader.domain.trail.acts import Action
from uploader.errors import NotFound
from uploader.service.events import switching
from uploader.service.events.relaying import Relay
from uploader.service.ids import new_id
from uploader.service.trail.acting import act, actor

__all__ = ["TEST_TYPE", "Delivery", "Message", "Reviewing", "Told"]

# An event, and who was told of it.
Told = tuple[Message, list[Delivery]]

# Of what tries a sink; none of the types that anything is about.
TEST_TYPE = "test"
_AT_ONCE = 1000


class Reviewing:
    """Asks the rows, and the sinks."""

    def __init__(self, relays: Mapping[str, Relay], database: Database, clock: Clock) -> None:
        self._relays = relays
        self._database = database
        self._clock = clock

    async def newest(self, *, limit: int, since: datetime | None, dead: bool) -> list[Told]:
        """The newest events first, and who was told of each. Raises Unavailable."""
        return await self._database.read(partial(deliveries.newest, limit=limit, since=since, dead=dead))

    async def one(self, event_id: str) -> Told:
        """Raises NotFound, Unavailable."""
        found = await self._database.read(partial(deliveries.one, event_id=event_id))
        if found is None:
            raise NotFound(f"There is no event {event_id}: events are kept for a week.")
        return found

    async def replay(self, *, sink: str | None, event_id: str | None, since: datetime | None, dead: bool) -> int:
        """Let all be told once more that fits, to a sink or to all there are; how many deliveries. Raises NotFound,
        Unavailable."""
        sinks = list(self._relays) if sink is None else [self._relay(sink).name]
        if event_id is not None:
            await self.one(event_id)
        now, by = self._clock.now(), actor()
        again = partial(deliveries.renew, now=now, sinks=sinks, event_id=event_id, since=since, dead=dead)

        async def renew(connection: Connection, limit: int | None = None) -> int:
            renewed = await again(connection, limit=limit)
            if renewed:
                await note(
                    connection, act(Action.EVENTS_REPLAYED, now, subject=sink or "all sinks", by=by), deliveries=renewed
                )
            return renewed

        if not dead:
            return await self._database.transact(renew)
        # What is dead may be very much, and others write meanwhile.
        count = 0
        while renewed := await self._database.transact(partial(renew, limit=_AT_ONCE)):
            count += renewed
        return count

    async def test(self, sink: str) -> str | None:
        """Tell a sink of an event that is about nothing; why it has not taken it. If it has, it is in force again, should it
        have said that it wants no more. Raises NotFound, Unavailable."""
        relay = self._relay(sink)
        event_id = new_id()
        data = msgspec.json.encode({"sink": sink})
        message = Message(event_id, TEST_TYPE, event_id, "", self._clock.now(), data)
        refusal = await relay.tell_once(message)
        if refusal is not None:
            return refusal.error

        told = act(Action.SINK_ENABLED, self._clock.now(), subject=sink)

        async def put_in_force(connection: Connection) -> None:
            if await switching.is_off(connection, sink):
                await switching.switch_on(connection, sink)
                await note(connection, told)

        await self._database.transact(put_in_force)
        return None

    def _relay(self, sink: str) -> Relay:
        relay = self._relays.get(sink)
        if relay is None:
            raise NotFound(f"UPLOADER_EVENTS has no sink {sink}; it has: {', '.join(self._relays) or 'none'}")
        return relay
