"""Clients that work while all goes wrong, and remember what they were promised: every broken promise is a trouble."""

import asyncio
import base64
import random
import time
from collections import Counter, defaultdict
from collections.abc import Coroutine, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NoReturn

import httpx2

from tests.soak.streams import MAX_WHOLE_BYTES, LostAnswer, Streams
from tests.support.archives import Entry, archive
from tests.support.content import KIB, MIB, Content
from tests.support.deltas import Edited
from tests.support.failing_disk import FailingDisk
from tests.support.waiting import PATIENCE_SECONDS

TOTAL_SPACE = 1 << 30
# Contents that everybody has, so that blobs have several refs, and merges meet deletions.
_SHARED_CHUNKS = (1 / 64, 1, 1.6, 2.1, 3.2, 5)
_PARALLEL = 3
# Of uploads by chunks, those to which streams are appended as well.
_MIXED = 0.3
# Of new contents, those that others have most of; and of the chunks of these, those that come as instructions.
_EDITED, _MADE = 0.2, 0.8
_MAX_LEFT_OPEN = 5
# An upload goes on after so many times that stored bytes went bad.
_ATTEMPTS = 4
# Nobody waits longer than this for any answer, whatever is away.
ANSWER_SECONDS = 10.0
_REQUEST_TIMEOUT_SECONDS = 30.0
# Of a client that was refused for as long as it has patience, until it gets an answer.
_LITTLE_PATIENCE_SECONDS = 0.5


@dataclass(frozen=True)
class Habits:
    """What clients do, and how often relative to one another."""

    fates: Mapping[str, int]
    chunk_size: int = 64 * KIB
    # Of all files of one user, so that a round takes as much of the disk however long it is.
    max_kept_bytes: int = 64 * MIB
    # Of each file that is downloaded, besides all of it.
    ranges: int = 0
    # For what says "not now"; None: all will be well in the end, and nothing else is there than was promised.
    patience_seconds: float | None = None


EVERYTHING = {
    "finish": 35,
    "cancel": 12,
    "leave": 10,
    "lie": 6,
    "delete": 17,
    "copy": 10,
    "whole": 20,
    "batch": 10,
    "stream": 25,
}


@dataclass(frozen=True)
class Trouble:
    """Something that was not as promised, and whose."""

    user_id: str
    md5: str | None
    what: str
    wrong_bytes: bool = False
    scrubbed: bool = False  # whether a scrub has ended since bytes flipped

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
    uploads: dict[str, Unfinished] = field(default_factory=dict)  # by the MD5 that was told

    @property
    def contents(self) -> list[Content]:
        """All that this user has or is to have."""
        return [content for _, content in self.files.values()] + [each.content for each in self.uploads.values()]

    def has(self, sha256: str) -> bool:
        return any(content.sha256 == sha256 for content in self.contents)


@dataclass
class Record:
    """What all clients share: what they did, what they found wrong, and whether they may ask now."""

    counts: Counter[str] = field(default_factory=Counter)
    troubles: list[Trouble] = field(default_factory=list)
    late: list[str] = field(default_factory=list)  # requests that nobody answered in time
    longest_seconds: float = 0.0  # that a request waited for its answer, or for its connection to end
    # What the server has said that it did, by the types of events.
    done: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    scrubbed: bool = False
    disk: FailingDisk | None = None  # of the servers
    _asking: int = 0
    _open: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._open.set()

    @property
    def may_be_unreadable(self) -> bool:
        """What could not be read once is no base, and nobody's at once, until it was looked at again."""
        return self.disk is not None and self.disk.has_failed

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


class Harmed(Exception):
    """It was written down; what was being done is given up."""


