"""`Upload-Checksum` of tus and `Content-Digest`: bytes that do not have it count for nothing.

So they are received whole, in memory or in the spool, before any of them is appended. It may come after them, as a trailer.
"""

import base64
import binascii
import hashlib
import hmac
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from starlette.requests import Request

from uploader.domain.digest import ClaimedDigests
from uploader.errors import BadRequest, DigestMismatch
from uploader.http.bodies.intake import Incoming
from uploader.http.bodies.slices import Reread
from uploader.http.bodies.source import TRAILERS
from uploader.service.append import Hashing
from uploader.service.chunk import check_digests
from uploader.storage.base import Body
from uploader.tasks import uninterrupted

ALGORITHMS = ("md5", "sha1", "sha256", "crc32")
_NAME = "upload-checksum"
_LENGTHS = {"md5": 16, "sha1": 20, "sha256": 32, "crc32": 4}


class BodyCheck(Protocol):
    """What a body has to have."""

    async def check(self, body: Body, hashing: Hashing) -> None:
        """Raises DigestMismatch."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """One of tus."""

    algorithm: str
    value: bytes

    async def check(self, body: Body, hashing: Hashing) -> None:
        """Raises DigestMismatch."""
        # To its end in any case: the memory of the body may be used again afterwards.
        computed = await uninterrupted(hashing(partial(_checksum_of, body, self.algorithm)))
        if not hmac.compare_digest(computed, self.value):
            raise DigestMismatch("The bytes do not have their checksum: send them again.")


@dataclass(frozen=True, slots=True)
class ContentDigest:
    """Those of HTTP (RFC 9530), and `Content-MD5`."""

    claims: ClaimedDigests

    async def check(self, body: Body, _hashing: Hashing) -> None:
        """Raises DigestMismatch."""
        await check_digests(body, self.claims)


# It is known at the latest when the body was received. Raises BadRequest.
ToldCheck = Callable[[], BodyCheck]


@dataclass(frozen=True, slots=True)
class CheckedBody:
    """A body with its checksum."""

    body: Incoming
    checksum: ToldCheck

    @property
    def declared_bytes(self) -> int | None:
        return self.body.declared_bytes

    async def receive_whole(self, user_id: str, limit_bytes: int, hashing: Hashing) -> Reread:
        """Raises DigestMismatch, BadRequest, FileTooLarge, BodyTimeout, StorageFull, and ClientDisconnect if the client went
        away."""
        received = await self.body.receive_all(user_id, limit_bytes)
        try:
            await self.checksum().check(received, hashing)
        except BaseException:
            received.close()
            raise
        return Reread(received)


def checksum_of(request: Request) -> ToldCheck | None:
    """What a request says that its body has, or announces to say. Raises BadRequest."""
    text = request.headers.get(_NAME)
    if text is not None:
        told = parse_checksum(text)
        return lambda: told
    announced = ",".join(request.headers.getlist("trailer")).lower().split(",")
    return partial(_trailing, request) if _NAME in map(str.strip, announced) else None


def _trailing(request: Request) -> Checksum:
    """Raises BadRequest."""
    trailers = request.scope.get("extensions", {}).get(TRAILERS, {}).get("fields", ())
    values = [value.decode("latin-1") for name, value in trailers if name == _NAME.encode()]
    if len(values) != 1:
        raise BadRequest("The Upload-Checksum that was announced as a trailer did not come.")
    return parse_checksum(values[0])


def parse_checksum(text: str) -> Checksum:
    """Raises BadRequest."""
    algorithm, _, encoded = text.partition(" ")
    if algorithm not in ALGORITHMS:
        raise BadRequest(f"Upload-Checksum: the algorithm is none of {', '.join(ALGORITHMS)}.")
    try:
        value = base64.b64decode(encoded.strip(), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest("Upload-Checksum: the checksum is not Base64.") from error
    if len(value) != _LENGTHS[algorithm]:
        raise BadRequest(f"Upload-Checksum: this is no {algorithm}.")
    return Checksum(algorithm, value)


def _checksum_of(body: Body, algorithm: str) -> bytes:
    if algorithm == "crc32":
        checksum = 0
        for piece in body.pieces():
            checksum = zlib.crc32(piece, checksum)
        return checksum.to_bytes(4, "big")
    computing = hashlib.new(algorithm, usedforsecurity=False)
    for piece in body.pieces():
        computing.update(piece)
    return computing.digest()
