"""The web page with folders of small files, in a real Chromium: they share requests, each with a fate of its own, and what
is there already stays where it is."""

import asyncio
import base64
import io
import os
import re
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2
from playwright.async_api import Browser, Request, Route, expect
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.conftest import MakeStack
from tests.support.browser import Visitor, visiting
from tests.support.content import KIB, MIB, Content
from tests.support.process import Server as ServerProcess
from tests.support.process import ended, owner_token
from tests.support.sockets import Server, serving_stack
from tests.support.waiting import eventually

PATIENCE_SECONDS = 60.0
# A file that is larger than what goes in a batch, and one that is larger than a chunk.
WHOLE_BYTES, LARGE_BYTES = 300 * KIB, 2 * MIB
_PROBE_BYTES = 1024
_BATCHES_AT_ONCE = 2


class HeldBatches:
    """Stands before the application: holds batches while it is closed. What the page asks to learn whether it may send
    some passes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.open = asyncio.Event()
        self.open.set()
        self.begun = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") == "/files/batch" and _length_of(scope) > _PROBE_BYTES:
            self.begun += 1
            await self.open.wait()
        await self._app(scope, receive, send)

    async def wait_until_held(self) -> None:
        async def all_held() -> bool:
            return self.begun == _BATCHES_AT_ONCE

        await eventually(all_held, PATIENCE_SECONDS)


def _length_of(scope: Scope) -> int:
    return int(dict(scope["headers"])[b"content-length"])


class OlderServer:
    """Stands before the application: lets it answer as one did that knew no batches, no whole files and no times."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") == "/files/batch":
            scope = {**scope, "path": "/files/no-md5"}
        elif scope.get("method") == "PUT" and re.fullmatch(r"/files/\w+", scope["path"]):
            scope = {**scope, "path": "/livez"}
        await self._app(scope, receive, send)


@dataclass
class Site:
    """A server whose batches the test holds in its hands."""

    server: Server
    batches: HeldBatches

    @property
    def url(self) -> str:
        return self.server.url

    async def token(self, user_id: str = "alice", total_space: int | None = None) -> str:
        return await self.server.stack.services.accounts.create_token(user_id, admin=False, total_space=total_space)

    async def files(self) -> list[dict[str, Any]]:
        return await all_files(self.server.stack.client)

    async def sha256s(self) -> dict[str, str]:
        return {file["name"]: file["sha256"] for file in await self.files()}


async def all_files(client: httpx2.AsyncClient) -> list[dict[str, Any]]:
    files, after = [], ""
    while True:
        page = (await client.get(f"/me/files?limit=1000{after}")).json()
        files += page["files"]
        if page["next"] is None:
            return files
        after = f"&after={page['next']}"


@asynccontextmanager
async def a_site(make_stack: MakeStack, **settings: Any) -> AsyncIterator[Site]:
    holding: list[HeldBatches] = []

    def around(app: ASGIApp) -> ASGIApp:
        holding.append(HeldBatches(app))
        return holding[0]

    settings = {"jobs": True, "durability": "process", "chunk_size_bytes": MIB, **settings}
    async with serving_stack(make_stack, around=around, **settings) as server:
        try:
            yield Site(server, holding[0])
        finally:
            holding[0].open.set()


class Sent:
    """What the page sends: batches, bodies of bytes that are no batch, and how many requests in all."""

    def __init__(self, visitor: Visitor) -> None:
        self.batches = 0
        self.bodies = 0
        self.requests: list[str] = []
        visitor.page.on("request", self._count)

    def _count(self, request: Request) -> None:
        self.requests.append(f"{request.method} {request.url}")
        if "/files/batch" in request.url:
            self.batches += 1
        elif request.method == "PUT":
            self.bodies += 1


def a_folder(parent: Path, files: int, size: int = 100) -> Path:
    """A folder `album` of files with different contents, changed at different times in 2020."""
    folder = parent / "album"
    for number in range(files):
        path = folder / f"{number % 3}" / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(Content(size, seed=number).data)
        os.utime(path, ns=(0, 1_600_000_000_000_000_000 + number * 1_234_567_890))
    return folder


def digests_below(folder: Path) -> dict[str, str]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder.parent)): sha256(path.read_bytes()).hexdigest() for path in paths}


async def loaded_anew(visitor: Visitor) -> None:
    await visitor.page.reload()
    await visitor.page.locator("#app").wait_for()


async def all_done(visitor: Visitor, files: int) -> None:
    await expect(visitor.page.locator("#total-words")).to_contain_text(f"{files:,} of {files:,} files done")


