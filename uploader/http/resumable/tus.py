"""tus 1.0.0 (https://tus.io/protocols/resumable-upload): each request is one call of a use case, and its result a status.

Extensions: creation, creation-with-upload, creation-defer-length, checksum, checksum-trailer, expiration, termination,
concatenation, concatenation-unfinished.
"""

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import format_datetime

from starlette.requests import Request
from starlette.responses import Response

from uploader.domain.upload import State, UploadKind
from uploader.errors import (
    DigestMismatch,
    FileTooLarge,
    InvalidRequest,
    Unavailable,
    UnsupportedMediaType,
    UploaderError,
)
from uploader.http.auth.proxies import Proxies
from uploader.http.bodies.intake import Incoming
from uploader.http.resumable.checksum import ALGORITHMS, CheckedBody, ToldCheck, checksum_of
from uploader.http.resumable.common import PREFIX, end_upload, target_of
from uploader.http.resumable.metadata import name_of, parse_metadata
from uploader.http.resumable.wholes import PARTIAL, TusWholes, kind_asked
from uploader.http.shared.operation import Call
from uploader.http.shared.problem import problem_response
from uploader.service.append import Appends
from uploader.service.ids import new_id
from uploader.service.open import Openings
from uploader.service.results import Appended, Complete, Opening, StillMerging, Target, UploadStatus
from uploader.service.status import Uploads
from uploader.tasks import uninterrupted

VERSION = "1.0.0"
EXTENSIONS = (
    "creation,creation-with-upload,creation-defer-length,checksum,checksum-trailer,expiration,termination,"
    "concatenation,concatenation-unfinished"
)
BYTES = "application/offset+octet-stream"
# 423 is what clients ask again after; any other refusal of a HEAD makes some of them begin another upload.
_STATUS: dict[type[UploaderError], int] = {Unavailable: 423, DigestMismatch: 460, InvalidRequest: 400}


class TusDialect:
    """What every request and answer has."""

    def __init__(self, max_size_bytes: int) -> None:
        self._max_size_bytes = max_size_bytes

    def facts(self) -> dict[str, str]:
        """What is spoken."""
        facts = {"Tus-Version": VERSION, "Tus-Extension": EXTENSIONS, "Tus-Max-Size": str(self._max_size_bytes)}
        return {"Tus-Resumable": VERSION, **facts, "Tus-Checksum-Algorithm": ",".join(ALGORITHMS)}

    def begin(self, request: Request) -> Response | None:
        if request.headers.get("tus-resumable") == VERSION:
            return None
        response = Response(status_code=412, headers={"Tus-Version": VERSION})
        self.mark(request, response)
        return response

    def refuse(self, _request: Request, error: UploaderError, headers: dict[str, str]) -> Response:
        status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), None)
        return problem_response(error, headers, status)

    def mark(self, _request: Request, response: Response) -> None:
        response.headers["Tus-Resumable"] = VERSION


