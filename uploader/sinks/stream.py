"""Sinks that store events: a Redis stream, whose readers acknowledge to Redis, and a Kafka topic."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from importlib.util import find_spec
from typing import Any

from redis.exceptions import RedisError

from uploader.errors import ConfigurationError
from uploader.sinks.base import DATA_CONTENT_TYPE, SPEC_VERSION, Envelope, NotTaken, Outcomes, not_taken

_AT_ONCE = 500


@dataclass(eq=False, repr=False)
class StreamSink:
    """A Redis stream, trimmed to about `maxlen` entries."""

    batch = _AT_ONCE

    # `owns`: close the connections together with the sink.
    redis: Any
    stream: str
    maxlen: int
    _: KW_ONLY
    owns: bool

    async def deliver(self, envelopes: Sequence[Envelope]) -> Outcomes:
        # No transaction, because a part of the events is better than none.
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


logger = logging.getLogger(__name__)

_KAFKA_AT_ONCE = 1000
_TIMEOUT_SECONDS = 15.0
# Options for the promised delivery, which override the configured options.
_PROMISED = {"enable.idempotence": True, "acks": "all", "delivery.timeout.ms": round(_TIMEOUT_SECONDS * 1000)}


class KafkaSink:
    """A Kafka topic: CloudEvents in binary mode, with the user as the key, so that all events of a user are in one
    partition. https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/kafka-protocol-binding.md

    The producer waits for its broker in a thread of its own. It is created for the first delivery, because it has
    threads and connections, and most processes and commands deliver nothing.
    """

    batch = _KAFKA_AT_ONCE

    def __init__(self, topic: str, options: Mapping[str, Any]) -> None:
        """Raises ConfigurationError."""
        if find_spec("confluent_kafka") is None:
            raise ConfigurationError(
                "UPLOADER_EVENTS: a sink of type kafka needs confluent-kafka: pip install confluent-kafka"
            )
        self._topic = topic
        self._options = {**options, **_PROMISED}
        self._producer: Any = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="telling Kafka")

    async def deliver(self, envelopes: Sequence[Envelope]) -> Outcomes:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._deliver, envelopes)

    def _deliver(self, envelopes: Sequence[Envelope]) -> Outcomes:
        from confluent_kafka import KafkaError, KafkaException, Producer

        outcomes: Outcomes = [NotTaken(f"no answer within {_TIMEOUT_SECONDS:g} s")] * len(envelopes)
        fatal: list[object] = []

        def note(place: int, error: Any) -> None:
            outcomes[place] = None if error is None else NotTaken(str(error))
            if error is not None and (error.fatal() or error.code() == KafkaError._FATAL):
                fatal.append(error)

        try:
            producer: Any = self._producer or Producer(dict(self._options), logger=logger)
        except (KafkaException, ValueError, TypeError) as error:  # wrong options
            return [not_taken(error)] * len(envelopes)
        self._producer = producer
        for place, envelope in enumerate(envelopes):
            message = envelope.message
            try:
                producer.produce(
                    self._topic,
                    value=message.data,
                    key=message.user_id,
                    headers=_headers(envelope),
                    timestamp=round(message.created_at.timestamp() * 1000),
                    on_delivery=lambda error, _, place=place: note(place, error),
                )
            except KafkaException as error:
                note(place, error.args[0])
            except (BufferError, RuntimeError) as error:  # the producer's queue is full, or the producer is broken
                outcomes[place] = not_taken(error)
        producer.flush(_TIMEOUT_SECONDS + 1)
        if fatal:  # the producer takes no more events
            logger.error(
                "the producer of Kafka failed; the next attempt makes a new one", extra={"reason": str(fatal[0])}
            )
            self._producer = None
        return list(outcomes)

    async def close(self) -> None:
        self._thread.shutdown(wait=False)


def _headers(envelope: Envelope) -> list[tuple[str, bytes]]:
    message = envelope.message
    about = {
        "specversion": SPEC_VERSION,
        "id": message.id,
        "source": envelope.source,
        "type": message.type,
        "subject": message.subject,
        "time": message.created_at.isoformat().replace("+00:00", "Z"),
    }
    return [(f"ce_{name}", value.encode()) for name, value in about.items()] + [
        ("content-type", DATA_CONTENT_TYPE.encode())
    ]
