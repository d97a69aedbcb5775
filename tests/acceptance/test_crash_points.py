"""The server, or a command, dies at every line between two durable effects and is started again, and its client finishes
as if nothing had been: no acknowledged byte is lost, none is counted twice."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from sqlalchemy import func, select, update

from tests.support.archives import Entry, archive
from tests.support.at_rest import check_at_rest, rests_within
from tests.support.chosen import PLACES, chosen
from tests.support.content import KIB, MIB, Content
from tests.support.crashing import Dying, Sender
from tests.support.deltas import copied, literal
from tests.support.invariants import Account
from tests.support.layout import blob_path
from tests.support.process import Server, ended, run_cli
from tests.support.resumable import Tus
from tests.support.servers import free_port
from tests.support.waiting import PATIENCE_SECONDS, eventually
from uploader.database import models
from uploader.database.transactions.bulk import NAMES_AT_ONCE
from uploader.runtime.crashpoints import NAMES
from uploader.runtime.embedded import socket_path
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
LARGE = Zeros(256 * MIB, chunk_size=64 * MIB, name="large.bin")  # accounting comes before the end of hashing
# These have checksums of their blocks beside them.
WHOLE = Content(300 * KIB, seed=6, name="whole.bin")
STREAMED = Content(300 * KIB, seed=20, name="stream.bin")
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
        "blob.after_checksums",
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
    "whole": (
        "arrival.after_write",
        "checksums.after_draft",
        "blob.after_draft",
        "whole.after_commit",
        "arrival.after_sync",
    ),
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
    "trash.after_link",
    "stray.after_unlink",
    "month.after_rmdir",
)
RESTORES = ("undelete.after_row", "undelete.after_place", "undelete.after_commit")
# Before the first range of names, after each one, and after the last one.
BULK = ("bulk.after_begin", *(f"bulk.after_range:{number}" for number in range(1, 4)))
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
# In tests/integration/test_copies.py, by their order.
COPIES = ("copy.after_draft", "copy.after_name", "restore.after_draft", "restore.after_part")
# Where others are armed by their names.
ON_S3 = Path(__file__).parent / "long" / "test_s3_crash_points.py"
REPAIR, RESETS = "repair.after_commit", ("reset.after_key", "reset.after_keys")
# After these there may be a directory in temp that nobody asks for any more: it goes when it is an hour old. Jobs die
# whatever the client is doing at that moment, so also while it opens an upload.
ORPHANED = ("open.after_", "clear.after_forget", "discard.after_unlink", "flush.", "sweep.", "join.", "length.")

# So many of these a run tries, as the commit chooses.
GROUPS = 8

SETTINGS = {"QUIET_INTERVAL": "100ms", "CLAIM_LEASE": "1s", "FREE_SPACE_FLOOR": "0"}


class Client(Sender):
    """Does all that can be done, in a fixed order."""

    def __init__(self, installation: "Installation", *, large: bool = False) -> None:
        super().__init__()
        self._installation = installation
        self.large = large
        self.acknowledged: dict[str, set[int]] = {}
        self.rotten = False

    async def run(self, url: str) -> None:
        async with self._installation.http(url) as self.http:
            await self._leave_open()
            await self._open(CANCELLED)
            await self._put(CANCELLED, 0)
            await eventually(lambda: self._are_flushed(128 * KIB))  # while nothing else is under way
            if self.large:
                await self._upload(LARGE, [1, 2, 3, 0])
            await self._upload_what_rots()
            kept = await self._upload(KEPT, [2, 0, 1])
            file = await self._upload(DELETED, [1, 0])
            self.acknowledged.pop(DELETED.md5, None)
            await self.expect("DELETE", f"/me/files/{file['id']}", 204)
            await self._finish_instantly()
            self.acknowledged.pop(CANCELLED.md5)
            await self.expect("DELETE", f"/files/{CANCELLED.md5}", 204)
            await self._send_whole()
            await self.append_to_upload(STREAMED, "stream", 100, 70 * KIB, 140 * KIB)
            await self.join(JOINED, 80 * KIB)
            await self._append_deferred()
            await self._make_of(kept["id"])
            await self._compare_files()

    async def _open(self, content: Content) -> Any:
        answer = await self.opening(content)
        self._check_missing(content, answer)
        return answer

    def _check_missing(self, content: Content, answer: Any) -> None:
        acknowledged = self.acknowledged.setdefault(content.md5, set())
        if answer["state"] == "uploading":
            missing = {n for first, last in answer["upload"]["missing"] for n in range(first, last + 1)}
            assert not missing & acknowledged, f"acknowledged chunks of {content.name} are missing"

    async def _put(self, content: Content, number: int, *statuses: int) -> Any:
        path = f"/files/{content.md5}/chunks/{number}"
        answer = await self.ask("PUT", path, 200, 201, *statuses, content=content.chunk(number))
        self.acknowledged[content.md5].add(number)
        return answer

    async def _leave_open(self) -> None:
        """An upload that is opened by id; its MD5 is told when its first chunk is there."""
        answer = await self.open_by_id(LEFT_OPEN, "open")
        self._check_missing(LEFT_OPEN, answer)
        path = f"/uploads/{answer['upload']['id']}"
        await self.ask("PUT", f"{path}/chunks/0", 200, content=LEFT_OPEN.chunk(0))
        self.acknowledged[LEFT_OPEN.md5].add(0)
        await self.ask("PATCH", path, 200, json={"md5": LEFT_OPEN.md5})

    async def _upload(self, content: Content, order: list[int]) -> Any:
        answer = await self._open(content)
        for number in order if answer["state"] == "uploading" else []:
            answer = await self._put(content, number)
        if answer["state"] != "complete":
            answer = await self.ask("POST", f"/files/{content.md5}/merge", 200, 201)
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
        while answer.get("state") != "complete":
            await self._put(ROTTEN, 0, 409)
            answer = await self.ask("POST", f"/files/{ROTTEN.md5}/merge", 200, 201, 409)
            for number in (n for first, last in answer.get("missing", []) for n in range(first, last + 1)):
                await self._put(ROTTEN, number, 409)

    def _rot(self, upload_id: str) -> None:
        (path,) = self._installation.data.glob(f"temp/*/*/{upload_id}/data")
        with path.open("r+b") as data:
            for number in (1, 2):
                data.seek(number * ROTTEN.chunk_size + 17)
                data.write(bytes([ROTTEN.chunk(number)[17] ^ 1]))
        self.rotten = True
        self.acknowledged[ROTTEN.md5] -= {1, 2}

    async def _finish_instantly(self) -> None:
        """An upload that is opened by id, and turns out to be content that is there already."""
        answer = await self.open_by_id(KEPT, "copy")
        if answer["state"] == "complete":
            return
        path = f"/uploads/{answer['upload']['id']}"
        await self.ask("PUT", f"{path}/chunks/0", 200, content=KEPT.chunk(0))
        await self.ask("PATCH", path, 200, 201, json={"md5": KEPT.md5})

    async def _send_whole(self) -> None:
        """One file in a request, of which other bytes have the place; and many in one."""
        await self.whole(WHOLE)
        members = archive(*(Entry(content.name, content.data) for content in BATCH))
        answer = await self.ask("POST", "/files/batch", 200, content=members)
        assert {each["status"] for each in answer["results"]} <= {200, 201}

    async def _append_deferred(self) -> None:
        """The length is told with the last byte."""
        path = self.paths.get(DEFERRED.name) or await self.opened(DEFERRED.name)
        await self.append(path, DEFERRED, 100, 70 * KIB, DEFERRED.size, Upload_Length=str(DEFERRED.size))

    async def _make_of(self, base_id: str) -> None:
        """A content of which most is there."""
        answer = await self._open(MADE)
        signature = await self.http.get(f"/me/files/{base_id}/signature")
        assert signature.status_code == 200
        bodies = [literal(b"front") + copied(0, 64 * KIB - 5), copied(64 * KIB - 5, 64 * KIB)]
        bodies.append(copied(128 * KIB - 5, 32 * KIB + 5))
        for number, body in enumerate(bodies if answer["state"] == "uploading" else []):
            path = f"/files/{MADE.md5}/chunks/{number}?base={base_id}"
            await self.ask("PUT", path, 200, 201, content=body)
            self.acknowledged[MADE.md5].add(number)

    async def _are_flushed(self, received_bytes: int) -> bool:
        usage = await self.ask("GET", "/me/usage", 200)
        return bool(usage["use_space_unfinished"] >= received_bytes)

    async def _compare_files(self) -> None:
        contents = [KEPT, ROTTEN, STREAMED, JOINED, DEFERRED, MADE, WHOLE, *BATCH, *([LARGE] if self.large else [])]
        await self.check_files({content.name: content for content in contents} | {"copy.bin": KEPT})


class Installation(Dying):
    """With a disk of its own."""

    def stray_blob(self, content: Content) -> None:
        """Bytes without a row where a blob is to be, as a merge leaves them that was cancelled."""
        path = blob_path(self.data, content.sha256)
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

    async def run(self, client: Client, *, orphans: bool = False) -> dict[str, Account]:
        """A server that lives; the accounts when the client has finished and all is at rest."""
        server = Server(self.log, self.settings)
        with ended(server):
            await client.run(server.url)
            async with Redis(unix_socket_path=socket_path(self.data / "redis")) as redis:
                return await rests_within(
                    PATIENCE_SECONDS, lambda: check_at_rest(self.database, redis, self.data, orphans=orphans)
                )


@pytest.fixture
async def installation(tmp_path: Path, sqlite_template: Path) -> AsyncIterator[Installation]:
    made = Installation(tmp_path, sqlite_template, SETTINGS)
    yield made
    await made.database.close()


@pytest.mark.parametrize("of", chosen(list(SERVERS), max(GROUPS, PLACES), "crash points"))
async def test_a_server_that_dies_between_two_durable_effects_loses_and_invents_nothing(
    of: str, installation: Installation
) -> None:
    deaths = SERVERS[of]
    client = Client(installation, large="merge.after_account" in deaths)
    installation.stray_blob(KEPT)
    installation.stray_blob(WHOLE)
    installation.adopt()
    for armed in deaths:
        await installation.die_serving(armed, client.run)
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
    client = Client(installation)
    await installation.run(client)
    trash = installation.data / "trash/blobs" / KEPT.sha256[:2]
    trash.mkdir(exist_ok=True)
    blob_path(installation.data, KEPT.sha256).rename(trash / f"{KEPT.sha256}.{1:032x}")
    await installation.die_running(HEALING, "scrub")
    assert run_cli(installation.settings, "scrub", "--restart").returncode == 0
    await installation.die_running(PURGE, "store-trash", "empty", "--yes")
    assert run_cli(installation.settings, "store-trash", "empty", "--yes").returncode == 0
    assert not list(installation.data.glob("trash/*/*/*"))
    assert await installation.run(client) == {"owner": EXPECTED}


@pytest.mark.parametrize("many", [False, True])
async def test_next_call_completes_a_killed_restore(installation: Installation, many: bool) -> None:
    async def delete(url: str) -> None:
        async with installation.http(url) as http:
            answer = await http.post("/me/files", params={"name": DELETED.name}, content=DELETED.data)
            made.update(answer.json()["file"])
            assert (await http.delete(f"/me/files/{made['id']}")).status_code == 204

    async def restore(url: str) -> None:
        async with installation.http(url) as http:
            if many:
                (line,) = (await http.post("/me/trash/restore", json={"ids": [made["id"]]})).json()["results"]
                assert (line["status"], line["file"]) == (200, made)
            else:
                answer = await http.post(f"/me/trash/{made['id']}/restore")
                assert (answer.status_code, answer.json()) == (200, made)
            assert (await http.get(f"/me/files/{made['id']}/content")).content == DELETED.data

    made: dict[str, Any] = {}
    server = Server(installation.log, installation.settings)
    with ended(server):
        await delete(server.url)
    for armed in RESTORES:
        await installation.die_serving(armed, restore)
    server = Server(installation.log, installation.settings)
    with ended(server):
        await restore(server.url)
    assert not list(installation.data.glob("trash/*/*/*"))
    found = run_cli(installation.settings, "reconcile", "--json")
    assert (found.returncode, json.loads(found.stdout)["drifts"]) == (0, [])


async def test_repeated_call_or_job_completes_a_move_killed_at_any_range(
    installation: Installation,
) -> None:
    """Meanwhile each file has one name."""
    count, folders, expected = 2 * NAMES_AT_ONCE + 100, ("old/", "new/"), set[str]()

    async def names() -> set[str]:
        async with installation.database.engine.connect() as connection:
            return set((await connection.execute(select(models.file.c.name))).scalars())

    async def put(url: str) -> None:
        async with installation.http(url) as http:
            members = archive(*(Entry(f"old/{number:05}", b"%d" % number) for number in range(count)))
            assert (await http.post("/files/batch", content=members)).status_code == 200

    async def move(url: str) -> None:
        async with installation.http(url) as http:
            moved = await http.patch("/me/files", params={"prefix": folders[0]}, json={"prefix": folders[1]})
            assert (moved.status_code, moved.json()) == (200, {"files": count})

    async def is_moved() -> bool:
        return await names() == expected

    server = Server(installation.log, installation.settings)
    with ended(server):
        await put(server.url)
    for number, armed in enumerate(BULK):
        await installation.die_serving(armed, move)
        there = await names()
        assert len({name.rpartition("/")[2] for name in there}) == len(there) == count, armed
        expected = {f"{folders[1]}{number:05}" for number in range(count)}
        server = Server(installation.log, installation.settings)
        with ended(server):
            if number % 2:
                await eventually(is_moved)
            elif armed != BULK[-1]:
                await move(server.url)
        assert await is_moved()
        folders = folders[1], folders[0]
    found = run_cli(installation.settings, "reconcile", "--json")
    assert (found.returncode, json.loads(found.stdout)["drifts"]) == (0, [])


async def test_a_scrub_that_dies_when_it_has_computed_an_md5_is_ended_by_the_next(installation: Installation) -> None:
    server = Server(installation.log, installation.settings)
    with ended(server):
        async with installation.http(server.url) as http:
            assert (await Tus(http).create(STREAMED.size, STREAMED.data)).status_code == 201
    assert await installation.md5s() == {None}
    await installation.die_running(READING_BACK, "scrub", "--restart")
    assert await installation.md5s() == {None}, "neither the blob nor the file"
    assert run_cli(installation.settings, "scrub", "--restart").returncode == 0
    assert await installation.md5s() == {STREAMED.md5}


async def test_a_repair_and_a_reset_that_die_are_ended_by_the_next(installation: Installation) -> None:
    client = Client(installation)
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
    armed = {name.partition(":")[0] for names in SERVERS.values() for name in names}
    armed |= {
        MIGRATION,
        *FIRST_STARTS,
        *CLEANUPS,
        HEALING,
        *RESTORES,
        *(name.partition(":")[0] for name in BULK),
        READING_BACK,
        PURGE,
        WITHDRAWN_TAIL,
        REPAIR,
        *RESETS,
        *BACKUPS,
        *COPIES,
    }
    on_s3 = set(re.findall(r'"([a-z0-9]+\.after_[a-z_]+)', ON_S3.read_text()))
    assert armed | on_s3 == set(NAMES)
