"""What tus 1.0.0 (https://tus.io/protocols/resumable-upload) and resumable uploads of HTTP (draft-ietf-httpbis-resumable-
upload-12) have in common; each test names the sections. What one of them has alone: test_tus.py, test_rufh.py. iOS 17 speaks
version 3 of the draft, iOS 18.0 5, 18.1 and later 6, iOS 26 8; tus-js-client 4 speaks 5 and 6."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.invariants import Account, checked_accounts
from tests.support.resumable import RESUMABLE, Resumable, Rufh, Tus, files_of, id_of, native, path_of
from tests.support.stack import GIB, Stack
from tests.support.streams import Sending
from tests.support.waiting import eventually
from uploader.domain.links import owner
from uploader.service.results import Target
from uploader.storage.local import locks

CONTENT = Content(130 * KIB)
# Without a connection version 4 is answered as 5, and 7 as 8, but for what test_rufh.py has of each.
PROTOCOLS = {"tus": Tus, "rufh": Rufh} | {
    f"rufh-{version}": partial(Rufh, version=version) for version in (3, 5, 6, 8, 9)
}
OF_EACH_VERSION = pytest.mark.parametrize("protocol", PROTOCOLS, indirect=True)


@pytest.fixture
async def stack(request: pytest.FixtureRequest, make_stack: MakeStack) -> AsyncIterator[Stack]:
    settings = {"cors_origins": ("https://app.example",), "chunk_size_bytes": 64 * KIB, **getattr(request, "param", {})}
    async with make_stack(**settings) as made:
        yield made


@pytest.fixture(params=["tus", "rufh"])
def protocol(request: pytest.FixtureRequest, stack: Stack) -> Any:
    return PROTOCOLS[request.param](stack.client)


@OF_EACH_VERSION
async def test_an_upload_in_parts(stack: Stack, protocol: Resumable) -> None:
    """tus: Core Protocol, HEAD and PATCH; Creation With Upload. HTTP: sections 4.2.2, 4.3.2, 4.4.2 and 9."""
    response = await protocol.create(CONTENT.size, CONTENT.data[:1])
    protocol.check(response, 201, complete=False)
    assert response.headers["upload-offset"] == "1"
    path = path_of(response)
    for start, end in ((1, 64 * KIB), (64 * KIB, 100 * KIB)):
        response = await protocol.patch(path, start, CONTENT.data[start:end])
        protocol.check(response, 204, complete=False)
        assert response.headers["upload-offset"] == str(end)
        assert "location" not in response.headers
        assert await protocol.state(path) == (end, False, CONTENT.size)
    last = await protocol.patch(path, 100 * KIB, CONTENT.data[100 * KIB :], last=True)
    protocol.check(last, protocol.finished, complete=True)
    assert last.headers["upload-offset"] == str(CONTENT.size)
    (file,) = await files_of(stack.client)
    assert (file["sha256"], file["size"]) == (CONTENT.sha256, CONTENT.size)
    assert await protocol.state(path) == (CONTENT.size, True, CONTENT.size)
    assert await stack.usage("alice") == {"finished": CONTENT.size, "unfinished": 0, "reserved": 0}


@OF_EACH_VERSION
async def test_cancelling_gives_all_back_and_leaves_files(stack: Stack, protocol: Resumable) -> None:
    """tus: Termination. HTTP: section 4.5."""
    path = await protocol.created(CONTENT.size, CONTENT.data[: 70 * KIB])
    protocol.check(await protocol.delete(path), 204)
    assert (await protocol.head(path)).status_code == protocol.gone
    for refused in (await protocol.patch(path, 70 * KIB, b"x"), await protocol.delete(path)):
        assert protocol.problem(refused, protocol.gone, "upload-gone")["reason"] == "cancelled"
    assert await checked_accounts(stack.services.database) == {"alice": Account()}
    whole = await protocol.create(CONTENT.size, CONTENT.data, last=True)
    protocol.check(whole, 201, complete=True)
    assert whole.headers["upload-offset"] == str(CONTENT.size)
    assert await protocol.state(path_of(whole)) == (CONTENT.size, True, CONTENT.size)
    protocol.check(await protocol.delete(path_of(whole)), 204)
    assert (await protocol.head(path_of(whole))).status_code == 404
    (file,) = await files_of(stack.client)
    assert file["sha256"] == CONTENT.sha256, "the file is its owner's"
    assert await checked_accounts(stack.services.database) == {"alice": Account(finished=CONTENT.size)}


async def test_an_empty_upload_is_a_file(stack: Stack, protocol: Resumable) -> None:
    """HTTP: section 4.2.1."""
    path = path_of(await protocol.create(0, last=True))
    assert await protocol.state(path) == (0, True, 0)
    assert [file["size"] for file in await files_of(stack.client)] == [0]
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": 0}


async def test_an_upload_that_expired_is_gone(stack: Stack, protocol: Resumable) -> None:
    """tus: Expiration; tus-java-client starts again after 404 alone. HTTP: section 4.1.1,
    "it MUST deactivate the upload resource and reject further interaction"."""
    path = await protocol.created(5, b"123")
    await stack.services.uploads.expire(id_of(path), 0)
    assert (await protocol.head(path)).status_code == protocol.gone
    protocol.problem(await protocol.patch(path, 3, b"x"), protocol.gone, "upload-gone")


@OF_EACH_VERSION
async def test_the_offset_has_to_be_the_current_one(protocol: Resumable) -> None:
    """tus: Core Protocol, PATCH, "MUST respond with the 409 Conflict status". HTTP: sections 4.1.1, 4.4.2 and 7.1."""
    path = await protocol.created(CONTENT.size, CONTENT.data[: 70 * KIB])
    for offset in (0, 64 * KIB, 70 * KIB - 1, 70 * KIB + 1, CONTENT.size, 10**protocol.most_digits - 1):
        response = await protocol.patch(path, offset, CONTENT.data[:9])
        assert protocol.problem(response, 409, "offset-mismatch")["offset"] == 70 * KIB
        if isinstance(protocol, Rufh):
            assert (response.json()["expected-offset"], response.json()["provided-offset"]) == (70 * KIB, offset)
            assert response.headers["upload-offset"] == str(70 * KIB)
            assert response.headers[protocol.complete] == protocol.says(False)
    for wrong in ("-1", "1.0", "x", "", "1e3", "９", '"0"', "0, 0", "1" * (protocol.most_digits + 1), None):
        protocol.problem(await protocol.patch(path, 0, b"x", Upload_Offset=wrong), 400, "invalid-request")
    assert await protocol.state(path) == (70 * KIB, False, CONTENT.size)


@OF_EACH_VERSION
async def test_what_is_appended_has_its_media_type(protocol: Resumable) -> None:
    """tus: Core Protocol, PATCH, "otherwise the server SHOULD return a 415". HTTP: section 4.4.1, from version 6 on."""
    path = await protocol.created(5)
    if protocol.media_type is None:
        response = await protocol.patch(path, 0, b"1", Content_Type="application/octet-stream")
        protocol.check(response, 204, complete=False)
        return
    for wrong in ("application/octet-stream", "text/plain", "", None):
        response = await protocol.patch(path, 0, b"1", Content_Type=wrong)
        protocol.problem(response, 415, "unsupported-media-type")
        assert isinstance(protocol, Tus) or response.headers["accept-patch"] == protocol.media_type
    assert await protocol.state(path) == (0, False, 5)


async def test_what_is_not_there_has_no_offset(stack: Stack, protocol: Resumable) -> None:
    """tus: Core Protocol, HEAD."""
    foreign, bob = await protocol.created(5), type(protocol)(await stack.client_of("bob"))
    for asking, path in ((protocol, f"{RESUMABLE}/{'0' * 32}"), (protocol, f"{RESUMABLE}/x"), (bob, foreign)):
        for response in (await asking.head(path), await asking.patch(path, 0, b"x"), await asking.delete(path)):
            assert response.status_code == 404
            assert "upload-offset" not in response.headers


async def test_the_length_may_be_told_later(stack: Stack, protocol: Resumable) -> None:
    """tus: creation-defer-length, "Once set the length MUST NOT be changed." HTTP: section 4.1.3."""
    path = await protocol.created(None, CONTENT.data[:1])
    assert (await protocol.patch(path, 1, CONTENT.data[1 : 100 * KIB])).status_code == 204
    for offset, length, status, code in (
        (100 * KIB, 100 * KIB - 1, protocol.inconsistent, "size-mismatch"),
        (99 * KIB, CONTENT.size, 409, "offset-mismatch"),
    ):
        protocol.problem(await protocol.patch(path, offset, Upload_Length=str(length)), status, code)
    assert await protocol.state(path) == (100 * KIB, False, None)
    assert (await protocol.patch(path, 100 * KIB, Upload_Length=str(CONTENT.size))).status_code == 204
    assert await protocol.state(path) == (100 * KIB, False, CONTENT.size)
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": CONTENT.size}
    other = await protocol.patch(path, 100 * KIB, Upload_Length=str(CONTENT.size + 1))
    protocol.problem(other, protocol.inconsistent, "size-mismatch")
    rest: dict[str, Any] = {"last": True, "Upload_Length": str(CONTENT.size)}
    last = await protocol.patch(path, 100 * KIB, CONTENT.data[100 * KIB :], **rest)
    protocol.check(last, protocol.finished, complete=True)
    (file,) = await files_of(stack.client)
    assert (file["sha256"], file["size"]) == (CONTENT.sha256, CONTENT.size)
    at_once = await protocol.created(None, CONTENT.data[:1000])
    last = await protocol.patch(at_once, 1000, CONTENT.data[1000:], **rest)
    protocol.check(last, protocol.finished, complete=True)
    empty = await protocol.created(None)
    assert (await protocol.patch(empty, 0, Upload_Length="0", last=True)).headers["upload-offset"] == "0"
    assert await stack.usage("alice") == {"finished": 2 * CONTENT.size, "unfinished": 0, "reserved": 0}


async def test_what_is_too_large_is_refused_before_it_is_sent(stack: Stack, protocol: Resumable) -> None:
    """tus: Creation, 413. HTTP: section 4.1.4, "A server responding with a 413 ... MUST include the Upload-Limit header"."""
    most = stack.services.openings.max_file_size_bytes
    response = await protocol.create(most + 1)
    protocol.problem(response, 413, "file-too-large")
    assert isinstance(protocol, Tus) or response.headers["upload-limit"] == f"max-size={most}"
    assert protocol.problem(await protocol.create(11 * GIB), 413, "quota-exceeded")["requested"] == 11 * GIB
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": 0}


@pytest.mark.parametrize(
    ("stack", "protocol"),
    [({}, "tus"), ({"body_budget_bytes": 256 << 10}, "tus"), ({"body_budget_bytes": 256 << 10}, "rufh")],
    ids=["memory", "spool of tus", "spool"],
    indirect=True,
)
async def test_content_without_its_digest_counts_for_nothing(stack: Stack, protocol: Resumable) -> None:
    """tus: Checksum, "MUST respond with the 460 Checksum Mismatch status". HTTP: section 10.2, "not append the content"."""
    path, offset = await protocol.created(CONTENT.size), 0
    for number, end in enumerate((10, 70 * KIB, 70 * KIB + 1, CONTENT.size)):
        algorithm, content = protocol.algorithms[number % len(protocol.algorithms)], CONTENT.data[offset:end]
        wrong = await protocol.patch(path, offset, content, **protocol.digest(content + b"?", algorithm))
        protocol.problem(wrong, protocol.mismatch, "digest-mismatch")
        assert await protocol.state(path) == (offset, False, CONTENT.size)
        right = await protocol.patch(path, offset, content, **protocol.digest(content, algorithm))
        assert (right.status_code, right.headers["upload-offset"]) == (204, str(end))
        offset = end
    (file,) = await files_of(stack.client)
    assert file["sha256"] == CONTENT.sha256
    for last in (True, False):
        refused = await protocol.create(2 if last else 5, b"12", last=last, **protocol.digest(b"x"))
        protocol.problem(refused, protocol.mismatch, "digest-mismatch")
        assert (await stack.usage("alice"))["reserved"] == 0, "an upload that nobody knows of holds nothing"
        told = await protocol.create(2 if last else 5, b"12", last=last, **protocol.digest(b"12"))
        assert (told.status_code, told.headers["upload-offset"]) == (201, "2")


async def test_a_newer_request_ends_the_older_one(
    stack: Stack, protocol: Resumable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP: section 4.6, "MUST take measures to prevent race conditions", "MUST NOT send outdated information"."""
    path = await protocol.created(CONTENT.size)
    target, sending = Target(owner("alice"), upload_id=id_of(path)), Sending(stack, CONTENT.size)
    hanging = asyncio.create_task(stack.services.appends.append(target, 0, sending.source))
    sending.send(CONTENT.data[:1000])
    await eventually(sending.is_taken)
    assert await protocol.state(path) == (1000, False, CONTENT.size)
    await asyncio.gather(hanging, return_exceptions=True)
    answers = await asyncio.gather(*(protocol.patch(path, 1000, CONTENT.data[1000:2000]) for _ in range(3)))
    assert [answer.status_code for answer in answers].count(204) <= 1
    assert await protocol.state(path) == (2000, False, CONTENT.size)
    monkeypatch.setattr(locks, "PATIENCE_SECONDS", 0.02)
    upload: Any = await stack.services.uploads.find(target)
    holding: Any = stack.services.storage.appending(upload)
    async with holding:
        for response in (await protocol.patch(path, 2000, b"x"), await protocol.delete(path)):
            protocol.problem(response, protocol.busy, "unavailable")
            assert response.headers["retry-after"] == protocol.busy_seconds
        assert (await protocol.head(path)).status_code == protocol.busy


