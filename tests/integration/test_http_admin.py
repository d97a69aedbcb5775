"""`/admin`: who uses how much, and quotas."""

import base64
import csv
import io
import json
import re
from typing import Any

import pytest

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.problems import problem
from tests.support.stack import Stack

CONTENT = Content(100 * KIB)
_COLUMNS = ["user_id", "total_space", "use_space_finished", "use_space_unfinished", "reserved", "files", "open_uploads"]


async def _users(stack: Stack, **query: str) -> list[str]:
    root = await stack.client_of("root", admin=True)
    response = await root.get("/admin/usage", params=query)
    assert response.status_code == 200
    return [user["user_id"] for user in response.json()["users"]]


async def _populate(stack: Stack) -> None:
    """alice: one file and an open upload; bob: two files; carol: nothing; root asks."""
    await stack.upload(CONTENT)
    await stack.open(Content(300 * KIB, seed=1))
    bob = await stack.client_of("bob", total_space=10**9)
    await stack.upload(CONTENT, bob)
    await stack.upload(CONTENT, bob, name="second")
    await stack.client_of("carol", total_space=10**6)


async def test_only_administrators_get_in(stack: Stack) -> None:
    for method, path in (("GET", "/admin/usage"), ("PUT", "/admin/users/bob")):
        body = {"total_space": 1}
        problem(await stack.client.request(method, path, json=body), 403, "forbidden")
        problem(await stack.anonymous().request(method, path, json=body), 401, "unauthenticated")


async def test_every_user_is_reported_with_all_figures(make_stack_on: MakeStack) -> None:
    async with make_stack_on() as stack:
        await _populate(stack)
        root = await stack.client_of("root", admin=True)
        body = (await root.get("/admin/usage", params={"sort": "user_id"})).json()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*Z", body["as_of"])
        assert body["next"] is None
        assert [list(user) for user in body["users"]] == [_COLUMNS] * 4
        rows = {user["user_id"]: tuple(user.values())[1:] for user in body["users"]}
        gib10 = 10 << 30
        assert rows == {
            "alice": (gib10, 100 * KIB, 0, 300 * KIB, 1, 1),
            "bob": (10**9, 200 * KIB, 0, 0, 2, 0),
            "carol": (10**6, 0, 0, 0, 0, 0),
            "root": (gib10, 0, 0, 0, 0, 0),
        }


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, ["bob", "alice", "carol", "root"]),
        ({"sort": "user_id"}, ["alice", "bob", "carol", "root"]),
        ({"sort": "user_id", "order": "desc"}, ["root", "carol", "bob", "alice"]),
        ({"sort": "total_space", "order": "asc"}, ["carol", "bob", "alice", "root"]),
        ({"sort": "use_space_finished", "order": "asc"}, ["carol", "root", "alice", "bob"]),
        ({"sort": "use_space_unfinished"}, ["alice", "bob", "carol", "root"]),
        ({"sort": "reserved"}, ["alice", "bob", "carol", "root"]),
        ({"sort": "files"}, ["bob", "alice", "carol", "root"]),
        ({"sort": "open_uploads"}, ["alice", "bob", "carol", "root"]),
        ({"q": "o"}, ["bob", "carol", "root"]),
        ({"q": "B"}, []),
        ({"q": "%"}, []),
    ],
)
async def test_the_report_is_sorted_and_searched(
    make_stack_on: MakeStack, query: dict[str, str], expected: list[str]
) -> None:
    async with make_stack_on() as stack:
        await _populate(stack)
        assert await _users(stack, **query) == expected


@pytest.mark.parametrize("query", [{}, {"sort": "user_id"}, {"sort": "files", "order": "asc"}, {"q": "o"}])
async def test_pages_hold_every_user_once(stack: Stack, query: dict[str, str]) -> None:
    await _populate(stack)
    whole = await _users(stack, **query)
    root = await stack.client_of("root", admin=True)
    paged: list[str] = []
    after: dict[str, str] = {}
    while True:
        body = (await root.get("/admin/usage", params={"limit": "1"} | query | after)).json()
        paged += [user["user_id"] for user in body["users"]]
        if body["next"] is None:
            break
        assert len(body["users"]) == 1
        after = {"after": body["next"]}
    assert paged == whole


