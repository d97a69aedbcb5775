"""Finds the files of this machine that a command line names, below directories, too; and turns names that no server takes
into names that each takes, and back.

What is refused of a name is written `%5C`, byte by byte, as in a URL. A `%` that could be read as such is written `%25`, so
that each encoded name is one name here, whatever else lies beside it.
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

# Also what stands for a byte that is no UTF-8 (PEP 383).
_REFUSED = re.compile(rf"{CONTROL.pattern}|\\|[\udc80-\udcff]|%(?=[0-9A-Fa-f]{{2}})")
_ENCODED = re.compile(rb"%([0-9A-F]{2})")

# Of what is not there: no calendar has it, so nothing is as old.
_NO_TIME_NS = 1 << 80


def encode_name(name: str) -> str:
    """Return a relative path as a server takes it, unless it is too long."""
    return _REFUSED.sub(lambda found: "".join(f"%{byte:02X}" for byte in _bytes(found[0])), name)


def decode_name(name: str) -> str:
    """Undo `encode_name` for each part that it could have made; any other is left as it is, so that nothing here
    becomes a slash, or two dots."""
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
    # By the paths of files: the folder on the server that they come into with a directory of the command line.
    folders: dict[str | os.PathLike[str], str] = {}
    skipped: list[Skipped] = []
    # The names on the server of directories in which there is nothing to upload.
    empty: list[str] = []
    # Those whose names no server takes, and whether they were encoded before.
    refused: list[RefusedName] = []
    encoded: bool = False


class Above(Struct, frozen=True):
    """The directories that a path lies in, by what the system knows them by: a link to one of them leads in a circle."""

    paths: dict[tuple[int, int], Path] = {}

    def below(self, path: Path, status: os.stat_result) -> "Above":
        return Above(self.paths | {(status.st_dev, status.st_ino): path})

    def circle(self, status: os.stat_result) -> str | None:
        """Say where a link leads to that leads to one of them."""
        found = self.paths.get((status.st_dev, status.st_ino))
        return None if found is None else f"a symbolic link to {shown_path(found)}, which it lies in"


def look_at(entry: "os.DirEntry[str]", above: Above, *, follows: bool) -> os.stat_result | str:
    """Return the status of a file or a directory, of what a link leads to if it `follows`; else say what it is. Raises
    OSError."""
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
    """All by relative paths with slashes, as the disk has them."""

    root: Path
    files: dict[str, os.stat_result] = field(default_factory=dict)
    # What is neither a file nor a folder, or is not followed, and what it is.
    others: dict[str, str] = field(default_factory=dict)
    # Each before those in it.
    folders: list[str] = field(default_factory=list)
    # Of them, those in which the filters leave something out: nobody knows that they are empty.
    veiled: set[str] = field(default_factory=set)
    # What could not be read, and why.
    unreadable: dict[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.files or self.veiled or self.unreadable)

    def empty_folders(self) -> list[str]:
        """Return those in which there is nothing to move."""
        filled = {*self.unreadable, *self.veiled, *(folder for path in self.files for folder in folders_of(path))}
        filled |= {folder for path in self.folders for folder in folders_of(path)}
        return [folder for folder in self.folders if folder not in filled]


def read_tree(root: Path, filters: Filters, prefix: str = "", *, follows: bool = False) -> Tree:
    """Blocking. The filters take paths behind `prefix`. Follows no symbolic link but the root itself, unless told, and never
    one that leads in a circle; a root that is not there has nothing in it."""
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
            pass  # or not any more
        except OSError as error:
            tree.unreadable[folder] = error.strerror or "can't be read"
    return tree


def _read_entry(
    tree: Tree, path: str, entry: os.DirEntry[str], filters: Filters, prefix: str, above: Above, *, follows: bool
) -> bool:
    """Return True for a folder that is to be read, too."""
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
    """Under names that begin with `prefix`. With `encode` names that no server takes are put into others; what the
    caller named stays as it is. With `follows` links below directories are what they lead to.

    `listed` are relative paths that files keep as their names; those that are not there are told when they are sent."""
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
        """Tell by the name that it would get, a folder's with a slash at its end."""
        return self.filters.leave_out(name.removeprefix(self.prefix))

    def add(self, local: LocalFile, folder: str = "") -> None:
        name = self.encoded(local.name)
        if not self.is_taken(local.path, name):
            return
        self.found.files.append(local if name == local.name else replace(local, name=name))
        if folder:
            self.found.folders[local.path] = folder

    def is_taken(self, path: str | os.PathLike[str], name: str) -> bool:
        """Note a name that no server takes."""
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
