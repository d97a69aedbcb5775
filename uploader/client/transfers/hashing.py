"""Digests of a source, computed in threads beside the upload, and the proof of possession of its bytes."""

import asyncio
import base64
import hashlib
from collections.abc import Callable

from uploader.client.model import Challenge, Digests
from uploader.client.transfers.plan import sample_ranges
from uploader.client.transfers.source import Source
from uploader.domain import digest

# One hop to a thread for each: long enough that the hop costs nothing, short enough that a cancelled hash ends soon.
_BLOCK_BYTES = 8 << 20


async def digests_of(source: Source, on_hashed: Callable[[int], None]) -> Digests:
    """Read all of a source once; `on_hashed` is told the bytes of each block. Raises FileChanged, Unreadable."""
    md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()

    def hash_block(offset: int) -> int:
        block = source.read(offset, min(_BLOCK_BYTES, source.size - offset))
        md5.update(block)
        sha256.update(block)
        return len(block)

    offset = 0
    while offset < source.size:
        hashed = await asyncio.to_thread(hash_block, offset)
        offset += hashed
        on_hashed(hashed)
    source.check()
    return Digests(md5.hexdigest(), sha256.hexdigest())


async def sample_of(source: Source) -> bytes:
    """The digest of a source's sample, which takes milliseconds however large the source is."""

    def read() -> bytes:
        sampled = hashlib.sha256()
        for offset, length in sample_ranges(source.size):
            sampled.update(source.read(offset, length))
        return sampled.digest()

    return await asyncio.to_thread(read)


async def proof_of(source: Source, digests: Digests, challenge: Challenge) -> str:
    """The answer to a challenge, in hex. Raises FileChanged, Unreadable."""
    asked = digest.Challenge(
        id=challenge.id,
        nonce=base64.b64decode(challenge.nonce),
        user_id=challenge.user_id,
        md5=digests.md5,
        sha256=digests.sha256,
        size=source.size,
        ranges=challenge.ranges,
        expires_at=challenge.expires_at,
    )

    def compute() -> str:
        return digest.proof_of(asked, (source.read(offset, length) for offset, length in asked.ranges)).hex()

    return await asyncio.to_thread(compute)
