"""The digests of open uploads on S3, from memory, because chunks can't be read before their upload is completed.

Before a chunk is stored, its body is offered. The next chunk in order is hashed at once, while S3 takes it, and counts when
its row is committed. The same row saves the position of the digests, so that another node can go on. A body that comes a
little too early is kept, within a limit, until the chunks before it are hashed here, or until another node has saved a later
position. Chunks that were missed are read after the upload is completed. All hashes of an upload belong to one fence:
withdrawn chunks leave nothing behind.

A state is saved with a checksum, because a row may be damaged, and with the fence of its chunks. If two processes complete
an upload, the fence tells whether the digests are of the chunks as they came, or of bytes that were read since. The seal has
the byte order of the machine, like the state itself.
"""

import asyncio
import logging
import math
import struct
import time
from collections import OrderedDict
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from uploader.domain.ledger import Entry, SavedDigest
from uploader.domain.upload import Upload
from uploader.errors import Unavailable
from uploader.runtime.tasks import Pool
from uploader.storage.base import Body, Digests
from uploader.storage.hashes import MAX_KEPT_BYTES, Bodies, Following, PrefixHashes, states_are_portable
from uploader.storage.s3.ledger import Ledger
from uploader.storage.store import Store

logger = logging.getLogger(__name__)

# Bytes of bodies to hash while S3 takes them.
_MAX_AHEAD_BYTES = 64 << 20
# Uploads whose hashes a process keeps.
_MAX_UPLOADS = 10_000
# Digests that no row has saved by then are saved by themselves.
_QUIET_SECONDS = 0.5
# Pauses between looks at the position of other nodes; they grow while this position stands still.
_LOOK_SECONDS, _LONGEST_LOOK_SECONDS, _LOOK_GROWTH = 0.02, 0.5, 1.5
# How long to look, after each chunk that came.
_WATCH_SECONDS = 5.0
# The longest time for saving at the end of a process.
_LAST_SECONDS = 5.0
# After this time without progress, bodies that wait for a missing chunk make way for others.
_STALLED_SECONDS = 5.0
# A sender waits while this many bytes of its upload wait to be hashed.
_FAR_BYTES = 64 << 20
# Bodies further ahead are not kept: they would take the memory of the chunks that have to come before them.
_NEAR_BYTES = 128 << 20
# If another node has advanced the digests within this time, it is expected to go on.
_SHARED_SECONDS = 2.0
# The fence, and the checksum of all that is saved.
_SEAL = struct.Struct("=QI")


@dataclass(eq=False)
class OfferedPart:
    """A chunk on its way to S3. The body may be hashed before the row of the chunk is committed."""

    number: int
    body: Body
    # None: the digests do not wait for this chunk.
    prefix: "Prefix | None" = None
    # True once the row is committed.
    is_written: bool = False
    # Set while the body is kept for the digests.
    kept_in: Bodies | None = None
    # True while a thread reads the body.
    is_read: bool = False
    # The saved position of the digests once the row is committed; 0: as before.
    saved_bytes: int = 0


@dataclass(eq=False)
class Prefix(Following):
    """The hashes of the chunks that count, and the offered chunks after them."""

    fence: int
    hashes: PrefixHashes
    # The hashes with the next chunk, which was hashed before its row was committed.
    ahead: PrefixHashes | None = None
    offers: dict[int, OfferedPart] = field(default_factory=dict)
    # The saved position, from which others can go on.
    saved_bytes: int = 0
    is_forgotten: bool = False
    # True while a task looks at the position of other nodes.
    is_watched: bool = False
    is_saving: bool = False
    shared_at: float = -math.inf
    advanced_at: float = field(default_factory=time.monotonic)
    timer: asyncio.TimerHandle | None = None

    def takes(self, number: int) -> bool:
        following = self._next_chunk
        if following is None or number < following or number in self.offers:
            return False
        return self.is_shared or (number - following) * self.upload.chunk_size <= _NEAR_BYTES

    @property
    def _next_chunk(self) -> int | None:
        number, rest = divmod(self.hashes.position, self.upload.chunk_size)
        return None if rest else number

    @property
    def following(self) -> OfferedPart | None:
        number = self._next_chunk
        return None if number is None else self.offers.get(number)

    @property
    def waiting(self) -> list[OfferedPart]:
        """The chunks that count and are still to be hashed."""
        return [offer for offer in self.offers.values() if offer.is_written]

    @property
    def lacks_saving(self) -> bool:
        return self.hashes.position > self.saved_bytes and states_are_portable()

    @property
    def is_shared(self) -> bool:
        return time.monotonic() - self.shared_at < _SHARED_SECONDS

    @property
    def waits_for_others(self) -> bool:
        """Return whether chunks wait for a chunk of another node, or of nobody."""
        return bool(self.waiting) and self.following is None

    @property
    def told_bytes(self) -> int:
        return max([self.saved_bytes, *(offer.saved_bytes for offer in self.offers.values())])

    def advance(self, hashes: PrefixHashes) -> list[OfferedPart]:
        """Take these hashes, which are further on. Return the passed offers, which are not needed any more."""
        self.hashes, self.ahead = hashes, None
        passed = [offer for number, offer in self.offers.items() if number * self.upload.chunk_size < hashes.position]
        for offer in passed:
            del self.offers[offer.number]
        return passed

    def drop(self, offer: OfferedPart) -> None:
        if offer is self.following:
            self.ahead = None
        del self.offers[offer.number]

    def moved(self) -> None:
        self.advanced_at = time.monotonic()
        self.tell_senders()

    def is_far(self) -> bool:
        """Return whether many bytes are left to hash, and the digests are advancing."""
        comes_nearer = self.is_running or (self.is_watched and self.is_shared)
        return comes_nearer and sum(offer.body.length for offer in self.waiting) > _FAR_BYTES


