"""One damaged file of an open upload harms that upload alone: nothing is acknowledged that is not there, every job and every
list goes on with the others, and what is missing is sent again."""

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.support.background import collector_of, flush_due, settle_without_merge, upload_of, while_paused
from tests.support.chosen import places
from tests.support.clock import ManualClock
from tests.support.content import KIB, MIB, Content
from tests.support.faults import Call, failing, failing_call, paused_call
from tests.support.gateways import settings_of
from tests.support.invariants import checked_accounts
from tests.support.maps import parsed_map
from tests.support.rot import NO_FILES
from tests.support.stack import Stack, go_on
from tests.support.waiting import eventually
from uploader.addresses import BucketAddress
from uploader.database import queries
from uploader.domain.upload import Upload
from uploader.errors import StorageFailed
from uploader.jobs.uploads import Sweeper
from uploader.service import reconcile
from uploader.service.reconcile import Drift, Kind
from uploader.storage.base import Busy, Digests
from uploader.storage.local import chunks, digests
from uploader.storage.local.store import LocalStore
from uploader.storage.s3.parts import multipart_of
from uploader.storage.s3.store import S3Store

CHUNK = 64 * KIB
COUNT = 5
DAY = 86400
HEADER = range(chunks.MAP_RECORDS_OFFSET)
RECORDS = range(chunks.MAP_RECORDS_OFFSET, chunks.map_record_offset(COUNT))


# Of one that is appended to.
HALF = CHUNK + 100
TUS = {"Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream"}


def a_content(seed: int) -> Content:
    return Content(COUNT * CHUNK - 100, seed=seed)


CONTENT, BOB = a_content(0), a_content(1000)

Damage = Callable[[Path], None]
PutChunk = Callable[[int, Content], Coroutine[Any, Any, httpx2.Response]]


def flipped(file: str, place: int, mask: int = 0x80) -> Damage:
    def damage(directory: Path) -> None:
        with (directory / file).open("r+b") as opened:
            opened.seek(place)
            byte = opened.read(1) or b"\0"
            opened.seek(place)
            opened.write(bytes([byte[0] ^ mask]))

    return damage


def zeroed(file: str, start: int = 0, end: int | None = None) -> Damage:
    def damage(directory: Path) -> None:
        length = (directory / file).stat().st_size
        with (directory / file).open("r+b") as opened:
            opened.seek(start)
            opened.write(bytes((length if end is None else end) - start))

    return damage


def cut(file: str, length: int) -> Damage:
    return lambda directory: os.truncate(directory / file, length)


def longer(file: str, more: int) -> Damage:
    return lambda directory: os.truncate(directory / file, (directory / file).stat().st_size + more)


def lost(file: str) -> Damage:
    return lambda directory: (directory / file).unlink()


def become(file: str, instead: Damage) -> Damage:
    return lambda directory: instead(directory / file)


DAMAGES: dict[str, list[Damage]] = {
    "a byte of the header": [flipped("map", place) for place in HEADER],
    "a bit of the boot id": [flipped("map", place, 1) for place in range(8, 44, 5)],
    "a byte of the records": [flipped("map", place) for place in RECORDS],
    "the mark of a record": [flipped("map", place, 0xC1) for place in RECORDS],
    "a map cut short": [cut("map", length) for length in (0, 1, 100, 127, 128, 129, 136, 150, RECORDS.stop - 1)],
    "a map of zeroes": [zeroed("map"), zeroed("map", 0, 128), zeroed("map", 128), zeroed("map", 0, 512)],
    "a map too long": [longer("map", 1), longer("map", 8), longer("map", 1 << 20)],
    "a byte of the data": [flipped("data", place) for place in range(0, COUNT * CHUNK - 100, 7919)],
    "data cut short": [cut("data", length) for length in (0, 1, CHUNK, 2 * CHUNK + 5, COUNT * CHUNK - 101)],
    "data of zeroes": [zeroed("data"), zeroed("data", CHUNK + 1, CHUNK + 2), zeroed("data", CHUNK, 3 * CHUNK)],
    "data too long": [longer("data", 1), longer("data", CHUNK)],
    "a lost file": [lost("data"), lost("digest")],
    "no file": [become(file, instead) for file in ("data", "digest") for instead in NO_FILES.values()],
}
DIGEST_DAMAGES: list[Damage] = [
    *(flipped("digest", place) for place in range(0, 512, 3)),
    *(cut("digest", length) for length in (0, 1, 9, 511)),
    *(zeroed("digest"), longer("digest", 1), lost("digest")),
]


