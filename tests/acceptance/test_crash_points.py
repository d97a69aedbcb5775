"""The server, or a command, dies at every line between two durable effects and is started again, and its client finishes
as if nothing had been: no acknowledged byte is lost, none is counted twice."""

import base64
import contextlib
import json
import shutil
import signal
import subprocess
from base64 import b64encode
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx2
import pytest
from redis.asyncio import Redis
from sqlalchemy import func, select, update

from tests.support.archives import Entry, archive
from tests.support.at_rest import check_at_rest, rests_within
from tests.support.content import KIB, MIB, Content
from tests.support.deltas import copied, literal
from tests.support.invariants import Account, checked_accounts
from tests.support.layout import blob_path
from tests.support.process import Process, Server, answers, ended, owner_token, run_cli
from tests.support.servers import free_port
from tests.support.waiting import eventually
from uploader.crashpoints import NAMES
from uploader.database import models
from uploader.database.engine import Database
from uploader.embedded import socket_path
from uploader.storage.local import chunks


class Zeros(Content):
    """Content that costs little to make."""

    @cached_property
    def data(self) -> bytes:
        return bytes(self.size)


class Longer(Content):
    """That of `KEPT`, with something in front."""

    @cached_property
    def data(self) -> bytes:
        return b"front" + KEPT.data


KEPT = Content(160 * KIB, seed=1, name="kept.bin")
LEFT_OPEN = Content(100 * KIB, seed=2, name="open.bin")
CANCELLED = Content(100 * KIB, seed=3, name="cancelled.bin")
DELETED = Content(70 * KIB, seed=4, name="deleted.bin")
ROTTEN = Content(180 * KIB, seed=5, name="rotten.bin")
LARGE = Zeros(
    256 * MIB, chunk_size=64 * MIB, name="large.bin"
)  # so much to hash at the end that it is accounted for before
WHOLE = Content(30 * KIB, seed=6, name="whole.bin")
STREAMED = Content(150 * KIB, seed=20, name="stream.bin")
JOINED = Content(150 * KIB, seed=21, name="joined.bin")
DEFERRED = Content(150 * KIB, seed=22, name="deferred.bin")
MADE = Longer(160 * KIB + 5, seed=1, name="made.bin")
BATCH = [Content(KIB + number, seed=7 + number, name=f"batch/{number}.bin") for number in range(5)]
EXPECTED = Account(
    finished=2 * KEPT.size
    + ROTTEN.size
    + sum(content.size for content in (WHOLE, STREAMED, JOINED, DEFERRED, MADE, *BATCH)),
    unfinished=64 * KIB,
    reserved=LEFT_OPEN.size,
)

