"""`GET /me/files/{id}/signature` and `PUT …/chunks/{n}?base=`: what is there already need not be sent."""

import asyncio
import base64
import errno
import hashlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.support.content import KIB, MIB, Content
from tests.support.deltas import copied, literal, read_signature
from tests.support.faults import failing_call, open_files_under
from tests.support.layout import blob_path
from tests.support.problems import problem
from tests.support.rot import NO_FILES, flip_bit
from tests.support.stack import Stack
from tests.support.visiting import send
from tests.support.waiting import PATIENCE_SECONDS
from uploader.domain import delta
from uploader.domain.delta import Pieces
from uploader.http.bodies.delta import CHECKED_BYTES
from uploader.service.delta import DeltaBase, DeltaBases
from uploader.storage.base import Found
from uploader.storage.store import Store

BASE = Content(300 * KIB, seed=1)
CHUNK = 64 * KIB


class Changed(Content):
    """A content, with something changed."""

    @property
    def data(self) -> bytes:
        return b"new" + BASE.data[: self.size - 3]


CONTENT = Changed(100 * KIB, name="folder/file.bin")
URL = f"/files/{CONTENT.md5}"
FIRST = literal(b"new") + copied(0, CHUNK - 3)
LAST = copied(CHUNK - 3, 36 * KIB)


@dataclass
class Base:
    """A file, and an open upload that is to be made of it."""

    stack: Stack
    file_id: str

    async def put(self, number: int, body: bytes | AsyncIterator[bytes], **headers: str) -> httpx2.Response:
        url = f"{URL}/chunks/{number}"
        return await self.stack.client.put(url, params={"base": self.file_id}, content=body, headers=headers)

    async def signature(self) -> httpx2.Response:
        return await self.stack.client.get(f"/me/files/{self.file_id}/signature")

    async def signed(self) -> bytes:
        response = await self.signature()
        assert response.status_code == 200
        return response.content

    async def is_damaged(self) -> bool:
        return (await self.stack.client.get(f"/me/files/{self.file_id}")).json().get("damaged") is True

    async def received_bytes(self) -> int:
        received: int = (await self.stack.client.get(URL)).json()["upload"]["received_bytes"]
        return received

    @property
    def blob(self) -> Path:
        return blob_path(self.stack.data, BASE.sha256)

    @property
    def kept_signature(self) -> Path:
        return self.blob.with_name(f"{self.blob.name}.signature")


async def base_on(stack: Stack, content: Content = BASE) -> Base:
    file_id = (await send(stack.client, content, content.name)).json()["file"]["id"]
    await stack.open(CONTENT)
    return Base(stack, file_id)


@pytest.fixture
async def base(stack: Stack) -> Base:
    return await base_on(stack)


