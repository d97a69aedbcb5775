"""Links: their owners make, change and revoke them; strangers get files by them, or give some."""

import asyncio
import io
import json
import zipfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import select, update

from tests.conftest import MakeStack
from tests.support.archives import Entry, archive
from tests.support.chosen import PLACES
from tests.support.clock import ManualClock
from tests.support.consumer import consuming, events_file, webhook
from tests.support.content import KIB, Content
from tests.support.invariants import checked_accounts
from tests.support.problems import problem
from tests.support.stack import Stack
from tests.support.visiting import make_link, names_of, send, visit
from uploader.database import models
from uploader.domain.links import Limits, LinkKind
from uploader.jobs.maintenance import LinkKeeper
from uploader.service import links as links_module

# Of which a few find room; the soak has more of them.
RACERS = min(200, max(50, PLACES))
A, B, C = (Content(100 * KIB, seed=seed) for seed in range(3))
TUS = {"Tus-Resumable": "1.0.0"}


@asynccontextmanager
async def sharing(make_stack: MakeStack, clock: ManualClock) -> AsyncIterator[Stack]:
    async with make_stack(clock=clock, max_links=50) as made:
        yield made
        await checked_accounts(made.services.database)
        assert (await made.services.recounting.recount()).drifts == []


@pytest.fixture
async def stack(make_stack: MakeStack, clock: ManualClock) -> AsyncIterator[Stack]:
    async with sharing(make_stack, clock) as made:
        yield made


@pytest.fixture
async def stack_on(make_stack_on: MakeStack, clock: ManualClock) -> AsyncIterator[Stack]:
    """On each kind of database: where links are counted, locked, or changed with others."""
    async with sharing(make_stack_on, clock) as made:
        yield made


async def gone(stack: Stack, link: dict[str, Any], reason: str) -> None:
    for method, path in (("GET", ""), ("POST", "/session")):
        answer = await stack.anonymous().request(method, link["url"] + path, headers={"Accept": "application/json"})
        assert problem(answer, 410, "link-gone")["reason"] == reason


# Owners


async def test_an_owner_makes_changes_and_revokes_links(stack: Stack, clock: ManualClock) -> None:
    client, ends = stack.client, (clock.now() + timedelta(days=3)).isoformat()
    assert (await send(client, A, "docs/a.txt")).status_code == 201
    made = await make_link(stack, "download", "docs/a.txt", label="For you", expires_at=ends, max_downloads=3)
    other = await make_link(stack, password="secret", max_files=2, max_bytes=10)
    assert {name: other[name] for name in ("kind", "name", "label", "has_password", "max_files", "max_bytes")} == {
        "kind": "upload",
        "name": "inbox/",
        "label": "",
        "has_password": True,
        "max_files": 2,
        "max_bytes": 10,
    }
    assert (made["downloads"], made["files"], made["bytes"], made["max_downloads"]) == (0, 0, 0, 3)
    assert datetime.fromisoformat(made["expires_at"]) == datetime.fromisoformat(ends)
    assert datetime.fromisoformat(other["expires_at"]) == clock.now() + timedelta(days=30)
    assert len(made["url"].removeprefix("/s/")) >= 22
    assert (await client.get("/me/links")).json() == {"links": [other, made]}
    assert (await client.get(f"/me/links/{made['id']}")).json() == made
    assert (await client.get("/me/files?delimiter=/")).json()["folders"][1]["name"] == "inbox/"
    changed = await client.patch(f"/me/links/{other['id']}", json={"label": "x", "password": None, "max_files": None})
    assert changed.json() == other | {"label": "x", "has_password": False, "max_files": None}
    bob, root = await stack.client_of("bob"), await stack.client_of("root", admin=True)
    assert (await bob.get("/me/links")).json() == {"links": []}
    for method in ("GET", "PATCH", "DELETE"):
        problem(await bob.request(method, f"/me/links/{made['id']}", json={}), 404, "link-not-found")
    assert (await client.delete(f"/me/links/{made['id']}")).status_code == 204
    problem(await client.get(f"/me/links/{made['id']}"), 404, "link-not-found")
    await gone(stack, made, "revoked")
    listed = (await root.get("/admin/users/alice/links")).json()["links"]
    assert [link["id"] for link in listed] == [other["id"]]
    assert (await root.delete(f"/admin/users/alice/links/{other['id']}")).status_code == 204
    await gone(stack, other, "revoked")
    told = (await root.get("/admin/audit")).json()["acts"]
    actions = Counter(entry["action"] for entry in told if entry["action"].startswith("link."))
    assert actions == {"link.created": 2, "link.changed": 1, "link.revoked": 2}
    assert (await stack.anonymous().get("/config")).json()["links"] is True


