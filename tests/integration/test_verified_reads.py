"""Blobs of a disk are compared with the checksums of their blocks before anybody has a byte, however they came about."""

import errno
import io
import os
import random
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.support.archives import Entry, archive
from tests.support.chosen import PLACES, seed
from tests.support.clock import ManualClock
from tests.support.consumer import Consumer, consuming, events_file, webhook
from tests.support.content import KIB, MIB, Content
from tests.support.deltas import copied, literal
from tests.support.faults import Call, failing
from tests.support.layout import blob_path
from tests.support.problems import problem
from tests.support.resumable import Rufh, Tus
from tests.support.rot import NO_FILES, flip_bit
from tests.support.sockets import Server, serving_stack
from tests.support.stack import Stack, running_stack
from tests.support.waiting import eventually
from uploader.storage import hashes

BLOCK = 64 * KIB
# Of two pages of checksums, a last block that is short, and chunks at whose ends no view ends.
CONTENT = Content(70 * MIB + 1234, chunk_size=5 * MIB, name="film.bin")
SMALLER = Content(9 * BLOCK + 77, seed=2, chunk_size=2 * BLOCK)
SMALL = Content(2 * BLOCK + 1, seed=3, name="small.bin")
# One file of each kind that is read in another way: by a list, and by its name.
BOTH = pytest.mark.parametrize("content", [SMALLER, SMALL], ids=["large", "small"])


def list_path(stack: Stack, content: Content) -> Path:
    blob = blob_path(stack.data, content.sha256)
    return blob.with_name(f"{blob.name}.checksums")


def list_of(content: Content) -> bytes:
    """As docs/decisions/0035 has it, said a second time."""
    header = struct.pack("<8sI4xQ32s", b"UPSUMS\0\1", BLOCK, content.size, bytes.fromhex(content.sha256))
    checksums = [zlib.crc32(content.data[at : at + BLOCK]) for at in range(0, content.size, BLOCK)]
    made = header + struct.pack("<I", zlib.crc32(header))
    for number, start in enumerate(range(0, len(checksums), 1023)):
        page = b"".join(struct.pack("<I", each) for each in checksums[start : start + 1023])
        sealed = zlib.crc32(page, zlib.crc32(struct.pack("<Q", number), zlib.crc32(header)))
        made += page + struct.pack("<I", sealed)
    return made


async def path_of(stack: Stack, client: httpx2.AsyncClient | None = None) -> str:
    """Where the content of the newest file is."""
    files = (await (client or stack.client).get("/me/files")).json()["files"]
    return f"/me/files/{files[0]['id']}/content"


async def is_damaged(stack: Stack, path: str) -> bool:
    return (await stack.client.get(path.removesuffix("/content"))).json().get("damaged") is True


# How a blob comes about


async def _in_order(stack: Stack, content: Content) -> None:
    await stack.upload(content)


async def _backwards(stack: Stack, content: Content) -> None:
    await stack.open(content)
    for number in reversed(range(content.chunk_count)):
        await stack.put(content, number)


async def _through_a_restart(stack: Stack, content: Content) -> None:
    """What was hashed is saved in the middle of a block, and another process goes on."""
    await stack.open(content)
    for number in range(content.chunk_count - 1):
        await stack.put(content, number)
        await stack.services.storage.drain()
    settings = {"redis_url": stack.services.settings.redis_url, "database_url": stack.services.settings.database_url}
    async with running_stack(stack.data, **settings) as other:  # type: ignore[arg-type]
        await other.put(content, content.chunk_count - 1)


async def _whole(stack: Stack, content: Content) -> None:
    await stack.client.post("/me/files", params={"name": content.name}, content=content.data)


async def _batch(stack: Stack, content: Content) -> None:
    entries = [Entry(f"{number}", b"x%d" % number) for number in range(5)]
    await stack.client.post("/files/batch", content=archive(*entries, Entry(content.name, content.data)))


