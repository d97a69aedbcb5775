"""Instant upload of content that others have: offered to who sends its SHA-256, given to who proves to hold it. Cheating
fails; tests/unit/test_digest.py has ten thousand tries."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import httpx2
import pytest
from httpx2 import AsyncClient

from tests.conftest import MakeStack
from tests.support.clock import ManualClock
from tests.support.content import KIB, MIB, Content
from tests.support.problems import problem
from tests.support.proofs import proof_by
from tests.support.rows import Transactions
from tests.support.servers import PrivateRedis
from tests.support.stack import Stack
from tests.support.twins import twins
from uploader.accounting.keys import challenge_keys

CONTENT = Content(MIB, chunk_size=512 * KIB)
SMALL = Content(10 * KIB)
URL = f"/files/{CONTENT.md5}"
NOTHING = {"finished": 0, "unfinished": 0, "reserved": 0}


def absent(seed: int) -> Content:
    """What nobody has."""
    return Content(SMALL.size, seed=seed)


@pytest.fixture
async def stack(request: pytest.FixtureRequest, make_stack: MakeStack) -> AsyncIterator[Stack]:
    """Where `alice` has the content."""
    async with make_stack(durability="process", **getattr(request, "param", {})) as made:
        await made.upload(CONTENT)
        yield made


def having(**settings: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("stack", [settings], ids=[""], indirect=True)


@pytest.fixture
async def bob(stack: Stack) -> AsyncClient:
    return await stack.client_of("bob")


@pytest.fixture
async def carol(stack: Stack) -> AsyncClient:
    return await stack.client_of("carol")


async def ask(client: AsyncClient, content: Content = CONTENT, **more: Any) -> httpx2.Response:
    body = {"name": "mine.bin", "size": content.size, "sha256": content.sha256, **more}
    return await client.post(f"/files/{content.md5}", json=body)


async def challenged(client: AsyncClient, content: Content = CONTENT, **more: Any) -> dict[str, Any]:
    response = await ask(client, content, **more)
    assert (response.status_code, response.json()["state"]) == (200, "challenge"), response.text
    challenge: dict[str, Any] = response.json()["challenge"]
    return challenge


async def state_of(client: AsyncClient, content: Content = CONTENT, **more: Any) -> str:
    state: str = (await ask(client, content, **more)).json()["state"]
    return state


async def prove(
    client: AsyncClient, challenge: dict[str, Any], content: Content = CONTENT, **instead: Any
) -> httpx2.Response:
    proof = instead.pop("proof", None) or proof_by(content.data, challenge, content.sha256, **instead)
    body = {"id": challenge["id"], "name": "mine.bin", "proof": proof}
    return await client.post(f"/files/{content.md5}/proof", json=body)


async def test_who_proves_to_hold_content_of_others_gets_the_file(stack: Stack) -> None:
    await stack.upload(SMALL)
    blobs = stack.bytes_on_disk()
    for user_id, content in (("bob", CONTENT), ("carol", SMALL)):
        client = await stack.client_of(user_id, total_space=content.size)
        challenge = await challenged(client, content)
        assert challenge["user_id"] == user_id
        assert challenge["algorithm"] == "hmac-sha256"
        assert sum(length for _, length in challenge["ranges"]) == min(content.size, 256 * KIB)
        response = await prove(client, challenge, content)
        file = response.json()["file"]
        assert (response.status_code, response.json()["state"], file["instant"]) == (201, "complete", True)
        assert response.headers["location"] == f"/me/files/{file['id']}"
        assert (await client.get(f"/me/files/{file['id']}/content")).content == content.data
        assert await stack.usage(user_id) == {"finished": content.size, "unfinished": 0, "reserved": 0}
        assert stack.bytes_on_disk() == blobs


async def test_a_challenge_expires_after_a_minute(make_stack: MakeStack, clock: ManualClock) -> None:
    async with make_stack(clock=clock) as stack:
        await stack.upload(CONTENT)
        bob = await stack.client_of("bob")
        late, early = await challenged(bob), await challenged(bob)
        expires_at = datetime.fromisoformat(late["expires_at"])
        assert (expires_at - clock.now()).total_seconds() == 60
        clock.advance(59)
        assert (await prove(bob, early)).status_code == 201
        clock.advance(1)
        problem(await prove(bob, late), 403, "proof-failed")


async def test_redis_drops_challenges_and_budgets_by_itself(stack: Stack, bob: AsyncClient) -> None:
    challenge = await challenged(bob)
    keys = challenge_keys(0, "bob", challenge["id"])
    assert 0 < await stack.services.redis.pttl(keys.challenge) <= 60_000
    for key in (keys.probes, keys.unproven):
        assert 3_000_000 < await stack.services.redis.pttl(key) <= 3_600_000


async def test_what_proves_nothing_is_refused_in_one_way(stack: Stack, bob: AsyncClient, carol: AsyncClient) -> None:
    other = Content(MIB, seed=1)
    await stack.upload(other)
    replayed = await challenged(bob)
    seen = proof_by(CONTENT.data, replayed, CONTENT.sha256)
    half = CONTENT.data[: CONTENT.size // 2].ljust(CONTENT.size)
    answers = [
        await prove(bob, await challenged(bob), proof="0" * 64),
        await prove(bob, one := await challenged(bob), proof=proof_by(half, one, CONTENT.sha256)),
        await prove(bob, one := await challenged(bob), proof=proof_by(bytes(MIB), one, CONTENT.sha256)),
        await prove(bob, await challenged(bob), proof=seen),
        await prove(bob, await challenged(bob), proof=CONTENT.sha256),
        await prove(bob, await challenged(bob), user_id="carol"),
        await prove(bob, await challenged(bob), nonce="AAAA"),
        await prove(bob, await challenged(bob), ranges=[[0, 4096]] * 64),
        await prove(bob, await challenged(bob), Content(MIB, seed=2), proof=None),
        await prove(carol, await challenged(bob), user_id="carol"),
        await prove(carol, await challenged(bob)),
        await prove(bob, {**await challenged(bob), "id": "0" * 32}),
        await prove(bob, {**await challenged(bob), "id": "*"}),
    ]
    misplaced = await challenged(bob, other)
    proof = proof_by(other.data, misplaced, other.sha256)
    body = {"id": misplaced["id"], "name": "mine.bin", "proof": proof}
    answers.append(await bob.post(f"{URL}/proof", json=body))
    details = {problem(response, 403, "proof-failed")["detail"] for response in answers}
    assert len(details) == 1
    for client in (bob, carol):
        assert (await client.get("/me/files")).json()["files"] == []


async def test_a_challenge_serves_once_also_at_one_moment(bob: AsyncClient, carol: AsyncClient) -> None:
    challenge = await challenged(bob)
    problem(await prove(carol, challenge), 403, "proof-failed")  # the attempt of another user does not spend it
    responses = await asyncio.gather(*(prove(bob, challenge) for _ in range(20)))
    assert Counter(response.status_code for response in responses) == {201: 1, 403: 19}
    problem(await prove(bob, challenge), 403, "proof-failed")


async def test_md5_alone_never_leads_to_a_challenge(bob: AsyncClient) -> None:
    bodies: list[dict[str, Any]] = [{}, {"sha256": "0" * 64}, {"sha256": CONTENT.sha256, "instant": False}]
    for number, body in enumerate(bodies):
        response = await bob.post(URL, json={"name": f"{number}", "size": CONTENT.size, **body})
        assert (response.status_code, response.json()["state"]) == (201, "uploading")
        await bob.delete(URL)
    assert await state_of(bob, size=CONTENT.size + 1) == "uploading"


async def test_an_open_upload_becomes_the_file_at_the_edge_of_the_quota(stack: Stack) -> None:
    bob = await stack.client_of("bob", total_space=CONTENT.size)
    await stack.open(CONTENT, bob)
    await stack.put(CONTENT, 0, bob)
    assert (await prove(bob, await challenged(bob))).status_code == 201
    assert await stack.usage("bob") == {"finished": CONTENT.size, "unfinished": 0, "reserved": 0}
    assert (await bob.get("/uploads")).json() == {"uploads": []}
    assert not list((stack.data / "temp").glob("*/*/*"))


async def test_a_proof_beyond_the_quota_is_refused(stack: Stack) -> None:
    poor = await stack.client_of("poor", total_space=CONTENT.size - 1)
    problem(await prove(poor, await challenged(poor)), 413, "quota-exceeded")
    assert await stack.usage("poor") == NOTHING


async def test_one_file_of_a_name_however_often_it_is_proven(stack: Stack, bob: AsyncClient) -> None:
    challenges = [await challenged(bob) for _ in range(5)]
    responses = await asyncio.gather(*(prove(bob, challenge) for challenge in challenges))
    assert sorted(response.status_code for response in responses) == [200, 200, 200, 200, 201]
    assert len({response.json()["file"]["id"] for response in responses}) == 1
    assert (await stack.usage("bob"))["finished"] == CONTENT.size


async def test_content_that_goes_meanwhile_has_to_be_sent(stack: Stack, bob: AsyncClient) -> None:
    (file,) = (await stack.client.get("/me/files")).json()["files"]
    challenges = [await challenged(bob), await challenged(bob)]
    assert await Transactions(stack.services.database).delete(await stack.services.files.get("alice", file["id"]))
    problem(await prove(bob, challenges[0]), 403, "proof-failed")  # a row without refs
    assert await stack.services.files.collect(CONTENT.sha256)
    problem(await prove(bob, challenges[1]), 403, "proof-failed")  # no bytes
    assert await state_of(bob) == "uploading"
    assert (await stack.usage("bob"))["finished"] == 0


async def test_twins_are_each_proven_by_their_own_bytes(stack: Stack, bob: AsyncClient, carol: AsyncClient) -> None:
    one, other = twins()
    await stack.upload(one)
    await stack.upload(other, carol)
    for mine, twin in ((one, other), (other, one)):
        wrong = await challenged(bob, mine)
        problem(await prove(bob, wrong, mine, proof=proof_by(twin.data, wrong, mine.sha256)), 403, "proof-failed")
        right = await challenged(bob, mine)
        file = (await prove(bob, right, mine)).json()["file"]
        assert file["sha256"] == mine.sha256
        assert (await bob.get(f"/me/files/{file['id']}/content")).content == mine.data


async def test_a_proof_leaves_an_open_upload_of_the_twin_alone(stack: Stack, bob: AsyncClient) -> None:
    one, other = twins()
    await stack.upload(one)
    challenge = await challenged(bob, one)
    opened = (await stack.open(other, bob, sha256=other.sha256)).json()["upload"]
    assert (await prove(bob, challenge, one)).status_code == 201
    assert [upload["id"] for upload in (await bob.get("/uploads")).json()["uploads"]] == [opened["id"]]


async def challenged_by_id(client: AsyncClient) -> tuple[str, dict[str, Any]]:
    """The path of an upload whose digests were told, and the challenge that this led to."""
    body = {"name": "by-id.bin", "size": CONTENT.size, "chunk_size": CONTENT.chunk_size}
    path = f"/uploads/{(await client.post('/uploads', json=body)).json()['upload']['id']}"
    told = await client.patch(path, json={"md5": CONTENT.md5, "sha256": CONTENT.sha256})
    assert (told.status_code, told.json()["state"]) == (200, "challenge")
    return path, told.json()["challenge"]


async def test_telling_the_digests_may_lead_to_a_challenge_that_can_be_ignored(bob: AsyncClient) -> None:
    path, _ = await challenged_by_id(bob)
    for number in range(CONTENT.chunk_count):
        sent = await bob.put(f"{path}/chunks/{number}", content=CONTENT.chunk(number))
    assert (sent.status_code, sent.json()["file"]["instant"]) == (201, False)


async def test_a_proof_finishes_an_upload_by_its_id(stack: Stack, bob: AsyncClient, carol: AsyncClient) -> None:
    path, challenge = await challenged_by_id(bob)
    proof = proof_by(CONTENT.data, challenge, CONTENT.sha256)
    answer = {"id": challenge["id"], "name": "proven.bin", "proof": proof}
    problem(await carol.post(f"{path}/proof", json=answer), 404, "upload-not-found")
    response = await bob.post(f"{path}/proof", json=answer)
    assert (response.status_code, response.json()["file"]["name"]) == (201, "proven.bin")
    again = await bob.post(f"{path}/proof", json=answer)
    assert (again.status_code, again.json()) == (200, response.json())
    assert await stack.usage("bob") == {"finished": CONTENT.size, "unfinished": 0, "reserved": 0}


@having(proof_max_probes=3)
async def test_after_too_many_probes_all_looks_absent(stack: Stack, bob: AsyncClient, carol: AsyncClient) -> None:
    for seed in (10, 11):
        assert await state_of(bob, absent(seed)) == "uploading"
    assert (await prove(bob, await challenged(bob))).status_code == 201
    assert await state_of(carol, name="carols") == "challenge", "a budget is each user's own"
    spent = await stack.client_of("dave")
    for seed in (20, 21, 22):
        await ask(spent, absent(seed))
    hidden, unknown = await ask(spent), await ask(spent, absent(30))
    assert hidden.status_code == unknown.status_code == 201
    assert hidden.json()["upload"].keys() == unknown.json()["upload"].keys()
    assert hidden.headers.keys() == unknown.headers.keys()


@having(proof_max_failures=3)
async def test_failures_cost_challenges_and_good_proofs_nothing(bob: AsyncClient, carol: AsyncClient) -> None:
    for _ in range(5):
        proven = await prove(bob, await challenged(bob))
        assert (await bob.delete(f"/me/files/{proven.json()['file']['id']}")).status_code == 204
    for _ in range(3):
        problem(await prove(carol, await challenged(carol), proof="0" * 64), 403, "proof-failed")
    assert await state_of(carol) == "uploading"


@having(proof_max_failures=7)
async def test_racing_callers_get_no_more_challenges_than_the_budget_has(bob: AsyncClient) -> None:
    states = await asyncio.gather(*(state_of(bob) for _ in range(30)))
    assert states.count("challenge") == 7


@having(proof_min_size_bytes=CONTENT.size + 1)
async def test_content_below_the_minimum_is_not_offered(bob: AsyncClient) -> None:
    assert await state_of(bob) == "uploading"


async def test_the_same_work_is_done_whether_content_is_there_or_not(stack: Stack) -> None:
    """Compared by what reaches the stores: as many statements and commands, and the same ones."""
    spent, fresh = await stack.client_of("spent"), await stack.client_of("fresh")
    await ask(spent, absent(1))  # so that the script is loaded
    await stack.services.redis.set(challenge_keys(0, "spent", "").probes, 10**6)
    worked = []
    for client, content in ((spent, CONTENT), (spent, absent(2)), (fresh, absent(3))):
        before = await stack.services.redis.info("commandstats")
        assert await state_of(client, content) == "uploading"
        after = await stack.services.redis.info("commandstats")
        calls = {name: stats["calls"] - before.get(name, {"calls": 0})["calls"] for name, stats in after.items()}
        worked.append({name: count for name, count in calls.items() if count and name != "cmdstat_pexpire"})
    assert worked[0] == worked[1] == worked[2]


async def test_after_a_loss_of_redis_a_new_challenge_serves(make_stack: MakeStack, own_redis: PrivateRedis) -> None:
    async with make_stack(redis_url=own_redis.url) as stack:
        await stack.upload(CONTENT)
        bob = await stack.client_of("bob")
        lost = await challenged(bob)
        own_redis.command("FLUSHALL")
        problem(await prove(bob, lost), 403, "proof-failed")
        kept = await challenged(bob)
        own_redis.kill()
        problem(await prove(bob, kept), 503, "unavailable")
        assert await state_of(bob) == "uploading"
        own_redis.start()
        assert (await prove(bob, await challenged(bob))).status_code == 201
