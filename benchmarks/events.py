"""Measures events, and writes the table of `docs/events.md`: `python -m benchmarks.events`.

The cost: CPU of a server process for each file, without events, with them written, and with them written and told to a
stream of Redis by the same process, which then runs all jobs. The servers take turns, because a machine is not as fast at
one moment as at the next. The rates: one relay, to a webhook in another process and to a stream, from rows that are there.
The lag: how long after the answer to an upload a sink has its event, while five others are of no use for an hour; the clock
of the server is turned by a minute for each upload.
"""

import argparse
import asyncio
import hashlib
import http.client
import json
import multiprocessing
import secrets
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import interpreter, report
from benchmarks.ingest import processes
from benchmarks.report import Row, at_least, at_most, compared
from tests.support.consumer import Consumer, consuming, events_file, webhook
from tests.support.process import Server, owner_token
from tests.support.rows import Transactions, file_row
from tests.support.servers import PrivateRedis
from tests.support.waiting import eventually
from uploader.accounting.redis import connect
from uploader.bootstrap.services import create_precreate_hook
from uploader.database import migrate
from uploader.database.engine import Database
from uploader.database.outbox import Outbox
from uploader.domain.creations import UPLOAD
from uploader.domain.events import EventType
from uploader.runtime.clock import Clock
from uploader.service.events import Relay
from uploader.service.ids import new_id
from uploader.service.leases import ProcessMark
from uploader.service.precreate import Question
from uploader.sinks.base import EventSink
from uploader.sinks.configuration import EventSettings, WebhookSettings, load_events
from uploader.sinks.stream import StreamSink
from uploader.sinks.webhook import WebhookSink

PAGE = Path(__file__).parents[1] / "docs" / "events.md"
SECTION = "events"


@dataclass(frozen=True)
class Scale:
    """How much of each is done."""

    rounds: int = 9
    files: int = 300
    events: int = 5000
    minutes: int = 60


TINY = Scale(rounds=1, files=3, events=20, minutes=2)
_MOST_LAG_SECONDS = 1.0
_OF_NO_USE = ("down", "slow", "silent", "failing", "gone")
_FILE_BYTES = 4096
_MOST_MORE = 1.10
_WEBHOOKS_PER_SECOND, _ENTRIES_PER_SECOND = 800, 5000
_Send = Callable[[http.client.HTTPConnection, dict[str, str], int], None]


