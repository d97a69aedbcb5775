"""The applications of docs/examples, in processes of their own under the servers that people run."""

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from tests.support.content import MIB, Content
from tests.support.documents import DOCS, blocks
from tests.support.process import Process, ended, wait_for
from tests.support.servers import free_port
from uploader.client import Client, File

EXAMPLES, INTEGRATING = DOCS / "examples", DOCS / "integrating.md"
CONTENT = Content(9 * MIB + 1, seed=61)
# Of the user `alice`.
TOKEN = "secret of alice"
RUN = {
    "uvicorn": ("-m", "uvicorn", "--port", "{port}", "--app-dir", str(EXAMPLES), "fastapi_app:app"),
    "hypercorn": ("-m", "hypercorn", "--bind", "127.0.0.1:{port}", "fastapi_app:app"),
    "granian": ("-m", "granian", "--interface", "asgi", "--port", "{port}", "fastapi_app:app"),
    # With the connections of `uploader serve`.
    "fast": (
        "-c",
        "import fastapi_app as it, uvicorn; from uploader.asgi import HttpConnection as fast; "
        "uvicorn.run(it.app, port={port}, http=fast)",
    ),
}


class Running:
    """One of them, on a port of its own."""

    def __init__(self, directory: Path, server: str, *more: str, port: int | None = None, script: str = "") -> None:
        """`script`: what a shell runs in the directory, in the place of a server of `RUN`."""
        self.directory = directory
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        settings = {"DATA": str(directory / "data"), "FREE_SPACE_FLOOR": "0", "PORT": str(self.port)}
        program = ["env", f"PYTHONPATH={EXAMPLES}", sys.executable]
        command = [word.format(port=self.port) for word in RUN.get(server, ())]
        if script:
            path = f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}"
            program = ["env", "-C", str(directory), path, f"UVICORN_PORT={self.port}", "bash", "-ec"]
            command = [script]
        self.process = Process(directory / "log", settings, *command, *more, program=program)

    def wait(self, prefix: str = "/uploads") -> "Running":
        def is_ready() -> bool:
            assert self.process.process.poll() is None, self.process.output()
            try:
                return httpx2.get(f"{self.url}{prefix}/readyz", timeout=60).is_success
            except httpx2.TransportError:
                return False

        wait_for(is_ready, 120, "the application")
        return self


@contextmanager
def running(directory: Path, server: str, script: str = "") -> Iterator[Running]:
    made = Running(directory, server, script=script)
    with ended(made.process):
        yield made.wait()


@contextmanager
def as_printed(directory: Path, name: str, script: str = "") -> Iterator[Running]:
    """The application of this module, made of what the page prints, by the command that its first sentence names."""
    code = APPLICATIONS[name]
    (directory / f"{name}.py").write_text(code)
    command = re.search(r"`(uvicorn .*?)`", code)
    assert command is not None
    with running(directory, name, script or f"exec {command[1]}") as made:
        yield made


APPLICATIONS = {
    match[1]: code for code in blocks(INTEGRATING, "python") if (match := re.search(r"uvicorn (\w+):", code))
}


def is_finished(app: Running, file: File) -> bool:
    """Whether the handler of the application was told of it."""
    told: list[str] = httpx2.get(f"{app.url}/finished", timeout=60).json()
    return file.id in told


def check_a_file_comes_and_goes(app: Running, *, has_handler: bool) -> File:
    with Client(f"{app.url}/uploads", TOKEN) as client:
        file = client.upload(CONTENT.data, "film")
        assert client.download(file, app.directory / "back").read_bytes() == CONTENT.data
    if has_handler:
        wait_for(lambda: is_finished(app, file), 60, "the handler")
    return file


def check_it_ends(app: Running) -> None:
    assert app.process.stop() in (0, -signal.SIGTERM)
