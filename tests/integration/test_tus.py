"""tus 1.0.0 as its text has it (https://tus.io/protocols/resumable-upload); each test names the section."""

import asyncio
import base64
import errno
import hashlib
import threading
import zlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.faults import failing_call
from tests.support.invariants import Account, checked_accounts
from tests.support.sockets import serving_stack
from tests.support.stack import GIB, Stack, without_database
from tests.support.streams import Sending
from tests.support.waiting import eventually
from uploader.http.resumable import request
from uploader.http.resumable.request import name_of, parse_metadata
from uploader.service.results import Target
from uploader.storage.local import locks

CONTENT = Content(130 * KIB)
TUS = {"Tus-Resumable": "1.0.0"}
BYTES = {**TUS, "Content-Type": "application/offset+octet-stream"}
URL = "/resumable"


@pytest.fixture
async def stack(make_stack: MakeStack) -> AsyncIterator[Stack]:
    async with make_stack(cors_origins=("https://app.example",), chunk_size_bytes=64 * KIB) as made:
        yield made


def metadata_of(**pairs: str) -> str:
    return ",".join(f"{key} {base64.b64encode(value.encode()).decode()}" for key, value in pairs.items())


async def create(stack: Stack, size: int = CONTENT.size, content: bytes = b"", **headers: Any) -> httpx2.Response:
    said = {"Upload-Length": str(size), **(BYTES if content else TUS)}
    said |= {name.replace("_", "-"): value for name, value in headers.items()}
    return await stack.client.post(URL, content=content, headers=said)


async def created(stack: Stack, size: int = CONTENT.size, **headers: Any) -> str:
    """The path of a new upload."""
    response = await create(stack, size, **headers)
    assert response.status_code == 201
    assert response.headers["location"].startswith("http://test/resumable/")
    return str(response.headers["location"]).removeprefix("http://test")


async def patch(stack: Stack, path: str, offset: int, content: bytes, **more: str) -> httpx2.Response:
    headers = {"Upload-Offset": str(offset), **BYTES, **{name.replace("_", "-"): value for name, value in more.items()}}
    return await stack.client.patch(path, content=content, headers=headers)


async def head(stack: Stack, path: str) -> httpx2.Response:
    response = await stack.client.head(path, headers=TUS)
    assert response.headers["cache-control"] == "no-store"
    return response


def problem(response: httpx2.Response, status: int, code: str) -> Any:
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    assert response.json()["status"] == status
    assert response.headers["tus-resumable"] == "1.0.0"
    return response.json()


async def test_core_an_upload_from_its_creation_to_the_file(stack: Stack) -> None:
    """Core Protocol, HEAD and PATCH; Creation; Expiration."""
    text = metadata_of(filename="böse\0/der Name.bin", filetype="text/plain") + ",empty"
    path = await created(stack, Upload_Metadata=text)
    for start, end in ((0, 1), (1, 64 * KIB), (64 * KIB, 100 * KIB)):
        response = await patch(stack, path, start, CONTENT.data[start:end])
        assert (response.status_code, response.content) == (204, b"")
        assert response.headers["upload-offset"] == str(end)
        assert response.headers["tus-resumable"] == "1.0.0"
        assert parsedate_to_datetime(response.headers["upload-expires"]) > stack.services.clock.now()
        asked = await head(stack, path)
        assert (asked.status_code, asked.headers["upload-offset"]) == (200, str(end))
        assert asked.headers["upload-length"] == str(CONTENT.size)
        assert asked.headers["upload-metadata"] == text, "byte for byte"
    last = await patch(stack, path, 100 * KIB, CONTENT.data[100 * KIB :])
    assert (last.status_code, last.headers["upload-offset"]) == (204, str(CONTENT.size))
    (file,) = (await stack.client.get("/me/files")).json()["files"]
    assert (file["name"], file["sha256"], file["size"]) == ("der Name.bin", CONTENT.sha256, CONTENT.size)
    asked = await head(stack, path)
    assert (asked.headers["upload-offset"], asked.headers["upload-metadata"]) == (str(CONTENT.size), text)
    assert (await patch(stack, path, CONTENT.size, b"")).status_code == 204, "who lost the answer asks again"
    problem(await patch(stack, path, 0, CONTENT.data), 409, "offset-mismatch")


