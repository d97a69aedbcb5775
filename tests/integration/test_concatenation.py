"""Concatenation as the text of tus 1.0.0 has it (https://tus.io/protocols/resumable-upload); each test names the section, or
what of the accounts it is about."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
from redis.asyncio import Redis

from tests.conftest import MakeStack
from tests.support.at_rest import check_at_rest, rests_within
from tests.support.consumer import consuming, events_file
from tests.support.content import KIB, Content
from tests.support.invariants import Account, checked_accounts
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS, eventually
from uploader.database import queries, transactions
from uploader.service.results import Target

CONTENT = Content(3 * 70 * KIB + 1234)
TUS = {"Tus-Resumable": "1.0.0"}
BYTES = {**TUS, "Content-Type": "application/offset+octet-stream"}
URL = "/resumable"


@pytest.fixture
async def stack(make_stack: MakeStack) -> AsyncIterator[Stack]:
    async with make_stack(chunk_size_bytes=64 * KIB) as made:
        yield made


async def post(stack: Stack, **headers: str) -> httpx2.Response:
    said = TUS | {name.replace("_", "-"): value for name, value in headers.items()}
    return await stack.client.post(URL, headers=said)


async def part_of(stack: Stack, data: bytes, *, sent: int | None = None, metadata: str = "") -> str:
    """The path of a new part, with so many of its bytes."""
    headers = {**BYTES, "Upload-Concat": "partial", "Upload-Length": str(len(data)), "Upload-Metadata": metadata}
    response = await stack.client.post(URL, content=data[:sent], headers=headers)
    assert response.status_code == 201, response.text
    return str(response.headers["location"]).removeprefix("http://test")


async def parts_of(stack: Stack, content: Content = CONTENT, count: int = 3) -> list[str]:
    """As tus-js-client cuts a file: in parts of the same length, wherever chunks end."""
    length = content.size // count
    ends = [number * length for number in range(count)] + [content.size]
    return [await part_of(stack, content.data[start:end]) for start, end in pairwise(ends)]


async def order(stack: Stack, paths: Sequence[str], **headers: str) -> httpx2.Response:
    return await post(stack, Upload_Concat="final;" + " ".join(paths), **headers)


async def ordered(stack: Stack, paths: Sequence[str], **headers: str) -> str:
    response = await order(stack, paths, **headers)
    assert response.status_code == 201, response.text
    return str(response.headers["location"]).removeprefix("http://test")


async def head(stack: Stack, path: str) -> httpx2.Response:
    return await stack.client.head(path, headers=TUS)


async def patch(stack: Stack, path: str, offset: int, content: bytes) -> httpx2.Response:
    return await stack.client.patch(path, content=content, headers={**BYTES, "Upload-Offset": str(offset)})


async def files(stack: Stack) -> list[Any]:
    listed: list[Any] = (await stack.client.get("/me/files")).json()["files"]
    return listed


def problem(response: httpx2.Response, status: int, code: str) -> Any:
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    assert response.headers["tus-resumable"] == "1.0.0"
    return response.json()


async def is_finished(stack: Stack, path: str) -> bool:
    return "upload-offset" in (await head(stack, path)).headers


async def at_rest(stack: Stack) -> dict[str, Account]:
    """What is over for who asks is tidied a moment later."""
    database, redis = stack.services.database, cast("Redis", stack.services.redis)
    return await rests_within(PATIENCE_SECONDS, lambda: check_at_rest(database, redis, stack.data))


@pytest.mark.parametrize("durability", ["power", "process"])
async def test_parts_become_one_file_in_the_order_of_the_list(make_stack: MakeStack, durability: str) -> None:
    """Concatenation: "The partial uploads MUST be concatenated as per the order specified in the list."; "The length of the
    final upload MUST be the sum of the length of all partial uploads."; announced in Tus-Extension."""
    async with make_stack(chunk_size_bytes=64 * KIB, durability=durability) as stack:
        extensions = (await stack.client.options(URL)).headers["tus-extension"].split(",")
        assert {"concatenation", "concatenation-unfinished"} <= set(extensions)
        parts = await parts_of(stack)
        assert await files(stack) == [], "no part is a file"
        path = await ordered(stack, parts, Upload_Metadata="filename YS5iaW4=")
        asked = await head(stack, path)
        assert asked.headers["upload-offset"] == asked.headers["upload-length"] == str(CONTENT.size)
        (file,) = await files(stack)
        assert (file["name"], file["size"], file["sha256"]) == ("a.bin", CONTENT.size, CONTENT.sha256)
        assert await at_rest(stack) == {"alice": Account(finished=CONTENT.size)}


