"""Clients that upload under fire, and remember what they were promised: every broken promise is a violation."""

import asyncio
import base64
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.chaos.streams import LostAnswer, Streams
from tests.support.archives import Entry, archive
from tests.support.content import MIB, Content
from tests.support.deltas import Edited

# Contents that everybody has, so that blobs have several refs, and merges meet deletions.
_SHARED_CHUNKS = (1 / 64, 1, 1.6, 2.1, 3.2, 5)
_PARALLEL = 3
# Of uploads by chunks, those to which streams are appended as well.
_MIXED = 0.3
# Of new contents, those that others have most of; and of the chunks of these, those that come as instructions.
_EDITED, _MADE = 0.2, 0.8
_MAX_LEFT_OPEN = 5
# Of all files of one user, so that a round takes as much of the disk however long it is, and however large its chunks are.
_MAX_KEPT_BYTES = 64 * MIB
# Of what comes in one request: the largest chunk.
_MAX_WHOLE_BYTES = 64 * MIB
# Nobody waits longer than this for any answer, whatever is away.
ANSWER_SECONDS = 10.0
_REQUEST_TIMEOUT_SECONDS = 30.0


@dataclass
class Promises:
    """What one user was told, and may rely on."""

    acknowledged: dict[str, set[int]] = field(default_factory=dict)  # of open uploads, by MD5
    files: dict[str, Content] = field(default_factory=dict)  # by id


