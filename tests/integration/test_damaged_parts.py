"""One damaged file of an open upload harms that upload alone: nothing is acknowledged that is not there, every job and every
list goes on with the others, and what is missing is sent again."""

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.integration.test_cleanup import upload_of
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
from uploader.jobs.maintenance import Collector
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


def a_content(seed: int) -> Content:
    return Content(COUNT * CHUNK - 100, seed=seed)


BOB = a_content(1000)
LATER = a_content(1001)

Damage = Callable[[Path], None]


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


async def finished(stack: Stack, content: Content) -> None:
    """Send what the server says is missing, as a client does; the file has the bytes that were sent."""
    for _ in range(3):
        answer = (await stack.client.get(f"/files/{content.md5}")).json()
        if answer["state"] == "complete":
            break
        missing = [number for first, last in answer["upload"]["missing"] for number in range(first, last + 1)]
        responses = [await stack.put(content, number) for number in missing]
        responses = responses or [await stack.client.post(f"/files/{content.md5}/merge")]
        assert {response.status_code for response in responses} <= {200, 201, 409}, [each.text for each in responses]
    answer = (await stack.client.get(f"/files/{content.md5}")).json()
    assert answer["state"] == "complete", answer
    content_ = await stack.client.get(f"/me/files/{answer['file']['id']}/content")
    assert content_.content == content.data


async def flush_all(stack: Stack) -> None:
    await stack.services.flushing.flush_due(stack.services.pending.flush_queues[0])


@pytest.mark.parametrize("what", DAMAGES)
async def test_whatever_is_damaged_the_upload_is_finished_with_the_right_bytes(stack: Stack, what: str) -> None:
    """Its first chunk comes last, so that nothing was hashed before the damage."""
    damages = places(DAMAGES[what], what)
    for seed, damage in enumerate(damages):
        content = a_content(seed)
        upload = await sent(stack, content, 1, 2, 4)
        damage(stack.data / upload.place)
        if seed % 2:
            response = await stack.put(content, 3)
            assert (response.status_code, response.json()["duplicate"]) == (200, False)
        await finished(stack, content)
    await checked_accounts(stack.services.database)
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


@pytest.mark.parametrize("place", [0, CHUNK - 1, CHUNK, 3 * CHUNK + 7, COUNT * CHUNK - 101])
@pytest.mark.parametrize("gathered", [0, 1 << 20])
async def test_bytes_that_went_bad_before_they_were_hashed_never_become_a_file_that_nobody_claimed(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, place: int, gathered: int
) -> None:
    monkeypatch.setattr(digests, "GATHERED_BYTES", gathered)
    content = a_content(0)
    body = {"name": "x", "size": content.size, "chunk_size": CHUNK}
    upload = (await stack.client.post("/uploads", json=body)).json()["upload"]
    bad = place // CHUNK
    numbers = [*range(1, COUNT), 0] if bad else [*range(1, COUNT - 1), 0, COUNT - 1]
    if not bad:
        monkeypatch.setattr(digests, "states_are_portable", lambda: False)
    for number in numbers[:-1]:
        await stack.client.put(f"/uploads/{upload['id']}/chunks/{number}", content=content.chunk(number))
    await stack.services.storage.drain()
    (directory,) = (stack.data / "temp").glob(f"*/*/{upload['id']}")
    flipped("data", place)(directory)
    last = numbers[-1]
    response = await stack.client.put(f"/uploads/{upload['id']}/chunks/{last}", content=content.chunk(last))
    assert (response.status_code, response.json()["missing"]) == (409, [[bad, bad]])
    response = await stack.client.put(f"/uploads/{upload['id']}/chunks/{bad}", content=content.chunk(bad))
    assert (response.status_code, response.json()["file"]["sha256"]) == (201, content.sha256)


