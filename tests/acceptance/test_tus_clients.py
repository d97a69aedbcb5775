"""tuspy and aiotus as their users have them, against the server as its users run it. Uppy and the like: tests/clients."""

import asyncio
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import aiotus
import pytest
import yarl
from aiotus.core import upload_buffer
from tusclient.client import TusClient
from tusclient.exceptions import TusCommunicationError
from tusclient.storage.filestorage import FileStorage

from tests.support.commands import token_of_somebody
from tests.support.content import KIB, MIB, Content
from tests.support.documents import DOCS, blocks
from tests.support.process import Mortal, Server, run_program
from tests.support.relay import relaying
from tests.support.resumable import RESUMABLE
from tests.support.waiting import eventually
from uploader.client import Client

CONTENT = Content(12 * MIB + 345, seed=191, name="holiday.mp4")
ARRIVED = (CONTENT.name, CONTENT.sha256)
CHUNK = 2 * MIB
DOCUMENT = DOCS / "clients.md"
# Both try again as often.
TRIES = 10
# Both hand their chunks to aiohttp as they are.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body directly with raw bytes:ResourceWarning")


@pytest.fixture
def token(server: Server) -> str:
    """Of a user for this test alone."""
    return token_of_somebody(server, "--total-space", "32MiB")


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def files_on(url: str, token: str) -> list[tuple[str, str]]:
    """Their names and contents."""
    with Client(url, token) as client:
        return [(file.name, file.sha256) for file in client.files()]


def send_by_tuspy(url: str, token: str, content: bytes, **more: Any) -> str:
    """The URL of the upload."""
    client = TusClient(url + RESUMABLE, headers=bearer(token))
    more = {"chunk_size": CHUNK, "metadata": {"filename": CONTENT.name}, "retries": TRIES, "retry_delay": 1} | more
    uploader = client.uploader(file_stream=io.BytesIO(content), **more)
    uploader.upload()
    return str(uploader.url)


def send_by_aiotus(url: str, token: str, content: bytes) -> str:
    """The URL of the upload; empty if aiotus gave up."""
    sent = aiotus.upload(
        url + RESUMABLE,
        io.BytesIO(content),
        {"filename": CONTENT.name.encode(), "empty": None},
        headers=bearer(token),
        chunksize=CHUNK,
        config=aiotus.RetryConfiguration(retry_attempts=TRIES),
    )
    return str(asyncio.run(sent) or "")


CLIENTS = pytest.mark.parametrize("send", [send_by_tuspy, send_by_aiotus])


@CLIENTS
@pytest.mark.parametrize("size", [0, 1, CONTENT.size])
def test_a_file_arrives_as_it_was(server: Server, token: str, send: Any, size: int) -> None:
    content = Content(size, seed=191)
    url = send(server.url, token, content.data)
    with Client(server.url, token) as client:
        (file,) = client.files()
        assert (file.name, file.size, file.sha256) == ("holiday.mp4", size, content.sha256)
        assert client.uploads() == []
    told = asyncio.run(aiotus.metadata(url, headers=bearer(token)))
    assert told is not None
    assert told["filename"] == b"holiday.mp4"


@CLIENTS
def test_a_killed_server_costs_no_acknowledged_byte(tmp_path: Path, send: Any) -> None:
    mortal = Mortal(tmp_path)
    try:
        with relaying(mortal.server.port, 3 * CHUNK + MIB, mortal.kill_and_start) as relay:
            assert send(relay.url, mortal.token, CONTENT.data)
            assert relay.is_cut
            assert relay.sent_bytes < CONTENT.size + CHUNK + 64 * KIB, "what was acknowledged is not sent again"
        assert files_on(mortal.url, mortal.token) == [ARRIVED]
    finally:
        mortal.end()


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[..., str]:
    """What a client says that gives up after it tried once."""
    monkeypatch.setattr(f"{__name__}.TRIES", 1)

    def refused(send: Any, *arguments: Any) -> str:
        if send is send_by_aiotus:
            assert send(*arguments) == ""
            return caplog.text
        with pytest.raises(TusCommunicationError) as caught:
            send(*arguments)
        return f"{caught.value.status_code} {caught.value.response_content!r}"

    return refused


@CLIENTS
def test_what_the_quota_has_no_room_for_is_refused_before_it_is_sent(
    server: Server, token: str, send: Any, once: Callable[..., str]
) -> None:
    too_much = bytes(32 * MIB + 1)
    with relaying(server.port) as relay, Client(server.url, token) as client:
        told = once(send, relay.url, token, too_much)
        assert "413" in told
        assert send is send_by_aiotus or "quota-exceeded" in told
        assert "401" in once(send, relay.url, "wrong", too_much)
        assert relay.sent_bytes < 64 * KIB
        usage = client.usage()
        assert (usage.use_space_unfinished, usage.reserved) == (0, 0)
        assert send(server.url, token, too_much[:-1]), "what just fits does"
        assert client.usage().available == 0