async def test_a_bad_link_is_not_made(make_stack: MakeStack) -> None:
    async with make_stack() as made:
        assert (await send(made.client, A, "there")).status_code == 201
        for body in (
            {"kind": "upload", "name": "inbox"},
            {"kind": "upload", "name": "/"},
            {"kind": "upload", "name": "a/", "max_downloads": 1},
            {"kind": "download", "name": "there", "max_bytes": 1},
            {"kind": "upload", "name": "a/", "max_files": 0},
            {"kind": "upload", "name": "a/", "max_bytes": "1"},
            {"kind": "upload", "name": "a/", "label": "a\nb"},
            {"kind": "upload", "name": "a/", "password": ""},
            {"kind": "upload", "name": "a/", "expires_at": "2020-01-01T00:00:00Z"},
            {"kind": "upload", "name": "a/", "expires_at": "2099-01-01T00:00:00Z"},
            {"kind": "both", "name": "a/"},
        ):
            problem(await made.client.post("/me/links", json=body), 422, "invalid-request")
        late = {"kind": "upload", "name": "a/", "expires_at": "0001-01-01T00:00:00+14:00"}
        refused = problem(await made.client.post("/me/links", json=late), 422, "invalid-request")
        assert refused["errors"][0]["field"] == "expires_at"
        for name in ("nothing", "nothing/"):
            nowhere = {"kind": "download", "name": name}
            problem(await made.client.post("/me/links", json=nowhere), 404, "file-not-found")
        a_file = {"kind": "upload", "name": "there/"}
        problem(await made.client.post("/me/links", json=a_file), 409, "name-taken")
        assert (await made.client.get("/me/links")).json() == {"links": []}


async def test_a_user_has_so_many_links_that_work(make_stack: MakeStack) -> None:
    async with make_stack(max_links=2) as made:
        links = [await make_link(made) for _ in range(2)]
        body = {"kind": "upload", "name": "inbox/"}
        assert problem(await made.client.post("/me/links", json=body), 413, "too-many-links")["limit"] == 2
        assert (await made.client.delete(f"/me/links/{links[0]['id']}")).status_code == 204
        await make_link(made)


async def test_without_links_there_are_none(make_stack: MakeStack) -> None:
    async with make_stack(links="off") as made:
        for method, path in (("POST", "/me/links"), ("GET", "/s/x"), ("POST", "/s/x/session")):
            problem(await made.client.request(method, path, json={}), 404, "not-found")
        assert (await made.client.get("/config")).json()["links"] is False


# Coming


async def test_a_link_says_what_it_is_for_and_with_a_password_no_more(stack: Stack) -> None:
    accepts = {"Accept": "application/json"}
    for more, told in (({"max_files": 7}, {"name": "box", "max_files": 7, "max_bytes": None}), ({"password": "p"}, {})):
        link = await make_link(stack, name="in/box/", label="L", **more)
        said = (await stack.anonymous().get(link["url"], headers=accepts)).json()
        expected = {
            "kind": "upload",
            "label": "L",
            "has_password": "password" in more,
            "expires_at": link["expires_at"],
        }
        assert said == expected | told
    page = await stack.anonymous().get(link["url"])
    assert page.headers["content-type"].startswith("text/html")
    assert "set-cookie" not in page.headers
    problem(await stack.anonymous().get("/s/guessed", headers=accepts), 404, "link-not-found")
    problem(await stack.anonymous().post("/s/guessed/session"), 404, "link-not-found")
    problem(await stack.anonymous().get(f"{link['url']}/files"), 401, "unauthenticated")
    problem(await stack.client.get(f"{link['url']}/files"), 403, "forbidden")


