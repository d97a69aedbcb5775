"""How a file comes back: from where an earlier run stopped, compared with its SHA-256, and only then under its name."""

import asyncio
from pathlib import Path

from uploader.client.api import Api
from uploader.client.errors import BadAnswer, ClientError, ContentDiffers, TargetExists, Unreachable
from uploader.client.model import File
from uploader.client.transfers.partial import Partial, partial_of, sha256_of
from uploader.client.transfers.progress import Meter

_BLOCK_BYTES = 256 << 10


class Downloading:
    """Brings one file to a path."""

    def __init__(self, api: Api, file: File, target: Path, meter: Meter, gate: asyncio.Event) -> None:
        self._api = api
        self._file = file
        self._target = target
        self._meter = meter
        self._gate = gate  # closed while the transfer is paused

    async def run(self, *, overwrite: bool) -> None:
        """Raises ClientError; OSError where the disk refuses. What has arrived stays for the next run."""
        if not overwrite and await asyncio.to_thread(self._is_there):
            return
        with partial_of(self._file, self._target) as partial:
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
            await asyncio.to_thread(partial.become, self._target)

    def _is_there(self) -> bool:
        """Raises TargetExists."""
        if not self._target.exists():
            return False
        same_size = self._target.is_file() and self._target.stat().st_size == self._file.size
        if same_size and sha256_of(self._target) == self._file.sha256:
            return True
        raise TargetExists(f"{self._target} is there already, with other content")

    async def _fetch(self, partial: Partial) -> None:
        self._meter.begin_anew()
        self._meter.received(partial.length)
        self._meter.enter("downloading")
        retrying, failed_at = self._api.retrying(), partial.length
        while partial.length < self._file.size:
            try:
                await self._read_on(partial)
                if partial.length < self._file.size:
                    raise Unreachable("the answer ended early")
            except ClientError as error:
                if partial.length > failed_at:  # it moved since: patience begins anew
                    retrying, failed_at = self._api.retrying(), partial.length
                await retrying.pause(error)

    async def _read_on(self, partial: Partial) -> None:
        """Append what comes until the answer ends or breaks off."""
        headers = {}
        if partial.length:
            headers = {"Range": f"bytes={partial.length}-", "If-Range": f'"{self._file.sha256}"'}
        async with self._api.content_once(self._file.id, headers) as response:
            if response.status_code != 206:
                await asyncio.to_thread(partial.clear)  # all of it comes
            elif not response.headers.get("content-range", "").startswith(f"bytes {partial.length}-"):
                raise BadAnswer("the server sent another range than it was asked for")
            async for block in response.aiter_raw(_BLOCK_BYTES):
                if partial.length + len(block) > self._file.size:
                    raise BadAnswer("the server sent more bytes than the file has")
                await self._gate.wait()
                await asyncio.to_thread(partial.append, block)
                self._meter.moving(len(block))
                self._meter.landed(len(block))
                self._meter.received(partial.length)
