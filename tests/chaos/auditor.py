"""Looks at the accounts all the while, and at everything in the end. It trusts definitions only, no figure of the server."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis
from sqlalchemy import Select, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.chaos.clients import Client
from tests.chaos.housekeeping import CleanedUp
from tests.support.at_rest import OnDisk, StoredBytes, check_stored_at_rest, read_rows, rests_within
from tests.support.invariants import checked_accounts
from uploader.database import models
from uploader.database.engine import Database
from uploader.errors import Unavailable

_POLL_SECONDS = 0.2
_REST_SECONDS = 30.0


@dataclass
class Findings:
    """What the audits found."""

    audits: int = 0
    missed: int = 0  # the database was away
    cleaned: dict[str, int] = field(default_factory=dict)  # by the housekeeping on S3
    violations: list[str] = field(default_factory=list)


class Auditor:
    """Audits one installation."""

    def __init__(self, database: Database, stored: StoredBytes) -> None:
        self._database = database
        self._stored = stored
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
        rows = await self._database.read(read_rows)
        stored = await self._stored.of_uploads(rows)
        for client in clients:
            await self._check_promises(client, stored)
        return await self._database.read(lambda connection: _drift_bytes(connection, stored))

    async def conclude_again(self, clients: list[Client], redis_url: str, cleaned: CleanedUp) -> int:
        """After the housekeeping on S3: nothing is left that no row names, and all else is there."""
        self.findings.cleaned = cleaned.figures
        self.findings.violations += [f"left after the housekeeping: {what}" for what in cleaned.left]
        return await self.conclude(clients, redis_url)

    async def _check(self, redis: Redis) -> None:
        await check_stored_at_rest(self._database, redis, self._stored)

    async def _check_promises(self, client: Client, stored: Mapping[str, OnDisk]) -> None:
        """Every acknowledged chunk of an open upload is stored, whole."""
        uploads = models.upload.c
        query = select(uploads.md5, uploads.id).where(uploads.user_id == client.user_id, uploads.state == "OPEN")
        ids = await self._database.read(lambda connection: _pairs(connection, query))
        for md5, acknowledged in client.promises.acknowledged.items():
            held = stored.get(ids.get(md5, ""))
            sound: frozenset[int] = frozenset() if held is None else held.sound
            if not acknowledged <= sound:
                lost = sorted(acknowledged - sound)
                self.findings.violations.append(f"acknowledged chunks {lost} of {client.user_id}'s {md5} are lost")
        self._check_streams(client, stored)

    def _check_streams(self, client: Client, stored: Mapping[str, OnDisk]) -> None:
        """Every upload by tus that was left open has the bytes that it was said to have."""
        promises = client.streams.promises
        for upload_id in promises.left_open:
            held = stored.get(upload_id)
            there = 0 if held is None else held.leading
            if there < promises.appended[upload_id]:
                self.findings.violations.append(f"{upload_id} has {there} bytes of {promises.appended[upload_id]}")


async def _drift_bytes(connection: AsyncConnection, stored: Mapping[str, OnDisk]) -> int:
    """How far the accounts are from what is stored, open uploads and finished files."""
    uploads, files, users = models.upload.c, models.file.c, models.user_info.c
    opened = select(uploads.user_id, uploads.id, uploads.size).where(uploads.state == "OPEN")
    unfinished: dict[str, int] = {}
    reserved: dict[str, int] = {}
    for user_id, upload_id, size in await connection.execute(opened):
        received = stored[upload_id].received if upload_id in stored else 0
        unfinished[user_id] = unfinished.get(user_id, 0) + received
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


async def _pairs(connection: AsyncConnection, query: Select[Any]) -> dict[str, str]:
    return {row[0]: row[1] for row in await connection.execute(query)}
