"""`POST /files/batch`: many files as an archive, each with a line of its own in the answer."""

import asyncio
import errno
import tarfile
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.support.archives import END, Entry, archive, extended, header, in_pieces, padded, record
from tests.support.content import KIB, MIB, Content
from tests.support.faults import failing_call, open_files_under
from tests.support.problems import problem
from tests.support.stack import Stack
from tests.support.stalling import send_stalled

MANY = [Content(seed * 37 % 4000, seed=seed, name=f"{seed % 7}/{seed}.jpg") for seed in range(1000)]


def _entry(content: Content, **more: Any) -> Entry:
    return Entry(content.name, content.data, **more)


async def _post(stack: Stack, data: bytes | AsyncIterator[bytes], **query: str) -> httpx2.Response:
    return await stack.client.post("/files/batch", params=query, content=data)


async def _results(stack: Stack, data: bytes | AsyncIterator[bytes], **query: str) -> list[dict[str, Any]]:
    response = await _post(stack, data, **query)
    assert response.status_code == 200, response.text
    body = response.json()
    assert body.keys() == {"results"}
    results: list[dict[str, Any]] = body["results"]
    return results


def _shown(results: list[dict[str, Any]]) -> list[tuple[str, int | str]]:
    """Each line by its name, and its status or, where it was refused, its code."""
    for line in results:
        assert line.keys() == {"name", "status", "problem" if line["status"] >= 400 else "file"}
        assert line["status"] < 400 or line["problem"]["status"] == line["status"]
    return [(line["name"], line["problem"]["code"] if "problem" in line else line["status"]) for line in results]


async def _files(stack: Stack) -> dict[str, dict[str, Any]]:
    files = (await stack.client.get("/me/files?limit=1000")).json()["files"]
    return {file["name"]: file for file in files}


async def _content(stack: Stack, file: dict[str, Any]) -> bytes:
    return (await stack.client.get(f"/me/files/{file['id']}/content")).content


async def test_each_member_becomes_a_file(stack: Stack) -> None:
    data = archive(*map(_entry, MANY))
    results = await _results(stack, data)
    assert _shown(results) == [(content.name, 201) for content in MANY]
    files = await _files(stack)
    for content, line in zip(MANY, results, strict=True):
        assert files[content.name] == line["file"]
        assert (line["file"]["md5"], line["file"]["sha256"]) == (content.md5, content.sha256)
    assert await _content(stack, files[MANY[7].name]) == MANY[7].data
    total = sum(content.size for content in MANY)
    assert await stack.usage("alice") == {"finished": total, "unfinished": 0, "reserved": 0}
    again = await _results(stack, data)
    assert [line["file"] for line in again] == [line["file"] for line in results]
    assert {line["status"] for line in again} == {200}


@pytest.mark.parametrize("budget_bytes", [4, 512 * MIB], ids=["spool", "memory"])
async def test_members_of_any_size_come_in_pieces_of_any_size(make_stack: MakeStack, budget_bytes: int) -> None:
    contents = [Content(size, name=f"{size}") for size in (0, 5 * MIB + 1, 1, 256 * KIB, 700 * KIB)]
    data = archive(*map(_entry, contents))

    async def pieces() -> AsyncIterator[bytes]:
        for piece in in_pieces(data, range(0, len(data), 99_991)):
            yield piece

    async with make_stack(body_budget_bytes=budget_bytes) as stack:
        assert _shown(await _results(stack, pieces())) == [(content.name, 201) for content in contents]
        files = await _files(stack)
        for content in contents:
            assert await _content(stack, files[content.name]) == content.data
        assert open_files_under(stack.data / "spool") == []


async def test_names_are_below_a_folder_and_answered_as_they_are_in_the_archive(stack: Stack) -> None:
    data = archive(Entry("./a", b"1", mtime=1350244992.0239), Entry("b/e\u0301", b"2", mtime=5))
    for to, expected in (("photos/2026", "photos/2026/"), ("e\u0301/", "\u00e9/"), ("", "")):
        results = await _results(stack, data, to=to)
        assert _shown(results) == [("./a", 201), ("b/e\u0301", 201)]
        assert [line["file"]["name"] for line in results] == [f"{expected}a", f"{expected}b/\u00e9"]
        times = [line["file"]["modified_at"] for line in results]
        assert times == ["2012-10-14T20:03:12.023900Z", "1970-01-01T00:00:05Z"]


