"""Levels of names, on each database: pages are those of a plain grouping, and cost what they show."""

import random
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from itertools import cycle, groupby
from typing import Any

import pytest

from tests.conftest import MakeStack
from tests.support.rows import digests, file_row
from tests.support.statements import Steps, rows_read, sqlite_steps
from uploader.database import levels, models, queries
from uploader.database.engine import Connection, Database
from uploader.domain.names import Folder, Place, place_of
from uploader.domain.upload import File

# What sorts around a slash, ends where another one begins, and is no ASCII.
SEGMENTS = (
    *("a", "a-b", "a.b", "a0", "ab", "a b", "b"),
    *("\u00e9", "\u00e9\u00e9", "\u4e2d", "\U0001f600", "~", "0", "%", "_"),
)


async def insert(database: Database, user_id: str, names: list[str]) -> list[File]:
    """Files of contents that have no rows."""
    rows = [
        file_row(
            user_id, number, f"{user_id} {number}", id=digests(f"{user_id} {number}")["md5"], name=name, damaged=True
        )
        for number, name in enumerate(names)
    ]

    async def add(connection: Connection) -> None:
        values = [{column.name: getattr(row, column.name) for column in models.file.c} for row in rows]
        await connection.execute(models.file.insert(), values)

    await database.transact(add)
    return rows


async def hold(database: Database, user_id: str, names: list[str]) -> None:
    """Let gates hold files of contents that have no rows."""

    async def add(connection: Connection) -> None:
        for name in names:
            row = file_row(user_id, 1, name, id=digests(f"held {name}")["md5"], name=name)
            values = {column: getattr(row, column) for column in queries.FILE_COLUMNS}
            values |= {"if_exists": "keep", "event_id": row.id}
            await connection.execute(models.held_file.insert(), values)

    await database.transact(add)


def grouped(files: list[File], prefix: str) -> list[Folder | File]:
    """One level, by looking at each name."""

    def entry_of(file: File) -> str:
        slash = file.name.find("/", len(prefix))
        return file.name if slash < 0 else file.name[: slash + 1]

    below = sorted(
        (file for file in files if file.name.startswith(prefix)), key=lambda file: (file.name.encode(), file.id)
    )
    found = list[Folder | File]()
    for entry, group in groupby(sorted(below, key=lambda file: entry_of(file).encode()), entry_of):
        within = list(group)
        if entry.endswith("/"):
            found.append(Folder(entry, len(within), sum(file.size for file in within)))
        else:
            found += within
    return found


async def pages(database: Database, user_id: str, prefix: str, limit: int, after: Place | None = None) -> Any:
    while True:
        page, has_more = await database.read(partial(levels.page, limit=limit, after=after), user_id, prefix)
        yield page
        if not has_more:
            return
        after = place_of(page[-1])


def trees() -> Iterator[list[str]]:
    for seed in range(12):
        chosen = random.Random(seed)
        names = ["/".join(chosen.choices(SEGMENTS, k=chosen.randint(1, 4))) for _ in range(chosen.randint(0, 60))]
        yield list(dict.fromkeys(names))


async def test_pages_of_a_level_are_those_of_a_plain_grouping(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levels, "_HOPS", 4)
    for number, names in enumerate(trees()):
        user_id, chosen = f"user{number}", random.Random(number)
        files = await insert(database, user_id, names) if names else []
        await insert(database, f"user{number}x", ["a/b", "zz"])
        prefixes = {"", "a", "a/", "\u00e9", "none/", *(name[: chosen.randint(0, len(name))] for name in names[:8])}
        for prefix, few in zip(sorted(prefixes), cycle((1, 2, 5)), strict=False):
            expected = grouped(files, prefix)
            for limit in (few, 100):
                paged = [page async for page in pages(database, user_id, prefix, limit)]
                assert paged == ([expected[at : at + limit] for at in range(0, len(expected), limit)] or [[]]), (
                    names,
                    prefix,
                    limit,
                )
        places = [("", ""), ("a/b", "x"), ("a", "0" * 32), ("\U0001f600/", ""), ("zzz", "")]
        for after in (*places, *map(place_of, files[:3])):
            expected = [each for each in grouped(files, "") if each.name.encode() > after[0].encode()]
            (page,) = [page async for page in pages(database, user_id, "", 100, after)]
            assert page == expected, (names, after)


