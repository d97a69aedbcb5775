"""The whole server with its bytes on S3: nodes that stand still while others go on, and all that is done with contents."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.support.buckets import WatchedBucket
from tests.support.content import Content
from tests.support.gateways import PART_BYTES, settings_of
from tests.support.invariants import Account, checked_accounts
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS
from uploader.addresses import BucketAddress
from uploader.database import models
from uploader.service.ids import new_id
from uploader.storage.base import BytesBody

CHUNK = PART_BYTES
CONTENT = Content(3 * CHUNK + 1000, chunk_size=CHUNK)
LAST = CONTENT.chunk_count - 1
OTHER = Content(CONTENT.size, seed=1, chunk_size=CHUNK)
SMALL = Content(1000, seed=2, name="small.bin")
NOTHING = Account()
Dump = dict[Any, list[dict[str, Any]]]
TUS = {"Tus-Resumable": "1.0.0"}


@dataclass
class Node:
    """A server, and the bucket as it sees that."""

    stack: Stack
    bucket: WatchedBucket

    async def file_id(self) -> str:
        (file,) = (await self.stack.client.get("/me/files")).json()["files"]
        file_id: str = file["id"]
        return file_id

    async def delete_file(self) -> None:
        assert (await self.stack.client.delete(f"/me/files/{await self.file_id()}")).status_code == 204

    async def download(self, client: httpx2.AsyncClient | None = None, **headers: str) -> bytes:
        chosen = client or self.stack.client
        (file,) = (await chosen.get("/me/files")).json()["files"]
        response = await chosen.get(f"/me/files/{file['id']}/content", headers=headers)
        assert response.status_code in (200, 206), response.text
        return response.content

    async def locations(self) -> dict[str, str]:
        async with self.stack.services.database.engine.connect() as connection:
            rows = await connection.execute(models.blob.select())
            return {row.sha256: row.location for row in rows}

    async def trash(self) -> list[str]:
        return [found.place for found in await self.stack.services.trash.entries()]

    async def at_rest(self) -> dict[str, Account]:
        """Nothing is open: all that there is is a content, or in the trash; and the accounts are exact."""
        services = self.stack.services
        for queue in services.pending.flush_queues:
            await services.flushing.flush_due(queue)
        found = await services.reconciling.reconcile()
        assert found.drifts == []
        kept = sorted([*(await self.locations()).values(), *await self.trash()])
        assert sorted(self.bucket.left()) == kept
        return await checked_accounts(services.database)


@pytest.fixture
def in_a_bucket(s3_address: BucketAddress, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings of stacks that store there."""
    monkeypatch.setattr("uploader.storage.s3.bucket.Bucket", WatchedBucket)
    return settings_of(s3_address) | {"min_chunk_size_bytes": CHUNK}


def node_of(stack: Stack) -> Node:
    bucket = vars(stack.services.storage)["_bucket"]
    assert isinstance(bucket, WatchedBucket)
    return Node(stack, bucket)


@pytest.fixture
async def node(make_stack: MakeStack, in_a_bucket: dict[str, Any]) -> AsyncIterator[Node]:
    async with make_stack(**in_a_bucket, claim_lease_seconds=1) as stack:
        yield node_of(stack)


@pytest.fixture
async def another(node: Node, make_stack: MakeStack, in_a_bucket: dict[str, Any]) -> AsyncIterator[Node]:
    """Another machine, with the same bucket, database and Redis."""
    async with make_stack(**in_a_bucket, claim_lease_seconds=1) as stack:
        yield node_of(stack)


# Zombies


SINGLE = Content(CHUNK, seed=3, chunk_size=CHUNK)


@pytest.mark.parametrize(
    ("content", "number", "call", "after"),
    [
        *((CONTENT, 0, "upload_part", after) for after in (False, True)),
        *((SINGLE, 0, "put", after) for after in (False, True)),
        (CONTENT, LAST, "complete", True),
    ],
)
async def test_a_chunk_or_a_merge_of_a_node_that_stood_still_while_the_upload_was_cancelled(
    node: Node, another: Node, content: Content, number: int, call: str, after: bool
) -> None:
    await node.stack.open(content)
    for earlier in range(number):
        await node.stack.put(content, earlier)
    async with node.bucket.asleep(call, node.stack.put(content, number), after=after) as zombie:
        assert (await another.stack.client.delete(f"/files/{content.md5}")).status_code == 204
    assert (await zombie).status_code == 410
    assert await another.at_rest() == {"alice": NOTHING}


async def test_a_merge_that_stands_still_for_longer_than_its_lease(node: Node, another: Node) -> None:
    """After Complete, before the transaction."""
    await node.stack.open(CONTENT)
    for number in range(LAST):
        await node.stack.put(CONTENT, number)
    async with node.bucket.asleep("complete", node.stack.put(CONTENT, LAST), after=True) as zombie:
        async with asyncio.timeout(PATIENCE_SECONDS):
            response = await another.stack.client.post(f"/files/{CONTENT.md5}/merge")
            while response.status_code == 202:  # until the lease ends
                response = await another.stack.client.post(f"/files/{CONTENT.md5}/merge")
        assert response.status_code in (200, 201), response.text
        assert await another.download() == CONTENT.data
    answer = await zombie
    assert answer.status_code in (200, 201)
    assert answer.json()["file"]["id"] == response.json()["file"]["id"]
    assert await another.at_rest() == {"alice": Account(finished=CONTENT.size)}
    assert await node.download() == CONTENT.data


# Contents