async def test_parts_whose_lengths_are_told_late_are_joined_once_they_are(stack: Stack) -> None:
    """A partial upload may be created with Upload-Defer-Length: until the last one is told, the whole has no length."""
    half = CONTENT.size // 2
    parts = []
    for data in (CONTENT.data[:half], CONTENT.data[half:]):
        headers = {**BYTES, "Upload-Concat": "partial", "Upload-Defer-Length": "1"}
        made = await stack.client.post(URL, content=data[: 70 * KIB], headers=headers)
        assert made.status_code == 201, made.text
        parts.append((str(made.headers["location"]).removeprefix("http://test"), data))
    path = await ordered(stack, [part for part, _ in parts])
    for part, data in parts:
        assert not {"upload-length", "upload-offset"} & set((await head(stack, path)).headers)
        assert await files(stack) == []
        said = {**BYTES, "Upload-Offset": str(70 * KIB), "Upload-Length": str(len(data))}
        assert (await stack.client.patch(part, content=data[70 * KIB :], headers=said)).status_code == 204
    await eventually(lambda: is_finished(stack, path))
    (file,) = await files(stack)
    assert (file["size"], file["sha256"]) == (CONTENT.size, CONTENT.sha256)
    assert await at_rest(stack) == {"alice": Account(finished=CONTENT.size)}


async def test_a_complete_part_is_accounted_for_as_one_that_is_open(make_stack_on: MakeStack) -> None:
    """What has all its bytes, and is open all the same, is brought to its merge by whoever accounts for it: not a part."""
    async with make_stack_on(chunk_size_bytes=64 * KIB) as stack:
        part = (await part_of(stack, CONTENT.data)).rpartition("/")[2]
        came = [transactions.uploads.Received(part, 0, CONTENT.size)]
        flushed = await stack.services.database.transact(
            lambda connection: transactions.uploads.flush(connection, came, stack.services.clock.now())
        )
        assert flushed.open_ids == {part}


async def test_what_is_asked_of_a_part_and_of_a_whole(stack: Stack) -> None:
    """Concatenation: "The response to a HEAD request for a partial upload MUST contain the Upload-Offset header.";
    "Response to HEAD request against partial or final upload MUST include the Upload-Concat header and its value as received
    in the upload creation request."; "partial uploads' metadata SHALL NOT be transferred"."""
    metadata = "filename cGFydA=="
    one = await part_of(stack, CONTENT.data, sent=70 * KIB, metadata=metadata)
    asked = await head(stack, one)
    assert (asked.headers["upload-offset"], asked.headers["upload-length"]) == (str(70 * KIB), str(CONTENT.size))
    assert (asked.headers["upload-concat"], asked.headers["upload-metadata"]) == ("partial", metadata)
    await patch(stack, one, 70 * KIB, CONTENT.data[70 * KIB :])
    two = await part_of(stack, b"", metadata=metadata)
    assert (await head(stack, two)).headers["upload-offset"] == "0"
    value = f"final;https://elsewhere.example{one}   {two} resumable/{one.rpartition('/')[2]}"
    told = await post(stack, Upload_Concat=value)
    path = told.headers["location"].removeprefix("http://test")
    asked = await head(stack, path)
    assert (asked.headers["upload-concat"], asked.headers["upload-length"]) == (value, str(2 * CONTENT.size))
    assert "upload-metadata" not in asked.headers
    (file,) = await files(stack)
    assert file["name"] == f"upload-{path.rpartition('/')[2]}"
    assert file["sha256"] == hashlib.sha256(2 * CONTENT.data).hexdigest()


