"""`GET /me/files/{id}/signature` and `PUT …/chunks/{n}?base=`: what is there already need not be sent."""

import asyncio
import base64
import errno
import hashlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.support.content import KIB, MIB, Content
from tests.support.deltas import copied, literal, read_signature
from tests.support.faults import Call, failing_call, intercepting
from tests.support.layout import blob_path
from tests.support.problems import problem
from tests.support.rot import NO_FILES, flip_bit
from tests.support.stack import Stack
from uploader.domain import delta
from uploader.service.delta import DeltaBases
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
FIRST = literal(b"new") + copied(0, CHUNK - 3)
LAST = copied(CHUNK - 3, 36 * KIB)


async def base_of(stack: Stack, content: Content = BASE) -> str:
    file_id: str = (await stack.upload(content)).json()["file"]["id"]
    return file_id


async def put(stack: Stack, number: int, file_id: str, body: bytes, **headers: str) -> httpx2.Response:
    url = f"/files/{CONTENT.md5}/chunks/{number}"
    return await stack.client.put(url, params={"base": file_id}, content=body, headers=headers)


# Signatures


async def test_a_signature_tells_the_pieces_of_a_file(stack: Stack) -> None:
    content = Content(3 * MIB)
    url = f"/me/files/{await base_of(stack, content)}/signature"
    response = await stack.client.get(url)
    assert response.status_code == 200
    head, pieces = read_signature(response.content)
    assert (head["size"], head["sha256"]) == (content.size, content.sha256)
    at = 0
    for length, hashed in pieces:
        assert hashed == hashlib.sha256(content.data[at : at + length]).digest()[:16]
        at += length
    assert at == content.size
    assert (await stack.client.get(url)).content == response.content
    told = await stack.client.head(url)
    assert (told.status_code, told.headers["content-length"]) == (200, str(len(response.content)))


async def test_a_file_without_bytes_has_a_signature_without_pieces(stack: Stack) -> None:
    response = await stack.open(Content(0))
    signature = await stack.client.get(f"/me/files/{response.json()['file']['id']}/signature")
    head, pieces = read_signature(signature.content)
    assert (head["size"], pieces) == (0, [])


def signature_path(stack: Stack, content: Content = BASE) -> Path:
    path = blob_path(stack.data, content.sha256)
    return path.with_name(f"{path.name}.signature")


async def test_a_kept_signature_that_is_damaged_is_made_anew(stack: Stack) -> None:
    url = f"/me/files/{await base_of(stack)}/signature"
    whole = (await stack.client.get(url)).content
    path = signature_path(stack)
    kept = path.read_bytes()
    for damaged in (b"", kept[:20], kept[:-1], kept[:-30] + b"x" + kept[-29:], kept.replace(b"e 1", b"e 2", 1)):
        path.write_bytes(damaged)
        assert (await stack.client.get(url)).content == whole
        assert path.read_bytes() == kept
    for name in ("pipe", "socket"):
        NO_FILES[name](path)
        assert (await stack.client.get(url)).content == whole
        assert path.read_bytes() == kept


