"""A server that keeps its bytes on S3 dies at every line between two durable effects, and another one goes on: no
acknowledged byte is lost, none is counted twice, and in the end nothing is left that no row names."""

import base64
import contextlib
import json
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.buckets import WatchedBucket
from tests.support.clock import ManualClock
from tests.support.content import Content
from tests.support.gateways import PART_BYTES, Gateway
from tests.support.invariants import Account, checked_accounts
from tests.support.process import Process, Server, answers, ended, owner_token, run_cli
from tests.support.servers import free_port
from tests.support.stack import running_stack
from tests.support.waiting import eventually
from uploader.addresses import BucketAddress
from uploader.database import models
from uploader.database.engine import Database

CHUNK = PART_BYTES
TUS = {"Tus-Resumable": "1.0.0"}
BYTES = {**TUS, "Content-Type": "application/offset+octet-stream"}
SETTINGS = {"QUIET_INTERVAL": "100ms", "CLAIM_LEASE": "1s", "CHUNK_SIZE": str(CHUNK), "MIN_CHUNK_SIZE": str(CHUNK)}
_PATIENCE_SECONDS = 30


class Client:
    """Sends contents in one way or another; told to do it again, it comes to the same end."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http

    async def expect(self, method: str, path: str, *statuses: int, **more: Any) -> httpx2.Response:
        response = await self.http.request(method, path, **more)
        assert response.status_code in statuses, response.text
        return response

    async def in_chunks(self, content: Content) -> None:
        said = {"name": content.name, "size": content.size, "chunk_size": content.chunk_size}
        answer = (await self.expect("POST", f"/files/{content.md5}", 200, 201, json=said)).json()
        if answer["state"] == "uploading":
            for number in range(content.chunk_count):
                await self.expect(
                    "PUT", f"/files/{content.md5}/chunks/{number}", 200, 201, content=content.chunk(number)
                )
        elif answer["state"] == "merging":
            await self.expect("POST", f"/files/{content.md5}/merge", 200, 201)

    async def cancelled(self, content: Content) -> None:
        said = {"name": content.name, "size": content.size, "chunk_size": content.chunk_size}
        await self.expect("POST", f"/files/{content.md5}", 200, 201, json=said)
        await self.expect("PUT", f"/files/{content.md5}/chunks/0", 200, content=content.chunk(0))
        await self.expect("DELETE", f"/files/{content.md5}", 204)

    async def whole(self, content: Content) -> None:
        await self.expect("PUT", f"/files/{content.md5}", 200, 201, params={"name": content.name}, content=content.data)

    async def signed(self, content: Content) -> None:
        await self.whole(content)
        for file in (await self.expect("GET", "/me/files", 200)).json()["files"]:
            await self.expect("GET", f"/me/files/{file['id']}/signature", 200)

    async def appended(self, content: Content) -> None:
        said = {"name": content.name, "size": content.size, "chunk_size": content.chunk_size}
        answer = (
            await self.expect("POST", "/uploads", 200, 201, json=said, headers={"Idempotency-Key": content.name})
        ).json()
        if answer["state"] == "uploading":
            await self._append(f"/resumable/{answer['upload']['id']}", content)

    async def deferred(self, content: Content) -> None:
        """The length comes after the last byte."""
        path = await self._opened(content.name, {"Upload-Defer-Length": "1"})
        if path is not None:
            await self._append(path, content)
            headers = {**BYTES, "Upload-Offset": str(content.size), "Upload-Length": str(content.size)}
            await self.expect("PATCH", path, 204, headers=headers)

    async def joined(self, content: Content) -> None:
        middle = content.size // 2
        parts = []
        if await self._file(content.name):
            return
        for number, data in enumerate((content.data[:middle], content.data[middle:])):
            said = {"Upload-Concat": "partial", "Upload-Length": str(len(data))}
            path = await self._opened(f"{content.name}-{number}", said)
            assert path is not None
            offset = await self._offset(path)
            if offset < len(data):
                headers = {**BYTES, "Upload-Offset": str(offset)}
                await self.expect("PATCH", path, 204, content=data[offset:], headers=headers)
            parts.append(path)
        whole = {**TUS, "Upload-Concat": f"final;{parts[0]} {parts[1]}", "Upload-Metadata": _metadata(content.name)}
        await self.expect("POST", "/resumable", 201, headers=whole)
        await eventually(lambda: self._file(content.name), _PATIENCE_SECONDS)

    async def _opened(self, name: str, said: dict[str, str]) -> str | None:
        """One that was opened before; else a new one. None if it is a file."""
        if await self._file(name):
            return None
        for upload in (await self.expect("GET", "/uploads", 200)).json()["uploads"]:
            if upload["name"] == name:
                return f"/resumable/{upload['id']}"
        headers = {**TUS, **said, "Upload-Metadata": _metadata(name)}
        made = await self.expect("POST", "/resumable", 201, headers=headers)
        return httpx2.URL(made.headers["location"]).path

    async def _append(self, path: str, content: Content) -> None:
        for end in (100, CHUNK + 7, content.size):
            offset = await self._offset(path)
            if offset < end:
                headers = {**BYTES, "Upload-Offset": str(offset)}
                await self.expect("PATCH", path, 204, content=content.data[offset:end], headers=headers)

    async def _offset(self, path: str) -> int:
        return int((await self.expect("HEAD", path, 200, headers=TUS)).headers["upload-offset"])

    async def _file(self, name: str) -> bool:
        return name in [file["name"] for file in (await self.expect("GET", "/me/files", 200)).json()["files"]]


def _metadata(name: str) -> str:
    return f"filename {base64.b64encode(name.encode()).decode()}"


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
        Client.appended,
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


class Installation:
    """A bucket, a database, and one server at a time."""

    def __init__(self, directory: Path, template: Path, gateway: Gateway, address: BucketAddress) -> None:
        self.data, self.log = directory / "data", directory / "log"
        self.data.mkdir(mode=0o700)
        shutil.copy(template, self.data / "uploader.db")
        self.url = f"sqlite:///{self.data / 'uploader.db'}"
        self.database = Database(self.url)
        self.address = address
        self.settings = SETTINGS | gateway.environment(address.prefix) | {"DATA": str(self.data)}

    async def die_serving(self, armed: str, act: Callable[[Client], Awaitable[None]]) -> None:
        """A server that dies at a point while a client uses it, or by itself."""
        port = free_port()
        doomed = Process(self.log, self.settings | {"TEST_CRASH_AT": armed}, "serve", "--port", str(port))
        with ended(doomed):
            await eventually(lambda: _is_dead_or_ready(doomed, port), _PATIENCE_SECONDS)
            with contextlib.suppress(httpx2.TransportError):
                await self._use(f"http://127.0.0.1:{port}", act)
            with contextlib.suppress(subprocess.TimeoutExpired):
                doomed.process.wait(timeout=_PATIENCE_SECONDS)
            assert doomed.process.returncode == -signal.SIGKILL, f"{armed} was not passed"
        await checked_accounts(self.database)

    async def run(self, act: Callable[[Client], Awaitable[None]]) -> None:
        """A server that lives."""
        server = Server(self.log, self.settings)
        with ended(server):
            await self._use(server.url, act)
            found = run_cli(self.settings, "reconcile", "--json")
            assert (found.returncode, json.loads(found.stdout)["drifts"]) == (0, []), found.stdout
            assert server.stop() == 0

    async def _use(self, url: str, act: Callable[[Client], Awaitable[None]]) -> None:
        headers = {"Authorization": f"Bearer {owner_token(self.data)}"}
        async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=30) as http:
            await act(Client(http))

    async def locations(self) -> list[str]:
        async with self.database.engine.connect() as connection:
            return [row.location for row in await connection.execute(models.blob.select())]


async def _is_dead_or_ready(process: Process, port: int) -> bool:
    return process.process.poll() is not None or answers(port)


@pytest.fixture
async def installation(
    tmp_path: Path, sqlite_template: Path, s3_gateway: Gateway, s3_address: BucketAddress
) -> AsyncIterator[Installation]:
    made = Installation(tmp_path, sqlite_template, s3_gateway, s3_address)
    yield made
    await made.database.close()


async def clean_up(installation: Installation, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> WatchedBucket:
    """What is left is two hours old, and goes."""
    monkeypatch.setattr("uploader.storage.s3.bucket.Bucket", WatchedBucket)
    address = installation.address
    where: dict[str, Any] = {
        "storage": f"s3://{address.bucket}/{address.prefix}",
        "s3_endpoint": address.endpoint,
        "s3_access_key_id": address.access_key_id,
        "s3_secret_access_key": address.secret_access_key,
        "s3_path_style": True,
        "min_chunk_size_bytes": CHUNK,
    }
    clock = ManualClock()
    clock.advance(timedelta(hours=2).total_seconds())
    async with running_stack(
        installation.data, installation.url, redis_url, adopts=True, clock=clock, **where
    ) as stack:
        bucket = vars(stack.services.storage)["_bucket"]
        assert isinstance(bucket, WatchedBucket)
        bucket.ahead = timedelta(hours=2)
        await stack.services.cleanup.clean(opened_before=clock.now() + timedelta(days=60))
        await stack.services.trash.empty()
        assert (await stack.services.reconciling.reconcile()).drifts == []
        left = sorted(key for key in bucket.left() if not key.startswith("s/"))
        assert left == sorted(await installation.locations())
        return bucket


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

    for seed, armed in zip(count(), deaths, strict=False):
        contents.append(Content(size + seed, seed=seed, name=f"{seed}.bin", chunk_size=CHUNK))
        await installation.die_serving(armed, send_all)

    async def send_all_and_rest(client: Client) -> None:
        await send_all(client)

        async def merged() -> bool:
            uploads = (await client.expect("GET", "/uploads", 200)).json()["uploads"]
            return all(upload["state"] != "merging" for upload in uploads)

        await eventually(merged)  # also what a request began that died with its server

    await installation.run(send_all_and_rest)

    await clean_up(installation, redis_url, monkeypatch)
    sizes = 0 if way == "cancel" else sum(content.size for content in contents)
    accounts = await checked_accounts(installation.database)
    assert accounts["owner"] == Account(finished=sizes)

    async def compare(client: Client) -> None:
        files = (await client.expect("GET", "/me/files", 200)).json()["files"]
        by_name = {content.name: content for content in contents if way != "cancel"}
        assert sorted(file["name"] for file in files) == sorted(by_name)
        for file in files:
            found = await client.expect("GET", f"/me/files/{file['id']}/content", 200)
            assert found.content == by_name[file["name"]].data

    await installation.run(compare)


@pytest.mark.parametrize("armed", ["mark.after_proposal", "mark.after_mark"])
async def test_a_first_start_that_dies_is_ended_by_the_next(installation: Installation, armed: str) -> None:
    doomed = run_cli(installation.settings | {"TEST_CRASH_AT": armed}, "serve", "--port", str(free_port()))
    assert doomed.returncode == -signal.SIGKILL
    await installation.run(lambda client: client.whole(Content(100)))
    assert WatchedBucket(installation.address).keys("marks/") == ["marks/installation"]


async def test_a_purge_that_dies_is_ended_by_the_next(installation: Installation) -> None:
    content = Content(1000)

    async def send_and_delete(client: Client) -> None:
        await client.whole(content)
        for file in (await client.expect("GET", "/me/files", 200)).json()["files"]:
            await client.expect("DELETE", f"/me/files/{file['id']}", 204)

    await installation.run(send_and_delete)
    bucket = WatchedBucket(installation.address)
    assert len(bucket.left()) == 1
    doomed = run_cli(installation.settings | {"TEST_CRASH_AT": "trash.after_delete"}, "trash", "empty", "--yes")
    assert doomed.returncode == -signal.SIGKILL
    assert run_cli(installation.settings, "trash", "empty", "--yes").returncode == 0
    assert bucket.left() == []
    assert json.loads(run_cli(installation.settings, "reconcile", "--json").stdout)["drifts"] == []
