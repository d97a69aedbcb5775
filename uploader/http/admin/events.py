"""The handlers of the sinks of events, for administrators."""

import logging
from dataclasses import dataclass

from msgspec import UNSET
from starlette.responses import Response

from uploader.clock import Clock
from uploader.http.admin import schemas as wire
from uploader.http.shared.operation import Call
from uploader.http.shared.responses import Json
from uploader.service.events import Reviewing, Watching

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EventHandlers:
    """How far the sinks are, and telling them once more of what is dead."""

    watching: Watching
    reviewing: Reviewing
    clock: Clock

    async def sinks(self, _call: Call) -> Response:
        as_of = self.clock.now()
        return Json(wire.SinkList(await self.watching.sinks(), as_of))

    async def replay(self, call: Call) -> Response:
        body = await call.json(wire.Replay, optional=True)
        sink = None if body.sink is UNSET else body.sink
        count = await self.reviewing.replay(sink=sink, event_id=None, since=None, dead=True)
        logger.info("dead events are told once more", extra={"sink": sink, "deliveries": count})
        return Json(wire.Replayed(count))
