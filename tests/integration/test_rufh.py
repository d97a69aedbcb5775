"""What resumable uploads of HTTP have alone, as draft-ietf-httpbis-resumable-upload-12 has it; each test names the section.
Common to all protocols and versions: test_resumable.py. On a connection: test_rufh_sockets.py."""

from collections.abc import AsyncIterator
from itertools import product
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from starlette.datastructures import Headers

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.invariants import Account, checked_accounts
from tests.support.resumable import (
    RESUMABLE,
    Rufh,
    Tus,
    digest_of,
    files_of,
    id_of,
    metadata_of,
    path_of,
    url_of,
)
from tests.support.stack import Stack
from uploader.http.resumable.rufh import filename_in

CONTENT = Content(130 * KIB)
NOTHING = {"finished": 0, "unfinished": 0, "reserved": 0}


@pytest.fixture
async def stack(make_stack: MakeStack) -> AsyncIterator[Stack]:
    async with make_stack(chunk_size_bytes=64 * KIB) as made:
        yield made


@pytest.fixture
def rufh(stack: Stack) -> Rufh:
    return Rufh(stack.client)


async def test_each_version_says_in_its_own_words_what_is_the_last_and_how_long_it_is_kept(stack: Stack) -> None:
    for version in range(3, 10):
        rufh = Rufh(stack.client, version)
        begun = await rufh.create(5, b"12")
        rufh.check(begun, 201, complete=False)
        path = path_of(begun)
        assert await rufh.state(path) == (2, False, 5)
        rufh.check(await rufh.patch(path, 2, b"345", last=True), 201, complete=True)
        assert await rufh.state(path) == (5, True, 5)


async def pieces(data: bytes = CONTENT.data) -> AsyncIterator[bytes]:
    """A body whose length is not told."""
    for start in range(0, len(data), 10 * KIB):
        yield data[start : start + 10 * KIB]
    yield b""


async def made(rufh: Rufh, response: httpx2.Response) -> Any:
    """The file that an answer leads to."""
    return (await rufh.client.get(response.headers["content-location"])).json()


async def test_4_1_2_completeness_that_is_no_boolean_is_as_none(rufh: Rufh) -> None:
    """ "Other values MUST cause the entire header field to be ignored": a PATCH lacks what section 4.4.1 asks for then."""
    for wrong in ("true", "1", "?2", "", "?0, ?1"):
        whole = await rufh.create(None, b"Hello", Upload_Complete=wrong)
        rufh.check(whole, 201, complete=True)
    path = await rufh.created(CONTENT.size)
    for bad in ("true", "", None):
        rufh.problem(await rufh.patch(path, 0, b"x", Upload_Complete=bad), 400, "invalid-request")
    response = await rufh.patch(path, 0, b"x", Upload_Offset="0;a=b", Content_Type="Application/Partial-Upload; a=b")
    assert response.status_code == 204, "an Item may have parameters, and so may a type"
    encoded = await rufh.patch(path, 1, b"x", Content_Encoding="gzip")
    rufh.problem(encoded, 415, "unsupported-media-type")
    assert await rufh.state(path) == (1, False, CONTENT.size)


async def test_4_1_2_only_its_client_says_that_it_is_complete(rufh: Rufh) -> None:
    """ "An upload is incomplete until it is explicitly marked as completed by the client." Section 4.1.3, too."""
    path = await rufh.created(CONTENT.size)
    response = await rufh.patch(path, 0)
    rufh.check(response, 204, complete=False)
    assert response.headers["upload-offset"] == "0", "4.4.1: an empty append is one"
    rufh.problem(await rufh.patch(path, 0, last=True), 400, "size-mismatch")
    rufh.check(await rufh.patch(path, 0, CONTENT.data), 204, complete=False)
    assert await rufh.state(path) == (CONTENT.size, False, CONTENT.size)
    rufh.problem(await rufh.patch(path, CONTENT.size, Upload_Length="7"), 400, "size-mismatch")
    assert (await rufh.patch(path, CONTENT.size)).status_code == 204
    last = await rufh.patch(path, CONTENT.size, pieces(b""), last=True)
    rufh.check(last, 201, complete=True)
    assert path_of(last) == path
    assert (await made(rufh, last))["sha256"] == CONTENT.sha256
    asked = await rufh.head(path)
    assert asked.headers["content-location"] == last.headers["content-location"], "section 9: who lost the answer asks"