async def test_core_the_offset_has_to_be_the_current_one(stack: Stack) -> None:
    """Core Protocol, PATCH: "If the offsets do not match, the Server MUST respond with the 409 Conflict status without
    modifying the upload resource." Upload-Offset: "MUST be a non-negative integer"."""
    path = await created(stack)
    await patch(stack, path, 0, CONTENT.data[:10])
    for offset in (0, 9, 11, 64 * KIB):
        assert problem(await patch(stack, path, offset, CONTENT.data[:9]), 409, "offset-mismatch")["offset"] == 10
    for wrong in ("-1", "1.0", "x", "", "1e3", "９"):
        headers = {name.encode(): value.encode() for name, value in {**BYTES, "Upload-Offset": wrong}.items()}
        problem(await stack.client.patch(path, content=b"x", headers=headers), 400, "invalid-request")
    problem(await stack.client.patch(path, content=b"x", headers=BYTES), 400, "invalid-request")
    assert (await head(stack, path)).headers["upload-offset"] == "10"


async def test_core_another_content_type_is_415(stack: Stack) -> None:
    """Core Protocol, PATCH: "All PATCH requests MUST use Content-Type: application/offset+octet-stream, otherwise the server
    SHOULD return a 415 Unsupported Media Type status.\""""
    path = await created(stack)
    for kind in ("application/octet-stream", "text/plain", ""):
        response = await patch(stack, path, 0, b"x", Content_Type=kind)
        problem(response, 415, "unsupported-media-type")
    problem(await create(stack, content=b"x", Content_Type="text/plain"), 415, "unsupported-media-type")


async def test_core_another_version_is_412_and_is_told_which_are_spoken(stack: Stack) -> None:
    """Core Protocol, Tus-Version: "If the version specified by the Client is not supported by the Server, it MUST respond
    with the 412 Precondition Failed status and MUST include the Tus-Version header into the response. In addition, the
    Server MUST NOT process the request." Tus-Resumable: in every request and response, but those of OPTIONS."""
    path = await created(stack)
    requests = [("POST", URL, {"Upload-Length": "5"}), ("HEAD", path, {}), ("DELETE", path, {})]
    requests += [("PATCH", path, {"Upload-Offset": "0", "Content-Type": BYTES["Content-Type"]})]
    for version in ({}, {"Tus-Resumable": "0.2.2"}, {"Tus-Resumable": "1.0.1"}):
        for method, url, headers in requests:
            if not version and not headers:
                continue  # no word of tus
            response = await stack.client.request(method, url, headers={**headers, **version})
            assert response.status_code == 412
            assert response.headers["tus-version"] == response.headers["tus-resumable"] == "1.0.0"
    assert (await head(stack, path)).headers["upload-offset"] == "0"
    for response in (
        await stack.anonymous().head(path, headers=TUS),
        await stack.client.get(path, headers=TUS),
        await stack.client.patch(f"{URL}/none", headers=BYTES),
    ):
        assert response.status_code in (401, 404, 405)
        assert response.headers["tus-resumable"] == "1.0.0"


async def test_core_options_tells_what_is_spoken_and_asks_for_no_token(stack: Stack) -> None:
    """Core Protocol, OPTIONS: 204 or 200, with Tus-Version; Tus-Extension and Tus-Max-Size where there are any."""
    for url in (URL, f"{URL}/anything"):
        for headers in ({}, TUS, {"Tus-Resumable": "0.1"}):
            response = await stack.anonymous().options(url, headers=headers)
            assert response.status_code == 204
            assert response.headers["tus-version"] == "1.0.0"
            assert response.headers["tus-max-size"] == str(stack.services.openings.max_file_size_bytes)
            extensions = set(response.headers["tus-extension"].split(","))
            assert extensions == {
                *("creation", "creation-with-upload", "creation-defer-length"),
                *("checksum", "checksum-trailer", "expiration", "termination"),
                *("concatenation", "concatenation-unfinished"),
            }
            assert response.headers["tus-checksum-algorithm"] == "md5,sha1,sha256,crc32"


async def test_core_the_method_may_be_told_by_a_header(stack: Stack) -> None:
    """Core Protocol, X-HTTP-Method-Override: "The request method MUST be interpreted as the header's value"."""
    path = await created(stack)
    told = {**BYTES, "Upload-Offset": "0", "X-HTTP-Method-Override": "PATCH"}
    assert (await stack.client.post(path, content=b"12345", headers=told)).status_code == 204
    asked = await stack.client.post(path, headers={**TUS, "X-HTTP-Method-Override": "HEAD"})
    assert (asked.status_code, asked.headers["upload-offset"]) == (200, "5")
    assert (await stack.client.post(path, headers={**TUS, "X-HTTP-Method-Override": "DELETE"})).status_code == 204
    assert (await head(stack, path)).status_code == 410


