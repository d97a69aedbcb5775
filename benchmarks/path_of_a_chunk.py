"""What a request goes through: how many calls in how many files, and how often the file changes. Of a chunk of 8 MiB in the
middle of an upload, a `PATCH` of tus with such a chunk, a whole file, and an opening.

`python -m benchmarks.path_of_a_chunk`; with `--calls` it prints every call, with `--json` the figures alone. It counts, and
measures no time: it tells how many pages one has to turn to follow a request. A coroutine that is resumed counts as another
call. Each request is sent several times, and what one of them did without does not count: it goes on in the background, or
came of how the bytes happened to arrive.
"""

import argparse
import asyncio
import hashlib
import http.client
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import reduce
from itertools import pairwise
from operator import and_
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import uploader
from uploader.bootstrap import application
from uploader.jobs.runner import Runner
from uploader.service.revocations import Revocations

CHUNK_BYTES = 8 << 20
_ROUNDS = 3
# Before and after each: until the digests have followed a chunk, and the room of the disk is looked at again.
_SETTLED_SECONDS = 0.55
_PACKAGE = Path(uploader.__file__).parent
# What goes on whether anything comes or not, so often that each request has some of it; and the first thing that a thread
# does, of which the server has more with each request for a while.
_BESIDE = ("runtime/observability.py", "runtime/cores.py")

# Its file and its function.
Call = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Figures:
    """How far it is to follow a request."""

    files: int
    calls: int
    changes: int


class Recorder:
    """Notes the calls of the package, thread by thread, in all threads that start after it, while it is on."""

    def __init__(self) -> None:
        self.on = False
        self._threads: dict[str, list[Call]] = defaultdict(list)
        self._names: dict[str, str | None] = {}
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def take(self) -> dict[str, list[Call]]:
        """What was noted since the last time."""
        taken, self._threads = dict(self._threads), defaultdict(list)
        return taken

    def _note(self, frame: FrameType, event: str, _argument: Any) -> None:
        if not self.on or event != "call":
            return
        file = self._file_of(frame.f_code.co_filename)
        if file is not None:
            self._threads[threading.current_thread().name].append((file, frame.f_code.co_name))

    def _file_of(self, path: str) -> str | None:
        if path not in self._names:
            inside = Path(path).is_relative_to(_PACKAGE)
            name = str(Path(path).relative_to(_PACKAGE)) if inside else None
            self._names[path] = None if name in _BESIDE else name
        return self._names[path]


class Trace:
    """A request that was sent several times."""

    def __init__(self, rounds: list[dict[str, list[Call]]]) -> None:
        self.calls = reduce(and_, (Counter(call for calls in threads.values() for call in calls) for threads in rounds))
        # The round with the least beside it.
        self.threads = min(rounds, key=lambda threads: sum(map(len, threads.values())))

    @property
    def figures(self) -> Figures:
        changes = sum(
            before[0] != after[0]
            for calls in self.threads.values()
            for before, after in pairwise(call for call in calls if call in self.calls)
        )
        return Figures(files=len(self.files), calls=self.calls.total(), changes=changes)

    @property
    def files(self) -> Counter[str]:
        """The calls of each."""
        files: Counter[str] = Counter()
        for (file, _), count in self.calls.items():
            files[file] += count
        return files


async def _rest(_revocations: Revocations) -> None:
    """Look for no revocation: the look once a second is as far apart as the requests."""


def trace() -> dict[str, Trace]:
    """Run a server as it is by default, but without jobs, and send it the requests."""
    with tempfile.TemporaryDirectory(prefix="path-") as directory:
        os.environ |= {"UPLOADER_DATA": directory, "UPLOADER_JOBS": "false", "UPLOADER_LOG_LEVEL": "info"}
        recorder = Recorder()
        # What every process looks at now and then is on the path of no request.
        with (
            patch.object(application, "_create_watch", lambda *_: Runner([])),
            patch.object(Revocations, "_watch", _rest),
        ):
            return asyncio.run(_serve_and_send(Path(directory), recorder))


