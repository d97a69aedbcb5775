"""The web page as a person uses it, in a real Chromium: uploads that survive everything, in words that say what is."""

import asyncio
import hashlib
import os
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Route, expect
from sqlalchemy import select
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.conftest import MakeStack
from tests.support.browser import Visitor, visiting
from tests.support.content import MIB, Content
from tests.support.layout import blob_path
from tests.support.process import Server as ServerProcess
from tests.support.process import ended, owner_token
from tests.support.rot import flip_bit
from tests.support.sockets import Server, serving_stack
from tests.support.waiting import eventually
from uploader.client import plan
from uploader.client.source import open_source, sample_of
from uploader.database import models
from uploader.service.ids import new_id

CONNECTIONS = 4
PATIENCE_SECONDS = 60.0
_CHUNK = re.compile(r"/(?:uploads|files)/\w+/chunks/(\d+)")


class HeldChunks:
    """Stands before the application: lets some chunks through, and holds the others until more may pass."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._allowed = asyncio.Semaphore(0)
        self._open = asyncio.Event()
        self.begun: Counter[int] = Counter()
        self.ended: Counter[int] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match = _CHUNK.fullmatch(scope.get("path", ""))
        if match is None or scope["method"] != "PUT":
            await self._app(scope, receive, send)
            return
        number = int(match[1])
        self.begun[number] += 1
        if not self._open.is_set():
            passing = [asyncio.ensure_future(self._allowed.acquire()), asyncio.ensure_future(self._open.wait())]
            await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
            for future in passing:
                future.cancel()
        try:
            await self._app(scope, receive, send)
        finally:
            self.ended[number] += 1

    def let_pass(self, count: int) -> None:
        for _ in range(count):
            self._allowed.release()

    def let_all_pass(self) -> None:
        self._open.set()

    async def wait_until_ended(self, count: int) -> None:
        async def so_many() -> bool:
            return self.ended.total() >= count

        await eventually(so_many, PATIENCE_SECONDS)

    async def wait_until_held(self) -> None:
        """As many as the page sends at once are on their way, and none of them arrives."""

        async def all_held() -> bool:
            return self.begun.total() - self.ended.total() >= CONNECTIONS

        await eventually(all_held, PATIENCE_SECONDS)


@dataclass
class Site:
    """A server whose chunks the test holds in its hands."""

    server: Server
    chunks: HeldChunks

    @property
    def url(self) -> str:
        return self.server.url

    async def token(self, user_id: str, total_space: int | None = None) -> str:
        return await self.server.stack.services.accounts.create_token(user_id, admin=False, total_space=total_space)

    async def sha256s(self) -> dict[str, str]:
        """The contents of alice's files by their names, as the server has them."""
        files = (await self.server.stack.client.get("/me/files?limit=1000")).json()["files"]
        return {file["name"]: file["sha256"] for file in files}


@asynccontextmanager
async def a_site(make_stack: MakeStack, **settings: Any) -> AsyncIterator[Site]:
    holding: list[HeldChunks] = []

    def around(app: ASGIApp) -> ASGIApp:
        holding.append(HeldChunks(app))
        return holding[0]

    settings = {"jobs": True, "durability": "process", "chunk_size_bytes": MIB, **settings}
    async with serving_stack(make_stack, around=around, **settings) as server:
        try:
            yield Site(server, holding[0])
        finally:
            holding[0].let_all_pass()


def a_file(directory: Path, content: Content) -> Path:
    path = directory / content.name
    path.write_bytes(content.data)
    return path


