"""A visitor of a link, on every operation of the route table: where a user may upload, all answers are those that a user
gets who has nothing, byte by byte, whatever the owner of the link and its other visitors have; elsewhere there are none."""

import base64
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import update

from tests.conftest import MakeStack
from tests.integration.test_held_files import GATE, judge
from tests.support.archives import Entry, archive
from tests.support.consumer import events_file
from tests.support.content import KIB, Content
from tests.support.problems import problem
from tests.support.stack import Stack
from tests.support.visiting import make_link, names_of, send, visit
from uploader.database import models
from uploader.domain.links import MAX_COLLECTING_BYTES, MAX_SENT_NAME_BYTES
from uploader.domain.names import MAX_NAME_BYTES

FINISHED, OPEN, CLOSED = (Content(100 * KIB, seed=seed) for seed in range(3))
SMALL = Content(2 * KIB, seed=3)
KEY = {"Idempotency-Key": "the-same-key"}
TUS, RUFH = {"Tus-Resumable": "1.0.0"}, {"Upload-Draft-Interop-Version": "6"}
NOWHERE = "0" * 31 + "2"
_APPEND = {**TUS, "Content-Type": "application/offset+octet-stream"}
# In this order: an operation, its path, and what goes with it. `{1}` is the first id that was answered.
_ID = re.compile(r"(?<=/)0[0-9a-f]{31}|(?<=\"id\":\")0[0-9a-f]{31}")

THINGS = [(who, what) for who in ("owner", "other") for what in ("upload", "file")]

Step = tuple[str, str, dict[str, Any]]


def opening(content: Content, **more: Any) -> dict[str, Any]:
    return {"json": {"name": f"a/{content.seed}", "size": content.size, "chunk_size": 64 * KIB, **more}}


