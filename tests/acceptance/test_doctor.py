"""`uploader doctor` as an administrator runs it, and the one line of it that a start says."""

import json
from pathlib import Path

from tests.support.process import UPLOADER, Process, Server, ended, run_cli, wait_for

# What a start says of what it found.
SAYS = "`uploader doctor` says all"


def test_a_default_installation_has_nothing_to_do_and_its_start_says_nothing(tmp_path: Path) -> None:
    """By a new interpreter, as README's first command does it."""
    settings = {"DATA": str(tmp_path / "data"), "FREE_SPACE_FLOOR": "0"}
    missing = run_cli(settings, "doctor")
    assert (missing.returncode, missing.stderr) == (1, "")
    assert missing.stdout == (
        f"warning  files: {tmp_path / 'data'} is not there; correct UPLOADER_DATA; or the first `uploader serve` makes it\n"
    )
    assert list(tmp_path.iterdir()) == []
    server = Server(tmp_path / "log", settings, program=(UPLOADER,))
    with ended(server):
        looked = run_cli(settings, "doctor")
        assert (looked.returncode, looked.stdout, looked.stderr) == (0, "nothing to do\n", "")
        assert server.stop() == 0
    assert SAYS not in server.output()
    assert " warning " not in server.output()
    before = sorted(tmp_path.rglob("*"))
    looked = run_cli(settings, "doctor", "--json", "--all-files")
    assert (looked.returncode, json.loads(looked.stdout), looked.stderr) == (0, [], "")
    assert sorted(tmp_path.rglob("*")) == before, "without a server nothing is made"


def test_a_start_says_the_worst_in_one_line_and_the_command_says_all(tmp_path: Path) -> None:
    settings = {"DATA": str(tmp_path / "data"), "FREE_SPACE_FLOOR": "0", "INSTANT": "trust"}
    settings |= {"METRICS": "open", "TRUSTED_PROXIES": "0.0.0.0/0"}
    server = Server(tmp_path / "log", settings)
    working = Process(tmp_path / "working", settings, "work")
    with ended(server, working):
        wait_for(lambda: "uploader worker runs" in working.output() and SAYS in server.output())
        for process in (server, working):
            [line] = [line for line in process.output().splitlines() if SAYS in line]
            assert " error   proxies: UPLOADER_TRUSTED_PROXIES: each of the many addresses of 0.0.0.0/0" in line
            assert line.endswith(f" (and 2 more): {SAYS}")
        looked = run_cli(settings, "doctor", "--json", "--notes")
        assert looked.returncode == 1
        found = json.loads(looked.stdout)
        assert [f"{each['level']} {each['subject']}" for each in found if each["level"] != "note"] == [
            *("error proxies", "warning metrics", "warning instant")
        ]
        assert {tuple(each) for each in found} == {("level", "subject", "what", "do")}
        assert {each["subject"] for each in found if each["level"] == "note"} >= {"backup"}


def test_what_is_away_is_a_line_and_no_trace(tmp_path: Path) -> None:
    settings = {"DATA": str(tmp_path / "data"), "REDIS_URL": "redis://:hunter2@127.0.0.1:1/0"}
    settings |= {"DATABASE_URL": "mysql+asyncmy://root:hunter2@127.0.0.1:1/uploader"}
    looked = run_cli(settings, "doctor")
    assert (looked.returncode, looked.stderr) == (1, "")
    lines = looked.stdout.splitlines()
    assert lines[0].startswith("error  database: the database at 127.0.0.1:1 (UPLOADER_DATABASE_URL) is away: ")
    assert lines[1].startswith("error  redis: Redis at 127.0.0.1:1 (UPLOADER_REDIS_URL) is away: ")
    assert "hunter2" not in looked.stdout
    assert run_cli(settings | {"QUIET": "5s"}, "doctor").returncode == 2