async def test_a_file_is_paused_resumed_and_arrives_whole(
    browser: Browser, make_stack: MakeStack, tmp_path: Path
) -> None:
    content = Content(64 * MIB, seed=61, chunk_size=MIB, name="film.bin")
    path = a_file(tmp_path, content)
    async with (
        a_site(make_stack) as site,
        visiting(browser, site.url, token=await site.token("alice")) as visitor,
    ):
        await visitor.choose(path)
        site.chunks.let_pass(10)
        await site.chunks.wait_until_ended(10)
        await site.chunks.wait_until_held()
        await visitor.press("Pause film.bin")
        await expect(visitor.row("film.bin", "paused")).to_contain_text("Paused")
        site.chunks.let_all_pass()
        await site.chunks.wait_until_ended(10 + CONNECTIONS)
        await expect(visitor.row("film.bin")).to_contain_text("14 MiB of 64 MiB")
        assert site.chunks.begun.total() == 10 + CONNECTIONS
        await visitor.press("Resume film.bin")
        await expect(visitor.row("film.bin", "complete")).to_contain_text("Uploaded")
        assert await site.sha256s() == {"film.bin": content.sha256}
        assert site.chunks.begun == Counter(range(64))
        await visitor.page.locator("#quota button").click()
        await expect(visitor.page.get_by_text("Files: 64 MiB")).to_be_visible()


async def test_after_a_reload_and_in_another_browser_it_goes_on_where_it_was(
    browser: Browser, make_stack: MakeStack, tmp_path: Path
) -> None:
    """Larger than what is hashed first: sent while it is hashed, under the key that the command line would take, too."""
    content = Content(65 * MIB, seed=62, chunk_size=MIB, name="disk.img")
    path = a_file(tmp_path, content)
    async with a_site(make_stack) as site:
        token = await site.token("alice")
        async with visiting(browser, site.url, token=token) as visitor:
            await visitor.choose(path)
            site.chunks.let_pass(20)
            await site.chunks.wait_until_ended(20)
            await site.chunks.wait_until_held()
            await visitor.page.reload()
            await expect(visitor.row("disk.img", "unfinished")).to_contain_text("20 MiB of 65 MiB")
            await visitor.choose(path)
            site.chunks.let_pass(10 + CONNECTIONS)
            await site.chunks.wait_until_ended(30 + CONNECTIONS)
            await expect(visitor.row("disk.img")).to_have_count(1)
        async with visiting(browser, site.url, token=token) as visitor:
            await expect(visitor.row("disk.img", "unfinished")).to_be_visible()
            site.chunks.let_all_pass()
            async with visitor.page.expect_file_chooser() as chooser:
                await visitor.press("Choose the file disk.img again")
            await (await chooser.value).set_files(path)
            await expect(visitor.row("disk.img", "complete")).to_contain_text("Uploaded")
        assert await site.sha256s() == {"disk.img": content.sha256}
        assert set(site.chunks.begun) == set(range(65))
        assert site.chunks.begun.total() <= 65 + 2 * CONNECTIONS
        sample = await sample_of(open_source(path))
        key = select(models.upload.c.idempotency_key)
        async with site.server.stack.services.database.engine.connect() as connection:
            assert (await connection.execute(key)).scalar() == plan.resume_key("disk.img", content.size, sample, 0)


async def test_a_network_that_is_cut_and_returns_only_costs_time(
    browser: Browser, make_stack: MakeStack, tmp_path: Path
) -> None:
    content = Content(16 * MIB, seed=63, chunk_size=MIB, name="talk.ogg")
    async with (
        a_site(make_stack) as site,
        visiting(browser, site.url, token=await site.token("alice")) as visitor,
    ):
        await visitor.choose(a_file(tmp_path, content))
        site.chunks.let_pass(4)
        await site.chunks.wait_until_ended(4)
        await site.chunks.wait_until_held()
        await visitor.context.set_offline(True)
        await expect(visitor.row("talk.ogg")).to_contain_text("The server can't be reached. Trying again…")
        await expect(visitor.page.locator("#total-words")).to_contain_text("No connection")
        site.chunks.let_all_pass()
        await visitor.context.set_offline(False)
        await expect(visitor.row("talk.ogg", "complete")).to_be_visible()
        assert await site.sha256s() == {"talk.ogg": content.sha256}
        assert site.chunks.begun.total() <= 16 + CONNECTIONS


