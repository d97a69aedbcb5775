"""What the project is handed out as: the archive of sources, the wheel that is built of it, and the unit of systemd."""

import re
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

from tests.support.process import Server, client_of_owner, ended
from uploader import __version__
from uploader.settings import Settings

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "docs" / "uploader.service"
pytestmark = pytest.mark.timeout(170)


def _build(kind: str, sources: Path, into: Path) -> Path:
    """What pip builds, without a network."""
    build = f"import sys; from hatchling.build import build_{kind} as build; print(build(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(into)], cwd=sources, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return into / done.stdout.splitlines()[-1]


def test_the_wheel_that_is_built_of_the_sources_archive_serves(tmp_path: Path) -> None:
    """In an environment of its own, that has the libraries of this one."""
    sources = _build("sdist", ROOT, tmp_path)
    assert sources.name == f"uploader-{__version__}.tar.gz"
    with tarfile.open(sources) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = tmp_path / f"uploader-{__version__}"
    assert {"README.md", "LICENSE", "alembic.ini", "docs", "migrations", "tests"} <= {
        path.name for path in unpacked.iterdir()
    }
    wheel = _build("wheel", unpacked, tmp_path)
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    subprocess.run([venv / "bin" / "pip", "install", "-q", "--no-deps", "--no-index", str(wheel)], check=True)
    uploader, libraries = venv / "bin" / "uploader", sysconfig.get_path("purelib")
    # Of a path that is only named, the `.pth` of an editable install is not read: `uploader` is the one of the wheel.
    place = "import uploader; print(uploader.__file__)"
    where = subprocess.run(
        [venv / "bin" / "python", "-c", place],
        env={"PYTHONPATH": libraries},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(where.stdout.strip()).is_relative_to(venv)
    data = tmp_path / "data"
    server = Server(tmp_path / "log", {"DATA": str(data)}, program=("env", f"PYTHONPATH={libraries}", uploader))
    with ended(server), client_of_owner(server.url, data) as client:
        assert client.post("/me/files?name=photo.jpg", content=b"photo").status_code == 201


def test_the_unit_of_systemd_is_one_that_systemd_takes(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    program = sysconfig.get_path("scripts") + "/uploader"
    unit.write_text(UNIT.read_text().replace("/opt/uploader/bin/uploader", program))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_gives_requests_the_time_to_end_that_the_server_gives_them() -> None:
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)s$", UNIT.read_text(), re.MULTILINE)
    assert int(seconds) > Settings().shutdown_timeout_seconds
