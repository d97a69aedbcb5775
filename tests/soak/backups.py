"""A backup while everything is killed, restored where nothing is."""

import asyncio
import hashlib
from pathlib import Path

from sqlalchemy import select

from tests.soak.clients import Client
from tests.soak.installation import Installation
from tests.support.content import Content
from tests.support.invariants import checked_accounts
from tests.support.layout import blob_path
from tests.support.process import run_cli
from uploader.database import models
from uploader.database.engine import Database

_FILES = 20
# While the database is killed a backup may find it away.
_ATTEMPTS = 50


class Backups:
    """Of one installation, on a server of databases."""

    def __init__(self, directory: Path, installation: Installation, clients: list[Client]) -> None:
        self._directory = directory
        self._installation = installation
        self._clients = clients
        self._promised: set[str] = set()

    async def make(self) -> None:
        """As often as it takes, once there are files."""
        while len(self._promises()) < _FILES:
            await asyncio.sleep(0.1)
        for _ in range(_ATTEMPTS):
            self._promised = set(self._promises())
            settings = self._installation.settings | {"REDIS_URL": self._installation.redis.url}
            made = await asyncio.to_thread(run_cli, settings, "backup", str(self._directory / "backups"))
            if made.returncode == 0:
                return
            disk = self._installation.disk
            # A backup calls unreadable contents damaged.
            is_unreadable = disk is not None and disk.has_failed and "damaged: " in made.stdout
            assert "away" in made.stderr or is_unreadable, made.stdout + made.stderr
        raise AssertionError("no backup could be made")

    def _promises(self) -> dict[str, Content]:
        return {file_id: content for each in self._clients for file_id, (_, content) in each.promises.files.items()}

    async def check(self) -> int:
        """Raises AssertionError; how many files were restored that have to be there: those that were finished before the
        backup, and that nobody has deleted to the end."""
        await self._installation.make_database("restored")
        assert self._installation.database is not None
        url, data = self._installation.database.url("restored"), self._directory / "restored"
        redis_url = f"{self._installation.redis.url.removesuffix('/0')}/1"
        settings = self._installation.settings | {"DATA": str(data), "DATABASE_URL": url, "REDIS_URL": redis_url}
        for command in (
            ("restore-backup", str(self._directory / "backups")),
            ("reset-unfinished", "--lost", "--yes"),
            ("reconcile",),
        ):
            done = await asyncio.to_thread(run_cli, settings, *command)
            assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        database = Database(url)
        async with database.engine.connect() as connection:
            rows = await connection.execute(select(models.file.c.id, models.file.c.sha256))
            files = {row[0]: row[1] for row in rows}
        await checked_accounts(database)
        await database.close()
        promises = {file_id: content for file_id, content in self._promises().items() if file_id in self._promised}
        for file_id, content in promises.items():
            assert files.get(file_id) == content.sha256, f"{file_id} is not in the backup"
        for sha256 in set(files.values()):
            assert hashlib.sha256(blob_path(data, sha256).read_bytes()).hexdigest() == sha256
        return len(promises)
