"""Webhooks, signed as Standard Webhooks has them: to addresses of the settings and nowhere else, with TLS verified."""

import asyncio
from collections.abc import Sequence
from http import HTTPStatus

from uploader.clock import Clock
from uploader.sinks.base import CONTENT_TYPE, Envelope, NotTaken, Outcomes, not_taken
from uploader.sinks.configuration import Signed
from uploader.sinks.post import Answer, NoAnswer, Poster
from uploader.sinks.signing import signed_headers

_TIMEOUT_SECONDS = 15.0
_AT_ONCE = 64
_SHOWN_CHARACTERS = 200


class SignedPost:
    """One address, and what it is signed with."""

    def __init__(self, to: Signed, clock: Clock, *, timeout_seconds: float) -> None:
        self._secrets = to.secrets
        self._clock = clock
        self._poster = Poster(to.url, timeout_seconds=timeout_seconds)

    async def send(self, message_id: str, body: bytes, content_type: str) -> Answer:
        """Raises NoAnswer."""
        headers = signed_headers(self._secrets, message_id, self._clock.now(), body)
        return await self._poster.send({**headers, "content-type": content_type}, body)

    def close(self) -> None:
        self._poster.close()


class WebhookSink:
    """An HTTP server that is told, many at once."""

    batch = _AT_ONCE

    def __init__(self, to: Signed, clock: Clock) -> None:
        self._post = SignedPost(to, clock, timeout_seconds=_TIMEOUT_SECONDS)

    async def deliver(self, envelopes: Sequence[Envelope]) -> Outcomes:
        outcomes = await asyncio.gather(*map(self._deliver, envelopes), return_exceptions=True)
        return [not_taken(outcome) if isinstance(outcome, BaseException) else outcome for outcome in outcomes]

    async def _deliver(self, envelope: Envelope) -> NotTaken | None:
        try:
            answer = await self._post.send(envelope.message.id, envelope.body, CONTENT_TYPE)
        except NoAnswer as error:
            return NotTaken(str(error))
        if HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
            return None
        said = answer.body.decode(errors="replace")[:_SHOWN_CHARACTERS]
        return NotTaken(
            f"{answer.status} {said}".strip(),
            answered=answer.status < HTTPStatus.INTERNAL_SERVER_ERROR and answer.status != HTTPStatus.TOO_MANY_REQUESTS,
            gone=answer.status == HTTPStatus.GONE,
        )

    async def close(self) -> None:
        self._post.close()
