"""Resumable uploads of HTTP as draft-ietf-httpbis-resumable-upload-12 has them; each test names the section. Versions of the
draft that clients in use speak: test_rufh_versions.py. What only shows on a connection: test_rufh_sockets.py."""

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from starlette.datastructures import Headers

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.invariants import Account, checked_accounts
from tests.support.stack import GIB, Stack
from tests.support.streams import Sending
from tests.support.waiting import eventually
from uploader.http.resumable.rufh import filename_in
from uploader.service.results import Target
from uploader.storage.local import locks

CONTENT = Content(130 * KIB)
URL = "/resumable"
MORE, LAST = {"Upload-Complete": "?0"}, {"Upload-Complete": "?1"}
PARTIAL = {"Content-Type": "application/partial-upload"}
TYPES = "https://iana.org/assignments/http-problem-types#"


@pytest.fixture
async def stack(make_stack: MakeStack) -> AsyncIterator[Stack]:
    async with make_stack(cors_origins=("https://app.example",), chunk_size_bytes=64 * KIB) as made:
        yield made


async def create(stack: Stack, content: bytes = b"", **headers: Any) -> httpx2.Response:
    told = {name.replace("_", "-"): value for name, value in headers.items()}
    return await stack.client.post(URL, content=content, headers=told)


async def created(stack: Stack, size: int = CONTENT.size, content: bytes = b"") -> str:
    """The path of a new upload, which is not complete."""
    response = await create(stack, content, Upload_Complete="?0", Upload_Length=str(size))
    assert (response.status_code, response.headers["upload-complete"]) == (201, "?0")
    assert response.headers["upload-offset"] == str(len(content))
    return str(response.headers["location"])


async def patch(stack: Stack, path: str, offset: int, content: Any, **more: Any) -> httpx2.Response:
    told: dict[str, Any] = {"Upload-Offset": str(offset), "Upload-Complete": "?0", **PARTIAL}
    told |= {name.replace("_", "-"): value for name, value in more.items()}
    return await stack.client.patch(path, content=content, headers={k: v for k, v in told.items() if v is not None})


async def state(stack: Stack, path: str) -> tuple[int, str, int]:
    """Offset, completeness and length, as a HEAD tells them."""
    response = await stack.client.head(path)
    assert (response.status_code, response.headers["cache-control"]) == (204, "no-store")
    headers = response.headers
    return int(headers["upload-offset"]), headers["upload-complete"], int(headers["upload-length"])


def problem(response: httpx2.Response, status: int, code: str, kind: str = "") -> Any:
    body = response.json()
    assert (response.status_code, body["status"], body["code"]) == (status, status, code), response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert body["type"] == (TYPES + kind if kind else f"/problems/{code}")
    return body


async def names(stack: Stack) -> list[str]:
    return [file["name"] for file in (await stack.client.get("/me/files")).json()["files"]]


async def test_an_upload_from_its_creation_to_the_file(stack: Stack) -> None:
    """Sections 4.2.2, 4.3.2 and 4.4.2."""
    path = await created(stack, content=CONTENT.data[:1])
    assert path.startswith("/resumable/"), "relative: a proxy that is not told rewrites it, or need not"
    for start, end in ((1, 64 * KIB), (64 * KIB, 100 * KIB)):
        response = await patch(stack, path, start, CONTENT.data[start:end])
        assert (response.status_code, response.headers["upload-complete"]) == (204, "?0")
        assert response.headers["upload-offset"] == str(end)
        assert "location" not in response.headers
        assert await state(stack, path) == (end, "?0", CONTENT.size)
    last = await patch(stack, path, 100 * KIB, CONTENT.data[100 * KIB :], Upload_Complete="?1")
    assert (last.status_code, last.headers["upload-complete"]) == (201, "?1")
    assert last.headers["location"] == path
    file = (await stack.client.get(last.headers["content-location"])).json()
    assert (file["sha256"], file["size"]) == (CONTENT.sha256, CONTENT.size)
    assert await state(stack, path) == (CONTENT.size, "?1", CONTENT.size)
    again = await stack.client.head(path)
    assert again.headers["content-location"] == last.headers["content-location"], "section 9: who lost the answer asks"


