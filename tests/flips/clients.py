"""Clients that work while bytes flip, and write down whatever is not as they were promised."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.support.content import KIB, Content

TOTAL_SPACE = 1 << 30
_CHUNK_SIZE = 64 * KIB
# Contents that everybody may have.
_SHARED = [Content(round(chunks * _CHUNK_SIZE), -1, _CHUNK_SIZE) for chunks in (0.5, 1, 2.5)]
_MAX_FILES = 10
_MAX_LEFT_OPEN = 4
_ATTEMPTS = 4
# For what says "not now".
_PATIENCE_SECONDS = 6.0
# Of a client that was refused for so long already, until it gets an answer.
_LITTLE_PATIENCE_SECONDS = 0.5
_TIMEOUT_SECONDS = 20.0


@dataclass(frozen=True)
class Trouble:
    """Something that was not as promised, and whose."""

    user_id: str
    md5: str | None
    what: str
    wrong_bytes: bool = False
    scrubbed: bool = False  # whether a scrub has ended since the bytes flipped

    def __str__(self) -> str:
        return f"{self.user_id}: {self.what}" + (f", of {self.md5}" if self.md5 else "")


@dataclass
class Unfinished:
    """An open upload as its user knows it."""

    content: Content
    upload_id: str
    acknowledged: set[int] = field(default_factory=set)


@dataclass
class Promises:
    """What one user was told, and may rely on."""

    files: dict[str, tuple[str, Content]] = field(default_factory=dict)  # by id, with their names
    uploads: dict[str, Unfinished] = field(default_factory=dict)  # by MD5

    def has(self, sha256: str) -> bool:
        """Whether a content is this user's, or is to be."""
        files = any(content.sha256 == sha256 for _, content in self.files.values())
        return files or any(upload.content.sha256 == sha256 for upload in self.uploads.values())


class Desk:
    """What all clients share: whether they may ask now, and what they found."""

    def __init__(self) -> None:
        self.troubles: list[Trouble] = []
        self.counts: Counter[str] = Counter()
        self.scrubbed = False
        self._asking = 0
        self._open = asyncio.Event()
        self._open.set()

    async def __aenter__(self) -> None:
        await self._open.wait()
        self._asking += 1

    async def __aexit__(self, *_: object) -> None:
        self._asking -= 1

    async def hold(self) -> None:
        """No request is under way when this returns, and none begins."""
        self._open.clear()
        while self._asking:
            await asyncio.sleep(0.01)

    def let_go_on(self) -> None:
        self._open.set()


class _Harmed(Exception):
    """It was written down; what was being done is given up."""


