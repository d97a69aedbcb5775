"""Of which installation a store says that it is: how it comes to say so, in an order that a crash may break off anywhere.

Several processes may start at once, and each may die at any line. So a first start proposes, the database decides, and what
it has decided is settled in the store.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from uploader.errors import ConfigurationError, StorageFailed
from uploader.tasks import Pool

T = TypeVar("T")

MAX_MARK_BYTES = 4096
INSTALLATION_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Marks:
    """Of which installation a store says that it is."""

    installation: str | None
    # By first starts that are under way, or were interrupted: by one at the most, where that can be decided.
    proposed: frozenset[str]
    # Whether an older version has made the mark, which an older program would believe.
    is_outdated: bool = False


@dataclass(frozen=True, slots=True)
class StoreName:
    """What a store is called in messages to those who run the server."""

    # After "the".
    name: str
    # The setting that says where it is.
    setting: str
    # What to ask first where it should have something to say, and has not.
    question: str


class MarkFiles(ABC):
    """Where a store keeps its marks. In threads."""

    store: StoreName

    @abstractmethod
    def read(self) -> Marks:
        """The proposals first: one goes once the mark is there, so one of the two is always seen. Raises
        ConfigurationError."""

    @abstractmethod
    def propose(self, installation: str, marks: Marks) -> None:
        """Propose to be of an installation, durably; unless `marks`, which were just read, have a proposal that stands."""

    @abstractmethod
    def write(self, installation: str, *, replace: bool) -> None:
        """Be of an installation, durably; unless `replace`, only if it is of none yet, where a store can tell."""

    @abstractmethod
    def forget_proposals(self, *, is_durable: bool = True) -> None:
        """Propose nothing any more. Unless the mark `is_durable`, it is made so before: whoever wrote it may have died."""


class InstallationMark:
    """What a store says. May be asked before the store is prepared; all raise ConfigurationError if there is no place to say
    it, or a newer version has been here."""

    def __init__(self, files: MarkFiles, pool: Pool) -> None:
        self._files = files
        self._pool = pool

    @property
    def store(self) -> StoreName:
        """What the store is called."""
        return self._files.store

    async def read(self) -> Marks:
        """What it says now."""
        return await self._run(self._files.read)

    async def propose(self, installation: str) -> str:
        """Propose to be of an installation, durably, unless it is of one, or another one is proposed; returns which."""
        return await self._run(lambda: self._propose(installation))

    async def settle(self, installation: str) -> None:
        """Be of an installation, durably, if it is of none yet; nothing is proposed any more. Repeatable."""
        await self._run(lambda: self._settle(installation))

    async def replace(self, installation: str) -> None:
        """Be of an installation, durably, whatever it says now."""
        await self._run(lambda: self._replace(installation))

    async def _run(self, work: Callable[[], T]) -> T:
        """Raises ConfigurationError: without the store nothing starts."""
        try:
            return await self._pool.run(work)
        except StorageFailed as error:
            if error.inside is None:
                raise
            raise ConfigurationError(f"{self.store.setting}: {error.inside}") from error

    def _propose(self, installation: str) -> str:
        marks = self._files.read()
        if marks.installation is None:
            self._files.propose(installation, marks)
            marks = self._files.read()
            if marks.installation is not None and marks.proposed:  # another first start ended at this moment
                self._files.forget_proposals()
        return marks.installation or min(marks.proposed, default=installation)

    def _settle(self, installation: str) -> None:
        marks = self._files.read()
        if marks.installation is None:
            self._files.write(installation, replace=False)
        if marks.installation is None or marks.proposed:
            self._files.forget_proposals(is_durable=marks.installation is None)
        elif marks.is_outdated:
            self._replace(marks.installation)

    def _replace(self, installation: str) -> None:
        self._files.write(installation, replace=True)
        self._files.forget_proposals()


def mark_of(version: int, installation: str) -> bytes:
    """The content of a mark."""
    return json.dumps({"format": version, "id": installation}).encode()


def parse_mark(content: bytes) -> tuple[int, str] | None:
    """The version and the installation of a mark; None if it is damaged. The id of a newer version may be of any form."""
    try:
        facts = json.loads(content)
        return int(facts["format"]), str(facts["id"])
    except (ValueError, TypeError, KeyError):
        return None
