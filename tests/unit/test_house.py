"""The house stays in order: modules of a size that can be read, one word for one class."""

import ast
import shutil
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import uploader

PACKAGE = Path(uploader.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
PACKAGES = sorted({module.parent for module in MODULES if (module.parent / "__init__.py").exists()})
# The client talks to a server of any version, by the same words.
CLIENT = PACKAGE / "client"


def path_of(path: Path) -> str:
    return path.relative_to(PACKAGE.parent).as_posix()


def test_git_keeps_nothing_that_it_is_told_to_ignore() -> None:
    root = PACKAGE.parent
    if not (root / ".git").exists() or shutil.which("git") is None:
        pytest.skip("no git here, or an archive of sources")
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "--cached", "--ignored", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    assert listed.stdout == ""


def test_no_module_is_longer_than_700_lines() -> None:
    lines = {path_of(module): len(module.read_text().splitlines()) for module in MODULES}
    assert {module: count for module, count in lines.items() if count > 700} == {}


@pytest.mark.parametrize("package", PACKAGES, ids=path_of)
def test_a_package_says_what_it_is(package: Path) -> None:
    assert ast.get_docstring(ast.parse((package / "__init__.py").read_text()))


def test_no_class_name_is_there_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for module in MODULES:
        if module.is_relative_to(CLIENT):
            continue
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path_of(module))
    counts = Counter({name: len(found) for name, found in places.items()})
    assert {name: places[name] for name, count in counts.items() if count > 1} == {}
