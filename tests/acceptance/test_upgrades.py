"""Data directories of released versions are served by this one, damaged parts and all (`tests/upgrades`)."""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.support.process import Server, ended, owner_token, run_cli, wait_for
from tests.support.sending import client_with
from tests.upgrades.held import DAMAGED, FILES, FLIPPED, FULL, OPEN, VERSIONS, Held, Printed, unpack
from uploader.storage.local.chunks import MapShape, map_header

# Whose uploads are as they were until somebody goes on with them.
_WAITING = {user_id: {content: held for content, held in OPEN[user_id].items() if content != FULL} for user_id in OPEN}


class Upgraded:
    """An unpacked directory, and this version on it."""

    def __init__(self, version: str, directory: Path) -> None:
        self.held: Held = unpack(version, directory)
        self.data = directory / "data"
        self._log = directory / "log"
        self._settings = {"DATA": str(self.data), "FREE_SPACE_FLOOR": "0"}
        self._clients: dict[str, httpx2.Client] = {}

    @contextmanager
    def served(self) -> Iterator[Server]:
        server = Server(self._log, self._settings)
        with ended(server), ExitStack() as open_clients:
            for user_id, token in self.held.tokens.items():
                self._clients[user_id] = open_clients.enter_context(client_with(token, server.url))
            yield server
            assert server.stop() == 0

    def mend(self) -> None:
        """Put back the header of the map that is noise; the flipped blob stays so."""
        (path,) = self.data.glob(f"temp/*/*/{self.held.damaged_upload}/map")
        with path.open("r+b") as chunk_map:
            chunk_map.write(map_header("", MapShape(DAMAGED.size, DAMAGED.chunk_size, DAMAGED.chunk_count)))

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return run_cli(self._settings, *arguments)

    def client(self, user_id: str) -> httpx2.Client:
        return self._clients[user_id]

    def usage(self, user_id: str) -> dict[str, int]:
        usage: dict[str, int] = self.client(user_id).get("/me/usage").json()
        return usage

    def files(self, user_id: str) -> list[dict[str, str]]:
        """As they are listed, the oldest first."""
        listed: list[dict[str, str]] = self.client(user_id).get("/me/files").json()["files"]
        return listed[::-1]


@pytest.fixture(params=VERSIONS)
def upgraded(request: pytest.FixtureRequest, tmp_path: Path) -> Upgraded:
    return Upgraded(request.param, tmp_path)


@pytest.fixture(params=[True, False], ids=["with the files of Redis", "without them"])
def _redis(request: pytest.FixtureRequest, upgraded: Upgraded) -> None:
    if not request.param:
        shutil.rmtree(upgraded.data / "redis")


@pytest.mark.usefixtures("_redis")
def test_what_a_released_version_left_is_served(upgraded: Upgraded) -> None:
    upgraded.mend()
    _serve(upgraded, ["alice", "bob", "carol"])
    _serve_again(upgraded)


@pytest.mark.usefixtures("_redis")
def test_a_damaged_part_harms_nobody_else(upgraded: Upgraded) -> None:
    with upgraded.served():
        assert upgraded.client("carol").get("/uploads").status_code == 200
        assert upgraded.client("owner").get("/admin/uploads").status_code == 200
    _serve(upgraded, ["alice", "bob"])
    _serve_again(upgraded)


def test_a_backup_before_the_first_start_says_what_is_missing(tmp_path: Path) -> None:
    """0.1.0 gave no ids, which backups need to know what is theirs."""
    upgraded, backups = Upgraded("0.1.0", tmp_path), str(tmp_path / "backups")
    refused = upgraded.run("backup", backups)
    assert (refused.returncode, refused.stdout) == (1, "")
    (line,) = refused.stderr.splitlines()
    assert line == (
        "uploader: there is no id of the installation, as 0.1.0 gave none: start a server or a worker of this version once, "
        "then back up"
    )
    with upgraded.served():
        pass
    assert "backup" in upgraded.run("backup", backups).stdout


