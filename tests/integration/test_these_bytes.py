"""Every 2xx but a chunk's `duplicate: true` means these bytes, by every protocol and whatever races; and what is whole is
merged at once, whoever has gone away meanwhile."""

import asyncio
import base64
import hashlib
import io
import random
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.support.background import is_in_state
from tests.support.content import KIB, Content
from tests.support.merging import merge_held_up
from tests.support.problems import problem
from tests.support.sockets import Server, serving_stack
from tests.support.stack import Stack
from tests.support.streams import Sending
from tests.support.waiting import SERVER_SECONDS, eventually
from uploader.domain.links import owner
from uploader.errors import OffsetMismatch, Unavailable, UploadBusy
from uploader.http.resumable.request import CheckedBody, Checksum
from uploader.service import chunk
from uploader.service.results import Target
from uploader.storage import disk
from uploader.storage.local import chunks

CHUNK = 64 * KIB
RACERS = 6
TUS = {"Tus-Resumable": "1.0.0"}
BYTES = {**TUS, "Content-Type": "application/offset+octet-stream", "Upload-Offset": "0"}
PARTIAL = {"Content-Type": "application/partial-upload", "Upload-Offset": "0"}


@pytest.fixture
async def stack(make_stack: MakeStack) -> AsyncIterator[Stack]:
    async with make_stack(chunk_size_bytes=CHUNK) as made:
        yield made


# Races


@dataclass(frozen=True)
class Racer:
    """Who sends one of the bodies, and by which client."""

    client: httpx2.AsyncClient
    body: bytes
    # Of the upload that all race for.
    id: str = ""

    @property
    def md5(self) -> str:
        return hashlib.md5(self.body).hexdigest()


# What a racer was answered, and by which address its file is there, where the answer tells that.
Answer = tuple[httpx2.Response, str]
Way = Callable[[Racer], Awaitable[Answer]]


async def tus_patch(racer: Racer) -> Answer:
    path = f"/resumable/{racer.id}"
    return await racer.client.patch(path, content=racer.body, headers=BYTES), ""


async def tus_patch_of_untold_length(racer: Racer) -> Answer:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(racer.body), 40 * KIB):
            yield racer.body[start : start + 40 * KIB]

    return await racer.client.patch(f"/resumable/{racer.id}", content=pieces(), headers=BYTES), ""


async def tus_patch_with_checksum(racer: Racer) -> Answer:
    checksum = base64.b64encode(hashlib.sha256(racer.body).digest()).decode()
    headers = {**BYTES, "Upload-Checksum": f"sha256 {checksum}"}
    return await racer.client.patch(f"/resumable/{racer.id}", content=racer.body, headers=headers), ""


async def rufh_patch(racer: Racer) -> Answer:
    headers = {**PARTIAL, "Upload-Complete": "?1"}
    return await racer.client.patch(f"/resumable/{racer.id}", content=racer.body, headers=headers), ""


async def first_chunk(racer: Racer) -> Answer:
    return await racer.client.put(f"/uploads/{racer.id}/chunks/0", content=racer.body[:CHUNK]), ""


async def tus_creation(racer: Racer) -> Answer:
    headers = {**BYTES, "Upload-Length": str(len(racer.body)), "Upload-Metadata": "filename YQ=="}
    response = await racer.client.post("/resumable", content=racer.body, headers=headers)
    return response, f"/uploads/{response.headers.get('location', '').rpartition('/')[2]}"


async def rufh_creation(racer: Racer) -> Answer:
    response = await racer.client.post("/resumable", content=racer.body, headers={"Upload-Complete": "?1"})
    return response, response.headers.get("content-location", "")


def rufh_creation_of(md5: str) -> Way:
    """Which says that its bytes have this MD5."""

    async def create(racer: Racer) -> Answer:
        told = base64.b64encode(bytes.fromhex(md5)).decode()
        headers = {"Upload-Complete": "?1", "Repr-Digest": f"md5=:{told}:"}
        response = await racer.client.post("/resumable", content=racer.body, headers=headers)
        return response, response.headers.get("content-location", "")

    return create


