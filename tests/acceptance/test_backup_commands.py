"""A backup beside a server that runs, and a restore where nothing is, as whoever runs it types them."""

import json
import os
import pwd
import re
from pathlib import Path

from tests.support.content import KIB, Content
from tests.support.process import Server, client_of_owner, ended, owner_token, run_cli

FILE = Content(3 * 64 * KIB - 100, name="folder/file.bin")
OPEN = Content(3 * 64 * KIB, seed=1, name="open.bin")


def test_a_backup_and_a_restore(tmp_path: Path) -> None:
    data, backups = tmp_path / "data", tmp_path / "backups"
    settings = {"DATA": str(data), "FREE_SPACE_FLOOR": "0"}
    server = Server(tmp_path / "server.log", settings)
    with ended(server):
        with client_of_owner(server.url, data) as client:
            assert client.put(f"/files/{FILE.md5}", params={"name": FILE.name}, content=FILE.data).status_code == 201
            client.post(f"/files/{OPEN.md5}", json={"name": OPEN.name, "size": OPEN.size, "chunk_size": 64 * KIB})
            assert client.put(f"/files/{OPEN.md5}/chunks/0", content=OPEN.chunk(0)).status_code == 200
        made = run_cli(settings, "backup", str(backups))
        assert (made.returncode, made.stderr) == (0, "")
        told = re.fullmatch(r"backup (\w+): 1 blobs, .*\nnew: 1 blobs, .*; of these linked: 1\n", made.stdout)
        assert told is not None, made.stdout
        again = run_cli(settings, "backup", str(backups), "--keep", "1", "--reread")
        assert (again.returncode, again.stderr) == (0, "")
        assert "new: 0 blobs" in again.stdout
        assert "removed: 1 backups, 0 blobs" in again.stdout
        told_of = [
            json.loads(line)
            for line in run_cli(settings, "audit", "--json", "--action", "backup.made").stdout.splitlines()
        ]
        assert {(each["via"], each["actor"]) for each in told_of} == {("command", pwd.getpwuid(os.getuid()).pw_name)}
        assert told_of[1]["subject"] == told[1]
        assert [each["details"] for each in told_of] == [{"directory": str(backups), "blobs": 1, "lacking": 0}] * 2
    token = owner_token(data)

    settings["DATA"] = str(tmp_path / "elsewhere")
    restored = run_cli(settings, "restore", str(backups))
    assert (restored.returncode, restored.stderr) == (0, "")
    assert "open uploads whose chunks are in no backup: 1\n`uploader reset-unfinished --lost --yes`" in restored.stdout
    (restoring,) = run_cli(settings, "audit", "--json", "--action", "installation.restored").stdout.splitlines()
    assert json.loads(restoring)["details"]["directory"] == str(backups)
    assert run_cli(settings, "reset-unfinished", "--lost", "--yes").stdout.startswith("uploads cancelled: 1\n")
    assert run_cli(settings, "reconcile").returncode == 0

    server = Server(tmp_path / "server.log", settings)
    with ended(server), client_of_owner(server.url, data) as client:
        client.headers["Authorization"] = f"Bearer {token}"
        (file,) = client.get("/me/files").json()["files"]
        assert client.get(f"/me/files/{file['id']}/content").content == FILE.data
