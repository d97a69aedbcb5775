"""The audit log: every administrative route leaves a row of who did what to whom, in the transaction of what it tells."""

import asyncio
import csv
import io
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from sqlalchemy import select, update

from tests.conftest import MakeStack
from tests.support.clock import ManualClock
from tests.support.consumer import events_file, webhook
from tests.support.content import KIB, Content
from tests.support.paging import pages
from tests.support.problems import problem
from tests.support.rows import NOW
from tests.support.stack import GIB, Stack
from tests.support.visiting import make_link
from tests.support.waiting import PATIENCE_SECONDS
from uploader.database import models
from uploader.database.engine import Database, Duplicate
from uploader.database.transactions import users
from uploader.database.transactions.rows import NotOpen
from uploader.database.transactions.uploads import close_upload
from uploader.domain.audit_log import Act, Action, Actor, Via
from uploader.domain.upload import Reason
from uploader.jobs.runner import Job, Runner
from uploader.service.audit_log import Wanted, act, actor, actor_of_context

CONTENT = Content(100 * KIB)
OTHER = Content(70 * KIB, seed=1, name="=cmd.bin")
DAY_SECONDS = 86400


async def acts(stack: Stack, **wanted: Any) -> list[Act]:
    """The newest first."""
    found, _ = await stack.services.audit_log_reports.page(Wanted(**wanted), limit=1000, after=None)
    return found


async def rows_in(database: Database) -> list[Any]:
    async with database.engine.connect() as connection:
        return list(await connection.execute(select(models.audit_log)))


async def opened(stack: Stack, content: Content = CONTENT) -> str:
    return str((await stack.open(content)).json()["upload"]["id"])


async def put_quota(root: httpx2.AsyncClient, _stack: Stack) -> httpx2.Response:
    return await root.put("/admin/users/alice", json={"total_space": 5 * GIB})


async def make_token(root: httpx2.AsyncClient, _stack: Stack) -> httpx2.Response:
    return await root.post("/admin/users/alice/tokens", json={})


async def revoke_token(root: httpx2.AsyncClient, stack: Stack) -> httpx2.Response:
    (token, *_) = await stack.services.accounts.tokens_of("alice")
    return await root.delete(f"/admin/tokens/{token.token_id}")


async def expire_upload(root: httpx2.AsyncClient, stack: Stack) -> httpx2.Response:
    return await root.delete(f"/admin/uploads/{await opened(stack)}")


async def delete_file(root: httpx2.AsyncClient, stack: Stack) -> httpx2.Response:
    made = await stack.client.post("/me/files?name=bad", content=b"bad")
    return await root.delete(f"/admin/files/{made.json()['file']['id']}?reason=abuse")


async def restore_file(root: httpx2.AsyncClient, stack: Stack) -> httpx2.Response:
    made = (await stack.client.post("/me/files?name=good", content=b"good")).json()["file"]["id"]
    assert (await stack.client.delete(f"/me/files/{made}")).status_code == 204
    return await root.post(f"/admin/trash/{made}/restore")


async def replay(root: httpx2.AsyncClient, stack: Stack) -> httpx2.Response:
    dead = update(models.delivery).values(state="dead")
    async with stack.services.database.engine.begin() as connection:
        await connection.execute(dead)
    return await root.post("/admin/events/replay", json={})


async def revoke_link(root: httpx2.AsyncClient, stack: Stack) -> httpx2.Response:
    (link,) = await stack.services.sharing.list("alice")
    return await root.delete(f"/admin/users/alice/links/{link.id}")


