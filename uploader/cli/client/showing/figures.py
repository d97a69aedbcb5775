"""How far a `put` or `get` is as a whole, from its events: what is over, what moves, how fast, and whether it waits. Pure,
but for a clock."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from uploader.cli.client.showing.events import AnyEvent, Completed, Failed, Moving, Planned, Retrying, Started

_WINDOW_SECONDS = 10.0
_SHORTEST_WINDOW_SECONDS = 1.0
# A server that was stopped, or a line that is dead, says nothing for long before a call fails.
_SILENCE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing goes on for so long, and why, as far as that is known."""

    seconds: float
    why: str


class Speed:
    """How fast a figure grows, over the last ten seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def sample(self, now: float, moved_bytes: int) -> None:
        self._samples.append((now, moved_bytes))
        while now - self._samples[0][0] > _WINDOW_SECONDS:
            self._samples.popleft()

    @property
    def bytes_per_second(self) -> float | None:
        """None while there is nothing to measure."""
        if not self._samples:
            return None
        (then, before), (now, moved) = self._samples[0], self._samples[-1]
        rate = (moved - before) / (now - then) if now - then >= _SHORTEST_WINDOW_SECONDS else 0.0
        return rate or None


class Figures:
    """Takes the events of one command, and is asked now and then."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.planned = Planned(0, 0)
        self.over_files = 0
        self.moving: dict[str, Moving] = {}
        self._begun: dict[str, int] = {}
        self._over_bytes = self._over_moved_bytes = 0
        self._speed = Speed()
        self._speeds: dict[str, Speed] = {}
        self._news_at = clock()
        self._away: tuple[float, str] | None = None

    def take(self, event: AnyEvent) -> None:
        match event:
            case Planned():
                self.planned = event
                self._news_at = self._clock()
            case Started():
                self._begun[event.path] = event.size
                self._news_at = self._clock()
            case Moving():
                self._move(event)
            case Retrying():
                self._away = self._away or (self._clock(), event.detail)
            case Completed():
                moved = event.file.size if event.how in ("sent", "fetched") else 0
                self._end(event.path, moved)
                self._go_on()
            case Failed(path=str() as path):
                self._end(path, 0)

    def _move(self, event: Moving) -> None:
        before = self.moving.get(event.path)
        self.moving[event.path] = event
        self._speeds.setdefault(event.path, Speed())
        if before is not None and before.received_bytes < event.received_bytes:
            self._go_on()
        elif before is None or _figures(before) != _figures(event):
            self._news_at = self._clock()

    def _go_on(self) -> None:
        """The other end has answered. A pause is none of its speed."""
        self._news_at = self._clock()
        if self._away is not None:
            self._away = None
            self._speed = Speed()
            self._speeds = {path: Speed() for path in self._speeds}

    def _end(self, path: str, moved_bytes: int) -> None:
        """A file of a batch never moves: it is there, or it is not."""
        last = self.moving.pop(path, None)
        self._speeds.pop(path, None)
        self.over_files += 1
        self._over_bytes += self._begun.pop(path, 0)
        self._over_moved_bytes += moved_bytes if last is None else _gone(last)

    # What it amounts to

    @property
    def there_bytes(self) -> int:
        """Of all files together: what has arrived or is on its way."""
        return self._over_bytes + sum(there_of(each) for each in self.moving.values())

    def sample(self) -> None:
        """To be called a few times a second, so that what stands still is seen to."""
        now = self._clock()
        self._speed.sample(now, self._over_moved_bytes + sum(map(_gone, self.moving.values())))
        for path, speed in self._speeds.items():
            speed.sample(now, _gone(self.moving[path]))

    def bytes_per_second(self, path: str | None = None) -> float | None:
        """Of all together, or of one file."""
        if self.waiting() is not None:
            return None
        return (self._speed if path is None else self._speeds[path]).bytes_per_second

    def seconds_left(self, path: str | None = None) -> float | None:
        """For all that is left: also of files that are not begun."""
        rate = self.bytes_per_second(path)
        if rate is None:
            return None
        if path is None:
            return max(0, self.planned.bytes - self.there_bytes) / rate
        return (self.moving[path].size - there_of(self.moving[path])) / rate

    def waiting(self) -> Waiting | None:
        """Whether it waits for the server."""
        now = self._clock()
        if self._away is not None:
            since, why = self._away
            return Waiting(now - since, why)
        if self._begun and now - self._news_at > _SILENCE_SECONDS:
            return Waiting(now - self._news_at, "no answer")
        return None


def _gone(event: Moving) -> int:
    """By what it comes nearer to its end, whether it moved or need not."""
    return event.moved_bytes + event.spared_bytes


def there_of(event: Moving) -> int:
    return event.received_bytes + event.in_flight_bytes


def _figures(event: Moving) -> tuple[int, ...]:
    return event.received_bytes, event.moved_bytes, event.hashed_bytes, event.merged_bytes