def sealed(upload_id: str, fence: int, hashes: PrefixHashes, digests: Digests | None = None) -> SavedDigest:
    """Return the state to save, with its seal. `digests`: of the whole content."""
    found = None if digests is None else (digests.md5, digests.sha256)
    state = hashes.state()
    checksum = _checksum(upload_id, fence, hashes.position, state, found)
    return SavedDigest(hashes.position, _SEAL.pack(fence, checksum) + state, found)


def fence_of(saved: SavedDigest, upload_id: str) -> int | None:
    """Return the fence of a saved state; None if the state is damaged."""
    if len(saved.state) < _SEAL.size:
        return None
    fence: int
    fence, checksum = _SEAL.unpack_from(saved.state)
    state = saved.state[_SEAL.size :]
    return fence if checksum == _checksum(upload_id, fence, saved.position, state, saved.digests) else None


def restored(saved: SavedDigest | None, upload: Upload, fence: int) -> PrefixHashes | None:
    """Return the hashes to go on from, if they were saved under this fence and suffice for the upload."""
    if saved is None or fence_of(saved, upload.id) != fence:
        return None
    return PrefixHashes.restore(saved.position, saved.state[_SEAL.size :], needs_md5=upload.needs_md5)


def finished(saved: SavedDigest | None, upload: Upload, fence: int) -> Digests | None:
    """Return the digests of the whole content, if they were saved under this fence and suffice for the upload."""
    if saved is None or saved.digests is None or fence_of(saved, upload.id) != fence:
        return None
    md5, sha256 = saved.digests
    return None if md5 is None and upload.needs_md5 else Digests(md5, sha256)


def _checksum(upload_id: str, fence: int, position: int, state: bytes, digests: tuple[str | None, str] | None) -> int:
    return crc32(repr((upload_id, fence, position, digests)).encode() + state)