async def test_4_1_1_the_offset_is_one_number_or_there_is_none(stack: Stack) -> None:
    """Upload-Offset: "Its value is a non-negative Integer"; "Other values MUST cause the entire header field to be
    ignored.\""""
    path = await created(stack)
    for wrong in ("-1", "1.0", "x", "", "1e3", '"0"', "0, 0", "1" * 16):
        problem(await patch(stack, path, 0, b"x", Upload_Offset=wrong), 400, "invalid-request")
    problem(await patch(stack, path, 0, b"x", Upload_Offset=None), 400, "invalid-request")
    assert (await patch(stack, path, 0, b"x", Upload_Offset="0;a=b")).status_code == 204, "an Item may have parameters"
    assert await state(stack, path) == (1, "?0", CONTENT.size)


async def test_4_1_1_the_offset_does_not_decrease(stack: Stack) -> None:
    """ "Representation data processed by the upload resource cannot be removed again and, therefore, the offset MUST NOT
    decrease.\""""
    path = await created(stack, content=CONTENT.data[: 70 * KIB])
    for stale in (0, 64 * KIB, 70 * KIB - 1):
        problem(await patch(stack, path, stale, b"other"), 409, "offset-mismatch", "mismatching-upload-offset")
        assert await state(stack, path) == (70 * KIB, "?0", CONTENT.size)


async def test_4_1_1_an_upload_whose_bytes_are_lost_is_gone(stack: Stack) -> None:
    """ "If the server loses any part of the state, it MUST deactivate the upload resource and reject further interaction
    with it.\""""
    path = await created(stack, content=b"123")
    await stack.services.uploads.expire(path.rpartition("/")[2], 0)
    assert (await stack.client.head(path)).status_code == 410
    problem(await patch(stack, path, 3, b"x"), 410, "upload-gone")


async def test_4_1_2_completeness_that_is_no_boolean_is_as_none(stack: Stack) -> None:
    """Upload-Complete: "Its value is a Boolean"; "Other values MUST cause the entire header field to be ignored": then a
    POST is any POST, and a PATCH lacks what section 4.4.1 asks for."""
    for wrong in ("true", "1", "?2", "", "?0, ?1"):
        whole = await create(stack, b"Hello", Upload_Complete=wrong, Content_Disposition="inline; filename=hello.txt")
        assert (whole.status_code, whole.headers["upload-complete"]) == (201, "?1")
    path = await created(stack)
    for bad in ("true", "", None):
        problem(await patch(stack, path, 0, b"x", Upload_Complete=bad), 400, "invalid-request")
    assert await state(stack, path) == (0, "?0", CONTENT.size)


async def test_4_1_2_only_its_client_says_that_it_is_complete(stack: Stack) -> None:
    """ "An upload is incomplete until it is explicitly marked as completed by the client." Section 4.1.3: "The offset could
    match the length, but the upload can still be incomplete.\""""
    path = await created(stack)
    response = await patch(stack, path, 0, CONTENT.data)
    assert (response.status_code, response.headers["upload-complete"]) == (204, "?0")
    assert await state(stack, path) == (CONTENT.size, "?0", CONTENT.size)
    problem(
        await patch(stack, path, CONTENT.size, b"", Upload_Length="7"),
        400,
        "size-mismatch",
        "inconsistent-upload-length",
    )
    assert (await patch(stack, path, CONTENT.size, b"")).status_code == 204
    last = await patch(stack, path, CONTENT.size, b"", Upload_Complete="?1")
    assert (last.status_code, last.headers["upload-complete"]) == (201, "?1")
    assert (await stack.client.get(last.headers["content-location"])).json()["sha256"] == CONTENT.sha256
    assert await state(stack, path) == (CONTENT.size, "?1", CONTENT.size)