async def _tus(stack: Stack, content: Content) -> None:
    tus = Tus(stack.client)
    path = await tus.created(None)
    for start in range(0, content.size, BLOCK + 1000):
        await tus.patch(path, start, content.data[start : start + BLOCK + 1000])
    await tus.send(
        "PATCH", path, Upload_Offset=str(content.size), Content_Type=tus.media_type, Upload_Length=str(content.size)
    )


async def _parts(stack: Stack, content: Content) -> None:
    tus, middle = Tus(stack.client), content.size // 2 + 1
    halves = (content.data[:middle], content.data[middle:])
    parts = [await tus.created(len(half), half, Upload_Concat="partial") for half in halves]
    await tus.send("POST", "/resumable", Upload_Concat="final;" + " ".join(parts))


async def _rufh(stack: Stack, content: Content) -> None:
    rufh = Rufh(stack.client)
    path = await rufh.created(content.size, content.data[:100_000])
    await rufh.patch(path, 100_000, content.data[100_000:], last=True)


async def _delta(stack: Stack, content: Content) -> None:
    """All but its first byte is copied from another file."""
    base = b"other" + content.data[1:]
    await stack.client.post("/me/files", params={"name": "base"}, content=base)
    base_id = (await path_of(stack)).split("/")[3]
    await stack.open(content)
    for number in range(content.chunk_count):
        start, length = number * content.chunk_size, len(content.chunk(number))
        body = literal(content.data[:1]) + copied(5, length - 1) if number == 0 else copied(start + 4, length)
        put = await stack.client.put(f"/files/{content.md5}/chunks/{number}", params={"base": base_id}, content=body)
        assert put.status_code < 300, put.text


async def _older(stack: Stack, content: Content) -> None:
    """Made before there were any: the scrub makes it."""
    await _whole(stack, content)
    list_path(stack, content).unlink()
    await _scrub(stack)


async def _scrub(stack: Stack) -> None:
    async for _ in stack.services.scrubbing.scrub(lambda _: None, restart=True):
        pass


async def _from_the_trash(stack: Stack, content: Content) -> None:
    await _whole(stack, content)
    path = await path_of(stack)
    assert (await stack.client.delete(path.removesuffix("/content"))).status_code == 204
    assert not list_path(stack, content).exists()
    (copy,) = await stack.services.trash.entries()
    assert await stack.services.storage.hash_blob(copy, None, with_md5=False)
    await stack.services.storage.restore_blob(copy)


WAYS: dict[str, Callable[[Stack, Content], Awaitable[None]]] = {
    "chunks in order": _in_order,
    "chunks backwards": _backwards,
    "through a restart": _through_a_restart,
    "whole": _whole,
    "batch": _batch,
    "tus": _tus,
    "tus, parts": _parts,
    "uploads of HTTP": _rufh,
    "delta": _delta,
    "older": _older,
    "from the trash": _from_the_trash,
}


async def test_however_a_blob_comes_about_it_has_the_checksums_of_its_bytes(make_stack: MakeStack) -> None:
    async with make_stack(chunk_size_bytes=BLOCK, merge_wait_seconds=60.0) as stack:
        for seed, (way, go) in enumerate(WAYS.items()):
            content = replace(SMALLER, seed=seed)
            await go(stack, content)
            assert blob_path(stack.data, content.sha256).read_bytes() == content.data, way
            assert list_path(stack, content).read_bytes() == list_of(content), way
            assert list((stack.data / "temp").rglob("checksums")) == [], way


async def test_large_chunks_are_hashed_from_memory_with_their_blocks(stack: Stack) -> None:
    await stack.upload(CONTENT)
    assert list_path(stack, CONTENT).read_bytes() == list_of(CONTENT)
    assert (await stack.client.get(await path_of(stack))).content == CONTENT.data


