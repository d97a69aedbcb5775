"""Names that no server takes, as names that each takes, and back: what is refused of a name is written `%5C`, byte by byte,
as in a URL. Pure.

A `%` that could be read as such is written `%25`, so that each encoded name is one name here, whatever else lies beside it.
"""

import re

from uploader.domain.names import CONTROL

# Also what stands for a byte that is no UTF-8 (PEP 383).
_REFUSED = re.compile(rf"{CONTROL.pattern}|\\|[\udc80-\udcff]|%(?=[0-9A-Fa-f]{{2}})")
_ENCODED = re.compile(rb"%([0-9A-F]{2})")


def encode_name(name: str) -> str:
    """A relative path as a server takes it, unless it is too long."""
    return _REFUSED.sub(lambda found: "".join(f"%{byte:02X}" for byte in _bytes(found[0])), name)


def decode_name(name: str) -> str:
    """The other way round: each part that `encode_name` could have made; any other is left as it is, so that nothing here
    becomes a slash, or two dots."""
    return "/".join(_decode_part(part) for part in name.split("/"))


def _decode_part(part: str) -> str:
    decoded = _ENCODED.sub(lambda found: bytes.fromhex(found[1].decode()), _bytes(part)).decode(
        "utf-8", "surrogateescape"
    )
    return decoded if encode_name(decoded) == part and "\0" not in decoded else part


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
