"""docs/integrating.md: what an application adds to have uploads, run as it stands on the page."""

import json
import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jwt
import pytest
from playwright.async_api import Browser, BrowserContext, Page, Route
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.conftest import MakeStack
from tests.support.content import Content
from tests.support.process import Server, ended
from tests.support.sockets import serving_stack
from uploader.client import Client, Transfer, Unauthenticated

PAGE = Path(__file__).parents[2] / "docs" / "integrating.md"
CONTENT = Content(300_000, seed=95)


def code_of_the_page(language: str) -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert len(found) == 1
    return str(found[0])


@pytest.mark.parametrize("language", ["python", "javascript"])
def test_the_application_adds_less_than_thirty_lines(language: str) -> None:
    lines = code_of_the_page(language).splitlines()
    assert len(lines) < 30
    assert max(map(len, lines)) <= 120


def test_an_application_keeps_files_of_its_users_with_its_own_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = secrets.token_urlsafe(32)
    settings = {"DATA": str(tmp_path / "data"), "FREE_SPACE_FLOOR": "0", "AUTH": "jwt", "JWT_SECRET": secret}
    server = Server(tmp_path / "log", settings)
    monkeypatch.setenv("UPLOADS_URL", server.url)
    monkeypatch.setenv("UPLOADS_SECRET", secret)
    path = tmp_path / "film"
    path.write_bytes(CONTENT.data)
    with ended(server):
        page: dict[str, Any] = {}
        exec(compile(code_of_the_page("python"), str(PAGE), "exec"), page)
        file = page["keep"]("alice", str(path), "videos/film")
        assert (file.name, file.sha256) == ("videos/film", CONTENT.sha256)
        with page["client_for"]("alice") as client:
            assert client.usage().total_space == 50 << 30
            _use_everything(client, tmp_path)
        with page["client_for"]("bob") as client:
            assert list(client.files()) == []
        forged = jwt.encode(jwt.decode(page["token_for"]("alice"), options={"verify_signature": False}), "x" * 32)
        with Client(server.url, forged) as client, pytest.raises(Unauthenticated):
            client.usage()


def _use_everything(client: Client, directory: Path) -> None:
    """Each method of the page's table, on the client without an event loop."""
    [file] = client.files("videos/")
    assert client.file(file.id) == client.page().files[0] == file
    assert client.download(file, directory / "back").read_bytes() == CONTENT.data
    fetching = client.start_download(file, directory / "again")
    assert fetching.result(60).read_bytes() == CONTENT.data
    assert client.rename(file.id, "moved").name == "moved"
    transfer: Transfer[Any] = client.start(b"x" * 200_000, "more")
    transfer.pause()
    assert transfer.progress.size == 200_000
    transfer.resume()
    assert transfer.result(60).name == "more"
    transfer.cancel()  # it has ended: nothing happens
    assert transfer.done
    assert client.uploads() == []
    for each in client.files():
        client.delete(each.id)
    assert client.usage().use_space_finished == 0


# In a browser: the page and the tokens come from the application's origin, the uploads go to another one.

APPLICATION, EXAMPLE_SERVER = "http://localhost", "https://uploads.example.com"
# Browsers ask before a page of elsewhere calls a server on their own machine, as only tests have it.
MAY_CALL_THIS_MACHINE = "local-network-access"
HTML = '<!doctype html><input type="file" /><script type="module" src="/application.js"></script>'
SCRIPT = """import { upload } from "/uploads.js";
const [input] = document.getElementsByTagName("input");
input.onchange = async () => {
  window.seen = [];
  const onProgress = (received, size) => window.seen.push([received, size]);
  try {
    window.outcome = await upload(input.files[0], { name: "videos/film", onProgress });
  } catch (error) {
    window.outcome = { code: error.code, message: error.message };
  }
};
"""
SECRET = secrets.token_urlsafe(32)
SETTINGS: dict[str, Any] = {"auth": "jwt", "jwt_secret": SECRET, "cors_origins": (APPLICATION,)}


