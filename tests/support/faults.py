"""Faults injected around the real thing: a system call fails or stops short at its Nth use, and works before and after."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


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
    only: Callable[..., bool] = lambda *_: True,
) -> Iterator[Fault]:
    """Let `os.<name>` raise OSError at its `at`th use that `only` accepts, `times` times (None: from then on always)."""
    real: Callable[..., Any] = getattr(os, name)
    fault, lock = Fault(), threading.Lock()

    def call(*arguments: Any, **options: Any) -> Any:
        with lock:
            if only(*arguments):
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
