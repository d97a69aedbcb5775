"""What the statements of a file cost on SQLite, each by itself: python -m benchmarks.statements

As text, which is how they run, and by SQLAlchemy: µs of CPU, the median of the rounds and how far they are apart. The two
take turns, because a machine is not as fast at one moment as at the next.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Executable

from tests.support.faults import sync_nothing
from tests.support.rows import Transactions, upload_row
from uploader.database import migrate, queries
from uploader.database.engine import Database
from uploader.database.sqlite import SqliteEngine
from uploader.database.transactions import rows

_ROUNDS, _TIMES = 9, 500


def _asked(upload: Any) -> dict[str, tuple[Executable, dict[str, Any]]]:
    """The statements by the questions that they answer; all of one upload."""
    user = {"user_id": upload.user_id}
    return {
        "open upload by MD5": (queries._OPEN_UPLOAD_BY_MD5, user | {"md5": upload.md5}),
        "upload by id": (queries._UPLOAD_BY_ID, {"upload_id": upload.id}),
        "usage": (queries._USAGE, user),
        "count of open uploads": (queries._COUNT_OF_OPEN_UPLOADS, user),
        "token by hash": (queries._TOKEN_BY_HASH, {"token_sha256": "0" * 64}),
        "blobs by MD5": (queries._BLOBS_BY_MD5, {"md5": upload.md5, "size": upload.size}),
        "reserve": (rows.RESERVE_ANEW, {"of_user": upload.user_id, "more": 0, "max_files": 10**6}),
        "settle the user": (
            rows.SETTLE_USER,
            {"of_user": upload.user_id, "flushed": 0, "size": 0, "finished": 0, "more_files": 0},
        ),
    }


async def _measure(directory: Path) -> None:
    database = Database(f"sqlite:///{directory}/statements.db", creates=True)
    sync_nothing(database)
    await migrate.upgrade(database)
    act = Transactions(database)
    await act.create_user(total_space=1 << 40)
    upload = await act.open(upload_row())
    assert isinstance(database.engine, SqliteEngine)
    with database.engine.writing() as connection:
        plain = await connection.run_sync(lambda plain: plain)
        for name, (statement, values) in _asked(upload).items():
            text = connection.texts.of(statement, values)
            assert text is not None
            ways = (partial(text.run, connection.driver, values), partial(_run_plainly, plain, statement, values))
            rounds = [[_microseconds(way) for way in ways] for _ in range(_ROUNDS)]
            told = (
                f"{statistics.median(way):6.1f} ({min(way):.1f} to {max(way):.1f})" for way in zip(*rounds, strict=True)
            )
            print(f"{name:24}", " by SQLAlchemy ".join(told))
    await database.close()


def _run_plainly(plain: Connection, statement: Executable, values: dict[str, Any]) -> None:
    result = plain.execute(statement, values)
    if result.returns_rows:
        result.all()


def _microseconds(way: Callable[[], Any]) -> float:
    began = time.process_time()
    for _ in range(_TIMES):
        way()
    return (time.process_time() - began) / _TIMES * 1e6


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(_measure(Path(made)))
