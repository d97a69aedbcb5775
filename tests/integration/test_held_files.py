"""Gates: a file that nobody sees before its gates have let it pass, whichever way it came; and what becomes of it then."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.integration.test_verified_reads import WAYS
from tests.support.archives import Entry, archive
from tests.support.clock import ManualClock
from tests.support.consumer import events_file
from tests.support.content import KIB, Content
from tests.support.invariants import checked_accounts
from tests.support.problems import problem
from tests.support.proofs import proof_by
from tests.support.servers import PrivateDatabase
from tests.support.stack import Stack, running_stack, without_database
from tests.support.visiting import make_link, send, visit
from tests.support.waiting import eventually
from uploader.database import deliveries, recount, transactions
from uploader.errors import LeaseLost, Unavailable
from uploader.service import work

GATE = '[queues.scan]\ntypes = ["file.finished"]\ngate = true\n'
OTHER = '[queues.review]\ntypes = ["file.finished"]\ngate = true\n'
# Who is told of everything, as an ordinary queue.
LOG = '[queues.log]\ntypes = ["file.finished", "file.refused", "file.deleted"]\n'
CONTENT = Content(3 * 64 * KIB - 100, name="a/film.mp4")


def gates(tmp_path: Path, text: str = GATE + LOG) -> Path:
    return events_file(tmp_path / "events", text)


@pytest.fixture
async def stack(make_stack: MakeStack, tmp_path: Path) -> AsyncIterator[Stack]:
    async with make_stack(events=gates(tmp_path)) as made:
        yield made


@pytest.fixture
async def stack_on(make_stack_on: MakeStack, tmp_path: Path) -> AsyncIterator[Stack]:
    """Once on each kind of database."""
    async with make_stack_on(events=gates(tmp_path)) as made:
        yield made


async def post(stack: Stack, name: str, data: bytes, **query: str) -> dict[str, Any]:
    """Send a file in one request; the answer."""
    response = await stack.client.post("/me/files", params={"name": name, **query}, content=data)
    assert response.status_code in (200, 201), response.text
    told: dict[str, Any] = response.json()
    return told


async def root(stack: Stack) -> httpx2.AsyncClient:
    return await stack.client_of("root", admin=True)


async def claim(stack: Stack, queue: str = "scan", count: int = 100) -> list[dict[str, Any]]:
    response = await (await root(stack)).post(f"/queues/{queue}/claim", json={"max": count})
    assert response.status_code == 200, response.text
    tasks: list[dict[str, Any]] = response.json()["tasks"]
    return tasks


async def ack(stack: Stack, task: dict[str, Any], queue: str = "scan", **said: str) -> None:
    path = f"/queues/{queue}/tasks/{task['id']}/ack"
    for _ in range(2):  # repeated by who ended it
        response = await (await root(stack)).post(path, json={"lease": task["lease"], **said})
        assert response.status_code == 204, response.text


async def judge(stack: Stack, queue: str = "scan", **said: str) -> list[str]:
    """End all tasks of a gate; the subjects."""
    tasks = await claim(stack, queue)
    for task in tasks:
        await ack(stack, task, queue, **said)
    return [task["event"]["subject"] for task in tasks]


async def told(stack: Stack) -> list[tuple[str, str]]:
    """What others hear, each once: types and subjects."""
    tasks = await claim(stack, "log")
    for task in tasks:
        await ack(stack, task, "log")
    return [(task["event"]["type"], task["event"]["subject"]) for task in tasks]


async def listed(client: httpx2.AsyncClient, **query: str) -> list[str]:
    return [file["name"] for file in (await client.get("/me/files", params=query)).json()["files"]]


async def trashed(stack: Stack) -> list[dict[str, Any]]:
    files: list[dict[str, Any]] = (await stack.client.get("/me/trash")).json()["files"]
    return files


@pytest.mark.parametrize(
    "way", ["chunks in order", "chunks backwards", "whole", "batch", "tus", "tus, parts", "uploads of HTTP"]
)
async def test_whichever_way_it_came_it_is_held_until_it_passes(stack: Stack, way: str) -> None:
    await WAYS[way](stack, CONTENT)
    (file_id, *_) = [file["id"] for file in (await stack.client.get("/me/files?state=held")).json()["files"]]
    assert await listed(stack.client) == await listed(stack.client, delimiter="/") == []
    assert (await stack.services.files.usage("alice")).use_space_finished >= CONTENT.size
    await checked_accounts(stack.services.database)
    assert await told(stack) == []
    subjects = await judge(stack)
    assert file_id in subjects
    assert await told(stack) == [("file.finished", subject) for subject in subjects]
    content = await stack.client.get(f"/me/files/{file_id}/content")
    assert content.status_code == 200
    assert (await listed(stack.client, state="held"), len(await listed(stack.client))) == ([], len(subjects))
    await checked_accounts(stack.services.database)


async def test_its_owner_sees_it_as_held_and_nobody_else_sees_it(stack_on: Stack) -> None:
    stack, bob = stack_on, await stack_on.client_of("bob")
    opened = await stack.upload(CONTENT)
    held = opened.json()
    assert (opened.status_code, held["state"], held["file"]["name"]) == (201, "held", CONTENT.name)
    place, again = f"/me/files/{held['file']['id']}", {"state": "held", "file": held["file"]}
    by_md5 = f"/files/{CONTENT.md5}"
    assert (await stack.client.get(by_md5)).json() == again
    assert (await stack.client.get(place)).json() == {**held["file"], **again}
    assert (await stack.client.post("/files/status", json={"md5s": [CONTENT.md5]})).json() == {
        CONTENT.md5: {"state": "held"}
    }
    # Sent once more it is the same file.
    opening = {"name": CONTENT.name, "size": CONTENT.size, "sha256": CONTENT.sha256}
    repeated = await stack.client.post(by_md5, json=opening)
    assert (repeated.status_code, repeated.json()) == (200, again)
    whole = await stack.client.put(by_md5, params={"name": CONTENT.name}, content=CONTENT.data)
    assert (whole.status_code, whole.json()) == (200, again)
    batch = await stack.client.post("/files/batch", content=archive(Entry(CONTENT.name, CONTENT.data)))
    assert batch.json()["results"] == [{"name": CONTENT.name, "status": 200, **again}]

    for method, path in (("GET", "content"), ("GET", "signature"), ("POST", "link")):
        problem(await stack.client.request(method, f"{place}/{path}"), 409, "file-held")
    problem(await stack.client.patch(place, json={"name": "b"}), 409, "file-held")
    problem(
        await stack.client.post("/me/links", json={"kind": "download", "name": CONTENT.name}), 404, "file-not-found"
    )
    assert (await stack.client.post("/me/files/move", json={"ids": [held["file"]["id"]], "to": "b/"})).json() == {
        "files": 0
    }
    assert await listed(stack.client) == await listed(stack.client, q="film") == []
    problem(await stack.client.get("/me/files?state=held&delimiter=/"), 422, "invalid-request")
    for client in (bob, await root(stack)):
        problem(await client.get(place), 404, "file-not-found")
        problem(await client.get(by_md5), 404, "upload-not-found")
        assert await listed(client, state="held") == []
    challenge = await bob.post(by_md5, json={**opening, "name": "mine"})
    assert challenge.json()["state"] in ("uploading", "challenge"), "the same as where nobody has it"
    if challenge.json()["state"] == "challenge":
        proof = {"id": (told_of := challenge.json()["challenge"])["id"], "name": "mine"}
        proof["proof"] = proof_by(CONTENT.data, told_of, CONTENT.sha256)
        problem(await bob.post(f"{by_md5}/proof", json=proof), 403, "proof-failed")

    (task,) = await claim(stack)
    assert task["event"]["data"]["file"]["id"] == held["file"]["id"]
    worker = await root(stack)
    content = await worker.get(f"/queues/scan/tasks/{task['id']}/content", headers={"Lease": task["lease"]})
    assert (content.status_code, content.content) == (200, CONTENT.data)
    await ack(stack, task)
    assert (await stack.client.get(place)).json() == held["file"]
    assert await listed(stack.client, delimiter="/", prefix="a/") == [CONTENT.name]
    assert (await stack.client.post(by_md5, json=opening)).json()["state"] == "complete"
    await checked_accounts(stack.services.database)


@pytest.mark.parametrize("if_exists", ["replace", "keep", "fail"])
async def test_it_has_its_name_only_when_it_passes(make_stack_on: MakeStack, tmp_path: Path, if_exists: str) -> None:
    async with make_stack_on(events=gates(tmp_path)) as stack:
        first = await post(stack, "a.txt", b"first", if_exists=if_exists)
        if if_exists == "fail":  # somebody takes the name meanwhile
            await post(stack, "a.txt", b"second")
        else:
            assert await judge(stack) == [first["file"]["id"]]
            second = await post(stack, "a.txt", b"second", if_exists=if_exists)
            assert (second["state"], second["file"]["name"]) == ("held", "a.txt")
            assert await listed(stack.client) == ["a.txt"]
        await judge(stack)
        expected = ["a.txt"] if if_exists == "replace" else ["a (2).txt", "a.txt"]
        assert sorted(await listed(stack.client)) == expected
        assert [file["reason"] for file in await trashed(stack)] == ["replaced"] * (if_exists == "replace")
        problem(await stack.client.post("/me/files?name=a.txt&if_exists=fail", content=b"third"), 409, "name-taken")
        await checked_accounts(stack.services.database)


async def test_what_is_refused_goes_to_the_trash_and_only_an_administrator_restores_it(stack_on: Stack) -> None:
    stack = stack_on
    file_id = (await post(stack, "bad.exe", b"virus"))["file"]["id"]
    assert await judge(stack, verdict="refuse", reason="病" * 1000 + "\n") == [file_id]
    assert await told(stack) == [("file.refused", file_id)]
    (gone,) = await trashed(stack)
    assert (gone["id"], gone["reason"], gone["detail"]) == (file_id, "refused", "病" * 341), "1,024 bytes"
    assert (await stack.services.files.usage("alice")).use_space_finished == 0
    problem(await stack.client.get(f"/me/files/{file_id}"), 404, "file-not-found")
    problem(await stack.client.get(f"/me/trash/{file_id}/content"), 409, "file-held")
    problem(await stack.client.post(f"/me/trash/{file_id}/restore"), 409, "file-held")
    (line,) = (await stack.client.post("/me/trash/restore", json={"ids": [file_id]})).json()["results"]
    assert line["problem"]["code"] == "file-held"
    problem(await stack.client.post(f"/admin/trash/{file_id}/restore"), 403, "forbidden")
    await checked_accounts(stack.services.database)

    back = await (await root(stack)).post(f"/admin/trash/{file_id}/restore")
    assert (back.status_code, back.json()["state"]) == (200, "held")
    assert await listed(stack.client, state="held") == ["bad.exe"]
    assert await judge(stack) == [file_id]
    assert await listed(stack.client) == ["bad.exe"]
    # Now that it has passed, its owner restores it alone.
    assert (await stack.client.delete(f"/me/files/{file_id}")).status_code == 204
    assert (await stack.client.post(f"/me/trash/{file_id}/restore")).json()["name"] == "bad.exe"
    await checked_accounts(stack.services.database)


@pytest.mark.parametrize("has_older", [False, True])
@pytest.mark.parametrize("way", ["chunks", "whole"])
async def test_retry_is_told_of_what_was_held_or_refused_and_of_no_older_file(
    stack_on: Stack, way: str, has_older: bool
) -> None:
    stack, client, by_md5 = stack_on, stack_on.client, f"/files/{CONTENT.md5}"

    async def state() -> str:
        states = (await client.post("/files/status", json={"md5s": [CONTENT.md5.upper()]})).json()
        return str(states[CONTENT.md5]["state"])

    if has_older:
        await post(stack, "older", CONTENT.data)
        assert (len(await judge(stack)), await state()) == (1, "complete")
    upload_id = None
    if way == "chunks":
        upload_id = (await stack.open(CONTENT, instant=False)).json()["upload"]["id"]
        for number in range(CONTENT.chunk_count):
            sent = await stack.put(CONTENT, number)
    else:
        sent = await client.put(by_md5, params={"name": CONTENT.name}, content=CONTENT.data)
    held = sent.json()
    assert (sent.status_code, held["state"]) == (201, "held")

    async def retried() -> list[httpx2.Response]:
        answers = [await client.get(by_md5), await client.post(f"{by_md5}/merge"), await stack.put(CONTENT, 0)]
        return answers if upload_id is None else [*answers, await client.get(f"/uploads/{upload_id}")]

    for again in await retried():
        assert (again.status_code, again.json()) == (200, held)
    assert await state() == "held"
    assert await judge(stack, verdict="refuse") == [held["file"]["id"]]
    for again in await retried():
        assert problem(again, 410, "upload-gone")["reason"] == "refused"
    assert await state() == ("complete" if has_older else "absent")
    assert (await client.delete("/me/trash")).status_code == 204
    for again in await retried() if way == "chunks" else []:
        assert problem(again, 410, "upload-gone")["reason"] == "refused", "though it left the trash"

    again = await client.put(by_md5, params={"name": "again"}, content=CONTENT.data)
    assert (await client.get(by_md5)).json() == again.json(), "held, and newer than what was refused"
    assert len(await judge(stack)) == 1
    assert (await client.get(by_md5)).json() == again.json() | {"state": "complete"}
    assert await state() == "complete"
    await checked_accounts(stack.services.database)


async def test_what_its_owner_deletes_was_never_seen_and_goes_through_the_gate_if_it_comes_back(stack: Stack) -> None:
    first, second = [(await post(stack, name, name.encode()))["file"]["id"] for name in ("a", "b")]
    held = await claim(stack)
    assert (await stack.client.delete(f"/me/files/{first}")).status_code == 204
    assert (await stack.client.post("/me/files/delete", json={"ids": [second]})).json() == {"files": 1}
    path = f"/queues/scan/tasks/{held[0]['id']}/ack"
    problem(await (await root(stack)).post(path, json={"lease": held[0]["lease"]}), 409, "lease-lost")
    assert (await listed(stack.client, state="held"), await told(stack)) == ([], [])
    await checked_accounts(stack.services.database)
    problem(await stack.client.get(f"/me/trash/{first}/content"), 409, "file-held")
    problem(await stack.client.post(f"/me/trash/{first}/link"), 409, "file-held")
    lines = (await stack.client.post("/me/trash/restore", json={"ids": [first, second]})).json()["results"]
    assert [(line["status"], line["state"]) for line in lines] == [(200, "held")] * 2
    assert sorted(await judge(stack)) == sorted([first, second])
    assert sorted(await listed(stack.client)) == ["a", "b"]
    await checked_accounts(stack.services.database)


async def test_all_gates_have_to_let_it_pass_and_one_is_enough_to_refuse(make_stack: MakeStack, tmp_path: Path) -> None:
    async with make_stack(events=gates(tmp_path, GATE + OTHER + LOG)) as stack:
        await post(stack, "good", b"good")
        assert len(await judge(stack)) == 1
        assert await listed(stack.client) == []
        assert len(await judge(stack, "review")) == 1
        assert await listed(stack.client) == ["good"]
        await post(stack, "bad", b"bad")
        (held,) = await claim(stack, "review")
        await judge(stack, verdict="refuse")
        worker = await root(stack)
        late = await worker.post(f"/queues/review/tasks/{held['id']}/ack", json={"lease": held["lease"]})
        problem(late, 409, "lease-lost")
        assert (await listed(stack.client), await listed(stack.client, state="held")) == (["good"], [])
        # At once: one of them is the last.
        await asyncio.gather(*(post(stack, f"{number}", b"%d" % number) for number in range(10)))
        await asyncio.gather(judge(stack), judge(stack, "review"))
        assert len(await listed(stack.client)) == 11
        await checked_accounts(stack.services.database)


# By what happens to a file whose gate has said nothing: listed, held, and why it is in the trash.
OUTCOMES = {"hold": ([], ["a"], []), "pass": (["a"], [], []), "refuse": ([], [], ["refused"])}


async def outcome(stack: Stack) -> tuple[list[str], list[str], list[str]]:
    reasons = [file["reason"] for file in await trashed(stack)]
    return await listed(stack.client), await listed(stack.client, state="held"), reasons


def mute_gate(tmp_path: Path, on_failure: str, max_attempts: int = 1) -> Path:
    return gates(tmp_path, f'{GATE}max_attempts = {max_attempts}\non_failure = "{on_failure}"\n{LOG}')


async def dead_tasks(stack: Stack) -> int:
    return (await stack.services.work.report()).queues[0].dead


async def is_decided(stack: Stack, on_failure: str) -> bool:
    return await dead_tasks(stack) == 1 and await outcome(stack) == OUTCOMES[on_failure]


@pytest.mark.places
@pytest.mark.parametrize("on_failure", list(OUTCOMES))
@pytest.mark.parametrize("end", ["release", "clock", "clock, claims go on", "clock, after a restart"])
async def test_gate_that_says_nothing_decides_within_five_seconds(
    make_stack_on: MakeStack, tmp_path: Path, on_failure: str, end: str
) -> None:
    """Two processes look after the tasks. Nobody claims any more, but in one case."""
    path = mute_gate(tmp_path, on_failure)
    async with make_stack_on(events=path, jobs=end != "clock, after a restart") as stack:
        await post(stack, "a", b"a")
        worker, lease = await root(stack), {"lease_seconds": 60 if end == "release" else 1}
        (task,) = (await worker.post("/queues/scan/claim", json=lease)).json()["tasks"]
        if end == "release":
            path_of_release = f"/queues/scan/tasks/{task['id']}/release"
            assert (await worker.post(path_of_release, json={"lease": task["lease"]})).status_code == 204
            assert await is_decided(stack, on_failure)
        elif end == "clock, claims go on":
            assert (await worker.post("/queues/scan/claim", json={"wait_seconds": 2})).json() == {"tasks": []}
        urls = {name: getattr(stack.services.settings, name) for name in ("redis_url", "database_url")}
        async with running_stack(stack.data, **urls, events=path, jobs=True) as other:
            began = asyncio.get_running_loop().time()
            await eventually(lambda: is_decided(other, on_failure))
            # A busy machine is slow.
            assert asyncio.get_running_loop().time() - began < 5 + 1 + 4
        assert await dead_tasks(stack) == 1
        finished = {"hold": [], "pass": ["file.finished"], "refuse": ["file.refused"]}[on_failure]
        assert [kind for kind, _ in await told(stack)] == finished, "once"
        if on_failure == "hold":  # until it is replayed
            assert (await worker.post("/admin/events/replay", json={"sink": "scan"})).status_code == 200
            await stack.services.work.queue("scan").keep()
            assert len(await judge(stack)) == 1
            assert await listed(stack.client) == ["a"]
        await checked_accounts(stack.services.database)


@pytest.mark.parametrize("interruption", ["outage", "jump", "stop", "set back"])
async def test_leases_run_once_more_after_an_interruption(
    make_stack: MakeStack, tmp_path: Path, clock: ManualClock, sqlite_url: str, interruption: str
) -> None:
    async with make_stack(events=mute_gate(tmp_path, "pass"), clock=clock, database_url=sqlite_url) as stack:
        await post(stack, "a", b"a")
        queue = stack.services.work.queue("scan")
        clock.advance(100)
        await queue.keep()
        (task,) = await queue.claim("worker", 1, lease_seconds=60)
        clock.advance(5)
        assert await queue.keep() == 5
        match interruption:
            case "outage":
                clock.advance(4)
                async with without_database(stack):
                    with pytest.raises(Unavailable):
                        await queue.keep()
                    clock.advance(70)
                    with pytest.raises(Unavailable):
                        await queue.keep()
            case "jump":
                clock.jump(3600)
            case "stop":
                clock.advance(3600)
            case "set back":
                await queue.extend(task.id, task.lease, 3660)
                clock.jump(3600)
                await queue.keep()
                clock.jump(-3600)
                await queue.extend(task.id, task.lease, 60)
                await queue.keep()
                clock.advance(3)
        for _ in range(11):
            assert await queue.keep() <= 5
            assert await queue.claim("another", 1) == [], "nor does a claim decide"
            clock.advance(5)
            assert await outcome(stack) == OUTCOMES["hold"]
        pause = await queue.keep()
        assert pause <= 5
        clock.advance(pause)
        await queue.keep()
        assert await is_decided(stack, "pass")


async def test_last_lease_runs_once_more_after_a_database_server_was_away(
    make_stack: MakeStack, tmp_path: Path, mortal_mariadb: PrivateDatabase, mortal_mariadb_url: str
) -> None:
    async with make_stack(events=mute_gate(tmp_path, "pass"), database_url=mortal_mariadb_url, jobs=True) as stack:
        await post(stack, "a", b"a")
        loop, queue = asyncio.get_running_loop(), stack.services.work.queue("scan")
        (task,) = await queue.claim("worker", 1, lease_seconds=4)
        mortal_mariadb.kill()
        await asyncio.sleep(5)
        await asyncio.to_thread(mortal_mariadb.revive)
        began = loop.time()
        await eventually(lambda: is_decided(stack, "pass"))
        # The jobs try again within 3 s. A busy machine is slow.
        assert 3.5 < loop.time() - began < 4 + 3 + 5 + 4
        with pytest.raises(LeaseLost):
            await queue.ack(task.id, task.lease)


async def test_extended_lease_and_lease_of_many_tasks_end_by_the_clock(
    make_stack_on: MakeStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All leases of a claim end at one moment, and there are more than are looked at together."""
    monkeypatch.setattr(work, "_KEPT", 2)
    async with make_stack_on(events=mute_gate(tmp_path, "pass", 2)) as stack:
        for number in range(6):
            await post(stack, f"{number}", b"%d" % number)
        queue = stack.services.work.queue("scan")
        for task in await queue.claim("worker", 6):
            await queue.release(task.id, task.lease, 0.0, None)
        tasks = await queue.claim("worker", 6, lease_seconds=1)
        assert await queue.keep() <= 1
        await asyncio.sleep(1)
        await queue.extend(tasks[0].id, tasks[0].lease, 60)
        await asyncio.gather(queue.keep(), queue.keep())
        assert (await dead_tasks(stack), len(await listed(stack.client))) == (5, 5)
        await queue.ack(tasks[0].id, tasks[0].lease)
        assert len(await listed(stack.client)) == 6
        assert len(await told(stack)) == 6, "each file is decided on once"
        await checked_accounts(stack.services.database)


