"""Rights that were taken away: nobody acts on rights by a revoked one, not even within the same second; all that runs by one
ends within two seconds; and an administrator stays."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx2
import pytest
from sqlalchemy import update
from starlette.responses import Response

from tests.conftest import MakeStack
from tests.integration.test_held_files import GATE
from tests.support.chosen import PLACES
from tests.support.clock import ManualClock
from tests.support.consumer import events_file
from tests.support.content import KIB, Content
from tests.support.jwts import SECRET, Signer
from tests.support.problems import problem
from tests.support.stack import Stack, without_database
from tests.support.visiting import make_link, send, visit
from tests.support.waiting import eventually
from uploader.database import models, rights
from uploader.database.engine import Connection, Database
from uploader.errors import Forbidden
from uploader.http.shared.operation import Call, Operation
from uploader.runtime import meter
from uploader.service import revocations

A, B = (Content(100 * KIB, seed=seed) for seed in range(2))
# Two seconds, and what a busy machine takes.
WITHIN_SECONDS = 5.0
NOWHERE = "0" * 32
ROUNDS = min(100, max(12, PLACES))
WORKER = "queue:scan"


@asynccontextmanager
async def pair(make: MakeStack, **settings: Any) -> AsyncIterator[tuple[Stack, Stack]]:
    """Two processes of one installation, which do not look for revocations."""
    with patch.object(revocations, "LOOK_SECONDS", 3600.0):
        async with make(**settings) as one, make(**settings) as other:
            yield one, other


def seen_by(stack: Stack, client: httpx2.AsyncClient) -> httpx2.AsyncClient:
    """The same caller, of another process."""
    other = stack.anonymous()
    other.headers["authorization"] = client.headers["authorization"]
    return other


def id_of(client: httpx2.AsyncClient) -> str:
    """The id of the token of a client."""
    return hashlib.sha256(client.headers["authorization"].partition(" ")[2].encode()).hexdigest()[:16]


async def administrators(stack: Stack) -> set[str]:
    """The ids of the tokens by which administrators can call."""
    found = [each for each in await stack.services.accounts.tokens() if each.admin and each.revoked_at is None]
    return {each.token_id for each in found if await is_admin(stack, each.user_id)}


async def is_admin(stack: Stack, user_id: str) -> bool | None:
    return await stack.services.database.read(rights.is_admin, user_id)


async def number_of(database: Database) -> int:
    return int(await database.read(rights.number) or 0)


# The number of revocations


async def test_number_grows_with_each_revocation_that_is_committed(database: Database) -> None:
    async def revoke(connection: Connection, fails: bool = False) -> None:
        rights.note_revocation(connection)
        if fails:
            raise Forbidden()

    async def read(connection: Connection) -> None:
        await rights.number(connection)

    assert await number_of(database) == 0
    for expected in (1, 2, 3):
        await database.transact(revoke)
        await database.transact(read)
        assert await number_of(database) == expected
    with pytest.raises(Forbidden):
        await database.transact(revoke, True)
    await database.transact(read)
    assert await number_of(database) == 3
    await asyncio.gather(*(database.transact(revoke) for _ in range(9)))
    assert await number_of(database) == 12


# Acting on rights


async def test_administrators_who_revoke_each_other_do_not_both_disappear(make_stack_on: MakeStack) -> None:
    async with pair(make_stack_on) as (one, other):
        await one.services.accounts.revoke(id_of(await one.client_of("root", admin=True)))
        for number in range(ROUNDS):
            both = [await one.client_of(f"{number}{name}", admin=True) for name in "ab"]
            first, second = both[0], seen_by(other, both[1])
            for client in (first, second):
                assert (await client.get("/me/identity")).json()["admin"]
            answers = await asyncio.gather(
                first.delete(f"/admin/tokens/{id_of(both[1])}"), second.delete(f"/admin/tokens/{id_of(both[0])}")
            )
            statuses = sorted(answer.status_code for answer in answers)
            assert statuses in ([204, 401], [204, 409]), statuses
            (left,) = await administrators(one)
            await one.services.accounts.revoke(left)


async def test_administrators_who_step_down_at_once_leave_one(make_stack_on: MakeStack) -> None:
    async with pair(make_stack_on) as (one, other):
        for number in range(ROUNDS):
            names = [f"{number}{name}" for name in "ab"]
            both = [await one.client_of(name, admin=True) for name in names]
            asked = zip((both[0], seen_by(other, both[1])), names, strict=True)
            answers = await asyncio.gather(
                *(client.put(f"/admin/users/{name}", json={"admin": False}) for client, name in asked)
            )
            assert sorted(answer.status_code for answer in answers) == [200, 409]
            problem(next(each for each in answers if each.status_code == 409), 409, "last-administrator")
            (left,) = await administrators(one)
            await one.services.accounts.revoke(left)


async def test_last_administrator_stays_unless_a_command_says_otherwise(make_stack_on: MakeStack) -> None:
    async with pair(make_stack_on) as (one, other):
        root, accounts = await one.client_of("root", admin=True), one.services.accounts
        problem(await root.put("/admin/users/root", json={"admin": False}), 409, "last-administrator")
        problem(await root.delete(f"/admin/tokens/{id_of(root)}"), 409, "token-in-use")
        second = await one.client_of("root", admin=True)
        assert (await root.delete(f"/admin/tokens/{id_of(second)}")).status_code == 204
        # A user's token is no way for an administrator to sign in.
        await one.client_of("eve")
        assert (await root.put("/admin/users/eve", json={"admin": True})).status_code == 200
        problem(await root.put("/admin/users/root", json={"admin": False}), 409, "last-administrator")
        await accounts.change_user("root", admin=False)
        assert await administrators(one) == set()
        problem(await seen_by(other, root).put("/admin/users/root", json={"admin": True}), 403, "forbidden")
        assert await accounts.revoke(id_of(root)) == 1


async def test_demoted_administrator_is_a_user_until_an_administrator_says_otherwise(make_stack: MakeStack) -> None:
    async with make_stack() as stack:
        root, eve = [await stack.client_of(name, admin=True) for name in ("root", "eve")]
        changed = await root.put("/admin/users/eve", json={"admin": False})
        assert (changed.status_code, changed.json()["user_id"]) == (200, "eve")

        async def can(expected: bool) -> bool:
            return bool((await eve.get("/me/identity")).json()["admin"] is expected)

        await eventually(lambda: can(False), WITHIN_SECONDS)
        problem(await eve.get("/admin/usage"), 403, "forbidden")
        assert (await root.put("/admin/users/eve", json={"admin": True})).status_code == 200
        await eventually(lambda: can(True), WITHIN_SECONDS)
        for body in ({"admin": "no"}, {"admin": 1}, {"admin": None}, {"disabled": True}):
            problem(await root.put("/admin/users/eve", json=body), 422, "invalid-request")
        acts = (await root.get("/admin/audit?action=admin.changed")).json()["acts"]
        assert [(each["actor"], each["subject"], each["details"]) for each in acts] == [
            ("root", "eve", {"admin": True}),
            ("root", "eve", {"admin": False}),
        ]


async def test_claim_makes_an_administrator_at_first_sight_only(make_stack: MakeStack, clock: ManualClock) -> None:
    signer, exp = Signer("HS256", SECRET.encode()), clock.now().timestamp() + 3600
    async with make_stack(auth="jwt", jwt_secret=SECRET, clock=clock) as stack:
        user, claims = ({"sub": "eve", "exp": exp, "scope": scope} for scope in ("", "admin"))
        as_user, as_admin = stack._client(signer.token(user)), stack._client(signer.token(claims))
        root = stack._client(signer.token({**claims, "sub": "root"}))
        problem(await as_user.get("/admin/usage"), 403, "forbidden")
        assert (await as_admin.get("/admin/usage")).status_code == 200
        assert (await root.put("/admin/users/eve", json={"admin": False})).status_code == 200
        # No sight of the claim makes up for that.
        problem(await as_admin.put("/admin/users/eve", json={"admin": True}), 403, "forbidden")
        await eventually(lambda: _is_status(as_admin, 403), WITHIN_SECONDS)
        assert (await root.put("/admin/users/eve", json={"admin": True})).status_code == 200
        await eventually(lambda: _is_status(as_admin, 200), WITHIN_SECONDS)
        problem(await as_user.get("/admin/usage"), 403, "forbidden")
        # Before the user was seen, too.
        assert (await root.put("/admin/users/new", json={"admin": False})).status_code == 200
        problem(await stack._client(signer.token({**claims, "sub": "new"})).get("/admin/usage"), 403, "forbidden")


async def _is_status(client: httpx2.AsyncClient, status: int) -> bool:
    return (await client.get("/admin/usage")).status_code == status


# What acts on rights, and a request that does; `None`: it writes nothing, or only the row of a task that is held already.
ACTS: dict[str, dict[str, Any] | None] = {
    "POST /me/links": {"json": {"kind": "upload", "name": "new/"}},
    "PATCH /me/links/{id}": {"json": {"label": "new"}},
    "DELETE /me/links/{id}": {},
    "POST /me/trash/{id}/restore": {"json": {}},
    "PUT /admin/users/{user_id}": {"json": {"total_space": 5, "admin": True}},
    "DELETE /admin/files/{id}": {},
    "DELETE /admin/uploads/{upload_id}": {},
    "POST /admin/users/{user_id}/tokens": {"json": {"admin": True}},
    "DELETE /admin/tokens/{token_id}": {},
    "DELETE /admin/users/{user_id}/links/{id}": {},
    "POST /admin/trash/{id}/restore": {},
    "POST /admin/events/replay": {"json": {}},
    "POST /admin/usage/recount": None,
    "POST /queues/{name}/claim": {"json": {}},
    "POST /queues/{name}/tasks/{id}/extend": {"json": {"lease_seconds": 60}},
    "POST /queues/{name}/tasks/{id}/ack": {"json": {"verdict": "refuse"}},
    "POST /queues/{name}/tasks/{id}/release": {"json": {}},
}


@pytest.mark.parametrize("takes", ["token", "admin"])
async def test_nobody_acts_on_rights_by_a_revoked_one(make_stack_on: MakeStack, tmp_path: Path, takes: str) -> None:
    """Each operation that acts on rights, of a process that has not heard of the revocation."""
    events = events_file(tmp_path / "events", GATE)
    async with pair(make_stack_on, events=events) as (one, other):
        acting = [each for each in one.app.operations if each.acts_on_rights and not each.route.startswith("GET ")]
        assert {each.route for each in acting} == set(ACTS)
        worker = one._client(await one.services.accounts.create_token("worker", admin=False, scope=WORKER))
        for seed in range(3):
            await send(one.client, Content(KIB, seed=seed), f"{seed}")
        tasks = (await worker.post("/queues/scan/claim", json={"max": 3})).json()["tasks"]
        for task in tasks[:2]:
            passed = await worker.post(f"/queues/scan/tasks/{task['id']}/ack", json={"lease": task["lease"]})
            assert passed.status_code == 204
        deleted, there, _ = [task["event"]["subject"] for task in tasks]
        await one.services.files.delete("alice", deleted)
        await send(one.client, Content(KIB, seed=3), "3")  # whose task is to be had
        kept = (await one.open(B)).json()["upload"]["id"]
        link, spare = await make_link(one), one._client(await one.services.accounts.create_token("spare", admin=True))
        ids = {"user_id": "eve", "token_id": id_of(spare), "upload_id": kept, "name": "scan"}
        before = await state_of(one)
        for operation in acting:
            request = ACTS[operation.route]
            is_own = operation.access == "user"
            if request is None or (takes == "admin" and is_own):
                continue
            user_id = "alice" if is_own else "admin"
            client = await one.client_of(user_id, admin=operation.access != "user")
            if operation.access == "worker" and takes == "token":
                client = one._client(await one.services.accounts.create_token("worker", admin=False, scope=WORKER))
            caller = seen_by(other, client)
            assert (await caller.get("/me/identity")).status_code in (200, 403)  # the process remembers the caller
            if takes == "token":
                await one.services.accounts.revoke(id_of(client))
            else:
                await one.services.accounts.change_user("admin", admin=False)
            method, _, path = operation.route.partition(" ")
            found_id = deleted if "trash" in path else there if "files" in path else link["id"]
            if "tasks" in path:
                found_id = tasks[2]["id"]
                request = {"json": {**request["json"], "lease": tasks[2]["lease"]}}
            path = path.format(**{"id": found_id, **ids, **({"user_id": "alice"} if "links" in path else {})})
            answer = await caller.request(method, path, **request)
            expected = (401, "unauthenticated") if takes == "token" else (403, "forbidden")
            assert answer.status_code == expected[0], (operation.route, answer.text)
            problem(answer, *expected)
        assert await state_of(one) == before


async def state_of(stack: Stack) -> dict[str, Any]:
    """All that could be acted on, but for the tokens and users of the test's own callers."""
    found: dict[str, Any] = {}
    for table in (models.link, models.file, models.held_file, models.trashed_file, models.upload, models.delivery):
        async with stack.services.database.engine.connect() as connection:
            found[table.name] = sorted(map(str, (await connection.execute(table.select())).all()))
    accounts = stack.services.accounts
    found["tokens"] = [each for each in await accounts.tokens() if each.user_id in ("eve", "spare")]
    found["eve"] = await is_admin(stack, "eve")
    return found


