"""Faults injected around the real thing: a system call of the storage fails or stops short, and works before and after.

Every call that the storage makes for files goes through `disk.py`, so what that module sees as `os`, and as the C library,
is put in between.
"""

import asyncio
import ctypes
import errno
import os
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from sqlalchemy import event

from tests.support.waiting import PATIENCE_SECONDS
from uploader.database.engine import Database
from uploader.storage import disk
from uploader.storage.store import Store

# The calls that take part; the rest of `os` is constants.
SYNCS = frozenset({"fsync", "fdatasync", "syncfs"})
CALLS = SYNCS | {"open", "close", "pwrite", "pread", "preadv", "ftruncate", "posix_fadvise", "link", "rename", "unlink"}
CALLS |= {"mkdir", "rmdir", "stat", "fstat", "statvfs", "listdir", "scandir"}
# Those that may find the disk full.
NEEDING_ROOM = frozenset({"mkdir", "pwrite", "ftruncate", *SYNCS, "link", "rename"})


@dataclass(frozen=True)
class Call:
    """One call that the storage is about to make."""

    name: str
    real: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]

    def make(self) -> Any:
        return self.real(*self.arguments, **self.options)

    @property
    def path(self) -> Path:
        """What it is about: an open file, or an entry of an open directory."""
        target = self.arguments[0]
        if isinstance(target, int):
            return Path(f"/proc/self/fd/{target}").readlink()
        directory = self.options.get("dir_fd", self.options.get("src_dir_fd"))
        return Path(target) if directory is None else Path(f"/proc/self/fd/{directory}").readlink() / target

    @property
    def needs_room(self) -> bool:
        if self.name == "open":
            flags = self.arguments[1]
            return bool(flags & os.O_CREAT) or flags & os.O_TMPFILE == os.O_TMPFILE  # of more than one bit
        return self.name in NEEDING_ROOM


class _Intercepted:
    """What `disk.py` sees in the place of `os`."""

    def __init__(self, real: Any, around: Callable[[Call], Any]) -> None:
        self._real = real
        self._around = around

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if name not in CALLS:
            return real
        return lambda *arguments, **options: self._around(Call(name, real, arguments, options))


class _InterceptedLibrary(_Intercepted):
    """What it sees in the place of the C library, which tells an error by a number."""

    def __getattr__(self, name: str) -> Any:
        intercepted = super().__getattr__(name)

        def call(*arguments: Any) -> int:
            try:
                return int(intercepted(*arguments) or 0)
            except OSError as error:
                ctypes.set_errno(error.errno or 0)
                return -1

        return call


@contextmanager
def intercepting(around: Callable[[Call], Any]) -> Iterator[None]:
    """Let `around` decide what becomes of each call of the storage. The innermost sees a call first."""
    seen = vars(disk)
    real = {name: seen[name] for name in ("os", "_libc")}
    seen["os"] = _Intercepted(real["os"], around)
    seen["_libc"] = _InterceptedLibrary(real["_libc"], around)
    try:
        yield
    finally:
        seen.update(real)


@dataclass
class Fault:
    """Counts the calls that might have failed, and those that were made to fail."""

    calls: int = 0
    hits: int = 0
    # A call may come in the middle of another one: what is collected closes its files.
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def count(self, call: Call, chosen: Callable[[Call], bool]) -> int:
        """Which of those that are `chosen` it is, from 1; 0: none of them."""
        with self._lock:
            if not chosen(call):
                return 0
            self.calls += 1
            return self.calls


def failing_call(
    name: str,
    error_number: int = errno.EIO,
    *,
    at: int = 1,
    times: int | None = 1,
    only: Callable[[Path], bool] = lambda _: True,
) -> AbstractContextManager[Fault]:
    """Let a call of this name raise OSError at its `at`th use that `only` accepts, `times` times (None: from then on)."""
    return failing(lambda call: call.name == name and only(call.path), error_number, at=at, times=times)


@contextmanager
def failing(
    chosen: Callable[[Call], bool], error_number: int, *, at: int = 1, times: int | None = 1
) -> Iterator[Fault]:
    """Let the `at`th call that is `chosen` raise OSError, `times` times (None: from then on always)."""
    fault = Fault()

    def around(call: Call) -> Any:
        number = fault.count(call, chosen)
        if number >= at and (times is None or number < at + times):
            fault.hits += 1
            raise OSError(error_number, os.strerror(error_number))
        return call.make()

    with intercepting(around):
        yield fault


# A step of a test, a call, and the lines of the server that lead to it.
CallPlace = tuple[Hashable, str, tuple[tuple[str, int], ...]]


