"""What `sync` tells of what it does, and how it sums up."""

import time
from typing import Literal

from uploader.cli.client.connecting import exit_code_of, worst_of
from uploader.cli.client.naming.words import NoSuchFile
from uploader.cli.client.showing.events import Completed, Noted, Skipped, Started, SyncSummary, Would
from uploader.cli.client.showing.failures import failed
from uploader.cli.client.showing.reporters import Reporter
from uploader.cli.client.syncing.tree import Tree
from uploader.cli.client.telling import moving
from uploader.cli.readable import shown_path
from uploader.client import ClientError, LocalFile, Outcome, Progress, Unreadable, Watcher


class SourceEmpty(ClientError):
    """The source has no files at all."""

    code = "source-empty"


class SyncTelling(Watcher):
    """Tells of what is done, and counts. What a dry run would do counts as done."""

    def __init__(self, reporter: Reporter, folder: str | None, *, dry_run: bool) -> None:
        """`folder`: the word that all files come by, unless each is to be told of for itself."""
        self.reporter = reporter
        self.dry_run = dry_run
        self.files = self.moved_files = self.present = self.deleted = self.failed = self.bytes = 0
        self.codes: set[int] = set()
        self._spared_bytes: dict[str, int] = {}
        self._folder = folder
        self._started_at = time.monotonic()

    @property
    def left(self) -> int:
        """How many were not begun."""
        return max(0, self.files - self.moved_files - self.present - self.failed)

    def is_well(self, waiting: int = 0) -> bool:
        """Whether nothing failed, and no more is left than those that wait for something."""
        return not self.codes and self.left == waiting

    def begun(self, local: LocalFile) -> None:
        self.reporter.show(Started(shown_path(local.path), local.name, local.size))

    def moved(self, local: LocalFile, progress: Progress) -> None:
        path = shown_path(local.path)
        self._spared_bytes[path] = progress.spared_bytes
        self.reporter.show(moving(path, progress))

    def ended(self, outcome: Outcome) -> None:
        path = shown_path(outcome.local.path)
        if outcome.error is not None:
            self.fail(path, outcome.error)
        elif outcome.file is not None:
            self.present += outcome.how == "present"
            self.moved_files += outcome.how != "present"
            self.bytes += outcome.file.size if outcome.how in ("sent", "fetched") else 0
            self.reporter.show(Completed(path, outcome.file, outcome.how, folder=self._folder))

    def would(self, action: Literal["send", "replace", "fetch", "delete"], path: str, size: int) -> None:
        if action == "delete":
            self.deleted += 1
        else:
            self.moved_files += 1
            self.bytes += size
        self.reporter.show(Would(action, shown_path(path), size))

    def fail(self, path: str, error: ClientError, *, is_file: bool = True) -> None:
        """Of one file of the source, or of something else."""
        self.failed += is_file
        self.codes.add(exit_code_of(error))
        self.reporter.show(failed(shown_path(path), error))

    def unreadable(self, tree: Tree) -> None:
        for folder, why in tree.unreadable.items():
            path = shown_path(tree.root / folder)
            self.fail(path, Unreadable(f"{path}: {why}"), is_file=False)

    def skipped(self, tree: Tree) -> None:
        """What is neither sent nor deleted."""
        for path, reason in tree.others.items():
            self.reporter.show(Skipped(shown_path(tree.root / path), reason))

    def missing(self, path: str) -> None:
        """What was listed, and the source has not."""
        self.fail(path, NoSuchFile(f"there is no {shown_path(path)} in the source"), is_file=False)

    def spared(self, count: int) -> None:
        """So many would be deleted, if it were sure that the source has not got them."""
        self.reporter.show(Noted(f"not all went well, so none of {_files(count)} at the target is deleted"))

    def nothing_there(self, source: str, count: int) -> None:
        """An empty source is rather not mounted, or another one than was meant."""
        self.fail(
            source,
            SourceEmpty(f"the source has no files, so none of {_files(count)} at the target is deleted"),
            is_file=False,
        )

    def sum_up(self) -> int:
        """The exit code."""
        code = worst_of(self.codes)
        self.reporter.show(
            SyncSummary(
                files=self.files,
                moved=self.moved_files,
                present=self.present,
                deleted=self.deleted,
                failed=self.failed,
                left=self.left,
                bytes=self.bytes,
                seconds=time.monotonic() - self._started_at,
                dry_run=self.dry_run,
                exit_code=code,
                spared_bytes=sum(self._spared_bytes.values()),
            )
        )
        return code


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"
