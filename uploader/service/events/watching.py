"""How far the sinks are: for who looks at the whole, and for what goes by age."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Literal

from msgspec import Struct

from uploader.clock import Clock
from uploader.database.engine import Connection, Database
from uploader.database.events import deliveries
from uploader.database.events.deliveries import SinkState
from uploader.service.events import switching

# For so long events are kept, told or not.
RETENTION = timedelta(days=7)
# Later than this is worth a warning.
_LATE_SECONDS = 300.0
_NOTHING = SinkState()

# Of a sink: it is told; it has waited for long; it said that it wants no more; nobody in the settings has its name.
Condition = Literal["in-force", "late", "off", "unnamed"]


class SinkFigures(Struct):
    """How far a sink is: what waits and what is dead, of which 10,000 stand for more, and how old the oldest is that waits.
    `last_error`: why it has not taken one of them."""

    sink: str
    condition: Condition
    waiting: int
    dead: int
    lag_seconds: float
    last_error: str | None


class Watching:
    """Asks the rows, of the sinks there are."""

    def __init__(self, names: Sequence[str], database: Database, clock: Clock) -> None:
        self.names = tuple(names)
        self._database = database
        self._clock = clock

    async def states(self) -> Mapping[str, SinkState]:
        """Of each sink. Raises Unavailable."""
        if not self.names:
            return {}
        found = await self._database.read(deliveries.states)
        return {name: found.get(name, _NOTHING) for name in self.names}

    def lag_seconds(self, state: SinkState) -> float:
        """How old the oldest event is that waits."""
        return 0.0 if state.oldest is None else max(0.0, (self._clock.now() - state.oldest).total_seconds())

    async def sinks(self) -> list[SinkFigures]:
        """Of each sink, in the order of the settings, then of each name that is no sink any more and has deliveries which
        have not ended well. Raises Unavailable."""

        async def look(connection: Connection) -> list[SinkFigures]:
            found = await deliveries.states(connection)
            names = [*self.names, *sorted(set(found) - set(self.names))]
            return [await self._figures(connection, name, found.get(name, _NOTHING)) for name in names]

        return await self._database.read(look)

    async def _figures(self, connection: Connection, name: str, state: SinkState) -> SinkFigures:
        lag = self.lag_seconds(state)
        condition: Condition = "late" if lag > _LATE_SECONDS else "in-force"
        if name not in self.names:
            condition = "unnamed"
        elif await switching.is_off(connection, name):
            condition = "off"
        error = await deliveries.last_error(connection, name) if state.waiting or state.dead else None
        return SinkFigures(name, condition, state.waiting, state.dead, lag, error)

    async def warning(self) -> str | None:
        """What somebody should look at. Raises Unavailable."""
        return "; ".join(said for each in await self.sinks() for said in _said_of(each)) or None

    async def forget_old(self, limit: int) -> tuple[int, int]:
        """Forget events that are old; how many, and how many deliveries of them nobody had taken. Raises Unavailable."""
        before = self._clock.now() - RETENTION
        return await self._database.transact(partial(deliveries.forget, before=before, limit=limit))


def _said_of(sink: SinkFigures) -> Iterator[str]:
    match sink.condition:
        case "unnamed" if sink.waiting:
            yield f"{sink.waiting} wait for {sink.sink}, which UPLOADER_EVENTS does not name"
        case "off":
            yield f"{sink.sink} said that it wants no more"
        case "late":
            yield f"{sink.sink} is {sink.lag_seconds:.0f} s late"
    if sink.dead and sink.condition != "unnamed":
        yield f"{sink.sink} has not taken {sink.dead}, which are dead"
