"""The digests of open uploads, from memory: parts of a multipart upload can't be read before it is completed.

Whoever stores a chunk offers its body first. What comes in order is hashed at once, while S3 takes it, and counts once its
row is committed. With that row it is saved how far the digests have come, so that another node goes on. What comes
a little too early is kept until then, within a bound: until it is told here, or until others have saved that they have come
so far. What was missed is read once the upload is completed. All of an upload here belongs to one fence: chunks that were
withdrawn leave nothing behind.
"""

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Coroutine
from typing import Any

from uploader.domain.ledger import Entry, SavedDigest
from uploader.domain.upload import Upload
from uploader.errors import Unavailable
from uploader.storage.base import Body
from uploader.storage.hashes import PrefixHashes, states_are_portable
from uploader.storage.s3.ledger import Ledger
from uploader.storage.s3.uploads.prefix import OfferedPart, Prefix
from uploader.storage.s3.uploads.states import restored, sealed
from uploader.tasks import Pool

logger = logging.getLogger(__name__)

# Bodies that a process keeps beyond their requests.
_MAX_KEPT_BYTES = 128 << 20
# Bodies that it hashes while S3 takes them.
_MAX_AHEAD_BYTES = 64 << 20
# Uploads whose hashes a process keeps.
_MAX_UPLOADS = 10_000
# What no row has taken along by then is saved by itself.
_QUIET_SECONDS = 0.5
# Who waits for a chunk that others have looks so often at how far they are; less and less often, while they get nowhere.
_LOOK_SECONDS, _LONGEST_LOOK_SECONDS, _LOOK_GROWTH = 0.02, 0.5, 1.5
# For so long, after each chunk that came.
_WATCH_SECONDS = 5.0
# The end of a process saves for so long at most.
_LAST_SECONDS = 5.0