async def test_ten_wrong_passwords_keep_everybody_out_for_a_minute(stack: Stack, clock: ManualClock) -> None:
    link = await make_link(stack, password="right")
    anonymous, path = stack.anonymous(), f"{link['url']}/session"
    problem(await anonymous.post(path), 403, "wrong-password")
    guesses = await asyncio.gather(*(anonymous.post(path, json={"password": f"{n}"}) for n in range(14)))
    assert Counter(answer.status_code for answer in guesses) == {403: 10, 429: 4}
    problem(await anonymous.post(path, json={"password": "right"}), 429, "too-many-requests")
    clock.advance(61)
    for _ in range(12):
        assert (await anonymous.post(path, json={"password": "right"})).status_code == 201


async def test_who_guesses_slugs_is_slowed_down_alone(make_stack: MakeStack) -> None:
    async with make_stack(max_wrong_tokens=3) as made:
        link = await make_link(made)
        for number in range(4):
            problem(await made.anonymous().post(f"/s/{number}/session"), 404, "link-not-found")
        answers = await asyncio.gather(*(made.anonymous().post(f"/s/{n}/session") for n in range(20)))
        assert Counter(answer.status_code for answer in answers) == {404: 4, 429: 16}
        await visit(made, link)


@pytest.mark.parametrize("auth", ["none", "jwt"])
async def test_a_visitor_is_one_however_users_are_known(make_stack: MakeStack, auth: str) -> None:
    secret = {"jwt_secret": "a secret that is long enough, surely"} if auth == "jwt" else {}
    async with make_stack(auth=auth, **secret) as made:
        link = await made.services.sharing.make("alice", LinkKind.UPLOAD, "in/", limits=Limits())
        visitor = await visit(made, {"url": f"/s/{link.slug}"})
        assert (await send(visitor, A, "a")).status_code == 201
        problem(await visitor.get("/me/files"), 403, "forbidden")
        files, _ = await made.services.files.list("alice", limit=9, after=None, prefix=None)
        assert [file.name for file in files] == ["in/a"]


# Getting


async def test_a_folder_is_shared_as_it_is_at_the_time(stack: Stack) -> None:
    for content, name in ((A, "s/a.png"), (B, "s/deep/b"), (C, "elsewhere/c")):
        assert (await send(stack.client, content, name)).status_code == 201
    link = await make_link(stack, "download", "s/")
    visitor, url = await visit(stack, link), link["url"]
    files = {file["name"]: file for file in (await visitor.get(f"{url}/files")).json()["files"]}
    assert sorted(files) == ["a.png", "deep/b"]
    level = (await visitor.get(f"{url}/files", params={"delimiter": "/", "limit": 1})).json()
    assert ([each["name"] for each in level["files"]], level["folders"]) == (["a.png"], [])
    level = (await visitor.get(f"{url}/files", params={"delimiter": "/", "after": level["next"]})).json()
    assert ([each["name"] for each in level["folders"]], level["next"]) == (["deep/"], None)
    below = (await visitor.get(f"{url}/files", params={"prefix": "deep/"})).json()["files"]
    assert [file["name"] for file in below] == ["deep/b"]
    path = f"{url}/files/{files['a.png']['id']}/content"
    part = await visitor.get(path, headers={"Range": "bytes=1-3"})
    assert (part.status_code, part.content) == (206, A.data[1:4])
    assert part.headers["content-disposition"].startswith("attachment")
    assert (await visitor.get(f"{path}?show=inline")).headers["content-type"] == "image/png"
    others = (await stack.client.get("/me/files", params={"prefix": "elsewhere/"})).json()["files"][0]
    problem(await visitor.get(f"{url}/files/{others['id']}/content"), 404, "file-not-found")
    assert (await send(stack.client, C, "s/late")).status_code == 201
    browser, archives = stack.anonymous(), f"{url}/archive"
    assert await members(visitor, archives) == ["s/a.png", "s/deep/b", "s/late"]
    assert await members(visitor, f"{archives}?prefix=deep/") == ["deep/b"]
    assert await members(visitor, f"{archives}?prefix=elsewhere/") == []
    signed = (await visitor.post(f"{url}/link", json={"prefix": "deep/"})).json()["url"]
    assert await members(browser, signed) == ["deep/b"]
    for altered in (signed.replace("deep/", "d"), signed.replace("prefix=deep/", "")):
        problem(await browser.get(altered), 401, "unauthenticated")


