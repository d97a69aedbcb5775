"""Ids of uploads and files: 32 hexadecimal digits that sort by the time they were made, and can't be guessed."""

import re
import secrets
import threading
import time

ID = re.compile(r"[0-9a-f]{32}")

_lock = threading.Lock()
_last_us = 0


def new_id() -> str:
    """The microsecond (14 digits, increasing within the process), then 72 random bits."""
    global _last_us  # noqa: PLW0603 (one counter a process)
    with _lock:
        _last_us = max(time.time_ns() // 1000, _last_us + 1)
        return f"{_last_us:014x}{secrets.token_hex(9)}"
