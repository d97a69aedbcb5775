"""The files of a person on the web page, in a real Chromium: folders, a selection, previews, sharing, what is taken back."""

import zipfile
from collections.abc import AsyncIterator
from contextlib import suppress
from hashlib import sha256

import pytest
from playwright.async_api import Browser, Error, Route, expect
from sqlalchemy import select

from tests.conftest import MakeStack
from tests.support.layout import blob_path
from tests.support.rot import flip_bit
from tests.support.shelf import Shelf, a_shelf
from tests.support.sites import Site, a_site
from uploader.database import levels, models
from uploader.service.ids import new_id

FILES = {
    "a.txt": b"alpha",
    "b10.txt": b"b" * 10,
    "b9.txt": b"b" * 9,
    "photos/2025/old.txt": b"old",
    "photos/2026/new.txt": b"new",
    "photos/cover.txt": b"cover",
}
PAGES = b"1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[]/Count 0>>endobj\n"
PDF = b"%PDF-1.4\n" + PAGES + b"trailer<</Root 1 0 R>>\n"
ATTACK = b"<script>localStorage.setItem('hacked', '1')</script>"
# The smallest there is: one pixel.
GIF = (
    b"GIF89a\x01\x00\x01\x00\x80\x00\x00\xff\x00\x00\xff\xff\xff,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;"
)


@pytest.fixture
async def shelf(browser: Browser, site: Site) -> AsyncIterator[Shelf]:
    async with a_shelf(browser, site, FILES) as made:
        yield made


async def test_folders_are_walked_through_and_the_address_knows_where(shelf: Shelf) -> None:
    page, path = shelf.page, shelf.page.get_by_role("navigation", name="Where you are")
    await shelf.shows("photos", "a.txt", "b9.txt", "b10.txt")
    await expect(shelf.row("photos")).to_contain_text("3 files")
    await page.get_by_role("link", name="photos").click()
    await shelf.shows("2025", "2026", "cover.txt")
    await page.get_by_role("link", name="2026").click()
    await shelf.shows("new.txt")
    assert page.url.endswith("/#/photos/2026/")
    await shelf.choose("more.txt", b"more")
    await shelf.shows("more.txt", "new.txt")
    assert "photos/2026/more.txt" in await shelf.names()
    await page.go_back()
    await shelf.shows("2025", "2026", "cover.txt")
    await expect(shelf.row("2026")).to_contain_text("2 files")
    await path.get_by_role("link", name="All files").click()
    await page.get_by_role("button", name="Size", exact=True).click()
    await shelf.shows("photos", "b10.txt", "b9.txt", "a.txt")
    await shelf.visitor.go("/#/photos/2025/")
    await page.reload()
    await shelf.shows("old.txt")
    await expect(page.get_by_role("columnheader", name="Size")).to_have_attribute("aria-sort", "descending")
    await shelf.press("Tab")
    await page.locator("#file-list").focus()
    await shelf.press("Backspace", "Backspace")
    await shelf.shows("photos", "b10.txt", "b9.txt", "a.txt")


async def test_a_new_folder_is_there_with_what_comes_into_it(shelf: Shelf) -> None:
    page = shelf.page
    await shelf.visitor.go("/#/photos/")
    await page.get_by_role("button", name="Upload", exact=True).click()
    await page.get_by_role("menuitem", name="New folder…").click()
    assert await shelf.visitor.violations(["light"]) == []
    await page.keyboard.type(" 2027/ May/")
    await shelf.press("Enter")
    await expect(page.get_by_role("navigation", name="Where you are")).to_contain_text("May")
    assert page.url.endswith("/#/photos/2027/May/")
    await shelf.choose("x.txt", b"x")
    await shelf.shows("x.txt")
    async with page.expect_download() as download:
        await shelf.visitor.press("Download x.txt")
    assert (await (await download.value).path()).read_bytes() == b"x"
    await shelf.visitor.ask_for("Rename", "x.txt")
    await page.get_by_label("New name").fill("deep/y.txt")
    await shelf.press("Enter")
    await page.get_by_role("link", name="deep", exact=True).click()
    await shelf.shows("y.txt")
    await page.go_back()
    await page.go_back()
    await shelf.shows("2025", "2026", "2027", "cover.txt")
    await shelf.site.until_there_are(*FILES, "photos/2027/May/deep/y.txt")
    flip_bit(blob_path(shelf.site.stack.data, sha256(b"x").hexdigest()), 0)
    assert [damage async for damage in shelf.site.stack.services.scrubbing.scrub(lambda _read: None)]
    await shelf.visitor.go("/#/photos/2027/May/deep/")
    await page.reload()
    await expect(shelf.visitor.files()).to_contain_text("damaged on the server: upload it again")


