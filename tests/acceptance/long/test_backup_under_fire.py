"""A backup while everything is killed, restored on a machine where nothing is."""

import asyncio
import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import select, text

from tests.chaos.clients import Client
from tests.chaos.installation import SETTINGS, Installation, Setup
from tests.chaos.round import Least, run_round
from tests.support.content import Content
from tests.support.invariants import checked_accounts
from tests.support.layout import blob_path
from tests.support.process import run_cli
from tests.support.servers import PRIVATE_DATABASES, PrivateRedis
from uploader.database import models
from uploader.database.engine import Database

_FILES = 60
# While the database is killed a backup may find it away.
_ATTEMPTS = 50


@dataclass
class Backups:
    """Makes one while everything is killed, as often as it takes."""

    path: Path
    clients: list[Client] = field(default_factory=list)
    promised: set[str] = field(default_factory=set)
    attempts: int = 0

    async def make(self, installation: Installation, clients: list[Client]) -> None:
        self.clients = clients
        while len(self._promises()) < _FILES:
            await asyncio.sleep(0.1)
        for self.attempts in range(1, _ATTEMPTS + 1):
            self.promised = set(self._promises())
            settings = installation.settings | {"REDIS_URL": installation.redis.url}
            made = await asyncio.to_thread(run_cli, settings, "backup", str(self.path))
            if made.returncode == 0:
                print(made.stdout)
                return
            assert "away" in made.stderr, made.stdout + made.stderr
        raise AssertionError("no backup could be made")

    def expected(self) -> dict[str, Content]:
        """What was finished before the backup, and nobody has deleted to the end."""
        return {file_id: content for file_id, content in self._promises().items() if file_id in self.promised}

    def _promises(self) -> dict[str, Content]:
        return {file_id: content for client in self.clients for file_id, content in client.promises.files.items()}


@pytest.mark.parametrize("kind", [Setup.database])  # the one that is killed, too
async def test_a_backup_that_is_made_while_everything_is_killed_has_all_that_was_finished(
    kind: str, tmp_path: Path
) -> None:
    backups = Backups(tmp_path / "backups")
    least = Least(kills=60, files=2 * _FILES)
    summary = await run_round(tmp_path / "killed", seconds=25, seed=3, least=least, beside=backups.make)
    assert summary.violations == []
    assert summary.kills_total >= least.kills

    database = PRIVATE_DATABASES[kind](tmp_path / "restored" / "database").start()
    redis = PrivateRedis(tmp_path / "restored" / "redis").start()
    try:
        server = Database(database.url("mysql"))
        async with server.engine.connect() as connection:
            await connection.execute(text("CREATE DATABASE uploader"))
        await server.close()
        data, url = tmp_path / "restored" / "data", database.url("uploader")
        settings = SETTINGS | {"DATA": str(data), "DATABASE_URL": url, "REDIS_URL": redis.url}
        await _check_restored(settings, data, url, backups)
    finally:
        redis.stop()
        database.stop()


async def _check_restored(settings: dict[str, str], data: Path, url: str, backups: Backups) -> None:
    restored = run_cli(settings, "restore", str(backups.path))
    assert restored.returncode == 0, restored.stdout + restored.stderr
    closed = run_cli(settings, "reset-unfinished", "--lost", "--yes")
    assert closed.returncode == 0, closed.stdout + closed.stderr
    print(restored.stdout, closed.stdout)
    reconciled = run_cli(settings, "reconcile")
    assert reconciled.returncode == 0, reconciled.stdout
    database = Database(url)
    async with database.engine.connect() as connection:
        rows = await connection.execute(select(models.file.c.id, models.file.c.sha256))
        files = {row[0]: row[1] for row in rows}
    await checked_accounts(database)
    await database.close()
    expected = backups.expected()
    print(f"{len(files)} files, {len(expected)} expected, {backups.attempts} attempts")
    assert len(expected) > _FILES / 4
    assert {file_id: files.get(file_id) for file_id in expected} == {
        file_id: content.sha256 for file_id, content in expected.items()
    }
    for sha256 in set(files.values()):
        assert hashlib.sha256(blob_path(data, sha256).read_bytes()).hexdigest() == sha256
