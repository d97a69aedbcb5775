"""Resumable uploads of HTTP on real connections: interim responses, in their order, and bodies that break off."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.invariants import Account, checked_accounts
from tests.support.sockets import Answer, Connection, Server, on_both_loops, serving_stack
from tests.support.waiting import eventually
from uploader.http.resumable import rufh

CONTENT = Content(200 * KIB)
URL = "/resumable"
SETTINGS: dict[str, Any] = {"chunk_size_bytes": 64 * KIB}


def named(version: int, complete: bool) -> tuple[str, str]:
    field = f"Upload-Complete: {'?1' if complete else '?0'}"
    if version == 3:
        field = f"Upload-Incomplete: {'?0' if complete else '?1'}"
    return f"Upload-Draft-Interop-Version: {version}", field


async def interim(connection: Connection, status: int = 104) -> Answer:
    answer = await connection.answer(has_body=False)
    assert answer.status == status
    return answer


async def begin(connection: Connection, version: int = 8, size: int = CONTENT.size, *more: str) -> str:
    """Send the head of a whole upload; the place that the client hears of."""
    await connection.request("POST", URL, *named(version, True), f"Content-Length: {size}", *more)
    return (await interim(connection)).headers["location"]


async def offset_of(server: Server, path: str) -> tuple[str, str]:
    response = await server.stack.client.head(path)
    return response.headers["upload-offset"], response.headers["upload-complete"]


def has_come(server: Server, path: str, offset: int) -> Callable[[], Any]:
    async def look() -> bool:
        status = (await server.stack.client.get(path.replace("resumable", "uploads"))).json()
        return bool(status["upload"]["received_bytes"] >= offset)

    return look


@on_both_loops
@pytest.mark.parametrize("version", [3, 4, 5, 6, 7, 8])
async def test_4_2_2_a_104_says_where_the_upload_is_before_its_bytes_come(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """ "When sent, it MUST include Location header field pointing to the upload resource and MUST include the Upload-Limit
    header field with the corresponding limits"; "all interim and final response messages for the same request MUST contain
    an identical Location value.\""""
    monkeypatch.setattr(rufh, "_PAUSE_SECONDS", 0.0)
    async with serving_stack(make_stack, **SETTINGS) as server, server.connection() as connection:
        for _ in range(2):  # and again on the same connection
            await connection.request("POST", URL, *named(version, True), f"Content-Length: {CONTENT.size}")
            first = await interim(connection)
            assert first.headers["upload-draft-interop-version"] == str(version)
            assert ("upload-limit" in first.headers) == (version >= 6)
            assert "upload-offset" not in first.headers
            await connection.send(CONTENT.data)
            answer = await connection.answer()
            assert (answer.status == 104) is (version >= 5), "progress was told of later"
            while answer.status == 104:
                assert answer.headers["location"] == first.headers["location"]
                answer = await connection.answer()
            assert (answer.status, answer.headers["location"]) == (201, first.headers["location"])


async def test_who_names_no_version_that_is_spoken_hears_nothing_before_the_answer(make_stack: MakeStack) -> None:
    async with serving_stack(make_stack, **SETTINGS) as server, server.connection() as connection:
        for headers in ((), ("Upload-Complete: ?1",), ("Upload-Complete: ?1", "Upload-Draft-Interop-Version: 2")):
            await connection.request("POST", URL, *headers, "Content-Length: 5")
            await connection.send(b"12345")
            assert (await connection.answer()).status == 201


async def test_a_client_of_http_1_0_hears_nothing_before_the_answer(make_stack: MakeStack) -> None:
    async with serving_stack(make_stack, **SETTINGS) as server, server.connection() as connection:
        token = server.stack.client.headers["authorization"]
        head = [f"POST {URL} HTTP/1.0", f"Authorization: {token}", *named(8, True), "Content-Length: 5", "", "12345"]
        await connection.send("\r\n".join(head).encode())
        assert (await connection.answer()).status == 201


async def test_a_setting_switches_them_off(make_stack: MakeStack) -> None:
    async with (
        serving_stack(make_stack, interim_responses=False, **SETTINGS) as server,
        server.connection() as connection,
    ):
        await connection.request("POST", URL, *named(8, True), "Content-Length: 5")
        await connection.send(b"12345")
        assert (await connection.answer()).status == 201


@on_both_loops
async def test_5_the_100_is_not_left_out(make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "the server MUST NOT omit the 100 (Continue) response because it has sent an interim response with the 104 (Upload
    Resumption Supported) status code.\""""
    monkeypatch.setattr(rufh, "_PAUSE_SECONDS", 0.0)
    async with serving_stack(make_stack, **SETTINGS) as server, server.connection() as connection:
        path = await begin(connection, 8, CONTENT.size, "Expect: 100-continue")
        await interim(connection, 100)
        await connection.send(CONTENT.data[: 130 * KIB])
        progress = await interim(connection)
        assert progress.headers["upload-offset"] == str(64 * KIB)
        await connection.send(CONTENT.data[130 * KIB :])
        answer = await connection.answer()
        while answer.status == 104:
            answer = await connection.answer()
        assert (answer.status, answer.headers["location"]) == (201, path)


