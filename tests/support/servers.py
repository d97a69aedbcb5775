"""Private servers: a real Valkey and a real MariaDB in directories of their own, ended with the tests."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from uploader.embedded import end_with_parent, find_binary

_START_TIMEOUT_SECONDS = 30.0


class PrivateRedis:
    """A Valkey on a TCP port of its own. It can be killed and started again on the same files."""

    def __init__(self, directory: Path, *, append_only: bool = True) -> None:
        self._directory = directory
        self._append_only = append_only
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> "PrivateRedis":
        self._directory.mkdir(parents=True, exist_ok=True)
        arguments = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", ".", "--save", ""]
        arguments += ["--appendonly", "yes" if self._append_only else "no", "--appendfsync", "everysec"]
        arguments += ["--loglevel", "warning", "--logfile", "server.log"]
        self._process = subprocess.Popen(
            [find_binary(), *arguments], cwd=self._directory, preexec_fn=end_with_parent, start_new_session=True
        )
        _wait(lambda: _answers_ping(self.port), "Valkey")
        return self

    def kill(self) -> None:
        """SIGKILL: nothing is saved that was not on disk."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()


class PrivateMariaDB:
    """A MariaDB on a Unix socket and a TCP port of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    def url(self, database: str) -> str:
        return f"mysql+asyncmy://root@127.0.0.1:{self.port}/{database}?charset=utf8mb4"

    def start(self) -> "PrivateMariaDB":
        data = self._directory / "data"
        if not data.exists():
            data.mkdir(parents=True)
            install = [_program("mariadb-install-db"), "--no-defaults", f"--datadir={data}", "--skip-test-db"]
            install += ["--auth-root-authentication-method=normal", "--skip-name-resolve"]
            subprocess.run(install, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        arguments = [_program("mariadbd"), "--no-defaults", f"--datadir={data}", f"--pid-file={data / 'pid'}"]
        arguments += [f"--socket={self._directory / 's'}", f"--port={self.port}", "--bind-address=127.0.0.1"]
        arguments += ["--innodb-buffer-pool-size=64M", "--max-connections=200", "--skip-name-resolve"]
        arguments += [f"--log-error={self._directory / 'err'}"]
        if os.getuid() == 0:
            arguments.append("--user=root")
        self._process = subprocess.Popen(
            arguments, preexec_fn=end_with_parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _wait(lambda: _accepts(self.port), "MariaDB")
        return self

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()  # nothing of it is wanted any more
            self._process.wait()


def mariadb_is_here() -> bool:
    """Whether tests on MariaDB can run: a server is named, or its binaries are installed."""
    return bool(os.environ.get("UPLOADER_TEST_DATABASE_URL")) or _find("mariadbd") is not None


def free_port() -> int:
    """A port that nothing listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _find(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin")


def _program(name: str) -> str:
    found = _find(name)
    assert found is not None, f"{name} is not installed"
    return found


def _wait(ready: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        if ready():
            return
        time.sleep(0.02)
    raise AssertionError(f"{what} did not start")


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _answers_ping(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False
