"""Shows transfers on a terminal: a bar for each large file and one for all. Messages are printed above the bars. `Figures`
computes the progress of a `put` or `get` from its events.

rich lays the lines out, but its `Live` is not used: it leaves lines behind when a terminal gets narrower, hides the cursor
if the command is killed, and draws over the shell while the job is in the background.
"""

import asyncio
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from types import FrameType

from rich.cells import cell_len, set_cell_size
from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from uploader.cli.client import events
from uploader.cli.client.events import Event
from uploader.cli.client.reporters import Reporter
from uploader.cli.terminal import drawn, human_seconds, percent, say, say_below, shown, wipe_below
from uploader.client.transfer import Speed
from uploader.units import human_bytes

_SHORTEST_WINDOW_SECONDS = 1.0
# A stopped server or a dead connection is silent for a long time before a call fails.
_SILENCE_SECONDS = 10.0
_INTERVAL_SECONDS = 0.125

STDOUT = "-"
_MOST_BARS = 12
# Lines other than files: an empty one, "and … more", the total, the reason for waiting, the last line of the screen.
_OTHER_LINES = 5
# Fixed widths of the cells after the name, to avoid jumps: bar, `1000 MiB of 9.8 GiB`, `1023.9 KiB/s`, `59 min 9 s left`.
_CELL_COLUMNS = (8, 20, 12, 16)
# On a narrow terminal, only show the amount and the time left.
_NARROW_COLUMNS = 70
_NARROW_CELLS = (1, 3)
# Longer outages get a message when they end.
_OUTAGE_SECONDS = 5.0
_STEP_SECONDS = 10.0