# Servers that die one after the other, each at the given passing of a point, the first by default. What one leaves, the
# next begins with; the client does what it does from the start, so that some points come up again later.
SERVERS = {
    "start": ("owner.after_token_file", "user.after_commit", "directory.after_mkdir", "sweep.after_claim"),
    "sweep": ("sweep.after_rebuild",),
    "open": (
        "directory.after_mkdir:4",  # the month; before it temp, trash and the year
        "open.after_mkdir",
        "open.after_data_file",
        "open.after_digest_file",
        "open.after_map_file",
        "open.after_directory_sync",
        "open.after_create",
        "open.after_commit",
        "hydrate.after_rebuild",
        "tell.after_commit",
    ),
    "chunk": (
        "chunk.after_data_write",
        "chunk.after_data_sync",
        "chunk.after_map_record",
        "chunk.after_map_sync",
        "chunk.after_record",
    ),
    "tail": ("tail.after_map_record", "tail.after_map_sync", "tail.after_record"),
    "deferred length": (
        "grow.after_commit",
        "length.after_commit",
        "length.after_data",
        "length.after_map_record",
        "length.after_map",
    ),
    "last chunk": ("chunk.after_record:6",),  # of a file: it settles
    "frontier": ("frontier.after_save", "frontier.after_save:3"),
    "flush": ("flush.after_claim", "flush.after_commit"),
    "ack": ("flush.after_ack",),
    "large": ("merge.after_account",),
    "digest": ("merge.after_data_sync", "merge.after_digest_write"),
    # The announcement of the withdrawal, of a merge, of an instant upload, of a cancellation.
    "announce": tuple(f"close.after_announce:{nth}" for nth in (1, 2, 4, 3)),
    "withdraw": ("withdraw.after_commit", "withdraw.after_digest", "withdraw.after_map_record", "withdraw.after_map"),
    "blob": (
        "blob.after_link",
        "merge.after_commit",
        "trash.after_link",
        "blob.after_own_link",
        "blob.after_rename",
        "blob.after_directory_sync",
        "directory.after_mkdir",  # of a blob
    ),
    "clear": (
        "clear.after_forget",
        "discard.after_unlink",
        "delete.after_commit",
        "discard.after_unlink:2",
        "collect.after_unlink",
        "discard.after_unlink:3",
    ),
    "close": ("instant.after_commit", "close.after_commit"),
    "whole": ("arrival.after_write", "blob.after_draft", "whole.after_commit", "arrival.after_sync"),
    "join": (
        "order.after_commit",
        "join.after_link",
        "join.after_link:2",
        "join.after_maps",
        "join.after_commit",
        "chunk.after_map_record",  # perhaps while it is filled
    ),
    # The first of them while a signature is written; the other one, by then, in the midst of a chunk of instructions.
    "made": ("signature.after_draft", "chunk.after_map_sync:4"),
    "batch": ("arrival.after_write:2", "whole.after_commit:2"),
}
FIRST_STARTS = ("installation.after_proposal", "installation.after_fact", "installation.after_mark")
CLEANUPS = (
    "tidy.after_forget",
    "remove.after_unlink",
    "trash.after_rename",
    "month.after_rmdir",
    "trash.after_link",
    "stray.after_unlink",
)
HEALING, PURGE = "heal.after_restore", "trash.after_purge"
# Of a content that came without an MD5.
READING_BACK = "md5.after_blob"
# In tests/acceptance/long/test_interrupted_migrations.py, where there are databases that commit with each statement.
MIGRATION = "migrate.after_statement"
# In tests/integration/test_tails.py: a tail that goes with its chunk.
WITHDRAWN_TAIL = "withdraw.after_tail"
# In tests/integration/test_backups.py.
BACKUPS = (
    "backup.after_dump",
    "backup.after_blobs",
    "backup.after_note",
    "backup.after_removal",
    "restore.after_mark",
    "restore.after_blobs",
)
# In tests/acceptance/long/test_s3_crash_points.py.
ON_S3 = (
    "mark.after_proposal",
    "mark.after_mark",
    "object.after_multipart",
    "object.after_open",
    "object.after_part",
    "object.after_row",
    "object.after_tail",
    "object.after_last_part",
    "object.after_freeze",
    "object.after_parts",
    "object.after_complete",
    "object.after_digest",
    "object.after_remove",
    "join.after_complete",
    "join.after_pieces",
    "arrival.after_put",
    "signature.after_put",
    "trash.after_delete",
)
REPAIR, RESETS = "repair.after_commit", ("reset.after_key", "reset.after_keys")
# After these there may be a directory in temp that nobody asks for any more: it goes when it is an hour old. Jobs die
# whatever the client is doing at that moment, so also while it opens an upload.
ORPHANED = ("open.after_", "clear.after_forget", "discard.after_unlink", "flush.", "sweep.", "join.")

# Of who waits for what is to happen, on a machine that is slow.
_PATIENCE_SECONDS = 30

SETTINGS = {"QUIET_INTERVAL": "100ms", "CLAIM_LEASE": "1s", "FREE_SPACE_FLOOR": "0"}