# Every route that may change something, what calls it, and what the audit log has to say then; None: it changes nothing.
ROUTES: dict[tuple[str, str], tuple[Callable[[httpx2.AsyncClient, Stack], Awaitable[httpx2.Response]], Action] | None]
ROUTES = {
    ("POST", "/admin/usage/recount"): None,
    ("PUT", "/admin/users/{user_id}"): (put_quota, Action.QUOTA_CHANGED),
    ("POST", "/admin/users/{user_id}/tokens"): (make_token, Action.TOKEN_CREATED),
    ("DELETE", "/admin/tokens/{token_id}"): (revoke_token, Action.TOKEN_REVOKED),
    ("DELETE", "/admin/users/{user_id}/links/{id}"): (revoke_link, Action.LINK_REVOKED),
    ("DELETE", "/admin/uploads/{upload_id}"): (expire_upload, Action.UPLOAD_EXPIRED),
    ("DELETE", "/admin/files/{id}"): (delete_file, Action.FILE_DELETED),
    ("POST", "/admin/trash/{id}/restore"): (restore_file, Action.FILE_RESTORED),
    ("POST", "/admin/events/replay"): (replay, Action.EVENTS_REPLAYED),
}


async def test_every_administrative_route_says_who_called_it(make_stack_on: MakeStack, tmp_path: Any) -> None:
    events = events_file(tmp_path / "events", webhook("hook", "http://127.0.0.1:9/"))
    async with make_stack_on(events=events, trusted_proxies=("127.0.0.1/32",)) as stack:
        changing = {
            (method.upper(), path)
            for path, methods in stack.app.described["paths"].items()
            for method in methods
            if path.startswith("/admin/") and method != "get"
        }
        assert changing == set(ROUTES), "a route that changes something leaves a row of the audit log: say which"
        secrets = [stack.client.headers["authorization"]]
        root = await stack.client_of("root", admin=True)
        secrets.append(root.headers["authorization"])
        root_id = (await stack.services.accounts.tokens_of("root"))[0].token_id
        await make_link(stack)
        for call, action in filter(None, ROUTES.values()):
            before = {each.id for each in await acts(stack)}
            response = await call(root, stack)
            assert response.status_code in (200, 201, 204), response.text
            if action is Action.TOKEN_CREATED:
                secrets.append(response.json()["token"])
            new = [each for each in await acts(stack) if each.id not in before]
            assert [each.action for each in new] == [action.value]
            (told,) = new
            assert (told.via, told.actor, told.token_id) == ("request", "root", root_id)
            assert told.address == "127.0.0.1"
            assert told.user_id == (None if action is Action.EVENTS_REPLAYED else "alice")
        text = repr(await rows_in(stack.services.database))
        assert not [secret for secret in secrets if secret.removeprefix("Bearer ").removeprefix("upl_")[:12] in text]


async def test_it_says_what_changed_and_nothing_where_nothing_did(stack: Stack) -> None:
    root = await stack.client_of("root", admin=True)
    for space in (5 * GIB, 5 * GIB, 6 * GIB):
        assert (await root.put("/admin/users/alice", json={"total_space": space})).status_code == 200
    changes = [each.details for each in await acts(stack, action="quota.changed")]
    assert changes == [{"from": 5 * GIB, "to": 6 * GIB}, {"from": 10 * GIB, "to": 5 * GIB}]
    (token, *_) = await stack.services.accounts.tokens_of("alice")
    for _ in range(2):
        assert (await root.delete(f"/admin/tokens/{token.token_id}")).status_code == 204
    (revoked,) = await acts(stack, action="token.revoked")
    assert (revoked.subject, revoked.user_id) == (token.token_id, "alice")
    # alice was made by this process, before any request.
    (made,) = [each for each in await acts(stack, user_id="alice") if each.action == "user.created"]
    assert (made.via, made.actor, made.details) == ("command", actor().name, {"total_space": 10 * GIB})


async def test_it_says_who_made_the_token_of_whoever_acts(stack: Stack) -> None:
    """An administrator who makes a token for another one acts by its name, but not unseen."""
    mallory = await stack.client_of("mallory", admin=True)
    made = (await mallory.post("/admin/users/root/tokens", json={"admin": True})).json()
    as_root = stack.anonymous()
    as_root.headers["Authorization"] = f"Bearer {made['token']}"
    for _ in range(2):  # the second time the token is believed
        assert (await as_root.post("/admin/users/alice/tokens")).status_code == 201
    for told in (await acts(stack))[:2]:
        assert (told.actor, told.token_id, told.token_made_by) == ("root", made["id"], "administrator mallory")
    by_mallory = next(each for each in await acts(stack) if each.subject == made["id"])
    assert by_mallory.token_made_by == f"command {actor().name}"
    told_over_http = (await mallory.get("/admin/audit?limit=1")).json()["acts"][0]
    assert told_over_http["token_made_by"] == "administrator mallory"


