"""A byte of a row of SQLite that flipped harms the user of that row at most: every list, every job and every command goes on
with the others, and the reconciler names it."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import select, update

from tests.conftest import MakeStack
from tests.soak.flips.sqlite_rows import row_places
from tests.support.background import flush_due
from tests.support.clock import ManualClock
from tests.support.content import KIB, Content
from tests.support.process import run_cli
from tests.support.stack import Stack
from uploader.database import meta, models
from uploader.database.engine import Connection
from uploader.errors import DatabaseDamaged
from uploader.service import reconcile
from uploader.service.ids import greatest
from uploader.service.reconcile import Kind

CHUNK = 64 * KIB
BOBS = Content(CHUNK, seed=1, name="bob-is.bin")
BOBS_OPEN = Content(3 * CHUNK, seed=2, name="bob-sends.bin")
ALICES = Content(CHUNK, seed=3, name="alice-has.bin")
ALICES_OPEN = Content(3 * CHUNK, seed=4, name="alice-sends.bin")
# In which they are made.
YEAR = b"2030"

# The table, what is in a row of it, and what takes its place.
DAMAGES: dict[str, tuple[str, bytes, bytes]] = {
    "a moment of a file": ("file", YEAR, b"20\x053"),
    "a moment of a file that is no text": ("file", YEAR, b"20\x823"),
    "the name of a file": ("file", b"bob-is", b"bob\x82is"),
    "the name of a file, with a NUL": ("file", b"bob-is", b"bob\0is"),
    "the user of a file": ("file", b"bobby", b"b\x9fbby"),
    "the SHA-256 of a file": ("file", BOBS.sha256.encode(), b"\xc3" + BOBS.sha256[1:].encode()),
    "the user of a user": ("user_info", b"bobby", b"b\xacbby"),
    "the user of a token": ("token", b"bobby", b"b\xacbby"),
    "a moment of a token": ("token", YEAR, b"2\x8230"),
    "the MD5 of a blob": ("blob", BOBS.md5.encode(), b"\x82" + BOBS.md5[1:].encode()),
    "the SHA-256 of a blob": ("blob", BOBS.sha256.encode(), b"\xf3" + BOBS.sha256[1:].encode()),
    "the SHA-256 of a blob, with a NUL": ("blob", BOBS.sha256.encode(), b"\0" + BOBS.sha256[1:].encode()),
    "a moment of a blob": ("blob", YEAR, b"20\xef3"),
    "the state of an upload": ("upload", b"OPEN", b"OP\x8dN"),
    "another state of an upload": ("upload", b"OPEN", b"OPEM"),
    "the name of an upload": ("upload", b"bob-sends", b"bob\x82sends"),
    "the name of an upload, with a NUL": ("upload", b"bob-sends", b"bob\0sends"),
    "a moment of an upload": ("upload", YEAR + b"-01", b"2x30-01"),
}


def replaced_in_a_row(path: Path, table: str, of: bytes, old: bytes, new: bytes) -> None:
    """In the row that holds `of`; what indexes repeat of it stays as it was."""
    assert len(old) == len(new)
    content = bytearray(path.read_bytes())
    for place in row_places(path, table):
        record = bytes(content[place.offset : place.offset + place.length])
        if of in record and old in record:
            start = place.offset + record.index(old)
            content[start : start + len(old)] = new
            path.write_bytes(content)
            return
    raise AssertionError((table, of, old))


def at_rest(stack: Stack) -> Path:
    """The file of the database, with all that was written, and opened by nobody."""
    database = stack.services.database.engine
    database.sync_engine.dispose()
    path = Path(database.url.database or "")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


def damage(stack: Stack, table: str, old: bytes, new: bytes) -> None:
    """In bob's row, or in that of his content."""
    replaced_in_a_row(at_rest(stack), table, BOBS.md5.encode()[1:] if table == "blob" else b"bobby", old, new)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2030, 1, 31, 12, tzinfo=UTC))


@pytest.fixture
async def stack(
    make_stack: MakeStack, sqlite_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Stack]:
    monkeypatch.setattr(reconcile, "_PAUSE_SECONDS", 0.001)
    async with make_stack(database_url=sqlite_url, clock=clock, max_pending_bytes=1) as made:
        yield made


@pytest.fixture
async def bob(stack: Stack) -> httpx2.AsyncClient:
    """A user who has a file and an open upload, beside another one who has as much."""
    bob = await stack.client_of("bobby", total_space=1 << 40)
    for client, content, begun in ((bob, BOBS, BOBS_OPEN), (stack.client, ALICES, ALICES_OPEN)):
        assert (await stack.upload(content, client)).status_code == 201
        await stack.open(begun, client)
        assert (await stack.put(begun, 0, client)).status_code == 200
    await flush_due(stack)
    return bob


async def kinds_of(stack: Stack) -> set[Kind]:
    return {drift.kind for drift in (await stack.services.reconciling.reconcile()).drifts}