class OneCall:
    """Chooses one call, by the place in the program that makes it.

    Entering a directory name by name is one place, and what is done for each of many chunks is done in one place, too; but
    `step` tells apart what the same lines are called for.
    """

    def __init__(self, accepts: Callable[[Call], bool]) -> None:
        self._accepts = accepts
        self._chosen: CallPlace | None = None
        self._noted: set[CallPlace] = set()
        self.step: Hashable = None

    def noted(self) -> list[CallPlace]:
        """The places that were passed since this was called last, in an order of their own."""
        noted, self._noted = self._noted, set()
        return sorted(noted, key=str)

    def arm(self, place: CallPlace) -> None:
        """Choose the next call there, once."""
        self._chosen = place

    def __call__(self, call: Call) -> bool:
        if not self._accepts(call):
            return False
        place = (self.step, call.name, _lines_of_the_server())
        self._noted.add(place)
        if place != self._chosen:
            return False
        self._chosen = None
        return True


def _lines_of_the_server() -> tuple[tuple[str, int], ...]:
    frame: FrameType | None = sys._getframe()
    lines: dict[str, int] = {}
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("uploader."):
            lines.setdefault(f"{module}.{frame.f_code.co_qualname}", frame.f_lineno)
        frame = frame.f_back
    return tuple(lines.items())


@contextmanager
def short_writes(limit_bytes: int, chosen: Callable[[Call], bool] = lambda _: True) -> Iterator[Fault]:
    """Let writes that are `chosen` stop after `limit_bytes`, as a disk that is nearly full or a signal may do."""
    fault = Fault()

    def around(call: Call) -> Any:
        if not fault.count(call, lambda each: each.name == "pwrite"):
            return call.make()
        descriptor, buffer, offset = call.arguments
        if len(buffer) <= limit_bytes or not chosen(call):
            return call.make()
        fault.hits += 1
        return call.real(descriptor, memoryview(buffer)[:limit_bytes], offset)

    with intercepting(around):
        yield fault


@contextmanager
def recorded_calls(*names: str) -> Iterator[list[tuple[str, str]]]:
    """The calls of these names, in order, each with the name of the file that it was about."""
    calls: list[tuple[str, str]] = []

    def around(call: Call) -> Any:
        if call.name in names:
            calls.append((call.name, call.path.name))
        return call.make()

    with intercepting(around):
        yield calls


@contextmanager
def without_syncs() -> Iterator[None]:
    """For tests in which nobody cuts the power: nothing waits for the disk."""
    with intercepting(lambda call: None if call.name in SYNCS else call.make()):
        yield


def sync_nothing(database: Database, *, at: str = "connect") -> None:
    """The same for a SQLite: from each new connection on, or, where there are some already, each time one is taken
    (`checkout`)."""
    event.listen(database.engine.sync_engine, at, lambda connection, *_: connection.execute("PRAGMA synchronous=OFF"))


@dataclass(frozen=True)
class Pause:
    """One use of a function that waits in the middle of a test."""

    reached: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)


@contextmanager
def paused_call(name: str, *, only: Callable[[Path], bool] = lambda _: True) -> Iterator[Pause]:
    """Let the calls of this name that `only` accepts wait, in their threads, until the test says `go_on`."""
    pause = Pause()

    def around(call: Call) -> Any:
        if call.name != name or not only(call.path):
            return call.make()
        pause.reached.set()
        assert pause.go_on.wait(PATIENCE_SECONDS), f"{name} was never let go on"
        try:
            return call.make()
        finally:
            pause.ended.set()

    with intercepting(around):
        try:
            yield pause
        finally:
            pause.go_on.set()


def open_files_under(directory: Path) -> list[str]:
    """What this process has open under a directory, unlinked files included: to see that nothing is left behind."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of this very listing
            found.append(str(entry.readlink()))
    return sorted(target for target in found if target.startswith(f"{directory}/"))


async def left_open(storage: Store, directory: Path) -> list[str]:
    """As `open_files_under`, without what this storage keeps open from chunk to chunk."""
    await storage.drain()
    return open_files_under(directory)


@contextmanager
def cancelling(task: "asyncio.Task[Any]", *, at: int, only: Callable[[Call], bool], then: int = 0) -> Iterator[Fault]:
    """Cancel a task of this loop in the middle of the `at`th call that `only` accepts, which fails with `then`, if told."""
    fault, loop = Fault(), asyncio.get_running_loop()

    async def cancel() -> None:
        task.cancel()
        for _ in range(3):
            await asyncio.sleep(0)  # whoever it waits for has seen it

    def around(call: Call) -> Any:
        if fault.count(call, only) == at:
            fault.hits += 1
            if threading.current_thread() is threading.main_thread():
                task.cancel()
            else:
                asyncio.run_coroutine_threadsafe(cancel(), loop).result(PATIENCE_SECONDS)
            if then:
                raise OSError(then, os.strerror(then))
        return call.make()

    with intercepting(around):
        yield fault
