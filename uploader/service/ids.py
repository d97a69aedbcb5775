"""Ids of uploads and files: 32 hexadecimal digits that sort by the time they were made, and can't be guessed."""

import re
import secrets
import threading
import time
from collections.abc import Iterable

ID = re.compile(r"[0-9a-f]{32}")

# After all ids and hashes.
_END = "\x7f"

_lock = threading.Lock()
_last_us = 0


def new_id() -> str:
    """The microsecond (14 digits, increasing within the process), then 72 random bits."""
    global _last_us  # noqa: PLW0603 (one counter a process)
    with _lock:
        _last_us = max(time.time_ns() // 1000, _last_us + 1)
        return f"{_last_us:014x}{secrets.token_hex(9)}"


def greatest(after: str, ids: Iterable[str]) -> str:
    """Where a walk in the order of ids goes on: after the greatest of those that came after `after`.

    A damaged row may hold another id than the index that is walked along: where none is beyond `after` the walk is at its
    end, because it would find the same ones for ever.
    """
    last = max((each for each in ids if each < _END), default=after)
    return last if last > after else _END