@pytest.fixture
async def stack(
    make_stack: MakeStack, sqlite_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Stack]:
    monkeypatch.setattr(reconcile, "_PAUSE_SECONDS", 0.001)
    async with make_stack(database_url=sqlite_url, clock=clock, max_pending_bytes=1, max_open_uploads=1000) as made:
        yield made


async def sent(stack: Stack, content: Content, *numbers: int) -> Upload:
    await stack.open(content)
    for number in numbers:
        assert (await stack.put(content, number)).status_code == 200
    await stack.services.storage.drain()
    return await upload_of(stack, content)


async def missing(stack: Stack, content: Content = CONTENT) -> list[list[int]]:
    answer: list[list[int]] = (await stack.client.get(f"/files/{content.md5}")).json()["upload"]["missing"]
    return answer


async def finished(stack: Stack, content: Content = CONTENT) -> None:
    """Send what the server says is missing, as a client does; the file has the bytes that were sent."""
    for _ in range(3):
        answer = (await stack.client.get(f"/files/{content.md5}")).json()
        if answer["state"] == "complete":
            break
        numbers = [number for first, last in answer["upload"]["missing"] for number in range(first, last + 1)]
        responses = [await stack.put(content, number) for number in numbers]
        responses = responses or [await stack.client.post(f"/files/{content.md5}/merge")]
        assert {response.status_code for response in responses} <= {200, 201, 409}, [each.text for each in responses]
    answer = (await stack.client.get(f"/files/{content.md5}")).json()
    assert answer["state"] == "complete", answer
    content_ = await stack.client.get(f"/me/files/{answer['file']['id']}/content")
    assert content_.content == content.data
    await checked_accounts(stack.services.database)


async def test_whatever_is_damaged_the_upload_is_finished_with_the_right_bytes(stack: Stack) -> None:
    """Its first chunk comes last, so that nothing was hashed before the damage."""
    damages = [(what, damage) for what, each in DAMAGES.items() for damage in places(each, what)]
    for seed, (what, damage) in enumerate(damages):
        content = a_content(seed)
        upload = await sent(stack, content, 1, 2, 4)
        damage(stack.data / upload.place)
        if seed % 2:
            response = await stack.put(content, 3)
            assert response.status_code == 200
            # A flipped mark may be of this very chunk, which never came: that is found out when its bytes are hashed.
            assert not response.json()["duplicate"] or what == "the mark of a record"
        await finished(stack, content)
    assert await stack.usage("alice") == {"finished": len(damages) * content.size, "unfinished": 0, "reserved": 0}


async def test_whatever_is_damaged_in_the_digests_they_are_right_in_the_end(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "GATHERED_BYTES", 0)
    for seed, damage in enumerate(places(DIGEST_DAMAGES, "digests")):
        content = a_content(seed)
        upload = await sent(stack, content, 0, 1, 2)
        damage(stack.data / upload.place)
        await finished(stack, content)


@pytest.mark.places
@pytest.mark.parametrize("place", [0, CHUNK - 1, CHUNK, 3 * CHUNK + 7, COUNT * CHUNK - 101])
@pytest.mark.parametrize("gathered", [0, 1 << 20])
async def test_bytes_that_went_bad_before_they_were_hashed_never_become_a_file_that_nobody_claimed(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, place: int, gathered: int
) -> None:
    monkeypatch.setattr(digests, "GATHERED_BYTES", gathered)
    bad = place // CHUNK
    numbers = [*range(1, COUNT), 0] if bad else [*range(1, COUNT - 1), 0, COUNT - 1]
    if not bad:
        monkeypatch.setattr(digests, "states_are_portable", lambda: False)
    upload_id, put = await an_upload_without_an_md5(stack)
    for number in numbers[:-1]:
        await put(number, CONTENT)
    await stack.services.storage.drain()
    (directory,) = (stack.data / "temp").glob(f"*/*/{upload_id}")
    flipped("data", place)(directory)
    response = await put(numbers[-1], CONTENT)
    assert (response.status_code, response.json()["missing"]) == (409, [[bad, bad]])
    response = await put(bad, CONTENT)
    assert (response.status_code, response.json()["file"]["sha256"]) == (201, CONTENT.sha256)


async def an_upload_without_an_md5(stack: Stack) -> tuple[str, PutChunk]:
    """Of which nobody claims what is right; its id, and how chunks are sent."""
    body = {"name": "x", "size": CONTENT.size, "chunk_size": CHUNK}
    upload_id: str = (await stack.client.post("/uploads", json=body)).json()["upload"]["id"]

    async def put(number: int, content: Content) -> httpx2.Response:
        return await stack.client.put(f"/uploads/{upload_id}/chunks/{number}", content=content.chunk(number))

    return upload_id, put


