"""`Upload-Metadata` of tus: what a client says of its file. It is kept as it was sent; here it is read."""

import base64
import binascii
import re
from contextlib import suppress

from uploader.domain.names import CONTROL, MAX_SEGMENT_BYTES, normalise_name
from uploader.errors import InvalidRequest

MAX_METADATA_BYTES = 4096
_KEY = re.compile(r"[!-+\--~]+")  # ASCII without space and comma
# By which clients tell the name, the first that is there.
_PATH = "relativePath"
_NAMES = ("filename", "name", _PATH)


def parse_metadata(text: str) -> dict[str, str]:
    """Raises InvalidRequest."""
    if len(text) > MAX_METADATA_BYTES:
        raise InvalidRequest.field("Upload-Metadata", f"is longer than {MAX_METADATA_BYTES} bytes")
    if not text.isascii():
        raise InvalidRequest.field("Upload-Metadata", "is not ASCII")
    if not text.strip():
        return {}
    found: dict[str, str] = {}
    for pair in text.split(","):
        key, _, value = pair.strip().partition(" ")
        if not _KEY.fullmatch(key) or key in found:
            raise InvalidRequest.field("Upload-Metadata", "is not pairs of different keys and values in Base64")
        try:
            found[key] = base64.b64decode(value.strip(), validate=True).decode(errors="replace")
        except (binascii.Error, ValueError) as error:
            raise InvalidRequest.field("Upload-Metadata", f"has a value of {key} that is not Base64") from error
    return found


def name_of(metadata: dict[str, str], upload_id: str) -> str:
    """The name that a file gets: the one that is told, without what no name may have, in its folders, if the client tells of
    these, too; or one of the upload's id."""
    told = next((metadata[key] for key in _NAMES if metadata.get(key)), "")
    last = CONTROL.sub("", re.split(r"[/\\]", told)[-1]).encode()[:MAX_SEGMENT_BYTES].decode(errors="ignore")
    path = metadata.get(_PATH, "").strip("/")  # "null" where Uppy knows of none
    for name in (path, last) if path.rpartition("/")[2] == last else (last,):
        with suppress(ValueError):
            return normalise_name(name)
    return f"upload-{upload_id}"
