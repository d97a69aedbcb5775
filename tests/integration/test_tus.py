"""What tus 1.0.0 has alone, as its text has it (https://tus.io/protocols/resumable-upload); each test names the section.
Common to all protocols: test_resumable.py."""

import asyncio
import errno
import threading
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

import pytest

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.faults import failing_call
from tests.support.resumable import RESUMABLE, Tus, files_of, id_of, metadata_of, path_of, url_of
from tests.support.sockets import serving_stack
from tests.support.stack import Stack, without_database
from tests.support.streams import Sending
from tests.support.waiting import eventually
from uploader.domain.links import owner
from uploader.http.resumable import request
from uploader.http.resumable.request import name_of, parse_metadata
from uploader.service.results import Target

CONTENT = Content(130 * KIB)
SAYS = {"Tus-Resumable": "1.0.0"}
BYTES = {**SAYS, "Content-Type": "application/offset+octet-stream"}


@pytest.fixture
async def stack(make_stack: MakeStack) -> AsyncIterator[Stack]:
    async with make_stack(cors_origins=("https://app.example",), chunk_size_bytes=64 * KIB) as made:
        yield made


@pytest.fixture
def tus(stack: Stack) -> Tus:
    return Tus(stack.client)


async def test_core_an_upload_from_its_creation_to_the_file(stack: Stack, tus: Tus) -> None:
    """Core Protocol, HEAD and PATCH; Creation; Expiration."""
    text = metadata_of(filename="böse\0/der Name.bin", filetype="text/plain") + ",empty"
    opened = await tus.create(CONTENT.size, Upload_Metadata=text)
    path = path_of(opened)
    assert opened.headers["location"] == url_of(stack.client, path)
    for start, end in ((0, 100 * KIB), (100 * KIB, CONTENT.size)):
        response = await tus.patch(path, start, CONTENT.data[start:end])
        if end < CONTENT.size:
            assert parsedate_to_datetime(response.headers["upload-expires"]) > stack.services.clock.now()
        assert (await tus.head(path)).headers["upload-metadata"] == text, "byte for byte"
    assert [file["name"] for file in await files_of(stack.client)] == ["der Name.bin"]
    for length, status in ((str(CONTENT.size), 204), (None, 204), (str(CONTENT.size + 1), 409)):
        again = await tus.patch(path, CONTENT.size, Upload_Length=length)
        assert again.status_code == status, "who lost the answer asks again"
    tus.problem(await tus.patch(path, 0, CONTENT.data), 409, "offset-mismatch")


async def test_core_another_version_is_412_and_is_told_which_are_spoken(stack: Stack, tus: Tus) -> None:
    """Core Protocol, Tus-Version: "MUST respond with the 412 ... and MUST include the Tus-Version header"."""
    path = await tus.created(CONTENT.size)
    requests: list[tuple[str, str, dict[str, str]]] = [
        ("POST", RESUMABLE, {"Upload_Length": "5"}),
        ("POST", RESUMABLE, {"Upload_Metadata": "a Zg=="}),
        ("POST", RESUMABLE, {"Content_Type": BYTES["Content-Type"]}),
        ("PATCH", path, {"Upload_Offset": "0", "Content_Type": BYTES["Content-Type"]}),
        ("HEAD", path, {}),
        ("DELETE", path, {}),
    ]
    for version in (None, "0.2.2", "1.0.1"):
        for method, url, headers in requests if version else requests[:4]:  # the others have no word of tus
            response = await tus.send(method, url, **{**headers, "Tus_Resumable": version})
            assert response.status_code == 412
            assert response.headers["tus-version"] == response.headers["tus-resumable"] == "1.0.0"
    assert await tus.state(path) == (0, False, CONTENT.size)
    for response, status in (
        (await stack.anonymous().head(path, headers=SAYS), 401),
        (await tus.send("GET", path), 404),
        (await tus.patch(f"{RESUMABLE}/none", 0), 404),
    ):
        assert (response.status_code, response.headers["tus-resumable"]) == (status, "1.0.0")


