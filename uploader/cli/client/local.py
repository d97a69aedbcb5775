"""Which files here the words of a command line mean, below directories, too; and names that no server takes, as names that
each takes, and back.

What is refused of a name is written `%5C`, byte by byte, as in a URL. A `%` that could be read as such is written `%25`, so
that each encoded name is one name here, whatever else lies beside it.
"""

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from msgspec import Struct

from uploader.cli.client.events import RefusedName, Skipped
from uploader.cli.client.filters import Filters
from uploader.cli.terminal import shown_path
from uploader.client import LocalFile, Unreadable
from uploader.domain.names import CONTROL, normalise_name

# Also what stands for a byte that is no UTF-8 (PEP 383).
_REFUSED = re.compile(rf"{CONTROL.pattern}|\\|[\udc80-\udcff]|%(?=[0-9A-Fa-f]{{2}})")
_ENCODED = re.compile(rb"%([0-9A-F]{2})")

# Of what is not there: no calendar has it, so nothing is as old.
_NO_TIME_NS = 1 << 80


def encode_name(name: str) -> str:
    """A relative path as a server takes it, unless it is too long."""
    return _REFUSED.sub(lambda found: "".join(f"%{byte:02X}" for byte in _bytes(found[0])), name)


def decode_name(name: str) -> str:
    """The other way round: each part that `encode_name` could have made; any other is left as it is, so that nothing here
    becomes a slash, or two dots."""
    return "/".join(_decode_part(part) for part in name.split("/"))


def _decode_part(part: str) -> str:
    decoded = _ENCODED.sub(lambda found: bytes.fromhex(found[1].decode()), _bytes(part)).decode(
        "utf-8", "surrogateescape"
    )
    return decoded if encode_name(decoded) == part and "\0" not in decoded else part


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


class EmptyFolder(Struct, frozen=True):
    """A directory with nothing in it: a server keeps files alone."""

    path: str


Find = LocalFile | Skipped | EmptyFolder
# By the name that it would get, a folder with a slash at its end.
LeavesOut = Callable[[str], bool]


class FoundFiles(Struct):
    """What there is to upload, and what there is beside it."""

    files: list[LocalFile] = []
    # By the paths of files: the folder on the server that they come into with a directory of the command line.
    folders: dict[str | os.PathLike[str], str] = {}
    skipped: list[Skipped] = []
    empty: list[str] = []
    # Those whose names no server takes, and whether they were encoded before.
    refused: list[RefusedName] = []
    encoded: bool = False

    def add(self, each: Find, folder: str | None, encode: Callable[[str], str]) -> None:
        match each:
            case Skipped():
                self.skipped.append(each)
            case EmptyFolder():
                self.empty.append(each.path)
            case LocalFile():
                self._add_file(each, folder, encode)

    def _add_file(self, local: LocalFile, folder: str | None, encode: Callable[[str], str]) -> None:
        name = encode(local.name)
        try:
            normalise_name(name)
        except ValueError as error:
            self.refused.append(RefusedName(shown_path(local.path), str(error)))
            return
        self.files.append(local if name == local.name else replace(local, name=name))
        if folder is not None:
            self.folders[local.path] = folder


def find(
    paths: tuple[Path, ...], listed: Iterable[str], prefix: str, name: str | None, filters: Filters, *, encode: bool
) -> FoundFiles:
    """All of it. With `encode` names that no server takes are put into others; what the caller named stays as it is.

    `listed` are relative paths that files keep as their names; those that are not there are told when they are sent."""

    def encode_own(full: str) -> str:
        return prefix + encode_name(full.removeprefix(prefix)) if encode and name is None else full

    def leaves_out(full: str) -> bool:
        return filters.leave_out(full.removeprefix(prefix))

    found = FoundFiles(encoded=encode)
    for path in paths:
        folder = encode_own(prefix + _folder_of(path)) if path.is_dir() else None
        for each in _find_files(path, prefix, name, leaves_out):
            found.add(each, folder or None, encode_own)
    for text in listed:
        for each in _find_listed(text, prefix, leaves_out):
            found.add(each, None, encode_own)
    return found


def _find_files(path: Path, prefix: str, name: str | None, leaves_out: LeavesOut) -> Iterator[Find]:
    """Files under the names that they get, which begin with `prefix`; and what is no regular file."""
    if path.is_dir():
        yield from _walk(path, prefix + _folder_of(path), leaves_out)
    elif not leaves_out(full := prefix + (name or _own_name(path))):
        status = path.stat()
        yield LocalFile(path, full, status.st_size, status.st_mtime_ns)


def _find_listed(text: str, prefix: str, leaves_out: LeavesOut) -> Iterator[Find]:
    path = Path(text)
    if path.is_dir() and not path.is_symlink():
        yield from _walk(path, f"{prefix}{text}/", leaves_out)
    elif not leaves_out(prefix + text):
        try:
            yield LocalFile.at(path, prefix + text)
        except Unreadable:
            yield LocalFile(path, prefix + text, 0, _NO_TIME_NS)


def _own_name(path: Path) -> str:
    return path.name or path.resolve().name


def _folder_of(directory: Path) -> str:
    own_name = _own_name(directory)
    return f"{own_name}/" if own_name else ""


def _walk(directory: Path, prefix: str, leaves_out: LeavesOut) -> Iterator[Find]:
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError as error:
        yield Skipped(shown_path(directory), error.strerror or "can't be read")
        return
    if not entries:
        yield EmptyFolder(shown_path(directory))
    for entry in entries:
        path = directory / entry.name
        status = entry.stat(follow_symlinks=False)
        if leaves_out(prefix + entry.name + ("/" if stat.S_ISDIR(status.st_mode) else "")):
            continue
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(path, f"{prefix}{entry.name}/", leaves_out)
        elif stat.S_ISREG(status.st_mode):
            yield LocalFile(path, prefix + entry.name, status.st_size, status.st_mtime_ns)
        else:
            yield Skipped(shown_path(path), "a symbolic link" if entry.is_symlink() else "no regular file")