async def test_core_the_method_is_that_of_the_header_whatever_the_actual_one_is(make_stack: MakeStack) -> None:
    """Core Protocol, X-HTTP-Method-Override: "ignoring the actual method". The actual one frames the answer: on a real
    connection, where a problem has a body unless the client itself knows it for an answer to HEAD."""
    async with serving_stack(make_stack) as server, server.connection() as connection:
        path = await created(server.stack, 5)
        for url, status in ((path, 200), (f"{URL}/none", 404), (path, 200)):
            await connection.request("POST", url, "X-HTTP-Method-Override: HEAD", "Tus-Resumable: 1.0.0")
            answer = await connection.answer()
            assert (answer.status, int(answer.headers["content-length"]) > 0) == (status, status == 404)
        told = ("X-HTTP-Method-Override: PATCH", "Tus-Resumable: 1.0.0", f"Content-Type: {BYTES['Content-Type']}")
        await connection.request("PUT", path, *told, "Upload-Offset: 0", "Content-Length: 2")
        await connection.send(b"12")
        assert (await connection.answer()).status == 204
        await connection.request("HEAD", f"{URL}/none", *told, "Upload-Offset: 0")
        assert (await connection.answer(has_body=False)).status == 404
        await connection.request("GET", path, "X-HTTP-Method-Override: HEAD", "Tus-Resumable: 1.0.0")
        answer = await connection.answer()
        assert (answer.status, answer.headers["upload-offset"]) == (200, "2")


@pytest.mark.parametrize("spelling", ["/resumable", "/resumable/"])
async def test_core_uploads_are_created_at_an_address_with_a_slash_at_its_end_too(stack: Stack, spelling: str) -> None:
    """As other servers and the examples of clients have it."""
    asked = await stack.client.options(spelling)
    assert (asked.status_code, asked.headers["tus-version"]) == (204, "1.0.0")
    origin = {"Origin": "https://app.example"}
    preflight = {**origin, "Access-Control-Request-Method": "POST"}
    assert (await stack.client.options(spelling, headers=preflight)).status_code == 204
    said = {**BYTES, **origin, "Upload-Length": "3"}
    for method, more in (("POST", {}), ("PUT", {"X-HTTP-Method-Override": "POST"})):
        response = await stack.client.request(method, spelling, content=b"1", headers={**said, **more})
        assert (response.status_code, response.headers["upload-offset"]) == (201, "1")
        assert response.headers["access-control-allow-origin"] == "https://app.example"
        path = response.headers["location"].removeprefix("http://test")
        assert path.startswith("/resumable/")
        assert (await patch(stack, path, 1, b"23")).status_code == 204
        assert (await stack.client.head(f"{path}/", headers=TUS)).status_code == 404
    whole = await stack.client.post(spelling, content=b"456", headers={"Upload-Complete": "?1"})
    assert (whole.status_code, whole.headers["upload-complete"]) == (201, "?1")
    assert whole.headers["location"].startswith("/resumable/")
    for method in ("GET", "HEAD", "PATCH", "PUT", "DELETE"):
        response = await stack.client.request(method, spelling, headers=TUS)
        assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert (await stack.client.post(spelling, headers={**said, "Tus-Resumable": "0.2"})).status_code == 412
    anonymous = await stack.anonymous().post(spelling, headers=said)
    assert anonymous.status_code == 401


async def test_core_what_is_not_there_has_no_offset(stack: Stack) -> None:
    """Core Protocol, HEAD: "If the resource is not found, the Server SHOULD return either the 404 Not Found, 410 Gone or 403
    Forbidden status without the Upload-Offset header.\""""
    path = await created(stack)
    bob = await stack.client_of("bob")
    for client, url in ((stack.client, f"{URL}/{'0' * 32}"), (stack.client, f"{URL}/x"), (bob, path)):
        response = await client.head(url, headers=TUS)
        assert response.status_code == 404
        assert "upload-offset" not in response.headers
    await bob.aclose()


async def test_creation_its_length_has_to_be_told_and_fit(stack: Stack) -> None:
    """Creation, Upload-Length: "MUST be a non-negative integer"; "If the length of the upload exceeds the maximum ... the
    Server MUST respond with the 413 Request Entity Too Large status.\""""
    for wrong in ("-1", "x", "1.5", "", "1" * 19):
        problem(await create(stack, Upload_Length=wrong), 400, "invalid-request")
    problem(await stack.client.post(URL, headers=TUS), 400, "invalid-request")
    problem(await create(stack, stack.services.openings.max_file_size_bytes + 1), 413, "file-too-large")
    assert problem(await create(stack, 11 * GIB), 413, "quota-exceeded")["requested"] == 11 * GIB
    empty = await created(stack, 0, Upload_Metadata=metadata_of(name="empty.bin"))
    assert (await head(stack, empty)).headers["upload-offset"] == "0"
    assert [file["name"] for file in (await stack.client.get("/me/files")).json()["files"]] == ["empty.bin"]
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": 0}


async def created_deferred(stack: Stack, content: bytes = b"") -> str:
    headers = {"Upload-Defer-Length": "1", **(BYTES if content else TUS)}
    response = await stack.client.post(URL, content=content, headers=headers)
    assert response.status_code == 201, response.text
    return str(response.headers["location"]).removeprefix("http://test")


