"""Moves and deletions in ranges: figures after each one, held files and open uploads, and what happens meanwhile."""

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from tests.conftest import MakeStack
from tests.integration.test_held_files import GATE, judge, listed
from tests.support.archives import Entry, archive
from tests.support.consumer import Consumer, asked_of, consuming, events_file
from tests.support.content import KIB, Content
from tests.support.invariants import checked_accounts
from tests.support.problems import problem
from tests.support.stack import Stack, without_database
from tests.support.visiting import make_link, names_of, send, visit
from tests.support.waiting import eventually
from uploader.database import models
from uploader.database.transactions import bulk
from uploader.errors import Unavailable
from uploader.service.bulk import BulkOperations

CONTENT, OTHER = Content(128 * KIB, seed=1), Content(2 * KIB, seed=2)
TUS = {"Tus-Resumable": "1.0.0"}
NAMES = [f"a/{number}/{letter}" for number in range(3) for letter in "xyz"]


@pytest.fixture(autouse=True)
def ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "NAMES_AT_ONCE", 2)
    monkeypatch.setattr(bulk, "FILES_AT_ONCE", 2)


async def _checked(stack: Stack) -> None:
    await checked_accounts(stack.services.database)
    assert (await stack.services.recounting.recount()).drifts == []
    async with stack.services.database.engine.connect() as connection:
        assert (await connection.execute(select(models.bulk_operation.c.id))).all() == []


@pytest.fixture
async def stack_on(make_stack_on: MakeStack) -> AsyncIterator[Stack]:
    async with make_stack_on() as made:
        yield made
        await _checked(made)


@pytest.fixture
async def gated(make_stack_on: MakeStack, tmp_path: Path) -> AsyncIterator[Stack]:
    async with make_stack_on(events=events_file(tmp_path, GATE)) as made:
        yield made
        await _checked(made)


async def fill(stack: Stack, *names: str) -> None:
    """Put files, each with a content of its own."""
    answer = await stack.client.post("/files/batch", content=archive(*(Entry(name, name.encode()) for name in names)))
    assert {line["status"] for line in answer.json()["results"]} == {201}


async def move(stack: Stack, prefix: str, to: str, **more: str) -> Any:
    return (await stack.client.patch("/me/files", params={"prefix": prefix}, json={"prefix": to, **more})).json()


async def delete(stack: Stack, prefix: str, **more: str) -> Any:
    return (await stack.client.delete("/me/files", params={"prefix": prefix, **more})).json()


def after_ranges(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, work: Callable[[], Awaitable[object]], *, at: int | None = None
) -> None:
    """Run `work` after each range of an operation, or after one of them."""
    plain, count = stack.services.bulk_operations._go_on, 0

    async def go_on(*arguments: Any) -> Any:
        nonlocal count
        operation = await plain(*arguments)
        count += 1
        if count == at or at is None:
            await work()
        return operation

    monkeypatch.setattr(stack.services.bulk_operations, "_go_on", go_on)