@dataclass
class Client:
    """Does all that can be done, in a fixed order; told to do it again, it comes to the same end."""

    data: Path
    large: bool = False
    acknowledged: dict[str, set[int]] = field(default_factory=dict)
    rotten: bool = False
    appended: int = 0
    parts: dict[int, str] = field(default_factory=dict)
    deferred: str | None = None

    async def run(self, url: str, token: str) -> None:
        async with httpx2.AsyncClient(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=30
        ) as self.http:
            await self._leave_open()
            await self._open(CANCELLED)
            await self._put(CANCELLED, 0)
            await eventually(lambda: self._are_flushed(128 * KIB), _PATIENCE_SECONDS)  # while nothing else is under way
            if self.large:
                await self._upload(LARGE, [1, 2, 3, 0])
            await self._upload_what_rots()
            kept = await self._upload(KEPT, [2, 0, 1])
            file = await self._upload(DELETED, [1, 0])
            self.acknowledged.pop(DELETED.md5, None)
            await self._expect("DELETE", f"/me/files/{file['id']}", {204})
            await self._finish_instantly()
            self.acknowledged.pop(CANCELLED.md5)
            await self._expect("DELETE", f"/files/{CANCELLED.md5}", {204})
            await self._send_whole()
            await self._append()
            await self._join()
            await self._append_deferred()
            await self._make_of(kept["id"])
            await self._compare_files()

    async def _expect(self, method: str, path: str, statuses: set[int], **more: Any) -> Any:
        response = await self.http.request(method, path, **more)
        assert response.status_code in statuses, response.text
        return response.json() if response.content else None

    async def _open(self, content: Content) -> Any:
        body = {"name": content.name, "size": content.size, "chunk_size": content.chunk_size}
        answer = await self._expect("POST", f"/files/{content.md5}", {200, 201}, json=body)
        self._check_missing(content, answer)
        return answer

    async def _open_by_id(self, content: Content, key: str) -> Any:
        body = {"name": f"{key}.bin", "size": content.size, "chunk_size": content.chunk_size}
        return await self._expect("POST", "/uploads", {200, 201}, json=body, headers={"Idempotency-Key": key})

    def _check_missing(self, content: Content, answer: Any) -> None:
        acknowledged = self.acknowledged.setdefault(content.md5, set())
        if answer["state"] == "uploading":
            missing = {n for first, last in answer["upload"]["missing"] for n in range(first, last + 1)}
            assert not missing & acknowledged, f"acknowledged chunks of {content.name} are missing"

    async def _put(self, content: Content, number: int, statuses: frozenset[int] = frozenset({200, 201})) -> Any:
        path = f"/files/{content.md5}/chunks/{number}"
        answer = await self._expect("PUT", path, set(statuses), content=content.chunk(number))
        self.acknowledged[content.md5].add(number)
        return answer

    async def _leave_open(self) -> None:
        """An upload that is opened by id; its MD5 is told when its first chunk is there."""
        answer = await self._open_by_id(LEFT_OPEN, "open")
        self._check_missing(LEFT_OPEN, answer)
        path = f"/uploads/{answer['upload']['id']}"
        await self._expect("PUT", f"{path}/chunks/0", {200}, content=LEFT_OPEN.chunk(0))
        self.acknowledged[LEFT_OPEN.md5].add(0)
        await self._expect("PATCH", path, {200}, json={"md5": LEFT_OPEN.md5})

    async def _upload(self, content: Content, order: list[int]) -> Any:
        answer = await self._open(content)
        for number in order if answer["state"] == "uploading" else []:
            answer = await self._put(content, number)
        if answer["state"] != "complete":
            answer = await self._expect("POST", f"/files/{content.md5}/merge", {200, 201})
        return answer["file"]

    async def _upload_what_rots(self) -> None:
        """Two chunks go bad on the disk before they are hashed, for want of the first; are missing again when that is there,
        and are sent again."""
        answer = await self._open(ROTTEN)
        if answer["state"] == "uploading" and not self.rotten:
            for number in (1, 2):
                await self._put(ROTTEN, number)
            await eventually(lambda: self._are_flushed(240 * KIB))  # so long, no body is kept for the digests
            self._rot(answer["upload"]["id"])
        either = frozenset({200, 201, 409})
        while answer.get("state") != "complete":
            await self._put(ROTTEN, 0, either)
            answer = await self._expect("POST", f"/files/{ROTTEN.md5}/merge", set(either))
            for number in (n for first, last in answer.get("missing", []) for n in range(first, last + 1)):
                await self._put(ROTTEN, number, either)

    def _rot(self, upload_id: str) -> None:
        (path,) = self.data.glob(f"temp/*/*/{upload_id}/data")
        with path.open("r+b") as data:
            for number in (1, 2):
                data.seek(number * ROTTEN.chunk_size + 17)
                data.write(bytes([ROTTEN.chunk(number)[17] ^ 1]))
        self.rotten = True
        self.acknowledged[ROTTEN.md5] -= {1, 2}

    async def _finish_instantly(self) -> None:
        """An upload that is opened by id, and turns out to be content that is there already."""
        answer = await self._open_by_id(KEPT, "copy")
        if answer["state"] == "complete":
            return
        path = f"/uploads/{answer['upload']['id']}"
        await self._expect("PUT", f"{path}/chunks/0", {200}, content=KEPT.chunk(0))
        await self._expect("PATCH", path, {200, 201}, json={"md5": KEPT.md5})

    async def _send_whole(self) -> None:
        """One file in a request, of which other bytes have the place; and many in one."""
        query = {"name": WHOLE.name}
        await self._expect("PUT", f"/files/{WHOLE.md5}", {200, 201}, params=query, content=WHOLE.data)
        members = archive(*(Entry(content.name, content.data) for content in BATCH))
        answer = await self._expect("POST", "/files/batch", {200}, content=members)
        assert {each["status"] for each in answer["results"]} <= {200, 201}

    async def _append(self) -> None:
        """By tus, as a client that asks for the offset after each lost answer."""
        answer = await self._open_by_id(STREAMED, "stream")
        path, tus = f"/resumable/{answer.get('upload', {}).get('id')}", {"Tus-Resumable": "1.0.0"}
        for end in (100, 70 * KIB, 140 * KIB, STREAMED.size) if answer["state"] == "uploading" else ():
            asked = await self.http.head(path, headers=tus)
            assert asked.status_code == 200
            offset = int(asked.headers["upload-offset"])
            assert offset >= self.appended, "appended bytes are lost"
            if offset < end:
                headers = {**tus, "Upload-Offset": str(offset), "Content-Type": "application/offset+octet-stream"}
                await self._expect("PATCH", path, {204}, content=STREAMED.data[offset:end], headers=headers)
                self.appended = end

    async def _join(self) -> None:
        """Two parts that become one file."""
        tus, length = {"Tus-Resumable": "1.0.0"}, 80 * KIB
        for number in (0, 1):
            data = JOINED.data[number * length :][:length]
            path = await self._part(number, len(data))
            asked = await self.http.head(path, headers=tus)
            assert asked.status_code == 200
            offset = int(asked.headers["upload-offset"])
            if offset < len(data):
                headers = {**tus, "Upload-Offset": str(offset), "Content-Type": "application/offset+octet-stream"}
                await self._expect("PATCH", path, {204}, content=data[offset:], headers=headers)
        whole = {"Upload-Concat": f"final;{self.parts[0]} {self.parts[1]}", "Upload-Metadata": "name am9pbmVkLmJpbg=="}
        response = await self.http.post("/resumable", headers={**tus, **whole})
        assert response.status_code == 201, response.text
        await eventually(lambda: self._is_joined(response.headers["location"]), _PATIENCE_SECONDS)

    async def _part(self, number: int, size: int) -> str:
        """One that was opened before, also if its opener did not hear of it; else a new one."""
        name = f"part-{number}"
        for upload in (await self._expect("GET", "/uploads", {200}))["uploads"]:
            if upload["name"] == name:
                self.parts[number] = f"/resumable/{upload['id']}"
        if number not in self.parts:
            said = {"Upload-Concat": "partial", "Upload-Length": str(size)}
            said["Upload-Metadata"] = f"name {base64.b64encode(name.encode()).decode()}"
            response = await self.http.post("/resumable", headers={"Tus-Resumable": "1.0.0", **said})
            assert response.status_code == 201, response.text
            self.parts[number] = httpx2.URL(response.headers["location"]).path
        return self.parts[number]

    async def _is_joined(self, url: str) -> bool:
        return "upload-offset" in (await self.http.head(url, headers={"Tus-Resumable": "1.0.0"})).headers

    async def _append_deferred(self) -> None:
        """By tus, as a client that tells the length when it comes to the end."""
        tus = {"Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream"}
        if self.deferred is None:
            said = {"Upload-Defer-Length": "1", "Upload-Metadata": f"name {b64encode(DEFERRED.name.encode()).decode()}"}
            created = await self.http.post("/resumable", headers={"Tus-Resumable": "1.0.0", **said})
            assert created.status_code == 201
            self.deferred = httpx2.URL(created.headers["location"]).path
        for end in (100, 70 * KIB, DEFERRED.size):
            asked = await self.http.head(self.deferred, headers=tus)
            assert asked.status_code == 200
            offset = int(asked.headers["upload-offset"])
            if offset < end:
                said = {"Upload-Length": str(DEFERRED.size)} if end == DEFERRED.size else {}
                headers = {**tus, **said, "Upload-Offset": str(offset)}
                await self._expect("PATCH", self.deferred, {204}, content=DEFERRED.data[offset:end], headers=headers)

    async def _make_of(self, base_id: str) -> None:
        """A content of which most is there."""
        answer = await self._open(MADE)
        signature = await self.http.get(f"/me/files/{base_id}/signature")
        assert signature.status_code == 200
        bodies = [literal(b"front") + copied(0, 64 * KIB - 5), copied(64 * KIB - 5, 64 * KIB)]
        bodies.append(copied(128 * KIB - 5, 32 * KIB + 5))
        for number, body in enumerate(bodies if answer["state"] == "uploading" else []):
            path = f"/files/{MADE.md5}/chunks/{number}?base={base_id}"
            await self._expect("PUT", path, {200, 201}, content=body)
            self.acknowledged[MADE.md5].add(number)

    async def _are_flushed(self, received_bytes: int) -> bool:
        usage = await self._expect("GET", "/me/usage", {200})
        return bool(usage["use_space_unfinished"] >= received_bytes)

    async def _compare_files(self) -> None:
        contents = {"copy.bin": KEPT, "kept.bin": KEPT, "rotten.bin": ROTTEN}
        contents |= {content.name: content for content in (STREAMED, JOINED, DEFERRED, MADE)}
        contents |= {content.name: content for content in (WHOLE, *BATCH)}
        if self.large:
            contents["large.bin"] = LARGE
        files = (await self._expect("GET", "/me/files", {200}))["files"]
        assert sorted(file["name"] for file in files) == sorted(contents)
        for file in files:
            downloaded = await self.http.get(f"/me/files/{file['id']}/content")
            assert downloaded.content == contents[file["name"]].data


