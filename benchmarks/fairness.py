"""Measures what one greedy user costs ten ordinary ones: `python -m benchmarks.fairness`.

The greedy one lists 1,000 files over 300 connections, again and again. An ordinary one sends a file of 100 bytes, waits a
little, and sends the next. In each round the ordinary ones are alone first, then beside the greedy one.
"""

import argparse
import asyncio
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import text

from benchmarks import interpreter, report
from tests.support.process import UPLOADER, Server, ended
from tests.support.servers import PRIVATE_DATABASES
from uploader.bootstrap import Services
from uploader.database import migrate
from uploader.database.engine import Database
from uploader.settings import Settings

_ORDINARY = 10
_FILES = 1_000
_THINK_SECONDS = 0.1
_GREEDY = "greedy"
_LISTING = "GET /me/files?limit=1000"
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fairness", description=__doc__)
    parser.add_argument("--connections", type=int, default=300, help="of the greedy user")
    parser.add_argument("--seconds", type=float, default=10.0, help="for how long each side is measured in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--database", choices=("MySQL", "MariaDB"), help="instead of SQLite")
    parser.add_argument("--request", default=_LISTING, help=f"of the greedy user, without a body ({_LISTING})")
    parser.add_argument(_GREEDY, nargs="?", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.greedy:
        asyncio.run(_be_greedy(json.loads(sys.stdin.readline())))
        return
    interpreter.choose()
    print(f"{report.machine(())}.\n\n{measure(arguments)}")


def measure(arguments: argparse.Namespace) -> str:
    """Return the table."""
    alone: list[float] = []
    beside: list[float] = []
    ratios, answers, cores = [], [], []
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-", ignore_cleanup_errors=True) as directory,
        _database(Path(directory) / "database", arguments.database) as url,
        running(Path(directory), url) as (server, tokens),
    ):
        greedy, *ordinary = tokens
        _fill(server.url, greedy)
        told = {"port": server.port, "token": greedy, "count": arguments.connections, "request": arguments.request}
        for number in range(arguments.rounds):
            quiet = asyncio.run(be_ordinary(server.port, ordinary, arguments.seconds, f"{number}/quiet"))
            with _greedy(told) as crowd:
                before, began = _cpu_seconds(server.process.pid), time.monotonic()
                busy = asyncio.run(be_ordinary(server.port, ordinary, arguments.seconds, f"{number}/busy"))
                cores.append((_cpu_seconds(server.process.pid) - before) / (time.monotonic() - began))
            answers.append(crowd["answered"] / crowd["seconds"])
            alone.append(report.percentile(quiet, 0.99))
            beside.append(report.percentile(busy, 0.99))
            ratios.append(beside[-1] / alone[-1])
        server.stop()
    rows = [
        report.compared("100 bytes of ten ordinary users, p99, alone", alone, "ms"),
        report.compared(f"… beside {arguments.connections} connections of a greedy one", beside, "ms"),
        report.at_most("p99 beside to p99 alone", 3, ratios, "times"),
        report.compared("answers to the greedy one", answers, "/s"),
        report.compared("CPU of the server meanwhile", cores, "cores"),
    ]
    return report.table(rows)


@contextmanager
def _database(directory: Path, product: str | None) -> Iterator[str | None]:
    """The URL of a migrated database; None: a SQLite that the server makes."""
    if product is None:
        yield None
        return
    server = PRIVATE_DATABASES[product.lower()](directory).start()
    try:
        asyncio.run(_migrate(server.url("mysql"), server.url("benchmark")))
        yield server.url("benchmark")
    finally:
        server.stop()


async def _migrate(first_url: str, url: str) -> None:
    first = Database(first_url)
    async with first.engine.connect() as connection:
        await connection.execute(text("CREATE DATABASE benchmark"))
    await first.close()
    database = Database(url)
    await migrate.upgrade(database)
    await database.close()


