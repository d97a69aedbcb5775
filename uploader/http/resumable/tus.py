"""tus 1.0.0 (https://tus.io/protocols/resumable-upload). Each request is one call of a use case, and the result becomes a
status.
"""

import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import format_datetime
from urllib.parse import urljoin, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from uploader import errors
from uploader.domain.upload import REDIS_WORDS, NewConcatenation, State, UploadKind
from uploader.http.bodies.intake import Incoming
from uploader.http.resumable.request import (
    ALGORITHMS,
    PREFIX,
    BodyCheck,
    CheckedBody,
    checksum_of,
    end_upload,
    name_of,
    parse_metadata,
    target_of,
)
from uploader.http.shared.mount import inside, mount_of_request
from uploader.http.shared.operation import Call
from uploader.http.shared.problem import problem_response
from uploader.http.shared.proxies import Proxies
from uploader.runtime.tasks import uninterrupted
from uploader.service.append import Appending, Appends
from uploader.service.concatenate import Concatenations
from uploader.service.ids import ID, new_id
from uploader.service.open import Openings
from uploader.service.results import Appended, Complete, Opening, StillMerging, Target, UploadStatus
from uploader.service.status import Uploads

PARTIAL = "partial"
_FINAL = "final;"
_CONCAT = "Upload-Concat"
_MAX_PARTS = 250
# How often a final upload may name the same part: a few bytes of the request copy the whole part once more.
_MAX_NAMINGS = 16
_MAX_CONCAT_BYTES = 16384

VERSION = "1.0.0"
EXTENSIONS = (
    "creation,creation-with-upload,creation-defer-length,checksum,checksum-trailer,expiration,termination,"
    "concatenation,concatenation-unfinished"
)
BYTES = "application/offset+octet-stream"


class _PartRepeated(errors.InvalidRequest, code=errors.InvalidRequest.code):
    """A final upload names a part too often."""


# Clients retry after 423; after any other error of a HEAD, some begin a new upload.
_STATUS: dict[type[errors.UploaderError], int] = {
    errors.Unavailable: 423,
    errors.DigestMismatch: 460,
    _PartRepeated: 422,
    errors.InvalidRequest: 400,
}


def kind_asked(call: Call) -> UploadKind | None:
    """Raises InvalidRequest."""
    values = call.request.headers.getlist(_CONCAT)
    if not values:
        return None
    if values == [PARTIAL]:
        return UploadKind.PART
    if len(values) == 1 and values[0].startswith(_FINAL):
        return UploadKind.WHOLE
    raise errors.InvalidRequest.field(_CONCAT, f"is neither {PARTIAL!r} nor {_FINAL!r} with a list of uploads")


def parse_parts(text: str) -> tuple[str, ...]:
    """Return the ids of the parts; absolute and relative addresses are accepted. Raises InvalidRequest."""
    urls = text.removeprefix(_FINAL).split()
    if not text.isascii() or not 1 <= len(urls) <= _MAX_PARTS or len(text) > _MAX_CONCAT_BYTES:
        raise errors.InvalidRequest.field(
            _CONCAT, f"names no uploads, or more than {_MAX_PARTS}, or in more than {_MAX_CONCAT_BYTES} bytes"
        )
    part_ids = tuple(_part_id(url) for url in urls)
    if max(Counter(part_ids).values()) > _MAX_NAMINGS:
        raise _PartRepeated.field(_CONCAT, f"names an upload more than {_MAX_NAMINGS} times")
    return part_ids


def _part_id(url: str) -> str:
    try:
        found = urlsplit(urljoin(PREFIX, url))
    except ValueError:
        found = urlsplit("")
    parent, _, upload_id = found.path.rpartition("/")
    parent = inside(parent, mount_of_request.get().prefix) or parent
    is_here = found.scheme in ("", "http", "https") and not (found.query or found.fragment)
    if not is_here or parent != PREFIX or not ID.fullmatch(upload_id):
        raise errors.InvalidRequest.field(_CONCAT, "names a URL that is not an upload of this server")
    return upload_id


