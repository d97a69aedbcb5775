"""The secret of an installation: a key for each use is derived from it, which signs, names or encrypts, and reveals neither
the secret nor another key.

`Secret.sign` is the only function that signs what clients show later: no field can pass for a part of another one.
"""

import base64
import hashlib
import hmac
import json
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

# RFC 5869: the salt of its first step, by which keys of other programs with the same secret are others.
_SALT = b"uploader/secret/1"
_HASH_BYTES = 32
# What the words of `seal` begin with. No slug of an earlier version has a full stop.
SEALED = "1."


class Use(StrEnum):
    """The uses of the secret. A use whose message changes gets another number, and so another key."""

    # By which a database knows the secret that it belongs to.
    CHECK = "check/1"
    SIGNED_URL = "signed-url/1"
    # The user in a signed URL, whom its holder need not know.
    OWNER_COVER = "owner-cover/1"
    # The slug of a link, from its id.
    SLUG = "slug/1"
    # Slugs that versions before 0.3.0 drew, and the secret with which these versions signed.
    SLUG_STORE = "slug-store/1"
    FORMER = "former-secret/1"


class Secret:
    def __init__(self, text: str, former: str | None = None) -> None:
        """`former`: the setting with which versions before 0.3.0 signed, if there was one."""
        self.text, self.former = text, former
        self._root = hmac.digest(_SALT, text.encode(), "sha256")

    def __repr__(self) -> str:
        return "Secret()"

    def key(self, use: Use, length: int = _HASH_BYTES) -> bytes:
        """Derive the key of a use by HKDF-SHA256 (RFC 5869)."""
        key = block = b""
        for number in range(1, -(-length // _HASH_BYTES) + 1):
            block = hmac.digest(self._root, block + use.encode() + bytes([number]), "sha256")
            key += block
        return key[:length]

    @property
    def check_value(self) -> str:
        """Return what a database keeps to know the secret again."""
        return self.sign(Use.CHECK)

    def sign(self, use: Use, *fields: str) -> str:
        return hmac.new(self.key(use), message_of(*fields), hashlib.sha256).hexdigest()

    def slug(self, link_id: str) -> str:
        """Return the 144 bits in which the URL of a link ends."""
        return base64.urlsafe_b64encode(bytes.fromhex(self.sign(Use.SLUG, link_id))[:18]).decode()

    def seal(self, use: Use, text: str, context: str = "") -> str:
        """Encrypt a text by AES-SIV (RFC 5297), which needs no nonce; `open_sealed` needs the same context."""
        sealed = self._cipher(use).encrypt(text.encode(), [context.encode()])
        return SEALED + base64.urlsafe_b64encode(sealed).decode().rstrip("=")

    def open_sealed(self, use: Use, word: str, context: str = "") -> str | None:
        """Decrypt; None: the word was sealed by another secret, for another use, or is damaged."""
        from cryptography.exceptions import InvalidTag

        raw = word.removeprefix(SEALED)
        try:
            sealed = base64.b64decode(raw + "=" * (-len(raw) % 4), altchars=b"-_", validate=True)
            return self._cipher(use).decrypt(sealed, [context.encode()]).decode()
        except (ValueError, InvalidTag):
            return None

    def _cipher(self, use: Use) -> "AESSIV":
        # Here, because an installation that never was of an earlier version does without the memory that it takes.
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV

        return AESSIV(self.key(use, 64))


def message_of(*fields: str) -> bytes:
    """Return the bytes that are signed: JSON, in which each list of fields has a form of its own."""
    return json.dumps(fields).encode()
