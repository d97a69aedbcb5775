"""What is in every archive: who has which files, and which uploads are open."""

import json
import re
import tarfile
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tests.support.content import KIB, Content

DIRECTORY = Path(__file__).parent
VERSIONS = sorted(path.name.removesuffix(".tar.xz") for path in DIRECTORY.glob("*.tar.xz"))
_CHUNK_SIZE = 64 * KIB


@dataclass(frozen=True)
class Printed(Content):
    """Bytes that take no room in an archive."""

    @cached_property
    def data(self) -> bytes:
        line = f"{self.name} {self.seed}\n".encode()
        return (line * (self.size // len(line) + 1))[: self.size]


def _content(name: str, chunks: int) -> Printed:
    return Printed(chunks * _CHUNK_SIZE - 1000, chunks, _CHUNK_SIZE, name)


SHARED = _content("shared by two.txt", 3)
OWN = _content("own.txt", 2)
FLIPPED = _content("flipped.txt", 2)

# What users have, in order; the second time a user has a content, it was instant.
FILES = {
    "owner": [_content("the owner's.txt", 1)],
    "alice": [SHARED, OWN],
    "bob": [SHARED, _content("bob's.txt", 4), _content("bob's.txt", 4)],
    "carol": [FLIPPED],
}

OLD = _content("of last month.txt", 3)
SOME = _content("some chunks.txt", 5)
NONE = _content("no chunk yet.txt", 2)
FULL = _content("complete, not merged.txt", 3)
DAMAGED = _content("damaged.txt", 4)

# The open uploads of users, with the chunks that are there.
OPEN: dict[str, dict[Printed, list[int]]] = {
    "alice": {OLD: [1], SOME: [0, 1, 3], NONE: []},
    "bob": {FULL: [0, 1, 2]},
    "carol": {DAMAGED: [0, 2]},
}


@dataclass(frozen=True)
class Held:
    """What differs from archive to archive: it lies in `held.json` beside the data directory."""

    tokens: dict[str, str] = field(default_factory=dict)
    usage: dict[str, dict[str, int]] = field(default_factory=dict)
    damaged_upload: str = ""


def unpack(version: str, directory: Path) -> Held:
    """Put the data directory of a version at `directory`/data, as if it had been written just now."""
    with tarfile.open(DIRECTORY / f"{version}.tar.xz") as archive:
        archive.extractall(directory, filter=_touched)
    return Held(**json.loads((directory / "held.json").read_text()))


def _touched(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
    """Idle uploads expire by the time of their maps, and these are to live."""
    safe = tarfile.data_filter(member, path)
    return safe.replace(mtime=None, deep=False)  # type: ignore[arg-type]


def pack(version: str, directory: Path) -> Path:
    """Make the archive of `directory`, without what each start makes anew."""
    path = DIRECTORY / f"{version}.tar.xz"
    with tarfile.open(path, "x:xz", preset=9) as archive:
        for name in ("held.json", "data"):
            archive.add(directory / name, name, filter=_packed)
    return path


def _packed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if re.fullmatch(r"data/(metrics|spool|uploader\.db-shm|redis/(r\.sock|lock|server\.log))(/.*)?", member.name):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
