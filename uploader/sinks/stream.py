"""A stream of Redis: whoever reads it does so in its own time, and acknowledges to Redis."""

from collections.abc import Sequence
from typing import Any

from redis.exceptions import RedisError

from uploader.sinks.base import Envelope, NotTaken, Outcomes, not_taken

_AT_ONCE = 500


class StreamSink:
    """One stream, trimmed to about as many entries as it may hold."""

    batch = _AT_ONCE

    def __init__(self, redis: Any, stream: str, maxlen: int, *, owns: bool) -> None:
        """`owns`: the connections are closed with it."""
        self._redis = redis
        self._stream = stream
        self._maxlen = maxlen
        self._owns = owns

    async def deliver(self, envelopes: Sequence[Envelope]) -> Outcomes:
        # No transaction: some of them taken is better than none.
        adding = self._redis.pipeline(transaction=False)
        for envelope in envelopes:
            entry = {"id": envelope.message.id, "type": envelope.message.type, "event": envelope.body}
            adding.xadd(self._stream, entry, maxlen=self._maxlen, approximate=True)
        try:
            answers = await adding.execute(raise_on_error=False)
        except (RedisError, OSError, TimeoutError) as error:
            return [not_taken(error)] * len(envelopes)
        return [NotTaken(str(answer)) if isinstance(answer, Exception) else None for answer in answers]

    async def close(self) -> None:
        if self._owns:
            await self._redis.aclose()
