"""What does not belong together, or is not fit, stops every start and command with one line and the exit code of a bad
configuration, and nothing is written."""

import os
import shlex
import shutil
from pathlib import Path
from subprocess import CompletedProcess

import httpx2
import pytest

from tests.support.content import KIB, Content
from tests.support.mounting import run_mounted
from tests.support.process import Process, Server, client_of_owner, ended, run_cli, wait_for
from tests.support.servers import free_port

CONTENT = Content(3 * 64 * KIB - 100)
COMMANDS = (
    ("serve", "--port", "0"),
    ("work",),
    ("token", "list"),
    *((name,) for name in ("cleanup", "reconcile", "report", "scrub")),
)


@pytest.fixture(scope="module")
def data_that_was_served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("served")
    server = Server(directory / "log", {"DATA": str(directory / "data"), "FREE_SPACE_FLOOR": "0"})
    with ended(server):
        assert server.stop() == 0
    return directory / "data"


@pytest.fixture
def settings(data_that_was_served: Path, tmp_path: Path) -> dict[str, str]:
    """Of a server that has run."""
    shutil.copytree(data_that_was_served, tmp_path / "data")
    return {"DATA": str(tmp_path / "data"), "FREE_SPACE_FLOOR": "0"}


def refusal(told: "CompletedProcess[str]") -> str:
    """The one line."""
    assert (told.returncode, told.stdout) == (2, ""), told.stderr
    assert told.stderr.count("\n") == 1, told.stderr
    (line,) = told.stderr.splitlines()
    assert line.startswith("uploader: ")
    return line


@pytest.mark.usefixtures("mounts")
def test_a_bind_mount_of_the_same_filesystem_in_the_place_of_a_directory(
    settings: dict[str, str], tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("blobs", "trash"):
        target = Path(settings["DATA"]) / name
        assert elsewhere.stat().st_dev == target.stat().st_dev
        mounts = shlex.join(["mount", "--bind", str(elsewhere), str(target)])
        for command in (("serve", "--port", "0"), ("work",), ("cleanup",)):
            assert f"no file can be linked from temp to {name}" in refusal(run_mounted(mounts, settings, *command))


@pytest.mark.usefixtures("mounts")
def test_a_data_directory_that_can_only_be_read(settings: dict[str, str]) -> None:
    data = shlex.quote(settings["DATA"])
    mounts = f"mount --bind {data} {data} && mount -o remount,bind,ro {data}"
    for command in COMMANDS:
        assert "can't be written" in refusal(run_mounted(mounts, settings, *command))


def test_a_sqlite_file_that_is_none_or_not_there(settings: dict[str, str]) -> None:
    path = Path(settings["DATA"]) / "uploader.db"
    sound = path.read_bytes()
    for damaged in (bytes(100) + sound[100:], os.urandom(len(sound))):
        path.write_bytes(damaged)
        for command in (*COMMANDS, ("db", "upgrade"), ("adopt", "--yes")):
            assert f"the database {path} can't be used: " in refusal(run_cli(settings, *command))
        assert path.read_bytes() == damaged
    path.unlink()
    for command in (*COMMANDS, ("adopt",), ("installation",)):
        assert f"{path}, the database of this data directory, is not there" in refusal(run_cli(settings, *command))
    assert not path.exists()


def test_a_database_that_is_forgotten_in_the_settings(settings: dict[str, str], tmp_path: Path) -> None:
    """Of another server: it is as empty as a new one."""
    other = settings | {"DATABASE_URL": f"sqlite:///{tmp_path / 'other.db'}"}
    assert run_cli(other, "db", "upgrade").returncode == 0
    for command in (*COMMANDS, ("redis", "reset", "--yes")):
        line = refusal(run_cli(other, *command))
        assert "the data directory belongs to installation" in line
        assert "the database to none" in line
    shown = run_cli(other, "installation")
    assert (shown.returncode, shown.stdout.count("of none")) == (0, 1)


def test_adopting_is_asked_for_twice(settings: dict[str, str]) -> None:
    Path(settings["DATA"], "installation").unlink()
    assert "the data directory to none" in refusal(run_cli(settings, "token", "list"))
    asked = run_cli(settings, "adopt")
    assert (asked.returncode, "data directory: of none\n" in asked.stdout) == (2, True)
    assert "say --yes" in asked.stderr
    assert "the data directory to none" in refusal(run_cli(settings, "token", "list"))
    adopted = run_cli(settings, "adopt", "--yes")
    assert (adopted.returncode, adopted.stderr) == (0, "")
    assert run_cli(settings, "token", "list").returncode == 0
    assert adopted.stdout.count(adopted.stdout.split()[-2]) >= 1


def test_commands_before_the_first_start_make_no_id(tmp_path: Path) -> None:
    settings = {"DATA": str(tmp_path / "data")}
    for command in (("token", "list"), ("cleanup",), ("db", "upgrade"), ("reconcile",)):
        assert run_cli(settings, *command).returncode == 0
    assert "there is nothing to back up" in run_cli(settings, "backup", str(tmp_path / "backups")).stderr
    assert run_cli(settings, "installation").stdout.count("of none") == 3


def test_a_worker_makes_the_id_as_a_server_does(tmp_path: Path) -> None:
    settings = {"DATA": str(tmp_path / "data")}
    worker = Process(tmp_path / "log", settings, "work")
    with ended(worker):
        wait_for(lambda: "worker runs" in worker.output())
        assert run_cli(settings, "installation").stdout.count("of none") == 0
        assert worker.stop() == 0


def test_a_sqlite_file_that_is_unlinked_under_a_server(settings: dict[str, str], tmp_path: Path) -> None:
    """No upload is answered 201 from then on, no chunk is acknowledged once it is seen, and the next start does not begin
    anew."""
    data = Path(settings["DATA"])
    server = Server(tmp_path / "server.log", settings, "--workers", "2")
    with ended(server), client_of_owner(server.url, data) as client:
        wait_for(lambda: server.output().count("startup complete") == 2)
        opening = {"name": CONTENT.name, "size": CONTENT.size, "chunk_size": CONTENT.chunk_size}
        assert client.post(f"/files/{CONTENT.md5}", json=opening).status_code == 201
        for file in data.glob("uploader.db*"):
            file.unlink()
        for number in range(10):
            small = Content(1000, seed=number)
            body = {"name": f"{number}", "size": small.size}
            assert client.post(f"/files/{small.md5}", json=body).status_code == 503

        def is_not_ready() -> bool:
            return httpx2.get(f"{server.url}/readyz").status_code == 503

        def refuses_chunks() -> bool:
            path = f"/files/{CONTENT.md5}/chunks"
            answers = [client.put(f"{path}/{number}", content=CONTENT.chunk(number)) for number in range(2)]
            return {answer.status_code for answer in answers} == {503}

        wait_for(lambda: all(is_not_ready() for _ in range(8)))
        wait_for(lambda: all(refuses_chunks() for _ in range(8)))
        server.stop()
    assert "Traceback" not in server.output()
    assert not (data / "uploader.db").exists()
    again = run_cli(settings, "serve", "--port", str(free_port()))
    assert "is not there" in refusal(again)
