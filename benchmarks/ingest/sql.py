"""What the embedded database does in a second, by itself: small commits, and all that it is asked for a file."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from sqlalchemy import text

from benchmarks.ingest.scale import Files
from tests.support.rows import upload_row
from uploader.bootstrap import database_url
from uploader.database import migrate, queries, transactions
from uploader.database.engine import Connection, Database
from uploader.database.transactions import users
from uploader.service.ids import new_id
from uploader.settings import Settings

OF_A_FILE = "two looks and two transactions each"
_SIZE = 4096
_USER = "user"
_MAX_OPEN_UPLOADS = 100


async def commits(directory: Path, load: Files) -> float:
    """Transactions a second, one row changed in each; those that wait for each other commit together."""
    async with _database(directory / "commits") as database:
        await database.transact(lambda connection: connection.execute(text("CREATE TABLE counted (value BIGINT)")))
        await database.transact(lambda connection: connection.execute(text("INSERT INTO counted VALUES (0)")))
        count = text("UPDATE counted SET value = value + 1")
        return await _rate(lambda: database.transact(lambda connection: connection.execute(count)), load)


async def files(directory: Path, load: Files) -> float:
    """Files a second, if nothing but the database had to be asked."""
    async with _database(directory / "statements") as database:
        await migrate.upgrade(database)
        await database.transact(lambda connection: users.create_user(connection, _USER, 1 << 40))
        return await _rate(lambda: _one_file(database), load)


async def _one_file(database: Database) -> None:
    upload = upload_row(_USER, _SIZE)
    sha256 = hashlib.sha256(upload.id.encode()).hexdigest()

    async def look(connection: Connection) -> None:
        await queries.open_upload_by_md5(connection, _USER, upload.md5 or "")
        await queries.newest_file(connection, _USER, upload.md5 or "", size=_SIZE)
        await queries.usage(connection, _USER)
        await queries.count_open_uploads(connection, _USER)

    async def place_nothing() -> None:
        pass

    await database.read(look)
    await database.transact(
        lambda connection: transactions.open_upload(connection, upload, max_open_uploads=_MAX_OPEN_UPLOADS)
    )
    await database.read(lambda connection: queries.upload_by_id(connection, upload.id))
    await database.transact(
        lambda connection: transactions.merge(
            connection,
            upload_id=upload.id,
            file_id=new_id(),
            md5=upload.md5 or "",
            sha256=sha256,
            place_blob=place_nothing,
            now=upload.created_at,
        )
    )


async def _rate(once: Callable[[], Awaitable[object]], load: Files) -> float:
    """How often a second, so many at once."""
    began = time.perf_counter()

    async def work() -> int:
        done = 0
        while time.perf_counter() < began + load.bound_seconds:
            await once()
            done += 1
        return done

    done = sum(await asyncio.gather(*(work() for _ in range(load.at_once))))
    return done / (time.perf_counter() - began)


@asynccontextmanager
async def _database(directory: Path) -> AsyncIterator[Database]:
    await asyncio.to_thread(directory.mkdir, parents=True)
    database = Database(database_url(Settings(data=directory)))
    try:
        yield database
    finally:
        await database.close()
