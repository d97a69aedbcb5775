"""What put and get take by --exclude, --include and --files-from, from standard input, and how fast at most."""

import os
import signal
import subprocess
import time
from fcntl import ioctl
from pathlib import Path
from termios import FIONREAD

import pytest

from tests.support.commands import Commands, checked_events, token_of_somebody, tree_in, write_tree
from tests.support.content import KIB, MIB, Content
from tests.support.process import UPLOADER, Server

TREE = {"album/a.jpg": 1, "album/a.tmp": 2, "album/raw/b.jpg": 3, "album/raw/deep/c.tmp": 4, "notes.txt": 5}


@pytest.fixture
def token(server: Server) -> str:
    return token_of_somebody(server, "--total-space", "8MiB")


@pytest.fixture
def commands(commands: Commands) -> Commands:
    write_tree(commands.home, {path: bytes(size) for path, size in TREE.items()})
    return commands


def reading(commands: Commands, *arguments: str) -> "subprocess.Popen[bytes]":
    """A command that reads what the test writes."""
    pipe = subprocess.PIPE
    return subprocess.Popen([UPLOADER, *arguments], env=commands.environment, stdin=pipe, stderr=pipe)


def test_put_and_get_take_what_the_filters_let_through(commands: Commands) -> None:
    """test_filters has the rules."""
    (commands.home / "album/raw/link").symlink_to("b.jpg")
    put = commands.run("put", "album", "notes.txt", "--to", "x/y", "--exclude", "album/raw", "--exclude", "*.tmp")
    assert (put.returncode, put.stderr.count("left out")) == (0, 0), put.stderr
    assert commands.names() == {"x/y/album/a.jpg", "x/y/notes.txt"}
    put = commands.run("put", "album", "notes.txt", "--include", "raw/", "--exclude", "*.tmp", "--exclude", "notes.*")
    assert (put.returncode, put.stderr.count("left out")) == (0, 1), put.stderr
    both = {"album/a.jpg", "album/raw/b.jpg", "album/raw/deep/c.tmp"}
    assert commands.names() == {"x/y/album/a.jpg", "x/y/notes.txt"} | both
    # Paths as they become here: below the folder that was named.
    assert commands.run("get", "album", "x/y/", "-o", "there", "--exclude", "/album/raw", "-v").returncode == 0
    assert tree_in(commands.home / "there").keys() == {"album/a.jpg", "y/album/a.jpg", "y/notes.txt"}
    assert commands.run("get", "album", "--include", "*.jpg", "-o", "jpg").returncode == 0
    assert tree_in(commands.home / "jpg").keys() == {"album/a.jpg", "album/raw/b.jpg"}
    none = commands.run("get", "x/y/notes.txt", "--exclude", "*.txt", "-o", "none")
    assert (none.returncode, (commands.home / "none").exists()) == (0, False)


def test_a_list_says_what_is_put_and_got_under_its_whole_path(commands: Commands) -> None:
    listed = "./album/raw\nnotes.txt\nmissing\n"
    put = commands.run("put", "--files-from", "-", "--to", "to", "--exclude", "*.tmp", stdin=listed)
    assert (put.returncode, put.stderr.count("unreadable")) == (6, 1)
    assert commands.run("put", "album/a.jpg", "--files-from", "-", stdin="album/a.tmp").returncode == 0
    assert commands.names() == {"to/album/raw/b.jpg", "to/notes.txt", "a.jpg", "album/a.tmp"}
    (commands.home / "list").write_text("to/album\r\nalbum/a.tmp\nto/none\n")
    got = commands.run("get", "a.jpg", "--files-from", "list", "-o", "there")
    assert (got.returncode, got.stderr.count("file-not-found")) == (6, 1)
    assert tree_in(commands.home / "there").keys() == {"a.jpg", "to/album/raw/b.jpg", "album/a.tmp"}
    for command in ("put", "get"):
        refused = commands.run(command, "--files-from", "-", stdin="fine\n../up\n")
        assert (refused.returncode, "line 2" in refused.stderr) == (2, True)


