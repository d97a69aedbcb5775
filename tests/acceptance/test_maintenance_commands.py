"""The commands that give space back, look for damage, and back up: beside a server that runs, and without one."""

import json
import os
import pwd
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.content import KIB, Content
from tests.support.layout import blob_path
from tests.support.process import Server, client_of_owner, ended, owner_token, run_cli
from tests.support.sending import client_with, send

CONTENT = Content(3 * 64 * KIB - 100)
OPEN = Content(3 * 64 * KIB, seed=1, name="open.bin")


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    return {"DATA": str(tmp_path / "data"), "FREE_SPACE_FLOOR": "0"}


@pytest.fixture
def client(settings: dict[str, str], tmp_path: Path) -> Iterator[httpx2.Client]:
    """Of the owner of a server that runs."""
    server = Server(tmp_path / "server.log", settings)
    with ended(server), client_of_owner(server.url, tmp_path / "data") as made:
        yield made


def whole(client: httpx2.Client, content: Content) -> None:
    stored = client.put(f"/files/{content.md5}", params={"name": content.name}, content=content.data)
    assert stored.status_code == 201


def test_cleanup_and_reset_beside_a_running_server(client: httpx2.Client, settings: dict[str, str]) -> None:
    def reason() -> str:
        answer = client.put(f"/files/{CONTENT.md5}/chunks/1", content=CONTENT.chunk(1))
        return str(answer.json().get("reason"))

    send(client, CONTENT, (0,))
    # Of the present month: it has to be asked for.
    quota = f"{CONTENT.size / 1024:.1f} KiB ({CONTENT.size} bytes)"
    of_all = ("cleanup", "--before", "9999-12", "--idle", "1ms")
    for arguments, expired in ((("cleanup",), 0), (("cleanup", "--before", "9999-12"), 0), (of_all, 1)):
        told = run_cli(settings, *arguments, "--dry-run")
        assert (told.returncode, told.stderr) == (0, "")
        assert f"would be expired: {expired}\n" in told.stdout
        assert (f"quota would be given back: {quota}\n" in told.stdout) == bool(expired)
    assert reason() == "None", "a dry run ends nothing"
    cleaned = run_cli(settings, *of_all)
    assert cleaned.returncode == 0
    assert "uploads idle for 0.001s expired: 1\n" in cleaned.stdout
    assert f"quota given back: {quota}\n" in cleaned.stdout
    assert reason() == "expired"
    assert list(Path(settings["DATA"], "temp").iterdir()) == []

    send(client, CONTENT, (0,))
    refused = run_cli(settings, "reset-unfinished")
    assert (refused.returncode, refused.stdout, "--yes" in refused.stderr) == (2, "", True)
    assert reason() == "None"
    reset = run_cli(settings, "reset-unfinished", "--yes")
    assert (reset.returncode, reset.stdout) == (0, f"uploads cancelled: 1\nquota given back: {quota}\n")
    assert reason() == "cancelled"
    usage = client.get("/me/usage").json()
    assert (usage["use_space_unfinished"], usage["reserved"]) == (0, 0)


def move_database(source: Path, target: Path) -> None:
    for file in source.glob("uploader.db*"):
        file.rename(target / file.name)


def remove_database(data: Path) -> None:
    for file in data.glob("uploader.db*"):
        file.unlink()


