"""Looks at the accounts all the while, and at everything in the end. It trusts definitions only, no figure of the server."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from redis.asyncio import Redis
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.soak.clients import Client
from tests.support.at_rest import OnDisk, StoredBytes, check_stored_at_rest, read_rows, rests_within
from tests.support.invariants import checked_accounts
from tests.support.waiting import PATIENCE_SECONDS
from uploader.database import models
from uploader.database.engine import Database
from uploader.errors import Unavailable

_POLL_SECONDS = 0.2


@dataclass
class Findings:
    """What the audits found."""

    audits: int = 0
    missed: int = 0  # the database was away
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
                await rests_within(PATIENCE_SECONDS, lambda: check_stored_at_rest(self._database, redis, self._stored))
            except AssertionError as error:
                self.findings.violations.append(f"at rest: {error}")
        self.findings.audits += 1
        stored = await self._stored.of_uploads(await self._database.read(read_rows))
        for client in clients:
            self.findings.violations += [f"{client.user_id}: {broken}" for broken in _broken(client, stored)]
        return await self._database.read(lambda connection: _drift_bytes(connection, stored))


def _broken(client: Client, stored: Mapping[str, OnDisk]) -> Iterator[str]:
    """Every acknowledged chunk of an open upload is stored, whole, and every stream that was left open has the bytes that
    it was said to have."""
    for known in client.promises.uploads.values():
        held = stored.get(known.upload_id)
        lost = known.acknowledged - (frozenset() if held is None else held.sound)
        if lost:
            yield f"acknowledged chunks {sorted(lost)} of {known.upload_id} are lost"
    for upload_id in client.streams.left_open:
        held = stored.get(upload_id)
        there, promised = 0 if held is None else held.leading, client.streams.appended[upload_id]
        if there < promised:
            yield f"{upload_id} has {there} bytes of {promised}"


async def _drift_bytes(connection: AsyncConnection, stored: Mapping[str, OnDisk]) -> int:
    """How far the accounts are from what is stored, open uploads and finished files; one more or less counts as a byte."""
    uploads, files, users = models.upload.c, models.file.c, models.user_info.c
    opened = select(uploads.user_id, uploads.id, uploads.size).where(uploads.state == "OPEN")
    unfinished: dict[str, int] = {}
    reserved: dict[str, int] = {}
    counts: Counter[str] = Counter()
    for user_id, upload_id, size in await connection.execute(opened):
        received = stored[upload_id].received if upload_id in stored else 0
        unfinished[user_id] = unfinished.get(user_id, 0) + received
        reserved[user_id] = reserved.get(user_id, 0) + size
        counts[user_id] += 1
    summed = select(files.user_id, func.sum(files.size), func.count()).group_by(files.user_id)
    finished = {}
    for user_id, size, count in await connection.execute(summed):
        finished[user_id] = int(size)
        counts[user_id] += count
    for table in (models.folder, models.trashed_file):
        alone = select(table.c.user_id, func.count()).group_by(table.c.user_id)
        for user_id, count in await connection.execute(alone):
            counts[user_id] += count
    figures = select(users.user_id, users.use_space_finished, users.use_space_unfinished, users.reserved, users.files)
    return sum(
        abs(row[1] - finished.get(row[0], 0))
        + abs(row[2] - unfinished.get(row[0], 0))
        + abs(row[3] - reserved.get(row[0], 0))
        + abs(row[4] - counts[row[0]])
        for row in await connection.execute(figures)
    )