@dataclass(frozen=True, slots=True)
class TusHandlers:
    """Everything up to the finished file."""

    openings: Openings
    appends: Appends
    uploads: Uploads
    wholes: TusWholes
    proxies: Proxies

    async def create(self, call: Call) -> Response:
        headers = call.request.headers
        kind = kind_asked(call)
        if kind is UploadKind.WHOLE:
            return await self.wholes.create(call)
        size = _length(call)
        body = _body(call)
        if size is not None and body is not None and (body.declared_bytes or 0) > size:
            raise FileTooLarge("The body is longer than the upload.", limit=size)
        checksum = None if body is None else checksum_of(call.request)
        text, upload_id = headers.get("upload-metadata"), new_id()
        opening = Opening(
            user_id=call.user_id,
            md5=None,
            sha256=None,
            name=name_of({} if text is None else parse_metadata(text), upload_id),
            size=size or 0,
            chunk_size=None,
            instant=False,
            id=upload_id,
            metadata=text,
            length_known=size is not None,
            computes_md5=False,
            kind=kind,
        )
        facts = {"Location": self.proxies.absolute(call.request, f"{PREFIX}/{upload_id}")}
        opened = await self.openings.open(opening)
        facts |= {"Upload-Expires": _moment(opened.expires_at)} if isinstance(opened, UploadStatus) else {}
        if body is not None:
            target = Target(call.user_id, upload_id=upload_id)
            try:
                told = await self._append(call, target, 0, body, checksum)
            except BaseException as error:
                told = await uninterrupted(self._break_off(target, error))
            facts |= _facts_of(told, size or 0)
        return Response(status_code=201, headers=facts)

    async def _break_off(self, target: Target, error: BaseException) -> Appended | Complete:
        """Where an upload ends whose first bytes did not all count, if its client may go on there. Else that client is told
        of no upload, so there is none: raises `error`."""
        if isinstance(error, UploaderError) and error.retryable and not isinstance(error, DigestMismatch):
            with suppress(UploaderError):
                return await self.appends.status(target)
        with suppress(UploaderError):
            await self.appends.cancel(target)
        raise error

    async def head(self, call: Call) -> Response:
        target = target_of(call)
        if await self.wholes.is_one(target):
            return await self.wholes.head(target)
        upload = await self.uploads.known(target)
        facts = {} if upload.metadata is None else {"Upload-Metadata": upload.metadata}
        facts |= {"Upload-Concat": PARTIAL} if upload.is_part else {}
        if upload.state is State.CONSUMED:  # who lost the last answer hears that all of it came
            return Response(headers={**facts, "Upload-Offset": str(upload.size), "Upload-Length": str(upload.size)})
        told = await self.appends.status(target)
        size = told.file.size if isinstance(told, Complete) else told.status.upload.size
        is_known = isinstance(told, Complete) or told.status.upload.length_known
        facts |= {"Upload-Length": str(size)} if is_known else {"Upload-Defer-Length": "1"}
        return Response(headers=_facts_of(told, size) | facts)

    async def patch(self, call: Call) -> Response:
        target, offset = target_of(call), _count(call, "Upload-Offset")
        await self.wholes.refuse(target)
        checksum = checksum_of(call.request)
        length = _count(call, "Upload-Length") if "upload-length" in call.request.headers else None
        if call.request.headers.get("content-type") != BYTES:
            raise UnsupportedMediaType(f"A PATCH has the Content-Type {BYTES}.")
        told = await self._append(call, target, offset, call.intake.body_of(call.request), checksum, length)
        size = told.file.size if isinstance(told, Complete) else told.status.upload.size
        return Response(status_code=204, headers=_facts_of(told, size))

    async def _append(
        self,
        call: Call,
        target: Target,
        offset: int,
        body: Incoming,
        checksum: ToldCheck | None,
        length: int | None = None,
    ) -> Appended | StillMerging | Complete:
        if checksum is None:
            return await self.appends.append(target, offset, body, length=length)
        return await self.appends.append_whole(target, offset, CheckedBody(body, checksum), length=length)

    async def delete(self, call: Call) -> Response:
        target = target_of(call)
        if await self.wholes.is_one(target):
            await self.wholes.delete(target)
        else:
            await end_upload(self.uploads, self.appends, target)
        return Response(status_code=204)


def _facts_of(told: Appended | StillMerging | Complete, size: int) -> dict[str, str]:
    match told:
        case Appended(offset=offset, status=status):
            return {"Upload-Offset": str(offset), "Upload-Expires": _moment(status.expires_at)}
        case _:
            return {"Upload-Offset": str(size)}


def _body(call: Call) -> Incoming | None:
    """The bytes that come with a creation. Raises UnsupportedMediaType."""
    headers = call.request.headers
    body = call.intake.body_of(call.request)
    if not body.declared_bytes and "transfer-encoding" not in headers:
        return None
    if headers.get("content-type") != BYTES:
        raise UnsupportedMediaType(f"Bytes have the Content-Type {BYTES}.")
    return body


def _length(call: Call) -> int | None:
    """Of an upload that is created; None where it is told later. Raises InvalidRequest."""
    deferred = call.request.headers.getlist("Upload-Defer-Length")
    if not deferred:
        return _count(call, "Upload-Length")
    if deferred != ["1"]:
        raise InvalidRequest.field("Upload-Defer-Length", "is not 1")
    if "upload-length" in call.request.headers:
        raise InvalidRequest.field("Upload-Defer-Length", "is sent with an Upload-Length")
    return None


def _count(call: Call, name: str) -> int:
    """Raises InvalidRequest."""
    values = call.request.headers.getlist(name)
    if len(values) != 1 or not re.fullmatch(r"[0-9]{1,18}", values[0]):
        raise InvalidRequest.field(name, "is not one whole number that is not negative")
    return int(values[0])


def _moment(moment: datetime) -> str:
    """As HTTP has it (RFC 9110, section 5.6.7)."""
    return format_datetime(moment, usegmt=True)