async def test_what_users_do_with_their_own_uploads_is_not_told(stack: Stack) -> None:
    await stack.upload(OTHER)
    await stack.open(CONTENT)
    before = await acts(stack)
    assert (await stack.client.delete(f"/files/{CONTENT.md5}")).status_code == 204
    assert await acts(stack) == before


async def test_jobs_and_commands_are_told_as_such(make_stack: MakeStack, clock: ManualClock) -> None:
    async with make_stack(clock=clock) as stack:
        expired = await opened(stack)
        clock.advance(8 * DAY_SECONDS)
        actor_of_context.set(lambda: Actor(Via.JOB, "expirer"))
        await stack.services.expiry.expire(await stack.services.expiry.idle(clock.now(), after_id=""))
        cancelled = await opened(stack, OTHER)
        actor_of_context.set(None)
        await stack.services.cleanup.reset_unfinished()
        told = {each.subject: each for each in await acts(stack)}
        assert (told[expired].action, told[expired].via) == ("upload.expired", "job")
        assert told[expired].details == {"name": CONTENT.name, "size": CONTENT.size}
        assert (told[cancelled].action, told[cancelled].via) == ("upload.cancelled", "command")


async def test_a_job_acts_by_its_name() -> None:
    seen: list[Actor] = []
    ran = asyncio.Event()

    async def run_once() -> float:
        seen.append(actor())
        ran.set()
        return 60.0

    runner = Runner([Job("expirer", run_once)])
    runner.start()
    await asyncio.wait_for(ran.wait(), PATIENCE_SECONDS)
    await runner.stop()
    assert set(seen) == {Actor(Via.JOB, "expirer")}
    assert actor().via is not Via.JOB


async def test_what_reconcile_repairs_is_told_with_the_figures(stack: Stack) -> None:
    await stack.upload(CONTENT)
    await stack.open(OTHER)
    await stack.put(OTHER, 0)
    async with stack.services.database.engine.begin() as connection:
        await connection.execute(update(models.user_info).values(use_space_finished=1))
        await connection.execute(update(models.blob).values(refs=7))
    found = await stack.services.reconciling.reconcile(repair=True)
    assert found.repaired >= 2
    told = {each.action: each for each in await acts(stack)}
    assert told["user.repaired"].details["use_space_finished"] == {"from": 1, "to": CONTENT.size}
    assert told["content.repaired"].details == {"refs": {"from": 7, "to": 1}}
    assert told["content.repaired"].subject == CONTENT.sha256
    before = await acts(stack)
    await stack.services.reconciling.reconcile(repair=True)
    assert await acts(stack) == before, "nothing was wrong any more"


async def test_an_adoption_a_restore_and_what_the_trash_gives_back_are_told(stack: Stack) -> None:
    adopted = await stack.services.installation.adopt()
    await stack.services.audit_log.note(Action.INSTALLATION_RESTORED, subject=adopted, details={"files": 1})
    restored, told = (await acts(stack))[:2]
    assert (told.action, told.subject, told.details["database"]) == ("installation.adopted", adopted, adopted)
    assert (restored.action, restored.details) == ("installation.restored", {"files": 1})
    await stack.upload(CONTENT)
    found = await stack.services.storage.find_blob(CONTENT.sha256)
    assert found is not None
    assert await stack.services.storage.put_away(found)
    assert await stack.services.trash.restore(CONTENT.sha256)
    newest = (await acts(stack))[0]
    assert (newest.action, newest.subject) == ("content.healed", CONTENT.sha256)


