"""The server dies while a visitor of a link sends, and is started again: who goes on comes to the same end, and the figures
of the link and of its owner are exact."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from tests.support.content import KIB, Content
from tests.support.process import Server, client_of_owner, ended, run_cli
from uploader.errors import LinkExhausted

CHUNKED, WHOLE, CANCELLED, LAST, BEYOND = (Content(100 * KIB, seed=seed) for seed in range(5))
MOST = CHUNKED.size + WHOLE.size + LAST.size
SETTINGS = {"FREE_SPACE_FLOOR": "0", "MIN_CHUNK_SIZE": "64KiB"}
POINTS = tuple(f"{each}.after_commit" for each in ("open", "merge", "whole", "close"))


def send_all(visitor: httpx2.Client) -> None:
    """Whatever was done before: a file in chunks, a whole one, and one that is cancelled."""
    body = {"name": "chunked", "size": CHUNKED.size, "chunk_size": CHUNKED.chunk_size}
    opened = visitor.post(f"/files/{CHUNKED.md5}", json=body)
    assert opened.status_code in (200, 201), opened.text
    for number in range(CHUNKED.chunk_count):
        sent = visitor.put(f"/files/{CHUNKED.md5}/chunks/{number}", content=CHUNKED.chunk(number))
        assert sent.status_code in (200, 201, 202), sent.text
    whole = visitor.put(f"/files/{WHOLE.md5}", params={"name": "whole"}, content=WHOLE.data)
    assert whole.status_code in (200, 201), whole.text
    opened = visitor.post(f"/files/{CANCELLED.md5}", json={"name": "cancelled", "size": CANCELLED.size})
    assert opened.status_code in (200, 201), opened.text
    assert visitor.delete(f"/files/{CANCELLED.md5}").status_code in (204, 404)


@dataclass(frozen=True)
class Visited:
    """An installation with a link, and the token of who came by it."""

    data: Path
    link_id: str
    token: str


@pytest.fixture(scope="module")
def visited(tmp_path_factory: pytest.TempPathFactory) -> Visited:
    directory = tmp_path_factory.mktemp("visited")
    server = Server(directory / "log", SETTINGS | {"DATA": str(directory / "data")})
    with ended(server), client_of_owner(server.url, directory / "data") as client:
        link = client.post("/me/links", json={"kind": "upload", "name": "in/", "max_bytes": MOST}).json()
        token = client.post(f"{link['url']}/session").json()["token"]
        assert server.stop() == 0
    return Visited(directory / "data", link["id"], token)


@pytest.mark.parametrize("point", POINTS)
def test_a_visitor_goes_on_where_the_server_died(tmp_path: Path, visited: Visited, point: str) -> None:
    data = shutil.copytree(visited.data, tmp_path / "data")
    settings = SETTINGS | {"DATA": str(data)}
    headers = {"Authorization": f"Bearer {visited.token}"}
    dying = Server(tmp_path / "log", {**settings, "TEST_CRASH_AT": point})
    client = httpx2.Client(base_url=dying.url, headers=headers, timeout=60)
    with ended(dying), client as visitor, pytest.raises(httpx2.HTTPError):
        send_all(visitor)
    again = Server(tmp_path / "log", settings)
    with (
        ended(again),
        client_of_owner(again.url, data) as client,
        httpx2.Client(base_url=again.url, headers=headers, timeout=60) as visitor,
    ):
        send_all(visitor)
        for content, status in ((LAST, 201), (BEYOND, 413)):
            sent = visitor.put(f"/files/{content.md5}", params={"name": "more"}, content=content.data)
            assert sent.status_code == status, sent.text
        assert sent.json()["code"] == LinkExhausted.code
        told = client.get(f"/me/links/{visited.link_id}").json()
        assert (told["files"], told["bytes"]) == (3, MOST)
        usage = client.get("/me/usage").json()
        assert (usage["use_space_finished"], usage["use_space_unfinished"], usage["reserved"]) == (MOST, 0, 0)
        assert run_cli(settings, "reconcile").returncode == 0
