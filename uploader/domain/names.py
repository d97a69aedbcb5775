"""The names of files and users, as people and programs give them. Checks them, and changes only their Unicode form."""

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

# Control characters (general category Cc, which never changes), line and paragraph separators, which can forge lines
# too, and characters that change the direction of text (Unicode Standard Annex #9, section 2).
CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def normalise_name(name: str) -> str:
    """Return the file name in NFC. Raises ValueError with the reason if it is not an acceptable relative path."""
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
    """Return the user id unchanged. Raises ValueError with the reason if it is invalid."""
    if not user_id:
        raise ValueError("is empty")
    if _SURROGATE.search(user_id):
        raise ValueError("is not valid Unicode")
    if len(user_id.encode()) > MAX_USER_ID_BYTES:
        raise ValueError(f"is longer than {MAX_USER_ID_BYTES} bytes")
    if "/" in user_id or CONTROL.search(user_id) or any(character.isspace() for character in user_id):
        raise ValueError("has white space, control characters or '/'")
    return user_id


# The position in a list ordered by name: a name, and the id of a file, because names repeat. A folder has an empty id.
Place = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder: the prefix of its files, their number and their bytes. `at_least`: not all files were counted."""

    name: str
    files: int
    bytes: int
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class Selection:
    """Files by their ids, and all files below some prefixes, without duplicates."""

    ids: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()

    @classmethod
    def of(cls, ids: Iterable[str], prefixes: Iterable[str]) -> "Selection":
        """Make a selection. Drop duplicates, and prefixes below another prefix. The ids keep their order."""
        least: list[str] = []
        for prefix in sorted(set(prefixes)):
            if not least or not prefix.startswith(least[-1]):
                least.append(prefix)
        return cls(tuple(dict.fromkeys(ids)), tuple(least))

    @property
    def digest(self) -> str:
        """Return a digest that does not depend on the order, to bind something to this selection."""
        return hashlib.sha256(json.dumps([sorted(self.ids), self.prefixes]).encode()).hexdigest()


# The first number for a name that is taken.
FIRST_NUMBER = 2
_NUMBERED = re.compile(r" \((\d{1,9})\)(?:\.[^./]*)?$")


def numbered(name: str, number: int) -> str:
    """Return the name with a number before its last suffix, as in `a (2).txt`. Shorten the name if it becomes too
    long."""
    folder = folder_of(name)
    segment = name[len(folder) :]
    dot = segment.rfind(".")
    suffix = segment[dot:] if 0 < dot < len(segment) - 1 else ""
    end = f" ({number}){suffix}"
    room_bytes = min(MAX_SEGMENT_BYTES, MAX_NAME_BYTES - len(folder.encode())) - len(end.encode())
    stem = segment.removesuffix(suffix).encode()[: max(room_bytes, 0)].decode(errors="ignore")
    if not stem and suffix:  # only the suffix is too long
        end = f" ({number})"
        room_bytes += len(suffix.encode())
        stem = segment.encode()[: max(room_bytes, 0)].decode(errors="ignore")
    return f"{folder}{stem}{end}"


def is_numbered(name: str, other: str) -> bool:
    """Return whether `other` is `name` with a number."""
    found = _NUMBERED.search(other)
    return found is not None and int(found[1]) >= FIRST_NUMBER and numbered(name, int(found[1])) == other


def begin_of_numbered(name: str) -> str:
    """Return the common beginning of all numbered forms of a name."""
    longest = numbered(name, 10**9)
    stem = longest[: longest.rfind(" (")]
    return f"{stem} (" if numbered(name, FIRST_NUMBER).startswith(f"{stem} (") else stem


def folders_of(name: str) -> list[str]:
    """Return the folders that contain a name, the highest first, without their slashes."""
    segments = name.rstrip("/").split("/")
    return ["/".join(segments[:depth]) for depth in range(1, len(segments))]


def folder_of(name: str) -> str:
    """Return the prefix of the folder that contains a file or folder; empty at the top."""
    return name[: name.rstrip("/").rfind("/") + 1]


def common_folder(names: Iterable[str]) -> str:
    """Return the deepest folder that contains all of these files or folders."""
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
