"""What does not belong together, or is not fit, stops every start and command with one line and the exit code of a bad
configuration, and nothing is written."""

import os
import shlex
import shutil
import signal
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from sqlalchemy import make_url

from tests.support.content import KIB, Content
from tests.support.process import Process, Server, answers, client_of_owner, ended, run_cli, run_mounted, wait_for
from tests.support.relay import relaying
from tests.support.sending import get, send
from tests.support.servers import PrivateRedis, free_port

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
def test_a_bind_mount_of_the_same_filesystem_for_a_directory(settings: dict[str, str], tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name, commands in (("blobs", (("serve", "--port", "0"), ("cleanup",))), ("trash", (("work",),))):
        target = Path(settings["DATA"]) / name
        assert elsewhere.stat().st_dev == target.stat().st_dev
        mounts = shlex.join(["mount", "--bind", str(elsewhere), str(target)])
        for command in commands:
            assert f"no file can be linked from temp to {name}" in refusal(run_mounted(mounts, settings, *command))


@pytest.mark.usefixtures("mounts")
def test_a_data_directory_that_can_only_be_read(settings: dict[str, str]) -> None:
    data = shlex.quote(settings["DATA"])
    mounts = f"mount --bind {data} {data} && mount -o remount,bind,ro {data}"
    for command in COMMANDS[:4]:
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


def test_commands_before_the_first_start_make_no_id_and_a_worker_does(tmp_path: Path) -> None:
    settings = {"DATA": str(tmp_path / "data")}
    for command in (("token", "list"), ("cleanup",), ("db", "upgrade"), ("reconcile",)):
        assert run_cli(settings, *command).returncode == 0
    assert "there is nothing to back up" in run_cli(settings, "backup", str(tmp_path / "backups")).stderr
    assert run_cli(settings, "installation").stdout.count("of none") == 3
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
        send(client, CONTENT, (0,))
        for file in data.glob("uploader.db*"):
            file.unlink()
        for number in range(4):
            small = Content(1000, seed=number)
            body = {"name": f"{number}", "size": small.size}
            assert client.post(f"/files/{small.md5}", json=body).status_code == 503

        def is_not_ready() -> bool:
            return get(f"{server.url}/readyz").status_code == 503

        def refuses_chunks() -> bool:
            path = f"/files/{CONTENT.md5}/chunks"
            answers = [client.put(f"{path}/{number}", content=CONTENT.chunk(number)) for number in (1, 2)]
            return {answer.status_code for answer in answers} == {503}

        wait_for(lambda: all(is_not_ready() for _ in range(8)))
        wait_for(lambda: all(refuses_chunks() for _ in range(8)))
        server.stop()
    assert "Traceback" not in server.output()
    assert not (data / "uploader.db").exists()
    again = run_cli(settings, "serve", "--port", str(free_port()))
    assert "is not there" in refusal(again)


# While the database or Redis is away a start waits, says so once, and serves when they come.

WAITS = "the start waits for the database"


async def test_a_start_waits_for_its_database_and_not_for_what_no_waiting_mends(
    tmp_path: Path, served_url: str
) -> None:
    """Which is away until a relay leads to it."""
    url, port, database_port = make_url(served_url), free_port(), free_port()
    if url.host not in ("127.0.0.1", "localhost"):
        pytest.skip("a relay leads to this machine alone")
    told = url.set(host="127.0.0.1", port=database_port).render_as_string(hide_password=False)
    settings = {"DATA": str(tmp_path / "data"), "DATABASE_URL": told, "FREE_SPACE_FLOOR": "0"}
    serving = Process(tmp_path / "serving", settings, "serve", "--port", str(port), "--workers", "2")
    working = Process(tmp_path / "working", settings, "work")
    with ended(serving, working):
        for process in (serving, working):
            wait_for(lambda process=process: WAITS in process.output())  # type: ignore[misc]
        with relaying(url.port or 3306, port=database_port):
            wait_for(lambda: answers(port))
            wait_for(lambda: "uploader worker runs" in working.output())
            for process in (serving, working):
                (line,) = [line for line in process.output().splitlines() if WAITS in line]
                assert f"the database at 127.0.0.1:{database_port} (UPLOADER_DATABASE_URL) is away: " in line
                assert process.stop() == 0

    for wrong in (url.set(password="wrong"), url.set(database="nobodys")):
        for command in (("serve", "--port", "0"), ("work",)):
            refused = run_cli(settings | {"DATABASE_URL": wrong.render_as_string(hide_password=False)}, *command)
            (line,) = refused.stderr.splitlines()
            assert (refused.returncode, line.startswith("uploader: the database at ")) == (1, True)


@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("work",)], ids=lambda command: command[0])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_start_that_waits_is_ended(tmp_path: Path, command: tuple[str, ...], how: signal.Signals) -> None:
    url = f"mysql+asyncmy://root:a-secret@127.0.0.1:{free_port()}/uploader"
    process = Process(tmp_path / "log", {"DATA": str(tmp_path / "data"), "DATABASE_URL": url}, *command)
    with ended(process):
        wait_for(lambda: WAITS in process.output())
        process.process.send_signal(how)
        assert process.process.wait() == (0 if how is signal.SIGTERM else 1)
        assert "Traceback" not in process.output()
        assert "a-secret" not in process.output()


def test_a_start_goes_on_without_redis_and_all_is_there_when_that_is(tmp_path: Path) -> None:
    redis = PrivateRedis(tmp_path / "redis", password="secret")
    url = redis.url.replace("//", "//:secret@")
    settings = {"DATA": str(tmp_path / "data"), "REDIS_URL": url, "FREE_SPACE_FLOOR": "0"}
    port = free_port()
    said = "the start goes on, and what needs this store waits for it"
    serving = Process(tmp_path / "serving", settings, "serve", "--port", str(port))
    with ended(serving):
        wait_for(lambda: "startup complete" in serving.output())
        working = Process(tmp_path / "working", settings, "work")
        with ended(working):
            wait_for(lambda: "uploader worker runs" in working.output())
            assert not answers(port)
            redis.start()
            wait_for(lambda: answers(port))
            for process in (serving, working):
                assert process.output().count(said) == 1
                assert process.output().count("job waits for what it needs") == 1
                assert process.stop() == 0
    for command in (("serve", "--port", "0"), ("work",)):
        refused = run_cli(settings | {"REDIS_URL": url.replace("secret", "wrong")}, *command)
        *_, line = refused.stderr.splitlines()
        assert line.startswith(f"uploader: Redis at 127.0.0.1:{redis.port} (UPLOADER_REDIS_URL) answers WRONGPASS: ")
        assert refused.returncode == 1
    redis.stop()
