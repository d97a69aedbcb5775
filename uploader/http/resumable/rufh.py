"""Resumable uploads of HTTP (draft-ietf-httpbis-resumable-upload). Each request is one call of a use case.

An upload becomes a file as soon as all announced bytes are there, because some clients never mark their last request. The
upload's metadata keep the fact that the mark is missing, because clients ask for it.
"""

import asyncio
import base64
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from uploader import errors
from uploader.domain.digest import parse_content_digest
from uploader.domain.links import Caller
from uploader.domain.upload import File, Reason, Upload
from uploader.http.bodies.intake import Incoming
from uploader.http.resumable.request import PREFIX, CheckedBody, end_upload, name_of, parse_metadata, target_of
from uploader.http.server.http11 import InterimResponses
from uploader.http.shared.operation import Call, public_path
from uploader.http.shared.problem import problem_response
from uploader.http.shared.responses import INTERIM
from uploader.runtime.clock import Clock
from uploader.runtime.tasks import uninterrupted
from uploader.service.append import Appends, Part
from uploader.service.chunk import check_digests
from uploader.service.ids import new_id
from uploader.service.open import Openings
from uploader.service.results import Appended, Complete, Opening, StillMerging, Target, UploadStatus
from uploader.service.status import Uploads

# Until there is an RFC, requests name a version: 3 is draft -01, 4 is -02, 5 is -03, 6 is -04 and -05, 7 is -06 to -08, 8 is
# -09 to -11, 9 is -12 to -15. A request without one of these is served as version 9, without interim responses.
VERSION = "Upload-Draft-Interop-Version"
BYTES = "application/partial-upload"
# Headers that identify a request of this protocol.
MARKS = (VERSION, "Upload-Complete", "Upload-Incomplete")
_FIRST, _LAST = 3, 9
# The largest integer of structured fields (RFC 9651, section 3.3.1).
_LARGEST = 10**15 - 1
_PARAMETERS = r"\s*(?:;.*)?"
_INTEGER = re.compile(r"([0-9]{1,15})" + _PARAMETERS)
_BOOLEAN = re.compile(r"\?([01])" + _PARAMETERS)
# A parameter of Content-Disposition (RFC 6266): name, and value as a quoted string or a token.
_OF_DISPOSITION = re.compile(r";\s*([\w!#$%&'*+.^`|~-]+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|([^\s;\"]+))", re.ASCII)
_CHARSETS = {"utf-8": "utf-8", "iso-8859-1": "latin-1"}


class _AlreadyComplete(errors.BadRequest, code=errors.BadRequest.code):
    """The upload is complete already."""


_BAD_REQUESTS = (errors.DigestMismatch, errors.InvalidRequest, errors.LengthExceeded, errors.SizeMismatch)
# Errors of the finished file, after all bytes came.
_OF_THE_FILE = (errors.Md5Mismatch, errors.Sha256Mismatch, errors.NameTaken)
_TYPES = "https://iana.org/assignments/http-problem-types#"
_PROBLEMS: dict[type[errors.UploaderError], tuple[str, str]] = {
    errors.OffsetMismatch: ("mismatching-upload-offset", "Mismatching Upload Offset"),
    errors.SizeMismatch: ("inconsistent-upload-length", "Inconsistent Upload Length Values"),
    errors.LengthExceeded: ("inconsistent-upload-length", "Inconsistent Upload Length Values"),
    _AlreadyComplete: ("completed-upload", "Upload Is Completed"),
}

# The metadata of an upload whose client has not yet marked a request as the last.
INCOMPLETE = "incomplete"

