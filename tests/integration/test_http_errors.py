"""What all errors have in common: problems from every layer, request ids, strict JSON, the order of checks."""

import errno
import gzip
import re
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.faults import failing_call
from tests.support.problems import problem
from tests.support.servers import PrivateRedis
from tests.support.stack import Stack, without_database
from uploader.http.shared.problem import STATUS

CONTENT = Content(100 * KIB)
URL = f"/files/{CONTENT.md5}"


# Who is calling


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", "Basic YTpi", "Bearer wrong", "bearer upl_wrong", "Bearer a b", "Bearer \xff"],
)
async def test_without_a_valid_token_nobody_gets_in(stack: Stack, authorization: str | None) -> None:
    headers = {} if authorization is None else {b"Authorization": authorization.encode("latin-1")}
    for method, path in (("GET", "/me/usage"), ("PUT", f"{URL}/chunks/0"), ("GET", "/admin/usage")):
        response = await stack.anonymous().request(method, path, headers=headers)
        problem(response, 401, "unauthenticated")
        assert response.headers["www-authenticate"] == "Bearer"


async def test_a_token_given_twice_lets_nobody_in(stack: Stack) -> None:
    header = ("Authorization", stack.client.headers["authorization"])
    problem(await stack.anonymous().get("/me/usage", headers=[header, header]), 401, "unauthenticated")


async def test_the_scheme_is_taken_in_any_case(stack: Stack) -> None:
    token = stack.client.headers["authorization"].split()[1]
    response = await stack.anonymous().get("/me/usage", headers={"Authorization": f"bEaReR {token}"})
    assert response.status_code == 200


async def test_a_revoked_token_lets_nobody_in(stack: Stack) -> None:
    token = await stack.services.accounts.create_token("carol", admin=False)
    assert await stack.services.accounts.revoke(token) == 1
    headers = {"Authorization": f"Bearer {token}"}
    problem(await stack.anonymous().get("/me/usage", headers=headers), 401, "unauthenticated")


async def test_a_second_token_keeps_the_quota(stack: Stack) -> None:
    await stack.client_of("carol", total_space=1000)
    second = await stack.client_of("carol", total_space=2000)
    assert (await second.get("/me/usage")).json()["total_space"] == 1000


async def test_without_authentication_everybody_is_the_local_administrator(make_stack: MakeStack) -> None:
    async with make_stack(auth="none", default_total_space_bytes=12345) as stack:
        anonymous = stack.anonymous()
        anonymous.headers["Host"] = "localhost:8000"
        assert (await anonymous.get("/me/usage")).json()["total_space"] == 12345
        users = (await anonymous.get("/admin/usage", params={"q": "local"})).json()["users"]
        assert [user["user_id"] for user in users] == ["local"]


# Problems from everywhere


@pytest.mark.parametrize(
    "path", ["/nothing", "/files", "/files/", f"{URL}/", f"{URL}/chunks", "/me", "/admin", "//", "/x%00"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "PROPFIND"])
async def test_an_unknown_path_is_not_found_without_a_token(stack: Stack, method: str, path: str) -> None:
    problem(await stack.anonymous().request(method, f"http://test{path}"), 404, "not-found")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PATCH", "/livez", "GET, HEAD"),
        ("POST", "/me/usage", "GET, HEAD"),
        ("OPTIONS", URL, "DELETE, GET, HEAD, POST, PUT"),
        ("GET", f"{URL}/chunks/0", "PUT"),
        ("GET", "/files/status", "POST"),
        ("PROPFIND", "/uploads", "GET, HEAD, POST"),
        ("POST", "/openapi.json", "GET, HEAD"),
    ],
)
async def test_a_wrong_method_is_told_the_right_ones(stack: Stack, method: str, path: str, allow: str) -> None:
    response = await stack.anonymous().request(method, path)
    problem(response, 405, "method-not-allowed")
    assert response.headers["allow"] == allow


async def test_every_code_is_explained_to_a_person(stack: Stack) -> None:
    for code, status in STATUS.items():
        response = await stack.anonymous().get(f"/problems/{code}")
        assert response.status_code == 200, code
        assert response.headers["content-type"].startswith("text/html")
        assert f"HTTP status {status}" in response.text
    problem(await stack.anonymous().get("/problems/no-such-code"), 404, "not-found")