async def test_4_1_3_lengths_that_are_told_match(stack: Stack, rufh: Rufh) -> None:
    """ "If indicators (1) and (2) are both present in the same request, their indicated lengths MUST match.\""""
    for size, content, last, code in (
        (100, b"12345", True, "size-mismatch"),
        (5, b"123456", False, "file-too-large"),
        (5, pieces(b"123"), True, "size-mismatch"),
    ):
        response = await rufh.create(size, content, last=last)
        rufh.problem(response, 400, code)
        assert response.headers["upload-complete"] == "?0"
    assert await checked_accounts(stack.services.database) == {"alice": Account()}
    path = await rufh.created(100)
    indicators: list[dict[str, Any]] = [{"Upload_Length": "50"}, {"last": True}]
    for said in indicators:
        response = await rufh.patch(path, 0, b"x" * 32, **said)
        rufh.problem(response, 400, "size-mismatch")
        assert response.headers["upload-complete"] == "?0"
    rufh.problem(await rufh.patch(path, 7, b"x" * 32, last=True, Upload_Length="50"), 409, "offset-mismatch")
    assert (await rufh.patch(path, 0, b"x" * 32, Upload_Length="100")).status_code == 204
    assert await rufh.state(path) == (32, False, 100), "recorded, and kept"
    for ignored in ("-1", "x", "1.5"):
        whole = await rufh.create(None, b"12345", last=True, Upload_Length=ignored)
        assert whole.status_code == 201, "other values MUST cause the entire header field to be ignored"


async def test_4_1_3_the_end_may_tell_the_length(stack: Stack, rufh: Rufh) -> None:
    """It is "the sum of the current offset and the Content-Length header field value" where the content is the last."""
    for number, (first, last, told) in enumerate(((b"4", b"5", True), (b"45", b"", True), (b"4", b"5", False)), 1):
        path = await rufh.created(None, b"123")
        assert (await rufh.patch(path, 3, first)).status_code == 204
        assert await rufh.state(path) == (3 + len(first), False, None)
        response = await rufh.patch(path, 3 + len(first), last if told else pieces(last), last=True)
        rufh.check(response, 201, complete=True)
        assert await rufh.state(path) == (5, True, 5)
        assert (await made(rufh, response))["size"] == 5
        assert await stack.usage("alice") == {"finished": 5 * number, "unfinished": 0, "reserved": 0}


async def test_4_1_4_a_limit_holds_though_no_length_is_told(make_stack: MakeStack) -> None:
    async with make_stack(chunk_size_bytes=64 * KIB, max_file_size_bytes=100 * KIB) as stack:
        rufh, bob = Rufh(stack.client), Rufh(await stack.client_of("bob", total_space=50 * KIB))
        path = await rufh.created(None)
        for content in (CONTENT.data, pieces()):
            response = await rufh.patch(path, (await rufh.state(path))[0], content)
            rufh.problem(response, 413, "file-too-large")
            assert "max-size=102400" in response.headers["upload-limit"]
        rufh.problem(await rufh.patch(path, 64 * KIB, Upload_Length=str(100 * KIB + 1)), 413, "file-too-large")
        assert (await rufh.patch(path, 64 * KIB, CONTENT.data[64 * KIB : 100 * KIB])).status_code == 204, (
            "as long as it may be"
        )
        assert (await rufh.patch(path, 100 * KIB, last=True)).status_code == 201
        rufh.problem(await rufh.create(None, pieces(), last=True), 413, "file-too-large")
        rufh.problem(await bob.create(None, pieces(), last=True), 413, "quota-exceeded")
        accounts = await checked_accounts(stack.services.database)
        assert accounts == {"alice": Account(finished=100 * KIB), "bob": Account()}


