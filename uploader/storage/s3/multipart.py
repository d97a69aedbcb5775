"""Ends open uploads on S3: completes them, also as parts of a whole, computes the rest of their digests, finds parts that
differ from the acknowledged ones, and removes the objects of closed uploads.

An upload is frozen first: no more rows of chunks are accepted. From then on each step may be repeated by any process, at any
time.

One exception: two Completes at the same time are not harmless on every server. JuiceFS lets them write into one another, and
reports success to one of them. So the process that froze an upload completes the upload, and others wait for the result. If
this takes long, another process completes the upload as well, and notes this in a row. Then the object is compared with the
ETags of the parts before anybody uses it.
"""

import asyncio
import logging
import secrets
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate

from uploader.domain.ledger import Entry
from uploader.domain.upload import Upload, chunk_count, chunk_length
from uploader.errors import StorageFailed
from uploader.runtime.crashpoints import crash_point
from uploader.storage.base import Busy, BytesBody, Digests, Gone, Lost, PartDamaged, ReadPart
from uploader.storage.hashes import PrefixHashes
from uploader.storage.s3 import bucket
from uploader.storage.s3.blobs import consists_of, hash_from
from uploader.storage.s3.bucket import NoSuchMultipart, PartsChanged
from uploader.storage.s3.digests import fence_of, finished, restored, sealed
from uploader.storage.s3.parts import Multipart, S3Parts, multipart_of

logger = logging.getLogger(__name__)

# Bytes to hash before the position is saved again.
_SAVE_BYTES = 1 << 30
# The time for another process's Complete to show, after our own Complete has failed because of it.
_PAUSES_SECONDS = (0.1, 0.4, 1.0, 2.0)
# How long others wait for the process that froze an upload. It may be dead.
_PATIENCE_SECONDS, _LOOK_SECONDS = 5.0, 0.1
# Replaces the appender in the row, because nobody can append any more.
_AGAIN = "completed again"
# If a whole names an object several times in a row, an object of no more bytes is fetched once.
_KEPT_BYTES = 16 << 20


