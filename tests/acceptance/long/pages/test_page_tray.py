"""The uploads of the web page as a person sees them, in a real Chromium: a tray that says what needs them, what runs
here and elsewhere, and that asks once what becomes of names that are there already."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, Locator, Route, expect

from tests.conftest import MakeStack
from tests.support.browser import Visitor, visiting
from tests.support.content import KIB, MIB, Content
from tests.support.sockets import Server, serving_stack
from tests.support.waiting import eventually

PATIENCE_SECONDS = 60.0
PHONE = {"viewport": {"width": 390, "height": 780}, "has_touch": True, "is_mobile": True}


class Held:
    """Requests of a page that do not get further than it was allowed."""

    def __init__(self, allowed: int = 0) -> None:
        self._allowed = asyncio.Semaphore(allowed)
        self.urls: list[str] = []

    async def __call__(self, route: Route) -> None:
        self.urls.append(route.request.url)
        await self._allowed.acquire()
        await route.continue_()

    def let_pass(self, count: int = 1_000_000) -> None:
        for _ in range(count):
            self._allowed.release()

    async def wait_for(self, count: int) -> None:
        async def so_many() -> bool:
            return len(self.urls) >= count

        await eventually(so_many, PATIENCE_SECONDS)


@asynccontextmanager
async def a_server(make_stack: MakeStack) -> AsyncIterator[Server]:
    async with serving_stack(make_stack, jobs=True, durability="process", chunk_size_bytes=MIB) as server:
        yield server


async def token_of(server: Server, user_id: str, total_space: int | None = None) -> str:
    return await server.stack.services.accounts.create_token(user_id, admin=False, total_space=total_space)


async def contents_of(server: Server, user_id: str) -> list[tuple[str, int]]:
    """Names and sizes of the files of a user."""
    files = (await (await server.stack.client_of(user_id)).get("/me/files?limit=1000")).json()["files"]
    return sorted((file["name"], file["size"]) for file in files)


def a_file(path: Path, size: int, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(Content(size, seed=seed).data)
    return path


def rows(visitor: Visitor) -> Locator:
    return visitor.page.locator("#transfer-list .row")


def head(visitor: Visitor) -> Locator:
    return visitor.page.locator("#tray-fold")


async def test_a_drop_comes_though_what_is_below_it_is_drawn_anew(
    browser: Browser, make_stack: MakeStack, tmp_path: Path
) -> None:
    """As it is when the files of the page appear while something is dragged in."""
    path = a_file(tmp_path / "photo.jpg", 10 * KIB)
    async with (
        a_server(make_stack) as server,
        visiting(browser, server.url, token=await token_of(server, "alice")) as visitor,
    ):
        curtain = visitor.page.locator("#curtain")
        await visitor.drag("dragEnter", path)
        await expect(curtain).to_be_visible()
        await visitor.page.evaluate(
            "() => { const below = document.elementFromPoint(200, 200); below.replaceWith(below.cloneNode(true)); }"
        )
        await visitor.drag("dragOver", path)
        await visitor.drag("drop", path)
        await expect(visitor.files()).to_contain_text(["photo.jpg"])
        await expect(curtain).to_be_hidden(timeout=3000)


async def test_what_needs_the_person_is_on_top_and_a_folder_is_one_row(
    browser: Browser, make_stack: MakeStack, tmp_path: Path
) -> None:
    """With the keyboard alone, on a phone's screen, readable for everybody."""
    for number in range(30):
        a_file(tmp_path / "album" / f"{number % 3}" / f"{number}.jpg", 10 * KIB, seed=number)
    large, too_large = a_file(tmp_path / "film.mkv", 2 * MIB), a_file(tmp_path / "disk.img", 4 * MIB)
    chunks, batches = Held(), Held(1)
    async with a_server(make_stack) as server:
        token = await token_of(server, "carol", 5 * MIB)
        async with visiting(browser, server.url, token=token, **PHONE) as visitor:
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
            await expect(rows(visitor).first).to_contain_text("disk.img")
            await expect(rows(visitor)).to_have_count(3)
            await expect(visitor.row("album", "uploading")).to_contain_text("0 of 30 files done · 0 B of 300 KiB")
            await expect(head(visitor)).to_contain_text("Uploading 31 files")
            await expect(page).to_have_title("1 failed · 0% · uploader")
            assert await visitor.violations() == []
            assert not await page.evaluate("document.documentElement.scrollWidth > window.innerWidth")

            unfold = page.get_by_role("button", name="Show the files of album", exact=True)
            await unfold.focus()
            await page.keyboard.press("Enter")
            await expect(unfold).to_have_attribute("aria-expanded", "true")
            await expect(page.locator("#transfer-list .row.below").first).to_be_visible()
            await expect(unfold).to_be_focused()
            await page.keyboard.press("Escape")
            await expect(head(visitor)).to_be_focused()
            await expect(head(visitor)).to_have_attribute("aria-expanded", "false")
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
            await expect(page.locator("#total-words")).to_contain_text("31 of 32 files done · 1 failed")
            await expect(page).to_have_title("1 failed · uploader")
            root = await server.stack.client_of("root", admin=True)
            await root.put("/admin/users/carol", json={"total_space": 8 * MIB})
            await visitor.press("Try disk.img again")
            await expect(head(visitor)).to_contain_text("32 files uploaded")
            assert len(await contents_of(server, "carol")) == 32
            close = page.get_by_role("button", name="Close the list of uploads")
            await close.focus()
            await page.keyboard.press("Enter")
            await expect(page.locator("#transfers")).to_be_hidden()
            await expect(page.locator("#main")).to_be_focused()


