"""A SQLite that went bad under a stopped server: the start says what, and a command brings the last copy back."""

import asyncio
from pathlib import Path

from tests.support.content import KIB, Content
from tests.support.process import Server, client_of_owner, ended, run_cli
from tests.support.rot import change_without_an_index, ruin_a_table
from tests.support.sending import put, send
from uploader.database.copies import RollingCopies
from uploader.runtime.clock import Clock

OLD, NEW, OPEN = (Content(3 * 64 * KIB - seed, seed=seed, name=f"{seed}.bin") for seed in range(1, 4))


def test_the_last_copy_comes_back_by_one_command(tmp_path: Path) -> None:
    data = tmp_path / "data"
    settings = {"DATA": str(data), "FREE_SPACE_FLOOR": "0"}
    database = data / "uploader.db"
    server = Server(tmp_path / "log", settings)
    with ended(server), client_of_owner(server.url, data) as client:
        send(client, OLD)
        assert asyncio.run(RollingCopies(database, Clock()).make())
        send(client, NEW)
        send(client, OPEN, (0,))
        running = run_cli(settings, "restore-backup", "--last", "--yes")
        assert (running.returncode, "is in use: stop all servers" in running.stderr) == (1, True)
        assert server.stop() == 0
    ruin_a_table(database, "file")
    damaged = database.read_bytes()

    refused = run_cli(settings, "serve", "--port", "0")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    for words in (f"the database {database} can't be used: table file", "`uploader restore-backup --last`"):
        assert words in refused.stderr
    asked = run_cli(settings, "restore-backup", "--last")
    assert (asked.returncode, "say --yes" in asked.stderr) == (2, True)
    for words in ("newest good copy: uploader.db.copy-", "lost: what was done since: names of new files"):
        assert words in asked.stdout
    assert database.read_bytes() == damaged
    for wrong in (
        ("restore-backup",),
        ("restore-backup", "--last", str(tmp_path)),
        ("restore-backup", str(tmp_path), "--yes"),
    ):
        assert run_cli(settings, *wrong).returncode == 2

    restored = run_cli(settings, "restore-backup", "--last", "--yes")
    assert restored.returncode == 0, restored.stderr
    assert "kept, though the copy does not name them: 2 contents and uploads" in restored.stdout
    (aside,) = data.glob("uploader.db.damaged-*")
    assert aside.read_bytes() == damaged
    listed = run_cli(settings, "cleanup", "--list").stdout.splitlines()
    assert [line.split()[3] for line in listed] == ["blob", "upload"]
    assert NEW.sha256 in listed[0]

    server = Server(tmp_path / "log", settings)
    with ended(server), client_of_owner(server.url, data) as client:
        (file,) = client.get("/me/files").json()["files"]
        assert client.get(f"/me/files/{file['id']}/content").content == OLD.data
        reason = client.get("/readyz").json()["checks"]["content"]["reason"]
        assert "contents that it does not name are kept" in reason
        send(client, NEW)
        send(client, OPEN, (0,))
        assert put(client, OPEN, (1, 2)).json()["file"]["sha256"] == OPEN.sha256
        told = run_cli(settings, "reconcile")
        assert (told.returncode, told.stdout.partition(",")[0]) == (0, "0 drifts"), told.stdout
        assert server.stop() == 0


def test_an_index_that_is_not_as_its_rows_ends_a_server_that_serves(tmp_path: Path) -> None:
    data = tmp_path / "data"
    settings, database = {"DATA": str(data), "FREE_SPACE_FLOOR": "0"}, data / "uploader.db"
    server = Server(tmp_path / "log", settings)
    with ended(server), client_of_owner(server.url, data) as client:
        send(client, OLD)
        assert server.stop() == 0
    change_without_an_index(database, "ix_file_md5", f"UPDATE file SET md5 = X'{NEW.md5.encode().hex()}'")
    served = run_cli(settings, "serve", "--port", "0")
    assert (served.returncode, "listens on" in served.stdout) == (2, True), served.stderr
    assert f"the database {database} can't be used: row 1 missing from index ix_file_md5" in served.stderr