async def test_4_1_3_lengths_that_are_told_match(stack: Stack) -> None:
    """ "If indicators (1) and (2) are both present in the same request, their indicated lengths MUST match. If multiple
    requests include indicators, their indicated values MUST match." """
    inconsistent = ("size-mismatch", "inconsistent-upload-length")
    response = await create(stack, b"12345", Upload_Complete="?1", Upload_Length="100")
    problem(response, 400, *inconsistent)
    assert response.headers["upload-complete"] == "?0"
    problem(
        await create(stack, b"123456", Upload_Complete="?0", Upload_Length="5"), 400, "file-too-large", inconsistent[1]
    )
    assert (await stack.usage("alice"))["reserved"] == 0
    path = await created(stack, 100)
    response = await patch(stack, path, 0, b"x" * 32, Upload_Length="50")
    problem(response, 400, *inconsistent)
    assert response.headers["upload-complete"] == "?0"
    problem(await patch(stack, path, 0, b"x" * 32, Upload_Complete="?1"), 400, *inconsistent)
    moved = await patch(stack, path, 7, b"x" * 32, Upload_Complete="?1", Upload_Length="50")
    problem(moved, 409, "offset-mismatch", "mismatching-upload-offset")
    assert await state(stack, path) == (0, "?0", 100)
    assert (await patch(stack, path, 0, b"x" * 32, Upload_Length="100")).status_code == 204
    assert await state(stack, path) == (32, "?0", 100), "recorded, and kept"
    for ignored in ("-1", "x", "1.5"):
        whole = await create(stack, b"12345", Upload_Complete="?1", Upload_Length=ignored)
        assert whole.status_code == 201, "other values MUST cause the entire header field to be ignored"


async def test_4_1_3_the_length_may_be_told_later(stack: Stack) -> None:
    """ "MUST include the length in the Upload-Length header field, unless the client has not supplied one"; it is "the
    sum of the current offset and the Content-Length header field value" where the content is the last."""
    for ends in ("last", "told", "empty", "chunked"):
        opened = await create(stack, b"123", Upload_Complete="?0")
        assert (opened.status_code, opened.headers["upload-offset"]) == (201, "3")
        path = opened.headers["location"]
        asked = await stack.client.head(path)
        assert (asked.headers["upload-offset"], asked.headers["upload-complete"]) == ("3", "?0")
        assert "upload-length" not in asked.headers
        assert (await patch(stack, path, 3, b"4")).status_code == 204

        async def rest() -> AsyncIterator[bytes]:
            yield b"5"

        if ends == "told":
            assert (await patch(stack, path, 4, b"", Upload_Length="5")).status_code == 204
            assert await state(stack, path) == (4, "?0", 5)
            problem(
                await patch(stack, path, 4, b"", Upload_Length="6"), 400, "size-mismatch", "inconsistent-upload-length"
            )
        if ends == "empty":
            assert (await patch(stack, path, 4, b"5")).status_code == 204
        content: Any = {"empty": b"", "chunked": rest()}.get(ends, b"5")
        last = await patch(stack, path, 5 if ends == "empty" else 4, content, Upload_Complete="?1")
        assert (last.status_code, last.headers["upload-complete"]) == (201, "?1")
        assert await state(stack, path) == (5, "?1", 5)
        assert (await stack.client.get(last.headers["content-location"])).json()["size"] == 5
    assert await stack.usage("alice") == {"finished": 20, "unfinished": 0, "reserved": 0}


async def test_4_1_3_the_length_of_a_whole_upload_need_not_be_told(stack: Stack) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, CONTENT.size, 10 * KIB):
            yield CONTENT.data[start : start + 10 * KIB]

    async def nothing() -> AsyncIterator[bytes]:
        yield b""

    for headers in (LAST, {}):
        response = await stack.client.post(URL, content=pieces(), headers=headers)
        assert (response.status_code, response.headers["upload-complete"]) == (201, "?1")
        assert await state(stack, response.headers["location"]) == (CONTENT.size, "?1", CONTENT.size)
        assert (await stack.client.get(response.headers["content-location"])).json()["sha256"] == CONTENT.sha256
    empty = await stack.client.post(URL, content=nothing(), headers=LAST)
    assert (empty.status_code, await state(stack, empty.headers["location"])) == (201, (0, "?1", 0))
    digest = {"Repr-Digest": digest_of(b"x", "md5")}
    problem(await stack.client.post(URL, content=pieces(), headers=digest), 400, "invalid-request")
    assert (await stack.usage("alice"))["reserved"] == 0


