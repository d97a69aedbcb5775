"""put, get, ls, rm, mv, usage, uploads, cancel, login: what they do, print and exit with, on a server of its own."""

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.support.commands import SCHEMA, Commands
from tests.support.content import MIB, Content
from tests.support.process import UPLOADER, Server, ended, run_cli
from tests.support.servers import free_port
from uploader.cli.client.events import AnyEvent

CONTENT = Content(3 * MIB + 1, seed=81)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("server")
    settings = {"DATA": str(directory / "data"), "FREE_SPACE_FLOOR": "0", "DURABILITY": "process"}
    made = Server(directory / "log", settings)
    with ended(made):
        yield made


@pytest.fixture
def token(server: Server, request: pytest.FixtureRequest) -> str:
    """Of a user for this test alone."""
    data = server.log.parent / "data"
    name = f"user-{abs(hash(request.node.name)):x}"
    return run_cli({"DATA": str(data)}, "token", "create", name, "--total-space", "64MiB").stdout.split()[-1]


@pytest.fixture
def commands(server: Server, token: str, tmp_path: Path) -> Commands:
    return Commands(tmp_path, server.url, token)


def written(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_a_file_goes_there_and_comes_back(commands: Commands, tmp_path: Path) -> None:
    written(tmp_path / "film.bin", CONTENT.data)
    put = commands.run("put", "film.bin", "--to", "videos/2026")
    assert put.returncode == 0, put.stderr
    assert put.stdout.split(None, 1)[1] == "videos/2026/film.bin  (3.00 MiB, sent)\n"
    assert put.stderr == ""
    file_id = put.stdout.split()[0]
    (tmp_path / "film.bin").unlink()
    for named in (file_id, "videos/2026/film.bin"):
        assert commands.run("get", named).returncode == 0
        assert (tmp_path / "film.bin").read_bytes() == CONTENT.data
    assert commands.run("get", file_id, "-o", "other").returncode == 0
    assert (tmp_path / "other").read_bytes() == CONTENT.data


def test_files_are_listed_renamed_and_deleted(commands: Commands, tmp_path: Path) -> None:
    for name in ("a", "b"):
        written(tmp_path / name, name.encode())
    assert commands.run("put", "a", "b").returncode == 0
    assert commands.run("mv", "a", "folder/c").stdout == "a is folder/c now\n"
    assert {line.split()[-1] for line in commands.run("ls").stdout.splitlines()} == {"b", "folder/"}
    assert [line.split()[-1] for line in commands.run("ls", "folder/").stdout.splitlines()] == ["folder/c"]
    assert "used" in commands.run("usage").stdout
    removed = commands.run("rm", "b", "missing")
    assert (removed.returncode, removed.stdout) == (6, "deleted b\n")
    assert "file-not-found" in removed.stderr
    assert commands.run("ls", "--quiet").stdout.count("\n") == 1


def test_a_name_that_several_files_have_is_not_enough(commands: Commands, tmp_path: Path) -> None:
    for content in (b"old", b"new"):
        written(tmp_path / "same", content)
        assert commands.run("put", "same").returncode == 0
    refused = commands.run("rm", "same")
    assert (refused.returncode, refused.stdout) == (6, "")
    ids = [line.split()[0] for line in commands.run("ls").stdout.splitlines()]
    assert all(file_id in refused.stderr for file_id in ids)
    (tmp_path / "same").unlink()
    assert commands.run("get", "same").returncode == 6
    assert commands.run("get", ids[0]).returncode == 0
    assert (tmp_path / "same").exists()


def test_a_directory_goes_there_with_all_its_files(commands: Commands, tmp_path: Path) -> None:
    names = ["a", "sub/b", "sub/deeper/c", "sub/a copy"]
    for name in names:
        written(tmp_path / "photos" / name, name[0].encode() * 100)
    (tmp_path / "photos" / "link").symlink_to("a")
    os.mkfifo(tmp_path / "photos" / "pipe")
    bad_name = os.fsencode(tmp_path / "photos") + b"/\xff"
    Path(os.fsdecode(bad_name)).write_bytes(b"x")
    put = commands.run("put", "photos/")
    assert put.returncode == 6
    assert "4 of 5 files" in put.stderr
    assert "invalid-name" in put.stderr
    assert put.stderr.count("left out") == 2
    listed = {line.split(None, 5)[-1] for line in commands.run("ls", "-r", "photos/").stdout.splitlines()}
    assert listed == {f"photos/{name}" for name in names}


def test_a_name_that_is_no_text_is_told_as_json_too(commands: Commands, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path / "photos") + b"/\xff")).write_bytes(b"x")
    events = commands.events("put", "photos", code=6)
    assert [event["event"] for event in events] == ["planned", "failed", "summary"]
    assert events[1]["code"] == "invalid-name"


