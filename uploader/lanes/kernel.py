"""The compiled kernel: advances MD5 states of OpenSSL, each by pieces of its own, all of them at once.

It is called through ctypes, which lets go of the GIL, and knows nothing of Python: one library does for all of its versions.
A library that does not do as hashlib does is not used.
"""

import ctypes
import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

LIBRARY = Path(__file__).with_name("libmd5.so.1")

# MD5_CTX (md5.h): four words, how many bits were hashed, a block that is not full, how many bytes it has.
CONTEXT = struct.Struct("=4IQ64sI")
_BEGIN = (0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476)
_BLOCK_BYTES = 64
Context = ctypes.Array[ctypes.c_char]


class _Piece(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Job(ctypes.Structure):
    _fields_ = (("context", ctypes.c_void_p), ("pieces", ctypes.POINTER(_Piece)), ("count", ctypes.c_size_t))


@dataclass(frozen=True, slots=True)
class Kernel:
    """The code of the library for one kind of vectors."""

    kind: str
    lanes: int
    _library: ctypes.CDLL
    _number: int

    def update(self, jobs: Sequence[tuple[Context, Sequence[memoryview]]]) -> None:
        """Advance each context by its pieces. No context may be there twice."""
        lent: list[object] = []
        made = (_Job * len(jobs))(*(_job(context, pieces, lent) for context, pieces in jobs))
        self._library.uploader_md5_update(ctypes.c_size_t(self._number), made, ctypes.c_size_t(len(jobs)))


def _job(context: Context, pieces: Sequence[memoryview], lent: list[object]) -> _Job:
    """`lent`: takes what has to stay where it is."""
    made = (_Piece * len(pieces))(*(_piece(piece, lent) for piece in pieces))
    lent.append(made)
    return _Job(ctypes.addressof(context), made, len(pieces))


def _piece(piece: memoryview, lent: list[object]) -> _Piece:
    if not len(piece):
        return _Piece(None, 0)
    # ctypes refuses to borrow memory that is read-only.
    borrowed = ctypes.c_char.from_buffer(bytearray(piece) if piece.readonly else piece)
    lent.append(borrowed)
    return _Piece(ctypes.addressof(borrowed), len(piece))


@cache
def kernel() -> Kernel | None:
    """Return the best kernel that this processor has and that hashes right; None where there is no library."""
    return next((each for each in kernels(LIBRARY) if is_right(each)), None)


def in_force() -> tuple[str, int]:
    """Return the kind of the kernel, and how many contents it hashes at once."""
    found = kernel()
    return ("none", 1) if found is None else (found.kind, found.lanes)


def kernels(path: Path) -> Iterator[Kernel]:
    """Yield the kernels that this processor has, the best one first."""
    try:
        library = ctypes.CDLL(str(path))
        library.uploader_md5_kind.restype = ctypes.c_char_p
        library.uploader_md5_lanes.restype = ctypes.c_size_t
        library.uploader_md5_update.restype = None
    except (OSError, AttributeError):
        return
    number = 0
    while (kind := library.uploader_md5_kind(ctypes.c_size_t(number))) is not None:
        if lanes := library.uploader_md5_lanes(ctypes.c_size_t(number)):
            yield Kernel(kind.decode(), lanes, library, number)
        number += 1


def is_right(kernel: Kernel) -> bool:
    """Hash contents of many lengths, more than there are lanes, in two pieces and then a third."""
    content = bytearray(range(256)) * 2
    contents = [memoryview(content)[: 29 * number] for number in range(kernel.lanes + 1)]
    contexts = [new_context() for _ in contents]
    kernel.update([(context, [each[:7], each[7:100]]) for context, each in zip(contexts, contents, strict=True)])
    kernel.update([(context, [each[100:]]) for context, each in zip(contexts, contents, strict=True)])
    counted = all(
        CONTEXT.unpack(context.raw)[4::2] == (len(each) * 8, len(each) % _BLOCK_BYTES)
        for context, each in zip(contexts, contents, strict=True)
    )
    known = [hashlib.md5(each, usedforsecurity=False).digest() for each in contents]
    return counted and ends(kernel, contexts) == known


def new_context() -> Context:
    return ctypes.create_string_buffer(CONTEXT.pack(*_BEGIN, 0, b"", 0), CONTEXT.size)


def ends(kernel: Kernel, contexts: Sequence[Context]) -> list[bytes]:
    """Return the digests of what was hashed until now (RFC 1321, section 3.1)."""
    ended = [ctypes.create_string_buffer(context.raw, CONTEXT.size) for context in contexts]
    jobs = []
    for context in ended:
        *_, bits, _, waiting_bytes = CONTEXT.unpack(context.raw)
        padding = b"\x80" + bytes((_BLOCK_BYTES - 9 - waiting_bytes) % _BLOCK_BYTES) + struct.pack("<Q", bits)
        jobs.append((context, [memoryview(padding)]))
    kernel.update(jobs)
    return [context.raw[:16] for context in ended]
