"""`/admin`: who uses how much, and quotas."""

import base64
import csv
import io
import json
import re
from typing import Any

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.paging import pages
from tests.support.problems import problem
from tests.support.stack import GIB, Stack

CONTENT = Content(100 * KIB)
_COLUMNS = ["user_id", "total_space", "use_space_finished", "use_space_unfinished", "reserved", "files", "open_uploads"]
_ROWS = {
    "alice": (10 * GIB, 100 * KIB, 0, 300 * KIB, 1, 1),
    "bob": (10**9, 200 * KIB, 0, 0, 2, 0),
    "carol": (10**6, 0, 0, 0, 0, 0),
    "root": (10 * GIB, 0, 0, 0, 0, 0),
}
_ORDERS: list[tuple[dict[str, str], list[str]]] = [
    ({}, ["bob", "alice", "carol", "root"]),
    ({"sort": "user_id"}, ["alice", "bob", "carol", "root"]),
    ({"sort": "user_id", "order": "desc"}, ["root", "carol", "bob", "alice"]),
    ({"sort": "total_space", "order": "asc"}, ["carol", "bob", "alice", "root"]),
    ({"sort": "use_space_finished", "order": "asc"}, ["carol", "root", "alice", "bob"]),
    ({"sort": "use_space_unfinished"}, ["alice", "bob", "carol", "root"]),
    ({"sort": "reserved"}, ["alice", "bob", "carol", "root"]),
    ({"sort": "files"}, ["bob", "alice", "carol", "root"]),
    ({"sort": "files", "order": "asc"}, ["carol", "root", "alice", "bob"]),
    ({"sort": "open_uploads"}, ["alice", "bob", "carol", "root"]),
    ({"q": "o"}, ["bob", "carol", "root"]),
    ({"q": "B"}, []),
    ({"q": "%"}, []),
]


@pytest.fixture
async def root(stack: Stack) -> httpx2.AsyncClient:
    return await stack.client_of("root", admin=True)


async def _populate(stack: Stack) -> httpx2.AsyncClient:
    """alice: one file and an open upload; bob: two files; carol: nothing; root asks."""
    await stack.upload(CONTENT)
    await stack.open(Content(300 * KIB, seed=1))
    bob = await stack.client_of("bob", total_space=10**9)
    await stack.upload(CONTENT, bob)
    await stack.upload(CONTENT, bob, name="second")
    await stack.client_of("carol", total_space=10**6)
    return await stack.client_of("root", admin=True)


async def test_every_user_is_reported_with_all_figures_sorted_and_searched(make_stack_on: MakeStack) -> None:
    async with make_stack_on() as stack:
        root = await _populate(stack)
        for query, expected in _ORDERS:
            (whole,) = await pages(root, "/admin/usage", **query)
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*Z", whole["as_of"])
            figures = [(user_id, *_ROWS[user_id]) for user_id in expected]
            assert [list(user.items()) for user in whole["users"]] == [
                list(zip(_COLUMNS, row, strict=True)) for row in figures
            ]
            paged = await pages(root, "/admin/usage", limit="1", **query)
            assert [user for page in paged for user in page["users"]] == whole["users"]
            assert max(len(page["users"]) for page in paged) <= 1


async def test_as_csv_all_users_are_streamed(stack: Stack) -> None:
    root = await _populate(stack)
    for asked, headers in (({}, {"Accept": "text/csv"}), ({"format": "csv"}, {})):
        params = {"limit": "1", "sort": "user_id", **asked}
        response = await root.get("/admin/usage", params=params, headers=headers)
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/csv")
        rows = list(csv.reader(io.StringIO(response.text)))
        assert rows == [_COLUMNS, *([user_id, *map(str, figures)] for user_id, figures in _ROWS.items())]
    response = await root.get("/admin/usage?format=json", headers={"Accept": "text/csv"})
    assert response.headers["content-type"] == "application/json"


def _cursor(*parts: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()


async def test_a_malformed_question_is_refused(root: httpx2.AsyncClient) -> None:
    cursors = [_cursor("files", 1, "a"), _cursor("use_space_finished", 1)]
    cursors += [_cursor("use_space_finished", figure, "a") for figure in ("1", 2**63, -(2**70))]
    for field, values in {
        "sort": ["name"],
        "order": ["up"],
        "format": ["xml"],
        "limit": ["0", "1001"],
        "after": ["x", "é", *cursors],
    }.items():
        for value in values:
            body = problem(await root.get("/admin/usage", params={field: value}), 422, "invalid-request")
            assert [error["field"] for error in body["errors"]] == [field]


async def test_a_quota_is_set_and_the_user_made_if_need_be(stack: Stack, root: httpx2.AsyncClient) -> None:
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


async def test_a_user_id_may_be_almost_any_text(root: httpx2.AsyncClient) -> None:
    for user_id in ("a%20b", "a%0Ab", "%00", "a%C2%A0b", "%E2%80%AE", "x" * 256):
        body = problem(await root.put(f"/admin/users/{user_id}", json={"total_space": 1}), 422, "invalid-request")
        assert [error["field"] for error in body["errors"]] == ["user_id"]
    for user_id in ("a@b.example", "ünï", "=1+1", "x" * 255):
        response = await root.put(f"/admin/users/{user_id}", json={"total_space": 1})
        assert (response.status_code, response.json()["user_id"]) == (200, user_id)
