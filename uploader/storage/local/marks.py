"""Of which installation a data directory is: the file `installation`, and `installation.new` while a first start makes it.

The file has the version of everything on the disk, too: of maps, digests, and of what lies where. Runs in threads.

Several processes may start at once, and each may die at any line. So each file is written whole under a name of its own and
then linked, which the first one does: whoever comes later finds it. Only where somebody asks for it, one is renamed over it.
"""

import json
import re
from contextlib import suppress
from uuid import uuid4

from uploader.crashpoints import crash_point
from uploader.errors import ConfigurationError
from uploader.storage import disk
from uploader.storage.base import Marks, StoreName
from uploader.storage.disk import Root
from uploader.tasks import Pool

# The version of everything on the disk.
FORMAT = 2
MARK, PROPOSAL = "installation", "installation.new"

_MAX_BYTES = 4096
_ID = re.compile(r"[0-9a-f]{32}")
_DRAFT = re.compile(r"installation\.[0-9a-f]{32}")


class LocalMarks:
    """As `storage/base.py` has it."""

    store = StoreName("data directory", "UPLOADER_DATA", "is it mounted?")

    def __init__(self, root: Root, pool: Pool) -> None:
        self._files = _MarkFiles(root)
        self._pool = pool

    async def read(self) -> Marks:
        return await self._pool.run(self._files.read)

    async def propose(self, installation: str) -> str:
        return await self._pool.run(self._files.propose, installation)

    async def settle(self, installation: str) -> None:
        await self._pool.run(self._files.settle, installation)

    async def replace(self, installation: str) -> None:
        await self._pool.run(self._files.replace, installation)


class _MarkFiles:
    """Both files."""

    def __init__(self, root: Root) -> None:
        self._root = root

    def read(self) -> Marks:
        """Raises ConfigurationError."""
        try:
            self._root.open()
        except OSError as error:
            raise ConfigurationError(f"UPLOADER_DATA: it can't be opened: {error.strerror}") from error
        # In this order: a proposal goes once the mark is there, so one of the two is always seen.
        proposed, installation = self._read(PROPOSAL), self._read(MARK)
        return Marks(installation and installation[1], frozenset([proposed[1]] if proposed else ()))

    def propose(self, installation: str) -> str:
        """Returns what is proposed, or what is the mark already. Raises ConfigurationError."""
        self.read()
        self._write(PROPOSAL, installation)
        crash_point("installation.after_proposal")
        marks = self.read()
        if marks.installation is not None:  # another first start ended at this moment
            self._forget_proposal()
        return marks.installation or min(marks.proposed, default=installation)

    def settle(self, installation: str) -> None:
        """Raises ConfigurationError."""
        marks = self.read()
        if marks.installation is None:
            self._write(MARK, installation)
            crash_point("installation.after_mark")
        elif marks.proposed:
            self._root.sync()  # whoever made the mark may have died before it was durable
        else:
            if self._format() < FORMAT:
                self.replace(marks.installation)
            return
        self._forget_proposal()

    def _format(self) -> int:
        """The version that the mark says: an older one would let an older program in, to which tails are damage."""
        found = self._read(MARK)
        return FORMAT if found is None else found[0]

    def replace(self, installation: str) -> None:
        """Raises ConfigurationError."""
        self.read()
        draft = self._write_draft(installation)
        self._root.rename(draft, MARK)
        self._root.sync()
        self._forget_proposal()

    def _write(self, name: str, installation: str) -> None:
        draft = self._write_draft(installation)
        # Without the draft, too, somebody was faster: who ends a first start takes all drafts away.
        with suppress(FileExistsError, FileNotFoundError):
            self._root.link(draft, self._root, name)
        self._root.unlink(draft)
        self._root.sync()

    def _write_draft(self, installation: str) -> str:
        draft = f"{MARK}.{uuid4().hex}"
        self._root.create(draft, json.dumps({"format": FORMAT, "id": installation}).encode())
        return draft

    def _forget_proposal(self) -> None:
        """And the drafts of those who died. Where a power cut brings it back, nobody asks for it."""
        for name in self._root.files():
            if name == PROPOSAL or _DRAFT.fullmatch(name):
                self._root.unlink(name)

    def _read(self, name: str) -> tuple[int, str] | None:
        """The version, and the installation."""
        try:
            descriptor = self._root.open_to_read(name)
        except FileNotFoundError:
            return None
        try:
            content = disk.read(descriptor, _MAX_BYTES, 0)
        finally:
            disk.close(descriptor)
        return _parse(name, content)


def _parse(name: str, content: bytes) -> tuple[int, str]:
    try:
        facts = json.loads(content)
        version, installation = int(facts["format"]), str(facts["id"])
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(f"UPLOADER_DATA: the file {name} in it is damaged: {_REPAIR}") from error
    if version > FORMAT:
        raise ConfigurationError(
            f"UPLOADER_DATA: it was written in format {version}, newer than this version's {FORMAT}: install a newer version"
        )
    if not _ID.fullmatch(installation):
        raise ConfigurationError(f"UPLOADER_DATA: the file {name} in it is damaged: {_REPAIR}")
    return version, installation


_REPAIR = "restore it from a backup, or remove it and run `uploader adopt`"