async def test_4_1_4_a_limit_holds_though_no_length_is_told(make_stack: MakeStack) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, CONTENT.size, 10 * KIB):
            yield CONTENT.data[start : start + 10 * KIB]

    async with make_stack(chunk_size_bytes=64 * KIB, max_file_size_bytes=100 * KIB) as stack:
        opened = await create(stack, Upload_Complete="?0")
        path = opened.headers["location"]
        for content in (CONTENT.data, pieces()):
            response = await patch(stack, path, int((await stack.client.head(path)).headers["upload-offset"]), content)
            problem(response, 413, "file-too-large")
            assert "max-size=102400" in response.headers["upload-limit"]
        assert (await stack.client.delete(path)).status_code == 204
        whole = await stack.client.post(URL, content=pieces(), headers=LAST)
        problem(whole, 413, "file-too-large")
        bob = await stack.client_of("bob", total_space=50 * KIB)
        problem(await bob.post(URL, content=pieces(), headers=LAST), 413, "quota-exceeded")
        await bob.aclose()
        assert not any(account.reserved for account in (await checked_accounts(stack.services.database)).values())


async def test_4_1_4_limits_are_told(stack: Stack) -> None:
    """OPTIONS: "the server MUST include the Accept-Patch header field"; "A server responding with a 413 ... MUST include the
    Upload-Limit header in this response". Sections 4.2.2 and 4.3.2: with the creation and with the offset."""
    most = stack.services.openings.max_file_size_bytes
    for url in (URL, f"{URL}/anything"):
        for headers in ({}, LAST):
            options = await stack.anonymous().options(url, headers=headers)
            assert options.status_code == 204
            assert options.headers["accept-patch"] == "application/partial-upload"
            assert options.headers["upload-limit"] == f"max-size={most}, max-age={7 * 86400}"
            assert options.headers["tus-version"] == "1.0.0"
    response = await create(stack, Upload_Complete="?0", Upload_Length=str(most + 1))
    problem(response, 413, "file-too-large")
    assert response.headers["upload-limit"] == f"max-size={most}"
    response = await create(stack, Upload_Complete="?0", Upload_Length=str(11 * GIB))
    problem(response, 413, "quota-exceeded")
    assert "upload-limit" in response.headers
    opened = await create(stack, Upload_Complete="?0", Upload_Length="5")
    asked = await stack.client.head(opened.headers["location"])
    for answer in (opened, asked):
        limits = dict(item.split("=") for item in answer.headers["upload-limit"].split(", "))
        assert limits["max-size"] == str(most)
        assert 0 < int(limits["max-age"]) <= 7 * 86400


async def test_4_2_1_a_creation_may_be_empty(stack: Stack) -> None:
    """ "If the Upload-Complete header field is then set to true, the client intends to upload an empty representation. An
    Upload-Complete header field set to false is also valid." """
    empty = await create(stack, Upload_Complete="?1", Content_Disposition='inline; filename="empty.bin"')
    assert (empty.status_code, empty.headers["upload-complete"]) == (201, "?1")
    assert await state(stack, empty.headers["location"]) == (0, "?1", 0)
    await created(stack, 0)
    assert len(await names(stack)) == 2
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": 0}


async def test_4_2_2_a_whole_upload_in_one_request(stack: Stack) -> None:
    """With the header or without it: "any request that can carry content"."""
    for headers in ({"Upload_Complete": "?1", "Upload_Length": str(CONTENT.size)}, {"Upload_Complete": "?1"}, {}):
        response = await create(stack, CONTENT.data, **headers)
        assert (response.status_code, response.headers["upload-complete"]) == (201, "?1")
        assert response.headers["upload-offset"] == str(CONTENT.size)
        assert await state(stack, response.headers["location"]) == (CONTENT.size, "?1", CONTENT.size)
        file = (await stack.client.get(response.headers["content-location"])).json()
        assert (file["sha256"], file["name"]) == (CONTENT.sha256, f"upload-{response.headers['location'][11:]}")
    form = await create(stack, b"--x--", Content_Type="multipart/form-data; boundary=x")
    problem(form, 415, "unsupported-media-type")


async def test_4_2_2_an_upload_that_nobody_was_told_of_ends_with_its_request(stack: Stack) -> None:
    async def short() -> AsyncIterator[bytes]:
        yield b"123"

    response = await stack.client.post(URL, content=short(), headers={**LAST, "Upload-Length": "5"})
    problem(response, 400, "size-mismatch", "inconsistent-upload-length")
    assert await checked_accounts(stack.services.database) == {"alice": Account()}


