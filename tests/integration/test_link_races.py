"""Links and what exists below their names: a link is made, follows or ends in the transaction that decides on it, and its
room counts the files that are there."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.integration.test_held_files import GATE, judge
from tests.support.chosen import PLACES, chosen
from tests.support.clock import ManualClock
from tests.support.consumer import events_file
from tests.support.content import KIB, Content
from tests.support.invariants import checked_accounts
from tests.support.pausing import count_steps, interleave, make_steps
from tests.support.problems import problem
from tests.support.stack import Stack
from tests.support.visiting import make_link, names_of, send, visit
from uploader.database import links as link_rows
from uploader.domain.names import Selection
from uploader.errors import Unavailable
from uploader.service import files as files_module

CONTENT, OTHER = (Content(2 * KIB, seed=seed) for seed in range(2))
PASSWORD = {"password": "secret"}
LINKS: list[dict[str, Any]] = [
    {"kind": kind, "name": f"pub{number}/{name}", **password}
    for kind, name in (("download", ""), ("download", "a"), ("upload", ""))
    for password in ({}, PASSWORD)
    for number in ("{n}",)
]
OWNER = ["delete the folder", "move the folder", "delete the last file", "rename the file", "replace the file"]


@pytest.fixture
async def stack_on(make_stack_on: MakeStack, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stack]:
    async with make_stack_on() as made:
        make_steps(monkeypatch, made.services.database)
        yield made
        await checked_accounts(made.services.database)
        assert (await made.services.recounting.recount()).drifts == []


class Round:
    """One folder with one file, what the owner does with them, and a link."""

    def __init__(self, stack: Stack, number: int, doing: str, link: dict[str, Any]) -> None:
        self.stack, self.doing = stack, doing
        self.folder = f"pub{number}/"
        self.body = {**link, "name": link["name"].format(n=number)}

    async def prepare(self) -> None:
        made = await send(self.stack.client, CONTENT, f"{self.folder}a")
        assert made.status_code == 201
        self.file_id = made.json()["file"]["id"]

    async def act(self) -> httpx2.Response:
        client, file = self.stack.client, f"/me/files/{self.file_id}"
        match self.doing:
            case "delete the folder":
                return await client.delete("/me/files", params={"prefix": self.folder})
            case "move the folder":
                to = {"prefix": f"new-{self.folder}"}
                return await client.patch("/me/files", params={"prefix": self.folder}, json=to)
            case "delete the last file":
                return await client.delete(file)
            case "rename the file":
                return await client.patch(file, json={"name": f"other-{self.folder}a"})
            case _:
                query = {"name": f"{self.folder}a", "if_exists": "replace"}
                return await client.post("/me/files", params=query, content=OTHER.data)

    async def share(self) -> httpx2.Response:
        return await self.stack.client.post("/me/links", json=self.body)

    async def check(self, acted: httpx2.Response, shared: httpx2.Response) -> None:
        assert acted.is_success, acted.text
        assert shared.status_code in (201, 404), shared.text
        if shared.status_code == 404:
            return
        live = await self.stack.client.get(f"/me/links/{shared.json()['id']}")
        if live.status_code == 404:
            return
        name = live.json()["name"]
        folder = name[: name.rstrip("/").rfind("/") + 1]
        level = (await self.stack.client.get(f"/me/files?limit=1000&delimiter=/&prefix={folder}")).json()
        there = {each["name"] for each in (*level["files"], *level["folders"])}
        assert name in there, "the link outlives its folder"


@pytest.mark.parametrize("doing", OWNER)
async def test_link_never_outlives_what_it_names_when_both_change_at_once(stack_on: Stack, doing: str) -> None:
    number = 0
    options: list[tuple[dict[str, Any], bool, int]] = []
    for link in LINKS:
        for link_first in (False, True):
            number += 1
            alone = Round(stack_on, number, doing, link)
            await alone.prepare()
            steps = await count_steps(alone.share if link_first else alone.act)
            options += [(link, link_first, step) for step in range(1, steps + 1)]
    failures = []
    for link, link_first, step in chosen(options, 3 * PLACES, f"link race {doing}"):
        number += 1
        tried = Round(stack_on, number, doing, link)
        await tried.prepare()
        if link_first:
            shared, acted = await interleave(tried.share, step, tried.act)
        else:
            acted, shared = await interleave(tried.act, step, tried.share)
        try:
            await tried.check(acted, shared)
        except AssertionError as error:
            failures.append((link, "the link first" if link_first else "the owner first", step, str(error)[:80]))
    assert failures == []


# What exists below a name


TUS = {"Tus-Resumable": "1.0.0"}


async def empty_folders(stack: Stack) -> list[str]:
    return [folder["name"] for folder in (await stack.client.get("/me/folders")).json()["folders"]]


async def _finished(stack: Stack) -> None:
    assert (await send(stack.client, OTHER, "priv/secret")).is_success


async def _empty_folder(stack: Stack) -> None:
    assert (await stack.client.post("/me/folders", json={"name": "priv/sub"})).status_code == 201


async def _open_upload(stack: Stack) -> None:
    assert (await stack.open(OTHER, name="priv/secret")).status_code == 201


async def _open_by_tus(stack: Stack) -> None:
    headers = {**TUS, "Upload-Length": "5", "Upload-Metadata": "filename c2VjcmV0,relativePath cHJpdi9zZWNyZXQ="}
    assert (await stack.client.post("/resumable", headers=headers)).status_code == 201


async def _waiting_concatenation(stack: Stack) -> None:
    part = await stack.client.post("/resumable", headers={**TUS, "Upload-Length": "5", "Upload-Concat": "partial"})
    final = {"Upload-Concat": f"final;{part.headers['location']}"}
    final["Upload-Metadata"] = "filename c2VjcmV0,relativePath cHJpdi9zZWNyZXQ="
    assert (await stack.client.post("/resumable", headers={**TUS, **final})).status_code == 201


async def _visitors_held_file(stack: Stack) -> None:
    """One that comes into `priv/`, because its link followed its folder there before the link was revoked."""
    link = await make_link(stack, name="box/")
    assert (await send(await visit(stack, link), OTHER, "secret")).status_code == 201
    assert (await stack.client.patch("/me/files?prefix=box/", json={"prefix": "priv/"})).status_code == 200
    assert (await stack.client.delete(f"/me/links/{link['id']}")).status_code == 204
    assert (await stack.client.delete("/me/files?prefix=priv/")).status_code == 200


EXISTING: dict[str, Callable[[Stack], Awaitable[None]]] = {
    "a finished file": _finished,
    "an empty folder": _empty_folder,
    "a held file": _finished,
    "an open upload": _open_upload,
    "an open upload of tus": _open_by_tus,
    "a waiting concatenation": _waiting_concatenation,
    "a held file of a visitor": _visitors_held_file,
}


@pytest.mark.parametrize("existing", EXISTING)
async def test_share_ends_where_its_folder_moves_to_a_name_below_which_something_exists(
    make_stack_on: MakeStack, tmp_path: Path, existing: str
) -> None:
    held = existing.startswith("a held file")
    async with make_stack_on(events=events_file(tmp_path, GATE if held else "")) as stack:
        for name in ("pub", "other"):
            assert (await stack.client.post("/me/folders", json={"name": name})).status_code == 201
        links = [await make_link(stack, "download", name) for name in ("pub/", "other/")]
        await EXISTING[existing](stack)
        for folder, to in (("pub/", "priv/"), ("other/", "free/")):
            moved = await stack.client.patch("/me/files", params={"prefix": folder}, json={"prefix": to})
            assert moved.status_code == 200, moved.text
        shown = [await stack.client.get(f"/me/links/{link['id']}") for link in links]
        assert [answer.status_code for answer in shown] == [404, 200]
        assert shown[1].json()["name"] == "free/"


async def test_share_of_a_folder_with_held_files_alone_is_refused(make_stack: MakeStack, tmp_path: Path) -> None:
    async with make_stack(events=events_file(tmp_path, GATE)) as stack:
        await _finished(stack)
        await _open_by_tus(stack)
        body = {"kind": "download", "name": "priv/"}
        problem(await stack.client.post("/me/links", json=body), 404, "file-not-found")


async def test_links_of_nested_folders_follow_and_each_has_a_folder_if_the_move_breaks_off(
    stack_on: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = stack_on
    for name in ("a/b/c/file", "a/file"):
        assert (await send(stack.client, CONTENT, name)).is_success
    links = [await make_link(stack, "download", name) for name in ("a/", "a/b/", "a/b/", "a/b/c/")]

    async def break_off(*_: Any, **__: Any) -> None:
        raise Unavailable

    with monkeypatch.context() as patched:
        patched.setattr(stack.services.bulk_operations, "_go_on", break_off)
        answer = await stack.client.patch("/me/files?prefix=a/", json={"prefix": "z/y/"})
        problem(answer, 503, "unavailable")
    assert await empty_folders(stack) == ["z/y/b/c/"]
    for _ in range(2):
        names = [(await stack.client.get(f"/me/links/{link['id']}")).json()["name"] for link in links]
        assert names == ["z/y/", "z/y/b/", "z/y/b/", "z/y/b/c/"]
        assert (await stack.client.patch("/me/files?prefix=a/", json={"prefix": "z/y/"})).status_code == 200
    assert await names_of(stack.client) == ["z/y/b/c/file", "z/y/file"]
    assert await empty_folders(stack) == []


async def test_left_folder_of_a_link_gives_way_to_no_file(make_stack_on: MakeStack) -> None:
    async with make_stack_on(max_files=3, trash_retention_seconds=0) as stack:
        for name in ("pub/sub/a", "left/a"):
            file = (await send(stack.client, CONTENT, name)).json()["file"]
            assert (await stack.client.delete(f"/me/files/{file['id']}")).status_code == 204
        link = await make_link(stack, "download", "pub/")
        for number, content in enumerate((CONTENT, OTHER)):  # the second one takes the place of `left/`
            assert (await send(stack.client, content, f"{number}")).is_success
        problem(await send(stack.client, Content(KIB, seed=9), "more"), 413, "too-many-files")
        assert await empty_folders(stack) == ["pub/sub/"]
        assert (await stack.client.get(f"/me/links/{link['id']}")).status_code == 200
        await checked_accounts(stack.services.database)


async def test_archive_of_a_share_ends_where_its_folder_moves(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes under the old name meanwhile was never shared, neither by an archive that runs nor by a link that a process
    remembers."""
    monkeypatch.setattr(files_module, "_FILES_AT_ONCE", 1)
    async with make_stack() as stack:
        for name in ("pub/a", "pub/b"):
            assert (await send(stack.client, CONTENT, name)).is_success
        link = await make_link(stack, "download", "pub/")
        visitor = await visit(stack, link)
        remembered = (await stack.services.database.read(link_rows.by_id, link["id"])) or pytest.fail("no link")
        shared = stack.services.shared
        reading = shared.read(remembered, Selection(prefixes=("pub/",)))
        assert (await anext(reading)).name == "pub/a"
        assert (await stack.client.patch("/me/files?prefix=pub/", json={"prefix": "box/"})).json() == {"files": 2}
        secret = (await send(stack.client, OTHER, "pub/secret")).json()["file"]["id"]
        with pytest.raises(Unavailable):
            await anext(reading)
        with pytest.raises(Unavailable):
            await shared.page(remembered, "", limit=9, after=None)
        with pytest.raises(Unavailable):
            await shared.level(remembered, "", limit=9, after=None)
        with pytest.raises(Unavailable):
            await shared.get(remembered, secret)
        stack.services.visitors._known.clear()
        listed = (await visitor.get(f"{link['url']}/files")).json()["files"]
        assert sorted(file["name"] for file in listed) == ["a", "b"]


