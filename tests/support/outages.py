"""Processes that die, start or stop while a database, a Redis, a bucket or a disk is out of order."""

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM

import httpx2
from botocore.exceptions import ClientError
from sqlalchemy import text

from tests.support.content import KIB, Content
from tests.support.failing_disk import FailingDisk
from tests.support.gateways import BUCKET, JuiceGateway
from tests.support.mounted import SmallDisk
from tests.support.process import Process, owner_token, wait_for, workers_of
from tests.support.sending import client_with, put, send
from tests.support.servers import WITH_TABLES, PrivateDatabase, PrivateRedis, free_port
from tests.support.waiting import SERVER_SECONDS
from uploader.database import models
from uploader.database.engine import Database
from uploader.storage.s3.bucket import make_client

# As promised: after the end of an outage, and where an embedded engine starts again.
RECOVERS_SECONDS, ENGINE_RECOVERS_SECONDS = 30.0, 60.0
# Long enough for attempts in vain.
_LASTS_SECONDS = 3.0
PHASES = ("start", "running", "stopping")


@dataclass(frozen=True)
class Outage:
    name: str
    begin: Callable[[], object]
    end: Callable[[], object]
    # A process that waits for a hung disk can neither start nor end before the outage does.
    is_hung: bool = False
    # Whether requests fail meanwhile.
    hinders: bool = True


@dataclass
class Installation:
    """The processes of one installation, which a supervisor starts again whenever one ends with another code than 0."""

    directory: Path
    # As the test sees it.
    data: Path
    settings: dict[str, str]
    # The arguments of each process; a server gets a port.
    commands: Sequence[tuple[str, ...]]
    outages: dict[str, Outage]
    program: Sequence[str | Path] | None = None
    processes: list[Process] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)
    _sent: int = 0

    def start(self) -> None:
        self.processes, self.ports = [], self.ports or [free_port() for _ in self.commands]
        for number in range(len(self.commands)):
            self.processes.append(self._started(number))

    def _started(self, number: int) -> Process:
        words, port = self.commands[number], self.ports[number]
        more = ("--port", str(port)) if words[0] == "serve" else ()
        log = self.directory / f"log-{number}"
        return Process(log, self.settings, *words, *more, program=self.program)

    def supervise(self) -> None:
        """Start again what has failed, as `Restart=on-failure` does."""
        for number, process in enumerate(self.processes):
            code = process.process.poll()
            if code is not None:
                assert code != 0, f"ended with code 0: {process.output()}"
                self.processes[number] = self._started(number)

    @property
    def urls(self) -> list[str]:
        pairs = zip(self.commands, self.ports, strict=True)
        return [f"http://127.0.0.1:{port}" for words, port in pairs if words[0] == "serve"]

    def is_live(self) -> bool:
        self.supervise()
        return all(_status(f"{url}/livez") == 200 for url in self.urls)

    def is_ready(self) -> bool:
        self.supervise()
        return all(_status(f"{url}/readyz") == 200 for url in self.urls)

    def works(self) -> bool:
        """Send a file by every server, and an account of a chunk by a job; False while one refuses."""
        if not self.is_ready():
            return False
        try:
            for url in self.urls:
                self._sent += 1
                content = Content(2 * 64 * KIB, seed=self._sent, name=f"{self._sent}")
                with client_with(owner_token(self.data), url) as client:
                    client.timeout = 20
                    before = _unfinished(client)
                    send(client, content, (0,))
                    until = time.monotonic() + 20
                    while (unfinished := _unfinished(client)) <= before:
                        assert time.monotonic() < until, unfinished
                        time.sleep(0.1)
                    assert put(client, content, (1,)).status_code in (201, 202)
        except (AssertionError, httpx2.HTTPError, OSError):
            return False
        return True

    def kill_one(self) -> None:
        """SIGKILL to one of several server processes, else to the last command."""
        several = [pid for process in self.processes for pid in workers_of(process)]
        if several:
            os.kill(several[0], SIGKILL)
        else:
            self.processes[-1].kill()

    def stop(self) -> None:
        for process in self.processes:
            process.process.send_signal(SIGTERM)

    def start_again(self) -> None:
        """After `stop`: every process ends with code 0."""
        codes = [process.process.wait(timeout=SERVER_SECONDS) for process in self.processes]
        assert codes == [0] * len(codes), [process.output() for process in self.processes]
        self.start()

    def end(self) -> None:
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.process.pid, SIGKILL)
            process.process.wait()


def _status(url: str) -> int:
    try:
        return httpx2.get(url, timeout=10).status_code
    except httpx2.HTTPError:
        return 0


def _unfinished(client: httpx2.Client) -> int:
    answer = client.get("/me/usage")
    assert answer.status_code == 200, answer.text
    found: int = answer.json()["use_space_unfinished"]
    return found