async def test_files_that_wait_take_the_room_of_later_ones(
    browser: Browser, make_stack: MakeStack, tmp_path: Path
) -> None:
    files = [a_file(tmp_path / name, 2 * MIB, seed=seed) for seed, name in enumerate(("a", "b", "c"))]
    chunks = Held()
    async with (
        a_server(make_stack) as server,
        visiting(browser, server.url, token=await token_of(server, "dora", 5 * MIB)) as visitor,
    ):
        await visitor.page.route("**/uploads/*/chunks/*", chunks)
        await visitor.choose(*files)
        refused = visitor.page.locator("#transfer-list .row[data-phase=failed]")
        await expect(refused).to_contain_text("needs 2 MiB, and 5 MiB of your 5 MiB are free, of which 4 MiB are")
        chunks.let_pass()
        await expect(visitor.page.locator("#total-words")).to_contain_text("2 of 3 files done · 1 failed")
        assert len(await contents_of(server, "dora")) == 2


async def test_names_that_are_there_are_asked_about_once(
    browser: Browser, make_stack: MakeStack, tmp_path: Path
) -> None:
    """Small files, one of a request of its own and one of several chunks; of another size and of the same; more later."""
    sizes = {
        "small.txt": 100,
        "same.txt": 100,
        "whole.bin": 300 * KIB,
        "large.bin": 2 * MIB,
        "touched.txt": 50,
        "old.txt": 60,
    }
    files = {name: a_file(tmp_path / name, size) for name, size in sizes.items()}
    async with (
        a_server(make_stack) as server,
        visiting(browser, server.url, token=await token_of(server, "erin")) as visitor,
    ):
        page = visitor.page
        await visitor.choose(*files.values())
        await expect(head(visitor)).to_contain_text("6 files uploaded")
        await page.reload()
        await page.locator("#app").wait_for()
        for name, size in {"small.txt": 110, "same.txt": 100, "whole.bin": 310 * KIB, "large.bin": 2 * MIB}.items():
            a_file(files[name], size, seed=1)
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
        await expect(rows(visitor).first).to_have_attribute("data-phase", "asked")
        await expect(head(visitor)).to_contain_text("4 files need your answer")
        await page.get_by_role("button", name="Answer", exact=True).focus()
        await page.keyboard.press("Enter")
        await page.get_by_role("button", name="Replace", exact=True).focus()
        await page.keyboard.press("Enter")
        await expect(page.locator("#total-words")).to_contain_text("6 of 6 files done · 2 there already")
        replaced = {**sizes, "small.txt": 110, "whole.bin": 310 * KIB}
        assert await contents_of(server, "erin") == sorted(replaced.items())

        a_file(files["small.txt"], 120, seed=2)
        a_file(files["old.txt"], 70, seed=2)
        await visitor.choose(files["small.txt"], files["old.txt"])
        await page.get_by_label("The same for all 2 files").uncheck()
        await visitor.press("Keep both")
        await expect(question).to_contain_text("old.txt")
        await visitor.press("Skip")
        await expect(page.locator("#total-words")).to_contain_text("7 of 7 files done · 2 there already · 1 skipped")
        assert await contents_of(server, "erin") == sorted([*replaced.items(), ("small.txt", 120)])


