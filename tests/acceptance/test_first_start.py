"""What a newcomer meets: the first start, its token, the embedded engine, and the next start after a kill."""

import os
import pty
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.process import (
    UPLOADER,
    Process,
    Server,
    client_of_owner,
    ended,
    environment,
    processes_in,
    run_cli,
    run_program,
    wait_for,
)
from tests.support.sending import get
from tests.support.servers import free_port
from tests.support.waiting import PATIENCE_SECONDS
from uploader.cli.server.serve import outward_address


@contextmanager
def served(data: Path, *program: Path) -> Iterator[Server]:
    """With the umask of the test; it ends well."""
    server = Server(data.parent / "log", {"DATA": str(data)}, program=program or None)
    with ended(server):
        yield server
        assert server.stop() == 0


def test_the_first_start_makes_an_owner_and_says_what_to_do_next(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with served(data, UPLOADER) as server:
        token_file = data / "owner.token"
        token = token_file.read_text().strip()
        assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
        assert stat.S_IMODE(data.stat().st_mode) == 0o700
        wait_for(lambda: "curl" in server.output())
        for told in (f"{server.url}/\n", f"{server.url}/admin/\n", f"{server.url}/docs", str(token_file)):
            assert told in server.output()
        assert token not in server.output(), "the token is for terminals only"
        (line,) = [line for line in server.output().splitlines() if "Try:" in line]
        shown = run_program(["bash", "-c", line.partition("Try:")[2]])
        assert '"available"' in shown.stdout
        assert get(f"{server.url}/me/usage", token).status_code == 200
        assert get(f"{server.url}/admin/usage", token).json()["users"][0]["user_id"] == "owner"
    assert processes_in(data / "redis") == []


@pytest.fixture
def common_umask() -> Iterator[None]:
    """Of most accounts: what they make everybody may read."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("common_umask")
def test_nobody_else_reads_what_lies_in_a_directory_that_was_there(tmp_path: Path) -> None:
    data, backups = tmp_path / "data", tmp_path / "backups"
    for directory in (data, backups):
        directory.mkdir()
        directory.chmod(0o755)
    settings = {"DATA": str(data)}
    assert run_cli(settings, "db", "upgrade").returncode == 0
    (data / "uploader.db").chmod(0o644)
    for said in (1, 0):
        (tmp_path / "log").unlink(missing_ok=True)
        with served(data) as server:
            with client_of_owner(server.url, data) as client:
                assert client.post("/me/files", params={"name": "a"}, content=b"a").is_success
            assert run_cli(settings, "backup", str(backups)).returncode == 0
            assert open_to_others(data) + open_to_others(backups) == []
            assert server.output().count("other accounts of this machine") == said
            ready = get(f"{server.url}/readyz").json()["checks"]["storage"]
            assert ready["ok"]
            had_access = "other accounts of this machine had access to what is kept here, last at "
            assert ready["reason"].startswith(had_access)
    # As earlier versions left it, which closed the directory that they made.
    for path in data.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    with served(data):
        assert [path for path in open_to_others(data) if path.parent == data] == []


def open_to_others(directory: Path) -> list[Path]:
    return [path for path in (directory, *directory.rglob("*")) if path.lstat().st_mode & 0o077]


@pytest.mark.usefixtures("common_umask")
def test_a_directory_in_which_others_keep_something_stays_as_it_is(tmp_path: Path) -> None:
    for name, mode in (("of others", 0o755), ("sticky", 0o1777)):
        data = tmp_path / name
        data.mkdir()
        data.chmod(mode)
        theirs = data / "theirs"
        if name == "of others":
            theirs.write_text("")
        with served(data):
            assert stat.S_IMODE(data.stat().st_mode) == mode
            assert set(open_to_others(data)) - {theirs} == {data}


@pytest.mark.usefixtures("common_umask")
def test_the_database_behind_a_link_is_closed_and_a_new_directory_is_no_leak(tmp_path: Path) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    for directory in (data, elsewhere):
        directory.mkdir()
    with served(data) as server:
        assert stat.S_IMODE(data.stat().st_mode) == 0o700
        assert get(f"{server.url}/readyz").json()["checks"]["storage"]["reason"] is None
    database = (data / "uploader.db").rename(elsewhere / "uploader.db")
    (data / "uploader.db").symlink_to(database)
    database.chmod(0o644)
    with served(data) as server:
        assert stat.S_IMODE(database.stat().st_mode) == 0o600
        assert get(f"{server.url}/readyz").json()["checks"]["storage"]["reason"].startswith("other accounts")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another account")
def test_a_directory_of_another_account_is_told_and_served_from(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    os.chown(data, 12345, 12345)
    with served(data) as server:
        assert stat.S_IMODE(data.stat().st_mode) == 0o755
        assert open_to_others(data) == [data]
        assert "it can't be taken away" in server.output()


def test_a_terminal_is_shown_the_token(tmp_path: Path) -> None:
    data = tmp_path / "data"
    master, slave = pty.openpty()
    command = [str(UPLOADER), "serve", "--port", str(free_port())]
    process = subprocess.Popen(
        command, env=environment({"DATA": str(data)}), stdout=slave, stderr=slave, start_new_session=True
    )
    os.close(slave)
    shown = b""
    try:
        while b"Try:" not in shown:
            shown += os.read(master, 4096)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=PATIENCE_SECONDS)
        os.close(master)
    assert f"/#token={(data / 'owner.token').read_text().strip()}" in shown.decode()


@pytest.mark.parametrize(("host", "here"), [("0.0.0.0", "127.0.0.1"), ("::", "[::1]")])
def test_a_server_for_everybody_says_where_others_reach_it(tmp_path: Path, host: str, here: str) -> None:
    server = Server(tmp_path / "log", {"DATA": str(tmp_path / "data")}, "--host", host)
    with ended(server):
        wait_for(lambda: "Try:" in server.output())
        assert f"http://{here}:{server.port}/docs" in server.output()
        assert f"listens on all addresses, port {server.port}, " in server.output()
        families = [socket.AF_INET, socket.AF_INET6] if host == "::" else [socket.AF_INET]
        addresses = [address for family in families for address in outward_address(family)]
        wait_for(lambda: server.output().count("From elsewhere:") >= len(addresses))
        elsewhere = [line.split()[-1] for line in server.output().splitlines() if "From elsewhere:" in line]
        shown = [f"[{address}]" if ":" in address else address for address in addresses]
        assert {f"http://{address}:{server.port}/" for address in shown} <= set(elsewhere)
        for url in elsewhere:
            assert get(f"{url}livez").status_code == 200


def test_a_killed_server_leaves_nothing_that_stops_the_next_start(tmp_path: Path) -> None:
    """Killing the parent of several workers frees the port, too."""
    data, settings = tmp_path / "data", {"DATA": str(tmp_path / "data")}
    server = Server(tmp_path / "log", settings, "--workers", "2")
    port = server.port
    server.kill()
    wait_for(lambda: processes_in(data / "redis") == [])
    wait_for(lambda: _is_free(port))
    server = Server(tmp_path / "log", settings, "--workers", "2", port=port)
    with ended(server):
        assert len(processes_in(data / "redis")) == 1
        assert server.stop() == 0


def _is_free(port: int) -> bool:
    """Whether nobody listens: on a busy machine somebody who does not answer yet does."""
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError as error:
        return isinstance(error, ConnectionRefusedError)
    return False


def test_commands_and_a_worker_work_beside_the_server_and_the_worker_without_it(tmp_path: Path) -> None:
    data, settings = tmp_path / "data", {"DATA": str(tmp_path / "data")}
    server = Server(tmp_path / "log", settings)
    worker = Process(tmp_path / "worker.log", settings, "work")
    with ended(server, worker):
        token = run_cli(settings, "token", "create", "bob", "--total-space", "1GiB").stdout.split()[-1]
        assert get(f"{server.url}/me/usage", token).json()["total_space"] == 1 << 30
        assert run_cli(settings, "user", "set-quota", "bob", "2GiB").returncode == 0
        assert get(f"{server.url}/me/usage", token).json()["total_space"] == 2 << 30
        assert run_cli(settings, "db", "upgrade").returncode == 0
        wait_for(lambda: "worker runs" in worker.output())
        # It outlives the server whose engine it used.
        (first,) = processes_in(data / "redis")
        assert server.stop() == 0
        wait_for(lambda: processes_in(data / "redis") not in ([], [first]))
        server = Server(tmp_path / "log", settings)
        with ended(server):
            assert server.stop() == 0
        assert worker.stop() == 0
    assert processes_in(data / "redis") == []
