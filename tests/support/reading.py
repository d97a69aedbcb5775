"""How much is read from files: counted in the calls, so that no page cache hides it."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch


@dataclass
class Read:
    """Bytes that were read."""

    bytes: int = 0


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

    with patch.object(os, "pread", counter("pread")), patch.object(os, "preadv", counter("preadv")):
        yield read
