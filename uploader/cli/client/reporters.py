"""How events reach whoever runs a client command: as words, as JSON lines, or hardly at all (bars are in `display.py`); and
how what happens to many files becomes events, each for itself, or those of a folder together."""

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Set
from dataclasses import asdict
from typing import Self

import click
import msgspec

from uploader.cli.client import events
from uploader.cli.client.events import Event
from uploader.cli.terminal import shown_path
from uploader.client import LocalFile, Outcome, Progress, Watcher

_JSON_INTERVAL_SECONDS = 0.5

# The folder whose line tells of a file, if it is not told of for itself.
FolderOf = Callable[[LocalFile], str | None]


class Reporter:
    """Shows events while it is entered."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, KeyboardInterrupt):
            self.show(events.Interrupted())

    def show(self, event: Event) -> None:
        """A line for each event that matters to a person."""
        if words := events.words_of(event):
            self._say(words, by_the_way=events.is_by_the_way(event))

    def _say(self, words: str, *, by_the_way: bool) -> None:
        click.echo(words, err=by_the_way)


class Quiet(Reporter):
    """What went wrong, and what was asked for."""

    def show(self, event: Event) -> None:
        listed = events.Listed | events.ListedFolder | events.ListedUpload | events.ListedUsage
        if isinstance(event, events.Failed | events.NamesRefused | listed):
            super().show(event)


class JsonLines(Reporter):
    """One JSON object a line, all of them on standard output."""

    def __init__(self) -> None:
        self._told_at: dict[str, float] = {}

    def show(self, event: Event) -> None:
        if isinstance(event, events.Moving):
            now = time.monotonic()
            if now - self._told_at.get(event.path, float("-inf")) < _JSON_INTERVAL_SECONDS:
                return
            self._told_at[event.path] = now
        sys.stdout.write(msgspec.json.encode(event).decode() + "\n")
        sys.stdout.flush()


class Count(msgspec.Struct):
    """Files that are over."""

    failed: int = 0
    replaced: int = 0
    bytes: int = 0
    hows: Counter[str] = msgspec.field(default_factory=Counter)

    @property
    def complete(self) -> int:
        return self.hows.total()

    def add(self, outcome: Outcome) -> None:
        if outcome.file is None:
            self.failed += 1
            return
        self.hows[outcome.how] += 1
        self.bytes += outcome.file.size
        self.replaced += len(outcome.replaced)

    def words(self) -> dict[str, int]:
        hows = {how: self.hows[how] for how in ("sent", "fetched", "instant", "present")}
        return {**hows, "failed": self.failed, "replaced": self.replaced, "bytes": self.bytes}


class FileTelling(Watcher):
    """Makes events of the files that begin and move, and keeps what a summary tells of all of them."""

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
    """Tells of what becomes of the files, too, and counts. Failures are told of each for itself."""

    def __init__(self, reporter: Reporter, folder_of: FolderOf = lambda _local: None) -> None:
        super().__init__(reporter)
        self._folder_of = folder_of
        self._all = Count()
        self._folders: dict[str, Count] = defaultdict(Count)
        self._moved: dict[str, int] = {}
        self._moved_bytes = 0

    @property
    def complete(self) -> int:
        return self._all.complete

    def moved(self, local: LocalFile, progress: Progress) -> None:
        self._moved[shown_path(local.path)] = progress.moved_bytes
        super().moved(local, progress)

    def ended(self, outcome: Outcome) -> None:
        path, folder = shown_path(outcome.local.path), self._folder_of(outcome.local)
        self._all.add(outcome)
        if folder is not None:
            self._folders[folder].add(outcome)
        if outcome.error is not None:
            self.codes.add(events.exit_code_of(outcome.error))
            self.reporter.show(events.failed(path, outcome.error))
        elif outcome.file is not None:
            sent_bytes = outcome.file.size if outcome.how in ("sent", "fetched") else 0
            self._moved.setdefault(path, sent_bytes)
            self.reporter.show(events.Completed(path, outcome.file, outcome.how, len(outcome.replaced), folder))
        self._moved_bytes += self._moved.pop(path, 0)

    def refused(self, refusal: events.Failed, code: int) -> None:
        """A file that is not even begun."""
        self._all.failed += 1
        self.codes.add(code)
        self.reporter.show(refusal)

    def sum_up(self, files: int, codes: Set[int] = frozenset()) -> int:
        """Tell how many of so many files came to what; the exit code, if other things ended with `codes`."""
        for folder, count in self._folders.items():
            self.reporter.show(events.FolderEnded(folder, count.complete + count.failed, **count.words()))
        code, seconds = events.worst_of(self.codes | codes), self.seconds
        summary = events.TransferSummary(
            files=files,
            complete=self._all.complete,
            left=max(0, files - self._all.complete - self._all.failed),
            seconds=seconds,
            exit_code=code,
            moved_bytes=self._moved_bytes,
            spared_bytes=self.spared_bytes,
            bytes_per_second=self._moved_bytes / seconds if seconds else None,
            **self._all.words(),
        )
        self.reporter.show(summary)
        return code


def moving(path: str, progress: Progress) -> events.Moving:
    return events.Moving(path, **asdict(progress))
