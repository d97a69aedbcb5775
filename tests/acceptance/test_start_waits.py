"""A start while the database or Redis is away: it waits, says so once, and serves when they come."""

import signal
from pathlib import Path

import pytest

from tests.support.process import Process, answers, ended, run_cli, wait_for
from tests.support.servers import PrivateDatabase, PrivateRedis, free_port

WAITS = "the start waits for the database"


async def test_a_start_waits_for_its_database_and_not_for_what_no_waiting_mends(
    tmp_path: Path, own_server: PrivateDatabase, own_server_url: str
) -> None:
    settings = {"DATA": str(tmp_path / "data"), "DATABASE_URL": own_server_url, "FREE_SPACE_FLOOR": "0"}
    own_server.kill()
    port = free_port()
    serving = Process(tmp_path / "serving", settings, "serve", "--port", str(port), "--workers", "2")
    working = Process(tmp_path / "working", settings, "work")
    with ended(serving, working):
        for process in (serving, working):
            wait_for(lambda process=process: WAITS in process.output())  # type: ignore[misc]
        own_server.start()
        wait_for(lambda: answers(port))
        wait_for(lambda: "uploader worker runs" in working.output())
        for process in (serving, working):
            (line,) = [line for line in process.output().splitlines() if WAITS in line]
            assert f"the database at 127.0.0.1:{own_server.port} (UPLOADER_DATABASE_URL) is away: " in line
            assert process.stop() == 0

    user = own_server_url.partition("//")[2].partition("@")[0]
    for right, wrong in ((f"{user}@", f"{user.partition(':')[0]}:wrong@"), ("/uploader?", "/nobodys?")):
        assert right in own_server_url
        for command in (("serve", "--port", "0"), ("work",)):
            refused = run_cli(settings | {"DATABASE_URL": own_server_url.replace(right, wrong)}, *command)
            (line,) = refused.stderr.splitlines()
            assert (refused.returncode, line.startswith("uploader: the database at ")) == (1, True)


@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("work",)], ids=lambda command: command[0])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_start_that_waits_is_ended(tmp_path: Path, command: tuple[str, ...], how: signal.Signals) -> None:
    url = f"mysql+asyncmy://root@127.0.0.1:{free_port()}/uploader"
    process = Process(tmp_path / "log", {"DATA": str(tmp_path / "data"), "DATABASE_URL": url}, *command)
    with ended(process):
        wait_for(lambda: WAITS in process.output())
        process.process.send_signal(how)
        assert process.process.wait() == (0 if how is signal.SIGTERM else 1)
        assert "Traceback" not in process.output()


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
        (line,) = refused.stderr.splitlines()
        assert line.startswith(f"uploader: Redis at 127.0.0.1:{redis.port} (UPLOADER_REDIS_URL) is away: ")
        assert refused.returncode == 1
    redis.stop()
