"""Plans what to send, in which order and under which name, from what the server says. Pure: no I/O, no clock.

Nothing is remembered between two runs of a client. Which upload a file belongs to is found again by a key that the file
itself yields (`resume_key`), and what is left of it by the server's list of missing chunks.
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

# Up to this size a file is sent without a question: asking whether its bytes can be spared costs as much.
SMALL_BYTES = 256 << 10
# Up to this size a file is hashed before anything is sent, because instant upload may save sending it.
HASH_FIRST_BYTES = 64 << 20

# From this size on it is worth a question whether there is room for a file, before it is read.
ASK_FOR_ROOM_BYTES = 8 << 20

_SAMPLE_BLOCK_BYTES = 4096
_SAMPLE_BLOCKS = 256
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_NOWHERE = frozenset(("", ".", ".."))
# Characters before a dot that a filesystem of macOS leaves out of account (HFS+, Unicode subtleties).
_IGNORED = "\u200c\u200d\u206a\u206b\u206c\u206d\u206e\u206f\ufeff"


def missing_numbers(missing: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Yield the chunk numbers of inclusive ranges, in rising order: the server hashes along the contiguous prefix."""
    for first, last in missing:
        yield from range(first, last + 1)


# To find what changed takes both sides about four times what it takes to cut the source here. And the rate at which all is
# sent has in it what both sides do in any case, above all hash it, which takes twice that.
_DELTA_TIMES = 6


def is_delta_faster(line_bytes_per_second: float, cutting_bytes_per_second: float) -> bool:
    """Tell whether to find what changed takes less time than to send everything."""
    return line_bytes_per_second * _DELTA_TIMES < cutting_bytes_per_second


class Part(Struct, frozen=True):
    """Some bytes of a body: these, and then so many of the source."""

    head: bytes
    offset: int
    length: int


class Queue:
    """The chunks that one upload still has to send, handed out one by one.

    With `hold_last` the last of them is kept back until `release`: it waits for the digests, so that the server can
    compare before it makes a file of the bytes.
    """

    def __init__(self, missing: Sequence[tuple[int, int]], *, hold_last: bool = False) -> None:
        self._numbers = deque(missing_numbers(missing))
        self._held = 1 if hold_last else 0

    def __len__(self) -> int:
        """Return how many were not taken yet."""
        return len(self._numbers)

    def take(self) -> int | None:
        """Return the next chunk to send; None if there is none, or only the one that is held."""
        return self._numbers.popleft() if len(self) > self._held else None

    def release(self) -> None:
        self._held = 0


def sample_ranges(size: int) -> list[tuple[int, int]]:
    """Offset and length of the blocks that stand for a file of `size` bytes: 256 blocks of 4 KiB, evenly spread.

    The first and the last bytes are among them, where most formats keep what tells one file from another.
    """
    if size <= _SAMPLE_BLOCK_BYTES * _SAMPLE_BLOCKS:
        return [(0, size)] if size else []
    last_offset = size - _SAMPLE_BLOCK_BYTES
    offsets = [number * last_offset // (_SAMPLE_BLOCKS - 1) for number in range(_SAMPLE_BLOCKS)]
    return [(offset, _SAMPLE_BLOCK_BYTES) for offset in offsets]


def resume_key(name: str, size: int, sample: bytes, attempt: int) -> str:
    """Return the Idempotency-Key under which a large file is opened, the same on every machine and in every run.

    It is made from the name, the size and a sample of the content, and not from the path or the time of modification:
    a copy on another machine has others. A file that was changed in place has another sample, most of the time; if not,
    the server finds at the merge that the digests differ, and the client starts anew. `attempt` counts the uploads
    under this key that have ended: a key stands for one upload.
    """
    facts = b"\n".join((b"uploader/put/1", name.encode(), str(size).encode(), sample))
    return f"put-{hashlib.sha256(facts).hexdigest()[:40]}-{attempt}"


def moment_of(modified_ns: int) -> datetime | None:
    """Return a file's time of modification as it is told, to the microsecond; None if it is none that a calendar has."""
    try:
        return _EPOCH + timedelta(microseconds=modified_ns // 1000)
    except OverflowError:
        return None


def modified_ns_of(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND * 1000


def wishes(if_exists: IfExists, modified_ns: int | None) -> dict[str, str]:
    """Return the wishes of an upload beyond its bytes, as members of a body or parameters of a query."""
    wished: dict[str, str] = {} if if_exists == "keep" else {"if_exists": if_exists}
    moment = None if modified_ns is None else moment_of(modified_ns)
    return wished if moment is None else wished | {"modified_at": moment.isoformat()}


def checked_name(name: str | None) -> str:
    """Return the name as the server keeps it. Raises InvalidName, so that nothing is hashed for a name that is refused."""
    if name is None:
        raise InvalidName("what is uploaded has no name of its own: give one")
    try:
        return normalise_name(name)
    except ValueError as error:
        raise InvalidName(f"the name {name!r} {error}") from error


def checked_path(path: str) -> str:
    """Return a relative path that leads nowhere but below, and that the system can have. Raises InvalidName."""
    path = unicodedata.normalize("NFC", path)
    if "\0" in path or not _NOWHERE.isdisjoint(path.split("/")):
        raise InvalidName(f"the path {path!r} is not a relative path without empty, '.' or '..' segments")
    if (why := why_not_here(path)) is not None:
        raise InvalidName(f"Windows can't have a file {path!r}: it {why}")
    return path


def check_strangers_path(path: str) -> None:
    """Check a relative path that a stranger chose: programs obey hidden files that nobody sees, a device is no file, and a
    terminal obeys controls. Raises HiddenName."""
    for name in path.split("/"):
        if name.lstrip(_IGNORED).startswith("."):
            raise HiddenName(f"left out, as {name!r} begins with a dot: --allow-hidden takes it")
        if is_device(name):
            raise HiddenName(f"left out, as {name!r} is the name of a device: --allow-hidden takes it")
        if CONTROL.search(name):
            raise HiddenName(f"left out, as {name!r} has control characters: --allow-hidden takes it")


def folders_of(path: str) -> Iterator[str]:
    """Yield the folders that it lies in, the nearest one first."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def folder_name(folder: str) -> str:
    """Return the prefix of the names of all files in the folder: it ends with a slash; empty for the top folder."""
    folder = unicodedata.normalize("NFC", folder).rstrip("/")
    return f"{folder}/" if folder else ""
