"""The compiled kernels: each advances many states of OpenSSL's MD5 or SHA-256 at once, each state by its own pieces.

They are called through ctypes, which releases the GIL, and use nothing of Python: one library serves all versions. A
kernel whose results differ from hashlib's is not used.
"""

import ctypes
import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

LIBRARY = Path(__file__).with_name("liblanes.so.1")

Algorithm = Literal["md5", "sha256"]
Context = ctypes.Array[ctypes.c_char]
_BLOCK_BYTES = 64
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Layout:
    """The fields of an algorithm's states (OpenSSL's md5.h, sha.h): words, number of hashed bits, an incomplete block,
    number of its bytes, and `more`. `ending`: the byte order of words and bits in a digest, as struct's letter."""

    context: struct.Struct
    begin: tuple[int, ...]
    more: tuple[int, ...]
    ending: str

    def new_context(self) -> Context:
        return ctypes.create_string_buffer(self.context.pack(*self.begin, 0, b"", 0, *self.more), self.context.size)

    def counted(self, context: Context) -> tuple[int, int]:
        """Return the number of hashed bits, and the number of bytes in the incomplete block."""
        bits, _, waiting_bytes = self.context.unpack(context.raw)[len(self.begin) :][:3]
        return bits, waiting_bytes

    def digest(self, context: Context) -> bytes:
        words = self.context.unpack(context.raw)[: len(self.begin)]
        return struct.pack(f"{self.ending}{len(words)}I", *words)


LAYOUTS: dict[Algorithm, Layout] = {
    "md5": Layout(struct.Struct("=4IQ64sI"), (0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476), (), "<"),
    "sha256": Layout(
        struct.Struct("=8IQ64sII"),
        (*(0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A), *(0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)),
        (32,),
        ">",
    ),
}


class _Piece(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Job(ctypes.Structure):
    _fields_ = (("context", ctypes.c_void_p), ("pieces", ctypes.POINTER(_Piece)), ("count", ctypes.c_size_t))


@dataclass(frozen=True, slots=True)
class Kernel:
    """The code for an algorithm and a kind of instructions."""

    algorithm: Algorithm
    kind: str
    lanes: int
    _library: ctypes.CDLL
    _number: int

    def update(self, jobs: Sequence[tuple[Context, Sequence[memoryview]]]) -> None:
        """Advance each context by its pieces. No context may occur twice."""
        lent: list[object] = []
        made = (_Job * len(jobs))(*(_job(context, pieces, lent) for context, pieces in jobs))
        self._library.uploader_lanes_update(ctypes.c_size_t(self._number), made, ctypes.c_size_t(len(jobs)))


def _job(context: Context, pieces: Sequence[memoryview], lent: list[object]) -> _Job:
    """`lent`: collects the objects that must stay in memory."""
    made = (_Piece * len(pieces))(*(_piece(piece, lent) for piece in pieces))
    lent.append(made)
    return _Job(ctypes.addressof(context), made, len(pieces))


def _piece(piece: memoryview, lent: list[object]) -> _Piece:
    if not len(piece):
        return _Piece(None, 0)
    # ctypes refuses to borrow read-only memory.
    borrowed = ctypes.c_char.from_buffer(bytearray(piece) if piece.readonly else piece)
    lent.append(borrowed)
    return _Piece(ctypes.addressof(borrowed), len(piece))


@cache
def kernel(algorithm: Algorithm) -> Kernel | None:
    """Return the best correct kernel for this processor; None without such a kernel, or without the library."""
    return next((each for each in kernels(LIBRARY) if each.algorithm == algorithm and is_right(each)), None)


def in_force(algorithm: Algorithm) -> tuple[str, int]:
    """Return the kind of the kernel, and the number of contents that it hashes at once."""
    found = kernel(algorithm)
    return ("none", 1) if found is None else (found.kind, found.lanes)


def kernels(path: Path) -> Iterator[Kernel]:
    """Yield the kernels for this processor, the best of each algorithm first."""
    try:
        library = ctypes.CDLL(str(path))
        library.uploader_lanes_algorithm.restype = library.uploader_lanes_kind.restype = ctypes.c_char_p
        library.uploader_lanes_count.restype = ctypes.c_size_t
        library.uploader_lanes_update.restype = None
    except (OSError, AttributeError):
        return
    number = 0
    while (algorithm := library.uploader_lanes_algorithm(ctypes.c_size_t(number))) is not None:
        if lanes := library.uploader_lanes_count(ctypes.c_size_t(number)):
            kind = library.uploader_lanes_kind(ctypes.c_size_t(number)).decode()
            yield Kernel(algorithm.decode(), kind, lanes, library, number)
        number += 1


def is_right(kernel: Kernel) -> bool:
    """Hash contents of many lengths, more than there are lanes, in two pieces and then a third. Compare with
    hashlib."""
    layout = LAYOUTS[kernel.algorithm]
    content = bytearray(range(256)) * 2
    contents = [memoryview(content)[: 29 * number] for number in range(kernel.lanes + 1)]
    contexts = [layout.new_context() for _ in contents]
    kernel.update([(context, [each[:7], each[7:100]]) for context, each in zip(contexts, contents, strict=True)])
    kernel.update([(context, [each[100:]]) for context, each in zip(contexts, contents, strict=True)])
    counted = all(
        layout.counted(context) == (len(each) * 8, len(each) % _BLOCK_BYTES)
        for context, each in zip(contexts, contents, strict=True)
    )
    known = [hashlib.new(kernel.algorithm, each, usedforsecurity=False).digest() for each in contents]
    return counted and ends(kernel, contexts) == known


def ends(kernel: Kernel, contexts: Sequence[Context]) -> list[bytes]:
    """Return the digests of the hashed bytes (RFC 1321, section 3.1; FIPS 180-4, section 5.1.1). The contexts do not
    change."""
    layout = LAYOUTS[kernel.algorithm]
    ended = [ctypes.create_string_buffer(context.raw, layout.context.size) for context in contexts]
    jobs = []
    for context in ended:
        bits, waiting_bytes = layout.counted(context)
        zeros = bytes((_BLOCK_BYTES - 1 - _LENGTH_BYTES - waiting_bytes) % _BLOCK_BYTES)
        jobs.append((context, [memoryview(b"\x80" + zeros + struct.pack(f"{layout.ending}Q", bits))]))
    kernel.update(jobs)
    return [layout.digest(context) for context in ended]
