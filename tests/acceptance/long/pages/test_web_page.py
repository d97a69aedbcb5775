"""The web page as a person uses it: uploads that survive everything, in words that say what is."""

import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, Page, Route, expect
from sqlalchemy import select

from tests.support.browser import Visitor, visiting
from tests.support.content import MIB, Content
from tests.support.sites import CONNECTIONS, Site, a_file
from uploader.client import plan
from uploader.client.source import open_source, sample_of
from uploader.database import models


async def on_its_way(site: Site, visitor: Visitor, path: Path, arrived: int) -> None:
    """A file is chosen of which so many chunks arrive, while others are held."""
    site.gate.close(but=arrived)
    await visitor.choose(path)
    await site.gate.wait_until_ended(arrived)
    await site.gate.wait_until_held()


async def test_a_file_is_paused_resumed_and_arrives_whole(site: Site, visitor: Visitor, tmp_path: Path) -> None:
    content = Content(20 * MIB, seed=61, chunk_size=MIB)
    await on_its_way(site, visitor, a_file(tmp_path / "film.bin", content), 10)
    await visitor.press("Pause film.bin")
    await expect(visitor.row("film.bin", "paused")).to_contain_text("Paused")
    await expect(visitor.tray).to_contain_text("1 upload paused")
    site.gate.open()
    await site.gate.wait_until_ended(10 + CONNECTIONS)
    await expect(visitor.row("film.bin")).to_contain_text("14 MiB of 20 MiB")
    assert site.gate.begun.total() == 10 + CONNECTIONS
    await visitor.press("Resume film.bin")
    await expect(visitor.row("film.bin", "complete")).to_contain_text("Uploaded")
    assert await site.sha256s() == {"film.bin": content.sha256}
    assert site.gate.begun == Counter(map(str, range(20)))
    await visitor.page.locator("#quota button").click()
    await expect(visitor.page.get_by_text("Files: 20 MiB")).to_be_visible()


async def test_after_a_reload_and_in_another_browser_it_goes_on(browser: Browser, site: Site, tmp_path: Path) -> None:
    """Larger than what is hashed first: sent while it is hashed, under the key that the command line would take, too."""
    content = Content(65 * MIB, seed=62, chunk_size=MIB)
    path, token = a_file(tmp_path / "disk.img", content), await site.token()
    async with visiting(browser, site.url, token=token) as visitor:
        await on_its_way(site, visitor, path, 20)
        await visitor.page.reload()
        await expect(visitor.row("disk.img", "unfinished")).to_contain_text("20 MiB of 65 MiB")
        await visitor.choose(path)
        site.gate.let_pass(10 + CONNECTIONS)
        await site.gate.wait_until_ended(30 + CONNECTIONS)
        await expect(visitor.row("disk.img")).to_have_count(1)
    async with visiting(browser, site.url, token=token) as visitor:
        await expect(visitor.row("disk.img", "unfinished")).to_be_visible()
        site.gate.open()
        await visitor.choose_again("disk.img", path)
        await expect(visitor.row("disk.img", "complete")).to_contain_text("Uploaded")
    assert await site.sha256s() == {"disk.img": content.sha256}
    assert set(site.gate.begun) == set(map(str, range(65)))
    assert site.gate.begun.total() <= 65 + 2 * CONNECTIONS
    sample = await sample_of(open_source(path))
    async with site.stack.services.database.engine.connect() as connection:
        [key] = (await connection.execute(select(models.upload.c.idempotency_key))).scalars()
    assert key == plan.resume_key("disk.img", content.size, sample, 0)


async def test_a_network_that_is_cut_and_returns_only_costs_time(site: Site, visitor: Visitor, tmp_path: Path) -> None:
    content = Content(9 * MIB, seed=63, chunk_size=MIB)
    await on_its_way(site, visitor, a_file(tmp_path / "talk.ogg", content), 4)
    await visitor.context.set_offline(True)
    await expect(visitor.row("talk.ogg")).to_contain_text("The server can't be reached. Trying again…")
    await expect(visitor.total).to_contain_text("No connection")
    site.gate.open()
    await visitor.context.set_offline(False)
    await expect(visitor.row("talk.ogg", "complete")).to_be_visible()
    assert await site.sha256s() == {"talk.ogg": content.sha256}
    assert site.gate.begun.total() <= 9 + CONNECTIONS


async def test_what_the_server_has_already_is_not_sent_again(browser: Browser, site: Site, tmp_path: Path) -> None:
    """Another's content by a proof of possession, both where it is hashed first and where it is hashed beside."""
    contents = {
        "song.flac": Content(2 * MIB, seed=65, chunk_size=MIB, name="a"),
        "copy.img": Content(65 * MIB, seed=66, chunk_size=MIB, name="b"),
    }
    for content in contents.values():
        await site.stack.upload(content)
    async with visiting(browser, site.url, token=await site.token("bob")) as visitor:
        await visitor.choose(*(a_file(tmp_path / name, content) for name, content in contents.items()))
        for name in contents:
            await expect(visitor.row(name, "complete")).to_contain_text("the server had it already")
        await expect(visitor.tray).to_contain_text("2 files were there already")
        await expect(visitor.total).to_have_text("2 of 2 files done · 2 there already · 67 MiB")
        await expect(visitor.files()).to_have_count(2)
    assert await site.sha256s("bob") == {name: content.sha256 for name, content in contents.items()}
    assert all(file["instant"] for file in await site.files("bob"))


