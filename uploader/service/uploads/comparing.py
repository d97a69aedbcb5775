"""Compares bodies with the digests that were sent with them."""

import asyncio
import hashlib
import hmac
from collections.abc import Iterable

from uploader.domain.digest import ClaimedDigests
from uploader.errors import DigestMismatch
from uploader.storage.base import Body
from uploader.tasks import uninterrupted

_PYTHON_NAMES = {"md5": "md5", "sha-256": "sha256"}


class Comparing:
    """One body, in parts."""

    def __init__(self, claims: ClaimedDigests) -> None:
        """Raises DigestMismatch for digests that are none."""
        try:
            self._wanted = claims.parse()
        except ValueError as error:
            raise DigestMismatch(f"The digest sent with the chunk {error}.") from error
        self._hashes = {name: hashlib.new(_PYTHON_NAMES[name], usedforsecurity=False) for name in self._wanted}

    async def add(self, pieces: Iterable[memoryview]) -> None:
        """The next bytes. To its end in any case: their memory may be used again afterwards."""
        if self._hashes:
            await uninterrupted(asyncio.to_thread(self._update, pieces))

    def _update(self, pieces: Iterable[memoryview]) -> None:
        for piece in pieces:
            for computing in self._hashes.values():
                computing.update(piece)

    def check(self) -> None:
        """There are no more. Raises DigestMismatch."""
        for algorithm, digest in self._wanted.items():
            if not hmac.compare_digest(self._hashes[algorithm].digest(), digest):
                raise DigestMismatch()


async def check_digests(body: Body, claims: ClaimedDigests) -> None:
    """Compare a body with the digests that were sent with it. Raises DigestMismatch."""
    if not claims.content_digest and not claims.content_md5:
        return
    comparing = Comparing(claims)
    # A spooled body is read there, too.
    await comparing.add(body.pieces())
    comparing.check()
