"""What is killed: two servers, two workers, a Valkey and a database, on one data directory, whose disk may fail for a while.
Each can be started again.

On S3 each server and worker has a data directory of its own, and the gateway is killed, too. On SQLite there is no database
to kill. With failovers there are two of each store. Half of the processes find their Valkey by a Sentinel, the other half by
an address.
"""

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError
from sqlalchemy import text

from tests.soak.mysql_pair import MysqlPair
from tests.soak.sink import Sink
from tests.soak.valkey_pair import ValkeyPair
from tests.support.at_rest import DiskBytes, StoredBytes
from tests.support.consumer import events_file
from tests.support.content import KIB, MIB
from tests.support.failing_disk import FailingDisk
from tests.support.gateways import JuiceGateway, PrivateGateway, RadosGateway, juicefs_program
from tests.support.in_bucket import BucketBytes
from tests.support.process import Process, answers, wait_for, workers_of
from tests.support.servers import PRIVATE_DATABASES, PrivateDatabase, PrivateRedis, free_port
from uploader.database import migrate
from uploader.database.engine import Database

LEASE_SECONDS = 1.0
GATEWAYS: dict[str, type[JuiceGateway | RadosGateway]] = {"juicefs": JuiceGateway, "ceph": RadosGateway}
STORES = ("disk", *GATEWAYS)
GATEWAY_NAMES = {"juicefs": "JuiceFS' gateway", "ceph": "radosgw"}
# That of all parts but the last one.
_CEPH_CHUNK_BYTES = 5 * MIB
PREFIX = QUEUE = "soak"
SETTINGS = {
    # Nodes with directories of their own need the same.
    "SECRET": "0123456789abcdef" * 4,
    "QUIET_INTERVAL": "300ms",
    "MAX_DELAY": "2s",
    "CLAIM_LEASE": f"{LEASE_SECONDS:g}s",
    "MERGE_WAIT": "2s",
    "FREE_SPACE_FLOOR": "0",
    "LOG_LEVEL": "warning",
}
# What nobody needs is removed at once: a Ceph in memory would be full.
_ON_S3 = {"TRASH_RETENTION": "0s"}


@dataclass(frozen=True)
class Setup:
    """What a round is made on."""

    database: str = "mariadb"
    durability: str = "power"
    chunk_size: int = 64 * KIB
    failovers: bool = False  # on MySQL only
    store: str = "disk"
    tells: bool = False  # a webhook of events, which is killed as well
    hands_out: bool = False  # a queue of tasks

    @classmethod
    def on(cls, store: str, **more: Any) -> "Setup":
        """With chunks that this store takes."""
        return cls(**({"chunk_size": _CEPH_CHUNK_BYTES} if store == "ceph" else {}) | more, store=store)

    @property
    def is_on_s3(self) -> bool:
        return self.store in GATEWAYS

    @property
    def lacks(self) -> str | None:
        """What it needs and is not installed here."""
        if self.database in PRIVATE_DATABASES and not PRIVATE_DATABASES[self.database].is_installed():
            return PRIVATE_DATABASES[self.database].product
        if self.store == "juicefs" and (find_spec("boto3") is None or juicefs_program() is None):
            return "JuiceFS' gateway, or the client of S3"
        if self.store == "ceph" and not all(map(shutil.which, ("ceph-mon", "ceph-osd", "ceph-mgr", "radosgw"))):
            return "Ceph"
        if self.disk_fails and shutil.which("gcc") is None:
            return "a compiler, gcc"
        return None

    @property
    def disk_fails(self) -> bool:
        """Where events are told, nothing but who tells and who hears fails."""
        return not (self.tells or self.hands_out)

    def __str__(self) -> str:
        database = "SQLite" if self.database == "sqlite" else PRIVATE_DATABASES[self.database].product
        chunks = f"chunks of {self.chunk_size // KIB:,} KiB"
        return f"{database}, {GATEWAY_NAMES.get(self.store, 'disk')}, durability `{self.durability}`, {chunks}"


class Member:
    """One server or worker, with a clock of its own."""

    def __init__(self, kind: str, clock: Path, start: Callable[[], Process]) -> None:
        self.kind = kind
        self._clock = clock
        self._start = start
        self.process: Process | None = None
        self.set_clock(0)

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.process.poll() is None

    @property
    def processes(self) -> list[int]:
        """The processes of a server with several; of another one none."""
        return [] if self.process is None else workers_of(self.process)

    def start(self) -> None:
        """Does not wait until it is ready."""
        self.process = self._start()

    def set_clock(self, ahead_seconds: float) -> None:
        """Let its wall clock jump, now and for its successors, to so many seconds ahead of the real one."""
        draft = self._clock.with_suffix(".draft")
        draft.write_text(str(ahead_seconds))
        draft.rename(self._clock)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def send_signal(self, number: int) -> None:
        assert self.process is not None
        self.process.process.send_signal(number)


