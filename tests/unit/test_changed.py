"""`tests/run --changed`: which tests are near to a change of this project, and what is a change."""

import subprocess
from pathlib import Path

import pytest

from tests.support.changed import NEAREST, ROOT, changes, main, pick


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("uploader/domain/digest.py", "unit/test_digest.py"),
        ("uploader/http/resumable/tus.py", "integration/test_tus.py"),
        ("uploader/storage/local/blobs.py", "integration/test_local_storage.py"),
        ("uploader/accounting/scripts/ack_flush.lua", "integration/test_accounting.py"),
        ("uploader/web/pages/home/tray/rows.js", "acceptance/long/pages/test_page_tray.py"),
        ("migrations/versions/0006_events.py", "integration/test_migrations.py"),
        ("tests/support/damages.py", "integration/test_damaged_parts.py"),
        ("pyproject.toml", "unit/test_private_parts.py"),
        ("docs/limits.md", "unit/test_docs.py"),
    ],
)
def test_a_change_in_the_middle_of_a_file_has_its_tests_near(path: str, module: str) -> None:
    lines = (ROOT / path).read_text().splitlines()
    picked = pick(ROOT, {path: "\n".join(lines[len(lines) // 2 - 8 :][:17])})
    assert f"tests/{module}" in {test.partition("::")[0] for test in picked[: NEAREST // 2]}
    assert len(picked) <= NEAREST + 1


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two modules and their tests, and tests that run elsewhere, on a branch beside `main`."""
    for name, text in {
        "uploader/ships.py": "def sail() -> str:\n    return 'harbour'\n",
        "uploader/trains.py": "def depart() -> str:\n    return 'platform'\n",
        "tests/support/sea.py": "TIDE = 'ebb'\n",
        "tests/support/coast.py": "from tests.support.sea import TIDE\n",
        "tests/unit/test_ships.py": "from tests.support.coast import TIDE\n\n\ndef test_a_ship_can_sail():\n    sail()\n",
        "tests/unit/test_trains.py": "def test_a_train_departs():\n    depart()\n",
        "tests/clients/test_uppy.py": "def test_uppy():\n    sail()\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "-q", "-b", "main")
    commit(tmp_path)
    git(tmp_path, "switch", "-q", "-c", "branch")
    return tmp_path


def git(project: Path, *arguments: str) -> None:
    settings = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    subprocess.run(["git", *settings, *arguments], cwd=project, check=True, capture_output=True)


def commit(project: Path) -> None:
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", "change")


SHIP, TRAIN = "tests/unit/test_ships.py::test_a_ship_can_sail", "tests/unit/test_trains.py::test_a_train_departs"


@pytest.mark.parametrize(
    ("command", "near"),
    [
        ("echo 'x = sail()' >> uploader/ships.py", [SHIP]),
        ("rm uploader/trains.py", [TRAIN]),
        ("mv uploader/ships.py uploader/vessels.py", [SHIP]),
        ("echo 'def depart_again(): depart()' > uploader/tram.py", [TRAIN]),
        ("echo 'TIDE = 1' > tests/support/sea.py", [SHIP]),
        (
            "echo '# x' >> tests/unit/test_trains.py; echo 'sail()' >> uploader/ships.py",
            ["tests/unit/test_trains.py", SHIP],
        ),
        ("mv tests/unit/test_trains.py tests/unit/test_railways.py", ["tests/unit/test_railways.py"]),
        ("rm tests/unit/test_trains.py", []),
        ("echo '# x' >> tests/clients/test_uppy.py", []),
        ("touch 'uploader/ä \"b\".py'; echo 'sail()' >> uploader/ships.py", [SHIP]),
        (r"printf '\0\377\1' > uploader/icon.png", []),
        ("true", []),
    ],
)
def test_the_tests_of_what_is_not_as_in_main_are_picked_committed_or_not(
    project: Path, command: str, near: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["sh", "-c", command], cwd=project, check=True)
    for committed in (False, True):
        if committed and command != "true":
            commit(project)
        assert main(root=project) == 0
        said = capsys.readouterr()
        picked = said.out.split()
        assert [test for test in picked if test in near] == near, committed
        assert picked[:1] == near[:1]
        assert ("nothing has changed since" in said.err) == (command == "true")
        assert ("and tests/clients" in said.err) == ("uppy" in command)


def test_what_main_got_meanwhile_is_no_change_of_a_branch(project: Path) -> None:
    git(project, "switch", "-q", "main")
    (project / "uploader/trains.py").unlink()
    commit(project)
    git(project, "switch", "-q", "branch")
    assert main("main", root=project) == main("HEAD", root=project) == 0
    assert changes(project, "HEAD") == {}


@pytest.mark.parametrize("rev", ["nope", "tests/unit/test_ships.py", "--output=x"])
def test_what_is_no_commit_is_said(project: Path, rev: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(rev, root=project) == 2
    assert f"no commit is called {rev!r}" in capsys.readouterr().err
    assert not (project / "x").exists()