@contextmanager
def running(
    directory: Path, database: str | None, more: dict[str, str] | None = None
) -> Iterator[tuple[Server, list[str]]]:
    """A server with these settings, and the tokens of a greedy user and of ordinary ones."""
    settings = {
        **(more or {}),
        "DATA": str(directory / "data"),
        "MAX_CONNECTIONS_PER_ADDRESS": "4096",
        "MAX_CONNECTIONS_PER_USER": "512",
    }
    if database is not None:
        settings["DATABASE_URL"] = database
    server = Server(directory / "log", settings, program=(UPLOADER,))
    with ended(server):
        yield server, asyncio.run(_make_users(directory / "data", database))


async def _make_users(data: Path, database: str | None) -> list[str]:
    services = Services(Settings(data=data, database_url=database))
    try:
        return [
            await services.accounts.create_token(f"user-{number}", admin=False, total_space=1 << 40)
            for number in range(1 + _ORDINARY)
        ]
    finally:
        await services.close()


def _fill(url: str, token: str) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for number in range(_FILES):
            member = tarfile.TarInfo(f"photos of a holiday/{number:06}.jpg")
            member.size = 8
            tar.addfile(member, io.BytesIO(b"%08d" % number))
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{url}/files/batch", archive.getvalue(), headers, method="POST")
    with urllib.request.urlopen(request, timeout=120) as response:
        assert response.status == 200


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS


async def be_ordinary(port: int, tokens: list[str], seconds: float, salt: str) -> list[float]:
    """Return the milliseconds of each file."""
    took: list[list[float]] = await asyncio.gather(
        *(_send_files(port, token, seconds, f"{salt}/{number}") for number, token in enumerate(tokens))
    )
    return [each for one in took for each in one]


async def _send_files(port: int, token: str, seconds: float, salt: str) -> list[float]:
    end, took = time.monotonic() + seconds, list[float]()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.monotonic() < end:
        content = f"{salt}/{len(took)}".ljust(100).encode()
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        began = time.perf_counter()
        status = await ask(reader, writer, f"PUT /files/{md5}?name={md5}", token, content)
        took.append((time.perf_counter() - began) * 1000)
        assert status == 201, status
        await asyncio.sleep(_THINK_SECONDS)
    writer.close()
    await writer.wait_closed()
    return took


async def ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: str, token: str, content: bytes = b""
) -> int:
    head = f"{request} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\nContent-Length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    await reader.readexactly(int(answer.partition("content-length: ")[2].partition("\r\n")[0] or 0))
    return int(answer.split()[1])


@contextmanager
def _greedy(told: dict[str, object]) -> Iterator[dict[str, float]]:
    """A process of its own; filled in at the end with how many answers came, in how long."""
    command = [sys.executable, "-m", "benchmarks.fairness", _GREEDY]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    crowd: dict[str, float] = {}
    try:
        process.stdin.write(json.dumps(told) + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "connected\n"
        yield crowd
        printed, _ = process.communicate()
        crowd.update(json.loads(printed))
    finally:
        process.kill()
        process.communicate()


async def _be_greedy(told: dict[str, object]) -> None:
    """Ask over all connections, until the standard input ends."""
    os.nice(5)  # what is measured is the server, not who asks it
    answered = 0

    async def ask_on_and_on() -> None:
        nonlocal answered
        reader, writer = await asyncio.open_connection("127.0.0.1", int(str(told["port"])), limit=1 << 20)
        while True:
            status = await ask(reader, writer, str(told["request"]), str(told["token"]))
            answered += status == 200

    asking = [asyncio.create_task(ask_on_and_on()) for _ in range(int(str(told["count"])))]
    await asyncio.sleep(1.0)
    began, answered = time.monotonic(), 0
    print("connected", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(json.dumps({"answered": answered, "seconds": time.monotonic() - began}), flush=True)
    for task in asking:
        task.cancel()


if __name__ == "__main__":
    main()
