"""How much is read from files: counted in the calls, so that no page cache hides it."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Read:
    """Bytes that were read."""

    def __init__(self) -> None:
        self.bytes = 0


@contextmanager
def counted_reads(name: str) -> Iterator[Read]:
    """Count what this process reads at offsets of files of this name."""
    real: dict[str, Callable[..., Any]] = {"pread": os.pread, "preadv": os.preadv}
    read, lock = Read(), threading.Lock()

    def counter(call: str) -> Callable[..., Any]:
        def counted(descriptor: int, *arguments: Any) -> Any:
            result = real[call](descriptor, *arguments)
            if Path(f"/proc/self/fd/{descriptor}").readlink().name == name:
                with lock:
                    read.bytes += result if isinstance(result, int) else len(result)
            return result

        return counted

    for call in real:
        setattr(os, call, counter(call))
    try:
        yield read
    finally:
        for call, function in real.items():
            setattr(os, call, function)