async def test_4_3_1_who_asks_tells_nothing(stack: Stack) -> None:
    path = await created(stack, content=b"12345")
    for headers in ({"Upload-Offset": "5"}, MORE, {"Upload-Incomplete": "?1"}):
        assert (await stack.client.head(path, headers=headers)).status_code == 400
    assert (await stack.client.get(path)).headers["upload-offset"] == "5", "GET as HEAD"
    bob = await stack.client_of("bob")
    for client, url in ((stack.client, f"{URL}/{'0' * 32}"), (stack.client, f"{URL}/x"), (bob, path)):
        for method in ("HEAD", "PATCH", "DELETE"):
            headers = {"Upload-Offset": "5", **MORE, **PARTIAL} if method == "PATCH" else {}
            response = await client.request(method, url, headers=headers)
            assert response.status_code == 404
            assert "upload-offset" not in response.headers
    await bob.aclose()


async def test_4_4_1_what_is_appended_has_its_media_type(stack: Stack) -> None:
    path = await created(stack)
    for wrong in ("text/plain", "application/octet-stream", None):
        response = await patch(stack, path, 0, b"x", Content_Type=wrong)
        problem(response, 415, "unsupported-media-type")
        assert response.headers["accept-patch"] == "application/partial-upload"
    told = await stack.client.patch(
        path, content=b"x", headers={**MORE, **PARTIAL, "Upload-Offset": "0", "Content-Encoding": "gzip"}
    )
    problem(told, 415, "unsupported-media-type")
    assert (await patch(stack, path, 0, b"x", Content_Type="Application/Partial-Upload; a=b")).status_code == 204


async def test_4_4_1_an_empty_append_is_one(stack: Stack) -> None:
    path = await created(stack, 3)
    response = await patch(stack, path, 0, b"")
    assert (response.status_code, response.headers["upload-offset"]) == (204, "0")
    problem(await patch(stack, path, 0, b"", Upload_Complete="?1"), 400, "size-mismatch", "inconsistent-upload-length")


async def test_4_4_2_another_offset_is_409_with_the_right_one(stack: Stack) -> None:
    """ "the server MUST reject the request with a 409 (Conflict) status code. The response MUST include the correct offset
    in the Upload-Offset header field." Section 7.1."""
    path = await created(stack, content=CONTENT.data[:10])
    for offset in (0, 9, 11, 64 * KIB, CONTENT.size):
        response = await patch(stack, path, offset, CONTENT.data[:9])
        said = problem(response, 409, "offset-mismatch", "mismatching-upload-offset")
        assert (said["expected-offset"], said["provided-offset"]) == (10, offset)
        assert (response.headers["upload-offset"], response.headers["upload-complete"]) == ("10", "?0")
    assert await state(stack, path) == (10, "?0", CONTENT.size)


async def test_4_4_2_what_is_complete_is_not_appended_to(stack: Stack) -> None:
    """ "If the upload is already complete, the server MUST NOT modify the upload resource and MUST reject the request"; "If
    the client attempted to append a non-zero length document, the server MUST treat this as an inconsistent length
    failure." Section 7.2."""
    whole = await create(stack, b"12345", Upload_Complete="?1")
    path = whole.headers["location"]
    for complete in ("?0", "?1"):
        more = {"Upload_Complete": complete}
        response = await patch(stack, path, 5, b"6", **more)
        problem(response, 400, "size-mismatch", "inconsistent-upload-length")
        assert response.headers["upload-complete"] == "?0", "of the upload, not of the file"
        problem(await patch(stack, path, 5, b"", **more), 400, "bad-request", "completed-upload")
        problem(await patch(stack, path, 0, b"12345", **more), 409, "offset-mismatch", "mismatching-upload-offset")
    assert await state(stack, path) == (5, "?1", 5)


@pytest.mark.parametrize("length_told", [True, False])
async def test_4_4_2_what_exceeds_the_length_makes_the_upload_invalid(stack: Stack, length_told: bool) -> None:
    """ "the server MUST prevent the offset from exceeding the upload length by rejecting the request once the offset exceeds
    the length, marking the upload resource invalid and rejecting any further interaction with it. It is not sufficient to
    rely on the Content-Length header field" """

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, 100 * KIB, 10 * KIB):
            yield CONTENT.data[start : start + 10 * KIB]

    for digest in (
        None,
        "sha-256=:" + base64.b64encode(hashlib.sha256(CONTENT.data[: 100 * KIB]).digest()).decode() + ":",
    ):
        path = await created(stack, 70 * KIB)
        content: Any = CONTENT.data[: 100 * KIB] if length_told else pieces()
        response = await patch(stack, path, 0, content, Content_Digest=digest)
        problem(response, 400, "file-too-large", "inconsistent-upload-length")
        assert response.headers["upload-complete"] == "?0"
        assert (await stack.client.head(path)).status_code == 410
        gone = problem(await patch(stack, path, 0, b""), 410, "upload-gone")
        assert gone["reason"] == "length-exceeded"
    assert await checked_accounts(stack.services.database) == {"alice": Account()}