async def met(stack: Stack, content: Content, first: str, gaps: list[list[int]], drift: Drift) -> None:
    """Somebody meets a damaged upload first, and finds what is missing."""
    url = f"/files/{content.md5}"
    match first:
        case "list":
            (listed,) = (await stack.client.get("/uploads")).json()["uploads"]
            assert listed["missing"] == gaps
        case "states":
            answer = await stack.client.post("/files/status", json={"md5s": [content.md5]})
            assert (answer.status_code, answer.text.count("uploading")) == (200, 1)
        case "opening":
            assert (await stack.open(content)).json()["upload"]["missing"] == gaps
        case "chunk":
            response = await stack.put(content, 2)
            assert (response.status_code, response.json()["duplicate"]) == (200, False)
        case "merge":
            response = await stack.client.post(f"{url}/merge")
            assert (response.status_code, response.json()["missing"]) == (409, gaps)
        case "sweep":
            await stack.services.redis.flushall()
            assert await stack.services.sweeping.sweep(0) == 1
        case "reconcile":
            found = await stack.services.reconciling.reconcile(repair=True)
            assert drift in found.drifts
            assert found.repaired == len(found.drifts)
            assert (await stack.services.reconciling.reconcile()).drifts == []


@pytest.mark.parametrize("what", ["the header", "the data"])
async def test_a_damaged_upload_is_mended_by_whoever_meets_it(stack: Stack, what: str) -> None:
    for seed, first in enumerate(("list", "states", "opening", "merge", "sweep", "reconcile")):
        content = a_content(seed)
        upload = await sent(stack, content, 1, 2, 4)
        if what == "the header":
            flipped("map", 50)(stack.data / upload.place)
            gaps, drift = [[0, 0], [3, 3]], Drift(Kind.MAP, upload.id, "its header", "another")
        else:
            cut("data", 2 * CHUNK + 7)(stack.data / upload.place)
            gaps, drift = [[0, 0], [2, 4]], Drift(Kind.DATA, upload.id, content.size, 2 * CHUNK + 7)
        await met(stack, content, first, gaps, drift)
        present = parsed_map((stack.data / upload.place / "map").read_bytes()).present
        assert [bool(present[number]) for number in range(COUNT)] == [
            not any(start <= number <= end for start, end in gaps) for number in range(COUNT)
        ], first
        await finished(stack, content)


@pytest.mark.places
@pytest.mark.parametrize(
    ("what", "call"),
    [
        *(("damaged", call) for call in ("pwrite", "ftruncate", "fdatasync", "fsync", "open")),
        *(("lost", call) for call in ("open", "mkdir", "pwrite", "ftruncate", "fdatasync", "fsync", "link")),
    ],
)
async def test_mending_that_the_disk_interrupts_is_begun_again(stack: Stack, what: str, call: str) -> None:
    """Whichever of its calls fails."""
    hits, at = 1, 0
    while hits:
        at += 1
        content = a_content(at)
        upload = await sent(stack, content, 1, 2, 4)
        directory, only, gaps = stack.data / upload.place, is_in(upload), [[0, COUNT - 1]]
        if what == "lost":
            gone()(directory)
            only = is_of_a_link if call == "link" else is_temporary
        else:
            flipped("map", 8)(directory)
            if at % 2:
                gaps = [[0, 0], [3, 3]]
            else:
                lost("data")(directory)
        with failing_call(call, at=at, only=only) as fault:
            status = (await stack.client.get(f"/files/{content.md5}")).status_code
        hits = fault.hits
        assert status == (503 if hits else 200)
        assert await missing(stack, content) == gaps
        await finished(stack, content)
    assert at > 1


def is_temporary(path: Path) -> bool:
    return "temp" in path.parts


def is_of_a_link(_: Path) -> bool:
    return True


def is_in(upload: Upload) -> Callable[[Path], bool]:
    return lambda path: upload.id in path.parts


# What can't be read


def map_of(upload: Upload) -> Callable[[Call], bool]:
    return lambda call: call.name == "pread" and call.path.parts[-2:] == (upload.id, "map")