async def test_creation_defer_length_the_length_may_be_told_later(stack: Stack) -> None:
    """Creation, creation-defer-length: "the Client SHOULD set the Upload-Length header in the next PATCH request, once the
    length is known. Once set the length MUST NOT be changed."; Upload-Defer-Length: "If the length of the upload is not
    known, this header MUST be set to 1"; HEAD: "As long as the length of the upload is not known, the Server MUST set
    Upload-Defer-Length: 1 in all responses to HEAD requests.\""""
    path = await created_deferred(stack)
    for offset, end in ((0, 700), (700, 100 * KIB)):
        said = (await head(stack, path)).headers
        assert (said["upload-defer-length"], said["upload-offset"]) == ("1", str(offset))
        assert "upload-length" not in said
        assert (await patch(stack, path, offset, CONTENT.data[offset:end])).status_code == 204
    problem(await patch(stack, path, 100 * KIB, b"", Upload_Length="-1"), 400, "invalid-request")
    problem(await patch(stack, path, 100 * KIB, b"", Upload_Length=str(100 * KIB - 1)), 409, "size-mismatch")
    problem(await patch(stack, path, 99 * KIB, b"", Upload_Length=str(CONTENT.size)), 409, "offset-mismatch")
    assert (await head(stack, path)).headers["upload-defer-length"] == "1"
    assert (await patch(stack, path, 100 * KIB, b"", Upload_Length=str(CONTENT.size))).status_code == 204
    said = (await head(stack, path)).headers
    assert (said["upload-length"], said["upload-offset"]) == (str(CONTENT.size), str(100 * KIB))
    assert "upload-defer-length" not in said
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": CONTENT.size}
    problem(await patch(stack, path, 100 * KIB, b"", Upload_Length=str(CONTENT.size + 1)), 409, "size-mismatch")
    rest = CONTENT.data[100 * KIB :]
    assert (await patch(stack, path, 100 * KIB, rest, Upload_Length=str(CONTENT.size))).status_code == 204
    (file,) = (await stack.client.get("/me/files")).json()["files"]
    assert (file["sha256"], file["size"]) == (CONTENT.sha256, CONTENT.size)
    assert await stack.usage("alice") == {"finished": CONTENT.size, "unfinished": 0, "reserved": 0}


async def test_creation_defer_length_with_the_first_and_the_last_bytes(stack: Stack) -> None:
    """Creation With Upload; "the Upload-Length header in the next PATCH request, once the length is known\"."""
    path = await created_deferred(stack, CONTENT.data[:1000])
    assert (await head(stack, path)).headers["upload-offset"] == "1000"
    problem(await patch(stack, path, 1000, CONTENT.data[1000:], Upload_Length="2000"), 413, "file-too-large")
    response = await patch(stack, path, 1000, CONTENT.data[1000:], Upload_Length=str(CONTENT.size))
    assert (response.status_code, response.headers["upload-offset"]) == (204, str(CONTENT.size))
    (file,) = (await stack.client.get("/me/files")).json()["files"]
    assert file["sha256"] == CONTENT.sha256
    empty = await created_deferred(stack)
    assert (await patch(stack, empty, 0, b"", Upload_Length="0")).headers["upload-offset"] == "0"
    assert await stack.usage("alice") == {"finished": CONTENT.size, "unfinished": 0, "reserved": 0}


async def test_creation_defer_length_is_1_and_excludes_a_length(stack: Stack) -> None:
    """Upload-Defer-Length: "The value MUST be 1 ... Otherwise the Server MUST return a 400 Bad Request status.\""""
    for headers in ({"Upload-Defer-Length": "0"}, {"Upload-Defer-Length": "1", "Upload-Length": "5"}):
        problem(await stack.client.post(URL, headers={**TUS, **headers}), 400, "invalid-request")
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": 0}


