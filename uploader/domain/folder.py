"""Folders: names are paths, and what some of them have in common, up to a slash, is one."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from uploader.domain.upload import File

# Where a list that is ordered by name goes on: a name, and the id of a file, because names repeat; of a folder it is empty.
Place = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Folder:
    """What lies below a prefix that ends with a slash."""

    name: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Selection:
    """Some files by their ids, and all that is below some prefixes: each once."""

    ids: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()

    @classmethod
    def of(cls, ids: Iterable[str], prefixes: Iterable[str]) -> "Selection":
        """Without what is there twice, or below another prefix; always in one order."""
        least: list[str] = []
        for prefix in sorted(set(prefixes)):
            if not least or not prefix.startswith(least[-1]):
                least.append(prefix)
        return cls(tuple(sorted(set(ids))), tuple(least))

    @property
    def digest(self) -> str:
        """The same for equal ones: for what is to be bound to one of them."""
        return hashlib.sha256(json.dumps([self.ids, self.prefixes]).encode()).hexdigest()


def folder_of(name: str) -> str:
    """The prefix of the folder that a name, or a folder, lies in; empty at the top."""
    return name[: name.rstrip("/").rfind("/") + 1]


def common_folder(names: Iterable[str]) -> str:
    """The deepest folder that names, or folders, all lie in."""
    folders = [folder_of(name).split("/")[:-1] for name in names]
    if not folders:
        return ""
    first, last = min(folders), max(folders)
    shared = 0
    while shared < min(len(first), len(last)) and first[shared] == last[shared]:
        shared += 1
    return "".join(f"{segment}/" for segment in first[:shared])


def place_of(found: Folder | File) -> Place:
    return found.name, found.id if isinstance(found, File) else ""
