"""Reporters print the events of a client command: as text, as JSON lines, or only errors and results (`display.py` has
bars). Watchers turn what happens to files into events, per file or summed up per folder.
"""

import time
from collections.abc import Callable, Set
from dataclasses import asdict
from typing import Self

import msgspec

from uploader.cli.client import events
from uploader.cli.client.events import Event
from uploader.cli.terminal import say, shown_path
from uploader.client import LocalFile, Outcome, Progress, Watcher

_JSON_INTERVAL_SECONDS = 0.5


class Reporter:
    """Prints events as text. A context manager."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, KeyboardInterrupt):
            self.show(events.Interrupted())

    def show(self, event: Event) -> None:
        """Print the event's lines for people."""
        for line in event.lines():
            self._say(line, by_the_way=events.is_by_the_way(event))

    def _say(self, line: str, *, by_the_way: bool) -> None:
        say(line, err=by_the_way)


_LISTED = (events.Listed, events.ListedFolder, events.ListedUpload, events.ListedUsage, events.ListedLink)
_SHOWN_WHEN_QUIET = (events.Failed, events.NamesRefused, events.MadeLink, *_LISTED)


class Quiet(Reporter):
    """Prints errors and requested results only."""

    def show(self, event: Event) -> None:
        if isinstance(event, _SHOWN_WHEN_QUIET):
            super().show(event)


class JsonLines(Reporter):
    """Prints each event as a line of JSON on standard output."""

    def __init__(self) -> None:
        self._told_at: dict[str, float] = {}

    def show(self, event: Event) -> None:
        if isinstance(event, events.Moving):
            now = time.monotonic()
            if now - self._told_at.get(event.path, float("-inf")) < _JSON_INTERVAL_SECONDS:
                return
            self._told_at[event.path] = now
        say(msgspec.json.encode(event).decode())


class FileTelling(Watcher):
    """Reports begun and moving files, and collects figures for a summary."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self.codes: set[int] = set()
        self._began_at = time.monotonic()
        self._spared: dict[str, int] = {}

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began_at

    @property
    def spared_bytes(self) -> int:
        return sum(self._spared.values())

    def begun(self, local: LocalFile) -> None:
        self.reporter.show(events.Started(shown_path(local.path), local.name, local.size))

    def moved(self, local: LocalFile, progress: Progress) -> None:
        path = shown_path(local.path)
        self._spared[path] = progress.spared_bytes
        self.reporter.show(moving(path, progress))


class Telling(FileTelling):
    """Also reports and counts finished files. Failures are reported per file."""

    def __init__(self, reporter: Reporter, folder_of: Callable[[LocalFile], str | None] = lambda _local: None) -> None:
        """`folder_of` returns the folder whose summary replaces the line of a file, or None."""
        super().__init__(reporter)
        self._folder_of = folder_of
        self.sums = events.TransferSummary(files=0, complete=0, failed=0, left=0, bytes=0, seconds=0.0, exit_code=0)
        self._folders: dict[str, events.FolderEnded] = {}
        self._moved: dict[str, int] = {}

    def moved(self, local: LocalFile, progress: Progress) -> None:
        self._moved[shown_path(local.path)] = progress.moved_bytes
        super().moved(local, progress)

    def ended(self, outcome: Outcome) -> None:
        path, folder = shown_path(outcome.local.path), self._folder_of(outcome.local)
        _count(self.sums, outcome)
        self.sums.complete += outcome.file is not None
        if folder is not None:
            of_folder = self._folders.setdefault(folder, events.FolderEnded(folder, files=0, bytes=0))
            _count(of_folder, outcome)
            of_folder.files += 1
        if outcome.error is not None:
            self.codes.add(events.exit_code_of(outcome.error))
            self.reporter.show(events.failed(path, outcome.error))
        elif outcome.file is not None:
            sent_bytes = outcome.file.size if outcome.how in ("sent", "fetched") else 0
            self._moved.setdefault(path, sent_bytes)
            self.reporter.show(events.Completed(path, outcome.file, outcome.how, len(outcome.replaced), folder))
        self.sums.moved_bytes += self._moved.pop(path, 0)

    def refused(self, refusal: events.Failed, code: int) -> None:
        """Report a file that was not begun."""
        self.sums.failed += 1
        self.codes.add(code)
        self.reporter.show(refusal)

    def sum_up(self, files: int, codes: Set[int] = frozenset()) -> int:
        """Report the summary of `files` files; return the exit code, which includes `codes` of other work."""
        for of_folder in self._folders.values():
            self.reporter.show(of_folder)
        sums = self.sums
        sums.files, sums.seconds, sums.exit_code = files, self.seconds, events.worst_of(self.codes | codes)
        sums.left = max(0, files - sums.complete - sums.failed)
        sums.spared_bytes = self.spared_bytes
        sums.bytes_per_second = sums.moved_bytes / sums.seconds if sums.seconds else None
        self.reporter.show(sums)
        return sums.exit_code


def _count(sums: events.FolderEnded | events.TransferSummary, outcome: Outcome) -> None:
    if outcome.file is None:
        sums.failed += 1
        return
    sums.sent += outcome.how == "sent"
    sums.fetched += outcome.how == "fetched"
    sums.instant += outcome.how == "instant"
    sums.present += outcome.how == "present"
    sums.bytes += outcome.file.size
    sums.replaced += len(outcome.replaced)


def moving(path: str, progress: Progress) -> events.Moving:
    return events.Moving(path, **asdict(progress))