async def test_nobody_appends_to_a_whole(stack: Stack) -> None:
    """Concatenation: "The Server MUST respond with the 403 Forbidden status to PATCH requests against a final upload URL and
    MUST NOT modify the final or its partial uploads.\""""
    one, two = await part_of(stack, CONTENT.data), await part_of(stack, b"12345", sent=2)
    waiting, finished = await ordered(stack, [one, two]), await ordered(stack, [await part_of(stack, b"xyz")])
    for path in (waiting, finished):
        problem(await patch(stack, path, 0, b"x"), 403, "forbidden")
        problem(await patch(stack, path, 3, b""), 403, "forbidden")
    assert (await head(stack, two)).headers["upload-offset"] == "2"
    stack.services.concatenations.filling._turns._value = 0  # nobody fills for now
    await patch(stack, two, 2, b"345")
    problem(await patch(stack, waiting, 0, b"x"), 403, "forbidden")
    native = waiting.replace("resumable", "uploads")
    assert (await stack.client.put(f"{native}/chunks/0", content=CONTENT.chunk(0))).status_code == 403
    assert (await stack.client.get(native)).json()["upload"]["received_bytes"] == 0


async def test_parts_may_be_under_way_when_their_whole_is_ordered(stack: Stack) -> None:
    """Concatenation: "The Client MAY send the concatenation request while the partial uploads are still in progress.";
    "SHOULD NOT contain the Upload-Offset header unless the concatenation has been successfully finished"; "The Upload-Length
    header MUST be included if the length of the final resource can be calculated at the time of the request.\""""
    length = CONTENT.size // 2
    one = await part_of(stack, CONTENT.data[:length], sent=100)
    two = await part_of(stack, CONTENT.data[length:], sent=0)
    path = await ordered(stack, [one, two])
    asked = await head(stack, path)
    assert (asked.status_code, asked.headers["upload-length"]) == (200, str(CONTENT.size))
    assert asked.headers["upload-concat"] == f"final;{one} {two}"
    assert "upload-offset" not in asked.headers
    assert (await patch(stack, two, 0, CONTENT.data[length:])).status_code == 204
    assert not await is_finished(stack, path)
    last = await patch(stack, one, 100, CONTENT.data[100:length])
    assert (last.status_code, last.headers["upload-offset"]) == (204, str(length))
    await eventually(lambda: is_finished(stack, path))
    (file,) = await files(stack)
    assert file["sha256"] == CONTENT.sha256
    asked = await head(stack, one)
    assert (asked.status_code, asked.headers["upload-offset"]) == (200, str(length)), "who lost the last answer"
    assert await at_rest(stack) == {"alice": Account(finished=CONTENT.size)}


async def test_who_lost_the_answer_gets_the_same_whole(stack: Stack) -> None:
    parts = await parts_of(stack)
    answers = await asyncio.gather(*(order(stack, parts) for _ in range(4)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.headers["location"] for answer in answers}) == 1
    assert (await order(stack, parts)).headers["location"] == answers[0].headers["location"]
    assert len(await files(stack)) == 1
    problem(await order(stack, parts[::-1]), 410, "upload-gone")
    assert problem(await order(stack, parts[:1]), 410, "upload-gone")["reason"] == "consumed"
    problem(await stack.client.delete(parts[0], headers=TUS), 410, "upload-gone")


async def test_what_can_not_be_a_part_is_told(stack: Stack) -> None:
    part = await part_of(stack, b"12345")
    bob = await stack.client_of("bob")
    foreign = await bob.post(URL, headers={**TUS, "Upload-Concat": "partial", "Upload-Length": "5"})
    ordinary = await stack.client.post(URL, headers={**TUS, "Upload-Length": "5"})
    problem(await order(stack, [part, foreign.headers["location"]]), 404, "upload-not-found")
    problem(await order(stack, [part, f"{URL}/{'0' * 32}"]), 404, "upload-not-found")
    problem(await order(stack, [ordinary.headers["location"]]), 400, "invalid-request")
    for url in (
        "/uploads/" + "0" * 32,
        f"/x{part}",
        f"{part}?a=b",
        f"{part}#a",
        "ftp://test" + part,
        part[:-1],
        "http://[",
    ):
        problem(await order(stack, [url]), 400, "invalid-request")
    for value in ("final;", "final; ", "final", "Partial", "partial;", "", "final;" + f"{part} " * 251):
        problem(await post(stack, Upload_Concat=value), 400, "invalid-request")
    problem(await order(stack, [part], Upload_Length="5"), 400, "invalid-request")
    problem(await post(stack, Upload_Concat="partial"), 400, "invalid-request")
    assert (await head(stack, part)).status_code == 200
    accounts = await checked_accounts(stack.services.database)
    assert {user: account.reserved for user, account in accounts.items()} == {"alice": 10, "bob": 5}
    await bob.aclose()