def _file_in(response: httpx2.Response) -> str:
    return f"/me/files/{response.json()['file']['id']}" if response.is_success else ""


async def posted(racer: Racer) -> Answer:
    response = await racer.client.post("/me/files?name=a.bin", content=racer.body)
    return response, _file_in(response)


async def put_whole(racer: Racer) -> Answer:
    response = await racer.client.put(f"/files/{racer.md5}?name=a.bin", content=racer.body)
    return response, _file_in(response)


async def batched(racer: Racer) -> Answer:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        member = tarfile.TarInfo("a.bin")
        member.size = len(racer.body)
        tar.addfile(member, io.BytesIO(racer.body))
    response = await racer.client.post("/files/batch", content=archive.getvalue())
    (line,) = response.json()["results"]
    assert line["status"] in (200, 201)
    return response, f"/me/files/{line['file']['id']}"


FOR_ONE_UPLOAD: dict[str, list[Way]] = {
    "tus": [tus_patch],
    "tus, of untold length": [tus_patch_of_untold_length],
    "tus, checked": [tus_patch_with_checksum],
    "rufh": [rufh_patch],
    "all appends": [tus_patch, rufh_patch, tus_patch_with_checksum, tus_patch_of_untold_length],
    "appends and chunks": [tus_patch, first_chunk, rufh_patch],
}
FOR_ONE_NAME = [tus_creation, rufh_creation, posted, put_whole, batched]


@pytest.fixture(params=["disk", "s3"])
async def servers(request: pytest.FixtureRequest, make_stack: MakeStack) -> AsyncIterator[list[Server]]:
    """Two, as processes of one installation."""
    settings: dict[str, Any] = {"chunk_size_bytes": CHUNK, "jobs": True, "durability": "process"}
    if request.param == "s3":
        gateway: Any = request.getfixturevalue("s3_gateway")
        settings |= {
            "storage": f"s3://{gateway.bucket}/{request.node.name.encode().hex()}",
            "s3_endpoint": gateway.endpoint,
            "s3_access_key_id": gateway.access_key_id,
            "s3_secret_access_key": gateway.secret_access_key,
            "s3_path_style": True,
        }
    async with AsyncExitStack() as exits:
        yield [await exits.enter_async_context(serving_stack(make_stack, **settings)) for _ in range(2)]


@pytest.fixture
async def clients(servers: list[Server]) -> AsyncIterator[list[httpx2.AsyncClient]]:
    async with AsyncExitStack() as exits:
        yield [
            await exits.enter_async_context(
                httpx2.AsyncClient(
                    base_url=server.url,
                    headers={"Authorization": server.stack.client.headers["authorization"]},
                    timeout=SERVER_SECONDS,
                )
            )
            for server in servers
        ]


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    """A bucket takes longer."""
    return 3 if "s3" in request.node.name else 8


async def race(
    ways: Sequence[Way], clients: list[httpx2.AsyncClient], size: int, dice: random.Random, upload_id: str = ""
) -> list[tuple[Racer, httpx2.Response, str]]:
    racers = [Racer(clients[number % len(clients)], dice.randbytes(size), upload_id) for number in range(RACERS)]

    async def run(number: int, racer: Racer, lag_seconds: float) -> tuple[Racer, httpx2.Response, str]:
        await asyncio.sleep(lag_seconds)
        response, place = await ways[number % len(ways)](racer)
        assert response.status_code < 500 or response.status_code == 503, response.text
        return racer, response, place

    return await asyncio.gather(*(run(number, racer, dice.random() ** 3 / 50) for number, racer in enumerate(racers)))


def claims_its_bytes(response: httpx2.Response) -> bool:
    """Whether an answer says that the bytes it is for are stored. Of the answers to a chunk two say what the upload is, and
    nothing of these bytes: 202 that it is being merged, and 200 that it is a file already."""
    if "/chunks/" not in response.request.url.path or not response.is_success:
        return response.is_success
    said = response.json()
    return response.status_code == 201 or (said["state"] == "uploading" and not said["duplicate"])


