"""What does not belong together, or is not fit, stops every start and command with one line and the exit code of a bad
configuration, and nothing is written."""

import asyncio
import os
import shlex
import shutil
import signal
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from sqlalchemy import make_url

from tests.support.content import KIB, Content
from tests.support.newer import newer_version
from tests.support.problems import problem
from tests.support.process import Process, Server, answers, client_of_owner, ended, run_cli, run_mounted, wait_for
from tests.support.relay import relaying
from tests.support.sending import get, send
from tests.support.servers import PrivateRedis, free_port
from tests.support.stack import patient
from tests.support.waiting import SERVER_SECONDS
from uploader.database import migrate
from uploader.domain.secret import Secret

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
    """Processes wait for it."""
    data = shlex.quote(settings["DATA"])
    mounts = f"mount --bind {data} {data} && mount -o remount,bind,ro {data}"
    for command in COMMANDS[2:4]:
        told = run_mounted(mounts, settings, *command, "--wait", "0")
        assert (told.returncode, told.stdout) == (1, ""), told.stderr
        assert settings["DATA"] in told.stderr, told.stderr


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

WAITS = "the start waits"


async def test_a_start_waits_for_its_database_and_not_for_what_no_waiting_mends(
    tmp_path: Path, served_url: str
) -> None:
    """The database is away until a relay leads to its port."""
    url, port, database_port = make_url(served_url), free_port(), free_port()
    if url.host not in ("127.0.0.1", "localhost"):
        pytest.skip("a relay leads to this machine alone")
    told = url.set(host="127.0.0.1", port=database_port).render_as_string(hide_password=False)
    settings = {"DATA": str(tmp_path / "data"), "DATABASE_URL": told, "FREE_SPACE_FLOOR": "0"}
    serving = Process(tmp_path / "serving", settings, "serve", "--port", str(port), "--workers", "2")
    working = Process(tmp_path / "working", settings, "work")
    with ended(serving, working):
        for process, count in ((serving, 2), (working, 1)):
            wait_for(lambda process=process, count=count: process.output().count(WAITS) == count)  # type: ignore[misc]
        check_what_a_start_answers(f"http://127.0.0.1:{port}")
        away = run_cli(settings, "token", "list", "--wait", "0")
        assert (away.returncode, away.stderr.count("is away: ")) == (1, 1)
        command = Process(tmp_path / "command", settings, "token", "list", "--wait", "600")
        with ended(command):
            wait_for(lambda: "waits 600 s at most: the database at" in command.output())
            with relaying(url.port or 3306, port=database_port):
                assert command.process.wait(SERVER_SECONDS) == 0
                wait_for(lambda: answers(port))
                wait_for(lambda: "uploader worker runs" in working.output())
        for process in (serving, working):
            lines = {line.split("reason=")[1] for line in process.output().splitlines() if WAITS in line}
            assert all(
                f"the database at 127.0.0.1:{database_port} (UPLOADER_DATABASE_URL) is away" in each for each in lines
            )
            assert process.stop() == 0


def check_what_a_start_answers(url: str) -> None:
    """Check a server whose start waits."""
    assert get(f"{url}/livez").status_code == 200
    ready = get(f"{url}/readyz")
    assert (ready.status_code, ready.json()["checks"]["start"]["ok"]) == (503, False)
    for path in ("/me/usage", "/metrics", "/", "/config"):
        refused = get(f"{url}{path}")
        assert problem(refused, 503, "unavailable")["detail"].startswith("The server starts, and waits")
        assert refused.headers["Retry-After"]


async def test_refused_password_and_older_schema_delay_a_start(tmp_path: Path, blank_served_url: str) -> None:
    url = make_url(blank_served_url)
    settings = {"DATA": str(tmp_path / "data"), "FREE_SPACE_FLOOR": "0", "SECRET": "0123456789abcdef" * 4}
    settings["DATABASE_URL"] = blank_served_url
    wrong = settings | {"DATABASE_URL": url.set(password="wrong").render_as_string(hide_password=False)}
    (tmp_path / "data").mkdir()
    refused = run_cli(wrong, "token", "list", "--wait", "600")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1), refused.stderr
    port = free_port()
    serving = Process(tmp_path / "serving", settings, "serve", "--port", str(port))
    refusing = Process(tmp_path / "refusing", wrong, "work")
    with ended(serving, refusing):
        wait_for(lambda: "Access denied" in refusing.output())
        wait_for(lambda: "run `uploader db upgrade`" in serving.output())
        check_what_a_start_answers(f"http://127.0.0.1:{port}")
        assert "db upgrade" in get(f"http://127.0.0.1:{port}/readyz").text
        behind = run_cli(settings, "token", "list", "--wait", "600")
        assert (behind.returncode, behind.stderr.count("db upgrade")) == (2, 1)
        assert run_cli(settings, "db", "upgrade").returncode == 0
        wait_for(lambda: answers(port))
        assert [serving.stop(), refusing.stop()] == [0, 0]


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_newer_schema_ends_a_waiting_start_with_an_error(
    tmp_path: Path, blank_served_url: str, workers: str
) -> None:
    """The database gets the schema of a newer version meanwhile."""
    settings = {"DATA": str(tmp_path / "data"), "DATABASE_URL": blank_served_url, "SECRET": "0123456789abcdef" * 4}
    serving = Process(tmp_path / "log", settings, "serve", "--port", "0", "--workers", workers)
    with ended(serving):
        wait_for(lambda: "run `uploader db upgrade`" in serving.output())
        with newer_version(tmp_path / "newer", (False,)):
            database = patient(blank_served_url)
            await migrate.upgrade(database, secret=Secret(settings["SECRET"]))
            await database.close()
        assert await asyncio.to_thread(serving.process.wait, SERVER_SECONDS) not in (0, None)
        assert "newer than this version's" in serving.output()


@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("work",)], ids=lambda command: command[0])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_start_that_waits_is_ended(tmp_path: Path, command: tuple[str, ...], how: signal.Signals) -> None:
    url = f"mysql+asyncmy://root:a-secret@127.0.0.1:{free_port()}/uploader"
    process = Process(tmp_path / "log", {"DATA": str(tmp_path / "data"), "DATABASE_URL": url}, *command)
    with ended(process):
        wait_for(lambda: WAITS in process.output())
        process.process.send_signal(how)
        assert process.process.wait() == 0
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
    refused = Process(
        tmp_path / "refused",
        settings | {"REDIS_URL": url.replace("secret", "wrong")},
        *("serve", "--port", str(port)),
    )
    with ended(refused):
        wait_for(lambda: "startup complete" in refused.output())
        checked = get(f"http://127.0.0.1:{port}/readyz").json()["checks"]["redis"]
        assert (checked["ok"], "WRONGPASS" in checked["reason"]) == (False, True)
        assert f"Redis at 127.0.0.1:{redis.port} (UPLOADER_REDIS_URL) answers WRONGPASS" in refused.output()
    redis.stop()


def test_redis_that_is_too_old_ends_a_start(settings: dict[str, str], old_redis: PrivateRedis) -> None:
    for command in (("serve", "--port", "0"), ("work",)):
        refused = run_cli(settings | {"REDIS_URL": old_redis.url}, *command)
        *_, line = refused.stderr.splitlines()
        what = "this is Redis 6.2.5; Redis 7.0 or newer, or any Valkey, is needed"
        assert (refused.returncode, line) == (2, f"uploader: UPLOADER_REDIS_URL: {what}")
