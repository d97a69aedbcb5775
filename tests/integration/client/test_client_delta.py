"""The Python client sends only what changed of a file that replaces another one, and everything where that does not help."""

import io
import json
import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import httpx2
import pytest

from tests.support.content import KIB, MIB, Content
from tests.support.layout import blob_path
from tests.support.rot import flip_bit
from tests.support.stack import Stack
from tests.support.uploading import Wire, nothing
from uploader.client import AsyncClient, Progress

OLD = Content(9 * MIB, seed=91, name="image.bin")


class Edited(Content):
    """`OLD`, with something in front, in its midst and at its end."""

    @cached_property
    def data(self) -> bytes:
        old = OLD.data
        return b"x" + old[: 5 * MIB] + b"y" * 1000 + old[5 * MIB + 1000 :] + b"z" * 1000


NEW = Edited(OLD.size + 1001, name=OLD.name)
OPTIONS: dict[str, Any] = {"chunk_size": MIB, "hash_first_bytes": MIB, "delta": True}


@pytest.fixture
def client_options() -> dict[str, Any]:
    return OPTIONS


@pytest.fixture
async def client(client: AsyncClient) -> AsyncClient:
    await client.upload(OLD.data, OLD.name)
    return client


async def replaced(client: AsyncClient) -> Progress:
    """What it cost to put the new file in the place of the old one."""
    told: list[Progress] = []
    file = await client.upload(NEW.data, NEW.name, if_exists="replace", on_progress=told.append)
    content = io.BytesIO()
    await client.download_into(file, content)
    assert content.getvalue() == NEW.data
    return told[-1]


@pytest.mark.parametrize(
    "client_options",
    [OPTIONS, OPTIONS | {"chunk_size": 16 * MIB, "hash_first_bytes": 64 * MIB}],
    ids=["hashed meanwhile", "hashed first"],
)
async def test_only_what_changed_is_sent(client: AsyncClient, wire: Wire) -> None:
    progress = await replaced(client)
    # A piece at each of three places.
    assert progress.moved_bytes < 600 * KIB
    assert progress.spared_bytes + progress.moved_bytes == NEW.size
    assert wire.count("GET /me/files/[0-9a-f]+/signature") == 1
    assert [file.sha256 async for file in client.files()] == [NEW.sha256]
    await client.upload(b"x" + NEW.data, NEW.name, if_exists="keep")  # beside another one: whole
    assert wire.count(".*/signature") == 1


@pytest.mark.parametrize("client_options", [OPTIONS | {"delta": False}])
async def test_everything_is_sent_where_that_is_asked_for(client: AsyncClient, wire: Wire) -> None:
    progress = await replaced(client)
    assert (progress.moved_bytes, progress.spared_bytes) == (NEW.size, 0)
    assert wire.count(".*/signature") == 0


@pytest.mark.parametrize("client_options", [OPTIONS | {"delta": None, "most_bytes_per_second": 8 * MIB}])
@pytest.mark.parametrize(("seconds", "is_chosen"), [(0.001, True), (math.inf, False)])
async def test_only_what_changed_is_sent_where_that_is_faster(
    client: AsyncClient, wire: Wire, monkeypatch: pytest.MonkeyPatch, seconds: float, is_chosen: bool
) -> None:
    monkeypatch.setattr("uploader.client.delta.cutting_seconds", lambda _source, _length: seconds)
    progress = await replaced(client)
    assert (progress.spared_bytes > 0) == is_chosen
    assert progress.moved_bytes + progress.spared_bytes >= NEW.size  # what was on its way is lost, and told
    assert wire.count(".*/signature") == is_chosen


async def test_an_older_server_is_sent_everything(client: AsyncClient, wire: Wire) -> None:
    async def lacking(request: httpx2.Request) -> None:
        if request.url.path.endswith("/signature"):
            request.url = request.url.copy_with(path="/nowhere")

    wire.before = lacking
    progress = await replaced(client)
    assert (progress.moved_bytes, progress.spared_bytes) == (NEW.size, 0)


def rotten(stack: Stack) -> None:
    flip_bit(blob_path(stack.data, OLD.sha256), 8 * 3 * MIB)


def gone(stack: Stack) -> None:
    blob_path(stack.data, OLD.sha256).unlink()


def cut(stack: Stack) -> None:
    with blob_path(stack.data, OLD.sha256).open("r+b") as blob:
        blob.truncate(4 * MIB)


@pytest.mark.parametrize("spoil", [rotten, gone, cut])
async def test_a_base_that_is_spoiled_in_the_middle_spoils_nothing(
    stack: Stack, client: AsyncClient, wire: Wire, spoil: Callable[[Stack], None]
) -> None:
    async def spoiling(request: httpx2.Request) -> None:
        if request.method == "PUT" and "base" in request.url.params:
            wire.before = nothing
            spoil(stack)

    wire.before = spoiling
    await replaced(client)


def lacking_all(_signature: bytes) -> bytes:
    return b""


def saying_nothing(_signature: bytes) -> bytes:
    return b"{}\n"


def cutting_otherwise(signature: bytes) -> bytes:
    return json.dumps(json.loads(signature.partition(b"\n")[0]) | {"min": 1, "avg": 2, "max": 3}).encode() + b"\n"


def reversed_pieces(signature: bytes) -> bytes:
    head, _, records = signature.partition(b"\n")
    return head + b"\n" + b"".join(records[at : at + 20] for at in range(len(records) - 20, -1, -20))


@pytest.mark.parametrize("lie", [lacking_all, saying_nothing, cutting_otherwise, reversed_pieces])
async def test_a_signature_that_lies_spoils_nothing(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch, lie: Callable[[bytes], bytes]
) -> None:
    real = client._api.signature

    async def lying(file_id: str) -> bytes:
        return lie(await real(file_id))

    monkeypatch.setattr(client._api, "signature", lying)
    assert (await replaced(client)).moved_bytes >= NEW.size


async def test_an_upload_that_was_interrupted_goes_on_with_what_changed(client: AsyncClient, wire: Wire) -> None:
    sent = 0

    async def break_off(request: httpx2.Request) -> None:
        nonlocal sent
        sent += request.method == "PUT" and "/chunks/" in request.url.path
        if sent == 4:
            raise RuntimeError

    wire.after = break_off
    with pytest.raises(RuntimeError):
        await replaced(client)
    wire.after = nothing
    progress = await replaced(client)
    assert progress.moved_bytes < 600 * KIB
    assert progress.spared_bytes < NEW.size - 2 * MIB