@pytest.mark.parametrize("first", ["list", "states", "opening", "merge", "sweep", "reconcile"])
@pytest.mark.parametrize("what", ["the header", "the data"])
async def test_a_damaged_upload_is_mended_by_whoever_meets_it(stack: Stack, what: str, first: str) -> None:
    content = a_content(0)
    upload = await sent(stack, content, 1, 2, 4)
    damage = flipped("map", 50) if what == "the header" else cut("data", 2 * CHUNK + 7)
    damage(stack.data / upload.place)
    missing = [[0, 0], [3, 3]] if what == "the header" else [[0, 0], [2, 4]]
    if first == "list":
        (listed,) = (await stack.client.get("/uploads")).json()["uploads"]
        assert listed["missing"] == missing
    elif first == "states":
        answer = await stack.client.post("/files/status", json={"md5s": [content.md5]})
        assert (answer.status_code, answer.text.count("uploading")) == (200, 1)
    elif first == "opening":
        assert (await stack.open(content)).json()["upload"]["missing"] == missing
    elif first == "merge":
        assert (await stack.client.post(f"/files/{content.md5}/merge")).json()["missing"] == missing
    elif first == "sweep":
        await stack.services.redis.flushall()
        assert await stack.services.sweeping.sweep(0) == 1
    else:
        drifts = {
            "the header": Drift(Kind.MAP, upload.id, "its header", "another"),
            "the data": Drift(Kind.DATA, upload.id, content.size, 2 * CHUNK + 7),
        }
        found = await stack.services.reconciling.reconcile(repair=True)
        assert drifts[what] in found.drifts
        assert found.repaired == len(found.drifts)
        assert (await stack.services.reconciling.reconcile()).drifts == []
    chunk_map = parsed_map((stack.data / upload.place / "map").read_bytes())
    absent = {number for start, end in missing for number in range(start, end + 1)}
    assert [number for number in range(COUNT) if not chunk_map.present[number]] == sorted(absent)
    await finished(stack, content)


@pytest.mark.parametrize("call", ["pwrite", "ftruncate", "fdatasync", "fsync", "open"])
async def test_mending_that_the_disk_interrupts_is_begun_again(stack: Stack, call: str) -> None:
    """Whichever of its calls fails."""
    hits, seed = 1, 0
    while hits:
        content = a_content(seed)
        upload = await sent(stack, content, 1, 2, 4)
        directory = stack.data / upload.place
        flipped("map", 8)(directory)
        if seed % 2:
            lost("data")(directory)
        with failing_call(call, at=seed + 1, only=is_in(upload)) as fault:
            status = (await stack.client.get(f"/files/{content.md5}")).status_code
        hits = fault.hits
        assert status == (503 if hits else 200)
        answer = (await stack.client.get(f"/files/{content.md5}")).json()
        assert answer["upload"]["missing"] == ([[0, 4]] if seed % 2 else [[0, 0], [3, 3]])
        await finished(stack, content)
        seed += 1
    assert seed > 1


def is_in(upload: Upload) -> Callable[[Path], bool]:
    return lambda path: upload.id in path.parts


# What can't be read


def map_of(upload: Upload) -> Callable[[Call], bool]:
    return lambda call: call.name == "pread" and call.path.parts[-2:] == (upload.id, "map")


async def test_a_map_that_cannot_be_read_harms_its_upload_alone(stack: Stack) -> None:
    content = a_content(0)
    damaged, other = await sent(stack, content, 1, 2), await sent(stack, BOB, 1)
    await flush_all(stack)
    await stack.services.redis.flushall()
    with failing(map_of(damaged), errno.EIO, times=None):
        assert (await stack.client.get(f"/files/{content.md5}")).status_code == 503
        assert (await stack.put(content, 3)).status_code == 503
        assert [each["id"] for each in (await stack.client.get("/uploads")).json()["uploads"]] == [other.id]
        answer = await stack.client.post("/files/status", json={"md5s": [content.md5, BOB.md5]})
        assert (answer.status_code, answer.text.count("uploading")) == (200, 2)
        assert (await stack.put(BOB, 2)).status_code == 200

        found = await stack.services.reconciling.reconcile(repair=True)
        assert found.drifts == [Drift(Kind.MAP, damaged.id, "readable", "unreadable")]
        assert found.repaired == 0
        cleaned = await stack.services.cleanup.clean(opened_before=stack.services.clock.now(), idle_seconds=1.0)
        assert cleaned.expired_uploads == 0
    await finished(stack, content)
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
    sweeper = Sweeper(0, stack.services.sweeping)
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


