"""Reads objects: in order by one request that goes on, at other places by one for each range. Runs in threads."""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

from uploader.errors import StorageFailed
from uploader.storage.base import Gone
from uploader.storage.contents import Digests, Pace
from uploader.storage.hashes import PrefixHashes
from uploader.storage.s3.bucket import Bucket

_READ_BYTES = 1 << 20
# Ranges that are not farther apart come by one request, of so many bytes at most: a request costs more than a few bytes.
_GAP_BYTES, _SPAN_BYTES = 256 << 10, 8 << 20
# Of a part that is not encrypted with a key of the customer's.
_MD5 = re.compile(r"[0-9a-f]{32}")


def pieces_of(bucket: Bucket, key: str, start: int, end: int, check_stopping: Callable[[], None]) -> Iterator[bytes]:
    """The bytes from `start` to `end`. Raises Gone, StorageFailed also where there are fewer, Stopping."""
    position = start
    with closing(bucket.stream(key, start, end - start)) as stream:
        while position < end:
            check_stopping()
            piece = stream.read(min(_READ_BYTES, end - position))
            if not piece:
                raise StorageFailed(inside=f"object {key} is cut short")
            position += len(piece)
            yield piece


def read_ranges(bucket: Bucket, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """The bytes of ranges, each an offset and a length. Raises Gone, StorageFailed."""
    found = [b""] * len(ranges)
    for numbers in _spans(ranges):
        start, end = ranges[numbers[0]][0], max(sum(ranges[number]) for number in numbers)
        content = bucket.get(key, start, end - start)
        for number in numbers:
            offset, length = ranges[number]
            found[number] = content[offset - start : offset - start + length]
    return found


def _spans(ranges: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """The numbers of ranges that are read together, in the order of their offsets; none that is empty."""
    span: list[int] = []
    start = end = 0
    for number in sorted(
        (number for number, (_, length) in enumerate(ranges) if length), key=lambda each: ranges[each]
    ):
        offset, length = ranges[number]
        if span and (offset > end + _GAP_BYTES or offset + length > start + _SPAN_BYTES):
            yield span
            span = []
        if not span:
            start = end = offset
        span.append(number)
        end = max(end, offset + length)
    if span:
        yield span


def hash_from(bucket: Bucket, key: str, hashes: PrefixHashes, until: int, check_stopping: Callable[[], None]) -> None:
    """Advance the hashes of a prefix to `until`, by the bytes of an object. Raises Gone, StorageFailed, Stopping."""
    for piece in pieces_of(bucket, key, hashes.position, until, check_stopping):
        hashes.update(memoryview(piece))


def consists_of(bucket: Bucket, key: str, parts: Sequence[tuple[int, str]], check_stopping: Callable[[], None]) -> bool:
    """Whether an object is these parts, one after the other: their lengths, and their ETags where these are MD5s. Raises
    StorageFailed, Stopping."""
    position = 0
    stat = bucket.head(key)
    if stat is None or stat.size != sum(length for length, _ in parts):
        return False
    for length, etag in parts:
        md5 = hashlib.md5(usedforsecurity=False)
        for piece in pieces_of(bucket, key, position, position + length, check_stopping):
            md5.update(piece)
        if _MD5.fullmatch(etag) and md5.hexdigest() != etag:
            return False
        position += length
    return True


def digests_at(
    bucket: Bucket, key: str, size: int, check_stopping: Callable[[], None], pace: Pace | None, *, with_md5: bool
) -> Digests | None:
    """The digests of an object, as it is read now; None if there is none. Raises StorageFailed, Stopping."""
    md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
    try:
        for piece in pieces_of(bucket, key, 0, size, check_stopping) if size else ():
            sha256.update(piece)
            if with_md5:
                md5.update(piece)
            if pace is not None:
                pace(len(piece))
    except Gone:
        return None
    return Digests(md5=md5.hexdigest() if with_md5 else None, sha256=sha256.hexdigest())
