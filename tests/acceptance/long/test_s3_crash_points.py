"""A server that keeps its bytes on S3 dies at every line between two durable effects, and another one goes on: no
acknowledged byte is lost, none is counted twice, and in the end nothing is left that no row names."""

import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.buckets import WatchedBucket
from tests.support.chosen import places
from tests.support.clock import ManualClock
from tests.support.content import Content
from tests.support.crashing import Dying, Sender
from tests.support.gateways import PART_BYTES, Gateway, settings_of
from tests.support.invariants import Account, checked_accounts
from tests.support.process import Server, ended, run_cli
from tests.support.servers import free_port
from tests.support.stack import running_stack
from tests.support.waiting import eventually
from uploader.addresses import BucketAddress
from uploader.database import models

CHUNK = PART_BYTES
SETTINGS = {"QUIET_INTERVAL": "100ms", "CLAIM_LEASE": "1s", "CHUNK_SIZE": str(CHUNK), "MIN_CHUNK_SIZE": str(CHUNK)}


class Client(Sender):
    """Sends contents in one way or another."""

    async def in_chunks(self, content: Content) -> None:
        answer = await self.opening(content)
        if answer["state"] == "uploading":
            for number in range(content.chunk_count):
                path = f"/files/{content.md5}/chunks/{number}"
                await self.expect("PUT", path, 200, 201, content=content.chunk(number))
        elif answer["state"] == "merging":
            await self.expect("POST", f"/files/{content.md5}/merge", 200, 201)

    async def cancelled(self, content: Content) -> None:
        await self.opening(content)
        await self.expect("PUT", f"/files/{content.md5}/chunks/0", 200, content=content.chunk(0))
        await self.expect("DELETE", f"/files/{content.md5}", 204)

    async def signed(self, content: Content) -> None:
        await self.whole(content)
        for file in await self.files():
            await self.expect("GET", f"/me/files/{file['id']}/signature", 200)

    async def appended_to(self, content: Content) -> None:
        await self.append_to_upload(content, content.name.removesuffix(".bin"), 100, CHUNK + 7)

    async def deferred(self, content: Content) -> None:
        """The length comes after the last byte."""
        if not await self.has_file(content.name):
            path = await self.opened(content.name)
            await self.append(path, content, 100, CHUNK + 7, content.size)
            await self.patch(path, content.size, b"", Upload_Length=str(content.size))

    async def joined(self, content: Content) -> None:
        await self.join(content, content.size // 2)


Act = Callable[[Client, Content], Awaitable[None]]
SERVERS: dict[str, tuple[Act, int, tuple[str, ...]]] = {
    "chunks": (
        Client.in_chunks,
        2 * CHUNK + 1000,
        (
            "object.after_multipart",
            "object.after_open",
            "object.after_part",
            "object.after_part:3",
            "object.after_row:2",
            "object.after_row:3",
            "object.after_freeze",
            "object.after_parts",
            "object.after_complete",
            "object.after_digest",
            "clear.after_forget",
        ),
    ),
    "one chunk": (
        Client.in_chunks,
        1000,
        ("object.after_open", "object.after_part", "object.after_row", "object.after_freeze", "clear.after_forget"),
    ),
    "cancel": (Client.cancelled, 2 * CHUNK, ("object.after_remove", "object.after_multipart", "object.after_row")),
    "whole": (Client.whole, 1000, ("arrival.after_put",)),
    "signature": (Client.signed, 1000, ("signature.after_put",)),
    "append": (
        Client.appended_to,
        2 * CHUNK + 1000,
        ("object.after_tail", "object.after_tail:2", "object.after_part", "object.after_row"),
    ),
    "deferred length": (Client.deferred, CHUNK + 1000, ("object.after_last_part", "object.after_row:2")),
    "join": (
        Client.joined,
        2 * CHUNK + 1000,
        (
            "join.after_complete",
            "join.after_complete:2",
            "join.after_pieces",
            "object.after_open:3",
            "object.after_remove",
            "object.after_remove:2",
            "object.after_part:3",
        ),
    ),
}


class Installation(Dying):
    """With a bucket."""

    def __init__(self, directory: Path, template: Path, gateway: Gateway, address: BucketAddress) -> None:
        super().__init__(directory, template, SETTINGS | gateway.environment(address.prefix))
        self.address = address

    async def run(self, act: Callable[[Client], Awaitable[None]]) -> None:
        """A server that lives."""
        server = Server(self.log, self.settings)
        with ended(server):
            await self.use(server.url, act)
            assert self.drifts() == []
            assert server.stop() == 0

    async def use(self, url: str, act: Callable[[Client], Awaitable[None]]) -> None:
        client = Client()
        async with self.http(url) as client.http:
            await act(client)

    def drifts(self) -> list[object]:
        found: list[object] = json.loads(run_cli(self.settings, "reconcile", "--json").stdout)["drifts"]
        return found

    async def clean_up(self, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is left is two hours old, and goes."""
        monkeypatch.setattr("uploader.storage.s3.bucket.Bucket", WatchedBucket)
        clock = ManualClock()
        clock.advance(timedelta(hours=2).total_seconds())
        where = settings_of(self.address) | {"min_chunk_size_bytes": CHUNK}
        async with running_stack(self.data, self.url, redis_url, adopts=True, clock=clock, **where) as stack:
            bucket = vars(stack.services.storage)["_bucket"]
            assert isinstance(bucket, WatchedBucket)
            bucket.ahead = timedelta(hours=2)
            await stack.services.cleanup.clean(opened_before=clock.now() + timedelta(days=60))
            await stack.services.trash.empty()
            assert (await stack.services.reconciling.reconcile()).drifts == []
            left = sorted(key for key in bucket.left() if not key.startswith("s/"))
        async with self.database.engine.connect() as connection:
            assert left == sorted(row.location for row in await connection.execute(models.blob.select()))


@pytest.fixture
async def installation(
    tmp_path: Path, sqlite_template: Path, s3_gateway: Gateway, s3_address: BucketAddress
) -> AsyncIterator[Installation]:
    made = Installation(tmp_path, sqlite_template, s3_gateway, s3_address)
    yield made
    await made.database.close()


@pytest.mark.parametrize("way", SERVERS)
async def test_a_server_that_dies_between_two_durable_effects_loses_and_invents_nothing(
    way: str, installation: Installation, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    act, size, deaths = SERVERS[way]
    contents: list[Content] = []

    async def send_all(client: Client) -> None:
        # The last one first: it is what the server is to die with.
        for content in reversed(contents):
            await act(client, content)

    for seed, armed in enumerate(places(deaths, way)):
        contents.append(Content(size + seed, seed=seed, name=f"{seed}.bin", chunk_size=CHUNK))
        await installation.die_serving(armed, lambda url: installation.use(url, send_all))

    async def send_all_and_compare(client: Client) -> None:
        await send_all(client)

        async def merged() -> bool:
            uploads = (await client.ask("GET", "/uploads", 200))["uploads"]
            return all(upload["state"] != "merging" for upload in uploads)

        await eventually(merged)  # also what a request began that died with its server
        await client.check_files([] if way == "cancel" else contents)

    await installation.run(send_all_and_compare)
    await installation.clean_up(redis_url, monkeypatch)
    sizes = 0 if way == "cancel" else sum(content.size for content in contents)
    assert (await checked_accounts(installation.database))["owner"] == Account(finished=sizes)
    await installation.run(lambda client: client.check_files([] if way == "cancel" else contents))


@pytest.mark.parametrize("armed", ["mark.after_proposal", "mark.after_mark"])
async def test_a_first_start_that_dies_is_ended_by_the_next(installation: Installation, armed: str) -> None:
    doomed = run_cli(installation.settings | {"TEST_CRASH_AT": armed}, "serve", "--port", str(free_port()))
    assert doomed.returncode == -signal.SIGKILL
    await installation.run(lambda client: client.whole(Content(100)))
    assert WatchedBucket(installation.address).keys("marks/") == ["marks/installation"]


async def test_a_purge_that_dies_is_ended_by_the_next(installation: Installation) -> None:
    async def send_and_delete(client: Client) -> None:
        await client.whole(Content(1000))
        for file in await client.files():
            await client.expect("DELETE", f"/me/files/{file['id']}", 204)

    await installation.run(send_and_delete)
    bucket = WatchedBucket(installation.address)
    assert len(bucket.left()) == 1
    await installation.die_running("trash.after_delete", "store-trash", "empty", "--yes")
    assert run_cli(installation.settings, "store-trash", "empty", "--yes").returncode == 0
    assert bucket.left() == []
    assert installation.drifts() == []
