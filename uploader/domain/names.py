"""The names that people and programs give: of files and of users. Checks them; never repairs more than Unicode form."""

import unicodedata

MAX_NAME_BYTES = 1024
MAX_SEGMENT_BYTES = 255
MAX_USER_ID_BYTES = 255

# Characters that change the direction of the text around them (Unicode Standard Annex #9, section 2).
_BIDI_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def normalise_name(name: str) -> str:
    """The file name in NFC. Raises ValueError, saying why, if it is no acceptable relative path."""
    if any(0xD800 <= ord(character) <= 0xDFFF for character in name):
        raise ValueError("is not valid Unicode")
    name = unicodedata.normalize("NFC", name)
    if not name:
        raise ValueError("is empty")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise ValueError(f"is longer than {MAX_NAME_BYTES} bytes")
    if "\\" in name:
        raise ValueError("has a backslash")
    if any(_is_control(character) for character in name):
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
    if any(0xD800 <= ord(character) <= 0xDFFF for character in user_id):
        raise ValueError("is not valid Unicode")
    if len(user_id.encode()) > MAX_USER_ID_BYTES:
        raise ValueError(f"is longer than {MAX_USER_ID_BYTES} bytes")
    if "/" in user_id or any(character.isspace() or _is_control(character) for character in user_id):
        raise ValueError("has white space, control characters or '/'")
    return user_id


def _is_control(character: str) -> bool:
    # Cc: control characters. Zl and Zp, the line and paragraph separators, forge lines as well as they do.
    return character in _BIDI_CONTROLS or unicodedata.category(character) in ("Cc", "Zl", "Zp")
