"""The states of digests as rows have them: sealed with a checksum, and with the fence of the chunks that they are of.

A row may be damaged; and whoever completes an upload that others have completed as well must know whether its digests are of
what came, or of what was read since. The seal is in the byte order of the machine, as the state itself is.
"""

import struct
from zlib import crc32

from uploader.domain.ledger import SavedDigest
from uploader.domain.upload import Upload
from uploader.storage.contents import Digests
from uploader.storage.hashes import PrefixHashes

# The fence, and the checksum of all that is saved.
_SEAL = struct.Struct("=QI")


def sealed(upload_id: str, fence: int, hashes: PrefixHashes, digests: Digests | None = None) -> SavedDigest:
    """To be saved; `digests`: of the whole."""
    found = None if digests is None else (digests.md5, digests.sha256)
    state = hashes.state()
    checksum = _checksum(upload_id, fence, hashes.position, state, found)
    return SavedDigest(hashes.position, _SEAL.pack(fence, checksum) + state, found)


def fence_of(saved: SavedDigest, upload_id: str) -> int | None:
    """The fence under which it was saved; None if it is damaged."""
    if len(saved.state) < _SEAL.size:
        return None
    fence: int
    fence, checksum = _SEAL.unpack_from(saved.state)
    state = saved.state[_SEAL.size :]
    return fence if checksum == _checksum(upload_id, fence, saved.position, state, saved.digests) else None


def restored(saved: SavedDigest | None, upload: Upload, fence: int) -> PrefixHashes | None:
    """The hashes to go on from, if they were saved under this fence, and have what the upload needs."""
    if saved is None or fence_of(saved, upload.id) != fence:
        return None
    hashes = PrefixHashes.restore(saved.position, saved.state[_SEAL.size :])
    return hashes if hashes is not None and (hashes.has_md5 or not upload.needs_md5) else None


def finished(saved: SavedDigest | None, upload: Upload, fence: int) -> Digests | None:
    """The digests of the whole, if they were saved under this fence, and are what the upload needs."""
    if saved is None or saved.digests is None or fence_of(saved, upload.id) != fence:
        return None
    md5, sha256 = saved.digests
    return None if md5 is None and upload.needs_md5 else Digests(md5, sha256)


def _checksum(upload_id: str, fence: int, position: int, state: bytes, digests: tuple[str | None, str] | None) -> int:
    return crc32(repr((upload_id, fence, position, digests)).encode() + state)