async def members(client: httpx2.AsyncClient, url: str) -> list[str]:
    return sorted(zipfile.ZipFile(io.BytesIO((await client.get(url)).content)).namelist())


async def test_a_browser_follows_a_url_for_a_minute_in_which_nobody_is_named(stack: Stack, clock: ManualClock) -> None:
    assert (await send(stack.client, A, "s/a")).status_code == 201
    link = await make_link(stack, "download", "s/a")
    visitor, browser = await visit(stack, link), stack.anonymous()
    (file,) = (await visitor.get(f"{link['url']}/files")).json()["files"]
    assert file["name"] == "a"
    urls = {}
    for what in ({"id": file["id"]}, {"format": "tar"}, {}):
        response = await visitor.post(f"{link['url']}/link", json=what)
        urls[str(what)] = url = response.json()["url"]
        assert "alice" not in url
        assert (await browser.get(url)).status_code == 200
    problem(await browser.get(urls["{}"].replace("zip", "tar")), 401, "unauthenticated")
    problem(await visitor.post(f"{link['url']}/link", json={"id": file["id"], "prefix": ""}), 422, "invalid-request")
    assert await members(visitor, f"{link['url']}/archive?prefix=a") == ["a"]
    problem(await visitor.get(f"{link['url']}/archive?prefix=b"), 404, "file-not-found")
    clock.advance(61)
    problem(await browser.get(url), 401, "unauthenticated")
    url = (await visitor.post(f"{link['url']}/link", json={})).json()["url"]
    assert (await stack.client.delete(f"/me/links/{link['id']}")).status_code == 204
    assert problem(await browser.get(url), 410, "link-gone")["reason"] == "revoked"


async def test_as_many_visitors_download_as_a_link_is_for(stack_on: Stack) -> None:
    assert (await send(stack_on.client, A, "a")).status_code == 201
    link = await make_link(stack_on, "download", "a", max_downloads=3)
    visitors = [await visit(stack_on, link) for _ in range(20)]
    (file,) = (await visitors[0].get(f"{link['url']}/files")).json()["files"]
    path = f"{link['url']}/files/{file['id']}/content"
    heads = await asyncio.gather(*(visitor.head(path) for visitor in visitors))
    assert {answer.status_code for answer in heads} == {200}
    tries = [each.get(path) for each in visitors for _ in range(2)]
    answers = await asyncio.gather(*tries)
    by_visitor = [{answers[2 * n].status_code, answers[2 * n + 1].status_code} for n in range(20)]
    assert Counter(map(str, by_visitor)) == {"{200}": 3, "{410}": 17}
    await gone(stack_on, link, "exhausted")
    assert (await visitors[by_visitor.index({200})].get(path)).status_code == 200
    assert (await stack_on.client.get(f"/me/links/{link['id']}")).json()["downloads"] == 3


MOVES: list[tuple[str, str, dict[str, Any], str]] = [
    ("PATCH", "/me/files?prefix=s/", {"prefix": "moved/"}, "moved/deep/"),
    ("PATCH", "/me/files?prefix=moved/", {"prefix": "a/b/c/"}, "a/b/c/deep/"),
    ("POST", "/me/files/move", {"prefixes": ["a/b/c/"], "to": "above/"}, "above/c/deep/"),
]