# How many links work


async def test_change_that_revives_a_link_counts_in_the_links_that_work(
    make_stack_on: MakeStack, clock: ManualClock
) -> None:
    async with make_stack_on(max_links=2, clock=clock) as stack:
        soon = (clock.now() + timedelta(hours=1)).isoformat()
        expired = [await make_link(stack, name=f"{number}/", expires_at=soon) for number in range(2)]
        clock.advance(2 * 3600)
        kept = await make_link(stack)
        later = {"expires_at": (clock.now() + timedelta(hours=1)).isoformat()}
        tried = await asyncio.gather(*(stack.client.patch(f"/me/links/{link['id']}", json=later) for link in expired))
        assert Counter(answer.status_code for answer in tried) == {200: 1, 413: 1}
        (refused,) = (answer for answer in tried if answer.status_code == 413)
        assert problem(refused, 413, "too-many-links")["limit"] == 2
        revived = next(link for link, answer in zip(expired, tried, strict=True) if answer.status_code == 200)
        for link in (kept, revived):  # these work already
            assert (await stack.client.patch(f"/me/links/{link['id']}", json=later)).status_code == 200
        dead = next(link for link in expired if link is not revived)
        assert (await stack.client.patch(f"/me/links/{dead['id']}", json={"label": "x"})).status_code == 200
        assert (await stack.client.delete(f"/me/links/{kept['id']}")).status_code == 204
        assert (await stack.client.patch(f"/me/links/{dead['id']}", json=later)).status_code == 200


