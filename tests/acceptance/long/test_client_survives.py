"""The client commands under the hardest hand: killed at random moments, a server that restarts, thousands of files."""

import asyncio
import random
import re
import signal
from asyncio.subprocess import Process
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.conftest import MakeStack
from tests.support.chosen import places, seed
from tests.support.commands import Commands, checked_events, outcome
from tests.support.content import KIB, MIB, Content
from tests.support.process import Server, ended, owner_token, run_cli
from tests.support.sockets import serving_stack
from tests.support.waiting import eventually
from uploader.database import queries
from uploader.database.engine import Database

CONNECTIONS = 4
# Small ones, so many that they come in several batches; and of the kills of the command a run tries some.
FILES, KILLS = 3000, 30
LARGE = 3
_CHUNK = re.compile(r"/uploads/\w+/chunks/(\d+)")


class CountingChunks:
    """Stands before the application: counts how often each chunk was begun, and is slow enough to be killed at."""

    def __init__(self, app: ASGIApp, pause_seconds: float) -> None:
        self._app = app
        self._pause_seconds = pause_seconds
        self.begun: Counter[int] = Counter()
        self.one_more = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match = _CHUNK.fullmatch(scope.get("path", ""))
        if match is not None and scope["method"] == "PUT":
            self.begun[int(match[1])] += 1
            self.one_more.set()
            await asyncio.sleep(self._pause_seconds)
        await self._app(scope, receive, send)

    async def wait_for(self, count: int) -> None:
        while self.begun.total() < count:
            self.one_more.clear()
            await self.one_more.wait()


async def test_killed_at_random_moments_it_sends_at_most_one_chunk_per_connection_again(
    make_stack: MakeStack, tmp_path: Path
) -> None:
    """Each of the files is put by a command that is killed, then by the same command to its end. Half are opened by
    their digests, half before their digests are known."""
    counting: list[CountingChunks] = []

    def around(app: ASGIApp) -> ASGIApp:
        counting.append(CountingChunks(app, pause_seconds=0.01))
        return counting[0]

    moments = random.Random(seed())
    async with serving_stack(make_stack, around=around, jobs=True, durability="process") as server:
        token = await server.stack.services.accounts.create_token("alice", admin=False, total_space=None)
        commands = Commands(tmp_path, server.url, token)
        numbers = places(range(KILLS), "kills")
        for number in numbers:
            content = Content(32 * 64 * KIB - number, seed=900 + number)
            (tmp_path / f"file {number}").write_bytes(content.data)
            hash_first = "64MiB" if number % 2 else "64KiB"
            arguments = ["put", f"file {number}", "--chunk-size", "64KiB", "--hash-first", hash_first, "--json"]
            counting[0].begun.clear()
            killed = await commands.start(*arguments)
            await counting[0].wait_for(moments.randint(1, content.chunk_count - 1))
            await asyncio.sleep(moments.uniform(0, 0.02))
            killed.kill()
            await killed.wait()
            code, output = await outcome(await commands.start(*arguments))
            assert code == 0, output
            [complete] = [event for event in checked_events(output) if event["event"] == "complete"]
            assert complete["file"]["sha256"] == content.sha256
            assert len(counting[0].begun) == content.chunk_count
            assert counting[0].begun.total() - content.chunk_count <= CONNECTIONS
            assert max(counting[0].begun.values()) <= 2
        usage = await server.stack.usage("alice")
    assert usage == {"finished": sum(32 * 64 * KIB - number for number in numbers), "unfinished": 0, "reserved": 0}


async def test_a_server_that_restarts_meanwhile_only_costs_time(tmp_path: Path) -> None:
    settings = {"DATA": str(tmp_path / "data"), "FREE_SPACE_FLOOR": "0", "DURABILITY": "process"}
    server = Server(tmp_path / "log", settings)
    token = owner_token(tmp_path / "data")
    commands = Commands(tmp_path, server.url, token)
    content = Content(512 * 64 * KIB, seed=990)
    (tmp_path / "film").write_bytes(content.data)
    with ended(server):
        running = await commands.start("put", "film", "--chunk-size", "64KiB", "--hash-first", "64KiB", "--json")
        await eventually(lambda: _has_some(commands))
        server.kill()
    again = Server(tmp_path / "log", settings, port=server.port)
    with ended(again):
        code, output = await outcome(running)
        assert code == 0, output
        events = checked_events(output)
    assert "retry" in {event["event"] for event in events}
    [complete] = [event for event in events if event["event"] == "complete"]
    assert complete["file"]["sha256"] == content.sha256


