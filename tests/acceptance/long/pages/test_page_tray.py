"""The uploads of the web page as a person sees them, in a real Chromium: a tray that says what needs them, what runs
here and elsewhere, and that asks once what becomes of names that are there already."""

import os
import shutil
from pathlib import Path

import pytest
from playwright.async_api import Browser, BrowserContext, expect

from tests.conftest import MakeStack
from tests.support.browser import Held, Visitor, drag_and_drop, lose_while_listed, visiting
from tests.support.content import KIB, MIB, Content
from tests.support.sites import PREFIX, Site, a_file, a_site

PHONE = {"viewport": {"width": 320, "height": 700}, "has_touch": True, "is_mobile": True}


def of_size(path: Path, size: int, seed: int = 0) -> Path:
    return a_file(path, Content(size, seed=seed))


async def test_a_drop_comes_though_what_is_below_it_is_drawn_anew(visitor: Visitor, tmp_path: Path) -> None:
    """As it is when the files of the page appear while something is dragged in."""
    path = of_size(tmp_path / "photo.jpg", 10 * KIB)
    curtain = visitor.page.locator("#curtain")
    await expect(visitor.page.get_by_text("Drop files or folders here")).to_be_visible()
    await visitor.drag("dragEnter", path)
    await expect(curtain).to_be_visible()
    await expect(visitor.page.locator(".drop-picture")).not_to_be_visible()
    await visitor.page.evaluate(
        "() => { const below = document.elementFromPoint(200, 200); below.replaceWith(below.cloneNode(true)); }"
    )
    await visitor.drag("dragOver", path)
    await visitor.drag("drop", path)
    await expect(visitor.files()).to_contain_text(["photo.jpg"])
    await expect(curtain).to_be_hidden()


async def test_what_needs_the_person_is_on_top_a_folder_one_row(browser: Browser, site: Site, tmp_path: Path) -> None:
    """With the keyboard alone, on a phone's screen, readable for everybody."""
    for number in range(30):
        of_size(tmp_path / "album" / f"{number % 3}" / f"{number}.jpg", 10 * KIB, seed=number)
    large, too_large = of_size(tmp_path / "film.mkv", 2 * MIB), of_size(tmp_path / "disk.img", 4 * MIB)
    chunks, batches = Held(), Held(1)
    token = await site.token("carol", total_space=5 * MIB)
    async with visiting(browser, site.url, token=token, **PHONE) as visitor:
        page = visitor.page
        await page.route("**/chunks/*", chunks)
        await page.route("**/files/batch*", batches)
        await visitor.choose(large)
        await chunks.wait_for(1)
        await visitor.drop(tmp_path / "album")
        await batches.wait_for(2)
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.method))
        await visitor.choose(too_large)
        await expect(visitor.row("disk.img", "failed")).to_contain_text(
            "needs 4 MiB, and 3 MiB of your 5 MiB are free."
        )
        assert set(requests) == {"GET"}
        await expect(visitor.rows.first).to_contain_text("disk.img")
        await expect(visitor.rows).to_have_count(3)
        await expect(visitor.row("album", "uploading")).to_contain_text("0 of 30 files done · 0 B of 300 KiB")
        await expect(visitor.tray).to_contain_text("Uploading 31 files")
        await expect(page).to_have_title("1 failed · 0% · uploader")
        assert await visitor.violations() == []
        assert not await visitor.is_wider_than(320)

        unfold = page.get_by_role("button", name="Show the files of album", exact=True)
        await unfold.focus()
        await page.keyboard.press("Enter")
        await expect(unfold).to_have_attribute("aria-expanded", "true")
        await expect(page.locator("#transfer-list .row.below").first).to_be_visible()
        await expect(unfold).to_be_focused()
        await page.keyboard.press("Escape")
        await expect(visitor.tray).to_be_focused()
        await expect(visitor.tray).to_have_attribute("aria-expanded", "false")
        await expect(page.locator("#transfer-list")).to_be_hidden()
        assert await visitor.violations(["light"]) == []
        await page.keyboard.press("Enter")
        await expect(page.locator("#transfer-list")).to_be_visible()

        pause = page.get_by_role("button", name="Pause film.mkv")
        await pause.focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("button", name="Resume film.mkv")).to_be_focused()
        await page.keyboard.press("Enter")
        chunks.let_pass()
        batches.let_pass()
        await expect(visitor.total).to_contain_text("31 of 32 files done · 1 failed")
        await expect(page).to_have_title("1 failed · uploader")
        await site.give_space("carol", 8 * MIB)
        await visitor.press("Try disk.img again")
        await expect(visitor.tray).to_contain_text("32 files uploaded")
        assert len(await site.sizes("carol")) == 32
        close = page.get_by_role("button", name="Close the list of uploads")
        await close.focus()
        await page.keyboard.press("Enter")
        await expect(page.locator("#transfers")).to_be_hidden()
        await expect(page.locator("#main")).to_be_focused()