# What runs


@pytest.fixture
async def waiting(make_stack: MakeStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stack]:
    """A server, each of whose operations waits for ever, but for those that are open."""

    async def wait(_call: Call) -> Response:
        begun.append(_call.request.scope["path"])
        await asyncio.sleep(3600)
        raise AssertionError("never")

    begun: list[str] = []
    # One user may ask for all at once.
    monkeypatch.setattr(meter, "WINDOW_SECONDS", 3600.0)
    async with make_stack(events=events_file(tmp_path / "events", GATE)) as stack:
        stack.begun = begun  # type: ignore[attr-defined]
        link = await make_link(stack, "upload", "in/")
        share = await make_link(stack, "download", "in/")
        stack.links = [link, share]  # type: ignore[attr-defined]
        stack.visitors = {  # type: ignore[attr-defined]
            "uploader": await visit(stack, link),
            "visitor": await visit(stack, share),
        }
        for operation in stack.app.operations:
            if operation.access != "open":
                object.__setattr__(operation, "handler", wait)
        yield stack


def request_of(operation: Operation, share: dict[str, Any]) -> tuple[str, str, dict[str, str]]:
    method, _, path = operation.route.partition(" ")
    path = path.replace("{slug}", share["url"].rpartition("/")[2]).replace("{name}", "scan")
    headers = {"Tus-Resumable": "1.0.0"} if path.startswith("/resumable") else {}
    return method, re.sub(r"\{\w+(:path)?\}", NOWHERE, path), headers


