"""The upload of one source: small sources go in a single request, larger ones are hashed and then sent in chunks, large
ones are opened before hashing.

At every step, the server's list of missing chunks is the truth, so a killed run is simply repeated. `Sending` knows how
to send bytes, and nothing of digests and merges; `Uploading` judges the state of the upload in the end.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from uploader.client import errors, model, plan
from uploader.client.api import Api
from uploader.client.model import Challenged, Complete, Digests, File, Merging, Open, Upload, UploadStatus
from uploader.client.pace import BODY_LIMITED
from uploader.client.plan import Part
from uploader.client.source import Source, digests_of, proof_of, sample_of
from uploader.client.transfer import Meter, Shared, all_or_none, check_room, end, needs_no_place

if TYPE_CHECKING:
    from uploader.client.delta import Known

_READ_BYTES = 1 << 20
_PIECE_BYTES = 128 << 10
# Deltas pay off for larger files; for others a question and a signature cost more than they spare.
_SMALLEST_BYTES = 8 << 20
_SMALLEST_BASE_BYTES = 1 << 20
# How long the line is measured, and how much of a source is cut, to compare their speeds.
_TRIED_SECONDS = 0.25
_CUT_BYTES = 4 << 20
_PAGE_FILES = 1000
# Problems of instructions, not of the chunk or the upload.
_INSTRUCTIONS_REFUSED = frozenset({"invalid-delta", "base-unusable", "file-not-found", "chunk-length-mismatch"})

# How many uploads with one key may have ended before the file is opened by its digests instead.
_KEY_ATTEMPTS = 20
_ROUNDS = 10
_FIRST_LOOK_SECONDS, _LONGEST_LOOK_SECONDS = 0.1, 2.0


class Changes:
    """The changes of a source, which can be sent alone if the source replaces an existing file, and the server has a
    signature and takes instructions. In all other cases everything is sent. The server is asked once, when the changes
    are needed.

    To find the changes, both sides read, cut and hash the whole file. That takes less time than a slow line, and more
    than a fast one. So at first everything is sent for a moment. The rate of all transfers of the client is compared
    with the time for cutting some of the source meanwhile. On a fast line the rest is sent, too; on a slow line,
    unfinished chunks are dropped.
    """

    def __init__(self, api: Api, source: Source, name: str, *, replaces: bool, wanted: bool | None) -> None:
        """`wanted`: True: send only the changes; False: send everything; None: decide by the line."""
        self._api = api
        self._source = source
        self._name = name
        self._is_possible = replaces and wanted is not False and source.size >= _SMALLEST_BYTES
        # Until this is true, everything is sent.
        self._is_chosen = wanted is True
        self._base: File | None = None
        self._asking = asyncio.Lock()
        # The parts of the source that the server has, once known.
        self.known: Known | None = None

    async def depend_on_the_line(self) -> bool:
        """Return whether the line has to be measured first."""
        return not self._is_chosen and await self.can_spare()

    async def choose(self, bytes_per_second: float) -> bool:
        """Decide by the rate of the line. Return whether to send only the changes. Raises FileChanged, Unreadable."""
        from uploader.client.delta import cutting_seconds

        cut_bytes = min(self._source.size, _CUT_BYTES)
        cutting = await asyncio.to_thread(cutting_seconds, self._source, cut_bytes)
        self._is_chosen = plan.is_delta_faster(bytes_per_second, cut_bytes / cutting)
        if not self._is_chosen:
            self.give_up()
        return self._is_chosen

    async def look(self) -> None:
        """Find the parts that the server has. Raises FileChanged, Unreadable."""
        async with self._asking:
            if not self._is_possible or not self._is_chosen or self.known is not None:
                return
            if base := await self._find_base():
                from uploader.client.delta import Known  # imported here, because most uploads replace no large file

                with contextlib.suppress(errors.ClientError, ValueError):
                    signature = await self._api.signature(base.id)
                    self.known = await asyncio.to_thread(Known, self._source, base, signature)
            self._is_possible = self.known is not None

    async def can_spare(self) -> bool:
        async with self._asking:
            return self._is_possible and await self._find_base() is not None

    def give_up(self) -> None:
        self._is_possible, self.known = False, None

    async def _find_base(self) -> File | None:
        if self._base is None:
            try:
                page = await self._api.page(None, self._name, _PAGE_FILES, one_level=True)
            except errors.ServerProblem:
                return None
            of_name = [file for file in page.files if file.name == self._name and file.size >= _SMALLEST_BASE_BYTES]
            self._base = max(of_name, key=lambda file: file.created_at, default=None)
        return self._base


class Sending(Struct, frozen=True):
    api: Api
    source: Source
    meter: Meter
    shared: Shared
    gate: asyncio.Event  # closed while the transfer is paused
    told: asyncio.Event  # the last chunk waits until this is set
    changes: Changes  # finds bytes that need not be sent

    async def send_missing(self, upload: Upload) -> UploadStatus:
        """Send all chunks that the server misses. Return the state afterwards."""
        self.meter.enter("uploading")
        if await self.changes.depend_on_the_line():
            status = await self._try_line(upload)
            if not isinstance(status, Open):
                return status
            upload = status.upload
        await self.changes.look()
        try:
            return await self._send_all(upload)
        except errors.ServerProblem as error:
            if error.code != BODY_LIMITED:
                raise
            asked_bytes = self.shared.chunk_size
            is_smallest = asked_bytes is not None and asked_bytes < upload.chunk_size
            await self.shared.halve(self.api, error)
            status = await self.api.status(upload.id)
            # Beginning anew with smaller chunks sends all bytes; appending sends only the missing ones.
            if isinstance(status, Open) and (status.upload.received_bytes or is_smallest):
                with contextlib.suppress(errors.BadAnswer):  # a server without appends
                    return await self._append(status.upload)
            raise

    async def _append(self, upload: Upload) -> UploadStatus:
        """Send the missing bytes in pieces smaller than chunks, one after the other. Return the state afterwards."""
        retrying = self.api.retrying()
        for first, last in upload.missing:
            end_offset = min((last + 1) * upload.chunk_size, upload.size)
            offset = max(first * upload.chunk_size, await self.api.offset(upload.id))
            while offset < end_offset:
                await self.gate.wait()
                length = min(self.shared.most_body_bytes, end_offset - offset)
                if offset + length == upload.size:
                    await self.told.wait()
                try:
                    async with self.shared.slots, self._pieces([Part(b"", offset, length)]) as pieces:
                        offset = await self.api.append_once(upload.id, offset, length, pieces)
                    retrying = self.api.retrying()
                except errors.ClientError as error:
                    if error.code == BODY_LIMITED and isinstance(error, errors.ServerProblem):
                        await self.shared.halve(self.api, error)
                    else:
                        await retrying.pause(error)
                    offset = await self.api.offset(upload.id)
        return await self.api.status(upload.id)

    async def _try_line(self, upload: Upload) -> UploadStatus:
        """Send whole chunks, only for a moment if the line is slow. Return the state afterwards."""
        moved_bytes, began_at = self.shared.moved_bytes, time.monotonic()
        sending = asyncio.create_task(self._send_all(upload))
        try:
            await asyncio.wait({sending}, timeout=_TRIED_SECONDS)
            if not sending.done():
                rate = (self.shared.moved_bytes - moved_bytes) / (time.monotonic() - began_at)
                if await self.changes.choose(rate):
                    await end(sending)
                    return await self.api.status(upload.id)
            return await sending
        finally:
            await end(sending)

    async def _send_all(self, upload: Upload) -> UploadStatus:
        queue = plan.Queue(upload.missing, hold_last=not self.told.is_set())
        workers = [self._send_from(queue, upload) for _ in range(min(self.shared.connections, len(queue)))]
        for status in await all_or_none(workers):
            if status is not None:
                return status
        return await self.api.status(upload.id)

    async def _send_from(self, queue: plan.Queue, upload: Upload) -> UploadStatus | None:
        """Send chunks until none is left. Return the state of the upload, if the last answer tells it."""
        status: UploadStatus | None = None
        while len(queue):
            await self.gate.wait()
            number = queue.take()
            if number is None:
                await self.told.wait()
                queue.release()
                continue
            async with self.shared.slots:
                answer = await self._send(upload, number)
            status = answer if isinstance(answer, Merging | Complete) else None
        return status

    async def _send(self, upload: Upload, number: int) -> model.Sent | UploadStatus:
        """Send one chunk until it counts. After a failure ask the server first, because only the answer may be lost."""
        retrying = self.api.retrying()
        while True:
            try:
                return await self._send_once(upload, number)
            except errors.ServerProblem as error:
                if error.code != "chunks-missing":  # otherwise ours counts, and others are missing
                    await retrying.pause(error)
            except errors.ClientError as error:
                await retrying.pause(error)
            status = await self.api.status(upload.id)
            if not isinstance(status, Open) or number not in plan.missing_numbers(status.upload.missing):
                return status

    async def _send_once(self, upload: Upload, number: int) -> model.Sent:
        offset = number * upload.chunk_size
        length = min(upload.chunk_size, upload.size - offset)
        known = self.changes.known
        made = None if known is None else await known.parts_of(offset, length)
        parts = made or [Part(b"", offset, length)]
        sent_bytes = sum(len(part.head) + part.length for part in parts)
        base_id = known.base_id if known is not None and made else None
        async with self._pieces(parts) as pieces:
            try:
                sent = await self.api.put_chunk_once(upload.id, number, sent_bytes, pieces, base_id=base_id)
            except errors.ServerProblem as error:
                if base_id is None or error.code not in _INSTRUCTIONS_REFUSED:
                    raise
                self.changes.give_up()
                return await self._send_once(upload, number)
            self.meter.spared(max(0, length - sent_bytes))
            if isinstance(sent, model.Acknowledged):
                self.meter.received(sent.received_bytes)
            return sent

    async def send_whole(self, digests: Digests, name: str, wishes: Mapping[str, str]) -> tuple[File, bool]:
        self.meter.enter("uploading")
        await self.gate.wait()
        size = self.source.size
        async with self.shared.slots, self._pieces([Part(b"", 0, size)]) as pieces:
            return await self.api.put_file_once(digests, name, wishes, size, pieces)

    @asynccontextmanager
    async def _pieces(self, parts: Sequence[Part]) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield the bytes while they are read. Until this ends, they count as on their way."""
        moving_bytes = 0

        async def pieces() -> AsyncIterator[bytes]:
            nonlocal moving_bytes
            async for block in self._blocks(parts):
                for at in range(0, len(block), _PIECE_BYTES):
                    piece = block[at : at + _PIECE_BYTES]
                    moving_bytes += len(piece)
                    self.meter.moving(len(piece))
                    self.shared.moved_bytes += len(piece)
                    yield piece

        try:
            yield pieces()
        finally:
            self.meter.landed(moving_bytes)

    async def _blocks(self, parts: Sequence[Part]) -> AsyncIterator[bytes]:
        for part in parts:
            if part.head:
                yield part.head
            end = part.offset + part.length
            for start in range(part.offset, end, _READ_BYTES):
                yield await asyncio.to_thread(self._read, start, min(_READ_BYTES, end - start))

    def _read(self, offset: int, length: int) -> bytes:
        block = self.source.read(offset, length)
        self.source.check()
        return block


