"""The client commands as their users run them: processes of the console script, with a server and a token by environment."""

import asyncio
import json
import os
import subprocess
from asyncio.subprocess import Process
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from jsonschema import Draft202012Validator

from tests.support.process import UPLOADER, Server, ended, environment, run_cli, run_to_end
from tests.support.waiting import SERVER_SECONDS

NOON = 1_500_000_000_123_456_000
SCHEMA = Path(__file__).parents[2] / "docs" / "events.schema.json"


class Commands:
    """What one user runs on one machine; its settings lie in `home`."""

    def __init__(self, home: Path, url: str | None = None, token: str | None = None) -> None:
        self.home = home
        named = {"URL": url, "TOKEN": token}
        self.environment = environment({name: value for name, value in named.items() if value is not None})
        self.environment |= {"HOME": str(home), "XDG_CONFIG_HOME": "", "NO_PROXY": "127.0.0.1"}

    def run(
        self, *arguments: str | Path, stdin: str = "", cwd: Path | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end."""
        return run_to_end(
            arguments, self.environment, cwd=cwd or self.home, stdin=stdin, timeout_seconds=SERVER_SECONDS
        )

    def events(self, *arguments: str | Path, code: int = 0) -> list[dict[str, Any]]:
        """Run a command with `--json`; its events, each checked against the schema."""
        run = self.run(*arguments, "--json")
        assert run.returncode == code, run.stdout + run.stderr
        assert run.stderr == ""
        return checked_events(run.stdout)

    def piped(self, content: bytes, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
        """Run `… | uploader … | …`, where nobody can seek."""
        command: list[str | Path] = [UPLOADER, *arguments]
        return subprocess.run(
            command, input=content, env=self.environment, cwd=self.home, capture_output=True, check=False
        )

    def names(self) -> set[str]:
        """Of all files of the user."""
        return {event["file"]["name"] for event in self.events("ls", "-r") if event["event"] == "file"}

    async def start(self, *arguments: str | Path) -> Process:
        """Begin a command in the event loop of the test, which may serve it."""
        return await asyncio.create_subprocess_exec(
            UPLOADER,
            *arguments,
            env=self.environment,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


def write_tree(directory: Path, tree: Mapping[str, bytes], time_ns: int = NOON) -> None:
    """Write files, all with one time of modification."""
    for name, content in tree.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, ns=(time_ns, time_ns))


def tree_in(directory: Path) -> dict[str, bytes | None]:
    """All files with their content, and all empty folders."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() if path.is_file() else None
        for path in directory.rglob("*")
        if path.is_file() or path.is_symlink() or not any(path.iterdir())
    }


@contextmanager
def serving(directory: Path) -> Iterator[Server]:
    """A server for commands, below a directory."""
    settings = {"DATA": str(directory / "data"), "FREE_SPACE_FLOOR": "0", "DURABILITY": "process"}
    server = Server(directory / "log", settings)
    with ended(server):
        yield server


def token_of_somebody(server: Server, *options: str) -> str:
    """Of a user whom nobody else is."""
    data = server.log.parent / "data"
    return run_cli({"DATA": str(data)}, "token", "create", f"user-{uuid4().hex}", *options).stdout.split()[-1]


def checked_events(output: str) -> list[dict[str, Any]]:
    """The events of `--json`, each checked against the schema."""
    validator = Draft202012Validator(json.loads(SCHEMA.read_text()))
    events = [json.loads(line) for line in output.splitlines()]
    for event in events:
        validator.validate(event)
    return events


async def outcome(process: Process) -> tuple[int, str]:
    """The exit code of a command that was started, and all it printed."""
    async with asyncio.timeout(SERVER_SECONDS):
        stdout, stderr = await process.communicate()
    assert process.returncode is not None
    return process.returncode, stdout.decode() + stderr.decode()