def survive(installation: Installation, outage: str, phase: str) -> float:
    """Let a process die, or start, or stop, during an outage; return the seconds from the end of the outage until everything
    works. Nobody acts but the supervisor."""
    fault = installation.outages[outage]
    try:
        installation.start()
        wait_for(installation.works, SERVER_SECONDS, "the first start")
        if phase == "start":
            installation.end()
        fault.begin()
        try:
            match phase:
                case "start":
                    installation.start()
                case "running":
                    installation.kill_one()
                case "stopping":
                    installation.stop()
                    if not fault.is_hung:
                        installation.start_again()
            until = time.monotonic() + _LASTS_SECONDS
            while time.monotonic() < until:
                if phase != "stopping" or not fault.is_hung:
                    installation.supervise()
                time.sleep(0.1)
            if not fault.is_hung:
                wait_for(installation.is_live, SERVER_SECONDS, "/livez during the outage")
                assert not (fault.hinders and installation.works()), f"{outage} hinders nothing"
        finally:
            fault.end()
        ended = time.monotonic()
        if phase == "stopping" and fault.is_hung:
            installation.start_again()
        wait_for(installation.works, SERVER_SECONDS, "everything")
        return time.monotonic() - ended
    finally:
        installation.end()


# Outages


_TRIGGERS = [(event, table.name) for table in models.metadata.sorted_tables for event in ("INSERT", "UPDATE")]
# Each new row and each change of a row is refused as by a server whose disk is full (ER_RECORD_FILE_FULL).
FILL = [
    f"CREATE TRIGGER full_{event}_{table} BEFORE {event} ON `{table}` FOR EACH ROW"
    " SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1114, MESSAGE_TEXT = 'The table is full'"
    for event, table in _TRIGGERS
]
MAKE_ROOM = [f"DROP TRIGGER IF EXISTS full_{event}_{table}" for event, table in _TRIGGERS]


def of_database(server: PrivateDatabase) -> list[Outage]:
    def statements(*each: str) -> Callable[[], None]:
        return lambda: asyncio.run(execute(server.url(WITH_TABLES), *each))

    return [
        Outage("database away", server.kill, server.revive),
        Outage("database slow", lambda: server.send_signal(SIGSTOP), lambda: server.send_signal(SIGCONT)),
        Outage("database full", statements(*FILL), statements(*MAKE_ROOM)),
        Outage("database read-only", statements("SET GLOBAL read_only = 1"), statements("SET GLOBAL read_only = 0")),
    ]


def url_of_user(server: PrivateDatabase) -> str:
    """The database of the tests for a user that a read-only server refuses: its administrators may write."""
    grant = f"GRANT ALL ON {WITH_TABLES}.* TO limited IDENTIFIED BY 'password'"
    asyncio.run(execute(server.url(WITH_TABLES), grant))
    return server.url(WITH_TABLES).replace("//root@", "//limited:password@")


async def execute(url: str, *statements: str) -> None:
    database = Database(url)
    async with database.engine.connect() as connection:
        for statement in statements:
            await connection.execute(text(statement))
    await database.close()


def of_redis(server: PrivateRedis) -> list[Outage]:
    def setting(name: str, value: str) -> Callable[[], None]:
        return lambda: server.command("CONFIG", "SET", name, value)

    return [
        Outage("Redis away", server.kill, server.start),
        Outage("Redis slow", lambda: server.send_signal(SIGSTOP), lambda: server.send_signal(SIGCONT)),
        Outage("Redis full", setting("maxmemory", "1"), setting("maxmemory", "0")),
        Outage("Redis read-only", setting("min-replicas-to-write", "1"), setting("min-replicas-to-write", "0")),
    ]


def of_bucket(gateway: JuiceGateway) -> list[Outage]:
    def restart(*arguments: str) -> Callable[[], None]:
        def restarted() -> None:
            gateway.kill()
            gateway.start_again(*arguments)

        return restarted

    def fill() -> None:
        """The gateway would hear of the limit by and by, and needs some files to start."""
        gateway.limit_files(gateway.count_files() + 50)
        restart()()
        client = make_client(gateway.gateway.address())
        with suppress(ClientError):
            while True:
                client.put_object(Bucket=BUCKET, Key=f"filler/{secrets.token_hex(8)}", Body=b"")
        client.close()

    def make_room() -> None:
        gateway.limit_files(0)
        restart()()

    return [
        Outage("bucket away", gateway.kill, gateway.start_again),
        Outage("bucket slow", lambda: gateway.send_signal(SIGSTOP), lambda: gateway.send_signal(SIGCONT)),
        Outage("bucket full", fill, make_room),
        Outage("bucket read-only", restart("--read-only"), restart()),
    ]


def of_disk(disk: FailingDisk, data: Path) -> list[Outage]:
    def become(state: str) -> Callable[[], None]:
        return lambda: disk.become(state, f"{data}/")

    states = ("away", "full", "read-only", "slow")
    return [Outage(f"disk {state}", become(state), disk.heal, is_hung=state == "slow") for state in states]


def of_small_disk(disk: SmallDisk) -> list[Outage]:
    fillers: list[Path] = []

    def mount(how: str) -> Callable[[], None]:
        return lambda: disk.remount(how)

    return [
        Outage("small disk full", lambda: fillers.append(disk.fill()), lambda: fillers.pop().unlink()),
        Outage("small disk read-only", mount("ro"), mount("rw")),
    ]