# The room of a link


async def _delete(stack: Stack, file_id: str) -> None:
    assert (await stack.client.delete(f"/me/files/{file_id}")).status_code == 204


async def _delete_many(stack: Stack, file_id: str) -> None:
    assert (await stack.client.post("/me/files/delete", json={"ids": [file_id]})).json() == {"files": 1}


async def _delete_below(stack: Stack, file_id: str) -> None:
    assert (await stack.client.patch(f"/me/files/{file_id}", json={"name": "sorted/a"})).status_code == 200
    assert (await stack.client.delete("/me/files?prefix=sorted/")).json() == {"files": 1}


async def _replace(stack: Stack, file_id: str) -> None:
    query = {"name": "inbox/a", "if_exists": "replace"}
    assert (await stack.client.post("/me/files", params=query, content=b"mine")).status_code == 201


async def _replace_by_upload(stack: Stack, file_id: str) -> None:
    assert (await stack.upload(OTHER, name="inbox/a", if_exists="replace")).status_code == 201


async def _replace_by_move(stack: Stack, file_id: str) -> None:
    mine = (await send(stack.client, OTHER, "mine")).json()["file"]["id"]
    to = {"name": "inbox/a", "if_exists": "replace"}
    assert (await stack.client.patch(f"/me/files/{mine}", json=to)).status_code == 200


