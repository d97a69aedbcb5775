"""Shows on a terminal how files move: a bar for each large one, and one for all. Messages
stays above them.

`Figures` are how far a `put` or `get` is as a whole, from its events. `Live` draws lines below all others again and again,
and knows nothing of what they say: the cursor rests at the begin of the first of them, an empty one: from there they are
wiped by one sequence, whatever a terminal made of them when it got another size, and what is typed or echoed there (`^C`)
spoils nothing. While they are drawn no line is wrapped, so they are as many on the screen as here. They are as wide as most
terminals, and wider only for a name that needs it: one that gets narrower wraps what it has, and may push the cursor off
its line then.
"""

import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from types import FrameType
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from uploader.cli.client import events
from uploader.cli.client.events import Event
from uploader.cli.client.reporters import Reporter
from uploader.cli.terminal import drawn, human_seconds, percent, say, shown, styled
from uploader.client.transfer import Speed
from uploader.units import human_bytes

_SHORTEST_WINDOW_SECONDS = 1.0
# A server that was stopped, or a line that is dead, says nothing for long before a call fails.
_SILENCE_SECONDS = 10.0

_INTERVAL_SECONDS = 0.125
# Below the empty line, as tmux takes it for a wish to keep what there is if all of the screen is wiped.
_WIPE = "\r\x1b[K\n\x1b[J\x1b[A"
_USUAL_COLUMNS = 79
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
# Those that would leave the lines behind: to be stopped by Ctrl-Z, and to be ended.
_LEAVING = tuple(
    signal.Signals[name] for name in ("SIGTSTP", "SIGTERM", "SIGHUP") if name in signal.Signals.__members__
)

STDOUT = "-"
_MOST_BARS = 12
# The lines beside those of files: how many more there are, the total, what it waits for.
_OTHER_LINES = 3
# Of each cell beside the name, so that nothing jumps: of a bar, of `1000 MiB of 9.77 GiB`, `9.77 MiB/s`, `59 min 59 s left`.
_CELL_COLUMNS = (10, 20, 10, 16)
# Where there is no place for all of them, how much and how long.
_NARROW_COLUMNS = 70
_NARROW_CELLS = (1, 3)
# An outage that is worth a word when it is over.
_OUTAGE_SECONDS = 5.0
_STEP_SECONDS = 10.0


class Waiting(NamedTuple):
    """Nothing goes on for so long, and why, as far as that is known."""

    seconds: float
    why: str


