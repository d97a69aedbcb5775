"""A bucket whose server is away, or goes away in the middle: nothing is taken for damaged because of it, and all goes on
when it is back. A real server that speaks S3, killed and started again."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.support.background import succeeds
from tests.support.content import KIB, MIB, Content
from tests.support.deltas import Edited
from tests.support.gateways import JuiceGateway, settings_of
from tests.support.problems import problem
from tests.support.process import Server, ended, owner_token
from tests.support.stack import Stack
from uploader.addresses import BucketAddress
from uploader.errors import StorageAway
from uploader.storage.s3 import bucket
from uploader.storage.s3.bucket import Bucket, ObjectReader
from uploader.storage.s3.digests import OfferedPart, S3Digests

CONTENT = Content(300 * KIB, chunk_size=128 * KIB)
CHANGED = Edited.of(CONTENT, seed=1)
# More than all buffers on the way hold.
LARGE = Content(64 * MIB, chunk_size=16 * MIB)


@pytest.fixture
async def stack(make_stack: MakeStack, own_address: BucketAddress) -> AsyncIterator[Stack]:
    """On a gateway that the test may kill."""
    async with make_stack(**settings_of(own_address)) as made:
        yield made


async def file_id_of(stack: Stack, content: Content) -> str:
    response = await stack.upload(content)
    assert response.status_code == 201, response.text
    file_id: str = response.json()["file"]["id"]
    return file_id


async def put_made(stack: Stack, file_id: str) -> httpx2.Response:
    """The first chunk, by instructions from a file."""
    url = f"/files/{CHANGED.md5}/chunks/0"
    return await stack.client.put(url, params={"base": file_id}, content=CHANGED.instructions(0))


@pytest.fixture
def reads(own_gateway: JuiceGateway, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys that are read. When the first one is, the server dies, and it is back before anybody else asks it."""
    real, keys = Bucket.stream, list[str]()

    def stream(bucket: Bucket, key: str, *more: Any) -> ObjectReader:
        keys.append(key)
        if len(keys) > 1:
            return real(bucket, key, *more)
        own_gateway.kill()
        try:
            return real(bucket, key, *more)
        finally:
            own_gateway.start_again()

    monkeypatch.setattr(Bucket, "stream", stream)
    return keys


async def test_a_base_is_usable_though_its_server_is_away(stack: Stack, own_gateway: JuiceGateway) -> None:
    file_id = await file_id_of(stack, CONTENT)
    await stack.open(CHANGED)
    signature = f"/me/files/{file_id}/signature"
    own_gateway.kill()
    for response in (await put_made(stack, file_id), await stack.client.get(signature)):
        assert problem(response, 503, "unavailable")["retryable"]
        assert int(response.headers["retry-after"]) > 0
    own_gateway.start_again()
    assert (await put_made(stack, file_id)).json()["duplicate"] is False
    assert (await stack.client.get(signature)).status_code == 200


async def test_a_base_is_usable_though_its_server_dies_while_it_is_copied_from(stack: Stack, reads: list[str]) -> None:
    file_id = await file_id_of(stack, CONTENT)
    await stack.open(CHANGED)
    assert not reads
    problem(await put_made(stack, file_id), 503, "unavailable")
    assert (await put_made(stack, file_id)).json()["duplicate"] is False


async def test_a_content_is_not_damaged_because_its_server_dies_while_it_is_read_back(
    stack: Stack, reads: list[str]
) -> None:
    file_id = await file_id_of(stack, CONTENT)
    assert not reads
    with pytest.raises(StorageAway):
        await stack.services.scrubbing.healing.examine(CONTENT.sha256)
    assert "damaged" not in (await stack.client.get(f"/me/files/{file_id}")).json()
    assert (await stack.client.get(f"/me/files/{file_id}/content")).content == CONTENT.data
    assert await stack.services.scrubbing.healing.examine(CONTENT.sha256) is None


async def test_a_merge_whose_server_dies_doubts_nothing_and_goes_on(
    stack: Stack, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another node took the chunks, so they are read after Complete."""
    monkeypatch.setattr(S3Digests, "_offer", lambda _self, _upload, _entry, *offered: OfferedPart(*offered))
    await stack.open(CONTENT)
    for number in (0, 1):
        assert (await stack.put(CONTENT, number)).status_code == 200
    problem(await stack.put(CONTENT, 2), 503, "unavailable")
    assert len(reads) == 1, "it was read again, as if bytes might be bad"
    merged = await stack.client.post(f"/files/{CONTENT.md5}/merge")
    assert merged.json()["file"]["sha256"] == CONTENT.sha256


async def test_a_chunk_for_a_store_that_hangs_is_refused_before_its_body(
    stack: Stack, own_gateway: JuiceGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it goes on by itself."""
    await stack.open(CONTENT)
    monkeypatch.setattr(bucket, "TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(bucket, "TRY_TIMEOUT_SECONDS", 0.3)
    sent = []

    async def body() -> AsyncIterator[bytes]:
        sent.append("began")
        yield CONTENT.chunk(0)

    url, length = (
        f"/files/{CONTENT.md5}/chunks/0",
        {"content-length": str(CONTENT.chunk_size), "expect": "100-continue"},
    )
    own_gateway.send_signal(signal.SIGSTOP)
    try:
        for response in await asyncio.gather(*(stack.put(CONTENT, number) for number in (0, 1, 2))):
            problem(response, 503, "unavailable")
        refused = await stack.client.put(url, content=body(), headers=length)
        assert "has not answered since" in problem(refused, 503, "unavailable")["detail"]
        assert refused.headers["retry-after"]
        assert sent == []
        ready = (await stack.anonymous().get("/readyz")).json()["checks"]["storage"]
        assert not ready["ok"]
        assert "has not answered since" in ready["reason"]
        assert 'uploader_open_breakers{store="s3 write"} 1.0' in await stack.metrics()
    finally:
        own_gateway.send_signal(signal.SIGCONT)
    monkeypatch.setattr(bucket, "TRY_TIMEOUT_SECONDS", 60.0)
    await succeeds(lambda: stack.client.put(url, content=body(), headers=length))
    assert sent == ["began"]


def test_a_download_that_breaks_off_is_one_line_of_the_log(
    tmp_path: Path, redis_url: str, own_gateway: JuiceGateway, own_address: BucketAddress
) -> None:
    data, log = tmp_path / "data", tmp_path / "log"
    settings = {
        "DATA": str(data),
        "REDIS_URL": redis_url,
        "LOG_LEVEL": "warning",
        **own_gateway.gateway.environment(own_address.prefix),
    }
    server = Server(log, settings)
    with ended(server), httpx2.Client(base_url=server.url, timeout=60) as client:
        client.headers["authorization"] = f"Bearer {owner_token(data)}"
        opened = client.post("/uploads", json={"name": "large", "size": LARGE.size, "chunk_size": LARGE.chunk_size})
        upload_id = opened.json()["upload"]["id"]
        for number in range(LARGE.chunk_count):
            response = client.put(f"/uploads/{upload_id}/chunks/{number}", content=LARGE.chunk(number))
        url, before = f"/me/files/{response.json()['file']['id']}/content", len(log.read_text())
        with pytest.raises(httpx2.RemoteProtocolError), client.stream("GET", url) as download:
            assert download.status_code == 200
            pieces = download.iter_raw()
            assert next(pieces)
            own_gateway.kill()
            for _ in pieces:
                pass
        told = log.read_text()[before:].splitlines()
    *store, line = told
    assert [" warning a store fails " in each for each in store] == [True], told
    assert " warning request " in line
    assert 'status=200 outcome="aborted" reason="s3://' in line