async def test_a_link_follows_its_folder(stack_on: Stack) -> None:
    assert (await send(stack_on.client, A, "s/deep/a")).status_code == 201
    shared = [await make_link(stack_on, "download", name) for name in ("s/", "s/deep/", "s/deep/a")]
    into = await make_link(stack_on, name="s/deep/")
    for seed, (method, path, body, folder) in enumerate(MOVES, 1):
        content, sender = Content(100 * KIB, seed), await visit(stack_on, into)
        opened = await stack_on.open(content, sender, name="b")
        assert (await stack_on.client.request(method, path, json=body)).json() == {"files": 1}
        for link, names in zip(shared, (["deep/a"], ["a"], ["a"]), strict=True):
            reader = await visit(stack_on, link)
            files = (await reader.get(f"{link['url']}/files")).json()["files"]
            assert [file["name"] for file in files] == names
        for number in range(2):
            done = await stack_on.put(content, number, sender)
        assert (opened.json()["upload"]["name"], done.json()["file"]["name"]) == ("b", "b")
        assert (await stack_on.client.get(f"/me/links/{into['id']}")).json()["name"] == folder
        assert await names_of(stack_on.client) == [f"{folder}a", f"{folder}b"]
        (file,) = (await stack_on.client.get("/me/files", params={"prefix": f"{folder}b"})).json()["files"]
        assert (await stack_on.client.delete(f"/me/files/{file['id']}")).status_code == 204


async def test_what_is_merged_into_another_folder_is_not_shared_any_more(stack: Stack) -> None:
    for name in ("s/a", "private/b"):
        assert (await send(stack.client, A, name)).status_code == 201
    link = await make_link(stack, "download", "s/")
    assert (await stack.client.patch("/me/files?prefix=s/", json={"prefix": "private/"})).json() == {"files": 1}
    await gone(stack, link, "deleted")


@pytest.mark.parametrize("name", ["s/a", "s/"])
async def test_what_was_deleted_is_gone_for_good(stack: Stack, name: str) -> None:
    file = (await send(stack.client, A, "s/a")).json()["file"]
    link = await make_link(stack, "download", name)
    visitor = await visit(stack, link)
    assert (await stack.client.delete("/me/files?prefix=s/")).json() == {"files": 1}
    await gone(stack, link, "deleted")
    assert (await stack.client.post(f"/me/trash/{file['id']}/restore", json={})).status_code == 200
    assert (await send(stack.client, B, "s/b")).status_code == 201
    await gone(stack, link, "deleted")
    believe_nothing(stack)
    assert problem(await visitor.get(f"{link['url']}/files"), 410, "link-gone")["reason"] == "deleted"
    assert (await stack.client.get("/me/links")).json() == {"links": []}


def believe_nothing(stack: Stack) -> None:
    """As half a second later."""
    stack.services.visitors._known.clear()


# Giving


async def test_what_is_collected_has_a_number_that_only_the_owner_sees(stack: Stack) -> None:
    link = await make_link(stack)
    assert (await send(stack.client, A, "inbox/x/a.txt")).status_code == 201
    one, two = [await visit(stack, link) for _ in range(2)]
    sent = [await send(each, content, "x/a.txt") for each in (one, two) for content in (A, B, A)]
    assert [answer.status_code for answer in sent] == [201, 201, 200] * 2
    assert {answer.json()["file"]["name"] for answer in sent} == {"x/a.txt"}
    assert not any(answer.json()["file"]["instant"] for answer in sent)
    numbered = ["inbox/x/a (2).txt", "inbox/x/a (3).txt", "inbox/x/a (4).txt", "inbox/x/a (5).txt", "inbox/x/a.txt"]
    assert await names_of(stack.client) == numbered
    told = (await stack.client.get(f"/me/links/{link['id']}")).json()
    assert (told["files"], told["bytes"]) == (4, 2 * (A.size + B.size))
    assert await stack.usage("alice") == {"finished": 3 * A.size + 2 * B.size, "unfinished": 0, "reserved": 0}
    for file in (await stack.client.get("/me/files")).json()["files"]:
        assert (await stack.client.patch(f"/me/files/{file['id']}", json={"name": file["id"]})).status_code == 200
    mine = (await one.get(f"/files/{A.md5}")).json()["file"]
    assert mine["name"] == "x/a.txt"
    assert (await stack.client.delete(f"/me/files/{mine['id']}")).status_code == 204
    assert (await stack.client.post(f"/me/trash/{mine['id']}/restore", json={})).status_code == 200
    assert (await one.get(f"/files/{A.md5}")).json()["file"] == mine
    shown = await stack.client.get(f"/me/files/{mine['id']}/content?show=inline")
    assert shown.headers["content-disposition"].startswith("attachment")