def lines_of_the_document(language: str, containing: str, url: str) -> str:
    (text,) = blocks(DOCUMENT, language, containing)
    return text.replace("https://files.example", url)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # tuspy leaves the files open that it opens by name
@pytest.mark.parametrize("call", ["TusClient(", "aiotus.upload("])
def test_the_lines_of_python_upload_a_file(server: Server, token: str, tmp_path: Path, call: str) -> None:
    page: dict[str, Any] = {}
    exec(compile(lines_of_the_document("python", call, server.url), str(DOCUMENT), "exec"), page)
    path = tmp_path / CONTENT.name
    path.write_bytes(CONTENT.data)
    sent = page["send"](str(path), "videos.mp4", token)
    url = asyncio.run(sent) if asyncio.iscoroutine(sent) else sent
    if call == "TusClient(":
        assert page["send"](str(path), "again.mp4", token, url) == url, "it goes on, where nothing is left"
    assert files_on(server.url, token) == [("videos.mp4", CONTENT.sha256)]


def test_the_lines_of_curl_upload_a_file_and_go_on_with_it(server: Server, token: str, tmp_path: Path) -> None:
    (tmp_path / CONTENT.name).write_bytes(CONTENT.data)
    with relaying(server.port, 5 * MIB) as relay:
        lines = lines_of_the_document("bash", "Upload-Metadata: filename", relay.url)
        begin, again = lines.split("\n\n")
        run = run_program(
            ["bash", "-c", f"{begin}\n{again}\n{again}"], cwd=tmp_path, env={**os.environ, "TOKEN": token}
        )
        assert relay.is_cut, "the first time it breaks off"
    offsets = [int(line.partition(": ")[2]) for line in run.stdout.splitlines()]
    assert 0 < offsets[0] < offsets[1] == CONTENT.size, run.stderr
    assert files_on(server.url, token) == [ARRIVED]


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # it leaves the files open that it opens by name
def test_tuspy_goes_on_by_the_url_that_it_has_kept(server: Server, token: str, tmp_path: Path) -> None:
    path = tmp_path / CONTENT.name
    path.write_bytes(CONTENT.data)
    storage: Any = FileStorage(str(tmp_path / "urls.json"))  # type: ignore[no-untyped-call]
    kept = {"store_url": True, "url_storage": storage, "chunk_size": CHUNK, "metadata": {"filename": CONTENT.name}}
    client = TusClient(server.url + RESUMABLE, headers=bearer(token))
    first = client.uploader(str(path), **kept)
    first.upload(stop_at=3 * MIB)
    again = client.uploader(str(path), **kept)
    assert (again.url, again.offset) == (first.url, 3 * MIB)
    again.upload()
    assert files_on(server.url, token) == [ARRIVED]
    assert client.uploader(str(path), url=first.url).offset == CONTENT.size, "nothing is left to send"
    storage.close()


def test_tuspy_sends_checksums(server: Server, token: str) -> None:
    send_by_tuspy(server.url, token, CONTENT.data, upload_checksum=True)
    assert files_on(server.url, token) == [ARRIVED]


async def test_aiotus_goes_on_by_a_url(server: Server, token: str) -> None:
    class Broken(io.BytesIO):
        """A disk that gives half of it."""

        def read(self, size: int | None = -1) -> bytes:
            if self.tell() >= 3 * CHUNK:
                raise OSError("the disk is gone")
            return super().read(size)

    url = server.url + RESUMABLE
    assert await aiotus.upload(url, Broken(CONTENT.data), headers=bearer(token), chunksize=CHUNK) is None
    with Client(server.url, token) as client:
        (upload,) = client.uploads()
    assert upload.received_bytes == 3 * CHUNK
    async with aiohttp.ClientSession(headers=bearer(token)) as session:
        await upload_buffer(session, yarl.URL(f"{url}/{upload.id}"), io.BytesIO(CONTENT.data))
    assert [sha256 for _, sha256 in files_on(server.url, token)] == [CONTENT.sha256]


async def test_aiotus_puts_parts_together(server: Server, token: str) -> None:
    parts = [io.BytesIO(CONTENT.data[start : start + 5 * MIB]) for start in range(0, CONTENT.size, 5 * MIB)]
    sent = await aiotus.upload_multiple(
        server.url + RESUMABLE, parts, {"filename": b"holiday.mp4"}, headers=bearer(token)
    )
    assert sent is not None

    async def is_there() -> bool:  # parts are put together in the background
        return bool(files_on(server.url, token))

    await eventually(is_there)
    assert files_on(server.url, token) == [ARRIVED]