async def test_creation_metadata_is_pairs_of_different_keys(stack: Stack) -> None:
    """Creation, Upload-Metadata: "The key and value MUST be separated by a space. The key MUST NOT contain spaces and commas
    and MUST NOT be empty. The key SHOULD be ASCII encoded and the value MUST be Base64 encoded. All keys MUST be
    unique.\""""
    for wrong in (",", "a b c", "a !!", "a Zg==,a Zg==", "a Zg==,", "\t,b", "x " + "A" * 4096):
        problem(await create(stack, Upload_Metadata=wrong), 400, "invalid-request")
    for wrong in ("\xa0", "a Zg==,\x85b", "a\xa0Zg=="):  # white space to Python, and no ASCII
        headers = {b"Upload-Metadata": wrong.encode("latin-1"), b"Tus-Resumable": b"1.0.0", b"Upload-Length": b"5"}
        problem(await stack.client.post(URL, headers=headers), 400, "invalid-request")
    assert parse_metadata("a Zg==, b") == {"a": "f", "b": ""}
    assert (await create(stack, Upload_Metadata="")).status_code == 201, "clients that have none to tell send this"


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ({"filename": "a.txt", "name": "b.txt"}, "a.txt"),
        ({"name": "b.txt", "relativePath": "c/d"}, "b.txt"),
        ({"relativePath": "photos/2026/c.jpg"}, "photos/2026/c.jpg"),
        ({"filename": "c.jpg", "relativePath": "/photos/2026/c.jpg"}, "photos/2026/c.jpg"),
        ({"filename": "c.jpg", "relativePath": "../2026/c.jpg"}, "c.jpg"),
        ({"filename": "c.jpg", "relativePath": "photos/\0/c.jpg"}, "c.jpg"),
        ({"filename": "c.jpg", "relativePath": "null"}, "c.jpg"),
        ({"filename": "C:\\Users\\me\\a.txt"}, "a.txt"),
        ({"filename": "x" * 300}, "x" * 255),
        ({"filename": "ä" * 200}, "ä" * 127),
        ({"filename": ".."}, "upload-7"),
        ({"filename": "a/"}, "upload-7"),
        ({}, "upload-7"),
    ],
)
def test_a_name_is_made_of_what_is_told(said: dict[str, str], name: str) -> None:
    assert name_of(said, "7") == name


async def test_creation_with_upload_counts_the_bytes_that_came(stack: Stack) -> None:
    """Creation With Upload: "The Server MUST include the Upload-Offset header in the response"; the offset is of the bytes
    that were accepted."""
    response = await create(stack, content=CONTENT.data[: 70 * KIB])
    assert (response.status_code, response.headers["upload-offset"]) == (201, str(70 * KIB))
    path = response.headers["location"].removeprefix("http://test")
    assert (await head(stack, path)).headers["upload-offset"] == str(70 * KIB)
    assert (await patch(stack, path, 70 * KIB, CONTENT.data[70 * KIB :])).status_code == 204
    whole = await create(stack, content=CONTENT.data, Upload_Metadata=metadata_of(filename="whole.bin"))
    assert (whole.status_code, whole.headers["upload-offset"]) == (201, str(CONTENT.size))
    problem(await create(stack, 5, content=b"123456"), 413, "file-too-large")
    names = sorted(file["name"] for file in (await stack.client.get("/me/files")).json()["files"])
    assert (len(names), names[1]) == (2, "whole.bin")
    assert (await stack.usage("alice"))["reserved"] == 0


@pytest.mark.parametrize("ending", ["time-out", "full", "busy", "too long", "gone", "cancelled"])
async def test_creation_with_upload_that_breaks_off_is_told_or_holds_nothing(stack: Stack, ending: str) -> None:
    """Where going on may help its client learns where it ends; else nobody would know of an upload that holds room."""
    headers = [(name.lower().encode(), value.encode()) for name, value in BYTES.items()]
    headers += [(b"authorization", stack.client.headers["authorization"].encode()), (b"host", b"test")]
    headers += [(b"transfer-encoding", b"chunked"), (b"upload-length", b"%d" % (70 * KIB))]
    scope = {"type": "http", "method": "POST", "path": URL, "query_string": b"", "headers": headers, "scheme": "http"}
    answers: list[Any] = []

    async def answer(message: Any) -> None:
        answers.append(message)

    received: asyncio.Queue[Any] = asyncio.Queue()
    received.put_nowait({"type": "http.request", "body": CONTENT.data[: 66 * KIB], "more_body": True})
    stack.app.intake._idle_timeout_seconds = 0.05 if ending == "time-out" else 5.0
    if ending == "busy":
        stack.services.appends.concurrency._limit = 0
    with failing_call(
        "pwrite", errno.ENOSPC, at=1 if ending == "full" else 10**9, only=lambda path: path.name == "data"
    ):
        creating = asyncio.create_task(stack.app(scope, received.get, answer))
        if ending == "too long":
            received.put_nowait({"type": "http.request", "body": bytes(5 * KIB), "more_body": False})
        elif ending in ("gone", "cancelled"):
            await eventually(partial(is_empty, received))
            if ending == "gone":
                received.put_nowait({"type": "http.disconnect"})
            else:
                creating.cancel()
        elif ending != "time-out":
            received.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        await asyncio.gather(creating, return_exceptions=True)
    held = (await stack.usage("alice"))["reserved"]
    if ending in ("too long", "gone", "cancelled"):
        assert held == 0
        assert [message["status"] for message in answers[:1]] == {"too long": [413], "gone": [400]}.get(ending, [])
        return
    told = {name.decode(): value.decode() for name, value in answers[0]["headers"]}
    end = 66 * KIB if ending == "time-out" else 0
    assert (answers[0]["status"], told["upload-offset"], held) == (201, str(end), 70 * KIB)
    assert (await head(stack, told["location"].removeprefix("http://test"))).headers["upload-offset"] == str(end)


