"""`put` under the hardest hand: killed at random moments, and a server that restarts."""

import asyncio
import random
import re
from collections import Counter
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from tests.conftest import MakeStack
from tests.support.chosen import places, seed
from tests.support.commands import Commands, checked_events, outcome
from tests.support.content import KIB, Content
from tests.support.process import Server, ended, owner_token
from tests.support.sockets import serving_stack
from tests.support.waiting import eventually

CONNECTIONS = 4
# Of which a run tries some.
KILLS = 30
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