async def test_4_4_2_what_exceeds_it_after_the_last_byte_does_so_too(stack: Stack) -> None:
    path = await created(stack, 5)
    assert (await patch(stack, path, 0, b"12345")).status_code == 204

    async def untold() -> AsyncIterator[bytes]:
        yield b"6"

    problem(await patch(stack, path, 5, untold()), 400, "file-too-large", "inconsistent-upload-length")
    assert (await stack.client.head(path)).status_code == 404
    assert len(await names(stack)) == 1, "what was announced came, and is a file"


async def test_4_4_2_the_end_may_be_untold(stack: Stack) -> None:
    path = await created(stack, content=b"123", size=5)

    async def rest() -> AsyncIterator[bytes]:
        yield b"4"
        yield b"5"

    async def nothing() -> AsyncIterator[bytes]:
        yield b""

    assert (await patch(stack, path, 3, rest())).status_code == 204
    last = await patch(stack, path, 5, nothing(), Upload_Complete="?1")
    assert (last.status_code, await state(stack, path)) == (201, (5, "?1", 5))


async def test_4_5_cancellation_gives_everything_back(stack: Stack) -> None:
    path = await created(stack, content=CONTENT.data[: 70 * KIB])
    assert (await stack.client.delete(path)).status_code == 204
    assert (await stack.client.head(path)).status_code == 410
    problem(await patch(stack, path, 70 * KIB, b"x"), 410, "upload-gone")
    problem(await stack.client.delete(path), 410, "upload-gone")
    assert await checked_accounts(stack.services.database) == {"alice": Account()}
    done = (await create(stack, b"12345", Upload_Complete="?1")).headers["location"]
    assert (await stack.client.delete(done)).status_code == 204
    assert (await stack.client.head(done)).status_code == 404
    assert len(await names(stack)) == 1, "the file is its owner's"