async def is_empty(queue: "asyncio.Queue[Any]") -> bool:
    return queue.empty()


async def test_more_bytes_than_the_length_are_413_and_make_no_file(stack: Stack) -> None:
    path = await created(stack, 10)

    async def untold() -> AsyncIterator[bytes]:
        yield b"12345678901"

    problem(await patch(stack, path, 0, b"12345678901"), 413, "file-too-large")
    headers = {**BYTES, "Upload-Offset": "0"}
    problem(await stack.client.patch(path, content=untold(), headers=headers), 413, "file-too-large")
    assert (await head(stack, path)).headers["upload-offset"] == "0"


def checksum_of(content: bytes, algorithm: str) -> str:
    crc = zlib.crc32(content).to_bytes(4, "big")
    value = crc if algorithm == "crc32" else hashlib.new(algorithm, content, usedforsecurity=False).digest()
    return f"{algorithm} {base64.b64encode(value).decode()}"


@pytest.mark.parametrize("budget", [64 << 20, 256 << 10])
async def test_checksum_what_does_not_have_it_counts_for_nothing(make_stack: MakeStack, budget: int) -> None:
    """Checksum: "If the checksum does not match, the Server MUST respond with the 460 Checksum Mismatch status", and discard
    the bytes; 400 for an algorithm that is not supported; SHA1 MUST be. In memory, and in the spool."""
    async with make_stack(chunk_size_bytes=64 * KIB, body_budget_bytes=budget) as stack:
        path, offset = await created(stack), 0
        for algorithm, end in (("md5", 10), ("sha1", 70 * KIB), ("sha256", 70 * KIB + 1), ("crc32", CONTENT.size)):
            content = CONTENT.data[offset:end]
            wrong = checksum_of(content + b"?", algorithm)
            problem(await patch(stack, path, offset, content, Upload_Checksum=wrong), 460, "digest-mismatch")
            assert (await head(stack, path)).headers["upload-offset"] == str(offset)
            right = checksum_of(content, algorithm)
            response = await patch(stack, path, offset, content, Upload_Checksum=right)
            assert (response.status_code, response.headers["upload-offset"]) == (204, str(end))
            offset = end
        (file,) = (await stack.client.get("/me/files")).json()["files"]
        assert file["sha256"] == CONTENT.sha256
        path = await created(stack, 10)
        for bad in ("sha512 eA==", "sha1", "sha1 eA==", "sha1 !!", ""):
            problem(await patch(stack, path, 0, b"x", Upload_Checksum=bad), 400, "bad-request")
        right = checksum_of(b"x", "sha1")
        problem(await patch(stack, path, 5, b"x", Upload_Checksum=right), 409, "offset-mismatch")
        too_long = checksum_of(b"x" * 11, "sha1")
        problem(await patch(stack, path, 0, b"x" * 11, Upload_Checksum=too_long), 413, "file-too-large")
        problem(await create(stack, 5, content=b"12", Upload_Checksum=right), 460, "digest-mismatch")
        assert (await stack.usage("alice"))["reserved"] == 10, "an upload that nobody knows of holds nothing"
        told = await create(stack, 5, content=b"12", Upload_Checksum=checksum_of(b"12", "sha1"))
        assert (told.status_code, told.headers["upload-offset"]) == (201, "2")


async def test_checksum_trailer_it_may_come_after_the_body(make_stack: MakeStack) -> None:
    """Checksum: "If the hash cannot be calculated at the beginning of the upload, it MAY be included as a trailer. If the
    Server can handle trailers, this behavior MUST be announced by adding checksum-trailer to the Tus-Extension header.\""""
    right, wrong = (f"Upload-Checksum: {checksum_of(content, 'sha1')}" for content in (b"12345", b"other"))
    async with serving_stack(make_stack) as server, server.connection() as connection:
        path = await created(server.stack, 5)
        told = [f"{name}: {value}" for name, value in BYTES.items()] + [
            "Upload-Offset: 0",
            "Transfer-Encoding: chunked",
        ]
        for announced, trailer, status in (
            ("Trailer: X-Other, upload-checksum", wrong, 460),
            ("Trailer: Upload-Checksum", "X-Other: 1", 400),
            ("Trailer: Upload-Checksum", f"{right}\r\n{right}", 400),
            ("Trailer: Upload-Checksum", "Upload-Checksum: sha1 ?", 400),
            ("Trailer: Upload-Checksum", f"X-Other: 1\r\n{right}", 204),
        ):
            assert (await head(server.stack, path)).headers["upload-offset"] == "0"
            await connection.request("PATCH", path, *told, announced)
            await connection.send(f"3\r\n123\r\n2\r\n45\r\n0\r\n{trailer}\r\n\r\n".encode())
            assert (await connection.answer(has_body=status != 204)).status == status
        path = await created(server.stack, 5)
        await connection.request("PATCH", path, *told)
        await connection.send(f"5\r\n12345\r\n0\r\n{wrong}\r\n\r\n".encode())
        assert (await connection.answer(has_body=False)).status == 204, "nobody announced it, so it is none"


