"""What one `PUT` of 8 MiB goes through: how many calls in how many files, and how often the file changes.

`python -m benchmarks.path_of_a_chunk`; with `--calls` it prints every call. It counts, and measures no time: it tells how
many pages one has to turn to follow a chunk. A coroutine that is resumed counts as another call.
"""

import argparse
import asyncio
import http.client
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import AsyncMock, patch

import uploader
from uploader.service.installation import Installation

CHUNK_BYTES = 8 << 20
_CHUNKS = 3
# Until the digests have followed a chunk.
_SETTLED_SECONDS = 1.0
_PACKAGE = Path(uploader.__file__).parent
# What goes on whether a chunk comes or not.
_BESIDE = ("observability.py",)


@dataclass(frozen=True, slots=True)
class Trace:
    """The calls of one chunk, thread by thread, each as its file and function."""

    threads: dict[str, list[tuple[str, str]]]

    @property
    def calls(self) -> int:
        return sum(map(len, self.threads.values()))

    @property
    def files(self) -> Counter[str]:
        return Counter(file for calls in self.threads.values() for file, _ in calls)

    @property
    def changes(self) -> int:
        """How often a call is in another file than the one before it in its thread."""
        return sum(before[0] != after[0] for calls in self.threads.values() for before, after in pairwise(calls))


class Recorder:
    """Notes the calls of the package in all threads that start after it, while it is on."""

    def __init__(self) -> None:
        self.on = False
        self.threads: dict[str, list[tuple[str, str]]] = defaultdict(list)
        self._names: dict[str, str | None] = {}
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _argument: Any) -> None:
        if not self.on or event != "call":
            return
        file = self._file_of(frame.f_code.co_filename)
        if file is not None:
            self.threads[threading.current_thread().name].append((file, frame.f_code.co_name))

    def _file_of(self, path: str) -> str | None:
        if path not in self._names:
            inside = Path(path).is_relative_to(_PACKAGE)
            name = str(Path(path).relative_to(_PACKAGE)) if inside else None
            self._names[path] = None if name in _BESIDE else name
        return self._names[path]


def trace() -> Trace:
    """Run a server as it is by default, but without jobs, and send it a chunk in the middle of an upload."""
    with tempfile.TemporaryDirectory(prefix="path-") as directory:
        os.environ |= {"UPLOADER_DATA": directory, "UPLOADER_JOBS": "false", "UPLOADER_LOG_LEVEL": "info"}
        recorder = Recorder()
        # What every process looks at now and then is on the path of no chunk.
        with patch.object(Installation, "look", AsyncMock(return_value=3600.0)):
            asyncio.run(_serve_and_send(Path(directory), recorder))
    return Trace(dict(recorder.threads))


async def _serve_and_send(data: Path, recorder: Recorder) -> None:
    import uvicorn

    from uploader import bootstrap
    from uploader.embedded import EmbeddedRedis
    from uploader.http.server.http11 import HttpConnection
    from uploader.settings import Settings

    embedded = EmbeddedRedis(data / "redis")
    embedded.start()
    settings = Settings.load()
    token = await bootstrap.prepare_installation(settings) or ""
    embedded.wait_until_ready()
    config = uvicorn.Config(
        "uploader.bootstrap:create_app",
        factory=True,
        http=HttpConnection,  # type: ignore[arg-type]
        ws="none",
        lifespan="on",
        port=0,
        log_config=None,
        access_log=False,
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 (uvicorn has no event for it)
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    await asyncio.to_thread(_send, port, token, recorder)
    server.should_exit = True
    await serving
    embedded.stop()


def _send(port: int, token: str, recorder: Recorder) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    headers = {"Authorization": f"Bearer {token}"}
    content = os.urandom(CHUNK_BYTES)
    opening = {"name": "a", "size": _CHUNKS * CHUNK_BYTES, "chunk_size": CHUNK_BYTES}
    connection.request("POST", "/uploads", json.dumps(opening), headers)
    upload_id = json.loads(connection.getresponse().read())["upload"]["id"]
    for number in range(2):
        time.sleep(_SETTLED_SECONDS)
        recorder.on = number == 1
        connection.request("PUT", f"/uploads/{upload_id}/chunks/{number}", content, headers)
        reply = connection.getresponse()
        reply.read()
        assert reply.status == 200, reply.status
        time.sleep(_SETTLED_SECONDS)
        recorder.on = False
    connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.path_of_a_chunk", description=__doc__)
    parser.add_argument("--calls", action="store_true", help="print every call")
    arguments = parser.parse_args()
    path = trace()
    if arguments.calls:
        for name, calls in path.threads.items():
            print(f"--- {name}")
            for file, function in calls:
                print(f"{file}  {function}")
    for file, count in path.files.most_common():
        print(f"{count:5}  {file}")
    print(f"{path.calls} calls in {len(path.files)} files, {path.changes} changes of file")


if __name__ == "__main__":
    main()
