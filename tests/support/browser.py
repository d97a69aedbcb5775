"""A real Chromium before the web pages: a person's browser, what they do in it, and what they see."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, Route, async_playwright, expect

from tests.support.waiting import eventually

# Generous: only a test that fails waits for so long.
PATIENCE_MS = 60_000
# What fades in is faint until then.
_STANDING_STILL = """() => Promise.allSettled(document.getAnimations()
    .filter((each) => each.effect.getComputedTiming().endTime !== Infinity).map((each) => each.finished))"""
# What axe-core calls these bars somebody from using the page.
_IMPACTS = ("serious", "critical")
_RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}

Scheme = Literal["dark", "light"]


def chromium_path() -> str | None:
    """Debian's Chromium, where it is installed."""
    return shutil.which("chromium")


@asynccontextmanager
async def running_chromium() -> AsyncIterator[Browser]:
    path = chromium_path()
    assert path is not None, "chromium is not installed"
    expect.set_options(timeout=PATIENCE_MS)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=2 * PATIENCE_MS)
        yield browser
        await browser.close()


class Held:
    """Requests of a page that do not get further than it was allowed."""

    def __init__(self, allowed: int = 0) -> None:
        self._allowed = asyncio.Semaphore(allowed)
        self._refused = False
        self._held = 0
        self.urls: list[str] = []

    async def __call__(self, route: Route) -> None:
        self.urls.append(route.request.url)
        self._held += 1
        await self._allowed.acquire()
        await (route.abort() if self._refused else route.continue_())
        self._held -= 1

    def let_pass(self, count: int = 1_000_000) -> None:
        for _ in range(count):
            self._allowed.release()

    async def refuse(self) -> None:
        """End those that are held, and all others, as a lost network does: of a page that closes the held ones pass."""
        self._refused = True
        self.let_pass()

        async def none_is_held() -> bool:
            return self._held == 0

        await eventually(none_is_held)

    async def wait_for(self, count: int) -> None:
        async def so_many() -> bool:
            return len(self.urls) >= count

        await eventually(so_many)


class Visitor:
    """A person at one server, in a browser profile of their own."""

    def __init__(self, context: BrowserContext, page: Page, url: str) -> None:
        self.context = context
        self.page = page
        self.url = url
        # What no page of ours may ever cause: errors of its scripts, and what its policy forbids.
        self.troubles: list[str] = []
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("console", self._hear)

    def _hear(self, message: ConsoleMessage) -> None:
        if "Content Security Policy" in message.text or "Uncaught" in message.text:
            self.troubles.append(message.text)

    @property
    def tray(self) -> Locator:
        """What the head of the list of uploads says."""
        return self.page.locator("#tray-fold")

    @property
    def total(self) -> Locator:
        """What is said of all uploads together."""
        return self.page.locator("#total-words")

    async def go(self, path: str = "/") -> None:
        """Open an address below that of the server."""
        await self.page.goto(f"{self.url}{path}")

    async def load_anew(self) -> None:
        await self.page.reload()
        await self.page.locator("#app").wait_for()

    async def sign_in(self, token: str, path: str = "/") -> None:
        await self.go(path)
        await self.page.get_by_label("Token").fill(token)
        await self.page.get_by_role("button", name="Sign in").click()
        await self.page.locator("#app").wait_for()

    async def choose(self, *paths: Path) -> None:
        """Choose files, as the button `Choose files` lets one."""
        await self.page.set_input_files("#files-input", list(paths))

    async def choose_again(self, name: str, path: Path) -> None:
        """Choose the file of an upload that waits for it."""
        async with self.page.expect_file_chooser() as chooser:
            await self.press(f"Choose the file {name} again")
        await (await chooser.value).set_files(path)

    async def drop(self, *paths: Path) -> None:
        """Drop files and folders from the desktop onto the page."""
        await drag_and_drop(self.page, self.page.locator("html"), *paths)

    async def drag(self, step: str, *paths: Path) -> None:
        """One step of that: `dragEnter`, `dragOver` or `drop`."""
        await drag_and_drop(self.page, self.page.locator("html"), *paths, steps=(step,))

    async def drop_many(self, files: int) -> None:
        """Drop so many small files onto the page, each with its number as its content."""
        await self.page.evaluate(
            """(count) => {
                const dataTransfer = new DataTransfer();
                for (let number = 0; number < count; number += 1)
                    dataTransfer.items.add(new File([`${number}`], `${number}.txt`));
                window.dispatchEvent(new DragEvent("drop", { dataTransfer, cancelable: true }));
            }""",
            files,
        )

    def row(self, name: str, phase: str | None = None) -> Locator:
        """The row of a file in the list of uploads, in a phase."""
        which = ".row" if phase is None else f".row[data-phase={phase}]"
        return self.page.locator(f"#transfer-list {which}").filter(has=self.page.get_by_text(name, exact=True))

    @property
    def rows(self) -> Locator:
        """Those of the list of uploads."""
        return self.page.locator("#transfer-list .row")

    def files(self) -> Locator:
        """The rows of the finished files."""
        return self.page.locator("#file-list .row")

    async def all_done(self, files: int) -> None:
        """Wait until all of so many uploads are."""
        await expect(self.total).to_contain_text(f"{files:,} of {files:,} files done")

    async def is_wider_than(self, pixels: int) -> bool:
        width: int = await self.page.evaluate("document.documentElement.scrollWidth")
        return width > pixels

    async def press(self, name: str) -> None:
        await self.page.get_by_role("button", name=name, exact=True).click()

    async def ask_for(self, action: str, name: str) -> None:
        """What the menu of a finished file or folder offers."""
        await self.press(f"More actions for {name}")
        await self.page.get_by_role("menuitem", name=action, exact=True).click()

    async def violations(self, schemes: Sequence[Scheme] = ("light", "dark")) -> list[str]:
        """What axe-core finds serious in what is shown once it is up to date, in each colour scheme."""
        await expect(self.page.locator("[aria-busy='true']")).to_have_count(0)  # which is faint until then
        found = []
        for scheme in schemes:
            await self.page.emulate_media(color_scheme=scheme)
            await self.page.evaluate(_STANDING_STILL)
            results = (await Axe().run(self.page, options=_RULES)).response
            found += [_described(scheme, each) for each in results["violations"] if each["impact"] in _IMPACTS]
        return found