class Installation:
    """A data directory, its database, and one server or command at a time."""

    def __init__(self, directory: Path, template: Path) -> None:
        self.data, self.log = directory / "data", directory / "log"
        self.data.mkdir(mode=0o700)
        shutil.copy(template, self.data / "uploader.db")
        self.database = Database(f"sqlite:///{self.data / 'uploader.db'}")
        self.settings = SETTINGS | {"DATA": str(self.data)}

    def stray_blob(self, content: Content) -> None:
        """Bytes without a row where a blob is to be, as a merge leaves them that was cancelled."""
        path = self.data / "blobs" / content.sha256[:2] / content.sha256[2:4] / content.sha256
        path.parent.mkdir(parents=True)
        path.write_bytes(b"stray")

    async def md5s(self) -> set[str | None]:
        """Of all blobs and files."""
        async with self.database.engine.connect() as connection:
            return {
                md5 for table in (models.blob, models.file) for (md5,) in await connection.execute(select(table.c.md5))
            }

    def adopt(self) -> None:
        """Let bytes without rows be this database's own."""
        assert run_cli(self.settings, "adopt", "--yes").returncode == 0

    def token(self) -> str:
        return owner_token(self.data)

    async def die_serving(self, client: Client, armed: str) -> None:
        """A server that dies at a point while the client uses it, or by itself."""
        port = free_port()
        doomed = Process(self.log, self.settings | {"TEST_CRASH_AT": armed}, "serve", "--port", str(port))
        with ended(doomed):
            await eventually(lambda: _is_dead_or_ready(doomed, port), _PATIENCE_SECONDS)
            with contextlib.suppress(httpx2.TransportError):
                await client.run(f"http://127.0.0.1:{port}", self.token())
            with contextlib.suppress(subprocess.TimeoutExpired):
                doomed.process.wait(timeout=_PATIENCE_SECONDS)
            assert doomed.process.returncode == -signal.SIGKILL, f"{armed} was not passed"
        await checked_accounts(self.database)

    async def run(self, client: Client, *, orphans: bool = False) -> dict[str, Account]:
        """A server that lives; the accounts when the client has finished and all is at rest."""
        server = Server(self.log, self.settings)
        with ended(server):
            await client.run(server.url, self.token())
            async with Redis(unix_socket_path=socket_path(self.data / "redis")) as redis:
                return await rests_within(
                    _PATIENCE_SECONDS, lambda: check_at_rest(self.database, redis, self.data, orphans=orphans)
                )

    async def die_running(self, armed: str, *command: str) -> None:
        """A command that dies at a point."""
        assert run_cli(self.settings | {"TEST_CRASH_AT": armed}, *command).returncode == -signal.SIGKILL, armed
        await checked_accounts(self.database)


