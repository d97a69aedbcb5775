"""Which Python is measured: Debian's where it can be had. The first one on PATH may be built without PGO and LTO, and then
takes 6 to 14 % more CPU for the same work.

Debian's is given a virtual environment for the one run, and the benchmark begins anew in it; what it starts (servers, peers,
clients, load) is of that Python, too.
"""

import platform
import subprocess
import sys
import sysconfig
import tempfile
from os import environ
from pathlib import Path

_CHECKOUT = Path(__file__).parents[1]
_DEBIANS, _DEBIANS_PREFIX, _DEBIAN = Path("/usr/bin/python3"), Path("/usr"), Path("/etc/debian_version")
_OPTIMISED = ("--enable-optimizations", "--with-lto")
# Why Debian's could not be had.
_reasons: list[str] = []


def choose() -> None:
    """Go on in Debian's Python, and exit as the benchmark does there; return where this is it, or where it can't be had."""
    if _is_debians() or not _DEBIAN.exists() or not _DEBIANS.exists():
        return
    with tempfile.TemporaryDirectory(prefix="benchmark-python-") as directory:
        try:
            python = install(Path(directory), "pip", "-e", f"{_CHECKOUT}[server,s3,kafka]", base=_DEBIANS)
        except subprocess.CalledProcessError as error:
            said = [line for line in error.stderr.splitlines() if "ERROR" in line]
            _reasons.append((said or [str(error)])[-1].strip())
            return
        # Hundreds of processes import the same modules.
        clean = {name: value for name, value in environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        raise SystemExit(subprocess.run([python, *sys.orig_argv[1:]], env=clean, check=False).returncode)


def described() -> str:
    """This Python, and how it was built as far as it tells."""
    told = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    asked = [option for option in _OPTIMISED if option in told]
    if asked:
        build = f"configured {' '.join(asked)}"
    elif _is_debians():
        build = "Debian's, which does not tell its optimisations"
    else:
        build = f"configured without {' and '.join(_OPTIMISED)}"
    return (
        f"Python {platform.python_version()} ({'; '.join([build, *(f'not on Debian’s: {why}' for why in _reasons)])})"
    )


def _is_debians() -> bool:
    return _DEBIAN.exists() and Path(sys.base_prefix) == _DEBIANS_PREFIX


def install(directory: Path, *packages: str, base: str | Path = sys.executable) -> Path:
    """A virtual environment of a Python, this one by default, with these packages; its Python.

    By the pip of this one, because Debian's has none without further packages. Raises subprocess.CalledProcessError.
    """
    python = directory / "bin" / "python"
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python, "install", "-q"]
    for command in ([base, "-m", "venv", "--without-pip", directory], [*pip, *packages]):
        subprocess.run(command, check=True, capture_output=True, text=True)
    return python
