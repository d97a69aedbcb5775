"""The seam of sinks: what each is given, and what it says of it."""

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
    """Return the same bytes at each attempt."""
    about = (message.id, source, message.type, message.subject, message.created_at)
    return Envelope(
        message, source, _encode(_CloudEvent(SPEC_VERSION, *about, DATA_CONTENT_TYPE, msgspec.Raw(message.data)))
    )


@dataclass(frozen=True, slots=True)
class NotTaken:
    """`answered`: the sink is there, and did not want this event. `gone`: it wants no more of them, ever."""

    error: str
    answered: bool = False
    gone: bool = False


def not_taken(error: BaseException) -> NotTaken:
    return NotTaken(f"{type(error).__name__}: {error}")


# What became of each event of a batch, in their order; None: it was taken.
Outcomes = list[NotTaken | None]


class EventSink(Protocol):
    """Somebody who is told of events."""

    batch: int

    async def deliver(self, envelopes: Sequence[Envelope]) -> Outcomes:
        """Tell it; of each event whether it has taken it. Raises nothing of its own."""

    async def close(self) -> None:
        """Give back what it holds."""