class Client:
    """One user on one connection pool."""

    def __init__(self, user_id: str, token: str, urls: list[str], habits: Habits, seed: int, record: Record) -> None:
        self.user_id = user_id
        self.promises = Promises()
        self._urls = urls
        self._habits = habits
        self._random = random.Random(f"{seed}/{user_id}")
        self._record = record
        self._count = record.counts
        self._http = httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {token}"}, timeout=_REQUEST_TIMEOUT_SECONDS, trust_env=False
        )
        self.last_told = "nothing"
        self._patience_seconds = habits.patience_seconds
        # Contents that harm was found of, by MD5.
        self._given_up: set[str] = set()
        # Of names that replace others: the file that has it.
        self._slots: dict[str, str] = {}
        self._chunk_size = habits.chunk_size
        self.streams = Streams(self._request, self._random, record, self._wrong, self._trouble)
        self._shared = [Content(round(count * self._chunk_size), -1, self._chunk_size) for count in _SHARED_CHUNKS]

    async def live(self, stopping: asyncio.Event) -> None:
        """Do one thing after the other until told to stop; what was begun is finished first."""
        fates, weights = list(self._habits.fates), list(self._habits.fates.values())
        while not stopping.is_set():
            await self._unharmed(self._do(self._random.choices(fates, weights)[0]))
            await self._unharmed(self._make_room())
            await asyncio.sleep(self._random.uniform(0, 0.05))

    async def _unharmed(self, act: Coroutine[Any, Any, None]) -> None:
        try:
            await act
        except Harmed:
            self._count["given up"] += 1

    async def _do(self, fate: str) -> None:
        content = self._next_stream() if fate == "stream" else self._next_content()
        if content.md5 in self._given_up:
            return
        if content.size > MAX_WHOLE_BYTES and fate in ("whole", "batch"):
            fate = "finish"
        match fate:
            case "stream":
                await self._stream(content)
            case "whole":
                await self._send_whole(content)
            case "batch":
                await self._send_batch(content)
            case "download":
                await self._download()
            case _:
                await self._upload(content, fate)
        content.drop()

    def begin_anew(self, promises: Promises | None = None) -> None:
        """After a look at everything; with `promises`, as if nothing had happened since those."""
        self._given_up.clear()
        if promises is not None:
            self.promises = deepcopy(promises)

    def _next_content(self) -> Content:
        return self._one_of([each.content for each in self.promises.uploads.values()], 0.2)

    def _next_stream(self) -> Content:
        return self._one_of(list(self.streams.left_open.values()), 0.3)

    def _one_of(self, left_open: list[Content], share: float) -> Content:
        """One that is there, or else a new one."""
        if left_open and (len(left_open) >= _MAX_LEFT_OPEN or self._random.random() < share):
            return self._random.choice(left_open)
        if self._random.random() < 0.25:
            return self._random.choice(self._shared)
        bases = [content for _, content in self.promises.files.values() if type(content) is Content and content.size]
        if bases and self._random.random() < _EDITED:
            return Edited.of(self._random.choice(bases), self._random.getrandbits(60))
        chunks = self._random.randint(8, 30) if self._random.random() < 0.1 else self._random.randint(1, 4)
        size = chunks * self._chunk_size - self._random.randrange(self._chunk_size)
        name = f"{self._random.getrandbits(40):x}.bin"
        return Content(size, self._random.getrandbits(60), self._chunk_size, name)

    # One upload

    async def finish(self, sha256: str) -> None:
        """End the uploads of a content, if there are any."""
        for known in [each for each in self.promises.uploads.values() if each.content.sha256 == sha256]:
            await self._unharmed(self._upload(known.content, "finish"))

    async def _upload(self, content: Content, fate: str) -> None:
        """Open or resume, and send again what was taken back meanwhile."""
        if fate == "lie" and (content in self._shared or content.md5 in self.promises.uploads):
            fate = "finish"
        md5 = content.md5 if fate != "lie" else f"{self._random.getrandbits(128):032x}"
        for _ in range(_ATTEMPTS):
            answer = await self._open(content, md5)
            if answer["state"] == "complete":
                await self._keep(content, answer["file"], fate)
                return
            await self._send_missing(content, md5, answer, fate)
            if fate == "cancel":
                await self._cancel(content)
                return
            if fate == "lie":
                await self._be_caught(md5)
                return
            if fate == "leave" and len(self.promises.uploads[md5].acknowledged) < content.chunk_count:
                return
            if await self._merge(content, fate):
                return
            await asyncio.sleep(0.1)
        self._trouble(md5, f"not finished after {_ATTEMPTS} attempts")

    async def _open(self, content: Content, md5: str) -> Any:
        body = {"name": content.name, "size": content.size, "chunk_size": content.chunk_size}
        response = await self._asked(content.md5, "POST", f"/files/{md5}", {200, 201}, json=body)
        answer = response.json()
        if answer["state"] == "complete":
            return answer
        upload_id = answer["upload"]["id"]
        if response.status_code == 201:
            self._record.done["upload.created"].add(upload_id)
        known = self.promises.uploads.setdefault(md5, Unfinished(content, upload_id))
        known.upload_id = upload_id
        if answer["state"] == "uploading":
            self._note_lost(md5, answer["upload"]["missing"])
        return answer

    async def _send_missing(self, content: Content, md5: str, answer: Any, fate: str) -> None:
        missing = sorted(_numbers(answer["upload"].get("missing", [])))
        self._random.shuffle(missing)
        stays_open = fate in ("cancel", "leave")
        if stays_open:
            missing = missing[: self._random.randrange(len(missing) + 1)]
        sending = [self._send_all(content, md5, missing)]
        is_mixed = "stream" in self._habits.fates and self._random.random() < _MIXED
        if is_mixed and answer["state"] == "uploading" and not stays_open:
            sending.append(self._append_to(answer["upload"]["id"], content, lie=fate == "lie"))
        await _together(*sending)

    async def _append_to(self, upload_id: str, content: Content, *, lie: bool) -> None:
        """Beside its chunks, and often beside one another: the newest wins, so only one of them goes on and on."""
        appends = [self.streams.append_to(upload_id, content, content.size, lie=lie)]
        if self._random.random() < 0.4:
            appends.append(self.streams.append_to(upload_id, content, content.size, requests=3, lie=lie))
        await _together(*appends)
        self.streams.forget(upload_id)
        self._count["mixed"] += 1

    def _note_lost(self, md5: str, missing: list[list[int]], before: set[int] | None = None) -> None:
        """A chunk that was acknowledged `before` and is missing again is a trouble, but no reason to give up."""
        known = self.promises.uploads[md5]
        lost = (known.acknowledged if before is None else before) & _numbers(missing)
        known.acknowledged -= lost
        if lost:
            self._write_down(known.content.md5, f"acknowledged chunks {sorted(lost)} of {known.upload_id} are missing")

    async def _send_all(self, content: Content, md5: str, numbers: list[int]) -> None:
        queue = list(numbers)

        async def send() -> None:
            while queue:
                number = queue.pop()
                await self._send(content, md5, number)
                if self._random.random() < 0.08:
                    queue.append(number)  # again, perhaps at the same time, on the other server
                if self._random.random() < 0.1:
                    await self._ask(content, md5)

        await _together(*(send() for _ in range(_PARALLEL)))

    async def _send(self, content: Content, md5: str, number: int) -> None:
        path, chunk = f"/files/{md5}/chunks/{number}", content.chunk(number)
        acknowledged = self.promises.uploads[md5].acknowledged
        if self._random.random() < 0.04 and number not in acknowledged:
            # One that counts already, or whose upload is complete, is answered without a look at its body.
            headers, told = {"Content-MD5": _md5_of_nothing()}, {200, 201, 202, 409, 410, 422}
            refused = await self._asked(content.md5, "PUT", path, told, content=chunk, headers=headers)
            self._count["wrong_digests_refused"] += refused.status_code == 422
        response = None
        if isinstance(content, Edited) and self._random.random() < _MADE:
            response = await self._send_made(content, path, number)
        if response is None:
            response = await self._request("PUT", path, content.md5, content=chunk)
        match response.status_code:
            case 200 | 201 | 202:
                acknowledged.add(number)
                self._count["chunks"] += 1
                self._count["duplicates"] += bool(response.json().get("duplicate"))
            case 409 if response.json()["code"] == "chunks-missing":  # stored bytes went bad
                self._note_lost(md5, response.json()["missing"])
            case 410 | 422 if md5 != content.md5:
                pass
            case _:
                self._wrong(content.md5, f"chunk {number}", response)

    async def _send_made(self, content: Edited, path: str, number: int) -> httpx2.Response | None:
        """By instructions; None if the base is a file no more."""
        files = self.promises.files
        bases = [file_id for file_id, (_, other) in files.items() if other == content.base]
        base = self._random.choice(bases) if bases else f"{self._random.getrandbits(128):032x}"
        body = content.instructions(number)
        response = await self._request("PUT", path, content.md5, params={"base": base}, content=body)
        if response.status_code == 404 and base not in files:
            self._count["without_base"] += 1
            return None
        is_unusable = response.status_code == 409 and response.json()["code"] == "base-unusable"
        if is_unusable and self._record.may_be_unreadable:
            self._count["unreadable_bases"] += 1
            return None
        self._count["made"] += response.status_code in (200, 201, 202)
        return response

    async def _ask(self, content: Content, md5: str) -> None:
        before = set(self.promises.uploads[md5].acknowledged)
        response = await self._request("GET", f"/files/{md5}", content.md5)
        if before and response.status_code == 200 and response.json()["state"] == "uploading":
            self._note_lost(md5, response.json()["upload"]["missing"], before)

    async def _merge(self, content: Content, fate: str) -> bool:
        """Whether it is a file; if not, chunks are missing again."""
        path, deadline = f"/files/{content.md5}/merge", time.monotonic() + PATIENCE_SECONDS
        while (response := await self._request("POST", path, content.md5)).status_code == 202:
            if time.monotonic() > deadline:
                self._trouble(content.md5, "merging without an end")
            await asyncio.sleep(0.1)
        if response.status_code == 409 and response.json()["code"] == "chunks-missing":
            self._note_lost(content.md5, response.json()["missing"])
            return False
        if response.status_code not in (200, 201):
            self._wrong(content.md5, "merge", response)
        await self._keep(content, response.json()["file"], fate)
        return True

    async def _cancel(self, content: Content) -> None:
        known = self.promises.uploads[content.md5]
        response = await self._asked(content.md5, "DELETE", f"/files/{content.md5}", {204, 404})
        may_be_a_file = response.status_code == 404 and len(known.acknowledged) == content.chunk_count
        # The merge was faster; or the answer was lost that it is cancelled.
        if may_be_a_file and (await self._request("GET", f"/files/{content.md5}", content.md5)).status_code != 410:
            await self._merge(content, "finish")
            return
        if response.status_code == 204:
            self._record.done["upload.cancelled"].add(known.upload_id)
        del self.promises.uploads[content.md5]
        self._count["cancelled"] += 1

    async def _be_caught(self, md5: str) -> None:
        """An upload whose bytes are not what was claimed ends, and is remembered as having ended so."""
        while (response := await self._request("POST", f"/files/{md5}/merge", md5)).status_code == 202:
            await asyncio.sleep(0.1)
        if response.status_code not in (410, 422):
            self._wrong(md5, "a lie", response)
        del self.promises.uploads[md5]
        self._count["lies_caught"] += 1

    # Streams

    async def _stream(self, content: Content) -> None:
        """By tus alone: to its end, or left open for another time, or given up."""
        left_open = self.streams.left_open
        known = next((upload_id for upload_id, other in left_open.items() if other is content), None)
        upload_id = known or await self.streams.open(content)
        if self._random.random() < 0.65:
            await self.streams.append_to(upload_id, content, content.size)
            await self._keep_stream(upload_id, content)
            return
        await self.streams.append_to(upload_id, content, self._random.randrange(content.size))
        if self._random.random() < 0.4:
            await self.streams.cancel(upload_id)
            self._count["cancelled"] += 1

    async def _keep_stream(self, upload_id: str, content: Content) -> None:
        while True:
            answer = (await self._asked(content.md5, "GET", f"/uploads/{upload_id}", {200})).json()
            if answer["state"] == "complete":
                break
            await asyncio.sleep(0.1)
        self._count["streams"] += 1
        self.streams.forget(upload_id)
        await self._keep(content, answer["file"], "finish", closes=False)

    # Files that come whole

    async def _send_whole(self, content: Content) -> None:
        """Also what an upload is open of; half of them take the place of what has their name."""
        query = {"name": content.name, "if_exists": "keep"}
        if self._random.random() < 0.5:
            query = {"name": f"slot {self._random.randrange(4)}", "if_exists": "replace"}
        path = f"/files/{content.md5}"
        response = await self._asked(content.md5, "PUT", path, {200, 201}, params=query, content=content.data)
        self._count["whole"] += 1
        file = response.json()["file"]
        if query["if_exists"] == "replace":
            self._take_slot(file)
        await self._keep(content, file, "finish")

    async def _send_batch(self, content: Content) -> None:
        """Small files that take the place of others, with one that an upload may be open of."""
        slots = self._random.sample(range(60), self._random.randint(2, 40))
        members = {
            f"batch/{slot}": Content(self._random.randint(0, 3000), self._random.getrandbits(60)) for slot in slots
        }
        members[f"batch/{slots[0]}"] = content
        written = archive(*(Entry(name, member.data) for name, member in members.items()))
        if self._random.random() < 0.1:
            written = written[: self._random.randrange(len(written))]
        response = await self._request(
            "POST", "/files/batch", content.md5, params={"if_exists": "replace"}, content=written
        )
        answer = response.json()
        if response.status_code not in (200, 422) or answer.get("code", "invalid-archive") != "invalid-archive":
            self._wrong(content.md5, "a batch", response)
        for result, member in zip(answer["results"], members.values(), strict=False):
            if result["status"] in (503, 507):
                continue  # a disk, or a database, that was away at its turn
            if result["status"] not in (200, 201):
                self._write_down(member.md5, f"a member of a batch was answered {result}")
                continue
            self._count["members"] += 1
            self._take_slot(result["file"])
            await self._keep(member, result["file"], "finish")
            member.drop()

    def _take_slot(self, file: Any) -> None:
        """What has taken a name is the only one that has it."""
        replaced = self._slots.get(file["name"])
        if replaced != file["id"]:
            self.promises.files.pop(replaced or "", None)
        self._slots[file["name"]] = file["id"]

    # Files

    async def _keep(self, content: Content, file: Any, fate: str, *, closes: bool = True) -> None:
        """`closes`: what is open of this content."""
        if closes:
            self.promises.uploads.pop(content.md5, None)
        if file["id"] not in self.promises.files:
            self._count["files"] += 1
        self._promise(content, file)
        if (file["size"], file["sha256"]) != (content.size, content.sha256):
            self._write_down(content.md5, "another file than the one that was sent")
        await self.compare(file["id"])
        if fate == "delete":
            await self.delete(file["id"])
        elif fate == "copy":
            await self._copy(content)

    def _promise(self, content: Content, file: Any) -> None:
        self._record.done["file.finished"].add(file["id"])
        self.promises.files[file["id"]] = (file["name"], content)

    async def _copy(self, content: Content) -> None:
        body = {"name": f"copy of {content.name}", "size": content.size}
        response = await self._asked(content.md5, "POST", f"/files/{content.md5}", {200, 201}, json=body)
        if response.json()["state"] != "complete":
            if not self._record.may_be_unreadable:
                self._wrong(content.md5, "instant upload", response)
            self._count["not_instant"] += 1
            await self._upload(content, "finish")
            return
        self._promise(content, response.json()["file"])
        self._count["instant"] += 1

    async def delete(self, file_id: str) -> None:
        _, content = self.promises.files[file_id]
        response = await self._asked(content.md5, "DELETE", f"/me/files/{file_id}", {204, 404})
        if response.status_code == 204:
            self._record.done["file.deleted"].add(file_id)
        del self.promises.files[file_id]
        self._count["deleted"] += 1

    async def _make_room(self) -> None:
        """Delete the oldest files if there are too many bytes of them."""
        files = self.promises.files
        while sum(content.size for _, content in files.values()) > self._habits.max_kept_bytes:
            await self.delete(next(iter(files)))

    async def _download(self) -> None:
        files = [file_id for file_id, (_, content) in self.promises.files.items() if content.md5 not in self._given_up]
        if files:
            await self.compare(self._random.choice(files))

    async def compare(self, file_id: str) -> None:
        """Download a file: its bytes, or no bytes."""
        content = self.promises.files[file_id][1]
        await self._compare(file_id, content, range(content.size))
        for _ in range(self._habits.ranges if content.size else 0):
            start = self._random.randrange(content.size)
            await self._compare(file_id, content, range(start, self._random.randint(start, content.size - 1) + 1))

    async def _compare(self, file_id: str, content: Content, part: range) -> None:
        is_whole = len(part) == content.size
        headers = {} if is_whole else {"Range": f"bytes={part.start}-{part.stop - 1}"}
        path, expected = f"/me/files/{file_id}/content", {200 if is_whole else 206}
        response = await self._asked(content.md5, "GET", path, expected, headers=headers)
        self._count["downloads" if is_whole else "ranges"] += 1
        self._count["bytes_compared"] += len(response.content)
        if response.content != content.data[part.start : part.stop]:
            self._given_up.add(content.md5)
            self._write_down(content.md5, f"wrong bytes are served, {len(response.content)}", wrong_bytes=True)
            raise Harmed

    # A look at everything

    async def verify(self, *, is_hit: bool = False) -> None:
        """Every promise, each by itself; what is not kept is written down. `is_hit`: figures are not waited for."""
        await self._unharmed(self._verify_lists(is_hit))
        for file_id in list(self.promises.files):
            await self._unharmed(self.compare(file_id))
            self.promises.files[file_id][1].drop()
        for md5, known in self.promises.uploads.items():
            await self._unharmed(self._verify_upload(md5, known))

    async def _verify_lists(self, is_hit: bool) -> None:
        listed: dict[str, Any] = {}
        after: dict[str, str] | None = {}
        while after is not None:
            page = (await self._asked(None, "GET", "/me/files", {200}, params={"limit": "1000", **after})).json()
            listed |= {file["id"]: file for file in page["files"]}
            after = None if page["next"] is None else {"after": page["next"]}
        for file_id, (name, content) in self.promises.files.items():
            file = listed.get(file_id)
            if file is None or (file["name"], file["size"], file["sha256"]) != (name, content.size, content.sha256):
                self._write_down(content.md5, f"file {file_id} is listed as {file}")
        more = listed.keys() - self.promises.files.keys()
        if more and self._habits.patience_seconds is None:
            self._write_down(None, f"files {more} are there, which nobody was promised")
        uploads = (await self._asked(None, "GET", "/uploads", {200})).json()["uploads"]
        await self._verify_usage(
            _LITTLE_PATIENCE_SECONDS if is_hit else PATIENCE_SECONDS,
            total_space=TOTAL_SPACE,
            use_space_finished=sum(file["size"] for file in listed.values()),
            use_space_unfinished=sum(upload["received_bytes"] for upload in uploads),
            reserved=sum(upload["size"] for upload in uploads),
        )

    async def _verify_usage(self, seconds: float, **expected: int) -> None:
        """What is pending is accounted for, whoever else was hit."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            usage = (await self._asked(None, "GET", "/me/usage", {200})).json()
            told = {name: usage[name] for name in expected}
            if told == expected:
                return
            await asyncio.sleep(0.1)
        self._trouble(None, f"usage {told}, expected {expected}")

    async def _verify_upload(self, md5: str, known: Unfinished) -> None:
        answer = (await self._asked(known.content.md5, "GET", f"/files/{md5}", {200})).json()
        if answer["state"] == "uploading":
            self._note_lost(md5, answer["upload"]["missing"])

    async def discard(self, sha256: str) -> None:
        """Get rid of a content in every form, so that all is well again."""
        files, uploads = self.promises.files, self.promises.uploads
        for file_id in [key for key, (_, content) in files.items() if content.sha256 == sha256]:
            await self._drop(f"/me/files/{file_id}")
            del files[file_id]
        for md5 in [md5 for md5, known in uploads.items() if known.content.sha256 == sha256]:
            await self._drop(f"/files/{md5}")
            del uploads[md5]

    async def _drop(self, path: str) -> None:
        """Its bytes were harmed, so whether this succeeds says nothing."""
        try:
            await self._http.request("DELETE", self._urls[0] + path)
        except httpx2.TransportError:
            self._count["not dropped"] += 1

    async def close(self) -> None:
        await self._http.aclose()

    # The wire

    async def _asked(self, md5: str | None, method: str, path: str, expected: set[int], **more: Any) -> httpx2.Response:
        response = await self._request(method, path, md5, **more)
        if response.status_code not in expected:
            self._wrong(md5, method, response)
        return response

    async def _request(
        self, method: str, path: str, md5: str | None, *, once: bool = False, **more: Any
    ) -> httpx2.Response:
        """Ask any server until one gives an answer that is not "try again". `once`: raises LostAnswer if one is lost,
        where to ask the same again would be answered, and lost, in the same way."""
        waited_seconds = 0.0
        while True:
            async with self._record:
                silence = _Silence()
                self._count["requests"] += 1
                try:
                    response = await self._answer(method, self._random.choice(self._urls) + path, silence, more)
                except httpx2.TransportError as error:
                    self._count["lost_answers"] += 1
                    told = repr(error)
                    self._note_wait(silence.longest_seconds, f"{method} {path}: {told}")
                    if once:
                        raise LostAnswer() from error
                else:
                    self._note_wait(silence.longest_seconds, f"{method} {path}: {response.status_code}")
                    if not self._says_not_now(response):
                        self._patience_seconds = self._habits.patience_seconds
                        return response
                    self._count[f"status_{response.status_code}"] += 1
                    told = _told(response)
            await asyncio.sleep(self._random.uniform(0.02, 0.2))
            waited_seconds += silence.all_seconds
            if self._patience_seconds is not None and waited_seconds > self._patience_seconds:
                self._patience_seconds = _LITTLE_PATIENCE_SECONDS
                self._trouble(md5, f"{method}: {told}, again and again")

    def _says_not_now(self, response: httpx2.Response) -> bool:
        """Of what can't be helped none gets anything else by asking again."""
        if response.status_code == 500:
            return self._habits.patience_seconds is None and response.json().get("code") != "content-damaged"
        return response.status_code in (408, 429, 503, 507)

    async def _answer(self, method: str, url: str, silence: "_Silence", more: dict[str, Any]) -> httpx2.Response:
        content = bytearray()
        async with self._http.stream(method, url, **more) as response:
            async for piece in response.aiter_raw():
                silence.end()
                content += piece
        return httpx2.Response(response.status_code, headers=response.headers, content=bytes(content))

    def _note_wait(self, seconds: float, what: str) -> None:
        self.last_told = f"{what}, {time.strftime('%H:%M:%S')}"
        self._record.longest_seconds = max(self._record.longest_seconds, seconds)
        if seconds > ANSWER_SECONDS:
            self._record.late.append(f"{time.strftime('%H:%M:%S')} {what} after {seconds:.1f} s")

    def _wrong(self, md5: str | None, what: str, response: httpx2.Response) -> NoReturn:
        self._trouble(md5, f"{what} was answered {_told(response)}")

    def _trouble(self, md5: str | None, what: str) -> NoReturn:
        """Write it down and give up."""
        self._write_down(md5, what)
        if md5 is not None:
            self._given_up.add(md5)
        raise Harmed

    def _write_down(self, md5: str | None, what: str, *, wrong_bytes: bool = False) -> None:
        self._record.troubles.append(Trouble(self.user_id, md5, what, wrong_bytes, self._record.scrubbed))


