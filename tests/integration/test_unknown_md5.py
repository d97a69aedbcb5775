"""What came by `/resumable` has no MD5 until its bytes are read back, or somebody tells it, or sends the same content in
another way."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from itertools import product
from typing import Any

import httpx2
import pytest
from sqlalchemy import update

from tests.conftest import MakeStack
from tests.support.archives import Entry, archive
from tests.support.content import KIB, Content
from tests.support.invariants import checked_accounts
from tests.support.layout import blob_path
from tests.support.problems import problem
from tests.support.resumable import Resumable, Rufh, Tus, files_of, id_of, native, path_of
from tests.support.rot import flip_bit
from tests.support.rows import NOW, Transactions, digests, file_row, upload_row
from tests.support.stack import Stack
from tests.support.twins import twins
from tests.support.waiting import PATIENCE_SECONDS, eventually
from uploader.database import models, queries, transactions
from uploader.database.engine import Connection, Database
from uploader.domain.links import owner
from uploader.domain.upload import File, Upload
from uploader.service.ids import new_id
from uploader.service.reconcile import Drift, Kind
from uploader.storage.base import Digests

CONTENT = Content(5 * 64 * KIB + 100)
OTHER = Content(CONTENT.size, seed=1, name="another.bin")


@pytest.fixture
async def stack(make_stack: MakeStack) -> AsyncIterator[Stack]:
    async with make_stack(chunk_size_bytes=64 * KIB, durability="process") as made:
        yield made


@pytest.fixture
async def on_each(make_stack_on: MakeStack) -> AsyncIterator[Stack]:
    """Once on each kind of database."""
    async with make_stack_on(chunk_size_bytes=64 * KIB, durability="process") as made:
        yield made


async def appended(
    stack: Stack, content: Content = CONTENT, client: httpx2.AsyncClient | None = None, speak: type[Resumable] = Tus
) -> str:
    """Send a content in one request; returns the id of its upload."""
    response = await speak(client or stack.client).create(content.size, content.data, last=True)
    assert response.status_code == 201, response.text
    return id_of(path_of(response))


async def opened(tus: Resumable, first_bytes: int = 0, content: Content = CONTENT) -> str:
    """The path of an upload of which so much has come."""
    return await tus.created(content.size, content.data[:first_bytes])


async def rest(tus: Resumable, path: str, start: int, content: Content = CONTENT) -> httpx2.Response:
    return await tus.patch(path, start, content.data[start:], last=True)


async def file_of(stack: Stack, client: httpx2.AsyncClient | None = None) -> dict[str, Any]:
    (file,) = await files_of(client or stack.client)
    return file


async def md5s_of(client: httpx2.AsyncClient) -> dict[str, str | None]:
    """The MD5s of files, by their SHA-256."""
    return {file["sha256"]: file["md5"] for file in await files_of(client)}


async def scrub(stack: Stack) -> list[str]:
    return [found.sha256 async for found in stack.services.scrubbing.scrub(lambda _: None, restart=True)]


async def drifts(stack: Stack) -> list[Drift]:
    return (await stack.services.recounting.recount()).drifts


async def test_its_md5_is_null_until_its_bytes_are_read_back(on_each: Stack) -> None:
    stack, bob = on_each, await on_each.client_of("bob")
    for client, speak in ((stack.client, Tus), (bob, Rufh)):
        await appended(stack, client=client, speak=speak)
        file = await file_of(stack, client)
        assert (file["md5"], file["sha256"]) == (None, CONTENT.sha256)
    assert (await stack.open(CONTENT)).json()["state"] == "uploading", "nobody knows this MD5"
    assert (await stack.client.delete(f"/files/{CONTENT.md5}")).status_code == 204
    asked = await stack.client.post("/files/status", json={"md5s": [CONTENT.md5]})
    assert asked.json() == {CONTENT.md5: {"state": "absent"}}
    assert await drifts(stack) == []

    assert await scrub(stack) == []
    for client in (stack.client, bob):
        file = await file_of(stack, client)
        assert file["md5"] == CONTENT.md5
        assert (await client.get(f"/files/{CONTENT.md5}")).json()["file"] == file
    copy = (await stack.open(CONTENT, name="copy.bin")).json()
    assert (copy["state"], copy["file"]["instant"], copy["file"]["md5"]) == ("complete", True, CONTENT.md5)
    assert await drifts(stack) == []
    assert await checked_accounts(stack.services.database)


async def by_chunks(stack: Stack, client: httpx2.AsyncClient, content: Content = CONTENT) -> httpx2.Response:
    return await stack.upload(content, client)


async def by_id(stack: Stack, client: httpx2.AsyncClient, content: Content = CONTENT) -> httpx2.Response:
    """Without telling an MD5: it is computed all the same."""
    body = {"name": content.name, "size": content.size, "chunk_size": content.chunk_size}
    path = f"/uploads/{(await client.post('/uploads', json=body)).json()['upload']['id']}"
    for number in range(content.chunk_count):
        response = await client.put(f"{path}/chunks/{number}", content=content.chunk(number))
    return response


async def whole(_: Stack, client: httpx2.AsyncClient, content: Content = CONTENT) -> httpx2.Response:
    return await client.post("/me/files", params={"name": content.name}, content=content.data)


async def in_a_batch(_: Stack, client: httpx2.AsyncClient, content: Content = CONTENT) -> httpx2.Response:
    members = archive(Entry("small", b"small"), Entry(content.name, content.data))
    response = await client.post("/files/batch", content=members)
    assert (await client.delete(f"/me/files/{response.json()['results'][0]['file']['id']}")).status_code == 204
    return response


async def test_who_sends_a_content_in_another_way_tells_it_to_all(on_each: Stack) -> None:
    stack, alice = on_each, on_each.client
    bob, carol, dave = [await stack.client_of(user_id) for user_id in ("bob", "carol", "dave")]
    await appended(stack, OTHER, carol)
    for seed, send in enumerate((by_chunks, by_id, whole, in_a_batch), 2):
        content = Content(CONTENT.size, seed=seed)
        for client in (alice, carol):
            await appended(stack, content, client)
        assert (await send(stack, bob, content)).status_code in (200, 201)
        assert [(await md5s_of(client))[content.sha256] for client in (alice, bob, carol)] == 3 * [content.md5], send
        await appended(stack, content, dave)
        assert await drifts(stack) == []
    assert (await md5s_of(carol))[OTHER.sha256] is None


async def test_what_is_known_is_known_at_once(on_each: Stack) -> None:
    assert (await on_each.upload(CONTENT)).status_code == 201
    for speak in (Tus, Rufh):
        client = await on_each.client_of(speak.__name__)
        await appended(on_each, client=client, speak=speak)
        assert (await file_of(on_each, client))["md5"] == CONTENT.md5
    assert await drifts(on_each) == []


async def test_the_same_user_who_sends_it_again_has_it(on_each: Stack) -> None:
    """Under the same name, so that no file is made."""
    stack, upload_id = on_each, await appended(on_each)
    file = await file_of(stack)
    response = await stack.upload(CONTENT, name=f"upload-{upload_id}")
    assert response.json()["file"] == await file_of(stack) == file | {"md5": CONTENT.md5}


@pytest.mark.parametrize("speak", [Tus, Rufh])
async def test_a_told_md5_is_compared(stack: Stack, speak: type[Resumable]) -> None:
    speaker, right = speak(stack.client), list[str]()
    for seed, (first_bytes, is_right) in enumerate(product((0, 100, 3 * 64 * KIB + 100), (True, False)), 2):
        content = Content(CONTENT.size, seed=seed)
        md5 = content.md5 if is_right else OTHER.md5
        path = await opened(speaker, first_bytes, content)
        told = await stack.client.patch(native(path), json={"md5": md5})
        assert (told.status_code, told.json()["md5"]) == (200, md5)
        last = await rest(speaker, path, first_bytes, content)
        if is_right:
            assert last.status_code == speaker.finished
            right.append(md5)
        else:
            assert problem(last, 422, "md5-mismatch")["actual"] == content.md5
        assert set((await md5s_of(stack.client)).values()) == set(right)
    assert await checked_accounts(stack.services.database)


async def test_it_is_computed_in_the_background_from_when_it_is_told(stack: Stack) -> None:
    first_bytes, tus = 3 * 64 * KIB, Tus(stack.client)
    path = await opened(tus, first_bytes)

    async def row() -> Upload:
        (found,) = await stack.services.uploads.list_open(owner("alice"))
        return found.upload

    async def is_digested() -> bool:
        return await stack.services.storage.digested_bytes(await row()) == first_bytes

    assert not (await row()).needs_md5
    await eventually(is_digested)
    assert (await stack.client.patch(native(path), json={"md5": CONTENT.md5})).status_code == 200
    assert (await row()).needs_md5
    await eventually(is_digested)
    assert (await rest(tus, path, first_bytes)).status_code == 204
    await stack.services.storage.drain()


async def test_a_merge_waits_for_an_md5_that_is_told_meanwhile(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = stack.services.storage
    before, computed = storage.digest, []

    async def told_meanwhile(upload: Upload) -> Digests:
        digests = await before(upload)
        computed.append(digests.md5)
        if len(computed) == 1:
            told = await stack.client.patch(f"/uploads/{upload.id}", json={"md5": CONTENT.md5})
            assert told.status_code == 200
        return digests

    monkeypatch.setattr(storage, "digest", told_meanwhile)
    await appended(stack)
    assert computed == [None, CONTENT.md5]
    assert (await file_of(stack))["md5"] == CONTENT.md5


async def test_an_md5_that_is_told_of_a_file_is_not_believed(stack: Stack) -> None:
    upload_id = await appended(stack)
    told = await stack.client.patch(f"/uploads/{upload_id}", json={"md5": OTHER.md5})
    assert (told.json()["state"], told.json()["file"]["md5"]) == ("complete", None)
    assert await scrub(stack) == []
    problem(await stack.client.patch(f"/uploads/{upload_id}", json={"md5": OTHER.md5}), 409, "md5-conflict")


async def test_chunks_of_such_an_upload_need_no_md5_either(stack: Stack) -> None:
    path = native(await opened(Tus(stack.client)))
    for number in range(CONTENT.chunk_count):
        response = await stack.client.put(f"{path}/chunks/{number}", content=CONTENT.chunk(number))
    assert (response.status_code, response.json()["file"]["md5"]) == (201, None)


async def test_what_may_be_the_same_is_not_refused_for_its_name(stack: Stack) -> None:
    name = f"upload-{await appended(stack)}"
    told: list[dict[str, Any]] = [{}, {"sha256": CONTENT.sha256}]
    for claims in told:
        response = await stack.open(CONTENT, name=name, if_exists="fail", **claims)
        assert response.json()["state"] == "uploading"
        assert (await stack.client.delete(f"/files/{CONTENT.md5}")).status_code == 204
    refused = await stack.open(OTHER, name=name, if_exists="fail", sha256=OTHER.sha256)
    problem(refused, 409, "name-taken")
    body = {"name": name, "size": CONTENT.size, "if_exists": "fail"}
    problem(await stack.client.post("/uploads", json=body), 409, "name-taken")
    query = {"name": name, "if_exists": "fail"}
    response = await stack.client.put(f"/files/{CONTENT.md5}", params=query, content=CONTENT.data)
    assert (response.status_code, response.json()["file"]["md5"]) == (200, CONTENT.md5)


async def test_of_damaged_bytes_no_md5_is_noted(stack: Stack) -> None:
    await appended(stack)
    flip_bit(blob_path(stack.data, CONTENT.sha256))
    assert await scrub(stack) == [CONTENT.sha256]
    file = await file_of(stack)
    assert (file["md5"], file["damaged"]) == (None, True)
    # Healed in the same way, it is read back once more.
    await appended(stack, client=await stack.client_of("bob"))
    assert await scrub(stack) == []
    file = await file_of(stack)
    assert (file["md5"], "damaged" in file) == (CONTENT.md5, False)


async def test_what_is_healed_from_the_trash_has_its_md5(stack: Stack) -> None:
    """Better bytes came, and then the worse took their place again."""
    await appended(stack)
    blob = blob_path(stack.data, CONTENT.sha256)
    trash = stack.data / "trash" / "blobs" / CONTENT.sha256[:2]
    trash.mkdir(parents=True, exist_ok=True)
    blob.rename(trash / f"{CONTENT.sha256}.{1:032x}")
    assert await scrub(stack) == [CONTENT.sha256]
    file = await file_of(stack)
    assert (file["md5"], "damaged" in file) == (CONTENT.md5, False)


async def test_twins_have_the_same_md5_and_stay_apart(stack: Stack) -> None:
    pair, bob = twins(), await stack.client_of("bob")
    clients = (stack.client, bob)
    for content, client in zip(pair, clients, strict=True):
        await appended(stack, content, client)
    assert await scrub(stack) == []
    for content, client in zip(pair, clients, strict=True):
        file = await file_of(stack, client)
        assert (file["md5"], file["sha256"]) == (pair[0].md5, content.sha256)
        assert (await client.get(f"/me/files/{file['id']}/content")).content == content.data
    assert await drifts(stack) == []


async def test_files_that_lack_what_their_blob_has_are_reported(stack: Stack) -> None:
    assert (await stack.upload(CONTENT)).status_code == 201
    file = await file_of(stack)
    for table, expected, actual in ((models.file, CONTENT.md5, None), (models.blob, None, None)):
        async with stack.services.database.engine.begin() as connection:
            await connection.execute(update(table).values(md5=None))
        found = [Drift(Kind.FILE, file["id"], f"{CONTENT.size} {expected}", f"{CONTENT.size} {actual}")]
        assert await drifts(stack) == (found if expected else [])


async def test_a_file_that_is_being_made_while_it_is_filled_in_has_it_too(database: Database) -> None:
    act, placed, go_on = Transactions(database), asyncio.Event(), asyncio.Event()
    for user_id in ("alice", "bob"):
        await act.create_user(user_id)
    upload = await act.open(upload_row(md5=None, computes_md5=False))
    known = digests("content")

    async def wait() -> None:
        placed.set()
        await go_on.wait()

    place = database.outside(wait)

    def merge(connection: Connection) -> Awaitable[File]:
        facts: dict[str, Any] = {"md5": None, "sha256": known["sha256"], "now": NOW, "place_blob": place}
        return transactions.uploads.merge(connection, upload_id=upload.id, file_id=new_id(), **facts)

    making = asyncio.create_task(database.transact(merge))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await placed.wait()
    telling = asyncio.create_task(act.whole(file_row("bob", instant=False)))
    await asyncio.sleep(0.1)  # so that it is under way; if it is not, nothing is seen here
    go_on.set()
    assert (await making).md5 is None
    await telling
    files = await database.read(lambda connection: queries.files_by_sha256(connection, known["sha256"]))
    assert {(file.user_id, file.md5) for file in files} == {("alice", known["md5"]), ("bob", known["md5"])}


async def test_of_all_who_compute_it_at_once_every_file_has_it(on_each: Stack) -> None:
    stack = on_each
    clients = [await stack.client_of(f"user-{number}") for number in range(6)]

    for _ in range(3):
        await appended(stack)
        by_tus = [appended(stack, client=client) for client in clients[:2]]
        native = [whole(stack, clients[2]), by_chunks(stack, clients[3]), in_a_batch(stack, clients[4])]
        await asyncio.gather(*by_tus, *native, scrub(stack), scrub(stack))
        await appended(stack, client=clients[5])
        for client in (stack.client, *clients):
            for file in await files_of(client):
                assert file["md5"] == CONTENT.md5
                assert (await client.delete(f"/me/files/{file['id']}")).status_code == 204
        assert await drifts(stack) == []
        async with stack.services.database.engine.begin() as connection:
            await connection.execute(models.blob.delete())  # not even a tombstone knows it
    assert await checked_accounts(stack.services.database)
