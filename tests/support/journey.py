"""The ways through everything that the storage does, taken by clients that send again what was refused."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2

from tests.support.archives import Entry, archive
from tests.support.bodies import Arrived
from tests.support.content import Content
from tests.support.faults import OneCall, failing_call
from tests.support.layout import blob_path
from tests.support.rows import upload_row
from tests.support.stack import Stack
from uploader.domain.links import owner
from uploader.errors import StorageFull, Unavailable
from uploader.http.shared.problem import STATUS
from uploader.service.ids import new_id
from uploader.service.results import Appended, Complete, Target
from uploader.storage.local.directories import month_path

# So small that a whole upload is a few kilobytes: three sectors. It takes the place of CHUNK_SIZE_STEP_BYTES.
STEP_BYTES = 1536
SETTINGS: dict[str, Any] = {
    # A user's share of the memory for bodies holds one small chunk; a larger one is spooled.
    "body_budget_bytes": 4 * STEP_BYTES,
    "min_chunk_size_bytes": 1,
    "max_pending_bytes": 1,
    "quiet_interval_seconds": 0.001,
    "max_delay_seconds": 0.001,
}
# After every month of these tests.
ALL = datetime(9999, 12, 1, tzinfo=UTC)


def _content(name: str, seed: int, chunk_size: int = STEP_BYTES) -> Content:
    return Content(2 * STEP_BYTES + 900, seed, chunk_size, name)


SHARED = _content("shared.bin", 1)
ROTTING = _content("rotting.bin", 2)
CANCELLED = _content("cancelled.bin", 3)
STANDING = _content("standing.bin", 4, 2 * STEP_BYTES)
LARGE = Content(5 * STEP_BYTES - 1, 5, STEP_BYTES, "large.bin")
LARGER = Content(5 * STEP_BYTES, 6, STEP_BYTES, "larger.bin")
STREAMED = _content("streamed.bin", 7)
MIXED = _content("mixed.bin", 8)
CONTENTS = (STREAMED, MIXED, SHARED, ROTTING, CANCELLED, STANDING, LARGE, LARGER)
# What comes whole, with several sectors each: the first two have their names on the disk before, of which one has no bytes
# and the other one bytes whose sync failed.
WHOLE = [Content(STEP_BYTES + number, 10 + number, name=f"whole-{number}.bin") for number in range(6)]
# What a rotten chunk begins with.
ROT = b"rotten"


@dataclass(frozen=True)
class Chunk:
    """A chunk that was acknowledged."""

    upload_id: str
    content: Content
    number: int

    @property
    def bytes(self) -> bytes:
        return self.content.chunk(self.number)


@dataclass(frozen=True)
class Streamed:
    """An upload whose bytes were acknowledged up to here."""

    upload_id: str
    offset: int


@dataclass(frozen=True)
class Rotten:
    """Bytes of a chunk that the disk changed by itself."""

    upload_id: str
    number: int
    path: Path


@dataclass(frozen=True)
class Withdrawn:
    """A chunk that the client was told to send again."""

    upload_id: str
    number: int


@dataclass(frozen=True)
class RottenBlob:
    """Bytes of a content that the disk changed by itself."""

    sha256: str
    path: Path


@dataclass(frozen=True)
class HealedBlob:
    """A content that is whole again."""

    sha256: str


def ignore(_what: object) -> None:
    pass


class Journey:
    """Each way has a beginning, in which nothing fails, and a rest."""

    def __init__(
        self,
        stack: Stack,
        bob: httpx2.AsyncClient,
        call: OneCall,
        attempts: int = 1,
        mark: Callable[[object], None] = ignore,
    ) -> None:
        self.stack = stack
        self.alice = stack.client
        self.bob = bob
        self.call = call
        self.attempts = attempts
        # Told of each chunk that is acknowledged, rots, or is missing again.
        self.mark = mark
        self.acknowledged: list[Chunk] = []
        self.streamed: Streamed | None = None
        # The status codes of what was refused because the disk failed.
        self.refusals: list[int] = []
        self.files: dict[httpx2.AsyncClient, list[str]] = {self.alice: [], bob: []}

    # Ways

    async def nothing(self) -> None:
        """A way that begins at once."""

    async def upload_and_download(self) -> None:
        file_id = await self.upload(self.alice, SHARED, [2, 0, 1])
        self.call.step = "download"
        response = await self.ask({200}, lambda: self.alice.get(f"/me/files/{file_id}/content"))
        assert response.content == SHARED.data
        await self.delete(self.alice, file_id)

    async def have_the_content_and_begin_again(self) -> None:
        await self.upload(self.alice, SHARED, [0, 1, 2])
        await self.begin(self.bob, SHARED, [0, 2])

    async def finish_the_same_content(self) -> None:
        self.finished(self.bob, await self.put(self.bob, SHARED, 1))

    async def leave_the_bytes_of_a_deleted_file(self) -> None:
        """For the collector; the next merge of this content meets them."""
        file_id = await self.upload(self.alice, SHARED, [1, 2, 0])
        path = blob_path(self.stack.data, SHARED.sha256)
        with failing_call("unlink", only=lambda it: it == path):
            await self.delete(self.alice, file_id)
        await self.begin(self.bob, SHARED, [2, 0])

    async def let_a_chunk_rot(self) -> None:
        """One that came out of order, so that it is still to be hashed."""
        upload_id = await self.begin(self.alice, ROTTING, [1, 2])
        await self.stack.services.storage.drain()
        (path,) = (self.stack.data / "temp").glob(f"*/*/{upload_id}/data")
        with path.open("r+b") as data:
            data.seek(ROTTING.chunk_size)
            data.write(ROT)
        self.mark(Rotten(upload_id, 1, path))

    async def heal(self) -> None:
        upload_id = self.acknowledged[-1].upload_id
        refused = await self.put(self.alice, ROTTING, 0, {409})
        self.mark(Withdrawn(upload_id, 1))
        # A chunk that the disk did not give back is missing again, too.
        missing = [number for first, last in refused["missing"] for number in range(first, last + 1)]
        assert 1 in missing
        for number in missing:
            answer = await self.put(self.alice, ROTTING, number)
        self.finished(self.alice, answer)

    async def let_a_blob_rot(self) -> None:
        """The trash has good bytes of it, which others took the place of."""
        for client in (self.alice, self.bob):
            await self.upload(client, SHARED, [0, 1, 2])
        path = blob_path(self.stack.data, SHARED.sha256)
        with path.open("r+b") as blob:
            blob.write(ROT)
        self.mark(RottenBlob(SHARED.sha256, path))

    async def scrub(self) -> None:
        self.call.step = "scrub"
        scrubbing = self.stack.services.scrubbing
        for _ in range(self.attempts + 1):  # the last one finds nothing
            try:
                found = [damage async for damage in scrubbing.scrub(lambda _read: None, restart=True)]
            except (Unavailable, StorageFull):
                continue
            if not found and blob_path(self.stack.data, SHARED.sha256).read_bytes() == SHARED.data:
                self.mark(HealedBlob(SHARED.sha256))
                return
        raise AssertionError("never healed")

    async def empty_the_trash(self) -> None:
        await self.scrub()
        for _ in range(self.attempts):
            try:
                await self.stack.services.trash.empty()
                if not await self.stack.services.trash.entries():
                    return
            except Unavailable:
                continue
        raise AssertionError("never empty")

    async def begin_what_is_cancelled(self) -> None:
        await self.begin(self.alice, CANCELLED, [0])

    async def cancel(self) -> None:
        await self.ask({204, 404}, lambda: self.alice.delete(f"/files/{CANCELLED.md5}"))

    async def stand(self) -> None:
        """An upload stays open, with a chunk that was spooled."""
        await self.begin(self.alice, STANDING, [0])

    async def append(self) -> None:
        """Streams that end within chunks and at their ends, and one that makes the file."""
        upload_id = await self.open(self.alice, STREAMED)
        for end in (100, 700, STEP_BYTES, 2 * STEP_BYTES + 30, STREAMED.size - 5, STREAMED.size):
            await self._append_up_to(end, STREAMED, upload_id)

    async def mix(self) -> None:
        """Chunks before a stream, over its tail, and at its end."""
        upload_id = await self.open(self.alice, MIXED)
        await self.send(self.alice, MIXED, upload_id, 1)
        await self._append_up_to(700, MIXED, upload_id)
        await self.send(self.alice, MIXED, upload_id, 0)
        await self._append_up_to(2 * STEP_BYTES + 30, MIXED, upload_id)
        self.finished(self.alice, await self.put(self.alice, MIXED, 2))

    async def _append_up_to(self, end: int, content: Content, upload_id: str) -> None:
        self.call.step = f"append {end}"
        target, offset = Target(owner("alice"), upload_id=upload_id), 0
        for _ in range(self.attempts):
            try:
                match await self.stack.services.appends.status(target):
                    case Appended(offset=offset):
                        assert offset >= (self.streamed.offset if self.streamed else 0)
                        self._stream(upload_id, offset)
                source = Arrived(content.data[offset:end])
                match await self.stack.services.appends.append(target, offset, source):
                    case Appended(offset=offset):
                        self._stream(upload_id, offset)
                    case Complete(file=file):
                        self.finished(self.alice, {"state": "complete", "file": {"id": file.id}})
                return
            except (Unavailable, StorageFull) as error:
                self.refusals.append(STATUS[error.code])
        raise AssertionError(f"refused to the end: {self.refusals}")

    def _stream(self, upload_id: str, offset: int) -> None:
        self.streamed = Streamed(upload_id, offset)
        self.mark(self.streamed)

    async def send_all_at_once(self) -> None:
        """Two users, each with several chunks under way."""
        senders = [(self.alice, LARGE), (self.bob, LARGER)]
        uploads = [(client, content, await self.open(client, content)) for client, content in senders]
        await asyncio.gather(*(self.send(*upload, number) for upload in uploads for number in range(4)))
        await asyncio.gather(*(self.put(client, content, 4) for client, content, _ in uploads))

    async def send(self, client: httpx2.AsyncClient, content: Content, upload_id: str, number: int) -> None:
        await self.put(client, content, number)
        self.acknowledged.append(Chunk(upload_id, content, number))
        self.mark(self.acknowledged[-1])

    async def leave_names(self) -> None:
        empty, unsynced = (blob_path(self.stack.data, content.sha256) for content in WHOLE[:2])
        with failing_call("pwrite", only=lambda path: path == empty):
            assert (await self.put_whole(WHOLE[0])).status_code == 503
        with failing_call("fdatasync", only=lambda path: path == unsynced):
            assert (await self.put_whole(WHOLE[1])).status_code == 503

    async def send_whole(self) -> None:
        for content in WHOLE[:3]:
            self.call.step = content.name
            response = await self.ask({200, 201}, lambda content=content: self.put_whole(content))  # type: ignore[misc]
            self.finished(self.alice, response.json())

    async def put_whole(self, content: Content) -> httpx2.Response:
        return await self.alice.put(f"/files/{content.md5}", params={"name": content.name}, content=content.data)

    async def leave_names_of_a_batch(self) -> None:
        """Not even their directories are durable."""
        empty = blob_path(self.stack.data, WHOLE[0].sha256)
        with failing_call("pwrite", only=lambda path: path == empty), failing_call("syncfs"):
            assert (await self.post_batch(WHOLE[:4])).status_code == 503

    async def send_batch(self) -> None:
        """The last content twice, and once more by itself, in the names of the first try."""
        self.call.step = "batch"
        for _ in range(self.attempts):
            response = await self.ask({200}, lambda: self.post_batch([*WHOLE, replace(WHOLE[-1], name="again.bin")]))
            results = response.json()["results"]
            self.refusals += [each["status"] for each in results if each["status"] not in (200, 201)]
            if all("file" in each for each in results):
                self.files[self.alice] += [each["file"]["id"] for each in results]
                return
        raise AssertionError(f"refused to the end: {self.refusals}")

    async def post_batch(self, contents: Sequence[Content]) -> httpx2.Response:
        members = archive(*(Entry(content.name, content.data) for content in contents))
        return await self.alice.post("/files/batch", content=members)

    async def leave_orphans(self) -> None:
        """Bytes in temp and in blobs that have no row."""
        month = month_path(self.stack.services.clock.now())
        for path in (f"temp/2020/01/{new_id()}", f"temp/{month}/{new_id()}"):
            await self.stack.services.storage.create(upload_row(place=path))
        blob = blob_path(self.stack.data, SHARED.sha256)
        blob.parent.mkdir(parents=True, exist_ok=True)
        for name in (blob.name, f"{blob.name}.{new_id()}"):
            blob.with_name(name).write_bytes(SHARED.data)

    async def clean(self) -> None:
        for _ in range(self.attempts):
            try:
                cleaned = await self.stack.services.cleanup.clean(opened_before=ALL, all_strays=True)
            except Unavailable:
                continue
            if not cleaned.left:
                return
        raise AssertionError("never cleaned")

    # Steps

    async def ask(self, expected: set[int], request: Callable[[], Awaitable[httpx2.Response]]) -> httpx2.Response:
        """Ask until the answer is as expected. In between there may be no other answer than that the disk fails."""
        for _ in range(self.attempts):
            try:
                response = await request()
            except Unavailable:  # in the middle of an answer
                self.refusals.append(503)
                continue
            if response.status_code in expected:
                return response
            assert response.status_code in (503, 507), response.text
            self.refusals.append(response.status_code)
        raise AssertionError(f"refused to the end: {self.refusals}")

    async def open(self, client: httpx2.AsyncClient, content: Content) -> str:
        """The id of the upload."""
        self.call.step = "open"
        response = await self.ask({200, 201}, lambda: self.stack.open(content, client))
        return str(response.json()["upload"]["id"])

    async def put(
        self,
        client: httpx2.AsyncClient,
        content: Content,
        number: int,
        expected: set[int] | None = None,
        *,
        last: bool = False,
    ) -> dict[str, Any]:
        self.call.step = "last" if last else "put"
        response = await self.ask(expected or {200, 201}, lambda: self.stack.put(content, number, client))
        answer: dict[str, Any] = response.json()
        return answer

    async def upload(self, client: httpx2.AsyncClient, content: Content, order: list[int]) -> str:
        """The id of the file."""
        await self.begin(client, content, order[:-1])
        return self.finished(client, await self.put(client, content, order[-1], last=True))

    async def begin(self, client: httpx2.AsyncClient, content: Content, numbers: list[int]) -> str:
        """The id of the upload."""
        upload_id = await self.open(client, content)
        for number in numbers:
            await self.send(client, content, upload_id, number)
        return upload_id

    def finished(self, client: httpx2.AsyncClient, answer: dict[str, Any]) -> str:
        """The id of the file."""
        assert answer["state"] == "complete"
        self.files[client].append(answer["file"]["id"])
        return self.files[client][-1]

    async def delete(self, client: httpx2.AsyncClient, file_id: str) -> None:
        self.call.step = "delete"
        await self.ask({204}, lambda: client.delete(f"/me/files/{file_id}"))
        self.files[client].remove(file_id)

    async def end(self) -> None:
        """Delete and cancel all, and let the collector and the cleanup do the rest."""
        for client, file_ids in self.files.items():
            for file_id in list(file_ids):
                await self.delete(client, file_id)
        await self.stack.services.cleanup.reset_unfinished()
        await self.stack.services.files.collect_all()
        await self.clean()


WAYS = {
    "upload": (Journey.nothing, Journey.upload_and_download),
    "twin": (Journey.have_the_content_and_begin_again, Journey.finish_the_same_content),
    "leftovers": (Journey.leave_the_bytes_of_a_deleted_file, Journey.finish_the_same_content),
    "withdrawal": (Journey.let_a_chunk_rot, Journey.heal),
    "rot": (Journey.let_a_blob_rot, Journey.scrub),
    "purge": (Journey.let_a_blob_rot, Journey.empty_the_trash),
    "cancel": (Journey.begin_what_is_cancelled, Journey.cancel),
    "append": (Journey.nothing, Journey.append),
    "mixed": (Journey.nothing, Journey.mix),
    "spool": (Journey.nothing, Journey.stand),
    "at once": (Journey.nothing, Journey.send_all_at_once),
    "cleanup": (Journey.leave_orphans, Journey.clean),
    "whole": (Journey.leave_names, Journey.send_whole),
    "batch": (Journey.leave_names_of_a_batch, Journey.send_batch),
}
