"""Gates: a file that nobody sees before its gates have let it pass, whichever way it came; and what becomes of it then."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.integration.test_verified_reads import WAYS
from tests.support.archives import Entry, archive
from tests.support.consumer import events_file
from tests.support.content import KIB, Content
from tests.support.invariants import checked_accounts
from tests.support.problems import problem
from tests.support.proofs import proof_by
from tests.support.stack import Stack, running_stack
from tests.support.visiting import make_link, send, visit
from uploader.database import deliveries, recount, transactions

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


@pytest.mark.places
@pytest.mark.parametrize("on_failure", ["hold", "pass", "refuse"])
@pytest.mark.parametrize("verb", ["release", "lose", "crash"])
async def test_a_gate_that_says_nothing(
    make_stack: MakeStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_failure: str, verb: str
) -> None:
    """`crash`: the process dies before it has decided on the file of a task that is dead."""
    text = f'{GATE}max_attempts = 1\non_failure = "{on_failure}"\n{LOG}'
    async with make_stack(events=gates(tmp_path, text)) as stack:
        await post(stack, "a", b"a")
        worker = await root(stack)
        lease = {} if verb == "release" else {"lease_seconds": 1}
        (task,) = (await worker.post("/queues/scan/claim", json=lease)).json()["tasks"]
        if verb == "release":
            path = f"/queues/scan/tasks/{task['id']}/release"
            assert (await worker.post(path, json={"lease": task["lease"]})).status_code == 204
        if verb == "crash":
            monkeypatch.setattr(stack.services.gates, "decide", AsyncMock())
        assert (await worker.post("/queues/scan/claim", json={"wait_seconds": 2})).json() == {"tasks": []}
        if verb == "crash":
            assert await listed(stack.client, state="held") == ["a"]
            monkeypatch.undo()
            await stack.services.gates.keep()
        seen = {"hold": ([], ["a"], []), "pass": (["a"], [], []), "refuse": ([], [], ["refused"])}[on_failure]
        reasons = [file["reason"] for file in await trashed(stack)]
        assert (await listed(stack.client), await listed(stack.client, state="held"), reasons) == seen
        if on_failure == "hold":  # until it is replayed
            assert (await worker.post("/admin/events/replay", json={"sink": "scan"})).status_code == 200
            await stack.services.work.queue("scan").keep()
            assert len(await judge(stack)) == 1
            assert await listed(stack.client) == ["a"]
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


@pytest.mark.parametrize("on_failure", ["hold", "pass", "refuse"])
async def test_a_gate_that_has_left_the_events_file(make_stack: MakeStack, tmp_path: Path, on_failure: str) -> None:
    async with make_stack(events=gates(tmp_path, f'{GATE}on_failure = "{on_failure}"\n')) as stack:
        await post(stack, "a", b"a")
        urls = {name: getattr(stack.services.settings, name) for name in ("redis_url", "database_url")}
        async with running_stack(stack.data, **urls, events=gates(tmp_path / "later", LOG)) as later:
            await later.services.gates.keep()
            seen = {"hold": ([], ["a"]), "pass": (["a"], []), "refuse": ([], [])}[on_failure]
            assert (await listed(stack.client), await listed(stack.client, state="held")) == seen
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
    assert sent.json()["state"] == "held"
    assert (await visitor.get(f"/files/{CONTENT.md5}")).json()["state"] == "held"
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
    for repaired in (recount.repair_refs, recount.repair_user):
        subject = hashlib.sha256(b"a").hexdigest() if repaired is recount.repair_refs else "alice"
        assert await stack.services.database.transact(repaired, subject)
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