async def _serve_and_send(data: Path, recorder: Recorder) -> dict[str, Trace]:
    import uvicorn

    from uploader import bootstrap
    from uploader.http.server.http11 import HttpConnection
    from uploader.runtime.embedded import EmbeddedRedis
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
    client = Client(server.servers[0].sockets[0].getsockname()[1], token, recorder)
    traces = await asyncio.to_thread(client.send_all)
    server.should_exit = True
    await serving
    embedded.stop()
    return traces


class Client:
    """Sends the requests, each several times in the same way."""

    def __init__(self, port: int, token: str, recorder: Recorder) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self._token = token
        self._recorder = recorder

    def send_all(self) -> dict[str, Trace]:
        size = (1 + _ROUNDS + 1) * CHUNK_BYTES  # one goes before, and one is left
        opening = {"size": size, "chunk_size": CHUNK_BYTES}
        _, opened = self._request("POST", "/uploads", json.dumps({"name": "chunks", **opening}))
        chunks = f"/uploads/{json.loads(opened)['upload']['id']}/chunks"
        tus = {"Tus-Resumable": "1.0.0"}
        place, _ = self._request("POST", "/resumable", b"", tus | {"Upload-Length": str(size)})
        tus["Content-Type"] = "application/offset+octet-stream"
        whole = os.urandom(CHUNK_BYTES)

        def put_chunk(number: int) -> None:
            self._request("PUT", f"{chunks}/{number}", os.urandom(CHUNK_BYTES))

        def append(number: int) -> None:
            self._request("PATCH", place, os.urandom(CHUNK_BYTES), tus | {"Upload-Offset": str(number * CHUNK_BYTES)})

        def put_whole(number: int) -> None:
            content = whole[number:]
            md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
            self._request("PUT", f"/files/{md5}?name={number}", content)

        def open_upload(number: int) -> None:
            self._request("POST", "/uploads", json.dumps({"name": str(number), **opening}))

        return {
            "chunk": self._trace(put_chunk),
            "patch": self._trace(append),
            "whole": self._trace(put_whole),
            "opening": self._trace(open_upload),
        }

    def _trace(self, send: Callable[[int], None]) -> Trace:
        """The first is the one that the server gets to know the upload and the user by."""
        rounds = []
        for number in range(1 + _ROUNDS):
            time.sleep(_SETTLED_SECONDS)
            self._recorder.on = True
            send(number)
            time.sleep(_SETTLED_SECONDS)
            self._recorder.on = False
            rounds.append(self._recorder.take())
        return Trace(rounds[1:])

    def _request(
        self, method: str, path: str, content: bytes | str, headers: Mapping[str, str] | None = None
    ) -> tuple[str, bytes]:
        """The Location of the answer, and its body."""
        credentials = {"Authorization": f"Bearer {self._token}"}
        self._connection.request(method, path, content, credentials | dict(headers or {}))
        reply = self._connection.getresponse()
        answer = reply.read()
        assert reply.status in (200, 201, 204), (reply.status, answer)
        return reply.getheader("Location", ""), answer


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.path_of_a_chunk", description=__doc__)
    parser.add_argument("--calls", action="store_true", help="print every call")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, and nothing else")
    arguments = parser.parse_args()
    traces = trace()
    if arguments.json:
        print(json.dumps({name: asdict(path.figures) for name, path in traces.items()}))
        return
    for name, path in traces.items():
        if arguments.calls:
            for thread, calls in path.threads.items():
                print(f"--- {name}, {thread}")
                for file, function in calls:
                    print(f"{file}  {function}")
        print(f"--- {name}")
        for file, count in path.files.most_common():
            print(f"{count:5}  {file}")
    print(f"{'':8}{'files':>8}{'calls':>8}{'changes':>9}")
    for name, path in traces.items():
        figures = path.figures
        print(f"{name:8}{figures.files:8}{figures.calls:8}{figures.changes:9}")


if __name__ == "__main__":
    main()