async def _is_dead_or_ready(process: Process, port: int) -> bool:
    return process.process.poll() is not None or answers(port)


@pytest.fixture
async def installation(tmp_path: Path, sqlite_template: Path) -> AsyncIterator[Installation]:
    made = Installation(tmp_path, sqlite_template)
    yield made
    await made.database.close()


@pytest.mark.parametrize("deaths", SERVERS.values(), ids=SERVERS)
async def test_a_server_that_dies_between_two_durable_effects_loses_and_invents_nothing(
    deaths: tuple[str, ...], installation: Installation
) -> None:
    client = Client(installation.data, large="merge.after_account" in deaths)
    installation.stray_blob(KEPT)
    installation.stray_blob(WHOLE)
    installation.adopt()
    for armed in deaths:
        await installation.die_serving(client, armed)
    accounts = await installation.run(client, orphans=any(armed.startswith(ORPHANED) for armed in deaths))
    expected = replace(EXPECTED, finished=EXPECTED.finished + LARGE.size) if client.large else EXPECTED
    assert accounts == {"owner": expected}


@pytest.mark.parametrize("armed", FIRST_STARTS)
async def test_a_first_start_that_dies_is_ended_by_the_next(installation: Installation, armed: str) -> None:
    await installation.die_running(armed, "serve", "--port", str(free_port()))
    assert run_cli(installation.settings, "token", "list").returncode == 0, "commands work in between"
    assert not (installation.data / "installation").exists() or armed == "installation.after_mark"
    server = Server(installation.log, installation.settings)
    with ended(server):
        assert server.stop() == 0
    said = run_cli(installation.settings, "installation").stdout.split()
    assert [each for each in said if len(each) == 32] == 3 * [said[-1]]
    assert [path.name for path in installation.data.glob("installation*")] == ["installation"]


