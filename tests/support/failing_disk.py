"""A disk that fails for a while, in processes that were started with its `settings` (`failing_disk.c`)."""

import errno
import subprocess
from pathlib import Path

_SYNCS = 1000  # as in the source
_SOURCE = Path(__file__).with_suffix(".c")


class FailingDisk:
    """Needs a compiler, gcc."""

    has_failed = False  # ever

    def __init__(self, directory: Path) -> None:
        library, self._faults = directory / "failing_disk.so", directory / "faults"
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, _SOURCE], check=True)
        self.settings = {"TEST_PRELOAD": str(library), "TEST_DISK": str(self._faults)}

    def fail(self, *, reads: tuple[str, ...] = (), writes: tuple[str, ...] = (), syncs: tuple[str, ...] = ()) -> None:
        """Whatever reads or syncs an open file whose path has one of these parts is told EIO, whatever writes to one is
        told ENOSPC, until `heal`."""
        lines = [f"{errno.EIO} {part}" for part in reads] + [f"{errno.ENOSPC} {part}" for part in writes]
        lines += [f"{_SYNCS + errno.EIO} {part}" for part in syncs]
        draft = self._faults.with_suffix(".draft")
        draft.write_text("\n".join(lines))
        draft.replace(self._faults)
        self.has_failed = True

    def heal(self) -> None:
        self._faults.unlink(missing_ok=True)
