"""How the page's client reads large files: not before they may fit, no longer than it has to, and as they are now."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, Page, Route

from tests.support.content import MIB, Content
from tests.support.sites import Site, a_file

LARGE = Content(65 * MIB, seed=181, chunk_size=8 * MIB)
# So much is not hashed while a test waits.
HUGE_BYTES = 200 << 30
HTML = '<!doctype html><input type="file" multiple />'
UPLOAD = """async ([number, name]) => {
  const { Client } = await import("/client.js");
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