async def test_4_1_4_limits_are_told(stack: Stack, rufh: Rufh) -> None:
    """Sections 4.2.2 and 4.3.2: with the creation and with the offset."""
    most = stack.services.openings.max_file_size_bytes
    opened = await rufh.create(5)
    place = urlsplit(url_of(stack.client, path_of(opened))).path
    assert opened.headers["location"] == place, "relative: a proxy that is not told rewrites it, or need not"
    for answer in (opened, await rufh.head(path_of(opened))):
        limits = dict(item.split("=") for item in answer.headers["upload-limit"].split(", "))
        assert limits["max-size"] == str(most)
        assert 0 < int(limits["max-age"]) <= 7 * 86400


async def test_4_1_4_a_request_longer_than_the_limit_is_refused_and_what_came_before_is_kept(
    make_stack: MakeStack,
) -> None:
    """ "A server responding with a 413 Content Too Large status code as a result of its upload limits MUST include the
    Upload-Limit header"."""
    limit = 70 * KIB
    async with make_stack(chunk_size_bytes=64 * KIB, max_append_size_bytes=limit) as stack:
        assert (await stack.client.get("/config")).json()["max_append_size"] == limit
        told = await stack.anonymous().options(RESUMABLE)
        assert f"max-append-size={limit}" in told.headers["upload-limit"].split(", ")
        digest = digest_of(CONTENT.data, "sha-256")
        for version in (6, 9, None):
            rufh = Rufh(stack.client, version)
            path = await rufh.created(CONTENT.size)
            for refused in (
                await rufh.create(None, CONTENT.data, last=True),
                await rufh.create(None, pieces(), last=True),
                await rufh.patch(path, 0, CONTENT.data),
                await rufh.patch(path, 0, pieces(), Content_Digest=digest),
                await rufh.patch(path, 0, pieces()),
            ):
                assert rufh.problem(refused, 413, "file-too-large")["limit"] == limit
                assert f"max-append-size={limit}" in refused.headers["upload-limit"].split(", ")
            assert await rufh.state(path) == (limit, False, CONTENT.size)
            last = await rufh.patch(path, limit, pieces(CONTENT.data[limit:]), last=True)
            assert (await made(rufh, last))["sha256"] == CONTENT.sha256
            as_long = await rufh.create(None, pieces(CONTENT.data[:limit]), last=True)
            rufh.check(as_long, 201, complete=True)
        whole = await Tus(stack.client).create(CONTENT.size, CONTENT.data)
        assert whole.status_code == 201, "clients of tus are not told of the limit"
        assert await checked_accounts(stack.services.database) == {
            "alice": Account(finished=4 * CONTENT.size + 3 * limit)
        }


async def test_4_2_2_all_in_one_request(rufh: Rufh) -> None:
    """With the header or without it: "any request that can carry content"."""
    for (length, complete), told in product(((CONTENT.size, "?1"), (None, "?1"), (None, None)), (True, False)):
        response = await rufh.create(length, CONTENT.data if told else pieces(), Upload_Complete=complete)
        rufh.check(response, 201, complete=True)
        assert response.headers["upload-offset"] == str(CONTENT.size)
        assert await rufh.state(path_of(response)) == (CONTENT.size, True, CONTENT.size)
        file = await made(rufh, response)
        assert (file["sha256"], file["name"]) == (CONTENT.sha256, f"upload-{id_of(path_of(response))}")


async def test_4_2_1_any_method_with_content_creates_an_upload(rufh: Rufh) -> None:
    """ "all request methods that allow content are possible, such as POST, PUT, and PATCH"."""
    for method, path in (("PUT", RESUMABLE), ("PATCH", f"{RESUMABLE}/")):
        whole = await rufh.send(method, path, b"Hello", Upload_Complete="?1")
        rufh.check(whole, 201, complete=True)
        assert (await made(rufh, whole))["size"] == 5
        rufh.problem(await rufh.send(method, path, b"Hello"), 405, "method-not-allowed")