def steps() -> list[Step]:
    """Everything that a visitor may do, on contents that others have in each state."""
    found: list[Step] = [("GET", "/uploads", {})]
    found.append(("POST", "/files/status", {"json": {"md5s": [each.md5 for each in (FINISHED, OPEN, CLOSED)]}}))
    for content in (FINISHED, OPEN, CLOSED):
        by_md5 = f"/files/{content.md5}"
        found += [
            ("GET", by_md5, {}),
            ("HEAD", by_md5, {}),
            ("POST", f"{by_md5}/merge", {}),
            ("POST", f"{by_md5}/proof", {"json": {"id": NOWHERE, "name": "a", "proof": "0" * 64}}),
            ("PUT", f"{by_md5}/chunks/0", {"content": content.chunk(0)}),
            ("DELETE", by_md5, {}),
            ("POST", by_md5, opening(content, sha256=content.sha256)),
            ("POST", by_md5, opening(content, if_exists="fail")),
            ("PUT", f"{by_md5}/chunks/0", {"content": content.chunk(0)}),
            ("PUT", f"{by_md5}/chunks/0", {"content": content.chunk(0)}),
            ("PUT", f"{by_md5}/chunks/1?base={{owner_file}}", {"content": b"\0" * 13}),
            ("PUT", f"{by_md5}/chunks/1?id={{owner_upload}}", {"content": content.chunk(1)}),
            ("PUT", f"{by_md5}/chunks/1", {"content": content.chunk(1)}),
            ("POST", by_md5, opening(content, sha256=content.sha256)),
            ("GET", by_md5, {}),
            ("PUT", f"{by_md5}?name=a/{content.seed}", {"content": content.data}),
            ("PUT", f"{by_md5}?name=a/{content.seed}+&if_exists=fail", {"content": content.data}),
        ]
    for path in ("/uploads/{owner_upload}", "/uploads/{other_upload}", f"/uploads/{NOWHERE}"):
        found += [(method, path, {}) for method in ("GET", "HEAD", "DELETE")]
        found += [
            ("PUT", f"{path}/chunks/0", {"content": OPEN.chunk(0)}),
            ("POST", f"{path}/merge", {}),
            ("POST", f"{path}/proof", {"json": {"id": NOWHERE, "name": "a", "proof": "0" * 64}}),
            ("PATCH", path, {"json": {"md5": OPEN.md5}}),
        ]
        for headers in (_APPEND, RUFH):
            at = path.replace("/uploads/", "/resumable/")
            found += [(method, at, {"headers": headers}) for method in ("HEAD", "GET", "DELETE")]
            found.append(("PATCH", at, {"headers": {**headers, "Upload-Offset": "0"}, "content": b"x"}))
    found += [
        ("POST", "/uploads", {**opening(OPEN), "headers": KEY}),
        ("POST", "/uploads", {**opening(OPEN), "headers": KEY}),
        ("GET", "/uploads", {}),
        ("PATCH", "/uploads/{last}", {"json": {"md5": FINISHED.md5}}),
        ("PUT", "/uploads/{last}/chunks/0", {"content": FINISHED.chunk(0)}),
        ("GET", "/uploads/{last}", {}),
        ("HEAD", "/uploads/{last}", {}),
        ("DELETE", "/uploads/{last}", {}),
        ("GET", "/uploads/{last}", {}),
        ("POST", "/me/files?name=b&if_exists=replace", {"content": SMALL.data}),
        ("POST", "/me/files?name=b", {"content": SMALL.data}),
        ("POST", "/files/batch?to=a", {"content": archive(Entry("f", SMALL.data), Entry("../g", b"2"))}),
        ("POST", "/files/status", {"json": {"md5s": [each.md5 for each in (FINISHED, OPEN, CLOSED, SMALL)]}}),
    ]
    metadata = {"Upload-Metadata": "filename dHVz"}
    found += [
        ("POST", "/resumable", {"headers": {**TUS, **metadata, "Upload-Length": "5", "Upload-Concat": "partial"}}),
        ("PATCH", "/resumable/{last}", {"headers": {**_APPEND, "Upload-Offset": "0"}, "content": b"12345"}),
        ("POST", "/resumable", {"headers": {**TUS, **metadata, "Upload-Concat": "final;{other_part}"}}),
        ("POST", "/resumable", {"headers": {**TUS, **metadata, "Upload-Concat": "final;{last}"}}),
        ("HEAD", "/resumable/{last}", {"headers": TUS}),
        ("POST", "/resumable", {"headers": {**TUS, **metadata, "Upload-Defer-Length": "1"}}),
        ("PATCH", "/resumable/{last}", {"headers": {**_APPEND, "Upload-Offset": "0"}, "content": b"123"}),
        ("HEAD", "/resumable/{last}", {"headers": TUS}),
        ("DELETE", "/resumable/{last}", {"headers": TUS}),
        ("POST", "/resumable", {"headers": {**RUFH, "Upload-Complete": "?1"}, "content": SMALL.data}),
        ("POST", "/resumable", {"headers": {**RUFH, "Upload-Complete": "?0", "Upload-Length": "6"}, "content": b"12"}),
        ("HEAD", "/resumable/{last}", {"headers": RUFH}),
        ("GET", "/uploads", {}),
    ]
    return found


async def walk(client: httpx2.AsyncClient, others: dict[str, str]) -> AsyncIterator[tuple[str, Any]]:
    """Yield each step with all that its answer says but for ids and times, which are numbered as they come."""
    seen: dict[str, str] = {}
    last = NOWHERE
    for method, path, more in steps():
        given = {**others, "last": last}
        filled = {name: value.format(**given) for name, value in more.get("headers", {}).items()}
        response = await client.request(method, path.format(**given), **{**more, "headers": filled})
        text = f"{response.status_code}\n{response.text}\n"
        text += "\n".join(f"{name}: {value}" for name, value in sorted(response.headers.items()) if name not in _OWN)
        for found in _ID.findall(text):
            seen.setdefault(found, f"id {len(seen)}")
            last = last if found in others.values() or "/me/files/" in text else found
        for found, word in seen.items():
            text = text.replace(found, word)
        text = re.sub(r'"request_id":"[^"]*"', "", text)
        for word in others.values():
            text = text.replace(word, "another's")
        yield f"{method} {path} {more.get('headers', '')}", _TIME.sub("then", text)