@pytest.mark.parametrize("by_header", [True, False])
async def test_as_csv_all_users_are_streamed(stack: Stack, by_header: bool) -> None:
    await _populate(stack)
    root = await stack.client_of("root", admin=True)
    headers = {"Accept": "text/csv"} if by_header else {}
    params = {"limit": "1", "sort": "user_id"} | ({} if by_header else {"format": "csv"})
    response = await root.get("/admin/usage", params=params, headers=headers)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/csv")
    rows = list(csv.reader(io.StringIO(response.text)))
    assert rows[0] == _COLUMNS
    assert [row[0] for row in rows[1:]] == ["alice", "bob", "carol", "root"]
    assert rows[2] == ["bob", str(10**9), str(200 * KIB), "0", "0", "2", "0"]


async def test_json_is_sent_to_those_who_ask_for_it_by_name(stack: Stack) -> None:
    root = await stack.client_of("root", admin=True)
    response = await root.get("/admin/usage?format=json", headers={"Accept": "text/csv"})
    assert response.headers["content-type"] == "application/json"


def _cursor(*parts: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()


@pytest.mark.parametrize(
    "query",
    [
        {"sort": "name"},
        {"order": "up"},
        {"format": "xml"},
        {"limit": "0"},
        {"limit": "1001"},
        {"after": "x"},
        {"after": "é"},
        {"after": _cursor("files", 1, "a")},
        {"after": _cursor("use_space_finished", "1", "a")},
        {"after": _cursor("use_space_finished", 2**63, "a")},
        {"after": _cursor("use_space_finished", -(2**70), "a")},
        {"after": _cursor("use_space_finished", 1)},
    ],
)
async def test_a_malformed_question_is_refused(stack: Stack, query: dict[str, str]) -> None:
    root = await stack.client_of("root", admin=True)
    body = problem(await root.get("/admin/usage", params=query), 422, "invalid-request")
    assert [error["field"] for error in body["errors"]] == list(query)


# Quotas


async def test_a_quota_is_set_and_the_user_made_if_need_be(stack: Stack) -> None:
    root = await stack.client_of("root", admin=True)
    await stack.upload(CONTENT)
    for _ in range(2):
        response = await root.put("/admin/users/new", json={"total_space": 0})
        assert response.status_code == 200
        assert response.json() == {
            "user_id": "new",
            "total_space": 0,
            "use_space_finished": 0,
            "use_space_unfinished": 0,
            "reserved": 0,
        }
    lowered = (await root.put("/admin/users/alice", json={"total_space": 1})).json()
    assert (lowered["total_space"], lowered["use_space_finished"]) == (1, CONTENT.size)
    assert (await stack.client.get("/me/usage")).json()["total_space"] == 1
    largest = await root.put("/admin/users/alice", json={"total_space": 2**63 - 1})
    assert largest.json()["total_space"] == 2**63 - 1
    assert (await stack.open(Content(1000, seed=1))).status_code == 201


@pytest.mark.parametrize("user_id", ["a%20b", "a%0Ab", "%00", "a%C2%A0b", "%E2%80%AE", "x" * 256])
async def test_a_bad_user_id_is_refused(stack: Stack, user_id: str) -> None:
    root = await stack.client_of("root", admin=True)
    body = problem(await root.put(f"/admin/users/{user_id}", json={"total_space": 1}), 422, "invalid-request")
    assert [error["field"] for error in body["errors"]] == ["user_id"]


async def test_a_user_id_may_be_any_other_text(stack: Stack) -> None:
    root = await stack.client_of("root", admin=True)
    for user_id in ("a@b.example", "ünï", "=1+1", "x" * 255):
        response = await root.put(f"/admin/users/{user_id}", json={"total_space": 1})
        assert (response.status_code, response.json()["user_id"]) == (200, user_id)