class Counted:
    """How often something was called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place: Any, name: str) -> None:
        self.calls = 0
        real = getattr(place, name)

        def counting(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            return real(*arguments, **options)

        monkeypatch.setattr(place, name, counting)


@pytest.mark.parametrize("size", [0, 3 * MIB])
async def test_a_signature_tells_the_pieces_of_a_file(stack: Stack, size: int) -> None:
    content = Content(size)
    base = await base_on(stack, content)
    signature = await base.signed()
    head, pieces = read_signature(signature)
    assert (head["size"], head["sha256"]) == (content.size, content.sha256)
    at = 0
    for length, hashed in pieces:
        assert hashed == hashlib.sha256(content.data[at : at + length]).digest()[:16]
        at += length
    assert at == content.size
    assert await base.signed() == signature
    told = await stack.client.head(f"/me/files/{base.file_id}/signature")
    assert (told.status_code, told.headers["content-length"]) == (200, str(len(signature)))


async def test_a_kept_signature_that_is_damaged_is_made_anew(base: Base) -> None:
    whole = await base.signed()
    path = base.kept_signature
    kept = path.read_bytes()
    for damaged in (b"", kept[:20], kept[:-1], kept[:-30] + b"x" + kept[-29:], kept.replace(b"e 1", b"e 2", 1)):
        path.write_bytes(damaged)
        assert (await base.signed(), path.read_bytes()) == (whole, kept)
    for name in ("pipe", "socket"):
        NO_FILES[name](path)
        assert (await base.signed(), path.read_bytes()) == (whole, kept)


async def test_a_signature_that_is_asked_for_by_many_is_computed_once(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = Counted(monkeypatch, delta, "pieces_of")
    assert len({await each for each in asyncio.as_completed([base.signed() for _ in range(8)])}) == 1
    assert computed.calls == 1


async def test_a_signature_that_another_made_meanwhile_is_not_made_again(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_looked, second_answered = threading.Event(), threading.Event()
    real_kept = Store._kept_signature
    computed = Counted(monkeypatch, delta, "pieces_of")

    def slow_at_first(self: Store, found: Found) -> bytes | None:
        kept = real_kept(self, found)
        if not first_looked.is_set():
            first_looked.set()
            assert second_answered.wait(PATIENCE_SECONDS)
        return kept

    monkeypatch.setattr(Store, "_kept_signature", slow_at_first)
    first = asyncio.create_task(base.signed())
    assert await asyncio.to_thread(first_looked.wait, PATIENCE_SECONDS)
    second = await base.signed()
    second_answered.set()
    assert await first == second
    assert computed.calls == 1


@pytest.mark.parametrize("is_left", [False, True])
async def test_what_is_beside_a_blob_goes_with_it_or_is_met_by_the_cleanup_and_no_other(
    base: Base, is_left: bool
) -> None:
    await base.signed()
    kept = [base.blob.with_name(f"{BASE.sha256}.{name}") for name in ("checksums", "signature")]
    assert all(path.exists() for path in kept)

    async def listed() -> list[tuple[str, bool]]:
        return [
            (each.name, each.is_draft) async for batch in base.stack.services.storage.list_blobs() for each in batch
        ]

    assert await listed() == [(BASE.sha256, False)]
    if is_left:
        base.blob.unlink()
        assert await listed() == [(path.name, True) for path in kept]
    else:
        assert (await base.stack.client.delete(f"/me/files/{base.file_id}")).status_code == 204
        assert list((base.stack.data / "blobs").rglob(f"{BASE.sha256}*")) == []


async def test_of_what_rotted_there_is_no_signature(base: Base) -> None:
    flip_bit(base.blob)
    for _ in range(2):
        problem(await base.signature(), 409, "base-unusable")
    assert await base.is_damaged()
    assert not base.kept_signature.exists()


async def test_a_signature_or_a_base_is_of_a_file_of_one_s_own(base: Base) -> None:
    async with await base.stack.client_of("bob") as bob:
        bobs = (await base.stack.upload(BASE, bob)).json()["file"]["id"]
    for each in (bobs, "0" * 32, "x"):
        problem(await base.stack.client.get(f"/me/files/{each}/signature"), 404, "file-not-found")
    for each in (bobs, "0" * 32, "x", ""):
        problem(await Base(base.stack, each).put(0, FIRST), 404, "file-not-found")
    twice = f"{URL}/chunks/0?base={bobs}&base={bobs}"
    problem(await base.stack.client.put(twice, content=FIRST), 422, "invalid-request")


async def dripping(data: bytes) -> AsyncIterator[bytes]:
    for at in range(len(data)):
        yield data[at : at + 1]


MANY = literal(b"new") + b"".join(copied(at, 1) for at in range(CHUNK - 3))


@pytest.mark.parametrize(
    ("body", "budget_bytes"),
    [
        (lambda: FIRST, 512 * MIB),
        (lambda: FIRST, 64 * KIB),
        (lambda: dripping(FIRST), 512 * MIB),
        (lambda: MANY, 512 * MIB),
    ],
    ids=["at once", "in the spool", "byte by byte", "an instruction for almost every byte"],
)
async def test_a_chunk_is_made_of_a_base_and_of_what_is_new(
    make_stack: MakeStack, body: Callable[[], Any], budget_bytes: int
) -> None:
    async with make_stack(body_budget_bytes=budget_bytes) as stack:
        base = await base_on(stack)
        response = await base.put(0, body())
        assert response.status_code == 200
        assert response.json() == {
            "state": "uploading",
            "received_bytes": CHUNK,
            "received_chunks": 1,
            "chunk_count": 2,
            "duplicate": False,
        }
        response = await base.put(1, LAST)
        assert response.status_code == 201
        file = response.json()["file"]
        assert file["sha256"] == CONTENT.sha256
        assert (await stack.client.get(f"/me/files/{file['id']}/content")).content == CONTENT.data


async def test_wrong_instructions_make_no_chunk(base: Base) -> None:
    wrong = ((b"\x07", "invalid-delta"), (FIRST[:-1], "invalid-delta"), (LAST, "chunk-length-mismatch"))
    for body, code in wrong:
        problem(await base.put(0, body), 422, code)
        assert await base.received_bytes() == 0
    assert (await base.put(0, FIRST)).status_code == 200
    # What was acknowledged is a duplicate, whatever is wrong.
    for body, _ in wrong:
        assert (await base.put(0, body)).json()["duplicate"] is True


# Each asks for nearly the whole chunk before its fault.
ALMOST = literal(b"new") + copied(0, CHUNK - 4)
REFUSED = {
    "too short": ALMOST,
    "nothing": b"",
    "too long": ALMOST + copied(0, 2),
    "too long by a literal": ALMOST + literal(b"xy"),
    "no instruction": ALMOST + b"\x02",
    "half an instruction": FIRST + b"\x00",
    "half a literal": ALMOST + literal(b"x")[:-1],
    "beyond the base": ALMOST + copied(BASE.size, 1),
    "far beyond the base": ALMOST + copied(2**64 - 1, 1),
    "too many instructions": FIRST + copied(0, 0) * delta.MAX_INSTRUCTIONS,
}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
async def test_refused_instructions_read_nothing_of_the_base(
    base: Base, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    read, compared = Counted(monkeypatch, DeltaBase, "read"), Counted(monkeypatch, Pieces, "fit")
    assert (await base.put(0, body)).json()["code"] in ("invalid-delta", "chunk-length-mismatch")
    assert (read.calls, compared.calls) == (0, 0)
    assert (await base.put(0, FIRST)).status_code == 200
    assert (read.calls, compared.calls) == (1, 1)


async def test_instructions_with_a_wrong_digest_or_too_many_places_read_nothing_of_the_base(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Counted(monkeypatch, DeltaBase, "read")
    other = base64.b64encode(hashlib.md5(LAST).digest()).decode()
    problem(await base.put(0, FIRST, **{"Content-MD5": other}), 422, "digest-mismatch")
    monkeypatch.setattr("uploader.service.delta._MOST_TIMES", 0)
    assert "so many places" in problem(await base.put(0, FIRST), 422, "invalid-delta")["detail"]
    assert read.calls == 0


async def test_fault_in_the_first_mebibyte_of_a_long_body_reads_nothing_of_the_base(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = ALMOST + literal(b"") * (CHECKED_BYTES // 5) + b"\x02"
    for budget_bytes in (512 * MIB, 64 * KIB):  # in memory, and in the spool
        async with make_stack(body_budget_bytes=budget_bytes) as stack:
            base = await base_on(stack)
            read = Counted(monkeypatch, DeltaBase, "read")
            problem(await base.put(0, body), 422, "invalid-delta")
            assert read.calls == 0


async def test_the_digests_are_of_the_body_as_it_is_sent(base: Base) -> None:
    sent = base64.b64encode(hashlib.md5(FIRST).digest()).decode()
    made = base64.b64encode(hashlib.md5(CONTENT.chunk(0)).digest()).decode()
    for wrong in (made, "x"):
        problem(await base.put(0, FIRST, **{"Content-MD5": wrong}), 422, "digest-mismatch")
    assert (await base.put(0, FIRST, **{"Content-MD5": sent})).status_code == 200


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


@pytest.mark.parametrize("spoil", [Path.unlink, cut, *NO_FILES.values()])
async def test_a_base_that_is_not_whole_is_not_used(base: Base, spoil: Callable[[Path], None]) -> None:
    spoil(base.blob)
    problem(await base.put(0, FIRST), 409, "base-unusable")
    assert (await base.stack.put(CONTENT, 0)).status_code == 200


async def test_a_base_that_the_disk_can_t_read_is_not_used(base: Base) -> None:
    with failing_call("preadv", errno.EIO):
        problem(await base.put(0, FIRST), 409, "base-unusable")


async def when_it_is_open(base: Base, spoil: Callable[[], Awaitable[object]]) -> httpx2.Response:
    """The answer to the first chunk, if something happens to its base once a part of the chunk was made."""

    async def pieces() -> AsyncIterator[bytes]:
        yield literal(b"new") + copied(0, 1000)
        await asyncio.sleep(0)
        await spoil()
        yield copied(1000, CHUNK - 1003)

    return await base.put(0, pieces())


async def test_a_base_may_be_deleted_while_it_is_copied_from(base: Base) -> None:
    async def delete() -> None:
        assert (await base.stack.client.delete(f"/me/files/{base.file_id}")).status_code == 204

    assert (await when_it_is_open(base, delete)).status_code == 200
    problem(await base.put(1, LAST), 404, "file-not-found")
    assert (await base.stack.put(CONTENT, 1)).json()["file"]["sha256"] == CONTENT.sha256


async def test_of_a_base_that_is_cut_meanwhile_nothing_counts(base: Base) -> None:
    async def spoil() -> None:
        cut(base.blob)

    problem(await when_it_is_open(base, spoil), 409, "base-unusable")
    assert await base.received_bytes() == 0


@pytest.mark.parametrize("signed", [True, False])
async def test_a_base_that_rotted_is_not_copied_from_and_looked_at(base: Base, signed: bool) -> None:
    """Whether its signature was made before that, or is asked for only now."""
    if signed:
        await base.signed()
    flip_bit(base.blob, 8 * (CHUNK + 10))
    for _ in range(2):
        problem(await base.put(1, LAST), 409, "base-unusable")
        assert await base.is_damaged()
    for number in range(CONTENT.chunk_count):
        last = await base.stack.put(CONTENT, number)
    assert last.json()["file"]["sha256"] == CONTENT.sha256, "the upload goes on"


async def test_a_base_that_many_find_rotted_at_once_is_looked_at_once(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    await base.signed()
    flip_bit(base.blob, 8 * 5)
    all_asked, storage = asyncio.Event(), base.stack.services.storage
    real_hash, real_examine = storage.hash_blob, DeltaBases._examine

    async def hashing(*arguments: Any, **options: Any) -> object:
        await all_asked.wait()
        return await real_hash(*arguments, **options)

    waiting = 0

    async def examining(bases: DeltaBases, sha256: str) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 4:
            all_asked.set()
        await real_examine(bases, sha256)

    monkeypatch.setattr(storage, "hash_blob", hashing)
    looked = Counted(monkeypatch, storage, "hash_blob")
    monkeypatch.setattr(DeltaBases, "_examine", examining)
    for answer in await asyncio.gather(*(base.put(0, FIRST) for _ in range(4))):
        problem(answer, 409, "base-unusable")
    assert looked.calls == 1
    assert await base.is_damaged()


async def test_a_base_that_the_trash_has_is_healed_and_copied_from(make_stack: MakeStack) -> None:
    async with make_stack(instant="off") as stack:
        bob = await stack.client_of("bob", total_space=10 * MIB)
        assert (await stack.upload(BASE, bob)).status_code == 201
        base = Base(stack, (await stack.upload(BASE)).json()["file"]["id"])
        await stack.open(CONTENT)
        await base.signed()
        flip_bit(base.blob, 8 * 5)
        problem(await base.put(0, FIRST), 409, "base-unusable")
        assert (await base.put(0, FIRST)).status_code == 200
        assert (await base.put(1, LAST)).json()["file"]["sha256"] == CONTENT.sha256


async def test_a_client_that_vanishes_leaves_neither_a_descriptor_nor_memory(base: Base) -> None:
    begun = asyncio.Event()

    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    open_before = open_files_under(base.stack.data / "blobs")
    sending = asyncio.create_task(when_it_is_open(base, hang))
    await begun.wait()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    assert open_files_under(base.stack.data / "blobs") == open_before
    assert (await base.put(0, FIRST)).status_code == 200