class Figures:
    """Takes the events of one command, and is asked now and then."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.planned = events.Planned(0, 0)
        self.over_files = 0
        self.moving: dict[str, events.Moving] = {}
        self._begun: dict[str, int] = {}
        self._over_bytes = self._over_moved_bytes = 0
        self._speed = Speed()
        self._speeds: dict[str, Speed] = {}
        self._news_at = clock()
        self._away: tuple[float, str] | None = None

    def take(self, event: Event) -> None:
        match event:
            case events.Planned():
                self.planned = event
                self._news_at = self._clock()
            case events.Started():
                self._begun[event.path] = event.size
                self._news_at = self._clock()
            case events.Moving():
                self._move(event)
            case events.Retrying():
                self._away = self._away or (self._clock(), event.detail)
            case events.Completed():
                self._end(event.path, event.file.size if event.how in ("sent", "fetched") else 0)
                self._go_on()
            case events.Failed(path=str() as path):
                self._end(path, 0)

    def _move(self, event: events.Moving) -> None:
        before = self.moving.get(event.path)
        self.moving[event.path] = event
        self._speeds.setdefault(event.path, Speed())
        if before is not None and before.received_bytes < event.received_bytes:
            self._go_on()
        elif before is None or _figures(before) != _figures(event):
            self._news_at = self._clock()

    def _go_on(self) -> None:
        """Note that the other end has answered. A pause is none of its speed."""
        self._news_at = self._clock()
        if self._away is not None:
            self._away = None
            self._speed = Speed()
            self._speeds = {path: Speed() for path in self._speeds}

    def _end(self, path: str, moved_bytes: int) -> None:
        """End a file. One of a batch never moves: it is there, or it is not."""
        last = self.moving.pop(path, None)
        self._speeds.pop(path, None)
        self.over_files += 1
        self._over_bytes += self._begun.pop(path, 0)
        self._over_moved_bytes += moved_bytes if last is None else _gone(last)

    # What it amounts to

    @property
    def there_bytes(self) -> int:
        """Return the bytes of all files that have arrived or are on their way."""
        return self._over_bytes + sum(there_of(each) for each in self.moving.values())

    def sample(self) -> None:
        """Take a sample of the speed. To be called a few times a second, so that what stands still is seen to."""
        now = self._clock()
        self._speed.sample(now, self._over_moved_bytes + sum(map(_gone, self.moving.values())))
        for path, speed in self._speeds.items():
            speed.sample(now, _gone(self.moving[path]))

    def bytes_per_second(self, path: str | None = None) -> float | None:
        """Return the speed of all files together, or of one."""
        if self.waiting() is not None:
            return None
        speed = self._speed if path is None else self._speeds[path]
        return speed.per_second(_SHORTEST_WINDOW_SECONDS) or None

    def seconds_left(self, path: str | None = None) -> float | None:
        """Estimate the seconds for all that is left, also of files that are not begun."""
        rate = self.bytes_per_second(path)
        if rate is None:
            return None
        if path is None:
            return max(0, self.planned.bytes - self.there_bytes) / rate
        return (self.moving[path].size - there_of(self.moving[path])) / rate

    def waiting(self) -> Waiting | None:
        now = self._clock()
        if self._away is not None:
            since, why = self._away
            return Waiting(now - since, why)
        if self._begun and now - self._news_at > _SILENCE_SECONDS:
            return Waiting(now - self._news_at, "no answer")
        return None


def _gone(event: events.Moving) -> int:
    """Count what brings it nearer to its end, whether it moved or need not."""
    return event.moved_bytes + event.spared_bytes


def there_of(event: events.Moving) -> int:
    return event.received_bytes + event.in_flight_bytes


def _figures(event: events.Moving) -> tuple[int, ...]:
    return event.received_bytes, event.moved_bytes, event.hashed_bytes, event.merged_bytes


class Live:
    """On standard error. `lock` is held while `lines` is asked, for a width and a height."""

    def __init__(self, lines: Callable[[int, int], list[str]]) -> None:
        self._lines = lines
        self._terminal = sys.stderr
        self.lock = threading.RLock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._shown: list[str] = []
        self._caught: list[signal.Signals] = []

    @property
    def is_started(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        """Begin to show, from the main thread."""
        self._caught = [number for number in _LEAVING if signal.getsignal(number) is signal.SIG_DFL]
        for number in self._caught:
            signal.signal(number, self._step_aside)
        self._thread = threading.Thread(target=self._draw_again, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._thread is None:
            return
        with self.lock:
            self._stopped.set()
            self._wipe()
        self._thread.join()
        for number in self._caught:
            signal.signal(number, signal.SIG_DFL)

    def print_above(self, line: str, *, err: bool) -> None:
        with self.lock:
            drawn_before = self._shown
            if drawn_before and (sys.stderr.isatty() if err else sys.stdout.isatty()):
                self._wipe()
            say(line, err=err)
            if drawn_before and not self._shown:
                self._draw(drawn_before)

    def _draw_again(self) -> None:
        while not self._stopped.wait(_INTERVAL_SECONDS):
            with self.lock:
                if not self._stopped.is_set() and self._is_in_foreground():
                    size = os.get_terminal_size(self._terminal.fileno())
                    # A terminal that says nothing of it has the size that all had once.
                    width, height = size.columns or 80, size.lines or 24
                    self._draw(["", *self._lines(width, height - 2)][: height - 1])

    def _draw(self, lines: list[str]) -> None:
        up = f"\x1b[{len(lines) - 1}A" if len(lines) > 1 else ""
        wipe = _WIPE if self._shown else ""
        self._terminal.write("".join((wipe, _NO_WRAP, "\r\n".join(map(styled, lines)), _WRAP, "\r", up)))
        self._terminal.flush()
        self._shown = lines

    def _wipe(self) -> None:
        if self._shown:
            self._terminal.write(_WIPE)
            self._terminal.flush()
            self._shown = []

    def _is_in_foreground(self) -> bool:
        """Tell whether the terminal is ours: that of a job in the background is its shell's."""
        if sys.platform == "win32":
            return True
        try:
            return os.tcgetpgrp(self._terminal.fileno()) == os.getpgrp()
        except OSError:
            return True  # it controls nobody

    def _step_aside(self, number: int, _frame: FrameType | None) -> None:
        """Do what the signal asks for, with a clean terminal."""
        with self.lock:
            self._wipe()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            signal.signal(number, self._step_aside)  # it was only stopped, and goes on


def reporter_of_terminal() -> Reporter:
    """Return what reports to a person whose standard error is a terminal. Beside a pipe there are no bars: its reader
    may write to the same terminal, at any time."""
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown") or not _is_own_terminal():
        return Steps()
    return Bars()


def _is_own_terminal() -> bool:
    """Return whether nobody else writes to the terminal for us. On Windows nobody knows."""
    if sys.platform == "win32":
        return False
    try:
        stdout, stderr = os.fstat(sys.stdout.fileno()), os.fstat(sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):  # it is closed
        return False
    if sys.stdout.isatty():
        return stdout.st_rdev == stderr.st_rdev
    return stat.S_ISREG(stdout.st_mode) or stat.S_ISCHR(stdout.st_mode)


class Steps(Reporter):
    """Prints a line of progress every ten seconds, where there is no place for bars."""

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
            words = ", ".join(word for word in total_words(self._figures) if word)
            self._say(f"uploader: {words}", by_the_way=True)
        super().show(event)


