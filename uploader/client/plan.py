"""Plans the chunks to send, their order and the names of files, from the answers of the server. Pure: no I/O, no clock.

A client remembers nothing between two runs. It finds the upload of a file again by a key computed from the file
(`resume_key`), and the rest of the upload in the server's list of missing chunks.
"""

import hashlib
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from uploader.client.errors import HiddenName, InvalidName
from uploader.client.model import IfExists
from uploader.client.system import is_device, why_not_here
from uploader.domain.names import CONTROL, normalise_name

# Files up to this size are sent without asking whether the server has them: asking costs as much.
SMALL_BYTES = 256 << 10
# Files up to this size are hashed before anything is sent, because an instant upload may save sending them.
HASH_FIRST_BYTES = 64 << 20

# From this size on, ask for space before reading a file.
ASK_FOR_ROOM_BYTES = 8 << 20

_SAMPLE_BLOCK_BYTES = 4096
_SAMPLE_BLOCKS = 256
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_NOWHERE = frozenset(("", ".", ".."))
# Characters that a filesystem of macOS ignores before a dot (HFS+, Unicode subtleties).
_IGNORED = "\u200c\u200d\u206a\u206b\u206c\u206d\u206e\u206f\ufeff"


def missing_numbers(missing: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Yield the chunk numbers of inclusive ranges, in rising order: the server hashes along the contiguous prefix."""
    for first, last in missing:
        yield from range(first, last + 1)


# Finding the changes costs both sides about four times as much as cutting the source here. And the measured rate
# includes work that both sides do anyway, mainly hashing, which costs twice as much as cutting.
_DELTA_TIMES = 6


def is_delta_faster(line_bytes_per_second: float, cutting_bytes_per_second: float) -> bool:
    """Return whether finding the changes takes less time than sending everything."""
    return line_bytes_per_second * _DELTA_TIMES < cutting_bytes_per_second


class Part(Struct, frozen=True):
    """A part of a body: the bytes of `head`, then `length` bytes of the source."""

    head: bytes
    offset: int
    length: int


class Queue:
    """The remaining chunks of an upload, handed out one by one.

    With `hold_last`, the last chunk is held back until `release`: the client sends the digests first, and the server
    can compare them before making a file.
    """

    def __init__(self, missing: Sequence[tuple[int, int]], *, hold_last: bool = False) -> None:
        self._numbers = deque(missing_numbers(missing))
        self._held = 1 if hold_last else 0

    def __len__(self) -> int:
        """Return the number of chunks not taken yet."""
        return len(self._numbers)

    def take(self) -> int | None:
        """Return the next chunk to send; None if there is none, or only the held one."""
        return self._numbers.popleft() if len(self) > self._held else None

    def release(self) -> None:
        self._held = 0


def sample_ranges(size: int) -> list[tuple[int, int]]:
    """Return offset and length of the blocks that represent a file of `size` bytes: 256 blocks of 4 KiB, evenly spread.

    They include the first and the last bytes, where most formats keep what distinguishes files.
    """
    if size <= _SAMPLE_BLOCK_BYTES * _SAMPLE_BLOCKS:
        return [(0, size)] if size else []
    last_offset = size - _SAMPLE_BLOCK_BYTES
    offsets = [number * last_offset // (_SAMPLE_BLOCKS - 1) for number in range(_SAMPLE_BLOCKS)]
    return [(offset, _SAMPLE_BLOCK_BYTES) for offset in offsets]


def resume_key(name: str, size: int, sample: bytes, attempt: int) -> str:
    """Return the Idempotency-Key for opening a large file, the same on every machine and in every run.

    The key comes from the name, the size and a sample of the content. Path and time of modification are left out,
    because a copy on another machine has others. A file changed in place usually has another sample. If not, the server
    finds at the merge that the digests differ, and the client starts anew. `attempt` counts the ended uploads under
    this key: a key stands for one upload.
    """
    facts = b"\n".join((b"uploader/put/1", name.encode(), str(size).encode(), sample))
    return f"put-{hashlib.sha256(facts).hexdigest()[:40]}-{attempt}"


def moment_of(modified_ns: int) -> datetime | None:
    """Return a time of modification, to the microsecond; None if no calendar has it."""
    try:
        return _EPOCH + timedelta(microseconds=modified_ns // 1000)
    except OverflowError:
        return None


def modified_ns_of(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND * 1000


def wishes(if_exists: IfExists, modified_ns: int | None) -> dict[str, str]:
    """Return the options of an upload, as members of a body or parameters of a query."""
    wished: dict[str, str] = {} if if_exists == "keep" else {"if_exists": if_exists}
    moment = None if modified_ns is None else moment_of(modified_ns)
    return wished if moment is None else wished | {"modified_at": moment.isoformat()}


def checked_name(name: str | None) -> str:
    """Return a name as the server keeps it. Raises InvalidName, to avoid hashing for an invalid name."""
    if name is None:
        raise InvalidName("what is uploaded has no name of its own: give one")
    try:
        return normalise_name(name)
    except ValueError as error:
        raise InvalidName(f"the name {name!r} {error}") from error


def checked_path(path: str) -> str:
    """Return a relative path that stays below its directory and is valid on this system. Raises InvalidName."""
    path = unicodedata.normalize("NFC", path)
    if "\0" in path or not _NOWHERE.isdisjoint(path.split("/")):
        raise InvalidName(f"the path {path!r} is not a relative path without empty, '.' or '..' segments")
    if (why := why_not_here(path)) is not None:
        raise InvalidName(f"Windows can't have a file {path!r}: it {why}")
    return path


def check_strangers_path(path: str) -> None:
    """Check a relative path that a stranger chose. Hidden files, which nobody sees, may configure programs; a device is
    no file; control characters can command a terminal. Raises HiddenName."""
    for name in path.split("/"):
        if name.lstrip(_IGNORED).startswith("."):
            raise HiddenName(f"left out, as {name!r} begins with a dot: --allow-hidden takes it")
        if is_device(name):
            raise HiddenName(f"left out, as {name!r} is the name of a device: --allow-hidden takes it")
        if CONTROL.search(name):
            raise HiddenName(f"left out, as {name!r} has control characters: --allow-hidden takes it")


def folders_of(path: str) -> Iterator[str]:
    """Yield the folders above a path, the nearest first."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def folder_name(folder: str) -> str:
    """Return the prefix of all names in a folder: it ends with a slash; empty for the top folder."""
    folder = unicodedata.normalize("NFC", folder).rstrip("/")
    return f"{folder}/" if folder else ""
