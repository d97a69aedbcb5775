"""Links that are made, changed or followed while their owner deletes, moves and replaces files: one request is stopped at a
step in the database, and the other request runs meanwhile."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.support.chosen import PLACES, chosen
from tests.support.content import KIB, Content
from tests.support.invariants import checked_accounts
from tests.support.pausing import count_steps, interleave, make_steps
from tests.support.stack import Stack
from tests.support.visiting import send

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
        level = (await self.stack.client.get("/me/files", params={"delimiter": "/", "prefix": folder})).json()
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