async def _replace_by_restore(stack: Stack, file_id: str) -> None:
    mine = (await send(stack.client, OTHER, "mine")).json()["file"]["id"]
    assert (await stack.client.delete(f"/me/files/{mine}")).status_code == 204
    to = {"name": "inbox/a", "if_exists": "replace"}
    assert (await stack.client.post(f"/me/trash/{mine}/restore", json=to)).status_code == 200


async def _merge_by_move(stack: Stack, file_id: str) -> None:
    assert (await send(stack.client, CONTENT, "same/a")).is_success
    moved = await stack.client.post("/me/files/move", json={"ids": [file_id], "to": "same/"})
    assert moved.json() == {"files": 1}


async def _delete_as_administrator(stack: Stack, file_id: str) -> None:
    root = await stack.client_of("root", admin=True)
    assert (await root.delete(f"/admin/files/{file_id}")).status_code == 204


async def _refuse(stack: Stack, file_id: str) -> None:
    assert await judge(stack, verdict="refuse") == [file_id]


LEAVING = [_delete, _delete_many, _delete_below, _replace, _replace_by_upload, _replace_by_move, _replace_by_restore]
LEAVING += [_merge_by_move, _delete_as_administrator]


@pytest.mark.parametrize("leave", [*LEAVING, _refuse, "held"])
async def test_file_that_leaves_its_owner_gives_its_room_back_to_its_link(
    make_stack_on: MakeStack, tmp_path: Path, leave: Any
) -> None:
    gated = leave in (_refuse, "held")
    async with make_stack_on(events=events_file(tmp_path, GATE if gated else "")) as stack:
        link = await make_link(stack, max_files=1, max_bytes=CONTENT.size)
        visitor = await visit(stack, link)
        file_id = (await send(visitor, CONTENT, "a")).json()["file"]["id"]
        problem(await send(visitor, OTHER, "b"), 413, "link-exhausted")
        await (_delete if leave == "held" else leave)(stack, file_id)
        assert await figures(stack, link) == (0, 0)
        assert (await send(await visit(stack, link), OTHER, "b")).status_code == 201
        assert await figures(stack, link) == (1, OTHER.size)
        if leave in (_delete, _delete_many):  # the owner may restore more than the link takes
            assert (await stack.client.post(f"/me/trash/{file_id}/restore", json={})).status_code == 200
            assert await figures(stack, link) == (2, CONTENT.size + OTHER.size)
        await checked_accounts(stack.services.database)
        assert (await stack.services.recounting.recount()).drifts == []


async def figures(stack: Stack, link: dict[str, Any]) -> tuple[int, int]:
    told = (await stack.client.get(f"/me/links/{link['id']}")).json()
    return told["files"], told["bytes"]


async def test_room_of_a_link_is_exact_while_files_come_and_go(stack_on: Stack) -> None:
    link = await make_link(stack_on, max_files=3)
    visitors = [await visit(stack_on, link) for _ in range(4)]

    async def come(number: int) -> int:
        return (await send(visitors[number % 4], Content(KIB, seed=20 + number), f"{number}")).status_code

    async def go() -> None:
        for file in (await stack_on.client.get("/me/files?limit=1")).json()["files"]:
            await stack_on.client.delete(f"/me/files/{file['id']}")

    for first in range(0, 12, 4):
        await asyncio.gather(*(come(number) for number in range(first, first + 4)), go(), go())
        files = (await stack_on.client.get("/me/files")).json()["files"]
        assert await figures(stack_on, link) == (len(files), KIB * len(files))
        assert len(files) <= 3
