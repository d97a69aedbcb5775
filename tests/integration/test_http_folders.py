"""Folders: one level of names, what lies below a prefix as one archive, deleted, or moved."""

import io
import tarfile
import zipfile
from typing import Any

import pytest

from tests.support.problems import problem
from tests.support.stack import Stack
from uploader.database import transactions

FILES = {
    "a.txt": b"a",
    "photos/2025/x.jpg": b"xx",
    "photos/2026/x.jpg": b"xxx",
    "photos/2026/y.jpg": b"yyyy",
    "photos/cover.jpg": b"cover",
    "photos.txt": b"p",
    "übung/ß.txt": b"u",
}


@pytest.fixture
async def filled(stack: Stack) -> Stack:
    for name, data in FILES.items():
        await put(stack, name, data)
    return stack


async def put(stack: Stack, name: str, data: bytes) -> None:
    response = await stack.client.post("/me/files", params={"name": name}, content=data)
    assert response.status_code == 201, response.text


async def level(stack: Stack, **parameters: Any) -> dict[str, Any]:
    response = await stack.client.get("/me/files", params={"delimiter": "/", **parameters})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def names(stack: Stack) -> list[str]:
    answer = (await stack.client.get("/me/files", params={"limit": 1000})).json()
    return sorted(file["name"] for file in answer["files"])


async def test_one_level_has_files_and_folders_with_what_is_in_them(filled: Stack) -> None:
    top = await level(filled)
    assert [file["name"] for file in top["files"]] == ["a.txt", "photos.txt"]
    assert top["folders"] == [{"name": "photos/", "files": 4, "bytes": 14}, {"name": "übung/", "files": 1, "bytes": 1}]
    assert top["next"] is None
    photos = await level(filled, prefix="photos/")
    assert [file["name"] for file in photos["files"]] == ["photos/cover.jpg"]
    assert photos["folders"] == [
        {"name": "photos/2025/", "files": 1, "bytes": 2},
        {"name": "photos/2026/", "files": 2, "bytes": 7},
    ]
    assert await level(filled, prefix="nothing/") == {"files": [], "next": None, "folders": []}
    assert "folders" not in (await filled.client.get("/me/files")).json()


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_a_level_is_paged_by_name(filled: Stack, limit: int) -> None:
    await put(filled, "a.txt", b"another")
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = await level(filled, limit=limit, **({} if cursor is None else {"after": cursor}))
        found = [entry["name"] for entry in (*page["folders"], *page["files"])]
        assert len(found) <= limit
        seen += sorted(found)
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == ["a.txt", "a.txt", "photos.txt", "photos/", "übung/"]


@pytest.mark.parametrize(
    "parameters", [{"after": "?"}, {"after": "W10"}, {"delimiter": "-"}, {"q": "a"}, {"limit": 0}, {"after": "éé"}]
)
async def test_what_is_no_level_is_refused(filled: Stack, parameters: dict[str, Any]) -> None:
    response = await filled.client.get("/me/files", params={"delimiter": "/", **parameters})
    assert problem(response, 422, "invalid-request")


@pytest.mark.parametrize("kind", ["zip", "tar"])
async def test_a_folder_is_one_archive(filled: Stack, kind: str) -> None:
    await put(filled, "photos/2026/x.jpg", b"another")
    response = await filled.client.get("/me/archive", params={"prefix": "photos/2026/", "format": kind})
    assert response.status_code == 200
    assert f'filename="2026.{kind}"' in response.headers["content-disposition"]
    assert read(kind, response.content) == {
        "2026/x.jpg": b"xxx",
        "2026/y.jpg": b"yyyy",
        "2026/x (2).jpg": b"another",
    }


@pytest.mark.parametrize("kind", ["zip", "tar"])
async def test_all_files_are_one_archive(filled: Stack, kind: str) -> None:
    response = await filled.client.get("/me/archive", params={"format": kind})
    assert read(kind, response.content) == FILES
    empty = await filled.client.get("/me/archive", params={"format": kind, "prefix": "none/"})
    assert read(kind, empty.content) == {}


def read(kind: str, content: bytes) -> dict[str, bytes]:
    if kind == "zip":
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            assert archive.testzip() is None
            return {info.filename: archive.read(info) for info in archive.infolist()}
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar.getmembers()}  # type: ignore[union-attr]


