"""What the embedded Valkey can't load stops nobody: the server starts by itself, and uploads go on. (test_embedded has every
damage.)"""

import os
import signal
from pathlib import Path

import httpx2

from tests.support import damages
from tests.support.content import KIB, Content
from tests.support.process import Server, client_of_owner, ended, processes_in, run_cli, wait_for
from tests.support.sending import put, send

CONTENT = Content(6 * 64 * KIB - 100)


def test_an_upload_goes_on_without_what_redis_held(tmp_path: Path) -> None:
    data = tmp_path / "data"
    settings = {"DATA": str(data), "FREE_SPACE_FLOOR": "0", "QUIET_INTERVAL": "1s"}
    server = Server(tmp_path / "log", settings)
    with ended(server), client_of_owner(server.url, data) as client:
        send(client, CONTENT, (0, 2))
        server.kill()
    wait_for(lambda: not processes_in(data / "redis"))
    damages.alter_the_middle(data / "redis")

    server = Server(tmp_path / "log", settings)
    with ended(server), client_of_owner(server.url, data) as client:
        (line,) = [line for line in server.output().splitlines() if "embedded Valkey could not load its files" in line]
        (aside,) = data.glob("redis.damaged-*")
        assert str(aside) in line
        found = client.get("/readyz").json()["checks"]["redis"]
        assert (found["ok"], aside.name in found["reason"]) == (True, True)
        assert "uploader_redis_set_aside 1.0" in client.get("/metrics").text
        wait_for(lambda: held_bytes(client) == 2 * CONTENT.chunk_size)
        assert client.get(f"/files/{CONTENT.md5}").json()["upload"]["missing"] == [[1, 1], [3, 5]]
        put(client, CONTENT, (1,))

        # Zeros after a power cut of the disk alone, as it were: the server process lives through it.
        damages.append_zeros(data / "redis")
        (valkey,) = processes_in(data / "redis")
        os.kill(valkey, signal.SIGKILL)
        wait_for(lambda: len(list(data.glob("redis.damaged-*"))) == 2)
        wait_for(lambda: server.output().count("could not load its files") == 2)
        wait_for(lambda: client.get("/readyz").status_code == 200)
        wait_for(lambda: held_bytes(client) == 3 * CONTENT.chunk_size)
        file = put(client, CONTENT, (3, 4, 5)).json()["file"]
        assert (file["md5"], file["sha256"]) == (CONTENT.md5, CONTENT.sha256)
        assert client.get(f"/me/files/{file['id']}/content").content == CONTENT.data
        assert held_bytes(client) == 0
        told = run_cli(settings, "reconcile")
        assert (told.returncode, told.stdout.partition(",")[0]) == (0, "0 drifts"), told.stdout
        assert server.stop() == 0

    # A command sets aside what its own Redis can't load.
    for command in ("reconcile", "installation"):
        damages.break_the_manifest(data / "redis")
        told = run_cli(settings, command)
        assert (told.returncode, told.stderr.count("could not load its files")) == (0, 1), told.stderr
    assert "Redis: of none" in told.stdout


def held_bytes(client: httpx2.Client) -> int:
    return int(client.get("/me/usage").json()["use_space_unfinished"])
