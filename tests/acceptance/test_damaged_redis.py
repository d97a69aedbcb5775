"""What the embedded Valkey can't load stops nobody: the server starts by itself, and uploads go on."""

import os
import signal
from pathlib import Path

import httpx2
import pytest

from tests.support import damages
from tests.support.content import KIB, Content
from tests.support.process import Server, client_of_owner, ended, processes_in, run_cli, wait_for

CONTENT = Content(4 * 64 * KIB - 100)
DAMAGES = (
    damages.append_zeros,
    damages.alter_the_middle,
    damages.break_the_manifest,
    damages.put_a_file_for_the_inner_directory,
    damages.put_a_file_for_the_directory,
)


def put(client: httpx2.Client, *numbers: int) -> None:
    for number in numbers:
        client.put(f"/files/{CONTENT.md5}/chunks/{number}", content=CONTENT.chunk(number)).raise_for_status()


def held_bytes(client: httpx2.Client) -> int:
    return int(client.get("/me/usage").json()["use_space_unfinished"])


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_an_upload_goes_on_without_what_redis_held(tmp_path: Path, damage: damages.Damage) -> None:
    data = tmp_path / "data"
    settings = {"DATA": str(data), "FREE_SPACE_FLOOR": "0", "QUIET_INTERVAL": "1s"}
    server = Server(tmp_path / "log", settings)
    with ended(server), client_of_owner(server.url, data) as client:
        opening = {"name": CONTENT.name, "size": CONTENT.size, "chunk_size": CONTENT.chunk_size}
        assert client.post(f"/files/{CONTENT.md5}", json=opening).status_code == 201
        put(client, 0, 2)
        server.kill()
    wait_for(lambda: not processes_in(data / "redis"))
    damage(data / "redis")

    server = Server(tmp_path / "log", settings)
    with ended(server), client_of_owner(server.url, data) as client:
        (line,) = [line for line in server.output().splitlines() if "embedded Valkey could not load its files" in line]
        (aside,) = data.glob("redis.damaged-*")
        assert str(aside) in line
        found = client.get("/readyz").json()["checks"]["redis"]
        assert (found["ok"], aside.name in found["reason"]) == (True, True)
        assert "uploader_redis_set_aside 1.0" in client.get("/metrics").text

        wait_for(lambda: held_bytes(client) == 2 * CONTENT.chunk_size)
        assert client.get(f"/files/{CONTENT.md5}").json()["upload"]["missing"] == [[1, 1], [3, 3]]
        put(client, 1, 3)
        file = client.get(f"/files/{CONTENT.md5}").json()["file"]
        assert (file["md5"], file["sha256"]) == (CONTENT.md5, CONTENT.sha256)
        assert client.get(f"/me/files/{file['id']}/content").content == CONTENT.data
        assert held_bytes(client) == 0
        told = run_cli(settings, "reconcile")
        assert (told.returncode, told.stdout.partition(",")[0]) == (0, "0 drifts"), told.stdout
        assert server.stop() == 0


def test_what_runs_goes_on_when_its_redis_finds_its_files_ruined(tmp_path: Path) -> None:
    """Zeros after a power cut of the disk alone, as it were: the server process lives through it."""
    data = tmp_path / "data"
    settings = {"DATA": str(data), "FREE_SPACE_FLOOR": "0", "QUIET_INTERVAL": "1s"}
    server = Server(tmp_path / "log", settings)
    with ended(server), client_of_owner(server.url, data) as client:
        opening = {"name": CONTENT.name, "size": CONTENT.size, "chunk_size": CONTENT.chunk_size}
        assert client.post(f"/files/{CONTENT.md5}", json=opening).status_code == 201
        put(client, 0)
        damages.append_zeros(data / "redis")
        (valkey,) = processes_in(data / "redis")
        os.kill(valkey, signal.SIGKILL)
        wait_for(lambda: len(list(data.glob("redis.damaged-*"))) == 1)
        wait_for(lambda: server.output().count("could not load its files") == 1)
        wait_for(lambda: client.get("/readyz").status_code == 200)
        wait_for(lambda: held_bytes(client) == CONTENT.chunk_size)
        put(client, 1, 2, 3)
        assert client.get(f"/files/{CONTENT.md5}").json()["file"]["sha256"] == CONTENT.sha256
        assert server.stop() == 0


def test_a_command_sets_aside_what_its_own_redis_cannot_load(tmp_path: Path) -> None:
    data = tmp_path / "data"
    settings = {"DATA": str(data), "FREE_SPACE_FLOOR": "0"}
    server = Server(tmp_path / "log", settings)
    with ended(server):
        assert server.stop() == 0
    damages.break_the_manifest(data / "redis")
    told = run_cli(settings, "reconcile")
    assert (told.returncode, told.stderr.count("could not load its files")) == (0, 1), told.stderr
    damages.break_the_manifest(data / "redis")
    told = run_cli(settings, "installation")
    assert (told.returncode, told.stderr.count("could not load its files")) == (0, 1), told.stderr
    assert "Redis: of none" in told.stdout
    assert len(list(data.glob("redis.damaged-*"))) == 2