async def test_figures_are_exact_after_each_range_and_each_file_has_one_name(
    stack_on: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    async def look() -> None:
        await checked_accounts(stack_on.services.database)
        names = await names_of(stack_on.client)
        assert len({name.partition("/")[2] for name in names}) == len(names)
        seen.append(sum(name.startswith("b/") for name in names))

    await fill(stack_on, *NAMES, "b/0/other")
    await stack_on.client.post("/me/folders", json={"name": "a/empty/deep"})
    after_ranges(stack_on, monkeypatch, look)
    assert await move(stack_on, "a/", "b/") == {"files": 9}
    assert seen == sorted(seen)
    assert len(set(seen)) >= 5
    assert await names_of(stack_on.client) == sorted([*(f"b/{name[2:]}" for name in NAMES), "b/0/other"])
    folders = (await stack_on.client.get("/me/folders")).json()["folders"]
    assert [folder["name"] for folder in folders] == ["b/empty/deep/"]
    assert await delete(stack_on, "b/") == {"files": 10}
    assert await names_of(stack_on.client) == []
    assert (await stack_on.client.get("/me/folders")).json()["folders"] == []


@pytest.mark.parametrize("if_exists", ["fail", "keep", "replace"])
async def test_taken_names_are_decided_one_by_one(stack_on: Stack, if_exists: str) -> None:
    await fill(stack_on, "a/1", "a/2", "a/3", "a/4", "a/5", "b/4")
    moved = await move(stack_on, "a/", "b/", if_exists=if_exists)
    if if_exists == "fail":
        assert (moved["code"], moved["taken"]) == ("name-taken", "b/4")
        assert await names_of(stack_on.client) == ["a/1", "a/2", "a/3", "a/4", "a/5", "b/4"]
        return
    assert moved == {"files": 5}
    kept = ["b/4 (2)"] if if_exists == "keep" else []
    assert await names_of(stack_on.client) == sorted(["b/1", "b/2", "b/3", "b/4", "b/5", *kept])


@pytest.mark.parametrize("taken", ["b/e", "b/e/f"])
async def test_empty_folder_without_a_place_stops_the_move_of_its_files(stack_on: Stack, taken: str) -> None:
    await fill(stack_on, "a/1", "a/2", "a/3", taken)
    assert (await stack_on.client.post("/me/folders", json={"name": "a/e/f"})).status_code == 201
    moved = await move(stack_on, "a/", "b/")
    assert (moved["code"], moved["taken"], "files" in moved) == ("name-taken", taken, False)
    assert await names_of(stack_on.client) == ["a/1", "a/2", "a/3", taken]


async def test_max_files_holds_after_each_range(make_stack_on: MakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleted files give way to the folder that is left."""
    async with make_stack_on(max_files=len(NAMES)) as stack:
        await fill(stack, *(f"top/{name}" for name in NAMES))

        async def look() -> None:
            await checked_accounts(stack.services.database)
            assert (await stack.services.files.usage("alice")).files <= len(NAMES)

        after_ranges(stack, monkeypatch, look)
        assert await delete(stack, "top/a/") == {"files": 9}
        assert (await stack.services.files.usage("alice")).files == len(NAMES)
        assert len((await stack.client.get("/me/trash")).json()["files"]) == len(NAMES) - 1
        await _checked(stack)


@pytest.mark.parametrize(("prefix", "to"), [("a/", ""), ("a/a/", "a/"), ("x/a", "x/")])
async def test_folder_moving_up_frees_names_in_time(stack_on: Stack, prefix: str, to: str) -> None:
    below = ("a/a/a/1", "a/a/1", "a/1", "2", "a/a/2", "a/0/1", "a/b", "zz")
    names = [f"{prefix}{name}" for name in below if prefix != "x/a" or not name[0].isdigit()]
    await fill(stack_on, *names)
    assert await move(stack_on, prefix, to) == {"files": len(names)}
    assert await names_of(stack_on.client) == sorted(to + name.removeprefix(prefix) for name in names)


async def test_file_takes_the_name_of_its_folder_when_the_folder_is_empty(stack_on: Stack) -> None:
    await fill(stack_on, "a/a", "a/b", "a/c", "a/d/e", "a/z")
    assert await move(stack_on, "a/", "") == {"files": 5}
    assert await names_of(stack_on.client) == ["a", "b", "c", "d/e", "z"]
    await fill(stack_on, "x/y/x", "x/y/z", "x/other")
    taken = await move(stack_on, "x/y/", "")
    assert (taken["code"], taken["taken"], "files" in taken) == ("name-taken", "x", False)


# Resumed


async def test_same_call_and_job_go_on_where_a_move_broke_off(stack_on: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(stack_on, *NAMES)

    async def break_off() -> None:
        raise Unavailable

    for repeated in (True, False):
        source, target = ("a/", "b/") if repeated else ("b/", "a/")
        with monkeypatch.context() as patched:
            after_ranges(stack_on, patched, break_off, at=3)
            assert (await move(stack_on, source, target))["code"] == "unavailable"
        assert {name[:2] for name in await names_of(stack_on.client)} == {"a/", "b/"}
        if repeated:
            assert await move(stack_on, source, target) == {"files": 9}, "of the whole operation"
        else:
            await stack_on.services.bulk_operations.resume_left()
            assert {name[:2] for name in await names_of(stack_on.client)} == {"a/", "b/"}, "its request may still run"
            await stack_on.services.bulk_operations.resume_left()
    assert await names_of(stack_on.client) == sorted(NAMES)
    ids = [file["id"] for file in (await stack_on.client.get("/me/files")).json()["files"]]
    with monkeypatch.context() as patched:
        after_ranges(stack_on, patched, break_off, at=2)
        body = {"ids": [*ids, "0" * 32]}
        problem(await stack_on.client.post("/me/files/delete", json=body), 503, "unavailable")
    assert len(await names_of(stack_on.client)) == 5
    assert (await stack_on.client.post("/me/files/delete", json=body)).json() == {"files": 9}


async def test_move_goes_on_after_the_database_was_away(
    make_stack: MakeStack, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_stack(database_url=sqlite_url) as stack:
        await fill(stack, *NAMES)
        plain = stack.services.bulk_operations._go_on

        async def go_on(operation: Any, *more: Any) -> Any:
            if operation.files != 4:
                return await plain(operation, *more)
            async with without_database(stack):
                return await plain(operation, *more)

        with monkeypatch.context() as patched:
            patched.setattr(stack.services.bulk_operations, "_go_on", go_on)
            assert (await move(stack, "a/", "b/"))["code"] == "unavailable"
        assert await move(stack, "a/", "b/") == {"files": 9}
        assert await names_of(stack.client) == sorted(MOVED)
        await _checked(stack)


async def test_hook_is_not_asked_again_when_a_move_goes_on(make_stack: MakeStack, tmp_path: Path) -> None:
    async with consuming() as consumer:
        await _ask_once(make_stack, tmp_path, consumer)


async def _ask_once(make_stack: MakeStack, tmp_path: Path, consumer: Consumer) -> None:
    async with make_stack(events=events_file(tmp_path, asked_of(consumer.url))) as stack:
        await fill(stack, *NAMES)
        consumer.requests.clear()
        plain = stack.services.bulk_operations._go_on

        async def break_off(operation: Any, *more: Any) -> Any:
            if operation.files:
                raise Unavailable
            return await plain(operation, *more)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(stack.services.bulk_operations, "_go_on", break_off)
            assert (await move(stack, "a/", "b/"))["code"] == "unavailable"
        consumer.status = 403
        for _ in range(2):
            await stack.services.bulk_operations.resume_left()
        assert [each["name"] for each in consumer.events] == ["b/"]
        assert len(await listed(stack.client, prefix="b/")) == 9


# Held files and open uploads


async def opened(stack: Stack) -> dict[str, str]:
    """Begin uploads below `a/` in every way, and return the way to each."""
    natively = await stack.open(CONTENT, name="a/native")
    assert natively.status_code == 201
    by_id = {"name": "a/by-id", "size": OTHER.size}
    key = {"Idempotency-Key": "key"}
    by_id_answer = await stack.client.post("/uploads", json=by_id, headers=key)
    headers = {**TUS, "Upload-Length": "5", "Upload-Metadata": "filename dHVz,relativePath YS90dXM="}
    tus = await stack.client.post("/resumable", headers=headers)
    rufh = {"Upload-Complete": "?0", "Upload-Length": "4", "Content-Disposition": 'attachment; filename="rufh"'}
    http = await stack.client.post("/resumable?prefix=a/", headers=rufh, content=b"ru")
    part = await stack.client.post("/resumable", headers={**TUS, "Upload-Length": "5", "Upload-Concat": "partial"})
    final = {"Upload-Concat": f"final;{part.headers['location']}"}
    final["Upload-Metadata"] = "filename am9pbmVk,relativePath YS9qb2luZWQ="
    joined = await stack.client.post("/resumable", headers={**TUS, **final})
    assert {answer.status_code for answer in (by_id_answer, tus, http, part, joined)} == {201}
    found = {"by-id": f"/uploads/{by_id_answer.json()['upload']['id']}"}
    return found | {"tus": tus.headers["location"], "part": part.headers["location"]}


async def names_of_uploads(stack: Stack) -> set[str]:
    names = {upload["name"] for upload in (await stack.client.get("/uploads")).json()["uploads"]}
    async with stack.services.database.engine.connect() as connection:
        return names | set((await connection.execute(select(models.concatenation.c.name))).scalars())


async def test_open_uploads_move_with_their_folder_and_arrive_there(stack_on: Stack) -> None:
    ways = await opened(stack_on)
    assert {name for name in await names_of_uploads(stack_on) if name.startswith("a/")} >= {
        "a/native",
        "a/by-id",
        "a/tus",
        "a/joined",
    }
    assert await move(stack_on, "a/", "b/c/") == {"files": 0}
    assert not [name for name in await names_of_uploads(stack_on) if name.startswith("a/")]
    again = await stack_on.open(CONTENT, name="a/native")
    assert (again.status_code, again.json()["upload"]["name"]) == (200, "b/c/native")
    by_id = {"name": "a/by-id", "size": OTHER.size}
    key = {"Idempotency-Key": "key"}
    assert (await stack_on.client.post("/uploads", json=by_id, headers=key)).json()["upload"]["name"] == "b/c/by-id"
    for number in range(CONTENT.chunk_count):
        assert (await stack_on.put(CONTENT, number)).is_success
    assert (await stack_on.client.put(f"{ways['by-id']}/chunks/0", content=OTHER.data)).status_code == 201
    appended = {**TUS, "Upload-Offset": "0", "Content-Type": "application/offset+octet-stream"}
    for way in ("tus", "part"):
        assert (await stack_on.client.patch(ways[way], headers=appended, content=b"12345")).status_code == 204

    async def have_arrived() -> bool:
        names = set(await names_of(stack_on.client))
        return {"b/c/native", "b/c/by-id", "b/c/tus", "b/c/joined"} <= names

    await eventually(have_arrived)


async def test_open_upload_moves_up_with_its_folder(stack_on: Stack) -> None:
    await fill(stack_on, "a/a/x", "a/a/a/x")
    for name, content in (("a/a/native", CONTENT), ("a/a/a/native", OTHER)):
        assert (await stack_on.open(content, name=name)).status_code == 201
    assert await move(stack_on, "a/a/", "a/") == {"files": 2}
    assert await names_of_uploads(stack_on) == {"a/native", "a/a/native"}
    assert await names_of(stack_on.client) == ["a/a/x", "a/x"]


async def test_unfinished_upload_arrives_after_the_deletion_of_its_folder(gated: Stack) -> None:
    assert (await send(gated.client, OTHER, "a/held")).is_success
    assert (await gated.open(CONTENT, name="a/native")).status_code == 201
    assert (await gated.client.post("/me/folders", json={"name": "a/x"})).status_code == 201
    assert await delete(gated, "a/") == {"files": 0}
    for number in range(CONTENT.chunk_count):
        assert (await gated.put(CONTENT, number)).is_success
    await judge(gated)
    assert await names_of(gated.client) == ["a/held", "a/native"]


async def test_open_cancel_deletes_held_files_and_open_uploads(gated: Stack) -> None:
    link = await make_link(gated, name="a/in/")
    visitor = await visit(gated, link)
    for number in range(3):
        assert (await send(gated.client, Content(KIB, seed=50 + number), f"a/held-{number}")).is_success
    assert (await send(visitor, OTHER, "theirs")).is_success
    assert (await send(gated.client, Content(KIB, seed=60), "b/stays")).is_success
    await opened(gated)
    assert await delete(gated, "a/", open="cancel") == {"files": 4}
    assert not [name for name in await names_of_uploads(gated) if name.startswith("a/")]
    assert await listed(gated.client, state="held") == ["b/stays"]
    await judge(gated)
    assert await names_of(gated.client) == ["b/stays"]
    assert (await gated.client.delete("/me/files?prefix=a/&open=no")).status_code == 422


async def test_held_files_of_users_and_visitors_move_with_their_folder(gated: Stack) -> None:
    link = await make_link(gated, name="a/in/")
    visitor = await visit(gated, link)
    for number in range(3):
        assert (await send(gated.client, Content(KIB, seed=50 + number), f"a/held-{number}")).is_success
    assert (await send(visitor, OTHER, "theirs")).is_success
    assert await move(gated, "a/", "b/") == {"files": 0}
    assert sorted(await listed(gated.client, state="held")) == ["b/held-0", "b/held-1", "b/held-2", "b/in/theirs"]
    assert (await gated.client.delete(f"/me/links/{link['id']}")).status_code == 204
    await judge(gated)
    assert await names_of(gated.client) == ["b/held-0", "b/held-1", "b/held-2", "b/in/theirs"]


# What happens during an operation


async def upload_finishes(stack: Stack) -> None:
    for number in range(CONTENT.chunk_count):
        assert (await stack.put(CONTENT, number)).is_success


async def file_is_deleted(stack: Stack) -> None:
    for name in ("a/0/x", "b/0/x"):
        for file in (await stack.client.get("/me/files", params={"prefix": name})).json()["files"]:
            assert (await stack.client.delete(f"/me/files/{file['id']}")).status_code == 204


async def file_comes(stack: Stack) -> None:
    assert (await send(stack.client, OTHER, "a/0/new")).status_code == 201


async def gate_passes(stack: Stack) -> None:
    await judge(stack)


MOVED = [f"b/{name[2:]}" for name in NAMES]
# Of a move of `a/` to `b/`: what happens after its third range, and the names in the end.
DURING: dict[str, tuple[Callable[[Stack], Awaitable[None]], list[str]]] = {
    "an upload finishes": (upload_finishes, [*MOVED, "b/native"]),
    "a file is deleted": (file_is_deleted, MOVED[1:]),
    "a file comes behind the range": (file_comes, [*MOVED, "b/0/new"]),
}


@pytest.mark.parametrize("what", DURING)
async def test_move_includes_concurrent_changes(stack_on: Stack, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    work, expected = DURING[what]
    await fill(stack_on, *NAMES)
    if what == "an upload finishes":
        assert (await stack_on.open(CONTENT, name="a/native")).status_code == 201
    after_ranges(stack_on, monkeypatch, lambda: work(stack_on), at=3)
    moved = (await move(stack_on, "a/", "b/"))["files"]
    assert moved in (9, 10)
    assert await names_of(stack_on.client) == sorted(expected)


async def test_move_includes_files_passed_by_a_gate_meanwhile(gated: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(7):
        assert (await send(gated.client, Content(KIB, seed=30 + number), f"a/{number}")).is_success
    after_ranges(gated, monkeypatch, lambda: gate_passes(gated), at=2)
    await move(gated, "a/", "b/")
    await judge(gated)
    assert await names_of(gated.client) == [f"b/{number}" for number in range(7)]


async def crossing(stack: Stack) -> Any:
    return await move(stack, "b/", "a/")


async def deletion(stack: Stack) -> Any:
    return await delete(stack, "a/")


async def deletion_of_target(stack: Stack) -> Any:
    return await delete(stack, "b/")


async def onward(stack: Stack) -> Any:
    return await move(stack, "b/", "c/")


async def into_itself(stack: Stack) -> Any:
    return await move(stack, "b/", "b/c/")


async def unrelated(stack: Stack) -> Any:
    return await move(stack, "other/", "elsewhere/")


# What is asked for during a move of `a/` to `b/`: the answer and the names in the end, as if it had been asked for after.
CROSSING: dict[Callable[[Stack], Awaitable[Any]], tuple[dict[str, int] | None, list[str]]] = {
    crossing: ({"files": 9}, NAMES),
    deletion: ({"files": 0}, MOVED),
    deletion_of_target: ({"files": 9}, []),
    onward: ({"files": 9}, [f"c/{name[2:]}" for name in NAMES]),
    into_itself: (None, MOVED),
    unrelated: ({"files": 1}, MOVED),
}


@pytest.mark.parametrize("second", CROSSING)
@pytest.mark.parametrize("dies", [False, True])
async def test_second_operation_runs_after_the_first(
    stack_on: Stack,
    monkeypatch: pytest.MonkeyPatch,
    second: Callable[[Stack], Awaitable[Any]],
    dies: bool,
) -> None:
    """Also where the server died in the middle of the first one."""
    answer, expected = CROSSING[second]
    await fill(stack_on, *NAMES, "other/file")
    operations = stack_on.services.bulk_operations
    plain = operations._go_on
    answers: list[Any] = []

    async def go_on(operation: Any, *more: Any) -> Any:
        if operation.files == 4 and not answers:
            answers.append(None)
            if dies:
                raise Unavailable
            answers.append(asyncio.ensure_future(second(stack_on)))
            for _ in range(20):
                await asyncio.sleep(0)
        return await plain(operation, *more)

    monkeypatch.setattr("uploader.service.bulk._STALLED_SECONDS", 0.1 if dies else 60.0)
    monkeypatch.setattr(operations, "_go_on", go_on)
    first = await move(stack_on, "a/", "b/")
    told = await (second(stack_on) if dies else answers[1])
    if dies and second in (into_itself, unrelated):
        for _ in range(2):
            await operations.resume_left()
    if not dies:
        assert first == {"files": 9}
    assert told == answer if answer is not None else told["code"] == "invalid-request"
    other = ["elsewhere/file" if second is unrelated else "other/file"]
    assert await names_of(stack_on.client) == sorted([*expected, *other])


def another_server(stack: Stack) -> BulkOperations:
    services = stack.services
    return BulkOperations(services.database, services.closers, services.pre_create_hook, services.clock)


async def test_same_call_at_two_servers_moves_each_file_once(stack_on: Stack) -> None:
    await fill(stack_on, *NAMES)
    servers = (stack_on.services.bulk_operations, another_server(stack_on))
    counts = await asyncio.gather(*(server.move("alice", "a/", "b/") for server in servers))
    assert max(counts) == 9
    assert await names_of(stack_on.client) == sorted(MOVED)


async def test_crossing_moves_at_two_servers_run_in_sequence(stack_on: Stack) -> None:
    await fill(stack_on, *NAMES, "b/own")
    first, second = stack_on.services.bulk_operations, another_server(stack_on)
    counts = await asyncio.gather(first.move("alice", "a/", "b/"), second.move("alice", "b/", "a/"))
    both = sorted([*NAMES, "a/own"]), sorted([*MOVED, "b/own"])
    assert (await names_of(stack_on.client), sorted(counts)) in [(both[0], [9, 10]), (both[1], [1, 10])]


@pytest.mark.parametrize(("prefix", "to"), [("a/", "b/"), ("x/a/", "x/")])
async def test_visitor_sees_both_halves_of_a_moving_folder_and_nothing_else(
    stack_on: Stack, monkeypatch: pytest.MonkeyPatch, prefix: str, to: str
) -> None:
    shared = [f"{prefix}pub/{number}/{letter}" for number in range(3) for letter in "xyz"]
    await fill(stack_on, *shared, f"{prefix}private", f"{to}secret")
    link = await make_link(stack_on, "download", f"{prefix}pub/")
    visitor = await visit(stack_on, link)
    expected = sorted(name[len(f"{prefix}pub/") :] for name in shared)
    ids = {file["id"] for file in (await visitor.get(f"{link['url']}/files")).json()["files"]}
    looks = 0

    async def look() -> None:
        nonlocal looks
        looks += 1
        stack_on.services.visitors._known.clear()
        answers = [(await visitor.get(f"{link['url']}/files", params={"limit": 4})).json()]
        while answers[-1]["next"]:
            more = {"limit": 4, "after": answers[-1]["next"]}
            answers.append((await visitor.get(f"{link['url']}/files", params=more)).json())
        assert sorted(file["name"] for answer in answers for file in answer["files"]) == expected
        level = (await visitor.get(f"{link['url']}/files", params={"delimiter": "/"})).json()
        assert [(each["name"], each["files"]) for each in level["folders"]] == [("0/", 3), ("1/", 3), ("2/", 3)]
        within = (await visitor.get(f"{link['url']}/files", params={"delimiter": "/", "prefix": "1/"})).json()
        assert [file["name"] for file in within["files"]] == ["1/x", "1/y", "1/z"]
        packed = await visitor.get(f"{link['url']}/archive", params={"format": "tar"})
        with tarfile.open(fileobj=io.BytesIO(packed.content)) as tar:
            assert sorted(member.name for member in tar.getmembers()) == [f"pub/{name}" for name in expected]
        for each in ids:
            assert (await visitor.get(f"{link['url']}/files/{each}/content")).status_code == 200
        for file in (await stack_on.client.get("/me/files")).json()["files"]:
            if file["id"] not in ids:
                assert (await visitor.get(f"{link['url']}/files/{file['id']}/content")).status_code == 404

    after_ranges(stack_on, monkeypatch, look)
    assert await move(stack_on, prefix, to) == {"files": 10}
    assert looks >= 5
