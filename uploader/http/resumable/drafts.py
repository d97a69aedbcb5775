"""The versions of resumable uploads for HTTP (draft-ietf-httpbis-resumable-upload) and their header fields.

As long as there is no RFC, a request names its version: 3 is draft -01, 4 is -02, 5 is -03, 6 is -04 and -05, 7 is -06 to
-08, 8 is all since. One that names none that is spoken is served as the current draft says, without interim responses.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers

VERSION = "Upload-Draft-Interop-Version"
BYTES = "application/partial-upload"
# By which a request says that it is one of this protocol.
MARKS = (VERSION, "Upload-Complete", "Upload-Incomplete")
_FIRST, _LAST = 3, 8
# The largest integer of structured fields (RFC 9651, section 3.3.1).
_LARGEST = 10**15 - 1
_PARAMETERS = r"\s*(?:;.*)?"
_INTEGER = re.compile(r"([0-9]{1,15})" + _PARAMETERS)
_BOOLEAN = re.compile(r"\?([01])" + _PARAMETERS)
# A parameter of Content-Disposition (RFC 6266): its name, and its value as a quoted string or a token.
_OF_DISPOSITION = re.compile(r";\s*([\w!#$%&'*+.^`|~-]+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|([^\s;\"]+))", re.ASCII)
_CHARSETS = {"utf-8": "utf-8", "iso-8859-1": "latin-1"}


@dataclass(frozen=True, slots=True)
class Draft:
    """A version, and whether the request named it."""

    version: int
    is_named: bool

    @property
    def is_inverted(self) -> bool:
        """Return whether a request says that its content is not the last, in place of that it is."""
        return self.version == _FIRST

    @property
    def names_type(self) -> bool:
        """Return whether what is appended has a media type of its own."""
        return self.version >= 6

    @property
    def tells_progress(self) -> bool:
        """Return whether interim responses may have an offset and no more."""
        return self.version >= 5

    def completes(self, headers: Headers) -> bool | None:
        """Return whether a request says that its content is the last; None if it does not say."""
        name = "Upload-Incomplete" if self.is_inverted else "Upload-Complete"
        match = _BOOLEAN.fullmatch(_only(headers, name))
        return None if match is None else (match[1] == "1") is not self.is_inverted

    def completeness(self, complete: bool) -> dict[str, str]:
        if self.is_inverted:
            return {"Upload-Incomplete": "?0" if complete else "?1"}
        return {"Upload-Complete": "?1" if complete else "?0"}

    def limits(self, max_size_bytes: int, age_seconds: float | None = None) -> dict[str, str]:
        """Return what an upload may be, and how much longer it is kept."""
        if self.version < 6:
            return {}
        limits = {"max-size": min(max_size_bytes, _LARGEST)}
        if age_seconds is not None:
            limits["max-age" if self.version >= 7 else "expires"] = max(0, int(age_seconds))
        return {"Upload-Limit": ", ".join(f"{name}={value}" for name, value in limits.items())}

    def named(self) -> dict[str, str]:
        """Return its own header, for answers."""
        return {VERSION: str(self.version)} if self.is_named else {}


CURRENT = Draft(_LAST, is_named=False)


def draft_of(headers: Headers) -> Draft:
    named = integer_in(headers, VERSION)
    if named is not None and _FIRST <= named <= _LAST:
        return Draft(named, is_named=True)
    return Draft(_FIRST, is_named=False) if "upload-incomplete" in headers else CURRENT


def integer_in(headers: Headers, name: str) -> int | None:
    """Return a number that is not negative. As every other structured field (RFC 9651), one that is no such is as none."""
    match = _INTEGER.fullmatch(_only(headers, name))
    return None if match is None else int(match[1])


def _only(headers: Headers, name: str) -> str:
    """Return the value of a header that is there once."""
    values = headers.getlist(name)
    return values[0].strip() if len(values) == 1 else ""


def filename_in(headers: Headers) -> str | None:
    """As `Content-Disposition` tells it: the extended form goes first (RFC 6266, section 4.3)."""
    found = {
        name.lower(): quoted or token for name, quoted, token in _parameters(headers.get("content-disposition", ""))
    }
    return _extended(found.get("filename*", "")) or _plain(found)


def _parameters(header: str) -> list[tuple[str, str, str]]:
    return _OF_DISPOSITION.findall(header)


def _extended(text: str) -> str | None:
    """Return a value as RFC 8187 encodes it."""
    charset, _, rest = text.partition("'")
    encoding = _CHARSETS.get(charset.lower())
    if encoding is None:
        return None
    return unquote_to_bytes(rest.partition("'")[2]).decode(encoding, errors="replace")


def _plain(found: Mapping[str, str]) -> str | None:
    """Headers are bytes, and clients put UTF-8 there."""
    text = re.sub(r"\\(.)", r"\1", found.get("filename", ""))
    try:
        return text.encode("latin-1").decode() or None
    except UnicodeError:
        return text
