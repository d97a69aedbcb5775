"""`uploader doctor` on real files and servers: each thing that it is to find is caused, and nothing is changed."""

import asyncio
import os
import re
import shutil
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import self_signed
from tests.support.gateways import settings_of
from tests.support.rows import Transactions
from tests.support.servers import PrivateDatabase, PrivateRedis, free_port
from tests.support.stack import STORES_TIME
from tests.support.telling import outbox_of
from uploader import bootstrap
from uploader.accounting.keys import FORMAT, INSTALLATION
from uploader.addresses import BucketAddress
from uploader.database.engine import Database
from uploader.domain.audit_log import Action
from uploader.domain.diagnosis import Level
from uploader.domain.events import EventType
from uploader.errors import ConfigurationError
from uploader.runtime import clock
from uploader.settings import Settings

DAY = 86400


@pytest.fixture(autouse=True)
def as_a_command(monkeypatch: pytest.MonkeyPatch) -> Any:
    """With the umask of all commands of the server, and no files of secrets but those of a test."""
    for name in [name for name in os.environ if name.startswith("UPLOADER_") and name.endswith("_FILE")]:
        monkeypatch.delenv(name)
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.fixture
async def settings(tmp_path: Path, redis_url: str, sqlite_template: Path) -> AsyncIterator[Settings]:
    """Of an installation that has begun."""
    data = tmp_path / "data"
    data.mkdir()
    shutil.copyfile(sqlite_template, data / "uploader.db")
    time: Any = STORES_TIME
    made = Settings(data=data, redis_url=redis_url, free_space_floor_bytes=0, auth="none", **time)
    await bootstrap.prepare_installation(made)
    yield replace(made, auth="token")


async def told(settings: Settings, *, notes: bool = False, **options: Any) -> list[str]:
    """All that is said, but of the versions of what is installed here."""
    found = await bootstrap.examine(settings, **options)
    return [str(each) for each in found if each.subject != "libraries" and (notes or each.level is not Level.NOTE)]


async def said(settings: Settings, **options: Any) -> list[str]:
    """In short: the level and the subject of each."""
    return [line.partition(":")[0] for line in await told(settings, **options)]


def tree(data: Path) -> dict[str, tuple[int, int, bytes]]:
    found = {}
    for path in [data, *data.rglob("*")]:
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (status.st_mode, status.st_uid, content)
    return found


async def test_a_new_installation_has_nothing_to_do_and_stays_as_it_is(settings: Settings) -> None:
    before = tree(settings.data)
    assert await told(settings) == []
    assert [line for line in await said(settings, notes=True) if "backup" not in line] == []
    assert tree(settings.data) == before


@pytest.mark.parametrize(
    ("data_mode", "name", "mode", "expected"),
    [
        (0o700, "owner.token", 0o644, ["note  files"]),
        (0o755, "owner.token", 0o600, ["error  files"]),
        (0o755, "owner.token", 0o644, ["error  files"]),
        (0o711, "uploader.db", 0o660, ["error  files"]),
        (0o700, "blobs", 0o777, ["note  files"]),
    ],
)
async def test_what_others_may_get_at(
    settings: Settings, data_mode: int, name: str, mode: int, expected: list[str]
) -> None:
    data = settings.data
    (data / "owner.token").write_text("x")
    (data / name).chmod(mode)
    data.chmod(data_mode)
    before = tree(data)
    lines = await told(settings, notes=True)
    assert [line.partition(":")[0] for line in lines if "files" in line] == expected
    for path, wide in ((data, data_mode & 0o077), (data / name, mode & 0o077)):
        assert any(f"{path} " in line or f"{path}," in line or f"{path};" in line for line in lines) == bool(wide)
    assert tree(data) == before
    assert "error" not in " ".join(await said(replace(settings, data=data / "nothing")))


async def test_database_server_that_is_too_old_is_named_and_ends_a_start(
    settings: Settings, mortal_mariadb: PrivateDatabase, mortal_mariadb_url: str
) -> None:
    old = replace(settings, database_url=mortal_mariadb_url)
    what = "UPLOADER_DATABASE_URL: this is MariaDB 10.5.9; MariaDB 10.6 or newer is needed"
    mortal_mariadb.kill()
    await asyncio.to_thread(mortal_mariadb.start, "--version=10.5.9-MariaDB")
    try:
        with pytest.raises(ConfigurationError, match=f"^{re.escape(what)}$"):
            await bootstrap.prepare_installation(old)
        assert f"error  database: {what}; no server starts before that" in await told(old)
    finally:
        mortal_mariadb.kill()


