"""Finds the files that a command line names on this machine, also in directories. Encodes names that servers refuse, and
decodes them.

A refused character is written byte by byte in the form `%5C`, as in URLs. A `%` that could be mistaken for such an encoding
is written `%25`. Different names on this machine therefore stay different.
"""

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from msgspec import Struct

from uploader.cli.client.events import RefusedName, Skipped
from uploader.cli.client.filters import Filters
from uploader.cli.terminal import shown_path
from uploader.client import LocalFile, Unreadable
from uploader.client.plan import folders_of
from uploader.client.system import is_link, leads_elsewhere
from uploader.domain.names import CONTROL, normalise_name

# Includes the surrogates that stand for bytes outside UTF-8 (PEP 383).
_REFUSED = re.compile(rf"{CONTROL.pattern}|\\|[\udc80-\udcff]|%(?=[0-9A-Fa-f]{{2}})")
_ENCODED = re.compile(rb"%([0-9A-F]{2})")

# The time of a missing file: later than any calendar reaches; no file has this time.
_NO_TIME_NS = 1 << 80


def encode_name(name: str) -> str:
    """Encode a relative path for servers, which may still find it too long."""
    return _REFUSED.sub(lambda found: "".join(f"%{byte:02X}" for byte in _bytes(found[0])), name)


def decode_name(name: str) -> str:
    """Undo `encode_name` in each part that `encode_name` could have made. Other parts stay as they are, so a decoded part
    never contains a slash or becomes `..`."""
    return "/".join(_decode_part(part) for part in name.split("/"))


def _decode_part(part: str) -> str:
    decoded = _ENCODED.sub(lambda found: bytes.fromhex(found[1].decode()), _bytes(part)).decode(
        "utf-8", "surrogateescape"
    )
    return decoded if encode_name(decoded) == part and "\0" not in decoded else part


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


class FoundFiles(Struct):
    files: list[LocalFile] = []
    # By path: the folder on the server, for files that came with a directory of the command line.
    folders: dict[str | os.PathLike[str], str] = {}
    skipped: list[Skipped] = []
    # The names on the server of directories without anything to upload.
    empty: list[str] = []
    # Files with names that servers refuse; True if the names were encoded.
    refused: list[RefusedName] = []
    encoded: bool = False


class Above(Struct, frozen=True):
    """The directories above a path, by device and inode, to detect symbolic links that lead in a circle."""

    paths: dict[tuple[int, int], Path] = {}

    def below(self, path: Path, status: os.stat_result) -> "Above":
        return Above(self.paths | {(status.st_dev, status.st_ino): path})

    def circle(self, status: os.stat_result) -> str | None:
        """Describe a link to one of these directories; None for any other."""
        found = self.paths.get((status.st_dev, status.st_ino))
        return None if found is None else f"a symbolic link to {shown_path(found)}, which it lies in"


def look_at(entry: "os.DirEntry[str]", above: Above, *, follows: bool) -> os.stat_result | str:
    """Return the status of a file or directory; for a link its target's, if `follows`. Otherwise return a description.
    Raises OSError."""
    status = entry.stat(follow_symlinks=False)
    if is_link(status):
        if not follows:
            return "a symbolic link"
        try:
            status = Path(entry).stat()
        except OSError as error:
            return f"a symbolic link that leads nowhere ({error.strerror})"
        if (circle := above.circle(status)) is not None:
            return circle
    return status if stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode) else "no regular file"


@dataclass(slots=True)
class Tree:
    """The entries of a directory tree, by relative paths with slashes, with names as on disk."""

    root: Path
    files: dict[str, os.stat_result] = field(default_factory=dict)
    # Descriptions of entries that are neither file nor folder, or not followed.
    others: dict[str, str] = field(default_factory=dict)
    # Parents come before children.
    folders: list[str] = field(default_factory=list)
    # Folders with entries that the filters left out: they may not be empty.
    veiled: set[str] = field(default_factory=set)
    # The errors of folders that could not be read.
    unreadable: dict[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.files or self.veiled or self.unreadable)

    def empty_folders(self) -> list[str]:
        """Return the folders that contain nothing to move."""
        filled = {*self.unreadable, *self.veiled, *(folder for path in self.files for folder in folders_of(path))}
        filled |= {folder for path in self.folders for folder in folders_of(path)}
        return [folder for folder in self.folders if folder not in filled]