@pytest.mark.places
@pytest.mark.parametrize("what", DAMAGES)
async def test_a_damaged_row_is_named_and_harms_nobody_else(
    stack: Stack, bob: httpx2.AsyncClient, clock: ManualClock, what: str
) -> None:
    owner = await stack.client_of("owner", admin=True)
    assert await kinds_of(stack) == set()
    damage(stack, *DAMAGES[what])

    assert Kind.DATABASE in await kinds_of(stack)
    for path in ("/admin/usage", "/admin/usage?sort=files", "/admin/uploads", "/admin/usage/summary"):
        assert (await owner.get(path)).status_code == 200, path
    # Of bob's own lists none is an error.
    if DAMAGES[what][0] != "token":
        for path in ("/me/files", "/uploads", "/me/usage"):
            assert (await bob.get(path)).status_code == 200, path

    # The other user goes on, and so does every job.
    assert (await stack.put(ALICES_OPEN, 1)).status_code == 200
    await stack.put(BOBS_OPEN, 1, bob)
    await flush_due(stack)
    assert (await stack.client.get("/me/usage")).json()["use_space_unfinished"] == 2 * CHUNK
    assert [each["id"] for each in (await stack.client.get("/me/files")).json()["files"]]
    assert [found async for found in stack.services.scrubbing.scrub(lambda _bytes: None)] == []
    assert stack.services.scrubbing.progress.blobs == 2
    clock.advance(40 * 86400)
    await stack.services.scrubbing.scrub_due(lambda _bytes: None)
    expiry = stack.services.expiry
    idle_since = clock.now() - timedelta(seconds=expiry.expiry_seconds)
    await expiry.expire(await expiry.idle(idle_since, after_id=""))
    assert (await stack.client.get("/uploads")).json()["uploads"] == []


async def test_a_page_that_is_no_page_is_told_as_what_it_is(stack: Stack, bob: httpx2.AsyncClient) -> None:
    path = at_rest(stack)
    content = bytearray(path.read_bytes())
    start = next(place.offset for place in row_places(path, "file")) // 4096 * 4096
    content[start] = 0xFF
    path.write_bytes(content)
    with pytest.raises(DatabaseDamaged):
        await stack.services.files.list("bobby", limit=9, after=None, prefix=None)
    response = await bob.get("/me/files")
    assert (response.status_code, response.json()["code"]) == (503, "unavailable")
    assert "uploader reconcile" in response.json()["detail"]
    found = await stack.services.reconciling.reconcile()
    assert Kind.DATABASE in {drift.kind for drift in found.drifts}
    # What is not in this table was looked at all the same.
    assert found.checked["uploads"] == 2


async def test_a_file_that_is_not_as_its_blob_says_is_named(stack: Stack, bob: httpx2.AsyncClient) -> None:
    database = stack.services.database
    other = "0" * 32
    async with database.engine.begin() as connection:
        await connection.execute(update(models.file).where(models.file.c.user_id == "bobby").values(md5=other))
        file_id = (await connection.execute(select(models.file.c.id).where(models.file.c.md5 == other))).scalar()
    found = await stack.services.recounting.recount()
    assert [(drift.kind, drift.subject) for drift in found.drifts] == [(Kind.FILE, file_id)]


@pytest.mark.parametrize("until", ["2030-01-31T12:0k:30+00:00", "2930-01-31T12:00:30+00:00", "\ufffd"])
async def test_a_lease_that_nobody_can_have_holds_up_nobody(stack: Stack, clock: ManualClock, until: str) -> None:
    now = clock.now()

    async def leased(connection: Connection) -> bool:
        await meta.replace_fact(connection, "scrubber", f"another {until}")
        return await meta.lease(connection, "scrubber", "me", now=now, until=now + timedelta(seconds=60))

    assert await stack.services.database.transact(leased)


@pytest.mark.parametrize("value", [b"\x82", b"\xff1", b""])
def test_shards_that_are_no_number_end_a_command_with_one_line(tmp_path: Path, value: bytes) -> None:
    settings = {"DATA": str(tmp_path / "data")}
    assert run_cli(settings, "reconcile").returncode == 0
    with closing(sqlite3.connect(tmp_path / "data" / "uploader.db")) as connection:
        connection.execute("UPDATE meta SET value = ? WHERE name = ?", (value, b"shards"))
        connection.commit()
    for command in ("reconcile", "work", "serve"):
        ended = run_cli(settings | {"PORT": "0"}, command)
        assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1), ended.stderr
        assert ended.stderr.startswith("uploader: UPLOADER_SHARDS: this installation has")


def test_a_walk_goes_on_whatever_ids_a_page_holds() -> None:
    assert greatest("", ["1", "2"]) == "2"
    assert greatest("2", ["3", "\ufffd", "4"]) == "4"
    # The index has it after "2", the row says "1": the same page would come for ever.
    assert greatest("2", ["1"]) > "f" * 32
    assert greatest("2", ["\ufffd"]) > "f" * 32
