"""Faults injected around the real thing: a system call fails or stops short at its Nth use, and works before and after."""

import errno
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def path_of(target: Any, options: Mapping[str, Any]) -> Path:
    """What a call of `os` is about: an open file, or an entry of an open directory."""
    if isinstance(target, int):
        return Path(f"/proc/self/fd/{target}").readlink()
    directory = options.get("dir_fd", options.get("src_dir_fd"))
    return Path(target) if directory is None else Path(f"/proc/self/fd/{directory}").readlink() / target


class Fault:
    """Counts the uses of one function of `os`, and how often it was made to fail."""

    def __init__(self) -> None:
        self.calls = 0
        self.hits = 0


@contextmanager
def failing_call(
    name: str,
    error_number: int = errno.EIO,
    *,
    at: int = 1,
    times: int | None = 1,
    only: Callable[[Path], bool] = lambda _: True,
) -> Iterator[Fault]:
    """Let `os.<name>` raise OSError at its `at`th use that `only` accepts, `times` times (None: from then on always)."""
    real: Callable[..., Any] = getattr(os, name)
    fault, lock = Fault(), threading.Lock()

    def call(*arguments: Any, **options: Any) -> Any:
        with lock:
            if only(path_of(arguments[0], options)):
                fault.calls += 1
                if fault.calls >= at and (times is None or fault.calls < at + times):
                    fault.hits += 1
                    raise OSError(error_number, os.strerror(error_number))
        return real(*arguments, **options)

    setattr(os, name, call)
    try:
        yield fault
    finally:
        setattr(os, name, real)


@contextmanager
def short_writes(limit_bytes: int) -> Iterator[Fault]:
    """Let `os.pwrite` write at most `limit_bytes` at a time, as a disk that is nearly full or a signal may do."""
    real, fault = os.pwrite, Fault()

    def pwrite(descriptor: int, buffer: Any, offset: int) -> int:
        fault.calls += 1
        view = memoryview(buffer)
        if len(view) > limit_bytes:
            fault.hits += 1
        return real(descriptor, view[:limit_bytes], offset)

    os.pwrite = pwrite
    try:
        yield fault
    finally:
        os.pwrite = real


class Pause:
    """One use of a function that waits in the middle of a test."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self.ended = threading.Event()


@contextmanager
def paused_call(name: str, *, only: Callable[[Path], bool] = lambda _: True) -> Iterator[Pause]:
    """Let the uses of `os.<name>` that `only` accepts wait, in their threads, until the test says `go_on`."""
    real: Callable[..., Any] = getattr(os, name)
    pause = Pause()

    def call(*arguments: Any, **options: Any) -> Any:
        if only(path_of(arguments[0], options)):
            pause.reached.set()
            assert pause.go_on.wait(30), f"os.{name} was never let go on"
            try:
                return real(*arguments, **options)
            finally:
                pause.ended.set()
        return real(*arguments, **options)

    setattr(os, name, call)
    try:
        yield pause
    finally:
        pause.go_on.set()
        setattr(os, name, real)


def open_files_under(directory: Path) -> list[str]:
    """What this process has open under a directory, unlinked files included: to see that nothing is left behind."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of this very listing
            found.append(str(entry.readlink()))
    return sorted(target for target in found if target.startswith(f"{directory}/"))
