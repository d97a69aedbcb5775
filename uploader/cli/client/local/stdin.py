"""Standard input as a file that can be uploaded: the server wants to know its size before its first byte."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from uploader.cli.readable import human_bytes
from uploader.client import AsyncClient, QuotaExceeded, Unreadable

_BLOCK_BYTES = 1 << 20
_DESCRIPTOR = 0
# On many machines `/tmp` is in memory, but not this (file-hierarchy(7)).
_LARGE = Path("/var/tmp")  # noqa: S108 (the file has no name that others could take)


@contextmanager
def spool() -> Iterator[BinaryIO]:
    """A file without a name, so that nothing stays of it, however this ends: in TMPDIR, or where large files may lie."""
    with tempfile.TemporaryFile(dir=None if os.environ.get("TMPDIR") else _large_directory()) as opened:
        yield opened


def _large_directory() -> Path | None:
    return _LARGE if os.access(_LARGE, os.W_OK | os.X_OK) else None


async def fill(opened: BinaryIO, client: AsyncClient, name: str) -> int:
    """Read all of standard input; its size. Raises QuotaExceeded as soon as it can't fit, Unreadable."""
    room = await _room(client, name)
    size = 0
    async for block in _blocks():
        size += len(block)
        if size > room:
            raise QuotaExceeded(
                f"standard input is larger than the {human_bytes(room)} that are available",
                code="quota-exceeded",
                status=413,
            )
        try:
            opened.write(block)
        except OSError as error:
            raise Unreadable(f"standard input can't be kept until its size is known: {error.strerror}") from error
    opened.seek(0)
    return size


async def _room(client: AsyncClient, name: str) -> int:
    """More than this is sure to be refused: beside what is available it may be what is there already, or has begun."""
    usage = await client.usage()
    there = sum(file.size for file in await client.named(name))
    begun = sum(upload.size for upload in await client.uploads() if upload.name == name)
    return usage.available + there + begun


async def _blocks() -> AsyncIterator[bytes]:
    """No thread waits for whoever writes: Ctrl-C would have to wait, too."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    is_file = False
    try:
        loop.add_reader(_DESCRIPTOR, readable.set)
    except PermissionError:
        is_file = True  # it has nothing to wait for, says epoll
        readable.set()
    try:
        while True:
            await readable.wait()
            if not is_file:
                readable.clear()
            block = _read()
            if not block:
                return
            yield block
            await asyncio.sleep(0)
    finally:
        loop.remove_reader(_DESCRIPTOR)


def _read() -> bytes:
    try:
        return os.read(_DESCRIPTOR, _BLOCK_BYTES)
    except OSError as error:
        raise Unreadable(f"standard input: {error.strerror}") from error
