"""The digests of open uploads, from memory: parts of a multipart upload can't be read before it is completed.

Each chunk that counts is offered with its body. What comes in order is hashed at once, what comes a little too early is kept
until then, within a bound; what was missed is read once the upload is completed. All of an upload here belongs to one fence:
chunks that were withdrawn leave nothing behind.
"""

import asyncio
import time
from collections import OrderedDict
from contextlib import suppress

from uploader.domain.upload import Upload
from uploader.storage.base import Body
from uploader.storage.hashes import PrefixHashes
from uploader.tasks import Pool

# Bodies that a process keeps beyond their requests.
_MAX_KEPT_BYTES = 128 << 20
# Uploads whose hashes a process keeps.
_MAX_UPLOADS = 10_000
# Whoever waits for a gap that nobody fills gives way after that.
_STALLED_SECONDS = 5.0
# A sender waits while so much of its upload waits to be hashed; for so long at most.
_FAR_BYTES, _PATIENCE_SECONDS = 64 << 20, 5.0


class _Prefix:
    """The hashes of one upload, and what waits for them."""

    def __init__(self, upload: Upload, fence: int, hashes: PrefixHashes) -> None:
        self.upload = upload
        self.fence = fence
        self.hashes = hashes
        self.waiting: dict[int, Body] = {}
        # The chunk whose body a thread reads: the position moves before it has ended.
        self.hashing: int | None = None
        self.advanced_at = time.monotonic()
        self.task: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()

    @property
    def next_chunk(self) -> int | None:
        """None at the end."""
        number, rest = divmod(self.hashes.position, self.upload.chunk_size)
        return None if rest else number

    @property
    def waiting_bytes(self) -> int:
        return sum(body.length for body in self.waiting.values())

    @property
    def is_stalled(self) -> bool:
        running = self.task is not None and not self.task.done()
        return bool(self.waiting) and not running and time.monotonic() - self.advanced_at > _STALLED_SECONDS

    def moved(self) -> None:
        self.advanced_at = time.monotonic()
        self._moved.set()
        self._moved = asyncio.Event()

    async def come_near(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                while self.task is not None and not self.task.done() and self.waiting_bytes > _FAR_BYTES:
                    await self._moved.wait()


class MemoryFrontier:
    """The prefixes of this process."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._prefixes: OrderedDict[str, _Prefix] = OrderedDict()
        self._kept_bytes = 0

    def add(self, upload: Upload, fence: int, number: int, body: Body) -> None:
        """A chunk counts from now on, with these bytes; `fence`: that of its row."""
        prefix = self._prefixes.get(upload.id)
        if prefix is not None and (prefix.fence != fence or (upload.needs_md5 and not prefix.hashes.has_md5)):
            self.forget(upload.id)
            prefix = None
        if prefix is None:
            prefix = self._begin(upload, fence)
        self._prefixes.move_to_end(upload.id)
        following = prefix.next_chunk
        if following is None or number < following or number in prefix.waiting:
            return
        if self._kept_bytes + body.length > _MAX_KEPT_BYTES:
            self._drop_stalled()
        if self._kept_bytes + body.length > _MAX_KEPT_BYTES:
            return
        body.keep()
        self._kept_bytes += body.length
        prefix.waiting[number] = body
        self._go_on(prefix)

    def _begin(self, upload: Upload, fence: int) -> _Prefix:
        prefix = _Prefix(upload, fence, PrefixHashes(with_md5=upload.needs_md5))
        self._prefixes[upload.id] = prefix
        if len(self._prefixes) > _MAX_UPLOADS:
            self.forget(next(iter(self._prefixes)))
        return prefix

    def _go_on(self, prefix: _Prefix) -> None:
        if (prefix.task is None or prefix.task.done()) and prefix.next_chunk in prefix.waiting:
            prefix.task = asyncio.create_task(self._hash(prefix), name=f"frontier {prefix.upload.id}")

    async def _hash(self, prefix: _Prefix) -> None:
        while (number := prefix.next_chunk) in prefix.waiting:
            assert number is not None
            body, prefix.hashing = prefix.waiting[number], number
            try:
                await self._pool.run(prefix.hashes.update_by, body.pieces, body.length)
            finally:
                prefix.hashing = None
                self._let_go(prefix, number)
                prefix.moved()

    def _let_go(self, prefix: _Prefix, number: int) -> None:
        body = prefix.waiting.pop(number)
        self._kept_bytes -= body.length
        body.close()

    def _drop_stalled(self) -> None:
        for prefix in self._prefixes.values():
            if prefix.is_stalled:
                for number in list(prefix.waiting):
                    self._let_go(prefix, number)

    async def keep_pace(self, upload: Upload) -> None:
        """The sender of a chunk waits while the digests are far behind, and come nearer."""
        prefix = self._prefixes.get(upload.id)
        if prefix is not None:
            await prefix.come_near()

    def position(self, upload_id: str) -> int:
        """How far the digests have come here, in bytes."""
        prefix = self._prefixes.get(upload_id)
        return 0 if prefix is None else prefix.hashes.position

    async def take(self, upload: Upload, fence: int) -> PrefixHashes | None:
        """The hashes of what came in order, whose chunks had this fence; they are the caller's from now on."""
        prefix = self._prefixes.get(upload.id)
        if prefix is None:
            return None
        if prefix.task is not None:
            await asyncio.wait({prefix.task})
        self.forget(upload.id)
        fits = prefix.fence == fence and (prefix.hashes.has_md5 or not upload.needs_md5)
        return prefix.hashes if fits else None

    def forget(self, upload_id: str) -> None:
        """An upload has ended, or its chunks are not what they were."""
        prefix = self._prefixes.pop(upload_id, None)
        if prefix is None:
            return
        for number in list(prefix.waiting):
            if number != prefix.hashing:
                self._let_go(prefix, number)

    async def drain(self) -> None:
        """Wait until what can be hashed is."""
        tasks = [prefix.task for prefix in self._prefixes.values() if prefix.task is not None]
        if tasks:
            await asyncio.wait(tasks)
        for upload_id in list(self._prefixes):
            self.forget(upload_id)
