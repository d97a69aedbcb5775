"""How a file comes back: from where an earlier run stopped, compared with its SHA-256, and only then under its name."""

import asyncio
import re
from pathlib import Path
from typing import BinaryIO

from uploader.client.api import Api
from uploader.client.errors import BadAnswer, ClientError, ContentDiffers, TargetExists, Unreachable, Unwritable
from uploader.client.model import File, How
from uploader.client.transfers.partial import Sink, Stream, partial_of, set_time, sha256_of
from uploader.client.transfers.progress import Meter

_BLOCK_BYTES = 256 << 10
# It becomes part of the name of the partial file.
_SHA256 = re.compile("[0-9a-f]{64}")


class Downloading:
    """Brings one file here."""

    def __init__(self, api: Api, file: File, meter: Meter, gate: asyncio.Event) -> None:
        self._api = api
        self._file = file
        self._meter = meter
        self._gate = gate  # closed while the transfer is paused

    async def run(self, target: Path, *, overwrite: bool) -> How:
        """To a path: whether it was fetched, or present. Raises ClientError. What has arrived stays for the next run."""
        if not _SHA256.fullmatch(self._file.sha256):
            raise BadAnswer(f"{self._file.name}: the server names a SHA-256 that is none")
        try:
            return await self._run(target, overwrite=overwrite)
        except OSError as error:
            raise Unwritable(f"{error.filename or target}: {error.strerror or error}") from error

    async def write(self, opened: BinaryIO) -> None:
        """Into what was opened elsewhere, as it comes. Raises ClientError; only at the end if the bytes were wrong."""
        stream = Stream(opened)
        try:
            await self._fetch(stream)
        except OSError as error:
            raise Unwritable(f"{self._file.name} can't be written: {error.strerror or error}") from error
        if stream.sha256 != self._file.sha256:
            raise ContentDiffers(f"{self._file.name}: the bytes received have another SHA-256")

    async def _run(self, target: Path, *, overwrite: bool) -> How:
        if await asyncio.to_thread(self._is_there, target, overwrite=overwrite):
            return "present"
        with partial_of(self._file, target) as partial:
            await asyncio.to_thread(partial.take_over, self._file.size)
            resumed = partial.length > 0
            await self._fetch(partial)
            if partial.sha256 != self._file.sha256 and resumed:
                # A power cut may leave blocks that were never written: once more, from the start.
                await asyncio.to_thread(partial.clear)
                await self._fetch(partial)
            if partial.sha256 != self._file.sha256:
                await asyncio.to_thread(partial.clear)
                raise ContentDiffers(f"{self._file.name}: the bytes received have another SHA-256")
            await asyncio.to_thread(partial.become, target, self._file.modified_at)
            return "fetched"

    def _is_there(self, target: Path, *, overwrite: bool) -> bool:
        """Then its time is the file's. Raises TargetExists."""
        if not (target.exists() or target.is_symlink()):
            return False
        same_size = target.is_file() and target.stat().st_size == self._file.size
        if same_size and sha256_of(target) == self._file.sha256:
            set_time(target, self._file.modified_at)
            return True
        if overwrite:
            return False
        raise TargetExists(f"{target} is there already, with other content")

    async def _fetch(self, sink: Sink) -> None:
        self._meter.begin_anew()
        self._meter.received(sink.length)
        self._meter.enter("downloading")
        retrying, failed_at = self._api.retrying(), sink.length
        while sink.length < self._file.size:
            try:
                await self._read_on(sink)
                if sink.length < self._file.size:
                    raise Unreachable("the answer ended early")
            except ClientError as error:
                if sink.length > failed_at:  # it moved since: patience begins anew
                    retrying, failed_at = self._api.retrying(), sink.length
                await retrying.pause(error)

    async def _read_on(self, sink: Sink) -> None:
        """Append what comes until the answer ends or breaks off."""
        headers = {}
        if sink.length:
            headers = {"Range": f"bytes={sink.length}-", "If-Range": f'"{self._file.sha256}"'}
        async with self._api.content_once(self._file.id, headers) as response:
            if response.status_code != 206:
                await asyncio.to_thread(sink.clear)  # all of it comes
            elif not response.headers.get("content-range", "").startswith(f"bytes {sink.length}-"):
                raise BadAnswer("the server sent another range than it was asked for")
            async for block in self._api.blocks(response, _BLOCK_BYTES):
                if sink.length + len(block) > self._file.size:
                    raise BadAnswer("the server sent more bytes than the file has")
                await self._gate.wait()
                await asyncio.to_thread(sink.append, block)
                self._meter.moving(len(block))
                self._meter.landed(len(block))
                self._meter.received(sink.length)