_OWN = ("x-request-id", "upload-expires", "date")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+Z|max-age=\d+")


async def others_have_it_all(stack: Stack, link: dict[str, Any]) -> dict[str, str]:
    """The owner, and another visitor, have the contents in each state, by the same names and keys."""
    other = await visit(stack, link)
    ids = {}
    for who, client in (("owner", stack.client), ("other", other)):
        for content in (FINISHED, OPEN, CLOSED):
            made = await stack.open(content, client, name=f"a/{content.seed}", instant=False)
            ids[f"{who}_upload"] = made.json()["upload"]["id"]
            await stack.put(content, 0, client)
        assert (await stack.put(FINISHED, 1, client)).status_code == 201
        assert (await client.delete(f"/files/{CLOSED.md5}")).status_code == 204
        assert (await client.post("/uploads", **opening(OPEN), headers=KEY)).status_code == 201
        ids[f"{who}_upload"] = (await client.get(f"/files/{OPEN.md5}")).json()["upload"]["id"]
        ids[f"{who}_file"] = (await client.get(f"/files/{FINISHED.md5}")).json()["file"]["id"]
        assert (await send(client, SMALL, "b")).status_code == 201
        part = await client.post("/resumable", headers={**TUS, "Upload-Length": "1", "Upload-Concat": "partial"})
        assert part.status_code == 201, part.text
        ids[f"{who}_part"] = part.headers["location"]
    return ids


# What a gate says of each file as soon as the file is there; without a gate, nothing.
@pytest.mark.parametrize(
    ("instant", "verdict"),
    [("proof", None), ("trust", "hold"), ("off", "pass"), ("trust", "refuse"), ("own", "refuse"), ("own", None)],
)
async def test_a_visitor_hears_what_a_user_hears_who_has_nothing(
    make_stack: MakeStack, tmp_path: Path, instant: str, verdict: str | None
) -> None:
    """The user has no gate: what gates say, a visitor does not hear."""
    nowhere = {f"{who}_{what}": f"0{number}" * 16 for number, (who, what) in enumerate(THINGS)}
    nowhere |= {f"{who}_part": f"/resumable/{'06' * 16}" for who in ("owner", "other")}
    async with make_stack(instant="off", max_open_uploads=5) as stack:
        nobody = [each async for each in walk(await stack.client_of("nobody"), nowhere)]
    more: dict[str, Any] = {} if verdict is None else {"events": events_file(tmp_path, GATE)}
    async with make_stack(instant=instant, proof_min_size_bytes=1, max_open_uploads=5, **more) as stack:
        link = await make_link(stack, name="a/")
        ids = await others_have_it_all(stack, link)
        place = 0
        async for ours in walk(await visit(stack, link), ids):
            assert ours == nobody[place]
            place += 1
            if verdict in ("pass", "refuse"):
                await judge(stack, verdict=verdict)
        assert place == len(nobody)
        places = [(method, stack.app.routing.find(path.partition("?")[0]).place) for method, path, _ in steps()]
        asked = {place.by_method[method].route for method, place in places}
        assert asked == {each.route for each in stack.app.operations if each.access == "uploader"}


