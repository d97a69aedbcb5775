"""What a shell has of the command line: completion by a real Bash, and the manual pages."""

import os
import pty
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest

from tests.support.commands import Commands
from tests.support.process import UPLOADER, Server, ended, owner_token, run_cli, run_program, wait_for
from uploader import cli

_RC = """
PS1=
eval "$(_UPLOADER_COMPLETE=bash_source uploader)"
words() { printf "<%s>" "$@"; echo; }
"""


class Terminal:
    """An interactive Bash that has our completion."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def completed(self, line: str) -> list[str]:
        """The words that a line has after the tabulator key, as the shell reads them."""
        os.write(self._descriptor, f"{line}\t\x01words \n".encode())  # at its beginning
        told = ""
        while not told.endswith(">\r\n"):
            told += os.read(self._descriptor, 4096).decode()
        return told[told.index("<") + 1 : told.rindex(">")].split("><")


@contextmanager
def bash(home: Path, environment: dict[str, str]) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    (home / "rc").write_text(_RC)
    ours = {"PATH": f"{UPLOADER.parent}:{os.environ['PATH']}", "TERM": "dumb", "COLUMNS": "1000"}
    with subprocess.Popen(
        ["bash", "--rcfile", home / "rc", "-i"],
        cwd=home,
        env=environment | ours,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    ) as process:
        os.close(slave)
        try:
            yield Terminal(master)
        finally:
            process.kill()
            os.close(master)


def test_bash_completes_commands_options_files_and_names_on_the_server(tmp_path: Path) -> None:
    for name in ("photos/2026/a blank, it's.txt", "photos/notes.txt", "there"):
        (tmp_path / "home" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "home" / name).write_text(name)
    server = Server(tmp_path / "log", {"DATA": str(tmp_path / "data"), "FREE_SPACE_FLOOR": "0"})
    with ended(server):
        commands = Commands(tmp_path / "home", server.url, owner_token(tmp_path / "data"))
        assert commands.run("put", "photos", "--to", "all").returncode == 0
        with bash(tmp_path / "home", commands.environment) as terminal:
            assert terminal.completed("uploader reconc") == ["uploader", "reconcile"]
            assert terminal.completed("uploader put --if-exists rep")[-1] == "replace"
            assert terminal.completed("uploader put the")[-1] == "there"
            # A server that takes its time on a busy machine is one that is away.
            wait_for(lambda: terminal.completed("uploader ls al")[-1] == "all/")
            named = "all/photos/2026/a blank, it's.txt"
            wait_for(lambda: terminal.completed("uploader get all/photos/2026/a")[-1] == named)
            server.kill()
            assert terminal.completed("uploader rm al") == ["uploader", "rm", "al"], "away, and said by nobody"


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_told_what_completes_a_word(shell: str) -> None:
    asked = {"COMP_WORDS": "uploader reconc", "COMP_CWORD": "1" if shell == "zsh" else "reconc"}
    told = run_program([UPLOADER], env=os.environ | asked | {"_UPLOADER_COMPLETE": f"{shell}_complete"})
    assert "reconcile" in told.stdout


# Manual pages


def test_every_command_and_option_has_its_place_in_the_manual(tmp_path: Path) -> None:
    made = run_cli({}, "man", str(tmp_path / "man1"))
    assert made.returncode == 0
    files = {path.name: path for path in (tmp_path / "man1").iterdir()}
    assert made.stdout.splitlines() == [str(tmp_path / "man1" / name) for name in _names(cli.main, "uploader")]
    assert set(files) == set(_names(cli.main, "uploader"))
    for name, command in _commands(cli.main, "uploader"):
        shown = _rendered(files[f"{name}.1"])
        for parameter in command.params:
            if isinstance(parameter, click.Option) and parameter.hidden:
                continue
            if isinstance(parameter, click.Option):
                assert all(option in shown for option in parameter.opts), (name, parameter.opts)
            else:
                assert parameter.make_metavar(click.Context(command)) in shown
        for word in (command.help or "").replace("\b", "").split():
            assert word in shown, (name, word)


def _commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for below, each in cli.commands_of(command).items():
            yield from _commands(each, f"{name}-{below}")


def _names(command: click.Command, name: str) -> list[str]:
    return [f"{each}.1" for each, _ in _commands(command, name)]


def _rendered(page: Path) -> str:
    """What groff makes of a page, where it is installed; it may have nothing to complain of."""
    if shutil.which("groff") is None:
        return page.read_text().replace("\\-", "-").replace("\\(aq", "'").replace("\\(ga", "`").replace("\\fB", "")
    made = run_program(["groff", "-man", "-ww", "-Tutf8", "-P-cbou", "-rLL=1000n", "-rHY=0", page])
    assert made.stderr == ""
    return made.stdout.replace("‐", "-").replace("−", "-")