async def test_files_that_wait_take_the_room_of_later_ones(browser: Browser, site: Site, tmp_path: Path) -> None:
    files = [of_size(tmp_path / name, 2 * MIB, seed=seed) for seed, name in enumerate(("a", "b", "c"))]
    chunks = Held()
    async with visiting(browser, site.url, token=await site.token("dora", total_space=5 * MIB)) as visitor:
        page = visitor.page
        await page.route("**/uploads/*/chunks/*", chunks)
        await visitor.choose(*files)
        refused = page.locator("#transfer-list .row[data-phase=failed]")
        words = "Not enough space: this file needs 2 MiB, and 5 MiB of your 5 MiB are free, of which 4 MiB are"
        await expect(refused).to_contain_text(words)
        name = await refused.locator(".name").get_attribute("title")
        await expect(page.get_by_role("status")).to_have_text(f"{name} failed.")
        await page.get_by_label("Language").select_option("zh")
        await expect(refused).to_contain_text("空间不足")
        await page.get_by_label("语言").select_option("en")
        chunks.let_pass()
        await expect(visitor.total).to_contain_text("2 of 3 files done · 1 failed")
        assert len(await site.sizes("dora")) == 2
        await site.give_space("dora", 6 * MIB)
        await visitor.press(f"Try {name} again")
        await visitor.all_done(3)


async def test_a_file_that_the_disk_can_never_hold_is_not_gone_on_with(
    make_stack: MakeStack, browser: Browser, tmp_path: Path
) -> None:
    floor_bytes = shutil.disk_usage(tmp_path).total - 16 * MIB
    os.truncate(a_file(tmp_path / "film.mp4", b""), 17 * MIB)
    async with (
        a_site(make_stack, free_space_floor_bytes=floor_bytes) as site,
        visiting(browser, site.url, token=await site.token()) as visitor,
    ):
        await visitor.choose(tmp_path / "film.mp4")
        row = visitor.row("film.mp4", "failed")
        await expect(row).to_contain_text("disk is too small: this file needs 17 MiB, and at most 16 MiB fit")


async def test_names_that_are_there_are_asked_about_once(site: Site, visitor: Visitor, tmp_path: Path) -> None:
    """Small files, one of a request of its own and one of several chunks; of another size and of the same; more later."""
    sizes = {
        "small.txt": 100,
        "same.txt": 100,
        "whole.bin": 300 * KIB,
        "large.bin": 2 * MIB,
        "touched.txt": 50,
        "old.txt": 60,
    }
    files = {name: of_size(tmp_path / name, size) for name, size in sizes.items()}
    page = visitor.page
    await visitor.choose(*files.values())
    await expect(visitor.tray).to_contain_text("6 files uploaded")
    await visitor.load_anew()
    for name, size in {"small.txt": 110, "same.txt": 100, "whole.bin": 310 * KIB, "large.bin": 2 * MIB}.items():
        of_size(files[name], size, seed=1)
    os.utime(files["touched.txt"], (1_600_000_000, 1_600_000_000))
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.method) if request.post_data_buffer else None)
    await visitor.choose(*files.values())
    question = page.get_by_role("dialog")
    await expect(question).to_contain_text("is there already")
    await expect(page.get_by_label("The same for all 4 files")).to_be_checked()
    await expect(visitor.row("touched.txt", "complete")).to_contain_text("Already there")
    assert "PUT" not in sent
    assert await visitor.violations() == []
    await page.keyboard.press("Escape")
    await expect(question).to_have_count(0)
    await expect(visitor.rows.first).to_have_attribute("data-phase", "asked")
    await expect(visitor.tray).to_contain_text("4 files need your answer")
    await page.get_by_role("button", name="Answer", exact=True).focus()
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Replace", exact=True).focus()
    await page.keyboard.press("Enter")
    await expect(visitor.total).to_contain_text("6 of 6 files done · 2 there already")
    replaced = {**sizes, "small.txt": 110, "whole.bin": 310 * KIB}
    assert await site.sizes("alice") == sorted(replaced.items())

    of_size(files["small.txt"], 120, seed=2)
    of_size(files["old.txt"], 70, seed=2)
    await visitor.choose(files["small.txt"], files["old.txt"])
    await page.get_by_label("The same for all 2 files").uncheck()
    await visitor.press("Keep both")
    await expect(question).to_contain_text("old.txt")
    await visitor.press("Skip")
    await expect(visitor.total).to_contain_text("7 of 7 files done · 2 there already · 1 skipped")
    assert await site.sizes("alice") == sorted([*replaced.items(), ("small (2).txt", 120)])