SUPPORTED = 104  # Upload Resumption Supported
_PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Draft:
    version: int
    is_named: bool

    @property
    def is_inverted(self) -> bool:
        """Return True if the header says that the upload is incomplete after this request; later versions say the
        opposite."""
        return self.version == _FIRST

    @property
    def names_type(self) -> bool:
        """Return True if a PATCH needs the protocol's own media type."""
        return self.version >= 6

    @property
    def tells_progress(self) -> bool:
        """Return True if an interim response may hold only the offset."""
        return self.version >= 5

    def completes(self, headers: Headers) -> bool | None:
        """Return True if the request is marked as the last, False if not, None without a valid mark."""
        name = "Upload-Incomplete" if self.is_inverted else "Upload-Complete"
        match = _BOOLEAN.fullmatch(_only(headers, name))
        return None if match is None else (match[1] == "1") is not self.is_inverted

    def completeness(self, complete: bool) -> dict[str, str]:
        if self.is_inverted:
            return {"Upload-Incomplete": "?0" if complete else "?1"}
        return {"Upload-Complete": "?1" if complete else "?0"}

    @property
    def repeats_answer(self) -> bool:
        """Return True if a repeated last request without content gets the first answer again."""
        return self.version >= 9

    def limits(
        self, max_size_bytes: int, max_append_size_bytes: int | None, age_seconds: float | None
    ) -> dict[str, str]:
        if self.version < 6:
            return {}
        limits = {"max-size": min(max_size_bytes, _LARGEST)}
        if max_append_size_bytes is not None:
            limits["max-append-size"] = min(max_append_size_bytes, _LARGEST)
        if age_seconds is not None:
            limits["max-age" if self.version >= 7 else "expires"] = max(0, int(age_seconds))
        return {"Upload-Limit": ", ".join(f"{name}={value}" for name, value in limits.items())}

    def named(self) -> dict[str, str]:
        return {VERSION: str(self.version)} if self.is_named else {}


CURRENT = Draft(_LAST, is_named=False)


def draft_of(headers: Headers) -> Draft:
    named = integer_in(headers, VERSION)
    if named is not None and _FIRST <= named <= _LAST:
        return Draft(named, is_named=True)
    return Draft(_FIRST, is_named=False) if "upload-incomplete" in headers else CURRENT


def integer_in(headers: Headers, name: str) -> int | None:
    """Return None for an invalid number, as for all structured fields (RFC 9651)."""
    match = _INTEGER.fullmatch(_only(headers, name))
    return None if match is None else int(match[1])


def _only(headers: Headers, name: str) -> str:
    values = headers.getlist(name)
    return values[0].strip() if len(values) == 1 else ""


def filename_in(headers: Headers) -> str | None:
    """Return the file name; the extended form `filename*` wins (RFC 6266, section 4.3)."""
    found = {
        name.lower(): quoted or token
        for name, quoted, token in _OF_DISPOSITION.findall(headers.get("content-disposition", ""))
    }
    return _extended(found.get("filename*", "")) or _plain(found)


def _extended(text: str) -> str | None:
    """Decode a value of RFC 8187."""
    charset, _, rest = text.partition("'")
    encoding = _CHARSETS.get(charset.lower())
    if encoding is None:
        return None
    return unquote_to_bytes(rest.partition("'")[2]).decode(encoding, errors="replace")


def _plain(found: Mapping[str, str]) -> str | None:
    """Return the plain `filename`; clients put UTF-8 into it, although headers are Latin-1."""
    text = re.sub(r"\\(.)", r"\1", found.get("filename", ""))
    try:
        return text.encode("latin-1").decode() or None
    except UnicodeError:
        return text


def opening_of(call: Call, complete: bool) -> Opening:
    """Return the arguments of the creation. Raises InvalidRequest, SizeMismatch, LengthExceeded, UnsupportedMediaType."""
    headers, upload_id = call.request.headers, new_id()
    call.claims()
    filename, metadata = filename_in(headers), headers.get("upload-metadata")
    told = {"filename": filename} if filename else parse_metadata(metadata or "")
    digests, length = _repr_digests(headers.getlist("repr-digest")), _length(call, complete)
    # Either digest identifies the file. The MD5 would also find another upload or file with this content; use it only if
    # there is no SHA-256.
    md5 = digests.get("md5") if "sha-256" not in digests else None
    if md5 is not None and length is None:
        raise errors.InvalidRequest.field(
            "Repr-Digest", "has an MD5 without Upload-Length: add Upload-Length, or send SHA-256"
        )
    return Opening(
        caller=call.caller,
        md5=md5,
        sha256=digests.get("sha-256"),
        name=name_of(told, upload_id),
        size=length or 0,
        length_known=length is not None,
        instant=False,
        id=upload_id,
        metadata=None if complete else INCOMPLETE,
        computes_md5=False,
        brings_bytes=content_length(call) != 0,
    )


def _repr_digests(headers: list[str]) -> dict[str, str]:
    """Return the digests in hexadecimal. Raises InvalidRequest."""
    try:
        return {name: digest.hex() for header in headers for name, digest in parse_content_digest(header).items()}
    except ValueError as error:
        raise errors.InvalidRequest.field("Repr-Digest", str(error)) from error