async def test_core_the_method_is_that_of_the_header_whatever_the_actual_one_is(make_stack: MakeStack) -> None:
    """X-HTTP-Method-Override: "ignoring the actual method", which frames the answer: what answers a HEAD has no body."""
    async with serving_stack(make_stack) as server, server.connection() as connection:
        path, none = await Tus(server.stack.client).created(5), f"{RESUMABLE}/none"
        append = [f"{name}: {value}" for name, value in BYTES.items()] + ["Content-Length: 1"]
        for actual, said, url, offset, status in (
            ("POST", "HEAD", path, 0, 200),
            ("POST", "HEAD", none, 0, 404),
            ("PUT", "PATCH", path, 0, 204),
            ("POST", "PATCH", path, 1, 204),
            ("HEAD", "PATCH", none, 0, 404),
            ("GET", "HEAD", path, 2, 200),
            ("POST", "DELETE", path, 2, 204),
        ):
            more = [*append, f"Upload-Offset: {offset}"] if said == "PATCH" else ["Tus-Resumable: 1.0.0"]
            await connection.request(actual, url, f"X-HTTP-Method-Override: {said}", *more)
            await connection.send(b"1" if said == "PATCH" else b"")
            answer = await connection.answer(has_body=actual != "HEAD")
            assert (answer.status, int(answer.headers.get("content-length", 0)) > 0) == (status, status == 404)
            assert status != 200 or answer.headers["upload-offset"] == str(offset)
        assert (await Tus(server.stack.client).head(path)).status_code == 404


@pytest.mark.parametrize("spelling", [RESUMABLE, f"{RESUMABLE}/"])
async def test_core_the_address_may_end_with_a_slash(stack: Stack, tus: Tus, spelling: str) -> None:
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
        assert response.headers["location"] == url_of(stack.client, path_of(response))
        assert (await tus.patch(path_of(response), 1, b"23")).status_code == 204
        assert (await tus.head(f"{path_of(response)}/")).status_code == 404
    whole = await stack.client.post(spelling, content=b"456", headers={"Upload-Complete": "?1"})
    assert (whole.status_code, whole.headers["upload-complete"]) == (201, "?1")
    for method in ("GET", "HEAD", "PATCH", "PUT", "DELETE"):
        response = await stack.client.request(method, spelling, headers=SAYS)
        assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert (await stack.client.post(spelling, headers={**said, "Tus-Resumable": "0.2"})).status_code == 412
    assert (await stack.anonymous().post(spelling, headers=said)).status_code == 401


async def test_creation_its_headers_have_their_form(stack: Stack, tus: Tus) -> None:
    """Creation, Upload-Length: "MUST be a non-negative integer"; Upload-Defer-Length: "The value MUST be 1 ... Otherwise the
    Server MUST return a 400 Bad Request status."; Upload-Metadata: "The key and value MUST be separated by a space. The key
    MUST NOT contain spaces and commas and MUST NOT be empty. The key SHOULD be ASCII encoded and the value MUST be Base64
    encoded. All keys MUST be unique."; Checksum: 400 for an algorithm that is not supported. With content: 415."""
    lengths: list[str | None] = ["-1", "x", "1.5", "", "1" * 19, None]
    pairs = [",", "a b c", "a !!", "a Zg==,a Zg==", "a Zg==,", "\t,b", "x " + "A" * 4096]
    no_ascii = [text.encode("latin-1") for text in ("\xa0", "a Zg==,\x85b", "a\xa0Zg==")]  # white space to Python
    bad: list[dict[str, Any]] = [
        *({"Upload_Length": wrong} for wrong in lengths),
        *({"Upload_Defer_Length": "0", "Upload_Length": None}, {"Upload_Defer_Length": "1"}),
        *({"Upload_Metadata": wrong} for wrong in (*pairs, *no_ascii)),
    ]
    for said in bad:
        tus.problem(await tus.create(5, **said), 400, "invalid-request")
    tus.problem(await tus.create(5, b"x", Content_Type="text/plain"), 415, "unsupported-media-type")
    path = await tus.created(10)
    tus.problem(await tus.patch(path, 0, Upload_Length="-1"), 400, "invalid-request")
    for wrong in ("sha512 eA==", "sha1", "sha1 eA==", "sha1 !!", ""):
        tus.problem(await tus.patch(path, 0, b"x", Upload_Checksum=wrong), 400, "bad-request")
    tus.problem(await tus.patch(path, 5, b"x", **tus.digest(b"x")), 409, "offset-mismatch")
    tus.problem(await tus.patch(path, 0, b"x" * 11, **tus.digest(b"x" * 11)), 413, "file-too-large")
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": 10}
    assert parse_metadata("a Zg==, b") == {"a": "f", "b": ""}
    assert (await tus.create(5, Upload_Metadata="")).status_code == 201, "clients that have none to tell send this"


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


