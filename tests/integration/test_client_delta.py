"""The Python client sends only what changed of a file that replaces another one, and everything where that does not help."""

import io
from collections.abc import AsyncIterator, Callable
from functools import cached_property

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.support.content import KIB, MIB, Content
from tests.support.layout import blob_path
from tests.support.rot import flip_bit
from tests.support.stack import Stack
from tests.support.uploading import Wire, client_on
from uploader.client import AsyncClient, File, Progress

OLD = Content(9 * MIB, seed=91, name="image.bin")


class Edited(Content):
    """`OLD`, with something in front, in its midst and at its end."""

    @cached_property
    def data(self) -> bytes:
        old = OLD.data
        return b"x" + old[: 5 * MIB] + b"y" * 1000 + old[5 * MIB + 1000 :] + b"z" * 1000


NEW = Edited(OLD.size + 1001, name=OLD.name)


@pytest.fixture
async def stack(make_stack: MakeStack) -> AsyncIterator[Stack]:
    async with make_stack(durability="process") as made:
        yield made


@pytest.fixture
def wire(stack: Stack) -> Wire:
    return Wire(stack)


@pytest.fixture
async def client(stack: Stack, wire: Wire) -> AsyncIterator[AsyncClient]:
    async with await client_on(stack, wire, chunk_size=MIB, hash_first_bytes=MIB) as made:
        yield made


async def replaced(client: AsyncClient) -> tuple[File, Progress]:
    """The new file in the place of the old one, and what it cost."""
    told: list[Progress] = []
    file = await client.upload(NEW.data, NEW.name, if_exists="replace", on_progress=told.append)
    content = io.BytesIO()
    await client.download_into(file, content)
    assert content.getvalue() == NEW.data
    return file, told[-1]


async def test_only_what_changed_is_sent(client: AsyncClient, wire: Wire) -> None:
    await client.upload(OLD.data, OLD.name)
    _, progress = await replaced(client)
    # A piece at each of three places.
    assert progress.moved_bytes < 600 * KIB
    assert progress.spared_bytes + progress.moved_bytes == NEW.size
    assert wire.count("GET /me/files/[0-9a-f]+/signature") == 1
    assert [file.sha256 async for file in client.files()] == [NEW.sha256]


async def test_a_file_that_is_hashed_first_is_sent_as_what_changed_all_the_same(stack: Stack, wire: Wire) -> None:
    async with await client_on(stack, wire, chunk_size=16 * MIB, hash_first_bytes=64 * MIB) as client:
        await client.upload(OLD.data, OLD.name)
        _, progress = await replaced(client)
        assert progress.moved_bytes < 600 * KIB


async def test_a_file_beside_another_one_is_sent_whole(client: AsyncClient, wire: Wire) -> None:
    await client.upload(OLD.data, OLD.name)
    await client.upload(NEW.data, NEW.name, if_exists="keep")
    assert wire.count(".*/signature") == 0


async def test_everything_is_sent_where_that_is_asked_for(stack: Stack, wire: Wire) -> None:
    async with await client_on(stack, wire, chunk_size=MIB, delta=False) as client:
        await client.upload(OLD.data, OLD.name)
        _, progress = await replaced(client)
        assert (progress.moved_bytes, progress.spared_bytes) == (NEW.size, 0)
        assert wire.count(".*/signature") == 0


async def test_an_older_server_is_sent_everything(client: AsyncClient, wire: Wire) -> None:
    await client.upload(OLD.data, OLD.name)

    async def lacking(request: httpx2.Request) -> None:
        if request.url.path.endswith("/signature"):
            request.url = request.url.copy_with(path="/nowhere")

    wire.before = lacking
    _, progress = await replaced(client)
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
    await client.upload(OLD.data, OLD.name)

    async def spoiling(request: httpx2.Request) -> None:
        if request.method == "PUT" and "base" in request.url.params:
            wire.before = _nothing
            spoil(stack)

    wire.before = spoiling
    await replaced(client)


async def _nothing(_request: httpx2.Request) -> None:
    pass


@pytest.mark.parametrize(
    "lie",
    [
        b"",
        b"{}\n",
        b'{"algorithm": "fastcdc-2020", "min": 1, "avg": 2, "max": 3, "hash": "sha-256-128", "size": %d, "sha256": ""}\n',
    ],
)
async def test_a_signature_that_lies_spoils_nothing(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch, lie: bytes
) -> None:
    await client.upload(OLD.data, OLD.name)
    monkeypatch.setattr(client._api, "signature", lambda _id: _answer(lie))
    await replaced(client)


async def test_a_signature_with_its_pieces_in_another_order_spoils_nothing(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.upload(OLD.data, OLD.name)
    real = client._api.signature

    async def lying(file_id: str) -> bytes:
        head, _, records = (await real(file_id)).partition(b"\n")
        return head + b"\n" + b"".join(records[at : at + 20] for at in range(len(records) - 20, -1, -20))

    monkeypatch.setattr(client._api, "signature", lying)
    _, progress = await replaced(client)
    assert progress.moved_bytes > NEW.size


async def _answer(content: bytes) -> bytes:
    return content


async def test_an_upload_that_was_interrupted_goes_on_with_what_changed(
    stack: Stack, client: AsyncClient, wire: Wire
) -> None:
    await client.upload(OLD.data, OLD.name)
    sent = 0

    async def break_off(request: httpx2.Request) -> None:
        nonlocal sent
        sent += request.method == "PUT" and "/chunks/" in request.url.path
        if sent == 4:
            raise RuntimeError

    wire.after = break_off
    with pytest.raises(RuntimeError):
        await replaced(client)
    wire.after = _nothing
    _, progress = await replaced(client)
    assert progress.moved_bytes < 600 * KIB
    assert progress.spared_bytes < NEW.size - 2 * MIB
