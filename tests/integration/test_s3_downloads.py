"""Downloads that are sent on to the bucket, on a real server that speaks S3: `UPLOADER_S3_PRESIGNED_DOWNLOADS`."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.support.commands import Commands
from tests.support.content import KIB, MIB, Content
from tests.support.gateways import Gateway, settings_of
from tests.support.process import Server, ended, owner_token
from tests.support.servers import free_port
from tests.support.stack import Stack
from uploader.addresses import BucketAddress
from uploader.client import AsyncClient, ContentDiffers, File, Patience, ServerProblem, Unreachable
from uploader.http.native import download
from uploader.storage.base import BytesBody
from uploader.storage.s3.bucket import Bucket

# Two parts, the second one is the rest; a name that only RFC 8187 can tell.
CONTENT = Content(5 * MIB + 3, seed=81, name="films/über 1.bin", chunk_size=5 * MIB)


@pytest.fixture
def bucket_settings(s3_address: BucketAddress) -> dict[str, Any]:
    """A bucket on a real server, and that downloads are sent on to it."""
    return settings_of(s3_address) | {"s3_presigned_downloads": True, "min_chunk_size_bytes": CONTENT.chunk_size}


@pytest.fixture
async def stack(make_stack: MakeStack, bucket_settings: dict[str, Any]) -> AsyncIterator[Stack]:
    async with make_stack(**bucket_settings) as made:
        yield made


@pytest.fixture
async def content_url(stack: Stack) -> str:
    """Where the content of a file is asked for."""
    response = await stack.upload(CONTENT)
    assert response.status_code == 201, response.text
    return f"/me/files/{response.json()['file']['id']}/content"


class Wire(httpx2.AsyncBaseTransport):
    """Leads to a stack, and to whatever else is asked for over the network; remembers what was asked there."""

    def __init__(self, stack: Stack) -> None:
        self.asked_elsewhere: list[httpx2.Request] = []
        self._stack = httpx2.ASGITransport(app=stack.app)
        self._network = httpx2.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.host == "test":
            return await self._stack.handle_async_request(request)
        self.asked_elsewhere.append(request)
        return await self._network.handle_async_request(request)

    async def aclose(self) -> None:
        await self._network.aclose()


def client_on(stack: Stack, wire: Wire, **more: Any) -> AsyncClient:
    token = stack.client.headers["authorization"].removeprefix("Bearer ")
    return AsyncClient("http://test", token, http_transport=wire, **more)


async def file_of(client: AsyncClient) -> File:
    return await anext(client.files())


async def fetched(url: str, **headers: str) -> httpx2.Response:
    async with httpx2.AsyncClient() as anybody:
        return await anybody.get(url, headers=headers)


# What the server says


async def test_a_download_is_sent_on_to_the_bucket(stack: Stack, content_url: str, s3_gateway: Gateway) -> None:
    response = await stack.client.get(content_url)
    assert response.status_code == 307
    assert response.content == b""
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["location"].startswith(f"{s3_gateway.endpoint}/{s3_gateway.bucket}/")
    there = await fetched(response.headers["location"])
    assert there.status_code == 200
    assert there.content == CONTENT.data
    assert there.headers["content-type"] == "application/octet-stream"
    assert there.headers["content-disposition"] == download.disposition(CONTENT.name)
    assert there.headers["content-disposition"].startswith("attachment; ")


async def test_the_url_works_for_a_minute_and_for_nothing_else(stack: Stack, content_url: str) -> None:
    location = (await stack.client.get(content_url)).headers["location"]
    assert 0 < int(parse_qs(urlsplit(location).query)["X-Amz-Expires"][0]) <= 60
    assert (await fetched(location.replace("X-Amz-Expires=60", "X-Amz-Expires=86400"))).status_code == 403
    assert (await fetched(location.partition("?")[0])).status_code == 403
    async with httpx2.AsyncClient() as anybody:
        assert (await anybody.put(location, content=b"other bytes")).status_code == 403
        assert (await anybody.delete(location)).status_code == 403


async def test_the_url_ends(stack: Stack, content_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_SENT_ON_SECONDS", 1)
    location = (await stack.client.get(content_url)).headers["location"]
    await asyncio.sleep(2.1)
    assert (await fetched(location)).status_code == 403


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [("bytes=0-0", 0, 0), (f"bytes={5 * MIB - 2}-", 5 * MIB - 2, CONTENT.size - 1), ("bytes=-5", CONTENT.size - 5, -1)],
)
async def test_a_range_is_sent_on(stack: Stack, content_url: str, asked: str, first: int, last: int) -> None:
    response = await stack.client.get(content_url, headers={"Range": asked})
    assert response.status_code == 307
    there = await fetched(response.headers["location"], Range=asked)
    assert there.status_code == 206
    last %= CONTENT.size
    assert there.headers["content-range"] == f"bytes {first}-{last}/{CONTENT.size}"
    assert there.content == CONTENT.data[first : last + 1]


async def test_what_the_bucket_would_answer_otherwise_is_answered_here(stack: Stack, content_url: str) -> None:
    async def status(**headers: str) -> int:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return (await stack.client.get(content_url, headers=names)).status_code

    mine, other = f'"{CONTENT.sha256}"', f'"{"0" * 64}"'
    assert await status(range="bytes=0-0,5-6") == 206
    assert await status(range=f"bytes={CONTENT.size}-") == 416
    assert await status(range="bytes=no-range") == 200
    assert await status(range="bytes=0-0", if_range=other) == 200
    assert await status(range="bytes=0-0", if_range=mine) == 307
    assert await status(if_none_match=mine) == 304
    assert await status(if_none_match=other) == 307


async def test_a_head_is_answered_here(stack: Stack, content_url: str) -> None:
    response = await stack.client.head(content_url)
    assert response.status_code == 200
    assert response.headers["content-length"] == str(CONTENT.size)
    assert response.headers["etag"] == f'"{CONTENT.sha256}"'


async def test_what_is_shown_comes_from_here(stack: Stack, content_url: str) -> None:
    """A page may show what comes from its own origin."""
    response = await stack.client.get(content_url, params={"show": "inline"}, headers={"Range": "bytes=0-9"})
    assert response.status_code == 206
    assert response.content == CONTENT.data[:10]


async def test_a_link_is_sent_on(stack: Stack, content_url: str) -> None:
    link = (await stack.client.post(content_url.replace("/content", "/link"))).json()["url"]
    async with stack.anonymous() as anybody:
        response = await anybody.get(link)
    assert response.status_code == 307
    assert (await fetched(response.headers["location"])).content == CONTENT.data


async def test_an_archive_comes_from_here(stack: Stack, content_url: str) -> None:
    response = await stack.client.get("/me/archive?format=tar")
    assert response.status_code == 200
    assert CONTENT.data in response.content


async def test_an_empty_file_is_sent_on(stack: Stack) -> None:
    empty = Content(0, seed=1, name="empty")
    file = (await stack.upload(empty)).json()["file"]
    response = await stack.client.get(f"/me/files/{file['id']}/content")
    assert response.status_code == 307
    assert (await fetched(response.headers["location"])).content == b""


async def test_a_content_that_is_not_there_is_told_before(
    stack: Stack, content_url: str, s3_address: BucketAddress
) -> None:
    lose_everything(s3_address)
    response = await stack.client.get(content_url)
    assert response.status_code == 500
    assert response.json()["code"] == "content-damaged"


async def test_another_user_is_not_sent_on(stack: Stack, content_url: str) -> None:
    bob = await stack.client_of("bob")
    assert (await bob.get(content_url)).status_code == 404


async def test_without_the_setting_all_comes_from_here(make_stack: MakeStack, bucket_settings: dict[str, Any]) -> None:
    async with make_stack(**bucket_settings | {"s3_presigned_downloads": False}) as stack:
        file = (await stack.upload(CONTENT)).json()["file"]
        response = await stack.client.get(f"/me/files/{file['id']}/content")
        assert response.status_code == 200
        assert response.content == CONTENT.data


# Our own client


async def test_the_client_follows_without_its_token(stack: Stack, content_url: str, tmp_path: Path) -> None:
    wire = Wire(stack)
    async with client_on(stack, wire) as client:
        file = await file_of(client)
        path = await client.download(file, tmp_path / "film.bin")
    assert path.read_bytes() == CONTENT.data
    [asked] = wire.asked_elsewhere
    assert "authorization" not in asked.headers


async def test_the_client_goes_on_in_the_bucket(
    stack: Stack, content_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = Wire(stack)
    broken: list[httpx2.Request] = []
    reached = wire._network.handle_async_request

    async def breaking(request: httpx2.Request) -> httpx2.Response:
        response = await reached(request)
        if broken:
            return response
        broken.append(request)
        return httpx2.Response(response.status_code, headers=response.headers, stream=_Broken(response, request))

    monkeypatch.setattr(wire._network, "handle_async_request", breaking)
    async with client_on(stack, wire, patience=Patience(first_pause_seconds=0.01)) as client:
        path = await client.download(await file_of(client), tmp_path / "film.bin")
    assert path.read_bytes() == CONTENT.data
    first, second = wire.asked_elsewhere
    assert "range" not in first.headers
    assert second.headers["range"].startswith("bytes=")
    assert second.headers["range"] != "bytes=0-"
    assert "if-range" not in second.headers


class _Broken(httpx2.AsyncByteStream):
    """The beginning of an answer, and then nothing."""

    def __init__(self, response: httpx2.Response, request: httpx2.Request) -> None:
        self._response = response
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = 300 * KIB
        async for piece in self._response.aiter_raw(100 * KIB):
            yield piece
            left -= len(piece)
            if left <= 0:
                raise httpx2.ReadError("the connection broke", request=self._request)

    async def aclose(self) -> None:
        await self._response.aclose()


async def test_the_client_compares_what_the_bucket_sends(
    stack: Stack, content_url: str, tmp_path: Path, s3_address: BucketAddress
) -> None:
    replace_everything(s3_address)
    async with client_on(stack, Wire(stack)) as client:
        with pytest.raises(ContentDiffers):
            await client.download(await file_of(client), tmp_path / "film.bin")
    assert not (tmp_path / "film.bin").exists()


async def test_the_client_says_who_refuses_it(
    stack: Stack, content_url: str, tmp_path: Path, s3_gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose clock is wrong by hours would."""
    monkeypatch.setattr(download, "_SENT_ON_SECONDS", -1)
    impatient = Patience(give_up_after_seconds=0)
    async with client_on(stack, Wire(stack), patience=impatient) as client:
        with pytest.raises(ServerProblem) as told:
            await client.download(await file_of(client), tmp_path / "film.bin")
    assert s3_gateway.endpoint in str(told.value)
    assert told.value.retryable


