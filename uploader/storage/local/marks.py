"""Of which installation a data directory is: the file `installation`, and `installation.new` while a first start makes it.

The file has the version of everything on the disk, too: of maps, digests, and of what lies where. Runs in threads.

Several processes may start at once, and each may die at any line. So each file is written whole under a name of its own and
then linked, which the first one does: whoever comes later finds it. Only where somebody asks for it, one is renamed over it.
"""

import re
from contextlib import suppress
from uuid import uuid4

from uploader.crashpoints import crash_point
from uploader.errors import ConfigurationError
from uploader.storage import disk
from uploader.storage.disk import Root
from uploader.storage.marks import INSTALLATION_ID, MAX_MARK_BYTES, MarkFiles, Marks, StoreName, mark_of, parse_mark

# The version of everything on the disk.
FORMAT = 2
MARK, PROPOSAL = "installation", "installation.new"

_DRAFT = re.compile(r"installation\.[0-9a-f]{32}")


class LocalMarks(MarkFiles):
    """Both files."""

    store = StoreName("data directory", "UPLOADER_DATA", "is it mounted?")

    def __init__(self, root: Root) -> None:
        self._root = root

    def read(self) -> Marks:
        try:
            self._root.open()
        except OSError as error:
            raise ConfigurationError(f"UPLOADER_DATA: it can't be opened: {error.strerror}") from error
        proposed, found = self._read(PROPOSAL), self._read(MARK)
        version, installation = found or (FORMAT, None)
        return Marks(installation, frozenset([proposed[1]] if proposed else ()), is_outdated=version < FORMAT)

    def propose(self, installation: str, marks: Marks) -> None:
        """Another one may be there that is not durable yet."""
        self._write(PROPOSAL, installation)
        crash_point("installation.after_proposal")

    def write(self, installation: str, *, replace: bool) -> None:
        """An older version in the mark would let an older program in, to which tails are damage."""
        if replace:
            self.read()
            self._root.rename(self._write_draft(installation), MARK)
            self._root.sync()
        else:
            self._write(MARK, installation)
            crash_point("installation.after_mark")

    def forget_proposals(self, *, is_durable: bool = True) -> None:
        """And the drafts of those who died. Where a power cut brings it back, nobody asks for it."""
        if not is_durable:
            self._root.sync()
        for name in self._root.files():
            if name == PROPOSAL or _DRAFT.fullmatch(name):
                self._root.unlink(name)

    def _write(self, name: str, installation: str) -> None:
        draft = self._write_draft(installation)
        # Without the draft, too, somebody was faster: who ends a first start takes all drafts away.
        with suppress(FileExistsError, FileNotFoundError):
            self._root.link(draft, self._root, name)
        self._root.unlink(draft)
        self._root.sync()

    def _write_draft(self, installation: str) -> str:
        draft = f"{MARK}.{uuid4().hex}"
        self._root.create(draft, mark_of(FORMAT, installation))
        return draft

    def _read(self, name: str) -> tuple[int, str] | None:
        """The version, and the installation."""
        try:
            descriptor = self._root.open_to_read(name)
        except FileNotFoundError:
            return None
        try:
            found = parse_mark(disk.read(descriptor, MAX_MARK_BYTES, 0))
        finally:
            disk.close(descriptor)
        if found is not None and found[0] > FORMAT:
            raise ConfigurationError(
                f"UPLOADER_DATA: it was written in format {found[0]}, newer than this version's {FORMAT}: install a newer "
                "version"
            )
        if found is None or not INSTALLATION_ID.fullmatch(found[1]):
            raise ConfigurationError(
                f"UPLOADER_DATA: the file {name} in it is damaged: restore it from a backup, or remove it and run "
                "`uploader adopt`"
            )
        return found