async def test_a_map_that_cannot_be_read_harms_its_upload_alone(stack: Stack) -> None:
    damaged, other = await sent(stack, CONTENT, 1, 2), await sent(stack, BOB, 1)
    await flush_due(stack)
    await stack.services.redis.flushall()
    with failing(map_of(damaged), errno.EIO, times=None):
        assert (await stack.client.get(f"/files/{CONTENT.md5}")).status_code == 503
        assert (await stack.put(CONTENT, 3)).status_code == 503
        assert [each["id"] for each in (await stack.client.get("/uploads")).json()["uploads"]] == [other.id]
        answer = await stack.client.post("/files/status", json={"md5s": [CONTENT.md5, BOB.md5]})
        assert (answer.status_code, answer.text.count("uploading")) == (200, 2)
        assert (await stack.put(BOB, 2)).status_code == 200

        found = await stack.services.reconciling.reconcile(repair=True)
        assert found.drifts == [Drift(Kind.MAP, damaged.id, "readable", "unreadable")]
        assert found.repaired == 0
        cleaned = await stack.services.cleanup.clean(opened_before=stack.services.clock.now(), idle_seconds=1.0)
        assert cleaned.expired_uploads == 0
    await finished(stack)
    await finished(stack, BOB)


async def test_a_disk_that_fails_altogether_is_no_damage_of_an_upload(stack: Stack) -> None:
    upload = await sent(stack, a_content(0), 1)
    os.utime(stack.data / upload.place / "map", (1e9, 1e9))
    with failing(lambda call: call.name in ("pread", "pwrite"), errno.EIO, times=None):
        assert (await stack.client.get("/uploads")).status_code == 503
        with pytest.raises(StorageFailed):
            await stack.services.closers.expire(upload, 7 * DAY)
    assert len((await stack.client.get("/uploads")).json()["uploads"]) == 1


async def test_a_directory_that_cannot_be_listed_keeps_no_drift_from_being_told(stack: Stack) -> None:
    damaged, other = await sent(stack, a_content(0), 1), await sent(stack, BOB, 1)
    flipped("map", 0)(stack.data / damaged.place)
    with failing_call("listdir", times=None, only=lambda path: other.id in path.parts):
        found = await stack.services.reconciling.reconcile()
    assert [drift.subject for drift in found.drifts] == [damaged.id]


async def test_a_sweep_deals_with_all_others_and_begins_again(stack: Stack) -> None:
    uploads = [await sent(stack, a_content(seed), 1) for seed in range(3)]
    closed = await sent(stack, a_content(3), 1)
    await stack.services.redis.flushall()
    sweeper = Sweeper(stack.services.pending.flush_queues[0], stack.services.sweeping)
    with failing(map_of(uploads[1]), errno.EIO, times=None):
        assert await sweeper.run_once() == 60.0
        known = [(await stack.services.pending.read(upload.id)).chunks for upload in uploads]
        assert known == [1, 0, 1]
        assert await stack.services.pending.claim_sweep(0) is not None, "it has not ended"
    assert await sweeper.run_once() == 1.0
    assert (await stack.services.pending.read(uploads[1].id)).chunks == 1
    assert (await stack.services.pending.read(closed.id)).chunks == 1
    assert await stack.services.pending.claim_sweep(0) is None


async def test_what_is_idle_expires_though_its_map_cannot_be_read_and_so_do_all_others(stack: Stack) -> None:
    uploads = [await sent(stack, a_content(seed), 1) for seed in range(3)]
    flipped("map", 0)(stack.data / uploads[0].place)
    for upload in uploads:
        os.utime(stack.data / upload.place / "map", (1e9, 1e9))
    with failing(map_of(uploads[1]), errno.EIO, times=None):
        await stack.services.expiry.expire(uploads)
    assert [(stack.data / upload.place).exists() for upload in uploads] == [True, False, False]
    (listed,) = (await stack.client.get("/uploads")).json()["uploads"]
    assert (listed["id"], listed["missing"]) == (uploads[0].id, [[0, 0], [2, 4]]), "mended just now, so it is not idle"
    await checked_accounts(stack.services.database)


# Complete, and can't be read


def at_chunk(upload: Upload, number: int) -> Callable[[Call], bool]:
    """Reading any of a chunk of its data."""

    def reads(call: Call) -> bool:
        if call.name not in ("pread", "preadv") or call.path.parts[-2:] != (upload.id, "data"):
            return False
        _, what, offset = call.arguments
        length = what if isinstance(what, int) else sum(len(each) for each in what)
        return bool(offset < (number + 1) * CHUNK and number * CHUNK < offset + length)

    return reads


async def test_chunks_that_cannot_be_read_are_missing_again(stack: Stack) -> None:
    """But not for an error that says nothing of them."""
    upload = await sent(stack, CONTENT, 1, 2, 3, 4)
    with failing(at_chunk(upload, 2), errno.ENOMEM, times=None):
        response = await stack.put(CONTENT, 0)
        assert (response.status_code, response.json()["code"]) == (503, "unavailable")
    assert (await upload_of(stack, CONTENT)).generation == 0
    with failing(at_chunk(upload, 2), errno.EIO, times=None):
        response = await stack.client.post(f"/files/{CONTENT.md5}/merge")
        assert (response.status_code, response.json()["code"]) == (409, "chunks-missing")
        assert response.json()["missing"] == [[2, 2]]
    assert await missing(stack) == [[2, 2]]
    await finished(stack)