@dataclass
class Record:
    """What all clients did, and what they found wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)  # requests that nobody answered in time
    longest_seconds: float = 0.0  # that a request waited for its answer, or for its connection to end


class Client:
    """One user on one connection pool."""

    def __init__(self, user_id: str, token: str, urls: list[str], chunk_size: int, seed: int, record: Record) -> None:
        self.user_id = user_id
        self.promises = Promises()
        self._urls = urls
        self._random = random.Random(f"{seed}/{user_id}")
        self._record = record
        self._count = record.counts
        self._http = httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {token}"}, timeout=_REQUEST_TIMEOUT_SECONDS, trust_env=False
        )
        self.last_told = "nothing"
        self._contents: dict[str, Content] = {}
        # Of names that replace others: the file that has it.
        self._slots: dict[str, str] = {}
        self._chunk_size = chunk_size
        self.streams = Streams(self._request, self._random, self._count_one, self._wrong, self._violate)
        self._shared = [Content(round(count * chunk_size), -1, chunk_size) for count in _SHARED_CHUNKS]

    async def live(self, stopping: asyncio.Event) -> None:
        """Upload one thing after the other until told to stop; what was begun is finished first."""
        fates = ["finish", "cancel", "leave", "lie", "delete", "copy", "whole", "batch", "stream"]
        while not stopping.is_set():
            fate = self._random.choices(fates, [35, 12, 10, 6, 17, 10, 20, 10, 25])[0]
            content = self._next_stream() if fate == "stream" else self._next_content()
            if content.size > _MAX_WHOLE_BYTES and fate in ("whole", "batch"):
                fate = "finish"
            match fate:
                case "stream":
                    await self._stream(content)
                case "whole":
                    await self._send_whole(content)
                case "batch":
                    await self._send_batch(content)
                case _:
                    await self._upload(content, fate)
            content.drop()
            await self._make_room()
            await asyncio.sleep(self._random.uniform(0, 0.05))

    def _next_content(self) -> Content:
        left_open = [self._contents[md5] for md5 in self.promises.acknowledged]
        if left_open and (len(left_open) >= _MAX_LEFT_OPEN or self._random.random() < 0.2):
            return self._random.choice(left_open)
        return self._new_content()

    def _next_stream(self) -> Content:
        left_open = list(self.streams.promises.left_open.values())
        if left_open and (len(left_open) >= _MAX_LEFT_OPEN or self._random.random() < 0.3):
            return self._random.choice(left_open)
        return self._new_content()

    def _new_content(self) -> Content:
        if self._random.random() < 0.25:
            return self._random.choice(self._shared)
        bases = [content for content in self.promises.files.values() if type(content) is Content and content.size]
        if bases and self._random.random() < _EDITED:
            return Edited.of(self._random.choice(bases), self._random.getrandbits(60))
        chunks = self._random.randint(8, 30) if self._random.random() < 0.1 else self._random.randint(1, 4)
        size = chunks * self._chunk_size - self._random.randrange(self._chunk_size)
        return Content(size, self._random.getrandbits(60), self._chunk_size, f"{self.user_id}.bin")

    # One upload

    async def _upload(self, content: Content, fate: str) -> None:
        if content in self._shared or content.md5 in self._contents:
            fate = "finish" if fate == "lie" else fate
        self._contents[content.md5] = content
        claimed = content.md5 if fate != "lie" else f"{self._random.getrandbits(128):032x}"
        answer = await self._open(content, claimed)
        if answer["state"] == "complete":
            await self._keep(content, answer["file"], fate)
            return
        missing = _numbers(answer["upload"]["missing"])
        self._random.shuffle(missing)
        if fate in ("cancel", "leave"):
            missing = missing[: self._random.randrange(len(missing) + 1)]
        sending = [self._send_all(content, claimed, missing)]
        if answer["state"] == "uploading" and fate not in ("cancel", "leave") and self._random.random() < _MIXED:
            sending.append(self._append_to(answer["upload"]["id"], content, lie=fate == "lie"))
        await asyncio.gather(*sending)
        if fate == "cancel":
            await self._cancel(content, claimed)
        elif fate == "lie":
            await self._be_caught(claimed)
        elif fate != "leave" or len(self.promises.acknowledged[claimed]) == content.chunk_count:
            await self._merge(content, claimed, fate)

    async def _append_to(self, upload_id: str, content: Content, *, lie: bool) -> None:
        """Beside its chunks, and often beside one another: the newest wins, so only one of them goes on and on."""
        appends = [self.streams.append_to(upload_id, content, content.size, lie=lie)]
        if self._random.random() < 0.4:
            appends.append(self.streams.append_to(upload_id, content, content.size, requests=3, lie=lie))
        await asyncio.gather(*appends)
        self.streams.forget(upload_id)
        self._count["mixed"] += 1

    async def _open(self, content: Content, md5: str) -> Any:
        self.promises.acknowledged.setdefault(md5, set())
        body = {"name": content.name, "size": content.size, "chunk_size": content.chunk_size}
        response = await self._request("POST", f"/files/{md5}", json=body)
        if response.status_code not in (200, 201):
            self._wrong("opening", response)
            return {"state": "uploading", "upload": {"missing": []}}
        answer = response.json()
        if answer["state"] == "uploading":
            self._check_missing(md5, answer["upload"]["missing"])
        elif answer["state"] == "merging":
            answer["upload"].setdefault("missing", [])
        return answer

    async def _send_all(self, content: Content, md5: str, numbers: list[int]) -> None:
        queue = list(numbers)

        async def send() -> None:
            while queue:
                number = queue.pop()
                await self._send(content, md5, number)
                if self._random.random() < 0.08:
                    queue.append(number)  # again, perhaps at the same time, on the other server
                if self._random.random() < 0.1:
                    await self._ask(md5)

        await asyncio.gather(*(send() for _ in range(_PARALLEL)))

    async def _send(self, content: Content, md5: str, number: int) -> None:
        path, chunk = f"/files/{md5}/chunks/{number}", content.chunk(number)
        if self._random.random() < 0.04 and number not in self.promises.acknowledged[md5]:
            refused = await self._request("PUT", path, content=chunk, headers={"Content-MD5": _md5_of_nothing()})
            self._count["wrong_digests_refused"] += refused.status_code == 422
            if refused.status_code != 422:
                self._after_the_end(refused, "a wrong digest")
        response = None
        if isinstance(content, Edited) and self._random.random() < _MADE:
            response = await self._send_made(content, path, number)
        if response is None:
            response = await self._request("PUT", path, content=chunk)
        if response.status_code in (200, 201, 202):
            self.promises.acknowledged[md5].add(number)
            self._count["chunks"] += 1
            self._count["duplicates"] += bool(response.json().get("duplicate"))
        elif not (response.status_code in (410, 422) and md5 != content.md5):
            self._wrong(f"chunk {number}", response)

    async def _send_made(self, content: Edited, path: str, number: int) -> httpx2.Response | None:
        """By instructions; None if the base is a file no more."""
        bases = [file_id for file_id, other in self.promises.files.items() if other == content.base]
        base = self._random.choice(bases) if bases else f"{self._random.getrandbits(128):032x}"
        response = await self._request("PUT", path, params={"base": base}, content=content.instructions(number))
        if response.status_code == 404 and base not in self.promises.files:
            self._count["without_base"] += 1
            return None
        self._count["made"] += response.status_code in (200, 201, 202)
        return response

    def _after_the_end(self, response: httpx2.Response, what: str) -> None:
        """A chunk that counts already, or whose upload is complete, is answered without a look at its body."""
        if response.status_code not in (200, 201, 202, 410):
            self._wrong(what, response)

    async def _ask(self, md5: str) -> None:
        before = set(self.promises.acknowledged[md5])
        response = await self._request("GET", f"/files/{md5}")
        answer = response.json()
        if response.status_code == 200 and answer["state"] == "uploading":
            lost = before & set(_numbers(answer["upload"]["missing"]))
            if lost:
                self._violate(f"acknowledged chunks {sorted(lost)} of {answer['upload']['id']} are missing")

    def _check_missing(self, md5: str, missing: list[list[int]]) -> None:
        lost = self.promises.acknowledged[md5] & set(_numbers(missing))
        if lost:
            self._violate(f"acknowledged chunks {sorted(lost)} of {md5} are missing at the opening")

    async def _merge(self, content: Content, md5: str, fate: str) -> None:
        while True:
            response = await self._request("POST", f"/files/{md5}/merge")
            if response.status_code in (200, 201):
                await self._keep(content, response.json()["file"], fate)
                return
            if response.status_code != 202:
                self._wrong("merge", response)
                return
            await asyncio.sleep(0.1)

    async def _cancel(self, content: Content, md5: str) -> None:
        complete = len(self.promises.acknowledged[md5]) == content.chunk_count
        response = await self._request("DELETE", f"/files/{md5}")
        if response.status_code == 404 and complete:
            await self._merge(content, md5, "finish")  # the merge was faster
            return
        if response.status_code not in (204, 404):
            self._wrong("cancel", response)
        self.promises.acknowledged.pop(md5)
        self._count["cancelled"] += 1

    async def _be_caught(self, md5: str) -> None:
        """An upload whose bytes are not what was claimed ends, and is remembered as having ended so."""
        while (response := await self._request("POST", f"/files/{md5}/merge")).status_code == 202:
            await asyncio.sleep(0.1)
        if response.status_code not in (410, 422):
            self._wrong("a lie", response)
        self.promises.acknowledged.pop(md5)
        self._count["lies_caught"] += 1

    # Streams

    async def _stream(self, content: Content) -> None:
        """By tus alone: to its end, or left open for another time, or given up."""
        left_open = self.streams.promises.left_open
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
        while (response := await self._request("GET", f"/uploads/{upload_id}")).status_code == 200:
            if response.json()["state"] == "complete":
                self._count["streams"] += 1
                self.streams.forget(upload_id)
                file_id = response.json()["file"]["id"]
                self.promises.files[file_id] = content
                await self.compare(file_id)
                return
            await asyncio.sleep(0.1)
        self._wrong("a stream that came to its end", response)

    # Files that come whole

    async def _send_whole(self, content: Content) -> None:
        """Also what an upload is open of; half of them take the place of what has their name."""
        self._contents[content.md5] = content
        query = {"name": content.name, "if_exists": "keep"}
        if self._random.random() < 0.5:
            query = {"name": f"slot {self._random.randrange(4)}", "if_exists": "replace"}
        response = await self._request("PUT", f"/files/{content.md5}", params=query, content=content.data)
        if response.status_code not in (200, 201):
            self._wrong("a whole file", response)
            return
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
        self._contents[content.md5] = content
        written = archive(*(Entry(name, member.data) for name, member in members.items()))
        if self._random.random() < 0.1:
            written = written[: self._random.randrange(len(written))]
        response = await self._request("POST", "/files/batch", params={"if_exists": "replace"}, content=written)
        if (
            response.status_code not in (200, 422)
            or response.json().get("code", "invalid-archive") != "invalid-archive"
        ):
            self._wrong("a batch", response)
            return
        for result, member in zip(response.json()["results"], members.values(), strict=False):
            if result["status"] == 503:
                continue  # a disk, or a database, that was away at its turn
            if result["status"] not in (200, 201):
                self._violate(f"a member of a batch of {self.user_id} was answered {result}")
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

    async def _keep(self, content: Content, file: Any, fate: str) -> None:
        self.promises.acknowledged.pop(content.md5, None)
        if file["id"] not in self.promises.files:
            self._count["files"] += 1
        self.promises.files[file["id"]] = content
        await self.compare(file["id"])
        if fate == "delete":
            await self._delete(file["id"])
        elif fate == "copy":
            await self._copy(content)

    async def _copy(self, content: Content) -> None:
        body = {"name": f"copy of {content.name}", "size": content.size}
        response = await self._request("POST", f"/files/{content.md5}", json=body)
        if response.status_code not in (200, 201) or response.json()["state"] != "complete":
            self._wrong("instant upload", response)
            return
        self.promises.files[response.json()["file"]["id"]] = content
        self._count["instant"] += 1

    async def _delete(self, file_id: str) -> None:
        response = await self._request("DELETE", f"/me/files/{file_id}")
        if response.status_code not in (204, 404):
            self._wrong("delete", response)
        self.promises.files.pop(file_id)
        self._count["deleted"] += 1

    async def _make_room(self) -> None:
        """Delete the oldest files if there are too many bytes of them."""
        kept_bytes = sum(content.size for content in self.promises.files.values())
        while kept_bytes > _MAX_KEPT_BYTES:
            file_id, content = next(iter(self.promises.files.items()))
            await self._delete(file_id)
            kept_bytes -= content.size

    async def compare(self, file_id: str) -> None:
        """The file is there, byte for byte."""
        response = await self._request("GET", f"/me/files/{file_id}/content")
        if response.status_code != 200 or response.content != self.promises.files[file_id].data:
            self._violate(f"file {file_id}: {response.status_code}, {len(response.content)} bytes are not its content")
        self._count["comparisons"] += 1

    async def compare_all(self) -> None:
        """Every file that was promised is there, and no other."""
        listed: set[str] = set()
        after: dict[str, str] = {}
        while True:
            response = await self._request("GET", "/me/files", params={"limit": "1000", **after})
            listed |= {file["id"] for file in response.json()["files"]}
            if response.json()["next"] is None:
                break
            after = {"after": response.json()["next"]}
        if listed != self.promises.files.keys():
            self._violate(f"files of {self.user_id}: {listed ^ self.promises.files.keys()} are not as promised")
        for file_id in sorted(listed & self.promises.files.keys()):
            await self.compare(file_id)
            self.promises.files[file_id].drop()

    async def close(self) -> None:
        await self._http.aclose()

    # The wire

    async def _request(self, method: str, path: str, *, once: bool = False, **more: Any) -> httpx2.Response:
        """Ask either server until one gives an answer that is not "try again". `once`: raises LostAnswer if one is lost,
        where to ask the same again would be answered, and lost, in the same way."""
        while True:
            silence = _Silence()
            self._count["requests"] += 1
            try:
                response = await self._answer(method, self._random.choice(self._urls) + path, silence, more)
            except httpx2.TransportError as error:
                self._count["lost_answers"] += 1
                self._note_wait(silence.longest_seconds, f"{method} {path}: {error!r}")
                if once:
                    raise LostAnswer() from error
            else:
                self._note_wait(silence.longest_seconds, f"{method} {path}: {response.status_code}")
                if response.status_code not in (408, 429, 500, 503) or _says_damaged(response):
                    return response
                self._count[f"status_{response.status_code}"] += 1
            await asyncio.sleep(self._random.uniform(0.02, 0.2))

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

    def _count_one(self, what: str) -> None:
        self._count[what] += 1

    def _wrong(self, what: str, response: httpx2.Response) -> None:
        self._violate(f"{what} of {self.user_id} was answered {response.status_code} {response.text[:300]}")

    def _violate(self, text: str) -> None:
        self._record.violations.append(text)


class _Silence:
    """For how long a request hears nothing. Whose bytes come does not wait, however many there are."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._longest_seconds = 0.0

    def end(self) -> None:
        """Something has come."""
        self._longest_seconds, self._since = self.longest_seconds, time.monotonic()

    @property
    def longest_seconds(self) -> float:
        return max(self._longest_seconds, time.monotonic() - self._since)


def _says_damaged(response: httpx2.Response) -> bool:
    """Nobody gets such a content by asking again."""
    return response.status_code == 500 and response.json().get("code") == "content-damaged"


def _numbers(ranges: list[list[int]]) -> list[int]:
    return [number for first, last in ranges for number in range(first, last + 1)]


def _md5_of_nothing() -> str:
    return base64.b64encode(bytes.fromhex("d41d8cd98f00b204e9800998ecf8427e")).decode()
