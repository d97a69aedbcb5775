"""The applications of docs/examples, in processes of their own under the servers that people run."""

import os
import sys
from pathlib import Path

import httpx2

from tests.support.process import Process, wait_for
from tests.support.servers import free_port

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
# Of the user `alice`.
TOKEN = "secret of alice"
RUN = {
    "uvicorn": ("-m", "uvicorn", "--port", "{port}", "--app-dir", str(EXAMPLES), "fastapi_app:app"),
    "hypercorn": ("-m", "hypercorn", "--bind", "127.0.0.1:{port}", "fastapi_app:app"),
    "granian": ("-m", "granian", "--interface", "asgi", "--port", "{port}", "fastapi_app:app"),
    "litestar": ("-m", "uvicorn", "--port", "{port}", "--app-dir", str(EXAMPLES), "litestar_app:app"),
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