async def test_what_is_searched_is_found_with_its_folder(browser: Browser, site: Site) -> None:
    async with a_shelf(browser, site, {**FILES, "文件/résumé.pdf": PDF}) as shelf:
        page = shelf.page
        await page.get_by_role("link", name="photos").click()
        await shelf.press("/")
        await page.keyboard.type("ne")
        await shelf.shows("new.txt")
        await expect(shelf.row("new.txt")).to_contain_text("photos/2026")
        await page.get_by_label("Search all files").fill("re\u0301s")
        await shelf.shows("résumé.pdf")
        await page.get_by_label("Search all files").fill("nothing")
        await expect(page.get_by_text("No file has a name that contains this.")).to_be_visible()
        assert await shelf.visitor.violations(["light"]) == []
        await page.get_by_label("Search all files").fill("new")
        await shelf.row("new.txt").get_by_role("link", name="photos/2026").click()
        await shelf.shows("new.txt")
        assert page.url.endswith("/#/photos/2026/")
        await page.go_back()
        await expect(page.get_by_label("Search all files")).to_have_value("new")
        await page.go_back()
        await shelf.shows("2025", "2026", "cover.txt")


async def test_more_files_than_are_counted_and_than_are_allowed_are_told(
    make_stack: MakeStack, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levels, "COUNTED_FILES", 2)
    async with a_site(make_stack, max_files=len(FILES)) as site, a_shelf(browser, site, FILES) as shelf:
        await expect(shelf.row("photos")).to_contain_text("at least 2 files")
        await shelf.choose("more.txt", b"more")
        refused = shelf.visitor.row("more.txt", "failed")
        await expect(refused).to_contain_text("You have 6 files and unfinished uploads already, which is the limit.")


async def _many_files(shelf: Shelf, count: int) -> None:
    """One content under many names."""
    columns = models.file.c
    async with shelf.site.stack.services.database.engine.begin() as connection:
        [row] = (await connection.execute(select(models.file).where(columns.name == "a.txt"))).mappings()
        rows = [{**row, columns.id.name: new_id(), "name": f"many/{number}.dat"} for number in range(count)]
        await connection.execute(models.file.insert(), rows)


async def test_five_hundred_of_ten_thousand_files_are_saved_as_one_zip(shelf: Shelf) -> None:
    """Without a token or all their ids in an address, and with a few rows only."""
    page, bar = shelf.page, shelf.page.get_by_role("group", name="Actions for what is selected")
    await _many_files(shelf, 10_000)
    await page.reload()
    await page.get_by_role("link", name="many").click()
    await expect(page.locator("#files-note")).to_contain_text("10,000 files", timeout=300_000)
    await page.get_by_label("Select 0.dat").click()
    await page.locator("#file-list").evaluate("(list) => { list.scrollTop = 499 * 52; }")
    await page.get_by_label("Select 499.dat").click(modifiers=["Shift"])
    await expect(bar).to_contain_text("500 selected")
    assert await shelf.visitor.files().count() < 40
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    async with page.expect_download() as download:
        await bar.get_by_role("button", name="Download").click()
    saved = await download.value
    assert saved.suggested_filename == "many.zip"
    with zipfile.ZipFile(await saved.path()) as archive:
        assert sorted(archive.namelist()) == sorted(f"{number}.dat" for number in range(500))
        assert archive.read("499.dat") == FILES["a.txt"]
    assert all(len(url) < 500 for url in asked)
    await page.locator("#file-list").focus()
    await shelf.press("Control+a")
    await expect(bar).to_contain_text("10,000 selected")
    async with page.expect_download() as download:
        await bar.get_by_role("button", name="Download").click()
    with zipfile.ZipFile(await (await download.value).path()) as archive:
        assert len(archive.namelist()) == 10_000
    await bar.get_by_role("button", name="Clear selection").click()
    await page.go_back()
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Download photos").click()
    with zipfile.ZipFile(await (await download.value).path()) as archive:
        assert sorted(archive.namelist()) == ["photos/2025/old.txt", "photos/2026/new.txt", "photos/cover.txt"]