async def test_a_part_becomes_no_file_of_its_own(stack: Stack) -> None:
    """Concatenation: "The Server SHOULD NOT process these partial uploads until they are concatenated to form a final
    upload.\""""
    part = await part_of(stack, CONTENT.data)
    native = part.replace("resumable", "uploads")
    assert (await stack.client.post(f"{native}/merge")).status_code == 403
    assert (await stack.client.patch(native, json={"md5": CONTENT.md5})).status_code == 403
    status = (await stack.client.get(native)).json()
    assert (status["state"], status["upload"]["received_bytes"]) == ("uploading", CONTENT.size)
    (listed,) = (await stack.client.get("/uploads")).json()["uploads"]
    assert listed["state"] == "uploading"
    assert (await stack.client.put(f"{native}/chunks/0", content=CONTENT.chunk(0))).status_code == 200
    assert await stack.services.pending.merge_queues[0].claim() == []
    assert await files(stack) == []


async def test_the_quota_is_exact_and_a_part_may_be_named_twice(stack: Stack) -> None:
    """Concatenation: "They MAY however be used multiple times to form a final upload.\""""
    bob = await stack.client_of("bob", total_space=250)
    headers = {**BYTES, "Upload-Concat": "partial", "Upload-Length": "100"}
    paths = [(await bob.post(URL, content=bytes([n]) * 100, headers=headers)).headers["location"] for n in range(2)]
    accounts = await checked_accounts(stack.services.database)
    assert accounts["bob"].reserved == 200
    names = [paths[0], paths[0], paths[1]]
    told = await bob.post(URL, headers={**TUS, "Upload-Concat": "final;" + " ".join(names)})
    problem(told, 413, "quota-exceeded")
    assert (await checked_accounts(stack.services.database))["bob"].reserved == 200
    assert (await bob.head(paths[0], headers=TUS)).headers["upload-offset"] == "100", "the parts are as they were"
    await stack.services.accounts.set_total_space("bob", 300)
    told = await bob.post(URL, headers={**TUS, "Upload-Concat": "final;" + " ".join(names)})
    assert told.status_code == 201
    (file,) = (await bob.get("/me/files")).json()["files"]
    downloaded = await bob.get(f"/me/files/{file['id']}/content")
    assert downloaded.content == bytes(200) + bytes([1]) * 100
    assert (await at_rest(stack))["bob"] == Account(finished=300)
    await bob.aclose()


async def test_what_is_under_way_of_a_part_counts_and_ends_as_of_every_upload(stack: Stack) -> None:
    """Termination; Expiration. While it is unfinished, and when it is complete and nobody wants it."""
    begun, complete = await part_of(stack, CONTENT.data, sent=70 * KIB), await part_of(stack, b"12345")
    queue = stack.services.pending.flush_queues[0]
    await eventually(lambda: flushed(stack, 70 * KIB + 5))
    assert await queue.claim() == []
    account = (await at_rest(stack))["alice"]
    assert account == Account(unfinished=70 * KIB + 5, reserved=CONTENT.size + 5)
    assert (await stack.services.reconciling.reconcile()).drifts == []
    assert (await stack.client.delete(begun, headers=TUS)).status_code == 204
    assert (await head(stack, begun)).status_code == 410
    assert not await stack.services.closers.expire(await known(stack, complete), 60)
    assert await stack.services.closers.expire(await known(stack, complete), 0)
    assert (await head(stack, complete)).status_code == 410
    assert await at_rest(stack) == {"alice": Account()}


async def flushed(stack: Stack, received: int) -> bool:
    await stack.services.flushing.flush_due(stack.services.pending.flush_queues[0])
    return (await stack.usage("alice"))["unfinished"] == received


async def known(stack: Stack, path: str) -> Any:
    return await stack.services.uploads.known(Target("alice", upload_id=path.rpartition("/")[2]))