def test_what_is_unchanged_is_believed_unless_its_checksum_is_wanted(commands: Commands, tmp_path: Path) -> None:
    path = written(tmp_path / "photos" / "a", b"one")
    assert [commands.events("put", "photos")[-2]["how"] for _ in range(2)] == ["sent", "present"]
    times = path.stat()
    written(path, b"two")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert commands.events("put", "photos")[-2]["how"] == "present"
    assert commands.events("put", "photos", "--checksum")[-2]["how"] == "sent"
    assert len(commands.events("ls", "-r")) == 2


def test_equal_names_are_kept_or_refused_or_replaced(commands: Commands, tmp_path: Path) -> None:
    for content, choice, code, count in ((b"1", "keep", 0, 1), (b"22", "keep", 0, 2), (b"333", "fail", 6, 2)):
        written(tmp_path / "a", content)
        assert commands.run("put", "a", "--if-exists", choice).returncode == code
        assert len(commands.events("ls", "-r")) == count
    assert commands.run("put", "a", "--if-exists", "replace").returncode == 0
    [listed] = commands.events("ls", "-r")
    assert listed["file"]["size"] == 3


def test_json_is_one_event_a_line_and_as_its_schema_says(commands: Commands, tmp_path: Path) -> None:
    content = Content(3 * MIB + 1, seed=82)  # nobody else has it
    written(tmp_path / "film", content.data)
    first = commands.events("put", "film", "--hash-first", "1MiB", "--chunk-size", "64KiB")
    kinds = [event["event"] for event in first]
    assert (kinds[0], kinds[1], kinds[-2:]) == ("planned", "started", ["complete", "summary"])
    assert "progress" in kinds
    assert (first[-2]["how"], first[-2]["file"]["sha256"]) == ("sent", content.sha256)
    assert commands.events("put", "film")[-2]["how"] == "present"
    assert commands.events("put", "film", "--name", "copy")[-2]["how"] == "instant"
    fetched = commands.events("get", "copy")
    assert (fetched[-2]["how"], fetched[-2]["path"]) == ("fetched", "copy")
    assert [event["event"] for event in commands.events("ls")] == ["file", "file"]
    assert commands.events("usage")[0]["usage"]["use_space_finished"] == 2 * content.size
    assert commands.events("mv", "copy", "moved")[0]["old_name"] == "copy"
    assert [event["event"] for event in commands.events("rm", "moved")] == ["deleted"]
    assert commands.events("uploads") == []
    failed = commands.events("get", "moved", code=6)
    assert [(event["event"], event["code"]) for event in failed] == [("failed", "file-not-found")]


def test_the_schema_is_that_of_the_events() -> None:
    """`python -m uploader.cli.client.events` prints it."""
    assert json.loads(SCHEMA.read_text())["anyOf"] == msgspec.json.schema(AnyEvent)["anyOf"]
    printed = subprocess.run(
        [UPLOADER.with_name("python"), "-m", "uploader.cli.client.events"], capture_output=True, text=True, check=True
    )
    assert printed.stdout == SCHEMA.read_text()


def test_quiet_says_only_what_went_wrong(commands: Commands, tmp_path: Path) -> None:
    written(tmp_path / "a", b"a")
    for arguments in (("put", "a"), ("get", "a"), ("mv", "a", "b"), ("rm", "b")):
        ended_command = commands.run(*arguments, "--quiet")
        assert (ended_command.returncode, ended_command.stdout, ended_command.stderr) == (0, "", "")
    assert commands.run("rm", "b", "-q").stderr != ""