async def test_an_upload_whose_header_is_damaged_can_be_cancelled(stack: Stack) -> None:
    content = a_content(0)
    upload = await sent(stack, content, 1)
    zeroed("map")(stack.data / upload.place)
    assert (await stack.client.delete(f"/files/{content.md5}")).status_code == 204
    assert stack.bytes_on_disk() == []


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
    content = a_content(0)
    upload = await sent(stack, content, 1, 2, 3, 4)
    with failing(at_chunk(upload, 2), errno.EIO, times=None):
        response = await stack.put(content, 0)
        assert (response.status_code, response.json()["code"]) == (409, "chunks-missing")
        assert response.json()["missing"] == [[2, 2]]
    assert (await stack.client.get(f"/files/{content.md5}")).json()["upload"]["missing"] == [[2, 2]]
    await finished(stack, content)


async def test_chunks_are_not_taken_back_for_an_error_that_says_nothing_of_them(stack: Stack) -> None:
    content = a_content(0)
    upload = await sent(stack, content, 1, 2, 3, 4)
    with failing(at_chunk(upload, 2), errno.ENOMEM, times=None):
        response = await stack.put(content, 0)
        assert (response.status_code, response.json()["code"]) == (503, "unavailable")
    response = await stack.client.post(f"/files/{content.md5}/merge")
    assert (response.status_code, response.json()["file"]["sha256"]) == (201, content.sha256)


async def test_bad_chunks_are_looked_for_on_the_disk_and_not_in_memory(stack: Stack) -> None:
    content = a_content(0)
    upload = await sent(stack, content, 1, 2)
    dropped: list[str] = []

    def drops(call: Call) -> bool:
        if call.name == "posix_fadvise":
            dropped.append(call.path.name)
        return False

    with failing(drops, errno.EIO):
        assert await stack.services.storage.find_bad_chunks(upload) == []
    assert dropped == ["data"]


async def test_data_that_was_lost_in_a_sync_is_looked_at_and_merged_if_it_is_whole(make_stack: MakeStack) -> None:
    content = a_content(0)
    async with make_stack(durability="process") as stack:
        upload = await sent(stack, content, 1, 2, 3, 4)
        with failing_call("fdatasync", only=lambda path: path.name == "data") as fault:
            assert (await stack.put(content, 0)).status_code == 503
        assert fault.hits == 1
        zeroed("data", CHUNK, CHUNK + 1)(stack.data / upload.place)
        response = await stack.client.post(f"/files/{content.md5}/merge")
        assert (response.status_code, response.json().get("missing")) == (409, [[1, 1]])
        await finished(stack, content)


async def test_a_merge_whose_sync_failed_is_made_again(make_stack: MakeStack) -> None:
    content = a_content(0)
    async with make_stack(durability="process") as stack:
        await sent(stack, content, 1, 2, 3, 4)
        with failing_call("fdatasync", only=lambda path: path.name == "data"):
            assert (await stack.put(content, 0)).status_code == 503
        response = await stack.client.post(f"/files/{content.md5}/merge")
        assert response.status_code == 201, response.text
        await finished(stack, content)


async def test_a_complete_upload_that_cannot_be_merged_expires(stack: Stack) -> None:
    content = a_content(0)
    upload = await sent(stack, content, 1, 2, 3, 4)
    closers = stack.services.closers

    def digest_of(call: Call) -> bool:
        return call.name == "pread" and call.path.parts[-2:] == (upload.id, "digest")

    stack.services.storage.stop()
    await stack.put(content, 0)
    go_on(stack)
    os.utime(stack.data / upload.place / "map", (1e9, 1e9))
    assert not await closers.expire(upload, 7 * DAY), "it may become a file"
    with failing(digest_of, errno.EIO, times=None):
        assert (await stack.client.post(f"/files/{content.md5}/merge")).status_code == 503
        assert (await stack.client.get("/uploads")).status_code == 200
        assert await closers.expire(upload, 7 * DAY)
    assert stack.bytes_on_disk() == []
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": 0}


# The generation


