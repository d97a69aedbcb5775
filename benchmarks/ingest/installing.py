"""Where the peers come from: each is installed once, into a directory that is kept for the next time."""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from benchmarks import interpreter

_PYTHON_PACKAGES = ("tuspyserver==4.4.3", "tuspy==1.1.0", "copyparty==1.20.26", "uvicorn[standard]")
_NODE_PACKAGES = ("@tus/server@2.4", "@tus/file-store@2.1")
# A Python on another one's packages would be another build.
_SLUG = f"{sys.base_prefix.strip('/').replace('/', '-')}-{platform.python_version()}"
_SYSTEM_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin"


class NotAvailable(Exception):
    """A peer could not be had."""


def kept() -> Path:
    """Where they are kept."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "uploader-benchmarks"


def program(name: str) -> Path:
    """Of this system, or unpacked from the Debian package of this name. Raises NotAvailable."""
    if found := shutil.which(name, path=_SYSTEM_PATH):
        return Path(found)
    directory = _once(name, partial(_unpack, name))
    if found := shutil.which(name, path=f"{directory}/usr/sbin:{directory}/usr/bin"):
        return Path(found)
    raise NotAvailable(f"{name}: not in its package")


def _unpack(name: str, directory: Path) -> None:
    subprocess.run(["apt-get", "update"], check=False, capture_output=True)
    subprocess.run(["apt-get", "download", name], cwd=directory, check=True, capture_output=True)
    (package,) = directory.glob(f"{name}_*.deb")
    subprocess.run(["dpkg-deb", "-x", package, directory], check=True, capture_output=True)


def python() -> Path:
    """This very Python, with the Python peers. Raises NotAvailable."""
    name = f"python-{_SLUG}"
    return _once(name, lambda directory: interpreter.install(directory, *_PYTHON_PACKAGES)) / "bin" / "python"


def node_modules() -> Path:
    """A directory in which `node` finds the node peers. Raises NotAvailable."""
    return _once("node", _install_node)


def _install_node(directory: Path) -> None:
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(directory), *_NODE_PACKAGES]
    subprocess.run(command, check=True, capture_output=True)


def versions() -> list[str]:
    """Of those that are there."""
    found = []
    with suppress(NotAvailable):
        said = subprocess.run([program("nginx"), "-v"], capture_output=True, text=True, check=False).stderr
        found.append(f"nginx {said.rpartition('/')[2].split()[0]}")
    with suppress(NotAvailable):
        for package in ("@tus/server", "@tus/file-store"):
            facts = json.loads((node_modules() / "node_modules" / package / "package.json").read_text())
            found.append(f"{package} {facts['version']}")
        said = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False).stdout
        found.append(f"Node {said.strip().lstrip('v')}")
    for name in ("rsync", "rclone"):
        with suppress(NotAvailable, StopIteration):
            words = subprocess.run(
                [program(name), "--version"], capture_output=True, text=True, check=False
            ).stdout.split()
            found.append(f"{name} {next(word.lstrip('v') for word in words if word.lstrip('v')[0].isdigit())}")
    return found + python_versions()


def python_versions() -> list[str]:
    """Of the Python peers, if they are there."""
    try:
        python()
    except NotAvailable:
        return []
    return [package.replace("==", " ") for package in _PYTHON_PACKAGES if "==" in package]


def _once(name: str, install: Callable[[Path], object]) -> Path:
    directory = kept() / name
    if (directory / "installed").exists():
        return directory
    shutil.rmtree(directory, ignore_errors=True)
    try:
        directory.mkdir(parents=True)
        install(directory)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        raise NotAvailable(f"{name}: {error}") from error
    (directory / "installed").touch()
    return directory