class S3Digests(Store):
    """Brings the digests of the open uploads of this process up with their chunks."""

    def __init__(self, ledger: Ledger, requests: Pool) -> None:
        super().__init__(requests)
        self._ledger = ledger
        self._prefixes: OrderedDict[str, Prefix] = OrderedDict()
        # Bodies of chunks that count, and bodies of chunks on their way.
        self._kept_written, self._kept_ahead = Bodies(), Bodies()
        # Tasks that save digests, or watch other nodes.
        self._digest_tasks: set[asyncio.Task[None]] = set()

    # Chunks come

    def _offer(self, upload: Upload, entry: Entry, number: int, body: Body) -> OfferedPart:
        """Offer the body of a chunk before it is stored. Settle the offer afterwards, even after an error."""
        offer = OfferedPart(number, body)
        prefix = self._prefix(upload, entry)
        if prefix is not None and prefix.takes(number):
            offer.prefix = prefix
            prefix.offers[number] = offer
            self._go_on(prefix)
        return offer

    def _prefix(self, upload: Upload, entry: Entry) -> Prefix | None:
        """Return the hashes of an upload; None if chunks were withdrawn after the caller read `entry`."""
        prefix = self._prefixes.get(upload.id)
        if prefix is not None and prefix.fence > entry.fence:
            return None
        if prefix is not None and (prefix.fence < entry.fence or (upload.needs_md5 and not prefix.hashes.has_md5)):
            self._forget_prefix(upload.id)
            prefix = None
        if prefix is None:
            prefix = self._prefixes[upload.id] = Prefix(upload, entry.fence, PrefixHashes(with_md5=upload.needs_md5))
            if len(self._prefixes) > _MAX_UPLOADS:
                self._forget_prefix(next(iter(self._prefixes)))
        self._prefixes.move_to_end(upload.id)
        prefix.upload = upload
        self._catch_up(prefix, entry.digest)
        return prefix

    def _catch_up(self, prefix: Prefix, saved: SavedDigest | None) -> bool:
        """Go on from the hashes that others have saved, if they are further. Return whether they are."""
        if saved is None or saved.position <= prefix.told_bytes:
            return False
        prefix.saved_bytes = saved.position
        hashes = restored(saved, prefix.upload, prefix.fence) if saved.position > prefix.hashes.position else None
        if hashes is None:
            return False
        prefix.shared_at = time.monotonic()
        for offer in prefix.advance(hashes):
            self._release_body(offer)
        prefix.moved()
        return True

    def _state_with(self, offer: OfferedPart) -> SavedDigest | None:
        """Return the digests to save with the row of an offered chunk; None if they are no further than the saved ones."""
        prefix = offer.prefix
        if prefix is None:
            return None
        hashes = prefix.ahead if prefix.ahead is not None and offer is prefix.following else prefix.hashes
        if hashes.position <= prefix.saved_bytes or not states_are_portable():
            return None
        offer.saved_bytes = hashes.position
        return sealed(prefix.upload.id, prefix.fence, hashes)

    def _settle_offer(self, offer: OfferedPart, *, written: bool) -> None:
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
            self._drop_offers(prefix, offer)
        elif ahead is not None:
            offer.is_written = True
            prefix.advance(ahead)
        else:
            if not self._kept_written.has_room(offer.body, MAX_KEPT_BYTES):
                for other in self._prefixes.values():
                    if not other.is_running and time.monotonic() - other.advanced_at > _STALLED_SECONDS:
                        self._drop_offers(other, *other.waiting)
            offer.is_written = True
            if offer.kept_in is not None:
                offer.kept_in = offer.kept_in.hand_over(offer.body, self._kept_written)
            if not self._keep_body(offer):
                self._drop_offers(prefix, offer)

    # Bodies

    def _keep_body(self, offer: OfferedPart) -> bool:
        """Keep the body of an offer, within a limit. Return whether it is kept."""
        bodies, most = self._kept_ahead, _MAX_AHEAD_BYTES
        if offer.is_written:
            bodies, most = self._kept_written, MAX_KEPT_BYTES
        if offer.kept_in is None and bodies.keep(offer.body, most):
            offer.kept_in = bodies
        return offer.kept_in is not None

    def _release_body(self, offer: OfferedPart) -> None:
        """Release the body of an offer, unless a thread reads it: the thread does so afterwards."""
        if offer.kept_in is not None and not offer.is_read:
            offer.kept_in.close(offer.body)
            offer.kept_in = None

    def _drop_offers(self, prefix: Prefix, *offers: OfferedPart) -> None:
        for offer in offers:
            prefix.drop(offer)
            self._release_body(offer)

    # Hashing

    def _go_on(self, prefix: Prefix) -> None:
        if prefix.is_running or prefix.is_forgotten:
            return
        if self._next_offer(prefix) is not None:
            prefix.task = asyncio.create_task(self._hash_offers(prefix), name=f"frontier {prefix.upload.id}")
            return
        if prefix.lacks_saving and prefix.is_shared:
            self._save_if_quiet(prefix)
        elif prefix.lacks_saving and prefix.timer is None:
            prefix.timer = asyncio.get_running_loop().call_later(_QUIET_SECONDS, self._save_if_quiet, prefix)
        if prefix.waits_for_others and not prefix.is_watched:
            prefix.is_watched = True
            self._start_task(self._watch_others(prefix), f"watching digests {prefix.upload.id}")

    def _start_task(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._digest_tasks.add(task)
        task.add_done_callback(self._digest_tasks.discard)

    def _next_offer(self, prefix: Prefix) -> OfferedPart | None:
        """Return the chunk to hash now, after keeping its body. None while the last hashed chunk waits for its row."""
        offer = prefix.following if prefix.ahead is None else None
        return offer if offer is not None and self._keep_body(offer) else None

    async def _hash_offers(self, prefix: Prefix) -> None:
        while (offer := self._next_offer(prefix)) is not None:
            hashes = prefix.hashes.copy()
            offer.is_read = True
            try:
                await self.threads.digesting.run(hashes.update_by, offer.body.pieces, offer.body.length)
            except BaseException:
                if prefix.following is offer:
                    prefix.drop(offer)
                raise
            finally:
                offer.is_read = False
                self._release_body(offer)
            # Not if the offer was dropped meanwhile, or others are further.
            if prefix.following is offer and offer.is_written:
                prefix.advance(hashes)
            elif prefix.following is offer:
                prefix.ahead = hashes
            prefix.moved()
        prefix.task = None
        self._go_on(prefix)

    # Saving

    def _save_if_quiet(self, prefix: Prefix) -> None:
        """Save the digests, unless rows of chunks will save them soon and no other node waits for them."""
        prefix.timer = None
        if prefix.is_forgotten or prefix.is_saving or not prefix.lacks_saving:
            return
        expects_rows = len(prefix.waiting) < len(prefix.offers)
        if prefix.is_shared or not expects_rows:
            prefix.is_saving = True
            self._start_task(self._save_and_go_on(prefix), f"saving digests {prefix.upload.id}")

    async def _save_and_go_on(self, prefix: Prefix) -> None:
        try:
            is_saved = await self._save_digests(prefix)
        finally:
            prefix.is_saving = False
        if is_saved:
            self._go_on(prefix)

    async def _save_digests(self, prefix: Prefix) -> bool:
        """Save the digests. Return whether this worked; a failure does no harm."""
        state = sealed(prefix.upload.id, prefix.fence, prefix.hashes)
        try:
            await self._ledger.save_digest(prefix.upload.id, prefix.fence, state)
        except Unavailable:
            logger.debug("digests not saved", extra={"upload_id": prefix.upload.id})
            return False
        prefix.saved_bytes = max(prefix.saved_bytes, state.position)
        return True

    # Others

    async def _watch_others(self, prefix: Prefix) -> None:
        """Look at the saved position of other nodes, until the waiting chunks can be hashed."""
        deadline = time.monotonic() + _WATCH_SECONDS
        pause_seconds = _LOOK_SECONDS if prefix.is_shared else _LONGEST_LOOK_SECONDS
        try:
            while prefix.waits_for_others and time.monotonic() < deadline:
                await asyncio.sleep(pause_seconds)
                found = await self._ledger.digest(prefix.upload.id, prefix.told_bytes)
                if prefix.is_forgotten:
                    break
                has_moved = self._catch_up(prefix, found)
                grown = min(pause_seconds * _LOOK_GROWTH, _LONGEST_LOOK_SECONDS)
                pause_seconds = _LOOK_SECONDS if has_moved else grown
                prefix.tell_senders()
        except Unavailable:
            logger.debug("digests of others not seen", extra={"upload_id": prefix.upload.id})
        finally:
            prefix.is_watched = False
            prefix.tell_senders()
        if not prefix.waits_for_others:
            self._go_on(prefix)

    # Its waiters

    async def keep_pace(self, upload: Upload, number: int) -> None:
        prefix = self._prefixes.get(upload.id)
        if prefix is not None:
            await prefix.wait_while(prefix.is_far)

    async def digested_bytes(self, upload: Upload) -> int:
        prefix = self._prefixes.get(upload.id)
        return 0 if prefix is None else prefix.hashes.position

    async def forget_digests(self, upload: Upload) -> None:
        self._forget_prefix(upload.id)
        await self._ledger.forget_digest(upload.id)

    def _told_bytes(self, upload_id: str) -> int:
        prefix = self._prefixes.get(upload_id)
        return 0 if prefix is None else prefix.told_bytes

    async def _take_hashes(self, upload: Upload, entry: Entry) -> PrefixHashes | None:
        """Take the hashes of the chunks that came in order before the upload was frozen, here or on another node. From now
        on they belong to the caller."""
        fence = entry.fence - 1  # the fence of the chunks, before the freeze
        prefix = self._prefixes.get(upload.id)
        if prefix is None or prefix.fence != fence or (upload.needs_md5 and not prefix.hashes.has_md5):
            self._forget_prefix(upload.id)
            return restored(entry.digest, upload, fence)
        self._catch_up(prefix, entry.digest)
        self._go_on(prefix)
        await prefix.ended()
        self._forget_prefix(upload.id)
        return prefix.hashes

    def _forget_prefix(self, upload_id: str) -> None:
        prefix = self._prefixes.pop(upload_id, None)
        if prefix is None:
            return
        prefix.is_forgotten = True
        if prefix.timer is not None:
            prefix.timer.cancel()
        self._drop_offers(prefix, *prefix.offers.values())

    async def drain(self) -> None:
        """Wait until all chunks in order are hashed, and save the digests for other nodes."""
        deadline = time.monotonic() + _LAST_SECONDS
        for upload_id, prefix in list(self._prefixes.items()):
            await prefix.ended()
            if prefix.lacks_saving and time.monotonic() < deadline:
                await self._save_digests(prefix)
            self._forget_prefix(upload_id)
        if self._digest_tasks:
            await asyncio.wait(self._digest_tasks)
