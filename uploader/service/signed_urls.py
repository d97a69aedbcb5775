"""Signed URLs: open a file or an archive for a while, without a token.

No URL is stored: the signature comes from a key of the installation's secret. URLs of versions before 0.3.0 are valid
until they expire, at most 30 days after the upgrade. This module does not know how a request carries a URL.
"""

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from uploader.domain.links import Visit
from uploader.domain.secret import Use
from uploader.errors import Unauthenticated
from uploader.runtime.clock import Clock
from uploader.service.secret import InstallationSecret

# For a URL without a lifetime, which is followed at once.
_ORDINARY_LIFETIME_SECONDS = 300.0
# A covered user id in a query: the prefix (before 0.3.0 the second one), the length of the nonce, and the multiple of
# bytes for the padding.
_COVERED, _FORMER_COVERED, _NONCE_BYTES, _PADDED_BYTES = "~~", "~", 16, 32
_SECONDS = re.compile(r"[0-9]{1,12}", re.ASCII)

# What a URL opens. The words are signed separately, so no word can pass for a part of another.
Subject = tuple[str, ...]


def file_subject(file_id: str) -> Subject:
    return ("file", file_id)


def selection_subject(digest: str) -> Subject:
    return ("selection", digest)


def deleted_subject(file_id: str) -> Subject:
    """Return the subject for a deleted file: with the subject of a file, URLs shared earlier would open it."""
    return ("deleted", file_id)


def visit_subject(session_id: str, file_id: str | None, kind: str, prefix: str) -> Subject:
    """Return the subject of a URL made by a visitor: for a file, or for an archive of all names with this prefix."""
    return ("visit", session_id, *(("archive", kind, prefix) if file_id is None else ("file", file_id)))


@dataclass(eq=False, repr=False)
class SignedUrls:
    secret: InstallationSecret
    clock: Clock
    _: KW_ONLY
    lifetime_seconds: float

    def make(self, user_id: str, subject: Subject, lifetime_seconds: int | None = None) -> tuple[str, datetime]:
        """Make the query of a signed URL. Return the query, and until when it works."""
        asked = _ORDINARY_LIFETIME_SECONDS if lifetime_seconds is None else lifetime_seconds
        lifetime = min(self.lifetime_seconds, asked)
        end = int((self.clock.now() + timedelta(seconds=lifetime)).timestamp())
        signature = self._sign(user_id, subject, str(end))
        query = urlencode({"user": self._cover_user(user_id), "expires": end, "signature": signature})
        return query, datetime.fromtimestamp(end, UTC)

    def make_for(self, visit: Visit, subject: Subject, lifetime_seconds: int) -> str:
        """Make the query of a signed URL for a visitor's browser. The query does not name the owner."""
        end = str(int((self.clock.now() + timedelta(seconds=lifetime_seconds)).timestamp()))
        signature = self._sign(visit.link.user_id, subject, end)
        return urlencode({"visitor": visit.session_id, "expires": end, "signature": signature})

    def user_in(self, told: str) -> str:
        """Return the user of a query. The id is covered, to hide the user from people with the URL. Versions before
        0.3.0 wrote the id itself, or covered it with their secret."""
        former = self.secret.former_in_force
        if told.startswith(_COVERED):
            return _uncovered(self.secret.value.key(Use.OWNER_COVER), told, _COVERED)
        if told.startswith(_FORMER_COVERED) and former is not None:
            return _uncovered(b"uploader/owner/1" + former.text.encode(), told, _FORMER_COVERED)
        return told

    def _cover_user(self, user_id: str) -> str:
        nonce, raw = secrets.token_bytes(_NONCE_BYTES), user_id.encode()
        padded = raw.ljust(-(-len(raw) // _PADDED_BYTES) * _PADDED_BYTES, b"\0")  # no id ends with zero bytes
        covered = nonce + _cover(self.secret.value.key(Use.OWNER_COVER), nonce, padded)
        return _COVERED + base64.b64encode(covered, altchars=b"-_").decode()

    def check(self, user_id: str, subject: Subject, expires: str, signature: str) -> None:
        """Raises Unauthenticated for a URL that was not made here, was made for something else, or has expired."""
        end = int(expires) if _SECONDS.fullmatch(expires) else None
        is_signed = _same(self._sign(user_id, subject, expires), signature)
        if end is None or not (is_signed or self._is_of_former(user_id, subject, expires, signature)):
            raise Unauthenticated("The link is not valid.")
        if end <= self.clock.now().timestamp():
            raise Unauthenticated("The link has expired.")

    def _sign(self, user_id: str, subject: Subject, expires: str) -> str:
        return self.secret.value.sign(Use.SIGNED_URL, user_id, *subject, expires)

    def _is_of_former(self, user_id: str, subject: Subject, expires: str, signature: str) -> bool:
        """Return whether a version before 0.3.0 signed a URL. These signatures join lines, so no part may contain a
        line feed. URLs of visitors worked for a minute, and are not valid any more."""
        former = self.secret.former_in_force
        if former is None or subject[0] == "visit":
            return False
        spelled = subject[1] if subject[0] == "file" else "/".join(subject)
        lines = ("uploader/link/1", user_id, spelled, expires)
        if any("\n" in line for line in lines) or int(expires) > former.until.timestamp():
            return False
        message = "\n".join(lines).encode(errors="surrogatepass")
        return _same(hmac.new(former.text.encode(), message, hashlib.sha256).hexdigest(), signature)


def _same(expected: str, signature: str) -> bool:
    return hmac.compare_digest(expected.encode(), signature.encode(errors="surrogatepass"))


def _cover(key: bytes, nonce: bytes, text: bytes) -> bytes:
    """Cover or uncover a text. The signature protects the text against changes."""
    stream = hashlib.shake_256(key + nonce).digest(len(text))
    return bytes(one ^ other for one, other in zip(text, stream, strict=True))


def _uncovered(key: bytes, told: str, begin: str) -> str:
    """Uncover a text. Return `told` itself if this fails."""
    try:
        raw = base64.b64decode(told[len(begin) :], altchars=b"-_", validate=True)
        return _cover(key, raw[:_NONCE_BYTES], raw[_NONCE_BYTES:]).rstrip(b"\0").decode()
    except ValueError:
        return told
