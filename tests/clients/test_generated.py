"""Clients that generators make from `/openapi.json`: they are made without a warning, fit their types, and send a file."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import httpx2
import pytest

from tests.clients.site import HERE
from tests.support.commands import token_of_somebody
from tests.support.content import MIB, Content
from tests.support.process import Mortal
from uploader.client import Client

CONTENT = Content(2 * MIB + 321, seed=195)
# What tests/clients/run installs apart: its libraries are others than the project's.
PYTHON = HERE.parents[1] / ".venv-generators" / "bin" / "python"
TYPES = {"strict": True, "noEmit": True, "skipLibCheck": True, "target": "es2022", "module": "esnext"}
TYPES |= {"moduleResolution": "bundler", "lib": ["es2022", "dom", "dom.iterable"]}
# Media types that openapi-python-client does not know, and what it knows in their place, as docs/clients.md has it.
OCTETS = ("application/offset+octet-stream", "application/partial-upload", "application/x-tar", "application/zip")


class Workshop:
    """A directory with the description of a server."""

    def __init__(self, directory: Path, installation: Mortal) -> None:
        self.directory = directory
        self.token = token_of_somebody(installation.server)
        self.url = installation.url
        (directory / "openapi.json").write_text(httpx2.get(f"{installation.url}/openapi.json").text)

    def run(self, *command: str | Path, **more: str) -> str:
        """Run a command, which is given the content; what it says."""
        path = f"{PYTHON.parent}:{HERE / 'node_modules/.bin'}:{os.environ['PATH']}"
        ran = subprocess.run(
            command,
            cwd=self.directory,
            env={**os.environ, "PATH": path, "SERVER": self.url, "TOKEN": self.token, **more},
            input=CONTENT.data,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout.decode()
        return ran.stdout.decode()

    def check_arrived(self, *names: str) -> None:
        with Client(self.url, self.token) as client:
            assert {file.name: file.sha256 for file in client.files()} == dict.fromkeys(names, CONTENT.sha256)


@pytest.fixture
def workshop(tmp_path: Path, installation: Mortal) -> Workshop:
    return Workshop(tmp_path, installation)


def test_openapi_python_client(workshop: Workshop) -> None:
    overrides = {"content_type_overrides": dict.fromkeys(OCTETS, "application/octet-stream")}
    (workshop.directory / "overrides.json").write_text(json.dumps(overrides))
    made = workshop.run(
        "openapi-python-client", "generate", "--path", "openapi.json", "--config", "overrides.json", "--fail-on-warning"
    )
    assert "WARNING" not in made
    shutil.copy(HERE / "generated.py", workshop.directory / "uploader-client")
    place = {"MYPYPATH": "uploader-client", "PYTHONPATH": "uploader-client"}
    workshop.run(PYTHON, "-m", "mypy", "--strict", "uploader-client/generated.py", **place)
    workshop.run(PYTHON, "uploader-client/generated.py", **place)
    workshop.check_arrived("openapi-python-client")


def test_openapi_typescript_and_hey_api(workshop: Workshop) -> None:
    workshop.run("openapi-typescript", "openapi.json", "--output", "openapi-typescript.d.ts")
    workshop.run("openapi-ts", "--input", "openapi.json", "--output", "hey-api", "--client", "@hey-api/client-fetch")
    shutil.copy(HERE / "generated.ts", workshop.directory)
    (workshop.directory / "node_modules").symlink_to(HERE / "node_modules")
    (workshop.directory / "package.json").write_text('{"type": "module"}')
    told = {"compilerOptions": TYPES, "include": ["generated.ts", "hey-api"]}
    (workshop.directory / "tsconfig.json").write_text(json.dumps(told))
    workshop.run("tsc", "--project", ".")
    workshop.run("esbuild", "generated.ts", "--bundle", "--platform=node", "--format=esm", "--outfile=generated.js")
    workshop.run("node", "generated.js")
    workshop.check_arrived("hey-api", "openapi-typescript")