@pytest.mark.parametrize("kind", ["upload", "download"])
async def test_elsewhere_a_visitor_is_refused_before_anything_is_looked_at(stack: Stack, kind: str) -> None:
    assert (await stack.client.post("/me/folders", json={"name": "shared"})).status_code == 201
    link, other = [await make_link(stack, kind, "shared/") for _ in range(2)]
    visitor = await visit(stack, link)
    own = {"upload": "uploader", "download": "visitor"}[kind]
    for operation in stack.app.operations:
        method, _, path = operation.route.partition(" ")
        slug = (other if operation.access == own else link)["url"].rpartition("/")[2]
        filled = re.sub(r"\{\w+(:path)?\}", NOWHERE, path.replace("{slug}", slug))
        if operation.access not in ("open", own) or operation.access == "visitor" == own:
            answer = await visitor.request(method, filled, json={})
            assert answer.status_code == 403, operation.route
            problem(answer, 403, "forbidden") if method != "HEAD" else None


# The longest name that a visitor may send, and the longest folder of a link that collects.
LONGEST = "d/" * 129 + "n" * 254
FOLDERS = ["f/", "g" * 255 + "/" + "h" * 255 + "/"]
assert len(LONGEST.encode()) == len(FOLDERS[1].encode()) == MAX_SENT_NAME_BYTES == MAX_COLLECTING_BYTES
assert MAX_SENT_NAME_BYTES + MAX_COLLECTING_BYTES == MAX_NAME_BYTES


def in_metadata(name: str) -> str:
    last = name.rpartition("/")[2]
    return ",".join(
        f"{key} {base64.b64encode(value.encode()).decode()}"
        for key, value in (("filename", last), ("relativePath", name))
    )


# Each door by which a name comes, with a content of its own for each request.
DOORS: dict[str, Callable[[str, Content], Step]] = {
    "whole, by MD5": lambda name, each: ("PUT", f"/files/{each.md5}", {"params": {"name": name}, "content": each.data}),
    "whole": lambda name, each: ("POST", "/me/files", {"params": {"name": name}, "content": each.data}),
    "native": lambda name, each: ("POST", f"/files/{each.md5}", {"json": {"name": name, "size": each.size}}),
    "by id": lambda name, each: ("POST", "/uploads", {"json": {"name": name, "size": each.size}}),
    "batch": lambda name, each: ("POST", "/files/batch", {"content": archive(Entry(name, each.data))}),
    "batch into a folder": lambda name, each: (
        "POST",
        "/files/batch",
        {"params": {"to": name.rpartition("/")[0]}, "content": archive(Entry(name.rpartition("/")[2], each.data))},
    ),
    "tus": lambda name, each: (
        *("POST", "/resumable"),
        {"headers": {**TUS, "Upload-Length": str(each.size), "Upload-Metadata": in_metadata(name)}},
    ),
    "tus, at once": lambda name, each: (
        *("POST", "/resumable"),
        {
            "headers": {**_APPEND, "Upload-Length": str(each.size), "Upload-Metadata": in_metadata(name)},
            "content": each.data,
        },
    ),
    "RUFH": lambda name, each: (
        *("POST", "/resumable"),
        {"headers": {**RUFH, "Upload-Complete": "?1", "Upload-Metadata": in_metadata(name)}, "content": each.data},
    ),
}


@pytest.mark.parametrize("door", DOORS)
async def test_the_longest_name_says_nothing_of_the_folder_of_a_link(stack: Stack, door: str) -> None:
    """By each door, for names at the bound, beyond it, and with no room for a number."""
    names = [LONGEST, "d/" * 255 + "xx", LONGEST + "n", "e" * 255 + "/" + "f" * 255 + "/" + "g" * 100, "h" * 256]
    heard: list[list[str]] = []
    for number, folder in enumerate(FOLDERS):
        visitor, said = await visit(stack, await make_link(stack, name=folder)), list[str]()
        for place, name in enumerate(name for name in names for _ in range(3)):
            method, path, more = DOORS[door](name, Content(KIB, seed=100 + place + 50 * number))
            answer = await visitor.request(method, path, **more)
            text = _ID.sub("id", answer.text)
            text = re.sub(r'"(md5|sha256|request_id)":"[^"]*"', "", text)
            said.append(f"{answer.status_code} {_TIME.sub('then', text)}")
            if len(name.encode()) > MAX_SENT_NAME_BYTES and name != "h" * 256:
                refused = 400 if path == "/resumable" else 422
                assert answer.status_code == refused or '"status":422' in answer.text, answer.text
            elif name != "h" * 256:
                assert answer.is_success, answer.text
                assert '"status":4' not in answer.text, answer.text
        heard.append(said)
    assert heard[0] == heard[1]


