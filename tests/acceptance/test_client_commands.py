"""put, get, ls, rm, mv, usage, uploads, cancel, login: what they do, print and exit with."""

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.conftest import MakeStack
from tests.support.commands import Commands, write_tree
from tests.support.content import MIB, Content
from tests.support.process import UPLOADER, Server, run_elsewhere
from tests.support.sockets import serving_stack
from tests.support.waiting import PATIENCE_SECONDS
from uploader.database import levels

CONTENT = Content(3 * MIB + 1, seed=81)


def test_a_file_goes_there_and_comes_back_is_renamed_and_deleted(commands: Commands) -> None:
    home = commands.home
    write_tree(home, {"film.bin": CONTENT.data, "a": b"a"})
    put = commands.run("put", "film.bin", "--to", "videos/2026")
    assert (put.returncode, put.stderr) == (0, "")
    assert put.stdout == "videos/2026/film.bin  (3.0 MiB, sent)\n"
    file_id = commands.run("ls", "-r").stdout.split()[0]
    (home / "film.bin").unlink()
    for named in (file_id, "videos/2026/film.bin"):
        assert commands.run("get", named).returncode == 0
        assert (home / "film.bin").read_bytes() == CONTENT.data
    assert commands.run("get", file_id, "-o", "other").returncode == 0
    assert commands.run("get", file_id, "-o", "missing/directory").returncode == 6
    (home / "own").touch()
    assert (home / "other").stat().st_mode == (home / "own").stat().st_mode, "as its user makes files"
    assert (home / "other").read_bytes() == CONTENT.data
    assert commands.run("put", "a").returncode == 0
    assert commands.run("mv", "videos/2026/film.bin", "folder/c").stdout == "videos/2026/film.bin is folder/c now\n"
    assert commands.run("ls", "--quiet").stdout.count("\n") == 3  # and the folder that is empty now
    assert "used" in commands.run("usage").stdout
    removed = commands.run("rm", "a", "missing")
    assert (removed.returncode, removed.stdout) == (6, "deleted a\n")
    missing, restoring = removed.stderr.splitlines()
    assert missing == "uploader: there is no file 'missing' [file-not-found]"
    assert restoring.startswith("uploader: `uploader restore a` brings it back, until 20")


def test_deleted_files_and_earlier_versions_come_back(commands: Commands) -> None:
    home = commands.home
    for content in (b"1", b"22", b"333"):
        write_tree(home, {"a": content, "photos/x": content, "photos/y": b"y"})
        assert commands.run("put", "a", "photos", "--if-exists", "replace").returncode == 0
    listed = commands.events("ls", "--versions", "a")
    assert [event["event"] for event in listed] == ["file", "deleted-file", "deleted-file"]
    first, second = listed[2]["file"], listed[1]["file"]
    assert (first["size"], first["reason"]) == (1, "replaced")
    assert commands.run("restore", "a").returncode == 6, "a file has the name"
    assert commands.run("restore", "a", "--version", first["id"]).stdout == "restored a\n"
    assert [event["file"]["size"] for event in commands.events("ls", "--versions", "a")] == [1, 3, 2]
    removed = commands.run("rm", "-r", "photos", "--yes")
    assert "`uploader restore photos/` brings it back" in removed.stderr
    assert commands.run("restore", "photos/", "missing").stderr.count("file-not-found") == 1
    assert commands.names() == {"a", "photos/x", "photos/y"}
    assert commands.run("get", "photos/x", "-o", "back").returncode == 0
    assert (home / "back").read_bytes() == b"333"
    assert commands.run("restore", second["id"]).returncode == 6
    assert commands.run("rm", "a").returncode == 0
    assert commands.run("restore", first["id"]).stdout == "restored a\n"
    line = commands.run("trash").stdout.splitlines()[0]
    assert "(replaced, until " in line
    refused = commands.run("trash", "empty")
    assert (refused.returncode, "this removes 4 files" in refused.stderr) == (2, True), refused.stderr
    assert commands.run("trash", "empty", "--yes").stdout == "removed 4 files for good\n"
    assert commands.run("trash").stdout == ""


