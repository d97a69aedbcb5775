"""Downloads of a file's content, whole or in ranges (RFC 9110, sections 13 and 14). The file is opened before the answer
begins, so a file that is deleted meanwhile is still sent completely. If the store can serve the same answer itself, the
client is redirected to it.
"""

import base64
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Protocol
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from uploader.domain.upload import File
from uploader.errors import RangeNotSatisfiable
from uploader.http.shared.operation import OCTETS
from uploader.http.shared.responses import ZERO_COPY_SEND, is_not_modified
from uploader.runtime.tasks import uninterrupted
from uploader.storage.base import FileBlob, OpenBlob, PresigningBlob, ViewedBlob

# The policy of an inline preview: shown alone, or within a page of the same origin.
_PREVIEW_POLICY = "sandbox; default-src 'none'; media-src 'self'; style-src 'unsafe-inline'; frame-ancestors 'self'"
# Browsers refuse to open their PDF viewer in a sandbox. Only this viewer handles the type.
_PDF_POLICY = "default-src 'none'; object-src 'self'; style-src 'unsafe-inline'; frame-ancestors 'self'"

_PREVIEW_TYPES = {
    "avif": "image/avif",
    "bmp": "image/bmp",
    "gif": "image/gif",
    "ico": "image/x-icon",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "png": "image/png",
    "webp": "image/webp",
    "m4v": "video/mp4",
    "mov": "video/quicktime",
    "mp4": "video/mp4",
    "ogv": "video/ogg",
    "webm": "video/webm",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "m4a": "audio/mp4",
    "mp3": "audio/mpeg",
    "oga": "audio/ogg",
    "ogg": "audio/ogg",
    "opus": "audio/ogg",
    "wav": "audio/wav",
    "pdf": "application/pdf",
}

_PIECE_BYTES = 256 << 10
_MAX_RANGES = 100
_HUGE = 2**64  # larger than any file
MEDIA_TYPE = OCTETS
MEDIA_TYPES = (MEDIA_TYPE, "image/*", "video/*", "audio/*", "application/pdf")
# Lifetime of the URL in a redirect, which clients follow at once.
_SENT_ON_SECONDS = 60
_SPEC = re.compile(r"[ \t]*(?:([0-9]+)-([0-9]*)|-([0-9]+))[ \t]*")

Range = tuple[int, int]  # offset and length in bytes
Parts = list[tuple[bytes, Range]]


def preview_type_of(name: str) -> str | None:
    """Return the media type for an inline preview; None if a file of this name can only be saved."""
    _, dot, ending = name.rpartition(".")
    return _PREVIEW_TYPES.get(ending.lower()) if dot else None


def parse_ranges(header: str, size: int) -> list[Range] | None:
    """Return the ranges within `size` bytes; None if the header is to be ignored. Raises RangeNotSatisfiable if no range
    matches, or for more than 100 ranges."""
    unit, equals, specs = header.partition("=")
    if unit.strip().lower() != "bytes" or not equals:
        return None
    parts = [part for part in specs.split(",") if part.strip()]
    matches = [_SPEC.fullmatch(part) for part in parts]
    if not matches or any(match is None or not _is_ordered(match) for match in matches):
        return None
    if len(parts) > _MAX_RANGES:
        raise RangeNotSatisfiable(f"More than {_MAX_RANGES} ranges.", size=size)
    ranges = [found for match in matches if match and (found := _within(match, size)) is not None]
    if not ranges:
        raise RangeNotSatisfiable(size=size)
    # Overlapping ranges larger than the file are an attack or a mistake (RFC 9110, section 14.2).
    return ranges if sum(length for _, length in ranges) <= size else None


def _number(digits: str) -> int:
    # Python refuses to convert thousands of digits.
    significant = digits.lstrip("0")
    return int(significant or "0") if len(significant) < 20 else _HUGE


