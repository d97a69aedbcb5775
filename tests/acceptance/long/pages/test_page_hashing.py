"""How the page's client reads large files: not before they may fit, no longer than it has to, and as they are now."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.conftest import MakeStack
from tests.support.content import MIB, Content
from tests.support.sockets import Server, serving_stack

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


class Watched:
    """Stands before the server: tells what is asked of it, and lets no chunk through while it is closed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.open = asyncio.Event()
        self.open.set()
        self.asked: list[str] = []
        self.ended: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope.get("method"), scope.get("path", "")
        self.asked.append(f"{method} {path}")
        if method == "PUT" and "/chunks/" in path:
            await self.open.wait()
        await self._app(scope, receive, send)
        self.ended.append(f"{method} {path}")


@asynccontextmanager
async def a_server(make_stack: MakeStack) -> AsyncIterator[tuple[Server, Watched]]:
    watched: list[Watched] = []

    def around(app: ASGIApp) -> ASGIApp:
        watched.append(Watched(app))
        return watched[0]

    async with serving_stack(make_stack, around=around, durability="process") as server:
        try:
            yield server, watched[0]
        finally:
            watched[0].open.set()


@asynccontextmanager
async def a_page(browser: Browser, server: Server, policy: str, *files: Path) -> AsyncIterator[Page]:
    """An empty page of the server under this policy, where alice has chosen files."""

    async def serve(route: Route) -> None:
        await route.fulfill(content_type="text/html", body=HTML, headers={"Content-Security-Policy": policy})

    context = await browser.new_context()
    try:
        await context.route(f"{server.url}/empty", serve)
        page = await context.new_page()
        await page.goto(f"{server.url}/empty")
        await page.set_input_files("input", files)
        token = server.stack.client.headers["authorization"].split()[1]
        await page.evaluate("(token) => { window.token = token; }", token)
        yield page
    finally:
        await context.close()


async def test_a_file_is_not_hashed_before_it_may_fit_nor_longer_than_somebody_waits(
    make_stack: MakeStack, browser: Browser, tmp_path: Path
) -> None:
    huge, changed, large = (tmp_path / name for name in ("huge", "changed", "large"))
    huge.touch()
    os.truncate(huge, HUGE_BYTES)
    for path in (changed, large):
        path.write_bytes(LARGE.data)
    async with (
        a_server(make_stack) as (server, watched),
        a_page(browser, server, "script-src 'self'", huge, changed, large) as page,
    ):
        refused = await page.evaluate(UPLOAD, [0, "huge"])
        assert refused["code"] == "quota-exceeded"
        assert not any(asked.startswith("POST /files/") and "batch" not in asked for asked in watched.asked)
        changed.write_bytes(b"other")
        assert (await page.evaluate(UPLOAD, [1, "changed"]))["code"] == "file-changed"
        made = await page.evaluate(UPLOAD, [2, "large"])
        assert (made["sha256"], made["md5"]) == (LARGE.sha256, LARGE.md5)


async def test_what_the_caller_has_is_no_longer_sent_once_its_md5_is_known(
    make_stack: MakeStack, browser: Browser, tmp_path: Path
) -> None:
    path = tmp_path / "large"
    path.write_bytes(LARGE.data)
    async with (
        a_server(make_stack) as (server, watched),
        a_page(browser, server, "script-src 'self'", path) as page,
    ):
        await page.evaluate(UPLOAD, [0, "first"])
        watched.asked.clear()
        watched.ended.clear()
        watched.open.clear()
        made = await page.evaluate(UPLOAD, [0, "second"])
        assert (made["name"], made["sha256"], made["instant"]) == ("second", LARGE.sha256, True)
        assert "POST /files/status" in watched.asked
        assert not any("/chunks/" in asked for asked in watched.ended)


async def test_a_page_that_forbids_the_worker_is_told_so(
    make_stack: MakeStack, browser: Browser, tmp_path: Path
) -> None:
    path = tmp_path / "small"
    path.write_bytes(hashlib.sha256().digest())
    async with (
        a_server(make_stack) as (server, _),
        a_page(browser, server, "script-src 'self'; worker-src 'none'", path) as page,
    ):
        failed: dict[str, Any] = await page.evaluate(UPLOAD, [0, "small"])
        assert failed["code"] == "worker-failed"
        assert "hash-worker.js" in failed["detail"]
