"""Backups that are made while everything runs, and restored where nothing is."""

import asyncio
import errno
import gzip
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from sqlalchemy import select, text

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.dying import Death, dying
from tests.support.invariants import checked_accounts
from tests.support.layout import blob_path
from tests.support.rot import flip_bit
from tests.support.stack import Stack, running_stack
from uploader.bootstrap import Services, prepare_database
from uploader.database import copies, migrate, models
from uploader.database.copies import Dumped, check_empty, dump, load
from uploader.database.engine import Connection, Database
from uploader.domain.audit_log import Act
from uploader.errors import ConfigurationError
from uploader.service import backup, reconcile
from uploader.service.audit_log import Wanted
from uploader.service.backup import BackedUp, Copied
from uploader.settings import Settings
from uploader.storage.backups import BackupDirectory, BackupRefused
from uploader.storage.disk import Directory

CONTENTS = [Content(100 * KIB + seed, seed=seed, name=f"{seed}/\U0001f4c1 ü' a.bin") for seed in range(1, 4)]
OPEN = Content(3 * 64 * KIB, seed=9, name="open.bin")
# Of blocks that have checksums.
LARGE = Content(300 * KIB, seed=10, name="large.bin")


def nothing(_what: str, _done: int, _total: int) -> None:
    """Nobody listens."""


async def back_up(stack: Stack, to: Path, **options: Any) -> BackedUp:
    return await stack.services.backups.back_up(to, nothing, **options)


@pytest.fixture
def make_on_sqlite(make_stack: MakeStack, sqlite_url: str) -> MakeStack:
    """For what is so of SQLite alone, or is restored to one."""
    return partial(make_stack, database_url=sqlite_url)


@pytest.fixture
def blank_sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'restored' / 'uploader.db'}"


async def restore(data: Path, url: str, redis_url: str, backups: Path, stamp: str | None = None) -> Copied:
    """As the command does it."""
    services = Services(Settings(data=data, database_url=url, redis_url=redis_url))
    try:
        plan = await services.restoring.look(backups, stamp)
        return await services.restoring.restore(plan, nothing)
    finally:
        await services.close()


@asynccontextmanager
async def restored_stack(stack: Stack, data: Path, url: str, redis_url: str) -> AsyncIterator[Stack]:
    """What was restored from a backup of `stack`, as alice sees it."""
    async with running_stack(data, url, redis_url) as made:
        made.client.headers["Authorization"] = stack.client.headers["Authorization"]
        yield made


async def bytes_of_files(stack: Stack) -> dict[str, bytes]:
    """All files of alice, by their ids."""
    files = (await stack.client.get("/me/files")).json()["files"]
    return {file["id"]: (await stack.client.get(f"/me/files/{file['id']}/content")).content for file in files}


@asynccontextmanager
async def uploading(stack: Stack) -> AsyncIterator[None]:
    """Within, files come and go all the time."""

    async def go_on() -> None:
        number = 0
        while True:
            content = Content(KIB + number, seed=100, name=f"later/{number}")
            put = await stack.client.put(f"/files/{content.md5}", params={"name": content.name}, content=content.data)
            assert put.status_code == 201
            if number % 2:
                await stack.client.delete(f"/me/files/{put.json()['file']['id']}")
                await stack.services.files.collect_all()
            number += 1

    task = asyncio.create_task(go_on())
    try:
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_what_was_finished_before_a_backup_is_there_after_a_restore(
    make_stack_on: MakeStack, blank_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "_PAUSE_SECONDS", 0.001)  # nothing moves then
    async with make_stack_on() as stack:
        for content in CONTENTS:
            assert (await stack.upload(content)).status_code == 201
        await stack.upload(LARGE)
        await stack.open(OPEN)
        assert (await stack.put(OPEN, 0)).status_code == 200
        before = await bytes_of_files(stack)
        async with uploading(stack):
            made = await back_up(stack, tmp_path / "backups")
        assert made.copied.lacking == {}
        assert made.copied.linked_blobs == made.copied.blobs >= len(CONTENTS)
    copied = await restore(tmp_path / "restored", blank_url, redis_url, tmp_path / "backups")
    assert (copied.blobs, copied.lacking) == (made.copied.blobs, {})
    blobs = (blob_path(data, LARGE.sha256) for data in (stack.data, tmp_path / "restored"))
    lists = [blob.with_name(f"{blob.name}.checksums").read_bytes() for blob in blobs]
    assert lists[0] == lists[1]
    assert not list((tmp_path / "backups").rglob("*.checksums"))
    async with restored_stack(stack, tmp_path / "restored", blank_url, redis_url) as restored:
        after = await bytes_of_files(restored)
        assert before.items() <= after.items()
        await checked_accounts(restored.services.database)
        assert await restored.services.cleanup.count_lost() == 1
        assert [drift.kind for drift in (await restored.services.reconciling.reconcile()).drifts] == ["temp"]
        assert (await restored.services.cleanup.reset_unfinished(only_lost=True)).uploads == 1
        assert (await restored.services.reconciling.reconcile()).drifts == []
        assert (await restored.usage("alice"))["reserved"] == 0
        assert (await restored.upload(OPEN)).status_code == 201


