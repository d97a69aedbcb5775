"""What clients of tus do under fire: streams that are appended, break off and go on, also beside chunks of an upload."""

import asyncio
import base64
import hashlib
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, NoReturn

import httpx2

from tests.support.content import MIB, Content

if TYPE_CHECKING:
    from tests.soak.clients import Record

_TUS = {"Tus-Resumable": "1.0.0"}
_BYTES = {"Content-Type": "application/offset+octet-stream"}
_BROKEN_OFF, _CHECKED, _FALSE = 0.15, 0.12, 0.04
# Of what comes in one request, and counts as a whole or not at all: the largest chunk.
MAX_WHOLE_BYTES = 64 * MIB


class BrokenOff(Exception):
    """The client goes away in the middle of a body."""


class LostAnswer(Exception):
    """Nobody knows what became of a request. A server that refuses an offset does not read the body: whoever still sends it
    may not read the answer."""


class _Beginning:
    """A body of which no more than this comes, each time it is sent."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._data
        raise BrokenOff()


class Streams:
    """Of one user."""

    def __init__(
        self,
        request: Callable[..., Awaitable[httpx2.Response]],
        chance: random.Random,
        record: "Record",
        wrong: Callable[[None, str, httpx2.Response], NoReturn],
        trouble: Callable[[None, str], NoReturn],
    ) -> None:
        """`request` asks until there is an answer that is not "try again"; `wrong` and `trouble` take what must not be."""
        self._request = request
        self._random = chance
        self._record = record
        self._wrong = wrong
        self._trouble = trouble
        # What the user was told, and may rely on: up to where the bytes of an upload are there, by its id.
        self.appended: dict[str, int] = {}
        # Those that nobody but their client can go on with, because they have no MD5.
        self.left_open: dict[str, Content] = {}

    async def open(self, content: Content) -> str:
        """An upload without an MD5, some of them with their first bytes; its id. One whose answer is lost stays open."""
        name = base64.b64encode(content.name.encode()).decode()
        headers = {**_TUS, "Upload-Length": str(content.size), "Upload-Metadata": f"filename {name}"}
        first = content.data[: self._random.choice([0, 0, content.size // 2])]
        response = await self._ask_again("POST", "/resumable", headers={**headers, **_BYTES}, content=first)
        if response.status_code != 201:
            self._wrong(None, "the opening of a stream", response)
        upload_id = response.headers["location"].rpartition("/")[2]
        self._record.done["upload.created"].add(upload_id)
        self.left_open[upload_id] = content
        self._promise(upload_id, int(response.headers.get("upload-offset", 0)))
        return upload_id

    async def append_to(
        self, upload_id: str, content: Content, end: int, *, requests: int = sys.maxsize, lie: bool = False
    ) -> None:
        """Until so much is there, in so many requests at the most. `lie`: its MD5 is another one, so in the end it is
        closed."""
        for _ in range(requests):
            offset = await self._ask(upload_id, lie=lie)
            if offset is None or offset >= end:
                return
            most = self._random.choice([1, content.chunk_size // 3, 2 * content.chunk_size + 1, content.size])
            await self._append(upload_id, offset, content.data[offset : min(offset + most, end)], lie=lie)

    async def cancel(self, upload_id: str) -> None:
        response = await self._ask_again("DELETE", f"/resumable/{upload_id}", headers=_TUS)
        if response.status_code not in (204, 404, 410):
            self._wrong(None, "the cancelling of a stream", response)
        if response.status_code == 204:
            self._record.done["upload.cancelled"].add(upload_id)
        self.forget(upload_id)

    def forget(self, upload_id: str) -> None:
        """It has ended."""
        self.appended.pop(upload_id, None)
        self.left_open.pop(upload_id, None)

    # One request

    async def _ask_again(self, method: str, path: str, **more: Any) -> httpx2.Response:
        """Until it is not held by somebody who stands still, and nothing is away."""
        while (response := await self._request(method, path, None, **more)).status_code == 423:
            self._record.counts["streams_held"] += 1
            await asyncio.sleep(0.05)
        return response

    async def _ask(self, upload_id: str, *, lie: bool) -> int | None:
        """Where it ends; None if it was closed."""
        promised = self.appended.get(upload_id, 0)
        response = await self._ask_again("HEAD", f"/resumable/{upload_id}", headers=_TUS)
        if response.status_code != 200:
            if lie and response.status_code == 404:
                return None
            self._wrong(None, "the question for an offset", response)
        offset = int(response.headers["upload-offset"])
        if offset < promised:
            self._trouble(None, f"{upload_id} ends at {offset}, and was said to end at {promised}")
        self._promise(upload_id, offset)
        return offset

    async def _append(self, upload_id: str, offset: int, data: bytes, *, lie: bool) -> None:
        headers = {**_TUS, **_BYTES, "Upload-Offset": str(offset)}
        path, chance = f"/resumable/{upload_id}", self._random.random()
        if chance < _BROKEN_OFF:
            headers["Content-Length"] = str(len(data))
            part = _Beginning(data[: self._random.randrange(len(data))])
            try:
                await self._request("PATCH", path, None, once=True, headers=headers, content=part)
            except (BrokenOff, LostAnswer):
                self._record.counts["appends_broken_off"] += 1
            return
        is_false = chance > 1 - _FALSE
        if is_false or chance > 1 - _FALSE - _CHECKED:
            data = data[:MAX_WHOLE_BYTES]
            digest = hashlib.sha256(data + b"something else" * is_false).digest()
            headers["Upload-Checksum"] = f"sha256 {base64.b64encode(digest).decode()}"
        try:
            response = await self._request("PATCH", path, None, once=True, headers=headers, content=data)
        except LostAnswer:
            return
        if response.status_code == 204 and not is_false:
            self._record.counts["appends"] += 1
            self._promise(upload_id, int(response.headers["upload-offset"]))
        elif response.status_code == 460 and is_false:
            self._record.counts["wrong_digests_refused"] += 1
        elif response.status_code in (409, 423):  # another one came before it, perhaps the one whose answer was lost
            self._record.counts["appends_refused"] += 1
        elif not (lie and response.status_code in (404, 422)):
            self._wrong(None, "an append", response)

    def _promise(self, upload_id: str, offset: int) -> None:
        self.appended[upload_id] = max(offset, self.appended.get(upload_id, 0))