async def test_digests_follow_in_the_generation_that_a_withdrawal_began(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that knows the upload of before."""
    monkeypatch.setattr(digests, "GATHERED_BYTES", 0)
    content = a_content(0)
    upload = await sent(stack, content, 0, 2)
    flipped("data", 2 * CHUNK)(stack.data / upload.place)
    assert await stack.services.storage.find_bad_chunks(upload) == [2]
    await stack.services.closers.withdraw(upload, [2])
    for number in (1, 2, 3):
        assert (await stack.put(content, number)).status_code == 200
    await stack.services.storage.drain()
    now = await upload_of(stack, content)
    assert now.generation == 1
    assert await stack.services.storage.digested_bytes(now) == 4 * CHUNK
    await finished(stack, content)


async def test_digests_follow_after_a_restart_of_the_machine(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "GATHERED_BYTES", 0)
    content = a_content(0)
    async with make_stack(durability="process") as stack:
        await sent(stack, content, 0, 1)
    monkeypatch.setattr("uploader.storage.disk.boot_id", lambda: "0" * 36)
    async with make_stack(durability="process") as stack:
        assert (await stack.put(content, 2)).status_code == 200
        assert (await stack.put(content, 3)).status_code == 200
        await stack.services.storage.drain()
        now = await upload_of(stack, content)
        assert now.generation == 1
        assert await stack.services.storage.digested_bytes(now) == 4 * CHUNK
        await finished(stack, content)


# A sync of the map that failed


async def test_what_was_hashed_before_its_record_was_refused_is_not_believed(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has hashed the chunk meanwhile, and then comes another body: nobody claims what is right."""
    monkeypatch.setattr(digests, "GATHERED_BYTES", 0)
    content, others = a_content(0), a_content(1)
    async with make_stack() as stack, make_stack() as another:
        opened = (
            await stack.client.post("/uploads", json={"name": "x", "size": content.size, "chunk_size": CHUNK})
        ).json()
        url = f"/uploads/{opened['upload']['id']}/chunks"

        async def put(number: int, body: Content) -> httpx2.Response:
            return await stack.client.put(f"{url}/{number}", content=body.chunk(number))

        assert (await put(0, content)).status_code == 200
        await stack.services.storage.drain()
        upload_id = opened["upload"]["id"]
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
            refused = asyncio.create_task(put(1, others))
            assert await asyncio.to_thread(pause.reached.wait, 10)
            assert await asyncio.to_thread(worker._hash_turn, upload) == (False, 2 * CHUNK)
            pause.go_on.set()
            assert (await refused).status_code == 503
        assert fault.hits == 1
        for number in range(1, COUNT):
            response = await put(number, content)
        assert (response.status_code, response.json()["file"]["sha256"]) == (201, content.sha256)


async def test_bytes_whose_digests_were_forgotten_meanwhile_become_no_blob(stack: Stack) -> None:
    """Between its hashing and its commit a merge holds no lock."""
    content = a_content(0)
    upload = await sent(stack, content, 1, 2, 3, 4)
    stack.services.storage.stop()
    await stack.put(content, 0)
    go_on(stack)
    digests = await stack.services.storage.digest(upload)
    await stack.services.storage.forget_digests(upload)
    async with stack.services.storage.closing(upload) as closer:
        with pytest.raises(Busy):
            await closer.place_blob(digests.sha256)
    await finished(stack, content)


# What is left of closed uploads


async def test_bytes_that_could_not_be_removed_go_with_the_next_collection(stack: Stack) -> None:
    content = a_content(0)
    upload = await sent(stack, content, 1)
    services = stack.services
    collector = Collector(
        services.files,
        services.closers,
        services.cleanup,
        services.audit_log,
        services.clock,
        closed_retention_seconds=30 * DAY,
    )
    with failing_call("unlink", times=None):
        assert (await stack.client.delete(f"/files/{content.md5}")).status_code == 204
        await collector.run_once()
    assert (stack.data / upload.place).exists()
    await collector.run_once()
    assert not (stack.data / upload.place).exists()


async def test_directories_that_outlived_their_uploads_are_reported(stack: Stack) -> None:
    content = a_content(0)
    upload = await sent(stack, content, 1)
    with failing_call("unlink", times=None):
        await stack.client.delete(f"/files/{content.md5}")
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
WHO = ["state", "list", "opening", "chunk", "merge", "sweep", "reconcile"]


@pytest.mark.places
@pytest.mark.parametrize("first", WHO)
@pytest.mark.parametrize("what", LOSSES)
async def test_an_upload_whose_files_are_lost_has_everything_missing_and_goes_on(
    stack: Stack, what: str, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    content = a_content(0)
    upload = await sent(stack, content, *range(COUNT - 1))
    await flush_all(stack)
    assert (await stack.usage("alice"))["unfinished"] == (COUNT - 1) * CHUNK
    LOSSES[what](stack.data / upload.place)
    kept = 0
    if first == "list":
        assert (await stack.client.get("/uploads")).json()["uploads"][0]["missing"] == [[0, COUNT - 1]]
    elif first == "opening":
        assert (await stack.open(content)).json()["upload"]["missing"] == [[0, COUNT - 1]]
    elif first == "chunk":
        response = await stack.put(content, 2)
        assert (response.status_code, response.json()["duplicate"]) == (200, False)
        kept = CHUNK
    elif first == "merge":
        response = await stack.client.post(f"/files/{content.md5}/merge")
        assert (response.status_code, response.json()["missing"]) == (409, [[0, COUNT - 1]])
    elif first == "sweep":
        await stack.services.redis.flushall()
        assert await stack.services.sweeping.sweep(0) == 1
    elif first == "reconcile":
        found = await stack.services.reconciling.reconcile(repair=True)
        assert Drift(Kind.TEMP, upload.id, upload.place, None) in found.drifts
        assert found.repaired == len(found.drifts)
    answer = (await stack.client.get(f"/files/{content.md5}")).json()["upload"]
    assert answer["received_bytes"] == kept
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": content.size}
    assert [record.message for record in caplog.records].count("an upload lost its files, and begins anew") == 1
    ready = (await stack.client.get("/readyz")).json()["checks"]["storage"]
    assert (ready["ok"], "an open upload lost its files" in ready["reason"]) == (True, True)
    assert (await stack.services.reconciling.reconcile()).drifts == []
    await finished(stack, content)
    await checked_accounts(stack.services.database)
    assert await stack.usage("alice") == {"finished": content.size, "unfinished": 0, "reserved": 0}


async def test_processes_that_meet_a_lost_upload_at_once_lose_nothing_that_came_since(
    make_stack_on: MakeStack,
) -> None:
    async with make_stack_on() as one, make_stack_on() as two:
        for seed in range(5):
            content = a_content(seed)
            upload = await sent(one, content, 0, 1)
            gone()(one.data / upload.place)
            answers = await asyncio.gather(
                *(stack.put(content, number) for number, stack in enumerate((one, two, one, two)))
            )
            assert {answer.status_code for answer in answers} == {200}
            answer = (await two.client.get(f"/files/{content.md5}")).json()["upload"]
            assert answer["missing"] == [[COUNT - 1, COUNT - 1]]
            await finished(one, content)
        await checked_accounts(one.services.database)


@pytest.mark.parametrize("call", ["open", "mkdir", "pwrite", "ftruncate", "fdatasync", "fsync", "link"])
async def test_a_beginning_that_the_disk_interrupts_is_begun_again(stack: Stack, call: str) -> None:
    """Whichever of its calls fails."""
    hits, at = 1, 0
    while hits:
        at += 1
        content = a_content(at)
        upload = await sent(stack, content, 1, 2)
        gone()(stack.data / upload.place)
        with failing_call(call, at=at, only=lambda path: call == "link" or "temp" in path.parts) as fault:
            status = (await stack.client.get(f"/files/{content.md5}")).status_code
        hits = fault.hits
        assert status == (503 if hits else 200)
        await finished(stack, content)
    assert at > 1
    await checked_accounts(stack.services.database)


@pytest.mark.parametrize("error_number", [errno.EIO, errno.ESTALE, errno.EMFILE, errno.EACCES])
async def test_nothing_is_taken_back_for_an_error_that_passes(stack: Stack, error_number: int) -> None:
    content = a_content(0)
    upload = await sent(stack, content, 0, 1)
    with failing_call("open", error_number, only=is_in(upload), times=None):
        await stack.services.storage.drain()
        for response in (await stack.client.get(f"/files/{content.md5}"), await stack.put(content, 2)):
            assert (response.status_code, response.json()["code"]) == (503, "unavailable")
    answer = (await stack.client.get(f"/files/{content.md5}")).json()["upload"]
    assert answer["missing"] == [[2, COUNT - 1]]
    assert (await upload_of(stack, content)).generation == 0


async def test_nothing_is_lost_where_the_data_directory_is_away(stack: Stack) -> None:
    content = a_content(0)
    upload = await sent(stack, content, 0, 1)
    await flush_all(stack)
    hidden = [(stack.data / name, stack.data.with_name(name)) for name in ("temp", "installation")]
    for path, away in hidden:
        path.rename(away)
    for _ in range(2):
        response = await stack.client.get(f"/files/{content.md5}")
        assert (response.status_code, response.json()["code"]) == (503, "unavailable")
    assert (await upload_of(stack, content)).generation == upload.generation
    assert (await stack.usage("alice"))["unfinished"] == 2 * CHUNK
    for path, away in hidden:
        away.rename(path)
    assert (await stack.client.get(f"/files/{content.md5}")).json()["upload"]["missing"] == [[2, COUNT - 1]]
    assert (await stack.client.get("/readyz")).json()["checks"]["storage"]["reason"] is None


async def test_what_the_trash_has_of_a_lost_upload_comes_back(stack: Stack) -> None:
    content = a_content(0)
    upload = await sent(stack, content, 0, 1)
    trash = stack.data / "trash" / "uploads"
    trash.mkdir(exist_ok=True)
    (stack.data / upload.place).rename(trash / f"{upload.id}.{'0' * 32}")
    assert (await stack.client.get(f"/files/{content.md5}")).json()["upload"]["missing"] == [[2, COUNT - 1]]
    await finished(stack, content)
    await checked_accounts(stack.services.database)


@pytest.mark.parametrize("what", LOSSES)
@pytest.mark.parametrize("length_known", [True, False])
async def test_a_lost_upload_that_is_appended_to_ends_at_zero(stack: Stack, what: str, length_known: bool) -> None:
    content = a_content(0)
    tus = {"Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream"}
    length = {"Upload-Length": str(content.size)} if length_known else {"Upload-Defer-Length": "1"}
    url = (await stack.client.post("/resumable", headers={**tus, **length})).headers["location"]

    async def patch(offset: int, body: bytes, **more: str) -> httpx2.Response:
        return await stack.client.patch(url, headers={**tus, "Upload-Offset": str(offset), **more}, content=body)

    half = CHUNK + 100
    assert (await patch(0, content.data[:half])).status_code == 204
    await stack.services.storage.drain()
    (directory,) = (stack.data / "temp").glob("*/*/*")
    LOSSES[what](directory)
    assert (await patch(half, content.data[half:])).status_code == 409
    told = await stack.client.head(url, headers=tus)
    assert (told.status_code, told.headers["upload-offset"]) == (200, "0")
    more = {} if length_known else {"Upload-Length": str(content.size)}
    assert (await patch(0, content.data, **more)).status_code == 204
    (file,) = (await stack.client.get("/me/files")).json()["files"]
    assert file["sha256"] == content.sha256
    await checked_accounts(stack.services.database)


async def test_a_whole_waits_for_a_part_that_was_lost(stack: Stack) -> None:
    content = a_content(0)
    tus = {"Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream"}
    half, urls = CHUNK + 100, []
    for body in (content.data[:half], content.data[half:]):
        opening = {"Upload-Concat": "partial", "Upload-Length": str(len(body))}
        urls.append((await stack.client.post("/resumable", headers={**tus, **opening})).headers["location"])
        (_, *_), response = (
            urls,
            await stack.client.patch(urls[-1], headers={**tus, "Upload-Offset": "0"}, content=body),
        )
        assert response.status_code == 204
    (lost_one,) = (stack.data / "temp").glob(f"*/*/{urls[0].rpartition('/')[2]}")
    shutil.rmtree(lost_one)
    assert (await stack.client.head(urls[0], headers=tus)).headers["upload-offset"] == "0"
    final = {**tus, "Upload-Concat": f"final;{' '.join(urls)}"}
    assert (await stack.client.post("/resumable", headers=final)).status_code == 201
    again = await stack.client.patch(urls[0], headers={**tus, "Upload-Offset": "0"}, content=content.data[:half])
    assert again.status_code == 204

    async def is_there() -> bool:
        files = (await stack.client.get("/me/files")).json()["files"]
        return [file["sha256"] for file in files] == [content.sha256]

    await eventually(is_there)
    await checked_accounts(stack.services.database)


async def test_a_lost_upload_can_be_cancelled(stack: Stack) -> None:
    content = a_content(0)
    upload = await sent(stack, content, 0, 1)
    gone()(stack.data / upload.place)
    assert (await stack.client.delete(f"/files/{content.md5}")).status_code == 204
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": 0}
    assert stack.bytes_on_disk() == []


async def test_an_upload_that_is_cancelled_while_it_begins_anew_leaves_nothing(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = a_content(0)
    upload = await sent(stack, content, 0, 1)
    gone()(stack.data / upload.place)
    storage = stack.services.storage
    begin_anew = storage.begin_anew

    async def cancelled_before(upload: Upload) -> None:
        assert (await stack.client.delete(f"/files/{content.md5}")).status_code == 204
        await begin_anew(upload)

    monkeypatch.setattr(storage, "begin_anew", cancelled_before)
    assert (await stack.client.get(f"/files/{content.md5}")).status_code == 410
    assert stack.bytes_on_disk() == []
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": 0}


async def test_files_that_were_made_anew_meanwhile_become_no_blob(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were lost between the digests of what was and the commit of the merge."""
    content = a_content(0)
    await sent(stack, content, *range(COUNT - 1))
    storage = stack.services.storage
    digest = storage.digest

    async def lost_then(upload: Upload) -> Digests:
        digests = await digest(upload)
        gone()(stack.data / upload.place)
        await storage.begin_anew(upload)
        return digests

    monkeypatch.setattr(storage, "digest", lost_then)
    response = await stack.put(content, COUNT - 1)
    assert (response.status_code, response.json()["missing"]) == (409, [[0, COUNT - 1]])
    assert not [path for path in (stack.data / "blobs").rglob("*") if path.is_file()]
    monkeypatch.setattr(storage, "digest", digest)
    await finished(stack, content)


@pytest.mark.parametrize("first", [[], [0]])
async def test_an_upload_whose_multipart_upload_is_gone_begins_anew(
    make_stack: MakeStack, s3_address: BucketAddress, first: list[int]
) -> None:
    """Whether anything was stored by then."""
    content = Content(10 * MIB + 5, chunk_size=5 * MIB)
    settings = settings_of(s3_address) | {"min_chunk_size_bytes": content.chunk_size}
    async with make_stack(**settings) as stack:
        upload = await sent(stack, content, *first)
        await abort(stack, upload)
        response = await stack.put(content, 2)
        assert (response.status_code, response.json()["received_bytes"]) == (200, 5)
        await finished(stack, content)
        await checked_accounts(stack.services.database)


async def test_of_many_who_mend_an_upload_in_a_bucket_none_takes_what_came_since(
    make_stack: MakeStack, s3_address: BucketAddress
) -> None:
    content = Content(25 * MIB + 5, chunk_size=5 * MIB)
    settings = settings_of(s3_address) | {"min_chunk_size_bytes": content.chunk_size}
    async with make_stack(**settings) as stack:
        upload = await sent(stack, content, 0)
        storage = await abort(stack, upload)
        async with storage.closing(upload) as asleep:
            lost = await asleep.find_lost()
            assert lost == [0]
            answers = await asyncio.gather(*(stack.put(content, number) for number in (1, 2, 3)))
            assert [(answer.status_code, answer.json()["duplicate"]) for answer in answers] == [(200, False)] * 3
            await asleep.withdraw(lost, generation=upload.generation + 2)
        answer = (await stack.client.get(f"/files/{content.md5}")).json()["upload"]
        assert answer["missing"] == [[0, 0], [4, 5]]
        assert (await upload_of(stack, content)).generation == upload.generation + 1
        await finished(stack, content)
        await checked_accounts(stack.services.database)


async def abort(stack: Stack, upload: Upload) -> S3Store:
    """What somebody does who clears up a bucket."""
    storage = stack.services.storage
    assert isinstance(storage, S3Store)
    entry = await storage._ledger.entry(upload.id)
    assert entry is not None
    assert entry.multipart_id is not None
    multipart = multipart_of(entry.multipart_id)
    await asyncio.to_thread(storage._bucket.abort, multipart.key, multipart.id)
    return storage
