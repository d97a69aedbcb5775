"""How far a transfer is: figures for people and programs, told at most every so often. Moves no bytes itself."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

_WINDOW_SECONDS = 10.0
_SHORTEST_INTERVAL_SECONDS = 0.1

State = Literal["hashing", "uploading", "merging", "downloading", "complete"]


@dataclass(frozen=True, slots=True)
class Progress:
    """A transfer at one moment. Figures are bytes."""

    name: str
    size: int
    state: State
    # What is known to have arrived: acknowledged by the server, or written to the disk by a download.
    received_bytes: int
    # What is on its way, beyond that.
    in_flight_bytes: int
    # What this run has moved over the network, whether or not it arrived.
    moved_bytes: int
    hashed_bytes: int
    merged_bytes: int
    # Over the last ten seconds, with what need not move; None while there is nothing to measure.
    bytes_per_second: float | None
    seconds_left: float | None
    # What the other end had already, of chunks that have arrived.
    spared_bytes: int = 0


OnProgress = Callable[[Progress], None]


class Meter:
    """Counts one transfer and tells it to a callback. What the callback raises ends the transfer."""

    def __init__(
        self, name: str, size: int, on_progress: OnProgress | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._size = size
        self._on_progress = on_progress
        self._clock = clock
        self._state: State = "hashing"
        self._received = self._in_flight = self._merged = 0
        self.moved_bytes = self.spared_bytes = self.hashed_bytes = 0
        self._samples: deque[tuple[float, int]] = deque()
        self._told_at = float("-inf")

    def enter(self, state: State) -> None:
        """Every change of state is told."""
        if state != self._state:
            self._state = state
            self.tell()

    def hashed(self, length_bytes: int) -> None:
        self.hashed_bytes += length_bytes
        self._tell_now_and_then()

    def merged(self, merged_bytes: int) -> None:
        self._merged = merged_bytes
        self._tell_now_and_then()

    def received(self, received_bytes: int) -> None:
        """The other end's own figure; answers may overtake each other, so the largest counts."""
        self._received = max(self._received, received_bytes)
        self._tell_now_and_then()

    def moving(self, length_bytes: int) -> None:
        """More bytes are on their way."""
        self.moved_bytes += length_bytes
        self._in_flight += length_bytes
        self._tell_now_and_then()

    def spared(self, length_bytes: int) -> None:
        """These bytes have arrived without being sent."""
        self.spared_bytes += length_bytes

    def landed(self, length_bytes: int) -> None:
        """These bytes are not on their way any more: they have arrived, or are lost."""
        self._in_flight -= length_bytes

    def begin_anew(self) -> None:
        """What has arrived counts for nothing."""
        self._received = self._merged = 0
        self.tell()

    def _tell_now_and_then(self) -> None:
        if self._on_progress is not None and self._clock() - self._told_at >= _SHORTEST_INTERVAL_SECONDS:
            self.tell()

    def tell(self) -> None:
        self._told_at = self._clock()
        if self._on_progress is not None:
            self._on_progress(self.progress())

    def progress(self) -> Progress:
        rate = self._rate()
        left = max(0, self._size - self._received - self._in_flight)
        return Progress(
            name=self._name,
            size=self._size,
            state=self._state,
            received_bytes=min(self._received, self._size),
            in_flight_bytes=max(0, min(self._in_flight, self._size - self._received)),
            moved_bytes=self.moved_bytes,
            hashed_bytes=self.hashed_bytes,
            merged_bytes=self._merged,
            bytes_per_second=rate,
            seconds_left=left / rate if rate else None,
            spared_bytes=self.spared_bytes,
        )

    def _rate(self) -> float | None:
        now = self._clock()
        self._samples.append((now, self.moved_bytes + self.spared_bytes))
        while now - self._samples[0][0] > _WINDOW_SECONDS:
            self._samples.popleft()
        then, before = self._samples[0]
        return (self._samples[-1][1] - before) / (now - then) if now > then else None
