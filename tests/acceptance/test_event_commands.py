"""`uploader events`, as whoever runs the server uses it."""

import asyncio
import json
import subprocess
from pathlib import Path

from tests.conftest import MakeStack
from tests.support.clock import ManualClock
from tests.support.consumer import consuming, events_file, webhook
from tests.support.content import Content
from tests.support.process import run_cli


async def test_events_are_listed_and_told_again(make_stack: MakeStack, tmp_path: Path, clock: ManualClock) -> None:
    async with consuming() as consumer:
        consumer.status, consumer.body = 410, "moved away\x1b]0;owned\x07\x9b2J\u202e\u200b\x7f".encode()
        path = events_file(tmp_path / "events", webhook("hook", consumer.url) + webhook("dead", "http://127.0.0.1:9/"))
        async with make_stack(events=path, clock=clock) as stack:
            settings = stack.services.settings
            given = {"DATA": str(settings.data), "DATABASE_URL": settings.database_url or "", "EVENTS": str(path)}
            given["REDIS_URL"] = settings.redis_url or ""

            async def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
                return await asyncio.to_thread(run_cli, given, "events", *arguments)

            content = Content(10, name="ä.bin")
            file = (await stack.upload(content)).json()["file"]
            hook, dead = stack.services.relays
            for _ in range(60):
                await dead.relay_due()
                clock.advance(86400 / 6)
            await hook.relay_due()

            lines = (await run("list")).stdout.splitlines()
            assert [line.split()[3] for line in lines] == ["file.finished", "upload.created"]
            assert "dead dead (8 failed), hook waiting" in lines[0]
            (first, *_) = [json.loads(line) for line in (await run("list", "--dead", "--json")).stdout.splitlines()]
            assert first["data"] == {"user_id": "alice", "file": file}
            assert {each["sink"]: (each["state"], each["failed"]) for each in first["deliveries"]} == {
                "dead": ("dead", 8),
                "hook": ("waiting", 0),
            }
            assert (await run("list", "--since", "2999-01-01")).stdout == ""
            shown = (await run("show", first["id"])).stdout
            assert "ä.bin" in shown
            assert "hook: waiting" in shown
            assert r"410 moved away\u001b]0;owned\u0007\u009b2J\u202e\u200b\u007f" in shown
            assert "\x1b" not in shown
            assert json.loads((await run("show", first["id"], "--json")).stdout) == first

            refused = await run("test", "hook")
            assert (refused.returncode, refused.stderr) == (
                1,
                r"uploader: hook did not take the event: 410 moved away\u001b]0;owned\u0007\u009b2J\u202e\u200b\u007f"
                "\n",
            )
            consumer.status = 200
            assert (await run("test", "hook")).stdout == "hook took the event\n"
            assert consumer.events[-1]["type"] == "test"
            assert "off" not in {each.condition for each in await stack.services.watching.sinks()}

            assert (await run("replay", "--dead")).stdout == "events to be sent once more: 2\n"
            assert (await run("replay", "--dead")).stdout == "events to be sent once more: 0\n"
            assert (
                await run("replay", "--id", first["id"], "--sink", "hook")
            ).stdout == "events to be sent once more: 1\n"
            assert (await run("replay", "--since", "30d")).stdout == "events to be sent once more: 4\n"
            told = len(consumer.requests)
            clock.jump(86400 * 30)  # what was told once more is due by the clock of the command
            assert await hook.relay_due() == 0.0
            assert {event["id"] for event in consumer.events[told:]} >= {first["id"]}

            for arguments, code in ((("replay",), 2), (("show", "0" * 32), 1), (("test", "none"), 1)):
                failed = await run(*arguments)
                assert (failed.returncode, failed.stdout) == (code, "")
                assert failed.stderr.startswith("uploader: ")
            assert (await run("list", "--since", "yesterday")).returncode == 2
