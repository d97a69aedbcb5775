"""The applications of docs/examples in processes of their own: under the servers that people run, several at once on one
data directory, and killed."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.support.content import MIB, Content
from tests.support.embedding import RUN, TOKEN, Running
from tests.support.process import ended, wait_for
from uploader.client import Client

CONTENT = Content(9 * MIB + 1, seed=61)


@contextmanager
def running(directory: Path, server: str, *more: str) -> Iterator[Running]:
    made = Running(directory, server, *more)
    with ended(made.process):
        yield made.wait()


@pytest.mark.parametrize("server", RUN)
def test_under_any_server_of_asgi(tmp_path: Path, server: str) -> None:
    with running(tmp_path, server) as app:
        with Client(f"{app.url}/uploads", TOKEN) as client:
            file = client.upload(CONTENT.data, "film")
            assert client.download(file, tmp_path / "back").read_bytes() == CONTENT.data
        if server != "litestar":  # whose example has no handler
            wait_for(lambda: file.id in httpx2.get(f"{app.url}/finished").json(), 60, "the handler")
        assert app.process.stop() in (0, -signal.SIGTERM)


def test_several_processes_share_a_data_directory(tmp_path: Path) -> None:
    """One owns the engine; when it is killed, another one does."""
    first, second = Running(tmp_path, "uvicorn"), Running(tmp_path, "uvicorn")
    with ended(first.process, second.process):
        for each, name in ((first.wait(), "one"), (second.wait(), "two")):
            with Client(f"{each.url}/uploads", TOKEN) as client:
                client.upload(CONTENT.data + name.encode(), name)
        first.process.kill()
        with Client(f"{second.url}/uploads", TOKEN) as client:
            client.upload(CONTENT.data, "three")
            assert {file.name for file in client.files()} == {"one", "two", "three"}


def test_killed_in_the_middle_it_has_what_it_acknowledged(tmp_path: Path) -> None:
    size, chunk = 24 * MIB, 1 * MIB
    data = Content(size, seed=62).data
    app = Running(tmp_path, "uvicorn")
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with ended(app.process):
        app.wait()
        with httpx2.Client(base_url=f"{app.url}/uploads", headers=headers, timeout=60) as client:
            opened = client.post("/uploads", json={"name": "film", "size": size, "chunk_size": chunk}).json()["upload"]
            for number in range(10):
                place = f"/uploads/{opened['id']}/chunks/{number}"
                assert client.put(place, content=data[number * chunk : (number + 1) * chunk]).status_code == 200
        app.process.kill()
    again = Running(tmp_path, "uvicorn", port=app.port)
    with ended(again.process):
        again.wait()
        with Client(f"{again.url}/uploads", TOKEN) as client:
            (upload,) = client.uploads()
            assert upload.received_bytes == 10 * chunk
            file = client.go_on(upload, data).result()
            assert file.sha256 == Content(size, seed=62).sha256
        wait_for(lambda: file.id in httpx2.get(f"{again.url}/finished").json(), 60, "the handler")
