"""`uploader audit`: each command that changes something is there, with who ran it."""

import asyncio
import csv
import io
import json
import os
import pwd
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from sqlalchemy import update

from tests.conftest import MakeStack
from tests.support.audited import COMMANDS
from tests.support.consumer import consuming, events_file, webhook
from tests.support.content import KIB, Content
from tests.support.process import run_cli
from tests.support.stack import Stack
from uploader.database import models
from uploader.service import events

CONTENT = Content(100 * KIB)
OTHER = Content(70 * KIB, seed=1)
QUEUE = '[queues.scan]\ntypes = ["file.finished"]\nmax_attempts = 1\n'


async def _nothing(_stack: Stack) -> None:
    pass


async def _opened(stack: Stack) -> None:
    await stack.open(OTHER)


async def _wrong_figures(stack: Stack) -> None:
    wrong = update(models.user_info).values(use_space_finished=1)
    await stack.services.database.transact(lambda connection: connection.execute(wrong))


async def _put_away(stack: Stack) -> None:
    await stack.upload(CONTENT)
    found = await stack.services.storage.find_blob(CONTENT.sha256)
    assert found is not None
    assert await stack.services.storage.put_away(found)


async def _unneeded(stack: Stack) -> None:
    await stack.upload(CONTENT)
    for file in (await stack.client.get("/me/files")).json()["files"]:
        await stack.client.delete(f"/me/files/{file['id']}")
    await stack.services.files.collect_all(100)


async def _off(stack: Stack) -> None:
    now = stack.services.clock.now()
    await stack.services.database.transact(lambda connection: events.switch_off(connection, "hook", now))


async def _dead_task(stack: Stack) -> None:
    response = await stack.client.post("/me/files?name=dead", content=b"dead")
    assert response.status_code == 201, response.text
    (task,) = await stack.services.work.queue("scan").claim("bob", 1)
    await stack.services.work.queue("scan").release(task.id, task.lease, 0.0, None)


# What is done before it, and its arguments.
RUNS: dict[str, tuple[Callable[[Stack], Awaitable[None]], list[str]]] = {
    "redis reset": (_nothing, ["--yes"]),
    "adopt": (_nothing, ["--yes"]),
    "cleanup": (_opened, ["--before", "9999-12", "--idle", "1ms"]),
    "reset-unfinished": (_opened, ["--yes"]),
    "backup": (_nothing, ["BACKUPS"]),
    "reconcile": (_wrong_figures, ["--repair"]),
    "scrub": (_put_away, ["--restart"]),
    "store-trash restore": (_put_away, [CONTENT.sha256]),
    "store-trash empty": (_unneeded, ["--yes"]),
    "events replay": (_opened, ["--since", "1d"]),
    "queue replay": (_dead_task, ["scan"]),
    "events test": (_off, ["hook"]),
    "token create": (_nothing, ["alice"]),
    "token revoke": (_nothing, ["TOKEN"]),
    "user set-quota": (_nothing, ["alice", "5GiB"]),
    "user set-admin": (_nothing, ["alice", "yes"]),
}


def test_each_command_that_the_trail_tells_of_is_run() -> None:
    """But one that runs where nothing is: test_maintenance_commands has it."""
    assert set(RUNS) | {"restore-backup"} == {words for words, action in COMMANDS.items() if action is not None}


async def test_each_command_leaves_a_row_that_says_who_ran_it(make_stack: MakeStack, tmp_path: Path) -> None:
    async with consuming() as consumer:
        events = events_file(tmp_path / "events", webhook("hook", consumer.url) + QUEUE)
        async with make_stack(events=events) as stack:
            settings = stack.services.settings
            given = {"DATA": str(settings.data), "DATABASE_URL": settings.database_url or "", "EVENTS": str(events)}
            given["REDIS_URL"] = settings.redis_url or ""

            async def run(*arguments: str) -> str:
                ended = await asyncio.to_thread(run_cli, given, *arguments)
                assert ended.returncode in (0, 1), ended.stderr
                return ended.stdout

            async def audited(*options: str) -> list[dict[str, Any]]:
                return [json.loads(line) for line in (await run("audit", "--json", *options)).splitlines()]

            before = {each["id"] for each in await audited()}
            token_id = (await stack.services.accounts.tokens_of("alice"))[0].token_id
            named = {"BACKUPS": str(tmp_path / "backups"), "TOKEN": token_id}
            for words, (prepare, arguments) in RUNS.items():
                await prepare(stack)
                await run(*words.split(), *(named.get(each, each) for each in arguments))
                everything = await audited()
                new = [each for each in everything if each["id"] not in before]
                action = COMMANDS[words]
                assert action is not None
                assert action.value in [each["action"] for each in new], (words, new)
                user = pwd.getpwuid(os.getuid()).pw_name
                assert {(each["via"], each["actor"]) for each in new} == {("command", user)}, (words, new)
                before = {each["id"] for each in everything}

            newest = everything[0]
            told = (await run("audit", "--action", "quota.changed")).splitlines()[0].split()
            assert told[2:6] == ["quota.changed", "alice", "by", "command"]
            assert {each["user_id"] for each in await audited("--user", "alice")} == {"alice"}
            assert await audited("--since", "2999-01-01") == []
            assert await audited("--until", newest["created_at"]) == everything[1:]
            lines = list(csv.reader(io.StringIO(await run("audit", "--csv"))))
            assert lines[0] == list(newest)
            assert len(lines) == len(everything) + 1
            assert json.loads(lines[1][-1]) == newest["details"]
            assert "upl_" not in json.dumps(everything)
            both = await asyncio.to_thread(run_cli, given, "audit", "--csv", "--json")
            assert both.returncode == 2
