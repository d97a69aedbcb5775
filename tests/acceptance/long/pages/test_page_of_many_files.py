"""The web page with folders of small files: they share requests, each with a fate of its own, and what is there already
stays where it is."""

import os
import re
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import pytest
from playwright.async_api import Browser, Request, Route, expect

from tests.conftest import MakeStack
from tests.support.browser import Held, Visitor, visiting
from tests.support.content import KIB, MIB, Content
from tests.support.process import Server as ServerProcess
from tests.support.process import client_of_owner, ended, owner_token
from tests.support.sites import BATCHES_AT_ONCE, CONNECTIONS, Site, a_file, a_site, is_batch
from tests.support.waiting import eventually

# A file that is larger than what goes in a batch, and one that is larger than a chunk.
WHOLE_BYTES, LARGE_BYTES = 300 * KIB, 2 * MIB


class Sent:
    """What the page sends: batches, bodies of bytes that are no batch, and how many requests in all."""

    def __init__(self, visitor: Visitor) -> None:
        self.batches = self.bodies = self.requests = 0
        visitor.page.on("request", self._count)

    def _count(self, request: Request) -> None:
        self.requests += 1
        if "/files/batch" in request.url:
            self.batches += 1
        elif request.method == "PUT":
            self.bodies += 1


@pytest.fixture
async def site(make_stack: MakeStack) -> AsyncIterator[Site]:
    async with a_site(make_stack, concerns=is_batch) as made:
        yield made


def a_folder(parent: Path, files: int, size: int = 100) -> Path:
    """A folder `album` of files with different contents, changed at different times in 2020."""
    folder = parent / "album"
    for number in range(files):
        path = a_file(folder / f"{number % 3}" / f"{number}.txt", Content(size, seed=number))
        os.utime(path, ns=(0, 1_600_000_000_000_000_000 + number * 1_234_567_890))
    return folder


def digests_below(folder: Path) -> dict[str, str]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder.parent)): sha256(path.read_bytes()).hexdigest() for path in paths}


async def test_a_folder_shares_requests_and_what_changed_is_sent(site: Site, visitor: Visitor, tmp_path: Path) -> None:
    folder = a_folder(tmp_path, 1100)
    a_file(folder / "empty", b"")
    a_file(folder / ("n" * 120 + ".txt"), b"long")
    for name, size, milliseconds in (("乐队 – café.txt", 512, -1500), ("d" * 100, 513, 9_999_999_999_999)):
        os.utime(a_file(folder / name, bytes(size)), ns=(0, milliseconds * 1_000_000))
    larger = {folder / "whole.bin": WHOLE_BYTES, folder / "large.bin": LARGE_BYTES}
    for path, size in larger.items():
        a_file(path, Content(size, seed=1))
    sent = Sent(visitor)
    await visitor.drop(folder)
    await visitor.all_done(1106)
    assert await site.sha256s() == digests_below(folder)
    stored = {file["name"]: file["modified_at"] for file in await site.files()}
    assert stored["album/1/1.txt"] == "2020-09-13T12:26:41.234000Z"
    assert stored["album/乐队 – café.txt"] == "1969-12-31T23:59:58.500000Z"
    assert stored["album/" + "d" * 100] == "2286-11-20T17:46:39.999000Z"
    # A MiB at most, where each file counts 2 KiB more; a whole file, and two chunks of another one.
    assert (sent.batches, sent.bodies) == (1 + 3, 1 + 2)
    status, row = visitor.page.get_by_role("status"), visitor.row("album", "complete")
    await expect(status).to_contain_text("files are uploaded.")

    await visitor.load_anew()
    sent = Sent(visitor)
    await visitor.page.set_input_files("#folder-input", folder)
    await visitor.all_done(1106)
    assert (sent.batches, sent.bodies) == (1, 0)
    assert sent.requests < 20
    assert visitor.page.workers == []  # none of them was read
    await expect(status).to_contain_text("files were there already.")
    await expect(row).to_contain_text("1,106 there already")
    await visitor.page.get_by_label("Language").select_option("zh")
    await expect(row).to_contain_text("1,106 个已存在")
    await visitor.page.get_by_label("语言").select_option("en")

    for path in (folder / "1" / "1.txt", folder / "whole.bin"):  # touched alone
        os.utime(path, (1_700_000_000, 1_700_000_000))
    await visitor.load_anew()
    sent = Sent(visitor)
    await visitor.drop(folder)
    await visitor.all_done(1106)
    assert (sent.batches, sent.bodies) == (1, 0)
    await expect(row).to_contain_text("1,106 there already")

    for path in (*larger, folder / "0" / "0.txt"):
        a_file(path, Content(path.stat().st_size, seed=2))
    await visitor.load_anew()
    sent = Sent(visitor)
    await visitor.drop(folder)
    await expect(visitor.page.get_by_label("The same for all 3 files")).to_be_checked()
    assert (sent.batches, sent.bodies) == (1, 0)
    await visitor.press("Keep both")
    await visitor.all_done(1106)
    assert (sent.batches, sent.bodies) == (1 + 1, 1 + 2)
    files = await site.files()
    assert len(files) == len(stored) + 3
    there, here = {file["name"]: file["sha256"] for file in files}, digests_below(folder)
    changed = {str(path.relative_to(folder.parent)) for path in (*larger, folder / "0" / "0.txt")}
    numbered = {name: "{0} (2).{2}".format(*name.rpartition(".")) for name in changed}
    assert {numbered.get(name, name): digest for name, digest in here.items()}.items() <= there.items()
    assert {there[name] for name in changed}.isdisjoint(here[name] for name in changed)