async def caller_of(stack: Stack, operation: Operation) -> httpx2.AsyncClient:
    scope = {"metrics": "metrics", "worker": WORKER}.get(operation.access)
    token = await stack.services.accounts.create_token("eve", admin=operation.access == "admin", scope=scope)
    return stack._client(token)


async def test_each_operation_ends_with_the_right_of_its_caller(waiting: Stack) -> None:
    """All of the route table, so that a new one can't be left out."""
    links, visitors = waiting.links, waiting.visitors  # type: ignore[attr-defined]
    requests: dict[str, tuple[int, str, asyncio.Task[httpx2.Response]]] = {}
    for operation in waiting.app.operations:
        if operation.access == "open":
            continue
        method, path, headers = request_of(operation, links[1])
        if operation.access != "visitor":
            client = await caller_of(waiting, operation)
            task = asyncio.create_task(client.request(method, path, headers=headers))
            requests[operation.route] = (401, "unauthenticated", task)
        if operation.access in visitors:
            visiting = visitors[operation.access].request(method, path, headers=headers)
            requests[f"{operation.route} by link"] = (410, "link-gone", asyncio.create_task(visiting))

    async def have_begun() -> bool:
        assert [(route, task.result().text) for route, (_, _, task) in requests.items() if task.done()] == []
        return len(waiting.begun) == len(requests)  # type: ignore[attr-defined]

    await eventually(have_begun)
    for token in await waiting.services.accounts.tokens("eve"):
        await waiting.services.accounts.revoke(token.token_id)
    for link in links:
        await waiting.services.sharing.revoke("alice", link["id"])
    async with asyncio.timeout(2 * WITHIN_SECONDS):  # a hundred requests
        for route, (status, code, task) in requests.items():
            assert (await task).status_code == status, route
            problem(await task, status, code) if not route.startswith("HEAD ") else None
    assert waiting.services.revocations._running == {}