def test_standard_input_becomes_a_file_byte_by_byte(commands: Commands) -> None:
    content = Content(3 * MIB + 7, seed=311)
    put = commands.piped(content.data, "put", "-", "--name", "film", "--to", "videos/", "--json")
    assert (put.returncode, put.stderr) == (0, b"")
    events = checked_events(put.stdout.decode())
    kinds = [event["event"] for event in events if event["event"] != "progress"]
    assert kinds == ["planned", "started", "complete", "summary"]
    complete = events[-2]
    assert (complete["path"], complete["how"], complete["file"]["sha256"]) == ("/dev/stdin", "sent", content.sha256)
    # Also of a file, of which epoll wants to know nothing, and of nothing at all; and "-" may be the name of a file.
    (commands.home / "-").write_bytes(b"dash")
    with (commands.home / "notes.txt").open("rb") as opened:
        command = ("put", "-", "--name", "notes")
        assert subprocess.run([UPLOADER, *command], stdin=opened, env=commands.environment, check=False).returncode == 0
    assert commands.run("put", "-", "--name", "nothing").returncode == 0
    assert commands.run("put", "./-").returncode == 0
    sizes = {event["file"]["name"]: event["file"]["size"] for event in commands.events("ls", "-r")}
    assert sizes == {"videos/film": content.size, "notes": 5, "nothing": 0, "-": 4}
    for arguments in (["-"], ["-", "notes.txt", "--name", "x"], ["-", "--name", "x", "--files-from", "notes.txt"]):
        assert commands.run("put", *arguments).returncode == 2
    refused = commands.piped(b"x", "put", "-", "--name", "a/../b")
    assert (refused.returncode, b"invalid-name" in refused.stderr) == (6, True)


def test_standard_input_that_cannot_fit_is_refused_before_its_end(commands: Commands) -> None:
    with reading(commands, "put", "-", "--name", "endless", "--quiet") as process:
        assert process.stdin is not None
        assert process.stderr is not None
        with pytest.raises(BrokenPipeError):
            while True:
                os.write(process.stdin.fileno(), bytes(MIB))
        assert (process.wait(), process.stderr.read().count(b"quota-exceeded")) == (4, 1)
    # What is there already under the name takes no room.
    for _ in range(2):
        assert commands.piped(bytes(7 * MIB), "put", "-", "--name", "large").returncode == 0
    assert len(commands.names()) == 1


def test_reading_standard_input_is_interrupted_at_once(commands: Commands, tmp_path: Path) -> None:
    commands.environment["TMPDIR"] = str(tmp_path)
    with reading(commands, "put", "-", "--name", "slow") as process:
        assert process.stdin is not None
        assert process.stderr is not None
        os.write(process.stdin.fileno(), bytes(MIB))  # more than a pipe holds: it reads
        while any(ioctl(process.stdin, FIONREAD, bytes(4))):
            time.sleep(0.01)
        time.sleep(0.1)  # and waits for more
        process.send_signal(signal.SIGINT)
        assert (process.wait(), b"interrupted" in process.stderr.read()) == (130, True)
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_no_more_than_the_rate_is_moved(commands: Commands) -> None:
    """In chunks, whole, in a batch, and back, in an archive, too: each takes at least as long as its bytes need."""
    sizes = {"chunks": 600 * KIB, "whole": 400 * KIB, "small": 60 * KIB, "smaller": 40 * KIB}
    write_tree(commands.home / "all", {name: Content(size, seed=size).data for name, size in sizes.items()})
    for command in (["put", "all", "--chunk-size", "512KiB"], ["get", "all", "-o", "there"]):
        summary = commands.events(*command, "--limit-rate", "1100K")[-1]
        assert (summary["complete"], summary["bytes"]) == (4, 1100 * KIB)
        assert summary["seconds"] >= 0.9
    assert commands.run("put", "notes.txt", "--limit-rate", "1000").returncode == 2