async def test_a_gate_that_says_nothing_lets_no_file_pass_another_one(make_stack: MakeStack, tmp_path: Path) -> None:
    text = f'{GATE}max_attempts = 1\non_failure = "pass"\n{OTHER}'
    async with make_stack(events=gates(tmp_path, text)) as stack:
        await post(stack, "a", b"a")
        (task,) = await claim(stack)
        path = f"/queues/scan/tasks/{task['id']}/release"
        assert (await (await root(stack)).post(path, json={"lease": task["lease"]})).status_code == 204
        failed = partial(transactions.gates.failed, limit=100)
        assert await stack.services.database.read(failed, "scan") == [], "there is nothing to decide"
        assert await listed(stack.client, state="held") == ["a"]
        await judge(stack, "review")
        assert await listed(stack.client) == ["a"]


async def test_a_queue_that_is_a_gate_no_more_decides_on_what_it_was_asked(
    make_stack: MakeStack, tmp_path: Path
) -> None:
    async with make_stack(events=gates(tmp_path)) as stack:
        await post(stack, "a", b"a")
        urls = {name: getattr(stack.services.settings, name) for name in ("redis_url", "database_url")}
        later = GATE.replace("gate = true\n", "")
        async with running_stack(stack.data, **urls, events=gates(tmp_path / "later", later)) as plain:
            await post(plain, "b", b"b")
            assert await listed(plain.client) == ["b"]
            assert len(await judge(plain)) == 2
            assert sorted(await listed(plain.client)) == ["a", "b"]
        await checked_accounts(stack.services.database)


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("on_failure", ["hold", "pass", "refuse"])
async def test_a_gate_that_has_left_the_events_file(
    make_stack: MakeStack, tmp_path: Path, on_failure: str, is_held: bool
) -> None:
    async with make_stack(events=gates(tmp_path, f'{GATE}on_failure = "{on_failure}"\n')) as stack:
        await post(stack, "a", b"a")
        if is_held:
            await stack.services.work.queue("scan").claim("worker", 1, lease_seconds=1)
        urls = {name: getattr(stack.services.settings, name) for name in ("redis_url", "database_url")}
        async with running_stack(stack.data, **urls, events=gates(tmp_path / "later", LOG)) as later:
            looks_again = await later.services.gates.keep()
            if is_held:
                assert looks_again == (60 if on_failure == "hold" else 5)
                assert await outcome(stack) == OUTCOMES["hold"]
                await asyncio.sleep(1)
                await later.services.gates.keep()
            assert await outcome(stack) == OUTCOMES[on_failure]
        await checked_accounts(stack.services.database)