async def test_one_path_twice_is_taken_in_order(stack: Stack) -> None:
    data = archive(Entry("a", b"1"), Entry("a", b"2"), Entry("a", b"1"))
    for if_exists, answers in (("keep", [201, 201, 200]), ("replace", [201] * 3), ("fail", [201, "name-taken", 200])):
        results = await _results(stack, data, if_exists=if_exists, to=if_exists)
        assert _shown(results) == [("a", answer) for answer in answers]
    assert await _content(stack, (await _files(stack))["replace/a"]) == b"1"


async def test_claimed_digests_are_compared(stack: Stack) -> None:
    good, other = Content(10), Content(10, seed=1)
    entries = [
        Entry("both", good.data, pax={"uploader.md5": good.md5.upper(), "uploader.sha256": good.sha256}),
        Entry("md5", good.data, pax={"uploader.md5": other.md5}),
        Entry("sha256", good.data, pax={"uploader.sha256": other.sha256}),
        Entry("no-md5", good.data, pax={"uploader.md5": "x"}),
        Entry("no-sha256", good.data, pax={"uploader.sha256": "x"}),
    ]
    results = await _results(stack, archive(*entries))
    assert _shown(results) == [
        ("both", 201),
        ("md5", "md5-mismatch"),
        ("sha256", "sha256-mismatch"),
        ("no-md5", "invalid-md5"),
        ("no-sha256", "invalid-request"),
    ]
    assert (results[1]["problem"]["expected"], results[1]["problem"]["actual"]) == (other.md5, good.md5)
    assert list(await _files(stack)) == ["both"]


