"""Downloads of the Python client: they go on where they stopped, and nothing appears that is not whole and right."""

import asyncio
import fcntl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from tests.support.content import KIB, Content
from tests.support.layout import blob_path
from tests.support.rot import flip_bit
from tests.support.stack import Stack
from tests.support.uploading import Wire, stopped
from uploader.client import AsyncClient, ContentDiffers, File, NotFound, TargetBusy, TargetExists

CONTENT = Content(1500 * KIB + 3, seed=71, name="folder/film.bin")


class BreakingWire(Wire):
    """Breaks answers off after `after_bytes` of a body, `times` times; remembers the ranges that were asked for."""

    after_bytes = 0
    times = 0

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack)
        self.ranges: list[str | None] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if request.url.path.endswith("/content"):
            self.ranges.append(request.headers.get("range"))
            if self.times:
                self.times -= 1
                whole = await response.aread()
                return httpx2.Response(
                    response.status_code, headers=response.headers, stream=_Broken(whole[: self.after_bytes], request)
                )
        return response


class _Broken(httpx2.AsyncByteStream):
    def __init__(self, content: bytes, request: httpx2.Request) -> None:
        self._content = content
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._content
        raise httpx2.ReadError("the connection broke", request=self._request)


@pytest.fixture
def wire(stack: Stack) -> BreakingWire:
    return BreakingWire(stack)


@pytest.fixture
async def file(client: AsyncClient) -> File:
    return await client.upload(CONTENT.data, CONTENT.name)


def partial_of(directory: Path) -> Path:
    return directory / f".uploader-{CONTENT.sha256[:32]}.part"


async def test_a_broken_download_goes_on(client: AsyncClient, wire: BreakingWire, file: File, tmp_path: Path) -> None:
    wire.after_bytes, wire.times = 512 * KIB, 2
    path = await client.download(file, tmp_path)
    assert path == tmp_path / "film.bin"
    assert path.read_bytes() == CONTENT.data
    assert wire.ranges == [None, f"bytes={512 * KIB}-", f"bytes={1024 * KIB}-"]
    assert [each.name for each in tmp_path.iterdir() if each.is_file() and each.suffix == ".part"] == []


@pytest.mark.parametrize(
    ("left", "asked"),
    [
        (CONTENT.data[:1000], ["bytes=1000-"]),
        (CONTENT.data, []),
        (b"other bytes", ["bytes=11-", None]),
        (CONTENT.data + b"more", [None]),
        (bytes(CONTENT.size), [None]),
    ],
    ids=["the beginning", "all of it", "other", "longer", "zeros"],
)
async def test_another_run_goes_on_with_what_a_killed_one_left_if_it_is_a_beginning(
    client: AsyncClient, wire: BreakingWire, file: File, tmp_path: Path, left: bytes, asked: list[str | None]
) -> None:
    partial_of(tmp_path).write_bytes(left)
    assert (await client.download(file, tmp_path)).read_bytes() == CONTENT.data
    assert wire.ranges == asked


async def test_bytes_that_are_wrong_never_appear(
    client: AsyncClient, stack: Stack, file: File, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a server that does not compare what it sends."""
    monkeypatch.setattr(stack.services.storage, "_verifies", False)
    flip_bit(blob_path(stack.data, file.sha256), 8 * (CONTENT.size - 1))
    with pytest.raises(ContentDiffers):
        await client.download(file, tmp_path)
    assert not (tmp_path / "film.bin").exists()


async def test_what_is_there_is_left_alone(client: AsyncClient, wire: BreakingWire, file: File, tmp_path: Path) -> None:
    target = tmp_path / "mine"
    target.write_bytes(CONTENT.data)
    assert await client.download(file, target) == target
    assert wire.ranges == []
    target.write_bytes(bytes(CONTENT.size))
    with pytest.raises(TargetExists):
        await client.download(file, target)
    assert target.read_bytes() == bytes(CONTENT.size)
    await client.download(file, target, overwrite=True)
    assert target.read_bytes() == CONTENT.data


async def test_two_downloads_of_the_same_content_do_not_mix(client: AsyncClient, file: File, tmp_path: Path) -> None:
    with partial_of(tmp_path).open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(TargetBusy):
            await client.download(file, tmp_path)
    assert (await client.download(file, tmp_path)).read_bytes() == CONTENT.data
    await client.delete(file.id)
    with pytest.raises(NotFound):
        await client.download(file, tmp_path / "gone")
    assert not partial_of(tmp_path).exists()


async def test_a_stopped_one_leaves_its_bytes(
    client: AsyncClient, wire: BreakingWire, file: File, tmp_path: Path
) -> None:
    transfer = client.start_download(file, tmp_path)
    broken = asyncio.Event()

    async def before(request: httpx2.Request) -> None:
        if "range" in request.headers:
            broken.set()
            await asyncio.Event().wait()

    wire.before, wire.after_bytes, wire.times = before, 768 * KIB, 1
    await broken.wait()
    await stopped(transfer)
    assert partial_of(tmp_path).read_bytes() == CONTENT.data[: 768 * KIB]
    assert not (tmp_path / "film.bin").exists()


async def test_a_range_that_is_ignored(client: AsyncClient, wire: BreakingWire, file: File, tmp_path: Path) -> None:
    """As some proxies do."""

    async def before(request: httpx2.Request) -> None:
        request.headers.pop("range", None)

    wire.before = before
    partial_of(tmp_path).write_bytes(CONTENT.data[:1000])
    assert (await client.download(file, tmp_path)).read_bytes() == CONTENT.data
