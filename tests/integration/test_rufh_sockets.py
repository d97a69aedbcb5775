"""Resumable uploads of HTTP on real connections: interim responses, in their order, and bodies that break off."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.invariants import Account, checked_accounts
from tests.support.resumable import RESUMABLE, Rufh, native
from tests.support.sockets import Answer, Connection, Server, on_both_loops, serving_stack
from tests.support.waiting import eventually
from uploader.http.resumable import rufh

CONTENT = Content(200 * KIB)


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rufh, "_PAUSE_SECONDS", 0.0)


@pytest.fixture
async def server(request: pytest.FixtureRequest, make_stack: MakeStack) -> AsyncIterator[Server]:
    async with serving_stack(make_stack, chunk_size_bytes=64 * KIB, **getattr(request, "param", {})) as made:
        yield made


def named(version: int, complete: bool) -> tuple[str, str]:
    field = f"Upload-Complete: {'?1' if complete else '?0'}"
    if version == 3:
        field = f"Upload-Incomplete: {'?0' if complete else '?1'}"
    return f"Upload-Draft-Interop-Version: {version}", field


async def interim(connection: Connection, status: int = 104) -> Answer:
    answer = await connection.answer(has_body=False)
    assert answer.status == status
    return answer


async def final(connection: Connection) -> tuple[Answer, list[Answer]]:
    """The answer, and what was told of the progress before it."""
    told, answer = [], await connection.answer()
    while answer.status == 104:
        told.append(answer)
        answer = await connection.answer()
    return answer, told


async def begin(connection: Connection, version: int = 8, size: int = CONTENT.size, *more: str) -> Answer:
    """Send the head of a whole upload; what its client hears before the bytes come."""
    await connection.request("POST", RESUMABLE, *named(version, True), f"Content-Length: {size}", *more)
    return await interim(connection)


async def append(connection: Connection, version: int, path: str, offset: int, content: bytes) -> None:
    """Send the head of a request with the last bytes, and the first of them."""
    kind, length = "Content-Type: application/partial-upload", f"Content-Length: {CONTENT.size - offset}"
    await connection.request("PATCH", path, *named(version, True), f"Upload-Offset: {offset}", kind, length)
    await connection.send(content)


async def hang(server: Server, connection: Connection, version: int = 8) -> str:
    """Send a part of an upload, and no more; its path, once some of it is stored."""
    path = (await begin(connection, version)).headers["location"]
    await connection.send(CONTENT.data[: 100 * KIB])

    async def has_come() -> bool:
        return await received(server, path) >= 64 * KIB

    await eventually(has_come)
    return path


async def received(server: Server, path: str) -> int:
    status: Any = (await server.stack.client.get(native(path))).json()
    return int(status["upload"]["received_bytes"])


async def kept(server: Server, path: str) -> int:
    """Where an upload ends that broke off."""
    offset, complete, size = await Rufh(server.stack.client).state(path)
    assert (64 * KIB <= offset <= 100 * KIB, complete, size) == (True, False, CONTENT.size)
    return offset


@on_both_loops
async def test_4_2_2_a_104_says_where_the_upload_is_before_its_bytes_come(connection: Connection) -> None:
    """It "MUST include Location", and "Upload-Limit"; all messages "MUST contain an identical Location value"."""
    for version in range(3, 10):  # on the same connection
        first = await begin(connection, version)
        assert first.headers["upload-draft-interop-version"] == str(version)
        assert ("upload-limit" in first.headers) == (version >= 6)
        assert "upload-offset" not in first.headers
        await connection.send(CONTENT.data)
        answer, told = await final(connection)
        assert bool(told) is (version >= 5), "progress was told of later"
        assert {each.headers["location"] for each in (*told, answer)} == {first.headers["location"]}
        assert answer.status == 201


OTHERS: list[tuple[str, Sequence[str]]] = [
    ("1.1", ()),
    ("1.1", ("Upload-Complete: ?1",)),
    ("1.1", ("Upload-Complete: ?1", "Upload-Draft-Interop-Version: 2")),
    ("1.1", ("Upload-Complete: ?1", "Upload-Draft-Interop-Version: 10")),
    ("1.0", named(8, True)),
]


@pytest.mark.parametrize(
    ("server", "others"),
    [({}, OTHERS), ({"interim_responses": False}, [("1.1", named(8, True))])],
    ids=["others", "switched off"],
    indirect=["server"],
)
async def test_others_hear_the_answer_alone(server: Server, others: list[tuple[str, Sequence[str]]]) -> None:
    token = server.stack.client.headers["authorization"]
    for http, headers in others:
        async with server.connection() as connection:
            head = [f"POST {RESUMABLE} HTTP/{http}", "Host: test", f"Authorization: {token}", *headers]
            await connection.send("\r\n".join([*head, "Content-Length: 5", "", "12345"]).encode())
            assert (await connection.answer()).status == 201


@on_both_loops
async def test_5_the_100_is_not_left_out(connection: Connection) -> None:
    """ "the server MUST NOT omit the 100 (Continue) response because it has sent an interim response"."""
    first = await begin(connection, 8, CONTENT.size, "Expect: 100-continue")
    await interim(connection, 100)
    await connection.send(CONTENT.data[: 130 * KIB])
    progress = await interim(connection)
    assert progress.headers["upload-offset"] == str(64 * KIB)
    await connection.send(CONTENT.data[130 * KIB :])
    answer, _ = await final(connection)
    assert (answer.status, answer.headers["location"]) == (201, first.headers["location"])


async def test_4_4_2_progress_is_told_without_a_place(server: Server, connection: Connection) -> None:
    """ "These interim responses MUST NOT include the Location header field." Of stored bytes, from version 5 on."""
    length = f"Upload-Length: {CONTENT.size}"
    for version in (3, 5, 8):
        await connection.request("POST", RESUMABLE, *named(version, False), length, "Content-Length: 0")
        path = (await interim(connection)).headers["location"]
        assert (await connection.answer()).status == 201
        await append(connection, version, path, 0, CONTENT.data[: 150 * KIB])
        if version >= 5:
            progress = await interim(connection)
            assert "location" not in progress.headers
            assert progress.headers["upload-offset"] == str(64 * KIB)
            assert await received(server, path) >= 64 * KIB
        await connection.send(CONTENT.data[150 * KIB :])
        answer, told = await final(connection)
        assert (answer.status, version >= 5 or not told) == (201, True)


async def test_who_does_not_read_is_not_told_more_and_more(server: Server) -> None:
    content = Content(3 << 20)
    async with server.connection(narrow=True) as connection:
        first = await begin(connection, 8, content.size)
        await connection.send(content.data)
        answer, told = await final(connection)
        assert (answer.status, answer.headers["location"]) == (201, first.headers["location"])
        offsets = [int(each.headers["upload-offset"]) for each in told]
        assert offsets == sorted(set(offsets))


@on_both_loops
async def test_4_2_2_what_came_before_a_connection_broke_is_kept(server: Server) -> None:
    """ "append as much of the request content as possible"; it "MUST NOT be considered complete then"."""
    for number, version in enumerate((3, 5, 6, 8), 1):
        async with server.connection() as connection:
            path = await hang(server, connection, version)
        offset = await kept(server, path)
        async with server.connection() as connection:
            await append(connection, version, path, offset, CONTENT.data[offset:])
            answer, _ = await final(connection)
        file = (await server.stack.client.get(answer.headers["content-location"])).json()
        assert file["sha256"] == CONTENT.sha256
        assert await server.stack.usage("alice") == {"finished": number * CONTENT.size, "unfinished": 0, "reserved": 0}


async def test_what_nobody_was_told_of_ends_with_its_connection(server: Server) -> None:
    async def has_begun() -> bool:
        return (await server.stack.usage("alice"))["reserved"] == CONTENT.size

    async def has_ended() -> bool:
        return await checked_accounts(server.stack.services.database) == {"alice": Account()}

    for headers in ([], ["Upload-Complete: ?1"]):
        async with server.connection() as connection:
            await connection.request("POST", RESUMABLE, *headers, f"Content-Length: {CONTENT.size}")
            await connection.send(CONTENT.data[: 100 * KIB])
            await eventually(has_begun)
        await eventually(has_ended)


async def test_4_6_a_head_ends_the_request_that_hangs(server: Server, connection: Connection) -> None:
    """ "by terminating the previous request before processing the new request"."""
    path = await hang(server, connection)
    offset = await kept(server, path)
    answer, _ = await final(connection)
    assert (answer.status, answer.code, answer.headers["connection"]) == (503, "unavailable", "close")
    assert await connection.is_closed()
    assert await kept(server, path) == offset


async def test_4_5_a_delete_ends_the_request_that_hangs(server: Server, connection: Connection) -> None:
    path = await hang(server, connection)
    assert (await server.stack.client.delete(path)).status_code == 204
    assert (await server.stack.client.head(path)).status_code == 410
    assert await checked_accounts(server.stack.services.database) == {"alice": Account()}