async def test_a_server_that_is_killed_and_started_again_only_costs_time(browser: Browser, tmp_path: Path) -> None:
    content = Content(16 * MIB, seed=64, chunk_size=MIB, name="backup.tar")
    settings = {"DATA": str(tmp_path / "data"), "FREE_SPACE_FLOOR": "0", "CHUNK_SIZE": "1MiB"}
    server = ServerProcess(tmp_path / "log", settings)
    token = owner_token(tmp_path / "data")
    allowed = 6
    held: list[Route] = []

    async def hold(route: Route) -> None:
        nonlocal allowed
        allowed -= 1
        if allowed < 0:
            held.append(route)
        else:
            await route.continue_()

    async def all_held() -> bool:
        return len(held) == CONNECTIONS

    async with visiting(browser, server.url, token=token) as visitor:
        with ended(server):
            await visitor.page.route("**/chunks/*", hold)
            await visitor.choose(a_file(tmp_path, content))
            await eventually(all_held, PATIENCE_SECONDS)
            server.kill()
        allowed = 1_000
        for route in held:
            await route.continue_()
        await expect(visitor.row("backup.tar")).to_contain_text("The server can't be reached. Trying again…")
        again = ServerProcess(tmp_path / "log", settings, port=server.port)
        with ended(again):
            await expect(visitor.row("backup.tar", "complete")).to_be_visible()
            await expect(visitor.files()).to_contain_text("backup.tar")


async def test_what_the_server_has_already_is_not_sent_again(
    browser: Browser, make_stack: MakeStack, tmp_path: Path
) -> None:
    """Another's content by a proof of possession, both where it is hashed first and where it is hashed beside."""
    contents = [Content(2 * MIB, seed=65, chunk_size=MIB, name="song.flac"), Content(65 * MIB, seed=66, chunk_size=MIB)]
    async with a_site(make_stack) as site:
        site.chunks.let_all_pass()
        for content in contents:
            await site.server.stack.upload(content)
        paths = [tmp_path / "song.flac", tmp_path / "copy.img"]
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content.data)
        async with visiting(browser, site.url, token=await site.token("bob")) as visitor:
            await visitor.choose(*paths)
            for path in paths:
                await expect(visitor.row(path.name, "complete")).to_contain_text("the server had it already")
            await expect(visitor.files()).to_have_count(2)
            files = (await (await site.server.stack.client_of("bob")).get("/me/files")).json()["files"]
    assert {file["name"]: file["sha256"] for file in files} == {
        path.name: content.sha256 for path, content in zip(paths, contents, strict=True)
    }
    assert all(file["instant"] for file in files)


async def test_a_refusal_is_told_in_words_and_mended_by_trying_again(
    browser: Browser, make_stack: MakeStack, tmp_path: Path
) -> None:
    content = Content(3 * MIB, seed=67, chunk_size=MIB, name="folder.zip")
    async with (
        a_site(make_stack) as site,
        visiting(browser, site.url, token=await site.token("carol", total_space=2 * MIB)) as visitor,
    ):
        site.chunks.let_all_pass()
        await visitor.choose(a_file(tmp_path, content))
        words = "Not enough space: this file needs 3 MiB, and 2 MiB of your 2 MiB are free."
        await expect(visitor.row("folder.zip", "failed")).to_contain_text(words)
        await expect(visitor.page.get_by_role("status")).to_have_text("folder.zip failed.")
        await visitor.page.get_by_label("Language").select_option("zh")
        await expect(visitor.row("folder.zip", "failed")).to_contain_text("空间不足")
        await visitor.page.get_by_label("语言").select_option("en")
        root = await site.server.stack.client_of("root", admin=True)
        await root.put("/admin/users/carol", json={"total_space": 4 * MIB})
        await visitor.press("Try folder.zip again")
        await expect(visitor.row("folder.zip", "complete")).to_be_visible()