async def test_a_signature_that_is_asked_for_by_many_is_computed_once(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"/me/files/{await base_of(stack)}/signature"
    computed = 0
    real = delta.pieces_of

    def counting(*arguments: object) -> object:
        nonlocal computed
        computed += 1
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(delta, "pieces_of", counting)
    answers = await asyncio.gather(*(stack.client.get(url) for _ in range(8)))
    assert {answer.status_code for answer in answers} == {200}
    assert computed == 1


async def test_a_signature_that_another_made_meanwhile_is_not_made_again(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"/me/files/{await base_of(stack)}/signature"
    first_looked, second_answered = threading.Event(), threading.Event()
    real_kept, real_pieces = Store._kept_signature, delta.pieces_of
    computed = 0

    def slow_at_first(self: Store, found: Found) -> bytes | None:
        kept = real_kept(self, found)
        if not first_looked.is_set():
            first_looked.set()
            assert second_answered.wait(30)
        return kept

    def counting(*arguments: Any) -> object:
        nonlocal computed
        computed += 1
        return real_pieces(*arguments)

    monkeypatch.setattr(Store, "_kept_signature", slow_at_first)
    monkeypatch.setattr(delta, "pieces_of", counting)
    first = asyncio.create_task(stack.client.get(url))
    assert await asyncio.to_thread(first_looked.wait, 30)
    second = await stack.client.get(url)
    second_answered.set()
    assert (await first).content == second.content
    assert computed == 1


async def test_a_signature_goes_with_its_blob(stack: Stack) -> None:
    file_id = await base_of(stack)
    await stack.client.get(f"/me/files/{file_id}/signature")
    assert signature_path(stack).exists()
    assert (await stack.client.delete(f"/me/files/{file_id}")).status_code == 204
    assert stack.bytes_on_disk() == []


async def test_what_is_left_of_a_signature_is_met_by_the_cleanup_and_no_other(stack: Stack) -> None:
    file_id = await base_of(stack)
    await stack.client.get(f"/me/files/{file_id}/signature")
    listed = [found async for batch in stack.services.storage.list_blobs() for found in batch]
    assert [(found.name, found.is_draft) for found in listed] == [(BASE.sha256, False)]
    blob_path(stack.data, BASE.sha256).unlink()
    listed = [found async for batch in stack.services.storage.list_blobs() for found in batch]
    assert [(found.name, found.is_draft) for found in listed] == [(signature_path(stack).name, True)]


async def test_of_what_rotted_there_is_no_signature(stack: Stack) -> None:
    file_id = await base_of(stack)
    flip_bit(blob_path(stack.data, BASE.sha256))
    url = f"/me/files/{file_id}/signature"
    for _ in range(2):
        problem(await stack.client.get(url), 409, "base-unusable")
    assert (await stack.client.get(f"/me/files/{file_id}")).json()["damaged"] is True
    assert not signature_path(stack).exists()


async def test_there_is_a_signature_of_one_s_own_files_only(stack: Stack) -> None:
    file_id = await base_of(stack)
    async with await stack.client_of("bob") as bob:
        for each in (file_id, "0" * 32, "x"):
            response = await bob.get(f"/me/files/{each}/signature")
            problem(response, 404, "file-not-found")


# Chunks


async def test_a_chunk_is_made_of_a_base_and_of_what_is_new(stack: Stack) -> None:
    file_id = await base_of(stack)
    await stack.open(CONTENT)
    response = await put(stack, 0, file_id, FIRST)
    assert response.status_code == 200
    assert response.json() == {
        "state": "uploading",
        "received_bytes": CHUNK,
        "received_chunks": 1,
        "chunk_count": 2,
        "duplicate": False,
    }
    response = await put(stack, 1, file_id, LAST)
    assert response.status_code == 201
    file = response.json()["file"]
    assert file["sha256"] == CONTENT.sha256
    assert (await stack.client.get(f"/me/files/{file['id']}/content")).content == CONTENT.data


async def test_pieces_of_the_body_may_be_of_any_size(stack: Stack) -> None:
    file_id = await base_of(stack)
    await stack.open(CONTENT)

    async def dripping() -> AsyncIterator[bytes]:
        for at in range(len(FIRST)):
            yield FIRST[at : at + 1]

    url = f"/files/{CONTENT.md5}/chunks/0"
    response = await stack.client.put(url, params={"base": file_id}, content=dripping())
    assert response.json()["received_chunks"] == 1


async def test_there_may_be_an_instruction_for_almost_every_byte(stack: Stack) -> None:
    file_id = await base_of(stack)
    await stack.open(CONTENT)
    body = literal(b"new") + b"".join(copied(at, 1) for at in range(CHUNK - 3))
    assert (await put(stack, 0, file_id, body)).status_code == 200
    assert (await put(stack, 1, file_id, LAST)).json()["file"]["sha256"] == CONTENT.sha256


async def test_a_chunk_goes_to_the_spool_where_there_is_no_memory_for_it(make_stack: MakeStack) -> None:
    async with make_stack(body_budget_bytes=64 * KIB) as stack:
        file_id = await base_of(stack)
        await stack.open(CONTENT)
        assert (await put(stack, 0, file_id, FIRST)).status_code == 200
        assert (await put(stack, 1, file_id, LAST)).json()["file"]["sha256"] == CONTENT.sha256


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"\x07", "invalid-delta"),
        (FIRST[:-1], "invalid-delta"),
        (literal(b"x" * (CHUNK - 3)) + copied(BASE.size - 2, 3), "invalid-delta"),
        (literal(b"") * 65_537, "invalid-delta"),
        (FIRST + literal(b"x"), "chunk-length-mismatch"),
        (LAST, "chunk-length-mismatch"),
        (b"", "chunk-length-mismatch"),
    ],
)
async def test_wrong_instructions_make_no_chunk(stack: Stack, body: bytes, code: str) -> None:
    file_id = await base_of(stack)
    await stack.open(CONTENT)
    response = await put(stack, 0, file_id, body)
    problem(response, 422, code)
    assert (await stack.client.get(f"/files/{CONTENT.md5}")).json()["upload"]["received_bytes"] == 0
    assert (await put(stack, 0, file_id, FIRST)).status_code == 200
    # What was acknowledged is a duplicate, whatever is wrong.
    assert (await put(stack, 0, file_id, body)).json()["duplicate"] is True


