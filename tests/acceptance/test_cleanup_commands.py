"""The commands that give space back, beside a server that runs and without one."""

import json
from pathlib import Path

from tests.support.content import KIB, Content
from tests.support.process import Server, client_of_owner, ended, run_cli

CONTENT = Content(3 * 64 * KIB - 100)


def test_cleanup_and_reset_beside_a_running_server(tmp_path: Path) -> None:
    data = tmp_path / "data"
    settings = {"DATA": str(data), "FREE_SPACE_FLOOR": "0"}
    server = Server(tmp_path / "server.log", settings)
    with ended(server), client_of_owner(server.url, data) as client:

        def open_with_a_chunk() -> None:
            body = {"name": CONTENT.name, "size": CONTENT.size, "chunk_size": CONTENT.chunk_size}
            assert client.post(f"/files/{CONTENT.md5}", json=body).status_code == 201
            assert client.put(f"/files/{CONTENT.md5}/chunks/0", content=CONTENT.chunk(0)).status_code == 200

        def reason() -> str:
            answer = client.put(f"/files/{CONTENT.md5}/chunks/1", content=CONTENT.chunk(1))
            return str(answer.json().get("reason"))

        open_with_a_chunk()
        # Of the present month: it has to be asked for.
        quota = f"{CONTENT.size / 1024:.1f} KiB ({CONTENT.size} bytes)"
        for arguments, expired in (
            (("cleanup",), 0),
            (("cleanup", "--before", "9999-12"), 0),
            (("cleanup", "--before", "9999-12", "--idle", "1ms"), 1),
        ):
            told = run_cli(settings, *arguments, "--dry-run")
            assert (told.returncode, told.stderr) == (0, "")
            assert f"would be expired: {expired}\n" in told.stdout
            assert (f"quota would be given back: {quota}\n" in told.stdout) == bool(expired)
        assert reason() == "None", "a dry run ends nothing"

        cleaned = run_cli(settings, "cleanup", "--before", "9999-12", "--idle", "1ms")
        assert cleaned.returncode == 0
        assert "uploads idle for 0.001s expired: 1\n" in cleaned.stdout
        assert f"quota given back: {quota}\n" in cleaned.stdout
        assert reason() == "expired"
        assert list((data / "temp").iterdir()) == []

        open_with_a_chunk()
        refused = run_cli(settings, "reset-unfinished")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "--yes" in refused.stderr
        assert reason() == "None"
        reset = run_cli(settings, "reset-unfinished", "--yes")
        assert (reset.returncode, reset.stdout) == (0, f"uploads cancelled: 1\nquota given back: {quota}\n")
        assert reason() == "cancelled"
        usage = client.get("/me/usage").json()
        assert (usage["use_space_unfinished"], usage["reserved"]) == (0, 0)


def test_what_no_row_names_goes_to_the_trash_and_comes_back(tmp_path: Path) -> None:
    """The database is deleted, then found again."""
    data, later = tmp_path / "data", tmp_path / "two hours"
    later.write_text("7200")
    settings = {"DATA": str(data), "FREE_SPACE_FLOOR": "0"}
    server = Server(tmp_path / "server.log", settings)
    with ended(server):
        with client_of_owner(server.url, data) as client:
            path = f"/files/{CONTENT.md5}"
            body = {"name": CONTENT.name, "size": CONTENT.size, "chunk_size": CONTENT.chunk_size}
            client.post(path, json=body)
            for number in range(CONTENT.chunk_count):
                client.put(f"{path}/chunks/{number}", content=CONTENT.chunk(number))
            assert client.get(path).json()["state"] == "complete"
        assert server.stop() == 0
    blob = data / "blobs" / CONTENT.sha256[:2] / CONTENT.sha256[2:4] / CONTENT.sha256
    for file in data.glob("uploader.db*"):
        file.rename(tmp_path / file.name)
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
    assert CONTENT.sha256 in run_cli(settings, "trash", "list").stdout
    refused = run_cli(settings, "trash", "restore", CONTENT.sha256)
    assert (refused.returncode, "no row needs" in refused.stderr) == (1, True)

    for file in data.glob("uploader.db*"):
        file.unlink()
    for file in tmp_path.glob("uploader.db*"):
        file.rename(data / file.name)
    (listed,) = run_cli(settings, "trash", "list", "--json").stdout.splitlines()
    assert (json.loads(listed)["kind"], json.loads(listed)["name"]) == ("blob", CONTENT.sha256)
    assert run_cli(settings, "trash", "restore", CONTENT.sha256).returncode == 0
    assert blob.read_bytes() == CONTENT.data
    assert run_cli(settings, "trash", "list").stdout == ""
    assert run_cli(settings, "trash", "empty").returncode == 2
    assert run_cli(settings, "reconcile").returncode == 0

    for file in data.glob("uploader.db*"):
        file.unlink()
    assert run_cli(settings, "adopt", "--yes").returncode == 0
    told = run_cli(settings, "cleanup", "--yes", "--dry-run")
    assert "blobs without a row would be put away: 1\n" in told.stdout
    assert blob.exists()
    removed = run_cli(settings, "cleanup", "--yes")
    assert (removed.returncode, removed.stderr) == (0, "")
    assert "blobs without a row put away: 1\n" in removed.stdout
    assert not blob.exists()


def test_without_a_server_the_commands_bring_their_own_engine(tmp_path: Path) -> None:
    settings = {"DATA": str(tmp_path / "data")}
    for arguments in (("cleanup",), ("cleanup", "--dry-run"), ("reset-unfinished", "--yes")):
        done = run_cli(settings, *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert "given back: 0 bytes\n" in done.stdout


def test_bad_months_and_times_are_bad_usage(tmp_path: Path) -> None:
    settings = {"DATA": str(tmp_path / "data")}
    for option, value in (("--before", "2026-13"), ("--before", "2026"), ("--idle", "long"), ("--idle", "0s")):
        refused = run_cli(settings, "cleanup", option, value)
        assert refused.returncode == 2
        assert option in refused.stderr
    assert not (tmp_path / "data").exists()