async def test_an_internal_error_leaks_nothing(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    await stack.open(CONTENT)
    error = RuntimeError(f"not a map: {stack.data}/map")
    monkeypatch.setattr(stack.services.uploads, "find", AsyncMock(side_effect=error))
    response = await stack.client.get(URL)
    problem(response, 500, "internal-error")
    for told in (str(stack.data), "map", "Error", "Traceback"):
        assert told not in response.text


async def test_a_failing_disk_is_told_without_leaks_and_loses_nothing(stack: Stack) -> None:
    await stack.open(CONTENT)
    await stack.put(CONTENT, 0)
    with failing_call("fdatasync", errno.EIO):
        response = await stack.put(CONTENT, 1)
    assert problem(response, 503, "unavailable")["retryable"] is True
    assert str(stack.data) not in response.text
    assert (await stack.client.get(URL)).json()["upload"]["missing"] == [[1, 1]]
    assert (await stack.put(CONTENT, 1)).status_code == 201


async def test_without_the_database_the_answer_is_try_again(
    make_stack: MakeStack, sqlite_url: str, tmp_path: Path
) -> None:
    async with make_stack(database_url=sqlite_url) as stack, without_database(stack):
        response = await stack.client.get("/me/usage")
    assert problem(response, 503, "unavailable")["retryable"] is True
    assert int(response.headers["retry-after"]) > 0
    assert "test.db" not in response.text


async def test_without_redis_nothing_is_acknowledged_and_nothing_is_lost(
    make_stack: MakeStack, own_redis: PrivateRedis
) -> None:
    async with make_stack(redis_url=own_redis.url) as stack:
        await stack.open(CONTENT)
        await stack.put(CONTENT, 0)
        own_redis.kill()
        response = await stack.put(CONTENT, 1)
        assert problem(response, 503, "unavailable")["retryable"] is True
        assert int(response.headers["retry-after"]) > 0
        own_redis.start()
        assert (await stack.put(CONTENT, 1)).json()["state"] == "complete"
        assert (await stack.client.get(URL)).json()["file"]["sha256"] == CONTENT.sha256


# Request ids


@pytest.mark.parametrize("path", ["/livez", "/nothing", "/me/usage"])
async def test_a_good_request_id_is_kept_on_every_answer(stack: Stack, path: str) -> None:
    for identifier in ("a", "A-Za.z_09", "x" * 128):
        response = await stack.client.get(path, headers={"X-Request-ID": identifier})
        assert response.headers["x-request-id"] == identifier


@pytest.mark.parametrize("identifier", ["", "a b", "x" * 129, "a/b", "<script>", "é"])
async def test_a_bad_request_id_is_replaced(stack: Stack, identifier: str) -> None:
    response = await stack.client.get("/nothing", headers={b"X-Request-ID": identifier.encode("latin-1")})
    new = problem(response, 404, "not-found")["request_id"]
    assert new != identifier
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,128}", new)


async def test_without_a_request_id_each_answer_has_its_own(stack: Stack) -> None:
    identifiers = {(await stack.client.get("/livez")).headers["x-request-id"] for _ in range(3)}
    assert len(identifiers) == 3