async def test_checksum_bodies_are_bounded_before_they_are_read(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may need as much room again as they are long: no more at once than other bodies, none longer than a chunk may
    be, and none where the disk has no room."""
    threads: list[str] = []

    def listening(body: Any, algorithm: str, compute: Any = request._checksum_of) -> bytes:
        threads.append(threading.current_thread().name)
        return bytes(compute(body, algorithm))

    monkeypatch.setattr(request, "_checksum_of", listening)
    async with make_stack(chunk_size_bytes=64 * KIB, max_chunk_size_bytes=64 * KIB, max_concurrent_chunks=1) as stack:
        path = await created(stack)
        target, sending = Target("alice", upload_id=path.rpartition("/")[2]), Sending(stack, 1000)
        right = checksum_of(CONTENT.data[:1000], "sha1")
        source = request.CheckedBody(sending.source, request.parse_checksum(right).check)
        hanging = asyncio.create_task(stack.services.appends.append_whole(target, 0, source))
        sending.send(CONTENT.data[:10])
        await eventually(sending.is_taken)
        content = CONTENT.data[:1000]
        problem(await patch(stack, path, 0, content, Upload_Checksum=right), 429, "too-many-requests")
        sending.leave()
        await asyncio.gather(hanging, return_exceptions=True)
        long = CONTENT.data[: 64 * KIB + 1]
        too_long = await patch(stack, path, 0, long, Upload_Checksum=checksum_of(long, "sha1"))
        assert problem(too_long, 413, "file-too-large")["limit"] == 64 * KIB
        assert threads == []
        assert (await patch(stack, path, 0, content, Upload_Checksum=right)).status_code == 204, "counted once"
        assert [name.startswith("hashing") for name in threads] == [True]
        stack.services.admission._floor_bytes, stack.services.admission._known = 1 << 60, None
        problem(await patch(stack, path, 1000, content, Upload_Checksum=right), 507, "storage-full")
        assert (await patch(stack, path, 1000, CONTENT.data[1000:2000])).status_code == 204, "it has its room"


async def test_expiration_an_upload_that_expired_is_gone(stack: Stack) -> None:
    """Expiration: "If a Client attempts to resume an upload which has since been removed by the Server, the Server SHOULD
    respond with the 404 Not Found or 410 Gone status.\""""
    path = await created(stack)
    await stack.services.uploads.expire(path.rpartition("/")[2], 0)
    assert (await head(stack, path)).status_code == 410
    problem(await patch(stack, path, 0, b"x"), 410, "upload-gone")


async def test_termination_gives_everything_back(stack: Stack) -> None:
    """Termination: "the Server SHOULD free associated resources and MUST respond with the 204 No Content status"; "For all
    future requests to this URL, the Server SHOULD respond with the 404 Not Found or 410 Gone status.\""""
    path = await created(stack)
    await patch(stack, path, 0, CONTENT.data[: 70 * KIB])
    assert (await stack.client.delete(path, headers=TUS)).status_code == 204
    problem(await stack.client.delete(path, headers=TUS), 410, "upload-gone")
    problem(await patch(stack, path, 70 * KIB, b"x"), 410, "upload-gone")
    assert await checked_accounts(stack.services.database) == {"alice": Account()}
    done = (await create(stack, content=CONTENT.data)).headers["location"].removeprefix("http://test")
    assert (await stack.client.delete(done, headers=TUS)).status_code == 204
    assert (await head(stack, done)).status_code == 404
    assert len((await stack.client.get("/me/files")).json()["files"]) == 1, "the file is its owner's"


async def test_one_upload_under_both_protocols(stack: Stack) -> None:
    path = await created(stack)
    native = path.replace("resumable", "uploads")
    await patch(stack, path, 0, CONTENT.data[:100])
    assert (await stack.client.put(f"{native}/chunks/1", content=CONTENT.chunk(1))).status_code == 200
    (listed,) = (await stack.client.get("/uploads")).json()["uploads"]
    assert (f"/uploads/{listed['id']}", listed["received_bytes"]) == (native, 64 * KIB + 100)
    response = await patch(stack, path, 100, CONTENT.data[100 : 64 * KIB])
    assert response.headers["upload-offset"] == str(128 * KIB)
    assert (await stack.client.put(f"{native}/chunks/2", content=CONTENT.chunk(2))).status_code == 201
    assert (await head(stack, path)).headers["upload-offset"] == str(CONTENT.size)
    (file,) = (await stack.client.get("/me/files")).json()["files"]
    assert (file["md5"], file["sha256"]) == (None, CONTENT.sha256)


async def test_a_request_that_hangs_is_displaced_and_one_that_does_not_let_go_is_423(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await created(stack)
    target, sending = Target("alice", upload_id=path.rpartition("/")[2]), Sending(stack, CONTENT.size)
    hanging = asyncio.create_task(stack.services.appends.append(target, 0, sending.source))
    sending.send(CONTENT.data[:1000])
    await eventually(sending.is_taken)
    assert (await head(stack, path)).headers["upload-offset"] == "1000"
    await asyncio.gather(hanging, return_exceptions=True)
    monkeypatch.setattr(locks, "PATIENCE_SECONDS", 0.02)
    upload: Any = await stack.services.uploads.find(target)
    holding: AbstractAsyncContextManager[Any] = stack.services.storage.appending(upload)
    async with holding:
        for response in (await patch(stack, path, 1000, b"x"), await stack.client.delete(path, headers=TUS)):
            problem(response, 423, "unavailable")
            assert response.headers["retry-after"] == "1"
        assert (await head(stack, path)).status_code == 423


async def test_what_the_server_can_not_tell_for_the_moment_is_no_end_of_the_upload(
    make_stack: MakeStack, sqlite_url: str
) -> None:
    """tus-js-client and Uppy take every other answer than 2xx and 423 to a HEAD for that, and begin another one."""
    async with make_stack(database_url=sqlite_url) as stack:
        path, unknown = await created(stack), await created_deferred(stack)
        async with without_database(stack):
            response = await stack.client.head(path, headers=TUS)
            assert (response.status_code, "retry-after" in response.headers) == (423, True)
            assert (await patch(stack, unknown, 0, b"x")).status_code == 423
            assert (await patch(stack, path, 0, b"x")).status_code == 204, "as a chunk, where the upload is remembered"
        assert (await head(stack, path)).headers["upload-offset"] == "1"
        assert (await head(stack, unknown)).headers["upload-offset"] == "0"


async def test_location_is_what_the_client_reaches_the_server_by(make_stack: MakeStack) -> None:
    async def location(stack: Stack, **headers: Any) -> str:
        response = await create(stack, 5, **headers)
        return str(response.headers["location"]).rpartition("/")[0]

    forwarded = {"X_Forwarded_Proto": "https", "X_Forwarded_Host": "files.example, inner"}
    async with make_stack() as stack:
        assert await location(stack, Host="here:8000") == "http://here:8000/resumable"
        assert await location(stack, **forwarded) == "http://test/resumable", "anybody could say so"
    async with make_stack(trusted_proxies=("127.0.0.1/32",)) as stack:
        assert await location(stack, **forwarded) == "https://files.example/resumable"
        by = 'for=1.2.3.4;host="files.example:8443";proto=https, for=5.6.7.8;host=inner'
        assert await location(stack, Forwarded=by) == "https://files.example:8443/resumable"
        assert await location(stack, X_Forwarded_Host="evil/../") == "/resumable", "nothing that leads elsewhere"


async def test_pages_of_allowed_origins_may_call_and_read_what_they_need(stack: Stack) -> None:
    wanted = "tus-resumable,upload-concat,upload-length,upload-metadata,upload-offset,x-http-method-override"
    wanted += ",x-requested-with"
    asks = {"Origin": "https://app.example", "Access-Control-Request-Method": "PATCH"}
    response = await stack.anonymous().options(f"{URL}/x", headers={**asks, "Access-Control-Request-Headers": wanted})
    assert response.status_code == 204
    assert set(wanted.split(",")) <= set(response.headers["access-control-allow-headers"].lower().split(", "))
    told = await create(stack, Origin="https://app.example")
    exposed = set(told.headers["access-control-expose-headers"].lower().split(", "))
    assert exposed >= {
        "location",
        "tus-resumable",
        "upload-offset",
        "upload-length",
        "upload-concat",
        "upload-expires",
        "upload-metadata",
    }


async def test_no_quota_is_exceeded_by_any_protocol(stack: Stack) -> None:
    """At the edge: two that together do not fit."""
    bob = await stack.client_of("bob", total_space=100)
    headers = {**TUS, "Upload-Length": "60"}
    native = {"name": "x", "size": 60}
    answers = await asyncio.gather(bob.post(URL, headers=headers), bob.post("/uploads", json=native))
    assert sorted(answer.status_code for answer in answers) == [201, 413]
    assert (await checked_accounts(stack.services.database))["bob"].reserved == 60
    await bob.aclose()
