"""Cursors of sorted lists: the order, and the row that a page ended with, as one word that callers hand back unread."""

import base64
import binascii
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec

from uploader.errors import InvalidRequest

# What a list is sorted by.
Kind = Literal["text", "number", "moment"]
# The order, the value, and the id.
_POSITIONS: dict[Kind, Any] = {
    "text": tuple[str, str, str],
    "number": tuple[str, Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)], str],
    "moment": tuple[str, Annotated[datetime, msgspec.Meta(tz=True)], str],
}


def cursor(sort: str, value: int | str | datetime, identifier: str) -> str:
    """The cursor after the row with this value and id."""
    return base64.urlsafe_b64encode(msgspec.json.encode([sort, value, identifier])).decode().rstrip("=")


def parse_cursor(text: str, sort: str, kind: Kind) -> tuple[Any, str]:
    """The value and id of a cursor of a list in this order. Raises InvalidRequest for any other."""
    try:
        decoded = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        given, value, identifier = msgspec.json.decode(decoded, type=_POSITIONS[kind])
        if given != sort:
            raise ValueError(given)
        return value.astimezone(UTC) if isinstance(value, datetime) else value, identifier
    except (binascii.Error, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise InvalidRequest.field("after", "is not a cursor of this list") from error