async def test_the_client_says_that_it_does_not_reach_the_bucket(
    stack: Stack, content_url: str, tmp_path: Path, s3_address: BucketAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    elsewhere, presign = Bucket(replace(s3_address, endpoint=nowhere)), Bucket.presign_get
    monkeypatch.setattr(Bucket, "presign_get", lambda _, *asked: presign(elsewhere, *asked))
    async with client_on(stack, Wire(stack), patience=Patience(give_up_after_seconds=0)) as client:
        with pytest.raises(Unreachable, match=nowhere):
            await client.download(await file_of(client), tmp_path / "film.bin")
    elsewhere.close()


def test_get_follows(tmp_path: Path, s3_gateway: Gateway) -> None:
    data, prefix = tmp_path / "data", f"tests/{secrets.token_hex(8)}"
    settings = {"DATA": str(data), "S3_PRESIGNED_DOWNLOADS": "true", **s3_gateway.environment(prefix)}
    server = Server(tmp_path / "log", settings)
    with ended(server):
        commands = Commands(tmp_path, server.url, owner_token(data))
        (tmp_path / "film.bin").write_bytes(CONTENT.data)
        put = commands.run("put", "film.bin")
        assert put.returncode == 0, put.stderr
        got = commands.run("get", "film.bin", "-o", "copy.bin")
        assert got.returncode == 0, got.stderr
    assert (tmp_path / "copy.bin").read_bytes() == CONTENT.data


# What happens in the bucket


def lose_everything(address: BucketAddress) -> None:
    bucket = Bucket(address)
    bucket.delete([stat.key for prefix in ("u/", "w/") for batch in bucket.list_keys(prefix) for stat in batch])
    bucket.close()


def replace_everything(address: BucketAddress) -> None:
    """Other bytes, and as many."""
    bucket = Bucket(address)
    for stat in [stat for prefix in ("u/", "w/") for batch in bucket.list_keys(prefix) for stat in batch]:
        bucket.put(stat.key, BytesBody(bytes(stat.size)))
    bucket.close()
