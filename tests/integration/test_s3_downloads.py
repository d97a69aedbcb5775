"""Downloads that are sent on to the bucket, on a real server that speaks S3: `UPLOADER_S3_PRESIGNED_DOWNLOADS`."""

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
from tests.support.content import KIB, Content
from tests.support.gateways import PART_BYTES, Gateway, settings_of
from tests.support.process import Server, ended, owner_token
from tests.support.servers import free_port
from tests.support.stack import Stack
from uploader.addresses import BucketAddress
from uploader.client import AsyncClient, ContentDiffers, Patience, ServerProblem, Unreachable
from uploader.http.native import download
from uploader.storage.base import BytesBody
from uploader.storage.s3.bucket import Bucket, Stat

PART = max(PART_BYTES, 512 * KIB)
# Two parts, the second one is the rest; a name that only RFC 8187 can tell.
CONTENT = Content(PART + 3, seed=81, name="films/über 1.bin", chunk_size=PART)


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


async def film(stack: Stack, wire: Wire, into: Path, patience: Patience | None = None) -> bytes:
    """What our own client has when it has downloaded the file."""
    token = stack.client.headers["authorization"].removeprefix("Bearer ")
    async with AsyncClient("http://test", token, http_transport=wire, patience=patience or Patience()) as client:
        return (await client.download(await anext(client.files()), into / "film.bin")).read_bytes()


async def fetched(url: str, **headers: str) -> httpx2.Response:
    async with httpx2.AsyncClient() as anybody:
        return await anybody.get(url, headers=headers)


# What the server says


async def test_a_download_is_sent_on_to_the_bucket_for_a_minute_and_for_nothing_else(
    stack: Stack, content_url: str, s3_gateway: Gateway
) -> None:
    response = await stack.client.get(content_url)
    location = response.headers["location"]
    assert (response.status_code, response.content, response.headers["cache-control"]) == (307, b"", "no-store")
    assert location.startswith(f"{s3_gateway.endpoint}/{s3_gateway.bucket}/")
    there = await fetched(location)
    assert (there.status_code, there.content) == (200, CONTENT.data)
    assert there.headers["content-type"] == "application/octet-stream"
    assert there.headers["content-disposition"] == download.disposition(CONTENT.name)
    assert there.headers["content-disposition"].startswith("attachment; ")

    assert 0 < int(parse_qs(urlsplit(location).query)["X-Amz-Expires"][0]) <= 60
    assert (await fetched(location.replace("X-Amz-Expires=60", "X-Amz-Expires=86400"))).status_code == 403
    assert (await fetched(location.partition("?")[0])).status_code == 403
    async with httpx2.AsyncClient() as anybody:
        assert (await anybody.put(location, content=b"other bytes")).status_code == 403
        assert (await anybody.delete(location)).status_code == 403


ETAG, OTHER = f'"{CONTENT.sha256}"', f'"{"0" * 64}"'


async def test_a_range_is_sent_on_and_what_the_bucket_would_answer_otherwise_is_answered_here(
    stack: Stack, content_url: str
) -> None:
    for asked, first, last in [
        ("bytes=0-0", 0, 0),
        (f"bytes={PART - 2}-", PART - 2, CONTENT.size - 1),
        ("bytes=-5", CONTENT.size - 5, CONTENT.size - 1),
    ]:
        response = await stack.client.get(content_url, headers={"Range": asked})
        assert response.status_code == 307
        there = await fetched(response.headers["location"], Range=asked)
        assert there.status_code == 206
        assert there.headers["content-range"] == f"bytes {first}-{last}/{CONTENT.size}"
        assert there.content == CONTENT.data[first : last + 1]
    for headers, status in [
        ({"Range": "bytes=0-0,5-6"}, 206),
        ({"Range": f"bytes={CONTENT.size}-"}, 416),
        ({"Range": "bytes=no-range"}, 200),
        ({"Range": "bytes=0-0", "If-Range": OTHER}, 200),
        ({"Range": "bytes=0-0", "If-Range": ETAG}, 307),
        ({"If-None-Match": ETAG}, 304),
        ({"If-None-Match": OTHER}, 307),
    ]:
        assert (await stack.client.get(content_url, headers=headers)).status_code == status, headers


async def test_a_link_and_an_empty_file_are_sent_on_and_what_else_there_is_comes_from_here(
    stack: Stack, content_url: str
) -> None:
    link = (await stack.client.post(content_url.replace("/content", "/link"))).json()["url"]
    async with stack.anonymous() as anybody:
        response = await anybody.get(link)
    assert response.status_code == 307
    assert (await fetched(response.headers["location"])).content == CONTENT.data
    file = (await stack.upload(Content(0, seed=1, name="empty"))).json()["file"]
    response = await stack.client.get(f"/me/files/{file['id']}/content")
    assert response.status_code == 307
    assert (await fetched(response.headers["location"])).content == b""

    head = await stack.client.head(content_url)
    told = head.headers["content-length"], head.headers["etag"]
    assert (head.status_code, *told) == (200, str(CONTENT.size), ETAG)
    # A page may show what comes from its own origin.
    shown = await stack.client.get(content_url, params={"show": "inline"}, headers={"Range": "bytes=0-9"})
    assert (shown.status_code, shown.content) == (206, CONTENT.data[:10])
    archive = await stack.client.get("/me/archive?format=tar")
    assert archive.status_code == 200
    assert CONTENT.data in archive.content
    bob = await stack.client_of("bob")
    assert (await bob.get(content_url)).status_code == 404


# Our own client


async def test_the_client_follows_without_its_token_and_goes_on_in_the_bucket(
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
    assert await film(stack, wire, tmp_path, Patience(first_pause_seconds=0.01)) == CONTENT.data
    first, second = wire.asked_elsewhere
    assert "authorization" not in {*first.headers, *second.headers}
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


async def test_the_client_says_who_refuses_it_and_compares_what_the_bucket_sends(
    stack: Stack, content_url: str, tmp_path: Path, s3_gateway: Gateway, s3_address: BucketAddress
) -> None:
    at_once = Patience(give_up_after_seconds=0)
    with pytest.MonkeyPatch.context() as late, pytest.raises(ServerProblem) as told:
        late.setattr(download, "_SENT_ON_SECONDS", -1)  # as to one whose clock is wrong by hours
        await film(stack, Wire(stack), tmp_path, at_once)
    assert s3_gateway.endpoint in str(told.value)
    assert told.value.retryable

    nowhere = f"http://127.0.0.1:{free_port()}"
    elsewhere, presign = Bucket(replace(s3_address, endpoint=nowhere)), Bucket.presign_get
    with pytest.MonkeyPatch.context() as astray, pytest.raises(Unreachable, match=nowhere):
        astray.setattr(Bucket, "presign_get", lambda _, *asked: presign(elsewhere, *asked))
        await film(stack, Wire(stack), tmp_path, at_once)
    elsewhere.close()

    bucket = Bucket(s3_address)
    for stat in everything_in(bucket):  # other bytes, and as many
        bucket.put(stat.key, BytesBody(bytes(stat.size)))
    with pytest.raises(ContentDiffers):
        await film(stack, Wire(stack), tmp_path)
    assert not (tmp_path / "film.bin").exists()

    bucket.delete([stat.key for stat in everything_in(bucket)])
    bucket.close()
    response = await stack.client.get(content_url)
    assert (response.status_code, response.json()["code"]) == (500, "content-damaged"), "told before"


def everything_in(bucket: Bucket) -> list[Stat]:
    return [stat for prefix in ("u/", "w/") for batch in bucket.list_keys(prefix) for stat in batch]


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