async def test_a_chunk_of_too_many_places_is_not_made(stack: Stack) -> None:
    """Nor is its base read for it, beyond the bound."""
    base = Content(8 * MIB, seed=2)
    file_id = await base_of(stack, base)
    assert (await stack.client.get(f"/me/files/{file_id}/signature")).status_code == 200
    await stack.open(CONTENT)
    blob, lengths = blob_path(stack.data, base.sha256), [0]

    def around(call: Call) -> object:
        if call.name == "pread" and call.path == blob:
            lengths.append(call.arguments[1])
        return call.make()

    body = b"".join(copied(at * base.size // CHUNK, 1) for at in range(CHUNK))
    with intercepting(around):
        answer = problem(await put(stack, 0, file_id, body), 422, "invalid-delta")
    assert "5242880 bytes" in answer["detail"]
    assert sum(lengths) <= 6 * MIB
    assert (await stack.put(CONTENT, 0)).status_code == 200, "the upload goes on"


async def test_the_digests_are_of_the_body_as_it_is_sent(stack: Stack) -> None:
    file_id = await base_of(stack)
    await stack.open(CONTENT)
    sent = base64.b64encode(hashlib.md5(FIRST).digest()).decode()
    made = base64.b64encode(hashlib.md5(CONTENT.chunk(0)).digest()).decode()
    problem(await put(stack, 0, file_id, FIRST, **{"Content-MD5": made}), 422, "digest-mismatch")
    problem(await put(stack, 0, file_id, FIRST, **{"Content-MD5": "x"}), 422, "digest-mismatch")
    assert (await put(stack, 0, file_id, FIRST, **{"Content-MD5": sent})).status_code == 200


async def test_a_base_is_a_file_of_one_s_own(stack: Stack) -> None:
    async with await stack.client_of("bob") as bob:
        bobs = (await stack.upload(BASE, bob)).json()["file"]["id"]
    await stack.open(CONTENT)
    for each in (bobs, "0" * 32, "x", ""):
        response = await put(stack, 0, each, FIRST)
        problem(response, 404, "file-not-found")
    url = f"/files/{CONTENT.md5}/chunks/0?base={bobs}&base={bobs}"
    problem(await stack.client.put(url, content=FIRST), 422, "invalid-request")


def missing(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


@pytest.mark.parametrize("spoil", [missing, cut, *NO_FILES.values()])
async def test_a_base_that_is_not_whole_is_not_used(stack: Stack, spoil: Callable[[Path], None]) -> None:
    file_id = await base_of(stack)
    await stack.open(CONTENT)
    spoil(blob_path(stack.data, BASE.sha256))
    response = await put(stack, 0, file_id, FIRST)
    problem(response, 409, "base-unusable")
    assert (await stack.put(CONTENT, 0)).status_code == 200


async def test_a_base_that_the_disk_can_t_read_is_not_used(stack: Stack) -> None:
    file_id = await base_of(stack)
    await stack.open(CONTENT)
    with failing_call("pread", errno.EIO):
        problem(await put(stack, 0, file_id, FIRST), 409, "base-unusable")


async def when_it_is_open(stack: Stack, file_id: str, spoil: Callable[[], Awaitable[object]]) -> httpx2.Response:
    """The answer to the first chunk, if something happens to its base once a part of the chunk was made."""

    async def pieces() -> AsyncIterator[bytes]:
        yield literal(b"new") + copied(0, 1000)
        await asyncio.sleep(0)
        await spoil()
        yield copied(1000, CHUNK - 1003)

    return await stack.client.put(f"/files/{CONTENT.md5}/chunks/0", params={"base": file_id}, content=pieces())


async def test_a_base_may_be_deleted_while_it_is_copied_from(stack: Stack) -> None:
    file_id = await base_of(stack)
    await stack.open(CONTENT)

    async def delete() -> None:
        assert (await stack.client.delete(f"/me/files/{file_id}")).status_code == 204

    assert (await when_it_is_open(stack, file_id, delete)).status_code == 200
    problem(await put(stack, 1, file_id, LAST), 404, "file-not-found")
    assert (await stack.put(CONTENT, 1)).json()["file"]["sha256"] == CONTENT.sha256


async def test_of_a_base_that_is_cut_meanwhile_nothing_counts(stack: Stack) -> None:
    file_id = await base_of(stack)
    await stack.open(CONTENT)

    async def spoil() -> None:
        cut(blob_path(stack.data, BASE.sha256))

    problem(await when_it_is_open(stack, file_id, spoil), 409, "base-unusable")
    assert (await stack.client.get(f"/files/{CONTENT.md5}")).json()["upload"]["received_bytes"] == 0


@pytest.mark.parametrize("signed", [True, False])
async def test_a_base_that_rotted_is_not_copied_from_and_looked_at(stack: Stack, signed: bool) -> None:
    """Whether its signature was made before that, or is asked for only now."""
    file_id = await base_of(stack)
    if signed:
        assert (await stack.client.get(f"/me/files/{file_id}/signature")).status_code == 200
    await stack.open(CONTENT)
    flip_bit(blob_path(stack.data, BASE.sha256), 8 * (CHUNK + 10))
    problem(await put(stack, 1, file_id, LAST), 409, "base-unusable")
    assert (await stack.client.get(f"/me/files/{file_id}")).json()["damaged"] is True
    for number in range(CONTENT.chunk_count):
        last = await stack.put(CONTENT, number)
    assert last.json()["file"]["sha256"] == CONTENT.sha256, "the upload goes on"


async def test_a_base_that_many_find_rotted_at_once_is_looked_at_once(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_id = await base_of(stack)
    assert (await stack.client.get(f"/me/files/{file_id}/signature")).status_code == 200
    await stack.open(CONTENT)
    flip_bit(blob_path(stack.data, BASE.sha256), 8 * 5)
    looked, asked = 0, asyncio.Event()
    storage = stack.services.storage
    real_hash, real_examine = storage.hash_blob, DeltaBases._examine

    async def hashing(*arguments: Any, **options: Any) -> object:
        nonlocal looked
        looked += 1
        await asked.wait()
        return await real_hash(*arguments, **options)

    waiting = 0

    async def examining(bases: DeltaBases, sha256: str) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 4:
            asked.set()
        await real_examine(bases, sha256)

    monkeypatch.setattr(storage, "hash_blob", hashing)
    monkeypatch.setattr(DeltaBases, "_examine", examining)
    for answer in await asyncio.gather(*(put(stack, 0, file_id, FIRST) for _ in range(4))):
        problem(answer, 409, "base-unusable")
    assert looked == 1
    assert (await stack.client.get(f"/me/files/{file_id}")).json()["damaged"] is True


async def test_a_base_that_the_trash_has_is_healed_and_copied_from(make_stack: MakeStack) -> None:
    async with make_stack(instant="off") as stack:
        bob = await stack.client_of("bob", total_space=10 * MIB)
        assert (await stack.upload(BASE, bob)).status_code == 201
        file_id = await base_of(stack)
        assert (await stack.client.get(f"/me/files/{file_id}/signature")).status_code == 200
        flip_bit(blob_path(stack.data, BASE.sha256), 8 * 5)
        await stack.open(CONTENT)
        problem(await put(stack, 0, file_id, FIRST), 409, "base-unusable")
        assert (await put(stack, 0, file_id, FIRST)).status_code == 200
        assert (await put(stack, 1, file_id, LAST)).json()["file"]["sha256"] == CONTENT.sha256


async def test_each_piece_of_a_base_is_compared_once_for_a_chunk(stack: Stack) -> None:
    """However often and in whatever order it is copied from."""
    file_id = await base_of(stack)
    assert (await stack.client.get(f"/me/files/{file_id}/signature")).status_code == 200
    await stack.open(CONTENT)
    blob = blob_path(stack.data, BASE.sha256)
    lengths: list[int] = []

    def around(call: Call) -> object:
        if call.name == "pread" and call.path == blob:
            lengths.append(call.arguments[1])
        return call.make()

    far = BASE.size - 1
    body = b"".join(copied(at, 1) + copied(far, 1) for at in range(50)) + literal(bytes(CHUNK - 100))
    with intercepting(around):
        assert (await put(stack, 0, file_id, body)).status_code == 200
    assert 0 < sum(lengths) <= BASE.size + 100


async def test_a_damaged_base_is_not_used(stack: Stack) -> None:
    file_id = await base_of(stack)
    await stack.open(CONTENT)
    flip_bit(blob_path(stack.data, BASE.sha256))
    await stack.services.scrubbing.scrub(lambda _: None, restart=True).__anext__()
    problem(await put(stack, 0, file_id, FIRST), 409, "base-unusable")
    problem(await stack.client.get(f"/me/files/{file_id}/signature"), 409, "base-unusable")


async def test_a_client_that_vanishes_leaves_neither_a_descriptor_nor_memory(stack: Stack) -> None:
    file_id = await base_of(stack)
    await stack.open(CONTENT)
    begun = asyncio.Event()

    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    open_before = len(list(Path("/proc/self/fd").iterdir()))
    sending = asyncio.create_task(when_it_is_open(stack, file_id, hang))
    await begun.wait()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    assert len(list(Path("/proc/self/fd").iterdir())) <= open_before
    assert (await put(stack, 0, file_id, FIRST)).status_code == 200
