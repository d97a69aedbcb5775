"""Looks at the accounts all the while, and at everything in the end. It trusts definitions only, no figure of the server."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from sqlalchemy import Select, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.chaos.clients import Client
from tests.support.at_rest import OnDisk, check_at_rest, read_directory, rests_within
from tests.support.invariants import Shape, checked_accounts
from uploader.database import models
from uploader.database.engine import Database
from uploader.errors import Unavailable

_POLL_SECONDS = 0.2
_REST_SECONDS = 30.0
_NOTHING = OnDisk(Shape(0, 0), frozenset(), frozenset())


@dataclass
class Findings:
    """What the audits found."""

    audits: int = 0
    missed: int = 0  # the database was away
    violations: list[str] = field(default_factory=list)


class Auditor:
    """Audits one installation."""

    def __init__(self, database_url: str, data: Path) -> None:
        self._database = Database(database_url)
        self._data = data
        self.findings = Findings()

    async def watch(self, stopping: asyncio.Event) -> None:
        """Invariants 1 to 3 in one snapshot, again and again."""
        while not stopping.is_set():
            try:
                await checked_accounts(self._database)
            except Unavailable:
                self.findings.missed += 1
            except AssertionError as error:
                self.findings.violations.append(f"online: {error}")
            else:
                self.findings.audits += 1
            await asyncio.sleep(_POLL_SECONDS)

    async def conclude(self, clients: list[Client], redis_url: str) -> int:
        """All invariants, once everything has come to rest by itself; the bytes by which the accounts have drifted."""
        async with Redis.from_url(redis_url) as redis:
            try:
                await rests_within(_REST_SECONDS, lambda: self._check(redis))
            except AssertionError as error:
                self.findings.violations.append(f"at rest: {error}")
        self.findings.audits += 1
        for client in clients:
            await self._check_promises(client)
        return await self._database.read(self._drift_bytes)

    async def _check(self, redis: Redis) -> None:
        await check_at_rest(self._database, redis, self._data, orphans=True)

    async def _check_promises(self, client: Client) -> None:
        """Every acknowledged chunk of an open upload is on disk, whole."""
        uploads = models.upload.c
        query = select(uploads.md5, uploads.temp_path).where(uploads.user_id == client.user_id, uploads.state == "OPEN")
        rows = await self._database.read(lambda connection: _pairs(connection, query))
        for md5, acknowledged in client.promises.acknowledged.items():
            sound = self._on_disk(rows[md5]).sound if md5 in rows else frozenset()
            if not acknowledged <= sound:
                lost = sorted(acknowledged - sound)
                self.findings.violations.append(f"acknowledged chunks {lost} of {client.user_id}'s {md5} are lost")
        await self._check_streams(client)

    async def _check_streams(self, client: Client) -> None:
        """Every upload by tus that was left open has the bytes that it was said to have."""
        uploads = models.upload.c
        query = select(uploads.id, uploads.temp_path).where(uploads.user_id == client.user_id, uploads.state == "OPEN")
        rows = await self._database.read(lambda connection: _pairs(connection, query))
        promises = client.streams.promises
        for upload_id in promises.left_open:
            there = self._on_disk(rows[upload_id]).leading if upload_id in rows else 0
            if there < promises.appended[upload_id]:
                self.findings.violations.append(f"{upload_id} has {there} bytes of {promises.appended[upload_id]}")

    async def _drift_bytes(self, connection: AsyncConnection) -> int:
        """How far the accounts are from what is on disk, open uploads and finished files."""
        uploads, files, users = models.upload.c, models.file.c, models.user_info.c
        opened = select(uploads.user_id, uploads.temp_path, uploads.size).where(uploads.state == "OPEN")
        unfinished: dict[str, int] = {}
        reserved: dict[str, int] = {}
        for user_id, path, size in await connection.execute(opened):
            unfinished[user_id] = unfinished.get(user_id, 0) + self._on_disk(path).received
            reserved[user_id] = reserved.get(user_id, 0) + size
        summed = select(files.user_id, func.sum(files.size)).group_by(files.user_id)
        finished = {row[0]: int(row[1]) for row in await connection.execute(summed)}
        figures = select(users.user_id, users.use_space_finished, users.use_space_unfinished, users.reserved)
        return sum(
            abs(row[1] - finished.get(row[0], 0))
            + abs(row[2] - unfinished.get(row[0], 0))
            + abs(row[3] - reserved.get(row[0], 0))
            for row in await connection.execute(figures)
        )

    def _on_disk(self, path: str) -> OnDisk:
        directory = self._data / path
        return read_directory(directory) if (directory / "map").exists() else _NOTHING

    async def close(self) -> None:
        await self._database.close()


async def _pairs(connection: AsyncConnection, query: Select[Any]) -> dict[str, str]:
    return {row[0]: row[1] for row in await connection.execute(query)}