async def test_more_files_than_are_counted_and_than_are_allowed_are_told(
    make_stack: MakeStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levels, "COUNTED_FILES", 2)
    write_tree(tmp_path / "photos", dict.fromkeys("abcd", b"x"))
    async with serving_stack(make_stack, max_files=3) as serving:
        token = await serving.stack.services.accounts.create_token("carol", admin=False)
        commands = Commands(tmp_path, serving.url, token)
        put = await asyncio.to_thread(commands.run, "put", "photos")
        listed = await asyncio.to_thread(commands.run, "ls")
    assert put.returncode == 4
    assert "you have 3 files and open uploads (`uploader uploads`), the most that the server allows" in put.stderr
    assert listed.stdout.split() == ["at", "least", "2", "files", "≥", "2", "B", "photos/"]


def test_a_directory_goes_there_with_all_its_files(commands: Commands) -> None:
    names = ["a", "sub/b", "sub/deeper/c", "sub/a copy"]
    photos = commands.home / "photos"
    write_tree(photos, {name: os.fsencode(name)[:1] * 100 for name in [*names, os.fsdecode(b"\xff")]})
    (photos / "link").symlink_to("a")
    os.mkfifo(photos / "pipe")
    put = commands.run("put", "photos/")
    assert put.returncode == 6
    assert "4 of 5 files" in put.stderr
    assert "invalid-name" in put.stderr
    assert put.stderr.count("left out, ") == 2
    assert put.stdout == "photos/  (4 files, 400 B: 4 sent)\n"
    assert commands.names() == {f"photos/{name}" for name in names}
    events = commands.events("put", "photos", code=6)
    assert [event["code"] for event in events if event["event"] == "failed"] == ["invalid-name"]
    assert "names-refused" in [event["event"] for event in events]


def test_equal_names_are_kept_or_refused_or_replaced(commands: Commands) -> None:
    for content, choice, code, count in ((b"1", "keep", 0, 1), (b"22", "keep", 0, 2), (b"333", "fail", 6, 2)):
        write_tree(commands.home, {"a": content})
        assert commands.run("put", "a", "--if-exists", choice).returncode == code
        assert len(commands.events("ls", "-r")) == count
    assert commands.run("put", "a").stdout == "a  (3 B, sent, replacing the one before)\n"
    listed = {event["file"]["name"]: event["file"]["size"] for event in commands.events("ls", "-r")}
    assert listed == {"a": 3, "a (2)": 2}


def test_failures_name_the_file_in_the_way_and_no_member_of_json(commands: Commands) -> None:
    (commands.home / "taken").write_bytes(b"1")
    assert commands.run("put", "taken").returncode == 0
    for words in (["put", "taken", "--to", "taken"], ["mkdir", "taken/folder"]):
        refused = commands.run(*words)
        assert "there is a file or folder 'taken' already, which is in the way [name-taken]" in refused.stderr
        assert refused.returncode == 6 and "`" not in refused.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="Linux has /proc")
def test_file_with_bytes_and_no_size_is_sent_through_a_pipe_alone(commands: Commands) -> None:
    refused = commands.run("put", "/proc/version")
    assert (refused.returncode, refused.stdout) == (6, "") and "has bytes and no size" in refused.stderr
    version = Path("/proc/version").read_text()
    assert commands.run("put", "-", "--name", "version", stdin=version).returncode == 0
    commands.run("get", "version")
    assert (commands.home / "version").read_text() == version


def test_a_folder_is_one_line_which_says_what_was_replaced(commands: Commands) -> None:
    photos = commands.home / "photos"
    write_tree(photos, {name: name.encode() for name in ("a", "sub/b", "sub/c")})
    (photos / "empty" / "deeper").mkdir(parents=True)
    write_tree(commands.home, {"one": b"1"})
    first = commands.run("put", "photos", "one")
    assert sorted(first.stdout.splitlines()) == ["one  (1 B, sent)", "photos/  (3 files, 11 B: 3 sent)"]
    assert "made: 1 empty folder\n" in first.stderr
    assert "4 of 4 files: 4 sent; 12 B moved in" in first.stderr
    write_tree(photos, {"sub/b": b"changed"})
    again = commands.run("put", "photos", "one")
    assert "photos/  (3 files, 13 B: 1 sent, 2 there already, 1 replaced)\n" in again.stdout
    assert "4 of 4 files: 1 sent, 3 there already, 1 replaced; 7 B moved in" in again.stderr
    assert len(commands.names()) == 4
    told = commands.run("put", "photos", "--verbose").stdout
    assert sorted(told.splitlines()) == [
        "photos/a  (1 B, there already)",
        "photos/sub/b  (7 B, there already)",
        "photos/sub/c  (5 B, there already)",
    ]
    # Of the same size and time: believed unless its checksum is wanted.
    write_tree(photos, {"a": b"A"})
    assert commands.events("put", "photos")[-1]["present"] == 3
    summary = commands.events("put", "photos", "--checksum")[-1]
    figures = ("files", "complete", "sent", "present", "instant", "fetched", "replaced", "failed", "left")
    assert [summary[figure] for figure in figures] == [3, 3, 1, 2, 0, 0, 1, 0, 0]
    assert (summary["bytes"], summary["moved_bytes"]) == (13, 1)


