"""The names that people and programs give: of files and of users. Checks them; never repairs more than Unicode form."""

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a short command takes as long to import as to run
    from uploader.domain.upload import File

MAX_NAME_BYTES = 1024
MAX_SEGMENT_BYTES = 255
MAX_USER_ID_BYTES = 255

# The general category Cc, which never changes; the line and paragraph separators, which forge lines as well as those do; and
# what changes the direction of the text around it (Unicode Standard Annex #9, section 2).
CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def normalise_name(name: str) -> str:
    """Return the file name in NFC. Raises ValueError, saying why, if it is no acceptable relative path."""
    if _SURROGATE.search(name):
        raise ValueError("is not valid Unicode")
    name = unicodedata.normalize("NFC", name)
    if not name:
        raise ValueError("is empty")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise ValueError(f"is longer than {MAX_NAME_BYTES} bytes")
    if "\\" in name:
        raise ValueError("has a backslash")
    if CONTROL.search(name):
        raise ValueError("has control characters")
    for segment in name.split("/"):
        if segment in ("", ".", ".."):
            raise ValueError("is not a relative path without empty, '.' or '..' segments")
        if len(segment.encode()) > MAX_SEGMENT_BYTES:
            raise ValueError(f"has a segment longer than {MAX_SEGMENT_BYTES} bytes")
    return name


def check_user_id(user_id: str) -> str:
    """Return the user id itself. Raises ValueError, saying why, if it is none."""
    if not user_id:
        raise ValueError("is empty")
    if _SURROGATE.search(user_id):
        raise ValueError("is not valid Unicode")
    if len(user_id.encode()) > MAX_USER_ID_BYTES:
        raise ValueError(f"is longer than {MAX_USER_ID_BYTES} bytes")
    if "/" in user_id or CONTROL.search(user_id) or any(character.isspace() for character in user_id):
        raise ValueError("has white space, control characters or '/'")
    return user_id


# Where a list that is ordered by name goes on: a name, and the id of a file, because names repeat; of a folder it is empty.
Place = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder, by the prefix of all that is in it, with how many files those are and their bytes; `at_least` these, if not
    all were counted."""

    name: str
    files: int
    bytes: int
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class Selection:
    """Some files by their ids, and all that is below some prefixes: each once."""

    ids: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()

    @classmethod
    def of(cls, ids: Iterable[str], prefixes: Iterable[str]) -> "Selection":
        """Make a selection without what is there twice, or below another prefix; of the ids in their order."""
        least: list[str] = []
        for prefix in sorted(set(prefixes)):
            if not least or not prefix.startswith(least[-1]):
                least.append(prefix)
        return cls(tuple(dict.fromkeys(ids)), tuple(least))

    @property
    def digest(self) -> str:
        """The same for equal ones, in whatever order: for what is to be bound to one of them."""
        return hashlib.sha256(json.dumps([sorted(self.ids), self.prefixes]).encode()).hexdigest()


# Of a name that is taken: its numbers, from this one on.
FIRST_NUMBER = 2
_NUMBERED = re.compile(r" \((\d{1,9})\)(?:\.[^./]*)?$")


def numbered(name: str, number: int) -> str:
    """Return a name with a number before its last suffix, `a (2).txt`; shortened where there is no room for that."""
    folder = folder_of(name)
    segment = name[len(folder) :]
    dot = segment.rfind(".")
    suffix = segment[dot:] if 0 < dot < len(segment) - 1 else ""
    end = f" ({number}){suffix}"
    room_bytes = min(MAX_SEGMENT_BYTES, MAX_NAME_BYTES - len(folder.encode())) - len(end.encode())
    stem = segment.removesuffix(suffix).encode()[: max(room_bytes, 0)].decode(errors="ignore")
    if not stem and suffix:  # the suffix is all that is long
        end = f" ({number})"
        room_bytes += len(suffix.encode())
        stem = segment.encode()[: max(room_bytes, 0)].decode(errors="ignore")
    return f"{folder}{stem}{end}"


def is_numbered(name: str, other: str) -> bool:
    """Return whether `other` is `name` with a number."""
    found = _NUMBERED.search(other)
    return found is not None and int(found[1]) >= FIRST_NUMBER and numbered(name, int(found[1])) == other


def begin_of_numbered(name: str) -> str:
    """Return how all names begin that are `name` with a number."""
    longest = numbered(name, 10**9)
    stem = longest[: longest.rfind(" (")]
    return f"{stem} (" if numbered(name, FIRST_NUMBER).startswith(f"{stem} (") else stem


def folders_of(name: str) -> list[str]:
    """Return the names of the folders that a name lies in, the highest first, without their slashes."""
    segments = name.rstrip("/").split("/")
    return ["/".join(segments[:depth]) for depth in range(1, len(segments))]


def folder_of(name: str) -> str:
    """Return the prefix of the folder that a name, or a folder, lies in; empty at the top."""
    return name[: name.rstrip("/").rfind("/") + 1]


def common_folder(names: Iterable[str]) -> str:
    """Return the deepest folder that names, or folders, all lie in."""
    folders = [folder_of(name).split("/")[:-1] for name in names]
    if not folders:
        return ""
    first, last = min(folders), max(folders)
    shared = 0
    while shared < min(len(first), len(last)) and first[shared] == last[shared]:
        shared += 1
    return "".join(f"{segment}/" for segment in first[:shared])


def place_of(found: "Folder | File") -> Place:
    return found.name, "" if isinstance(found, Folder) else found.id