# Strict JSON


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"name": "a", "size": "12"}', "size"),
        (b'{"name": "a", "size": true}', "size"),
        (b'{"name": "a", "size": 1e3}', "size"),
        (b'{"name": "a", "size": 1.0}', "size"),
        (b'{"name": "a", "size": null}', "size"),
        (b'{"name": "a", "size": -1}', "size"),
        (b'{"name": "a", "size": 9223372036854775808}', "size"),
        (b'{"name": "a", "size": %s}' % (b"9" * 5000), "size"),
        (b'{"name": "a", "size": NaN}', "body"),
        (b'{"name": "a", "size": 01}', "body"),
        (b'{"name": "a"}', "size"),
        (b'{"size": 1}', "name"),
        (b'{"name": null, "size": 1}', "name"),
        (b'{"name": 5, "size": 1}', "name"),
        (b'{"name": "a", "size": 1, "chunk_size": null}', "chunk_size"),
        (b'{"name": "a", "size": 1, "chunk_size": 0}', "chunk_size"),
        (b'{"name": "a", "size": 1, "sha256": null}', "sha256"),
        (b'{"name": "a", "size": 1, "instant": 1}', "instant"),
        (b'{"name": "a", "size": 1, "instant": "true"}', "instant"),
        (b'{"name": "a", "size": 1, "more": 1}', "more"),
        (b'{"name": "a", "size": 1, "Size": 1}', "Size"),
        (b'{"name": "a", "name": "b", "size": 1}', "name"),
        (b'{"name": "a", "n\\u0061me": "a", "size": 1}', "name"),
        (b'{"name": "\xff", "size": 1}', "body"),
        (b'{"name": "\xed\xa0\x80", "size": 1}', "body"),
        (b'{"name": "\\ud800", "size": 1}', "body"),
        (b'\xef\xbb\xbf{"name": "a", "size": 1}', "body"),
        ('{"name": "a", "size": 1}'.encode("utf-16"), "body"),
        (b'{"name": "a", "size": 1} {}', "body"),
        (b'{"name": "a", "size": 1,}', "body"),
        (b'{"name": %s' % (b"[" * 100_000), "name"),
        (b"[" * 100_000, "body"),
        (b'{"name": "a", "size": 1, "more": %s' % (b"[" * 100_000), "more"),
        (b"[]", "body"),
        (b"null", "body"),
        (b"{", "body"),
        (b"", "body"),
        (gzip.compress(b'{"name": "a", "size": 1}', mtime=0), "body"),
        (b'{"name": "a", "size": 1}' + b" " * (300 << 10), "body"),
    ],
)
async def test_json_is_taken_strictly(stack: Stack, body: bytes, field: str) -> None:
    answer = problem(await stack.client.post(URL, content=body), 422, "invalid-request")
    assert [error["field"] for error in answer["errors"]] == [field]
    assert all(error["reason"] for error in answer["errors"])
    assert (await stack.client.get("/uploads")).json() == {"uploads": []}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/uploads", {"name": "a", "size": 1, "md5": "0" * 32}),
        ("POST", "/uploads", {"name": "a"}),
        ("PATCH", "/uploads/{id}", {"md5": None}),
        ("PATCH", "/uploads/{id}", {"md5": "0" * 31}),
        ("PATCH", "/uploads/{id}", {"md5": "0" * 32 + "\n"}),
        ("PATCH", "/uploads/{id}", {"md5": "0" * 32, "sha256": "x"}),
        ("PATCH", "/uploads/{id}", {}),
        ("POST", "/files/status", {"md5s": ["0" * 31]}),
        ("POST", "/files/status", {"md5s": ["0" * 32] * 1001}),
        ("POST", "/files/status", {"md5s": "0" * 32}),
        ("PUT", "/admin/users/bob", {"total_space": "10GiB"}),
        ("PUT", "/admin/users/bob", {"total_space": -1}),
        ("PUT", "/admin/users/bob", {"total_space": 2**63}),
        ("PUT", "/admin/users/bob", {}),
    ],
)
async def test_every_body_is_taken_strictly(stack: Stack, method: str, path: str, body: dict[str, Any]) -> None:
    client = await stack.client_of("root", admin=True)
    opened = (await client.post("/uploads", json={"name": "a", "size": 1})).json()["upload"]
    answer = problem(await client.request(method, path.format(id=opened["id"]), json=body), 422, "invalid-request")
    assert answer["errors"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "nonsense"])
async def test_the_content_type_is_ignored(stack: Stack, kind: str) -> None:
    body = b' {"name": "a", "size": 1}\n'
    assert (await stack.client.post(URL, content=body, headers={"Content-Type": kind})).status_code == 201


# The order of the checks


async def test_routing_is_checked_before_the_token(stack: Stack) -> None:
    problem(await stack.anonymous().get("/nothing"), 404, "not-found")
    problem(await stack.anonymous().patch(URL), 405, "method-not-allowed")


async def test_the_token_is_checked_before_the_path(stack: Stack) -> None:
    problem(await stack.anonymous().get("/files/zzz"), 401, "unauthenticated")
    problem(await stack.client.put("/admin/users/a%20b", content=b"{"), 403, "forbidden")


async def test_the_path_is_checked_before_the_syntax_of_the_body(stack: Stack) -> None:
    problem(await stack.client.post("/files/zzz", content=b"{"), 422, "invalid-md5")
    encoded = {"Content-Encoding": "gzip"}
    response = await stack.client.put("/files/zzz/chunks/x", content=b"x", headers=encoded)
    problem(response, 422, "invalid-md5")
    response = await stack.client.put(f"{URL}/chunks/x", content=b"x", headers=encoded)
    problem(response, 422, "chunk-number-out-of-range")
    problem(await stack.client.put("/uploads/zzz/chunks/x", content=b"x", headers=encoded), 404, "upload-not-found")
    problem(await stack.client.patch("/uploads/zzz", content=b"{"), 404, "upload-not-found")