def measure(scale: Scale = Scale()) -> list[Row]:
    """All figures."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        redis = PrivateRedis(directory / "redis", append_only=False).start()
        try:
            return [
                *_costs(directory, redis.url, scale),
                asyncio.run(_unasked(scale)),
                *asyncio.run(_rates(directory, redis.url, scale)),
                asyncio.run(_lag(directory, redis.url, scale)),
            ]
        finally:
            redis.stop()


# The cost


def _costs(directory: Path, redis_url: str, scale: Scale) -> list[Row]:
    table = f'[sinks.log]\ntype = "redis"\nurl = "{redis_url}"\n'
    told = {"EVENTS": str(events_file(directory / "settings", table))}
    alone = {"JOBS": "false"}
    ways = {"without": alone, "written": told | alone, "with jobs": {}, "told": told}
    with ExitStack() as ending:
        servers = {name: ending.enter_context(_serving(directory / name, more)) for name, more in ways.items()}
        return [
            *_compare("in one request", _put_whole, servers, scale),
            *_compare("by a chunk", _put_chunk, servers, scale),
        ]


@contextmanager
def _serving(data: Path, more: dict[str, str]) -> Iterator[Server]:
    data.mkdir()
    settings = {
        "DATA": str(data),
        "FREE_SPACE_FLOOR": "0",
        "DEFAULT_TOTAL_SPACE": "1TiB",
        "LOG_LEVEL": "warning",
        **more,
    }
    server = Server(data / "log", settings)
    try:
        yield server
    finally:
        server.stop()


def _compare(how: str, send: _Send, servers: dict[str, Server], scale: Scale) -> list[Row]:
    costs: dict[str, list[float]] = {name: [] for name in servers}
    for _ in range(scale.rounds):
        for name, server in servers.items():
            costs[name].append(_cost(server, send, scale.files))
    written = [more / plain for plain, more in zip(costs["without"], costs["written"], strict=True)]
    told = [more / plain for plain, more in zip(costs["with jobs"], costs["told"], strict=True)]
    return [
        compared(f"a file {how}, without events", [cost * 1e6 for cost in costs["without"]], "µs of CPU"),
        at_most("the same, with events written, to that", _MOST_MORE, written, "×"),
        compared("the same, written and told, to that, both with jobs", told, "×"),
    ]


def _cost(server: Server, send: _Send, files: int) -> float:
    """CPU seconds of a file."""
    token = owner_token(server.log.parent)
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    headers = {"Authorization": f"Bearer {token}"}
    pids = [server.process.pid]
    processes.wait_until_quiet(pids)
    before = processes.cpu_seconds(pids)
    for number in range(files):
        send(connection, headers, number)
    processes.wait_until_quiet(pids)
    connection.close()
    return (processes.cpu_seconds(pids) - before) / files


def _put_whole(connection: http.client.HTTPConnection, headers: dict[str, str], number: int) -> None:
    data = secrets.token_bytes(_FILE_BYTES)
    md5 = hashlib.md5(data).hexdigest()
    _ask(connection, "PUT", f"/files/{md5}?name={number}.bin", data, headers)


def _put_chunk(connection: http.client.HTTPConnection, headers: dict[str, str], number: int) -> None:
    data = secrets.token_bytes(_FILE_BYTES)
    md5 = hashlib.md5(data).hexdigest()
    opening = json.dumps({"name": f"{number}.bin", "size": len(data), "instant": False}).encode()
    _ask(connection, "POST", f"/files/{md5}", opening, headers)
    _ask(connection, "PUT", f"/files/{md5}/chunks/0", data, headers)


def _ask(connection: http.client.HTTPConnection, method: str, path: str, body: bytes, headers: dict[str, str]) -> None:
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 201, answer.status


async def _unasked(scale: Scale) -> Row:
    """What an opening pays for the question that is asked of nobody."""
    asking, costs = create_precreate_hook(EventSettings(), Clock()), []
    for _ in range(scale.rounds):
        began = time.process_time()
        for _ in range(scale.events):
            await asking.ask(Question(UPLOAD, "alice", ("a.bin",), _FILE_BYTES, "0" * 32))
        costs.append((time.process_time() - began) / scale.events * 1e6)
    return compared("opening without `[pre_create]`: what it pays for it", costs, "µs of CPU")


# The rates


async def _rates(directory: Path, redis_url: str, scale: Scale) -> list[Row]:
    redis = connect(redis_url)
    with _consumer_elsewhere() as url:
        path = events_file(directory / "hook", webhook("hook", url))
        settings = load_events(path).sinks["hook"]
        assert isinstance(settings, WebhookSettings)
        hook = WebhookSink(settings.to, Clock())
        return [
            await _rate(directory, "webhooks of one relay", _WEBHOOKS_PER_SECOND, hook, scale),
            await _rate(
                directory,
                "entries of a stream by one relay",
                _ENTRIES_PER_SECOND,
                StreamSink(redis, "rate", 10**6, owns=True),
                scale,
            ),
        ]


async def _rate(directory: Path, what: str, target: float, sink: EventSink, scale: Scale) -> Row:
    rates, cpu = [], []
    for number in range(min(scale.rounds, 3)):
        async with _written(directory / f"{what} {number}.db", scale.events) as database:
            relay = Relay("sink", sink, database, ProcessMark(directory), Clock(), lambda: "/uploader/0")
            began, cpu_began = time.perf_counter(), time.process_time()
            for _ in range(scale.events):
                if await relay.relay_due():
                    break
            rates.append(scale.events / (time.perf_counter() - began))
            cpu.append((time.process_time() - cpu_began) / scale.events * 1e6)
    await sink.close()
    return at_least(what, target, rates, "/s", f"{min(cpu):.0f} µs of CPU each")


async def _wake(_: object) -> None:
    """Wake nobody: what is told is measured by itself."""


@asynccontextmanager
async def _written(path: Path, events: int) -> AsyncIterator[Database]:
    """A database with so many events to be told."""
    outbox = Outbox(lambda kind: ("sink",) if kind is EventType.FILE_FINISHED else (), new_id, Clock().now, _wake)
    database = Database(f"sqlite:///{path}", creates=True, outbox=outbox)
    await migrate.upgrade(database)
    act = Transactions(database)
    await act.create_user(total_space=1 << 40)
    for first in range(0, events, 100):
        await act.batch(
            [file_row(seed=str(number), name=str(number)) for number in range(first, min(first + 100, events))]
        )
    yield database
    await database.close()


@contextmanager
def _consumer_elsewhere() -> Iterator[str]:
    """An HTTP server in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_consume, args=(theirs,), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()