async def test_thousands_of_small_files_share_a_few_requests(
    browser: Browser, make_stack: MakeStack, tmp_path: Path
) -> None:
    folder = a_folder(tmp_path, 3000)
    (folder / "empty").write_bytes(b"")
    (folder / ("n" * 120 + ".txt")).write_text("long")
    (folder / "乐队 – café.txt").write_text("in no ASCII")
    (folder / "larger.bin").write_bytes(Content(WHOLE_BYTES, seed=1).data)
    async with a_site(make_stack) as site, visiting(browser, site.url, token=await site.token()) as visitor:
        sent = Sent(visitor)
        await visitor.drop(folder)
        await all_done(visitor, 3004)
        assert await site.sha256s() == digests_below(folder)
        times = {file["name"]: file["modified_at"] for file in await site.files()}
        assert times["album/1/1.txt"] == "2020-09-13T12:26:41.234000Z"
        assert (sent.batches, sent.bodies) == (1 + 7, 1)  # a MiB at most, where each file counts 2 KiB more
        await expect(visitor.page.get_by_role("status")).to_contain_text("files are uploaded.")


async def test_an_unchanged_folder_is_looked_at_and_not_sent(
    browser: Browser, make_stack: MakeStack, tmp_path: Path
) -> None:
    """Small files, one of a chunk and one of several; then one of each is changed."""
    folder = a_folder(tmp_path, 2500)
    larger = {folder / "whole.bin": WHOLE_BYTES, folder / "large.bin": LARGE_BYTES}
    for path, size in larger.items():
        path.write_bytes(Content(size, seed=1).data)
    async with a_site(make_stack) as site, visiting(browser, site.url, token=await site.token()) as visitor:
        await visitor.drop(folder)
        await all_done(visitor, 2502)
        stored = await site.files()
        await loaded_anew(visitor)
        sent = Sent(visitor)
        await visitor.drop(folder)
        await all_done(visitor, 2502)
        assert (sent.batches, sent.bodies) == (1, 0)
        assert len(sent.requests) < 20
        assert visitor.page.workers == []  # none of them was read
        await expect(visitor.page.get_by_role("status")).to_contain_text("files were there already.")
        row = visitor.row("album", "complete")
        await expect(row).to_contain_text("2,502 there already")
        await visitor.page.get_by_label("Language").select_option("zh")
        await expect(row).to_contain_text("2,502 个早已存在")
        await visitor.page.get_by_label("语言").select_option("en")
        for path in (*larger, folder / "0" / "0.txt"):
            path.write_bytes(Content(path.stat().st_size, seed=2).data)
        await loaded_anew(visitor)
        await visitor.drop(folder)
        await expect(visitor.page.get_by_label("The same for all 3 files")).to_be_checked()
        assert (sent.batches, sent.bodies) == (1 + 1, 0)
        await visitor.press("Keep both")
        await all_done(visitor, 2502)
        assert (sent.batches, sent.bodies) == (1 + 2, 1 + 2)
        assert len(await site.files()) == len(stored) + 3
        assert digests_below(folder).items() <= {(file["name"], file["sha256"]) for file in await site.files()}


async def test_what_was_only_touched_is_not_sent(browser: Browser, make_stack: MakeStack, tmp_path: Path) -> None:
    folder = a_folder(tmp_path, 20)
    (folder / "whole.bin").write_bytes(Content(WHOLE_BYTES, seed=1).data)
    async with a_site(make_stack) as site, visiting(browser, site.url, token=await site.token()) as visitor:
        await visitor.drop(folder)
        await all_done(visitor, 21)
        for path in (folder / "0" / "0.txt", folder / "whole.bin"):
            os.utime(path, (1_700_000_000, 1_700_000_000))
        await loaded_anew(visitor)
        sent = Sent(visitor)
        await visitor.drop(folder)
        await all_done(visitor, 21)
        assert (sent.batches, sent.bodies) == (1, 0)
        await expect(visitor.row("album", "complete")).to_contain_text("21 there already")


async def test_a_refused_file_of_a_batch_says_why_and_harms_no_other(
    browser: Browser, make_stack: MakeStack, tmp_path: Path
) -> None:
    folder = a_folder(tmp_path, 10)
    (folder / "back\\slash.txt").write_text("a name that the server does not take")
    async with a_site(make_stack) as site, visiting(browser, site.url, token=await site.token()) as visitor:
        await visitor.drop(folder)
        refused = visitor.row("back\\slash.txt", "failed")
        await expect(refused).to_contain_text("The server does not take this: name")
        await expect(visitor.page.locator("#total-words")).to_contain_text("10 of 11 files done")
        (folder / "back\\slash.txt").unlink()
        assert await site.sha256s() == digests_below(folder)


