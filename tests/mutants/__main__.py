"""`tests/mutants/run`: every mutant against the tests that have to see it, as a table; fails if one survives."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mutants.table import MACHINE, MUTANTS, PACKAGE, Mutant, apply
from tests.support.servers import UNPACKED_MYSQL, UNPACKED_VALKEY

_ROOT = PACKAGE.parent
_AT_ONCE = 2
_TIMEOUT_SECONDS = 1800.0  # on a busy machine; a few minutes else
# Of the state machine: more than in the suite, so that what it sees does not hang on few choices.
_EXAMPLES = "80"
# What pytest exits with (https://docs.pytest.org/en/stable/reference/exit-codes.html).
_PASSED, _FAILED = 0, 1
# A mutant that fails so is no mutant: it has a mistake of its own.
_BROKEN = re.compile(
    r"\b(NameError|ImportError|ModuleNotFoundError|SyntaxError|IndentationError|UnboundLocalError|ResponseError)\b"
    r"|AttributeError: '(?!NoneType)\w+' object has no attribute"
)


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant."""

    mutant: Mutant
    killed: bool
    by: str
    seconds: float

    @property
    def fine(self) -> bool:
        return self.killed == bool(self.mutant.edits)


def main() -> int:
    """The exit code: 1 if a mutant survived, does not fit the source, or if the tests fail without one."""
    parser = argparse.ArgumentParser(prog="tests/mutants/run", description=__doc__)
    parser.add_argument("name", nargs="*", help="only mutants whose name contains one of these")
    names = parser.parse_args().name
    chosen = [mutant for mutant in MUTANTS if not names or any(name in mutant.name for name in names)]
    none = Mutant("none", (), " ".join({mutant.tests: None for mutant in chosen}))
    started, verdicts = time.monotonic(), []
    print(f"| {'mutant':<56} | caught by | seconds |\n|---|---|---|", flush=True)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for verdict in pool.map(judge, [none, *chosen]):
            verdicts.append(verdict)
            print(f"| {verdict.mutant.name:<56} | {verdict.by} | {verdict.seconds:.0f} |", flush=True)
    wrong = [verdict.mutant.name for verdict in verdicts if not verdict.fine]
    print(f"\n{len(chosen)} mutants in {time.monotonic() - started:.0f} s, wrong: {', '.join(wrong) or 'none'}")
    return 1 if wrong else 0


def judge(mutant: Mutant) -> Verdict:
    """Run the tests of a mutant in a copy of the project."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        copy = Path(name).resolve()
        _copy_project(copy)
        try:
            apply(mutant, copy / PACKAGE.name)
        except ValueError as error:
            return Verdict(mutant, False, f"DOES NOT FIT: {error}", 0)
        killed, by = _test(copy, mutant.tests)
    return Verdict(mutant, killed, by, time.monotonic() - started)


def _copy_project(copy: Path) -> None:
    leave_out = shutil.ignore_patterns("__pycache__")
    for needed in (PACKAGE.name, "tests", "migrations", "alembic.ini", "pyproject.toml", "README.md"):
        if (_ROOT / needed).is_dir():
            shutil.copytree(_ROOT / needed, copy / needed, ignore=leave_out)
        else:
            shutil.copy(_ROOT / needed, copy / needed)
    for unpacked in (UNPACKED_MYSQL, UNPACKED_VALKEY):
        (copy / unpacked.name).symlink_to(unpacked)


def _test(copy: Path, tests: str) -> tuple[bool, str]:
    environment = os.environ | {
        "PYTHONPATH": str(copy),
        "PYTHONDONTWRITEBYTECODE": "1",
        "UPLOADER_TEST_EXAMPLES": _EXAMPLES,
        "UPLOADER_TEST_PLACES": "30",
    }
    _check_import(copy, environment)
    options = ["-q", "-x", "--tb=short", "--show-capture=no", "-p", "no:cacheprovider", f"--basetemp={copy / 'tmp'}"]
    command = [sys.executable, "-m", "pytest", *options, *tests.split()]
    how: dict[str, Any] = {"cwd": copy, "env": environment, "timeout": _TIMEOUT_SECONDS}
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, **how)
    except subprocess.TimeoutExpired:
        return False, "NOTHING WITHIN THE TIME"
    if ended.returncode == _PASSED:
        return False, "NOTHING"
    reason = _reason(ended.stdout, tests)
    if ended.returncode != _FAILED or _BROKEN.search(reason):
        return False, f"THE MUTANT DOES NOT RUN: {reason}"
    return True, reason


def _check_import(copy: Path, environment: dict[str, str]) -> None:
    """The package may be installed from this very tree: make sure that a process takes the copy, wherever it starts."""
    command = [sys.executable, "-c", "import uploader; print(uploader.__file__)"]
    for directory in (copy, Path("/")):
        ended = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=True)
        if not ended.stdout.startswith(str(copy)):
            raise RuntimeError(f"the mutant is not what is imported, but {ended.stdout.strip()}")


def _reason(output: str, tests: str) -> str:
    """The first error that pytest shows, with the test's name where it is not the state machine."""
    errors = re.findall(
        r"^E +(?:\| +)?(assert .*|(?:\w+\.)*\w*(?:Error|Exception|Unavailable)\b.*)$", output, flags=re.MULTILINE
    )
    failed = re.findall(r"^FAILED \S+::(\w+)", output, flags=re.MULTILINE)
    first = re.sub(r"^AssertionError: |^assert ", "", errors[0])[:90] if errors else "a failure"
    return first.replace("|", "/") if tests == MACHINE else f"{failed[0] if failed else tests}: {first}"


if __name__ == "__main__":
    sys.exit(main())