def read_tree(root: Path, filters: Filters, prefix: str = "", *, follows: bool = False) -> Tree:
    """Read a tree; blocks. Filters get paths with `prefix` before them. Follows the root if it is a symbolic link; other
    links only with `follows`, and never in a circle. A missing root counts as empty."""
    tree = Tree(root)
    waiting = [("", Above())]
    while waiting:
        folder, above = waiting.pop()
        here = root / folder
        try:
            above = above.below(here, here.stat())
            with os.scandir(here) as entries:
                for entry in entries:
                    path = f"{folder}/{entry.name}" if folder else entry.name
                    if _read_entry(tree, path, entry, filters, prefix, above, follows=follows):
                        waiting.append((path, above))
        except FileNotFoundError:
            pass  # deleted meanwhile, or a missing root
        except OSError as error:
            tree.unreadable[folder] = error.strerror or "can't be read"
    return tree


def _read_entry(
    tree: Tree, path: str, entry: os.DirEntry[str], filters: Filters, prefix: str, above: Above, *, follows: bool
) -> bool:
    """Add an entry to the tree. Return True for a folder that must be read, too."""
    try:
        found = look_at(entry, above, follows=follows)
    except FileNotFoundError:
        return False
    is_folder = not isinstance(found, str) and stat.S_ISDIR(found.st_mode)
    if filters.leave_out(f"{prefix}{path}/" if is_folder else prefix + path):
        tree.veiled.add(path.rpartition("/")[0])
    elif isinstance(found, str):
        tree.others[path] = found
    elif is_folder:
        tree.folders.append(path)
        return True
    else:
        tree.files[path] = found
    return False


def find(
    paths: tuple[Path, ...],
    listed: Iterable[str],
    prefix: str,
    name: str | None,
    filters: Filters,
    *,
    encode: bool,
    follows: bool = False,
) -> FoundFiles:
    """Find the files to upload; their names begin with `prefix`. `encode` encodes names that servers refuse, except a name
    that the caller gave. `follows` follows links below directories.

    `listed` are relative paths, which become the names. Missing listed files are reported when they would be sent.
    """
    encodes = encode and name is None
    finding = _Finding(prefix, filters, encodes=encodes, follows=follows, found=FoundFiles(encoded=encode))
    for path in paths:
        own_name = path.name or path.resolve().name
        if path.is_dir():
            folder = prefix + (f"{own_name}/" if own_name else "")
            finding.walk(path, folder, finding.encoded(folder))
        elif not finding.leaves_out(full := prefix + (name or own_name)):
            finding.add(LocalFile.at(path, full))
    for text in listed:
        finding.add_listed(Path(text), prefix + text)
    return finding.found


class _Finding(Struct):
    prefix: str
    filters: Filters
    encodes: bool
    follows: bool
    found: FoundFiles

    def encoded(self, name: str) -> str:
        return self.prefix + encode_name(name.removeprefix(self.prefix)) if self.encodes else name

    def leaves_out(self, name: str) -> bool:
        """Return True if the filters leave out a name on the server (a folder's ends with a slash)."""
        return self.filters.leave_out(name.removeprefix(self.prefix))

    def add(self, local: LocalFile, folder: str = "") -> None:
        name = self.encoded(local.name)
        if not self.is_taken(local.path, name):
            return
        self.found.files.append(local if name == local.name else replace(local, name=name))
        if folder:
            self.found.folders[local.path] = folder

    def is_taken(self, path: str | os.PathLike[str], name: str) -> bool:
        """Return True if servers accept the name; note a refused one."""
        try:
            normalise_name(name)
        except ValueError as error:
            self.found.refused.append(RefusedName(shown_path(path), str(error)))
            return False
        return True

    def add_empty(self, directory: Path, name: str) -> None:
        encoded = self.encoded(name)
        if name and not self.leaves_out(name) and self.is_taken(directory, encoded):
            self.found.empty.append(encoded)

    def add_listed(self, path: Path, name: str) -> None:
        if path.is_dir() and (self.follows or not leads_elsewhere(path)):
            self.walk(path, f"{name}/")
        elif not self.leaves_out(name):
            try:
                self.add(LocalFile.at(path, name))
            except Unreadable:
                self.add(LocalFile(path, name, 0, _NO_TIME_NS))

    def walk(self, directory: Path, name: str, folder: str = "") -> None:
        tree = read_tree(directory, self.filters, name.removeprefix(self.prefix), follows=self.follows)
        for path, why in sorted((tree.unreadable | tree.others).items()):
            self.found.skipped.append(Skipped(shown_path(directory / path), why))
        root = "" if directory == Path() else directory
        for path, status in sorted(tree.files.items()):
            here = os.path.join(root, path)  # noqa: PTH118 (text, for thousands a second)
            self.add(LocalFile(here, name + path, status.st_size, status.st_mtime_ns), folder)
        for path in sorted(tree.empty_folders()):
            self.add_empty(directory / path, name + path)
        if not tree.folders and tree.is_empty:
            self.add_empty(directory, name.rstrip("/"))
