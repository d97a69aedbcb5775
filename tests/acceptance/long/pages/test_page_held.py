"""Files that a gate holds, on the web page, in a real Chromium: held, then files or refused; never sent twice."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Request, expect

from tests.conftest import MakeStack
from tests.integration.test_held_files import GATE, gates, judge, listed
from tests.support.browser import Held, visiting
from tests.support.content import KIB, MIB, Content
from tests.support.shelf import Shelf, a_shelf
from tests.support.sites import Site, a_file, a_site
from tests.support.visiting import make_link
from tests.support.waiting import eventually

HELD = "Being checked"
LOOKS = "**/me/files?state=held*"


@pytest.fixture
async def site(make_stack: MakeStack, tmp_path: Path) -> AsyncIterator[Site]:
    async with a_site(make_stack, events=gates(tmp_path / "events", GATE)) as made:
        yield made


@pytest.fixture
async def shelf(browser: Browser, site: Site) -> AsyncIterator[Shelf]:
    async with a_shelf(browser, site, {}) as made:
        yield made


@pytest.mark.parametrize("size", [5, 300 * KIB, 2 * MIB, 65 * MIB], ids=["batch", "whole", "chunks", "large"])
async def test_a_file_is_being_checked_until_it_passes_and_is_not_sent_again(
    shelf: Shelf, tmp_path: Path, size: int
) -> None:
    content, visitor, stack = Content(size), shelf.visitor, shelf.site.stack
    path = a_file(tmp_path / "film.mkv", content)
    await visitor.choose(path)
    await expect(visitor.row("film.mkv", "complete")).to_contain_text(HELD)
    await shelf.shows("film.mkv")
    await expect(shelf.row("film.mkv")).to_contain_text(HELD)
    chunks = shelf.site.gate.begun.total()
    await visitor.choose(path)
    await expect(visitor.row("film.mkv", "complete")).to_have_count(2)
    assert (shelf.site.gate.begun.total(), await listed(stack.client, state="held")) == (chunks, ["film.mkv"])
    assert await visitor.violations() == []
    assert len(await judge(stack)) == 1
    await expect(shelf.row("film.mkv")).not_to_contain_text(HELD)
    for number in range(2):
        await expect(visitor.row("film.mkv", "complete").nth(number)).to_contain_text("Uploaded")
    async with shelf.page.expect_download() as download:
        await visitor.press("Download film.mkv")
    assert (await (await download.value).path()).read_bytes() == content.data


async def test_what_is_refused_is_told_and_lies_in_the_trash_for_good(shelf: Shelf) -> None:
    visitor, page = shelf.visitor, shelf.page
    await shelf.choose("bad.exe", b"virus")
    await expect(shelf.row("bad.exe")).to_contain_text(HELD)
    await judge(shelf.site.stack, verdict="refuse", reason="EICAR")
    await expect(page.locator(".toast")).to_contain_text("bad.exe was refused: EICAR")
    await expect(visitor.row("bad.exe", "failed")).to_contain_text("Refused: EICAR")
    await expect(visitor.files()).to_have_count(0)
    await page.locator(".toast").get_by_role("button", name="Show").click()
    row = page.locator("#trash-list .row")
    await expect(row).to_contain_text("refused: EICAR")
    await expect(page.get_by_role("button", name="Restore bad.exe")).to_have_count(0)
    assert await visitor.violations(["light"]) == []
    await visitor.press("More actions for bad.exe")
    await expect(page.get_by_role("menuitem")).to_have_text(["Delete for good"])


async def test_it_can_be_deleted_and_nothing_else(shelf: Shelf, tmp_path: Path) -> None:
    visitor, page, stack = shelf.visitor, shelf.page, shelf.site.stack
    await shelf.choose("free.txt", b"free")
    await shelf.shows("free.txt")
    await judge(stack)
    await expect(shelf.row("free.txt")).not_to_contain_text(HELD)
    a_file(tmp_path / "album" / "one.txt", b"one")
    await visitor.drop(tmp_path / "album")
    await shelf.choose("held.txt", b"held")
    await shelf.shows("album", "free.txt", "held.txt")
    await expect(shelf.row("album")).to_contain_text(f"1 file · {HELD}")
    await expect(shelf.row("held.txt").locator("[data-act]")).to_have_count(1)
    await page.get_by_role("button", name="held.txt", exact=True).click()
    await expect(page.get_by_role("menuitem")).to_have_text(["Select", "Delete"])
    await shelf.press("Escape", "F2")
    await expect(page.get_by_label("New name")).to_have_count(0)
    await shelf.press("Control+a", "Delete")
    await shelf.shows("album")
    await page.get_by_role("button", name="Undo").click()
    await shelf.shows("album", "free.txt", "held.txt")
    await expect(shelf.row("held.txt")).to_contain_text(HELD)
    await page.get_by_role("link", name="album", exact=True).click()
    await shelf.shows("one.txt")
    await expect(shelf.row("one.txt")).to_contain_text(HELD)
    assert len(await judge(stack)) == 2
    await expect(shelf.row("one.txt")).not_to_contain_text(HELD)
    await page.go_back()
    await shelf.shows("album", "free.txt", "held.txt")
    await expect(visitor.files().filter(has_text=HELD)).to_have_count(0)
    # What a person is about to do is not disturbed.
    await shelf.choose("late.txt", b"late")
    await expect(shelf.row("late.txt")).to_contain_text(HELD)
    await visitor.ask_for("Rename", "free.txt")
    await judge(stack)
    await expect(shelf.row("late.txt").get_by_role("button", name="Download late.txt")).to_have_count(1)
    await expect(page.get_by_label("New name")).to_be_focused()


async def test_it_looks_less_and_less_often_and_only_while_somebody_looks(shelf: Shelf) -> None:
    """With a clock that the test turns."""
    page, looks, ended = shelf.page, list[Request](), set[Request]()
    await page.clock.install()
    async with page.expect_response(LOOKS):
        await shelf.visitor.load_anew()
    page.on("request", lambda request: looks.append(request) if "state=held" in request.url else None)
    for ending in ("requestfinished", "requestfailed"):  # a look that the page gives up has no answer
        page.on(ending, lambda request: ended.add(request) if "state=held" in request.url else None)

    async def look_after(ms: int) -> None:
        async with page.expect_response(LOOKS):
            await page.clock.run_for(ms)

    async def all_answered() -> bool:
        return ended >= set(looks)  # it may have had one before, too

    async def turn(state: str) -> None:
        script = (
            "(state) => { Object.defineProperty(document, 'visibilityState', { value: state, configurable: true }); "
        )
        await page.evaluate(script + "document.dispatchEvent(new Event('visibilitychange')); }", state)

    await page.clock.run_for(100_000)
    assert looks == [], "nothing is held"
    begun = await page.evaluate("Date.now()")
    async with page.expect_response("**/files/batch*"):
        await shelf.choose("a.txt", b"a")
        await page.clock.run_for(1000)
    await shelf.shows("a.txt")
    for _second in range(60):
        await page.clock.run_for(1000)
        await eventually(all_answered)
    seconds = (await page.evaluate("Date.now()") - begun) / 1000
    assert 3 <= len(looks) <= seconds / 6
    slow = Held()
    await page.route(LOOKS, slow)
    await page.clock.run_for(40_000)
    await slow.wait_for(1)
    async with page.expect_response("**/files/batch*"):
        await shelf.choose("b.txt", b"b")
        await page.clock.run_for(1000)
    await shelf.shows("a.txt", "b.txt")
    await page.clock.run_for(10_000)
    async with page.expect_response(LOOKS):
        slow.let_pass()
    await look_after(40_000)
    await turn("hidden")
    seen = len(looks)
    await page.clock.run_for(100_000)
    assert len(looks) == seen
    async with page.expect_response(LOOKS):
        await turn("visible")


IN_A_FORM = """async ([token, base]) => {
  await import(`${base}/drop.js`);
  const drop = Object.assign(document.createElement("uploader-drop"), { token });
  drop.setAttribute("name", "film");
  window.form = document.createElement("form");
  form.append(drop);
  document.body.replaceChildren(form);
}"""
ONE_BY_ONE = """async ([token, base]) => {
  const client = new (await import(`${base}/client.js`)).Client({ token });
  window.client = client;
  const made = await client.upload(new File(["one"], "one.txt"));
  const [{ file, how }] = await client.uploadMany([new File(["two"], "two.txt")]);
  return [made, file, await client.file(made.id), { held: how === "sent" }].map(({ held }) => held);
}"""


async def test_an_application_is_told_that_it_is_held(shelf: Shelf, tmp_path: Path) -> None:
    page, stack, given = shelf.page, shelf.site.stack, [await shelf.site.token(), shelf.site.url]
    assert await page.evaluate(ONE_BY_ONE, given) == [True] * 4
    await page.evaluate(IN_A_FORM, given)
    await page.locator("uploader-drop input").set_input_files(a_file(tmp_path / "film.mkv", Content(2 * MIB)))
    await expect(page.locator("uploader-drop li[data-state=complete]")).to_contain_text(HELD)
    (file_id,) = await page.evaluate("new FormData(form).getAll('film')")
    assert await page.evaluate("form.checkValidity()")
    assert file_id in await judge(stack)
    assert "held" not in await page.evaluate("(id) => client.file(id)", file_id)


async def test_a_visitor_has_sent_it(browser: Browser, site: Site, tmp_path: Path) -> None:
    link = await make_link(site.stack)
    async with visiting(browser, site.url) as visitor:
        await visitor.page.goto(f"{site.server.url}{link['url']}")
        await visitor.page.locator("#drop").wait_for()
        await visitor.choose(a_file(tmp_path / "a.txt", b"a"), a_file(tmp_path / "b.bin", Content(2 * MIB)))
        await expect(visitor.page.locator("#thanks-words")).to_contain_text("2 files have arrived")
        for name in ("a.txt", "b.bin"):
            await expect(visitor.row(name, "complete")).not_to_contain_text("being checked")
        assert await visitor.violations(["light"]) == []