async def test_a_file_that_changes_meanwhile_is_chosen_again(
    browser: Browser, make_stack: MakeStack, tmp_path: Path
) -> None:
    """Half of it as it was and half as it is now would be no file of anybody."""
    before, after = (Content(8 * MIB, seed=seed, chunk_size=MIB, name="draft.odt") for seed in (80, 81))
    async with (
        a_site(make_stack) as site,
        visiting(browser, site.url, token=await site.token("alice")) as visitor,
    ):
        await visitor.choose(a_file(tmp_path, before))
        site.chunks.let_pass(2)
        await site.chunks.wait_until_ended(2)
        await site.chunks.wait_until_held()
        path = a_file(tmp_path, after)
        os.utime(path, (2_000_000_000, 2_000_000_000))  # Chromium looks at the second only
        site.chunks.let_all_pass()
        await expect(visitor.row("draft.odt", "failed")).to_contain_text("The file changed on this device")
        assert (await site.server.stack.client.get("/uploads")).json() == {"uploads": []}
        async with visitor.page.expect_file_chooser() as chooser:
            await visitor.press("Choose the file draft.odt again")
        await (await chooser.value).set_files(path)
        await expect(visitor.row("draft.odt", "complete")).to_be_visible()
        assert await site.sha256s() == {"draft.odt": after.sha256}


async def test_ten_thousand_files_cost_no_more_rows_than_are_seen(browser: Browser, make_stack: MakeStack) -> None:
    """Dropped, and in the list of what is there."""
    async with a_site(make_stack) as site:
        await _ten_thousand_finished_files(site)
        async with visiting(browser, site.url, token=await site.token("alice")) as visitor:
            rows, finished = visitor.page.locator("#transfer-list .row"), visitor.files()
            await expect(finished.first).to_contain_text("0.dat")
            assert await finished.count() < 40
            await visitor.drop_many(10_000)
            await expect(visitor.page.locator("#total-words")).to_contain_text("of 10,000 files done")
            await visitor.press("Pause all")
            assert await rows.count() < 40
            await visitor.page.locator("#transfer-list").press("End")
            await expect(visitor.row("9999.txt", "paused")).to_be_visible()
            assert await rows.count() < 40
            await visitor.press("Cancel all")
            await visitor.press("Cancel upload")
            # What two batches may have brought before the pause is there, and stays listed until somebody clears it.
            if await visitor.page.get_by_role("button", name="Clear finished").is_visible():
                await visitor.press("Clear finished")
            await expect(visitor.page.locator("#transfers")).to_be_hidden()


async def _ten_thousand_finished_files(site: Site) -> None:
    file = (await site.server.stack.upload(Content(1, chunk_size=MIB))).json()["file"]
    del file["id"]
    columns = models.file.c
    async with site.server.stack.services.database.engine.begin() as connection:
        [row] = (await connection.execute(select(models.file))).mappings()
        copies = [{**row, columns.id.name: new_id(), "name": f"{number}.dat"} for number in range(10_000)]
        await connection.execute(models.file.insert(), copies)


async def test_a_finished_file_is_downloaded_renamed_and_deleted(
    browser: Browser, make_stack: MakeStack, tmp_path: Path
) -> None:
    content = Content(MIB, seed=68, chunk_size=MIB, name="notes.txt")
    async with (
        a_site(make_stack) as site,
        visiting(browser, site.url, token=await site.token("alice")) as visitor,
    ):
        site.chunks.let_all_pass()
        await visitor.choose(a_file(tmp_path, content))
        async with visitor.page.expect_download() as download:
            await visitor.press("Download notes.txt")
        assert (await (await download.value).path()).read_bytes() == content.data
        await visitor.ask_for("Rename", "notes.txt")
        await visitor.page.get_by_label("New name").fill("2026/notes.txt")
        await visitor.page.keyboard.press("Enter")
        await visitor.page.get_by_role("link", name="2026", exact=True).click()
        await visitor.ask_for("Delete", "notes.txt")
        await expect(visitor.page.get_by_text("Nothing in this folder")).to_be_visible()
        assert list(await site.sha256s()) == ["2026/notes.txt"]
        await visitor.page.reload()  # to leave is no change of mind

        async def deleted() -> bool:
            return await site.sha256s() == {}

        await eventually(deleted, PATIENCE_SECONDS)