async def stored_at(client: httpx2.AsyncClient, place: str) -> bytes:
    """The content of a file, or of what an upload becomes."""
    if place.startswith("/uploads/"):
        await is_in_state(lambda: client.get(place), "complete")
        place = f"/me/files/{(await client.get(place)).json()['file']['id']}"
    response = await client.get(f"{place}/content")
    assert response.status_code == 200, response.text
    return response.content


@pytest.mark.places
@pytest.mark.parametrize("ways", FOR_ONE_UPLOAD)
async def test_who_races_for_one_upload_is_told_of_its_own_bytes(
    clients: list[httpx2.AsyncClient], rounds: int, ways: str
) -> None:
    claims = 0
    for number in range(rounds):
        dice = random.Random(f"{ways}/{number}")
        size = CHUNK if ways == "appends and chunks" else dice.choice((700, CHUNK, 2 * CHUNK + 700))
        created = await clients[0].post("/resumable", headers={**TUS, "Upload-Length": str(size)})
        place = f"/uploads/{created.headers['location'].rpartition('/')[2]}"
        answers = await race(FOR_ONE_UPLOAD[ways], clients, size, dice, place.rpartition("/")[2])
        claiming = [racer.body for racer, response, _ in answers if claims_its_bytes(response)]
        told = [(response.request.method, response.status_code, response.text) for _, response, _ in answers]
        assert len(claiming) <= 1, told
        for body in claiming:
            assert await stored_at(clients[0], place) == body, told
        claims += len(claiming)
    assert claims, "nobody ever won"


