"""What the third store shows beyond what every store has to do: how small one is, and that a server runs on it."""

import ast
import re
from pathlib import Path

import pytest

from tests.conformance import third_store
from tests.conformance.third_store import PlainStore
from tests.conftest import MakeStack
from tests.support.content import Content
from tests.support.stores import CHUNK, CONTENT, Process
from uploader.bootstrap import services
from uploader.errors import StorageFailed
from uploader.storage.store import Store

ROOT = Path(__file__).parents[2]
SOURCE = Path(third_store.__file__).read_text()
on_it = pytest.mark.parametrize("make_process", ["plain"], indirect=True)


def test_a_store_takes_no_more_than_400_lines() -> None:
    assert len(SOURCE.splitlines()) <= 400


def test_the_document_names_what_a_store_has_to_have_and_this_one_has_no_more() -> None:
    document = (ROOT / "docs" / "architecture.md").read_text()
    _, _, table = document.partition("| group | has to have |\n")
    named = set(re.findall(r"`(\w+)`", table.partition("\n\n")[0]))
    assert named == Store.__abstractmethods__
    methods = {name for name, value in vars(PlainStore).items() if callable(value) and not name.startswith("_")}
    assert methods == named


def test_it_takes_nothing_from_another_store() -> None:
    tree = ast.parse(SOURCE)
    modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert "uploader.storage.store" in modules
    assert not [name for name in modules if name.startswith(("uploader.storage.local", "uploader.storage.s3"))]


@on_it
async def test_bytes_that_rotted_are_found_and_come_again(process: Process) -> None:
    upload = await process.full()
    assert isinstance(process.store, PlainStore)
    chunks = process.store.disk[upload.place].chunks
    chunks[2] = chunks[2]._replace(content=CONTENT.chunk(1))
    with pytest.raises(StorageFailed):
        await process.digest(upload)
    assert await process.store.find_bad_chunks(upload) == [2]
    async with process.store.closing(upload) as closer:
        await closer.withdraw([2], generation=1)
    assert await process.put(upload, 2)
    assert (await process.digest(upload)).sha256 == CONTENT.sha256


async def test_a_server_runs_on_it(make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "create_storage", lambda settings, _database, _clock: PlainStore(settings.data))
    content, whole = Content(3 * CHUNK + 1000, seed=7, chunk_size=CHUNK), Content(1000, seed=8)
    async with make_stack() as stack:
        assert (await stack.open(content)).status_code == 201
        answers = [await stack.put(content, number) for number in (3, 1, 0, 2)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 201]
        sent = await stack.client.put(f"/files/{whole.md5}?name=whole", content=whole.data)
        assert sent.status_code == 201
        for answer, expected in ((answers[-1], content), (sent, whole)):
            downloaded = await stack.client.get(f"/me/files/{answer.json()['file']['id']}/content")
            assert downloaded.content == expected.data
        assert stack.bytes_on_disk() == []
        assert (await stack.usage("alice"))["finished"] == content.size + whole.size
