"""Folders: one level of names, what lies below a prefix as one archive, deleted, or moved."""

import io
import json
import tarfile
import zipfile
from hashlib import sha256
from itertools import product
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

from tests.conftest import MakeStack
from tests.support.archives import Entry, archive
from tests.support.clock import ManualClock
from tests.support.invariants import checked_accounts
from tests.support.layout import blob_path
from tests.support.paging import pages
from tests.support.problems import problem
from tests.support.stack import Stack
from uploader.database import queries, transactions
from uploader.domain.creations import RENAME
from uploader.domain.upload import File, IfExists
from uploader.http.bodies.intake import MAX_JSON_BYTES
from uploader.http.native import archive as archives
from uploader.service import files
from uploader.service.files import Files

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
    entries = archive(*(Entry(name, data) for name, data in FILES.items()))
    results = (await stack.client.post("/files/batch", content=entries)).json()["results"]
    assert {line["status"] for line in results} == {201}
    return stack


async def put(stack: Stack, name: str, data: bytes) -> None:
    response = await stack.client.post("/me/files", params={"name": name}, content=data)
    assert response.status_code == 201, response.text


async def level(stack: Stack, **parameters: Any) -> dict[str, Any]:
    (page,) = await pages(stack.client, "/me/files", delimiter="/", **parameters)
    return page


async def move(stack: Stack, body: dict[str, Any], to: str) -> Any:
    return (await stack.client.post("/me/files/move", json={**body, "to": to})).json()


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


async def test_a_level_is_paged_by_name(filled: Stack) -> None:
    await put(filled, "a.txt", b"another")
    for limit in (1, 2, 3):
        paged = await pages(filled.client, "/me/files", delimiter="/", limit=limit)
        found = [sorted(entry["name"] for entry in (*page["folders"], *page["files"])) for page in paged]
        assert max(map(len, found)) <= limit
        assert [name for level in found for name in level] == ["a (2).txt", "a.txt", "photos.txt", "photos/", "übung/"]


async def test_empty_folders_are_listed_by_name_and_nobody_elses(stack: Stack) -> None:
    made = ["a/x/", "a/y/", "b/", "ü/"]
    for name in (*made, "a/"):
        assert (await stack.client.post("/me/folders", json={"name": name})).status_code in (200, 201)
    await put(stack, "full/file", b"x")
    for prefix, expected in ((None, made), ("a/", made[:2]), ("ü", made[3:]), ("full/", [])):
        wanted = {"limit": 1, **({} if prefix is None else {"prefix": prefix})}
        found = [
            folder["name"] for page in await pages(stack.client, "/me/folders", **wanted) for folder in page["folders"]
        ]
        assert found == expected, prefix
    bob = await stack.client_of("bob")
    assert (await bob.get("/me/folders")).json() == {"folders": [], "next": None}


async def test_what_is_no_level_is_refused(stack: Stack) -> None:
    for wrong in ({"after": "?"}, {"after": "W10"}, {"after": "éé"}, {"delimiter": "-"}, {"q": "a"}, {"limit": "0"}):
        response = await stack.client.get("/me/files", params={"delimiter": "/", **wrong})
        problem(response, 422, "invalid-request")


async def test_a_folder_or_all_files_are_one_archive(filled: Stack) -> None:
    await put(filled, "photos/2026/x.jpg", b"another")
    folder = {"2026/x.jpg": b"xxx", "2026/y.jpg": b"yyyy", "2026/x (2).jpg": b"another"}
    all_files = FILES | {"photos/2026/x (2).jpg": b"another"}
    nothing: dict[str, bytes] = {}
    archives = ("photos/2026/", "2026", folder), ("none/", "none", nothing), ("", "files", all_files)
    for kind, (prefix, title, expected) in product(("zip", "tar"), archives):
        query = {"format": kind} | ({"prefix": prefix} if prefix else {})
        response = await filled.client.get("/me/archive", params=query)
        assert response.status_code == 200
        assert f'filename="{title}.{kind}"' in response.headers["content-disposition"]
        assert read(kind, response.content) == expected