async def test_who_races_for_one_name_is_told_of_its_own_bytes(clients: list[httpx2.AsyncClient], rounds: int) -> None:
    for number in range(rounds // 2):
        for racer, response, place in await race(FOR_ONE_NAME, clients, 700, random.Random(number)):
            assert response.is_success, response.text
            assert await stored_at(clients[0], place) == racer.body, response.request.url


async def test_who_races_for_one_md5_is_told_of_its_own_bytes(clients: list[httpx2.AsyncClient], rounds: int) -> None:
    """Some say the truth, and the others lie."""
    for number in range(rounds):
        dice = random.Random(number)
        content = Content(700, seed=number, name=f"{number}.bin")
        opening = {"name": content.name, "size": content.size}
        assert (await clients[0].post(f"/files/{content.md5}", json=opening)).status_code == 201

        async def put_chunk(racer: Racer, md5: str = content.md5) -> Answer:
            response = await racer.client.put(f"/files/{md5}/chunks/0", content=racer.body)
            return response, _file_in(response)

        async def put_true(racer: Racer, content: Content = content) -> Answer:
            url = f"/files/{content.md5}?name={content.name}"
            response = await racer.client.put(url, content=content.data)
            assert response.status_code in (200, 201)
            return await put_chunk(racer)

        ways: list[Way] = [put_chunk, put_true, rufh_creation_of(content.md5)]
        answers = await race(ways, clients, content.size, dice)
        for racer, response, place in answers:
            if claims_its_bytes(response):
                assert await stored_at(clients[0], place) == racer.body, response.text


# One after the other


def target_of(path: str) -> Target:
    return Target(owner("alice"), upload_id=path.rpartition("/")[2])


async def created(stack: Stack, size: int) -> str:
    """The path of a new upload."""
    response = await stack.client.post("/resumable", headers={**TUS, "Upload-Length": str(size)})
    return f"/resumable/{response.headers['location'].rpartition('/')[2]}"


async def patched(stack: Stack, path: str, offset: int, body: Any) -> httpx2.Response:
    return await stack.client.patch(path, content=body, headers={**BYTES, "Upload-Offset": str(offset)})


async def untold(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def content_of(stack: Stack, path: str) -> bytes:
    return await stored_at(stack.client, path.replace("resumable", "uploads"))


async def test_a_body_that_came_while_another_made_the_file_is_not_stored(stack: Stack) -> None:
    """With a checksum: it is received first."""
    path = await created(stack, 5)
    sending = Sending(stack, 5)
    checksum = Checksum("md5", hashlib.md5(b"67890").digest())
    body = CheckedBody(sending.source, checksum.check)
    late = asyncio.create_task(stack.services.appends.append_whole(target_of(path), 0, body))
    sending.send(b"678")
    await eventually(sending.is_taken)
    assert (await patched(stack, path, 0, b"12345")).status_code == 204
    sending.send(b"90")
    sending.end()
    with pytest.raises(OffsetMismatch) as refused:
        await late
    assert refused.value.fields["offset"] == 5
    assert await content_of(stack, path) == b"12345"


async def test_bytes_after_the_last_one_are_looked_for_though_no_length_is_told(stack: Stack) -> None:
    path = await created(stack, 5)
    assert (await patched(stack, path, 0, b"12345")).status_code == 204
    problem(await patched(stack, path, 5, untold(b"6")), 413, "file-too-large")
    assert (await patched(stack, path, 5, untold(b""))).status_code == 204
    assert (await patched(stack, path, 5, b"")).status_code == 204
    empty = await stack.client.post("/resumable", content=untold(b"1"), headers={**BYTES, "Upload-Length": "0"})
    problem(empty, 413, "file-too-large")
    headers = {"Upload-Complete": "?1", "Upload-Length": "0"}
    response = await stack.client.post("/resumable", content=untold(b"1"), headers=headers)
    assert (response.status_code, response.json()["code"]) == (400, "file-too-large")


async def test_bytes_after_the_last_one_are_looked_for_while_the_file_is_made(make_stack: MakeStack) -> None:
    async with make_stack(chunk_size_bytes=CHUNK, merge_wait_seconds=0) as stack:
        path = await created(stack, 5)
        assert (await patched(stack, path, 0, b"1234")).status_code == 204
        async with merge_held_up(stack, target_of(path).upload_id or ""):
            assert (await patched(stack, path, 4, b"5")).status_code == 204
            problem(await patched(stack, path, 5, untold(b"6")), 413, "file-too-large")
            assert (await patched(stack, path, 5, untold(b""))).status_code == 204
        assert await content_of(stack, path) == b"12345"


async def test_a_stream_ends_where_a_chunk_of_somebody_else_is(stack: Stack) -> None:
    for end in (CHUNK + 50, 2 * CHUNK, 3 * CHUNK):
        content = Content(3 * CHUNK, seed=end)
        path = await created(stack, content.size)
        chunks = f"{path.replace('resumable', 'uploads')}/chunks"
        assert (await stack.client.put(f"{chunks}/1", content=content.chunk(1))).status_code == 200
        response = await patched(stack, path, 0, bytes(content.chunk(0)) + bytes(3 * CHUNK)[: end - CHUNK])
        assert problem(response, 409, "offset-mismatch")["offset"] == 2 * CHUNK
        assert (await patched(stack, path, 2 * CHUNK, content.data[2 * CHUNK :])).status_code == 204
        assert await content_of(stack, path) == content.data


async def test_a_chunk_whose_recording_failed_is_a_duplicate_to_other_bytes(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on the map: so it counts from now on, and these bytes do not."""
    content = Content(CHUNK + 5)
    response = await stack.client.post("/uploads", json={"name": "a", "size": content.size, "chunk_size": CHUNK})
    chunks = f"{response.headers['location']}/chunks"
    with monkeypatch.context() as patch:

        async def record_chunk(*_: Any) -> None:
            raise Unavailable

        patch.setattr(stack.services.pending, "record_chunk", record_chunk)
        problem(await stack.client.put(f"{chunks}/0", content=content.chunk(0)), 503, "unavailable")
    said = (await stack.client.put(f"{chunks}/0", content=bytes(CHUNK))).json()
    assert (said["duplicate"], said["received_bytes"]) == (True, CHUNK)
    file = (await stack.client.put(f"{chunks}/1", content=content.chunk(1))).json()["file"]
    assert file["sha256"] == content.sha256


@pytest.mark.parametrize("way", ["chunk", "append"])
async def test_bytes_that_are_dropped_for_others_make_no_file(make_stack: MakeStack, way: str) -> None:
    """An upload whose bytes are not what it says, while they are hashed: the right ones come whole."""
    content = Content(700)
    async with make_stack(chunk_size_bytes=CHUNK) as stack:
        upload = (await stack.open(content)).json()["upload"]
        lie = bytes(content.size)
        async with merge_held_up(stack, upload["id"]):
            if way == "chunk":
                lying = asyncio.create_task(stack.client.put(f"/uploads/{upload['id']}/chunks/0", content=lie))
            else:
                lying = asyncio.create_task(patched(stack, f"/resumable/{upload['id']}", 0, lie))
            await is_in_state(lambda: stack.client.get(f"/uploads/{upload['id']}"), "merging")
            whole = await stack.client.put(f"/files/{content.md5}?name=other", content=content.data)
            assert whole.status_code == 201
        response = await lying
        if way == "chunk":
            assert (response.status_code, response.json()) == (200, whole.json())
        else:
            assert problem(response, 409, "offset-mismatch")["offset"] == content.size
        assert (await stack.client.get(f"/uploads/{upload['id']}")).json() == whole.json()


async def test_a_file_that_is_there_answers_no_bytes_that_nobody_looked_at(stack: Stack) -> None:
    """Whose client says that they have the same MD5 and name."""
    content = Content(700, name="a.bin")
    await stack.upload(content)
    create = rufh_creation_of(content.md5)
    headers = {"Content-Disposition": 'attachment; filename="a.bin"'}
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=stack.app),
        base_url="http://test",
        headers={"Authorization": stack.client.headers["authorization"], **headers},
    ) as client:
        lie, _ = await create(Racer(client, bytes(700)))
        assert (lie.status_code, lie.json()["code"]) == (422, "md5-mismatch")
        truth, place = await create(Racer(client, content.data))
        assert truth.status_code == 201
        assert await stored_at(client, place) == content.data
    assert await stack.usage("alice") == {"finished": content.size, "unfinished": 0, "reserved": 0}


# Who goes away at the last byte


async def is_file(stack: Stack, upload_id: str) -> bool:
    """Nobody but the jobs merges for this, and they do not run."""
    return bool((await stack.client.get(f"/uploads/{upload_id}")).json()["state"] == "complete")


async def test_what_a_newer_request_displaced_at_its_last_byte_is_merged_at_once(stack: Stack) -> None:
    content = Content(CHUNK + 700)
    path = await created(stack, content.size)
    upload: Any = await stack.services.uploads.find(target_of(path))
    sending = Sending(stack, content.size)
    last = asyncio.create_task(stack.services.appends.append(target_of(path), 0, sending.source))
    sending.send(content.data)  # but not that this was all
    await eventually(sending.is_taken)
    with (stack.data / upload.place / "map").open("r+b") as chunk_map:
        assert disk.try_lock(chunk_map.fileno(), chunks.CLAIM_OFFSET, 1)
        with pytest.raises(UploadBusy):
            await last
    await eventually(partial(is_file, stack, upload.id), seconds=60)
    assert await content_of(stack, path) == content.data


@pytest.mark.parametrize("way", ["chunk", "append"])
async def test_what_a_client_left_at_its_last_byte_is_merged_at_once(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Its request is cancelled when Redis has the last chunk."""
    content = Content(700)
    path = await created(stack, content.size)
    sending: list[asyncio.Task[Any]] = []

    def cancel(name: str) -> None:
        if name == "chunk.after_record":
            sending[0].cancel()

    monkeypatch.setattr(chunk, "crash_point", cancel)
    if way == "chunk":
        call = stack.client.put(f"{path.replace('resumable', 'uploads')}/chunks/0", content=content.data)
    else:
        call = patched(stack, path, 0, content.data)
    sending.append(asyncio.create_task(call))
    with pytest.raises(asyncio.CancelledError):
        await sending[0]
    await eventually(partial(is_file, stack, target_of(path).upload_id or ""), seconds=60)
    assert await content_of(stack, path) == content.data
