"""Signatures as Standard Webhooks has them: HMAC-SHA256 over id, time and body, with each secret that is in force.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

import base64
import binascii
import hmac
from collections.abc import Sequence
from datetime import datetime

_PREFIX = "whsec_"
_MIN_BYTES, _MAX_BYTES = 24, 64


def parse_secret(text: str) -> bytes:
    """Raises ValueError, which never shows the secret."""
    try:
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True) if text.startswith(_PREFIX) else b""
    except (binascii.Error, ValueError):
        key = b""
    if not _MIN_BYTES <= len(key) <= _MAX_BYTES:
        raise ValueError(f"holds no secret: {_PREFIX} and the base64 of {_MIN_BYTES} to {_MAX_BYTES} bytes")
    return key


def signed_headers(secrets: Sequence[bytes], message_id: str, at: datetime, body: bytes) -> dict[str, str]:
    """The three headers; a signature for each secret, so that one is rotated without a gap."""
    timestamp = str(int(at.timestamp()))
    message = b".".join((message_id.encode(), timestamp.encode(), body))
    signatures = [base64.b64encode(hmac.digest(secret, message, "sha256")).decode() for secret in secrets]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
