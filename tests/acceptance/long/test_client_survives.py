"""`put` under the hardest hand: killed at random moments, and a server that restarts."""

import random
from pathlib import Path

from tests.conftest import MakeStack
from tests.support.chosen import places, seed
from tests.support.commands import Commands, checked_events, outcome
from tests.support.content import KIB, Content
from tests.support.process import Server, ended, owner_token
from tests.support.sites import CONNECTIONS, a_site
from tests.support.waiting import eventually

# Of which a run tries some.
KILLS = 30


async def test_killed_at_random_moments_it_sends_at_most_one_chunk_per_connection_again(
    make_stack: MakeStack, tmp_path: Path
) -> None:
    """Each of the files is put by a command that is killed with chunks on their way, then by the same command to its end.
    Half are opened by their digests, half before their digests are known."""
    moments = random.Random(seed())
    async with a_site(make_stack) as site:
        gate, commands = site.gate, Commands(tmp_path, site.url, await site.token("bob"))
        numbers = places(range(KILLS), "kills")
        for number in numbers:
            content = Content(32 * 64 * KIB - number, seed=900 + number)
            (tmp_path / f"file {number}").write_bytes(content.data)
            hash_first = "64MiB" if number % 2 else "64KiB"
            arguments = ["put", f"file {number}", "--chunk-size", "64KiB", "--hash-first", hash_first, "--json"]
            gate.begun.clear()
            gate.ended.clear()
            gate.close(but=(passed := moments.randrange(content.chunk_count)))
            killed = await commands.start(*arguments)
            await gate.wait_until_ended(passed)
            await gate.wait_until_held(1)
            killed.kill()
            await killed.wait()
            gate.open()
            code, output = await outcome(await commands.start(*arguments))
            assert code == 0, output
            [complete] = [event for event in checked_events(output) if event["event"] == "complete"]
            assert complete["file"]["sha256"] == content.sha256
            assert len(gate.begun) == content.chunk_count
            assert gate.begun.total() - content.chunk_count <= CONNECTIONS
            assert max(gate.begun.values()) <= 2
        usage = await site.stack.usage("bob")
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
