"""`/admin/users/{user_id}/tokens` and `/admin/tokens/{token_id}`: what `uploader token` does, from afar."""

import os
import pwd
import re
from typing import Any

import httpx2
import pytest
from sqlalchemy import update

from tests.conftest import MakeStack
from tests.support.problems import problem
from tests.support.stack import Stack
from uploader.database import models

NO_SCOPES = ({"scope": "admin"}, {"scope": ""}, {"scope": None}, {"scope": "metrics", "admin": True})


async def _make(client: httpx2.AsyncClient, user_id: str, **body: Any) -> dict[str, Any]:
    response = await client.post(f"/admin/users/{user_id}/tokens", json=body)
    assert response.status_code == 201
    made: dict[str, Any] = response.json()
    return made


async def _list(client: httpx2.AsyncClient, user_id: str) -> list[dict[str, Any]]:
    response = await client.get(f"/admin/users/{user_id}/tokens")
    assert response.status_code == 200
    tokens: list[dict[str, Any]] = response.json()["tokens"]
    return tokens


def _as(stack: Stack, made: dict[str, Any]) -> httpx2.AsyncClient:
    client = stack.anonymous()
    client.headers["Authorization"] = f"Bearer {made['token']}"
    return client


@pytest.fixture
async def root(stack: Stack) -> httpx2.AsyncClient:
    return await stack.client_of("root", admin=True)


async def test_a_token_is_made_shown_once_and_works(stack: Stack, root: httpx2.AsyncClient) -> None:
    made = await _make(root, "new", total_space=1000)
    assert list(made) == ["id", "admin", "created_at", "revoked_at", "scope", "made_by", "user_id", "token"]
    assert re.fullmatch(r"upl_[\w-]{43}", made["token"])
    assert (made["user_id"], made["admin"], made["revoked_at"]) == ("new", False, None)
    usage = (await _as(stack, made).get("/me/usage")).json()
    assert usage["total_space"] == 1000
    assert (await _as(stack, made).get("/me/identity")).json() == {"user_id": "new", "admin": False}
    problem(await _as(stack, made).get("/admin/usage"), 403, "forbidden")

    second = await _make(root, "new", admin=True, total_space=5)  # who is there keeps the quota
    usage = (await _as(stack, second).get("/me/usage")).json()
    assert usage["total_space"] == 1000
    assert (await _as(stack, second).get("/me/identity")).json() == {"user_id": "new", "admin": True}
    listed = await _list(root, "new")
    assert listed == [
        {name: each[name] for name in each if name not in ("user_id", "token")} for each in (second, made)
    ]
    assert made["token"] not in (await root.get("/admin/users/new/tokens")).text


async def test_a_body_may_be_left_out_and_a_bad_one_is_refused(root: httpx2.AsyncClient) -> None:
    response = await root.post("/admin/users/bob/tokens")
    assert (response.status_code, response.json()["admin"]) == (201, False)
    assert response.headers["cache-control"] == "no-store"
    for body in ({"admin": "yes"}, {"admin": 1}, {"total_space": -1}, {"user": "bob"}, *NO_SCOPES):
        problem(await root.post("/admin/users/bob/tokens", json=body), 422, "invalid-request")
    problem(await root.post("/admin/users/a%20b/tokens"), 422, "invalid-request")
    problem(await root.get("/admin/users/nobody/tokens"), 404, "not-found")
    for name in ("0" * 16, "0" * 64, "x", "upl_x", "%25", "_" * 16):
        problem(await root.delete(f"/admin/tokens/{name}"), 404, "not-found")


async def test_users_see_who_made_their_tokens_and_what_these_are_good_for(make_stack_on: MakeStack) -> None:
    async with make_stack_on() as stack:
        root = await stack.client_of("root", admin=True)
        metrics = await _make(root, "alice", scope="metrics")
        made = await _make(root, "alice")
        own = (await stack.client.get("/me/tokens")).json()["tokens"]
        assert [(each["scope"], each["made_by"]) for each in own] == [
            (None, "administrator root"),
            ("metrics", "administrator root"),
            (None, f"command {pwd.getpwuid(os.getuid()).pw_name}"),
        ]
        assert [each["id"] for each in own[:2]] == [made["id"], metrics["id"]]
        assert own == await _list(root, "alice")
        assert (await _as(stack, metrics).get("/metrics")).status_code == 200
        refused = problem(await _as(stack, metrics).get("/me/tokens"), 403, "forbidden")
        assert refused["detail"] == "This token is valid for /metrics alone."
        (roots,) = (await root.get("/me/tokens")).json()["tokens"]
        assert roots["admin"]
        # From before the maker of a token was kept: as good as ever.
        async with stack.services.database.engine.begin() as connection:
            await connection.execute(update(models.token).values(scope=None, made_by=None))
        own = (await stack.client.get("/me/tokens")).json()["tokens"]
        assert {(each["scope"], each["made_by"]) for each in own} == {(None, None)}


async def test_a_revoked_token_is_refused_at_once_and_may_be_revoked_again(make_stack_on: MakeStack) -> None:
    async with make_stack_on() as stack:
        root = await stack.client_of("root", admin=True)
        made, other = await _make(root, "bob"), await _make(root, "bob")
        assert (await _as(stack, made).get("/me/usage")).status_code == 200
        for _ in range(2):
            assert (await root.delete(f"/admin/tokens/{made['id']}")).status_code == 204
        problem(await _as(stack, made).get("/me/usage"), 401, "unauthenticated")
        assert (await _as(stack, other).get("/me/usage")).status_code == 200
        revoked = {token["id"]: token["revoked_at"] is not None for token in await _list(root, "bob")}
        assert revoked == {made["id"]: True, other["id"]: False}


async def test_nobody_revokes_the_token_that_they_call_with(stack: Stack, root: httpx2.AsyncClient) -> None:
    (own,) = await _list(root, "root")
    problem(await root.delete(f"/admin/tokens/{own['id']}"), 409, "token-in-use")
    assert (await root.get("/admin/usage")).status_code == 200
    # Another one may: this is how one changes one's token.
    second = _as(stack, await _make(root, "root", admin=True))
    assert (await second.delete(f"/admin/tokens/{own['id']}")).status_code == 204
    problem(await root.get("/admin/usage"), 401, "unauthenticated")


async def test_where_tokens_mean_nothing_that_is_said(make_stack: MakeStack) -> None:
    async with make_stack(auth="none") as stack:
        local = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=stack.app), base_url="http://localhost")
        for method, path in (
            ("GET", "/admin/users/bob/tokens"),
            ("POST", "/admin/users/bob/tokens"),
            ("DELETE", f"/admin/tokens/{'0' * 16}"),
            ("GET", "/me/tokens"),
        ):
            problem(await local.request(method, path), 409, "tokens-unused")
        assert (await local.get("/config")).json()["auth"] == "none"
        assert (await local.get("/me/identity")).json() == {"user_id": "local", "admin": True}


async def test_a_token_that_was_made_is_in_no_log(root: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        made = await _make(root, "bob", admin=True)
        await root.delete(f"/admin/tokens/{made['id']}")
    told = [vars(record) for record in caplog.records if record.name == "uploader.http.admin"]
    assert [(line["msg"], line["token_id"]) for line in told] == [
        ("token made", made["id"]),
        ("token revoked", made["id"]),
    ]
    assert made["token"] not in str([vars(record) for record in caplog.records])
