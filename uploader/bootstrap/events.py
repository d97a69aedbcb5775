"""The file of `UPLOADER_EVENTS` → who writes events, who tells whom, and who wakes them."""

import asyncio
from collections.abc import Callable

from uploader.accounting.connection import connect
from uploader.accounting.scripting import RedisConnection
from uploader.clock import Clock
from uploader.database.engine import Database
from uploader.database.events.outbox import Outbox
from uploader.service.events.asking import TIMEOUT_SECONDS, Asking
from uploader.service.events.relaying import Relay
from uploader.service.ids import new_id
from uploader.sinks.base import EventSink
from uploader.sinks.configuration import EventSettings, KafkaSettings, SinkSettings, StreamSettings, WebhookSettings
from uploader.sinks.kafka import KafkaSink
from uploader.sinks.stream import StreamSink
from uploader.sinks.webhook import SignedPost, WebhookSink


def create_asking(settings: EventSettings, clock: Clock) -> Asking:
    """Connects to nothing yet."""
    asked = settings.pre_create
    if asked is None:
        return Asking(None, allows_on_failure=True)
    post = SignedPost(asked.to, clock, timeout_seconds=TIMEOUT_SECONDS)
    return Asking(post, allows_on_failure=asked.allows_on_failure, timeout_seconds=TIMEOUT_SECONDS)


class Bells:
    """An event for each sink, which ends the sleep of its relay in this process."""

    def __init__(self, settings: EventSettings) -> None:
        self.of_sink = {name: asyncio.Event() for name in settings.sinks}

    def ring(self) -> None:
        for bell in self.of_sink.values():
            bell.set()


def create_outbox(settings: EventSettings, clock: Clock, bells: Bells) -> Outbox | None:
    """None if nobody is told of anything."""
    return Outbox(settings.sinks_of, new_id, clock.now, bells.ring) if settings.sinks else None


def create_relays(
    settings: EventSettings, database: Database, redis: RedisConnection, clock: Clock, source: Callable[[], str]
) -> list[Relay]:
    """Connects to nothing yet."""
    return [
        Relay(name, _create_sink(sink, redis, clock), database, clock, source) for name, sink in settings.sinks.items()
    ]


def _create_sink(sink: SinkSettings, redis: RedisConnection, clock: Clock) -> EventSink:
    match sink:
        case WebhookSettings():
            return WebhookSink(sink.to, clock)
        case StreamSettings():
            client = redis if sink.url is None else connect(sink.url)
            return StreamSink(client, sink.stream, sink.maxlen, owns=sink.url is not None)
        case KafkaSettings():
            return KafkaSink(sink.topic, sink.options)
