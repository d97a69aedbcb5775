"""How the bytes of an upload are sent, while the transfer is not paused: in chunks, several at a time, each until it
counts; or all in one request.

Knows nothing of digests and merges: where the upload stands in the end is for `upload.py` to judge.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from uploader.client.api import Api
from uploader.client.errors import ClientError, ServerProblem
from uploader.client.model import Acknowledged, Complete, Digests, File, Merging, Open, Sent, Upload, UploadStatus
from uploader.client.transfers import plan
from uploader.client.transfers.deltas.changes import INSTRUCTIONS_REFUSED, Changes
from uploader.client.transfers.deltas.known import Part
from uploader.client.transfers.progress import Meter
from uploader.client.transfers.shared import Shared
from uploader.client.transfers.source import Source

T = TypeVar("T")

_READ_BYTES = 1 << 20
_PIECE_BYTES = 128 << 10


class Sending:
    """Sends one source."""

    def __init__(
        self,
        api: Api,
        source: Source,
        meter: Meter,
        shared: Shared,
        gate: asyncio.Event,
        told: asyncio.Event,
        changes: Changes,
    ) -> None:
        """`gate` is closed while the transfer is paused; the last chunk waits until `told` is set. `changes`: what need not
        be sent."""
        self._api = api
        self._source = source
        self._meter = meter
        self._shared = shared
        self._gate = gate
        self._told = told
        self._changes = changes

    async def send_missing(self, upload: Upload) -> UploadStatus:
        """Send all chunks that the server misses; where it stands then."""
        self._meter.enter("uploading")
        await self._changes.look()
        queue = plan.Queue(upload.missing, hold_last=not self._told.is_set())
        workers = [self._send_from(queue, upload) for _ in range(min(self._shared.connections, len(queue)))]
        for status in await all_or_none(workers):
            if status is not None:
                return status
        return await self._api.status(upload.id)

    async def _send_from(self, queue: plan.Queue, upload: Upload) -> UploadStatus | None:
        """Send chunk after chunk; where the upload stands, if the last answer said it."""
        status: UploadStatus | None = None
        while len(queue):
            await self._gate.wait()
            number = queue.take()
            if number is None:
                await self._told.wait()
                queue.release()
                continue
            async with self._shared.slots:
                answer = await self._send(upload, number)
            status = answer if isinstance(answer, Merging | Complete) else None
        return status

    async def _send(self, upload: Upload, number: int) -> Sent | UploadStatus:
        """One chunk, until it counts. After a failure the server is asked first: the answer alone may have been lost."""
        retrying = self._api.retrying()
        while True:
            try:
                return await self._send_once(upload, number)
            except ServerProblem as error:
                if error.code != "chunks-missing":  # then others are missing: ours counts
                    await retrying.pause(error)
            except ClientError as error:
                await retrying.pause(error)
            status = await self._api.status(upload.id)
            if not isinstance(status, Open) or number not in plan.missing_numbers(status.upload.missing):
                return status

    async def _send_once(self, upload: Upload, number: int) -> Sent:
        offset = number * upload.chunk_size
        length = min(upload.chunk_size, upload.size - offset)
        known = self._changes.known
        made = None if known is None else await known.parts_of(offset, length)
        parts = made or [Part(b"", offset, length)]
        sent_bytes = sum(len(part.head) + part.length for part in parts)
        base_id = known.base_id if known is not None and made else None
        async with self._pieces(parts) as pieces:
            try:
                sent = await self._api.put_chunk_once(upload.id, number, sent_bytes, pieces, base_id=base_id)
            except ServerProblem as error:
                if base_id is None or error.code not in INSTRUCTIONS_REFUSED:
                    raise
                self._changes.give_up()
                return await self._send_once(upload, number)
            self._meter.spared(max(0, length - sent_bytes))
            if isinstance(sent, Acknowledged):
                self._meter.received(sent.received_bytes)
            return sent

    async def send_whole(self, digests: Digests, name: str, wishes: Mapping[str, str]) -> tuple[File, bool]:
        """One attempt to send all of it; the file, and whether it was there already."""
        self._meter.enter("uploading")
        await self._gate.wait()
        size = self._source.size
        async with self._shared.slots, self._pieces([Part(b"", 0, size)]) as pieces:
            return await self._api.put_file_once(digests, name, wishes, size, pieces)

    @asynccontextmanager
    async def _pieces(self, parts: Sequence[Part]) -> AsyncIterator[AsyncIterator[bytes]]:
        """The bytes as they are read; until this ends they are on their way."""
        moving_bytes = 0

        async def pieces() -> AsyncIterator[bytes]:
            nonlocal moving_bytes
            async for block in self._blocks(parts):
                for at in range(0, len(block), _PIECE_BYTES):
                    piece = block[at : at + _PIECE_BYTES]
                    moving_bytes += len(piece)
                    self._meter.moving(len(piece))
                    yield piece

        try:
            yield pieces()
        finally:
            self._meter.landed(moving_bytes)

    async def _blocks(self, parts: Sequence[Part]) -> AsyncIterator[bytes]:
        for part in parts:
            if part.head:
                yield part.head
            end = part.offset + part.length
            for start in range(part.offset, end, _READ_BYTES):
                yield await asyncio.to_thread(self._read, start, min(_READ_BYTES, end - start))

    def _read(self, offset: int, length: int) -> bytes:
        block = self._source.read(offset, length)
        self._source.check()
        return block


async def all_or_none(works: Iterable[Awaitable[T]]) -> list[T]:
    """Run all; the first error ends the others, and nothing of them goes on behind the caller's back."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def end(task: "asyncio.Task[Any]") -> None:
    """Cancel a task and wait until it is over, however it ends."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def begins_anew(error: ServerProblem) -> bool:
    """Whether an upload ended, or can't go on, for a reason that a new one does not have."""
    if error.code == "upload-gone":
        return error.fields.get("reason") in ("expired", "md5-mismatch", "sha256-mismatch")
    return error.code in ("md5-mismatch", "sha256-mismatch", "md5-conflict", "sha256-conflict", "bytes-conflict")
