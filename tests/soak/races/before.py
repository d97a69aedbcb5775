"""What is there when rounds begin: made for a whole batch at once, by one process that takes no side."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Table, insert, update

from tests.soak.races.rounds import ALICE, Round
from tests.support.bodies import InPieces
from tests.support.layout import blob_path
from tests.support.rows import upload_row
from uploader.bootstrap import Services
from uploader.database import models, transactions
from uploader.database.engine import Connection
from uploader.database.transactions.rows import row_of
from uploader.domain.upload import Upload
from uploader.service.ids import new_id
from uploader.storage.local.directories import month_path

Before = Callable[[Services, Sequence[Round]], Awaitable[list[Round]]]


def in_turn(*befores: Before) -> Before:
    """All of them, one after the other."""

    async def make(services: Services, rounds: Sequence[Round]) -> list[Round]:
        for before in befores:
            rounds = await before(services, rounds)
        return list(rounds)

    return make


async def nothing(_services: Services, rounds: Sequence[Round]) -> list[Round]:
    return list(rounds)


async def opened(
    services: Services,
    rounds: Sequence[Round],
    user_id: str = ALICE,
    *,
    name: str = "upload",
    told: bool = True,
    age_seconds: float = 0.0,
    chunks: Sequence[int] = (),
) -> list[Round]:
    """An upload for each round: on disk, in the database, in Redis. `name`: of their ids in the rounds; `told`: the MD5;
    `chunks`: are there, and Redis has forgotten them."""
    opened_at = services.clock.now() - timedelta(seconds=age_seconds)
    uploads = [_row_of(round_, user_id, opened_at, told) for round_ in rounds]
    await asyncio.gather(*map(services.storage.create, uploads))

    rows = [row_of(upload) for upload in uploads]
    size = sum(one.size for one in uploads)
    await _insert(services, user_id, {models.upload: rows}, reserved=size, files=len(uploads))
    for upload, round_ in zip(uploads, rounds, strict=True):
        for number in chunks:
            (await services.storage.hold_chunk(upload, number, InPieces(round_.content.chunk(number)))).release()
        map_path = services.settings.data / upload.place / "map"
        os.utime(map_path, (opened_at.timestamp(), opened_at.timestamp()))
    if not chunks:
        await asyncio.gather(*(_tell_redis(services, upload) for upload in uploads))
    return _named(rounds, name, [upload.id for upload in uploads])


def _row_of(round_: Round, user_id: str, opened_at: datetime, told: bool) -> Upload:
    content = round_.content
    upload = upload_row(
        user_id,
        content.size,
        md5=content.md5 if told else None,
        name=content.name,
        chunk_size=content.chunk_size,
        created_at=opened_at,
        updated_at=opened_at,
    )
    return replace(upload, place=f"temp/{month_path(opened_at)}/{upload.id}")


async def _tell_redis(services: Services, upload: Upload) -> None:
    nothing_there = bytearray(-(-upload.size // upload.chunk_size))
    era = (await services.pending.read(upload.id)).era
    await services.pending.hydrate(upload, nothing_there, None, era=era)


def _named(rounds: Sequence[Round], name: str, ids: Sequence[str]) -> list[Round]:
    return [round_.having(**{name: id_}) for round_, id_ in zip(rounds, ids, strict=True)]


async def finished(services: Services, rounds: Sequence[Round]) -> list[Round]:
    """Alice has the file, and nobody else."""
    now, files, blobs = services.clock.now(), [], []
    for content in (round_.content for round_ in rounds):
        path = blob_path(services.settings.data, content.sha256)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.data)
        row = {"sha256": content.sha256, "md5": content.md5, "size": content.size, "created_at": now}
        blobs.append(row | {"refs": 1})
        files.append(row | {"id": new_id(), "user_id": ALICE, "name": content.name, "instant": False})
    size = sum(round_.content.size for round_ in rounds)
    await _insert(services, ALICE, {models.blob: blobs, models.file: files}, use_space_finished=size, files=len(files))
    return _named(rounds, "file", [str(file["id"]) for file in files])


async def _insert(
    services: Services, user_id: str, rows: Mapping[Table, Sequence[Mapping[str, Any]]], **more: int
) -> None:
    """Rows of a user's, all at once, and what they add to the account."""

    async def insert_all(connection: Connection) -> None:
        for table, values in rows.items():
            await connection.execute(insert(table), values)
        users = models.user_info.c
        added = {name: users[name] + number for name, number in more.items()}
        await connection.execute(update(models.user_info).where(users.user_id == user_id).values(**added))

    await services.database.transact(insert_all)


async def deleted(services: Services, rounds: Sequence[Round]) -> list[Round]:
    """Alice's file is deleted, its content not collected yet: who deleted it died at this moment."""
    files = [await services.files.get(ALICE, round_.ids["file"]) for round_ in rounds]

    async def delete_all(connection: Connection) -> None:
        for file in files:
            assert await transactions.files.delete_file(connection, file, services.clock.now())

    await services.database.transact(delete_all)
    return list(rounds)