async def test_creation_with_upload_that_breaks_off_holds_nothing(stack: Stack, tus: Tus) -> None:
    for ending in ("full", "too long", "gone", "cancelled", "time-out", "busy"):
        await break_off(stack, tus, ending)


async def break_off(stack: Stack, tus: Tus, ending: str) -> None:
    """Where going on may help its client learns where it ends; else nobody would know of an upload that holds room."""
    said = {**BYTES, "Authorization": stack.client.headers["authorization"], "Host": "test"}
    said |= {"Transfer-Encoding": "chunked", "Upload-Length": str(70 * KIB)}
    headers = [(name.lower().encode(), value.encode()) for name, value in said.items()]
    scope = {"type": "http", "method": "POST", "path": RESUMABLE, "query_string": b"", "scheme": "http"}
    answers: list[Any] = []
    before = (await stack.usage("alice"))["reserved"]

    async def answer(message: Any) -> None:
        answers.append(message)

    received: asyncio.Queue[Any] = asyncio.Queue()
    received.put_nowait({"type": "http.request", "body": CONTENT.data[: 66 * KIB], "more_body": True})
    if ending == "time-out":
        stack.app.intake._idle_timeout_seconds = 0.05
    if ending == "busy":
        stack.services.appends.concurrency._limit = 0
    at = 1 if ending == "full" else 10**9
    with failing_call("pwrite", errno.ENOSPC, at=at, only=lambda path: path.name == "data"):
        creating = asyncio.create_task(stack.app({**scope, "headers": headers}, received.get, answer))
        if ending in ("too long", "full", "busy"):
            end = bytes(5 * KIB) if ending == "too long" else b""
            received.put_nowait({"type": "http.request", "body": end, "more_body": False})
        elif ending != "time-out":
            await eventually(partial(is_empty, received))
            if ending == "gone":
                received.put_nowait({"type": "http.disconnect"})
            else:
                creating.cancel()
        await asyncio.gather(creating, return_exceptions=True)
    held = (await stack.usage("alice"))["reserved"] - before
    if ending in ("too long", "gone", "cancelled"):
        assert held == 0
        assert [message["status"] for message in answers[:1]] == {"too long": [413], "gone": [400], "cancelled": [423]}[
            ending
        ]
        return
    told = {name.decode(): value.decode() for name, value in answers[0]["headers"]}
    offset = 66 * KIB if ending == "time-out" else 0
    assert (answers[0]["status"], told["upload-offset"], held) == (201, str(offset), 70 * KIB)
    assert await tus.state(f"{RESUMABLE}/{id_of(told['location'])}") == (offset, False, 70 * KIB)


async def is_empty(queue: "asyncio.Queue[Any]") -> bool:
    return queue.empty()


async def test_more_bytes_than_the_length_are_413_and_make_no_file(tus: Tus) -> None:
    async def untold() -> AsyncIterator[bytes]:
        yield b"12345678901"

    path = await tus.created(10)
    for content in (b"12345678901", untold()):
        tus.problem(await tus.patch(path, 0, content), 413, "file-too-large")
    tus.problem(await tus.create(5, b"123456"), 413, "file-too-large")
    late = await tus.created(None, b"123")
    tus.problem(await tus.patch(late, 3, b"456", Upload_Length="5"), 413, "file-too-large")
    assert await tus.state(path) == (0, False, 10)
    assert await files_of(tus.client) == []


async def test_checksum_trailer_it_may_come_after_the_body(make_stack: MakeStack) -> None:
    """Checksum: "If the hash cannot be calculated at the beginning of the upload, it MAY be included as a trailer.\""""
    async with serving_stack(make_stack) as server, server.connection() as connection:
        tus = Tus(server.stack.client)
        right, wrong = (
            f"Upload-Checksum: {tus.digest(content)['Upload_Checksum']}" for content in (b"12345", b"other")
        )
        path = await tus.created(5)
        told = [f"{name}: {value}" for name, value in BYTES.items()]
        told += ["Upload-Offset: 0", "Transfer-Encoding: chunked"]
        for announced, trailer, status in (
            ("Trailer: X-Other, upload-checksum", wrong, 460),
            ("Trailer: Upload-Checksum", "X-Other: 1", 400),
            ("Trailer: Upload-Checksum", f"{right}\r\n{right}", 400),
            ("Trailer: Upload-Checksum", "Upload-Checksum: sha1 ?", 400),
            ("Trailer: Upload-Checksum", f"X-Other: 1\r\n{right}", 204),
        ):
            assert await tus.state(path) == (0, False, 5)
            await connection.request("PATCH", path, *told, announced)
            await connection.send(f"3\r\n123\r\n2\r\n45\r\n0\r\n{trailer}\r\n\r\n".encode())
            assert (await connection.answer(has_body=status != 204)).status == status
        path = await tus.created(5)
        await connection.request("PATCH", path, *told)
        await connection.send(f"5\r\n12345\r\n0\r\n{wrong}\r\n\r\n".encode())
        assert (await connection.answer(has_body=False)).status == 204, "nobody announced it, so it is none"


