"""Parts that requests of both protocols share: the upload, the file name, and the checksum of the bytes.

Bytes with a wrong `Upload-Checksum` (tus) or `Content-Digest` are discarded. Therefore a body with a checksum is received
completely before it is appended. The checksum may follow the body in a trailer.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from isal.isal_zlib import crc32
from starlette.requests import Request

from uploader.domain.links import Caller
from uploader.domain.names import CONTROL, MAX_SEGMENT_BYTES, normalise_name
from uploader.errors import BadRequest, DigestMismatch, InvalidRequest, UploadNotFound
from uploader.http.bodies.body import Reread
from uploader.http.bodies.intake import TRAILERS, Incoming
from uploader.http.shared.operation import Call
from uploader.runtime.tasks import uninterrupted
from uploader.service.append import Appends, Hashing
from uploader.service.ids import ID
from uploader.service.precreate import MAX_METADATA_BYTES
from uploader.service.results import Complete, Target
from uploader.service.status import Uploads
from uploader.storage.base import Body

PREFIX = "/resumable"

_KEY = re.compile(r"[!-+\--~]+")  # ASCII without space and comma
# Metadata keys for the file name; the first non-empty one counts.
_PATH = "relativePath"
_NAMES = ("filename", "name", _PATH)

ALGORITHMS = ("md5", "sha1", "sha256", "crc32")
_CHECKSUM = "upload-checksum"
_CHECKSUM_BYTES = {"md5": 16, "sha1": 20, "sha256": 32, "crc32": 4}


def target_of(call: Call) -> Target:
    """Raises UploadNotFound."""
    upload_id = call.in_path("id")
    if not ID.fullmatch(upload_id):
        raise UploadNotFound()
    return Target(call.caller, upload_id=upload_id)


async def end_upload(uploads: Uploads, appends: Appends, target: Target) -> None:
    """Cancel an open upload, or forget a finished one; its file stays. Raises UploadNotFound, UploadGone, UploadBusy."""
    match await uploads.find(target):
        case Complete():
            await uploads.forget(target)
        case _:
            await appends.cancel(target)


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
    """Return the name in the metadata, with its folders and without forbidden characters; `upload-ID` if no name is
    usable."""
    told = next((metadata[key] for key in _NAMES if metadata.get(key)), "")
    last = CONTROL.sub("", re.split(r"[/\\]", told)[-1]).encode()[:MAX_SEGMENT_BYTES].decode(errors="ignore")
    path = metadata.get(_PATH, "").strip("/")  # Uppy sends "null" for an unknown path
    for name in (path, last) if path.rpartition("/")[2] == last else (last,):
        with suppress(ValueError):
            return normalise_name(name)
    return f"upload-{upload_id}"


# Compares a body with its checksum; called after the body, because a trailer may hold the checksum. Raises DigestMismatch,
# BadRequest.
BodyCheck = Callable[[Body, Hashing], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Checksum:
    algorithm: str
    value: bytes

    async def check(self, body: Body, hashing: Hashing) -> None:
        # Uninterrupted, because the memory of the body may be reused afterwards.
        computed = await uninterrupted(hashing(partial(_checksum_of, body, self.algorithm)))
        if not hmac.compare_digest(computed, self.value):
            raise DigestMismatch("The bytes do not match their checksum: send them again.")


@dataclass(frozen=True, slots=True)
class CheckedBody:
    body: Incoming
    check: BodyCheck
    # The limit of one request, beside the rest of the upload.
    max_bytes: int | None = None

    @property
    def declared_bytes(self) -> int | None:
        return self.body.declared_bytes

    async def receive_whole(self, caller: Caller, limit_bytes: int, hashing: Hashing) -> Reread:
        """Raises DigestMismatch, BadRequest, FileTooLarge, BodyTimeout, StorageFull, ClientDisconnect."""
        most_bytes = limit_bytes if self.max_bytes is None else min(limit_bytes, self.max_bytes)
        received = await self.body.receive_up_to(caller, most_bytes)
        try:
            await self.check(received, hashing)
        except BaseException:
            received.close()
            raise
        return Reread(received)


def checksum_of(request: Request) -> BodyCheck | None:
    """Return a check if the request has a checksum or announces one as a trailer. Raises BadRequest."""
    text = request.headers.get(_CHECKSUM)
    if text is not None:
        return parse_checksum(text).check
    announced = ",".join(request.headers.getlist("trailer")).lower().split(",")
    return partial(_check_trailing, request) if _CHECKSUM in map(str.strip, announced) else None


async def _check_trailing(request: Request, body: Body, hashing: Hashing) -> None:
    trailers = request.scope.get("extensions", {}).get(TRAILERS, {}).get("fields", ())
    values = [value.decode("latin-1") for name, value in trailers if name == _CHECKSUM.encode()]
    if len(values) != 1:
        raise BadRequest("The announced trailer Upload-Checksum is missing.")
    await parse_checksum(values[0]).check(body, hashing)


def parse_checksum(text: str) -> Checksum:
    """Raises BadRequest."""
    algorithm, _, encoded = text.partition(" ")
    if algorithm not in ALGORITHMS:
        raise BadRequest(f"Upload-Checksum: the algorithm is not one of {', '.join(ALGORITHMS)}.")
    try:
        value = base64.b64decode(encoded.strip(), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest("Upload-Checksum: the checksum is not Base64.") from error
    if len(value) != _CHECKSUM_BYTES[algorithm]:
        raise BadRequest(f"Upload-Checksum: this is not a {algorithm}.")
    return Checksum(algorithm, value)


def _checksum_of(body: Body, algorithm: str) -> bytes:
    if algorithm == "crc32":
        checksum = 0
        for piece in body.pieces():
            checksum = crc32(piece, checksum)
        return checksum.to_bytes(4, "big")
    computing = hashlib.new(algorithm, usedforsecurity=False)
    for piece in body.pieces():
        computing.update(piece)
    return computing.digest()