async def test_the_keyboard_is_enough(shelf: Shelf) -> None:
    page, grid = shelf.page, shelf.page.get_by_role("grid")
    await shelf.shows("photos", "a.txt", "b9.txt", "b10.txt")
    await grid.focus()
    await shelf.press("ArrowDown", "Control+ArrowDown", "Control+ArrowDown", "Space")
    selected = page.locator("#file-list .row[aria-selected=true]")
    await expect(selected).to_have_count(2)
    active = await grid.get_attribute("aria-activedescendant")
    await expect(page.locator(f"#{active}")).to_contain_text("b10.txt")
    await shelf.press("Home", "Shift+End")
    await expect(selected).to_have_count(4)
    assert await shelf.visitor.violations() == []
    await shelf.press("Escape", "a", "Enter")
    dialog = page.get_by_role("dialog")
    await expect(dialog.locator("pre")).to_have_text("alpha")
    assert await shelf.visitor.violations(["dark"]) == []
    await shelf.press("ArrowRight", "ArrowRight")
    await expect(dialog.locator("pre")).to_have_text("b" * 10)
    await expect(dialog.get_by_role("heading")).to_have_text("b10.txt")
    await shelf.press("ArrowLeft", "Escape")
    await expect(grid).to_be_focused()
    await shelf.press("F2")
    await expect(page.get_by_label("New name")).to_be_focused()
    await page.keyboard.type("alpha")
    await shelf.press("Enter")
    await shelf.shows("photos", "alpha.txt", "b9.txt", "b10.txt")
    await shelf.press("End", "Shift+F10")
    await expect(page.get_by_role("menuitem", name="Preview")).to_be_focused()
    assert await shelf.visitor.violations(["light"]) == []
    await shelf.press("Escape", "Delete")
    await shelf.shows("photos", "alpha.txt", "b9.txt")
    await shelf.press("Control+z")
    await shelf.shows("photos", "alpha.txt", "b9.txt", "b10.txt")
    await shelf.press("Home", "Enter")
    await shelf.shows("2025", "2026", "cover.txt")


async def test_a_deletion_is_taken_back_and_outlives_the_page(shelf: Shelf) -> None:
    page, visitor = shelf.page, shelf.visitor
    await visitor.ask_for("Delete", "photos")
    await expect(page.get_by_role("region", name="Messages")).to_contain_text("photos is deleted, with 3 files.")
    await shelf.shows("a.txt", "b9.txt", "b10.txt")
    await shelf.site.until_there_are("a.txt", "b9.txt", "b10.txt")
    assert await visitor.violations(["light"]) == []
    await page.locator(".toast").filter(has_text="photos").get_by_role("button", name="Undo").click()
    await shelf.shows("photos", "a.txt", "b9.txt", "b10.txt")
    assert await shelf.names() == set(FILES)
    await visitor.ask_for("Delete", "a.txt")
    await page.goto("about:blank")
    await shelf.site.until_there_are(*(FILES.keys() - {"a.txt"}))
    await visitor.go()

    async def refuse(route: Route) -> None:
        await route.fulfill(status=403, body="<h1>Forbidden</h1>", content_type="text/html")

    await page.route("**/me/files/delete", refuse, times=1)
    await visitor.ask_for("Delete", "b10.txt")
    await expect(page.get_by_role("alert").first).to_contain_text("does not answer as an upload server")
    await shelf.shows("photos", "b9.txt", "b10.txt")