async def test_what_has_no_room_is_told_and_goes_when_there_is_some(
    browser: Browser, make_stack: MakeStack, tmp_path: Path
) -> None:
    folder = a_folder(tmp_path, 10, size=1000)
    async with (
        a_site(make_stack) as site,
        visiting(browser, site.url, token=await site.token("carol", total_space=4500)) as visitor,
    ):
        await visitor.drop(folder)
        await expect(visitor.page.locator("#total-words")).to_contain_text("4 of 10 files done · 6 failed")
        await expect(visitor.page.locator(".row.below[data-phase=failed]").first).to_contain_text("Not enough space")
        root = await site.server.stack.client_of("root", admin=True)
        await root.put("/admin/users/carol", json={"total_space": 10_000})
        await visitor.press("Retry failed")
        await all_done(visitor, 10)


async def test_a_file_that_is_gone_or_another_by_now_is_left_out(
    browser: Browser, make_stack: MakeStack, tmp_path: Path
) -> None:
    folder = a_folder(tmp_path, 10)
    held: list[Route] = []

    async def hold_first(route: Route) -> None:
        held.append(route)
        if len(held) > 1:
            await route.continue_()

    async def is_held() -> bool:
        return len(held) == 1

    async with a_site(make_stack) as site, visiting(browser, site.url, token=await site.token()) as visitor:
        await visitor.page.route("**/files/batch", hold_first)
        await visitor.drop(folder)
        await eventually(is_held, PATIENCE_SECONDS)
        await expect(visitor.page.locator("#total-words")).to_contain_text("of 10 files done")
        await visitor.press("Pause all")
        await visitor.press("Resume all")
        (folder / "0" / "0.txt").unlink()
        (folder / "1" / "1.txt").write_text("another one, of another size")
        await held[0].continue_()
        for name in ("0/0.txt", "1/1.txt"):
            await expect(visitor.row(name, "failed")).to_contain_text("The file ")
        await expect(visitor.page.locator("#total-words")).to_contain_text("8 of 10 files done")
        assert len(await site.files()) == 8


async def test_a_pause_holds_back_what_is_not_on_its_way(
    browser: Browser, make_stack: MakeStack, tmp_path: Path
) -> None:
    folder = a_folder(tmp_path, 30, size=100 * KIB)
    async with a_site(make_stack) as site, visiting(browser, site.url, token=await site.token()) as visitor:
        site.batches.open.clear()
        await visitor.drop(folder)
        await site.batches.wait_until_held()
        await visitor.press("Pause all")
        site.batches.open.set()
        await expect(visitor.page.locator("#total-words")).to_contain_text("20 of 30 files done")
        await expect(visitor.page.locator("#total-words")).to_contain_text("Paused")
        assert (site.batches.begun, len(await site.files())) == (_BATCHES_AT_ONCE, 20)
        await visitor.press("Resume all")
        await all_done(visitor, 30)
        assert await site.sha256s() == digests_below(folder)


async def test_a_file_that_is_cancelled_on_its_way_is_not_there(
    browser: Browser, make_stack: MakeStack, tmp_path: Path
) -> None:
    folder = a_folder(tmp_path, 30, size=100 * KIB)
    async with a_site(make_stack) as site, visiting(browser, site.url, token=await site.token()) as visitor:
        site.batches.open.clear()
        await visitor.drop(folder)
        await site.batches.wait_until_held()
        await visitor.press("Show the files of album")
        first = visitor.page.locator(".row.below[data-phase=uploading] .name").first
        name = str(await first.get_attribute("title"))
        await visitor.press(f"Cancel {name}")
        await expect(visitor.row(name)).to_have_count(0)
        site.batches.open.set()
        await all_done(visitor, 29)
        (tmp_path / name).unlink()

        async def is_not_there() -> bool:
            return await site.sha256s() == digests_below(folder)

        await eventually(is_not_there, PATIENCE_SECONDS)


async def test_all_are_cancelled_whether_on_their_way_or_not(
    browser: Browser, make_stack: MakeStack, tmp_path: Path
) -> None:
    folder = a_folder(tmp_path, 30, size=100 * KIB)
    async with a_site(make_stack) as site, visiting(browser, site.url, token=await site.token()) as visitor:
        site.batches.open.clear()
        await visitor.drop(folder)
        await site.batches.wait_until_held()
        await visitor.press("Cancel all")
        await visitor.press("Cancel upload")
        await expect(visitor.page.locator("#transfers")).to_be_hidden()
        site.batches.open.set()
        await visitor.drop(folder)
        await all_done(visitor, 30)
        assert await site.sha256s() == digests_below(folder)