@dataclass(frozen=True, slots=True)
class TusHandlers:
    openings: Openings
    appends: Appends
    uploads: Uploads
    concatenations: Concatenations
    proxies: Proxies

    # All requests and answers

    def facts(self) -> dict[str, str]:
        max_size = str(self.openings.max_file_size_bytes)
        facts = {"Tus-Version": VERSION, "Tus-Extension": EXTENSIONS, "Tus-Max-Size": max_size}
        return {"Tus-Resumable": VERSION, **facts, "Tus-Checksum-Algorithm": ",".join(ALGORITHMS)}

    def begin(self, request: Request) -> Response | None:
        if request.headers.get("tus-resumable") == VERSION:
            return None
        response = Response(status_code=412, headers={"Tus-Version": VERSION})
        self.mark(request, response)
        return response

    def refuse(self, request: Request, error: errors.UploaderError, headers: dict[str, str]) -> Response:
        status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), None)
        if isinstance(error, errors.UploadGone) and request.method != "POST":
            # tus-java-client starts again only after 404. A part that a final upload consumed must not be sent again,
            # though.
            status = None if error.fields.get("reason") == REDIS_WORDS[State.CONSUMED] else 404
        return problem_response(error, headers, status)

    def mark(self, _request: Request, response: Response) -> None:
        response.headers["Tus-Resumable"] = VERSION

    # Creation

    async def create(self, call: Call) -> Response:
        headers = call.request.headers
        kind = kind_asked(call)
        if kind is UploadKind.WHOLE:
            return await self._create_final(call)
        call.claims()
        size = _length(call)
        body = _body(call)
        if size is not None and body is not None and (body.declared_bytes or 0) > size:
            raise errors.FileTooLarge("The body is longer than the upload.", limit=size)
        checksum = None if body is None else checksum_of(call.request)
        text, upload_id = headers.get("upload-metadata"), new_id()
        opening = Opening(
            caller=call.caller,
            md5=None,
            sha256=None,
            name=name_of({} if text is None else parse_metadata(text), upload_id),
            size=size or 0,
            instant=False,
            id=upload_id,
            metadata=text,
            tells_metadata=True,
            length_known=size is not None,
            computes_md5=False,
            kind=kind,
        )
        facts = {"Location": self.proxies.absolute(call.request, f"{PREFIX}/{upload_id}")}
        opened = await self.openings.open(opening)
        facts |= {"Upload-Expires": _moment(opened.expires_at)} if isinstance(opened, UploadStatus) else {}
        if body is not None:
            target = Target(call.caller, upload_id=upload_id)
            try:
                told = await self._append(target, 0, body, checksum)
            except BaseException as error:
                told = await uninterrupted(self._break_off(target, error))
            facts |= _facts_of(told)
        return Response(status_code=201, headers=facts)

    async def _create_final(self, call: Call) -> Response:
        """Create a final upload. The same parts in the same order give the same upload."""
        headers, upload_id = call.request.headers, new_id()
        if "upload-length" in headers:
            raise errors.InvalidRequest.field("Upload-Length", "is the sum of the parts: leave it out")
        text, ordered = headers.get("upload-metadata"), headers[_CONCAT]
        made = await self.concatenations.order(
            NewConcatenation(
                id=upload_id,
                user_id=call.caller.user_id,
                session=call.caller.session,
                name=name_of({} if text is None else parse_metadata(text), upload_id),
                metadata=text,
                ordered=ordered,
                part_ids=parse_parts(ordered),
            )
        )
        return Response(status_code=201, headers={"Location": self.proxies.absolute(call.request, f"{PREFIX}/{made}")})

    async def _head_of_final(self, target: Target) -> Response:
        status = await self.concatenations.status(target)
        facts = {_CONCAT: status.ordered}
        facts |= {} if status.size is None else {"Upload-Length": str(status.size)}
        facts |= {} if status.metadata is None else {"Upload-Metadata": status.metadata}
        return Response(headers=facts | ({"Upload-Offset": str(status.size)} if status.finished else {}))

    async def _break_off(self, target: Target, error: BaseException) -> Appended | Complete:
        """Handle a creation whose first bytes failed. If the client may continue, return the end of the upload. Otherwise
        cancel the upload, because the error answer does not name it, and raise `error`."""
        if isinstance(error, errors.UploaderError) and error.retryable and not isinstance(error, errors.DigestMismatch):
            with suppress(errors.UploaderError):
                return await self.appends.status(target)
        with suppress(errors.UploaderError):
            await self.appends.cancel(target)
        raise error

    async def head(self, call: Call) -> Response:
        target = target_of(call)
        if await self.concatenations.is_whole(target):
            return await self._head_of_final(target)
        upload = await self.uploads.known(target)
        facts = {} if upload.metadata is None else {"Upload-Metadata": upload.metadata}
        facts |= {"Upload-Concat": PARTIAL} if upload.is_part else {}
        if upload.state is State.CONSUMED:  # the client may have lost the last answer: tell it that all bytes came
            return Response(headers={**facts, "Upload-Offset": str(upload.size), "Upload-Length": str(upload.size)})
        told = await self.appends.status(target)
        size = told.file.size if isinstance(told, Complete) else told.upload.size
        is_known = isinstance(told, Complete) or told.upload.length_known
        facts |= {"Upload-Length": str(size)} if is_known else {"Upload-Defer-Length": "1"}
        return Response(headers=_facts_of(told) | facts)

    async def patch(self, call: Call) -> Response:
        target, offset = target_of(call), _count(call, "Upload-Offset")
        call.claims()
        if not self.appends.receiving.remembers(target) and await self.concatenations.is_whole(target):
            raise errors.Forbidden("This upload consists of its parts: it takes no bytes.")
        checksum = checksum_of(call.request)
        length = _count(call, "Upload-Length") if "upload-length" in call.request.headers else None
        if call.request.headers.get("content-type") != BYTES:
            raise errors.UnsupportedMediaType(f"A PATCH needs the Content-Type {BYTES}.")
        told = await self._append(target, offset, call.intake.body_of(call.request), checksum, length)
        return Response(status_code=204, headers=_facts_of(told))

    def _append(
        self, target: Target, offset: int, body: Incoming, checksum: BodyCheck | None, length: int | None = None
    ) -> Appending:
        if checksum is None:
            return self.appends.append(target, offset, body, length=length)
        return self.appends.append_whole(target, offset, CheckedBody(body, checksum), length=length)

    async def delete(self, call: Call) -> Response:
        target = target_of(call)
        if await self.concatenations.is_whole(target):
            await self.concatenations.cancel(target)
        else:
            await end_upload(self.uploads, self.appends, target)
        return Response(status_code=204)