async def test_files_move_by_a_dialog_and_by_dragging(shelf: Shelf) -> None:
    page, visitor = shelf.page, shelf.visitor
    await visitor.ask_for("Move to…", "a.txt")
    dialog = page.get_by_role("dialog", name="Move a.txt")
    await dialog.get_by_role("button", name="photos").click()
    await dialog.get_by_role("button", name="2026").click()
    await expect(dialog.get_by_label("Into folder")).to_have_value("photos/2026")
    assert await visitor.violations() == []
    await dialog.get_by_label("Into folder").fill("photos/2027/new ")
    await visitor.press("Move here")
    await shelf.shows("photos", "b9.txt", "b10.txt")
    await visitor.press("Show")
    await shelf.shows("a.txt")
    assert "photos/2027/new/a.txt" in await shelf.names()
    await visitor.ask_for("Move to…", "a.txt")
    await dialog.get_by_label("Into folder").fill("")
    await visitor.press("Move here")
    await expect(page.get_by_text("Nothing in this folder")).to_be_visible()
    await visitor.go("/#/")
    await shelf.row("b9.txt").locator(".cell-size").click()
    await shelf.row("b10.txt").locator(".cell-size").click(modifiers=["Shift"])
    await shelf.row("b10.txt").drag_to(shelf.row("photos"))
    await shelf.shows("photos", "a.txt")
    assert {"photos/b9.txt", "photos/b10.txt"} <= await shelf.names()
    await page.get_by_role("link", name="photos").click()
    await shelf.row("b9.txt").drag_to(page.get_by_role("link", name="All files"))
    await shelf.shows("2025", "2026", "2027", "b10.txt", "cover.txt")
    await visitor.ask_for("Move to…", "2025")
    await page.get_by_label("Into folder").fill("photos/2025/deeper")
    await visitor.press("Move here")
    await expect(page.get_by_role("alert").last).to_have_text("A folder can't go into itself.")


async def test_a_file_is_dragged_out_by_a_link_and_shared_by_one_as_long_as_one_chooses(shelf: Shelf) -> None:
    page = shelf.page
    await page.evaluate(
        """() => document.addEventListener("dragstart", (event) => {
            window.dragged = event.dataTransfer.getData("DownloadURL");
        })"""
    )
    await shelf.row("a.txt").locator(".cell-size").hover()
    async with page.expect_response("**/link"):
        await page.mouse.down()
    await page.mouse.move(500, 500, steps=5)
    await page.mouse.up()
    media_type, name, url = (await page.evaluate("window.dragged")).split(":", 2)
    assert (media_type, name) == ("application/octet-stream", "a.txt")
    assert (await shelf.site.stack.anonymous().get(url)).content == b"alpha"