async def test_blobs_that_are_read_at_one_go_have_no_file_beside_them(stack: Stack) -> None:
    contents = [Content(hashes.VIEW_BYTES, seed=seed) for seed in range(5)]
    entries = [Entry(f"{number}", content.data) for number, content in enumerate(contents)]
    assert (await stack.client.post("/files/batch", content=archive(*entries))).status_code == 200
    await stack.upload(SMALL)
    await _scrub(stack)
    names = {path.name for path in (stack.data / "blobs").rglob("*") if path.is_file()}
    assert names == {content.sha256 for content in (*contents, SMALL)}


# Bytes that rot


async def fetch(server: Server, path: str, start: int, end: int) -> tuple[int, bytes, bytes]:
    """The status, the body as far as it came, and its head, of a GET of these bytes."""
    async with server.connection() as connection:
        await connection.request("GET", path, f"Range: bytes={start}-{end}", "Connection: close")
        head, _, body = (await connection.rest()).partition(b"\r\n\r\n")
    return int(head.split()[1]), body, head


@BOTH
async def test_no_flip_of_any_byte_is_ever_sent(make_stack: MakeStack, content: Content) -> None:
    """In a run that tries all places (UPLOADER_TEST_PLACES), 10,000 of them."""
    chance, outcomes = random.Random(f"{seed()} {content.size}"), set[str]()
    async with serving_stack(make_stack) as server:
        stack = server.stack
        await stack.upload(content)
        blob, path = blob_path(stack.data, content.sha256), await path_of(stack)
        for _ in range(min(30 * PLACES, 5000)):
            bit, start = chance.randrange(content.size * 8), chance.choice([0, chance.randrange(content.size)])
            end = min(start + chance.choice([0, chance.randrange(3 * BLOCK), content.size]), content.size - 1)
            flip_bit(blob, bit)
            status, body, _ = await fetch(server, path, start, end)
            flip_bit(blob, bit)
            expected = content.data[start : end + 1]
            if status == 206:
                assert body == expected[: len(body)], "no byte is another one"
                outcomes.add("whole" if body == expected else "broken off")
            else:
                assert (status, b"content-damaged" in body) == (500, True)
                outcomes.add("refused")
            if body != expected:
                await eventually(lambda: _is_looked_at(stack))
                await _scrub(stack)  # it is whole again
        assert outcomes == ({"whole", "broken off", "refused"} if content is SMALLER else {"refused"})


async def _is_looked_at(stack: Stack) -> bool:
    return not stack.services.scrubbing.healing._examining._under_way


@BOTH
async def test_damage_in_the_first_block_is_told_before_any_byte_and_marked(stack: Stack, content: Content) -> None:
    await stack.upload(content)
    path = await path_of(stack)
    flip_bit(blob_path(stack.data, content.sha256), (content.size - 1) * 8)
    for more in ({"Range": "bytes=-10"}, {}):
        answer = await stack.client.get(path, headers=more)
        assert not problem(answer, 500, "content-damaged")["retryable"]
        assert await is_damaged(stack, path)
    assert (await stack.client.head(path)).status_code == 500, "now that it is marked"


async def test_later_damage_ends_the_answer_before_it_and_is_told(make_stack: MakeStack, tmp_path: Path) -> None:
    """What rotted after it was hashed is found by the first who reads it."""
    async with consuming() as consumer:
        events = events_file(tmp_path, webhook("hook", consumer.url))
        async with serving_stack(make_stack, events=events, jobs=True) as server:
            stack = server.stack
            await stack.upload(SMALLER)
            path, at = await path_of(stack), 7 * BLOCK + 5
            flip_bit(blob_path(stack.data, SMALLER.sha256), 8 * at)
            status, body, head = await fetch(server, path, 0, SMALLER.size - 1)
            assert (status, f"content-length: {SMALLER.size}".encode() in head) == (206, True)
            assert body == SMALLER.data[: len(body)]
            assert 4 * BLOCK <= len(body) <= 7 * BLOCK
            await eventually(lambda: is_damaged(stack, path))
            await eventually(lambda: _is_told(consumer))


