"""The command line: what it prints, how it fails, and with which exit code."""

import os
import pwd
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.support.process import UPLOADER, environment, run_cli, run_elsewhere, run_program
from uploader import cli

# Without these they ask for them, whatever the system is.
_ASKED = {
    "redis reset": ("--yes",),
    "reset-unfinished": ("--yes",),
    "store-trash empty": ("--yes",),
    "events replay": ("--dead",),
}


def test_config_shows_what_is_in_force_and_masks_secrets(tmp_path: Path) -> None:
    secret = tmp_path / "url"
    secret.write_text("redis://:hunter2@cache:6379/0\n")
    url = "mysql+asyncmy://app:hunter2@db/uploader"
    given = {"DATA": str(tmp_path), "DATABASE_URL": url, "CHUNK_SIZE": "16MiB", "REDIS_URL_FILE": str(secret)}
    given |= {"AUTH": "jwt", "JWT_SECRET": "hunter2" * 5, "LINK_SECRET": "hunter2" * 5}
    # Those of the client and the tests stop nothing.
    shown = run_cli(given | {"URL": "http://x", "TOKEN": "y", "TEST_DATABASE_URL": "z"}, "config")
    assert shown.returncode == 0
    assert "UPLOADER_CHUNK_SIZE=16MiB" in shown.stdout
    assert "UPLOADER_QUIET_INTERVAL=5s" in shown.stdout
    assert "UPLOADER_REDIS_URL=redis://:***@cache:6379/0" in shown.stdout
    assert "UPLOADER_JWT_SECRET=***" in shown.stdout
    assert "app:***@db" in shown.stdout
    assert "hunter2" not in shown.stdout
    for name in ("MD5", "SHA-256"):
        assert re.search(rf"^# {name}: (no compiled kernel|\d+ contents at once \(\w+\))$", shown.stdout, re.M)


@pytest.mark.parametrize("command", [("config",), ("serve",), ("work",), ("token", "create", "bob"), ("db", "upgrade")])
def test_unknown_and_bad_settings_stop_with_one_line_each(tmp_path: Path, command: tuple[str, ...]) -> None:
    stopped = run_cli({"DATA": str(tmp_path), "QUIET": "5s", "CHUNK_SIZE": "big"}, *command)
    assert stopped.returncode == 2
    lines = stopped.stderr.splitlines()
    assert [line.split(":")[1].strip() for line in lines] == ["UPLOADER_CHUNK_SIZE", "UPLOADER_QUIET"]


@pytest.mark.parametrize(
    ("command", "place", "said"),
    [
        (("serve", "--port", "0"), "macos", "the server needs Linux: run it in a container or a virtual machine"),
        (("serve", "--port", "0"), "windows", "the server needs Linux: run it in WSL (wsl --install); `put`, `get`"),
        (("config",), "windows", "the server needs Linux: run it in WSL (wsl --install); `put`, `get`"),
        (("restore-backup", "there"), "windows", "the server needs Linux: run it in WSL (wsl --install); `put`, `get`"),
        (
            ("serve", "--port", "0"),
            "musl",
            "the server needs Linux with glibc, as Debian has it, not musl: run it in a container",
        ),
        (("config",), "32-bit", "the server needs a Python of 64 bits: run it"),
    ],
)
def test_where_the_server_cannot_run_it_says_so_and_what_to_do(
    tmp_path: Path, command: tuple[str, ...], place: str, said: str
) -> None:
    stopped = run_elsewhere(place, command, environment({"DATA": str(tmp_path / "data")}), tmp_path)
    assert (stopped.returncode, stopped.stdout) == (2, "")
    (line,) = stopped.stderr.splitlines()
    assert line.startswith(f"uploader: {said}")
    assert list(tmp_path.iterdir()) == []


# Of arguments that do not take any word.
_SOME = {"total_space": "1MiB", "right": "yes"}


