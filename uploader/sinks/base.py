"""The interface of sinks: envelopes in, outcomes out."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import msgspec

from uploader.domain.events import Message

CONTENT_TYPE = "application/cloudevents+json"
DATA_CONTENT_TYPE = "application/json"
SPEC_VERSION = "1.0"


class _CloudEvent(msgspec.Struct):
    specversion: str
    id: str
    source: str
    type: str
    subject: str
    time: datetime
    datacontenttype: str
    data: msgspec.Raw


_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Envelope:
    message: Message
    source: str
    body: bytes


def envelope_of(message: Message, source: str) -> Envelope:
    """Return the envelope of an event. Its bytes are the same at each attempt."""
    about = (message.id, source, message.type, message.subject, message.created_at)
    return Envelope(
        message, source, _encode(_CloudEvent(SPEC_VERSION, *about, DATA_CONTENT_TYPE, msgspec.Raw(message.data)))
    )


@dataclass(frozen=True, slots=True)
class NotTaken:
    """A delivery that failed. `answered`: the sink is up, but refused this event. `gone`: the sink wants no more
    events."""

    error: str
    answered: bool = False
    gone: bool = False


def not_taken(error: BaseException) -> NotTaken:
    return NotTaken(f"{type(error).__name__}: {error}")


# The outcome for each event of a batch, in order; None: taken.
Outcomes = list[NotTaken | None]


class EventSink(Protocol):
    """A destination of events."""

    batch: int

    async def deliver(self, envelopes: Sequence[Envelope]) -> Outcomes:
        """Deliver events, and return the outcome of each. Raises nothing."""

    async def close(self) -> None:
        """Release the connections and other resources."""