async def test_a_file_that_changes_meanwhile_is_chosen_again(site: Site, visitor: Visitor, tmp_path: Path) -> None:
    """Half of it as it was and half as it is now would be no file of anybody."""
    before, after = (Content(8 * MIB, seed=seed, chunk_size=MIB) for seed in (80, 81))
    await on_its_way(site, visitor, a_file(tmp_path / "draft.odt", before), 2)
    path = a_file(tmp_path / "draft.odt", after)
    os.utime(path, (2_000_000_000, 2_000_000_000))  # Chromium looks at the second only
    site.gate.open()
    await expect(visitor.row("draft.odt", "failed")).to_contain_text("The file changed on this device")
    assert (await site.stack.client.get("/uploads")).json() == {"uploads": []}
    await visitor.choose_again("draft.odt", path)
    await expect(visitor.row("draft.odt", "complete")).to_be_visible()
    assert await site.sha256s() == {"draft.odt": after.sha256}


async def test_ten_thousand_files_that_are_dropped_cost_no_more_rows_than_are_seen(visitor: Visitor) -> None:
    """test_page_files has as many in the list of what is there."""
    rows = visitor.page.locator("#transfer-list .row")
    await visitor.drop_many(10_000)
    await expect(visitor.total).to_contain_text("of 10,000 files done")
    await visitor.press("Pause all")
    await expect(visitor.tray).to_contain_text("uploads paused")
    assert await rows.count() < 40
    await visitor.page.locator("#transfer-list").press("End")
    # Paused; or it came with one of the two batches that may have been sent before the pause.
    await expect(visitor.row("9999.txt")).to_be_visible()
    assert await rows.count() < 40
    await visitor.press("Cancel all")
    await visitor.press("Cancel upload")
    # What those batches brought is there, and stays listed until somebody clears it.
    if await visitor.page.get_by_role("button", name="Clear finished").is_visible():
        await visitor.press("Clear finished")
    await expect(visitor.page.locator("#transfers")).to_be_hidden()


# How the page's client reads large files: not before they may fit, no longer than it has to, and as they are now.

LARGE = Content(65 * MIB, seed=181, chunk_size=8 * MIB)
# So much is not hashed while a test waits.
HUGE_BYTES = 200 << 30
HTML = '<!doctype html><input type="file" multiple />'
UPLOAD = """async ([number, name]) => {
  const { Client } = await import(new URL("client.js", location).href);
  window.client ??= new Client({ token: window.token });
  const file = document.querySelector("input").files[number];
  return client.upload(file, { name }).catch(({ code, detail }) => ({ code, detail }));
}"""


@asynccontextmanager
async def a_page(browser: Browser, site: Site, policy: str, *files: Path) -> AsyncIterator[Page]:
    """An empty page of the server under this policy, where alice has chosen files."""

    async def serve(route: Route) -> None:
        await route.fulfill(content_type="text/html", body=HTML, headers={"Content-Security-Policy": policy})

    context = await browser.new_context()
    try:
        await context.route(f"{site.url}/empty", serve)
        page = await context.new_page()
        await page.goto(f"{site.url}/empty")
        await page.set_input_files("input", files)
        await page.evaluate("(token) => { window.token = token; }", await site.token())
        yield page
    finally:
        await context.close()


async def test_a_file_is_hashed_and_sent_as_long_as_it_has_to(site: Site, browser: Browser, tmp_path: Path) -> None:
    huge, changed, large = (a_file(tmp_path / name, b"") for name in ("huge", "changed", "large"))
    os.truncate(huge, HUGE_BYTES)
    for path in (changed, large):
        a_file(path, LARGE)
    async with a_page(browser, site, "script-src 'self'", huge, changed, large) as page:
        refused = await page.evaluate(UPLOAD, [0, "huge"])
        assert refused["code"] == "quota-exceeded"
        assert not any(asked.startswith("POST /files/") and "batch" not in asked for asked in site.gate.asked)
        a_file(changed, b"other")
        assert (await page.evaluate(UPLOAD, [1, "changed"]))["code"] == "file-changed"
        made = await page.evaluate(UPLOAD, [2, "large"])
        assert (made["sha256"], made["md5"]) == (LARGE.sha256, LARGE.md5)
        # What the caller has is no longer sent once its MD5 is known.
        site.gate.asked.clear()
        site.gate.ended.clear()
        site.gate.close()
        made = await page.evaluate(UPLOAD, [2, "second"])
        assert (made["name"], made["sha256"], made["instant"]) == ("second", LARGE.sha256, True)
        assert "POST /files/status" in site.gate.asked
        assert not site.gate.ended


async def test_a_page_that_forbids_the_worker_is_told_so(site: Site, browser: Browser, tmp_path: Path) -> None:
    path = a_file(tmp_path / "small", b"small")
    async with a_page(browser, site, "script-src 'self'; worker-src 'none'", path) as page:
        failed = await page.evaluate(UPLOAD, [0, "small"])
        assert failed["code"] == "worker-failed"
        assert "hash-worker.js" in failed["detail"]


async def test_a_worker_that_was_lost_on_its_way_is_started_again(site: Site, browser: Browser, tmp_path: Path) -> None:
    content = Content(MIB, seed=64)
    lost = 0

    async def lose(route: Route) -> None:
        nonlocal lost
        lost += 1
        await (route.abort("internetdisconnected") if lost == 1 else route.continue_())

    async with a_page(browser, site, "script-src 'self'", a_file(tmp_path / "small", content)) as page:
        await page.context.route("**/md5.umd.min.js", lose)
        made = await page.evaluate(UPLOAD, [0, "small"])
        assert (made["sha256"], lost) == (content.sha256, 2)