def test_what_no_row_names_goes_to_the_trash_and_comes_back(settings: dict[str, str], tmp_path: Path) -> None:
    """The database is deleted, then found again."""
    data, later = tmp_path / "data", tmp_path / "two hours"
    later.write_text("7200")
    server = Server(tmp_path / "server.log", settings)
    with ended(server):
        with client_of_owner(server.url, data) as client:
            whole(client, CONTENT)
        assert server.stop() == 0
    blob = blob_path(data, CONTENT.sha256)
    move_database(data, tmp_path)
    settings["TEST_CLOCK"] = str(later)

    refused = run_cli(settings, "cleanup", "--yes")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "is not there: put it back" in refused.stderr
    assert run_cli(settings, "adopt", "--yes").returncode == 0
    found = run_cli(settings, "reconcile")
    assert found.returncode == 1
    assert f"stray-blob of {CONTENT.sha256}: expected nothing, actual {CONTENT.size}\n" in found.stdout
    for arguments, would in ((("--dry-run",), "would be "), ((), "")):
        told = run_cli(settings, "cleanup", *arguments)
        assert (told.returncode, told.stderr) == (0, "")
        assert f"blobs without a row {would}put away: 1\n" in told.stdout
    assert not blob.exists()
    assert CONTENT.sha256 in run_cli(settings, "store-trash", "list").stdout
    refused = run_cli(settings, "store-trash", "restore", CONTENT.sha256)
    assert (refused.returncode, "no row needs" in refused.stderr) == (1, True)

    remove_database(data)
    move_database(tmp_path, data)
    (listed,) = run_cli(settings, "store-trash", "list", "--json").stdout.splitlines()
    assert (json.loads(listed)["kind"], json.loads(listed)["name"]) == ("blob", CONTENT.sha256)
    assert run_cli(settings, "store-trash", "restore", CONTENT.sha256).returncode == 0
    assert blob.read_bytes() == CONTENT.data
    assert run_cli(settings, "scrub").stdout == f"0 damaged; checked 1 blobs, {CONTENT.size} bytes\n"
    assert run_cli(settings, "store-trash", "list").stdout == ""
    assert run_cli(settings, "store-trash", "empty").returncode == 2
    assert run_cli(settings, "reconcile").returncode == 0

    remove_database(data)
    assert run_cli(settings, "adopt", "--yes").returncode == 0
    told = run_cli(settings, "cleanup", "--yes", "--dry-run")
    assert "blobs without a row would be put away: 1\n" in told.stdout
    assert blob.exists()
    removed = run_cli(settings, "cleanup", "--yes")
    assert (removed.returncode, removed.stderr) == (0, "")
    assert "blobs without a row put away: 1\n" in removed.stdout
    assert not blob.exists()


def test_without_a_server_the_commands_bring_their_own_engine(settings: dict[str, str], tmp_path: Path) -> None:
    for option, value in (("--before", "2026-13"), ("--before", "2026"), ("--idle", "long"), ("--idle", "0s")):
        refused = run_cli(settings, "cleanup", option, value)
        assert (refused.returncode, option in refused.stderr) == (2, True)
    assert not (tmp_path / "data").exists()
    for arguments in (("cleanup",), ("cleanup", "--dry-run"), ("reset-unfinished", "--yes")):
        done = run_cli(settings, *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert "given back: 0 bytes\n" in done.stdout


def test_a_backup_beside_a_server_and_a_restore_where_nothing_is(settings: dict[str, str], tmp_path: Path) -> None:
    data, backups = tmp_path / "data", tmp_path / "backups"

    def audited(action: str) -> list[dict[str, Any]]:
        told = run_cli(settings, "audit", "--json", "--action", action)
        return [json.loads(line) for line in told.stdout.splitlines()]

    server = Server(tmp_path / "server.log", settings)
    with ended(server):
        with client_of_owner(server.url, data) as client:
            whole(client, CONTENT)
            send(client, OPEN, (0,))
        made = run_cli(settings, "backup", str(backups))
        assert (made.returncode, made.stderr) == (0, "")
        told = re.fullmatch(r"backup (\w+): 1 blobs, .*\nnew: 1 blobs, .*; of these linked: 1\n", made.stdout)
        assert told is not None, made.stdout
        again = run_cli(settings, "backup", str(backups), "--keep", "1", "--reread")
        assert (again.returncode, again.stderr) == (0, "")
        assert "new: 0 blobs" in again.stdout
        assert "removed: 1 backups, 0 blobs" in again.stdout
        rows = audited("backup.made")
        assert {(each["via"], each["actor"]) for each in rows} == {("command", pwd.getpwuid(os.getuid()).pw_name)}
        assert rows[1]["subject"] == told[1]
        assert [each["details"] for each in rows] == [{"directory": str(backups), "blobs": 1, "lacking": 0}] * 2
    token = owner_token(data)

    settings["DATA"] = str(tmp_path / "elsewhere")
    restored = run_cli(settings, "restore-backup", str(backups))
    assert (restored.returncode, restored.stderr) == (0, "")
    assert "open uploads whose chunks are in no backup: 1\n`uploader reset-unfinished --lost --yes`" in restored.stdout
    [row] = audited("installation.restored")
    assert row["details"]["directory"] == str(backups)
    assert run_cli(settings, "reset-unfinished", "--lost", "--yes").stdout.startswith("uploads cancelled: 1\n")
    assert run_cli(settings, "reconcile").returncode == 0

    server = Server(tmp_path / "server.log", settings)
    with ended(server), client_with(token, server.url) as client:
        (file,) = client.get("/me/files").json()["files"]
        assert client.get(f"/me/files/{file['id']}/content").content == CONTENT.data
