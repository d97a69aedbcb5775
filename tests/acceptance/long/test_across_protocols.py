"""One upload, whoever began it: by tus, by a command or on the page, the others see it, go on with it and cancel it."""

import asyncio
import io
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.async_api import Browser, expect
from tusclient.client import TusClient
from tusclient.exceptions import TusCommunicationError

from tests.support.browser import visiting
from tests.support.commands import Commands, token_of_somebody
from tests.support.content import MIB, Content
from tests.support.process import Server
from tests.support.resumable import RESUMABLE
from tests.support.waiting import eventually
from uploader.client import Client

TUS = {"Tus-Resumable": "1.0.0"}
SIZE = 20 * MIB + 77
NAME = "film.mp4"
SEEDS = itertools.count(195_000)


@dataclass
class Somebody:
    """A user of all that there is, with a file that nobody else has."""

    server: Server
    token: str
    home: Path
    content: Content

    def __post_init__(self) -> None:
        self.commands = Commands(self.home, self.server.url, self.token)
        self.http = httpx2.Client(base_url=self.server.url, headers={"Authorization": f"Bearer {self.token}"})
        self.path = self.home / NAME
        self.path.write_bytes(self.content.data)

    def url_of(self, upload_id: str) -> str:
        return f"{self.server.url}{RESUMABLE}/{upload_id}"

    def tus(self, upload_id: str | None = None) -> Any:
        """tuspy, with the file."""
        client = TusClient(f"{self.server.url}{RESUMABLE}", headers={"Authorization": f"Bearer {self.token}"})
        said = {"metadata": {"filename": NAME}} if upload_id is None else {"url": self.url_of(upload_id)}
        stream = io.BytesIO(self.content.data)
        return client.uploader(file_stream=stream, chunk_size=3 * MIB, **said)

    def begun_by_tus(self, sent_bytes: int) -> str:
        """The id of an upload of which so much is there."""
        uploader = self.tus()
        uploader.upload(stop_at=sent_bytes)
        return str(uploader.url).rpartition("/")[2]

    def uploads(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self.http.get("/uploads").json()["uploads"]
        return listed

    def head(self, upload_id: str) -> httpx2.Response:
        return self.http.head(self.url_of(upload_id), headers=TUS)

    def check_file(self) -> None:
        """The file is there, once, and nothing else is held."""
        (file,) = self.http.get("/me/files").json()["files"]
        assert (file["name"], file["sha256"], file["size"]) == (NAME, self.content.sha256, SIZE)
        assert self.uploads() == []
        assert self.usage() == (SIZE, 0, 0)

    def usage(self) -> tuple[int, int, int]:
        """What is finished, unfinished and reserved."""
        told = self.http.get("/me/usage").json()
        return told["use_space_finished"], told["use_space_unfinished"], told["reserved"]


@pytest.fixture
def somebody(server: Server, tmp_path: Path) -> Iterator[Somebody]:
    content = Content(SIZE, seed=next(SEEDS), name=NAME)
    made = Somebody(server, token_of_somebody(server), tmp_path, content)
    yield made
    made.http.close()


async def by_command(somebody: Somebody, _browser: Browser) -> None:
    (listed,) = somebody.commands.events("uploads")
    assert (listed["upload"]["name"], listed["upload"]["received_bytes"]) == (NAME, 9 * MIB)
    summary = somebody.commands.events("put", NAME, "--go-on", NAME)[-1]
    assert (summary["sent"], summary["exit_code"]) == (1, 0)
    if somebody.path.read_bytes() == somebody.content.data:
        assert summary["moved_bytes"] <= SIZE - 8 * MIB, "a chunk that is there is not sent again"


async def by_program(somebody: Somebody, _browser: Browser) -> None:
    def go_on() -> None:
        with Client(somebody.server.url, somebody.token) as client:
            (upload,) = client.uploads()
            assert client.go_on(upload, somebody.content.data).result(600).sha256 == somebody.content.sha256

    await asyncio.to_thread(go_on)


async def by_the_page(somebody: Somebody, browser: Browser) -> None:
    async with visiting(browser, somebody.server.url, token=somebody.token) as visitor:
        await expect(visitor.row(NAME, "unfinished")).to_contain_text("9 MiB of 20.0 MiB")
        async with visitor.page.expect_file_chooser() as chooser:
            await visitor.press(f"Choose the file {NAME} again")
        await (await chooser.value).set_files(somebody.path)
        await expect(visitor.row(NAME, "complete")).to_contain_text("Uploaded")


@pytest.mark.parametrize("go_on", [by_command, by_program, by_the_page])
async def test_others_go_on_with_what_tus_began(somebody: Somebody, browser: Browser, go_on: Any) -> None:
    upload_id = somebody.begun_by_tus(9 * MIB)
    await go_on(somebody, browser)
    somebody.check_file()
    assert somebody.head(upload_id).headers["upload-offset"] == str(SIZE), "so the other client sees that it is done"
    assert somebody.tus(upload_id).offset == SIZE


@pytest.mark.parametrize("go_on", [by_command, by_the_page])
async def test_going_on_with_other_bytes_makes_a_file_of_them(somebody: Somebody, browser: Browser, go_on: Any) -> None:
    upload_id = somebody.begun_by_tus(9 * MIB)
    other = Content(SIZE, seed=next(SEEDS))
    somebody.path.write_bytes(other.data)
    await go_on(somebody, browser)
    (file,) = somebody.http.get("/me/files").json()["files"]
    assert (file["name"], file["sha256"]) == (NAME, other.sha256)
    assert somebody.head(upload_id).status_code == 404
    assert somebody.usage() == (SIZE, 0, 0)


def test_which_upload_is_meant_has_to_be_clear(somebody: Somebody) -> None:
    first, second = somebody.begun_by_tus(MIB), somebody.begun_by_tus(MIB)
    several = somebody.commands.run("put", NAME, "--go-on", NAME)
    assert several.returncode == 6
    assert "ambiguous-name" in several.stderr
    assert first in several.stderr
    assert second in several.stderr
    nothing = somebody.commands.run("put", NAME, "--go-on", "other.mp4")
    assert (nothing.returncode, "upload-not-found" in nothing.stderr) == (6, True)
    somebody.path.write_bytes(somebody.content.data[:-1])
    shorter = somebody.commands.run("put", NAME, "--go-on", first)
    assert (shorter.returncode, "content-differs" in shorter.stderr) == (6, True)
    for wrong in (("--to", "x"), ("--name", "x"), (".",)):
        assert somebody.commands.run("put", NAME, *wrong, "--go-on", first).returncode == 2
    assert [each["received_bytes"] for each in somebody.uploads()] == [MIB, MIB], "nothing of it changed anything"


@pytest.mark.parametrize("by", ["command", "page"])
async def test_others_cancel_what_tus_began(somebody: Somebody, browser: Browser, by: str) -> None:
    upload_id = somebody.begun_by_tus(9 * MIB)

    async def is_gone() -> bool:
        return somebody.head(upload_id).status_code == 404

    if by == "command":
        assert somebody.commands.run("cancel", upload_id).returncode == 0
    else:
        async with visiting(browser, somebody.server.url, token=somebody.token) as visitor:
            await visitor.press(f"Cancel {NAME}")
            await visitor.press("Cancel upload")
            await eventually(is_gone)
    assert await is_gone()
    with pytest.raises(TusCommunicationError, match="404"):
        somebody.tus(upload_id)
    assert somebody.usage() == (0, 0, 0)