async def test_what_is_rolled_back_was_done_by_nobody(database: Database) -> None:
    told = act(Action.USER_CREATED, NOW, subject="alice", user_id="alice")
    await database.transact(lambda connection: users.create_user(connection, "alice", 1, told))
    late = act(Action.USER_CREATED, NOW, subject="alice", user_id="alice")
    with pytest.raises(Duplicate):
        await database.transact(lambda connection: users.create_user(connection, "alice", 2, late))
    with pytest.raises(NotOpen):
        await database.transact(lambda connection: close_upload(connection, "0" * 32, Reason.EXPIRED, NOW, late))

    async def change_and_fail(connection: Any) -> None:
        await users.set_total_space(connection, "alice", 2, act(Action.QUOTA_CHANGED, NOW, subject="alice"))
        raise KeyError("fails")

    with pytest.raises(KeyError):
        await database.transact(change_and_fail)
    assert [row.id for row in await rows_in(database)] == [told.id]


async def test_it_is_read_page_by_page_filtered_and_as_csv(stack: Stack, clock: ManualClock) -> None:
    root = await stack.client_of("root", admin=True)
    upload_id = await opened(stack, OTHER)
    await root.delete(f"/admin/uploads/{upload_id}")
    await root.put("/admin/users/=bob", json={"total_space": 5})

    async def get(**query: Any) -> list[dict[str, Any]]:
        return [act for page in await pages(root, "/admin/audit", **query) for act in page["acts"]]

    everything = await get()
    assert [each["action"] for each in everything[:2]] == ["user.created", "upload.expired"]
    assert set(everything[0]) == set(Act.__dataclass_fields__)
    assert await get(limit=1) == everything
    of_root = {each["action"] for each in await get(user_id="root")}
    assert of_root == {"user.created", "token.created", "upload.expired"}
    assert [each["subject"] for each in await get(action="upload.expired")] == [upload_id]
    at = everything[1]["created_at"]
    assert {each["id"] for each in await get(since=at)} == {each["id"] for each in everything[:2]}
    assert await get(until=at) == everything[2:]
    assert await get(since="2016-12-31T23:59:60Z") == everything, "a leap second"
    lines = list(csv.reader(io.StringIO((await root.get("/admin/audit", params={"format": "csv"})).text)))
    assert lines[0] == list(Act.__dataclass_fields__)
    assert len(lines) == len(everything) + 1
    assert lines[1][lines[0].index("subject")] == "'=bob", "or a spreadsheet would run it"
    for query in ({"since": "now"}, {"until": "0001-01-01T00:00:00+23:00"}, {"action": "all"}, {"after": "x"}):
        problem(await root.get("/admin/audit", params=query), 422, "invalid-request")
    problem(await stack.client.get("/admin/audit"), 403, "forbidden")
    problem(await stack.client.get("/me/audit"), 404, "not-found")


async def test_acts_are_kept_for_as_long_as_is_set(make_stack_on: MakeStack, clock: ManualClock) -> None:
    async with make_stack_on(clock=clock, audit_retention_seconds=0) as stack:
        assert len(await acts(stack)) == 2
        clock.advance(31 * DAY_SECONDS)
        await stack.services.accounts.set_total_space("alice", 7)
        assert await stack.services.audit_log.forget_old(1) == 0
        assert len(await acts(stack)) == 3
    async with make_stack_on(clock=clock, audit_retention_seconds=30 * DAY_SECONDS) as stack:
        before = len(await acts(stack))
        assert await stack.services.audit_log.forget_old(1) == 1
        assert await stack.services.audit_log.forget_old(1000) == 1
        assert len(await acts(stack)) == before - 2
        assert len(await acts(stack, action="quota.changed", since=clock.now() - timedelta(seconds=1))) == 1


async def test_behind_a_trusted_proxy_it_is_the_address_of_the_client(make_stack: MakeStack) -> None:
    async with make_stack(trusted_proxies=("127.0.0.1/32",), trusted_header="X-Remote-User") as stack:
        root = await stack.client_of("root", admin=True)
        await root.put("/admin/users/alice", json={"total_space": 5}, headers={"X-Forwarded-For": "203.0.113.7"})
        assert (await acts(stack))[0].address == "203.0.113.7"
        # Who is met for the first time is made by themselves.
        await stack.anonymous().get("/me/usage", headers={"X-Remote-User": "carol", "X-Forwarded-For": "203.0.113.8"})
        met = (await acts(stack))[0]
        assert (met.action, met.actor, met.subject, met.address) == ("user.created", "carol", "carol", "203.0.113.8")
