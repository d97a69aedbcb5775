"""Names that are taken, folders and the trash on the web page, in a real Chromium."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator, expect

from tests.conftest import MakeStack
from tests.support.shelf import Shelf, a_shelf
from tests.support.sites import Site, a_file, a_site

TWO = {"a.txt": b"alpha", "b.txt": b"beta"}


@pytest.fixture
async def shelf(browser: Browser, site: Site) -> AsyncIterator[Shelf]:
    async with a_shelf(browser, site, {**TWO, "box/x.txt": b"x"}) as made:
        yield made


async def contents(shelf: Shelf) -> dict[str, bytes]:
    client = shelf.site.stack.client
    files = await shelf.site.files()
    return {file["name"]: (await client.get(f"/me/files/{file['id']}/content")).content for file in files}


async def put(shelf: Shelf, name: str, data: bytes) -> None:
    answer = await shelf.site.stack.client.post(
        "/me/files", params={"name": name, "if_exists": "replace"}, content=data
    )
    assert answer.status_code == 201


async def answer(shelf: Shelf, about: str, choice: str, *, for_all: bool = False) -> None:
    question = shelf.page.get_by_role("dialog", name=f"“{about}” is there already")
    await expect(question).to_be_visible()
    if for_all:
        await question.get_by_label("The same for all others").check()
    await question.get_by_role("button", name=choice, exact=True).click()


def messages(shelf: Shelf) -> Locator:
    return shelf.page.get_by_role("region", name="Messages")


async def test_folders_are_made_and_brought_empty(shelf: Shelf, tmp_path: Path) -> None:
    page, visitor = shelf.page, shelf.visitor
    await visitor.press("Upload")
    await page.get_by_role("menuitem", name="New folder…").click()
    await page.keyboard.type("made/deep")
    await shelf.press("Enter")
    await expect(page.get_by_text("Nothing in this folder")).to_be_visible()
    (tmp_path / "brought" / "empty" / "è").mkdir(parents=True)
    a_file(tmp_path / "brought" / "x.txt", b"x")
    await visitor.drop(tmp_path / "brought")
    await expect(shelf.row("brought")).to_contain_text("1 file")
    await page.get_by_role("link", name="brought").click()
    await shelf.shows("empty", "x.txt")
    await expect(shelf.row("empty")).to_contain_text("Empty")
    await expect(shelf.row("empty").locator(".cell-time")).to_have_text("")
    await page.get_by_role("link", name="empty").click()
    await shelf.shows("è")
    await visitor.go("/#/")
    await shelf.shows("box", "made", "a.txt", "b.txt")
    await visitor.press("Upload")
    await page.get_by_role("menuitem", name="New folder…").click()
    await page.keyboard.type("a.txt")
    await shelf.press("Enter")
    await expect(page.get_by_role("alert").first).to_have_text("a.txt is there already.")


async def test_a_move_asks_for_each_name_that_is_taken_or_once(shelf: Shelf) -> None:
    page = shelf.page
    there = {"to/a.txt": b"1", "to/b.txt": b"2", "to/box/x.txt": b"3", "to/box/y.txt": b"4"}
    for name, data in {**there, "c.txt": b"c", "box/y.txt": b"y", "box/z.txt": b"z"}.items():
        await put(shelf, name, data)
    await page.reload()
    await shelf.shows("box", "to", "a.txt", "b.txt", "c.txt")
    for name in ("box", "a.txt", "b.txt", "c.txt"):
        await page.get_by_label(f"Select {name}").click()
    await page.get_by_role("group", name="Actions for what is selected").get_by_role("button", name="Move to…").click()
    await page.get_by_label("Into folder").fill("to")
    await shelf.visitor.press("Move here")
    await expect(page.get_by_role("dialog")).to_contain_text("On the server")
    assert await shelf.visitor.violations() == []
    await answer(shelf, "x.txt", "Keep both")
    await answer(shelf, "y.txt", "Replace")
    await answer(shelf, "a.txt", "Skip", for_all=True)
    await shelf.shows("to", "a.txt", "b.txt")
    moved = {"to/c.txt": b"c", "to/box/x (2).txt": b"x", "to/box/y.txt": b"y", "to/box/z.txt": b"z"}
    assert await contents(shelf) == {**TWO, **there, **moved}
    await expect(messages(shelf)).to_contain_text("2 items are in to now.")


async def test_a_new_name_that_is_taken_is_asked_about(shelf: Shelf) -> None:
    page = shelf.page
    for choice, names in (("Skip", ["box", "a.txt", "b.txt"]), ("Keep both", ["box", "a (2).txt", "a.txt"])):
        await shelf.visitor.ask_for("Rename", "b.txt")
        await page.get_by_label("New name").fill("a.txt")
        await shelf.press("Enter")
        await answer(shelf, "a.txt", choice)
        await shelf.shows(*names)
    await shelf.visitor.ask_for("Rename", "a (2).txt")
    await page.get_by_label("New name").fill("box")
    await shelf.press("Enter")
    question = page.get_by_role("dialog")
    await expect(question.get_by_role("button")).to_have_text(["Cancel", "Keep both", "Skip"])
    await shelf.press("Escape")
    await shelf.visitor.ask_for("Rename", "a (2).txt")
    await page.get_by_label("New name").fill("a.txt")
    await shelf.press("Enter")
    await answer(shelf, "a.txt", "Replace")
    await shelf.shows("box", "a.txt")
    assert await contents(shelf) == {"a.txt": b"beta", "box/x.txt": b"x"}


async def test_what_is_deleted_comes_back_from_the_trash(shelf: Shelf) -> None:
    page, visitor = shelf.page, shelf.visitor
    for name, left in (("box", ["a.txt", "b.txt"]), ("a.txt", ["b.txt"])):
        await visitor.ask_for("Delete", name)
        await shelf.shows(*left)
    await shelf.site.until_there_are("b.txt")
    await page.locator(".toast").filter(has_text="box").get_by_role("button", name="Undo").click()
    await shelf.shows("box", "b.txt")
    await put(shelf, "a.txt", b"another")
    await put(shelf, "b.txt", b"newer")
    await page.get_by_role("link", name="Trash").click()
    rows = page.locator("#trash-list .row .name")
    await expect(rows).to_have_text(["b.txt", "a.txt"])
    await expect(page.locator("#trash-list .row").first).to_contain_text("All files · replaced")
    assert await visitor.violations() == []
    await page.locator("#trash-list").focus()
    await shelf.press("End", "Enter")
    async with page.expect_download() as download:
        await page.get_by_role("menuitem", name="Download").click()
    assert (await (await download.value).path()).read_bytes() == b"alpha"
    await shelf.press("Control+a")
    await page.get_by_role("group", name="Actions for what is selected").get_by_role("button", name="Restore").click()
    await answer(shelf, "b.txt", "Skip")
    await answer(shelf, "a.txt", "Keep both")
    await expect(rows).to_have_text(["b.txt"])
    await messages(shelf).get_by_role("button", name="Show").click()
    await shelf.shows("box", "a (2).txt", "a.txt", "b.txt")
    await visitor.ask_for("Delete", "a.txt")
    await page.get_by_role("link", name="Trash").click()
    await expect(rows).to_have_text(["a.txt", "b.txt"])
    await page.locator("#trash-list").focus()
    await shelf.press("Home", "Delete")
    await page.get_by_role("dialog").get_by_role("button", name="Delete for good").click()
    await expect(rows).to_have_text(["b.txt"])
    await page.get_by_label("Language").select_option("zh")
    await visitor.press("清空回收站")
    await page.get_by_role("dialog").get_by_role("button", name="清空回收站").click()
    await expect(page.get_by_text("回收站是空的。您删除或替换的文件")).to_be_visible()
    assert (await shelf.site.stack.client.get("/me/trash")).json()["files"] == []
    assert await contents(shelf) == {"a (2).txt": b"alpha", "b.txt": b"newer", "box/x.txt": b"x"}


async def test_an_earlier_version_takes_its_place_again(shelf: Shelf) -> None:
    page = shelf.page
    for data in (b"second", b"third"):
        await put(shelf, "a.txt", data)
    await shelf.visitor.ask_for("Earlier versions", "b.txt")
    await expect(page.get_by_role("dialog")).to_contain_text("There are none")
    await shelf.press("Escape")
    await shelf.visitor.ask_for("Earlier versions", "a.txt")
    dialog = page.get_by_role("dialog", name="Earlier versions of a.txt")
    await expect(dialog.get_by_role("listitem")).to_have_count(2)
    assert await shelf.visitor.violations() == []
    async with page.expect_download() as download:
        await dialog.get_by_role("button", name="Download the version").first.click()
    assert (await (await download.value).path()).read_bytes() == b"second"
    await dialog.get_by_role("button", name="Restore the version").last.click()
    await answer(shelf, "a.txt", "Replace")
    await expect(dialog).to_have_count(0)
    assert (await contents(shelf))["a.txt"] == b"alpha"


async def test_without_a_trash_a_deletion_is_asked_about(make_stack: MakeStack, browser: Browser) -> None:
    async with a_site(make_stack, trash_retention_seconds=0.0) as site, a_shelf(browser, site, TWO) as shelf:
        await expect(shelf.page.get_by_role("link", name="Trash")).to_have_count(0)
        await shelf.visitor.ask_for("Delete", "a.txt")
        await expect(shelf.page.get_by_role("dialog")).to_contain_text("This server keeps no trash.")
        await shelf.visitor.press("Delete")
        await shelf.shows("b.txt")
        await expect(messages(shelf).get_by_role("button")).to_have_count(0)
        await shelf.site.until_there_are("b.txt")