class Figures:
    """Collects the events of one command, and computes the figures on request."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.planned = events.Planned(0, 0)
        self.over_files = 0
        self.moving: dict[str, events.Moving] = {}
        self._begun: dict[str, int] = {}
        self._over_bytes = self._over_moved_bytes = 0
        self._speed = Speed()
        self._news_at = clock()
        self._away: tuple[float, str] | None = None

    def take(self, event: Event) -> None:
        match event:
            case events.Retrying():
                self._away = self._away or (self._clock(), event.detail)
                return
            case events.Failed():
                self._end(event.path, 0)
                return
            case events.Planned():
                self.planned = event
            case events.Started():
                self._begun[event.path] = event.size
            case events.Moving():
                if self.moving.get(event.path, event).received_bytes < event.received_bytes:
                    self._go_on()
                self.moving[event.path] = event
            case events.Completed():
                self._end(event.path, event.file.size if event.how in ("sent", "fetched") else 0)
                self._go_on()
        self._news_at = self._clock()

    def _go_on(self) -> None:
        """The server has answered. Begin a new measurement of the speed after an outage."""
        if self._away is not None:
            self._away = None
            self._speed = Speed()

    def _end(self, path: str | None, moved_bytes: int) -> None:
        """End a file. Files of a batch have no progress events; they count when they end."""
        if path is None:
            return
        last = self.moving.pop(path, None)
        self.over_files += 1
        self._over_bytes += self._begun.pop(path, 0)
        self._over_moved_bytes += moved_bytes if last is None else _gone(last)

    @property
    def there_bytes(self) -> int:
        """Return the bytes that have arrived or are on their way, of all files."""
        return self._over_bytes + sum(map(_there, self.moving.values()))

    def sample(self) -> None:
        """Measure the speed. Called several times a second, to notice a standstill."""
        self._speed.sample(self._clock(), self._over_moved_bytes + sum(map(_gone, self.moving.values())))

    def pace(self) -> tuple[float | None, float | None]:
        """Return the speed of all files, and the seconds left for all bytes, including files that have not begun."""
        rate = None if self.waiting() else self._speed.per_second(_SHORTEST_WINDOW_SECONDS) or None
        return rate, None if rate is None else max(0, self.planned.bytes - self.there_bytes) / rate

    def waiting(self) -> tuple[float, str] | None:
        """Return the seconds since the transfer stands still, and the reason if known; None if it does not."""
        now = self._clock()
        if self._away is not None:
            since, why = self._away
            return now - since, why
        is_silent = self._begun and now - self._news_at > _SILENCE_SECONDS
        return (now - self._news_at, "no answer") if is_silent else None

    def words(self) -> tuple[str, str, str, str]:
        """Return texts for files, bytes, speed and time left."""
        return (
            f"{self.over_files} of {events.count_of_files(self.planned.files)}",
            f"{human_bytes(self.there_bytes)} of {human_bytes(self.planned.bytes)}",
            *_pace_words(*self.pace()),
        )


def _gone(event: events.Moving) -> int:
    """Return the bytes of progress, moved or spared."""
    return event.moved_bytes + event.spared_bytes


def _there(event: events.Moving) -> int:
    return event.received_bytes + event.in_flight_bytes


def reporter_of_terminal() -> Reporter:
    """Return a reporter for a terminal on standard error. If standard output is a pipe, its reader may print to the same
    terminal at any time, so there are no bars; Windows does not tell who reads."""
    if sys.platform == "win32" or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        return Steps()
    try:
        mode = os.fstat(sys.stdout.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # closed
        return Steps()
    return Bars() if stat.S_ISREG(mode) or stat.S_ISCHR(mode) else Steps()


class Steps(Reporter):
    """Prints a line of progress every ten seconds; used if bars are not possible."""

    def __init__(self) -> None:
        self._figures = Figures()
        self._told_at = time.monotonic()
        self._sampled_at = 0.0

    def show(self, event: Event) -> None:
        self._figures.take(event)
        now = time.monotonic()
        if now - self._sampled_at > 1:
            self._figures.sample()
            self._sampled_at = now
        if isinstance(event, events.Moving) and now - self._told_at >= _STEP_SECONDS:
            self._told_at = now
            self._say(f"uploader: {', '.join(filter(None, self._figures.words()))}", by_the_way=True)
        super().show(event)


class Bars(Reporter):
    """Shows bars from the first file on. Commands without files show none."""

    def __init__(self) -> None:
        self._figures = Figures()
        self._is_started = False
        self._below: list[str] = []
        self._caught: list[signal.Signals] = []
        self._name_columns = 0  # the longest name so far, to avoid jumps

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._wipe()
        for number in self._caught:
            signal.signal(number, signal.SIG_DFL)
        super().__exit__(kind, error, trace)

    def show(self, event: Event) -> None:
        waited = self._figures.waiting()
        self._figures.take(event)
        if waited is not None and waited[0] > _OUTAGE_SECONDS and self._figures.waiting() is None:
            self._say(f"uploader: going on, after {human_seconds(waited[0])}", by_the_way=True)
        if isinstance(event, events.TransferSummary):
            self._say(event.all_words(), by_the_way=True)
        else:
            super().show(event)
        if isinstance(event, events.Started):
            # No bars if the terminal gets the content of the file.
            begins = event.path != STDOUT or not sys.stdout.isatty()
        else:
            begins = isinstance(event, events.Retrying) and self._figures.planned.files > 0
        if begins and not self._is_started:
            self._start()

    def _say(self, line: str, *, by_the_way: bool) -> None:
        below = self._below
        if below and (sys.stderr.isatty() if by_the_way else sys.stdout.isatty()):
            self._wipe()
        say(line, err=by_the_way)
        if below and not self._below:
            self._draw(below)

    def _start(self) -> None:
        self._is_started = True
        # The signals of Ctrl-Z and of an end, which would leave the lines on the screen.
        leaving = (signal.SIGTSTP, signal.SIGTERM, signal.SIGHUP)
        self._caught = [number for number in leaving if signal.getsignal(number) is signal.SIG_DFL]
        for number in self._caught:
            signal.signal(number, self._step_aside)
        self._draw_again()

    def _step_aside(self, number: int, _frame: FrameType | None) -> None:
        """Wipe the lines, then let the signal have its default effect."""
        self._wipe()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, self._step_aside)  # after Ctrl-Z, the command goes on here

    def _draw_again(self) -> None:
        asyncio.get_running_loop().call_later(_INTERVAL_SECONDS, self._draw_again)
        self._figures.sample()
        if _is_in_foreground():
            size = os.get_terminal_size(sys.stderr.fileno())
            # 80 × 24 if the terminal reports no size.
            self._draw(self._lines(size.columns or 80, size.lines or 24))

    def _draw(self, lines: list[str]) -> None:
        say_below(lines, over=bool(self._below))
        self._below = lines

    def _wipe(self) -> None:
        if self._below:
            self._below = []
            wipe_below()

    def _lines(self, width: int, height: int) -> list[str]:
        """Return all lines, cut to the width of the terminal; the first line is empty."""
        moving = list(self._figures.moving.values())
        room = max(0, min(height - _OTHER_LINES, _MOST_BARS))
        self._name_columns = max([self._name_columns, *(cell_len(shown(event.name)) for event in moving[:room])])
        cells = range(len(_CELL_COLUMNS)) if width >= _NARROW_COLUMNS else _NARROW_CELLS
        name_columns = max(1, min(self._name_columns, width - sum(_CELL_COLUMNS[cell] + 1 for cell in cells)))
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(min_width=name_columns, no_wrap=True)
        for cell in cells:
            table.add_column(width=_CELL_COLUMNS[cell], justify="right", no_wrap=True)
        for first, *others in self._rows(moving, room, name_columns):
            table.add_row(first, *(others[cell] for cell in cells))
        parts: list[RenderableType] = ["", table]
        if waiting := self._figures.waiting():
            since = datetime.now().astimezone() - timedelta(seconds=waiting[0])
            words = f"waiting for the server since {since:%H:%M:%S}, for {human_seconds(waiting[0])}: {waiting[1]}"
            parts.append(Text(shown(words), style="yellow", no_wrap=True, overflow="ellipsis"))
        return drawn(*parts, width=width, err=True)[: height - 1]

    def _rows(self, moving: list[events.Moving], room: int, name_columns: int) -> Iterator[list[RenderableType]]:
        for event in moving[:room]:
            pace = _pace_words(event.bytes_per_second, event.seconds_left)
            rate, left = ("", "") if self._figures.waiting() else pace
            if event.state == "merging":
                left = f"merging {percent(event.merged_bytes, event.size)}"
            elif event.state == "hashing" and event.hashed_bytes < event.size:
                left = f"hashing {percent(event.hashed_bytes, event.size)}"
            much = f"{human_bytes(_there(event))} of {human_bytes(event.size)}"
            yield [Text(short_name(event.name, name_columns)), _bar(_there(event), event.size), much, rate, left]
        if len(moving) > room:
            yield [f"and {len(moving) - room} more", "", "", "", ""]
        if self._figures.planned.files > 1 or not moving:
            name, *others = self._figures.words()
            yield [name, _bar(self._figures.there_bytes, self._figures.planned.bytes), *others]


def _is_in_foreground() -> bool:
    """Return True if this process may draw on the terminal. A job in the background must not."""
    try:
        return os.tcgetpgrp(sys.stderr.fileno()) == os.getpgrp()
    except OSError:
        return True  # not the controlling terminal


def short_name(name: str, columns: int) -> str:
    """Shorten a name to some columns: drop its first folders, or cut the middle of its last segment, because similar names
    differ at their beginning or end."""
    name = shown(name)
    if cell_len(name) <= columns:
        return name
    last = name.rpartition("/")[2]
    begin = set_cell_size(last, columns // 2).rstrip() if cell_len(last) >= columns else ""
    rest = columns - cell_len(begin) - 1
    return f"{begin}…{next(name[at:] for at in range(len(name) + 1) if cell_len(name[at:]) <= rest)}"


def _pace_words(rate: float | None, seconds: float | None) -> tuple[str, str]:
    left = "" if seconds is None else f"{human_seconds(seconds)} left"
    return f"{human_bytes(round(rate))}/s" if rate else "", left


def _bar(there: int, size: int) -> ProgressBar:
    return ProgressBar(total=max(size, 1), completed=there if size else 1)
