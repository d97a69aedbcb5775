"""Concatenation as the text of tus 1.0.0 has it (https://tus.io/protocols/resumable-upload); each test names the section, or
what of the accounts it is about."""

import asyncio
import errno
import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta
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
from tests.support.faults import failing_call
from tests.support.invariants import Account, checked_accounts
from tests.support.problems import problem
from tests.support.resumable import RESUMABLE, Tus, files_of, id_of, native, path_of
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS, eventually
from uploader.database import models, queries, transactions
from uploader.domain.links import owner
from uploader.service.results import Target

CONTENT = Content(3 * 70 * KIB + 1234)
SETTINGS: dict[str, Any] = {"chunk_size_bytes": 64 * KIB, "merge_wait_seconds": 60.0, "quiet_interval_seconds": 0.05}


@pytest.fixture
async def stack(make_stack: MakeStack) -> AsyncIterator[Stack]:
    async with make_stack(**SETTINGS) as made:
        yield made


@pytest.fixture
def tus(stack: Stack) -> Tus:
    return Tus(stack.client)


async def part_of(tus: Tus, data: bytes, *, sent: int | None = None, **said: str) -> str:
    """The path of a new part, with so many of its bytes."""
    return await tus.created(len(data), data[:sent], Upload_Concat="partial", **said)


async def parts_of(tus: Tus, content: Content = CONTENT, count: int = 3) -> list[str]:
    """As tus-js-client cuts a file: in parts of the same length, wherever chunks end."""
    length = content.size // count
    ends = [number * length for number in range(count)] + [content.size]
    return [await part_of(tus, content.data[start:end]) for start, end in pairwise(ends)]


async def post(tus: Tus, **said: str) -> httpx2.Response:
    return await tus.send("POST", RESUMABLE, **said)


async def order(tus: Tus, paths: Sequence[str], **said: str) -> httpx2.Response:
    return await post(tus, Upload_Concat="final;" + " ".join(paths), **said)


async def ordered(tus: Tus, paths: Sequence[str], **said: str) -> str:
    response = await order(tus, paths, **said)
    tus.check(response, 201)
    return path_of(response)


async def file_of(tus: Tus) -> dict[str, Any]:
    (file,) = await files_of(tus.client)
    return file


async def is_finished(tus: Tus, path: str) -> bool:
    return "upload-offset" in (await tus.head(path)).headers


async def at_rest(stack: Stack) -> dict[str, Account]:
    """What is over for who asks is tidied a moment later."""
    database, redis = stack.services.database, cast("Redis", stack.services.redis)
    return await rests_within(PATIENCE_SECONDS, lambda: check_at_rest(database, redis, stack.data))


@pytest.mark.parametrize("durability", ["power", "process"])
async def test_parts_become_one_file_in_the_order_of_the_list(make_stack: MakeStack, durability: str) -> None:
    """Concatenation: "The partial uploads MUST be concatenated as per the order specified in the list.\""""
    async with make_stack(durability=durability, **SETTINGS) as stack:
        tus = Tus(stack.client)
        parts = await parts_of(tus)
        assert await files_of(tus.client) == [], "no part is a file"
        path = await ordered(tus, parts, Upload_Metadata="filename YS5iaW4=")
        assert await tus.state(path) == (CONTENT.size, True, CONTENT.size)
        file = await file_of(tus)
        assert (file["name"], file["size"], file["sha256"]) == ("a.bin", CONTENT.size, CONTENT.sha256)
        assert await at_rest(stack) == {"alice": Account(finished=CONTENT.size)}


async def test_a_complete_part_is_accounted_for_as_one_that_is_open(make_stack_on: MakeStack) -> None:
    """What has all its bytes, and is open all the same, is brought to its merge by whoever accounts for it: not a part."""
    async with make_stack_on(**SETTINGS) as stack:
        part = id_of(await part_of(Tus(stack.client), CONTENT.data))
        came = [transactions.uploads.Received(part, 0, CONTENT.size)]
        flushed = await stack.services.database.transact(
            lambda connection: transactions.uploads.flush(connection, came, stack.services.clock.now())
        )
        assert flushed.open_ids == {part}