async def test_a_file_deep_below_and_one_of_another_account_and_a_directory_that_is_shared(settings: Settings) -> None:
    deep = settings.data / "blobs" / "ab" / "cd"
    deep.mkdir(parents=True)
    (deep / "content").write_bytes(b"")
    for path in (settings.data, settings.data / "blobs", deep.parent, deep):
        path.chmod(0o711)
    (deep / "content").chmod(0o604)
    [line] = await told(settings, all_files=True)
    assert f"{settings.data}, " in line
    assert " and 2 more; " in line
    for path in (settings.data / "blobs", deep.parent, deep, deep / "content"):
        path.chmod(0o700)
    (settings.data / "of others").write_text("")
    (settings.data / "of others").chmod(0o644)
    settings.data.chmod(0o755)
    assert await told(settings) == [], "a directory that others share"
    (settings.data / "blobs" / "link").symlink_to("/")
    if os.geteuid() == 0:
        os.chown(deep, 12345, -1)
        [line] = await told(settings)
        assert f"{deep} belong to another account" in line


async def test_the_look_at_files_ends_in_time(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    many = settings.data / "blobs" / "ab"
    many.mkdir()
    for number in range(600):
        (many / str(number)).touch()
    monkeypatch.setattr("uploader.diagnosis.doctor._FILES_SECONDS", 0.0)
    assert "the modes of the first 256 files" in " ".join(await told(settings, notes=True))
    assert "the modes of the first" not in " ".join(await told(settings, notes=True, all_files=True))


async def test_what_others_can_read_elsewhere(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = self_signed(tmp_path, "127.0.0.1")
    secret, events = tmp_path / "secret", tmp_path / "events.toml"
    secret.write_text("whsec_" + "A" * 32)
    events.write_text('[sinks.a]\ntype = "webhook"\nurl = "https://a"\nsecret_file = "secret"\n')
    key_set = tmp_path / "keys.json"
    key_set.write_text('{"keys": [{"kty":"oct","k":"' + "A" * 43 + '","kid":"1"}]}')
    monkeypatch.setenv("UPLOADER_LINK_SECRET_FILE", str(secret))
    given = replace(settings, tls_certificate=certificate, tls_key=key, events=events)
    given = replace(given, auth="jwt", jwt_jwks=str(key_set), jwt_audience="a", jwt_issuer="b")
    assert [line for line in await said(given) if "secrets" in line] == []
    for mode in (0o644, 0o620):
        for file in (secret, key, key_set):
            file.chmod(mode)
        lines = [line for line in await told(given) if "secrets" in line]
        assert [line.split(":")[1].strip() for line in lines] == [
            *("UPLOADER_LINK_SECRET_FILE", "UPLOADER_TLS_KEY", "UPLOADER_JWT_JWKS", "UPLOADER_EVENTS")
        ]


async def test_the_umask_of_a_server_that_another_program_starts(settings: Settings) -> None:
    os.umask(0o022)
    [line] = await told(settings)
    assert line.startswith("warning  umask: files are made with umask 022")


async def test_settings_that_stop_a_start_keep_nothing_from_being_told(settings: Settings, tmp_path: Path) -> None:
    broken = tmp_path / "events.toml"
    broken.write_text("[sinks.a]\ntype = 'pigeon'\n")
    lines = await said(replace(settings, auth="none", host="0.0.0.0", metrics="open"))
    assert lines == ["error  settings", "warning  authentication", "warning  transport", "warning  metrics"]
    assert await said(replace(settings, events=broken, instant="trust")) == ["error  settings", "warning  instant"]


async def test_a_certificate_that_ends(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is of one day before and after now."""
    certificate, key = self_signed(tmp_path, "127.0.0.1")
    given = replace(settings, tls_certificate=certificate, tls_key=key, redis_url=None)
    for days, expected in ((0, ["warning  certificate"]), (2, ["error  certificate"]), (-2, ["error  certificate"])):
        turn(monkeypatch, tmp_path, days * DAY)
        assert await said(given) == expected
    monkeypatch.setattr("uploader.diagnosis.doctor._SOON", timedelta(hours=1))
    turn(monkeypatch, tmp_path, 0)
    assert await said(given) == []


def turn(monkeypatch: pytest.MonkeyPatch, directory: Path, seconds: int) -> None:
    (directory / "offset").write_text(str(seconds))
    monkeypatch.setattr(clock, "_offset_file", str(directory / "offset"))


async def test_disk_and_files_of_valkey(settings: Settings) -> None:
    assert await said(replace(settings, free_space_floor_bytes=1 << 60)) == ["warning  disk"]
    alone = replace(settings, redis_url=None)
    (settings.data / "redis.damaged-20261101T000000.0Z").mkdir()
    assert await said(alone) == ["warning  redis"]


async def test_a_valkey_that_forgets_and_clocks_that_differ(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis = PrivateRedis(tmp_path / "redis", append_only=False).start("--maxmemory-policy", "allkeys-lru")
    try:
        given = replace(settings, redis_url=redis.url)
        lines = await told(given, notes=True)
        assert "warning  redis: maxmemory-policy is allkeys-lru, not noeviction" in " ".join(lines)
        assert "note  redis: appendonly is no, not yes" in " ".join(lines)
        redis.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
        assert await told(given) == [], "a loopback address needs no password"
        redis.command("SET", INSTALLATION, f'"{FORMAT} {"a" * 32}"')
        [line] = await told(given)
        assert line.startswith(f"error  redis: Redis belongs to installation {'a' * 32}")
        turn(monkeypatch, tmp_path, 100)
        [behind] = [line for line in await told(given) if "clock" in line]
        assert behind.startswith("warning  clock: the clock of Redis is 100 s behind the one here")
    finally:
        redis.stop()


async def test_a_server_of_the_database_that_loses_commits(
    settings: Settings,
    own_server: PrivateDatabase,
    own_server_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = replace(settings, data=tmp_path / "other", database_url=own_server_url)
    await bootstrap.prepare_installation(replace(given, auth="none", redis_url=None))
    assert await told(given) == []
    own_server.stop()
    binlog = ("--log-bin", "--server-id=1", "--binlog-format=STATEMENT", "--sync-binlog=0")
    own_server.start("--innodb-flush-log-at-trx-commit=2", "--innodb-doublewrite=OFF", *binlog)
    lines = await told(given)
    assert lines[0].startswith("error  database: binlog_format is STATEMENT")
    assert "innodb_flush_log_at_trx_commit is 2, not 1" in lines[1]
    assert "sync_binlog is 0, not 1" in lines[2]
    assert "innodb_doublewrite is off" in lines[3]
    turn(monkeypatch, tmp_path, -100)
    assert "the clock of the database is 100 s ahead of" in " ".join(await told(given))


async def test_what_is_away_is_told_with_all_the_rest(settings: Settings, own_redis: PrivateRedis) -> None:
    away = replace(
        settings,
        database_url=f"mysql+asyncmy://root:hunter2@127.0.0.1:{free_port()}/uploader",
        redis_url=f"redis://:hunter2@127.0.0.1:{free_port()}/0",
        instant="trust",
    )
    lines = await told(away)
    assert [line.partition(":")[0] for line in lines] == ["error  database", "error  redis", "warning  instant"]
    assert "hunter2" not in " ".join(lines)
    gone = settings.data / "uploader.db"
    gone.rename(gone.with_name("elsewhere"))
    assert "error  database" in await said(settings)
    assert await said(replace(settings, data=settings.data / "nothing")) == ["warning  files"]
    assert not (settings.data / "nothing").exists()


async def test_a_schema_and_an_installation_that_are_others(settings: Settings, tmp_path: Path) -> None:
    blank = replace(settings, database_url=f"sqlite:///{tmp_path / 'blank.db'}")
    sqlite3.connect(tmp_path / "blank.db").close()
    [line] = await told(blank)
    assert line.endswith("run `uploader db upgrade`; no server starts before that")
    assert await bootstrap.upgrade_database(blank)
    [line] = await told(blank)
    assert "the database to none" in line
    with sqlite3.connect(settings.data / "uploader.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0001'")
    assert await said(settings, notes=True) == ["note  database", "note  backup"]


async def work_once(settings: Settings, *, lacking: int) -> None:
    """What jobs do once an hour and once a day, and a backup that lacks so many contents."""
    services = bootstrap.Services(settings)
    async with bootstrap.running(services, jobs=False):
        await services.reconciling.reconcile()
        await services.overview.take_day()
        await services.audit_log.note(Action.BACKUP_MADE, subject="1", details={"lacking": lacking})


async def test_what_the_jobs_found(settings: Settings) -> None:
    url = f"sqlite:///{settings.data / 'uploader.db'}"
    database = Database(url, outbox=outbox_of({"hook": (EventType.UPLOAD_CREATED,)}))
    rows = Transactions(database)
    await rows.create_user()
    await rows.upload_and_merge()
    assert await said(settings) == ["warning  events"]
    with sqlite3.connect(settings.data / "uploader.db") as connection:
        connection.execute("UPDATE blob SET damaged = 1, scrubbed_at = NULL")
        connection.execute("UPDATE user_info SET reserved = reserved + 5")
        connection.execute("DELETE FROM delivery")
    await work_once(settings, lacking=2)
    lines = [line.partition(";")[0] for line in await told(settings) if "read back" not in line]
    assert lines[0] == "error  content: damaged contents: 1"
    assert lines[1].startswith("error  reconcile: the last reconcile, ")
    assert " ago, found " in lines[1]
    assert lines[2].startswith("error  backup: the last backup, ")
    assert lines[2].endswith(" ago, lacks 2 contents")
    await database.close()


async def test_jobs_that_do_not_run(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await work_once(settings, lacking=0)
    assert await said(settings, notes=True) == ["note  reconcile", "note  snapshot", "note  backup"]
    turn(monkeypatch, tmp_path, 10 * DAY)
    lines = [line for line in await told(settings) if "clock" not in line]
    assert [line.partition(":")[0] for line in lines] == ["warning  reconcile", "warning  snapshot", "warning  backup"]
    assert "the last backup was made 10d ago" in lines[2]


async def test_a_bucket_that_lets_nobody_else_in(settings: Settings, s3_address: BucketAddress, tmp_path: Path) -> None:
    given = replace(settings, data=tmp_path / "node", min_chunk_size_bytes=5 << 20, **settings_of(s3_address))
    await bootstrap.prepare_installation(replace(given, auth="none", redis_url=None))
    assert await told(given) == []