async def test_pages_of_allowed_origins_may_call_and_read_what_they_need(stack: Stack, protocol: Resumable) -> None:
    may_send, may_read = {
        Tus: (
            "tus-resumable upload-concat upload-length upload-metadata upload-offset x-http-method-override "
            "x-requested-with",
            "location tus-resumable upload-offset upload-length upload-concat upload-expires upload-metadata",
        ),
        Rufh: (
            "upload-complete upload-draft-interop-version upload-length upload-offset content-disposition repr-digest",
            "location content-location upload-complete upload-limit upload-offset",
        ),
    }[type(protocol)]
    asks = {"Origin": "https://app.example", "Access-Control-Request-Method": "PATCH"}
    wanted = {"Access-Control-Request-Headers": ",".join(may_send.split())}
    response = await stack.anonymous().options(f"{RESUMABLE}/x", headers={**asks, **wanted})
    assert response.status_code == 204
    assert set(may_send.split()) <= set(response.headers["access-control-allow-headers"].lower().split(", "))
    told = await protocol.create(5, Origin="https://app.example")
    exposed = set(told.headers["access-control-expose-headers"].lower().split(", "))
    assert exposed >= {*may_read.split(), *(name for name in told.headers if name.startswith("upload-"))}


async def test_options_tell_what_is_spoken_and_ask_for_no_token(stack: Stack) -> None:
    """tus: Core Protocol, OPTIONS. HTTP: section 4.1.4, "the server MUST include the Accept-Patch header field"."""
    most = stack.services.openings.max_file_size_bytes
    for url in (RESUMABLE, f"{RESUMABLE}/anything"):
        for headers in ({}, {"Tus-Resumable": "1.0.0"}, {"Tus-Resumable": "0.1"}, {"Upload-Complete": "?1"}):
            response = await stack.anonymous().options(url, headers=headers)
            assert response.status_code == 204
            assert response.headers["tus-version"] == "1.0.0"
            assert response.headers["tus-max-size"] == str(most)
            assert set(response.headers["tus-extension"].split(",")) == {
                *("creation", "creation-with-upload", "creation-defer-length"),
                *("checksum", "checksum-trailer", "expiration", "termination"),
                *("concatenation", "concatenation-unfinished"),
            }
            assert response.headers["tus-checksum-algorithm"] == "md5,sha1,sha256,crc32"
            assert response.headers["accept-patch"] == "application/partial-upload"
            assert response.headers["upload-limit"] == f"max-size={most}, max-age={7 * 86400}"