async def test_a_folder_among_many_loose_files_is_looked_through(site: Site, visitor: Visitor, tmp_path: Path) -> None:
    """Not every one of so many is asked whether it is a folder."""
    loose = [a_file(tmp_path / f"{number}.txt", b"loose") for number in range(501)]
    for number in range(2):
        a_file(tmp_path / "more" / f"{number}.txt", b"more")
    await visitor.drop(*loose, tmp_path / "more")
    await expect(visitor.tray).to_contain_text("503 files uploaded")
    assert {("500.txt", 5), ("more/1.txt", 4)} <= set(await site.sizes("alice"))


@pytest.fixture
def dropped(tmp_path: Path) -> list[Path]:
    """Folders with five files, of which `one/lost.txt`, `two` and `three/deep` are gone when they are to be read."""
    for name in ("one/lost.txt", "one/z.txt", "two/x.txt", "three/deep/x.txt", "three/y.txt"):
        a_file(tmp_path / name, name.encode())
    return [tmp_path / name for name in ("one", "two", "three")]


def lost_of(dropped: list[Path]) -> list[Path]:
    one, two, three = dropped
    return [one / "lost.txt", two, three / "deep"]


READ = [("one/z.txt", 9), ("three/y.txt", 11)]
UNREAD = {
    "one/lost.txt": "The file can't be read.",
    "two": "The folder can't be read, so not all of its files were uploaded.",
    "three/deep": "The folder can't be read, so not all of its files were uploaded.",
}


async def test_each_entry_that_cannot_be_read_is_named_and_the_rest_is_sent(
    site: Site, visitor: Visitor, dropped: list[Path], tmp_path: Path
) -> None:
    await lose_while_listed(visitor.page, *lost_of(dropped))
    await visitor.drop(*dropped)
    await expect(visitor.total).to_contain_text("2 of 5 files done · 3 failed")
    for name, words in UNREAD.items():
        await expect(visitor.row(name, "failed")).to_contain_text(words)
    assert await site.sizes("alice") == READ
    assert await visitor.violations(["light"]) == []
    await expect(visitor.page.get_by_role("button", name="Retry failed")).to_be_hidden()
    await visitor.choose_again("one/lost.txt", a_file(tmp_path / "found.txt", b"found"))
    await visitor.press("Take two off the list")
    await visitor.press("Take three/deep off the list")
    await visitor.all_done(3)
    assert await site.sizes("alice") == [("one/lost.txt", 5), *READ]


async def test_unreadable_entries_are_named_on_a_collecting_page(
    site: Site, browser: Browser, dropped: list[Path]
) -> None:
    link = await site.stack.client.post("/me/links", json={"kind": "upload", "name": "inbox/"})
    async with visiting(browser, site.url) as visitor:
        await visitor.go(link.json()["url"].removeprefix(PREFIX))
        await visitor.page.locator("#drop").wait_for()
        await lose_while_listed(visitor.page, *lost_of(dropped))
        await visitor.drop(*dropped)
        await expect(visitor.total).to_contain_text("2 of 5 files done · 3 failed")
        for name, words in UNREAD.items():
            await expect(visitor.row(name, "failed")).to_contain_text(words)
        await expect(visitor.page.get_by_text("Sent. Thank you!")).to_be_hidden()
    assert await site.sizes("alice") == [(f"inbox/{name}", size) for name, size in READ]