async def test_a_link_collects_in_no_folder_that_leaves_no_room_for_names(stack: Stack) -> None:
    longest = FOLDERS[1]
    for name in (f"{longest}k/", f"{longest}k/l/"):
        answer = await stack.client.post("/me/links", json={"kind": "upload", "name": name})
        problem(answer, 422, "invalid-request")
    assert (await stack.client.get("/me/folders")).json()["folders"] == []
    collecting = await make_link(stack, name="a/b/")
    sharing = await make_link(stack, "download", "a/b/")
    for prefix, to in (("a/", longest), ("a/b/", f"{longest}k/"), ("a", f"{longest}k/a")):
        moved = await stack.client.patch("/me/files", params={"prefix": prefix}, json={"prefix": to})
        problem(moved, 422, "invalid-request")
    assert (await send(stack.client, SMALL, "A/first")).status_code == 201
    moved = await stack.client.post("/me/files/move", json={"prefixes": ["A/", "a/b/"], "to": longest})
    problem(moved, 422, "invalid-request")
    assert await names_of(stack.client) == ["A/first"], "nothing has moved"
    for link in (collecting, sharing):
        assert (await stack.client.get(f"/me/links/{link['id']}")).json()["name"] == "a/b/"
    assert (await stack.client.patch("/me/files?prefix=a/b/", json={"prefix": longest})).status_code == 200
    assert (await stack.client.get(f"/me/links/{collecting['id']}")).json()["name"] == longest
    # Made by an earlier version: it would tell the length of its folder.
    async with stack.services.database.engine.begin() as connection:
        await connection.execute(update(models.link).values(name=f"{longest}k/"))
    gone = await stack.anonymous().post(f"{collecting['url']}/session")
    assert problem(gone, 410, "link-gone")["reason"] == "revoked"
    assert (await stack.anonymous().post(f"{sharing['url']}/session")).status_code == 201


@pytest.mark.parametrize("kind", ["s/", "s/seen"])
async def test_a_held_file_is_not_found_by_a_share(make_stack: MakeStack, tmp_path: Path, kind: str) -> None:
    """On each operation that takes the id of a file, and as where there is no such file, byte by byte."""
    async with make_stack(events=events_file(tmp_path, GATE)) as stack:
        assert (await send(stack.client, SMALL, "s/seen")).status_code == 201
        await judge(stack)
        link = await make_link(stack, "download", kind)
        visitor, held = await visit(stack, link), (await send(stack.client, FINISHED, "s/held")).json()["file"]["id"]
        slug = link["url"].rpartition("/")[2]
        asked = [each for each in stack.app.operations if each.access == "visitor"]
        heard: list[list[str]] = []
        for file_id in (held, NOWHERE):
            said = []
            for operation in asked:
                method, _, path = operation.route.partition(" ")
                filled = path.replace("{slug}", slug).replace("{id}", file_id)
                body: dict[str, Any] = {"json": {"id": file_id}} if method == "POST" else {}
                answer = await visitor.request(method, filled, **body)
                assert answer.status_code == (404 if "{id}" in path or method == "POST" else 200), operation.route
                text = re.sub(r'"request_id":"[^"]*"', "", answer.text).replace(file_id, "id")
                said.append(text if "archive" not in path else "")
                assert "held" not in text
            heard.append(said)
        assert heard[0] == heard[1]