async def test_4_2_2_what_a_whole_upload_may_not_be(stack: Stack, rufh: Rufh) -> None:
    digest = await rufh.create(None, pieces(), Repr_Digest=digest_of(b"x", "md5"), Upload_Complete=None)
    rufh.problem(digest, 400, "invalid-request")
    assert await stack.usage("alice") == NOTHING
    empty = await rufh.create(None, pieces(b""), last=True)
    assert await rufh.state(path_of(empty)) == (0, True, 0)


async def test_4_3_1_who_asks_tells_nothing(rufh: Rufh) -> None:
    path = await rufh.created(10, b"12345")
    for said in ({"Upload_Offset": "5"}, {"Upload_Complete": "?0"}, {"Upload_Incomplete": "?1"}):
        assert (await rufh.send("HEAD", path, **said)).status_code == 400
    assert (await rufh.send("GET", path)).headers["upload-offset"] == "5", "GET as HEAD"


@pytest.mark.parametrize("version", [8, 9, None])
async def test_4_4_2_what_is_complete_is_not_appended_to(stack: Stack, version: int | None) -> None:
    """ "MUST NOT modify the upload resource"; content is "an inconsistent length failure". Section 7.2. From version 9
    on, who lost the last answer gets it again."""
    rufh = Rufh(stack.client, version)
    path = path_of(await rufh.create(None, b"12345", last=True))
    for last in (False, True):
        repeated = await rufh.patch(path, 5, last=last)
        if last and version != 8:
            rufh.check(repeated, 201, complete=True)
            assert (await made(rufh, repeated))["size"] == 5
        else:
            rufh.problem(repeated, 400, "bad-request")
        for offset, content, status, code in (
            (5, b"6", 400, "size-mismatch"),
            (0, b"12345", 409, "offset-mismatch"),
        ):
            response = await rufh.patch(path, offset, content, last=last)
            rufh.problem(response, status, code)
            assert response.headers["upload-complete"] == "?0", "of the upload, not of the file"
    assert await rufh.state(path) == (5, True, 5)
    assert len(await files_of(stack.client)) == 1


async def test_4_4_2_excess_ends_the_upload(stack: Stack, rufh: Rufh) -> None:
    """ "marking the upload resource invalid"; "It is not sufficient to rely on the Content-Length header field"."""
    content = CONTENT.data[: 100 * KIB]
    for digest, length_told in product((None, digest_of(content, "sha-256")), (True, False)):
        path = await rufh.created(70 * KIB)
        response = await rufh.patch(path, 0, content if length_told else pieces(content), Content_Digest=digest)
        rufh.problem(response, 400, "file-too-large")
        assert response.headers["upload-complete"] == "?0"
        assert (await rufh.head(path)).status_code == 410
        gone = rufh.problem(await rufh.patch(path, 0), 410, "upload-gone")
        assert gone["reason"] == "length-exceeded"
        assert await checked_accounts(stack.services.database) == {"alice": Account()}


async def test_4_4_2_what_exceeds_it_after_the_last_byte_does_so_too(rufh: Rufh) -> None:
    path = await rufh.created(5)
    assert (await rufh.patch(path, 0, pieces(b"12345"))).status_code == 204
    rufh.problem(await rufh.patch(path, 5, pieces(b"6")), 400, "file-too-large")
    assert (await rufh.head(path)).status_code == 404
    assert len(await files_of(rufh.client)) == 1, "what was announced came, and is a file"


