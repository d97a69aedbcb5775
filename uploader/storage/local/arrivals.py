"""Contents that come whole: written under the name of their digest before there is a row, and looked at once more under the
lock of that row.

A name without a row counts for nothing: whoever has other bytes for it puts them in its place, and what is left of a crash
is housekeeping's. So a name may be there before its bytes are durable, and all that was written at one time is made durable
by one call.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence

from uploader.crashpoints import crash_point
from uploader.storage import disk
from uploader.storage.base import Arrival, Body
from uploader.storage.disk import Directory, Root
from uploader.storage.hashes import identify
from uploader.storage.local.blobs import Blobs, blob_path, fan_out, write_all
from uploader.storage.store import Threads

# A content of more is hashed where long work is done, and waits for no other one.
_SMALL_BYTES = 256 << 10
# From so many contents on one sync of the whole filesystem takes less than one for each file and directory.
_MANY = 4
# What is stored together at most.
_GROUP = 256


class LocalArrivals:
    """The contents that arrive in this process. Small ones that come while others are being stored are stored together."""

    def __init__(self, root: Root, blobs: Blobs, threads: Threads) -> None:
        self._root = root
        self._blobs = blobs
        self._threads = threads
        # Whether a sync of the whole filesystem does here what it should.
        self.syncs_whole = False
        self._waiting: list[tuple[Sequence[Arrival], asyncio.Future[None]]] = []
        self._storing: asyncio.Task[None] | None = None

    async def store(self, arrivals: Sequence[Arrival]) -> None:
        large = [arrival for arrival in arrivals if arrival.body.length > _SMALL_BYTES]
        for arrival in large:
            await self._threads.long_hashing.run(identify, arrival)
        if large:
            await self._threads.long.run(self._store, arrivals)
            return
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((arrivals, stored))
        if self._storing is None or self._storing.done():
            self._storing = asyncio.create_task(self._store_waiting(), name="store arrivals")
        await stored

    async def _store_waiting(self) -> None:
        while self._waiting:
            group: list[tuple[Sequence[Arrival], asyncio.Future[None]]] = []
            while self._waiting and sum(len(arrivals) for arrivals, _ in group) < _GROUP:
                group.append(self._waiting.pop(0))
            error: BaseException | None = None
            try:
                await self._store_group([arrival for arrivals, _ in group for arrival in arrivals])
            except BaseException as failure:  # whatever ends this: nobody is to wait for ever
                error = failure
            for _, stored in group:
                if not stored.done():
                    stored.set_result(None) if error is None else stored.set_exception(error)

    async def _store_group(self, arrivals: Sequence[Arrival]) -> None:
        is_short = sum(arrival.body.length for arrival in arrivals) <= _SMALL_BYTES
        await (self._threads.disk if is_short else self._threads.long).run(self._store, arrivals)

    # In a thread

    def place_blobs(self, arrivals: Sequence[Arrival]) -> Mapping[str, str]:
        try:
            self._place(arrivals)
        except OSError as error:
            raise disk.refusal(error) from error
        return {}  # the SHA-256 says where each is

    def _store(self, arrivals: Sequence[Arrival]) -> None:
        whole = len(arrivals) >= _MANY and self.syncs_whole
        written: dict[str, object] = {}
        # Opened before anything is written: what is written from here on, this descriptor is told of if it fails.
        with self._root.enter("blobs") as blobs:
            for arrival in arrivals:
                try:
                    if identify(arrival):
                        self._write_once(blobs, arrival, written, synced=not whole)
                except OSError as error:
                    arrival.error = disk.refusal(error)  # of this content alone
            crash_point("arrival.after_write")
            if whole:
                blobs.sync_all()
                crash_point("arrival.after_sync")

    def _write_once(self, blobs: Directory, arrival: Arrival, written: dict[str, object], *, synced: bool) -> None:
        """`written`: where contents are that this call has written before."""
        sha256 = arrival.sha256_of_bytes
        if sha256 not in written:
            make = blobs.make if synced else blobs.make_unsynced
            with make(fan_out(sha256)) as directory:
                written[sha256] = _write_blob(directory, sha256, arrival.body, synced=synced)
                if synced:
                    directory.sync()
        arrival.place = written[sha256]

    def _place(self, arrivals: Sequence[Arrival]) -> None:
        placed: dict[str, object] = {}
        for arrival in arrivals:
            sha256, place = arrival.sha256_of_bytes, arrival.place
            if sha256 not in placed:
                if not isinstance(place, os.stat_result) or not self._root.has(
                    blob_path(sha256), place, unchanged=True
                ):
                    place = self._blobs.write(arrival.body.pieces(), sha256)
                placed[sha256] = place
            arrival.place = placed[sha256]


def _write_blob(directory: Directory, sha256: str, body: Body, *, synced: bool) -> os.stat_result | None:
    """What has the bytes of a body under the name of their digest: a new file, or one that is there already. None if that
    holds something else, can't be read, or goes at this moment."""
    is_new = True
    try:
        descriptor = directory.create_to_write(sha256)
    except FileExistsError:
        is_new = False
        try:
            descriptor = directory.open_to_write(sha256)
        except FileNotFoundError:
            return None
    try:
        if not is_new and not _holds(descriptor, body):
            return None
        # The same bytes once more: what the page cache has may be of a sync that failed, and no later one tells of it.
        _fill(descriptor, body, cut_off=is_new)
        if synced:
            disk.sync_data(descriptor)
        return disk.status(descriptor)
    finally:
        disk.close(descriptor)


def _fill(descriptor: int, body: Body, *, cut_off: bool) -> None:
    """`cut_off`: leave nothing of what can't be written whole. Not its name: that may be somebody else's by now."""
    try:
        write_all(descriptor, body.pieces())
    except BaseException:
        if cut_off:
            disk.resize(descriptor, 0)
        raise


def _holds(descriptor: int, body: Body) -> bool:
    if disk.status(descriptor).st_size != body.length:
        return False
    offset = 0
    for piece in body.pieces():
        try:
            found = disk.read(descriptor, len(piece), offset)
        except OSError as error:
            if error.errno in disk.DAMAGED:
                return False
            raise
        if found != piece:
            return False
        offset += len(piece)
    return True
