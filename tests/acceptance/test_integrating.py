"""docs/integrating.md: what an application adds to have uploads, run as it stands on the page."""

import re
import secrets
from pathlib import Path
from typing import Any

import jwt
import pytest

from tests.support.content import Content
from tests.support.process import Server, ended
from uploader.client import Client, Transfer, Unauthenticated

PAGE = Path(__file__).parents[2] / "docs" / "integrating.md"
CONTENT = Content(300_000, seed=95)


def python_of_the_page() -> str:
    found = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert len(found) == 1
    return str(found[0])


def test_the_application_adds_less_than_thirty_lines() -> None:
    assert len(python_of_the_page().splitlines()) < 30


def test_an_application_keeps_files_of_its_users_with_its_own_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = secrets.token_urlsafe(32)
    settings = {"DATA": str(tmp_path / "data"), "FREE_SPACE_FLOOR": "0", "AUTH": "jwt", "JWT_SECRET": secret}
    server = Server(tmp_path / "log", settings)
    monkeypatch.setenv("UPLOADS_URL", server.url)
    monkeypatch.setenv("UPLOADS_SECRET", secret)
    path = tmp_path / "film"
    path.write_bytes(CONTENT.data)
    with ended(server):
        page: dict[str, Any] = {}
        exec(compile(python_of_the_page(), str(PAGE), "exec"), page)
        file = page["keep"]("alice", str(path), "videos/film")
        assert (file.name, file.sha256) == ("videos/film", CONTENT.sha256)
        with page["client_for"]("alice") as client:
            assert client.usage().total_space == 50 << 30
            _use_everything(client, tmp_path)
        with page["client_for"]("bob") as client:
            assert list(client.files()) == []
        forged = jwt.encode(jwt.decode(page["token_for"]("alice"), options={"verify_signature": False}), "x" * 32)
        with Client(server.url, forged) as client, pytest.raises(Unauthenticated):
            client.usage()


def _use_everything(client: Client, directory: Path) -> None:
    """Each method of the page's table, on the client without an event loop."""
    [file] = client.files("videos/")
    assert client.file(file.id) == client.page().files[0] == file
    assert client.download(file, directory / "back").read_bytes() == CONTENT.data
    fetching = client.start_download(file, directory / "again")
    assert fetching.result(60).read_bytes() == CONTENT.data
    assert client.rename(file.id, "moved").name == "moved"
    transfer: Transfer[Any] = client.start(b"x" * 200_000, "more")
    transfer.pause()
    assert transfer.progress.size == 200_000
    transfer.resume()
    assert transfer.result(60).name == "more"
    transfer.cancel()  # it has ended: nothing happens
    assert transfer.done
    assert client.uploads() == []
    for each in client.files():
        client.delete(each.id)
    assert client.usage().use_space_finished == 0
