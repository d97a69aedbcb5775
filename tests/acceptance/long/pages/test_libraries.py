"""docs/libraries.md: what an application adds to upload by our clients, run as it stands on the page."""

import json
import re
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jwt
from playwright.async_api import BrowserContext, Page, Route, expect
from starlette.authentication import SimpleUser
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import uploader
from tests.conftest import MakeStack
from tests.support.browser import drag_and_drop
from tests.support.content import Content
from tests.support.documents import DOCS, blocks
from tests.support.sockets import serving_stack
from tests.support.waiting import eventually

PAGE = DOCS / "libraries.md"
TYPES = Path(uploader.__file__).parent / "web" / "client.d.ts"
CONTENT = Content(300_000, seed=95)


CLIENT_CODE, TOKEN_CODE = blocks(PAGE, "python")
ONE_FILE_CODE, DROP_ZONE_CODE = blocks(PAGE, "javascript")


# In a browser: the page and the tokens come from the application's origin, the uploads go to another one.

APPLICATION, EXAMPLE_SERVER = "http://localhost", "https://uploads.example.com"
[POLICY] = re.findall(r"`(script-src https:[^`]+)`", re.sub(r"\s+", " ", PAGE.read_text()))
HTML = """<!doctype html><input type="file" /><progress></progress><h1 id="zone">drop here</h1>
<output id="status"></output><pre id="failures"></pre>
<button id="pause">pause</button><button id="resume">resume</button><button id="cancel">cancel</button>
<script type="module" src="/application.js"></script>"""
SCRIPT = """import { keep } from "/one-file.js";
import { dropZone } from "/drop-zone.js";
const [input] = document.getElementsByTagName("input");
window.bar = document.querySelector("progress");
input.onchange = async () => {
  try {
    window.outcome = { file: await keep(input.files[0], bar) };
  } catch (error) {
    window.outcome = { code: error.code, message: error.message };
  }
};
const ids = ["zone", "status", "failures", "pause", "resume", "cancel"];
const [zone, status, failures, pause, resume, cancel] = ids.map((id) => document.getElementById(id));
dropZone(zone, { status, failures, pause, resume, cancel });
window.ready = true;
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


class Application:
    """The application: its page, and tokens for its user bob, of which the first has expired."""

    def __init__(self, server_url: str, *, total_space: int = 50 << 30) -> None:
        self._server_url = server_url
        self._total_space = total_space
        self.tokens_given = 0

    async def open(self, context: BrowserContext) -> Page:
        await context.route(f"{APPLICATION}/**", self._serve)
        page = await context.new_page()
        await page.goto(f"{APPLICATION}/")
        await until(page, "window.ready")
        return page

    def _token_for(self, user_id: str) -> str:
        self.tokens_given += 1
        lifetime_seconds = -900 if self.tokens_given == 1 else 900
        claims = {"sub": user_id, "exp": int(time.time()) + lifetime_seconds, "total_space": self._total_space}
        return jwt.encode(claims, SECRET, algorithm="HS256")

    async def _serve(self, route: Route) -> None:
        path = urlsplit(route.request.url).path
        if path == "/upload-token":
            page: dict[str, Any] = {"token_for": self._token_for}
            exec(compile(TOKEN_CODE, str(PAGE), "exec"), page)
            answer = await page["upload_token"](Request({"type": "http", "headers": [], "user": SimpleUser("bob")}))
            await route.fulfill(content_type="text/plain", body=answer.body)
            return
        served = {
            "/": ("text/html", HTML),
            "/application.js": ("text/javascript", SCRIPT),
            "/one-file.js": ("text/javascript", self._of_here(ONE_FILE_CODE)),
            "/drop-zone.js": ("text/javascript", self._of_here(DROP_ZONE_CODE)),
        }
        kind, text = served[path]
        policy = self._of_here(
            POLICY.replace("script-src", "script-src 'self'").replace("connect-src", "connect-src 'self'")
        )
        await route.fulfill(
            content_type=kind, body=text, headers={"Content-Security-Policy": f"default-src 'none'; {policy}"}
        )

    def _of_here(self, text: str) -> str:
        return text.replace(EXAMPLE_SERVER, self._server_url)


async def until(page: Page, expression: str) -> None:
    """Asked again and again from outside: the policy of the page lets nobody do so inside."""

    async def is_true() -> bool:
        return bool(await page.evaluate(expression))

    await eventually(is_true)


async def outcome_of(page: Page) -> dict[str, Any]:
    await until(page, "window.outcome")
    outcome: dict[str, Any] = await page.evaluate("window.outcome")
    return outcome


async def test_a_page_uploads_through_failures_and_a_reload_with_the_tokens_of_its_application(
    make_stack: MakeStack, context: BrowserContext, tmp_path: Path
) -> None:
    days: list[BadDay] = []

    def around(app: ASGIApp) -> ASGIApp:
        days.append(BadDay(app))
        return days[0]

    path = tmp_path / "film"
    path.write_bytes(CONTENT.data)
    settings = SETTINGS | {"chunk_size_bytes": CONTENT.chunk_size}
    async with serving_stack(make_stack, around=around, **settings) as server:
        application = Application(server.url)
        page = await application.open(context)
        await page.set_input_files("input", path)
        await until(page, "bar.value > 0")
        [day] = days

        async def taken() -> bool:
            return day.taken.total() == day.let_through

        await eventually(taken)
        assert application.tokens_given == 2
        await page.close()

        page = await application.open(context)
        day.mended = True
        await page.set_input_files("input", path)
        file = (await outcome_of(page))["file"]
        assert (file["name"], file["sha256"]) == ("videos/film", CONTENT.sha256)
        assert len(day.taken) == CONTENT.chunk_count
        assert day.taken.total() == CONTENT.chunk_count  # also of the one whose answer was cut off
        assert await page.evaluate("bar.value === bar.max && bar.max") == CONTENT.size


async def test_a_page_takes_what_is_dropped_and_pauses_it_and_is_told_what_cannot_pass(
    make_stack: MakeStack, context: BrowserContext, tmp_path: Path
) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.jpg").write_bytes(b"%d" % number * 1000)
    large = tmp_path / "large"
    large.write_bytes(b"x" * (1 << 20))
    async with serving_stack(make_stack, chunk_size_bytes=64 << 10, **SETTINGS) as server:
        page = await Application(server.url, total_space=10_000).open(context)
        await page.set_input_files("input", large)
        assert (await outcome_of(page))["file"] is None
        zone = page.locator("#zone")
        await drag_and_drop(page, zone, folder)
        await expect(page.locator("#status")).to_have_text("3 of 3 are there")
        # Everything once more, and one that does not fit: what is there is not sent, and what may not be there is told.
        batches: list[str] = []
        page.on("request", lambda request: batches.append(request.url) if "/files/batch?" in request.url else None)
        await drag_and_drop(page, zone, folder, large)
        await page.click("#pause")
        await page.click("#resume")
        await expect(page.locator("#status")).to_have_text("3 of 4 are there")
        assert (await page.locator("#failures").text_content() or "").startswith("inbox/large: ")
        assert batches == []
        found = await page.evaluate(USE_EVERYTHING, f"{server.url}/client.js")
        assert found == {
            "exports": ["Client", "Problem", "fromInput", "fromTransfer"],
            "members": members_of_the_types(),
            "level": ["inbox/photos/"],
            "named": ["inbox/photos/0.jpg"],
            "linked": "0" * 1000,
            "moved": 3,
            "files": ["photos/2.jpg", "photos/1.jpg", "photos/0.jpg"],
            "stopped": "AbortError",
            "taken": "name-taken",
            "paused": [[True, None], [True, None]],
            "how": ["sent", "sent"],
            "refused": "unauthenticated",
            "late": ["quota-exceeded"],
            "given": [[], []],
            "deleted": 3,
            "later": ["sent"],
            "open": [],
            "newest": ["late"],
            "left": 10_000 - 1_004 - 8_000,
        }


# Each method of the page's table.
USE_EVERYTHING = """async (url) => {
  const { Client, ...others } = await import(url);
  const token = async () => (await fetch("/upload-token")).text();
  const client = new Client({ token });
  const list = async (found) => { const all = []; for await (const { name } of found) all.push(name); return all; };
  const failure = (promise) => promise.then(() => null, ({ code, name }) => (typeof code === "string" ? code : name));
  const found = { exports: ["Client", ...Object.keys(others)].sort() };
  const started = client.start(new Blob(["once"]), { name: "x" });
  const many = client.startMany([]);
  const kinds = { Client: client, Transfer: started, Transfers: many };
  found.members = Object.fromEntries(Object.entries(kinds).map(([name, of]) => {
    const members = [...Object.keys(of), ...Object.getOwnPropertyNames(Object.getPrototypeOf(of))];
    return [name, members.filter((member) => member !== "constructor").sort()];
  }));
  started.pause();
  started.resume();
  const { id } = await started.result;
  await many.result;
  found.level = await list(client.level("inbox"));
  const [first] = await client.named("inbox/photos/0.jpg");
  found.named = [(await client.file(first.id)).name];
  const link = await client.link(first.id, { lifetimeSeconds: 60 });
  found.linked = await (await fetch(link.url)).text();
  found.moved = await client.moveFolder("inbox", "");
  found.files = await list(client.files("photos/", { part: "jpg" }));
  const signal = AbortSignal.abort();
  found.stopped = await failure(client.upload(new Blob(["never"]), { name: "never", signal }));
  found.taken = await failure(client.upload(new Blob(["other"]), { name: "x", ifExists: "fail" }));
  const two = client.startMany([{ file: new Blob(["0".repeat(1000)]), name: "y" }, new File(["new!"], "z")]);
  two.pause();
  while (two.transfers.length < 2) await client.usage();
  found.paused = two.transfers.map(({ progress, outcome }) => [progress.paused, outcome]);
  two.resume();
  found.how = (await two.result).map(({ how }) => how);
  const late = client.startMany([{ file: new Blob(["1".repeat(8000)]), name: "late" }]);
  found.late = (await late.result).map(({ problem }) => problem.code);
  const given = [client.startMany([new File(["a"], "a")]), client.startMany([new File(["b"], "b")])];
  given[0].stop();
  given[1].pause();
  await given[1].cancel();
  found.given = await Promise.all(given.map(({ result }) => result));
  found.refused = await failure(new Client({ token: async () => "x" + Math.random() }).usage());
  await client.rename(id, "renamed");
  await client.delete(id);
  found.deleted = await client.deleteFolder("photos");
  late.retry();
  found.later = (await late.result).map(({ how }) => how);
  found.open = await client.uploads();
  found.newest = (await client.page({ limit: 1 })).files.map(({ name }) => name);
  found.left = (await client.usage()).available;
  return found;
}"""


def members_of_the_types() -> dict[str, list[str]]:
    """What the types say that there is: whoever changes one without the other is told."""
    found = {}
    for name in ("Client", "Transfer", "Transfers"):
        match = re.search(
            rf"^export (?:class|interface) {name} {{\n(.*?)^}}", TYPES.read_text(), re.DOTALL | re.MULTILINE
        )
        assert match is not None
        found[name] = sorted(set(re.findall(r"^  (?:readonly )?(\w+)[(:]", match[1], re.MULTILINE)) - {"constructor"})
    return found