async def test_request_of_an_administrator_ends_with_a_demotion_and_one_of_a_user_does_not(waiting: Stack) -> None:
    eve = await waiting.client_of("eve", admin=True)
    own, acting, working = (
        asyncio.create_task(eve.request(method, path))
        for method, path in (("GET", "/me/files"), ("GET", "/admin/usage"), ("POST", "/queues/scan/claim"))
    )

    async def have_begun() -> bool:
        return len(waiting.begun) == 3  # type: ignore[attr-defined]

    await eventually(have_begun)
    await waiting.services.accounts.change_user("eve", admin=False)
    async with asyncio.timeout(WITHIN_SECONDS):
        for task in (acting, working):
            problem(await task, 403, "forbidden")
    assert not own.done()
    own.cancel()


async def test_database_that_is_away_ends_nothing_and_the_time_of_a_link_does(
    make_stack: MakeStack, sqlite_url: str, clock: ManualClock
) -> None:
    async with make_stack(database_url=sqlite_url, clock=clock) as stack:
        link = await make_link(stack, expires_at=(clock.now() + timedelta(minutes=5)).isoformat())
        visitor = await visit(stack, link)
        chunks = []
        for client in (stack.client, visitor):
            assert (await stack.open(A, client)).status_code == 201
            begun = asyncio.Event()
            chunks.append(asyncio.create_task(client.put(f"/files/{A.md5}/chunks/0", content=_half(begun))))
            await begun.wait()
        await stack.services.accounts.revoke(id_of(stack.client))
        async with without_database(stack):
            await asyncio.sleep(2.5)
            assert not any(chunk.done() for chunk in chunks)
            clock.advance(301)
            async with asyncio.timeout(WITHIN_SECONDS):
                assert problem(await chunks[1], 410, "link-gone")["reason"] == "expired"
            assert not chunks[0].done()
        async with asyncio.timeout(WITHIN_SECONDS):
            problem(await chunks[0], 401, "unauthenticated")