# The page waits for `listing` before it lists a folder, and again before it has the entries.
_LISTED_SLOWLY = """() => {
    const { webkitGetAsEntry } = DataTransferItem.prototype;
    const slow = (entry) => {
        if (!entry?.isDirectory) return entry;
        entry.createReader = () => {
            const reader = Object.getPrototypeOf(entry).createReader.call(entry);
            const readEntries = async (resolve, reject) => {
                await listing(entry.fullPath, false);
                reader.readEntries(async (entries) => {
                    await listing(entry.fullPath, true);
                    resolve(entries.map(slow));
                }, reject);
            };
            return { readEntries };
        };
        return entry;
    };
    DataTransferItem.prototype.webkitGetAsEntry = function () { return slow(webkitGetAsEntry.call(this)); };
}"""


async def lose_while_listed(page: Page, *lost: Path) -> None:
    """Delete each folder of `lost` just before the page lists it, and each file when the page has listed its folder."""

    async def listing(folder: str, is_listed: bool) -> None:
        for path in lost:
            if not is_listed and path.is_dir() and path.as_posix().endswith(folder):
                shutil.rmtree(path)
            elif is_listed and path.is_file() and path.parent.as_posix().endswith(folder):
                path.unlink()

    await page.expose_function("listing", listing)
    await page.evaluate(_LISTED_SLOWLY)


async def drag_and_drop(
    page: Page, onto: Locator, *paths: Path, steps: Sequence[str] = ("dragEnter", "dragOver", "drop")
) -> None:
    """Drag files and folders from the desktop onto something, and drop them."""
    box = await onto.bounding_box()
    assert box is not None
    at = {"x": box["x"] + min(200, box["width"] / 2), "y": box["y"] + min(200, box["height"] / 2)}
    data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
    session = await page.context.new_cdp_session(page)
    for step in steps:
        await session.send("Input.dispatchDragEvent", {"type": step, **at, "data": data})
    await session.detach()


def _described(scheme: Scheme, violation: dict[str, Any]) -> str:
    places = [" ".join(map(str, node["target"])) for node in violation["nodes"]]
    return f"{scheme}: {violation['id']} ({violation['help']}) at {', '.join(places)}"


@asynccontextmanager
async def visiting(browser: Browser, url: str, *, token: str | None = None, **options: Any) -> AsyncIterator[Visitor]:
    """A visitor, signed in with a token if one is given; nothing may have gone wrong in their page. `options` are those of
    a browser context."""
    context = await browser.new_context(locale="en-GB", **options)
    context.set_default_timeout(PATIENCE_MS)
    try:
        visitor = Visitor(context, await context.new_page(), url)
        if token is not None:
            await visitor.sign_in(token)
        yield visitor
        assert visitor.troubles == []
    finally:
        await context.close()