def _length(call: Call, complete: bool) -> int | None:
    """Return the length of the upload; None if unknown. Raises SizeMismatch, LengthExceeded."""
    content, told = content_length(call), integer_in(call.request.headers, "Upload-Length")
    if complete and content is not None:
        if told not in (None, content):
            raise errors.SizeMismatch(
                "Upload-Length and Content-Length differ in a request that completes the upload.", size=told
            )
        return content
    if told is not None and (content or 0) > told:
        raise errors.LengthExceeded(limit=told)
    return told


def content_length(call: Call) -> int | None:
    declared = call.intake.body_of(call.request).declared_bytes
    return 0 if declared is None and "transfer-encoding" not in call.request.headers else declared


async def has_content(call: Call) -> bool:
    content = content_length(call)
    if content is not None:
        return content > 0
    try:
        body = await call.intake.body_of(call.request).receive_up_to(call.caller, 0)
    except errors.FileTooLarge:
        return True
    body.close()
    return False


def completes(call: Call, draft: Draft) -> bool:
    """Return True if this request is the last of its upload. Raises InvalidRequest."""
    headers = call.request.headers
    complete = draft.completes(headers)
    if complete is not None or draft.is_inverted:
        return complete is not False
    # tus-js-client 4 ends a stream with such a request.
    if content_length(call) == 0 and integer_in(headers, "Upload-Length") is not None:
        return False
    raise errors.InvalidRequest.field("Upload-Complete", "is neither ?0 nor ?1")


@dataclass(slots=True)
class ToldBody:
    """A body of at most `max_bytes`; interim responses tell the client how many bytes are stored."""

    body: Incoming
    interim: InterimResponses | None
    facts: dict[str, str]
    told_offset: int
    max_bytes: int | None
    _received_bytes: int = 0
    _next_at: float = 0.0

    @property
    def declared_bytes(self) -> int | None:
        return self.body.declared_bytes

    async def receive_part(self, caller: Caller, limit_bytes: int, goes_on: Callable[[], bool]) -> Part:
        if self.max_bytes is None:
            return await self.body.receive_part(caller, limit_bytes, goes_on)
        # One more byte proves the body too long; the bytes before are kept.
        left_bytes = self.max_bytes - self._received_bytes
        part = await self.body.receive_part(caller, min(limit_bytes, left_bytes or 1), goes_on)
        self._received_bytes += part.body.length
        if not left_bytes and part.body.length:
            part.body.close()
            raise append_too_large(self.max_bytes)
        return part

    def stored(self, offset: int) -> None:
        now = asyncio.get_running_loop().time()
        if self.interim is None or offset == self.told_offset or now < self._next_at or not self.interim.has_room:
            return
        self.told_offset, self._next_at = offset, now + _PAUSE_SECONDS
        self.interim.send(SUPPORTED, self.facts | {"Upload-Offset": str(offset)})


def append_too_large(limit_bytes: int) -> errors.FileTooLarge:
    detail = "One request may bring so many bytes: send the upload in several requests."
    return errors.FileTooLarge(detail, limit=limit_bytes)


