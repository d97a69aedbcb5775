"""A disk that fails for a while, in processes that were started with its `settings` (`failing_disk.c`)."""

import errno
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_suffix(".c")
# Kinds of calls and an error for each state of a whole disk; the error 0 lets calls wait.
_STATES = {
    "away": dict.fromkeys("rwsn", errno.EIO),
    "full": {"w": errno.ENOSPC},
    "read-only": {"w": errno.EROFS, "n": errno.EROFS},
    "slow": dict.fromkeys("rwsn", 0),
}


class FailingDisk:
    """Needs a compiler, gcc."""

    has_failed = False  # ever

    def __init__(self, directory: Path) -> None:
        library, self._faults = directory / "failing_disk.so", directory / "faults"
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, _SOURCE], check=True)
        self.settings = {"TEST_PRELOAD": str(library), "TEST_DISK": str(self._faults)}

    def fail(self, *, reads: tuple[str, ...] = (), writes: tuple[str, ...] = (), syncs: tuple[str, ...] = ()) -> None:
        """Until `heal`, reads and syncs of open files whose path has one of these parts are told EIO, writes ENOSPC."""
        lines = [f"r {errno.EIO} {part}" for part in reads] + [f"w {errno.ENOSPC} {part}" for part in writes]
        self._set([*lines, *(f"s {errno.EIO} {part}" for part in syncs)])

    def become(self, state: str, part: str) -> None:
        """Until `heal`, all files whose path has this part are on a disk that is `away`, `full`, `read-only` or `slow`."""
        self._set([f"{kind} {error} {part}" for kind, error in _STATES[state].items()])

    def _set(self, lines: list[str]) -> None:
        draft = self._faults.with_suffix(".draft")
        draft.write_text("\n".join(lines))
        draft.replace(self._faults)
        self.has_failed = True

    def heal(self) -> None:
        self._faults.unlink(missing_ok=True)