async def test_a_server_that_is_killed_while_files_arrive_has_each_of_them_once(
    browser: Browser, tmp_path: Path
) -> None:
    folder = a_folder(tmp_path, 3000, size=2 * KIB)
    settings = {"DATA": str(tmp_path / "data"), "FREE_SPACE_FLOOR": "0"}
    server = ServerProcess(tmp_path / "log", settings)
    token = owner_token(tmp_path / "data")
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        visiting(browser, server.url, token=token) as visitor,
        httpx2.AsyncClient(base_url=server.url, headers=headers) as client,
    ):

        async def some_are_there() -> bool:
            return bool((await client.get("/me/files?limit=1")).json()["files"])

        with ended(server):
            await visitor.drop(folder)
            await eventually(some_are_there, PATIENCE_SECONDS)
            server.kill()
        await expect(visitor.page.locator("#total-words")).to_contain_text("No connection to the server")
        again = ServerProcess(tmp_path / "log", settings, port=server.port)
        with ended(again):
            await all_done(visitor, 3000)
            files = await all_files(client)
            assert len(files) == 3000
            assert {file["name"]: file["sha256"] for file in files} == digests_below(folder)


async def test_an_older_server_gets_chunks(browser: Browser, make_stack: MakeStack, tmp_path: Path) -> None:
    folder = a_folder(tmp_path, 20)
    (folder / "whole.bin").write_bytes(Content(WHOLE_BYTES, seed=1).data)
    (folder / "large.bin").write_bytes(Content(LARGE_BYTES, seed=1).data)
    told: list[str] = []
    async with serving_stack(make_stack, around=OlderServer, jobs=True, chunk_size_bytes=MIB) as server:
        token = await server.stack.services.accounts.create_token("alice", admin=False, total_space=None)
        async with visiting(browser, server.url, token=token) as visitor:
            sent = Sent(visitor)
            visitor.page.on("request", lambda request: told.append(request.url + (request.post_data or "")))
            await visitor.drop(folder)
            await all_done(visitor, 22)
            assert (sent.batches, sent.bodies) == (1, 23)
        files = await all_files(server.stack.client)
        assert {file["name"]: file["sha256"] for file in files} == digests_below(folder)
    assert not [each for each in told if "modified_at" in each]


async def test_where_a_proxy_lets_no_batch_pass_there_are_chunks(
    browser: Browser, make_stack: MakeStack, tmp_path: Path
) -> None:
    folder = a_folder(tmp_path, 5)

    async def refuse(route: Route) -> None:
        await route.fulfill(status=403, body="<h1>Forbidden</h1>", content_type="text/html")

    async with a_site(make_stack) as site, visiting(browser, site.url, token=await site.token()) as visitor:
        await visitor.page.route("**/files/batch", refuse)
        await visitor.drop(folder)
        await all_done(visitor, 5)
        assert await site.sha256s() == digests_below(folder)


async def test_the_archive_of_the_page_is_one_that_others_read(browser: Browser, make_stack: MakeStack) -> None:
    members = [
        {"name": "a.txt", "modifiedMs": 1_600_000_000_123, "bytes": [1, 2, 3]},
        {"name": "n" * 100, "modifiedMs": 0, "bytes": []},
        {"name": "d/" + "n" * 200, "modifiedMs": -1500, "bytes": [7] * 512},
        {"name": "乐队/" + "é" * 50, "modifiedMs": 9_999_999_999_999, "bytes": [8] * 513},
    ]
    async with a_site(make_stack) as site, visiting(browser, site.url, token=await site.token()) as visitor:
        encoded = await visitor.page.evaluate(
            """async (members) => {
                const { archiveOf } = await import("/static/pages/client/tar.js");
                const archive = archiveOf(members.map((member) => ({
                    ...member, sha256: `${member.bytes.length}`, bytes: new Uint8Array(member.bytes) })));
                return btoa(String.fromCharCode(...archive));
            }""",
            members,
        )
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(encoded)), mode="r:") as archive:
        found = archive.getmembers()
        assert [member.name for member in found] == [member["name"] for member in members]
        assert [member.mtime * 1000 for member in found] == [member["modifiedMs"] for member in members]
        for member, told in zip(found, members, strict=True):
            assert member.isreg()
            assert member.pax_headers["uploader.sha256"] == f"{member.size}"
            content = archive.extractfile(member)
            assert content is not None
            assert list(content.read()) == told["bytes"]
