"""Every operation that creates a name asks `[pre_create]` once a request, and creates no name where the hook refuses."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import select, update

from tests.conftest import MakeStack
from tests.integration.test_other_users import GATE
from tests.support.archives import Entry, archive
from tests.support.consumer import SECRETS, Consumer, asked_of, consuming, events_file, webhook
from tests.support.content import KIB, Content
from tests.support.proofs import proof_by
from tests.support.stack import Stack
from tests.support.visiting import make_link, send, visit
from uploader.database import models, queries
from uploader.database.transactions.files import move_files
from uploader.database.transactions.names import NotAsked, make_folder
from uploader.domain.creations import CREATIONS, FILE, FOLDER, MOVE, RENAME, RESTORE, UPLOAD, Creation
from uploader.domain.events import EventType
from uploader.domain.upload import IfExists
from uploader.service import precreate

THERE, OTHER = Content(8 * KIB, seed=1), Content(8 * KIB, seed=2)
CHUNKED, WHOLE, PLAIN, VISITORS, EMPTY = (*(Content(3000, seed=seed) for seed in range(3, 7)), Content(0))
NOWHERE = "0" * 31 + "2"
TUS = {"Tus-Resumable": "1.0.0"}
BYTES = {"Content-Type": "application/offset+octet-stream"}
FILES = (
    "rename",
    "folder/x",
    "folder/deep/y",
    "plain-1",
    "plain/z",
    "img-1",
    "up/top",
    "one",
    "many-1",
    "many-2",
    "many/z",
)
DELETED = ("old-1", "old-2", "old-3", "old-4", "old-5")

# Operations that change something and create no name. The name of an upload was asked about when the upload began.
NAMELESS = {
    *(f"{each} {path}" for path in ("/uploads/{id}", "/files/{md5}") for each in ("DELETE",)),
    *(f"{path}/{each}" for path in ("PUT /uploads/{id}", "PUT /files/{md5}") for each in ("chunks/{n}",)),
    *("POST /uploads/{id}/merge", "POST /files/{md5}/merge", "PATCH /uploads/{id}", "POST /files/status"),
    *("PATCH /resumable/{id}", "DELETE /resumable/{id}"),
    *(
        "DELETE /me/files/{id}",
        "DELETE /me/files",
        "POST /me/files/delete",
        "DELETE /me/trash/{id}",
        "DELETE /me/trash",
    ),
    *("POST /me/files/{id}/link", "POST /me/archive", "POST /me/archive/link", "POST /me/trash/{id}/link"),
    *("PATCH /me/links/{id}", "DELETE /me/links/{id}", "DELETE /admin/users/{user_id}/links/{id}"),
    *("POST /s/{slug}/session", "POST /s/{slug}/link"),
    # A file that passes its gates has the name that was asked about when the file came.
    *(
        f"POST /queues/{{name}}/{each}"
        for each in ("claim", "tasks/{id}/extend", "tasks/{id}/ack", "tasks/{id}/release")
    ),
    *("POST /admin/usage/recount", "PUT /admin/users/{user_id}", "DELETE /admin/files/{id}"),
    *("DELETE /admin/uploads/{upload_id}", "POST /admin/users/{user_id}/tokens", "DELETE /admin/tokens/{token_id}"),
    "POST /admin/events/replay",
}


@dataclass
class Things:
    """What the ways act on: files by their names, and those who act."""

    stack: Stack
    alice: httpx2.AsyncClient
    bob: httpx2.AsyncClient
    root: httpx2.AsyncClient
    visitor: httpx2.AsyncClient
    ids: dict[str, str] = field(default_factory=dict)

    async def make(self, client: httpx2.AsyncClient, name: str, content: Content = THERE) -> None:
        made = await send(client, content, name)
        assert made.status_code == 201, made.text
        self.ids[name] = made.json()["file"]["id"]

    async def delete(self, client: httpx2.AsyncClient, name: str) -> None:
        await self.make(client, name)
        assert (await client.delete(f"/me/files/{self.ids[name]}")).status_code == 204

    async def names(self) -> dict[str, list[Any]]:
        """The names in all tables that have some of users."""
        found = {}
        async with self.stack.services.database.engine.connect() as connection:
            for table in models.metadata.tables.values():
                if {"name", "user_id"} <= set(table.c.keys()):
                    rows = await connection.execute(select(table.c.user_id, table.c.name))
                    found[table.name] = sorted(map(tuple, rows))
        assert set(found) >= {"upload", "file", "held_file", "trashed_file", "folder", "link", "concatenation"}
        return found


async def prepare(stack: Stack) -> Things:
    bob, root = await stack.client_of("bob"), await stack.client_of("root", admin=True)
    visitor = await visit(stack, await make_link(stack))
    things = Things(stack, stack.client, bob, root, visitor)
    for name in FILES:
        await things.make(things.alice, name)
    for name in DELETED:
        await things.delete(things.alice, name)
    await things.make(things.alice, "second", OTHER)
    await things.delete(bob, "bobs")
    opened = await bob.post("/uploads", json={"name": "of-bob", "size": OTHER.size})
    things.ids["of-bob"] = opened.json()["upload"]["id"]
    for part in (b"12345", b"678"):
        headers = {**TUS, **BYTES, "Upload-Length": str(len(part)), "Upload-Concat": "partial"}
        made = await things.alice.post("/resumable", headers=headers, content=part)
        things.ids[part.decode()] = made.headers["location"]
    return things


Send = Callable[[Things], Awaitable[httpx2.Response]]


@dataclass(frozen=True)
class Way:
    """A request that creates names. `question`: what the hook is asked, beside the user and the address."""

    route: str
    send: Send
    creation: Creation
    question: dict[str, Any]
    user_id: str = "alice"
    status: int = 201


WAYS: list[Way] = []


def way(route: str, creation: Creation, *names: str, of: Content | None = None, **more: Any) -> Callable[[Send], Send]:
    settings = {name: more.pop(name) for name in ("user_id", "status") if name in more}
    facts: dict[str, Any] = {"size": None, "md5": None, "sha256": None}
    facts |= {} if of is None else {"size": of.size, "md5": of.md5, "sha256": of.sha256}
    asked = {"name": names[0]} if len(names) == 1 else {"names": sorted(names)}

    def add(send: Send) -> Send:
        WAYS.append(Way(route, send, creation, facts | more | asked, **settings))
        return send

    return add


@way("POST /files/{md5}", UPLOAD, "chunked", size=CHUNKED.size, md5=CHUNKED.md5)
async def by_chunks(things: Things) -> httpx2.Response:
    opened = await things.stack.open(CHUNKED, name="chunked")
    if opened.status_code != 201:
        return opened
    assert (await things.stack.open(CHUNKED, name="chunked")).status_code == 200, "this resumes"
    return await things.stack.put(CHUNKED, 0)


@way("POST /files/{md5}", FILE, "again", of=THERE)
async def instantly(things: Things) -> httpx2.Response:
    return await things.stack.open(THERE, name="again")


@way("POST /files/{md5}", UPLOAD, "empty", size=0, md5=EMPTY.md5)
async def empty(things: Things) -> httpx2.Response:
    return await things.stack.open(EMPTY, name="empty")


@way("POST /uploads", UPLOAD, "by-id", size=PLAIN.size)
async def by_id(things: Things) -> httpx2.Response:
    opened = await things.alice.post("/uploads", json={"name": "by-id", "size": PLAIN.size})
    if opened.status_code != 201:
        return opened
    return await things.alice.put(f"/uploads/{opened.json()['upload']['id']}/chunks/0", content=PLAIN.data)


@way("PUT /files/{md5}", FILE, "whole", size=WHOLE.size, md5=WHOLE.md5)
async def whole(things: Things) -> httpx2.Response:
    return await send(things.alice, WHOLE, "whole")


@way("PUT /files/{md5}", FILE, "inbox/sent", size=VISITORS.size, md5=VISITORS.md5)
async def by_link(things: Things) -> httpx2.Response:
    return await send(things.visitor, VISITORS, "sent")


@way("POST /me/files", FILE, "without-md5", size=WHOLE.size)
async def without_md5(things: Things) -> httpx2.Response:
    return await things.alice.post("/me/files", params={"name": "without-md5"}, content=WHOLE.data)


@way("POST /files/batch", FILE, "member", size=1)
async def batch(things: Things) -> httpx2.Response:
    told = await things.alice.post("/files/batch", content=archive(Entry("member", b"1")))
    if told.status_code != 200:
        return told
    (result,) = told.json()["results"]
    return httpx2.Response(result["status"], json=result.get("problem"))


async def _prove(
    client: httpx2.AsyncClient, content: Content, told: httpx2.Response, place: str, name: str
) -> httpx2.Response:
    challenge = told.json()["challenge"]
    proof = proof_by(content.data, challenge, content.sha256)
    return await client.post(f"{place}/proof", json={"id": challenge["id"], "name": name, "proof": proof})


@way("POST /files/{md5}/proof", FILE, "proven", of=THERE, user_id="bob")
async def by_proof(things: Things) -> httpx2.Response:
    told = await things.stack.open(THERE, things.bob, sha256=THERE.sha256)
    return await _prove(things.bob, THERE, told, f"/files/{THERE.md5}", "proven")


@way("POST /uploads/{id}/proof", FILE, "proven-by-id", of=OTHER, user_id="bob")
async def by_proof_of_upload(things: Things) -> httpx2.Response:
    place = f"/uploads/{things.ids['of-bob']}"
    told = await things.bob.patch(place, json={"md5": OTHER.md5, "sha256": OTHER.sha256})
    return await _prove(things.bob, OTHER, told, place, "proven-by-id")


@way("POST /resumable", UPLOAD, "tus", size=3)
async def by_tus(things: Things) -> httpx2.Response:
    headers = {**TUS, **BYTES, "Upload-Length": "3", "Upload-Metadata": "filename dHVz"}
    return await things.alice.post("/resumable", headers=headers, content=b"tus")


@way("POST /resumable", UPLOAD, "deferred")
async def by_tus_without_length(things: Things) -> httpx2.Response:
    headers = {**TUS, "Upload-Defer-Length": "1", "Upload-Metadata": "filename ZGVmZXJyZWQ="}
    return await things.alice.post("/resumable", headers=headers)


@way("POST /resumable", UPLOAD, "joined", size=8)
async def by_parts(things: Things) -> httpx2.Response:
    parts = f"final;{things.ids['12345']} {things.ids['678']}"
    headers = {**TUS, "Upload-Concat": parts, "Upload-Metadata": "filename am9pbmVk"}
    return await things.alice.post("/resumable", headers=headers)


@way("POST /resumable", UPLOAD, "rufh", size=4)
async def by_rufh(things: Things) -> httpx2.Response:
    headers = {"Upload-Complete": "?1", "Content-Disposition": 'attachment; filename="rufh"'}
    return await things.alice.post("/resumable", headers=headers, content=b"rufh")


@way("POST /me/folders", FOLDER, "made/deep/")
async def folder(things: Things) -> httpx2.Response:
    return await things.alice.post("/me/folders", json={"name": "made/deep"})


@way("POST /me/links", FOLDER, "collected/")
async def folder_of_link(things: Things) -> httpx2.Response:
    return await things.alice.post("/me/links", json={"kind": "upload", "name": "collected/"})


@way("PATCH /me/files/{id}", RENAME, "renamed", of=THERE, status=200)
async def rename(things: Things) -> httpx2.Response:
    return await things.alice.patch(f"/me/files/{things.ids['rename']}", json={"name": "renamed"})


async def _move_below(things: Things, prefix: str, new_prefix: str) -> httpx2.Response:
    return await things.alice.patch("/me/files", params={"prefix": prefix}, json={"prefix": new_prefix})


@way("PATCH /me/files", MOVE, "moved/", status=200)
async def move_folder(things: Things) -> httpx2.Response:
    return await _move_below(things, "folder/", "moved/")


@way("PATCH /me/files", MOVE, "fancy-1", "fancy/", status=200)
async def move_prefix(things: Things) -> httpx2.Response:
    return await _move_below(things, "plain", "fancy")


@way("PATCH /me/files", MOVE, "pictures/-1", of=THERE, status=200)
async def move_prefix_into_a_folder(things: Things) -> httpx2.Response:
    return await _move_below(things, "img", "pictures/")


@way("PATCH /me/files", MOVE, "top", of=THERE, status=200)
async def move_to_the_top(things: Things) -> httpx2.Response:
    return await _move_below(things, "up/", "")


@way("POST /me/files/move", MOVE, "in/one", of=THERE, status=200)
async def move_one(things: Things) -> httpx2.Response:
    return await things.alice.post("/me/files/move", json={"ids": [things.ids["one"], NOWHERE], "to": "in/"})


@way("POST /me/files/move", MOVE, "all/many-1", "all/many-2", "all/many/", status=200)
async def move_many(things: Things) -> httpx2.Response:
    ids = [things.ids["many-1"], things.ids["bobs"], things.ids["many-2"]]
    return await things.alice.post("/me/files/move", json={"ids": ids, "prefixes": ["many/"], "to": "all/"})


@way("POST /me/trash/{id}/restore", RESTORE, "new-1", of=THERE, status=200)
async def restore_by_another_name(things: Things) -> httpx2.Response:
    return await things.alice.post(f"/me/trash/{things.ids['old-1']}/restore", json={"name": "new-1"})


@way("POST /me/trash/{id}/restore", RESTORE, "old-2", of=THERE, status=200)
async def restore(things: Things) -> httpx2.Response:
    return await things.alice.post(f"/me/trash/{things.ids['old-2']}/restore")


@way("POST /me/trash/restore", RESTORE, "old-3", of=THERE, status=200)
async def restore_one_of_many(things: Things) -> httpx2.Response:
    return await things.alice.post("/me/trash/restore", json={"ids": [things.ids["old-3"], NOWHERE]})


@way("POST /me/trash/restore", RESTORE, "old-4", "old-5", status=200)
async def restore_many(things: Things) -> httpx2.Response:
    return await things.alice.post("/me/trash/restore", json={"ids": [things.ids["old-4"], things.ids["old-5"]]})


@way("POST /admin/trash/{id}/restore", RESTORE, "bobs", of=THERE, user_id="bob", status=200)
async def restore_for_another(things: Things) -> httpx2.Response:
    return await things.root.post(f"/admin/trash/{things.ids['bobs']}/restore")


@pytest.fixture
async def consumer() -> AsyncIterator[Consumer]:
    async with consuming() as made:
        yield made


async def test_each_way_to_a_name_asks_once_and_creates_none_if_refused(
    make_stack: MakeStack, tmp_path: Path, consumer: Consumer
) -> None:
    async with make_stack(events=events_file(tmp_path / "e", asked_of(consumer.url))) as stack:
        things = await prepare(stack)
        for each in WAYS:
            before = await things.names(), stack.bytes_on_disk()
            consumer.status, consumer.body = 403, b'{"detail": "Not on a Sunday."}'
            consumer.requests.clear()
            refused = await each.send(things)
            assert (refused.status_code, len(consumer.requests)) == (403, 1), each
            told = refused.json()
            assert (told["code"], told["detail"], told["retryable"]) == ("refused", "Not on a Sunday.", False), each
            asked = consumer.events[0]
            asked["names" if "names" in asked else "name"] = (
                sorted(asked["names"]) if "names" in asked else asked["name"]
            )
            whose = {"user_id": each.user_id, "client_address": "127.0.0.1", "operation": each.creation.question}
            assert asked == whose | each.question, each
            assert consumer.requests[0].is_signed_with(SECRETS[0])
            consumer.status, consumer.body = 500, b""
            away = await each.send(things)
            assert away.status_code in (503, 423), each
            assert (await things.names(), stack.bytes_on_disk()) == before, each
            consumer.status = 204
            consumer.requests.clear()
            made = await each.send(things)
            assert (made.status_code, len(consumer.requests)) == (each.status, 1), (each, made.text)
            assert await things.names() != before[0], each


async def outbox(stack: Stack) -> list[str]:
    async with stack.services.database.engine.connect() as connection:
        return list((await connection.execute(select(models.outbox.c.type))).scalars())


async def test_each_way_works_while_a_hook_that_allows_on_failure_is_away(
    make_stack: MakeStack, tmp_path: Path, consumer: Consumer
) -> None:
    """And is told of as its row of the table says."""
    consumer.status = 500
    events = asked_of(consumer.url, "allow") + webhook("hook", "http://127.0.0.1:9/")
    async with make_stack(events=events_file(tmp_path / "e", events)) as stack:
        things = await prepare(stack)
        for each in WAYS:
            before = await outbox(stack)
            made = await each.send(things)
            assert made.status_code == each.status, (each, made.text)
            told = (await outbox(stack))[len(before) :]
            if each.send is not by_tus_without_length:  # it has no file so far
                assert (EventType.FILE_FINISHED in told) == (each.creation.event is EventType.FILE_FINISHED), each


async def again(things: Things, stack: Stack) -> Things:
    """The same things on a server that has started once more."""
    visitor = await visit(stack, (await stack.client.get("/me/links")).json()["links"][0])
    bob, root = await stack.client_of("bob"), await stack.client_of("root", admin=True)
    return Things(stack, stack.client, bob, root, visitor, things.ids)


async def test_gates_hold_the_files_of_those_ways_alone_that_the_table_names(
    make_stack: MakeStack, tmp_path: Path
) -> None:
    async with make_stack() as stack:
        things = await prepare(stack)
    async with make_stack(events=events_file(tmp_path / "e", GATE)) as stack:
        things = await again(things, stack)
        async with stack.services.database.engine.begin() as connection:
            await connection.execute(update(models.trashed_file).values(passed=False))
        for each in WAYS:
            before = await things.names()
            await each.send(things)
            after = await things.names()
            new, held = (set(after[table]) - set(before[table]) for table in ("file", "held_file"))
            assert not (new if each.creation.is_gated else held), each
            if each.send is not by_tus_without_length and each.creation is not FOLDER:
                assert held if each.creation.is_gated else new, each


# These exchange what an open upload, or a part, has reserved.
EXCHANGING = (by_parts, by_proof_of_upload)


async def test_the_quota_bounds_those_ways_alone_that_the_table_names(stack: Stack) -> None:
    things = await prepare(stack)
    async with stack.services.database.engine.begin() as connection:
        of = models.user_info.c
        await connection.execute(update(models.user_info).values(total_space=of.use_space_finished + of.reserved))
    for each in WAYS:
        if each.send not in (*EXCHANGING, empty, by_tus_without_length):
            counts, made = each.creation.counts_bytes or each.creation is UPLOAD, await each.send(things)
            results = made.json().get("results", ()) if made.content else ()
            refused = [status for status in (made.status_code, *(line["status"] for line in results)) if status == 413]
            assert bool(refused) == counts, each


async def test_the_number_of_files_bounds_those_ways_alone_that_the_table_names(make_stack: MakeStack) -> None:
    async with make_stack() as stack:
        things = await prepare(stack)
        most = (await stack.services.files.usage("alice")).files
    async with make_stack(max_files=most) as stack:
        things = await again(things, stack)
        # What is in the trash gives way to files, and so do the folders that moves leave.
        order = (RESTORE, FILE, UPLOAD, FOLDER, RENAME, MOVE)
        for each in sorted(WAYS, key=lambda each: order.index(each.creation)):
            if each.user_id == "alice" and each.send not in EXCHANGING:
                counts = each.creation.counts_files or each.creation is UPLOAD
                assert ((await each.send(things)).status_code == 413) == counts, each


async def test_the_table_has_no_operation_that_is_not_tried() -> None:
    assert {each for each in CREATIONS if each.question is not None} == {each.creation for each in WAYS}


# The state that a transaction finds


@pytest.fixture
async def things(make_stack: MakeStack, tmp_path: Path, consumer: Consumer) -> AsyncIterator[Things]:
    async with make_stack(events=events_file(tmp_path / "e", asked_of(consumer.url))) as stack:
        made = await prepare(stack)
        consumer.requests.clear()
        yield made


async def renamed(things: Things, name: str, new_name: str) -> None:
    """Rename a file without a question."""
    database = things.stack.services.database
    files = await database.read(queries.files_by_ids, "alice", [things.ids[name]])
    now = things.stack.services.clock.now()
    await database.transact(move_files, files, {files[0].id: new_name}, IfExists.FAIL, now, RENAME)


async def another_name_for(things: Things) -> None:
    await renamed(things, "one", "other")


async def another_file_below(things: Things) -> None:
    await renamed(things, "rename", "plain-9")


async def another_name_in_the_trash(things: Things) -> None:
    async with things.stack.services.database.engine.begin() as connection:
        of = models.trashed_file.c
        await connection.execute(update(models.trashed_file).where(of.name == "old-4").values(name="old-9"))


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize(
    ("change", "send", "second"),
    [
        (another_name_for, move_one, "in/other"),
        (another_file_below, move_prefix, "fancy-9"),
        (another_name_in_the_trash, restore_many, "old-9"),
    ],
)
async def test_a_name_that_came_up_during_the_question_is_asked_about(
    things: Things,
    consumer: Consumer,
    change: Callable[[Things], Awaitable[None]],
    send: Send,
    second: str,
    refuses: bool,
) -> None:
    async def before_answer() -> None:
        if len(consumer.requests) == 1:
            await change(things)
        elif refuses:
            consumer.status = 403

    consumer.before_answer = before_answer
    answer = await send(things)
    assert answer.status_code == (403 if refuses else 200), answer.text
    first, *others = consumer.events
    assert second not in (first.get("name"), *first.get("names", ()))
    assert [each["name"] for each in others] == [second]
    assert (("alice", second) in (await things.names())["file"]) != refuses


async def test_a_rename_is_asked_about_once_whoever_else_renames_the_file(things: Things, consumer: Consumer) -> None:
    consumer.before_answer = partial(renamed, things, "rename", "meanwhile")
    assert (await rename(things)).json()["name"] == "renamed"
    assert len(consumer.requests) == 1


async def test_a_folder_that_is_there_is_not_asked_about(things: Things, consumer: Consumer) -> None:
    for name in ("inbox", "folder", "folder/deep"):
        assert (await things.alice.post("/me/folders", json={"name": name})).status_code == 200
        assert (await make_link(things.stack, name=f"{name}/"))["name"] == f"{name}/"
    assert consumer.requests == []


async def test_a_folder_that_goes_while_a_link_to_it_is_made_is_asked_about(things: Things, consumer: Consumer) -> None:
    """A transaction that is told of no question creates no name."""
    assert (await folder(things)).status_code == 201
    make = partial(make_folder, max_files=100, now=things.stack.services.clock.now(), is_allowed=False)
    transact = things.stack.services.database.transact
    assert await transact(make, "alice", "made/deep") is False
    with pytest.raises(NotAsked):
        await transact(make, "alice", "made/deeper")


async def test_an_answer_may_have_another_name_for_one_but_not_for_a_move(things: Things, consumer: Consumer) -> None:
    consumer.status, consumer.body = 200, b'{"name": "of-hook/x"}'
    assert (await rename(things)).json()["name"] == "of-hook/x"
    consumer.body = b'{"name": "made-by-hook"}'
    assert (await folder(things)).json()["name"] == "made-by-hook/"
    consumer.body = b'{"name": "collected-by-hook/"}'
    assert (await folder_of_link(things)).json()["name"] == "collected-by-hook/"
    for number, restoring in enumerate((restore, restore_one_of_many, restore_for_another)):
        consumer.body = b'{"name": "back-%d"}' % number
        assert (await restoring(things)).status_code == 200
    consumer.body = b'{"name": "elsewhere"}'
    before = await things.names()
    assert {("alice", "back-0"), ("alice", "back-1"), ("bob", "back-2")} <= set(before["file"])
    for refused in (move_one, move_many, move_folder, restore_many):
        assert (await refused(things)).status_code == 503, refused
    assert await things.names() == before
    consumer.body = b'{"name": "in/one"}'
    assert (await move_one(things)).status_code == 200, "the name that was asked about"


async def test_a_prefix_of_too_many_names_is_refused_and_a_folder_is_one_name(
    things: Things, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precreate, "MOST_NAMES", 1)
    assert (await move_prefix(things)).status_code == 422
    assert (await move_folder(things)).status_code == 200
    assert [each["name"] for each in consumer.events] == ["moved/"]


async def test_each_operation_that_changes_something_is_known_to_create_names_or_none(stack: Stack) -> None:
    changing = {each.route for each in stack.app.operations if each.route.split()[0] not in ("GET", "HEAD")}
    creating = {each.route for each in WAYS}
    assert not creating & NAMELESS
    assert changing == creating | NAMELESS
