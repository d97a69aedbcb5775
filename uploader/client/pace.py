"""The rate of a client's bytes, over all its connections, and the patience in repeating failed calls. Knows no HTTP."""

import asyncio
import random
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from uploader.client.errors import (
    ClientError,
    LinkExhausted,
    LinkGone,
    NotFound,
    QuotaExceeded,
    ServerProblem,
    TooManyFiles,
    Unauthenticated,
    WrongPassword,
)

# A piece takes about this long. Smaller pieces avoid long silences, in which servers and proxies hang up.
_PIECE_SECONDS = 0.1
_MOST_PIECE_BYTES = 128 << 10
_LEAST_PIECE_BYTES = 1 << 10
# Unused time, from late timers, may be made up for up to this limit.
_CREDIT_SECONDS = 0.1
# The least rate of a connection: servers refuse bodies that hardly move.
_CONNECTION_BYTES_PER_SECOND = 16 << 10
# The code of a 413 from a proxy. The field `body_bytes` is the length of the refused body.
BODY_LIMITED = "body-limited"
OnRetry = Callable[[ClientError, float], None]
_PROBLEMS: dict[str, type[ServerProblem]] = {
    "unauthenticated": Unauthenticated,
    "forbidden": Unauthenticated,
    "quota-exceeded": QuotaExceeded,
    "too-many-files": TooManyFiles,
    "wrong-password": WrongPassword,
    "link-gone": LinkGone,
    "link-exhausted": LinkExhausted,
    "link-not-found": NotFound,
    "not-found": NotFound,
    "upload-not-found": NotFound,
    "file-not-found": NotFound,
    "upload-gone": NotFound,
}


class Pace:
    """A token bucket. It gives out the moments when bytes may move, in the order of the requests. So connections with
    pieces of the same size move equally fast, and no connection waits for another."""

    def __init__(
        self,
        bytes_per_second: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`bytes_per_second`: None means no limit. Raises ValueError."""
        if bytes_per_second is not None and bytes_per_second <= 0:
            raise ValueError("a rate is more than 0 bytes a second")
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        # Until when the rate is given away.
        self._taken_until = float("-inf")

    def piece_bytes(self, most_bytes: int) -> int:
        """Return how many bytes to move at once; `most_bytes` without a limit."""
        if self._bytes_per_second is None:
            return most_bytes
        fair = int(self._bytes_per_second * _PIECE_SECONDS)
        return min(most_bytes, _MOST_PIECE_BYTES, max(_LEAST_PIECE_BYTES, fair))

    def connections(self, most: int) -> int:
        """Return how many connections, at most `most`, the rate is enough for."""
        if self._bytes_per_second is None:
            return most
        return max(1, min(most, int(self._bytes_per_second / _CONNECTION_BYTES_PER_SECOND)))

    async def take(self, length_bytes: int) -> None:
        """Wait until `length_bytes` more bytes may have moved. A cancelled wait counts all the same."""
        if self._bytes_per_second is None:
            return
        now = self._clock()
        credit_from = now if self._taken_until == float("-inf") else now - _CREDIT_SECONDS
        self._taken_until = max(self._taken_until, credit_from) + length_bytes / self._bytes_per_second
        if self._taken_until > now:
            await self._sleep(self._taken_until - now)

    def paced(self, pieces: AsyncIterable[bytes]) -> AsyncIterable[bytes]:
        """Return the same bytes, in pieces at the right moments."""
        return pieces if self._bytes_per_second is None else self._cut(pieces)

    async def _cut(self, pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        async for piece in pieces:
            step = self.piece_bytes(_MOST_PIECE_BYTES)
            for at in range(0, len(piece), step):
                part = piece[at : at + step]
                await self.take(len(part))
                yield part


@dataclass(frozen=True, slots=True)
class Patience:
    """The patience with calls that fail for the moment: how long and how often to repeat them."""

    give_up_after_seconds: float = 300.0
    first_pause_seconds: float = 0.25
    longest_pause_seconds: float = 20.0

    def pause_seconds(self, attempt: int, retry_after_seconds: float | None, jitter: float) -> float:
        """Return the pause after failure number `attempt` (from 0). It doubles each time; `jitter` (0 to 1) takes off
        up to a half, so that many clients do not return at once. It is never shorter than the server asks for."""
        longest = min(self.longest_pause_seconds, self.first_pause_seconds * 2.0 ** min(attempt, 32))
        return (retry_after_seconds or 0.0) + longest * (1 - jitter / 2)


class Retrying(Struct):
    patience: Patience
    on_retry: OnRetry | None
    failures: int = 0
    _give_up_at: float | None = None

    async def pause(self, error: ClientError) -> None:
        """Wait until the call may be repeated. Raises `error` if that would not help, or was tried long enough."""
        if not error.retryable:
            raise error
        now = time.monotonic()
        if self._give_up_at is None:
            self._give_up_at = now + self.patience.give_up_after_seconds
        retry_after = error.retry_after_seconds if isinstance(error, ServerProblem) else None
        seconds = self.patience.pause_seconds(self.failures, retry_after, random.random())  # noqa: S311
        if now + seconds > self._give_up_at:
            raise error
        self.failures += 1
        if self.on_retry is not None:
            self.on_retry(error, seconds)
        await asyncio.sleep(seconds)


def error_of(problem: dict[str, Any], status: int, retry_after_seconds: float | None = None) -> ServerProblem:
    code = str(problem.get("code"))
    return _PROBLEMS.get(code, ServerProblem)(
        str(problem.get("detail") or problem.get("title") or code),
        code=code,
        status=status,
        retryable=problem.get("retryable") is True,
        retry_after_seconds=retry_after_seconds,
        fields=problem,
    )
