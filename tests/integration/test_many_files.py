"""What a user has already costs the next request nothing: SQLite does the same for it with 10 files and with 3,000."""

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import insert

from tests.conftest import MakeStack
from tests.support.content import Content
from tests.support.rows import NOW, upload_row
from tests.support.stack import Stack
from tests.support.statements import sqlite_steps
from uploader.database import models
from uploader.database.engine import Connection
from uploader.database.transactions.rows import row_of
from uploader.domain.upload import State

FEW, MANY = 10, 3_000
# More of the same takes no more steps, but deeper trees and more pages.
MOST = 1.5


async def have(stack: Stack, numbers: range, name: str = "{}.bin") -> None:
    """Files of the user as they are after an upload: with their contents, and what became of the uploads."""
    user_id = "alice"
    files, blobs, uploads = [], [], []
    for number in numbers:
        sha256 = hashlib.sha256(str(number).encode()).hexdigest()
        content = {"md5": md5_of(number), "sha256": sha256, "size": 4096, "created_at": NOW}
        upload = upload_row(user_id, 4096, md5=md5_of(number), state=State.DONE, closed_at=NOW)
        files.append(content | {"id": upload.id, "user_id": user_id, "name": name.format(number), "instant": False})
        blobs.append(content | {"refs": 1, "damaged": False})
        uploads.append(row_of(upload) | {"state": "DONE", "open_flag": None})

    async def write(connection: Connection) -> None:
        for table, rows in ((models.file, files), (models.blob, blobs), (models.upload, uploads)):
            await connection.execute(insert(table), rows)

    await stack.services.database.transact(write)


def md5_of(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()[:32]


async def opening(stack: Stack, content: Content) -> None:
    assert (await stack.open(content, sha256=content.sha256)).status_code == 201


async def sending(stack: Stack, content: Content) -> None:
    assert (await stack.upload(content)).status_code == 201


async def cancelling(stack: Stack, content: Content) -> None:
    await stack.open(content)
    assert (await stack.client.delete(f"/files/{content.md5}")).status_code == 204


async def looking(stack: Stack, content: Content) -> None:
    assert (await stack.client.get(f"/files/{content.md5}")).status_code == 404
    assert (await stack.client.get(f"/files/{md5_of(5)}")).status_code in (200, 404, 410)


async def states(stack: Stack, content: Content) -> None:
    md5s = [md5_of(number) for number in range(5)] + [content.md5]
    assert (await stack.client.post("/files/status", json={"md5s": md5s})).status_code == 200


async def deleting(stack: Stack, content: Content) -> None:
    file = (await stack.upload(content)).json()["file"]
    assert (await stack.client.delete(f"/me/files/{file['id']}")).status_code == 204


async def listing(stack: Stack, _content: Content) -> None:
    assert len((await stack.client.get("/me/files?limit=5")).json()["files"]) == 5


@pytest.mark.parametrize("instant", ["proof", "trust", "off"])
async def test_what_a_user_has_costs_the_next_request_nothing(
    make_stack: MakeStack, sqlite_url: str, instant: Any
) -> None:
    async with make_stack(database_url=sqlite_url, instant=instant, proof_min_size_bytes=0) as stack:
        contents = (Content(5000, seed=seed) for seed in range(1000))
        asked: tuple[Callable[[Stack, Content], Awaitable[None]], ...] = (
            *(opening, sending, cancelling, looking, states, deleting, listing),
        )

        async def steps_of(ask: Callable[[Stack, Content], Awaitable[None]]) -> int:
            with sqlite_steps(stack.services.database) as steps:
                await ask(stack, next(contents))
            return steps.count

        await have(stack, range(FEW))
        for ask in asked:
            await ask(stack, next(contents))  # what is looked up once
        few = [await steps_of(ask) for ask in asked]
        await have(stack, range(FEW, MANY))
        many = [await steps_of(ask) for ask in asked]
        for ask, before, after in zip(asked, few, many, strict=True):
            assert 0 < after <= MOST * before + 100, (ask.__name__, before, after)


async def test_another_file_of_a_name_is_no_walk_over_all_of_its_numbers(
    make_stack: MakeStack, sqlite_url: str
) -> None:
    async with make_stack(database_url=sqlite_url) as stack:

        async def steps_of(number: int) -> int:
            content = Content(5000, seed=number, name="a.txt")
            with sqlite_steps(stack.services.database) as steps:
                response = await stack.upload(content)
            assert response.json()["file"]["name"] == f"a ({number}).txt"
            return steps.count

        await stack.upload(Content(5000, seed=1, name="a.txt"))
        await have(stack, range(2, 2 + FEW), "a ({}).txt")
        await steps_of(2 + FEW)  # what is looked up once
        await have(stack, range(3 + FEW, 40), "a ({}).txt")
        few = await steps_of(40)
        await have(stack, range(41, MANY), "a ({}).txt")
        assert 0 < await steps_of(MANY) <= 3 * few
        file = (await stack.client.get("/me/files", params={"prefix": "a (7)"})).json()["files"][0]
        assert (await stack.client.delete(f"/me/files/{file['id']}")).status_code == 204
        await steps_of(7)  # the first that is free
