"""Whether it matters how many files a user has already: opening an upload, and asking where it stands."""

import asyncio
import hashlib
import itertools
import json
import os
import statistics
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.ingest.load import Plan, Request, head, send
from benchmarks.ingest.ours import Mode, Ours, ours
from benchmarks.ingest.places import Places
from benchmarks.report import Row, amount, compared
from benchmarks.small_files.scale import SIZE_BYTES, Scale
from uploader.bootstrap import Services
from uploader.database import models
from uploader.database.engine import Connection
from uploader.service.ids import new_id
from uploader.settings import Settings

_INSERTED_AT_ONCE = 5000
_ASKED_AT_ONCE = 100
_names = itertools.count()


def owned(places: Places, scale: Scale) -> list[Row]:
    """One connection, a user for each number of files; in memory, where no sync hides what the database does."""
    directory = places.memory / "owned"
    took: dict[tuple[str, int], list[float]] = {(name, count): [] for name in _ASKED for count in scale.owned}
    with ours(directory, Mode(), users=len(scale.owned)) as server:
        for number, count in enumerate(scale.owned):
            asyncio.run(_fill(directory / "data", f"user-{number}", count))
            _ask(server, number, scale)  # each is met for the first time
        for _ in range(scale.owned_rounds):
            for number, count in enumerate(scale.owned):
                for name, milliseconds in _ask(server, number, scale).items():
                    took[name, count].append(milliseconds)
    return [_row(name, count, took, scale) for name in _ASKED for count in scale.owned]


def _row(name: str, count: int, took: dict[tuple[str, int], list[float]], scale: Scale) -> Row:
    measured, fewest = took[name, count], took[name, min(scale.owned)]
    row = compared(f"{name}, {count:,} files of the user", measured, "ms")
    if count == min(scale.owned):
        return row
    # Within noise: the ranges of both overlap.
    times = statistics.median(measured) / statistics.median(fewest)
    within_noise = min(measured) <= max(fewest)
    return replace(row, target="flat within noise", met=within_noise, missed_by=f"{amount(times)} times that of none")


def _ask(server: Ours, number: int, scale: Scale) -> dict[str, float]:
    """The median of the milliseconds that each question took."""
    digests = [hashlib.md5(os.urandom(16)).hexdigest() for _ in range(scale.opened)]
    bearer = server.bearer(number)

    def took_ms(request: Callable[[str, dict[str, str]], Request]) -> float:
        outcome = send(Plan(server.port, [[request(md5, bearer) for md5 in digests]]))
        return statistics.median(outcome.took_seconds) * 1000

    took = {name: took_ms(request) for name, request in _ASKED.items()}
    took_ms(_cancel)
    return took


def _open(md5: str, bearer: dict[str, str]) -> Request:
    body = json.dumps({"name": f"opened/{next(_names)}.bin", "size": SIZE_BYTES}).encode()
    return Request(head("POST", f"/files/{md5}", len(body), bearer), len(body), body)


def _look(md5: str, bearer: dict[str, str]) -> Request:
    return Request(head("GET", f"/files/{md5}", 0, bearer), 0)


def _cancel(md5: str, bearer: dict[str, str]) -> Request:
    return Request(head("DELETE", f"/files/{md5}", 0, bearer), 0)


def _look_at_many(md5: str, bearer: dict[str, str]) -> Request:
    md5s = [hashlib.md5(f"{md5}{number}".encode()).hexdigest() for number in range(_ASKED_AT_ONCE)]
    body = json.dumps({"md5s": md5s}).encode()
    return Request(head("POST", "/files/status", len(body), bearer), len(body), body)


# In this order: what is looked at was opened.
_ASKED: dict[str, Callable[[str, dict[str, str]], Request]] = {
    "opening": _open,
    "status of an open upload": _look,
    f"status of {_ASKED_AT_ONCE} digests": _look_at_many,
}


async def _fill(data: Path, user_id: str, count: int) -> None:
    """Give the user so many files, as rows: what is measured asks for no bytes of them."""
    services = Services(Settings(data=data))
    now = datetime.now(UTC)

    async def insert(connection: Connection) -> None:
        for start in range(0, count, _INSERTED_AT_ONCE):
            contents = [
                f"{user_id} {number}".encode() for number in range(start, min(start + _INSERTED_AT_ONCE, count))
            ]
            blobs = [
                {
                    "sha256": hashlib.sha256(content).hexdigest(),
                    "md5": hashlib.md5(content).hexdigest(),
                    "size": SIZE_BYTES,
                    "refs": 1,
                    "created_at": now,
                }
                for content in contents
            ]
            files = [
                {name: blob[name] for name in ("sha256", "md5", "size", "created_at")}
                | {"id": new_id(), "user_id": user_id, "name": f"owned/{number}.bin", "instant": False}
                for number, blob in enumerate(blobs, start)
            ]
            await connection.execute(models.blob.insert(), blobs)
            await connection.execute(models.file.insert(), files)
        user = models.user_info
        owns = {"use_space_finished": count * SIZE_BYTES, "files": count}
        await connection.execute(user.update().where(user.c.user_id == user_id).values(owns))

    try:
        await services.database.transact(insert)
    finally:
        await services.close()