async def test_a_member_that_is_refused_harms_no_other(make_stack: MakeStack) -> None:
    too_large = b"x" * (128 * KIB + 1)
    entries = [
        *(Entry(name, b"1") for name in ("../up", "/root", "back\\slash", "n" * 300)),
        Entry("link", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        Entry("hard", type=tarfile.LNKTYPE, linkname="good"),
        Entry("pipe", type=tarfile.FIFOTYPE),
        Entry("device", type=tarfile.CHRTYPE),
        Entry("large", too_large),
        Entry("good", b"5"),
    ]
    async with make_stack(max_chunk_size_bytes=128 * KIB, chunk_size_bytes=64 * KIB) as stack:
        data = archive(*entries[:-1]).rstrip(b"\0")
        data += bytes(-len(data) % 512)
        data += header(b"\xff", 1) + padded(b"y") + archive(entries[-1])
        results = await _results(stack, data)
        assert list(await _files(stack)) == ["good"]
        lines = {line["name"]: line for line in results}
    assert _shown(results) == [
        *((entry.name, "invalid-request") for entry in entries[:8]),
        ("large", "file-too-large"),
        ("\ufffd", "invalid-request"),
        ("good", 201),
    ]
    assert lines["large"]["problem"]["limit"] == 128 * KIB
    assert lines["link"]["problem"]["errors"] == [{"field": "name", "reason": "is a symbolic link"}]
    assert lines["link"]["problem"].keys() >= {"type", "title", "status", "detail", "code", "retryable", "request_id"}


async def test_a_full_disk_under_one_member_harms_no_other(make_stack: MakeStack) -> None:
    data = archive(Entry("a", bytes(MIB)), Entry("b", b"1"))
    async with make_stack(body_budget_bytes=4) as stack:
        with failing_call("pwrite", errno.ENOSPC, only=lambda path: path.parent.name == "spool"):
            assert _shown(await _results(stack, data)) == [("a", "storage-full"), ("b", 201)]
        assert open_files_under(stack.data / "spool") == []
        assert _shown(await _results(stack, data)) == [("a", 201), ("b", 200)]


WHOLE = archive(Entry("a", b"1"), Entry("b", b"2" * 2000))


async def test_what_is_no_whole_archive_is_refused_and_what_came_before_stands(stack: Stack) -> None:
    cases: tuple[tuple[bytes, list[str]], ...] = (
        (b"", []),
        (WHOLE[:700], ["a"]),
        (WHOLE[:1536], ["a"]),  # after the header of b
        (WHOLE[:2000], ["a"]),  # within its bytes
        (WHOLE[: 3584 + 512], ["a", "b"]),
        (WHOLE[:3584] + header(b"c", b"x") + END, ["a", "b"]),
    )
    for number, (data, stored) in enumerate(cases):
        refused = problem(await _post(stack, data, to=f"{number}"), 422, "invalid-archive")
        assert _shown(refused["results"]) == [(name, 201) for name in stored]
        there = [name for name in await _files(stack) if name.startswith(f"{number}/")]
        assert sorted(there) == [f"{number}/{name}" for name in stored]
        again = await _results(stack, WHOLE, to=f"{number}")
        assert _shown(again) == [(name, 200 if name in stored else 201) for name in ("a", "b")]


async def test_a_body_that_stands_still_is_given_up_and_what_came_before_stands(make_stack: MakeStack) -> None:
    async with make_stack(body_idle_timeout_seconds=0.2) as stack:
        refused = problem(await send_stalled(stack.client, "POST", "/files/batch", WHOLE[:2000]), 408, "body-timeout")
        assert _shown(refused["results"]) == [("a", 201)]


async def _leaves_after(stack: Stack, *pieces: bytes) -> None:
    """A client that goes away while its archive comes; nothing is held of it."""
    sent = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece
        sent.set()
        await asyncio.Event().wait()

    request = asyncio.create_task(_post(stack, body()))
    await sent.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert open_files_under(stack.data / "spool") == []
    assert stack.app.intake._budget._charged == {}


async def test_what_a_client_has_sent_before_it_goes_away_is_stored(stack: Stack) -> None:
    await _leaves_after(stack, WHOLE[:2000])
    assert _shown(await _results(stack, WHOLE))[1] == ("b", 201)


async def test_a_name_in_the_answer_is_cut(stack: Stack) -> None:
    whole, half = b"n" * 5000, b"n" * 1023 + "\u00e9".encode() * 10
    data = b"".join(extended(record(b"path", path)) + header(b"x", kind=b"2") for path in (whole, half, b"\xff" * 5000))
    results = await _results(stack, data + extended(record(b"path", whole)) + header(b"x", 1) + padded(b"x") + END)
    cut = ("n" * 1024, "n" * 1023, "\ufffd" * 341, "n" * 1024)
    assert _shown(results) == [(name, "invalid-request") for name in cut]
    assert results[-1]["problem"]["errors"] == [{"field": "name", "reason": "is longer than 1024 bytes"}]


LONG = extended(record(b"path", b"p" * 65_000)) + header(b"x", kind=b"2")


@pytest.mark.parametrize(
    ("budget_bytes", "ends"), [(4, True), (512 * MIB, False)], ids=["spool, whole", "memory, broken off"]
)
async def test_long_paths_make_no_long_answer(make_stack: MakeStack, budget_bytes: int, ends: bool) -> None:
    """In memory within the budget, or in the spool, until it is sent."""
    count = 1000
    async with make_stack(body_budget_bytes=budget_bytes) as stack:

        async def body() -> AsyncIterator[bytes]:
            for _ in range(count):
                yield LONG
            yield archive(Entry("last", b"1")) if ends else header(b"cut", 5)

        tracemalloc.start()
        response = await _post(stack, body())
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (len(response.content) < count * 2 * KIB, most < 32 * MIB) == (True, True)
        results = response.json()["results"] if ends else problem(response, 422, "invalid-archive")["results"]
        assert _shown(results) == [("p" * 1024, "invalid-request")] * count + [("last", 201)] * ends
        assert int(response.headers["content-length"]) == len(response.content)
        assert open_files_under(stack.data / "spool") == []
        assert stack.app.intake._budget._charged == {}


@pytest.mark.parametrize("budget_bytes", [4, 512 * MIB], ids=["spool", "memory"])
async def test_lines_that_nobody_waits_for_any_more_are_given_up(make_stack: MakeStack, budget_bytes: int) -> None:
    async with make_stack(body_budget_bytes=budget_bytes) as stack:
        await _leaves_after(stack, *[LONG] * 200)


async def test_a_batch_is_posted_and_may_be_of_nothing(stack: Stack) -> None:
    assert await _results(stack, END) == []
    response = await stack.client.put("/files/batch", content=END)
    problem(response, 405, "method-not-allowed")
    assert response.headers["allow"] == "POST"
