"""What a client computes from a challenge, written from the contract and not from the server's code."""

import base64
import hashlib
import hmac
from typing import Any


def proof_by(content: bytes, challenge: dict[str, Any], sha256: str, **instead: Any) -> str:
    """The proof by a holder of `content`; `instead` overrides what goes into it."""
    size = instead.get("size", len(content))
    nonce = base64.b64decode(instead.get("nonce", challenge["nonce"]))
    message = f"uploader/1\n{instead.get('user_id', challenge['user_id'])}\n{sha256}\n{size}\n".encode()
    for offset, length in instead.get("ranges", challenge["ranges"]):
        message += offset.to_bytes(8, "big") + length.to_bytes(8, "big") + content[offset : offset + length]
    return hmac.new(nonce, message, hashlib.sha256).hexdigest()
