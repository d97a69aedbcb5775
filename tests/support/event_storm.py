"""Uploads, deletions and cancellations while server, worker and sink are killed at random; then what was told is compared
with what happened."""

import hashlib
import http.client
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import select

from tests.support.consumer import events_file, webhook
from tests.support.process import Process, Server, Settings, owner_token
from tests.support.servers import free_port
from uploader.database import models
from uploader.database.engine import Connection, Database

_WORKERS = 4
_PATIENCE_SECONDS = 300.0
_PAUSE_SECONDS = 0.05
# Writes each event down before it answers; killed, it has answered for nothing that is not written.
_SINK = """
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


@dataclass
class Acknowledged:
    """What the server has said that it did."""

    finished: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    opened: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)


class Storm:
    """One installation, with a webhook."""

    def __init__(self, directory: Path, settings: Settings, seed: int) -> None:
        self._random = random.Random(seed)
        self._directory = directory
        self._sink_port = free_port()
        self.told_path = directory / "told"
        self._clock = directory / "clock"
        self._turn_clock(0)
        path = events_file(directory / "events", webhook("hook", f"http://127.0.0.1:{self._sink_port}/"))
        data = {"DATA": str(directory / "data"), "EVENTS": str(path), "TEST_CLOCK": str(self._clock)}
        self._settings = {
            **settings,
            **data,
            "FREE_SPACE_FLOOR": "0",
            "DEFAULT_TOTAL_SPACE": "1TiB",
            "LOG_LEVEL": "error",
        }
        self._port = free_port()
        self.acknowledged = Acknowledged()
        self._left = 0
        self._lock = threading.Lock()

    def __enter__(self) -> "Storm":
        (self._directory / "data").mkdir()
        self._sink = self._start_sink()
        self._server = self._start_server()
        self._worker = self._start_worker()
        self._token = owner_token(self._directory / "data")
        return self

    def __exit__(self, *_: object) -> None:
        self._sink.kill()
        self._sink.wait()
        for process in (self._server, self._worker):
            process.kill()

    def _turn_clock(self, seconds: float) -> None:
        draft = self._clock.with_suffix(".new")
        draft.write_text(str(seconds))
        draft.rename(self._clock)

    def _start_sink(self) -> "subprocess.Popen[bytes]":
        program = [sys.executable, "-c", _SINK, str(self._sink_port), str(self.told_path)]
        return subprocess.Popen(program, stderr=subprocess.DEVNULL)  # it complains of whoever was killed

    def _start_server(self) -> Server:
        return Server(self._directory / "log", self._settings, port=self._port)

    def _start_worker(self) -> Process:
        return Process(self._directory / "log", self._settings, "work")

    def run(self, uploads: int, kills: int) -> None:
        """So many files and uploads, and so many kills meanwhile; all is up again when it returns."""
        self._left = uploads
        workers = [threading.Thread(target=self._work, args=(number,)) for number in range(_WORKERS)]
        for worker in workers:
            worker.start()
        for kill in range(kills, 0, -1):
            self._wait_until_left(uploads * kill // (kills + 1))
            self._kill_one()
        for worker in workers:
            worker.join()

    def _wait_until_left(self, count: int) -> None:
        while self._left > count:
            time.sleep(0.01)

    def _kill_one(self) -> None:
        match self._random.choice(("server", "worker", "sink")):
            case "server":
                self._server.kill()
                self._server = self._start_server()
            case "worker":
                self._worker.kill()
                self._worker = self._start_worker()
            case "sink":
                self._sink.kill()
                self._sink.wait()
                time.sleep(self._random.uniform(0, 0.5))
                self._sink = self._start_sink()

    def _work(self, number: int) -> None:
        chance, mine = random.Random(number), list[str]()
        while self._left > 0:
            try:
                self._do_something(chance, mine)
            except (OSError, http.client.HTTPException):
                # It may have been carried out all the same: of that the rows tell.
                time.sleep(_PAUSE_SECONDS)
                continue
            with self._lock:
                self._left -= 1

    def _do_something(self, chance: random.Random, mine: list[str]) -> None:
        data = chance.randbytes(100)
        md5 = hashlib.md5(data).hexdigest()
        done = self.acknowledged
        match chance.choice(("whole", "whole", "chunk", "cancel", "delete")):
            case "whole":
                status, answer = self._ask("PUT", f"/files/{md5}?name={md5}.bin", data)
                self._note_file(status, answer, mine)
            case "chunk":
                opening = json.dumps({"name": f"{md5}.bin", "size": len(data)}).encode()
                status, answer = self._ask("POST", f"/files/{md5}", opening)
                if status == 201:
                    done.opened.add(answer["upload"]["id"])
                status, answer = self._ask("PUT", f"/files/{md5}/chunks/0", data)
                self._note_file(status, answer, mine)
            case "cancel":
                status, answer = self._ask("POST", "/uploads", b'{"name": "x", "size": 100}')
                if status != 201:
                    return
                upload_id = answer["upload"]["id"]
                done.opened.add(upload_id)
                if self._ask("DELETE", f"/uploads/{upload_id}")[0] == 204:
                    done.cancelled.add(upload_id)
            case "delete" if mine:
                file_id = mine.pop()
                if self._ask("DELETE", f"/me/files/{file_id}")[0] == 204:
                    done.deleted.add(file_id)

    def _note_file(self, status: int, answer: Any, mine: list[str]) -> None:
        if status == 201 and answer["state"] == "complete":
            self.acknowledged.finished.add(answer["file"]["id"])
            mine.append(answer["file"]["id"])

    def _ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request(method, path, body, {"Authorization": f"Bearer {self._token}"})
            response = connection.getresponse()
            text = response.read()
            return response.status, json.loads(text) if text else None
        finally:
            connection.close()

    # Afterwards

    async def settle(self, database: Database) -> None:
        """Until nobody is to be told any more; the clock is turned, because the later retries take hours."""
        deadline, turned = time.monotonic() + _PATIENCE_SECONDS, 0
        while any(state != "delivered" for state in await _column(database, models.delivery.c.state)):
            assert time.monotonic() < deadline, Counter(await _column(database, models.delivery.c.last_error))
            turned += 600
            self._turn_clock(turned)
            time.sleep(0.5)

    def told(self) -> dict[str, list[Any]]:
        """By type, the events; each once, though it may have come more often."""
        by_id: dict[str, Any] = {}
        for line in self.told_path.read_bytes().splitlines():
            event = json.loads(line)
            assert by_id.setdefault(event["id"], event) == event
        by_type: dict[str, list[Any]] = {}
        for event in by_id.values():
            by_type.setdefault(event["type"], []).append(event)
        return by_type

    async def check(self, database: Database) -> None:
        """Every effect has its event, and every event its effect."""
        told = {kind: Counter(event["subject"] for event in events) for kind, events in self.told().items()}
        assert all(set(counts.values()) == {1} for counts in told.values())
        finished, deleted, created, cancelled = (
            set(told.get(kind, ())) for kind in ("file.finished", "file.deleted", "upload.created", "upload.cancelled")
        )
        files = set(await _column(database, models.file.c.id))
        assert finished - deleted == files
        assert deleted <= finished
        uploads = set(await _column(database, models.upload.c.id))
        assert created == uploads
        closed = set(await _column(database, models.upload.c.id, models.upload.c.state == "CANCELLED"))
        assert cancelled == closed
        done = self.acknowledged
        assert done.finished <= finished
        assert done.deleted <= deleted
        assert done.opened <= created
        assert done.cancelled <= cancelled
        assert min(map(len, (done.finished, done.deleted, done.opened, done.cancelled))) > 0


async def _column(database: Database, column: Any, *conditions: Any) -> list[Any]:
    async def read(connection: Connection) -> list[Any]:
        return list((await connection.execute(select(column).where(*conditions))).scalars())

    return await database.read(read)