async def test_what_has_no_room_goes_when_there_is_some(browser: Browser, site: Site, tmp_path: Path) -> None:
    folder = a_folder(tmp_path, 10, size=1000)
    async with visiting(browser, site.url, token=await site.token("carol", total_space=4500)) as visitor:
        await visitor.drop(folder)
        await expect(visitor.total).to_contain_text("4 of 10 files done · 6 failed")
        await expect(visitor.page.locator(".row.below[data-phase=failed]").first).to_contain_text("Not enough space")
        await site.give_space("carol", 10_000)
        await visitor.press("Retry failed")
        await visitor.all_done(10)


async def test_a_file_that_is_refused_gone_or_another_harms_none(site: Site, visitor: Visitor, tmp_path: Path) -> None:
    folder = a_folder(tmp_path, 10)
    a_file(folder / "back\\slash.txt", b"a name that the server does not take")
    batches = Held()
    await visitor.page.route("**/files/batch", batches)
    await visitor.drop(folder)
    await batches.wait_for(1)
    await expect(visitor.total).to_contain_text("of 11 files done")
    await visitor.press("Pause all")
    await visitor.press("Resume all")
    (folder / "0" / "0.txt").unlink()
    a_file(folder / "1" / "1.txt", b"another one, of another size")
    batches.let_pass()
    for name in ("0/0.txt", "1/1.txt"):
        await expect(visitor.row(name, "failed")).to_contain_text("The file ")
    await expect(visitor.row("back\\slash.txt", "failed")).to_contain_text("The server does not take this: name")
    await expect(visitor.total).to_contain_text("8 of 11 files done")
    assert len(await site.files()) == 8


async def album_on_its_way(site: Site, visitor: Visitor, tmp_path: Path) -> Path:
    """A folder of which two batches are on their way, with ten files each, and as many files wait."""
    folder = a_folder(tmp_path, 30, size=100 * KIB)
    site.gate.close()
    await visitor.drop(folder)
    await site.gate.wait_until_held(BATCHES_AT_ONCE)
    return folder


async def test_a_pause_holds_back_what_is_not_on_its_way(site: Site, visitor: Visitor, tmp_path: Path) -> None:
    folder = await album_on_its_way(site, visitor, tmp_path)
    await visitor.press("Pause all")
    site.gate.open()
    await expect(visitor.total).to_contain_text("20 of 30 files done")
    await expect(visitor.total).to_contain_text("Paused")
    assert (site.gate.begun.total(), len(await site.files())) == (BATCHES_AT_ONCE, 20)
    await visitor.press("Resume all")
    await visitor.all_done(30)
    assert await site.sha256s() == digests_below(folder)


async def test_a_file_that_is_cancelled_on_its_way_is_not_there(site: Site, visitor: Visitor, tmp_path: Path) -> None:
    folder = await album_on_its_way(site, visitor, tmp_path)
    await visitor.press("Show the files of album")
    first = visitor.page.locator(".row.below[data-phase=uploading] .name").first
    name = str(await first.get_attribute("title"))
    await visitor.press(f"Cancel {name}")
    await expect(visitor.row(name)).to_have_count(0)
    site.gate.open()
    await visitor.all_done(29)
    (tmp_path / name).unlink()
    await site.until_there_are(*digests_below(folder))


async def test_a_server_that_is_killed_and_started_again_only_costs_time(browser: Browser, tmp_path: Path) -> None:
    """While chunks of one file and batches of a folder are on their way: each file is there once."""
    folder = a_folder(tmp_path, 1500, size=2 * KIB)
    film = a_file(folder / "film", Content(16 * MIB, seed=64))
    data = tmp_path / "data"
    settings = {"DATA": str(data), "FREE_SPACE_FLOOR": "0", "CHUNK_SIZE": "1MiB"}
    server = ServerProcess(tmp_path / "log", settings)
    chunks = Held(6)
    async with visiting(browser, server.url, token=owner_token(data)) as visitor:
        with ended(server), client_of_owner(server.url, data) as client:

            async def some_are_there() -> bool:
                return bool(client.get("/me/files?limit=1").json()["files"])

            await visitor.page.route("**/chunks/*", chunks)
            await visitor.drop(folder)
            await chunks.wait_for(6 + CONNECTIONS)
            await eventually(some_are_there)
            server.kill()
        chunks.let_pass()
        await expect(visitor.total).to_contain_text("No connection to the server")
        again = ServerProcess(tmp_path / "log", settings, port=server.port)
        with ended(again), client_of_owner(again.url, data) as client:
            await visitor.all_done(1501)
            pages = [client.get("/me/files?limit=1000").json()]
            pages.append(client.get(f"/me/files?limit=1000&after={pages[0]['next']}").json())
            files = [file for page in pages for file in page["files"]]
            assert len(files) == 1501
            assert {file["name"]: file["sha256"] for file in files} == digests_below(film.parent)


async def test_where_nothing_but_chunks_passes_there_are_chunks(site: Site, visitor: Visitor, tmp_path: Path) -> None:
    """As through a proxy, or at an older server."""
    folder = a_folder(tmp_path, 20)
    a_file(folder / "whole.bin", Content(WHOLE_BYTES, seed=1))
    a_file(folder / "large.bin", Content(LARGE_BYTES, seed=1))

    async def refuse(route: Route) -> None:
        await route.fulfill(status=403, body="<h1>Forbidden</h1>", content_type="text/html")

    await visitor.page.route("**/files/batch", refuse)
    await visitor.page.route(re.compile(r"/files/\w{32}\?"), refuse)
    sent = Sent(visitor)
    await visitor.drop(folder)
    await visitor.all_done(22)
    assert (sent.batches, sent.bodies) == (1, 23)
    assert await site.sha256s() == digests_below(folder)