def _consume(pipe: "multiprocessing.connection.Connection[str, str]") -> None:
    async def run() -> None:
        async with consuming() as consumer:
            pipe.send(consumer.url)
            await asyncio.Event().wait()

    asyncio.run(run())


# The lag


async def _lag(directory: Path, redis_url: str, scale: Scale) -> Row:
    async with AsyncExitStack() as ending:
        good, *others = [await ending.enter_async_context(consuming()) for _ in range(5)]
        slow, silent, failing, gone = others
        slow.going_on.clear()
        silent.going_on.clear()
        failing.status, gone.status = 500, 410
        urls = ("http://127.0.0.1:9/", *(each.url for each in others))
        tables = "".join(map(webhook, _OF_NO_USE, urls)) + webhook("good", good.url, types='["file.finished"]')
        tables += f'[sinks.log]\ntype = "redis"\nurl = "{redis_url}"\nstream = "lag"\ntypes = ["file.finished"]\n'
        path, clock = events_file(directory / "lag settings", tables), directory / "clock"
        _turn(clock, 0)
        settings = {"EVENTS": str(path), "TEST_CLOCK": str(clock)}
        server = ending.enter_context(_serving(directory / "lag", settings))
        redis = connect(redis_url)
        headers = {"Authorization": f"Bearer {owner_token(server.log.parent)}"}
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        lags = []
        for number in range(1, scale.minutes + 1):
            _turn(clock, 60 * number)
            slow.going_on.set()
            await asyncio.to_thread(_put_whole, connection, headers, number)
            slow.going_on.clear()
            answered = time.perf_counter()
            await eventually(partial(_have, good, redis, number))
            lags.append(time.perf_counter() - answered)
        connection.close()
        await redis.aclose()
        more = f"median {statistics.median(lags):.2g} s of {len(lags)}"
        return at_most("the longest lag beside five sinks of no use", _MOST_LAG_SECONDS, [max(lags)], "s", more)


async def _have(consumer: Consumer, redis: Any, count: int) -> bool:
    return len(consumer.requests) >= count and await redis.xlen("lag") >= count


def _turn(clock: Path, seconds: int) -> None:
    draft = clock.with_suffix(".new")
    draft.write_text(str(seconds))
    draft.rename(clock)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.events", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a little of each; the page stays as it is")
    arguments = parser.parse_args()
    interpreter.choose()
    machine = report.machine([f"uvloop {version('uvloop')}"])
    section = f"{machine}.\n\n{report.table(measure(TINY if arguments.quick else Scale()))}"
    print(section)
    if not arguments.quick:
        report.write(PAGE, SECTION, section)


if __name__ == "__main__":
    main()
