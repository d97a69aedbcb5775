"""What put and get take by --exclude, --include and --files-from, from standard input, and how fast at most."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path
from termios import FIONREAD

import pytest

from tests.support.commands import Commands, checked_events, serving, token_of_somebody
from tests.support.content import KIB, MIB, Content
from tests.support.process import UPLOADER, Server

TREE = {"album/a.jpg": 1, "album/a.tmp": 2, "album/raw/b.jpg": 3, "album/raw/deep/c.tmp": 4, "notes.txt": 5}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server")) as made:
        yield made


@pytest.fixture
def commands(server: Server, tmp_path: Path) -> Commands:
    """Of a user for this test alone."""
    here = tmp_path / "here"
    for path, size in TREE.items():
        (here / path).parent.mkdir(parents=True, exist_ok=True)
        (here / path).write_bytes(bytes(size))
    return Commands(here, server.url, token_of_somebody(server, "--total-space", "8MiB"))


def names(commands: Commands) -> set[str]:
    return {event["file"]["name"] for event in commands.events("ls", "-r")}


def files_in(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}


def piped(commands: Commands, content: bytes, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    """`cat … | uploader …`, where nobody can seek."""
    return subprocess.run(
        [UPLOADER, *arguments],
        input=content,
        env=commands.environment,
        cwd=commands.home,
        capture_output=True,
        check=False,
    )


def test_put_and_get_take_what_the_filters_let_through(commands: Commands) -> None:
    (commands.home / "album/raw/link").symlink_to("b.jpg")
    put = commands.run("put", "album", "notes.txt", "--to", "x/y", "--exclude", "album/raw", "--exclude", "*.tmp")
    assert (put.returncode, put.stderr.count("left out")) == (0, 0), put.stderr
    assert names(commands) == {"x/y/album/a.jpg", "x/y/notes.txt"}
    put = commands.run("put", "album", "notes.txt", "--include", "raw/", "--exclude", "*.tmp", "--exclude", "notes.*")
    assert (put.returncode, put.stderr.count("left out")) == (0, 1), put.stderr
    both = {"album/a.jpg", "album/raw/b.jpg", "album/raw/deep/c.tmp"}
    assert names(commands) == {"x/y/album/a.jpg", "x/y/notes.txt"} | both
    # Paths as they become here: below the folder that was named.
    assert commands.run("get", "album", "x/y/", "-o", "there", "--exclude", "/album/raw", "-v").returncode == 0
    assert files_in(commands.home / "there") == {"album/a.jpg", "y/album/a.jpg", "y/notes.txt"}
    assert commands.run("get", "album", "--include", "*.jpg", "-o", "jpg").returncode == 0
    assert files_in(commands.home / "jpg") == {"album/a.jpg", "album/raw/b.jpg"}
    none = commands.run("get", "x/y/notes.txt", "--exclude", "*.txt", "-o", "none")
    assert (none.returncode, (commands.home / "none").exists()) == (0, False)


def test_a_list_says_what_is_put_and_got_under_its_whole_path(commands: Commands) -> None:
    listed = "./album/raw\nnotes.txt\nmissing\n"
    put = commands.run("put", "--files-from", "-", "--to", "to", "--exclude", "*.tmp", stdin=listed)
    assert put.returncode == 6
    assert put.stderr.count("unreadable") == 1
    assert names(commands) == {"to/album/raw/b.jpg", "to/notes.txt"}
    assert commands.run("put", "album/a.jpg", "--files-from", "-", stdin="album/a.tmp").returncode == 0
    assert names(commands) == {"to/album/raw/b.jpg", "to/notes.txt", "a.jpg", "album/a.tmp"}
    (commands.home / "list").write_text("to/album\r\nalbum/a.tmp\nto/none\n")
    got = commands.run("get", "a.jpg", "--files-from", "list", "-o", "there")
    assert (got.returncode, got.stderr.count("file-not-found")) == (6, 1)
    assert files_in(commands.home / "there") == {"a.jpg", "to/album/raw/b.jpg", "album/a.tmp"}
    for command in ("put", "get"):
        assert commands.run(command).returncode == 2
        refused = commands.run(command, "--files-from", "-", stdin="fine\n../up\n")
        assert (refused.returncode, "line 2" in refused.stderr) == (2, True)


def test_standard_input_becomes_a_file_byte_by_byte(commands: Commands) -> None:
    content = Content(3 * MIB + 7, seed=311)
    put = piped(commands, content.data, "put", "-", "--name", "film", "--to", "videos/", "--json")
    assert (put.returncode, put.stderr) == (0, b"")
    events = checked_events(put.stdout.decode())
    assert [event["event"] for event in events if event["event"] != "progress"] == [
        "planned",
        "started",
        "complete",
        "summary",
    ]
    assert (events[-2]["path"], events[-2]["how"], events[-2]["file"]["sha256"]) == (
        "/dev/stdin",
        "sent",
        content.sha256,
    )
    assert piped(commands, b"", "get", "videos/film", "-o", "-").stdout == content.data
    # Also of a file, of which epoll wants to know nothing, and of nothing at all; and "-" may be the name of a file.
    (commands.home / "-").write_bytes(b"dash")
    with (commands.home / "notes.txt").open("rb") as opened:
        command = ("put", "-", "--name", "notes")
        assert subprocess.run([UPLOADER, *command], stdin=opened, env=commands.environment, check=False).returncode == 0
    assert commands.run("put", "-", "--name", "nothing").returncode == 0
    assert commands.run("put", "./-").returncode == 0
    sizes = {event["file"]["name"]: event["file"]["size"] for event in commands.events("ls", "-r")}
    assert sizes == {"videos/film": len(content.data), "notes": 5, "nothing": 0, "-": 4}
    for arguments in (["-"], ["-", "notes.txt", "--name", "x"], ["-", "--name", "x", "--files-from", "notes.txt"]):
        assert commands.run("put", *arguments).returncode == 2
    refused = piped(commands, b"x", "put", "-", "--name", "a/../b")
    assert (refused.returncode, b"invalid-name" in refused.stderr) == (6, True)


def test_standard_input_that_cannot_fit_is_refused_before_its_end(commands: Commands) -> None:
    process = subprocess.Popen(
        [UPLOADER, "put", "-", "--name", "endless", "--quiet"],
        env=commands.environment,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    with pytest.raises(BrokenPipeError):
        while True:
            os.write(process.stdin.fileno(), bytes(MIB))
    process.stdin.close()
    assert (process.wait(), process.stderr.read().count(b"quota-exceeded")) == (4, 1)
    process.stderr.close()
    # What is there already under the name takes no room.
    content = bytes(7 * MIB)
    for _ in range(2):
        assert piped(commands, content, "put", "-", "--name", "large").returncode == 0
    assert len(names(commands)) == 1


def test_reading_standard_input_is_interrupted_at_once(commands: Commands, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [UPLOADER, "put", "-", "--name", "slow"],
        env=commands.environment | {"TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    os.write(process.stdin.fileno(), bytes(MIB))  # more than a pipe holds: it reads
    while any(ioctl(process.stdin, FIONREAD, bytes(4))):
        time.sleep(0.01)
    time.sleep(0.1)  # and waits for more
    process.send_signal(signal.SIGINT)
    assert (process.wait(), b"interrupted" in process.stderr.read()) == (130, True)
    process.stdin.close()
    process.stderr.close()
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_no_more_than_the_rate_is_moved(commands: Commands) -> None:
    """In chunks, whole, in a batch, and back: each takes at least as long as its bytes need."""
    for name, size in (("chunks", 600 * KIB), ("whole", 400 * KIB), ("small", 100 * KIB)):
        (commands.home / "album" / name).write_bytes(Content(size, seed=size).data)
    limited = ["--limit-rate", "600K", "--include", "chunks", "--include", "whole", "--include", "small"]
    for command in (["put", "album", "--chunk-size", "512KiB"], ["get", "album", "-o", "there"]):
        summary = commands.events(*command, *limited)[-1]
        assert (summary["complete"], summary["bytes"]) == (3, 1100 * KIB)
        assert summary["seconds"] >= 1100 / 600 - 0.1
    assert commands.run("put", "notes.txt", "--limit-rate", "1000").returncode == 2