async def _half(begun: asyncio.Event) -> AsyncIterator[bytes]:
    yield A.data[:KIB]
    begun.set()
    await asyncio.sleep(3600)


async def test_process_asks_only_while_it_has_something_to_look_after(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revocations, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(revocations, "_QUIET_SECONDS", 0.2)
    async with make_stack() as stack:
        service, accounts = stack.services.revocations, stack.services.accounts

        async def is_quiet() -> bool:
            return service._watching is None

        assert await is_quiet()
        assert (await stack.client.get("/me/usage")).status_code == 200
        assert not await is_quiet()
        await eventually(is_quiet)
        token = stack.client.headers["authorization"].partition(" ")[2]
        assert accounts._callers.knows(hashlib.sha256(token.encode()).hexdigest())
        # What happens meanwhile is not missed.
        await accounts.revoke(id_of(stack.client))
        problem(await stack.client.get("/me/usage"), 401, "unauthenticated")


async def test_token_that_was_read_before_a_revocation_is_not_remembered_after_it(stack: Stack) -> None:
    """The answer of the database comes late."""
    accounts, service = stack.services.accounts, stack.services.revocations
    token, read = await accounts.create_token("eve", admin=False), stack.services.database.read

    async def late(*asked: Any, **how: Any) -> Any:
        found = await read(*asked, **how)
        with patch.object(stack.services.database, "read", read):
            await accounts.revoke(token)
            await service._look()
        return found

    with patch.object(stack.services.database, "read", late):
        problem(await stack._client(token).get("/me/usage"), 401, "unauthenticated")
    problem(await stack._client(token).get("/me/usage"), 401, "unauthenticated")


# Links


@pytest.mark.parametrize("kind", ["upload", "download"])
async def test_new_password_ends_all_sessions_of_a_link(make_stack_on: MakeStack, kind: str) -> None:
    async with make_stack_on() as stack:
        assert (await send(stack.client, A, "in/a")).status_code == 201
        link, other = [await make_link(stack, kind, "in/", password="old") for _ in range(2)]
        visitor, stranger = [await visit(stack, each, password="old") for each in (link, other)]
        path = "/uploads" if kind == "upload" else "{}/files"

        async def status(client: httpx2.AsyncClient, of: dict[str, Any]) -> int:
            return (await client.get(path.format(of["url"]))).status_code

        assert await status(visitor, link) == 200
        changed = await stack.client.patch(f"/me/links/{link['id']}", json={"label": "x"})
        assert changed.status_code == 200
        assert await status(visitor, link) == 200
        changed = await stack.client.patch(f"/me/links/{link['id']}", json={"password": "new"})
        assert changed.status_code == 200

        async def has_ended() -> bool:
            return await status(visitor, link) == 401

        await eventually(has_ended, WITHIN_SECONDS)
        assert await status(stranger, other) == 200
        assert await status(await visit(stack, link, password="new"), link) == 200
        # Without a password more may come, and nobody has to go.
        assert (await stack.client.patch(f"/me/links/{other['id']}", json={"password": None})).status_code == 200
        assert await status(stranger, other) == 200


async def test_chunk_of_a_visitor_ends_with_a_new_password(make_stack: MakeStack) -> None:
    async with make_stack() as stack:
        link = await make_link(stack, password="old")
        visitor = await visit(stack, link, password="old")
        assert (await stack.open(A, visitor)).status_code == 201
        begun = asyncio.Event()
        chunk = asyncio.create_task(visitor.put(f"/files/{A.md5}/chunks/0", content=_half(begun)))
        await begun.wait()
        assert (await stack.client.patch(f"/me/links/{link['id']}", json={"password": "new"})).status_code == 200
        async with asyncio.timeout(WITHIN_SECONDS):
            problem(await chunk, 401, "unauthenticated")


async def test_limit_that_is_used_up_ends_the_sessions_that_did_nothing(make_stack_on: MakeStack) -> None:
    async with make_stack_on() as stack:
        link, share = await make_link(stack), None
        sender, idle = [await visit(stack, link) for _ in range(2)]
        assert (await send(sender, A, "a")).status_code == 201
        assert (await stack.open(B, sender)).status_code == 201
        for more in ({"max_files": 5}, {"max_bytes": 10 * A.size}):
            assert (await stack.client.patch(f"/me/links/{link['id']}", json=more)).status_code == 200
            assert [(await each.get("/uploads")).status_code for each in (sender, idle)] == [200, 200]
        assert (await stack.client.patch(f"/me/links/{link['id']}", json={"max_files": 2})).status_code == 200
        await eventually(lambda: _ended(idle, "/uploads"), WITHIN_SECONDS)
        # What was promised may still come.
        assert (await stack.put(B, 0, sender)).status_code == 200

        share = await make_link(stack, "download", "inbox/")
        loaded, idle = [await visit(stack, share) for _ in range(2)]
        assert (await loaded.get(f"{share['url']}/archive")).status_code == 200
        assert (await stack.client.patch(f"/me/links/{share['id']}", json={"max_downloads": 1})).status_code == 200
        await eventually(lambda: _ended(idle, f"{share['url']}/files"), WITHIN_SECONDS)
        assert (await loaded.get(f"{share['url']}/archive")).status_code == 200


async def _ended(client: httpx2.AsyncClient, path: str) -> bool:
    return (await client.get(path)).status_code in (401, 410)


async def test_lowered_quota_ends_no_upload(stack: Stack) -> None:
    assert (await stack.open(A)).status_code == 201
    root = await stack.client_of("root", admin=True)
    assert (await root.put("/admin/users/alice", json={"total_space": 0})).status_code == 200
    for number in range(A.chunk_count):
        answer = await stack.put(A, number)
    assert answer.status_code == 201
    async with stack.services.database.engine.begin() as connection:
        await connection.execute(update(models.user_info).values(total_space=1 << 40))