def of_the_server(group: click.Group = cli.main, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command of those who run a server, with something for each argument that it asks for."""
    for name, command in cli.commands_of(group).items():
        if isinstance(command, click.Group):
            yield from of_the_server(command, (*path, name))
        elif command.callback is not None and command.callback.__module__.startswith("uploader.cli.server."):
            asked = [each for each in command.params if isinstance(each, click.Argument) and each.required]
            yield (
                *path,
                name,
                *(_SOME.get(each.name or "", "some") for each in asked),
                *_ASKED.get(" ".join((*path, name)), ()),
            )


def test_no_command_of_the_server_runs_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = [*of_the_server()]  # imported as on Linux, where they stay for other tests
    monkeypatch.setattr(sys, "platform", "darwin")
    for command in commands:
        stopped = CliRunner().invoke(cli.main, command)
        assert (stopped.exit_code, stopped.stdout) == (2, ""), command
        assert "the server needs Linux" in stopped.stderr, command


def test_a_list_of_commands_says_what_each_says_of_itself() -> None:
    limits = (30, 45, 70, cli.main.context_settings["max_content_width"] - 6 - len("reset-unfinished"))
    for name, listed in cli.main.commands.items():
        command = cli.commands_of(cli.main)[name]
        for limit in limits:
            assert listed.get_short_help_str(limit) == command.get_short_help_str(limit), name


@pytest.mark.parametrize(("arguments", "spared"), [(["--help"], "asyncio"), (["put", "--help"], "httpx2")])
def test_what_a_command_does_not_need_is_not_imported(arguments: list[str], spared: str) -> None:
    started = run_program([sys.executable, "-X", "importtime", UPLOADER, *arguments])
    assert spared not in {line.rpartition("|")[2].strip() for line in started.stderr.splitlines()}


def test_clear_error_for_a_port_in_use_and_a_store_away(tmp_path: Path) -> None:
    data = {"DATA": str(tmp_path / "data")}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        stopped = run_cli(data, "serve", "--port", str(port))
    assert (stopped.returncode, f"can't listen on 127.0.0.1:{port}" in stopped.stderr) == (2, True)
    url = "mysql+asyncmy://root:a-secret@127.0.0.1:1/uploader"
    for command in (("db", "upgrade"), ("token", "list"), ("report",), ("reconcile",)):
        stopped = run_cli(data | {"DATABASE_URL": url}, *command, "--wait", "0")
        assert stopped.returncode == 1
        (line,) = stopped.stderr.splitlines()
        assert line.startswith("uploader: the database at 127.0.0.1:1 (UPLOADER_DATABASE_URL) is away: ")
        assert "Connect call failed" in line
        assert "a-secret" not in stopped.stderr
    stopped = run_cli(data | {"REDIS_URL": "redis://:a-secret@127.0.0.1:1/0"}, "redis", "reset", "--yes")
    assert stopped.returncode == 1
    line = stopped.stderr.splitlines()[-1]
    assert line.startswith("uploader: Redis at 127.0.0.1:1 (UPLOADER_REDIS_URL) is away: ")
    assert "a-secret" not in stopped.stderr


def test_tokens_are_made_listed_and_revoked(tmp_path: Path) -> None:
    settings = {"DATA": str(tmp_path / "data")}
    first = run_cli(settings, "token", "create", "bob", "--admin", "--total-space", "1GiB")
    second = run_cli(settings, "token", "create", "bob", "--total-space", "9GiB")
    assert first.returncode == second.returncode == 0
    assert first.stdout.split()[-1] != second.stdout.split()[-1]
    rows = [line.split() for line in run_cli(settings, "token", "list", "bob").stdout.splitlines()]
    assert [row[1:3] for row in rows] == [["bob", "admin"], ["bob", "user"]]
    assert {tuple(row[4:]) for row in rows} == {("by", "command", pwd.getpwuid(os.getuid()).pw_name)}
    assert run_cli(settings, "token", "create", "prometheus", "--metrics").returncode == 0
    both = run_cli(settings, "token", "create", "prometheus", "--metrics", "--admin")
    assert (both.returncode, "exclude each other" in both.stderr) == (2, True)
    (listed,) = run_cli(settings, "token", "list", "prometheus").stdout.splitlines()
    assert listed.split()[1:3] == ["prometheus", "metrics"]
    assert run_cli(settings, "token", "revoke", rows[0][0]).returncode == 0
    assert run_cli(settings, "token", "revoke", second.stdout.split()[-1]).returncode == 0
    assert run_cli(settings, "token", "revoke", "nothing").returncode == 1
    rows = [line.split() for line in run_cli(settings, "token", "list", "bob").stdout.splitlines()]
    assert [row[2] for row in rows] == ["revoked", "revoked"]


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        (("token", "create", "a/b"), 1, "user_id"),
        (("token", "create", "a b"), 1, "user_id"),
        (("token", "create", ""), 1, "user_id"),
        (("user", "set-quota", "bob", "lots"), 2, "TOTAL_SPACE"),
        (("serve", "--host", ""), 2, "--host"),
        (("serve", "--host", "0.0.0.0"), 2, "UPLOADER_AUTH"),
        (("serve", "--port", "99999"), 2, "--port"),
        (("serve", "--workers", "0"), 2, "--workers"),
        (("nothing",), 2, "No such command"),
    ],
)
def test_bad_arguments_are_refused(tmp_path: Path, command: tuple[str, ...], code: int, told: str) -> None:
    refused = run_cli({"DATA": str(tmp_path / "data"), "AUTH": "none"}, *command)
    assert (refused.returncode, told in refused.stderr) == (code, True), refused.stderr
    assert "Traceback" not in refused.stderr