def test_names_that_the_server_refuses_are_told_together_and_encoded_on_demand(commands: Commands) -> None:
    home = commands.home
    tree = {b"back\\slash": b"1", b"line\nfeed": b"2", b"bytes\xff\xfe": b"3", b"100 %.txt": b"4", b"a%5Cb": b"5"}
    write_tree(home / "photos", {os.fsdecode(name): content for name, content in tree.items()})
    write_tree(home / "photos", {f"{number}\t": b"" for number in range(6)})
    put = commands.run("put", "photos")
    assert put.returncode == 6
    assert put.stdout == "photos/  (2 files, 2 B: 2 sent)\n"
    assert put.stderr.count("invalid-name") == 1
    assert "9 files left out" in put.stderr
    assert "  and 4 more\n" in put.stderr
    assert "--encode-names" in put.stderr
    assert "11 files: 2 sent, 9 failed" in put.stderr
    assert commands.run("rm", "-r", "photos", "--yes").returncode == 0
    encoded = commands.run("put", "photos", "--encode-names", "--to", "50%25/x")
    assert (encoded.returncode, encoded.stderr.count("failed")) == (0, 0)
    refused = commands.run("put", "photos/back\\slash", "--encode-names", "--to", "back\\slash")
    assert (refused.returncode, "  photos/back\\slash  has a backslash\n" in refused.stderr) == (6, True)
    assert "--encode-names" not in refused.stderr, "what a person named is theirs to mend"
    listed = commands.names()
    assert {"50%25/x/photos/back%5Cslash", "50%25/x/photos/a%255Cb", "50%25/x/photos/bytes%FF%FE"} <= listed
    assert commands.run("get", "50%25/x/photos", "-o", "plain").returncode == 0
    assert (home / "plain/photos/line%0Afeed").read_bytes() == b"2"
    assert commands.run("get", "50%25/x/photos", "-o", "back", "--decode-names").returncode == 0
    found = {os.fsencode(path.name): path.read_bytes() for path in (home / "back/photos").iterdir()}
    assert found.items() >= tree.items()
    assert len(found) == 11


def test_json_is_one_event_a_line_and_as_its_schema_says(commands: Commands) -> None:
    content = Content(3 * MIB + 1, seed=82)  # nobody else has it
    write_tree(commands.home, {"film": content.data})
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
    assert [event["event"] for event in commands.events("rm", "moved")] == ["deleted", "note"]
    assert commands.events("uploads") == []
    failed = commands.events("get", "moved", code=6)
    assert [(event["event"], event["code"]) for event in failed] == [("failed", "file-not-found")]


def test_quiet_says_only_what_went_wrong(commands: Commands) -> None:
    write_tree(commands.home, {"a": b"a"})
    for arguments in (("put", "a"), ("get", "a"), ("mv", "a", "b"), ("rm", "b")):
        quiet = commands.run(*arguments, "--quiet")
        assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    assert commands.run("rm", "b", "-q").stderr != ""


# Exit codes: test_words has 3, 4 and 5, with what is said.


def test_bad_usage_is_2(commands: Commands) -> None:
    write_tree(commands.home, {"a": b"a"})
    for words in ("put", "put missing", "put a a --name b", "cancel", "cancel x --all", "get"):
        assert commands.run(*words.split()).returncode == 2, words
    assert Commands(commands.home, "nonsense").run("ls").returncode == 2


def test_who_is_not_logged_in_is_told_at_once(tmp_path: Path) -> None:
    """Without a line about any server: none is asked."""
    write_tree(tmp_path, {"a": b"a"})
    told = "uploader: nobody is logged in: run `uploader login URL`, or set UPLOADER_URL and UPLOADER_TOKEN\n"
    for words in ("put a", "get a", "sync . :", "ls", "rm a", "mv a b", "usage", "uploads", "cancel --all"):
        refused = Commands(tmp_path).run(*words.split())
        assert (refused.returncode, refused.stdout, refused.stderr) == (2, "", told), words


