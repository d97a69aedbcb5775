"""The digests of open uploads on S3, from memory: chunks can't be read before their upload is completed.

The storer of a chunk offers its body first. What comes in order is hashed at once, while it is stored, and counts once its
row is committed. With that row it is saved how far the digests have come, so that another node goes on. What comes
a little too early is kept until then, within a bound: until it is told here, or until others have saved that they have come
so far. What was missed is read once the upload is completed. All of an upload here belongs to one fence: chunks that were
withdrawn leave nothing behind.

A state is saved with a checksum, and with the fence of the chunks that it is of: a row may be damaged; and the completer of
an upload that others have completed as well must know whether its digests are of what came, or of what was read since. The
seal is in the byte order of the machine, as the state itself is.
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
# A waiter for a gap that nobody fills gives way after that.
_STALLED_SECONDS = 5.0
# A sender waits while so much of its upload waits to be hashed.
_FAR_BYTES = 64 << 20
# What comes farther ahead would have to wait for more than a process keeps, and take the memory of what comes next.
_NEAR_BYTES = 128 << 20
# An upload that has come further lately goes on doing so.
_SHARED_SECONDS = 2.0
# The fence, and the checksum of all that is saved.
_SEAL = struct.Struct("=QI")


@dataclass(eq=False)
class OfferedPart:
    """A chunk on its way to S3. It may be hashed from its body before its row is there."""

    number: int
    body: Body
    # None: the digests do not wait for this chunk.
    prefix: "Prefix | None" = None
    # Whether its row is committed.
    is_written: bool = False
    # Where its body is kept for the digests, if it is.
    kept_in: Bodies | None = None
    # Whether a thread reads its body now.
    is_read: bool = False
    # How far the digests are saved once its row is committed; 0: no further than before.
    saved_bytes: int = 0


@dataclass(eq=False)
class Prefix(Following):
    """The hashes of the chunks that count, and what is offered after them."""

    fence: int
    hashes: PrefixHashes
    # With the chunk that follows, which was hashed before its row was committed.
    ahead: PrefixHashes | None = None
    offers: dict[int, OfferedPart] = field(default_factory=dict)
    # How far others can go on from what is saved.
    saved_bytes: int = 0
    is_forgotten: bool = False
    # Whether somebody looks how far others have come, or tells others.
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
        """The chunks that count, and are still to be hashed."""
        return [offer for offer in self.offers.values() if offer.is_written]

    @property
    def lacks_saving(self) -> bool:
        return self.hashes.position > self.saved_bytes and states_are_portable()

    @property
    def is_shared(self) -> bool:
        return time.monotonic() - self.shared_at < _SHARED_SECONDS

    @property
    def waits_for_others(self) -> bool:
        """Return whether it is somebody else who has the chunk that is next, or nobody."""
        return bool(self.waiting) and self.following is None

    @property
    def told_bytes(self) -> int:
        return max([self.saved_bytes, *(offer.saved_bytes for offer in self.offers.values())])

    def advance(self, hashes: PrefixHashes) -> list[OfferedPart]:
        """Have these hashes, which are further on; gives the offers that nobody waits for any more."""
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
        """Return whether much is left to hash, and something is hashed."""
        comes_nearer = self.is_running or (self.is_watched and self.is_shared)
        return comes_nearer and sum(offer.body.length for offer in self.waiting) > _FAR_BYTES


def sealed(upload_id: str, fence: int, hashes: PrefixHashes, digests: Digests | None = None) -> SavedDigest:
    """Return the state to save; `digests`: of the whole."""
    found = None if digests is None else (digests.md5, digests.sha256)
    state = hashes.state()
    checksum = _checksum(upload_id, fence, hashes.position, state, found)
    return SavedDigest(hashes.position, _SEAL.pack(fence, checksum) + state, found)


def fence_of(saved: SavedDigest, upload_id: str) -> int | None:
    """Return the fence under which it was saved; None if it is damaged."""
    if len(saved.state) < _SEAL.size:
        return None
    fence: int
    fence, checksum = _SEAL.unpack_from(saved.state)
    state = saved.state[_SEAL.size :]
    return fence if checksum == _checksum(upload_id, fence, saved.position, state, saved.digests) else None


def restored(saved: SavedDigest | None, upload: Upload, fence: int) -> PrefixHashes | None:
    """Return the hashes to go on from, if they were saved under this fence, and have what the upload needs."""
    if saved is None or fence_of(saved, upload.id) != fence:
        return None
    return PrefixHashes.restore(saved.position, saved.state[_SEAL.size :], needs_md5=upload.needs_md5)


def finished(saved: SavedDigest | None, upload: Upload, fence: int) -> Digests | None:
    """Return the digests of the whole, if they were saved under this fence, and are what the upload needs."""
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
        # Of chunks that count, and of those that are on their way.
        self._kept_written, self._kept_ahead = Bodies(), Bodies()
        # They save, or watch.
        self._digest_tasks: set[asyncio.Task[None]] = set()

    # Chunks come

    def _offer(self, upload: Upload, entry: Entry, number: int, body: Body) -> OfferedPart:
        """Offer the body of a chunk before it is stored. Afterwards the offer has to be settled, in any case."""
        offer = OfferedPart(number, body)
        prefix = self._prefix(upload, entry)
        if prefix is not None and prefix.takes(number):
            offer.prefix = prefix
            prefix.offers[number] = offer
            self._go_on(prefix)
        return offer

    def _prefix(self, upload: Upload, entry: Entry) -> Prefix | None:
        """None for a reader that has looked before chunks were withdrawn."""
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
        """Go on from where others have come, if that is further; whether it is."""
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
        """Return how far the digests have come once the chunk of an offer counts; None: no further than what is saved."""
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
        """Keep its body, within a bound; whether that is so."""
        bodies, most = self._kept_ahead, _MAX_AHEAD_BYTES
        if offer.is_written:
            bodies, most = self._kept_written, MAX_KEPT_BYTES
        if offer.kept_in is None and bodies.keep(offer.body, most):
            offer.kept_in = bodies
        return offer.kept_in is not None

    def _release_body(self, offer: OfferedPart) -> None:
        """Unless a thread reads its body: then that does so at its end."""
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
        """Return the chunk to be hashed now, its body kept. None follows one whose row is still to come."""
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
            # Unless it was dropped meanwhile, or others have come further.
            if prefix.following is offer and offer.is_written:
                prefix.advance(hashes)
            elif prefix.following is offer:
                prefix.ahead = hashes
            prefix.moved()
        prefix.task = None
        self._go_on(prefix)

    # Saving

    def _save_if_quiet(self, prefix: Prefix) -> None:
        """Chunks that are on their way take it along, unless others wait for it."""
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
        """Save the digests; return whether that worked. It is no matter if it fails."""
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
        """Look whether others have come further, until what waits here can be hashed."""
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
        """Take the hashes of what came in order until the upload was frozen, here or elsewhere; they are the caller's
        from now on."""
        fence = entry.fence - 1  # that of the chunks
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
        """Wait until what can be hashed is, and save it for others."""
        deadline = time.monotonic() + _LAST_SECONDS
        for upload_id, prefix in list(self._prefixes.items()):
            await prefix.ended()
            if prefix.lacks_saving and time.monotonic() < deadline:
                await self._save_digests(prefix)
            self._forget_prefix(upload_id)
        if self._digest_tasks:
            await asyncio.wait(self._digest_tasks)
