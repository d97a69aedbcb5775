"""What is killed: two servers, two workers, a Valkey and a database, on one data directory. Each can be started again."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError
from sqlalchemy import text

from tests.support.content import KIB
from tests.support.process import Process, answers, wait_for
from tests.support.servers import PRIVATE_DATABASES, PrivateRedis, free_port
from uploader.database import migrate
from uploader.database.engine import Database

LEASE_SECONDS = 1.0
SETTINGS = {
    "QUIET_INTERVAL": "300ms",
    "MAX_DELAY": "2s",
    "CLAIM_LEASE": f"{LEASE_SECONDS:g}s",
    "MERGE_WAIT": "2s",
    "FREE_SPACE_FLOOR": "0",
    "LOG_LEVEL": "warning",
}


@dataclass(frozen=True)
class Setup:
    """What a round is made on."""

    database: str = "mariadb"
    durability: str = "power"
    chunk_size: int = 64 * KIB


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
        self.redis = PrivateRedis(directory / "redis")
        self.database = PRIVATE_DATABASES[setup.database](directory / setup.database)
        self.database_url = self.database.url("uploader")
        self._settings = SETTINGS | {
            "DATA": str(self.data),
            "DATABASE_URL": self.database_url,
            "REDIS_URL": self.redis.url,
            "DURABILITY": setup.durability,
        }
        self._running = contextlib.ExitStack()
        self._ports = [free_port(), free_port()]
        self.urls = [f"http://127.0.0.1:{port}" for port in self._ports]
        directory.mkdir(parents=True, exist_ok=True)
        self.servers = [
            self._member("server", directory / f"clock-{port}", "serve", "--no-jobs", "--port", str(port))
            for port in self._ports
        ]
        self.workers = [self._member("worker", directory / f"clock-worker-{number}", "work") for number in range(2)]

    def _member(self, kind: str, clock: Path, *arguments: str) -> Member:
        settings = self._settings | {"TEST_CLOCK": str(clock)}
        return Member(kind, clock, lambda: Process(self.log, settings, *arguments))

    @property
    def members(self) -> list[Member]:
        return self.servers + self.workers

    async def start(self) -> None:
        """Everything from nothing, until both servers are ready."""
        self.data.mkdir(parents=True)
        self.redis.start()
        self._running.callback(self.redis.kill)
        self.database.start()
        self._running.callback(self.database.kill)
        server = Database(self.database.url("mysql"))
        async with server.engine.connect() as connection:
            await connection.execute(text("CREATE DATABASE uploader"))
        await server.close()
        database = Database(self.database_url)
        await migrate.upgrade(database)
        await database.close()
        for member in self.members:
            member.start()
            self._running.callback(member.kill)
        wait_for(lambda: all(map(answers, self._ports)), seconds=120)

    def stop(self) -> None:
        """End everything, however it stands."""
        self._running.close()

    def flush_all(self) -> None:
        """Redis loses everything; nothing happens if it is away itself."""
        try:
            with Redis.from_url(self.redis.url, socket_timeout=1) as redis:
                redis.flushall()
        except (RedisError, OSError):
            return