def _is_ordered(match: re.Match[str]) -> bool:
    if not match[2]:
        return True
    first, last = match[1].lstrip("0"), match[2].lstrip("0")
    return (len(first), first) <= (len(last), last)


def _within(match: re.Match[str], size: int) -> Range | None:
    first, last, suffix = match.groups()
    if suffix is not None:
        length = min(_number(suffix), size)
        return (size - length, length) if length else None
    offset = _number(first)
    if offset >= size:
        return None
    end = min(_number(last) + 1, size) if last else size
    return offset, end - offset


def disposition(name: str) -> str:
    """Return an `attachment` header with the last segment of the name: in ASCII for old clients, and in the form of RFC
    8187."""
    segment = name.rsplit("/", 1)[-1]
    ascii_name = re.sub(r"[^ !#-\[\]-~]|%", "_", segment)
    return f"attachment; filename=\"{ascii_name}\"; filename*=UTF-8''{quote(segment, safe='')}"


def _headers(file: File) -> dict[str, str]:
    digest = base64.b64encode(bytes.fromhex(file.sha256)).decode()
    return {
        "Accept-Ranges": "bytes",
        "ETag": f'"{file.sha256}"',
        "Repr-Digest": f"sha-256=:{digest}:",
        "Content-Disposition": disposition(file.name),
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox",
        "Cache-Control": "private, no-cache",
    }


class Contents(Protocol):
    """Opens the contents of files, or of deleted files."""

    async def open(self, file: File) -> OpenBlob:
        """Open the content of a file; the caller closes it."""

    async def read_first(self, file: File, content: OpenBlob, length_bytes: int, offset: int) -> tuple[OpenBlob, bytes]:
        """Read the first bytes of an open content; close it if that fails. Also return the content, because healing may have
        replaced it."""

    def noting(self, file: File) -> AbstractAsyncContextManager[None]:
        """Watch the reading of a content, and report damage."""