def begins_anew(error: errors.ServerProblem) -> bool:
    """Return whether an upload ended, or can't go on, for a reason that a new upload does not have."""
    if error.code == "upload-gone":
        return error.fields.get("reason") in ("expired", "md5-mismatch", "sha256-mismatch")
    return error.code in ("md5-mismatch", "sha256-mismatch", "md5-conflict", "sha256-conflict", "bytes-conflict")


class Destination(Struct, frozen=True):
    name: str
    if_exists: model.IfExists = "keep"
    # The caller's files of this name and size. If the source is one of them, there is nothing to do.
    candidates: Sequence[File] = ()
    # An open upload of the same bytes to resume.
    upload: Upload | None = None


class Uploading:
    _hashing: "asyncio.Task[Digests]"

    def __init__(
        self, api: Api, source: Source, destination: Destination, meter: Meter, shared: Shared, gate: asyncio.Event
    ) -> None:
        self._api = api
        self._source = source
        self._name = destination.name
        self._destination = destination
        self._expected = destination.upload
        self._meter = meter
        self._shared = shared
        self._told = asyncio.Event()  # set when the server has the digests, or has to do without
        replaces = destination.if_exists == "replace"
        self._changes = Changes(api, source, destination.name, replaces=replaces, wanted=shared.delta)
        self._sending = Sending(api, source, meter, shared, gate, self._told, self._changes)
        self._wishes: dict[str, str] = {}  # beyond the bytes
        self._present = False
        self.upload_id: str | None = None

    async def discard(self) -> None:
        """Let the server forget an unfinished upload."""
        if self.upload_id is not None:
            await self._api.cancel(self.upload_id)

    def how(self, file: File) -> model.How:
        if self._meter.moved_bytes and not self._present:
            return "sent"
        return "instant" if file.instant and not self._present else "present"

    async def run(self) -> File:
        """Upload, and return the file. Raises ClientError; after FileChanged the server keeps nothing of the upload."""
        self._meter.tell()
        await self._check_room()  # before anything is read
        self._hashing = asyncio.create_task(digests_of(self._source, self._meter.hashed))
        try:
            self._at_once_bytes = await self._shared.at_once_bytes(self._api)
            if self._at_once_bytes:
                self._wishes = plan.wishes(self._destination.if_exists, self._source.modified_ns)
            elif self._destination.if_exists != "keep":
                raise errors.ServerTooOld  # rather than ignore `if_exists`
            file = await self._run_again_if_it_helps()
            self._meter.enter("complete")
            return file
        finally:
            await end(self._hashing)

    async def _check_room(self) -> None:
        await check_room(self._api, self._name, self._source.size, self._destination.if_exists)

    async def _run_again_if_it_helps(self) -> File:
        is_again = False
        try:
            while True:
                try:
                    return await self._run()
                except errors.ServerProblem as error:
                    if error.code == BODY_LIMITED:
                        await self._shared.halve(self._api, error)
                    elif is_again or not begins_anew(error):
                        raise
                    else:
                        is_again = True
                # Once more: earlier runs had sent other bytes, the upload has expired meanwhile, or its chunks are too
                # large for a proxy.
                self._source.check()
                await self._discard_mixed()
                self._expected = None
                self._changes.give_up()
                self._meter.begin_anew()
        except errors.FileChanged:
            await self._discard_mixed()
            raise

    async def _discard_mixed(self) -> None:
        """Discard an upload that also holds other bytes, sent under the same key or appended."""
        with contextlib.suppress(errors.ClientError):
            await self.discard()

    async def _run(self) -> File:
        self.upload_id = None
        opened: UploadStatus | None = None
        if self._expected is not None:
            opened = await self._open_by_id(self._expected)
        elif self._source.size > self._shared.hash_first_bytes:
            opened = await self._open_by_key()
        if opened is None:
            file = await self._by_digests(await self._hashing)
        else:
            file = opened.file if isinstance(opened, Complete) else await self._go_on(opened)
        digests = await self._hashing
        self._source.check()
        if (file.sha256, file.size) != (digests.sha256, self._source.size):
            raise errors.ContentDiffers(
                f"{self._name}: the server has SHA-256 {file.sha256}, here it is {digests.sha256}"
            )
        return file

    # Hashed first

    async def _by_digests(self, digests: Digests) -> File:
        for file in self._destination.candidates:
            if file.sha256 == digests.sha256:
                self._present = True
                return file
        async with self._shared.alone(digests.md5):
            return await self._by_digests_alone(digests)

    async def _by_digests_alone(self, digests: Digests) -> File:
        self._told.set()
        if await self._goes_at_once(digests):
            at_once = await self._at_once(digests)
            if at_once is not None:
                return at_once
        file = await self._finish(await self._open_by_digests(digests))
        if file.name != self._name:
            # An upload of the same bytes was resumed, under its own name. Now the content exists for this name, too.
            file = await self._finish(await self._open_by_digests(digests))
        return file

    async def _goes_at_once(self, digests: Digests) -> bool:
        """Return whether to send the file in a single request, not if a question may spare its bytes."""
        size = self._source.size
        if not size or size > self._at_once_bytes:
            return False
        if size <= plan.SMALL_BYTES:
            return True
        if await self._changes.can_spare():
            return False
        states = await self._api.states([digests.md5])
        return all(state.state == "absent" for state in states.values())

    async def _at_once(self, digests: Digests) -> File | None:
        """Send the file in one request. Return None if the client has to ask before sending more: the file is too large
        for this, was refused for the moment, or the answer was lost."""
        try:
            file, self._present = await self._sending.send_whole(digests, self._name, self._wishes)
        except errors.ClientError as error:
            if error.code == BODY_LIMITED and isinstance(error, errors.ServerProblem):
                await self._shared.halve(self._api, error)
            elif error.code != "file-too-large":
                await self._api.retrying().pause(error)
            return None
        self._meter.received(file.size)
        return file

    async def _open_by_digests(self, digests: Digests) -> UploadStatus:
        size, chunk_size = self._source.size, self._shared.chunk_size
        open_file = partial(self._api.open_file, digests, self._name, size, chunk_size, wishes=self._wishes)
        opened = await open_file(instant=True)
        if isinstance(opened, Challenged):
            opened = await self._prove(None, digests, opened.challenge) or await open_file(instant=False)
        if isinstance(opened, Challenged):
            raise errors.ContentDiffers("the server asks for a proof though none was offered")
        return opened

    async def _prove(self, upload_id: str | None, digests: Digests, challenge: model.Challenge) -> Complete | None:
        """Return the file if the proof is accepted; None if the bytes have to be sent."""
        from uploader.domain.digest import ALGORITHM

        if challenge.algorithm != ALGORITHM:
            return None
        proof = await proof_of(self._source, digests, challenge)
        try:
            return await self._api.prove(upload_id, digests.md5, challenge.id, self._name, proof)
        except errors.ServerProblem as error:
            if error.code != "proof-failed":
                raise
            return None

    # Opened first

    async def _open_by_id(self, upload: Upload) -> UploadStatus:
        if upload.size != self._source.size:
            raise errors.ContentDiffers(
                f"{upload.name}: the upload is of {upload.size} bytes, here are {self._source.size}"
            )
        return await self._api.status(upload.id)

    async def _go_on(self, opened: Open | Merging) -> File:
        """Send the missing bytes while the source is hashed."""
        self._told.clear()
        sending = asyncio.create_task(self._finish(opened))
        try:
            await asyncio.wait({sending, self._hashing}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                return sending.result()
            digests = self._hashing.result()
            alone = self._shared.alone(digests.md5)
            if alone.locked():
                await end(sending)  # another upload sends the same bytes at this moment
            async with alone:
                return await self._tell_and_finish(opened.upload, digests, sending)
        finally:
            await end(sending)

    async def _open_by_key(self) -> UploadStatus | None:
        """Open or resume the upload under this file's key. Return None if only the digests can help."""
        sample = await sample_of(self._source)
        for attempt in range(_KEY_ATTEMPTS):
            key = plan.resume_key(self._name, self._source.size, sample, attempt)
            size, chunk_size = self._source.size, self._shared.chunk_size
            try:
                opened = await self._api.open_upload(self._name, size, chunk_size, key, self._wishes)
            except errors.NotFound:
                continue  # the upload was cancelled or has expired, or its file was deleted
            except errors.QuotaExceeded:
                await self._check_room()
                return None  # the content may exist already
            except errors.TooManyFiles:
                if not await needs_no_place(self._api, self._name, size, self._destination.if_exists):
                    raise
                return None
            if not isinstance(opened, Complete):
                return opened
            if opened.file.sha256 == (await self._hashing).sha256:
                return opened if opened.file.name == self._name else None
        return None

    async def _tell_and_finish(self, upload: Upload, digests: Digests, sending: "asyncio.Task[File]") -> File:
        try:
            told = await self._api.tell(upload.id, digests)
        except errors.ServerProblem as error:
            if error.code == "upload-exists":
                return await self._meet(str(error.fields.get("id")), upload, digests, sending)
            raise
        if isinstance(told, Challenged):
            told = await self._prove(upload.id, digests, told.challenge) or await self._api.status(upload.id)
        self._told.set()
        if isinstance(told, Complete):
            await end(sending)
            if told.file.name != self._name:
                return await self._by_digests_alone(digests)
            return told.file
        return await self._finish(told) if sending.cancelled() else await sending

    async def _meet(self, other_id: str, upload: Upload, digests: Digests, sending: "asyncio.Task[File]") -> File:
        """Resume the fuller one of two open uploads of this content, the other perhaps of another device."""
        own, other = await asyncio.gather(self._api.status(upload.id), self._api.status(other_id))
        if isinstance(own, Open) and not (
            isinstance(other, Open) and other.upload.received_bytes < own.upload.received_bytes
        ):
            await end(sending)
            await self._api.cancel(upload.id)
            return await self._by_digests_alone(digests)
        # The other upload is left to its device. The server computes the digests of ours, and `_run` compares them.
        self._told.set()
        return await self._finish(own) if sending.cancelled() else await sending

    # Sent, and merged

    async def _finish(self, status: UploadStatus) -> File:
        rounds = 0
        while not isinstance(status, Complete):
            upload = status.upload
            self.upload_id = upload.id
            self._meter.received(upload.received_bytes)
            if isinstance(status, Merging):
                status = await self._wait_for_merge(upload.id)
            elif rounds == _ROUNDS:
                raise errors.ContentDiffers(f"{self._name}: the server keeps losing chunks")
            elif upload.missing:
                rounds += 1
                status = await self._sending.send_missing(upload)
            else:
                try:
                    status = await self._api.merge(upload.id)
                except errors.ServerProblem as error:
                    if error.code != "chunks-missing":
                        raise
                    status = await self._api.status(upload.id)
        self._meter.received(status.file.size)
        return status.file

    async def _wait_for_merge(self, upload_id: str) -> UploadStatus:
        self._meter.enter("merging")
        pause_seconds = _FIRST_LOOK_SECONDS
        while isinstance(status := await self._api.status(upload_id), Merging):
            self._meter.merged(status.upload.merged_bytes)
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(pause_seconds * 2, _LONGEST_LOOK_SECONDS)
        return status