async def test_a_loss_of_redis_makes_no_file_of_a_part(stack: Stack) -> None:
    parts, redis = await parts_of(stack), stack.services.redis
    nothing = await part_of(stack, b"")
    await redis.flushall()
    await stack.services.sweeping.sweep(0)
    assert (await head(stack, parts[0])).headers["upload-offset"] == str(CONTENT.size // 3)
    await stack.services.sweeping.sweep(0)
    assert await stack.services.pending.merge_queues[0].claim() == []
    assert (await stack.services.reconciling.reconcile()).drifts == []
    await redis.flushall()
    assert await is_finished(stack, await ordered(stack, [*parts, nothing]))
    (file,) = await files(stack)
    assert file["sha256"] == CONTENT.sha256
    assert await is_finished(stack, await ordered(stack, [await part_of(stack, b"")])), "of nothing, too"


async def test_a_whole_that_waits_may_be_taken_back_and_its_parts_used_otherwise(stack: Stack) -> None:
    """Termination."""
    parts = [await part_of(stack, b"12345"), await part_of(stack, b"67890", sent=2)]
    path = await ordered(stack, parts)
    assert (await stack.usage("alice"))["reserved"] == 10
    bob = await stack.client_of("bob")
    for method in ("HEAD", "DELETE"):
        assert (await bob.request(method, path, headers=TUS)).status_code == 404
    assert (await stack.client.delete(path, headers=TUS)).status_code == 204
    assert (await head(stack, path)).status_code == 404
    await patch(stack, parts[1], 2, b"890")
    assert await files(stack) == []
    again = await ordered(stack, parts)
    assert again != path
    assert await is_finished(stack, again)
    assert (await stack.client.delete(again, headers=TUS)).status_code == 204
    assert (await head(stack, again)).status_code == 404
    assert len(await files(stack)) == 1, "the file is its owner's"
    problem(await order(stack, parts), 410, "upload-gone")
    await bob.aclose()


async def test_a_whole_ends_with_a_part_that_ends_otherwise(stack: Stack) -> None:
    parts = [await part_of(stack, b"12345"), await part_of(stack, b"67890", sent=2)]
    path = await ordered(stack, parts)
    await stack.client.delete(parts[1], headers=TUS)
    assert (await head(stack, path)).status_code == 410
    problem(await order(stack, parts), 410, "upload-gone")
    await stack.services.concatenations.advance_due()
    assert (await head(stack, path)).status_code == 404
    assert (await head(stack, parts[0])).status_code == 200


async def test_whoever_finds_an_order_ends_it(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the job: where the last part was completed unseen, and where the process died that joined or filled."""
    wholes, started = stack.services.concatenations, list[str]()

    async def unseen(_: Any) -> None:
        """As where a process dies."""

    def dies(upload_id: str) -> "asyncio.Future[None]":
        started.append(upload_id)
        return asyncio.ensure_future(unseen(upload_id))

    monkeypatch.setattr(stack.services.appends, "part_completed", unseen)
    monkeypatch.setattr(wholes, "settings", replace(wholes.settings, merge_wait_seconds=0))
    start = wholes.filling.start
    monkeypatch.setattr(wholes.filling, "start", dies)
    length = CONTENT.size // 2
    parts = [await part_of(stack, CONTENT.data[:length]), await part_of(stack, CONTENT.data[length:], sent=7)]
    path = await ordered(stack, parts)
    await patch(stack, parts[1], 7, CONTENT.data[length + 7 :])
    await wholes.advance_due()
    assert started == [], "it is not known yet that it is complete"
    await eventually(lambda: flushed(stack, CONTENT.size))
    await wholes.advance_due()
    assert started == [path.rpartition("/")[2]]
    assert (await stack.usage("alice"))["reserved"] == CONTENT.size
    assert "upload-offset" not in (await head(stack, path)).headers
    (listed,) = (await stack.client.get("/uploads")).json()["uploads"]
    assert (listed["id"], listed["received_bytes"]) == (started[0], 0)
    monkeypatch.setattr(wholes.filling, "start", start)
    await wholes.advance_due()
    await eventually(lambda: is_finished(stack, path))
    await wholes.advance_due()
    assert await stack.services.database.read(partial(queries.due_concatenations, after="", limit=9)) == []
    (file,) = await files(stack)
    assert file["sha256"] == CONTENT.sha256
    assert await at_rest(stack) == {"alice": Account(finished=CONTENT.size)}


async def test_parts_that_nobody_tidied_after_the_join_are_found(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a process died after its commit: each has a task, leased before."""

    async def unseen(*_: Any) -> bool:
        return False

    async def over(stack: Stack) -> Account:
        await stack.services.flushing.flush_due(stack.services.pending.flush_queues[0])
        database, redis = stack.services.database, cast("Redis", stack.services.redis)
        return (await check_at_rest(database, redis, stack.data))["alice"]

    async with make_stack(chunk_size_bytes=64 * KIB, claim_lease_seconds=0.2) as stack:
        parts = await parts_of(stack)
        with monkeypatch.context() as died:
            died.setattr(stack.services.concatenations.joining.closers, "clear", unseen)
            at_once = replace(stack.services.settings, merge_wait_seconds=0)
            died.setattr(stack.services.concatenations, "settings", at_once)
            path = await ordered(stack, parts)
        await eventually(lambda: is_finished(stack, path))
        assert await rests_within(PATIENCE_SECONDS, lambda: over(stack)) == Account(finished=CONTENT.size)


async def test_bytes_of_a_part_that_went_bad_make_no_file(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a whole is filled with is what its parts were sent, to the byte."""
    parts = await parts_of(stack)
    (data,) = stack.data.glob(f"temp/*/*/{parts[1].rpartition('/')[2]}/data")
    with data.open("r+b") as opened:
        opened.seek(CONTENT.size // 3 - 1)
        opened.write(bytes([CONTENT.data[2 * (CONTENT.size // 3) - 1] ^ 1]))
    path = await ordered(stack, parts)
    gone = await stack.client.get(path.replace("resumable", "uploads"))
    assert (gone.status_code, gone.json()["reason"]) == (410, "part-damaged")
    assert (await head(stack, path)).status_code == 410
    assert await files(stack) == []
    assert await at_rest(stack) == {"alice": Account()}


async def test_one_process_fills_a_whole(stack: Stack) -> None:
    """And who is told that another one does leaves it."""
    services = stack.services
    services.concatenations.filling._turns._value = 0
    services.concatenations.settings = replace(services.settings, merge_wait_seconds=0)
    path = await ordered(stack, await parts_of(stack))
    upload = await known(stack, path)
    async with services.storage.filling(upload):
        services.concatenations.filling._turns.release()
        await services.concatenations.filling.start(upload.id)
        assert (await services.storage.read_map(upload)).received_bytes == 0
        assert (await stack.client.delete(path, headers=TUS)).status_code == 204, "at once, whoever fills it"
    assert (await head(stack, path)).status_code == 410
    assert await at_rest(stack) == {"alice": Account()}


async def test_nobody_orders_without_end(make_stack: MakeStack) -> None:
    async with make_stack(max_open_uploads=2) as stack:
        parts = [await part_of(stack, b"12345", sent=1), await part_of(stack, b"67890", sent=1)]
        for paths in (parts, parts[::-1]):
            await ordered(stack, paths)
        problem(await order(stack, parts[:1]), 429, "too-many-uploads")
        assert (await order(stack, parts)).status_code == 201, "which there is already"


async def test_a_whole_is_asked_for_and_told_of_and_no_part_is(make_stack: MakeStack, tmp_path: Path) -> None:
    async with consuming() as asked:
        text = f'[pre_create]\nurl = "{asked.url}"\nsecret_file = "new.secret"\non_failure = "refuse"\n'
        async with make_stack(events=events_file(tmp_path / "e", text)) as stack:
            parts = [await part_of(stack, b"12345"), await part_of(stack, b"678")]
            assert asked.requests == []
            asked.status = 403
            problem(await order(stack, parts), 403, "refused")
            asked.status = 204
            await ordered(stack, parts, Upload_Metadata="name YQ==")
            questions = [(each.event["name"], each.event["size"]) for each in asked.requests]
            assert (len(questions), questions[-1]) == (2, ("a", 8))