async def download(
    request: Request, file: File, files: Contents, *, inline: bool = False, sends_on: bool = False
) -> Response:
    """Answer `GET` or `HEAD`. `inline` lets the browser show the file if its type is safe. `sends_on` allows a redirect to
    the store. Raises PreconditionFailed, RangeNotSatisfiable, and the errors of `files.open`."""
    preview_type = preview_type_of(file.name) if inline else None
    headers = _headers(file)
    if preview_type is not None:
        headers["Content-Disposition"] = headers["Content-Disposition"].replace("attachment", "inline", 1)
        headers["Content-Security-Policy"] = _PDF_POLICY if preview_type == "application/pdf" else _PREVIEW_POLICY
        headers["X-Frame-Options"] = "SAMEORIGIN"
    media_type = preview_type or MEDIA_TYPE
    if is_not_modified(request, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    ranges = _ranges_of(request, file)
    blob = await files.open(file)
    if request.method == "HEAD":
        await blob.close()
        return Response(status_code=200, headers={**headers, "Content-Length": str(file.size)}, media_type=media_type)
    # S3 supports one range, and does not know the server's ETag in `If-Range`.
    is_simple = len(ranges) == 1 if ranges is not None else "range" not in request.headers
    if sends_on and not inline and isinstance(blob, PresigningBlob) and is_simple:
        try:
            url = await blob.presign(_SENT_ON_SECONDS, headers["Content-Disposition"], MEDIA_TYPE)
        finally:
            await uninterrupted(blob.close())
        # Not cached: the URL gives the file to anybody.
        return Response(status_code=307, headers={"Location": url, "Cache-Control": "no-store"})
    answer = _answer(blob, file, ranges, headers, media_type)
    answer.noting = partial(files.noting, file)
    await answer.begin(request.scope, partial(files.read_first, file))
    return answer


def _answer(
    blob: OpenBlob, file: File, ranges: list[Range] | None, headers: dict[str, str], media_type: str
) -> "Download":
    if ranges is None:
        return Download(blob, [(b"", (0, file.size))], 200, headers, media_type)
    if len(ranges) == 1:
        offset, length = ranges[0]
        headers["Content-Range"] = f"bytes {offset}-{offset + length - 1}/{file.size}"
        return Download(blob, [(b"", ranges[0])], 206, headers, media_type)
    boundary = secrets.token_hex(16)
    parts = []
    for number, (offset, length) in enumerate(ranges):
        head = (
            f"{'' if number == 0 else chr(13) + chr(10)}--{boundary}\r\nContent-Type: {media_type}\r\n"
            f"Content-Range: bytes {offset}-{offset + length - 1}/{file.size}\r\n\r\n"
        )
        parts.append((head.encode(), (offset, length)))
    parts.append((f"\r\n--{boundary}--\r\n".encode(), (0, 0)))
    return Download(blob, parts, 206, headers, f"multipart/byteranges; boundary={boundary}")


def _ranges_of(request: Request, file: File) -> list[Range] | None:
    header = request.headers.get("range")
    condition = request.headers.get("if-range")
    # If-Range needs a strong match. The server sends no dates, so a date never matches (RFC 9110, section 13.1.5).
    if request.method != "GET" or header is None or (condition is not None and condition.strip() != f'"{file.sha256}"'):
        return None
    return parse_ranges(header, file.size)


class Download(StreamingResponse):
    """Sends parts of an open blob, each after its header, and closes the blob at the end. Altered bytes stop the answer
    before they are sent."""

    # The context in which the content is read; reports damage.
    noting: Callable[[], AbstractAsyncContextManager[None]] = nullcontext

    def __init__(self, blob: OpenBlob, parts: Parts, status: int, headers: dict[str, str], media_type: str) -> None:
        self._blob = blob
        self._parts = parts
        self._by_sendfile = False
        # The beginning of the first part, read before the answer began.
        self._first = b""
        total = sum(len(head) + length for head, (_, length) in parts)
        super().__init__(self._pieces(), status, {**headers, "Content-Length": str(total)}, media_type)

    async def begin(
        self, scope: Scope, read: Callable[[OpenBlob, int, int], Awaitable[tuple[OpenBlob, bytes]]]
    ) -> None:
        """Read the first bytes before the answer begins: an unreadable content then gives an error instead of a broken
        answer."""
        _, (offset, length) = self._parts[0]
        self._choose_way(scope)
        if length:
            wanted = 1 if self._by_sendfile else min(length, _PIECE_BYTES)
            self._blob, self._first = await read(self._blob, wanted, offset)

    def _choose_way(self, scope: Scope) -> None:
        # A part that one read covers is sent together with the headers, just as fast.
        is_large = any(length > _PIECE_BYTES for _, (_, length) in self._parts)
        sends_files = ZERO_COPY_SEND in scope.get("extensions", {}) and isinstance(self._blob, FileBlob)
        self._by_sendfile = is_large and sends_files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._choose_way(scope)
        try:
            async with self.noting():
                await super().__call__(scope, receive, send)
        finally:
            await uninterrupted(self._blob.close())

    async def stream_response(self, send: Send) -> None:
        if not (self._by_sendfile and isinstance(self._blob, FileBlob)):
            await super().stream_response(send)
            return
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for head, (offset, length) in self._parts:
            await send({"type": "http.response.body", "body": head, "more_body": True})
            if length:
                way = {"view": self._blob.view} if isinstance(self._blob, ViewedBlob) else {"file": self._blob.fileno()}
                await send({"type": ZERO_COPY_SEND, **way, "offset": offset, "count": length, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pieces(self) -> AsyncIterator[bytes]:
        for head, (offset, length) in self._parts:
            if head:
                yield head
            end = offset + length
            left = length
            while left:
                piece, self._first = self._first, b""
                piece = piece or await self._blob.read(min(left, _PIECE_BYTES), end - left)
                if not piece:
                    raise EOFError("a blob is shorter than its row says")
                left -= len(piece)
                yield piece
