"""How events reach whoever runs a client command: as words, as JSON lines, or hardly at all. Bars are in `bars.py`."""

import sys
import time
from types import TracebackType
from typing import Self

import click
import msgspec

from uploader.cli.client.showing.event_text import is_by_the_way, words_of
from uploader.cli.client.showing.events import (
    AnyEvent,
    Failed,
    Interrupted,
    Listed,
    ListedFolder,
    ListedUpload,
    ListedUsage,
    Moving,
    NamesRefused,
)

_JSON_INTERVAL_SECONDS = 0.5


class Reporter:
    """Shows events while it is entered."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            self.show(Interrupted())

    def show(self, event: AnyEvent) -> None:
        """A line for each event that matters to a person."""
        words = words_of(event)
        if words is not None:
            self._say(words, by_the_way=is_by_the_way(event))

    def _say(self, words: str, *, by_the_way: bool) -> None:
        click.echo(words, err=by_the_way)


class Quiet(Reporter):
    """What went wrong, and what was asked for."""

    def show(self, event: AnyEvent) -> None:
        if isinstance(event, Failed | NamesRefused | Listed | ListedFolder | ListedUpload | ListedUsage):
            super().show(event)


class JsonLines(Reporter):
    """One JSON object a line, all of them on standard output."""

    def __init__(self) -> None:
        self._told_at: dict[str, float] = {}

    def show(self, event: AnyEvent) -> None:
        if isinstance(event, Moving) and not self._is_due(event):
            return
        sys.stdout.write(msgspec.json.encode(event).decode() + "\n")
        sys.stdout.flush()

    def _is_due(self, event: Moving) -> bool:
        now = time.monotonic()
        due = now - self._told_at.get(event.path, float("-inf")) >= _JSON_INTERVAL_SECONDS
        if due:
            self._told_at[event.path] = now
        return due