async def _whole(client: httpx2.AsyncClient, content: Content, name: str) -> httpx2.Response:
    return await send(client, content, name)


async def _opened(client: httpx2.AsyncClient, content: Content, name: str) -> httpx2.Response:
    return await client.post("/uploads", json={"name": name, "size": content.size})


async def _appended(client: httpx2.AsyncClient, content: Content, name: str) -> httpx2.Response:
    headers = {**TUS, "Upload-Defer-Length": "1", "Content-Type": "application/offset+octet-stream"}
    answer = await client.post("/resumable", headers=headers, content=content.data)
    if answer.headers.get("upload-offset") != "0":
        return answer
    # It is there, but its bytes waited for their turn too long.
    assert (await client.delete(answer.headers["location"], headers=TUS)).status_code == 204
    return await _appended(client, content, name)


@pytest.mark.places
@pytest.mark.parametrize("limit", ["max_files", "max_bytes", "quota"])
@pytest.mark.parametrize("give", [_whole, _opened, _appended])
async def test_many_race_at_the_edge_of_a_link_and_none_comes_too_much(
    stack_on: Stack, limit: str, give: Callable[[httpx2.AsyncClient, Content, str], Awaitable[httpx2.Response]]
) -> None:
    """Each of another content and session; what has no room hears no figures, whose room ever it lacks."""
    most: dict[str, Any] = {"max_files": {"max_files": 4}, "max_bytes": {"max_bytes": 4 * 10 * KIB}, "quota": {}}[limit]
    if limit == "quota":
        await stack_on.services.accounts.set_total_space("alice", 4 * 10 * KIB)
    link = await make_link(stack_on, **most)
    contents = [Content(10 * KIB, seed=seed) for seed in range(RACERS)]
    visitors = [await visit(stack_on, link) for _ in range(10)]

    async def race(number: int, content: Content) -> httpx2.Response:
        # So many at once wait for their turn, or for a lock, too long on a busy machine.
        while (answer := await give(visitors[number % 10], content, f"{number}")).status_code in (423, 429, 503):
            await asyncio.sleep(0.1)
        return answer

    answers = await asyncio.gather(*(race(number, content) for number, content in enumerate(contents)))
    assert Counter(answer.status_code for answer in answers) == {201: 4, 413: RACERS - 4}
    for answer in answers:
        if answer.status_code == 413:
            assert problem(answer, 413, "link-exhausted").keys() == {
                *("type", "title", "status", "detail", "code", "retryable", "request_id")
            }
    ended = 0
    for visitor in visitors:
        for upload in (await visitor.get("/uploads")).json()["uploads"]:
            assert (await visitor.delete(f"/uploads/{upload['id']}")).status_code == 204
            ended += 1
    again = await asyncio.gather(*(_whole(visitors[0], each, "again") for each in contents[:6]))
    assert [each.status_code for each in again].count(201) == min(ended, 4)


