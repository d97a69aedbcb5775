"""One server on SQLite and the embedded Valkey, which can be stopped, copied, and put back as it was."""

import json
import re
import shutil
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.soak.installation import SETTINGS
from tests.support.process import Process, answers, ended, processes_in, run_cli, wait_for
from tests.support.servers import free_port
from tests.support.waiting import SERVER_SECONDS

# A line of a trace that tells what went wrong.
_ERROR = re.compile(r"[ |]*(?:[a-z_0-9]+\.)*[A-Z]\w*(?:Error|Exception)\b")


class Installation:
    """A data directory, and the process that serves it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.data = directory / "data"
        self.database = self.data / "uploader.db"
        self._copy = directory / "copy"
        self._settings = SETTINGS | {"DATA": str(self.data)}
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._starts = 0
        self._process: Process | None = None

    def start(self) -> str | None:
        """None once the server is ready, and its database is as it should be; what it said, if it would not start, or ended
        once it had looked at its database."""
        log = self.directory / f"log-{self._starts:03}"
        self._starts += 1
        self._process = Process(log, self._settings, "serve", "--port", str(self._port))
        deadline = time.monotonic() + SERVER_SECONDS
        while time.monotonic() < deadline:
            if self._process.process.poll() is not None:
                return self._process.output()
            if answers(self._port):
                return self._said_at_its_end() if self._is_database_damaged() else None
            time.sleep(0.05)
        self.end()
        return f"not ready within {SERVER_SECONDS:g} s: {self._process.output()}"

    def _is_database_damaged(self) -> bool:
        with closing(sqlite3.connect(self.database)) as connection:
            try:
                return connection.execute("PRAGMA integrity_check").fetchall() != [("ok",)]
            except sqlite3.DatabaseError:
                return True

    def _said_at_its_end(self) -> str:
        process = self._process
        assert process is not None
        wait_for(lambda: process.process.poll() is not None)
        return process.output()

    def stop(self) -> None:
        """In order, so that all there is to know is in the files, and in no log beside them."""
        assert self._process is not None
        self._process.stop()
        wait_for(lambda: processes_in(self.data / "redis") == [])
        with closing(sqlite3.connect(self.database)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def end(self) -> None:
        """However it stands."""
        if self._process is not None:
            with ended(self._process):
                pass

    def keep_copy(self) -> None:
        """Of the data directory, while nothing runs on it."""
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self.data, self._copy, ignore=lambda _directory, names: {"r.sock"} & set(names))

    def put_back(self) -> None:
        """The data directory as it was copied, while nothing runs on it."""
        wait_for(lambda: processes_in(self.data / "redis") == [])
        shutil.rmtree(self.data)
        shutil.copytree(self._copy, self.data)

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return run_cli(self._settings, *arguments)

    def append_only_files(self) -> list[Path]:
        """Those that are not empty, the oldest first."""
        files = sorted((self.data / "redis" / "appendonlydir").glob("*.aof"))
        return [path for path in files if path.stat().st_size]

    def scrub(self) -> tuple[list[dict[str, Any]], str | None]:
        """What a scrub reports, and why it did not come to its end, if so."""
        found = self.run("scrub", "--rate", "0", "--restart", "--json")
        lines = [json.loads(line) for line in found.stdout.splitlines()]
        whole = bool(lines) and lines[-1]["event"] == "summary"
        return [line for line in lines if "sha256" in line], None if whole else last_words(found.stderr)

    def reconcile(self) -> tuple[list[dict[str, Any]], str | None]:
        """The drifts that a reconciliation reports, and why it did not come to its end, if so."""
        found = self.run("reconcile", "--json")
        if found.stdout:
            drifts: list[dict[str, Any]] = json.loads(found.stdout)["drifts"]
            return drifts, None
        return [], last_words(found.stderr)


def is_one_line(said: str) -> bool:
    """Whether a program ended with words, and not with a trace of what went wrong in it."""
    return bool(said.strip()) and "Traceback" not in said


def last_words(said: str) -> str:
    """What was said; of a trace its errors."""
    if is_one_line(said):
        return said.strip()
    lines = said.replace("\\n", "\n").splitlines()
    errors = [line.strip(" |") for line in lines if _ERROR.match(line)]
    return f"Traceback: {', '.join(dict.fromkeys(errors))}"
