"""The servers of the benchmarks: private, real, set up as the product's are, and gone afterwards."""

import hashlib
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import text

from tests.support.servers import PRIVATE_DATABASES, PrivateRedis
from uploader.accounting.redis import RedisConnection, connect
from uploader.database import migrate
from uploader.database.engine import Database
from uploader.runtime.embedded import find_binary, version_of
from uploader.settings import Settings

# The defaults of the product.
DELAYS = Settings(quiet_interval_seconds=5, max_delay_seconds=60, max_pending_bytes=64 << 20, claim_lease_seconds=30)
USERS = 100
_SYSTEM_PATH = {"PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin"}
_INSERTED_AT_ONCE = 20_000
# The log of a database that writes without a pause, as large as an administrator would make it.
_LOG_SIZE = {"mariadb": "innodb_log_file_size", "mysql": "innodb_redo_log_capacity"}
_TICKS = os.sysconf("SC_CLK_TCK")
# Of each a number and its id, which serves for an MD5, too: not every database computes one.
_INSERT = """
INSERT INTO upload (id, user_id, md5, name, size, chunk_size, state, temp_path, created_at, updated_at, open_flag)
SELECT id, CONCAT('user', number % :users), id, 'folder/file.bin', :size, :chunk_size, 'OPEN', CONCAT('temp/2030/01/', id),
  :now, :now, 1
FROM JSON_TABLE(:items, '$[*]' COLUMNS (number BIGINT PATH '$[0]', id VARCHAR(32) PATH '$[1]')) AS item
"""
_RESERVE = """
INSERT INTO user_info (user_id, total_space, reserved, files)
SELECT user_id, SUM(size), SUM(size), COUNT(*) FROM upload GROUP BY user_id
"""


def upload_id(number: int) -> str:
    """The id of an upload of the benchmarks: as random as others, but for its last eight digits."""
    return f"{hashlib.sha1(str(number).encode(), usedforsecurity=False).hexdigest()[:24]}{number:08x}"


def number_of(upload_id: str) -> int:
    """The reverse of `upload_id`."""
    return int(upload_id[24:], 16)


@contextmanager
def valkey(directory: Path, *, append_only: bool) -> Iterator[PrivateRedis]:
    """A Valkey of its own, with an AOF as the embedded one or without."""
    server = PrivateRedis(directory, append_only=append_only).start()
    try:
        yield server
    finally:
        server.kill()


@asynccontextmanager
async def connected(server: PrivateRedis) -> AsyncIterator[RedisConnection]:
    """The product's client."""
    client = connect(server.url)
    try:
        yield client
    finally:
        await client.aclose()


@asynccontextmanager
async def database_server(directory: Path, product: str) -> AsyncIterator[tuple[Database, int]]:
    """A migrated database with a buffer pool that holds its rows, and the server's process id."""
    server = PRIVATE_DATABASES[product](directory).start()
    try:
        first = Database(server.url("mysql"))
        async with first.engine.connect() as connection:
            await connection.execute(text("SET GLOBAL innodb_buffer_pool_size = 1 << 30"))
            await connection.execute(text(f"SET GLOBAL {_LOG_SIZE[product]} = 1 << 30"))
            await connection.execute(text("CREATE DATABASE benchmark"))
        await first.close()
        database = Database(server.url("benchmark"))
        await migrate.upgrade(database)
        yield database, int((directory / "data" / "pid").read_text())
        await database.close()
    finally:
        server.stop()


async def open_uploads(database: Database, count: int, *, size: int, chunk_size: int) -> None:
    """Rows of open uploads, and of their users, who have room for them."""
    now = datetime.now(UTC).replace(tzinfo=None)
    for first in range(0, count, _INSERTED_AT_ONCE):
        items = [[number, upload_id(number)] for number in range(first, min(first + _INSERTED_AT_ONCE, count))]
        values = {"items": json.dumps(items), "users": USERS, "size": size, "chunk_size": chunk_size, "now": now}
        async with database.engine.begin() as connection:
            await connection.execute(text(_INSERT), values)
    async with database.engine.begin() as connection:
        await connection.execute(text(_RESERVE))


async def status(database: Database, name: str) -> int:
    """A counter of the database, of all its connections."""
    async with database.engine.connect() as connection:
        row = (await connection.execute(text(f"SHOW GLOBAL STATUS LIKE '{name}'"))).one()
    return int(row[1])


def cpu_seconds(pid: int) -> float:
    """What a process has used so far, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@contextmanager
def first_on_a_core(pid: int) -> Iterator[None]:
    """A process that never waits for a core, as on a machine of its own. Needs root: others get what they have."""
    threads = [int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir()]
    try:
        for thread in threads:
            os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        yield
        return
    yield
    with suppress(ProcessLookupError):
        for thread in threads:
            os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def versions() -> list[str]:
    """Of the servers that take part."""
    name, version = version_of(find_binary())
    said = subprocess.run(
        ["mariadbd", "--version"], capture_output=True, text=True, check=False, env=_SYSTEM_PATH
    ).stdout
    return [f"{name} {'.'.join(map(str, version))}", f"MariaDB {said.split()[2].partition('-')[0]}"]