@pytest.mark.parametrize("language", ["en", "zh"])
async def test_the_drop_element_names_each_entry_that_cannot_be_read(
    site: Site, context: BrowserContext, dropped: list[Path], language: str
) -> None:
    page = await context.new_page()
    rows = page.locator("uploader-drop li")
    html = f'<!doctype html><html lang="{language}"><script type="module" src="{site.url}/drop.js"></script>'
    html += f'<uploader-drop multiple token="{await site.token("alice")}"></uploader-drop>'
    await page.route(f"{site.url}/form", lambda route: route.fulfill(content_type="text/html", body=html))
    await page.goto(f"{site.url}/form")
    await page.evaluate(
        "addEventListener('problem', ({ detail }) => (window.told = [...(window.told ?? []), detail.detail]))"
    )
    await lose_while_listed(page, *lost_of(dropped))
    await drag_and_drop(page, page.locator("uploader-drop"), *dropped)
    await expect(rows.and_(page.locator("[data-state=complete]"))).to_have_count(2)
    failed = rows.and_(page.locator("[data-state=failed]"))
    for name, words in UNREAD.items():
        row = failed.filter(has_text=name)
        await expect(row).to_contain_text(words if language == "en" else "无法读取此文件")
        await expect(row.get_by_role("button")).to_have_count(1)
    await expect(failed).to_have_count(3)
    assert sorted(await page.evaluate("told")) == sorted(UNREAD.values())
    assert await site.sizes("alice") == READ


async def test_what_runs_on_another_device_is_shown_running(browser: Browser, site: Site, tmp_path: Path) -> None:
    path, token = of_size(tmp_path / "film.mkv", 8 * MIB), await site.token()
    chunks = Held(1)
    async with visiting(browser, site.url, token=token) as other:
        await other.page.route("**/chunks/*", chunks)
        await other.choose(path)
        await expect(other.row("film.mkv", "uploading")).to_contain_text("1 MiB of 8 MiB")
        async with visiting(browser, site.url, token=token) as visitor:
            await expect(visitor.row("film.mkv", "unfinished")).to_contain_text(
                "1 MiB of 8 MiB · interrupted, kept until"
            )
            await expect(other.total).to_contain_text("Waiting for the server…")
            chunks.let_pass(2)
            running = visitor.row("film.mkv", "elsewhere")
            await expect(running).to_contain_text("3 MiB of 8 MiB · running in another tab or on another device")
            await expect(running.get_by_role("button")).to_have_count(1)
            await expect(visitor.tray).to_contain_text("Uploading elsewhere")
            assert await visitor.violations(["dark"]) == []
            chunks.let_pass()
            await expect(visitor.row("film.mkv", "complete")).to_be_visible()
            await expect(visitor.files()).to_contain_text("film.mkv")


async def test_what_is_a_leftover_and_what_shares_a_row(visitor: Visitor) -> None:
    """What does not move for as long as its chunks took, unless it is checked; what was brought in one folder."""
    told = await visitor.page.evaluate(
        """async () => {
            const { Elsewhere } = await import(new URL("static/pages/client/elsewhere.js", location).href);
            const watched = new Elsewhere();
            const look = (now, id, bytes, state = "uploading") => {
                watched.look([{ id, received_bytes: bytes, expires_at: `${bytes}`, state }], now);
                return watched.isRunning(id, now);
            };
            return [
                look(0, "fast", 1), look(2, "fast", 2), look(21, "fast", 2), look(23, "fast", 2),
                look(100, "slow", 1), look(130, "slow", 2), look(215, "slow", 2), look(221, "slow", 2),
                look(300, "merging", 8, "merging"), look(400, "merging", 8, "merging"), watched.isBusy(400),
            ];
        }"""
    )
    listed = await visitor.page.evaluate(
        """async () => {
            const { Transfer } = await import(new URL("static/pages/client/transfer.js", location).href);
            const { arranged } = await import(new URL("static/pages/home/tray/arranging.js", location).href);
            const phases = {
                "a/old": "complete", "a/new": "waiting", "a/b/1": "uploading", "a/b/2": "waiting", "a/bad": "failed" };
            const transfers = Object.entries(phases).map(([name, phase]) =>
                Object.assign(new Transfer({ file: new File([], ""), name, size: 1, into: "a/" }), { phase, made: {} }));
            return arranged(transfers, new Set()).map(({ folder, transfer }) => folder?.name ?? transfer.name);
        }"""
    )
    assert listed == ["a/bad", "a/b", "a/new", "a/old"]
    assert told == [False, True, True, False, False, True, True, False, True, True, True]
