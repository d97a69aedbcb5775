"""An application with a page, a server that its page uploads to, and a person before it."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from os import environ
from pathlib import Path
from threading import Thread
from typing import Any

import httpx2
from playwright.async_api import Page

from tests.support.documents import DOCS, blocks
from tests.support.waiting import eventually
from uploader.client import Client, File

HERE = Path(__file__).parent
DOCUMENT = DOCS / "clients.md"
EXAMPLE = '"https://files.example'
PATIENCE_SECONDS = 60.0
HTML = """<!doctype html><meta charset="utf-8" /><title>An application</title><link rel="stylesheet" href="/page.css" />
<link rel="icon" href="data:," /><input type="file" id="file" multiple /><div id="uppy"></div>
<script src="/page.js"></script>"""


def build_page(directory: Path) -> None:
    """The page as a browser gets it: what the document says, and all that it imports."""
    document = directory / "document"
    document.mkdir()
    for name, imported in (("uppy", "@uppy/core"), ("tus-js-client", "tus-js-client")):
        (text,) = blocks(DOCUMENT, "js", f'from "{imported}"')
        (document / f"{name}.js").write_text(text.replace(EXAMPLE, 'window.serverUrl + "'))
    (directory / "source.js").write_text((HERE / "page.js").read_text())
    subprocess.run(
        [HERE / "node_modules/.bin/esbuild", "source.js", "--bundle", "--outfile=page.js", "--log-level=warning"],
        cwd=directory,
        env={**environ, "NODE_PATH": str(HERE / "node_modules")},
        check=True,
    )
    (directory / "index.html").write_text(HTML)


class _Quietly(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *_arguments: Any) -> None:  # noqa: A002
        """Nobody reads it."""


@contextmanager
def serving_page(directory: Path) -> Iterator[str]:
    """The origin of the page."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quietly, directory=str(directory))) as server:
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://localhost:{server.server_address[1]}"
        server.shutdown()


class Person:
    """A page that is open, and what its user has on the server."""

    def __init__(self, page: Page, origin: str, url: str, token: str) -> None:
        self.page = page
        self.origin = origin
        self.url = url
        self.token = token

    async def open(self) -> None:
        """Come to the page, or load it again."""
        await self.page.goto(f"{self.origin}/index.html")
        await self.page.evaluate(
            "([url, token]) => Object.assign(window, { serverUrl: url, token: async () => token })",
            [self.url, self.token],
        )

    async def choose(self, *paths: Path) -> None:
        await self.page.set_input_files("#file", paths)

    async def allow(self, count: int | None = None) -> None:
        """Let so many more requests with bytes pass, and no other; None: all."""
        await self.page.evaluate(f"gate.allow({'Infinity' if count is None else count})")

    async def holds(self, count: int) -> None:
        """Wait until so many requests are held."""
        await self.until(f"gate.held === {count}")

    async def until(self, expression: str) -> None:
        """Wait until an expression of JavaScript is true."""

        async def is_true() -> bool:
            return bool(await self.page.evaluate(expression))

        await eventually(is_true, PATIENCE_SECONDS)

    async def offsets(self) -> Sequence[int]:
        """Where the bytes began that were sent since the page was loaded."""
        offsets: list[int] = await self.page.evaluate("gate.offsets")
        return offsets

    async def statuses(self) -> Sequence[tuple[str, int]]:
        """What was asked since the page was loaded, and how it was answered."""
        asked = await self.page.evaluate("gate.requests.map(({ method, status }) => [method, status])")
        return [(method, status) for method, status in asked]

    def extensions(self) -> Sequence[str]:
        """Those of tus that the server names."""
        return httpx2.options(f"{self.url}/resumable").headers["tus-extension"].split(",")

    def client(self) -> Client:
        return Client(self.url, self.token)

    def check_nothing_is_held(self) -> None:
        with self.client() as client:
            assert client.uploads() == []
            assert client.usage().reserved == 0

    def files(self) -> Sequence[File]:
        with self.client() as client:
            return list(client.files())

    def sha256s(self) -> dict[str, str]:
        """The contents on the server by their names."""
        return {file.name: file.sha256 for file in self.files()}

    async def arrived(self, expected: dict[str, str]) -> None:
        """Wait until these are the contents on the server."""

        async def are_there() -> bool:
            return self.sha256s() == expected

        await eventually(are_there, PATIENCE_SECONDS)