async def test_what_passed_before_counts_for_who_proves_to_hold_it(make_stack: MakeStack, tmp_path: Path) -> None:
    async with make_stack(events=gates(tmp_path), proof_min_size_bytes=1) as stack:
        await stack.upload(CONTENT)
        await judge(stack)
        bob, by_md5 = await stack.client_of("bob"), f"/files/{CONTENT.md5}"
        opening = {"name": "mine", "size": CONTENT.size, "sha256": CONTENT.sha256}
        challenge = (await bob.post(by_md5, json=opening)).json()["challenge"]
        proof = {"id": challenge["id"], "name": "mine", "proof": proof_by(CONTENT.data, challenge, CONTENT.sha256)}
        assert (await bob.post(f"{by_md5}/proof", json=proof)).json()["state"] == "complete"
        # What is sent is held always, and so is what nobody has proved to hold.
        assert (await bob.put(by_md5, params={"name": "sent"}, content=CONTENT.data)).json()["state"] == "held"
        assert (await stack.client.post(by_md5, json={**opening, "name": "copy"})).json()["state"] == "held"
        assert await listed(bob) == ["mine"]
        assert len(await judge(stack)) == 2
        assert sorted(await listed(bob)) == ["mine", "sent"]
        await checked_accounts(stack.services.database)


