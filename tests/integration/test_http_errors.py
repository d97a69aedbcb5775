"""What all errors have in common: problems from every layer, request ids, the order of checks. What each malformed request
is answered: `test_bad_inputs.py`."""

import re
from itertools import product
from unittest.mock import AsyncMock

import pytest

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.problems import problem
from tests.support.stack import Stack, without_database

CONTENT = Content(100 * KIB)
URL = f"/files/{CONTENT.md5}"
ENCODED = {"Content-Encoding": "gzip"}


@pytest.fixture
async def opened(stack: Stack) -> Stack:
    """With an open upload of CONTENT, of two chunks."""
    await stack.open(CONTENT)
    return stack


async def test_a_token_lets_its_user_in_until_it_is_revoked_and_is_given_once(stack: Stack) -> None:
    token = await stack.services.accounts.create_token("carol", admin=False)
    anonymous, given = stack.anonymous(), ("Authorization", f"bEaReR {token}")
    assert (await anonymous.get("/me/usage", headers=[given])).status_code == 200
    problem(await anonymous.get("/me/usage", headers=[given, given]), 401, "unauthenticated")
    assert await stack.services.accounts.revoke(token) == 1
    response = await anonymous.get("/me/usage", headers=[given])
    problem(response, 401, "unauthenticated")
    assert response.headers["www-authenticate"] == "Bearer"


async def test_an_internal_error_leaks_nothing(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError(f"not a map: {stack.data}/map")
    monkeypatch.setattr(stack.services.uploads, "find", AsyncMock(side_effect=error))
    response = await stack.client.get(URL)
    problem(response, 500, "internal-error")
    for told in (str(stack.data), "map", "Error", "Traceback"):
        assert told not in response.text


async def test_without_the_database_the_answer_is_try_again(make_stack: MakeStack, sqlite_url: str) -> None:
    async with make_stack(database_url=sqlite_url) as stack, without_database(stack):
        response = await stack.client.get("/me/usage")
    assert problem(response, 503, "unavailable")["retryable"] is True
    assert int(response.headers["retry-after"]) > 0
    assert "test.db" not in response.text


async def test_a_good_request_id_is_kept_and_any_other_one_replaced(stack: Stack) -> None:
    for path, identifier in product(("/livez", "/nothing", "/me/usage"), ("a", "A-Za.z_09", "x" * 128)):
        response = await stack.client.get(path, headers={"X-Request-ID": identifier})
        assert response.headers["x-request-id"] == identifier
    given: list[dict[bytes, bytes]] = [{}, {}]
    given += [{b"X-Request-ID": bad} for bad in (b"", b"a b", b"x" * 129, b"a/b", b"<script>", b"\xe9")]
    answers = [problem(await stack.client.get("/nothing", headers=headers), 404, "not-found") for headers in given]
    made = {answer["request_id"] for answer in answers}
    assert len(made) == len(given)
    assert all(re.fullmatch(r"[A-Za-z0-9._-]{1,128}", identifier) for identifier in made)
    assert made.isdisjoint({"", "x" * 129})


async def test_the_content_type_is_ignored(stack: Stack) -> None:
    for number, kind in enumerate(("text/plain", "application/x-www-form-urlencoded", "nonsense")):
        body = b' {"name": "a", "size": 1}\n'
        response = await stack.client.post(f"/files/{number:032x}", content=body, headers={"Content-Type": kind})
        assert response.status_code == 201


async def test_the_checks_have_an_order(opened: Stack) -> None:
    """Routing, the token, the path, the syntax of the body, the state, the number of the chunk, its length, its digest."""
    nobody, alice, unknown = opened.anonymous(), opened.client, "0" * 32
    no_md5, bad_json = {"Content-MD5": "nonsense"}, b'{"name": "a", "size": "1"}'
    for client, operation, content, headers, status, code in (
        (nobody, "GET /nothing", b"", {}, 404, "not-found"),
        (nobody, f"PATCH {URL}", b"", {}, 405, "method-not-allowed"),
        (nobody, "GET /files/zzz", b"", {}, 401, "unauthenticated"),
        (alice, "PUT /admin/users/a%20b", b"{", {}, 403, "forbidden"),
        (alice, "POST /files/zzz", b"{", {}, 422, "invalid-md5"),
        (alice, "PUT /files/zzz/chunks/x", b"x", ENCODED, 422, "invalid-md5"),
        (alice, f"PUT {URL}/chunks/x", b"x", ENCODED, 422, "chunk-number-out-of-range"),
        (alice, "PUT /uploads/zzz/chunks/x", b"x", ENCODED, 404, "upload-not-found"),
        (alice, "PATCH /uploads/zzz", b"{", {}, 404, "upload-not-found"),
        (alice, f"POST {URL}", bad_json, {}, 422, "invalid-request"),
        (alice, f"PUT /files/{unknown}/chunks/0", b"x", ENCODED, 415, "unsupported-media-type"),
        (alice, f"PATCH /uploads/{unknown}", b"{}", {}, 422, "invalid-request"),
        (alice, f"PUT /files/{unknown}/chunks/99", b"x", {}, 404, "upload-not-found"),
        (alice, f"PUT {URL}/chunks/2", b"x", {}, 422, "chunk-number-out-of-range"),
        (alice, f"PUT {URL}/chunks/0", b"x", no_md5, 422, "chunk-length-mismatch"),
        (alice, f"PUT {URL}/chunks/0", CONTENT.chunk(0), no_md5, 422, "digest-mismatch"),
    ):
        response = await client.request(*operation.split(), content=content, headers=headers)
        problem(response, status, code)
    await opened.put(CONTENT, 0)
    for content, headers in ((b"x", {}), (CONTENT.chunk(0), no_md5)):
        response = await alice.put(f"{URL}/chunks/0", content=content, headers=headers)
        assert (response.status_code, response.json()["duplicate"]) == (200, True)
    await alice.delete(URL)
    gone = problem(await alice.put(f"{URL}/chunks/99", content=b"x"), 410, "upload-gone")
    assert gone["reason"] == "cancelled"


async def test_even_an_administrator_does_not_see_the_files_of_others(stack: Stack) -> None:
    file = (await stack.upload(CONTENT)).json()["file"]
    root = await stack.client_of("root", admin=True)
    problem(await root.get(f"/me/files/{file['id']}/content"), 404, "file-not-found")