def _facts_of(told: Appended | StillMerging | Complete) -> dict[str, str]:
    match told:
        case Appended(offset=offset, expires_at=expires_at):
            return {"Upload-Offset": str(offset), "Upload-Expires": _moment(expires_at)}
        case StillMerging(status):
            return {"Upload-Offset": str(status.upload.size)}
        case Complete(file=file):
            return {"Upload-Offset": str(file.size)}


def _body(call: Call) -> Incoming | None:
    """Return the body, or None without one. Raises UnsupportedMediaType."""
    headers = call.request.headers
    body = call.intake.body_of(call.request)
    if not body.declared_bytes and "transfer-encoding" not in headers:
        return None
    if headers.get("content-type") != BYTES:
        raise errors.UnsupportedMediaType(f"A request with bytes needs the Content-Type {BYTES}.")
    return body


def _length(call: Call) -> int | None:
    """Return the length; None if it is deferred. Raises InvalidRequest."""
    deferred = call.request.headers.getlist("Upload-Defer-Length")
    if not deferred:
        return _count(call, "Upload-Length")
    if deferred != ["1"]:
        raise errors.InvalidRequest.field("Upload-Defer-Length", "is not 1")
    if "upload-length" in call.request.headers:
        raise errors.InvalidRequest.field("Upload-Defer-Length", "excludes Upload-Length")
    return None


def _count(call: Call, name: str) -> int:
    values = call.request.headers.getlist(name)
    if len(values) != 1 or not re.fullmatch(r"[0-9]{1,18}", values[0]):
        raise errors.InvalidRequest.field(name, "is not a whole number of at most 18 digits")
    return int(values[0])


def _moment(moment: datetime) -> str:
    """Format a time for an HTTP header (RFC 9110, section 5.6.7)."""
    return format_datetime(moment, usegmt=True)
