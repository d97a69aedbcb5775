"""Who is told of events, and whether that is what happened: every effect has its event, and every event its effect."""

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import select

from tests.support.consumer import events_file, webhook
from tests.support.servers import free_port
from tests.support.waiting import PATIENCE_SECONDS
from uploader.database import models
from uploader.database.engine import Connection, Database
from uploader.runtime.embedded import end_with_parent

# Writes each event down before it answers; killed, it has answered for nothing that is not written.
_PROGRAM = """
import os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
told = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
class Hook(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        os.write(told, self.rfile.read(int(self.headers["content-length"])) + b"\\n")
        self.send_response(204)
        self.end_headers()
    def log_message(self, *_):
        pass
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Hook).serve_forever()
"""
KINDS = ("file.finished", "file.deleted", "upload.created", "upload.cancelled")
_TURN_SECONDS = 600.0


class Sink:
    """A webhook, as a process that can be killed and started again."""

    def __init__(self, directory: Path) -> None:
        self._port = free_port()
        self.settings = events_file(directory, webhook("hook", f"http://127.0.0.1:{self._port}/"))
        self._told = directory / "told"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = [sys.executable, "-c", _PROGRAM, str(self._port), str(self._told)]
        # It complains of whoever was killed.
        self._process = subprocess.Popen(program, preexec_fn=end_with_parent, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    stop = kill

    def told(self) -> dict[str, "Counter[str]"]:
        """What came, by type: of which subjects, and how often. Each event once, though it may have come more often."""
        by_id: dict[str, Any] = {}
        for line in self._told.read_bytes().splitlines():
            event = json.loads(line)
            assert by_id.setdefault(event["id"], event) == event
        by_type: dict[str, Counter[str]] = {}
        for event in by_id.values():
            by_type.setdefault(event["type"], Counter())[event["subject"]] += 1
        return by_type

    async def check(
        self, database: Database, done: Mapping[str, set[str]], turn_clocks: Callable[[float], None]
    ) -> int:
        """Raises AssertionError; how many events there were. `done`: what the server has said that it did."""
        await _settle(database, turn_clocks)
        told = self.told()
        finished, deleted, created, cancelled = (set(told.get(kind, ())) for kind in KINDS)
        assert finished - deleted == set(await _column(database, models.file.c.id))
        assert deleted <= finished
        uploads = models.upload.c
        # An upload that ends in a file that was there is told of as one that makes it.
        ends = Counter(await _column(database, uploads.file_id, uploads.state == "DONE"))
        for kind, counts in told.items():
            twice = {subject for subject in counts if counts[subject] > (1 + ends[subject] if kind == KINDS[0] else 1)}
            assert not twice, f"{kind} of {twice} was told as several events"
        assert created == set(await _column(database, uploads.id))
        assert cancelled == set(await _column(database, uploads.id, uploads.state == "CANCELLED"))
        for kind in KINDS:
            assert done[kind], f"no {kind}"
            assert done[kind] <= set(told[kind]), f"{kind} of {done[kind] - set(told[kind])} was not told"
        return sum(counts.total() for counts in told.values())


async def _settle(database: Database, turn_clocks: Callable[[float], None]) -> None:
    """Until nobody is to be told any more; clocks are turned, because the later retries take hours."""
    deadline, turned = time.monotonic() + PATIENCE_SECONDS, 0.0
    while any(state != "delivered" for state in await _column(database, models.delivery.c.state)):
        assert time.monotonic() < deadline, Counter(await _column(database, models.delivery.c.last_error))
        turned += _TURN_SECONDS
        turn_clocks(turned)
        await asyncio.sleep(0.2)


async def _column(database: Database, column: Any, *conditions: Any) -> list[Any]:
    async def read(connection: Connection) -> list[Any]:
        return list((await connection.execute(select(column).where(*conditions))).scalars())

    return await database.read(read)
