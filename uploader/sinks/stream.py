"""A stream of Redis: whoever reads it does so in its own time, and acknowledges to Redis."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from redis.exceptions import RedisError

from uploader.sinks.base import Envelope, NotTaken, Outcomes, not_taken

_AT_ONCE = 500


@dataclass(eq=False, repr=False)
class StreamSink:
    """One stream, trimmed to about as many entries as it may hold."""

    batch = _AT_ONCE

    # `owns`: the connections are closed with it.
    redis: Any
    stream: str
    maxlen: int
    _: KW_ONLY
    owns: bool

    async def deliver(self, envelopes: Sequence[Envelope]) -> Outcomes:
        # No transaction: some of them taken is better than none.
        adding = self.redis.pipeline(transaction=False)
        for envelope in envelopes:
            entry = {"id": envelope.message.id, "type": envelope.message.type, "event": envelope.body}
            adding.xadd(self.stream, entry, maxlen=self.maxlen, approximate=True)
        try:
            answers = await adding.execute(raise_on_error=False)
        except (RedisError, OSError, TimeoutError) as error:
            return [not_taken(error)] * len(envelopes)
        return [NotTaken(str(answer)) if isinstance(answer, Exception) else None for answer in answers]

    async def close(self) -> None:
        if self.owns:
            await self.redis.aclose()