async def test_who_sends_again_what_is_there_needs_no_room(stack: Stack) -> None:
    link = await make_link(stack, max_files=2)
    visitor, path = await visit(stack, link), "/me/files?name=b"
    await stack.services.accounts.set_total_space("alice", A.size + B.size)
    assert (await stack.open(A, visitor, name="a")).status_code == 201
    assert (await visitor.post(path, content=B.data)).status_code == 201
    problem(await send(visitor, C, "c"), 413, "link-exhausted")
    problem(await visitor.post("/me/files?name=c", content=C.data), 413, "link-exhausted")
    assert (await send(visitor, A, "a")).status_code == 201  # it closes the one that is open
    for answer in (await send(visitor, A, "a"), await send(visitor, B, "b"), await visitor.post(path, content=B.data)):
        assert answer.status_code == 200
    batch = await visitor.post("/files/batch", content=archive(Entry("a", A.data), Entry("c", C.data)))
    lines = batch.json()["results"]
    assert [line["status"] for line in lines] == [200, 413]
    assert lines[1]["problem"]["code"] == "link-exhausted"
    assert "total_space" not in lines[1]["problem"]


async def test_three_send_the_same_at_one_time_and_nobody_learns_of_another(stack: Stack) -> None:
    link = await make_link(stack)
    senders = [stack.client, await visit(stack, link), await visit(stack, link)]
    opened = await asyncio.gather(*(stack.open(A, each, name="same", sha256=A.sha256) for each in senders))
    assert [answer.status_code for answer in opened] == [201] * 3
    assert len({answer.json()["upload"]["id"] for answer in opened}) == 3
    for number in range(A.chunk_count):
        last = await asyncio.gather(*(stack.put(A, number, each) for each in senders))
    assert [answer.status_code for answer in last] == [201] * 3
    assert len({answer.json()["file"]["id"] for answer in last}) == 3
    assert await names_of(stack.client) == ["inbox/same", "inbox/same (2)", "same"]
    async with stack.services.database.engine.connect() as connection:
        assert (await connection.execute(select(models.blob.c.refs))).scalars().all() == [3]


async def test_a_session_ends_with_its_link_in_the_middle_of_a_chunk(make_stack: MakeStack) -> None:
    """Also where another process is told that it has ended."""
    async with make_stack() as made, make_stack() as another:
        link = await make_link(made)
        visitor = await visit(made, link)
        assert (await made.open(A, visitor)).status_code == 201
        begun, loop = asyncio.Event(), asyncio.get_running_loop()

        async def body() -> AsyncIterator[bytes]:
            yield A.data[:KIB]
            begun.set()
            await asyncio.sleep(30)

        chunk = asyncio.create_task(visitor.put(f"/files/{A.md5}/chunks/0", content=body()))
        await begun.wait()
        assert (await another.client.delete(f"/me/links/{link['id']}")).status_code == 204
        since = loop.time()
        assert problem(await chunk, 410, "link-gone")["reason"] == "revoked"
        assert loop.time() - since < 10  # two seconds, if the machine is not busy
        problem(await visitor.get("/uploads"), 410, "link-gone")