async def test_4_6_a_newer_request_ends_the_older_one(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "the server MUST take measures to prevent race conditions, data loss and corruption"; "the server MUST NOT send
    outdated information in responses when retrieving the offset"."""
    path = await created(stack)
    target, sending = Target("alice", upload_id=path.rpartition("/")[2]), Sending(stack, CONTENT.size)
    hanging = asyncio.create_task(stack.services.appends.append(target, 0, sending.source))
    sending.send(CONTENT.data[:1000])
    await eventually(sending.is_taken)
    assert await state(stack, path) == (1000, "?0", CONTENT.size)
    await asyncio.gather(hanging, return_exceptions=True)
    answers = await asyncio.gather(*(patch(stack, path, 1000, CONTENT.data[1000:2000]) for _ in range(3)))
    assert [answer.status_code for answer in answers].count(204) <= 1
    assert await state(stack, path) == (2000, "?0", CONTENT.size)
    monkeypatch.setattr(locks, "PATIENCE_SECONDS", 0.02)
    upload: Any = await stack.services.uploads.find(target)
    holding: Any = stack.services.storage.appending(upload)
    async with holding:
        for response in (await patch(stack, path, 2000, b"x"), await stack.client.delete(path)):
            problem(response, 503, "unavailable")
            assert response.headers["retry-after"] == "2"
        assert (await stack.client.head(path)).status_code == 503


def digest_of(content: bytes, *algorithms: str) -> str:
    def encoded(algorithm: str) -> str:
        computed = hashlib.new(algorithm.replace("-", ""), content, usedforsecurity=False).digest()
        return f"{algorithm}=:{base64.b64encode(computed).decode()}:"

    return ", ".join(encoded(algorithm) for algorithm in algorithms)


@pytest.mark.parametrize("algorithms", [("sha-256",), ("md5",), ("md5", "sha-256")])
async def test_10_1_a_file_has_the_digest_that_was_told(stack: Stack, algorithms: tuple[str, ...]) -> None:
    """ "If the digests don't match, the server SHOULD consider the upload failed, not process the representation further,
    and signal the failure to the client." """
    wrong, right = digest_of(b"other", *algorithms), digest_of(CONTENT.data, *algorithms)
    response = await create(stack, CONTENT.data, Upload_Complete="?1", Repr_Digest=wrong)
    problem(response, 422, "md5-mismatch" if algorithms == ("md5",) else "sha256-mismatch")
    assert response.headers["upload-complete"] == "?1", "all came; it is the file that failed"
    told = {"Upload-Length": str(CONTENT.size), "Repr-Digest": wrong, **MORE}
    path = (await stack.client.post(URL, headers=told)).headers["location"]
    response = await patch(stack, path, 0, CONTENT.data, Upload_Complete="?1")
    assert (response.status_code, response.headers["upload-complete"]) == (422, "?1")
    assert (await stack.client.head(path)).status_code == 410
    assert await checked_accounts(stack.services.database) == {"alice": Account()}
    response = await create(stack, CONTENT.data, Upload_Complete="?1", Repr_Digest=right)
    assert (response.status_code, response.headers["repr-digest"]) == (201, digest_of(CONTENT.data, "sha-256"))
    for bad in ("md5=x", "sha-256=:eA==:"):
        problem(await create(stack, b"x", Upload_Complete="?1", Repr_Digest=bad), 400, "invalid-request")
    ignored = await create(
        stack, b"x", Upload_Complete="?1", Repr_Digest="sha-512=:eA==:", Want_Repr_Digest="sha-256=9"
    )
    assert ignored.headers["repr-digest"] == digest_of(b"x", "sha-256")


async def test_10_1_an_md5_that_another_upload_has_is_told(stack: Stack) -> None:
    other = (await stack.open(CONTENT)).json()["upload"]["id"]
    told = {"Upload-Length": str(CONTENT.size), "Repr-Digest": digest_of(CONTENT.data, "md5"), **MORE}
    refused = problem(await stack.client.post(URL, headers=told), 409, "upload-exists")
    assert refused["id"] == other


@pytest.mark.parametrize("budget", [64 << 20, 256 << 10])
async def test_10_2_content_without_its_digest_counts_for_nothing(make_stack: MakeStack, budget: int) -> None:
    """ "If the digests don't match the server SHOULD consider the transfer failed, not append the content to the upload
    resource, and signal the failure to the client." In memory, and in the spool."""
    async with make_stack(chunk_size_bytes=64 * KIB, body_budget_bytes=budget) as stack:
        path, offset = await created(stack), 0
        for algorithm, end in (("md5", 10), ("sha-256", 70 * KIB), ("sha-256", CONTENT.size)):
            content = CONTENT.data[offset:end]
            response = await patch(stack, path, offset, content, Content_Digest=digest_of(content + b"?", algorithm))
            problem(response, 400, "digest-mismatch")
            assert await state(stack, path) == (offset, "?0", CONTENT.size)
            assert (
                await patch(stack, path, offset, content, Content_Digest=digest_of(content, algorithm))
            ).status_code == 204
            offset = end
        problem(
            await create(stack, b"x", Upload_Complete="?1", Content_Digest=digest_of(b"y", "md5")),
            400,
            "digest-mismatch",
        )
        assert await stack.usage("alice") == {"finished": CONTENT.size, "unfinished": 0, "reserved": 0}
        whole = await create(stack, b"x", Upload_Complete="?1", Content_Digest=digest_of(b"x", "md5", "sha-256"))
        assert whole.status_code == 201


@pytest.mark.parametrize(
    ("disposition", "name"),
    [
        ('inline; filename="a b.jpg"', "a b.jpg"),
        ("attachment; filename=a.jpg", "a.jpg"),
        ("inline; filename=\"file name.jpg\"; filename*=UTF-8''b%C3%B6se.jpg", "böse.jpg"),
        ("inline; filename*=utf-8'de'b%c3%b6se%22.jpg; filename=x", 'böse".jpg'),
        ("inline; filename*=ISO-8859-1''b%f6se.jpg", "böse.jpg"),
        ("inline; filename*=x''y; filename=z", "z"),
        (r'inline; filename="a\"b;c\\.jpg"', 'a"b;c\\.jpg'),
        ('inline; filename="b\xc3\xb6se.jpg"', "böse.jpg"),
        ('inline; filename="b\xf6se.jpg"', "böse.jpg"),
        ('inline; FileName = "a.jpg"', "a.jpg"),
        ("inline", None),
        ("inline; filename=", None),
        ("", None),
    ],
)
def test_4_2_1_the_name_is_that_of_the_disposition(disposition: str, name: str | None) -> None:
    raw = [(b"content-disposition", disposition.encode("latin-1"))]
    assert filename_in(Headers(raw=raw)) == name


async def test_4_2_1_a_name_is_made_valid(stack: Stack) -> None:
    """Section 13: "metadata MUST be validated and/or sanitized"."""
    for told, name in (("../../etc/passwd", "passwd"), ("a\u202eb", "ab"), ("C:\\x\\y.txt", "y.txt")):
        disposition = b"inline; filename*=UTF-8''" + "".join(f"%{byte:02x}" for byte in told.encode()).encode()
        response = await stack.client.post(URL, content=b"x", headers={b"content-disposition": disposition})
        assert (await stack.client.get(response.headers["content-location"])).json()["name"] == name
    # tus-js-client tells it as with tus.
    headers = {**LAST, "Upload-Metadata": "filename " + base64.b64encode(b"m.txt").decode()}
    response = await stack.client.post(URL, content=b"y", headers=headers)
    assert (await stack.client.get(response.headers["content-location"])).json()["name"] == "m.txt"


async def test_one_upload_under_all_protocols(stack: Stack) -> None:
    path = await created(stack)
    native = path.replace("resumable", "uploads")
    await patch(stack, path, 0, CONTENT.data[:100])
    assert (await stack.client.put(f"{native}/chunks/1", content=CONTENT.chunk(1))).status_code == 200
    tus = {"Tus-Resumable": "1.0.0", "Upload-Offset": "100", "Content-Type": "application/offset+octet-stream"}
    response = await stack.client.patch(path, content=CONTENT.data[100 : 64 * KIB], headers=tus)
    assert response.headers["upload-offset"] == str(128 * KIB)
    assert await state(stack, path) == (128 * KIB, "?0", CONTENT.size)
    last = await patch(stack, path, 128 * KIB, CONTENT.data[128 * KIB :], Upload_Complete="?1")
    assert (await stack.client.get(last.headers["content-location"])).json()["sha256"] == CONTENT.sha256


async def test_what_tus_alone_has_is_tus(stack: Stack) -> None:
    for headers in (
        {"Upload-Length": "5"},
        {"Upload-Metadata": "a Zg==", "Content-Length": "0"},
        {"Content-Type": "application/offset+octet-stream"},
    ):
        response = await stack.client.post(URL, headers=headers)
        assert (response.status_code, response.headers["tus-version"]) == (412, "1.0.0")
    assert (await stack.client.get(f"{URL}/x", headers={"Tus-Resumable": "1.0.0"})).status_code == 404


async def test_pages_of_allowed_origins_may_call_and_read_what_they_need(stack: Stack) -> None:
    wanted = "upload-complete,upload-draft-interop-version,upload-length,upload-offset,content-disposition,repr-digest"
    asks = {"Origin": "https://app.example", "Access-Control-Request-Method": "PATCH"}
    response = await stack.anonymous().options(f"{URL}/x", headers={**asks, "Access-Control-Request-Headers": wanted})
    assert set(wanted.split(",")) <= set(response.headers["access-control-allow-headers"].lower().split(", "))
    told = await create(stack, Upload_Complete="?0", Upload_Length="5", Origin="https://app.example")
    exposed = set(told.headers["access-control-expose-headers"].lower().split(", "))
    assert exposed >= {name for name in told.headers if name.startswith(("upload-", "location", "content-location"))}


async def test_no_quota_is_exceeded(stack: Stack) -> None:
    bob = await stack.client_of("bob", total_space=100)
    headers = {**MORE, "Upload-Length": "60"}
    answers = await asyncio.gather(bob.post(URL, headers=headers), bob.post(URL, content=b"x" * 60, headers=LAST))
    assert sorted(answer.status_code for answer in answers) == [201, 413]
    account = (await checked_accounts(stack.services.database))["bob"]
    assert account.reserved + account.finished == 60
    await bob.aclose()