async def test_what_is_asked_of_a_part_and_of_a_whole(tus: Tus) -> None:
    """HEAD: Upload-Concat "and its value as received"; "partial uploads' metadata SHALL NOT be transferred"."""
    metadata: dict[str, Any] = {"Upload_Metadata": "filename cGFydA=="}
    one = await part_of(tus, CONTENT.data, sent=70 * KIB, **metadata)
    assert await tus.state(one) == (70 * KIB, False, CONTENT.size)
    asked = (await tus.head(one)).headers
    assert (asked["upload-concat"], asked["upload-metadata"]) == ("partial", metadata["Upload_Metadata"])
    await tus.patch(one, 70 * KIB, CONTENT.data[70 * KIB :])
    two = await part_of(tus, b"", **metadata)
    assert await tus.state(two) == (0, True, 0)
    value = f"final;https://elsewhere.example{one}   {two} {one.removeprefix('/')}"
    path = path_of(await post(tus, Upload_Concat=value))
    asked = (await tus.head(path)).headers
    assert (asked["upload-concat"], asked["upload-length"]) == (value, str(2 * CONTENT.size))
    assert "upload-metadata" not in asked
    file = await file_of(tus)
    assert file["name"] == f"upload-{id_of(path)}"
    assert file["sha256"] == hashlib.sha256(2 * CONTENT.data).hexdigest()


async def test_nobody_appends_to_a_whole(stack: Stack, tus: Tus) -> None:
    """Concatenation: "MUST respond with the 403 Forbidden status to PATCH requests against a final upload URL"."""
    one, two = await part_of(tus, CONTENT.data), await part_of(tus, b"12345", sent=2)
    waiting, finished = await ordered(tus, [one, two]), await ordered(tus, [await part_of(tus, b"xyz")])
    for path in (waiting, finished):
        tus.problem(await tus.patch(path, 0, b"x"), 403, "forbidden")
        tus.problem(await tus.patch(path, 3, b""), 403, "forbidden")
    assert (await tus.head(two)).headers["upload-offset"] == "2"
    stack.services.concatenations.filling._turns._value = 0  # nobody fills for now
    await tus.patch(two, 2, b"345")
    tus.problem(await tus.patch(waiting, 0, b"x"), 403, "forbidden")
    url = native(waiting)
    assert (await stack.client.put(f"{url}/chunks/0", content=CONTENT.chunk(0))).status_code == 403
    assert (await stack.client.get(url)).json()["upload"]["received_bytes"] == 0


@pytest.mark.parametrize("known", [True, False])
async def test_parts_may_be_under_way_when_their_whole_is_ordered(stack: Stack, tus: Tus, known: bool) -> None:
    """Concatenation: no Upload-Offset "unless the concatenation has been successfully finished"; Upload-Length if known."""
    length = CONTENT.size // 2
    halves = (CONTENT.data[:length], CONTENT.data[length:])
    parts = [
        await tus.created(len(half) if known else None, half[: 70 * KIB], Upload_Concat="partial") for half in halves
    ]
    path = await ordered(tus, parts)
    for part, half in zip(parts, halves, strict=True):
        asked = await tus.head(path)
        assert (asked.status_code, asked.headers["upload-concat"]) == (200, f"final;{' '.join(parts)}")
        assert asked.headers.get("upload-length") == (str(CONTENT.size) if known else None)
        assert "upload-offset" not in asked.headers
        assert await files_of(tus.client) == []
        last = await tus.patch(part, 70 * KIB, half[70 * KIB :], Upload_Length=str(len(half)))
        assert (last.status_code, last.headers["upload-offset"]) == (204, str(len(half)))
    await eventually(lambda: is_finished(tus, path))
    file = await file_of(tus)
    assert (file["size"], file["sha256"]) == (CONTENT.size, CONTENT.sha256)
    assert await tus.state(parts[0]) == (length, True, length), "who lost the last answer"
    assert await at_rest(stack) == {"alice": Account(finished=CONTENT.size)}


async def test_who_lost_the_answer_gets_the_same_whole(tus: Tus) -> None:
    parts = await parts_of(tus)
    answers = await asyncio.gather(*(order(tus, parts) for _ in range(4)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.headers["location"] for answer in answers}) == 1
    assert (await order(tus, parts)).headers["location"] == answers[0].headers["location"]
    assert len(await files_of(tus.client)) == 1
    tus.problem(await order(tus, parts[::-1]), 410, "upload-gone")
    assert tus.problem(await order(tus, parts[:1]), 410, "upload-gone")["reason"] == "consumed"
    tus.problem(await tus.delete(parts[0]), 410, "upload-gone")