async def test_bad_chunks_are_looked_for_on_the_disk_and_not_in_memory(stack: Stack) -> None:
    upload = await sent(stack, CONTENT, 1, 2)
    dropped: list[str] = []

    def drops(call: Call) -> bool:
        if call.name == "posix_fadvise":
            dropped.append(call.path.name)
        return False

    with failing(drops, errno.EIO):
        assert await stack.services.storage.find_bad_chunks(upload) == []
    assert dropped == ["data"]


@pytest.mark.parametrize("whole", [True, False])
async def test_data_whose_sync_failed_is_looked_at_and_merged_if_it_is_whole(
    make_stack: MakeStack, whole: bool
) -> None:
    async with make_stack(durability="process") as stack:
        upload = await sent(stack, CONTENT, 1, 2, 3, 4)
        with failing_call("fdatasync", only=lambda path: path.name == "data") as fault:
            assert (await stack.put(CONTENT, 0)).status_code == 503
        assert fault.hits == 1
        if not whole:
            zeroed("data", CHUNK, CHUNK + 1)(stack.data / upload.place)
        response = await stack.client.post(f"/files/{CONTENT.md5}/merge")
        assert (response.status_code, response.json().get("missing")) == ((201, None) if whole else (409, [[1, 1]]))
        await finished(stack)


async def test_a_complete_upload_that_cannot_be_merged_expires(stack: Stack) -> None:
    upload = await settle_without_merge(stack, CONTENT)
    go_on(stack)
    closers = stack.services.closers

    def digest_of(call: Call) -> bool:
        return call.name == "pread" and call.path.parts[-2:] == (upload.id, "digest")

    os.utime(stack.data / upload.place / "map", (1e9, 1e9))
    assert not await closers.expire(upload, 7 * DAY), "it may become a file"
    with failing(digest_of, errno.EIO, times=None):
        assert (await stack.client.post(f"/files/{CONTENT.md5}/merge")).status_code == 503
        assert (await stack.client.get("/uploads")).status_code == 200
        assert await closers.expire(upload, 7 * DAY)
    assert stack.bytes_on_disk() == []
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": 0}


# The generation


@pytest.mark.parametrize("began", ["a withdrawal", "a restart of the machine"])
async def test_digests_follow_in_a_generation_that_began_later(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch, began: str
) -> None:
    """In a process that knows the upload of before, and in another one."""
    monkeypatch.setattr(digests, "GATHERED_BYTES", 0)
    async with make_stack(durability="process") as stack:
        upload = await sent(stack, CONTENT, 0, 1, 2)
        if began == "a withdrawal":
            flipped("data", 2 * CHUNK)(stack.data / upload.place)
            assert await stack.services.storage.find_bad_chunks(upload) == [2]
            await stack.services.closers.withdraw(upload, [2])
            await digests_follow(stack, 2, 3)
    if began != "a withdrawal":
        monkeypatch.setattr("uploader.storage.disk.boot_id", lambda: "0" * 36)
        async with make_stack(durability="process") as stack:
            await digests_follow(stack, 3)


async def digests_follow(stack: Stack, *numbers: int) -> None:
    for number in numbers:
        assert (await stack.put(CONTENT, number)).status_code == 200
    await stack.services.storage.drain()
    now = await upload_of(stack, CONTENT)
    assert now.generation == 1
    assert await stack.services.storage.digested_bytes(now) == 4 * CHUNK
    await finished(stack)


# A sync of the map that failed


