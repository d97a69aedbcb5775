"""Ids of uploads and files, and cursors of sorted lists.

An id has 32 hexadecimal digits, which sort by time and can't be guessed. A cursor encodes the order of a list and the
last row of a page; callers return it unread.
"""

import base64
import binascii
import re
import secrets
import threading
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec

from uploader.errors import InvalidRequest

ID = re.compile(r"[0-9a-f]{32}")

# After all ids and hashes.
_END = "\x7f"

_lock = threading.Lock()
_last_us = 0


def new_id() -> str:
    global _last_us  # noqa: PLW0603 (one counter a process)
    with _lock:
        _last_us = max(time.time_ns() // 1000, _last_us + 1)
        return f"{_last_us:014x}{secrets.token_hex(9)}"


def greatest(after: str, ids: Iterable[str]) -> str:
    """Return where a walk in the order of ids continues: at the greatest of the ids after `after`. A damaged row may hold
    another id than the index that the walk follows. Without a greater id the walk ends, or it would repeat for ever."""
    last = max((each for each in ids if each < _END), default=after)
    return last if last > after else _END


# The type of the column that a list is sorted by.
Kind = Literal["text", "number", "moment"]
# The order, the value, and the id.
_POSITIONS: dict[Kind, Any] = {
    "text": tuple[str, str, str],
    "number": tuple[str, Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)], str],
    "moment": tuple[str, Annotated[datetime, msgspec.Meta(tz=True)], str],
}


def cursor(sort: str, value: int | str | datetime, identifier: str) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode([sort, value, identifier])).decode().rstrip("=")


def parse_cursor(text: str, sort: str, kind: Kind) -> tuple[Any, str]:
    """Return the value and the id of a cursor for a list in this order. Raises InvalidRequest for any other text."""
    try:
        decoded = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        given, value, identifier = msgspec.json.decode(decoded, type=_POSITIONS[kind])
        if given != sort:
            raise ValueError(given)
        return value.astimezone(UTC) if isinstance(value, datetime) else value, identifier
    except (binascii.Error, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise InvalidRequest.field("after", "is not a cursor of this list") from error