def _serve(upgraded: Upgraded, sound: list[str]) -> None:
    """The first start: what was finished is there, the open uploads of those whose are `sound` go on."""
    with upgraded.served():
        assert owner_token(upgraded.data) == upgraded.held.tokens["owner"]
        _the_files_are_there(upgraded)
        _the_uploads_are_open(upgraded, sound)
        wait_for(lambda: len(upgraded.files("bob")) == len(FILES["bob"]) + 1)  # nobody asks for this merge
        _the_uploads_go_on(upgraded, sound)
        wait_for(lambda: _drifted(upgraded) <= {upgraded.held.damaged_upload, FLIPPED.sha256})


def _serve_again(upgraded: Upgraded) -> None:
    """A start on what this version made of it."""
    with upgraded.served():
        for user_id in ("owner", "alice", "bob"):
            finished = [*FILES[user_id], *OPEN.get(user_id, {})]
            _compare(upgraded, user_id, finished)
            size = sum(content.size for content in finished)
            usage = upgraded.usage(user_id)
            assert (usage["use_space_finished"], usage["use_space_unfinished"], usage["reserved"]) == (size, 0, 0)


def _the_files_are_there(upgraded: Upgraded) -> None:
    for user_id, contents in FILES.items():
        names = sorted(file["name"] for file in upgraded.files(user_id) if file["md5"] != FULL.md5)
        again = [content for number, content in enumerate(contents) if content in contents[:number]]
        assert names == sorted([*{content.name for content in contents}, *(f"again {it.name}" for it in again)])
        if user_id != "bob":  # whose complete upload is being merged
            assert upgraded.usage(user_id) == upgraded.held.usage[user_id]
    for user_id in ("owner", "alice"):
        _compare(upgraded, user_id, FILES[user_id])


def _compare(upgraded: Upgraded, user_id: str, contents: list[Printed]) -> None:
    """These are all files of a user, byte for byte."""
    digests = []
    for file in upgraded.files(user_id):
        response = upgraded.client(user_id).get(f"/me/files/{file['id']}/content")
        assert response.status_code == 200, response.text
        digests.append(hashlib.sha256(response.content).hexdigest())
    assert sorted(digests) == sorted(content.sha256 for content in contents)


def _the_uploads_are_open(upgraded: Upgraded, sound: list[str]) -> None:
    for user_id in sound:
        listed = {upload["md5"]: upload for upload in upgraded.client(user_id).get("/uploads").json()["uploads"]}
        listed.pop(FULL.md5, None)
        assert listed.keys() == {content.md5 for content in _WAITING[user_id]}
        for content, held in _WAITING[user_id].items():
            assert listed[content.md5]["received_bytes"] == sum(len(content.chunk(number)) for number in held)


def _the_uploads_go_on(upgraded: Upgraded, sound: list[str]) -> None:
    waiting = [(user_id, content, held) for user_id in sound for content, held in _WAITING[user_id].items()]
    for user_id, content, held in waiting:
        client = upgraded.client(user_id)
        body = {"name": content.name, "size": content.size, "chunk_size": content.chunk_size}
        opened = client.post(f"/files/{content.md5}", json=body)
        missing = [n for first, last in opened.json()["upload"]["missing"] for n in range(first, last + 1)]
        assert missing == [number for number in range(content.chunk_count) if number not in held]
        answers = [
            client.put(f"/files/{content.md5}/chunks/{number}", content=content.chunk(number)) for number in missing
        ]
        assert answers[-1].status_code == 201, answers[-1].text


def _drifted(upgraded: Upgraded) -> set[str]:
    found = upgraded.run("reconcile", "--json")
    assert found.stdout, found.stderr[-2000:]
    return {drift["subject"] for drift in json.loads(found.stdout)["drifts"]}