async def _has_some(commands: Commands) -> bool:
    code, output = await outcome(await commands.start("uploads", "--json"))
    return code == 0 and any(event["upload"]["received_bytes"] for event in checked_events(output))


async def test_a_directory_of_small_files_arrives_whole_and_is_not_sent_again(tmp_path: Path) -> None:
    """Interrupted, run again while the server is killed, and again: nothing is lost, nothing is there twice. Of the small
    files a quarter are one of a kind. Unchanged, it costs a few requests."""
    settings = {"DATA": str(tmp_path / "data"), "FREE_SPACE_FLOOR": "0", "DURABILITY": "process"}
    expected = _filled(tmp_path / "files")
    server = Server(tmp_path / "log", settings)
    token = owner_token(tmp_path / "data")
    commands = Commands(tmp_path, server.url, token)
    with ended(server):
        running = await _begun(commands)
        running.send_signal(signal.SIGINT)
        assert (await outcome(running))[0] == 130
        assert 0 < len(_names(commands)) < len(expected)
        running = await _begun(commands)
        server.kill()
    again = Server(tmp_path / "log", settings, port=server.port)
    with ended(again):
        code, output = await outcome(running)
        assert code == 0, output[-2000:]
        # What `_begun` read is missing in it.
        events = checked_events(output)
        assert "retry" in {event["event"] for event in events}
        assert [events[-1][name] for name in ("event", "complete", "failed", "left")] == [
            "summary",
            len(expected),
            0,
            0,
        ]
        assert _names(commands) == expected
        assert run_cli(settings, "reconcile").returncode == 0

        before = _requests(again, token)
        hows = _hows(await _put(commands))
        assert _requests(again, token) - before <= 30
        assert hows == {"present": set(expected)}

        (tmp_path / "files/00/1.txt").write_text("changed")
        (tmp_path / "files/00/new.txt").write_text("new")
        hows = _hows(await _put(commands, "--if-exists", "replace"))
        assert hows == {"present": set(expected) - {"files/00/1.txt"}, "sent": {"files/00/1.txt", "files/00/new.txt"}}
        assert _names(commands) == sorted([*expected, "files/00/new.txt"])
        listed = checked_events(commands.run("ls", "-r", "--json").stdout)
    database = Database(f"sqlite:///{tmp_path / 'data' / 'uploader.db'}")
    usage = await database.read(lambda connection: queries.usage(connection, "owner"))
    await database.close()
    assert usage is not None
    assert (usage.reserved, usage.use_space_unfinished) == (0, 0)
    assert usage.use_space_finished == sum(event["file"]["size"] for event in listed)


def _filled(directory: Path) -> list[str]:
    """A directory of small files and some large ones; their names on the server."""
    for number in range(FILES):
        path = directory / f"{number // 100:02}" / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"file {number % (FILES // 4)}")
    for number in range(LARGE):
        (directory / f"film {number}").write_bytes(Content(9 * MIB + number, seed=995).data)
    return sorted(f"files/{path.relative_to(directory)}" for path in directory.rglob("*") if path.is_file())


async def _begun(commands: Commands) -> Process:
    """A `put` that has told of its first sent files; it waits for whoever reads the rest of a batch."""
    running = await commands.start("put", "files", "--json")
    assert running.stdout is not None
    while b'"how":"sent"' not in await running.stdout.readline():
        pass
    return running


async def _put(commands: Commands, *more: str) -> list[dict[str, Any]]:
    code, output = await outcome(await commands.start("put", "files", "--json", *more))
    assert code == 0, output[-2000:]
    return checked_events(output)


def _hows(events: list[dict[str, Any]]) -> dict[str, set[str]]:
    """Which files are complete, by how they came to be."""
    hows: dict[str, set[str]] = {}
    for event in events:
        if event["event"] == "complete":
            hows.setdefault(event["how"], set()).add(event["file"]["name"])
    return hows


def _names(commands: Commands) -> list[str]:
    listed = checked_events(commands.run("ls", "-r", "--json").stdout)
    return sorted(event["file"]["name"] for event in listed)


def _requests(server: Server, token: str) -> int:
    """How many it has answered."""
    lines = httpx2.get(f"{server.url}/metrics", headers={"Authorization": f"Bearer {token}"}).text.splitlines()
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines if line.startswith("uploader_http_requests_total{"))
