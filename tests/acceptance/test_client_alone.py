"""`pip install .` without extras: the client, on a handful of distributions."""

import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import uploader
from tests.support.process import Server, ended, run_program

PROGRAM = "import sys; from uploader.cli import main; main(prog_name='uploader')"


def _needed(name: str, found: set[str]) -> set[str]:
    """The distribution and all that it needs without extras, on this Python and system."""
    found.add(name)
    for line in distribution(name).requires or []:
        needed = Requirement(line)
        if needed.name not in found and (needed.marker is None or needed.marker.evaluate({"extra": ""})):
            _needed(needed.name, found)
    return found


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pip would install, as links to what is installed here."""
    directory = tmp_path_factory.mktemp("libraries")
    for name in _needed("uploader-kit", set()) - {"uploader-kit"}:
        for file in distribution(name).files or []:
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (directory / top).exists():
                (directory / top).symlink_to(Path(str(distribution(name).locate_file(top))))
    (directory / "uploader").symlink_to(Path(uploader.__file__).parent)
    return directory


def run(libraries: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return run_program(
        [sys.executable, "-S", "-c", PROGRAM, *arguments],
        env={"PYTHONPATH": str(libraries), "HOME": str(libraries.parent), "PATH": "/usr/bin:/bin", **environment},
        check=False,
    )


def test_it_is_a_handful_of_distributions(libraries: Path) -> None:
    assert len(list(libraries.glob("*.dist-info"))) <= 15


def test_it_uploads_and_downloads(libraries: Path, tmp_path: Path) -> None:
    server = Server(tmp_path / "log", {"DATA": str(tmp_path / "data")})
    (tmp_path / "film").write_bytes(b"film" * 100_000)
    with ended(server):
        known = {"UPLOADER_URL": server.url, "UPLOADER_TOKEN": (tmp_path / "data/owner.token").read_text().strip()}
        put = run(libraries, "put", str(tmp_path / "film"), **known)
        assert put.returncode == 0, put.stderr
        got = run(libraries, "get", "film", "-o", str(tmp_path / "copy"), **known)
        assert got.returncode == 0, got.stderr
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "film").read_bytes()


@pytest.mark.parametrize("command", ["serve", "token list", "reconcile", "config"])
def test_a_command_of_the_server_says_what_it_lacks(libraries: Path, command: str) -> None:
    said = run(libraries, *command.split())
    assert (said.returncode, said.stdout, said.stderr.count("\n")) == (2, "", 1), said.stderr
    assert "in a clone of uploader, pip install '.[server]'" in said.stderr
    assert run(libraries, *command.split(), "--help").returncode == 0