class MemoryFrontier:
    """The prefixes of this process."""

    def __init__(self, pool: Pool, ledger: Ledger) -> None:
        self._pool = pool
        self._ledger = ledger
        self._prefixes: OrderedDict[str, Prefix] = OrderedDict()
        # Of the bodies that are held, by whether their chunks count.
        self._held_bytes: Counter[bool] = Counter()
        # They save, or watch.
        self._tasks: set[asyncio.Task[None]] = set()

    # Chunks come

    def offer(self, upload: Upload, entry: Entry, number: int, body: Body) -> OfferedPart:
        """Before a chunk is stored, whoever does so offers its body. Afterwards the offer has to be settled, in any case."""
        offer = OfferedPart(number, body)
        prefix = self._prefix(upload, entry)
        if prefix is not None and prefix.takes(number):
            offer.prefix = prefix
            prefix.offers[number] = offer
            self._go_on(prefix)
        return offer

    def _prefix(self, upload: Upload, entry: Entry) -> Prefix | None:
        """None for whoever has looked before chunks were withdrawn."""
        prefix = self._prefixes.get(upload.id)
        if prefix is not None and prefix.fence > entry.fence:
            return None
        if prefix is not None and (prefix.fence < entry.fence or (upload.needs_md5 and not prefix.hashes.has_md5)):
            self.forget(upload.id)
            prefix = None
        if prefix is None:
            prefix = self._begin(upload, entry.fence)
        self._prefixes.move_to_end(upload.id)
        prefix.upload = upload
        self._catch_up(prefix, entry.digest)
        return prefix

    def _begin(self, upload: Upload, fence: int) -> Prefix:
        prefix = self._prefixes[upload.id] = Prefix(upload, fence, PrefixHashes(with_md5=upload.needs_md5))
        if len(self._prefixes) > _MAX_UPLOADS:
            self.forget(next(iter(self._prefixes)))
        return prefix

    def _catch_up(self, prefix: Prefix, saved: SavedDigest | None) -> bool:
        """Go on from where others have come, if that is further; whether it is."""
        if saved is None or saved.position <= prefix.told_bytes:
            return False
        prefix.saved_bytes = saved.position
        hashes = restored(saved, prefix.upload, prefix.fence) if saved.position > prefix.hashes.position else None
        if hashes is None:
            return False
        for offer in prefix.go_on_from(hashes):
            self._release(offer)
        return True

    def state_with(self, offer: OfferedPart) -> SavedDigest | None:
        """How far the digests have come once the chunk of an offer counts; None: no further than what is saved."""
        prefix = offer.prefix
        if prefix is None:
            return None
        hashes = prefix.ahead if prefix.ahead is not None and offer is prefix.following else prefix.hashes
        if hashes.position <= prefix.saved_bytes or not states_are_portable():
            return None
        offer.saved_bytes = hashes.position
        return sealed(prefix.upload.id, prefix.fence, hashes)

    def settle(self, offer: OfferedPart, *, written: bool) -> None:
        """Say whether the chunk counts from now on, with these bytes."""
        prefix = offer.prefix
        if prefix is None or prefix.is_forgotten:
            return
        if written:
            prefix.saved_bytes = max(prefix.saved_bytes, offer.saved_bytes)
        if prefix.offers.get(offer.number) is offer:
            self._settle(prefix, offer, written=written)
        self._go_on(prefix)

    def _settle(self, prefix: Prefix, offer: OfferedPart, *, written: bool) -> None:
        ahead = prefix.ahead if offer is prefix.following else None
        if not written:
            self._drop(prefix, offer)
        elif ahead is not None:
            offer.is_written = True
            prefix.advance(ahead)
        else:
            if self._held_bytes[True] + offer.body.length > _MAX_KEPT_BYTES:
                self._drop_stalled()
            self._held_bytes[False] -= offer.held_bytes
            self._held_bytes[True] += offer.held_bytes
            offer.is_written = True
            if not self._hold(offer):
                self._drop(prefix, offer)

    # Bodies

    def _hold(self, offer: OfferedPart) -> bool:
        """Keep its body, within a bound; whether that is so."""
        if offer.held_bytes:
            return True
        most, length = (_MAX_KEPT_BYTES if offer.is_written else _MAX_AHEAD_BYTES), offer.body.length
        if self._held_bytes[offer.is_written] + length > most:
            return False
        offer.body.keep()
        offer.held_bytes = length
        self._held_bytes[offer.is_written] += length
        return True

    def _release(self, offer: OfferedPart) -> None:
        """Unless a thread reads its body: then that does so at its end."""
        if offer.held_bytes and not offer.is_read:
            self._held_bytes[offer.is_written] -= offer.held_bytes
            offer.held_bytes = 0
            offer.body.close()

    def _drop(self, prefix: Prefix, offer: OfferedPart) -> None:
        prefix.drop(offer)
        self._release(offer)

    def _drop_stalled(self) -> None:
        for prefix in self._prefixes.values():
            if prefix.is_stalled:
                for offer in prefix.waiting:
                    self._drop(prefix, offer)

    # Hashing

    def _go_on(self, prefix: Prefix) -> None:
        if prefix.is_running or prefix.is_forgotten:
            return
        if self._next(prefix) is not None:
            prefix.task = asyncio.create_task(self._hash(prefix), name=f"frontier {prefix.upload.id}")
            return
        if prefix.lacks_saving and prefix.is_shared:
            self._save_if_quiet(prefix)
        elif prefix.lacks_saving and prefix.timer is None:
            prefix.timer = asyncio.get_running_loop().call_later(_QUIET_SECONDS, self._save_if_quiet, prefix)
        if prefix.waits_for_others and not prefix.is_watched:
            prefix.is_watched = True
            self._start(self._watch(prefix), f"watching digests {prefix.upload.id}")

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _next(self, prefix: Prefix) -> OfferedPart | None:
        """The chunk to be hashed now, its body kept. None follows one whose row is still to come."""
        offer = prefix.following if prefix.ahead is None else None
        return offer if offer is not None and self._hold(offer) else None

    async def _hash(self, prefix: Prefix) -> None:
        while (offer := self._next(prefix)) is not None:
            hashes = prefix.hashes.copy()
            offer.is_read = True
            try:
                await self._pool.run(hashes.update_by, offer.body.pieces, offer.body.length)
            except BaseException:
                if prefix.following is offer:
                    prefix.drop(offer)
                raise
            finally:
                offer.is_read = False
                self._release(offer)
            # Unless it was dropped meanwhile, or others have come further.
            if prefix.following is offer:
                prefix.hashed(offer, hashes)
            prefix.moved()
        prefix.task = None
        self._go_on(prefix)

    # Saving

    def _save_if_quiet(self, prefix: Prefix) -> None:
        """Chunks that are on their way take it along, unless others wait for it."""
        prefix.timer = None
        if prefix.is_forgotten or prefix.is_saving or not prefix.lacks_saving:
            return
        if prefix.is_shared or not prefix.expects_rows:
            prefix.is_saving = True
            self._start(self._save_and_go_on(prefix), f"saving digests {prefix.upload.id}")

    async def _save_and_go_on(self, prefix: Prefix) -> None:
        try:
            is_saved = await self._save(prefix)
        finally:
            prefix.is_saving = False
        if is_saved:
            self._go_on(prefix)

    async def _save(self, prefix: Prefix) -> bool:
        """Whether that worked. It is no matter if it fails."""
        state = sealed(prefix.upload.id, prefix.fence, prefix.hashes)
        try:
            await self._ledger.save_digest(prefix.upload.id, prefix.fence, state)
        except Unavailable:
            logger.debug("digests not saved", extra={"upload_id": prefix.upload.id})
            return False
        prefix.saved_bytes = max(prefix.saved_bytes, state.position)
        return True

    # Others

    async def _watch(self, prefix: Prefix) -> None:
        """Look whether others have come further, until what waits here can be hashed."""
        try:
            await self._until_reached(prefix)
        except Unavailable:
            logger.debug("digests of others not seen", extra={"upload_id": prefix.upload.id})
        finally:
            prefix.is_watched = False
            prefix.look_again()
        if not prefix.waits_for_others:
            self._go_on(prefix)

    async def _until_reached(self, prefix: Prefix) -> None:
        deadline = time.monotonic() + _WATCH_SECONDS
        pause_seconds = _LOOK_SECONDS if prefix.is_shared else _LONGEST_LOOK_SECONDS
        while prefix.waits_for_others and time.monotonic() < deadline:
            await asyncio.sleep(pause_seconds)
            found = await self._ledger.digest(prefix.upload.id, prefix.told_bytes)
            if prefix.is_forgotten:
                return
            has_moved = self._catch_up(prefix, found)
            pause_seconds = _LOOK_SECONDS if has_moved else min(pause_seconds * _LOOK_GROWTH, _LONGEST_LOOK_SECONDS)
            prefix.look_again()

    # Whoever waits for it

    async def keep_pace(self, upload: Upload) -> None:
        """The sender of a chunk waits while the digests are far behind, and come nearer."""
        prefix = self._prefixes.get(upload.id)
        if prefix is not None:
            await prefix.come_near()

    def told_bytes(self, upload_id: str) -> int:
        """How far they are saved from here, or known to be."""
        prefix = self._prefixes.get(upload_id)
        return 0 if prefix is None else prefix.told_bytes

    def position(self, upload_id: str) -> int:
        """How far the digests have come here, in bytes."""
        prefix = self._prefixes.get(upload_id)
        return 0 if prefix is None else prefix.hashes.position

    async def take(self, upload: Upload, entry: Entry) -> PrefixHashes | None:
        """The hashes of what came in order until the upload was frozen, here or elsewhere; they are the caller's from now
        on."""
        fence = entry.fence - 1  # that of the chunks
        prefix = self._prefixes.get(upload.id)
        if prefix is None or prefix.fence != fence or (upload.needs_md5 and not prefix.hashes.has_md5):
            self.forget(upload.id)
            return restored(entry.digest, upload, fence)
        self._catch_up(prefix, entry.digest)
        self._go_on(prefix)
        await prefix.ended()
        self.forget(upload.id)
        return prefix.hashes

    def forget(self, upload_id: str) -> None:
        """An upload has ended, or its chunks are not what they were."""
        prefix = self._prefixes.pop(upload_id, None)
        if prefix is None:
            return
        prefix.is_forgotten = True
        if prefix.timer is not None:
            prefix.timer.cancel()
        for offer in list(prefix.offers.values()):
            self._drop(prefix, offer)

    async def drain(self) -> None:
        """Wait until what can be hashed is, and save it for others."""
        deadline = time.monotonic() + _LAST_SECONDS
        for upload_id, prefix in list(self._prefixes.items()):
            await prefix.ended()
            if prefix.lacks_saving and time.monotonic() < deadline:
                await self._save(prefix)
            self.forget(upload_id)
        if self._tasks:
            await asyncio.wait(self._tasks)