async def test_a_file_that_is_deleted_while_it_is_backed_up_comes_from_the_trash(
    make_on_sqlite: MakeStack, blank_sqlite_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_on_sqlite() as stack:
        await stack.upload(CONTENTS[0])
        (file_id,) = await bytes_of_files(stack)

        async def dump_and_delete(*arguments: Any) -> Dumped:
            dumped = await dump(*arguments)
            await stack.client.delete(f"/me/files/{file_id}")
            await stack.services.files.collect_all()
            return dumped

        monkeypatch.setattr(backup, "dump", dump_and_delete)
        assert (await back_up(stack, tmp_path / "backups")).copied.lacking == {}
        assert await bytes_of_files(stack) == {}
    await restore(tmp_path / "restored", blank_sqlite_url, redis_url, tmp_path / "backups")
    async with restored_stack(stack, tmp_path / "restored", blank_sqlite_url, redis_url) as restored:
        assert await bytes_of_files(restored) == {file_id: CONTENTS[0].data}


async def test_a_second_backup_copies_what_is_new_and_old_ones_go(stack: Stack, tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    stamps = []
    for number, content in enumerate(CONTENTS):
        await stack.upload(content)
        made = await back_up(stack, backups)
        assert (made.copied.blobs, made.copied.new_blobs) == (number + 1, 1)
        assert made.copied.new_bytes == content.size
        stamps.append(made.stamp)
    (first, *_) = await bytes_of_files(stack)
    gone = (await stack.client.get(f"/me/files/{first}")).json()["sha256"]
    await stack.client.delete(f"/me/files/{first}")
    made = await back_up(stack, backups, keeps=2)
    assert (made.removed_backups, made.removed_blobs) == (2, 0), "the backup before has a file of it"
    assert sorted(path.name for path in backups.iterdir()) == [stamps[-1], made.stamp, "blobs", "installation"]
    made = await back_up(stack, backups, keeps=1)
    assert (made.removed_backups, made.removed_blobs) == (2, 1)
    kept = {content.sha256 for content in CONTENTS} - {gone}
    assert {path.name for path in (backups / "blobs").rglob("*") if path.is_file()} == kept


async def test_where_no_link_leads_blobs_are_copied_and_what_is_damaged_is_told(
    make_on_sqlite: MakeStack, blank_sqlite_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(Directory, "link_open", refuse)
    backups, (rotten, missing, good) = tmp_path / "backups", CONTENTS
    async with make_on_sqlite() as stack:
        for content in CONTENTS:
            await stack.upload(content)
        flip_bit(blob_path(stack.data, rotten.sha256))
        blob_path(stack.data, missing.sha256).unlink()
        made = await back_up(stack, backups, keeps=1)
        assert made.copied.lacking == {rotten.sha256: "damaged", missing.sha256: "missing"}
        assert (made.copied.new_blobs, made.copied.linked_blobs) == (1, 0)
        copy, original = (blob_path(path, good.sha256) for path in (backups, stack.data))
        assert copy.read_bytes() == good.data
        assert copy.stat().st_ino != original.stat().st_ino
        os.mkfifo(blob_path(stack.data, missing.sha256))
        assert (await back_up(stack, backups, keeps=1)).copied.lacking == made.copied.lacking
        flip_bit(blob_path(stack.data, rotten.sha256))
        await stack.upload(missing)  # what is sent again heals it
        made = await back_up(stack, backups)
        assert (made.copied.lacking, made.copied.new_blobs) == ({}, 2)
        flip_bit(blob_path(backups, good.sha256))
        assert (await back_up(stack, backups)).copied.new_blobs == 0
        assert (await back_up(stack, backups, rereads=True)).copied.new_blobs == 1, "what rotted there is replaced"
    flip_bit(blob_path(backups, good.sha256))
    blob_path(backups, missing.sha256).unlink()
    copied = await restore(tmp_path / "restored", blank_sqlite_url, redis_url, backups)
    assert copied.lacking == {good.sha256: "damaged", missing.sha256: "missing"}
    assert blob_path(tmp_path / "restored", rotten.sha256).read_bytes() == rotten.data
    assert not blob_path(tmp_path / "restored", good.sha256).exists()


async def test_an_older_dump_beside_newer_blobs_loses_nothing(
    make_on_sqlite: MakeStack, blank_sqlite_url: str, redis_url: str, tmp_path: Path
) -> None:
    """The database was lost, the data directory was not."""
    older, newer, _ = CONTENTS
    backups = tmp_path / "backups"
    async with make_on_sqlite() as stack:
        await stack.upload(older)
        made = await back_up(stack, backups)
        await stack.upload(newer)
        await stack.open(OPEN)
        await stack.put(OPEN, 0)
        await back_up(stack, backups)
        data = stack.data
    blob_path(data, older.sha256).unlink()
    (tmp_path / "restored").mkdir()
    copied = await restore(data, blank_sqlite_url, redis_url, backups, made.stamp)
    assert (copied.blobs, copied.new_blobs) == (1, 1)
    async with restored_stack(stack, data, blank_sqlite_url, redis_url) as stack:
        assert list((await bytes_of_files(stack)).values()) == [older.data]
        assert blob_path(data, newer.sha256).read_bytes() == newer.data
        assert (await stack.upload(newer)).status_code == 201
    again = f"sqlite:///{tmp_path / 'again.db'}"
    await restore(tmp_path / "again", again, redis_url, backups)
    async with restored_stack(stack, tmp_path / "again", again, redis_url) as stack:
        assert sorted((await bytes_of_files(stack)).values()) == sorted([older.data, newer.data])


async def test_a_backup_that_is_killed_anywhere_is_none_and_the_next_one_goes_on(stack: Stack, tmp_path: Path) -> None:
    """It is told before it is whole."""
    backups = tmp_path / "backups"

    async def told() -> list[Act]:
        return (await stack.services.audit_log_reports.page(Wanted(action="backup.made"), limit=9, after=None))[0]

    await stack.upload(CONTENTS[0])
    for at in (1, 2, 3):  # the third time the line is written, the manifest is not
        with pytest.raises(Death), dying(at):
            await back_up(stack, backups)
        with pytest.raises(BackupRefused, match="no backup that is whole"):
            await stack.services.restoring.look(backups)
        assert len(await told()) == (at == 3)
    (interrupted,) = backups.glob("*.new")
    made = await back_up(stack, backups)
    assert (made.copied.blobs, made.copied.new_blobs) == (1, 0), "what was copied stays"
    assert not interrupted.exists()
    newest, before = await told()
    assert (newest.subject, newest.user_id) == (made.stamp, None)
    assert before.details == newest.details == {"directory": str(backups), "blobs": 1, "lacking": 0}
    await back_up(stack, backups)
    with pytest.raises(Death), dying(4):
        await back_up(stack, backups, keeps=1)
    assert (await back_up(stack, backups, keeps=1)).removed_backups == 1
    assert blob_path(backups, CONTENTS[0].sha256).exists()
    await back_up(stack, tmp_path / os.fsdecode(b"b\xe4ckups"))
    assert (await told())[0].details["directory"] == str(tmp_path / "b\ufffdckups")


async def test_a_restore_that_is_killed_anywhere_is_run_again(
    make_stack_on: MakeStack, blank_url: str, redis_url: str, tmp_path: Path
) -> None:
    data = tmp_path / "restored"
    async with make_stack_on() as stack:
        await stack.upload(CONTENTS[0])
        await back_up(stack, tmp_path / "backups")
    for name in ("restore.after_mark", "restore.after_blobs"):

        def pass_or_die(passed: str, name: str = name) -> None:
            if passed == name:
                raise Death(name)

        with pytest.MonkeyPatch.context() as dying_there, pytest.raises(Death):
            dying_there.setattr(backup, "crash_point", pass_or_die)
            await restore(data, blank_url, redis_url, tmp_path / "backups")
        with pytest.raises(ConfigurationError):
            await prepare_database(Settings(data=data, database_url=blank_url, redis_url=redis_url))  # as every start
    copied = await restore(data, blank_url, redis_url, tmp_path / "backups")
    assert (copied.blobs, copied.new_blobs) == (1, 0)
    with pytest.raises(ConfigurationError):
        await restore(data, blank_url, redis_url, tmp_path / "backups")


async def test_what_was_tampered_with_is_refused(
    make_on_sqlite: MakeStack, blank_sqlite_url: str, redis_url: str, tmp_path: Path
) -> None:
    backups = tmp_path / "backups"
    async with make_on_sqlite() as stack:
        await stack.upload(CONTENTS[0])
        dump = backups / (await back_up(stack, backups)).stamp
    for name in ("uploader.db", "blobs.gz", "manifest.json"):
        flip_bit(dump / name)
        with pytest.raises(BackupRefused, match=name):
            await restore(tmp_path / "restored", blank_sqlite_url, redis_url, backups)
        flip_bit(dump / name)
    (dump / "blobs.gz").rename(tmp_path / "blobs.gz")
    with pytest.raises(BackupRefused, match="No such file"):
        await restore(tmp_path / "restored", blank_sqlite_url, redis_url, backups)
    assert not (tmp_path / "restored").exists()


async def test_nothing_goes_where_a_list_of_what_is_needed_is_damaged(stack: Stack, tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    await stack.upload(CONTENTS[0])
    first, second = [await back_up(stack, backups) for _ in range(2)]
    flip_bit(backups / second.stamp / "blobs.gz")
    with pytest.raises(BackupRefused, match=r"was made, but no older one is removed: .*blobs\.gz"):
        await back_up(stack, backups, keeps=2)
    assert (backups / first.stamp / "manifest.json").exists()
    assert (await back_up(stack, backups, keeps=1)).removed_backups == 3


async def _make_blank(database: Database) -> None:
    name = database.engine.url.database
    async with database.engine.connect() as connection:
        for statement in (f"DROP DATABASE {name}", f"CREATE DATABASE {name}", f"USE {name}"):
            await connection.execute(text(statement))


async def test_a_dump_of_an_older_version_is_migrated(blank_mariadb_url: str, tmp_path: Path) -> None:
    database = Database(blank_mariadb_url)
    await migrate.upgrade(database, "0008")

    async def fill_and_dump(connection: Connection) -> None:
        await connection.execute(text("INSERT INTO user_info (user_id, total_space) VALUES ('b\\'b\\\\', 7)"))
        await connection.execute(
            text("INSERT INTO outbox VALUES ('1', 'a', 'b', 'c', '2026-11-22 21:05:00.25', x'00ff')")
        )
        await connection.execute(text("INSERT INTO usage_daily (day, taken_at) VALUES ('2026-11-22', '2026-11-22')"))
        await copies.dump_tables(connection, tmp_path, "0008", lambda *_: None)

    async def rows(connection: Connection) -> list[Any]:
        # Without the columns that the version had not.
        users = [column for column in models.user_info.c if column.name not in ("files", "admin")]
        asked = (select(*users), models.outbox.select(), models.usage_daily.select())
        return [tuple((await connection.execute(query)).one()) for query in asked]

    await database.transact(fill_and_dump)
    before = await database.read(rows)
    await _make_blank(database)
    await load(database, tmp_path, "0008")
    assert await migrate.current_revision(database) == migrate.head_revision()
    assert await database.read(rows) == before
    with pytest.raises(ConfigurationError, match="has rows in"):
        await check_empty(database, migrate.head_revision())
    with pytest.raises(ConfigurationError, match="without tables"):
        await check_empty(database, "0008")
    await database.close()


async def test_nothing_is_written_over(make_on_sqlite: MakeStack, redis_url: str, tmp_path: Path) -> None:
    backups, data = tmp_path / "backups", tmp_path / "elsewhere"
    url = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    async with make_on_sqlite() as stack:
        services = stack.services
        made = await back_up(stack, backups)
        with pytest.raises(ConfigurationError, match=r"\.db is there"):
            await services.restoring.look(backups)
        with pytest.raises(BackupRefused, match=f"but {made.stamp}"):
            await services.restoring.look(backups, "20000101T000000Z")
        with pytest.raises(BackupRefused, match="are not apart"):
            await back_up(stack, stack.data / "backups")
        (tmp_path / "photos").mkdir()
        (tmp_path / "photos" / "1.jpg").touch()
        with pytest.raises(BackupRefused, match="has other things in it"):
            await back_up(stack, tmp_path / "photos")
        claimed = BackupDirectory.claim(backups, str(services.installation.id))
        with pytest.raises(BackupRefused, match="another backup"):
            await back_up(stack, backups)
        claimed.close()
        with pytest.raises(BackupRefused, match="has backups of installation"):
            BackupDirectory.claim(backups, "f" * 32)
    data.mkdir()
    (data / "something").touch()
    with pytest.raises(ConfigurationError, match="is not empty, it has something"):
        await restore(data, url, redis_url, backups)
    (data / "something").rename(tmp_path / "something")
    (tmp_path / "elsewhere.db-wal").touch()
    with pytest.raises(ConfigurationError, match=r"\.db-wal is there"):
        await restore(data, url, redis_url, backups)
    (tmp_path / "elsewhere.db-wal").unlink()
    with pytest.raises(FileNotFoundError):
        await restore(data, url, redis_url, tmp_path / "nowhere")
    with Redis.from_url(redis_url) as redis:
        redis.set("installation", f"2 {'e' * 32}")
    with pytest.raises(ConfigurationError, match="Redis belongs to"):
        await restore(data, url, redis_url, backups)


async def test_writers_go_on_while_a_sqlite_is_copied_and_the_copy_is_of_one_moment(
    make_on_sqlite: MakeStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "_PAGES_AT_ONCE", 5)
    async with make_on_sqlite() as stack:
        await stack.upload(CONTENTS[0])
        loop, parts = asyncio.get_running_loop(), 0

        def write(what: str, _done: int, _total: int) -> None:
            nonlocal parts
            if what == "database":
                parts += 1
                if parts <= 3:
                    content = Content(KIB, seed=parts, name=f"meanwhile/{parts}")
                    sending = stack.client.put(f"/files/{content.md5}?name=a{parts}", content=content.data)
                    assert asyncio.run_coroutine_threadsafe(sending, loop).result(60).status_code == 201

        made = await stack.services.backups.back_up(tmp_path / "backups", write)
        assert parts > 3
        assert (made.copied.blobs, made.dumped.doubt) == (1, None)
        assert len(await bytes_of_files(stack)) == 4


async def test_a_dump_of_tables_is_lines_of_json(make_stack: MakeStack, mariadb_url: str, tmp_path: Path) -> None:
    async with make_stack(database_url=mariadb_url) as stack:
        await stack.upload(CONTENTS[0])
        made = await back_up(stack, tmp_path / "backups")
    with gzip.open(tmp_path / "backups" / made.stamp / "tables.jsonl.gz", "rt") as file:
        lines = [json.loads(line) for line in file]
    assert lines[0] == {"revision": made.dumped.revision}
    (place,) = [number for number, line in enumerate(lines) if isinstance(line, dict) and line.get("table") == "file"]
    row = dict(zip(lines[place]["columns"], lines[place + 1], strict=True))
    assert (row["name"], row["size"], row["sha256"]) == (CONTENTS[0].name, CONTENTS[0].size, CONTENTS[0].sha256)
    assert list(row["created_at"]) == ["at"]