async def test_what_was_hashed_before_its_record_was_refused_is_not_believed(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has hashed the chunk meanwhile, and then comes another body."""
    monkeypatch.setattr(digests, "GATHERED_BYTES", 0)
    async with make_stack() as stack, make_stack() as another:
        upload_id, put = await an_upload_without_an_md5(stack)
        assert (await put(0, CONTENT)).status_code == 200
        await stack.services.storage.drain()
        upload = await stack.services.database.read(lambda connection: queries.upload_by_id(connection, upload_id))
        assert upload is not None
        worker = another.services.storage
        assert isinstance(worker, LocalStore)
        with (
            failing_call("fdatasync", only=lambda path: path.name == "map") as fault,
            paused_call("fdatasync", only=lambda path: path.name == "map") as pause,
            monkeypatch.context() as nobody_follows,
        ):
            nobody_follows.setattr(digests, "states_are_portable", lambda: False)
            refused = await while_paused(pause, put(1, BOB))
            assert await asyncio.to_thread(worker._hash_turn, upload) == (False, 2 * CHUNK)
            pause.go_on.set()
            assert (await refused).status_code == 503
        assert fault.hits == 1
        for number in range(1, COUNT):
            response = await put(number, CONTENT)
        assert (response.status_code, response.json()["file"]["sha256"]) == (201, CONTENT.sha256)


async def test_bytes_whose_digests_were_forgotten_meanwhile_become_no_blob(stack: Stack) -> None:
    """Between its hashing and its commit a merge holds no lock."""
    upload = await settle_without_merge(stack, CONTENT)
    go_on(stack)
    digests = await stack.services.storage.digest(upload)
    await stack.services.storage.forget_digests(upload)
    async with stack.services.storage.closing(upload) as closer:
        with pytest.raises(Busy):
            await closer.place_blob(digests.sha256)
    await finished(stack)


# What is left of closed uploads


async def test_bytes_that_could_not_be_removed_go_with_the_next_collection(stack: Stack) -> None:
    upload = await sent(stack, CONTENT, 1)
    with failing_call("unlink", times=None):
        assert (await stack.client.delete(f"/files/{CONTENT.md5}")).status_code == 204
        await collector_of(stack).run_once()
    assert (stack.data / upload.place).exists()
    await collector_of(stack).run_once()
    assert not (stack.data / upload.place).exists()


async def test_directories_that_outlived_their_uploads_are_reported(stack: Stack) -> None:
    upload = await sent(stack, CONTENT, 1)
    with failing_call("unlink", times=None):
        await stack.client.delete(f"/files/{CONTENT.md5}")
    unknown = stack.data / Path(upload.place).with_name("0" * 32)
    unknown.mkdir()
    assert (await stack.services.reconciling.reconcile()).drifts == [], "too young"
    assert stack.clock is not None
    stack.clock.advance(2 * 3600)
    leftovers = [
        Drift(Kind.LEFTOVER, unknown.name, None, str(unknown.relative_to(stack.data))),
        Drift(Kind.LEFTOVER, upload.id, None, upload.place),
    ]
    found = await stack.services.reconciling.reconcile(repair=True)
    assert sorted(found.drifts, key=lambda drift: drift.subject) == sorted(leftovers, key=lambda drift: drift.subject)
    assert found.repaired == 1
    assert (await stack.services.reconciling.reconcile()).drifts == leftovers[:1]
    assert not (stack.data / upload.place).exists()


# What is lost as a whole


def gone(*files: str) -> Damage:
    """These files of an upload, or, without any, its directory and the month around it."""

    def damage(directory: Path) -> None:
        if files:
            for file in files:
                (directory / file).unlink()
        else:
            shutil.rmtree(directory.parent)

    return damage


LOSSES = {
    "the directory": gone(),
    "the map": gone("map"),
    "all files": gone("map", "data", "digest"),
    **{f"a {kind} for the map": become("map", instead) for kind, instead in NO_FILES.items()},
}


@pytest.mark.places
@pytest.mark.parametrize("first", ["state", "list", "opening", "chunk", "merge", "sweep", "reconcile"])
@pytest.mark.parametrize("what", LOSSES)
async def test_an_upload_whose_files_are_lost_has_everything_missing_and_goes_on(
    stack: Stack, what: str, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    upload = await sent(stack, CONTENT, *range(COUNT - 1))
    await flush_due(stack)
    assert (await stack.usage("alice"))["unfinished"] == (COUNT - 1) * CHUNK
    LOSSES[what](stack.data / upload.place)
    await met(stack, CONTENT, first, [[0, COUNT - 1]], Drift(Kind.TEMP, upload.id, upload.place, None))
    answer = (await stack.client.get(f"/files/{CONTENT.md5}")).json()["upload"]
    assert answer["received_bytes"] == (CHUNK if first == "chunk" else 0)
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": CONTENT.size}
    assert [record.message for record in caplog.records].count("an upload lost its files, and begins anew") == 1
    ready = (await stack.client.get("/readyz")).json()["checks"]["storage"]
    assert (ready["ok"], "an open upload lost its files" in ready["reason"]) == (True, True)
    assert (await stack.services.reconciling.reconcile()).drifts == []
    await finished(stack)
    assert await stack.usage("alice") == {"finished": CONTENT.size, "unfinished": 0, "reserved": 0}


async def test_processes_that_meet_a_lost_upload_at_once_lose_nothing_that_came_since(
    make_stack_on: MakeStack,
) -> None:
    async with make_stack_on() as one, make_stack_on() as two:
        for seed in range(3):
            content = a_content(seed)
            upload = await sent(one, content, 0, 1)
            gone()(one.data / upload.place)
            answers = await asyncio.gather(
                *(stack.put(content, number) for number, stack in enumerate((one, two, one, two)))
            )
            assert {answer.status_code for answer in answers} == {200}
            assert await missing(two, content) == [[COUNT - 1, COUNT - 1]]
            await finished(one, content)


async def test_nothing_is_taken_back_for_an_error_that_passes(stack: Stack) -> None:
    upload = await sent(stack, CONTENT, 0, 1)
    for error_number in (errno.EIO, errno.ESTALE, errno.EMFILE, errno.EACCES):
        with failing_call("open", error_number, only=is_in(upload), times=None):
            await stack.services.storage.drain()
            for response in (await stack.client.get(f"/files/{CONTENT.md5}"), await stack.put(CONTENT, 2)):
                assert (response.status_code, response.json()["code"]) == (503, "unavailable"), error_number
        assert await missing(stack) == [[2, COUNT - 1]]
    assert (await upload_of(stack, CONTENT)).generation == 0


async def test_nothing_is_lost_where_the_data_directory_is_away(stack: Stack) -> None:
    upload = await sent(stack, CONTENT, 0, 1)
    await flush_due(stack)
    hidden = [(stack.data / name, stack.data.with_name(name)) for name in ("temp", "installation")]
    for path, away in hidden:
        path.rename(away)
    for _ in range(2):
        response = await stack.client.get(f"/files/{CONTENT.md5}")
        assert (response.status_code, response.json()["code"]) == (503, "unavailable")
    assert (await upload_of(stack, CONTENT)).generation == upload.generation
    assert (await stack.usage("alice"))["unfinished"] == 2 * CHUNK
    for path, away in hidden:
        away.rename(path)
    assert await missing(stack) == [[2, COUNT - 1]]
    assert (await stack.client.get("/readyz")).json()["checks"]["storage"]["reason"] is None


async def test_what_the_trash_has_of_a_lost_upload_comes_back(stack: Stack) -> None:
    upload = await sent(stack, CONTENT, 0, 1)
    trash = stack.data / "trash" / "uploads"
    trash.mkdir(exist_ok=True)
    (stack.data / upload.place).rename(trash / f"{upload.id}.{'0' * 32}")
    assert await missing(stack) == [[2, COUNT - 1]]
    await finished(stack)


@pytest.mark.places
@pytest.mark.parametrize("what", LOSSES)
@pytest.mark.parametrize("length_known", [True, False])
async def test_a_lost_upload_that_is_appended_to_ends_at_zero(stack: Stack, what: str, length_known: bool) -> None:
    length = {"Upload-Length": str(CONTENT.size)} if length_known else {"Upload-Defer-Length": "1"}
    url = (await stack.client.post("/resumable", headers={**TUS, **length})).headers["location"]

    async def patch(offset: int, body: bytes, **more: str) -> httpx2.Response:
        return await stack.client.patch(url, headers={**TUS, "Upload-Offset": str(offset), **more}, content=body)

    assert (await patch(0, CONTENT.data[:HALF])).status_code == 204
    await stack.services.storage.drain()
    (directory,) = (stack.data / "temp").glob("*/*/*")
    LOSSES[what](directory)
    assert (await patch(HALF, CONTENT.data[HALF:])).status_code == 409
    told = await stack.client.head(url, headers=TUS)
    assert (told.status_code, told.headers["upload-offset"]) == (200, "0")
    more = {} if length_known else {"Upload-Length": str(CONTENT.size)}
    assert (await patch(0, CONTENT.data, **more)).status_code == 204
    (file,) = (await stack.client.get("/me/files")).json()["files"]
    assert file["sha256"] == CONTENT.sha256
    await checked_accounts(stack.services.database)


async def test_a_whole_waits_for_a_part_that_was_lost(stack: Stack) -> None:
    urls = []
    for body in (CONTENT.data[:HALF], CONTENT.data[HALF:]):
        opening = {"Upload-Concat": "partial", "Upload-Length": str(len(body))}
        urls.append((await stack.client.post("/resumable", headers={**TUS, **opening})).headers["location"])
        response = await stack.client.patch(urls[-1], headers={**TUS, "Upload-Offset": "0"}, content=body)
        assert response.status_code == 204
    (lost_one,) = (stack.data / "temp").glob(f"*/*/{urls[0].rpartition('/')[2]}")
    shutil.rmtree(lost_one)
    assert (await stack.client.head(urls[0], headers=TUS)).headers["upload-offset"] == "0"
    final = {**TUS, "Upload-Concat": f"final;{' '.join(urls)}"}
    assert (await stack.client.post("/resumable", headers=final)).status_code == 201
    again = await stack.client.patch(urls[0], headers={**TUS, "Upload-Offset": "0"}, content=CONTENT.data[:HALF])
    assert again.status_code == 204

    async def is_there() -> bool:
        files = (await stack.client.get("/me/files")).json()["files"]
        return [file["sha256"] for file in files] == [CONTENT.sha256]

    await eventually(is_there)
    await checked_accounts(stack.services.database)


@pytest.mark.parametrize("damage", [zeroed("map"), gone()], ids=["damaged", "lost"])
async def test_an_upload_that_went_bad_can_be_cancelled(stack: Stack, damage: Damage) -> None:
    upload = await sent(stack, CONTENT, 0, 1)
    damage(stack.data / upload.place)
    assert (await stack.client.delete(f"/files/{CONTENT.md5}")).status_code == 204
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": 0}
    assert stack.bytes_on_disk() == []


async def test_an_upload_that_is_cancelled_while_it_begins_anew_leaves_nothing(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = await sent(stack, CONTENT, 0, 1)
    gone()(stack.data / upload.place)
    storage = stack.services.storage
    begin_anew = storage.begin_anew

    async def cancelled_before(upload: Upload) -> None:
        assert (await stack.client.delete(f"/files/{CONTENT.md5}")).status_code == 204
        await begin_anew(upload)

    monkeypatch.setattr(storage, "begin_anew", cancelled_before)
    assert (await stack.client.get(f"/files/{CONTENT.md5}")).status_code == 410
    assert stack.bytes_on_disk() == []
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": 0}


async def test_files_that_were_made_anew_meanwhile_become_no_blob(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were lost between the digests of what was and the commit of the merge."""
    await sent(stack, CONTENT, *range(COUNT - 1))
    storage = stack.services.storage
    digest = storage.digest

    async def lost_then(upload: Upload) -> Digests:
        digests = await digest(upload)
        gone()(stack.data / upload.place)
        await storage.begin_anew(upload)
        return digests

    monkeypatch.setattr(storage, "digest", lost_then)
    response = await stack.put(CONTENT, COUNT - 1)
    assert (response.status_code, response.json()["missing"]) == (409, [[0, COUNT - 1]])
    assert not [path for path in (stack.data / "blobs").rglob("*") if path.is_file()]
    monkeypatch.setattr(storage, "digest", digest)
    await finished(stack)


@asynccontextmanager
async def in_a_bucket(
    make_stack: MakeStack, s3_address: BucketAddress, content: Content, *numbers: int
) -> AsyncIterator[tuple[Stack, Upload, S3Store]]:
    """An upload whose multipart upload is gone: somebody cleared up the bucket. In the end it is finished."""
    async with make_stack(**settings_of(s3_address), min_chunk_size_bytes=content.chunk_size) as stack:
        upload, storage = await sent(stack, content, *numbers), stack.services.storage
        assert isinstance(storage, S3Store)
        entry = await storage._ledger.entry(upload.id)
        assert entry is not None
        assert entry.multipart_id is not None
        multipart = multipart_of(entry.multipart_id)
        await asyncio.to_thread(storage._bucket.abort, multipart.key, multipart.id)
        yield stack, upload, storage
        await finished(stack, content)


@pytest.mark.parametrize("first", [[], [0]])
async def test_an_upload_whose_multipart_upload_is_gone_begins_anew(
    make_stack: MakeStack, s3_address: BucketAddress, first: list[int]
) -> None:
    """Whether anything was stored by then."""
    content = Content(10 * MIB + 5, chunk_size=5 * MIB)
    async with in_a_bucket(make_stack, s3_address, content, *first) as (stack, _, _):
        response = await stack.put(content, 2)
        assert (response.status_code, response.json()["received_bytes"]) == (200, 5)


async def test_of_many_who_mend_an_upload_in_a_bucket_none_takes_what_came_since(
    make_stack: MakeStack, s3_address: BucketAddress
) -> None:
    content = Content(15 * MIB + 5, chunk_size=5 * MIB)
    async with in_a_bucket(make_stack, s3_address, content, 0) as (stack, upload, storage):
        async with storage.closing(upload) as asleep:
            lost = await asleep.find_lost()
            assert lost == [0]
            answers = await asyncio.gather(*(stack.put(content, number) for number in (1, 2)))
            assert [(answer.status_code, answer.json()["duplicate"]) for answer in answers] == [(200, False)] * 2
            await asleep.withdraw(lost, generation=upload.generation + 2)
        assert await missing(stack, content) == [[0, 0], [3, 3]]
        assert (await upload_of(stack, content)).generation == upload.generation + 1