async def test_a_visitor_sends_and_the_owner_sees_it_when_it_has_passed(stack: Stack) -> None:
    link = await make_link(stack, max_files=2)
    visitor = await visit(stack, link)
    sent = await send(visitor, CONTENT, CONTENT.name)
    assert sent.json()["state"] == "complete"
    for again in (await visitor.get(f"/files/{CONTENT.md5}"), await visitor.post(f"/files/{CONTENT.md5}/merge")):
        assert (again.status_code, again.json()) == (200, sent.json())
    assert (await send(visitor, CONTENT, CONTENT.name)).status_code == 200
    assert await listed(stack.client) == []
    # It lies where the folder of the link is by then.
    assert (await stack.client.patch("/me/files?prefix=inbox/", json={"prefix": "post/"})).status_code == 200
    await judge(stack)
    assert await listed(stack.client) == [f"post/{CONTENT.name}"]
    assert (await stack.client.get(f"/me/links/{link['id']}")).json()["files"] == 1
    await checked_accounts(stack.services.database)


async def test_what_is_held_is_no_drift_and_a_repair_leaves_it(stack: Stack) -> None:
    await post(stack, "a", b"a")
    assert (await stack.services.reconciling.reconcile(repair=True)).drifts == []
    for figures, subject in ((recount.CONTENTS, hashlib.sha256(b"a").hexdigest()), (recount.USERS, "alice")):
        assert await stack.services.database.transact(recount.repair, figures, subject)
    await checked_accounts(stack.services.database)
    assert len(await judge(stack)) == 1


async def test_a_verdict_is_of_gates_and_events_by_which_they_are_asked_stay(stack: Stack) -> None:
    await post(stack, "a", b"a")
    (task,) = await claim(stack)
    await ack(stack, task)
    (other,) = await claim(stack, "log")
    worker = await root(stack)
    path, body = f"/queues/log/tasks/{other['id']}/ack", {"lease": other["lease"], "verdict": "pass"}
    problem(await worker.post(path, json=body), 422, "invalid-request")
    await post(stack, "b", b"b")
    await stack.services.database.transact(deliveries.forget_events, stack.services.clock.now().replace(year=2100), 100)
    assert len(await judge(stack)) == 1
    assert sorted(await listed(stack.client)) == ["a", "b"]