async def test_zip_has_the_nearest_date_that_its_format_knows(filled: Stack) -> None:
    dates = {"1969-12-31T23:59:58Z": (1980, 1, 1, 0, 0, 0), "2108-02-29T00:00:00Z": (2107, 12, 31, 23, 59, 58)}
    for date in dates:
        sent = await filled.client.post(
            "/me/files", content=b"a", params={"name": f"dates/{date}", "modified_at": date}
        )
        assert sent.status_code == 201, sent.text
    response = await filled.client.get("/me/archive", params={"prefix": "dates/"})
    with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
        assert {info.filename.partition("/")[2]: info.date_time for info in archive.infolist()} == dates


def read(kind: str, content: bytes) -> dict[str, bytes]:
    if kind == "zip":
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            assert archive.testzip() is None
            return {info.filename: archive.read(info) for info in archive.infolist()}
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar.getmembers()}  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["zip", "tar"])
async def test_file_that_is_replaced_or_moved_meanwhile_is_in_an_archive_once(
    filled: Stack, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The archive keeps the file that it met first, under the name of that moment."""
    monkeypatch.setattr(files, "_FILES_AT_ONCE", 2)
    monkeypatch.setattr(archives, "_GROUP_FILES", 1)
    read_contents, client = filled.services.files.read_contents, filled.client
    await put(filled, "photos/2025/w.jpg", b"ww")
    (moved,) = await ids_of(filled, "photos/2025/w.jpg")

    async def read_and_change(_: Any, some: list[File]) -> Any:
        found = await read_contents(some)
        if some[0].name == "übung/ß.txt":
            for name in ("a.txt", "photos.txt"):
                replaced = {"name": name, "if_exists": "replace"}
                assert (await client.post("/me/files", params=replaced, content=b"new")).status_code == 201
        if some[0].id == moved:
            assert (await client.patch(f"/me/files/{moved}", json={"name": "photos/2026/w.jpg"})).status_code == 200
        return found

    with patch.object(Files, "read_contents", read_and_change):
        both = {"prefixes": ["photos/2025/", "photos/2026/"], "format": kind}
        photos = await client.post("/me/archive", json=both)
        everything = await client.get("/me/archive", params={"format": kind})
    in_order = {"2025/x.jpg": b"xx", "2025/w.jpg": b"ww", "2026/x.jpg": b"xxx", "2026/y.jpg": b"yyyy"}
    assert read(kind, photos.content) == in_order
    assert read(kind, everything.content) == FILES | {"photos/2026/w.jpg": b"ww"}
    assert len(read(kind, (await client.get("/me/archive", params={"format": kind})).content)) == len(FILES) + 1


async def test_a_tar_of_a_folder_has_no_records_that_others_do_not_know(filled: Stack) -> None:
    """GNU tar warns of each, so they are in archives of ids alone."""
    for answer in (
        await filled.client.get("/me/archive", params={"prefix": "photos/", "format": "tar"}),
        await filled.client.post("/me/archive", json={"prefixes": ["photos/"], "format": "tar"}),
    ):
        with tarfile.open(fileobj=io.BytesIO(answer.content)) as tar:
            records = [{*member.pax_headers} - {"mtime", "path"} for member in tar.getmembers()]
        assert records == [set()] * 4


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
    moved = ["old/2025/x.jpg", "old/2026/x.jpg", "old/2026/y.jpg", "old/cover.jpg"]
    assert await names(filled) == ["a.txt", *moved, "photos.txt", "übung/ß.txt"]
    # The one that was there already, with the same content, is no twin.
    assert (await filled.usage("alice"))["finished"] == before["finished"] - 3
    up = await filled.client.patch("/me/files", params={"prefix": "old/"}, json={"prefix": ""})
    assert up.json() == {"files": 4}
    top = ["2025/x.jpg", "2026/x.jpg", "2026/y.jpg", "a.txt", "cover.jpg"]
    assert await names(filled) == [*top, "photos.txt", "übung/ß.txt"]


async def test_nothing_is_moved_to_where_not_all_can_be_and_all_files_are_never_meant_by_nothing(
    filled: Stack,
) -> None:
    refused = [
        await filled.client.patch("/me/files", params={"prefix": "photos/"}, json={"prefix": prefix})
        for prefix in ("photos/", "photos/deeper/", "x\\", "../", "/", "a//", "l" * 256 + "/")
    ]
    for query in ("", "?prefix=", "?prefix=a&prefix=b"):
        refused.append(await filled.client.delete(f"/me/files{query}"))
        refused.append(await filled.client.patch(f"/me/files{query}", json={"prefix": "x/"}))
    for response in refused:
        problem(response, 422, "invalid-request")
    assert await names(filled) == sorted(FILES)


async def test_a_folder_within_one_of_its_own_name_moves_up_whole(stack: Stack) -> None:
    """What is in the way of a file is to be moved itself: it is no twin."""
    for name in ("a/a/a/x", "a/x", "a/a/x", "a/a/y"):
        await put(stack, name, b"same")
    response = await stack.client.patch("/me/files", params={"prefix": "a/"}, json={"prefix": ""})
    assert (response.status_code, response.json()) == (200, {"files": 4})
    assert await names(stack) == ["a/a/x", "a/x", "a/y", "x"]
    assert (await stack.usage("alice"))["finished"] == 16


async def members_of(stack: Stack, ids: list[str]) -> list[tuple[str, int, dict[str, str]]]:
    """The name, size and own records of each member of a tar."""
    answer = await stack.client.post("/me/archive", json={"ids": ids, "format": "tar"})
    assert answer.status_code == 200
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as tar:
        return [
            (member.name, member.size, {key: member.pax_headers[key] for key in member.pax_headers if "." in key})
            for member in tar.getmembers()
        ]


async def test_members_come_in_the_order_asked_for_and_say_which_they_are(filled: Stack) -> None:
    bob = await filled.client_of("bob")
    await bob.post("/me/files", params={"name": "bob's"}, content=b"bob's")
    bobs = (await bob.get("/me/files")).json()["files"][0]["id"]
    ids = dict(zip(FILES, await ids_of(filled, *FILES), strict=True))
    for order in (list(FILES), list(reversed(FILES))):
        asked = [bobs, *(ids[name] for name in order), ids[order[1]], "0" * 32, "no id"]
        expected = [
            (name, len(FILES[name]), {"uploader.id": ids[name], "uploader.sha256": sha256(FILES[name]).hexdigest()})
            for name in order
        ]
        assert await members_of(filled, asked) == expected


async def test_what_is_known_to_be_damaged_or_missing_is_told_and_ends_no_archive(filled: Stack) -> None:
    names = ["photos/2026/x.jpg", "photos/2026/y.jpg", "photos/cover.jpg"]
    files = {file["name"]: file for file in (await filled.client.get("/me/files")).json()["files"]}
    await filled.services.database.transact(
        lambda connection: transactions.files.note_scrub(
            connection, files[names[0]]["sha256"], damaged=True, now=filled.services.clock.now()
        )
    )
    blob_path(filled.data, files[names[1]]["sha256"]).unlink()
    ids = [files[name]["id"] for name in names]
    found = await members_of(filled, ids)
    assert [(name, size) for name, size, _ in found] == [("2026/x.jpg", 0), ("2026/y.jpg", 0), ("cover.jpg", 5)]
    problems = [records.get("uploader.problem") for _, _, records in found]
    assert problems == ["content-damaged", "content-damaged", None]
    for body in ({"ids": ids}, {"prefixes": ["photos/2026/", "photos/c"]}):
        url = await link_to(filled, body)
        zipped = read("zip", (await filled.anonymous().post(url, data=form(body))).content)
        told = zipped.pop("uploader-problems.txt").decode()
        assert zipped == {"cover.jpg": b"cover"}
        assert [line.partition(": ")[0] for line in told.splitlines()] == ["2026/x.jpg", "2026/y.jpg"]


async def ids_of(stack: Stack, *names: str) -> list[str]:
    files = (await stack.client.get("/me/files", params={"limit": 1000})).json()["files"]
    by_name = {file["name"]: file["id"] for file in files}
    return [by_name[name] for name in names]


async def test_a_selection_is_one_archive_named_from_what_it_has_in_common_on(filled: Stack) -> None:
    await put(filled, "photos/cover.jpg", b"another")
    files = (await filled.client.get("/me/files", params={"prefix": "photos/cover"})).json()["files"]
    covers = [file["id"] for file in files]
    (deeper,) = await ids_of(filled, "photos/2026/x.jpg")
    for kind in ("zip", "tar"):
        body = {"ids": [*covers, *covers, deeper], "prefixes": ["photos/2026/", "photos/2026/x"], "format": kind}
        response = await filled.client.post("/me/archive", json=body)
        assert response.status_code == 200
        assert f'filename="photos.{kind}"' in response.headers["content-disposition"]
        found = read(kind, response.content)
        assert sorted(found) == ["2026/x.jpg", "2026/y.jpg", "cover (2).jpg", "cover.jpg"]
        assert {found["cover.jpg"], found["cover (2).jpg"]} == {b"cover", b"another"}


async def test_the_names_in_an_archive_begin_where_the_selected_differ(filled: Stack) -> None:
    x, y = "photos/2025/x.jpg", "photos/2026/y.jpg"
    selections: list[tuple[list[str], list[str], str, list[str]]] = [
        (["a.txt"], [], "a.txt", ["a.txt"]),
        ([x], [], "x.jpg", ["x.jpg"]),
        (["a.txt", x], [], "files", ["a.txt", x]),
        ([x, y], [], "photos", ["2025/x.jpg", "2026/y.jpg"]),
        (["photos/cover.jpg"], ["photos/2025/"], "photos", ["2025/x.jpg", "cover.jpg"]),
        ([], ["photos/2025/"], "2025", ["2025/x.jpg"]),
        ([], ["photos/2025/", "u\u0308bung/"], "files", [x, "übung/ß.txt"]),
        ([], [""], "files", sorted(FILES)),
    ]
    for selected, prefixes, title, members in selections:
        body = {"ids": await ids_of(filled, *selected), "prefixes": prefixes}
        response = await filled.client.post("/me/archive", json=body)
        assert f'filename="{title}.zip"' in response.headers["content-disposition"]
        assert sorted(read("zip", response.content)) == members


async def link_to(stack: Stack, body: dict[str, Any]) -> str:
    response = await stack.client.post("/me/archive/link", json=body)
    assert response.status_code == 200, response.text
    url: str = response.json()["url"]
    return url


def form(body: dict[str, Any]) -> dict[str, str]:
    return {"selection": json.dumps(body)}


async def test_a_form_gets_an_archive_without_a_token_for_a_while(make_stack: MakeStack, clock: ManualClock) -> None:
    async with make_stack(clock=clock) as stack:
        for name, data in FILES.items():
            await put(stack, name, data)
        body = {"ids": await ids_of(stack, "a.txt"), "prefixes": ["photos/2025/"]}
        url = await link_to(stack, body)
        response = await stack.anonymous().post(url, data=form(body))
        assert read("zip", response.content) == {"a.txt": b"a", "photos/2025/x.jpg": b"xx"}
        assert len(url) < 400
        reordered = {"prefixes": ["photos/2025/", "photos/2025/"], "ids": body["ids"], "format": "tar"}
        tar = await stack.anonymous().post(url, data=form(reordered))
        assert sorted(read("tar", tar.content)) == ["a.txt", "photos/2025/x.jpg"]
        clock.advance(301)
        problem(await stack.anonymous().post(url, data=form(body)), 401, "unauthenticated")


async def test_nothing_of_a_link_to_a_selection_can_be_changed(filled: Stack) -> None:
    first, second = await ids_of(filled, "a.txt", "photos.txt")
    body = {"ids": [first]}
    url = await link_to(filled, body)
    query = dict(parse_qsl(urlsplit(url).query))
    bob, anonymous = await filled.client_of("bob"), filled.anonymous()
    file_link = (await filled.client.post(f"/me/files/{first}/link", json={})).json()["url"]
    others = [{"ids": [second]}, {"ids": [first, second]}, {"prefixes": [""]}, {"ids": [first], "prefixes": ["p"]}, {}]
    for other in others:
        for client in (anonymous, bob):
            problem(await client.post(url, data=form(other)), 401, "unauthenticated")
    digest = query["selection"]
    for changed in (
        *({"user": "bob"}, {"expires": str(int(query["expires"]) + 1)}, {"signature": "0" * 64}, {"selection": ""}),
        *({"selection": first}, {"selection": digest.upper()}),
    ):
        other_url = f"/me/archive?{urlencode(query | changed)}"
        problem(await anonymous.post(other_url, data=form(body)), 401, "unauthenticated")
    for forged in (
        f"{url}&selection={digest}",
        f"/me/archive?{urlsplit(file_link).query}",
        f"/me/archive?{urlsplit(file_link).query}&selection={first}",
        "/me/archive",
    ):
        assert (await anonymous.post(forged, data=form(body))).status_code in (401, 422)
    # It opens the archive of this selection, and nothing else.
    for method, path in (("GET", "/me/archive"), ("POST", "/me/files/delete"), ("GET", f"/me/files/{first}/content")):
        problem(await anonymous.request(method, f"{path}?{urlsplit(url).query}", json={}), 401, "unauthenticated")
    assert (await anonymous.post(url, data=form(body))).status_code == 200


async def test_what_a_link_is_made_for_fits_into_the_form_that_goes_to_it(filled: Stack) -> None:
    """Though a form has three bytes for each that is not ASCII, and a selection has the most ids that it may have."""
    folders = f"{'я' * 120}/" * 4
    ids = [f"{number:032x}" for number in range(9999)]
    body = {"ids": await ids_of(filled, "a.txt") + ids, "prefixes": [f"{folders}{number}/" for number in range(100)]}
    url = await link_to(filled, body)
    sent = {"selection": json.dumps(body, ensure_ascii=False)}
    assert len(urlencode(sent)) > MAX_JSON_BYTES
    for answer in (await filled.anonymous().post(url, data=sent), await filled.client.post("/me/archive", json=body)):
        assert read("zip", answer.content) == {"a.txt": b"a"}


async def test_nobody_sees_or_selects_files_of_others(filled: Stack) -> None:
    """Nor learns that they are there."""
    body = {"ids": await ids_of(filled, *FILES), "prefixes": ["photos/"]}
    bob = await filled.client_of("bob")
    for path in ("/me/archive", "/me/archive/link"):
        answers = [await bob.post(path, json=each) for each in (body, {"ids": ["0" * 32]})]
        assert len({problem(answer, 404, "file-not-found")["detail"] for answer in answers}) == 1
    folder = {"prefix": "photos/"}
    for changed in (
        await bob.delete("/me/files", params=folder),
        await bob.patch("/me/files", params=folder, json={"prefix": "x/"}),
        await bob.post("/me/files/delete", json=body),
        await bob.post("/me/files/move", json={**body, "to": "x/"}),
    ):
        assert changed.json() == {"files": 0}
    assert (await bob.get("/me/files", params={"delimiter": "/"})).json()["folders"] == []
    assert read("zip", (await bob.get("/me/archive")).content) == {}
    await bob.post("/me/files", params={"name": "own.txt"}, content=b"own")
    own = (await bob.get("/me/files")).json()["files"][0]["id"]
    answer = await bob.post("/me/archive", json={"ids": [*body["ids"], own]})
    assert read("zip", answer.content) == {"own.txt": b"own"}
    assert await names(filled) == sorted(FILES)


async def test_a_selection_is_asked_for_strictly(filled: Stack) -> None:
    bodies: list[dict[str, Any]] = [{"prefixes": [""] * 101}, {"ids": "x"}, {"x": []}, {"ids": [1]}]
    for path in ("/me/archive", "/me/archive/link", "/me/files/delete", "/me/files/move"):
        more = {"to": "x/"} if path.endswith("move") else {}
        everything = [{"prefixes": [""]}] if path.startswith("/me/files/") else []
        too_many = {"ids": ["0" * 32] * (10_001 if path.startswith("/me/archive") else 5_001)}
        for body in (too_many, *bodies, *everything):
            problem(await filled.client.post(path, json={**more, **body}), 422, "invalid-request")
        for content in (b"", b"[", b'{"ids": ["\\ud800"]}' if not more else b"{}"):
            problem(await filled.client.post(path, content=content), 422, "invalid-request")
        if everything:
            assert (await filled.client.post(path, json={"ids": ["é" * 32, "'"], **more})).json() == {"files": 0}
    (own,) = await ids_of(filled, "a.txt")
    for to in ("x", "/", "../", "a//", "x\\/", "l" * 256 + "/"):
        answer = await filled.client.post("/me/files/move", json={"ids": [own], "to": to})
        problem(answer, 422, "invalid-request")
    for data in ({"x": ""}, {"selection": "{"}, {"selection": ""}, {"x": "{}"}):
        problem(await filled.client.post("/me/archive", data=data), 422, "invalid-request")
    assert await names(filled) == sorted(FILES)


async def test_a_selection_is_deleted(filled: Stack) -> None:
    body = {"ids": await ids_of(filled, "a.txt", "photos/2025/x.jpg"), "prefixes": ["photos/"]}
    assert (await filled.client.post("/me/files/delete", json=body)).json() == {"files": 5}
    assert (await filled.client.post("/me/files/delete", json=body)).json() == {"files": 0}
    assert await names(filled) == ["photos.txt", "übung/ß.txt"]
    assert (await filled.usage("alice"))["finished"] == 2


async def test_a_selection_moves_into_a_folder(filled: Stack) -> None:
    body = {"ids": await ids_of(filled, "a.txt", "photos/cover.jpg"), "prefixes": ["photos/2026/", "übung/"]}
    assert await move(filled, body, "u\u0308ber/") == {"files": 5}
    expected = ["photos.txt", "photos/2025/x.jpg", "über/2026/x.jpg", "über/2026/y.jpg", "über/a.txt", "über/cover.jpg"]
    assert await names(filled) == [*expected, "über/übung/ß.txt"]
    assert await move(filled, {**body, "prefixes": ["über/2026/"]}, "über/") == {"files": 0}
    assert await move(filled, {"ids": [body["ids"][0]], "prefixes": ["über/2026/"]}, "") == {"files": 3}
    assert set(await names(filled)) >= {"2026/x.jpg", "a.txt"}
    before = await names(filled)
    into_itself = {"ids": body["ids"], "prefixes": ["über/"], "to": "über/übung/"}
    problem(await filled.client.post("/me/files/move", json=into_itself), 422, "invalid-request")
    assert await names(filled) == before


@pytest.mark.parametrize("if_exists", ["fail", "keep", "replace"])
async def test_files_of_one_content_and_name_are_put_into_one_folder(stack: Stack, if_exists: str) -> None:
    for name in ("x/a", "y/a"):
        await put(stack, name, b"same")
    ids = [file["id"] for file in (await stack.client.get("/me/files")).json()["files"]]
    body = {"ids": ids, "to": "to/", "if_exists": if_exists}
    moved = await stack.client.post("/me/files/move", json=body)
    assert (moved.status_code, moved.json()) == (200, {"files": 2})
    assert await names(stack) == (["to/a", "to/a (2)"] if if_exists == "keep" else ["to/a"])
    await checked_accounts(stack.services.database)


async def test_a_rename_or_a_delete_that_somebody_else_crosses_is_done_all_the_same(stack: Stack) -> None:
    await put(stack, "a", b"a")
    (file,) = (await stack.client.get("/me/files")).json()["files"]
    path, transact, crossing = f"/me/files/{file['id']}", stack.services.database.transact, ["b"]

    async def cross(work: Any, *arguments: Any, **options: Any) -> Any:
        if crossing:
            name = crossing.pop()
            read = await stack.services.database.read(queries.files_by_ids, "alice", [file["id"]])
            now = stack.services.clock.now()
            await transact(transactions.files.move_files, read, {file["id"]: name}, IfExists.FAIL, now, RENAME)
        return await transact(work, *arguments, **options)

    with patch.object(stack.services.database, "transact", cross):
        assert (await stack.client.patch(path, json={"name": "c"})).json()["name"] == "c"
        crossing.append("d")
        assert (await stack.client.delete(path)).status_code == 204
    assert await names(stack) == []


async def test_folders_that_are_left_are_no_more_than_a_user_may_have(make_stack: MakeStack) -> None:
    async with make_stack(max_files=4) as stack:
        await put(stack, "x", b"x")
        (file,) = (await stack.client.get("/me/files")).json()["files"]
        for number in range(9):
            renamed = await stack.client.patch(f"/me/files/{file['id']}", json={"name": f"{number}/x"})
            assert renamed.status_code == 200
        left = [folder["name"] for folder in (await level(stack))["folders"]]
        assert left == ["5/", "6/", "7/", "8/"]
        await checked_accounts(stack.services.database)