async def test_what_the_server_has_is_told_as_done(browser: Browser, make_stack: MakeStack, tmp_path: Path) -> None:
    paths = [a_file(tmp_path / "new names" / f"{number}.bin", 2 * MIB, seed=number) for number in range(3)]
    async with a_server(make_stack) as server:
        for number in range(3):
            await server.stack.upload(Content(2 * MIB, seed=number, chunk_size=MIB))
        async with visiting(browser, server.url, token=await token_of(server, "alice")) as visitor:
            await expect(visitor.files().first).to_be_visible()
            await visitor.drop(paths[0].parent)
            await expect(head(visitor)).to_contain_text("3 files were there already")
            await expect(visitor.page.locator("#total-words")).to_have_text(
                "3 of 3 files done · 3 there already · 6 MiB"
            )


async def test_a_folder_among_many_loose_files_is_looked_through(
    browser: Browser, make_stack: MakeStack, tmp_path: Path
) -> None:
    """Not every one of so many is asked whether it is a folder."""
    loose = [a_file(tmp_path / f"{number}.txt", 10) for number in range(501)]
    for number in range(2):
        a_file(tmp_path / "more" / f"{number}.txt", 10)
    async with (
        a_server(make_stack) as server,
        visiting(browser, server.url, token=await token_of(server, "alice")) as visitor,
    ):
        await visitor.drop(*loose, tmp_path / "more")
        await expect(head(visitor)).to_contain_text("503 files uploaded")
        assert {("500.txt", 10), ("more/1.txt", 10)} <= set(await contents_of(server, "alice"))


async def test_what_runs_on_another_device_is_shown_running(
    browser: Browser, make_stack: MakeStack, tmp_path: Path
) -> None:
    path = a_file(tmp_path / "film.mkv", 8 * MIB)
    chunks = Held(1)
    async with a_server(make_stack) as server:
        token = await token_of(server, "alice")
        async with visiting(browser, server.url, token=token) as other:
            await other.page.route("**/chunks/*", chunks)
            await other.choose(path)
            await expect(other.row("film.mkv", "uploading")).to_contain_text("1 MiB of 8 MiB")
            async with visiting(browser, server.url, token=token) as visitor:
                await expect(visitor.row("film.mkv", "unfinished")).to_contain_text(
                    "1 MiB of 8 MiB · interrupted, kept until"
                )
                await expect(other.page.locator("#total-words")).to_contain_text("Waiting for the server…")
                chunks.let_pass(2)
                running = visitor.row("film.mkv", "elsewhere")
                await expect(running).to_contain_text("3 MiB of 8 MiB · running in another tab or on another device")
                await expect(running.get_by_role("button")).to_have_count(1)
                await expect(head(visitor)).to_contain_text("Uploading elsewhere")
                assert await visitor.violations(["dark"]) == []
                chunks.let_pass()
                await expect(visitor.row("film.mkv", "complete")).to_be_visible()
                await expect(visitor.files()).to_contain_text("film.mkv")


async def test_what_is_a_leftover_and_what_shares_a_row(browser: Browser, make_stack: MakeStack) -> None:
    """What does not move for as long as its chunks took, unless it is checked; what was brought in one folder."""
    async with (
        a_server(make_stack) as server,
        visiting(browser, server.url, token=await token_of(server, "alice")) as visitor,
    ):
        told = await visitor.page.evaluate(
            """async () => {
                const { Elsewhere } = await import("/static/pages/client/elsewhere.js");
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
                const { Transfer } = await import("/static/pages/client/transfer.js");
                const { arranged } = await import("/static/pages/home/tray/arranging.js");
                const phases = {
                    "a/old": "complete", "a/new": "waiting", "a/b/1": "uploading", "a/b/2": "waiting", "a/bad": "failed" };
                const transfers = Object.entries(phases).map(([name, phase]) =>
                    Object.assign(new Transfer({ file: new File([], ""), name, size: 1, into: "a/" }), { phase, made: {} }));
                return arranged(transfers, new Set()).map(({ folder, transfer }) => folder?.name ?? transfer.name);
            }"""
        )
    assert listed == ["a/bad", "a/b", "a/new", "a/old"]
    assert told == [False, True, True, False, False, True, True, False, True, True, True]