async def test_folders_are_counted_as_far_as_a_page_may_cost(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levels, "COUNTED_FILES", 12)
    names = ["a/1", "a/2", "b", *(f"c/{number:02}/x" for number in range(30)), "d/1", "d/2"]
    names += [*(f"e/{number}" for number in range(9)), "f/1", "z"]
    await insert(database, "alice", names)
    (page,) = [page async for page in pages(database, "alice", "", 100)]
    found = [(each.name, each.files, each.at_least) for each in page if isinstance(each, Folder)]
    # Each as far as its share of two files.
    assert found == [("a/", 2, False), ("c/", 2, True), ("d/", 2, False), ("e/", 2, True), ("f/", 1, False)]
    (page,) = [page async for page in pages(database, "alice", "d/", 100)]
    assert [each.name for each in page] == ["d/1", "d/2"]
    (first, *_) = [page async for page in pages(database, "alice", "", 2)]
    assert first[0] == Folder("a/", 2, 1)


async def test_prefixes_in_use_are_those_that_names_begin_with(database: Database) -> None:
    await insert(database, "alice", ["a/b", "\u00e9/c"])
    await insert(database, "bob", ["b", "z"])
    asked = ["", "a", "a/b", "a/b/", "a/c", "b", "\u00e9", "\u00e9/", "z", "\U0001f600"]
    assert await database.read(levels.prefixes_in_use, "alice", asked) == ["", "a", "a/b", "\u00e9", "\u00e9/"]
    assert await database.read(levels.prefixes_in_use, "carol", asked) == []


async def test_what_has_a_name_costs_no_walk_over_all_names(database: Database) -> None:
    names = [f"{number:04}/{kind}" for number in range(1500) for kind in ("a", "b")]
    await insert(database, "alice", names)
    await insert(database, "bob", ["a"])
    await hold(database, "alice", [f"h{number}/held" for number in range(1500)])
    content = str(digests("alice 5")["sha256"])
    asked: tuple[tuple[Any, Any], ...] = (
        (partial(levels.named, user_id="alice", names=["0700/a/x", "0701"], above=["0700", "0700/a"]), 1),
        (partial(queries.files_of_content_below, user_id="alice", sha256=content, prefix="0002"), 1),
        (partial(queries.files_of_names, user_id="alice", names=["0003/a", "0004/c"]), 1),
        (partial(queries.files, user_id="alice", limit=20, after=None, prefix=None, part=None), 20),
        (partial(levels.prefixes_in_use, user_id="alice", prefixes=["0700/", "h7/", "x/"], unseen=True), 2),
    )

    async def work(connection: Connection, ask: Any) -> tuple[Any, int]:
        before = await rows_read(connection)
        return await ask(connection), await rows_read(connection) - before

    for ask, count in asked:
        with sqlite_steps(database) if database.engine.dialect.name == "sqlite" else nullcontext(Steps()) as steps:
            found, read = await database.read(work, ask)
        assert len(found.files if isinstance(found, levels.Named) else found) == count
        # What the status costs; and of each of all rows SQLite has several steps.
        assert read <= 200
        assert steps.count <= 2500


async def test_the_few_names_of_a_user_are_found_in_whatever_order_they_came(make_stack_on: MakeStack) -> None:
    """MySQL may read a table of one page in the order of its ids."""
    async with make_stack_on() as stack:
        for count, name in enumerate(("s/a", "private/b", "private/a/c"), 1):
            assert (await stack.client.post(f"/me/files?name={name}", content=name.encode())).status_code == 201
            in_use = await stack.services.database.read(levels.prefixes_in_use, "alice", ["private/", "pr", "s/", "t"])
            assert in_use == (["private/", "pr", "s/"] if count > 1 else ["s/"])
            level = (await stack.client.get("/me/files?delimiter=/")).json()
            assert [each["name"] for each in level["folders"]] == (["private/", "s/"] if count > 1 else ["s/"])
            refused = await stack.client.post(f"/me/files?name={name.partition('/')[0]}&if_exists=fail", content=b"x")
            assert refused.json()["code"] == "name-taken"


async def test_level_lists_all_folders_beside_a_full_trash(make_stack_on: MakeStack) -> None:
    """Replaced rows leave entries in the index. MySQL then expects more rows in a range than the table has."""
    async with make_stack_on() as stack:
        folders = [f"{number}/" for number in range(1, 61)]
        for folder in folders:
            for content in (b"first", b"second"):
                query = {"name": f"{folder}a", "if_exists": "replace"}
                assert (await stack.client.post("/me/files", params=query, content=content)).status_code == 201
        found = (await stack.client.get("/me/files?delimiter=/&limit=1000")).json()["folders"]
        assert [each["name"] for each in found] == sorted(folders)
