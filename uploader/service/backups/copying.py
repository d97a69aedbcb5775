"""Copies the blobs that a dump names, as far as they are not there: into a directory of backups, and out of one. Those of a
bucket stay there."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from uploader.database.dumps.listing import read_listing
from uploader.storage import disk
from uploader.storage.backups import BlobDamaged, BlobTree, check
from uploader.tasks import all_or_none

_BATCH = 200

# Hears what is being copied, how much of it is done, and of how much.
Tell = Callable[[str, int, int], None]
# Descriptors of files that may be a blob, by its SHA-256 and size.
Sources = Callable[[str, int], AsyncIterator[int]]


@dataclass(slots=True)
class Copied:
    """What became of the blobs of a dump."""

    blobs: int = 0
    bytes: int = 0
    # Of these, what was not there before; of which those that take no room of their own.
    new_blobs: int = 0
    new_bytes: int = 0
    linked_blobs: int = 0
    # What no source has, by its SHA-256: `damaged` or `missing`.
    lacking: dict[str, str] = field(default_factory=dict)


class Copying:
    """One such copying."""

    def __init__(self, tree: BlobTree, sources: Sources, tell: Tell, *, rereads: bool = False) -> None:
        """`rereads`: what is there is believed only once it was read, not by its size."""
        self._tree = tree
        self._sources = sources
        self._tell = tell
        self._rereads = rereads
        self._copied = Copied()
        self._done_bytes = 0

    async def run(self, dump: Path) -> Copied:
        """Copy all blobs that the listing of a dump names; they are durable then. Raises OSError of the target."""
        copied = self._copied
        copied.blobs, copied.bytes = await asyncio.to_thread(_totals, dump)
        async for batch in _batches(dump):
            absent = await asyncio.to_thread(self._absent, batch)
            self._count(sum(size for _, size in batch) - sum(size for _, size in absent))
            await all_or_none(self._copy(sha256, size) for sha256, size in absent)
        await asyncio.to_thread(self._tree.sync)
        return copied

    def _absent(self, batch: list[tuple[str, int]]) -> list[tuple[str, int]]:
        return [(sha256, size) for sha256, size in batch if not self._is_there(sha256, size)]

    def _is_there(self, sha256: str, size: int) -> bool:
        if self._tree.size(sha256) != size:
            return False
        if not self._rereads:
            return True
        descriptor = self._tree.open(sha256)
        try:
            check(sha256, descriptor)
        except BlobDamaged:
            return False
        finally:
            disk.close(descriptor)
        return True

    async def _copy(self, sha256: str, size: int) -> None:
        """From the first source whose bytes are right."""
        why = "missing"
        async with aclosing(self._sources(sha256, size)) as sources:  # type: ignore[type-var]
            async for source in sources:
                try:
                    linked = await asyncio.to_thread(self._tree.place, sha256, source)
                except BlobDamaged:
                    why = "damaged"
                    continue
                self._copied.new_blobs += 1
                self._copied.new_bytes += size
                self._copied.linked_blobs += linked
                break
            else:
                self._copied.lacking[sha256] = why
        self._count(size)

    def _count(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        self._tell("blobs", self._done_bytes, self._copied.bytes)


async def left_there(dump: Path) -> Copied:
    """The blobs of a dump, none of which is copied."""
    blobs, total_bytes = await asyncio.to_thread(_totals, dump)
    return Copied(blobs, total_bytes)


async def found_there(dump: Path, sizes: Callable[[list[str]], Awaitable[list[int | None]]], tell: Tell) -> Copied:
    """The same, once `sizes` has said how large each is where it is: what is not there, or of another size, is lacking."""
    copied, done_bytes = await left_there(dump), 0
    async for batch in _batches(dump):
        found = await sizes([sha256 for sha256, _ in batch])
        for (sha256, size), found_size in zip(batch, found, strict=True):
            if found_size != size:
                copied.lacking[sha256] = "missing" if found_size is None else "damaged"
        done_bytes += sum(size for _, size in batch)
        tell("blobs", done_bytes, copied.bytes)
    return copied


async def _batches(dump: Path) -> AsyncIterator[list[tuple[str, int]]]:
    listing = read_listing(dump)
    while batch := await asyncio.to_thread(lambda: list(islice(listing, _BATCH))):
        yield batch


def _totals(dump: Path) -> tuple[int, int]:
    """How many blobs a dump names, and their bytes."""
    blobs = total_bytes = 0
    for _, size in read_listing(dump):
        blobs, total_bytes = blobs + 1, total_bytes + size
    return blobs, total_bytes