def test_progress_is_for_terminals_only(commands: Commands, tmp_path: Path) -> None:
    """On a terminal bars are drawn on standard error; the result is the same line on standard output."""
    written(tmp_path / "film", Content(3 * MIB + 1, seed=83).data)
    terminal, end = pty.openpty()
    on_terminal = subprocess.Popen(
        [UPLOADER, "put", "film", "--chunk-size", "64KiB"],
        env=commands.environment | {"TERM": "xterm", "COLUMNS": "100"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=end,
    )
    os.close(end)
    drawn = b""
    try:
        while piece := os.read(terminal, 65536):
            drawn += piece
    except OSError:
        pass  # its other end was closed
    output = on_terminal.communicate()[0].decode()
    os.close(terminal)
    assert on_terminal.returncode == 0
    assert output.endswith("film  (3.00 MiB, sent)\n")
    assert b"film" in drawn
    assert b"MiB" in drawn
    assert b"\x1b" in drawn
    again = commands.run("put", "film")
    assert again.stderr == ""
    assert "\x1b" not in again.stdout


# Exit codes


def test_bad_usage_is_2(commands: Commands, tmp_path: Path) -> None:
    written(tmp_path / "a", b"a")
    bad = [
        ("put",),
        ("put", "missing"),
        ("put", "a", "a", "--name", "b"),
        ("cancel",),
        ("cancel", "x", "--all"),
        ("get",),
    ]
    for arguments in bad:
        assert commands.run(*arguments).returncode == 2, arguments
    assert Commands(tmp_path, "nonsense").run("ls").returncode == 2


def test_a_token_that_is_unknown_is_3(server: Server, tmp_path: Path) -> None:
    written(tmp_path / "a", b"a")
    written(tmp_path / "b", b"b")
    for token in ("wrong", None, "line\nfeed"):
        refused = Commands(tmp_path, server.url, token).run("put", "a", "b", "--connections", "1")
        assert refused.returncode == 3, refused.stderr
        assert "1 not begun" in refused.stderr
        assert Commands(tmp_path, server.url, token).run("ls").returncode == 3


def test_a_quota_that_is_too_small_is_4_and_smaller_files_still_go(commands: Commands, tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as opened:
        opened.truncate(65 * MIB)
    written(tmp_path / "small", b"small")
    refused = commands.run("put", "big", "small")
    assert refused.returncode == 4
    assert "quota-exceeded" in refused.stderr
    assert "small" in refused.stdout


def test_a_server_that_is_away_is_5(tmp_path: Path) -> None:
    written(tmp_path / "a", b"a")
    away = Commands(tmp_path, f"http://127.0.0.1:{free_port()}", "token").run("put", "a", "--patience", "500ms")
    assert away.returncode == 5
    assert "trying again in" in away.stderr


def test_a_file_in_the_way_is_6(commands: Commands, tmp_path: Path) -> None:
    written(tmp_path / "a", b"a")
    assert commands.run("put", "a").returncode == 0
    written(tmp_path / "a", b"other")
    assert commands.run("get", "a").returncode == 6
    assert (tmp_path / "a").read_bytes() == b"other"
    assert commands.run("get", "a", "--force").returncode == 0
    assert (tmp_path / "a").read_bytes() == b"a"
    assert commands.run("get", "a", "-o", "missing/directory").returncode == 6


def test_ctrl_c_is_130_and_the_same_command_goes_on(commands: Commands, tmp_path: Path) -> None:
    """The file is large and the connection is one, so that there is time to interrupt."""
    with (tmp_path / "film").open("wb") as opened:
        opened.truncate(60 * MIB)
    arguments = ["put", "film", "--chunk-size", "64KiB", "--connections", "1", "--hash-first", "1", "--json"]
    running = subprocess.Popen(
        [UPLOADER, *arguments], env=commands.environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    while json.loads(running.stdout.readline()).get("received_bytes", 0) == 0:
        pass
    running.send_signal(signal.SIGINT)
    output = running.communicate(timeout=60)[0]
    assert running.returncode == 130
    assert json.loads(output.splitlines()[-1]) == {"event": "interrupted"}
    # The other commands see what is left, too.
    [upload] = commands.events("uploads")
    assert upload["upload"]["name"] == "film"
    assert commands.events("cancel", "film", "missing", code=6)[-1]["event"] == "cancelled"
    assert commands.run("uploads").stdout == ""
    assert commands.run("cancel", "--all").returncode == 0


# login


def test_login_keeps_server_and_token_after_trying_them(server: Server, token: str, tmp_path: Path) -> None:
    commands = Commands(tmp_path)
    refused = commands.run("login", server.url, stdin="wrong\n")
    assert refused.returncode == 3
    assert not (tmp_path / ".config").exists()
    kept = commands.run("login", server.url, stdin=f"{token}\n")
    assert kept.returncode == 0, kept.stderr
    assert token not in kept.stdout + kept.stderr
    assert (tmp_path / ".config/uploader/client.toml").stat().st_mode & 0o777 == 0o600
    assert commands.run("usage").returncode == 0
    # A kept token is for its own server.
    assert Commands(tmp_path, server.url.replace("127.0.0.1", "localhost")).run("usage").returncode == 3


def test_login_asks_on_a_terminal_without_showing_the_token(server: Server, token: str, tmp_path: Path) -> None:
    commands = Commands(tmp_path)
    terminal, end = pty.openpty()
    asked = subprocess.Popen(
        [UPLOADER, "login"],
        env=commands.environment,
        cwd=tmp_path,
        stdin=end,
        stdout=end,
        stderr=end,
        start_new_session=True,
    )
    os.close(end)
    shown = b""
    answers = {b"Server": server.url.encode() + b"\n", b"Token: ": token.encode() + b"\n"}
    try:
        while piece := os.read(terminal, 65536):
            shown += piece
            for question in [each for each in answers if each in shown]:
                os.write(terminal, answers.pop(question))
    except OSError:
        pass  # its other end was closed
    os.close(terminal)
    assert asked.wait(timeout=30) == 0, shown
    assert token.encode() not in shown
    assert commands.run("usage").returncode == 0