async def test_one_upload_under_all_protocols(stack: Stack) -> None:
    tus, rufh = Tus(stack.client), Rufh(stack.client)
    for one, other in ((tus, rufh), (rufh, tus)):
        path = await one.created(CONTENT.size, CONTENT.data[:100])
        chunk = await stack.client.put(f"{native(path)}/chunks/1", content=CONTENT.chunk(1))
        assert chunk.status_code == 200
        (listed,) = (await stack.client.get("/uploads")).json()["uploads"]
        assert (listed["id"], listed["received_bytes"]) == (id_of(path), 64 * KIB + 100)
        response = await other.patch(path, 100, CONTENT.data[100 : 64 * KIB])
        assert response.headers["upload-offset"] == str(128 * KIB)
        assert await one.state(path) == (128 * KIB, False, CONTENT.size)
        if one is tus:
            chunk = await stack.client.put(f"{native(path)}/chunks/2", content=CONTENT.chunk(2))
            assert chunk.status_code == 201
        else:
            assert (await one.patch(path, 128 * KIB, CONTENT.data[128 * KIB :], last=True)).status_code == 201
        assert await one.state(path) == (CONTENT.size, True, CONTENT.size)
    assert [(file["md5"], file["sha256"]) for file in await files_of(stack.client)] == 2 * [(None, CONTENT.sha256)]
    opened = (await stack.open(CONTENT)).json()["upload"]["id"]
    tus.check(await tus.delete(f"{RESUMABLE}/{opened}"), 204)
    assert (await stack.client.get(f"/files/{CONTENT.md5}")).json()["reason"] == "cancelled"


async def test_no_quota_is_exceeded_by_any_protocol(stack: Stack) -> None:
    """At the edge: of four that each would fit, one does."""
    bob = await stack.client_of("bob", total_space=100)
    answers = await asyncio.gather(
        Tus(bob).create(60),
        Rufh(bob).create(60),
        Rufh(bob).create(None, b"x" * 60, last=True),
        bob.post("/uploads", json={"name": "x", "size": 60}),
    )
    assert sorted(answer.status_code for answer in answers) == [201, 413, 413, 413]
    account = (await checked_accounts(stack.services.database))["bob"]
    assert account.reserved + account.finished == 60
    for protocol in (Tus(bob), Rufh(bob)):
        assert protocol.problem(await protocol.create(41), 413, "quota-exceeded")["total_space"] == 100
    for protocol in (Tus(bob), Rufh(bob)):
        assert (await protocol.create(20)).status_code == 201, "to the last byte"
    Rufh(bob).problem(await Rufh(bob).create(1), 413, "quota-exceeded")
