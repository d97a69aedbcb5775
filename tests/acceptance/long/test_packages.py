"""What the project is handed out as: the archive of sources, the wheel that is built of it, and the unit of systemd."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

from tests.support import sandboxed
from tests.support.process import UPLOADER, Server, client_of_owner, ended, run_program
from uploader import __version__
from uploader.settings import Settings

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "docs" / "uploader.service"


def _build(kind: str, sources: Path, into: Path) -> Path:
    """What pip builds, without a network."""
    build = f"import sys; from hatchling.build import build_{kind} as build; print(build(sys.argv[1]))"
    done = run_program([sys.executable, "-c", build, str(into)], cwd=sources, check=False)
    assert done.returncode == 0, done.stderr
    return into / done.stdout.splitlines()[-1]


def test_the_wheel_that_is_built_of_the_sources_archive_serves(tmp_path: Path) -> None:
    """In an environment of its own, that has the libraries of this one."""
    sources = _build("sdist", ROOT, tmp_path)
    assert sources.name == f"uploader_kit-{__version__}.tar.gz"
    with tarfile.open(sources) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = tmp_path / f"uploader_kit-{__version__}"
    assert {"README.md", "LICENSE", "alembic.ini", "docs", "migrations", "tests"} <= {
        path.name for path in unpacked.iterdir()
    }
    wheel = _build("wheel", unpacked, tmp_path)
    machine = "manylinux_2_17_.*" if shutil.which("gcc") else "any"
    assert re.fullmatch(rf"uploader_kit-{re.escape(__version__)}-py3-none-{machine}\.whl", wheel.name)
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python")]
    subprocess.run([*pip, "install", "-q", "--no-deps", "--no-index", str(wheel)], check=True)
    uploader, libraries = venv / "bin" / "uploader", sysconfig.get_path("purelib")
    # Of a path that is only named, the `.pth` of an editable install is not read: `uploader` is the one of the wheel.
    place = "import uploader; print(uploader.__file__)"
    where = run_program([venv / "bin" / "python", "-c", place], env={"PYTHONPATH": libraries}, cwd=tmp_path)
    assert Path(where.stdout.strip()).is_relative_to(venv)
    data = tmp_path / "data"
    server = Server(tmp_path / "log", {"DATA": str(data)}, program=("env", f"PYTHONPATH={libraries}", uploader))
    with ended(server), client_of_owner(server.url, data) as client:
        assert client.post("/me/files?name=photo.jpg", content=b"photo").status_code == 201


def test_the_wheel_has_every_part_every_licence_and_a_page_on_which_each_link_leads_somewhere(tmp_path: Path) -> None:
    with zipfile.ZipFile(_build("wheel", ROOT, tmp_path)) as wheel:
        names = set(wheel.namelist())
        (metadata,) = (wheel.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
    parts = [path.relative_to(ROOT) for path in (ROOT / "uploader" / "web").rglob("*") if path.is_file()]
    assert {path.as_posix() for path in parts} <= names
    vendored = [path for path in parts if re.search("LICENSE|NOTICE", path.name)]
    assert len(vendored) == 6
    kept = {name.partition("/licenses/")[2] for name in names if "/licenses/" in name}
    assert kept == {"LICENSE", *map(str, vendored)}
    assert {name.split("/")[0] for name in names} == {"uploader", f"uploader_kit-{__version__}.dist-info"}
    assert {"uploader/migrations/env.py", "uploader/py.typed"} <= names
    page = metadata.partition("\n\n")[2]
    assert re.findall(r"\]\((?!https://)[^)]*\)", page) == []
    assert "pip install -q 'uploader-kit[server]'" in page
    assert "clone" not in page
    assert "tests/run" not in page
    assert page.count("\n#") == (ROOT / "README.md").read_text().count("\n#")


def test_the_unit_of_systemd_is_one_that_systemd_takes(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    program = sysconfig.get_path("scripts") + "/uploader"
    unit.write_text(UNIT.read_text().replace("/opt/uploader/bin/uploader", program))
    done = run_program(["systemd-analyze", "verify", str(unit)], check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_leaves_little_to_who_takes_over_the_server(tmp_path: Path) -> None:
    said = run_program(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(UNIT)],
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"], "SYSTEMD_COLORS": "0"},
        check=False,
    )
    # What is left: the network, the users of the machine, and what the cores are chosen by.
    assert said.returncode == 0, said.stdout


def test_the_server_calls_the_kernel_for_nothing_that_the_unit_refuses(tmp_path: Path) -> None:
    data, filtered = tmp_path / "data", (sys.executable, sandboxed.__file__, str(UNIT))
    for refused in ("import os; os.chown('.', 0, 0)", "import mmap; mmap.mmap(-1, 4096, prot=7)"):
        done = run_program([*filtered, sys.executable, "-c", refused], cwd=tmp_path, check=False)
        assert "PermissionError" in done.stderr
    content = b"content" * (1 << 19)
    server = Server(tmp_path / "log", {"DATA": str(data)}, program=(*filtered, UPLOADER))
    with ended(server), client_of_owner(server.url, data) as client:
        made = client.post("/uploads", json={"name": "film", "size": len(content), "chunk_size": 1 << 20}).json()
        for number in range(made["upload"]["chunk_count"]):
            size = made["upload"]["chunk_size"]
            part = content[number * size : (number + 1) * size]
            assert client.put(f"/uploads/{made['upload']['id']}/chunks/{number}", content=part).is_success
        [file] = client.get("/me/files").json()["files"]
        assert client.get(f"/me/files/{file['id']}/content").content == content
        assert client.delete(f"/me/files/{file['id']}").status_code == 204
        assert server.stop() == 0
        assert "rror" not in server.output()


def test_the_unit_gives_requests_the_time_to_end_that_the_server_gives_them() -> None:
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)s$", UNIT.read_text(), re.MULTILINE)
    assert int(seconds) > Settings().shutdown_timeout_seconds
