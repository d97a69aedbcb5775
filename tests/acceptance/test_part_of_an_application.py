"""The applications that the documents print, in processes of their own: by the commands of the page, several at once on one
data directory, and killed."""

import secrets
from pathlib import Path
from typing import Any

import httpx2
import jwt
import pytest

from tests.support.content import MIB, Content
from tests.support.documents import DOCS, blocks
from tests.support.embedding import (
    APPLICATIONS,
    CONTENT,
    EXAMPLES,
    INTEGRATING,
    TOKEN,
    Running,
    as_printed,
    check_a_file_comes_and_goes,
    check_it_ends,
    is_finished,
    running,
)
from tests.support.process import Server, ended, wait_for
from uploader.client import Client, Unauthenticated

LIBRARIES = DOCS / "libraries.md"
NOBODYS = "0" * 32


def test_the_page_prints_the_examples() -> None:
    assert {f"{name}.py": code for name, code in APPLICATIONS.items()} == {
        path.name: path.read_text() for path in EXAMPLES.glob("*_app.py")
    }
    assert len(blocks(INTEGRATING, "python")) == len(APPLICATIONS)


def test_the_application_adds_less_than_thirty_lines() -> None:
    for code in (*blocks(LIBRARIES, "python"), *blocks(LIBRARIES, "javascript")):
        assert len(code.splitlines()) < 30
        assert max(map(len, code.splitlines())) <= 120


@pytest.mark.parametrize("name", ["starlette_app", "fastapi_app", "litestar_app"])
def test_an_application_takes_uploads_of_its_users(tmp_path: Path, name: str) -> None:
    with as_printed(tmp_path, name) as app:
        file = check_a_file_comes_and_goes(app, has_handler=name == "fastapi_app")
        assert httpx2.get(f"{app.url}/uploads/me/files").status_code == 401
        if name == "fastapi_app":
            check_operations(app, file.id)
        with Client(f"{app.url}/uploads", TOKEN) as client:  # in one request
            small = client.upload(CONTENT.data[: 3 * MIB], "small")
            assert client.download(small, tmp_path / "small").read_bytes() == CONTENT.data[: 3 * MIB]
        check_it_ends(app)


def check_operations(app: Running, file_id: str) -> None:
    def add(told: str, token: str) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx2.post(f"{app.url}/films", data={"film": told}, headers=headers, timeout=60)

    added = add(file_id, TOKEN).json()
    assert (added["name"], added["size"]) == ("film", CONTENT.size)
    assert httpx2.get(app.url + added["url"]).content == CONTENT.data
    refused = [add(file_id, "secret of bob"), add(NOBODYS, TOKEN), add(file_id, "wrong")]
    assert [answer.status_code for answer in refused] == [422, 422, 401]
    assert httpx2.get(f"{app.url}/finished").json() == [file_id]


def test_with_the_connections_of_the_server_itself(tmp_path: Path) -> None:
    with running(tmp_path, "fast") as app:
        check_a_file_comes_and_goes(app, has_handler=True)
        check_it_ends(app)


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
        wait_for(lambda: is_finished(again, file), 60, "the handler")


def test_an_application_keeps_files_with_its_own_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = secrets.token_urlsafe(32)
    settings = {"DATA": str(tmp_path / "data"), "FREE_SPACE_FLOOR": "0", "AUTH": "jwt", "JWT_SECRET": secret}
    server = Server(tmp_path / "log", settings)
    monkeypatch.setenv("UPLOADS_URL", server.url)
    monkeypatch.setenv("UPLOADS_SECRET", secret)
    path = tmp_path / "film"
    path.write_bytes(CONTENT.data)
    with ended(server):
        page: dict[str, Any] = {}
        code, _ = blocks(LIBRARIES, "python")
        exec(compile(code, str(LIBRARIES), "exec"), page)
        file = page["keep"]("alice", str(path), "videos/film")
        assert (file.name, file.sha256) == ("videos/film", CONTENT.sha256)
        with page["client_for"]("alice") as client:
            assert client.usage().total_space == 50 << 30
            assert client.download(file, tmp_path / "back").read_bytes() == CONTENT.data
        with page["client_for"]("bob") as client:
            assert list(client.files()) == []
        forged = jwt.encode(jwt.decode(page["token_for"]("alice"), options={"verify_signature": False}), "x" * 32)
        with Client(server.url, forged) as client, pytest.raises(Unauthenticated):
            client.usage()
