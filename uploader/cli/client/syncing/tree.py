"""What lies below a folder here."""

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from uploader.cli.client.local.filters import Filters
from uploader.client.transfers.partial import sha256_of


@dataclass(slots=True)
class Tree:
    """All by relative paths with slashes, as the disk has them."""

    root: Path
    files: dict[str, os.stat_result] = field(default_factory=dict)
    # What is neither a file nor a folder, and what it is.
    others: dict[str, str] = field(default_factory=dict)
    # Each before those in it.
    folders: list[str] = field(default_factory=list)
    # What could not be read, and why.
    unreadable: dict[str, str] = field(default_factory=dict)
    # Whether there is something that the filters leave out.
    filtered: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.files or self.filtered or self.unreadable)


def read_tree(root: Path, filters: Filters) -> Tree:
    """Blocking. Follows no symbolic link but the root itself; one that is not there has nothing in it."""
    tree = Tree(root)
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(root / folder) as entries:
                for entry in entries:
                    _read_entry(tree, folder, entry, filters, waiting)
        except FileNotFoundError:
            pass  # or not any more
        except OSError as error:
            tree.unreadable[folder] = error.strerror or "can't be read"
    return tree


def _read_entry(tree: Tree, folder: str, entry: "os.DirEntry[str]", filters: Filters, waiting: list[str]) -> None:
    path = f"{folder}/{entry.name}" if folder else entry.name
    is_folder = entry.is_dir(follow_symlinks=False)
    if filters.leave_out(f"{path}/" if is_folder else path):
        tree.filtered = True
        return
    if is_folder:
        tree.folders.append(path)
        waiting.append(path)
        return
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISREG(status.st_mode):
        tree.files[path] = status
    else:
        tree.others[path] = "a symbolic link" if entry.is_symlink() else "no regular file"


def has_content(path: str | os.PathLike[str], sha256: str) -> bool:
    """Blocking. What can't be read has another one."""
    try:
        return sha256_of(Path(path)) == sha256
    except OSError:
        return False