async def test_a_cleanup_that_dies_is_ended_by_the_next(installation: Installation, tmp_path: Path) -> None:
    directories = [installation.data / "temp/2020/01" / f"{number:032x}" for number in (1, 2)]
    for directory in directories:
        directory.mkdir(parents=True)
        for name in ("data", "map", "digest"):
            (directory / name).write_bytes(b"orphan")
    with_chunks = installation.data / "temp/2020/02" / f"{3:032x}"
    with_chunks.mkdir(parents=True)
    (with_chunks / "map").write_bytes(bytes(chunks.MAP_RECORDS_OFFSET) + chunks.map_record(0))
    for content in (KEPT, DELETED):
        installation.stray_blob(content)
    installation.adopt()
    later = tmp_path / "two hours"
    later.write_text("7200")
    installation.settings["TEST_CLOCK"] = str(later)
    for armed in CLEANUPS:
        await installation.die_running(armed, "cleanup", "--yes")
    assert run_cli(installation.settings, "cleanup", "--yes").returncode == 0
    assert not [path for name in ("temp", "blobs") for path in (installation.data / name).rglob("*") if path.is_file()]
    assert not any(directory.parent.exists() for directory in (*directories, with_chunks))
    assert len(list(installation.data.glob("trash/uploads/*/map"))) == 1
    assert {path.name[:64] for path in installation.data.glob("trash/blobs/*/*")} == {KEPT.sha256, DELETED.sha256}
    async with installation.database.engine.connect() as connection:
        assert (await connection.execute(select(func.count()).select_from(models.blob))).scalar() == 0