def test_ctrl_c_is_130_and_what_is_left_is_seen_and_cancelled(commands: Commands) -> None:
    """The file is large and the connection is one, so that there is time to interrupt."""
    with (commands.home / "film").open("wb") as opened:
        opened.truncate(60 * MIB)
    arguments = ["put", "film", "--chunk-size", "64KiB", "--connections", "1", "--hash-first", "1", "--json"]
    running = subprocess.Popen(
        [UPLOADER, *arguments], env=commands.environment, cwd=commands.home, stdout=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    while json.loads(running.stdout.readline()).get("received_bytes", 0) == 0:
        pass
    running.send_signal(signal.SIGINT)
    output = running.communicate(timeout=PATIENCE_SECONDS)[0]
    assert running.returncode == 130
    assert json.loads(output.splitlines()[-1]) == {"event": "interrupted"}
    # The other commands see what is left, too.
    [upload] = commands.events("uploads")
    assert upload["upload"]["name"] == "film"
    assert commands.events("cancel", "film", "missing", code=6)[-1]["event"] == "cancelled"
    assert commands.run("uploads").stdout == ""
    assert commands.run("cancel", "--all").returncode == 0


@pytest.mark.parametrize("place", ["macos", "musl", "32-bit"])
def test_a_client_runs_where_the_server_cannot(server: Server, token: str, tmp_path: Path, place: str) -> None:
    def run(*arguments: str, stdin: str = "") -> str:
        done = run_elsewhere(place, arguments, Commands(tmp_path, server.url, token).environment, tmp_path, stdin)
        assert done.returncode == 0, done
        return done.stdout

    write_tree(tmp_path / "album", {"film.bin": CONTENT.data, "notes.txt": b"notes"})
    run("put", "album")
    run("get", "album/", "-o", "there")
    assert (tmp_path / "there/album/film.bin").read_bytes() == CONTENT.data
    if place == "macos":  # elsewhere nothing is missing that a client could call
        run("put", "-", "--name", "lines.txt", stdin="lines")
        run("put", "album")
        run("sync", "album", ":photos")
        run("sync", ":photos", "here")
        run("get", "lines.txt", "-o", "there/")
        assert (tmp_path / "here/film.bin").read_bytes() == CONTENT.data
        assert (tmp_path / "there/lines.txt").read_bytes() == b"lines"
        assert "lines.txt" in run("ls")


# login


def test_login_keeps_server_and_token_after_trying_them(server: Server, token: str, tmp_path: Path) -> None:
    commands, kept_at = Commands(tmp_path), tmp_path / ".config/uploader/client.toml"
    assert commands.run("login", server.url, stdin="wrong\n").returncode == 3
    assert not (tmp_path / ".config").exists()
    # The token, or the link that signs in.
    for url, stdin in ((server.url, f"{token}\n"), (f"{server.url}/#token={token}", "")):
        kept_at.unlink(missing_ok=True)
        kept = commands.run("login", url, stdin=stdin)
        assert (kept.returncode, kept.stderr) == (0, "")
        assert token not in kept.stdout
        assert kept_at.stat().st_mode & 0o777 == 0o600
        assert tomllib.loads(kept_at.read_text()) == {"url": server.url, "token": token}
        assert commands.run("usage").returncode == 0
    # A kept token is for its own server.
    assert Commands(tmp_path, server.url.replace("127.0.0.1", "localhost")).run("usage").returncode == 3


def test_login_says_that_a_token_travels_in_clear_text(server: Server, token: str, tmp_path: Path) -> None:
    """By a proxy, as to another machine."""
    commands = Commands(tmp_path)
    commands.environment |= {"HTTP_PROXY": server.url, "NO_PROXY": ""}
    kept = commands.run("login", "http://files.example", stdin=f"{token}\n")
    assert (kept.returncode, kept.stderr) == (
        0,
        "uploader: http://files.example is no https: on the way to it others can read your token, and all that you send\n",
    )
    [note, _] = commands.events("login", f"http://files.example/#token={token}")
    assert note["event"] == "note"


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
    assert asked.wait(timeout=PATIENCE_SECONDS) == 0, shown
    assert token.encode() not in shown
    assert commands.run("usage").returncode == 0