async def _is_told(consumer: Consumer) -> bool:
    return any(b"content.damaged" in request.body for request in consumer.requests)


@BOTH
async def test_damage_is_healed_from_the_trash_before_the_first_byte(make_stack: MakeStack, content: Content) -> None:
    async with make_stack(instant="off") as stack:
        await stack.upload(content)
        bob = await stack.client_of("bob", total_space=100 * MIB)
        await stack.upload(content, bob)
        flip_bit(blob_path(stack.data, content.sha256))
        for client in (stack.client, bob):
            assert (await client.get(await path_of(stack, client))).content == content.data
        assert not content.size > hashes.VIEW_BYTES or list_path(stack, content).read_bytes() == list_of(content)


@BOTH
@pytest.mark.parametrize("kind", ["zip", "tar"])
async def test_an_archive_tells_of_damage_or_breaks_off_before_it(
    make_stack: MakeStack, content: Content, kind: str
) -> None:
    async with serving_stack(make_stack) as server:
        stack = server.stack
        await stack.upload(content)
        bit, path = 8 * (content.size - 9), await path_of(stack)
        flip_bit(blob_path(stack.data, content.sha256), bit)
        async with server.connection() as connection:
            await connection.request("GET", f"/me/archive?format={kind}", "Connection: close")
            answer = await connection.rest()
        # What is read at one go is known before its member begins.
        assert answer.endswith(b"0\r\n\r\n") == (content is SMALL)
        assert content.data[-100:] not in answer
        await eventually(lambda: is_damaged(stack, path))
        again = (await stack.client.get("/me/archive", params={"format": kind})).content
        if kind == "zip":
            with zipfile.ZipFile(io.BytesIO(again)) as read:
                assert read.namelist() == ["uploader-problems.txt"]
        else:
            with tarfile.open(fileobj=io.BytesIO(again)) as tar:
                (member,) = tar.getmembers()
                assert (member.size, member.pax_headers["uploader.problem"]) == (0, "content-damaged")


async def test_a_whole_archive_has_the_right_bytes(stack: Stack) -> None:
    await stack.upload(SMALLER)
    await stack.upload(SMALL)
    answer = await stack.client.get("/me/archive")
    with zipfile.ZipFile(io.BytesIO(answer.content)) as read:
        assert [read.read(name) for name in (SMALLER.name, SMALL.name)] == [SMALLER.data, SMALL.data]


async def test_links_and_bases_are_compared_too(stack: Stack) -> None:
    await stack.upload(SMALLER)
    path = await path_of(stack)
    signature = await stack.client.get(path.replace("content", "signature"))
    assert signature.status_code == 200
    link = (await stack.client.post(path.replace("content", "link"))).json()["url"]
    bit = 8 * (SMALLER.size - 1)
    flip_bit(blob_path(stack.data, SMALLER.sha256), bit)
    target = Content(BLOCK, seed=5)
    await stack.open(target)
    base = {"base": path.split("/")[3]}
    body = copied(SMALLER.size - BLOCK, BLOCK)
    answer = await stack.client.put(f"/files/{target.md5}/chunks/0", params=base, content=body)
    problem(answer, 409, "base-unusable")
    async with stack.anonymous() as anybody:
        problem(await anybody.get(link), 500, "content-damaged")


async def test_a_proof_by_bytes_that_rotted_fails_and_has_them_looked_at(make_stack: MakeStack) -> None:
    async with make_stack(instant="proof") as stack:
        await stack.upload(SMALLER)
        bob = await stack.client_of("bob", total_space=100 * MIB)
        challenge = (await stack.open(SMALLER, bob, sha256=SMALLER.sha256)).json()["challenge"]
        flip_bit(blob_path(stack.data, SMALLER.sha256), 8 * challenge["ranges"][0][0])
        proof = {"id": challenge["id"], "proof": "0" * 64, "name": "x"}
        await bob.post(f"/files/{SMALLER.md5}/proof", json=proof)
        path = await path_of(stack)
        await eventually(lambda: is_damaged(stack, path))