async def test_what_can_not_be_a_part_is_told(stack: Stack, tus: Tus) -> None:
    part = await part_of(tus, b"12345")
    foreign = await part_of(Tus(await stack.client_of("bob")), b"12345", sent=0)
    for unknown in (foreign, f"{RESUMABLE}/{'0' * 32}"):
        tus.problem(await order(tus, [part, unknown]), 404, "upload-not-found")
    ordinary = await tus.created(5)
    elsewhere = ("/uploads/" + "0" * 32, f"/x{part}", f"{part}?a=b", f"{part}#a", "ftp://test" + part)
    for url in (ordinary, *elsewhere, part[:-1], "http://["):
        tus.problem(await order(tus, [url]), 400, "invalid-request")
    for value in ("final;", "final; ", "final", "Partial", "partial;", "", "final;" + f"{part} " * 251):
        tus.problem(await post(tus, Upload_Concat=value), 400, "invalid-request")
    tus.problem(await order(tus, [part] * 17), 422, "invalid-request")
    tus.problem(await order(tus, [part], Upload_Length="5"), 400, "invalid-request")
    tus.problem(await post(tus, Upload_Concat="partial"), 400, "invalid-request")
    assert (await tus.head(part)).status_code == 200
    accounts = await checked_accounts(stack.services.database)
    assert {user: account.reserved for user, account in accounts.items()} == {"alice": 10, "bob": 5}


async def test_a_part_becomes_no_file_of_its_own(stack: Stack, tus: Tus) -> None:
    """Concatenation: "SHOULD NOT process these partial uploads until they are concatenated"."""
    part = await part_of(tus, CONTENT.data)
    url = native(part)
    assert (await stack.client.post(f"{url}/merge")).status_code == 403
    assert (await stack.client.patch(url, json={"md5": CONTENT.md5})).status_code == 403
    status = (await stack.client.get(url)).json()
    assert (status["state"], status["upload"]["received_bytes"]) == ("uploading", CONTENT.size)
    (listed,) = (await stack.client.get("/uploads")).json()["uploads"]
    assert listed["state"] == "uploading"
    assert (await stack.client.put(f"{url}/chunks/0", content=CONTENT.chunk(0))).status_code == 200
    assert await stack.services.pending.merge_queues[0].claim() == []
    assert await files_of(tus.client) == []


async def test_the_quota_is_exact_and_a_part_may_be_named_twice(stack: Stack, tus: Tus) -> None:
    """Concatenation: "They MAY however be used multiple times to form a final upload.\""""
    bob = Tus(await stack.client_of("bob", total_space=250))
    one, two = [await part_of(bob, bytes([number]) * 100) for number in range(2)]
    tus.problem(await order(bob, [one, one, two]), 413, "quota-exceeded")
    assert (await checked_accounts(stack.services.database))["bob"].reserved == 200
    assert await bob.state(one) == (100, True, 100), "the parts are as they were"
    await stack.services.accounts.set_total_space("bob", 300)
    await ordered(bob, [one, one, two])
    file = await file_of(bob)
    assert (await bob.client.get(f"/me/files/{file['id']}/content")).content == bytes(200) + bytes([1]) * 100
    assert (await at_rest(stack))["bob"] == Account(finished=300)


async def test_what_is_under_way_of_a_part_counts_and_ends_as_of_every_upload(stack: Stack, tus: Tus) -> None:
    """Termination; Expiration. While it is unfinished, and when it is complete and nobody wants it."""
    begun, complete = await part_of(tus, CONTENT.data, sent=70 * KIB), await part_of(tus, b"12345")
    queue = stack.services.pending.flush_queues[0]
    await eventually(lambda: flushed(stack, 70 * KIB + 5))
    assert await queue.claim() == []
    account = (await at_rest(stack))["alice"]
    assert account == Account(unfinished=70 * KIB + 5, reserved=CONTENT.size + 5)
    assert (await stack.services.reconciling.reconcile()).drifts == []
    assert (await tus.delete(begun)).status_code == 204
    assert (await tus.head(begun)).status_code == 404
    assert not await stack.services.closers.expire(await known(stack, complete), 60)
    assert await stack.services.closers.expire(await known(stack, complete), 0)
    assert (await tus.head(complete)).status_code == 404
    assert await at_rest(stack) == {"alice": Account()}


async def flushed(stack: Stack, received: int) -> bool:
    await stack.services.flushing.flush_due(stack.services.pending.flush_queues[0])
    return (await stack.usage("alice"))["unfinished"] == received


async def known(stack: Stack, path: str) -> Any:
    return await stack.services.uploads.known(Target(owner("alice"), upload_id=id_of(path)))


