"""The client on a Python for Windows, under Wine: what it sends and gets, what it can't have, and what it says."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.test_command_line import of_the_server
from tests.support.commands import NOON, Commands, checked_events, serving, token_of_somebody, tree_in, write_tree
from tests.support.content import MIB, Content
from tests.support.process import Server
from tests.support.waiting import SERVER_SECONDS

_PYTHON = Path(__file__).parents[2] / ".wine/python"
_WINE = "/usr/lib/wine/wine64"
_MAIN = "from uploader.cli import main; main(prog_name='uploader')"
# Runs commands in one process, and prints what each ended with.
_EACH = """
import json, sys, uploader.cli
from click.testing import CliRunner
runs = [CliRunner().invoke(uploader.cli.main, command) for command in json.load(sys.stdin)]
print(json.dumps([(run.exit_code, run.output) for run in runs]))
"""
LARGE = Content(24 * MIB + 5, seed=191)
SMALL = {"notes.txt": b"notes", "Ünï/日本.txt": b"text\r\n\x1a", "empty": b"", "deep/er/x.bin": bytes(range(256)) * 300}
_RATE = ("--limit-rate", "4MiB")


class Windows:
    """What one user runs on one machine with Windows; its files lie in `home`."""

    def __init__(self, linux: Commands) -> None:
        self.home = linux.home / "windows"
        self.home.mkdir()
        self._environment = {
            **{name: value for name, value in linux.environment.items() if name.startswith("UPLOADER_")},
            "WINEPREFIX": str(_PYTHON.parent / "prefix"),
            "WINEDEBUG": "-all",
            "LC_ALL": "C.UTF-8",  # of Wine's own: names of files
            "XDG_CONFIG_HOME": f"Z:{self.home}/kept",
            "NO_PROXY": "127.0.0.1",
        }

    def command(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """Begin a command; the process is the one that Windows has."""
        return self._start([_PYTHON / "python.exe", "-c", _MAIN, *arguments])

    def _start(self, words: list[str | Path]) -> "subprocess.Popen[bytes]":
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [_WINE, *words], env=self._environment, cwd=self.home, stdin=pipe, stdout=pipe, stderr=pipe
        )

    def execute(self, *words: str | Path, stdin: bytes = b"", code: int = 0) -> bytes:
        """Run a program to its end; what it printed, and what else it said if it failed."""
        process = self._start(list(words))
        stdout, stderr = process.communicate(stdin, timeout=SERVER_SECONDS)
        assert process.returncode == code, stdout + stderr
        return stdout + stderr if code else stdout

    def run(self, *arguments: str, stdin: bytes = b"", code: int = 0) -> str:
        """Run a command to its end; what it said."""
        printed = self.execute(_PYTHON / "python.exe", "-c", _MAIN, *arguments, stdin=stdin, code=code)
        return printed.decode().replace("\r\n", "\n")

    def events(self, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
        return checked_events(self.run(*arguments, "--json", code=code))

    def kill_once_moving(self, *arguments: str) -> None:
        """Kill a command after something has arrived."""
        process = self.command(*arguments, "--json")
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line).get("received_bytes", 0) > MIB:
                break
        else:
            pytest.fail(f"it has ended before: {line!r}, {process.communicate()[1]!r}")
        process.kill()
        process.communicate(timeout=SERVER_SECONDS)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def linux(server: Server, tmp_path: Path) -> Commands:
    return Commands(tmp_path, server.url, token_of_somebody(server))


@pytest.fixture
def windows(linux: Commands) -> Windows:
    return Windows(linux)


def times_in(directory: Path) -> dict[str, int]:
    """The times of modification of all files, in microseconds."""
    return {
        path.relative_to(directory).as_posix(): path.stat().st_mtime_ns // 1000
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_a_folder_goes_there_and_comes_back(windows: Windows, linux: Commands) -> None:
    write_tree(windows.home / "album", {**SMALL, "film.bin": LARGE.data})
    (windows.home / "album/nothing/in it").mkdir(parents=True)
    assert "sent" in windows.run("put", "album")
    again = windows.events("put", "album\\")[-1]
    assert (again["present"], again["sent"]) == (5, 0)
    assert linux.run("get", "album").returncode == 0
    assert tree_in(linux.home / "album") == tree_in(windows.home / "album")
    windows.run("get", "album", "-o", "there\\")
    assert tree_in(windows.home / "there/album") == tree_in(windows.home / "album")
    assert times_in(windows.home / "there/album") == times_in(windows.home / "album")
    assert windows.events("get", "album", "-o", "there")[-1]["present"] == 5
    assert "Ünï/日本.txt" in windows.run("ls", "-r", "album")
    windows.run("mv", "album/Ünï", "album/other")
    assert windows.run("rm", "-r", "--yes", "album") != ""
    assert windows.run("ls") == ""


def test_the_program_that_pip_makes_runs(windows: Windows) -> None:
    said = windows.execute(_PYTHON / "site-packages/bin/uploader.exe", "ls", "missing", code=6)
    assert said.splitlines() == [b"uploader: there is no file 'missing' [file-not-found]"]


def test_what_was_killed_goes_on(windows: Windows, linux: Commands) -> None:
    write_tree(windows.home, {"film.bin": LARGE.data})
    windows.kill_once_moving("put", "film.bin", *_RATE, "--chunk-size", "1MiB")  # each that came is told of
    sent = windows.events("put", "film.bin")[-1]
    assert (sent["complete"], sent["moved_bytes"] < LARGE.size) == (1, True)
    windows.kill_once_moving("get", "film.bin", "-o", "there", *_RATE)
    (partial,) = windows.home.glob(".uploader-*.part")
    assert partial.stat().st_size > 0
    fetched = windows.events("get", "film.bin", "-o", "there")[-1]
    assert (fetched["complete"], fetched["moved_bytes"] < LARGE.size) == (1, True)
    assert (windows.home / "there").read_bytes() == LARGE.data
    assert {path.name for path in windows.home.iterdir()} == {"film.bin", "there"}
    assert linux.run("get", "film.bin").returncode == 0
    assert (linux.home / "film.bin").read_bytes() == LARGE.data


def test_folders_are_kept_alike_in_both_directions(windows: Windows, linux: Commands) -> None:
    write_tree(windows.home / "here", {**SMALL, "film.bin": LARGE.data})
    windows.run("sync", "here", ":there")
    assert linux.run("sync", ":there", "linux").returncode == 0
    assert tree_in(linux.home / "linux") == tree_in(windows.home / "here")
    write_tree(linux.home / "linux", {"new/one.txt": b"1", "notes.txt": b"other notes"}, NOON + 10**9)
    (linux.home / "linux/empty").unlink()
    assert linux.run("sync", "linux", ":there", "--delete").returncode == 0
    down = windows.events("sync", ":there", "here", "--delete")[-1]
    assert (down["moved"], down["deleted"], down["failed"]) == (2, 1, 0)
    assert tree_in(windows.home / "here") == tree_in(linux.home / "linux")
    (windows.home / "here/notes.txt").unlink()
    up = windows.events("sync", "here", ":there", "--delete")[-1]
    assert (up["moved"], up["deleted"]) == (0, 1)


def test_capitals_make_no_other_file(windows: Windows, linux: Commands) -> None:
    write_tree(linux.home / "album", {"Photo.JPG": b"photo", "one/A.txt": b"A", "one/a.txt": b"a"})
    write_tree(windows.home / "here", {"photo.jpg": b"photo"})
    assert linux.run("put", "album").returncode == 0
    said = windows.run("sync", ":album", "here", "--delete", code=6)
    assert "[ambiguous-name]" in said
    assert [content for name, content in tree_in(windows.home / "here").items()] == [b"photo"]
    # With nothing in doubt nothing is held back.
    assert linux.run("rm", "-r", "--yes", "album/one").returncode == 0
    windows.run("sync", ":album", "here", "--delete")
    assert [content for name, content in tree_in(windows.home / "here").items()] == [b"photo"]


def test_names_that_windows_can_not_have_are_told_and_left_out(windows: Windows, linux: Commands) -> None:
    odd = ["a:b", "dot.", "space ", "what?", "aux.txt", "up/NUL", "com1/x", 'quo"te', "C:/x"]
    write_tree(linux.home / "odd", {"fine.txt": b"fine", **dict.fromkeys(odd, b"odd")})
    (linux.home / "odd/prn").mkdir()
    assert linux.run("put", "odd").returncode == 0
    for command in (("get", "odd", "-o", "there"), ("sync", ":odd", "there/odd")):
        said = windows.run(*command, code=6)
        assert said.count("[invalid-name]") == len(odd) + 1
        assert tree_in(windows.home) == {"there/odd/fine.txt": b"fine"}
    windows.run("get", "odd/aux.txt", "-o", "there/aux_.txt")
    assert (windows.home / "there/aux_.txt").read_bytes() == b"odd"


def test_patterns_lists_and_pipes(windows: Windows) -> None:
    write_tree(windows.home, {"a.txt": b"a", "b.txt": b"b", "c.tmp": b"c", "album/d.tmp": b"d", "album/sub/e": b"e"})
    assert windows.events("put", "*.txt")[-1]["complete"] == 2
    assert windows.events("put", "album", "--exclude", "*.tmp")[-1]["complete"] == 1
    listed = windows.run("put", "--to", "listed", "--files-from", "-", "-v", stdin=b"album\\sub\\e\r\nalbum/d.tmp\r\n")
    assert "listed/album/sub/e" in listed
    assert windows.events("get", "*.txt", "-o", "there")[-1]["complete"] == 2
    piped = b"a\r\nb\n\x1a\xff" * 100_000
    windows.run("put", "-", "--name", "piped", stdin=piped)
    assert windows.execute(_PYTHON / "python.exe", "-c", _MAIN, "get", "piped", "-o", "-") == piped
    assert "does not exist" in windows.run("put", "*.none", code=2)
    assert "not a path below" in windows.run("put", "--files-from", "-", stdin=b"C:\\Windows\\x", code=2)


def test_login_is_kept(windows: Windows, linux: Commands) -> None:
    url, token = (linux.environment[f"UPLOADER_{name}"] for name in ("URL", "TOKEN"))
    other = Windows(Commands(linux.home / "windows"))
    assert "nobody is logged in" in other.run("usage", code=2)
    other.run("login", url, stdin=f"{token}\r\n".encode())
    assert "used" in other.run("usage")
    assert (other.home / "kept/uploader/client.toml").is_file()


def test_a_program_uses_the_client(windows: Windows, linux: Commands) -> None:
    write_tree(windows.home, {"film.bin": LARGE.data})
    program = Path(__file__).with_name("program.py")
    url, token = (linux.environment[f"UPLOADER_{name}"] for name in ("URL", "TOKEN"))
    said = windows.execute(_PYTHON / "python.exe", program, url, token).decode().splitlines()
    assert [line.partition(" of ")[0] for line in said] == ["another download", "nt"]


def test_commands_of_the_server_say_in_one_line_what_they_need(windows: Windows) -> None:
    said = windows.run("serve", code=2)
    assert said.startswith("uploader: the server needs Linux: run it in WSL (wsl --install); ")
    assert said.count("\n") == 1
    commands = list(of_the_server())
    told = json.loads(windows.execute(_PYTHON / "python.exe", "-c", _EACH, stdin=json.dumps(commands).encode()))
    others = [command for command, each in zip(commands, told, strict=True) if each != [2, said]]
    assert others == []
    assert list(windows.home.iterdir()) == []