class S3Endings(S3Parts):
    """Ends open uploads of the store, and withdraws chunks."""

    async def digest(self, upload: Upload) -> Digests:
        """Raises Busy if chunks were withdrawn meanwhile, StorageFailed if S3 does not have the acknowledged bytes."""
        entry = await self._freeze(upload)
        key, is_ours = await self._complete(upload, entry)
        crash_point("object.after_complete")
        if entry.digest is not None and fence_of(entry.digest, upload.id) is None:
            await self._ledger.forget_digest(upload.id)  # a damaged state would be in the way of the new one
        known = finished(entry.digest, upload, entry.fence)
        hashes = await self._known(upload, entry, is_ours=is_ours)
        digests = known or await self._digest(upload, entry, key, hashes)
        if digests.are(upload.md5, upload.sha256) or not (known or hashes.is_restored):
            return digests
        # A saved state alone is no reason to refuse an upload: read all bytes.
        return await self._digest(upload, entry, key, PrefixHashes(with_md5=upload.needs_md5))

    async def _known(self, upload: Upload, entry: Entry, *, is_ours: bool) -> PrefixHashes:
        """Return the hashes that are known without reading. Hashes of chunks as they came have the fence before the freeze,
        and are of the bytes of the rows. If a slow process has completed the upload (not `is_ours`), the object may have
        older bytes. Then only saved hashes of bytes that were read from the object count."""
        came = await self._take_hashes(upload, entry)
        read = restored(entry.digest, upload, entry.fence)
        return (came if is_ours else None) or read or PrefixHashes(with_md5=upload.needs_md5)

    async def _freeze(self, upload: Upload) -> Entry:
        entry = await self._ledger.freeze(upload.id)
        if entry is None:
            raise Gone(upload.id)
        crash_point("object.after_freeze")
        if len(entry.parts) != chunk_count(upload.size, upload.chunk_size):
            await self._ledger.withdraw(upload.id, [], multipart_id=entry.multipart_id)
            raise Busy(upload.id)
        return entry

    async def _complete(self, upload: Upload, entry: Entry) -> tuple[str, bool]:
        """Complete the upload. Return the key, and whether the rows certainly describe the object. Raises StorageFailed."""
        if entry.multipart_id is None:
            return await self._single(upload, entry), True
        multipart = multipart_of(entry.multipart_id)
        etags = [entry.parts[number].etag for number in sorted(entry.parts)]
        if not etags:
            await self._requests.run(self._bucket.put, multipart.key, BytesBody(b""))
            return multipart.key, True
        before, is_ours, is_doubtful = await self._ledger.appender(upload.id), False, False
        if entry.newly_frozen:
            is_ours = await self._complete_multipart(upload, multipart, etags)
            is_doubtful = not is_ours  # a slow process completed it, perhaps with older ETags
        elif not await self._appears(multipart.key, upload.size):
            await self._ledger.claim(upload.id, _AGAIN)
            await self._complete_multipart(upload, multipart, etags)
        crash_point("object.after_parts")
        if is_doubtful or before == _AGAIN or before != await self._ledger.appender(upload.id):
            if not await self._consists(upload, entry, multipart.key):
                inside = f"object {multipart.key} is not what upload {upload.id} was completed from"
                raise StorageFailed(inside=inside)
            is_ours = False
        return multipart.key, is_ours

    async def _appears(self, key: str, size: int) -> bool:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while await self._size(key) != size:
            self.check_stopping()
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_LOOK_SECONDS)
        return True

    async def _consists(self, upload: Upload, entry: Entry, key: str) -> bool:
        etags = [
            (chunk_length(number, upload.size, upload.chunk_size), part.etag)
            for number, part in sorted(entry.parts.items())
        ]
        return await self.threads.long_hashing.run(consists_of, self._bucket, key, etags, self.check_stopping)

    async def _complete_multipart(self, upload: Upload, multipart: Multipart, etags: Sequence[str]) -> bool:
        """Complete a multipart upload. Return True if this call did it, False if another call did. An error of the server
        does not decide: no other object ever has this key, so an object of the right size is the result. If two calls
        complete it at once, some servers refuse one of them before the object exists."""
        for pause_seconds in (*_PAUSES_SECONDS, None):
            try:
                await self._requests.run(self._bucket.complete, multipart.key, multipart.id, etags)
                return True
            except PartsChanged:
                failure = StorageFailed(inside=f"parts of upload {upload.id} are not those that were acknowledged")
            except NoSuchMultipart:
                failure = StorageFailed(inside=f"S3 has lost the parts of upload {upload.id}")
            except StorageFailed as error:
                failure = error
            if await self._size(multipart.key) == upload.size:
                return False
            if pause_seconds is not None:
                await asyncio.sleep(pause_seconds)
        raise failure

    async def _single(self, upload: Upload, entry: Entry) -> str:
        if not entry.parts:
            key = bucket.key_of_empty(upload.id)
            await self._requests.run(self._bucket.put, key, BytesBody(b""))
            return key
        only = entry.parts[0].key
        if only is None or await self._size(only) != upload.size:
            raise StorageFailed(inside=f"S3 has lost the only chunk of upload {upload.id}")
        return only

    async def _size(self, key: str) -> int | None:
        stat = await self._requests.run(self._bucket.head, key)
        return None if stat is None else stat.size

    async def _digest(self, upload: Upload, entry: Entry, key: str, hashes: PrefixHashes) -> Digests:
        """Hash the rest of the object and save the digests, now and then their position, too, for the next process."""
        while hashes.position < upload.size:
            if hashes.position:
                await self._ledger.save_digest(upload.id, entry.fence, sealed(upload.id, entry.fence, hashes))
            until = min(hashes.position + _SAVE_BYTES, upload.size)
            await self.threads.digesting.run(hash_from, self._bucket, key, hashes, until, self.check_stopping)
        digests = hashes.digests()
        await self._ledger.save_digest(upload.id, entry.fence, sealed(upload.id, entry.fence, hashes, digests))
        crash_point("object.after_digest")
        return digests

    async def find_bad_chunks(self, upload: Upload) -> list[int]:
        """Find the chunks whose acknowledged bytes S3 does not have."""
        entry = await self._entry(upload)
        bad = await self._bad_parts(upload, entry)
        tail = entry.tail
        if tail is not None and await self._size(tail.key) != tail.length:
            bad = sorted({*bad, tail.number})
        return bad

    async def _bad_parts(self, upload: Upload, entry: Entry) -> list[int]:
        if entry.multipart_id is None:
            sizes = {number: await self._size(part.key or "") for number, part in entry.parts.items()}
            return [number for number, size in sizes.items() if size != upload.size]
        multipart = multipart_of(entry.multipart_id)
        try:
            there = await self._requests.run(self._bucket.list_parts, multipart.key, multipart.id)
        except NoSuchMultipart:
            if await self._size(multipart.key) != upload.size:
                return sorted(entry.parts)
            # The upload is completed: S3 has compared each part itself, unless two processes completed it at once.
            return [] if await self._consists(upload, entry, multipart.key) else sorted(entry.parts)
        etags = {number: etag for number, (etag, _) in there.items()}
        return [number for number, part in sorted(entry.parts.items()) if part.etag != etags.get(number)]

    async def withdraw(
        self, upload: Upload, numbers: list[int], *, generation: int, verified: bool = False, lost: Lost | None = None
    ) -> None:
        """Withdraw chunks. If their multipart upload is gone, all chunks have to be withdrawn; for fewer this raises
        StorageFailed. `lost`: valid only as long as nobody has begun another multipart upload."""
        seen = lost.seen if lost is not None else await self._ledger.entry(upload.id)
        if not isinstance(seen, Entry):
            raise Gone(upload.id)
        self._forget_prefix(upload.id)
        word = seen.multipart_id
        if word is None or await self._is_open(word):
            if lost is None:
                await self._ledger.withdraw(upload.id, numbers, multipart_id=word, instead_of=word)
            return
        if not set(seen.parts) <= set(numbers):
            raise StorageFailed(inside=f"S3 has lost all parts of upload {upload.id}, not some")
        begun = await self._begin_multipart(upload)
        if not await self._ledger.withdraw(upload.id, numbers, multipart_id=begun, instead_of=word):
            multipart = multipart_of(begun)
            await self._requests.run(self._bucket.abort, multipart.key, multipart.id)

    async def find_lost(self, upload: Upload) -> Lost | None:
        """Return the loss if the multipart upload of an upload is gone, unless a process completes or has completed it."""
        entry = await self._ledger.entry(upload.id)
        if entry is None or entry.frozen or entry.multipart_id is None or await self._is_open(entry.multipart_id):
            return None
        if await self._size(multipart_of(entry.multipart_id).key) is not None:
            return None
        now = await self._ledger.entry(upload.id)  # it may have been completed or begun anew between the two looks
        is_other = now is None or now.frozen or now.multipart_id != entry.multipart_id
        return None if now is None or is_other else Lost(sorted(now.parts), now)

    async def _is_open(self, word: str) -> bool:
        multipart = multipart_of(word)
        try:
            await self._requests.run(self._bucket.list_parts, multipart.key, multipart.id)
        except NoSuchMultipart:
            return False
        return True

    async def settle_length(self, upload: Upload) -> bool:
        """Make the tail the last chunk, once the length is known. Return whether the tail was the last chunk."""
        count = chunk_count(upload.size, upload.chunk_size)
        entry = await self._ledger.entry(upload.id)
        tail = entry.tail if entry is not None else None
        if entry is None or tail is None or not count or tail.number != count - 1:
            return False
        if tail.length != chunk_length(tail.number, upload.size, upload.chunk_size):
            return False
        content = await self._requests.run(self._bucket.get, tail.key, 0, tail.length)
        part = await self._upload_part(upload, entry, tail.number, BytesBody(content))
        crash_point("object.after_last_part")
        if await self._note_part(upload, entry, part):
            await self._drop_tail(tail)
        return True

    async def discard(self, upload: Upload, placed_at: str | None = None) -> bool:
        return await self._remove_upload(upload.id, placed_at=placed_at)

    async def _remove_upload(self, upload_id: str, *, placed_at: str | None = None) -> bool:
        """Remove the objects and the record of an upload, except an object at which a blob lies. Most uploads have no other
        object (`placed_at`), and then S3 is not asked. Return whether there was a record."""
        self._forget_prefix(upload_id)
        if placed_at is not None and await self._ledger.forget_placed(upload_id, placed_at):
            return True
        entry = await self._ledger.freeze(upload_id)
        if entry is None:
            return False
        objects = [part.key for part in entry.parts.values() if part.key is not None]
        if entry.tail is not None:
            objects.append(entry.tail.key)
        multipart = None if entry.multipart_id is None else multipart_of(entry.multipart_id)
        if multipart is not None:
            objects.append(multipart.key)
        elif not entry.parts:
            objects.append(bucket.key_of_empty(upload_id))
        # The objects of parts that are open uploads still stay: they are as before the join.
        pieces = [key for key, _ in await self._ledger.pieces(upload_id)]
        there = await self._ledger.uploads_of([bucket.upload_of_key(key) for key in pieces]) if pieces else ()
        objects += [key for key in pieces if bucket.upload_of_key(key) not in there]
        kept = await self._ledger.kept(objects, but_of=upload_id)
        if multipart is not None and multipart.key not in kept:  # else it is complete: there is nothing to abort
            await self._requests.run(self._bucket.abort, multipart.key, multipart.id)
        left = [key for key in objects if key not in kept]
        if left:
            await self._requests.run(self._bucket.delete, left)
        crash_point("object.after_remove")
        return await self._ledger.forget(upload_id)

    async def place_blob(self, upload: Upload, sha256: str) -> str:
        """Return the key of the blob. The bytes stay at their key, and the caller's transaction records it. This transaction
        has the row of the upload locked: a withdrawal of chunks came before, or finds the upload closed. Raises Gone, also
        if chunks were withdrawn since. The answer is durable once the caller's transaction is."""
        entry = await self._ledger.glance(upload.id, 0)
        digests = entry.digest.digests if entry is not None and entry.digest is not None else None
        if entry is None or not entry.frozen or digests is None or digests[1] != sha256:
            raise Gone(upload.id)
        if entry.multipart_id is not None:
            return multipart_of(entry.multipart_id).key
        only = entry.parts[0].key if entry.parts else None
        return only or bucket.key_of_empty(upload.id)

    # Concatenations. Each part is completed to an object, and rows of the whole name these objects. So parts can end as
    # every upload does, and the whole does not depend on them: a part does not delete an object that a whole names. Each
    # chunk of the whole is read from these objects by ranges.

    async def create(self, upload: Upload, parts: Sequence[Upload] | None = None) -> float:
        """Create an upload. Repeatable: the parts of an attempt that did not commit are the same objects."""
        if parts is None:
            return await self._create(upload)
        pieces = []
        for part in parts:
            key, _ = await self._complete(part, await self._freeze(part))
            pieces.append((key, part.size))
            crash_point("join.after_complete")
        made_at = await self._create(upload)
        await self._ledger.set_pieces(upload.id, pieces)
        crash_point("join.after_pieces")
        return made_at

    @asynccontextmanager
    async def filling(self, whole: Upload) -> AsyncIterator[ReadPart]:
        """Hold the right to fill. The latest call has it, as with appending, and an earlier one ends with Busy. If two calls
        fill at once, rows decide which chunks count."""
        token = secrets.token_hex(16)
        pieces = await self._ledger.pieces(whole.id)
        if (not pieces and whole.size) or not await self._ledger.claim(whole.id, token):
            raise Gone(whole.id)

        repeated: dict[str, bytes] = {}

        async def read(number: int) -> BytesBody:
            if await self._ledger.appender(whole.id) != token:
                raise Busy(whole.id)
            return await self._requests.run(self._read_chunk, whole, pieces, number, repeated)

        yield read

    def _read_chunk(
        self, whole: Upload, pieces: Sequence[tuple[str, int]], number: int, repeated: dict[str, bytes]
    ) -> BytesBody:
        self.check_stopping()
        starts = list(accumulate((size for _, size in pieces), initial=0))
        start = number * whole.chunk_size
        end = start + chunk_length(number, whole.size, whole.chunk_size)
        content = bytearray()
        for position in range(max(bisect_right(starts, start, hi=len(pieces)) - 1, 0), len(pieces)):
            key, size = pieces[position]
            first = start + len(content) - starts[position]
            length = min(end - starts[position], size) - first
            if length > 0:
                again = position + 1 < len(pieces) and pieces[position + 1][0] == key
                try:
                    if again and key not in repeated and size <= _KEPT_BYTES:
                        repeated.clear()
                        repeated[key] = self._bucket.get(key, 0, size)
                    kept = repeated.get(key)
                    content += self._bucket.get(key, first, length) if kept is None else kept[first : first + length]
                except Gone as error:
                    raise PartDamaged(f"object {key} is not there") from error
            if start + len(content) == end:
                break
        return BytesBody(bytes(content))