class Bars(Reporter):
    """Begins with the first file; other commands never see a bar."""

    def __init__(self) -> None:
        self._figures = Figures()
        self._live = Live(self._lines)
        self._name_columns = 0  # of the longest so far, so that nothing jumps

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._live.stop()
        super().__exit__(kind, error, trace)

    def show(self, event: Event) -> None:
        with self._live.lock:
            waited = self._figures.waiting()
            self._figures.take(event)
            waited_seconds = waited.seconds if waited is not None and self._figures.waiting() is None else 0.0
            if waited_seconds > _OUTAGE_SECONDS:
                self._say(f"uploader: going on, after {human_seconds(waited_seconds)}", by_the_way=True)
            if isinstance(event, events.TransferSummary):
                self._say(event.all_words(), by_the_way=True)
            else:
                super().show(event)
        if isinstance(event, events.Started):
            # Unless the terminal gets the content of the file itself.
            begins = event.path != STDOUT or not sys.stdout.isatty()
        else:
            begins = isinstance(event, events.Retrying) and self._figures.planned.files > 0
        if begins and not self._live.is_started:
            self._live.start()

    def _say(self, line: str, *, by_the_way: bool) -> None:
        self._live.print_above(line, err=by_the_way)

    # What is drawn

    def _lines(self, width: int, height: int) -> list[str]:
        """Return all lines, none longer than the terminal is wide."""
        self._figures.sample()
        moving = list(self._figures.moving.values())
        room = max(0, min(height - _OTHER_LINES, _MOST_BARS))
        cells = range(len(_CELL_COLUMNS)) if width >= _NARROW_COLUMNS else _NARROW_CELLS
        other_columns = sum(_CELL_COLUMNS[cell] + 1 for cell in cells)
        self._name_columns = max(self._name_columns, *(cell_len(event.name) for event in moving[:room]), 0)
        width = min(width, max(_USUAL_COLUMNS, self._name_columns + other_columns))
        name_columns = max(1, width - other_columns)
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(width=name_columns, no_wrap=True, overflow="ellipsis")
        for cell in cells:
            table.add_column(width=_CELL_COLUMNS[cell], justify="right", no_wrap=True)
        rows: list[list[RenderableType]] = [
            [Text(short_name(event.name, name_columns)), *self._row_of(event)] for event in moving[:room]
        ]
        if len(moving) > room:
            rows.append([f"and {len(moving) - room} more", *([""] * len(_CELL_COLUMNS))])
        if self._figures.planned.files > 1 or not moving:
            name, *rest = total_words(self._figures)
            rows.append([name, _bar(self._figures.there_bytes, self._figures.planned.bytes), *rest])
        for first, *others in rows:
            table.add_row(first, *(others[cell] for cell in cells))
        parts: list[RenderableType] = [table]
        if (waiting := self._figures.waiting()) is not None:
            since = datetime.now().astimezone() - timedelta(seconds=waiting.seconds)
            words = f"since {since:%H:%M:%S}, for {human_seconds(waiting.seconds)}: {waiting.why}"
            parts.append(
                Text(shown(f"waiting for the server {words}"), style="yellow", no_wrap=True, overflow="ellipsis")
            )
        return drawn(*parts, width=width, err=True)

    def _row_of(self, event: events.Moving) -> list[RenderableType]:
        there, beside = there_of(event), _left_words(self._figures.seconds_left(event.path))
        if event.state == "merging":
            beside = f"merging {percent(event.merged_bytes, event.size)}"
        elif event.state == "hashing" and event.hashed_bytes < event.size:
            beside = f"hashing {percent(event.hashed_bytes, event.size)}"
        rate, much = self._figures.bytes_per_second(event.path), f"{human_bytes(there)} of {human_bytes(event.size)}"
        return [_bar(there, event.size), much, _rate_words(rate), beside]


def total_words(figures: Figures) -> tuple[str, str, str, str]:
    """Say how many files, how much, how fast, how long."""
    planned = figures.planned
    return (
        f"{figures.over_files} of {events.count_of_files(planned.files)}",
        f"{human_bytes(figures.there_bytes)} of {human_bytes(planned.bytes)}",
        _rate_words(figures.bytes_per_second()),
        _left_words(figures.seconds_left()),
    )


def short_name(name: str, columns: int) -> str:
    """Return a name that fits: without its first folders, or else the begin and the end of its last segment, as names
    that are alike differ there."""
    name = shown(name)
    if cell_len(name) <= columns:
        return name
    last = name.rpartition("/")[2]
    if cell_len(last) < columns:
        return f"…{_end_of(name, columns - 1)}"
    begin = set_cell_size(last, columns // 2).rstrip()
    return f"{begin}…{_end_of(last, columns - cell_len(begin) - 1)}"


def _end_of(text: str, columns: int) -> str:
    while cell_len(text) > columns:
        text = text[1:]
    return text


def _rate_words(rate: float | None) -> str:
    return "" if rate is None else f"{human_bytes(round(rate))}/s"


def _left_words(seconds: float | None) -> str:
    return "" if seconds is None else f"{human_seconds(seconds)} left"


def _bar(there: int, size: int) -> ProgressBar:
    return ProgressBar(total=max(size, 1), completed=there if size else 1)