async def test_what_is_below_a_prefix_is_deleted(filled: Stack) -> None:
    response = await filled.client.delete("/me/files", params={"prefix": "photos/"})
    assert (response.status_code, response.json()) == (200, {"files": 4})
    assert await names(filled) == ["a.txt", "photos.txt", "übung/ß.txt"]
    assert (await filled.usage("alice"))["finished"] == 3
    assert (await filled.client.delete("/me/files", params={"prefix": "photos/"})).json() == {"files": 0}


async def test_what_is_below_a_prefix_is_moved(filled: Stack) -> None:
    await put(filled, "old/2026/x.jpg", b"xxx")
    before = await filled.usage("alice")
    response = await filled.client.patch("/me/files", params={"prefix": "photos/"}, json={"prefix": "old/"})
    assert (response.status_code, response.json()) == (200, {"files": 4})
    assert await names(filled) == [
        *("a.txt", "old/2025/x.jpg", "old/2026/x.jpg", "old/2026/y.jpg", "old/cover.jpg"),
        *("photos.txt", "übung/ß.txt"),
    ]
    # The one that was there already, with the same content, is no twin.
    assert (await filled.usage("alice"))["finished"] == before["finished"] - 3
    up = await filled.client.patch("/me/files", params={"prefix": "old/"}, json={"prefix": ""})
    assert up.json() == {"files": 4}
    assert await names(filled) == [
        "2025/x.jpg",
        "2026/x.jpg",
        "2026/y.jpg",
        "a.txt",
        "cover.jpg",
        "photos.txt",
        "übung/ß.txt",
    ]


@pytest.mark.parametrize("prefix", ["photos/", "photos/deeper/", "x\\", "../", "/", "a//", "l" * 256 + "/"])
async def test_nothing_is_moved_to_where_not_all_can_be(filled: Stack, prefix: str) -> None:
    response = await filled.client.patch("/me/files", params={"prefix": "photos/"}, json={"prefix": prefix})
    assert problem(response, 422, "invalid-request")
    assert await names(filled) == sorted(FILES)


@pytest.mark.parametrize("parameters", [{}, {"prefix": ""}, [("prefix", "a"), ("prefix", "b")]])
async def test_all_files_are_never_meant_by_nothing(filled: Stack, parameters: Any) -> None:
    assert problem(await filled.client.delete("/me/files", params=parameters), 422, "invalid-request")
    response = await filled.client.patch("/me/files", params=parameters, json={"prefix": "x/"})
    assert problem(response, 422, "invalid-request")
    assert await names(filled) == sorted(FILES)


async def test_nobody_sees_folders_of_others(filled: Stack) -> None:
    bob = await filled.client_of("bob")
    assert (await bob.get("/me/files", params={"delimiter": "/"})).json()["folders"] == []
    assert (await bob.delete("/me/files", params={"prefix": "photos/"})).json() == {"files": 0}
    assert (await bob.patch("/me/files", params={"prefix": "photos/"}, json={"prefix": "x/"})).json() == {"files": 0}
    assert read("zip", (await bob.get("/me/archive")).content) == {}
    assert await names(filled) == sorted(FILES)


async def test_a_folder_within_one_of_its_own_name_moves_up_whole(stack: Stack) -> None:
    """What is in the way of a file is to be moved itself: it is no twin."""
    for name in ("a/a/a/x", "a/x", "a/a/x", "a/a/y"):
        await put(stack, name, b"same")
    response = await stack.client.patch("/me/files", params={"prefix": "a/"}, json={"prefix": ""})
    assert (response.status_code, response.json()) == (200, {"files": 4})
    assert await names(stack) == ["a/a/x", "a/x", "a/y", "x"]
    assert (await stack.usage("alice"))["finished"] == 16


@pytest.mark.parametrize("kind", ["zip", "tar"])
async def test_a_folder_with_a_damaged_file_is_refused_before_any_byte(filled: Stack, kind: str) -> None:
    (file,) = (await filled.client.get("/me/files", params={"prefix": "photos/2026/x"})).json()["files"]
    await filled.services.database.transact(
        lambda connection: transactions.note_scrub(
            connection, file["sha256"], damaged=True, now=filled.services.clock.now()
        )
    )
    parameters = {"prefix": "photos/", "format": kind}
    refused = problem(await filled.client.get("/me/archive", params=parameters), 500, "content-damaged")
    assert "photos/2026/x.jpg" in refused["detail"]
    response = await filled.client.get("/me/archive", params={"prefix": "photos/2025/", "format": kind})
    assert read(kind, response.content) == {"2025/x.jpg": b"xx"}
