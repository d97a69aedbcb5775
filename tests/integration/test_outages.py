"""Redis or the database hangs or is away: memory stays bounded, nobody is let in by mistake, and all goes on by itself."""

import asyncio
import math
from pathlib import Path

from tests.conftest import MakeStack
from tests.support.background import stopped, until
from tests.support.clock import ManualClock
from tests.support.content import KIB, Content
from tests.support.faults import left_open, open_files_under
from tests.support.jwts import claims_at, hmac_signer, settings_for
from tests.support.problems import problem
from tests.support.servers import PrivateRedis
from tests.support.stack import Stack, without_database
from tests.support.waiting import eventually

CONTENT = Content(33 * 64 * KIB)


async def test_while_redis_hangs_bodies_wait_on_disk_beyond_the_memory_they_may_take(
    make_stack: MakeStack, own_redis: PrivateRedis
) -> None:
    in_memory = 16
    budget = 4 * in_memory * 64 * KIB  # of which one user gets a quarter
    settings = {"redis_url": own_redis.url, "body_budget_bytes": budget, "max_concurrent_chunks": 64}
    async with make_stack(**settings) as stack:
        await stack.open(CONTENT)
        await stack.put(CONTENT, 32)
        await stack.services.storage.drain()  # or the digests still keep that body in memory
        with stopped(own_redis):
            sending = [asyncio.create_task(stack.put(CONTENT, number)) for number in range(32)]
            await until(lambda: len(_spooled(stack.data)) == 32 - in_memory)
        responses = await asyncio.gather(*sending)
        assert _spooled(stack.data) == []
        # Some may have been told to try again by then.
        for number, response in enumerate(responses):
            if response.status_code == 503:
                await stack.put(CONTENT, number)
        assert {response.status_code for response in responses} <= {200, 201, 202, 503}

        async def complete() -> bool:
            answer = await stack.client.post(f"/files/{CONTENT.md5}/merge")
            return bool(answer.json()["state"] == "complete")

        await eventually(complete)


def _spooled(data: Path) -> list[str]:
    return [path for path in open_files_under(data) if "/spool/" in path]


async def test_a_hundred_refused_chunks_hold_nothing_and_the_next_one_is_taken(
    make_stack: MakeStack, own_redis: PrivateRedis
) -> None:
    settings = {"redis_url": own_redis.url, "body_budget_bytes": 1 << 20, "max_concurrent_chunks": 4}
    async with make_stack(**settings) as stack:
        await stack.open(CONTENT)
        await stack.put(CONTENT, 0)
        await stack.services.storage.drain()
        own_redis.kill()
        open_before = open_files_under(stack.data)
        for _ in range(5):
            responses = await asyncio.gather(*(stack.put(CONTENT, number) for number in range(1, 21)))
            assert {response.status_code for response in responses} <= {429, 503}
            assert all(int(response.headers["retry-after"]) > 0 for response in responses)
        assert await left_open(stack.services.storage, stack.data) == open_before
        own_redis.start()

        async def taken() -> bool:
            responses = await asyncio.gather(*(stack.put(CONTENT, number) for number in range(1, 5)))
            return {response.status_code for response in responses} == {200}

        await eventually(taken)


async def test_without_the_database_nobody_new_gets_in_and_who_is_known_goes_on(
    make_stack: MakeStack, sqlite_url: str, clock: ManualClock, tmp_path: Path
) -> None:
    signer = hmac_signer()
    async with make_stack(database_url=sqlite_url, clock=clock, **settings_for(signer)) as stack:

        def bearer(user_id: str) -> dict[str, str]:
            return {"Authorization": f"Bearer {signer.token(claims_at(clock, sub=user_id))}"}

        known = stack.anonymous()
        known.headers.update(bearer("known"))
        await stack.open(CONTENT, known)
        await stack.put(CONTENT, 0, known)
        async with without_database(stack):
            assert (await stack.put(CONTENT, 1, known)).status_code == 200
            new = await stack.anonymous().get("/me/usage", headers=bearer("new"))
            problem(new, 503, "unavailable")
            forged = hmac_signer("a secret that is long, and not the one").token(claims_at(clock))
            response = await stack.anonymous().get("/me/usage", headers={"Authorization": f"Bearer {forged}"})
            problem(response, 401, "unauthenticated")
        assert (await stack.anonymous().get("/me/usage", headers=bearer("new"))).status_code == 200


async def test_token_that_can_not_be_checked_is_no_token_and_a_signature_needs_no_database(
    make_stack: MakeStack, sqlite_url: str, tmp_path: Path
) -> None:
    async with make_stack(database_url=sqlite_url) as stack, without_database(stack):
        for path in ("/me/usage", "/admin/usage"):
            problem(await stack.client.get(path), 503, "unavailable")
        signed = "/me/files/x/content?user=alice&expires=99999999999&signature=0"
        problem(await stack.client.get(signed), 401, "unauthenticated")


async def test_metrics_are_told_without_the_stores_too(make_stack: MakeStack, own_redis: PrivateRedis) -> None:
    async with make_stack(redis_url=own_redis.url) as stack:
        await stack.open(CONTENT)
        await stack.put(CONTENT, 0)
        own_redis.kill()
        values = await gauges(stack)
        assert values["uploader_open_uploads"] == 1
        assert values["uploader_free_disk_bytes"] > 0
        assert math.isnan(values["uploader_pending_bytes"])
        assert math.isnan(values['uploader_queue_tasks{queue="flush"}'])


async def gauges(stack: Stack) -> dict[str, float]:
    lines = (await stack.metrics()).splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}
