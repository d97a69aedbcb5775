"""What a person sees on a terminal while files move: a bar for each that moves by itself, and one for all. What is said
stays above them."""

import os
import stat
import sys
import time
from datetime import datetime, timedelta
from types import TracebackType

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from uploader.cli.client.showing.event_text import count_of_files, summary_of, without_control
from uploader.cli.client.showing.events import AnyEvent, Moving, Retrying, Started, TransferSummary
from uploader.cli.client.showing.figures import Figures, Waiting, there_of
from uploader.cli.client.showing.live import Live
from uploader.cli.client.showing.reporters import Reporter
from uploader.cli.readable import human_bytes, human_seconds, percent

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


def reporter_of_terminal() -> Reporter:
    """For a person whose standard error is a terminal. Beside a pipe there are no bars: whoever reads it may write to the
    same terminal, at any time."""
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown") or not _is_own_terminal():
        return Steps()
    return Bars()


def _is_own_terminal() -> bool:
    """Whether nobody else writes to the terminal for us."""
    try:
        stdout, stderr = os.fstat(sys.stdout.fileno()), os.fstat(sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):  # it is closed
        return False
    if sys.stdout.isatty():
        return stdout.st_rdev == stderr.st_rdev
    return stat.S_ISREG(stdout.st_mode) or stat.S_ISCHR(stdout.st_mode)


class Steps(Reporter):
    """Where there is no place for bars: how far all is, every ten seconds, in a line."""

    def __init__(self) -> None:
        self._figures = Figures()
        self._told_at = time.monotonic()
        self._sampled_at = 0.0

    def show(self, event: AnyEvent) -> None:
        self._figures.take(event)
        now = time.monotonic()
        if now - self._sampled_at > 1:
            self._figures.sample()
            self._sampled_at = now
        if isinstance(event, Moving) and now - self._told_at >= _STEP_SECONDS:
            self._told_at = now
            words = ", ".join(word for word in total_words(self._figures) if word)
            self._say(f"uploader: {words}", by_the_way=True)
        super().show(event)


class Bars(Reporter):
    """Begins with the first file; other commands never see a bar."""

    def __init__(self) -> None:
        self._figures = Figures()
        self._live = Live(self._lines)
        self._console = Console(stderr=True, highlight=False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        super().__exit__(kind, error, trace)

    def show(self, event: AnyEvent) -> None:
        with self._live.lock:
            waited = self._figures.waiting()
            self._figures.take(event)
            waited_seconds = waited.seconds if waited is not None and self._figures.waiting() is None else 0.0
            if waited_seconds > _OUTAGE_SECONDS:
                self._say(f"uploader: going on, after {human_seconds(waited_seconds)}", by_the_way=True)
            if isinstance(event, TransferSummary):
                self._say(summary_of(event), by_the_way=True)
            else:
                super().show(event)
        if not self._live.is_started and self._is_begin(event):
            self._live.start()

    def _is_begin(self, event: AnyEvent) -> bool:
        """Whether there is something to look at from now on."""
        if isinstance(event, Started):
            # Unless the terminal gets the content of the file itself.
            return event.path != STDOUT or not sys.stdout.isatty()
        return isinstance(event, Retrying) and self._figures.planned.files > 0

    def _say(self, words: str, *, by_the_way: bool) -> None:
        self._live.print_above(words, sys.stderr if by_the_way else sys.stdout)

    # What is drawn

    def _lines(self, width: int, height: int) -> list[str]:
        """All of them, none longer than the terminal is wide."""
        self._figures.sample()
        moving = list(self._figures.moving.values())
        room = max(0, min(height - _OTHER_LINES, _MOST_BARS))
        cells = range(len(_CELL_COLUMNS)) if width >= _NARROW_COLUMNS else _NARROW_CELLS
        name_columns = max(1, width - sum(_CELL_COLUMNS[cell] + 1 for cell in cells))
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(width=name_columns, no_wrap=True, overflow="ellipsis")
        for cell in cells:
            table.add_column(width=_CELL_COLUMNS[cell], justify="right", no_wrap=True)
        rows: list[list[RenderableType]] = [
            [_end_of(event.name, name_columns), *self._row_of(event)] for event in moving[:room]
        ]
        if len(moving) > room:
            rows.append([f"and {len(moving) - room} more", *([""] * len(_CELL_COLUMNS))])
        if self._figures.planned.files > 1 or not moving:
            name, *words = total_words(self._figures)
            rows.append([name, _bar(self._figures.there_bytes, self._figures.planned.bytes), *words])
        for first, *others in rows:
            table.add_row(first, *(others[cell] for cell in cells))
        self._console.width = width
        with self._console.capture() as captured:
            self._console.print(table)
            waiting = self._figures.waiting()
            if waiting is not None:
                self._console.print(_waiting_words(waiting), no_wrap=True, overflow="ellipsis", crop=True)
        return captured.get().splitlines()

    def _row_of(self, event: Moving) -> list[RenderableType]:
        there = there_of(event)
        rate, left = self._figures.bytes_per_second(event.path), self._figures.seconds_left(event.path)
        return [
            _bar(there, event.size),
            f"{human_bytes(there)} of {human_bytes(event.size)}",
            _rate_words(rate),
            _beside(event) or _left_words(left),
        ]


def total_words(figures: Figures) -> tuple[str, str, str, str]:
    """How many files, how much, how fast, how long."""
    planned = figures.planned
    return (
        f"{figures.over_files} of {count_of_files(planned.files)}",
        f"{human_bytes(figures.there_bytes)} of {human_bytes(planned.bytes)}",
        _rate_words(figures.bytes_per_second()),
        _left_words(figures.seconds_left()),
    )


def _end_of(name: str, columns: int) -> Text:
    """A name whose end alone fits, which tells more of a path than its beginning."""
    name = without_control(name)
    if cell_len(name) <= columns:
        return Text(name)
    while cell_len(name) >= columns:
        name = name[1:]
    return Text(f"…{name}")


def _rate_words(rate: float | None) -> str:
    return "" if rate is None else f"{human_bytes(round(rate))}/s"


def _left_words(seconds: float | None) -> str:
    return "" if seconds is None else f"{human_seconds(seconds)} left"


def _waiting_words(waiting: Waiting) -> Text:
    since = datetime.now().astimezone() - timedelta(seconds=waiting.seconds)
    words = f"waiting for the server since {since:%H:%M:%S}, for {human_seconds(waiting.seconds)}: {waiting.why}"
    return Text(without_control(words), style="yellow")


def _bar(there: int, size: int) -> ProgressBar:
    return ProgressBar(total=max(size, 1), completed=there if size else 1)


def _beside(event: Moving) -> str:
    """What goes on beside the sending."""
    if event.state == "merging":
        return f"merging {percent(event.merged_bytes, event.size)}"
    if event.state == "hashing" and event.hashed_bytes < event.size:
        return f"hashing {percent(event.hashed_bytes, event.size)}"
    return ""