class Installation:
    """All processes and files of one round."""

    def __init__(self, directory: Path, setup: Setup) -> None:
        self.data = directory / "data"
        self.log = directory / "log"
        self.valkeys = ValkeyPair(directory / "redis") if setup.failovers else None
        self.databases = MysqlPair(directory / setup.database) if setup.failovers else None
        self._redis = PrivateRedis(directory / "redis")
        self.database: PrivateDatabase | MysqlPair | None = self.databases
        if self.database is None and setup.database != "sqlite":
            self.database = PRIVATE_DATABASES[setup.database](directory / setup.database)
        self.database_url = f"sqlite:///{self.data / 'uploader.db'}"
        if self.database is not None:
            self.database_url = self.database.url("uploader")
        # Of all members, but how each finds Redis.
        self.settings = SETTINGS | {
            "DATA": str(self.data),
            "DATABASE_URL": self.database_url,
            "DURABILITY": setup.durability,
            "CHUNK_SIZE": str(setup.chunk_size),
        }
        self.gateway: PrivateGateway | None = None
        if setup.is_on_s3:
            self.gateway = GATEWAYS[setup.store](directory / setup.store)
            self.settings |= self.gateway.gateway.environment(PREFIX)
            self.settings |= {"MIN_CHUNK_SIZE": str(setup.chunk_size), **_ON_S3}
        self.sink: Sink | None = None
        if setup.tells:
            self.sink = Sink(directory / "sink")
            self.settings |= {"EVENTS": str(self.sink.settings)}
        if setup.hands_out:
            table = f'[queues.{QUEUE}]\ntypes = ["file.finished"]\nmax_attempts = 100\ngate = true\n'
            self.settings |= {"EVENTS": str(events_file(directory / "queue", table))}
        directory.mkdir(parents=True, exist_ok=True)
        self.disk = FailingDisk(directory) if setup.disk_fails else None
        if self.disk is not None:
            self.settings |= self.disk.settings
        self._running = contextlib.ExitStack()
        self._ports = [free_port(), free_port()]
        self.urls = [f"http://127.0.0.1:{port}" for port in self._ports]
        # The first has two processes.
        self.servers = [
            self._member(
                "server",
                url,
                directory / f"clock-{port}",
                "serve",
                "--no-jobs",
                "--port",
                str(port),
                "--workers",
                count,
            )
            for url, port, count in zip(self._redis_urls, self._ports, "21", strict=True)
        ]
        self.workers = [
            self._member("worker", url, directory / f"clock-worker-{number}", "work")
            for number, url in enumerate(self._redis_urls)
        ]

    @property
    def redis(self) -> PrivateRedis:
        """The one that takes writes."""
        return self._redis if self.valkeys is None else self.valkeys.primary

    @property
    def _redis_urls(self) -> tuple[str, str]:
        """How the first and the second of each kind find it."""
        return (self._redis.url,) * 2 if self.valkeys is None else (self.valkeys.sentinel_url, self.valkeys.url)

    def _member(self, kind: str, redis_url: str, clock: Path, *arguments: str) -> Member:
        settings = self.settings | {"REDIS_URL": redis_url, "TEST_CLOCK": str(clock)}
        if self.gateway is not None:
            settings |= {"DATA": str(self.data / clock.name)}
        return Member(kind, clock, lambda: Process(self.log, settings, *arguments))

    @property
    def members(self) -> list[Member]:
        return self.servers + self.workers

    async def start(self) -> None:
        """Everything from nothing, until both servers are ready."""
        await self.start_stores()
        for member in self.members:
            member.start()
            self._running.callback(member.kill)
        wait_for(lambda: all(map(answers, self._ports)))

    async def start_stores(self) -> None:
        """With the tables, and nobody who uses them."""
        self.data.mkdir(parents=True)
        for store in (self.valkeys or self._redis, self.database, self.gateway, self.sink):
            if store is not None:
                self._running.callback(store.stop)
                store.start()
        await self.make_database("uploader")
        database = Database(self.database_url, creates=True)
        await migrate.upgrade(database)
        await database.close()

    async def make_database(self, name: str) -> None:
        """On the server, if there is one."""
        if self.database is not None:
            server = Database(self.database.url("mysql"))
            async with server.engine.connect() as connection:
                await connection.execute(text(f"CREATE DATABASE {name}"))
            await server.close()

    def stored(self, database: Database) -> StoredBytes:
        """What is stored, to look at. Once it has started."""
        if self.gateway is None:
            return DiskBytes(self.data, orphans=True)
        return BucketBytes(database, self.gateway.gateway, PREFIX)

    def stop(self) -> None:
        """End everything, however it stands."""
        self._running.close()

    @property
    def failovers(self) -> dict[str, int]:
        """How many of each kind there were."""
        pairs = [pair for pair in (self.valkeys, self.databases) if pair is not None]
        return {kind: count for pair in pairs for kind, count in sorted(pair.failovers.items())}

    def restart_database(self) -> None:
        """Kill it, and start it again on the same files."""
        if isinstance(self.database, PrivateDatabase):
            self.database.kill()
            self.database.start()
        elif self.database is not None:
            self.database.restart()

    def restart_gateway(self) -> None:
        """Kill it, and start it again on the same files."""
        assert self.gateway is not None
        self.gateway.kill()
        self.gateway.start_again()

    def set_clocks(self, ahead_seconds: float) -> None:
        for member in self.members:
            member.set_clock(ahead_seconds)

    def flush_all(self) -> None:
        """Redis loses everything; nothing happens if it is away itself."""
        try:
            with Redis.from_url(self.redis.url, socket_timeout=1) as redis:
                redis.flushall()
        except (RedisError, OSError):
            return