async def test_a_loss_of_redis_makes_no_file_of_a_part(stack: Stack, tus: Tus) -> None:
    parts, redis = await parts_of(tus), stack.services.redis
    nothing = await part_of(tus, b"")
    await redis.flushall()
    await stack.services.sweeping.sweep(0)
    assert (await tus.head(parts[0])).headers["upload-offset"] == str(CONTENT.size // 3)
    await stack.services.sweeping.sweep(0)
    assert await stack.services.pending.merge_queues[0].claim() == []
    assert (await stack.services.reconciling.reconcile()).drifts == []
    await redis.flushall()
    assert await is_finished(tus, await ordered(tus, [*parts, nothing]))
    assert (await file_of(tus))["sha256"] == CONTENT.sha256
    assert await is_finished(tus, await ordered(tus, [await part_of(tus, b"")])), "of nothing, too"


async def test_a_whole_that_waits_may_be_taken_back_and_its_parts_used_otherwise(stack: Stack, tus: Tus) -> None:
    """Termination."""
    parts = [await part_of(tus, b"12345"), await part_of(tus, b"67890", sent=2)]
    path = await ordered(tus, parts)
    assert (await stack.usage("alice"))["reserved"] == 10
    bob = Tus(await stack.client_of("bob"))
    for response in (await bob.head(path), await bob.delete(path)):
        assert response.status_code == 404
    assert (await tus.delete(path)).status_code == 204
    assert (await tus.head(path)).status_code == 404
    await tus.patch(parts[1], 2, b"890")
    assert await files_of(tus.client) == []
    again = await ordered(tus, parts)
    assert again != path
    assert await is_finished(tus, again)
    assert (await tus.delete(again)).status_code == 204
    assert (await tus.head(again)).status_code == 404
    assert len(await files_of(tus.client)) == 1, "the file is its owner's"
    tus.problem(await order(tus, parts), 410, "upload-gone")


async def test_what_is_written_down_of_an_order_goes_with_its_upload(stack: Stack, tus: Tus) -> None:
    assert await is_finished(tus, await ordered(tus, [await part_of(tus, b"12345")]))
    tomorrow = stack.services.clock.now() + timedelta(days=1)
    await stack.services.cleanup.purge_closed(tomorrow, 1000)
    async with stack.services.database.engine.connect() as connection:
        for table in (models.concatenation, models.concatenation_part):
            assert (await connection.execute(table.select())).all() == []


async def test_a_whole_ends_with_a_part_that_ends_otherwise(stack: Stack, tus: Tus) -> None:
    parts = [await part_of(tus, b"12345"), await part_of(tus, b"67890", sent=2)]
    path = await ordered(tus, parts)
    await tus.delete(parts[1])
    assert (await tus.head(path)).status_code == 404
    tus.problem(await order(tus, parts), 410, "upload-gone")
    await stack.services.concatenations.advance_due()
    assert (await tus.head(path)).status_code == 404
    assert (await tus.head(parts[0])).status_code == 200


async def test_whoever_finds_an_order_ends_it(stack: Stack, tus: Tus, monkeypatch: pytest.MonkeyPatch) -> None:
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
    parts = [await part_of(tus, CONTENT.data[:length]), await part_of(tus, CONTENT.data[length:], sent=7)]
    path = await ordered(tus, parts)
    await tus.patch(parts[1], 7, CONTENT.data[length + 7 :])
    await wholes.advance_due()
    assert started == [], "it is not known yet that it is complete"
    await eventually(lambda: flushed(stack, CONTENT.size))
    await wholes.advance_due()
    assert started == [id_of(path)]
    assert (await stack.usage("alice"))["reserved"] == CONTENT.size
    assert "upload-offset" not in (await tus.head(path)).headers
    (listed,) = (await stack.client.get("/uploads")).json()["uploads"]
    assert (listed["id"], listed["received_bytes"]) == (started[0], 0)
    monkeypatch.setattr(wholes.filling, "start", start)
    await wholes.advance_due()
    await eventually(lambda: is_finished(tus, path))
    await wholes.advance_due()
    assert await stack.services.database.read(partial(queries.due_concatenations, after="", limit=9)) == []
    assert (await file_of(tus))["sha256"] == CONTENT.sha256
    assert await at_rest(stack) == {"alice": Account(finished=CONTENT.size)}


async def test_parts_left_after_the_join_are_found(make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a process died after its commit: each has a task, leased before."""

    async def unseen(*_: Any) -> bool:
        return False

    async def over(stack: Stack) -> Account:
        await stack.services.flushing.flush_due(stack.services.pending.flush_queues[0])
        database, redis = stack.services.database, cast("Redis", stack.services.redis)
        return (await check_at_rest(database, redis, stack.data))["alice"]

    async with make_stack(claim_lease_seconds=0.2, **SETTINGS) as stack:
        tus = Tus(stack.client)
        parts = await parts_of(tus)
        with monkeypatch.context() as died:
            died.setattr(stack.services.concatenations.joining.closers, "clear", unseen)
            at_once = replace(stack.services.settings, merge_wait_seconds=0)
            died.setattr(stack.services.concatenations, "settings", at_once)
            path = await ordered(tus, parts)
        await eventually(lambda: is_finished(tus, path))
        assert await rests_within(PATIENCE_SECONDS, lambda: over(stack)) == Account(finished=CONTENT.size)


async def test_bytes_of_a_part_that_went_bad_make_no_file(stack: Stack, tus: Tus) -> None:
    """What a whole is filled with is what its parts were sent, to the byte."""
    parts = await parts_of(tus)
    (data,) = stack.data.glob(f"temp/*/*/{id_of(parts[1])}/data")
    with data.open("r+b") as opened:
        opened.seek(CONTENT.size // 3 - 1)
        opened.write(bytes([CONTENT.data[2 * (CONTENT.size // 3) - 1] ^ 1]))
    path = await ordered(tus, parts)
    gone = await stack.client.get(native(path))
    assert (gone.status_code, gone.json()["reason"]) == (410, "part-damaged")
    assert (await tus.head(path)).status_code == 404
    assert await files_of(tus.client) == []
    assert await at_rest(stack) == {"alice": Account()}


async def test_full_disk_is_told_where_a_whole_is_filled(stack: Stack, tus: Tus) -> None:
    parts = await parts_of(tus)
    with failing_call("pwrite", errno.ENOSPC, times=None, only=lambda path: path.name == "data"):
        for _ in range(2):
            tus.problem(await order(tus, parts), 507, "storage-full")
        (upload,) = [
            each for each in (await stack.client.get("/uploads")).json()["uploads"] if each["received_bytes"] == 0
        ]
        problem(await stack.client.post(f"/uploads/{upload['id']}/merge"), 507, "storage-full")
    path = await ordered(tus, parts)
    assert (id_of(path), (await file_of(tus))["sha256"]) == (upload["id"], CONTENT.sha256)
    assert await at_rest(stack) == {"alice": Account(finished=CONTENT.size)}


async def test_one_process_fills_a_whole(stack: Stack, tus: Tus) -> None:
    """And who is told that another one does leaves it."""
    services = stack.services
    services.concatenations.filling._turns._value = 0
    services.concatenations.settings = replace(services.settings, merge_wait_seconds=0)
    path = await ordered(tus, await parts_of(tus))
    upload = await known(stack, path)
    async with services.storage.filling(upload):
        services.concatenations.filling._turns.release()
        await services.concatenations.filling.start(upload.id)
        assert (await services.storage.read_map(upload)).received_bytes == 0
        filled = await stack.client.post(f"{native(path)}/merge")
        assert (filled.status_code, filled.json()["state"]) == (202, "merging"), "no client can send what is missing"
        assert (await tus.delete(path)).status_code == 204, "at once, whoever fills it"
    assert (await tus.head(path)).status_code == 404
    assert await at_rest(stack) == {"alice": Account()}


async def test_nobody_orders_without_end(make_stack: MakeStack) -> None:
    async with make_stack(max_open_uploads=2) as stack:
        tus = Tus(stack.client)
        parts = [await part_of(tus, b"12345", sent=1), await part_of(tus, b"67890", sent=1)]
        for paths in (parts, parts[::-1]):
            await ordered(tus, paths)
        tus.problem(await order(tus, parts[:1]), 429, "too-many-uploads")
        assert (await order(tus, parts)).status_code == 201, "which there is already"


async def test_a_whole_is_asked_for_and_told_of_and_no_part_is(make_stack: MakeStack, tmp_path: Path) -> None:
    async with consuming() as asked:
        text = f'[pre_create]\nurl = "{asked.url}"\nsecret_file = "new.secret"\non_failure = "refuse"\n'
        async with make_stack(events=events_file(tmp_path / "e", text)) as stack:
            tus = Tus(stack.client)
            parts = [await part_of(tus, b"12345"), await part_of(tus, b"678")]
            assert asked.requests == []
            asked.status = 403
            tus.problem(await order(tus, parts), 403, "refused")
            asked.status = 204
            await ordered(tus, parts, Upload_Metadata="name YQ==")
            questions = [(each.event["name"], each.event["size"]) for each in asked.requests]
            assert (len(questions), questions[-1]) == (2, ("a", 8))