async def test_what_can_only_not_be_read_is_unavailable(stack: Stack) -> None:
    await stack.upload(SMALLER)
    path, blob = await path_of(stack), blob_path(stack.data, SMALLER.sha256)
    with failing(lambda call: call.name == "preadv" and call.path == blob, errno.EIO, times=None):
        assert problem(await stack.client.get(path), 503, "unavailable")["retryable"]
    assert (await stack.client.get(path)).content == SMALLER.data


async def test_without_comparing_bytes_come_as_they_are(make_stack: MakeStack) -> None:
    async with make_stack(verify_reads="off") as stack:
        for content in (SMALLER, SMALL):
            await stack.upload(content)
            flip_bit(blob_path(stack.data, content.sha256))
            answer = await stack.client.get(await path_of(stack))
            assert (answer.status_code, answer.content == content.data) == (200, False)


# Lists that are not what they should be


SPOILT: dict[str, Callable[[Path], object]] = {
    "gone": Path.unlink,
    "empty": lambda path: os.truncate(path, 0),
    "cut": lambda path: os.truncate(path, path.stat().st_size - 3),
    "of another head": flip_bit,
    "of another page": lambda path: flip_bit(path, 8 * 70),
    "of another version": lambda path: path.write_bytes(path.read_bytes().replace(b"UPSUMS\0\1", b"UPSUMS\0\2")),
    "of another blob": lambda path: path.write_bytes(list_of(Content(SMALLER.size, seed=9))),
    "a directory": NO_FILES["directory"],
}


async def test_a_list_that_is_none_refuses_nobody_and_the_scrub_makes_it_anew(stack: Stack) -> None:
    await stack.upload(SMALLER)
    listed, path = list_path(stack, SMALLER), await path_of(stack)
    for what, spoil in SPOILT.items():
        spoil(listed)
        assert (await stack.client.get(path)).content == SMALLER.data, what
        await _scrub(stack)
        assert what == "a directory" or listed.read_bytes() == list_of(SMALLER), what
        assert not await is_damaged(stack, path), what


async def test_a_list_that_is_wrong_and_whole_condemns_no_good_blob(stack: Stack) -> None:
    """As memory that rotted while it was made could leave it."""
    await stack.upload(SMALLER)
    path, other = await path_of(stack), [1] * 10
    wrong = hashes.list_of(SMALLER.sha256, SMALLER.size, struct.pack("<10I", *other))
    list_path(stack, SMALLER).write_bytes(wrong)
    assert (await stack.client.get(path)).content == SMALLER.data
    assert list_path(stack, SMALLER).read_bytes() == list_of(SMALLER)
    assert not await is_damaged(stack, path)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
async def test_no_upload_fails_for_its_list(stack: Stack, number: int) -> None:
    def is_of_the_list(call: Call) -> bool:
        return call.name == "pwrite" and call.path.name == "checksums"

    with failing(is_of_the_list, number, times=None) as fault:
        assert (await stack.upload(SMALLER)).status_code == 201
    assert fault.hits
    path = await path_of(stack)
    assert (await stack.client.get(path)).content == SMALLER.data
    await _scrub(stack)
    assert list_path(stack, SMALLER).read_bytes() == list_of(SMALLER)


# What the scrub reads first


async def test_a_content_whose_upload_was_open_for_long_is_read_back_at_once(
    make_stack: MakeStack, clock: ManualClock
) -> None:
    read: list[int] = []
    async with make_stack(clock=clock) as stack:
        await stack.open(SMALLER)
        await stack.put(SMALLER, 0)
        clock.advance(3 * 86_400)
        await stack.upload(SMALL)
        await stack.upload(SMALLER)
        clock.advance(1)
        await stack.services.scrubbing.scrub_due(read.append)
        age = await stack.services.scrubbing.age()
    assert (sum(read), age.within_goal) == (SMALLER.size, True)