class _Silence:
    """For how long a request hears nothing. Whose bytes come does not wait, however many there are."""

    def __init__(self) -> None:
        self._began = self._since = time.monotonic()
        self._longest_seconds = 0.0

    def end(self) -> None:
        """Something has come."""
        self._longest_seconds, self._since = self.longest_seconds, time.monotonic()

    @property
    def longest_seconds(self) -> float:
        return max(self._longest_seconds, time.monotonic() - self._since)

    @property
    def all_seconds(self) -> float:
        return time.monotonic() - self._began


async def _together(*acts: Coroutine[Any, Any, None]) -> None:
    """All of them to their ends; then what one of them raised."""
    for ended in await asyncio.gather(*acts, return_exceptions=True):
        if ended is not None:
            raise ended


def _told(response: httpx2.Response) -> str:
    """What a response says, without what differs from one request to the next."""
    problem = response.headers.get("content-type", "").startswith("application/problem+json")
    return f"{response.status_code} {response.json()['code'] if problem else response.text[:100]}"


def _numbers(ranges: list[list[int]]) -> set[int]:
    return {number for first, last in ranges for number in range(first, last + 1)}


def _md5_of_nothing() -> str:
    return base64.b64encode(bytes.fromhex("d41d8cd98f00b204e9800998ecf8427e")).decode()