class Client:
    """One user."""

    def __init__(self, user_id: str, token: str, url: str, seed: int, desk: Desk) -> None:
        self.user_id = user_id
        self.promises = Promises()
        self._random = random.Random(f"{seed}/{user_id}")
        self._desk = desk
        self._patience_seconds = _PATIENCE_SECONDS
        self._given_up: set[str] = set()
        self._http = httpx2.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=_TIMEOUT_SECONDS,
            trust_env=False,
        )

    async def live(self, stopping: asyncio.Event) -> None:
        """One thing after the other; what was begun when told to stop is ended first."""
        while not stopping.is_set():
            try:
                await self._random.choice(self._acts())()
            except _Harmed:
                self._desk.counts["given up"] += 1
            await asyncio.sleep(self._random.uniform(0, 0.05))

    def _acts(self) -> "list[Callable[[], Awaitable[None]]]":
        if len(self.promises.files) > _MAX_FILES:
            return [self._delete]
        uploading = [self._upload_something] * 7 + [self._resume] * 3 + [self._leave_something] * 4
        return [*uploading, *[self._download] * 5, self._delete]

    async def close(self) -> None:
        await self._http.aclose()

    def begin_anew(self, promises: Promises | None = None) -> None:
        """After a look at everything; with `promises`, as if nothing had happened since those."""
        self._given_up.clear()
        if promises is not None:
            self.promises = deepcopy(promises)

    # What they do

    async def _upload_something(self) -> None:
        content = self._new_content()
        await self._upload(content, content.chunk_count)

    async def _leave_something(self) -> None:
        content = self._new_content()
        if len(self.promises.uploads) < _MAX_LEFT_OPEN:
            await self._upload(content, self._random.randrange(content.chunk_count))

    async def _resume(self) -> None:
        left = [upload for md5, upload in self.promises.uploads.items() if md5 not in self._given_up]
        if left:
            upload = self._random.choice(left)
            await self._upload(upload.content, upload.content.chunk_count)

    async def _download(self) -> None:
        files = [file_id for file_id, (_, content) in self.promises.files.items() if content.md5 not in self._given_up]
        if files:
            await self.compare(self._random.choice(files))

    async def _delete(self) -> None:
        if self.promises.files:
            await self.delete(self._random.choice(list(self.promises.files)))

    def _new_content(self) -> Content:
        if self._random.random() < 0.2:
            content = self._random.choice(_SHARED)
            if content.md5 not in self._given_up:
                return content
        size = round(self._random.uniform(1.1, 5) * _CHUNK_SIZE)
        return Content(size, self._random.getrandbits(60), _CHUNK_SIZE, f"{self._random.getrandbits(40):x}.bin")

    # An upload

    async def finish(self, sha256: str) -> None:
        """End the uploads of a content, if there are any."""
        for upload in [each for each in self.promises.uploads.values() if each.content.sha256 == sha256]:
            try:
                await self._upload(upload.content, upload.content.chunk_count)
            except _Harmed:
                self._desk.counts["given up"] += 1

    async def _upload(self, content: Content, count: int) -> None:
        """Open or resume; send `count` more chunks at most, and again those that were taken back meanwhile."""
        for attempt in range(_ATTEMPTS):
            missing = await self._open(content)
            if missing is None:
                return
            self._random.shuffle(missing)
            for number in missing[:count]:
                if await self._send(content, number):
                    return
            if count < len(missing):
                return
            if attempt:
                await asyncio.sleep(0.1)
            if await self._merge(content):
                return
        self._trouble(content.md5, f"not finished after {_ATTEMPTS} attempts")

    async def _open(self, content: Content) -> list[int] | None:
        """The missing chunks; None if there is nothing to send."""
        body = {"name": content.name, "size": content.size, "chunk_size": content.chunk_size}
        answer = await self._asked(content.md5, "POST", f"/files/{content.md5}", {200, 201}, json=body)
        if answer["state"] == "complete":
            self._keep(content, answer["file"])
            return None
        known = self.promises.uploads.setdefault(content.md5, Unfinished(content, answer["upload"]["id"]))
        known.upload_id = answer["upload"]["id"]
        if answer["state"] == "merging":
            return []
        missing = [n for first, last in answer["upload"]["missing"] for n in range(first, last + 1)]
        self._note_lost(known, set(missing))
        return missing

    def _note_lost(self, known: Unfinished, missing: set[int]) -> None:
        """A chunk that was acknowledged and is missing again is a trouble, but no reason to give up."""
        lost = known.acknowledged & missing
        known.acknowledged -= lost
        if lost:
            self._write_down(known.content.md5, f"acknowledged chunks {sorted(lost)} are missing")

    async def _send(self, content: Content, number: int) -> bool:
        """Whether that was the last one."""
        path, chunk = f"/files/{content.md5}/chunks/{number}", content.chunk(number)
        answer = await self._asked(content.md5, "PUT", path, {200, 201, 202, 409}, content=chunk)
        if answer.get("state") == "complete":
            self._keep(content, answer["file"])
            return True
        if "missing" in answer:  # 409: stored bytes went bad
            self._note_lost(self.promises.uploads[content.md5], _numbers(answer["missing"]))
            return False
        self.promises.uploads[content.md5].acknowledged.add(number)
        self._desk.counts["chunks"] += 1
        return False

    async def _merge(self, content: Content) -> bool:
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            answer = await self._asked(content.md5, "POST", f"/files/{content.md5}/merge", {200, 201, 202, 409})
            if answer.get("state") == "complete":
                self._keep(content, answer["file"])
                return True
            if "missing" in answer:
                self._note_lost(self.promises.uploads[content.md5], _numbers(answer["missing"]))
                return False
            await asyncio.sleep(0.1)
        self._trouble(content.md5, "merging without an end")
        return False

    def _keep(self, content: Content, file: Any) -> None:
        self.promises.uploads.pop(content.md5, None)
        self.promises.files[file["id"]] = (file["name"], content)
        self._desk.counts["files"] += 1
        if (file["size"], file["sha256"]) != (content.size, content.sha256):
            self._write_down(content.md5, "another file than the one that was sent")

    # Files

    async def compare(self, file_id: str) -> None:
        """Download a file: its bytes, or no bytes."""
        content = self.promises.files[file_id][1]
        response = await self._request(content.md5, "GET", f"/me/files/{file_id}/content")
        self._desk.counts["downloads"] += 1
        if response.status_code == 200 and response.content != content.data:
            self._write_down(content.md5, "wrong bytes are served", wrong_bytes=True)
            self._given_up.add(content.md5)
            raise _Harmed
        if response.status_code != 200:
            self._trouble(content.md5, f"download: {_told(response)}")

    async def delete(self, file_id: str) -> None:
        _, content = self.promises.files.pop(file_id)
        await self._asked(content.md5, "DELETE", f"/me/files/{file_id}", {204, 404})

    # A look at everything

    async def verify(self) -> None:
        """Every promise, each by itself; what is not kept is written down."""
        try:
            await self._verify_lists()
        except _Harmed:
            self._desk.counts["given up"] += 1
        for file_id in list(self.promises.files):
            try:
                await self.compare(file_id)
            except _Harmed:
                self._desk.counts["given up"] += 1
        for known in list(self.promises.uploads.values()):
            try:
                await self._verify_upload(known)
            except _Harmed:
                self._desk.counts["given up"] += 1

    async def _verify_lists(self) -> None:
        files = await self._asked(None, "GET", "/me/files?limit=1000", {200})
        listed = {file["id"]: file for file in files["files"]}
        for file_id, (name, content) in self.promises.files.items():
            file = listed.get(file_id)
            if file is None or (file["name"], file["size"], file["sha256"]) != (name, content.size, content.sha256):
                self._write_down(content.md5, f"file {file_id} is listed as {file}")
        uploads = await self._asked(None, "GET", "/uploads", {200})
        await self._verify_usage(
            total_space=TOTAL_SPACE,
            use_space_finished=sum(file["size"] for file in files["files"]),
            use_space_unfinished=sum(upload["received_bytes"] for upload in uploads["uploads"]),
            reserved=sum(upload["size"] for upload in uploads["uploads"]),
        )

    async def _verify_usage(self, **expected: int) -> None:
        """What is pending is accounted for soon, whoever else was hit."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            usage = await self._asked(None, "GET", "/me/usage", {200})
            told = {name: usage[name] for name in expected}
            if told == expected:
                return
            await asyncio.sleep(0.1)
        self._trouble(None, f"usage {told}, expected {expected}")

    async def _verify_upload(self, known: Unfinished) -> None:
        answer = await self._asked(known.content.md5, "GET", f"/files/{known.content.md5}", {200})
        if answer["state"] == "uploading":
            self._note_lost(known, _numbers(answer["upload"]["missing"]))

    async def discard(self, sha256: str) -> None:
        """Get rid of a content in every form, so that all is well again."""
        for file_id in [key for key, (_, content) in self.promises.files.items() if content.sha256 == sha256]:
            await self._drop("DELETE", f"/me/files/{file_id}")
            del self.promises.files[file_id]
        for md5 in [md5 for md5, upload in self.promises.uploads.items() if upload.content.sha256 == sha256]:
            await self._drop("DELETE", f"/files/{md5}")
            del self.promises.uploads[md5]

    async def _drop(self, method: str, path: str) -> None:
        """Its bytes were harmed, so whether this succeeds says nothing."""
        try:
            await self._http.request(method, path)
        except httpx2.TransportError:
            self._desk.counts["not dropped"] += 1

    # The wire

    async def _asked(self, md5: str | None, method: str, path: str, expected: set[int], **more: Any) -> Any:
        response = await self._request(md5, method, path, **more)
        if response.status_code not in expected:
            self._trouble(md5, f"{method}: {_told(response)}")
        if response.status_code == 409 and response.json()["code"] != "chunks-missing":
            self._trouble(md5, f"{method}: {_told(response)}")
        return response.json() if response.content else {}

    async def _request(self, md5: str | None, method: str, path: str, **more: Any) -> httpx2.Response:
        """Ask until the answer is another one than "not now", with some patience."""
        waited_seconds = 0.0
        while True:
            async with self._desk:
                began = time.monotonic()
                try:
                    response = await self._http.request(method, path, **more)
                except httpx2.TransportError as error:
                    told = repr(error)
                else:
                    if response.status_code not in (429, 503):
                        self._patience_seconds = _PATIENCE_SECONDS
                        return response
                    told = _told(response)
                await asyncio.sleep(self._random.uniform(0.05, 0.2))
                waited_seconds += time.monotonic() - began
            if waited_seconds > self._patience_seconds:
                patience_seconds, self._patience_seconds = self._patience_seconds, _LITTLE_PATIENCE_SECONDS
                self._trouble(md5, f"{method}: {told}, for {patience_seconds:g} s")

    def _trouble(self, md5: str | None, what: str) -> None:
        """Write it down and give up."""
        self._write_down(md5, what)
        if md5 is not None:
            self._given_up.add(md5)
        raise _Harmed

    def _write_down(self, md5: str | None, what: str, *, wrong_bytes: bool = False) -> None:
        self._desk.troubles.append(Trouble(self.user_id, md5, what, wrong_bytes, self._desk.scrubbed))


def _numbers(ranges: list[list[int]]) -> set[int]:
    return {number for first, last in ranges for number in range(first, last + 1)}


def _told(response: httpx2.Response) -> str:
    """What a response says, without what differs from one request to the next."""
    problem = response.headers.get("content-type", "").startswith("application/problem+json")
    return f"{response.status_code} {response.json()['code'] if problem else response.text[:100]}"