async def _twice(node: Node, another: Node) -> tuple[httpx2.AsyncClient, str]:
    """Alice and Bob send the same content, each all of its bytes. Bob, and where the content was first."""
    bob = await another.stack.client_of("bob", total_space=CONTENT.size)
    for stack, client in ((node.stack, node.stack.client), (another.stack, bob)):
        await stack.open(CONTENT, client)
        for number in range(LAST):
            await stack.put(CONTENT, number, client)
    assert (await node.stack.put(CONTENT, LAST)).status_code == 201
    ((_, first),) = (await node.locations()).items()
    assert (await another.stack.put(CONTENT, LAST, bob)).status_code == 201
    return bob, first


async def test_of_a_content_that_came_twice_the_later_object_stays(node: Node, another: Node) -> None:
    bob, first = await _twice(node, another)
    ((_, second),) = (await node.locations()).items()
    assert second != first
    assert await node.trash() == [first]
    for client in (node.stack.client, bob):
        assert await node.download(client) == await another.download(client) == CONTENT.data
    accounts = await node.at_rest()
    assert accounts == {"alice": Account(finished=CONTENT.size), "bob": Account(finished=CONTENT.size)}
    assert (await node.stack.services.trash.empty()).entries == 1
    assert node.bucket.left() == [second]
    assert await another.download(bob) == CONTENT.data


async def test_a_restored_dump_has_what_is_in_the_trash(node: Node) -> None:
    """Its row has no key, or another one than that of the object."""
    dump = await _deleted(node)
    for place in (None, "u/elsewhere"):
        for row in dump[models.blob]:
            row["location"] = place
        await _restore_dump(node.stack, dump)
        assert await node.stack.services.trash.restore(CONTENT.sha256)
        assert await node.download() == CONTENT.data
        await node.delete_file()


async def test_the_scrub_finds_what_was_altered_and_heals_it_from_the_trash(node: Node, another: Node) -> None:
    _, first = await _twice(node, another)
    (second,) = (await node.locations()).values()
    node.bucket.put(second, BytesBody(OTHER.data))
    scrubbing = node.stack.services.scrubbing
    ((sha256, healed),) = [(d.sha256, d.healed) async for d in scrubbing.scrub(lambda _: None, restart=True)]
    assert (sha256, healed, await node.locations()) == (CONTENT.sha256, True, {CONTENT.sha256: first})
    assert await another.download() == CONTENT.data
    assert [d async for d in scrubbing.scrub(lambda _: None, restart=True)] == []

    await node.stack.services.trash.empty()
    node.bucket.put(first, BytesBody(OTHER.data))
    ((damage),) = [d async for d in scrubbing.scrub(lambda _: None, restart=True)]
    assert (damage.healed, damage.problem.value) == (False, "altered")
    response = await node.stack.client.get(f"/me/files/{await node.file_id()}/content")
    assert response.json()["code"] == "content-damaged"


# Housekeeping


async def test_what_no_row_names_goes_after_an_hour_of_the_store(node: Node) -> None:
    bucket, stack = node.bucket, node.stack
    await stack.open(CONTENT)
    await stack.put(CONTENT, 0)
    tailed = await _appended(node, b"abc")
    assert (await stack.upload(SMALL)).status_code == 201
    stay = sorted(bucket.left())
    stray, whole, signature = f"u/{new_id()}.abc", "w/stray", "s/u/nothing.abc"
    for key in (stray, whole, signature):
        bucket.put(key, BytesBody(b"stray"))
    orphan = f"u/{new_id()}.def"
    bucket.create_multipart(orphan)

    far = stack.services.clock.now() + timedelta(days=60)
    cleaned = await stack.services.cleanup.clean(opened_before=far)
    assert (cleaned.blobs, cleaned.directories, cleaned.unsettled) == (0, 0, 4)
    bucket.ahead = timedelta(hours=2)
    for _ in range(2):
        cleaned = await stack.services.cleanup.clean(opened_before=far)
    assert sorted(bucket.left()) == sorted([*stay, stray, whole])
    assert sorted(await node.trash()) == sorted([stray, whole])
    await stack.services.trash.empty()
    assert sorted(bucket.left()) == stay
    bucket.ahead = timedelta()
    assert (await stack.services.reconciling.reconcile()).drifts == []
    for number in range(1, CONTENT.chunk_count):
        response = await stack.put(CONTENT, number)
    assert response.status_code == 201
    head = await stack.client.head(tailed, headers=TUS)
    assert head.headers["upload-offset"] == "3"


async def _appended(node: Node, data: bytes) -> str:
    headers = {**TUS, "Upload-Length": "1000", "Content-Type": "application/offset+octet-stream"}
    made = await node.stack.client.post("/resumable", content=data, headers=headers)
    assert made.status_code == 201
    return str(made.headers["location"]).removeprefix("http://test")


async def _deleted(node: Node) -> Dump:
    """A file goes; a dump of before."""
    assert (await node.stack.upload(CONTENT)).status_code == 201
    tables = (models.user_info, models.blob, models.file)
    async with node.stack.services.database.engine.connect() as connection:
        dump = {table: [row._asdict() for row in await connection.execute(table.select())] for table in tables}
    await node.delete_file()
    return dump


async def _restore_dump(stack: Stack, dump: Dump) -> None:
    async with stack.services.database.engine.begin() as connection:
        await connection.execute(models.trashed_file.delete())  # of before the file was deleted
        for table, rows in dump.items():
            await connection.execute(table.delete())
            await connection.execute(table.insert(), rows)