async def test_a_link_that_has_ended_gives_back_what_is_open_and_is_forgotten(
    stack_on: Stack, clock: ManualClock
) -> None:
    links = [await make_link(stack_on, name=f"{n}/") for n in range(2)]
    for link in links:
        await stack_on.open(A, await visit(stack_on, link))
    keeper = LinkKeeper(stack_on.services.link_keeping, clock)

    async def keep(seconds: float = 3600) -> None:
        """Let time pass while it runs."""
        for _ in range(int(seconds // 50) + 1):
            await keeper.run_once()
            clock.advance(50)

    await keeper.run_once()
    assert (await stack_on.usage("alice"))["reserved"] == 2 * A.size
    assert (await stack_on.client.delete(f"/me/links/{links[0]['id']}")).status_code == 204
    await keeper.run_once()
    assert (await stack_on.usage("alice"))["reserved"] == A.size
    clock.advance(30 * 86400 + 1)
    await keep(600)
    assert (await stack_on.usage("alice"))["reserved"] == A.size, "it may be a jump of the clock"
    await keep()
    assert (await stack_on.usage("alice"))["reserved"] == 0
    async with stack_on.services.database.engine.connect() as connection:
        states = (await connection.execute(select(models.upload.c.state).order_by(models.upload.c.id))).scalars().all()
        assert states == ["CANCELLED", "EXPIRED"]
        assert (await connection.execute(select(models.link_session.c.id))).all() == []
    await gone(stack_on, links[1], "expired")
    clock.advance(30 * 86400 + 1)
    await keep()
    async with stack_on.services.database.engine.connect() as connection:
        assert (await connection.execute(select(models.link.c.id))).all() == []


async def test_a_merge_after_the_end_of_the_link_makes_no_file(stack: Stack) -> None:
    link = await make_link(stack)
    visitor = await visit(stack, link)
    await stack.open(A, visitor)
    await stack.put(A, 0, visitor)
    assert (await stack.client.delete("/me/files?prefix=inbox/")).status_code == 200
    assert problem(await stack.put(A, 1, visitor), 410, "link-gone")["reason"] == "deleted"
    assert await names_of(stack.client) == []
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": 0}


async def test_the_oldest_idle_visitor_gives_way(stack_on: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "_MAX_SESSIONS", 2)
    link = await make_link(stack_on)
    busy, idle = [await visit(stack_on, link) for _ in range(2)]
    assert (await send(busy, A, "a")).status_code == 201
    newer = await visit(stack_on, link)
    believe_nothing(stack_on)
    problem(await idle.get("/uploads"), 401, "unauthenticated")
    assert (await send(newer, A, "a")).status_code == 201
    problem(await stack_on.anonymous().post(f"{link['url']}/session"), 429, "too-many-requests")


async def test_what_a_link_has_open_is_recounted_and_repaired(stack_on: Stack) -> None:
    link = await make_link(stack_on)
    visitor = await visit(stack_on, link)
    await stack_on.open(A, visitor)
    assert (await send(visitor, B, "b")).status_code == 201
    async with stack_on.services.database.engine.begin() as connection:
        await connection.execute(update(models.link).values(reserved_files=5, reserved_bytes=7, files=3, bytes=9))
    found = await stack_on.services.recounting.recount()
    assert [str(drift) for drift in found.drifts] == [
        f"link-received-files of {link['id']}: expected 1, actual 3",
        f"link-received-bytes of {link['id']}: expected {B.size}, actual 9",
        f"link-files of {link['id']}: expected 1, actual 5",
        f"link-bytes of {link['id']}: expected {A.size}, actual 7",
    ]
    assert [await repair() for repair in found.repairs] == [True] * len(found.drifts)
    assert (await visitor.delete(f"/files/{A.md5}")).status_code == 204


async def test_who_is_told_or_asked_hears_the_link_and_the_name_that_its_owner_sees(
    make_stack: MakeStack, tmp_path: Path
) -> None:
    async with consuming() as consumer:
        asks = f'[pre_create]\nurl = "{consumer.url}"\nsecret_file = "new.secret"\n'
        events = events_file(tmp_path / "events", asks + webhook("hook", "http://127.0.0.1:9/"))
        async with make_stack(events=events) as made:
            link = await make_link(made)
            visitor = await visit(made, link)
            assert (await send(visitor, A, "a")).status_code == 201
            assert (await made.open(B, visitor, name="b")).status_code == 201
            assert (await visitor.delete(f"/files/{B.md5}")).status_code == 204
            asked = [event["name"] for event in consumer.events]
            async with made.services.database.engine.connect() as connection:
                rows = (await connection.execute(select(models.outbox.c.type, models.outbox.c.data))).all()
    told = [(kind, json.loads(data)) for kind, data in rows]
    assert asked == ["inbox/", "inbox/a", "inbox/b"]
    assert [kind for kind, _ in told] == ["file.finished", "upload.created", "upload.cancelled"]
    assert {data["link_id"] for _, data in told} == {link["id"]}
    assert [(data.get("file") or data["upload"])["name"] for _, data in told] == ["inbox/a", "inbox/b", "inbox/b"]
