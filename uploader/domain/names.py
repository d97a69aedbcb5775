"""The names that people and programs give: of files and of users. Checks them; never repairs more than Unicode form."""

import re
import unicodedata

MAX_NAME_BYTES = 1024
MAX_SEGMENT_BYTES = 255
MAX_USER_ID_BYTES = 255

# The general category Cc, which never changes; the line and paragraph separators, which forge lines as well as those do; and
# what changes the direction of the text around it (Unicode Standard Annex #9, section 2).
CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def normalise_name(name: str) -> str:
    """The file name in NFC. Raises ValueError, saying why, if it is no acceptable relative path."""
    if _SURROGATE.search(name):
        raise ValueError("is not valid Unicode")
    name = unicodedata.normalize("NFC", name)
    if not name:
        raise ValueError("is empty")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise ValueError(f"is longer than {MAX_NAME_BYTES} bytes")
    if "\\" in name:
        raise ValueError("has a backslash")
    if CONTROL.search(name):
        raise ValueError("has control characters")
    for segment in name.split("/"):
        if segment in ("", ".", ".."):
            raise ValueError("is not a relative path without empty, '.' or '..' segments")
        if len(segment.encode()) > MAX_SEGMENT_BYTES:
            raise ValueError(f"has a segment longer than {MAX_SEGMENT_BYTES} bytes")
    return name


def check_user_id(user_id: str) -> str:
    """The user id itself. Raises ValueError, saying why, if it is none."""
    if not user_id:
        raise ValueError("is empty")
    if _SURROGATE.search(user_id):
        raise ValueError("is not valid Unicode")
    if len(user_id.encode()) > MAX_USER_ID_BYTES:
        raise ValueError(f"is longer than {MAX_USER_ID_BYTES} bytes")
    if "/" in user_id or CONTROL.search(user_id) or any(character.isspace() for character in user_id):
        raise ValueError("has white space, control characters or '/'")
    return user_id