async def test_the_syntax_of_the_body_is_checked_before_the_state(stack: Stack) -> None:
    await stack.open(CONTENT)
    problem(await stack.client.post(URL, json={"name": "a", "size": "1"}), 422, "invalid-request")
    response = await stack.client.put(f"/files/{'0' * 32}/chunks/0", content=b"x", headers={"Content-Encoding": "br"})
    problem(response, 415, "unsupported-media-type")
    problem(await stack.client.patch(f"/uploads/{'0' * 32}", json={}), 422, "invalid-request")


async def test_the_state_is_checked_before_the_chunk_number(stack: Stack) -> None:
    problem(await stack.client.put(f"{URL}/chunks/99", content=b"x"), 404, "upload-not-found")
    await stack.open(CONTENT)
    await stack.put(CONTENT, 0)
    await stack.client.delete(URL)
    problem(await stack.client.put(f"{URL}/chunks/99", content=b"x"), 410, "upload-gone")


async def test_the_chunk_number_is_checked_before_the_length(stack: Stack) -> None:
    await stack.open(CONTENT)
    problem(await stack.client.put(f"{URL}/chunks/2", content=b"x"), 422, "chunk-number-out-of-range")


async def test_a_duplicate_is_noticed_before_the_length_and_the_digest(stack: Stack) -> None:
    await stack.open(CONTENT)
    await stack.put(CONTENT, 0)
    for content, headers in ((b"x", {}), (CONTENT.chunk(0), {"Content-MD5": "nonsense"})):
        response = await stack.client.put(f"{URL}/chunks/0", content=content, headers=headers)
        assert (response.status_code, response.json()["duplicate"]) == (200, True)


async def test_the_length_is_checked_before_the_digest(stack: Stack) -> None:
    await stack.open(CONTENT)
    headers = {"Content-MD5": "nonsense"}
    response = await stack.client.put(f"{URL}/chunks/0", content=b"x", headers=headers)
    problem(response, 422, "chunk-length-mismatch")


# Other users


async def test_to_others_an_upload_is_not_there(stack: Stack) -> None:
    upload = (await stack.open(CONTENT)).json()["upload"]
    bob = await stack.client_of("bob")
    by_id = f"/uploads/{upload['id']}"
    for base, query in ((URL, ""), (by_id, ""), (URL, f"?id={upload['id']}")):
        problem(await bob.get(base + query), 404, "upload-not-found")
        problem(await bob.delete(base + query), 404, "upload-not-found")
        problem(await bob.post(f"{base}/merge{query}"), 404, "upload-not-found")
        chunk = await bob.put(f"{base}/chunks/0{query}", content=CONTENT.chunk(0))
        problem(chunk, 404, "upload-not-found")
    problem(await bob.patch(by_id, json={"md5": "0" * 32}), 404, "upload-not-found")
    assert (await bob.get("/uploads")).json() == {"uploads": []}
    states = (await bob.post("/files/status", json={"md5s": [CONTENT.md5]})).json()
    assert states == {CONTENT.md5: {"state": "absent"}}
    assert (await stack.client.get(URL)).json()["upload"]["received_bytes"] == 0


async def test_to_others_a_closed_upload_was_never_there(stack: Stack) -> None:
    upload = (await stack.open(CONTENT)).json()["upload"]
    await stack.client.delete(URL)
    bob = await stack.client_of("bob")
    problem(await bob.get(URL), 404, "upload-not-found")
    problem(await bob.get(f"/uploads/{upload['id']}"), 404, "upload-not-found")


async def test_to_others_a_file_is_not_there(stack: Stack) -> None:
    file = (await stack.upload(CONTENT)).json()["file"]
    bob = await stack.client_of("bob")
    path = f"/me/files/{file['id']}"
    problem(await bob.get(path), 404, "file-not-found")
    problem(await bob.get(f"{path}/content"), 404, "file-not-found")
    problem(await bob.patch(path, json={"name": "mine"}), 404, "file-not-found")
    problem(await bob.delete(path), 404, "file-not-found")
    problem(await bob.get(URL), 404, "upload-not-found")
    assert (await bob.get("/me/files")).json()["files"] == []
    assert (await stack.client.get(path)).json() == file


async def test_even_an_administrator_does_not_see_the_files_of_others(stack: Stack) -> None:
    file = (await stack.upload(CONTENT)).json()["file"]
    root = await stack.client_of("root", admin=True)
    problem(await root.get(f"/me/files/{file['id']}/content"), 404, "file-not-found")