@pytest.mark.parametrize("version", [3, 5, 8])
async def test_4_4_2_progress_is_told_without_a_place(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """ "the server SHOULD send interim responses ... and the Upload-Offset header field set to the current offset"; "These
    interim responses MUST NOT include the Location header field." Of bytes that are acknowledged, and from version 5 on."""
    monkeypatch.setattr(rufh, "_PAUSE_SECONDS", 0.0)
    async with serving_stack(make_stack, **SETTINGS) as server, server.connection() as connection:
        length = f"Upload-Length: {CONTENT.size}"
        await connection.request("POST", URL, *named(version, False), length, "Content-Length: 0")
        path = (await interim(connection)).headers["location"]
        assert (await connection.answer()).status == 201
        kind, size = "Content-Type: application/partial-upload", f"Content-Length: {CONTENT.size}"
        await connection.request("PATCH", path, *named(version, True), "Upload-Offset: 0", kind, size)
        await connection.send(CONTENT.data[: 150 * KIB])
        if version >= 5:
            progress = await interim(connection)
            assert "location" not in progress.headers
            told = int(progress.headers["upload-offset"])
            assert told == 64 * KIB
            native = (await server.stack.client.get(path.replace("resumable", "uploads"))).json()
            assert native["upload"]["received_bytes"] >= told
        await connection.send(CONTENT.data[150 * KIB :])
        answer = await connection.answer()
        while answer.status == 104:
            assert version >= 5
            answer = await connection.answer()
        assert answer.status == 201


async def test_who_does_not_read_is_not_told_more_and_more(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rufh, "_PAUSE_SECONDS", 0.0)
    content = Content(3 << 20)
    async with serving_stack(make_stack, **SETTINGS) as server, server.connection(narrow=True) as connection:
        path = await begin(connection, 8, content.size)
        await connection.send(content.data)
        offsets, answer = [], await connection.answer()
        while answer.status == 104:
            offsets.append(int(answer.headers["upload-offset"]))
            answer = await connection.answer()
        assert (answer.status, answer.headers["location"]) == (201, path)
        assert offsets == sorted(set(offsets))


@on_both_loops
@pytest.mark.parametrize("version", [3, 5, 6, 8])
async def test_4_2_2_what_came_before_a_connection_broke_is_kept(make_stack: MakeStack, version: int) -> None:
    """ "the server SHOULD append as much of the request content as possible to the upload resource"; "the upload resource
    MUST NOT be considered complete then.\""""
    async with serving_stack(make_stack, **SETTINGS) as server:
        async with server.connection() as connection:
            path = await begin(connection, version)
            await connection.send(CONTENT.data[: 100 * KIB])
            await eventually(has_come(server, path, 64 * KIB))
        offset, complete = await offset_of(server, path)
        assert (64 * KIB <= int(offset) <= 100 * KIB, complete) == (True, "?0")
        async with server.connection() as connection:
            rest = CONTENT.data[int(offset) :]
            kind, size = "Content-Type: application/partial-upload", f"Content-Length: {len(rest)}"
            await connection.request("PATCH", path, *named(version, True), f"Upload-Offset: {offset}", kind, size)
            await connection.send(rest)
            answer = await connection.answer()
            while answer.status == 104:
                answer = await connection.answer()
        file = (await server.stack.client.get(answer.headers["content-location"])).json()
        assert file["sha256"] == CONTENT.sha256
        assert await server.stack.usage("alice") == {"finished": CONTENT.size, "unfinished": 0, "reserved": 0}


@pytest.mark.parametrize("headers", [(), ("Upload-Complete: ?1",)])
async def test_what_nobody_was_told_of_ends_with_its_connection(
    make_stack: MakeStack, headers: tuple[str, ...]
) -> None:
    async with serving_stack(make_stack, **SETTINGS) as server:
        async with server.connection() as connection:
            await connection.request("POST", URL, *headers, f"Content-Length: {CONTENT.size}")
            await connection.send(CONTENT.data[: 100 * KIB])

            async def has_begun() -> bool:
                return (await server.stack.usage("alice"))["reserved"] == CONTENT.size

            await eventually(has_begun)

        async def has_ended() -> bool:
            return await checked_accounts(server.stack.services.database) == {"alice": Account()}

        await eventually(has_ended)


async def test_4_6_a_head_ends_the_request_that_hangs(make_stack: MakeStack) -> None:
    """ "the server SHOULD prevent race conditions, data loss, and corruption by terminating the previous request before
    processing the new request.\""""
    async with serving_stack(make_stack, **SETTINGS) as server, server.connection() as connection:
        path = await begin(connection)
        await connection.send(CONTENT.data[: 100 * KIB])
        await eventually(has_come(server, path, 64 * KIB))
        offset, complete = await offset_of(server, path)
        assert (64 * KIB <= int(offset) <= 100 * KIB, complete) == (True, "?0")
        answer = await connection.answer()
        while answer.status == 104:
            answer = await connection.answer()
        assert (answer.status, answer.code, answer.headers["connection"]) == (503, "unavailable", "close")
        assert await connection.is_closed()
        assert await offset_of(server, path) == (offset, "?0")


async def test_4_5_a_delete_ends_the_request_that_hangs(make_stack: MakeStack) -> None:
    async with serving_stack(make_stack, **SETTINGS) as server, server.connection() as connection:
        path = await begin(connection)
        await connection.send(CONTENT.data[: 100 * KIB])
        await eventually(has_come(server, path, 64 * KIB))
        assert (await server.stack.client.delete(path)).status_code == 204
        assert (await server.stack.client.head(path)).status_code == 410
        assert await checked_accounts(server.stack.services.database) == {"alice": Account()}
