"""The question of `[pre_create]` and its answers; test_created_names.py has all operations that ask."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.support.archives import Entry, archive
from tests.support.consumer import Consumer, asked_of, consuming, events_file
from tests.support.content import KIB, Content
from tests.support.proofs import proof_by
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS
from uploader.domain.creations import FILE
from uploader.errors import Unavailable
from uploader.service import precreate
from uploader.service.precreate import Question

NEW, THERE = Content(3000, seed=1, name="new.bin"), Content(8 * KIB, seed=2, name="there.bin")
EMPTY = Content(0, name="empty.bin")
PROBLEM = {"type": "about:blank", "title": "No", "detail": "Not on a Sunday."}


@pytest.fixture
async def consumer() -> AsyncIterator[Consumer]:
    async with consuming() as made:
        yield made


@pytest.fixture
def make_asking(make_stack: MakeStack, tmp_path: Path, consumer: Consumer) -> MakeStack:
    return partial(make_stack, events=events_file(tmp_path / "e", asked_of(consumer.url)))


@pytest.fixture
async def stack(make_asking: MakeStack) -> AsyncIterator[Stack]:
    """Whose consumer is asked."""
    async with make_asking() as made:
        yield made


async def by_chunks(stack: Stack) -> httpx2.Response:
    opened = await stack.open(NEW)
    if opened.status_code != 201:
        return opened
    assert (await stack.open(NEW)).status_code == 200  # which begins nothing
    return await stack.put(NEW, 0)


async def by_id(stack: Stack) -> httpx2.Response:
    opened = await stack.client.post("/uploads", json={"name": NEW.name, "size": NEW.size})
    if opened.status_code != 201:
        return opened
    return await stack.client.put(f"/uploads/{opened.json()['upload']['id']}/chunks/0", content=NEW.data)


async def empty(stack: Stack) -> httpx2.Response:
    return await stack.open(EMPTY)


async def whole(stack: Stack) -> httpx2.Response:
    return await stack.client.put(f"/files/{NEW.md5}", params={"name": NEW.name}, content=NEW.data)


async def without_md5(stack: Stack) -> httpx2.Response:
    return await stack.client.post("/me/files", params={"name": NEW.name}, content=NEW.data)


async def instantly(stack: Stack) -> httpx2.Response:
    return await stack.open(THERE, name="again.bin")


async def by_proof(stack: Stack) -> httpx2.Response:
    client = await stack.client_of("bob")
    opened = await stack.open(THERE, client, sha256=THERE.sha256)
    challenge = opened.json()["challenge"]
    answer = {"id": challenge["id"], "name": THERE.name, "proof": proof_by(THERE.data, challenge, THERE.sha256)}
    return await client.post(f"/files/{THERE.md5}/proof", json=answer)


Way = Callable[[Stack], Awaitable[httpx2.Response]]
WAYS: list[Way] = [by_chunks, by_id, empty, whole, without_md5, instantly, by_proof]


def refuse(consumer: Consumer) -> None:
    consumer.status, consumer.body = 403, json.dumps(PROBLEM).encode()


async def delete(stack: Stack, way: Way, made: httpx2.Response) -> None:
    """What was made in one way, so that the next one makes it, too."""
    client = await stack.client_of("bob") if way is by_proof else stack.client
    assert (await client.delete(f"/me/files/{made.json()['file']['id']}")).status_code == 204


ADDRESSES: list[tuple[dict[str, str], str | None]] = [
    ({}, "127.0.0.1"),
    ({"X-Forwarded-For": "203.0.113.9"}, "203.0.113.9"),
    # What the client says itself stands before what the proxies add.
    ({"X-Forwarded-For": "198.51.100.1, 203.0.113.9:4711, 10.1.2.3"}, "203.0.113.9"),
    ({"X-Forwarded-For": "10.1.2.4, 10.1.2.3"}, "10.1.2.4"),
    ({"Forwarded": 'for=1.2.3.4;by=x, proto=https;for="[2001:DB8::17]:4711"'}, "2001:db8::17"),
    ({"X-Forwarded-For": "::ffff:203.0.113.9", "Forwarded": "for=203.0.113.9"}, "203.0.113.9"),
    ({"X-Forwarded-For": "203.0.113.9", "Forwarded": "proto=https;host=files.example"}, "203.0.113.9"),
    ({"X-Forwarded-For": "203.0.113.9", "Forwarded": "for=198.51.100.1"}, None),
    ({"Forwarded": "for=198.51.100.1, for=_hidden"}, None),
    ({"X-Forwarded-For": "198.51.100.1, unknown"}, None),
]


async def test_where_it_comes_from_is_told_as_trusted_proxies_say(make_asking: MakeStack, consumer: Consumer) -> None:
    for is_trusted, trusted in ((True, ("127.0.0.1", "10.0.0.0/8")), (False, ("10.0.0.0/8",))):
        async with make_asking(trusted_proxies=trusted) as stack:
            for headers, told in ADDRESSES:
                response = await stack.client.post("/uploads", json={"name": "a", "size": 1}, headers=headers)
                assert response.status_code == 201
                assert consumer.events[-1]["client_address"] == (told if is_trusted else "127.0.0.1"), headers


async def test_members_of_a_batch_are_asked_for_one_by_one(stack: Stack, consumer: Consumer) -> None:
    body = archive(*(Entry(f"{number}.bin", bytes([number])) for number in range(3)))
    refuse(consumer)
    results = (await stack.client.post("/files/batch", content=body)).json()["results"]
    assert [result["problem"]["detail"] for result in results] == ["Not on a Sunday."] * 3
    consumer.status = 200
    results = (await stack.client.post("/files/batch", content=body)).json()["results"]
    assert [result["status"] for result in results] == [201] * 3
    names = sorted(request.event["name"] for request in consumer.requests)
    assert names == sorted([f"{number}.bin" for number in range(3)] * 2)


async def test_whoever_waits_for_a_turn_waits_no_longer_than_for_an_answer(
    make_asking: MakeStack, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of those that are asked together, nobody goes on asking for the others when one is not to be had."""
    monkeypatch.setattr("uploader.bootstrap.services.TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(precreate, "_AT_ONCE", 1)
    async with make_asking() as stack:
        consumer.going_on.clear()
        body = archive(*(Entry(f"{number}.bin", bytes([number])) for number in range(20)))
        response = await stack.client.post("/files/batch", content=body)
        assert response.json()["code"] == "unavailable"
        assert not [task for task in asyncio.all_tasks() if "_asked" in repr(task)]
        consumer.requests.clear()
        async with stack.services.pre_create_hook._at_once, asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(Unavailable):
                await stack.services.pre_create_hook.ask(Question(FILE, "alice", ("a",)))
        assert consumer.requests == []


async def test_a_proof_does_for_the_next_attempt_when_nobody_could_say(stack: Stack, consumer: Consumer) -> None:
    await stack.upload(THERE)
    client = await stack.client_of("bob")
    challenge = (await stack.open(THERE, client, sha256=THERE.sha256)).json()["challenge"]
    answer = {"id": challenge["id"], "name": THERE.name, "proof": proof_by(THERE.data, challenge, THERE.sha256)}
    statuses = []
    for consumer.status in (500, 500, 200, 200):
        statuses.append((await client.post(f"/files/{THERE.md5}/proof", json=answer)).status_code)
    assert statuses == [503, 503, 201, 403]


@pytest.mark.parametrize("failure", ["error", "silent", "nobody", "redirect"])
async def test_where_nobody_answers_the_settings_decide(
    make_stack: MakeStack, consumer: Consumer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    monkeypatch.setattr("uploader.bootstrap.services.TIMEOUT_SECONDS", 0.2)
    assert precreate.TIMEOUT_SECONDS == 2.0
    url = "http://127.0.0.1:9/" if failure == "nobody" else consumer.url
    match failure:
        case "error":
            consumer.status = 500
        case "silent":
            consumer.going_on.clear()
        case "redirect":
            consumer.status, consumer.head = 302, f"Location: {consumer.url}\r\n"
    async with make_stack(events=events_file(tmp_path / "e", asked_of(url, "refuse"))) as stack:
        response = await whole(stack)
    assert (response.status_code, response.json()["code"]) == (503, "unavailable")
    assert "Retry-After" in response.headers
    assert url not in response.text
    async with make_stack(events=events_file(tmp_path / "e", asked_of(url, "allow"))) as stack:
        assert (await whole(stack)).status_code == 201


def rename(consumer: Consumer, **told: Any) -> None:
    consumer.status, consumer.body = 200, json.dumps({"for others": 1, **told}).encode()


async def test_an_answer_may_have_another_name(stack: Stack, consumer: Consumer) -> None:
    await stack.upload(THERE)
    rename(consumer, name="inbox/e\u0301.bin")
    for way in WAYS:
        made = await way(stack)
        assert made.json()["file"]["name"] == "inbox/é.bin", way
        if way is not by_proof:  # which is not asked for of what one has
            again = (await way(stack)).json()
            assert again["file"] == made.json()["file"], "a repeated call finds it by its name"
        await delete(stack, way, made)


async def test_members_of_a_batch_have_the_names_of_the_answers(stack: Stack, consumer: Consumer) -> None:
    rename(consumer, name="same.bin")
    body = archive(*(Entry(f"{number}.bin", bytes([number])) for number in range(2)))
    results = (await stack.client.post("/files/batch", content=body)).json()["results"]
    assert sorted(result["file"]["name"] for result in results) == ["same (2).bin", "same.bin"]
    assert [result["name"] for result in results] == ["0.bin", "1.bin"]


async def test_a_repeated_key_finds_the_upload_by_any_of_its_names(stack: Stack, consumer: Consumer) -> None:
    rename(consumer, name="inbox/new.bin")
    ask = partial(stack.client.post, "/uploads", headers={"Idempotency-Key": "1"})
    first, second = [await ask(json={"name": "a", "size": 3}) for _ in range(2)]
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["upload"]["id"] == second.json()["upload"]["id"]
    assert first.json()["upload"]["name"] == "inbox/new.bin"
    assert (await ask(json={"name": "a", "size": 4})).status_code == 422


async def test_a_name_of_an_answer_that_is_taken_is_refused_at_opening(stack: Stack, consumer: Consumer) -> None:
    await stack.upload(THERE)
    rename(consumer, name=THERE.name)
    response = await stack.open(NEW, if_exists="fail")
    assert (response.status_code, response.json()["taken"]) == (409, THERE.name)


async def test_metadata_of_an_answer_take_the_place_of_those_of_tus(stack: Stack, consumer: Consumer) -> None:
    rename(consumer, name="inbox/a", metadata={"project": "é", "checked": ""})
    tus = {"Tus-Resumable": "1.0.0", "Upload-Length": "1", "Upload-Metadata": "filename YQ=="}
    place = (await stack.client.post("/resumable", headers=tus)).headers["location"]
    told = await stack.client.head(place, headers=tus)
    assert told.headers["upload-metadata"] == "project w6k=,checked"
    (upload,) = (await stack.client.get("/uploads")).json()["uploads"]
    assert upload["name"] == "inbox/a"
    # What HTTP's own uploads keep there is their state.
    begun = await stack.client.post("/resumable", headers={"Upload-Complete": "?0", "Upload-Length": "1"})
    assert begun.status_code == 201
    assert (await stack.client.head(begun.headers["location"])).headers["upload-complete"] == "?0"


NONSENSE = (
    *(b'{"name": 3}', b'{"name": "../a"}', b'{"name": ""}', b'{"name": "a"', b'{"metadata": ["a"]}'),
    *(b'{"metadata": {"a b": "c"}}', b'{"metadata": {"a": 1}}', b'{"metadata": {"a": "%s"}}' % (b"x" * 4096)),
)


@pytest.mark.parametrize(("on_failure", "status"), [("refuse", 503), ("allow", 201)])
async def test_an_answer_that_makes_no_sense_is_a_failure(
    make_stack: MakeStack, consumer: Consumer, tmp_path: Path, on_failure: str, status: int
) -> None:
    consumer.status = 200
    async with make_stack(events=events_file(tmp_path, asked_of(consumer.url, on_failure))) as stack:
        for number, consumer.body in enumerate(NONSENSE):
            response = await stack.client.post("/me/files", params={"name": f"{number}"}, content=NEW.data)
            assert response.status_code == status, consumer.body
            if status == 201:
                assert response.json()["file"]["name"] == f"{number}"


async def test_a_refusal_may_say_anything(stack: Stack, consumer: Consumer) -> None:
    for body in (b"", b"[]", b"\xff", b'{"detail": 3}', b'{"detail": "a\\n\\u202eb"}'):
        consumer.status, consumer.body = 404, body
        response = await whole(stack)
        assert response.status_code == 403
        assert response.json()["detail"].isprintable()