class BadDay:
    """Stands before the server: lets a few chunks through until it is mended, then refuses one and cuts one off."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.let_through = 1
        self.mended = False
        self.taken: Counter[str] = Counter()
        self.failures: Iterator[str] = iter(("refused", "cut off"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("method") != "PUT":
            await self._app(scope, receive, send)
            return
        if not self.mended and self.taken.total() >= self.let_through:
            await _problem(503, "unavailable", retryable=True)(scope, receive, send)
            return
        failure = next(self.failures, None) if self.mended else None
        if failure == "refused":
            await _problem(503, "unavailable", retryable=True)(scope, receive, send)
            return
        self.taken[scope["path"]] += 1
        await self._app(scope, receive, _into_nothing if failure == "cut off" else send)


def _problem(status: int, code: str, *, retryable: bool) -> Response:
    content = json.dumps({"code": code, "detail": code, "retryable": retryable})
    return Response(content, status, {"Access-Control-Allow-Origin": APPLICATION}, "application/problem+json")


async def _into_nothing(_message: Message) -> None:
    """An answer that gets lost."""


async def application_page(context: BrowserContext, server_url: str, *, total_space: int = 50 << 30) -> Page:
    """A page of the application, for its user bob."""
    claims = {"sub": "bob", "exp": int(time.time()) + 900, "total_space": total_space}
    served = {
        "/": ("text/html", HTML),
        "/application.js": ("text/javascript", SCRIPT),
        "/uploads.js": ("text/javascript", code_of_the_page("javascript").replace(EXAMPLE_SERVER, server_url)),
        "/upload-token": ("text/plain", jwt.encode(claims, SECRET, algorithm="HS256")),
    }

    async def serve(route: Route) -> None:
        kind, text = served[urlsplit(route.request.url).path]
        await route.fulfill(content_type=kind, body=text)

    await context.route(f"{APPLICATION}/**", serve)
    page = await context.new_page()
    await page.goto(f"{APPLICATION}/")
    return page


async def outcome_of(page: Page) -> dict[str, Any]:
    found = await page.wait_for_function("window.outcome", timeout=60_000)
    outcome: dict[str, Any] = await found.json_value()
    return outcome


async def test_a_page_uploads_through_failures_and_a_reload_with_the_tokens_of_its_application(
    make_stack: MakeStack, browser: Browser, tmp_path: Path
) -> None:
    days: list[BadDay] = []

    def around(app: ASGIApp) -> ASGIApp:
        days.append(BadDay(app))
        return days[0]

    path = file_of_yesterday(tmp_path)
    context = await browser.new_context(permissions=[MAY_CALL_THIS_MACHINE])
    try:
        async with serving_stack(make_stack, around=around, chunk_size_bytes=CONTENT.chunk_size, **SETTINGS) as server:
            page = await application_page(context, server.url)
            await page.set_input_files("input", path)
            await page.wait_for_function("window.seen?.length", timeout=60_000)
            [day] = days
            assert day.taken.total() == day.let_through
            await page.close()

            page = await application_page(context, server.url)
            day.mended = True
            await page.set_input_files("input", path)
            file = await outcome_of(page)
            assert (file["name"], file["sha256"]) == ("videos/film", CONTENT.sha256)
            assert len(day.taken) == CONTENT.chunk_count
            assert (
                day.taken.total() == CONTENT.chunk_count + 1
            )  # the one whose answer was cut off, and nothing else, went twice
            assert [CONTENT.size, CONTENT.size] in await page.evaluate("window.seen")
    finally:
        await context.close()


async def test_a_page_is_told_by_its_code_what_cannot_pass(
    make_stack: MakeStack, browser: Browser, tmp_path: Path
) -> None:
    context = await browser.new_context(permissions=[MAY_CALL_THIS_MACHINE])
    try:
        async with serving_stack(make_stack, **SETTINGS) as server:
            page = await application_page(context, server.url, total_space=1)
            await page.set_input_files("input", file_of_yesterday(tmp_path))
            outcome = await outcome_of(page)
            assert outcome["code"] == "quota-exceeded"
            assert outcome["message"]
    finally:
        await context.close()


def file_of_yesterday(directory: Path) -> Path:
    path = directory / "film"
    path.write_bytes(CONTENT.data)
    yesterday = time.time() - 86_400
    os.utime(path, (yesterday, yesterday))
    return path