async def test_what_is_previewed_runs_nothing(browser: Browser, site: Site) -> None:
    """A picture and a PDF are shown; pages and SVG are text; what calls itself what it is not stays broken."""
    onload = b"onload=\"localStorage.setItem('hacked', '1')\""
    svg = b'<svg xmlns="http://www.w3.org/2000/svg" ' + onload + b">" + ATTACK + b"</svg>"
    files = {
        "1.gif": GIF,
        "2.pdf": PDF,
        "3.html": b"<h1>Hello</h1>" + ATTACK,
        "4.svg": svg,
        "5.png": ATTACK,
        "6.pdf": b"%PDF-1.4\n" + ATTACK + PDF,
        "7.mp4": ATTACK,
        "8.xyz": b"?",
        "9.txt": "é".encode() * 200_000,
    }
    async with a_shelf(browser, site, files) as shelf:
        page, stage = shelf.page, shelf.page.locator(".stage")
        await page.get_by_role("button", name="1.gif", exact=True).click()
        await expect(stage.get_by_role("img", name="1.gif")).to_have_js_property("naturalWidth", 1)
        assert await shelf.visitor.violations() == []
        await shelf.press("ArrowRight")
        await expect(stage.locator("iframe")).to_have_attribute("title", "2.pdf")
        await shelf.visitor.press("Next file")
        await expect(stage.locator("pre")).to_have_text("<h1>Hello</h1>" + ATTACK.decode())
        await shelf.press("ArrowRight")
        await expect(stage.locator("pre")).to_contain_text("<svg xmlns=")
        await shelf.press("ArrowRight")
        await expect(stage).to_contain_text("Your browser can't show this file.")
        await shelf.press("ArrowRight")
        await expect(stage.locator("iframe")).to_have_attribute("title", "6.pdf")
        await shelf.visitor.press("Next file")
        await expect(stage).to_contain_text("Your browser can't show this file.")
        await shelf.press("ArrowRight")
        await expect(stage).to_contain_text("There is no preview of this kind of file.")
        await shelf.press("ArrowRight")
        await expect(stage).to_contain_text("Only the first 256 KiB are shown.")
        await expect(page.locator(".step.after")).to_be_disabled()
        await shelf.press("Escape")
        for file in (await shelf.site.stack.client.get("/me/files")).json()["files"]:
            link = (await shelf.site.stack.client.post(f"/me/files/{file['id']}/link")).json()["url"]
            for url in (link, f"{link}&show=inline"):
                opened = await shelf.visitor.context.new_page()
                with suppress(Error):  # a download is no page
                    await opened.goto(f"{shelf.site.server.url}{url}")
                await opened.close()
        assert await page.evaluate("localStorage.getItem('hacked')") is None


async def test_a_phone_has_one_menu_a_row_and_selects_by_a_long_press(browser: Browser, site: Site) -> None:
    options = {"viewport": {"width": 390, "height": 800}, "has_touch": True, "is_mobile": True}
    async with a_shelf(browser, site, FILES, **options) as shelf:
        page, visitor = shelf.page, shelf.visitor
        await shelf.shows("photos", "a.txt", "b9.txt", "b10.txt")
        await expect(shelf.row("a.txt").get_by_role("button")).to_have_count(2)  # its name, and its menu
        assert not await visitor.is_wider_than(390)
        assert await visitor.violations() == []
        box = await shelf.row("a.txt").bounding_box()
        assert box is not None
        session = await visitor.context.new_cdp_session(page)
        at = [{"x": box["x"] + 200, "y": box["y"] + 30}]
        await session.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": at})
        bar = page.get_by_role("group", name="Actions for what is selected")
        await expect(bar).to_contain_text("1 selected")
        await session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        await shelf.row("b9.txt").tap()
        await expect(bar).to_contain_text("2 selected")
        assert await visitor.violations() == []
        await bar.get_by_role("button", name="Clear selection").tap()
        await shelf.row("a.txt").tap()
        await expect(page.get_by_role("dialog").locator("pre")).to_have_text("alpha")
        await page.get_by_role("button", name="Close preview").tap()
        for name in ("photos", "a.txt", "b9.txt", "b10.txt"):
            await page.get_by_label(f"Select {name}").tap()
        await bar.get_by_role("button", name="Delete").tap()
        await expect(page.get_by_text("Nothing here yet")).to_be_visible()
        assert "rop" not in await page.locator("#drop").inner_text()
        await page.get_by_label("Language").select_option("zh")
        await expect(page.get_by_text("这里还没有文件")).to_be_visible()
        await page.get_by_role("button", name="Undo").tap()
        await shelf.shows("photos", "a.txt", "b9.txt", "b10.txt")
        await expect(shelf.row("photos")).to_contain_text("3 个文件")