@pytest.mark.parametrize("algorithms", [("sha-256",), ("md5",), ("md5", "sha-256")])
async def test_10_1_a_file_has_the_digest_that_was_told(stack: Stack, rufh: Rufh, algorithms: tuple[str, ...]) -> None:
    """ "If the digests don't match, the server SHOULD consider the upload failed" and tell its client."""
    wrong, right = digest_of(b"other", *algorithms), digest_of(CONTENT.data, *algorithms)
    response = await rufh.create(None, CONTENT.data, last=True, Repr_Digest=wrong)
    rufh.problem(response, 422, "md5-mismatch" if algorithms == ("md5",) else "sha256-mismatch")
    assert response.headers["upload-complete"] == "?1", "all came; it is the file that failed"
    path = await rufh.created(CONTENT.size, Repr_Digest=wrong)
    rufh.check(await rufh.patch(path, 0, CONTENT.data, last=True), 422, complete=True)
    assert (await rufh.head(path)).status_code == 410
    assert await checked_accounts(stack.services.database) == {"alice": Account()}
    response = await rufh.create(None, CONTENT.data, last=True, Repr_Digest=right)
    assert (response.status_code, response.headers["repr-digest"]) == (201, digest_of(CONTENT.data, "sha-256"))
    for bad in ("md5=x", "sha-256=:eA==:"):
        rufh.problem(await rufh.create(None, b"x", last=True, Repr_Digest=bad), 400, "invalid-request")
    unknown = {"Repr_Digest": "sha-512=:eA==:", "Want_Repr_Digest": "sha-256=9"}
    ignored = await rufh.create(None, b"x", last=True, **unknown)
    assert ignored.headers["repr-digest"] == digest_of(b"x", "sha-256")


async def test_10_1_an_md5_that_another_upload_has_is_told(stack: Stack, rufh: Rufh) -> None:
    other = (await stack.open(CONTENT)).json()["upload"]["id"]
    refused = await rufh.create(CONTENT.size, Repr_Digest=digest_of(CONTENT.data, "md5"))
    assert rufh.problem(refused, 409, "upload-exists")["id"] == other


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


async def test_4_2_1_a_name_is_made_valid(rufh: Rufh) -> None:
    """Section 13: "metadata MUST be validated and/or sanitized". tus-js-client tells it as with tus."""

    def disposition(name: str) -> dict[str, str]:
        return {"Content_Disposition": "inline; filename*=UTF-8''" + "".join(f"%{byte:02x}" for byte in name.encode())}

    for said, name in (
        (disposition("../../etc/passwd"), "passwd"),
        (disposition("a\u202eb"), "ab"),
        (disposition("C:\\x\\y.txt"), "y.txt"),
        ({"Upload_Metadata": metadata_of(filename="m.txt")}, "m.txt"),
    ):
        assert (await made(rufh, await rufh.create(None, b"x", last=True, **said)))["name"] == name


async def test_a_version_that_is_not_spoken_is_served_as_the_current_one(rufh: Rufh) -> None:
    for version in ("2", "10", "x", "", "9.0"):
        said = {"Upload_Draft_Interop_Version": version}
        rufh.check(await rufh.create(None, b"12345", last=True, **said), 201, complete=True)


async def test_version_3_may_leave_out_that_it_is_the_last(stack: Stack) -> None:
    rufh = Rufh(stack.client, 3)
    path = await rufh.created(5)
    rufh.check(await rufh.patch(path, 0, b"12345", Upload_Incomplete=None), 201, complete=True)


@pytest.mark.parametrize("version", [5, 6])
@pytest.mark.parametrize("length", [10, None])
async def test_a_stream_of_tus_js_client_becomes_a_file(stack: Stack, version: int, length: int | None) -> None:
    """It never says that the last bytes are the last, and takes the offset for the end."""
    rufh, metadata = Rufh(stack.client, version), metadata_of(filename="stream.bin")
    deferred = None if length else "1"
    path = await rufh.created(length, Upload_Metadata=metadata, Upload_Defer_Length=deferred)
    says = {**rufh.always, "Content_Type": rufh.media_type, "Upload_Complete": "?0", "X_HTTP_Method_Override": "PATCH"}
    for start in ("0", "5"):
        sent = await rufh.send("POST", path, b"12345", **{**says, "Upload_Offset": start})
        rufh.check(sent, 204, complete=False)
    if length is None:
        answer = await rufh.patch(path, 10, Upload_Length="10", Upload_Complete=None)
        rufh.check(answer, 204, complete=False)
        assert answer.headers["upload-offset"] == "10"
    assert [(file["name"], file["size"]) for file in await files_of(stack.client)] == [("stream.bin", 10)]
    await rufh.created(0, Upload_Metadata=metadata)
    assert len(await files_of(stack.client)) == 2