@dataclass(frozen=True, slots=True)
class RufhHandlers:
    openings: Openings
    appends: Appends
    uploads: Uploads
    clock: Clock
    sends_interim: bool
    expiry_seconds: float
    # The limit for the content of one request.
    max_append_size_bytes: int | None

    # All requests and answers

    def facts(self) -> dict[str, str]:
        return {"Accept-Patch": BYTES, **self._limits(CURRENT, self.expiry_seconds)}

    def refuse(self, request: Request, error: errors.UploaderError, headers: dict[str, str]) -> Response:
        draft = draft_of(request.headers)
        kind = next((kind for kind in _PROBLEMS if isinstance(error, kind)), None)
        if kind is _AlreadyComplete and draft.repeats_answer:
            kind = None  # these versions have no such problem type
        members: dict[str, Any] = (
            {} if kind is None else {"type": _TYPES + _PROBLEMS[kind][0], "title": _PROBLEMS[kind][1]}
        )
        if request.method in ("POST", "PATCH"):
            complete = isinstance(error, _OF_THE_FILE) and draft.completes(request.headers) is not False
            headers |= draft.completeness(complete)
        if isinstance(error, errors.OffsetMismatch):
            headers["Upload-Offset"] = str(error.fields["offset"])
            members["expected-offset"] = error.fields["offset"]
            members["provided-offset"] = integer_in(request.headers, "Upload-Offset")
        if isinstance(error, errors.UnsupportedMediaType):
            headers["Accept-Patch"] = BYTES
        return problem_response(error, headers, 400 if isinstance(error, _BAD_REQUESTS) else None, **members)

    def mark(self, request: Request, response: Response) -> None:
        draft = draft_of(request.headers)
        response.headers.update(draft.named())
        if "upload-limit" not in response.headers:
            response.headers.update(self._limits(draft))

    # Creation

    async def create(self, call: Call) -> Response:
        draft = draft_of(call.request.headers)
        self._check_append_size(call)
        complete = draft.completes(call.request.headers) is not False  # without a mark, any POST is a complete upload
        opening = opening_of(call, complete)
        target, place = Target(call.caller, upload_id=opening.id), public_path(f"{PREFIX}/{opening.id}")
        match await self.openings.open(opening):
            case UploadStatus(upload=upload) as opened if upload.id == opening.id:
                facts = {"Location": place} | self._limits(draft, self._age_seconds(opened.expires_at))
                told = await self._append_first(call, draft, target, opened, facts, complete=complete)
            case UploadStatus(upload=other):
                raise errors.UploadExists(id=other.id)
            case Complete(created=created) as told:
                if await has_content(call):
                    raise errors.LengthExceeded(limit=told.file.size)
                facts = {"Location": place} if created else {}
            case challenge:
                raise TypeError(challenge)  # challenges only answer instant uploads
        return _answer(draft, told, 201, facts, complete=complete)

    async def _append_first(
        self, call: Call, draft: Draft, target: Target, opened: UploadStatus, facts: dict[str, str], *, complete: bool
    ) -> Appended | StillMerging | Complete:
        """Append the bytes of the creating request. If that fails and no interim response has announced the upload, cancel
        it: its client does not know it."""
        interim = self._interim_of(call, draft)
        if interim is not None:
            interim.send(SUPPORTED, facts | draft.named())
        if opened.merging:
            return StillMerging(opened)
        if content_length(call) == 0:
            return Appended(offset=0, upload=opened.upload, expires_at=opened.expires_at)
        try:
            telling = interim if draft.tells_progress else None
            return await self._append(call, target, 0, telling, draft.named() | facts, complete=complete)
        except BaseException:
            if interim is None:
                await uninterrupted(self._end(target))
            raise

    def _interim_of(self, call: Call, draft: Draft) -> InterimResponses | None:
        offered = call.request.scope.get("extensions", {}).get(INTERIM)
        return offered["responses"] if offered and self.sends_interim and draft.is_named else None

    def _limits(self, draft: Draft, age_seconds: float | None = None) -> dict[str, str]:
        return draft.limits(self.openings.max_file_size_bytes, self.max_append_size_bytes, age_seconds)

    def _age_seconds(self, expires_at: datetime) -> float:
        return (expires_at - self.clock.now()).total_seconds()

    def _check_append_size(self, call: Call) -> None:
        """Raises FileTooLarge if the declared length exceeds the limit of one request."""
        content = content_length(call)
        if self.max_append_size_bytes is not None and content is not None and content > self.max_append_size_bytes:
            raise append_too_large(self.max_append_size_bytes)

    # Asking

    async def head(self, call: Call) -> Response:
        headers, draft, target = call.request.headers, draft_of(call.request.headers), target_of(call)
        if any(name in headers for name in ("Upload-Offset", "Upload-Complete", "Upload-Incomplete")):
            raise errors.BadRequest("A HEAD takes neither Upload-Offset nor Upload-Complete.")
        length: int | None
        match await self.appends.status(target):
            case Complete(file=file):
                facts = _facts_of(file)
                offset = length = file.size
                metadata = (await self.uploads.known(target)).metadata
            case Appended(offset=offset, upload=upload, expires_at=expires_at):
                facts = self._limits(draft, self._age_seconds(expires_at))
                length = upload.size if upload.length_known else None
                metadata = upload.metadata
        facts |= {} if length is None else {"Upload-Length": str(length)}
        state = draft.completeness(offset == length and metadata != INCOMPLETE)
        return Response(status_code=204, headers=facts | state | {"Upload-Offset": str(offset)})

    # Appending

    async def patch(self, call: Call) -> Response:
        headers, draft, target = call.request.headers, draft_of(call.request.headers), target_of(call)
        call.claims()
        self._check_append_size(call)
        if draft.names_type and headers.get("content-type", "").partition(";")[0].strip().lower() != BYTES:
            raise errors.UnsupportedMediaType(f"A PATCH needs the Content-Type {BYTES}.")
        offset = integer_in(headers, "Upload-Offset")
        if offset is None:
            raise errors.InvalidRequest.field("Upload-Offset", "is not a whole number of at most 15 digits")
        complete = completes(call, draft)
        match await self.appends.find(target, offset):
            case Complete() as full:
                told: Appended | StillMerging | Complete = full
                repeats = complete and draft.repeats_answer
                is_marked = await self._append_to_full(call, target, full, offset, repeats=repeats)
            case Upload() as upload:
                is_marked = upload.metadata == INCOMPLETE
                interim = self._interim_of(call, draft) if draft.tells_progress else None
                told = await self._append(call, target, offset, interim, draft.named(), complete=complete)
        if complete and is_marked:
            await self.uploads.forget_metadata(target)
        location = {"Location": public_path(f"{PREFIX}/{target.upload_id}")} if complete else {}
        return _answer(draft, told, 201 if complete else 204, location, complete=complete)

    async def _append_to_full(self, call: Call, target: Target, full: Complete, offset: int, *, repeats: bool) -> bool:
        """Handle a request for a full upload. Return True if the client still has to mark the last request; this request may
        then do nothing else. With `repeats`, a repeated last request is accepted too. Raises OffsetMismatch, LengthExceeded,
        SizeMismatch, BadRequest."""
        size = full.file.size
        if offset != size:
            raise errors.OffsetMismatch(offset=size)
        is_more = await has_content(call)
        if (await self.uploads.known(target)).metadata != INCOMPLETE:
            if is_more:
                raise errors.SizeMismatch("The upload is complete: it has no more bytes.", size=size)
            if repeats:
                return False
            raise _AlreadyComplete()
        if is_more:
            await self.uploads.forget(target)  # the upload becomes invalid; the file with the announced bytes stays
            raise errors.LengthExceeded(limit=size)
        if integer_in(call.request.headers, "Upload-Length") not in (None, size):
            raise errors.SizeMismatch("The upload has another length.", size=size)
        return True

    async def _append(
        self,
        call: Call,
        target: Target,
        offset: int,
        interim: InterimResponses | None,
        facts: dict[str, str],
        *,
        complete: bool,
    ) -> Appended | StillMerging | Complete:
        body, claims = call.intake.body_of(call.request), call.claims()
        length = integer_in(call.request.headers, "Upload-Length")
        try:
            if claims.content_digest or claims.content_md5:
                checked = CheckedBody(
                    body, lambda received, _: check_digests(received, claims), self.max_append_size_bytes
                )
                return await self.appends.append_whole(target, offset, checked, length=length, ends=complete)
            telling = ToldBody(body, interim, facts, offset, self.max_append_size_bytes)
            return await self.appends.append(target, offset, telling, length=length, ends=complete)
        except errors.LengthExceeded:
            await uninterrupted(self._end(target, Reason.LENGTH_EXCEEDED))
            raise

    async def _end(self, target: Target, reason: Reason = Reason.CANCELLED) -> None:
        with suppress(errors.UploaderError):
            await self.uploads.cancel(target, reason)

    # Cancelling

    async def delete(self, call: Call) -> Response:
        await end_upload(self.uploads, self.appends, target_of(call))
        return Response(status_code=204)


def _answer(
    draft: Draft, told: Appended | StillMerging | Complete, status: int, facts: dict[str, str], *, complete: bool
) -> Response:
    """Answer with `status`, or 202 while the file is being merged."""
    match told:
        case Appended(offset=offset):
            pass
        case StillMerging(UploadStatus(upload=upload)):
            offset, status = upload.size, 202 if complete else status
        case Complete(file=file):
            offset = file.size
            facts = facts | (_facts_of(file) if complete else {})
    return Response(status_code=status, headers=facts | {"Upload-Offset": str(offset)} | draft.completeness(complete))


def _facts_of(file: File) -> dict[str, str]:
    digest = base64.b64encode(bytes.fromhex(file.sha256)).decode()
    return {"Content-Location": public_path(f"/me/files/{file.id}"), "Repr-Digest": f"sha-256=:{digest}:"}