async def test_checksum_bodies_are_bounded(make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many at once as other bodies, none longer than a chunk may be, and none where the disk has no room again."""
    threads: list[str] = []

    def listening(body: Any, algorithm: str, compute: Any = request._checksum_of) -> bytes:
        threads.append(threading.current_thread().name)
        return bytes(compute(body, algorithm))

    monkeypatch.setattr(request, "_checksum_of", listening)
    async with make_stack(chunk_size_bytes=64 * KIB, max_chunk_size_bytes=64 * KIB, max_concurrent_chunks=1) as stack:
        tus, content = Tus(stack.client), CONTENT.data[:1000]
        path = await tus.created(CONTENT.size)
        target, sending = Target(owner("alice"), upload_id=id_of(path)), Sending(stack, 1000)
        right = tus.digest(content)
        source = request.CheckedBody(sending.source, request.parse_checksum(right["Upload_Checksum"]).check)
        hanging = asyncio.create_task(stack.services.appends.append_whole(target, 0, source))
        sending.send(CONTENT.data[:10])
        await eventually(sending.is_taken)
        tus.problem(await tus.patch(path, 0, content, **right), 429, "too-many-requests")
        sending.leave()
        await asyncio.gather(hanging, return_exceptions=True)
        long = CONTENT.data[: 64 * KIB + 1]
        too_long = await tus.patch(path, 0, long, **tus.digest(long))
        assert tus.problem(too_long, 413, "file-too-large")["limit"] == 64 * KIB
        assert threads == []
        assert (await tus.patch(path, 0, content, **right)).status_code == 204, "counted once"
        assert [name.startswith("hashing") for name in threads] == [True]
        stack.services.admission._floor_bytes, stack.services.admission._known = 1 << 60, None
        tus.problem(await tus.patch(path, 1000, content, **right), 507, "storage-full")
        assert (await tus.patch(path, 1000, CONTENT.data[1000:2000])).status_code == 204, "it has its room"


async def test_what_can_not_be_told_for_the_moment_is_423(make_stack: MakeStack, sqlite_url: str) -> None:
    """tus-js-client and Uppy take every other answer than 2xx and 423 to a HEAD for that, and begin another one."""
    async with make_stack(database_url=sqlite_url) as stack:
        tus = Tus(stack.client)
        path, unknown = await tus.created(CONTENT.size), await tus.created(None)
        async with without_database(stack):
            response = await tus.head(path)
            assert (response.status_code, "retry-after" in response.headers) == (423, True)
            assert (await tus.patch(unknown, 0, b"x")).status_code == 423
            assert (await tus.patch(path, 0, b"x")).status_code == 204, "as a chunk, where the upload is remembered"
        assert await tus.state(path) == (1, False, CONTENT.size)
        assert await tus.state(unknown) == (0, False, None)


async def test_location_is_what_the_client_reaches_the_server_by(make_stack: MakeStack) -> None:
    async def location(stack: Stack, **headers: Any) -> str:
        response = await Tus(stack.client).create(5, **headers)
        return str(response.headers["location"]).rpartition("/")[0]

    forwarded = {"X_Forwarded_Proto": "https", "X_Forwarded_Host": "files.example, inner"}
    async with make_stack() as stack:
        assert await location(stack, Host="here:8000") == f"http://here:8000{RESUMABLE}"
        told = await location(stack, **forwarded)
        assert told == url_of(stack.client, RESUMABLE), "anybody could say so"
    async with make_stack(trusted_proxies=("127.0.0.1/32",)) as stack:
        assert await location(stack, **forwarded) == f"https://files.example{RESUMABLE}"
        by = 'for=1.2.3.4;host="files.example:8443";proto=https, for=5.6.7.8;host=inner'
        assert await location(stack, Forwarded=by) == f"https://files.example:8443{RESUMABLE}"
        assert await location(stack, X_Forwarded_Host="evil/../") == RESUMABLE, "nothing that leads elsewhere"
