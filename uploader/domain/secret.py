"""The secret of an installation. Each use has its own derived key, which signs, names or encrypts, and reveals neither
the secret nor another key.

Every signature that clients bring back comes from `Secret.sign`: no field can pass for a part of another.
"""

import base64
import hashlib
import hmac
import json
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

# The salt of HKDF's first step (RFC 5869): other programs with the same secret get other keys.
_SALT = b"uploader/secret/1"
_HASH_BYTES = 32
# The prefix of sealed words. No slug of an earlier version has a full stop.
SEALED = "1."


class Use(StrEnum):
    """The uses of the secret. If the message of a use changes, change the number, which changes the key."""

    # Proves that a database belongs to the secret.
    CHECK = "check/1"
    SIGNED_URL = "signed-url/1"
    # Hides the user in a signed URL from the holder of the URL.
    OWNER_COVER = "owner-cover/1"
    # The slug of a link, from its id.
    SLUG = "slug/1"
    # Encrypts the random slugs of versions before 0.3.0, and the secret with which those versions signed.
    SLUG_STORE = "slug-store/1"
    FORMER = "former-secret/1"


class Secret:
    def __init__(self, text: str, former: str | None = None) -> None:
        """`former`: the secret of versions before 0.3.0, if the settings had one."""
        self.text, self.former = text, former
        self._root = hmac.digest(_SALT, text.encode(), "sha256")

    def __repr__(self) -> str:
        return "Secret()"

    def key(self, use: Use, length: int = _HASH_BYTES) -> bytes:
        """Derive the key of a use by HKDF-SHA256 (RFC 5869). `length` in bytes."""
        key = block = b""
        for number in range(1, -(-length // _HASH_BYTES) + 1):
            block = hmac.digest(self._root, block + use.encode() + bytes([number]), "sha256")
            key += block
        return key[:length]

    @property
    def check_value(self) -> str:
        """Stored in the database, to recognise the secret."""
        return self.sign(Use.CHECK)

    def sign(self, use: Use, *fields: str) -> str:
        return hmac.new(self.key(use), message_of(*fields), hashlib.sha256).hexdigest()

    def slug(self, link_id: str) -> str:
        """Return the slug, the end of a link's URL: 144 bits."""
        return base64.urlsafe_b64encode(bytes.fromhex(self.sign(Use.SLUG, link_id))[:18]).decode()

    def seal(self, use: Use, text: str, context: str = "") -> str:
        """Encrypt a text by AES-SIV (RFC 5297), which needs no nonce. `open_sealed` needs the same context."""
        sealed = self._cipher(use).encrypt(text.encode(), [context.encode()])
        return SEALED + base64.urlsafe_b64encode(sealed).decode().rstrip("=")

    def open_sealed(self, use: Use, word: str, context: str = "") -> str | None:
        """Decrypt. None: the word is damaged, or was sealed by another secret or for another use."""
        from cryptography.exceptions import InvalidTag

        raw = word.removeprefix(SEALED)
        try:
            sealed = base64.b64decode(raw + "=" * (-len(raw) % 4), altchars=b"-_", validate=True)
            return self._cipher(use).decrypt(sealed, [context.encode()]).decode()
        except (ValueError, InvalidTag):
            return None

    def _cipher(self, use: Use) -> "AESSIV":
        # Imported here, because the library takes memory, and only installations of earlier versions need it.
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV

        return AESSIV(self.key(use, 64))


def message_of(*fields: str) -> bytes:
    """Return the bytes to sign: JSON, because different lists of fields never have the same JSON."""
    return json.dumps(fields).encode()
