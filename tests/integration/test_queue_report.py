"""The queue in sight: what waits to be accounted or merged, over HTTP and as a command."""

import asyncio
import json
import re

from click.testing import CliRunner

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.problems import problem
from tests.support.stack import Stack
from uploader.cli import main

HERS, HIS = Content(300 * KIB, name="hers"), Content(200 * KIB, seed=1, name="his")
CHUNK = 64 * KIB


async def _arrive(stack: Stack) -> tuple[str, str]:
    """alice has sent two chunks, bob one; returns the ids of their uploads."""
    bob = await stack.client_of("bob")
    hers = (await stack.open(HERS)).json()["upload"]["id"]
    his = (await stack.open(HIS, bob)).json()["upload"]["id"]
    await stack.put(HERS, 0)
    await stack.put(HERS, 1)
    await stack.put(HIS, 0, bob)
    return hers, his


async def test_what_waits_is_told_until_it_is_accounted(make_stack: MakeStack, redis_url: str) -> None:
    """The command says the same as a table and as JSON."""
    async with make_stack(quiet_interval_seconds=600.0, max_delay_seconds=600.0) as stack:
        hers, _ = await _arrive(stack)
        root = await stack.client_of("root", admin=True)
        body = (await root.get("/admin/queue")).json()
        assert list(body) == ["buckets", "tasks", "pending_bytes", "lateness_seconds", "as_of"]
        assert (body["tasks"], body["pending_bytes"], body["lateness_seconds"]) == (2, 3 * CHUNK, 0)
        assert {bucket["queue"] for bucket in body["buckets"]} == {"flush"}
        assert sum(bucket["tasks"] for bucket in body["buckets"]) == 2
        assert sum(bucket["pending_bytes"] for bucket in body["buckets"]) == 3 * CHUNK
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:00Z", bucket["minute"]) for bucket in body["buckets"])

        for query, tasks, pending in (
            ({"user_id": "alice"}, 1, 2 * CHUNK),
            ({"user_id": "bob"}, 1, CHUNK),
            ({"user_id": "root"}, 0, 0),
            ({"upload_id": hers}, 1, 2 * CHUNK),
            ({"upload_id": hers, "user_id": "alice"}, 1, 2 * CHUNK),
        ):
            found = (await root.get("/admin/queue", params=query)).json()
            assert (found["tasks"], found["pending_bytes"]) == (tasks, pending), query
        for query, status, code in (
            ({"user_id": "nobody"}, 404, "not-found"),
            ({"user_id": "a/b"}, 422, "invalid-request"),
            ({"upload_id": "0" * 32}, 404, "upload-not-found"),
            ({"upload_id": hers, "user_id": "bob"}, 404, "upload-not-found"),
        ):
            problem(await root.get("/admin/queue", params=query), status, code)
        problem(await stack.client.get("/admin/queue"), 403, "forbidden")

        settings = stack.services.settings
        environment = {
            "UPLOADER_DATA": str(settings.data),
            "UPLOADER_DATABASE_URL": settings.database_url,
            "UPLOADER_REDIS_URL": redis_url,
        }

        async def run(*options: str) -> str:
            result = await asyncio.to_thread(CliRunner(env=environment).invoke, main, ["queue", *options])
            assert result.exit_code == 0, result.output
            return result.stdout

        table = await run()
        assert "UTC: 2 tasks, 192 KiB pending, 0.0 s late" in table
        assert re.search(r"│ flush │ \d{4}-\d\d-\d\d \d\d:\d\d +│ +\d │ +\d+ KiB │", table), table
        assert json.loads(await run("--upload", hers, "--json"))["pending_bytes"] == 2 * CHUNK
        assert json.loads(await run("--user", "bob", "--json"))["tasks"] == 1

        await stack.upload(HERS)
        assert (await root.get("/admin/queue", params={"upload_id": hers})).json()["buckets"] == []
        assert (await root.get("/admin/queue")).json()["pending_bytes"] == CHUNK


async def test_an_upload_that_waits_for_its_merge_stands_in_that_queue(make_stack: MakeStack) -> None:
    async with make_stack() as stack:
        upload_id = (await stack.open(HIS)).json()["upload"]["id"]
        for number in range(4):
            await stack.services.pending.record_chunk(upload_id, number, min(CHUNK, HIS.size - number * CHUNK))
        root = await stack.client_of("root", admin=True)
        (bucket,) = (await root.get("/admin/queue")).json()["buckets"]
        assert (bucket["queue"], bucket["tasks"], bucket["pending_bytes"]) == ("merge", 1, HIS.size)
