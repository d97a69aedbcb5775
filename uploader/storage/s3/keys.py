"""The names of objects, below the prefix of the store. None is ever used twice.

u/<upload id>.<random>    what an upload makes: its multipart upload, its only chunk, a tail; a content, once it is one
w/<random>                a content that came whole
s/<key of a content>      its signature, which goes with it
marks/…  probe/…          of which installation the store is; what tries it
"""

import hashlib
import secrets

from uploader.storage.base import Found

UPLOADS, WHOLES, SIGNATURES = "u/", "w/", "s/"


def of_upload(upload_id: str) -> str:
    """Of a new object of an upload."""
    return f"{UPLOADS}{upload_id}.{secrets.token_hex(8)}"


def of_whole() -> str:
    """Of a new content that came whole."""
    return f"{WHOLES}{secrets.token_hex(16)}"


def of_signature(key: str) -> str:
    """Of the signature of the content at `key`."""
    return f"{SIGNATURES}{key}"


def of_empty(upload_id: str) -> str:
    """Of the content of an upload without bytes."""
    return f"{UPLOADS}{upload_id}.empty"


def upload_in(key: str) -> str:
    """The upload that an object was made by; empty if by none."""
    return key.removeprefix(UPLOADS).partition(".")[0] if key.startswith(UPLOADS) else ""


def found(
    key: str, *, name: str | None, changed_at: float, size: int, is_draft: bool = False, in_trash: bool = False
) -> Found:
    """An object as lists give it. One whose content nobody knows goes by the digest of its key, which is that of none."""
    hashed = hashlib.sha256(key.encode()).hexdigest()
    # A key is never used again: it tells its bytes from all others.
    return Found(name or hashed, key, int(hashed[:15], 16), changed_at, size, is_draft, in_trash, size)
