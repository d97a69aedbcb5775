"""How one source becomes a file on the server: in one request if it is small, hashed first and sent in chunks if it is
larger, opened first if it is large.

The server's list of missing chunks is the truth at every step, so a run that was killed is simply run again. Knows
nothing of tasks that callers hold (`transfer.py`) and of HTTP (`transport.py`).
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from uploader.client.api import Api
from uploader.client.errors import (
    ClientError,
    ContentDiffers,
    FileChanged,
    NotFound,
    QuotaExceeded,
    ServerProblem,
    ServerTooOld,
)
from uploader.client.model import (
    Challenge,
    Challenged,
    Complete,
    Digests,
    File,
    How,
    IfExists,
    Merging,
    Open,
    Opened,
    Upload,
    UploadStatus,
)
from uploader.client.transfers import plan
from uploader.client.transfers.deltas.changes import Changes
from uploader.client.transfers.hashing import digests_of, proof_of, sample_of
from uploader.client.transfers.progress import Meter
from uploader.client.transfers.sending import Sending, begins_anew, end
from uploader.client.transfers.shared import Shared, check_room
from uploader.client.transfers.source import Source
from uploader.domain.digest import ALGORITHM

# How many uploads under one key may have ended before the file is opened by its digests instead.
_KEY_ATTEMPTS = 20
_ROUNDS = 10
_FIRST_LOOK_SECONDS, _LONGEST_LOOK_SECONDS = 0.1, 2.0


@dataclass(frozen=True, slots=True)
class Destination:
    """What the file is to be on the server."""

    name: str
    if_exists: IfExists = "keep"
    # The caller's files of this name and size: if it is one of them, nothing has to be done.
    candidates: Sequence[File] = ()
    # The open upload of these bytes that is to become it.
    upload: Upload | None = None


class Uploading:
    """Brings one source to the server."""

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
        self._told = asyncio.Event()  # the server has the digests, or has to do without
        wants_delta = shared.delta and destination.if_exists == "replace"
        self._changes = Changes(api, source, destination.name, wanted=wants_delta)
        self._sending = Sending(api, source, meter, shared, gate, self._told, self._changes)
        self._wishes: dict[str, str] = {}
        self._present = False
        self.upload_id: str | None = None

    async def discard(self) -> None:
        """Let the server forget what it has of an upload that is not whole."""
        if self.upload_id is not None:
            await self._api.cancel(self.upload_id)

    def how(self, file: File) -> How:
        """How it became this file."""
        if self._meter.moved_bytes and not self._present:
            return "sent"
        return "instant" if file.instant and not self._present else "present"

    async def run(self) -> File:
        """The file it became. Raises ClientError; after FileChanged the server keeps nothing of the upload."""
        self._meter.tell()
        await self._check_room()  # before anything is read
        hashing = asyncio.create_task(digests_of(self._source, self._meter.hashed))
        try:
            self._at_once_bytes = await self._shared.at_once_bytes(self._api)
            self._wishes = self._wishes_of(self._destination)
            file = await self._run_again_if_it_helps(hashing)
            self._meter.enter("complete")
            return file
        finally:
            await end(hashing)

    async def _check_room(self) -> None:
        await check_room(self._api, self._name, self._source.size, self._destination.if_exists)

    def _wishes_of(self, destination: Destination) -> dict[str, str]:
        """What the server is asked beyond keeping the bytes. Raises ServerTooOld, rather than doing something else."""
        if not self._at_once_bytes:
            if destination.if_exists != "keep":
                raise ServerTooOld
            return {}
        return plan.wishes(destination.if_exists, self._source.modified_ns)

    async def _run_again_if_it_helps(self, hashing: "asyncio.Task[Digests]") -> File:
        try:
            try:
                return await self._run(hashing)
            except ServerProblem as error:
                if not begins_anew(error):
                    raise
            # The bytes that earlier runs had sent were others, or the upload expired under our hands: once more.
            self._source.check()
            await self._discard_mixed()
            self._expected = None
            self._changes.give_up()
            self._meter.begin_anew()
            return await self._run(hashing)
        except FileChanged:
            await self._discard_mixed()
            raise

    async def _discard_mixed(self) -> None:
        """Of what holds other bytes, too: somebody sent them under the same key, or appended them."""
        with contextlib.suppress(ClientError):
            await self.discard()

    async def _run(self, hashing: "asyncio.Task[Digests]") -> File:
        self.upload_id = None
        if self._expected is not None:
            file = await self._by_id(self._expected, hashing)
        elif self._source.size <= self._shared.hash_first_bytes:
            file = await self._by_digests(await hashing)
        else:
            file = await self._by_key(hashing)
        digests = await hashing
        self._source.check()
        if (file.sha256, file.size) != (digests.sha256, self._source.size):
            raise ContentDiffers(f"{self._name}: the server has SHA-256 {file.sha256}, here it is {digests.sha256}")
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
            # An upload of the same bytes was resumed, under the name it had; now they are there for ours, too.
            file = await self._finish(await self._open_by_digests(digests))
        return file

    async def _goes_at_once(self, digests: Digests) -> bool:
        """Whether one request is the shortest way: not if a small question may spare the bytes."""
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
        """Send it in one request. None: ask before sending more, because it is too large for that, or was refused for the
        moment, or the answer was lost."""
        try:
            file, self._present = await self._sending.send_whole(digests, self._name, self._wishes)
        except ClientError as error:
            if error.code != "file-too-large":
                await self._api.retrying().pause(error)
            return None
        self._meter.received(file.size)
        return file

    async def _open_by_digests(self, digests: Digests) -> UploadStatus:
        opened = await self._open_file(digests, instant=True)
        if isinstance(opened, Challenged):
            opened = await self._prove(None, digests, opened.challenge) or await self._open_file(digests, instant=False)
        if isinstance(opened, Challenged):
            raise ContentDiffers("the server asks for a proof though none was offered")
        return opened

    async def _open_file(self, digests: Digests, *, instant: bool) -> Opened:
        size, chunk_size = self._source.size, self._shared.chunk_size
        return await self._api.open_file(digests, self._name, size, chunk_size, instant=instant, wishes=self._wishes)

    async def _prove(self, upload_id: str | None, digests: Digests, challenge: Challenge) -> Complete | None:
        """The file, if the proof is taken; None: the bytes have to be sent."""
        if challenge.algorithm != ALGORITHM:
            return None
        proof = await proof_of(self._source, digests, challenge)
        try:
            return await self._api.prove(upload_id, digests.md5, challenge.id, self._name, proof)
        except ServerProblem as error:
            if error.code != "proof-failed":
                raise
            return None

    # Opened first

    async def _by_id(self, upload: Upload, hashing: "asyncio.Task[Digests]") -> File:
        if upload.size != self._source.size:
            raise ContentDiffers(f"{upload.name}: the upload is of {upload.size} bytes, here are {self._source.size}")
        return await self._go_on(await self._api.status(upload.id), hashing)

    async def _by_key(self, hashing: "asyncio.Task[Digests]") -> File:
        opened = await self._open_by_key(hashing)
        if opened is None:
            return await self._by_digests(await hashing)
        return await self._go_on(opened, hashing)

    async def _go_on(self, opened: UploadStatus, hashing: "asyncio.Task[Digests]") -> File:
        """Send what it lacks while the source is hashed."""
        if isinstance(opened, Complete):
            return opened.file
        self._told.clear()
        sending = asyncio.create_task(self._finish(opened))
        try:
            await asyncio.wait({sending, hashing}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                return sending.result()
            digests = hashing.result()
            alone = self._shared.alone(digests.md5)
            if alone.locked():
                await end(sending)  # somebody sends the same bytes at this moment
            async with alone:
                return await self._tell_and_finish(opened.upload, digests, sending)
        finally:
            await end(sending)

    async def _open_by_key(self, hashing: "asyncio.Task[Digests]") -> UploadStatus | None:
        """The upload under this file's key, begun now or in an earlier run; None if only the digests can help."""
        sample = await sample_of(self._source)
        for attempt in range(_KEY_ATTEMPTS):
            key = plan.resume_key(self._name, self._source.size, sample, attempt)
            try:
                opened = await self._api.open_upload(
                    self._name, self._source.size, self._shared.chunk_size, key, self._wishes
                )
            except NotFound:
                continue  # it was cancelled, has expired, or its file was deleted
            except QuotaExceeded:
                await self._check_room()
                return None  # the content may be there already
            if not isinstance(opened, Complete):
                return opened
            if opened.file.sha256 == (await hashing).sha256:
                return opened if opened.file.name == self._name else None
        return None

    async def _tell_and_finish(self, upload: Upload, digests: Digests, sending: "asyncio.Task[File]") -> File:
        try:
            told = await self._api.tell(upload.id, digests)
        except ServerProblem as error:
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
        """The caller has another open upload of this content, perhaps from another device: go on with the fuller one."""
        own, other = await asyncio.gather(self._api.status(upload.id), self._api.status(other_id))
        if isinstance(own, Open) and (
            not isinstance(other, Open) or plan.prefers_other(own.upload.received_bytes, other.upload.received_bytes)
        ):
            await end(sending)
            await self._api.cancel(upload.id)
            return await self._by_digests_alone(digests)
        # The other one is left to its device. The server computes the digests of ours; `_run` compares them.
        self._told.set()
        return await self._finish(own) if sending.cancelled() else await sending

    # Sent, and merged

    async def _finish(self, status: UploadStatus) -> File:
        """Send what is missing until the upload is a file."""
        rounds = 0
        while not isinstance(status, Complete):
            upload = status.upload
            self.upload_id = upload.id
            self._meter.received(upload.received_bytes)
            if isinstance(status, Merging):
                status = await self._wait_for_merge(upload.id)
            elif rounds == _ROUNDS:
                raise ContentDiffers(f"{self._name}: the server keeps losing chunks")
            elif upload.missing:
                rounds += 1
                status = await self._sending.send_missing(upload)
            else:
                status = await self._merge(upload.id)
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

    async def _merge(self, upload_id: str) -> UploadStatus:
        try:
            return await self._api.merge(upload_id)
        except ServerProblem as error:
            if error.code != "chunks-missing":
                raise
            return await self._api.status(upload_id)