async def test_a_file_that_went_bad_on_the_server_says_so(
    browser: Browser, make_stack: MakeStack, tmp_path: Path
) -> None:
    content = Content(MIB, seed=69, chunk_size=MIB, name="notes.txt")
    async with (
        a_site(make_stack) as site,
        visiting(browser, site.url, token=await site.token("alice")) as visitor,
    ):
        site.chunks.let_all_pass()
        await visitor.choose(a_file(tmp_path, content))
        await expect(visitor.files()).to_contain_text("notes.txt")
        flip_bit(blob_path(site.server.stack.data, content.sha256))
        assert [damage async for damage in site.server.stack.services.scrubbing.scrub(lambda _read: None)]
        await visitor.page.reload()
        await expect(visitor.files()).to_contain_text("damaged on the server: upload it again")


async def test_everybody_can_use_it(browser: Browser, make_stack: MakeStack, tmp_path: Path) -> None:
    """axe-core finds nothing serious, in light and dark: signing in, busy, in error, in a dialog; 320 pixels are enough."""
    paths = [
        a_file(tmp_path, Content(2 * MIB, seed=70 + number, chunk_size=MIB, name=f"{number}.bin")) for number in (1, 2)
    ]
    large = tmp_path / "large.bin"
    with large.open("wb") as sparse:
        sparse.truncate(100 * MIB)
    async with (
        a_site(make_stack) as site,
        visiting(browser, site.url, viewport={"width": 320, "height": 700}) as visitor,
    ):
        await visitor.page.goto(site.url)
        await expect(visitor.page.get_by_label("Token")).to_be_focused()
        await visitor.page.keyboard.type("not a token")
        await visitor.page.keyboard.press("Enter")
        await expect(visitor.page.get_by_role("alert")).to_contain_text("The server does not know this token.")
        assert await visitor.violations() == []
        await visitor.sign_in(await site.token("dave", total_space=4 * MIB))
        await expect(visitor.page.get_by_text("Drop files or folders here")).to_be_visible()
        assert await visitor.violations() == []
        site.chunks.let_pass(2)
        await visitor.choose(paths[0])
        await expect(visitor.row("1.bin", "complete")).to_be_visible()
        await visitor.choose(paths[1], large)
        await expect(visitor.row("large.bin", "failed")).to_be_visible()
        await expect(visitor.row("2.bin", "uploading")).to_be_visible()
        assert await visitor.violations() == []
        assert await _is_wider_than_its_window(visitor) is False
        site.chunks.let_all_pass()


async def _is_wider_than_its_window(visitor: Visitor) -> Any:
    return await visitor.page.evaluate("document.documentElement.scrollWidth > window.innerWidth")


async def test_folders_arrive_with_all_that_is_in_them(browser: Browser, make_stack: MakeStack, tmp_path: Path) -> None:
    """Dropped with a file beside it, and chosen."""
    contents = {f"album/{name}": name for name in ("1.txt", "live/2.txt", "live/encore/3.txt")}
    for name, text in contents.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "empty").write_bytes(b"")
    async with (
        a_site(make_stack) as site,
        visiting(browser, site.url, token=await site.token("alice")) as visitor,
    ):
        site.chunks.let_all_pass()
        await visitor.drop(tmp_path / "album", tmp_path / "empty")
        # The folder is one row.
        await expect(visitor.page.locator("#transfer-list .row[data-phase=complete]")).to_have_count(2)
        await expect(visitor.files()).to_have_count(2)
        await expect(visitor.files().first).to_contain_text("3 files")
        assert await site.sha256s() == {
            name: hashlib.sha256(text.encode()).hexdigest() for name, text in {**contents, "empty": ""}.items()
        }
        await visitor.page.set_input_files("#folder-input", tmp_path / "album")
        await expect(visitor.page.locator("#total-words")).to_contain_text("7 of 7 files done · 3 there already")
        await expect(visitor.files()).to_have_count(2)


async def test_where_no_token_is_needed_none_is_asked_for(browser: Browser, make_stack: MakeStack) -> None:
    async with a_site(make_stack, auth="none") as site, visiting(browser, site.url) as visitor:
        await visitor.page.goto(site.url)
        await expect(visitor.page.get_by_text("Drop files or folders here")).to_be_visible()
        await expect(visitor.page.get_by_label("Token")).to_have_count(0)