async def test_a_healing_and_a_purge_that_die_are_ended_by_the_next(installation: Installation) -> None:
    client = Client(installation.data)
    await installation.run(client)
    trash = installation.data / "trash/blobs" / KEPT.sha256[:2]
    trash.mkdir(exist_ok=True)
    blob_path(installation.data, KEPT.sha256).rename(trash / f"{KEPT.sha256}.{1:032x}")
    await installation.die_running(HEALING, "scrub")
    assert run_cli(installation.settings, "scrub", "--restart").returncode == 0
    await installation.die_running(PURGE, "trash", "empty", "--yes")
    assert run_cli(installation.settings, "trash", "empty", "--yes").returncode == 0
    assert not list(installation.data.glob("trash/*/*/*"))
    assert await installation.run(client) == {"owner": EXPECTED}


async def test_a_scrub_that_dies_when_it_has_computed_an_md5_is_ended_by_the_next(installation: Installation) -> None:
    tus = {"Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream"}
    server = Server(installation.log, installation.settings)
    with ended(server):
        headers = {"Authorization": f"Bearer {installation.token()}"}
        async with httpx2.AsyncClient(base_url=server.url, headers=headers) as http:
            facts = {**tus, "Upload-Length": str(STREAMED.size)}
            assert (await http.post("/resumable", content=STREAMED.data, headers=facts)).status_code == 201
    assert await installation.md5s() == {None}
    await installation.die_running(READING_BACK, "scrub", "--restart")
    assert await installation.md5s() == {None}, "neither the blob nor the file"
    assert run_cli(installation.settings, "scrub", "--restart").returncode == 0
    assert await installation.md5s() == {STREAMED.md5}


async def test_a_repair_and_a_reset_that_die_are_ended_by_the_next(installation: Installation) -> None:
    client = Client(installation.data)
    await installation.run(client)
    uploads, users = models.upload.c, models.user_info.c
    async with installation.database.engine.begin() as connection:
        more = {"flushed_bytes": uploads.flushed_bytes + 9}
        await connection.execute(update(models.upload).where(uploads.state == "OPEN").values(**more))
        await connection.execute(update(models.user_info).values(use_space_unfinished=users.use_space_unfinished + 9))
    await installation.die_running(REPAIR, "reconcile", "--repair")
    found = run_cli(installation.settings, "reconcile", "--json")
    assert (found.returncode, json.loads(found.stdout)["drifts"]) == (0, [])
    for armed in RESETS:
        await installation.die_running(armed, "redis", "reset", "--yes")
    assert await installation.run(client) == {"owner": EXPECTED}


def test_every_crash_point_is_passed() -> None:
    armed = [
        MIGRATION,
        *FIRST_STARTS,
        *CLEANUPS,
        HEALING,
        READING_BACK,
        PURGE,
        WITHDRAWN_TAIL,
        REPAIR,
        *RESETS,
        *BACKUPS,
        *ON_S3,
        *(name for names in SERVERS.values() for name in names),
    ]
    assert {name.partition(":")[0] for name in armed} == set(NAMES)
