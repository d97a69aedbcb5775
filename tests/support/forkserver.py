"""Starts Python processes without their imports, which are most of what a start costs: one that has imported everything
forks for each of them. What was forked then runs the console script, or a module, as a new interpreter would.

`python -m tests.support.forkserver FD` is that process; `start` asks for one of its children.
"""

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from uploader.storage.modes import umask

_ROOT = Path(__file__).parents[2]
# What servers, workers and commands import sooner or later.
_IMPORTED = (
    *("uploader.bootstrap", "uploader.http.server.http11", "uploader.database.migrate", "uploader.cli.shell"),
    *("uploader.cli.client.put", "uploader.cli.client.get", "uploader.cli.client.sync", "uploader.cli.client.files"),
    *("uploader.cli.client.display", "uploader.cli.server.serve", "uploader.cli.server.services"),
    *("uploader.client", "uploader.client.many", "uploader.client.downloads", "uploader.client.transport"),
    *("uvicorn", "uvicorn.supervisors", "uvicorn.lifespan.on", "uvicorn.loops.uvloop", "uvloop", "httptools", "httpx2"),
    *("uvicorn.loops.auto", "h11", "httpcore2", "truststore", "anyio._backends._asyncio", "encodings.idna"),
    *("alembic.command", "alembic.config", "asyncmy", "sqlalchemy.dialects.sqlite.pysqlite", "hiredis"),
    *("sqlalchemy.dialects.mysql.asyncmy", "rich.progress"),
)
# What reads the environment when it is imported.
_READ_AT_IMPORT = ("uploader.runtime.clock", "uploader.runtime.crashpoints")
_MAX_ORDER_BYTES = 1 << 17


class Forked:
    """A process of the fork server, as `subprocess.Popen` has it."""

    def __init__(self, pid: int, status: int) -> None:
        """`status`: the descriptor on which its end is told."""
        self.pid = pid
        self.returncode: int | None = None
        self._status = status
        self._close = weakref.finalize(self, os.close, status)

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        code = self.poll(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return code

    def poll(self, timeout_seconds: float | None = 0.0) -> int | None:
        if self.returncode is None:
            told = select.poll()
            told.register(self._status, select.POLLIN)
            if told.poll(None if timeout_seconds is None else timeout_seconds * 1000):
                self.returncode = os.waitstatus_to_exitcode(int(os.read(self._status, 16)))
                self._close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class _Server:
    """The process that forks, from the outside."""

    def __init__(self, preloaded: str) -> None:
        """`preloaded`: libraries of it and of all that it forks, as LD_PRELOAD has them."""
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forkserver", str(theirs.fileno())],
                cwd=_ROOT,
                env=os.environ | ({"LD_PRELOAD": preloaded} if preloaded else {}),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        atexit.register(self._end)

    def start(self, order: dict[str, Any], standard: Sequence[int]) -> Forked:
        status, told = os.pipe()
        try:
            with self._lock:
                socket.send_fds(self._orders, [json.dumps(order).encode()], [*standard, told])
                pid = int(self._orders.recv(16))
        finally:
            os.close(told)
        return Forked(pid, status)

    def _end(self) -> None:
        self._orders.close()
        self._process.wait()


_server = functools.cache(_Server)


def start(
    arguments: Sequence[str | Path],
    environment: Mapping[str, str],
    standard: Sequence[IO[Any]],
    cwd: Path | None = None,
) -> Forked:
    """Start a script, or `-m` and a module, in a session of its own, with three standard files and the umask of who asks."""
    preloaded = environment.get("UPLOADER_TEST_PRELOAD", "")
    # For programs of the process: several server processes are programs.
    more = {"LD_PRELOAD": preloaded} if "UPLOADER_TEST_PRELOAD_PROGRAMS" in environment else {}
    order: dict[str, Any] = {"arguments": [*map(str, arguments)], "environment": {**environment, **more}}
    order |= {"cwd": str(cwd or Path.cwd()), "umask": umask()}
    return _server(preloaded).start(order, [file.fileno() for file in standard])


# The process that forks, from the inside

_at_the_end = ExitStack()


def _serve(orders: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """In each process that was forked what it is to do, and its descriptors; None in this one, at its end."""
    running: dict[int, tuple[int, int]] = {}  # by their pidfds: their pids, and where their end is told
    poll = select.poll()
    poll.register(orders, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready in running:
                poll.unregister(ready)
                pid, told = running.pop(ready)
                status = os.waitpid(pid, 0)[1]
                with suppress(BrokenPipeError):  # nobody waits for it
                    os.write(told, str(status).encode())
                os.close(told)
                os.close(ready)
                continue
            content, descriptors, _, _ = socket.recv_fds(orders, _MAX_ORDER_BYTES, 4)
            if not content:
                return None
            *standard, told = descriptors
            pid = os.fork()
            if pid == 0:
                for others in (*running, *(other for _, other in running.values()), told):
                    os.close(others)
                orders.close()
                return json.loads(content), standard
            orders.send(str(pid).encode())
            pidfd = os.pidfd_open(pid)
            running[pidfd] = (pid, told)
            poll.register(pidfd, select.POLLIN)
            for descriptor in standard:
                os.close(descriptor)


def _become(order: dict[str, Any], standard: list[int]) -> None:
    """Go on as what was asked for."""
    os.setsid()
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(order["cwd"])
    os.umask(order["umask"])
    os.environ.clear()
    os.environ.update(order["environment"])
    _read_environment()
    script, *arguments = order["arguments"]
    with _leaving():
        if script == "-m":
            sys.argv = arguments
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = [script, *arguments]
            runpy.run_path(script, run_name="__main__")


@contextmanager
def _leaving() -> Iterator[None]:
    """After its threads and all that it does at its end, the process is gone: to take apart everything that was imported
    costs more than most of them do."""
    try:
        yield
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            _at_the_end.callback(_leave, end.code or 0)
        raise


def _leave(code: int) -> None:
    for file in (sys.stdout, sys.stderr):
        file.flush()
    os._exit(code)


def _read_environment() -> None:
    """Import modules that read the environment again, and rebind names imported from them."""
    passed = sys.modules["uploader.runtime.crashpoints"].crash_point
    for name in _READ_AT_IMPORT:
        importlib.reload(sys.modules[name])
    for module in [module for name, module in sys.modules.items() if name.startswith("uploader.")]:
        if getattr(module, "crash_point", None) is passed:
            vars(module)["crash_point"] = sys.modules["uploader.runtime.crashpoints"].crash_point


def _main() -> None:
    atexit.register(_at_the_end.close)  # first, and so after whatever is registered later
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as orders:
        order = _serve(orders)
    if order is not None:
        _become(*order)


if __name__ == "__main__":
    _main()
