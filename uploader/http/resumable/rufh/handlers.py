"""Resumable uploads of HTTP (draft-ietf-httpbis-resumable-upload): each request is one call of a use case, and its result
header fields.

All bytes that were announced make a file as soon as they are there: some clients never say that they are the last. Whether a
client has said so is kept beside the upload, because it is asked for.
"""

import base64
from contextlib import suppress
from dataclasses import dataclass

from starlette.responses import Response

from uploader.clock import Clock
from uploader.domain.upload import File, Reason, Upload
from uploader.errors import (
    BadRequest,
    InvalidRequest,
    LengthExceeded,
    OffsetMismatch,
    SizeMismatch,
    UnsupportedMediaType,
    UploaderError,
    UploadExists,
)
from uploader.http.resumable.checksum import CheckedBody, ContentDigest
from uploader.http.resumable.common import PREFIX, end_upload, target_of
from uploader.http.resumable.rufh.dialect import completed
from uploader.http.resumable.rufh.drafts import BYTES, Draft, draft_of, integer_in
from uploader.http.resumable.rufh.requests import INCOMPLETE, completes, content_length, has_content, opening_of
from uploader.http.resumable.rufh.telling import SUPPORTED, ToldBody
from uploader.http.shared.operation import Call
from uploader.http.shared.responses import INTERIM, Interim
from uploader.service.append import Appends
from uploader.service.open import Openings
from uploader.service.results import Appended, Complete, StillMerging, Target, UploadStatus
from uploader.service.status import Uploads
from uploader.tasks import uninterrupted


@dataclass(frozen=True, slots=True)
class RufhHandlers:
    """Everything up to the finished file."""

    openings: Openings
    appends: Appends
    uploads: Uploads
    clock: Clock
    # Whether interim responses are sent.
    sends_interim: bool

    # Creation

    async def create(self, call: Call) -> Response:
        draft = draft_of(call.request.headers)
        complete = draft.completes(call.request.headers) is not False  # any POST is an upload, and all of it
        opening = opening_of(call, complete)
        target, place = Target(call.user_id, upload_id=opening.id), f"{PREFIX}/{opening.id}"
        match await self.openings.open(opening):
            case UploadStatus(upload=upload) as opened if upload.id == opening.id:
                facts = {"Location": place} | self._limits(draft, opened)
                told = await self._append_first(call, draft, target, opened, facts, complete=complete)
            case UploadStatus(upload=other):
                raise UploadExists(id=other.id)
            case Complete(created=created) as told:
                if await has_content(call):
                    raise LengthExceeded(limit=told.file.size)
                facts = {"Location": place} if created else {}
            case challenge:
                raise TypeError(challenge)  # only where it was asked for
        return _answer(draft, told, 201, facts, complete=complete)

    async def _append_first(
        self, call: Call, draft: Draft, target: Target, opened: UploadStatus, facts: dict[str, str], *, complete: bool
    ) -> Appended | StillMerging | Complete:
        """What comes with the creation. An upload whose client has not heard of it ends with the request, if that fails."""
        interim = self._interim_of(call, draft)
        if interim is not None:
            interim.send(SUPPORTED, facts | draft.named())
        if opened.merging:
            return StillMerging(opened)
        if content_length(call) == 0:
            return Appended(offset=0, status=opened)
        try:
            telling = interim if draft.tells_progress else None
            return await self._append(call, target, 0, telling, draft.named() | facts, complete=complete)
        except BaseException:
            if interim is None:
                await uninterrupted(self._end(target))
            raise

    def _interim_of(self, call: Call, draft: Draft) -> Interim | None:
        """What may tell the client something before the answer, if it understands that."""
        offered = call.request.scope.get("extensions", {}).get(INTERIM)
        return offered["responses"] if offered and self.sends_interim and draft.is_named else None

    def _limits(self, draft: Draft, status: UploadStatus) -> dict[str, str]:
        left = status.expires_at - self.clock.now()
        return draft.limits(self.openings.max_file_size_bytes, left.total_seconds())

    # Asking

    async def head(self, call: Call) -> Response:
        headers, draft, target = call.request.headers, draft_of(call.request.headers), target_of(call)
        if any(name in headers for name in ("Upload-Offset", "Upload-Complete", "Upload-Incomplete")):
            raise BadRequest("Who asks for the offset tells none, and completes nothing.")
        length: int | None
        match await self.appends.status(target):
            case Complete(file=file):
                facts = _facts_of(file)
                offset = length = file.size
                metadata = (await self.uploads.known(target)).metadata
            case Appended(offset=offset, status=status):
                facts = self._limits(draft, status)
                length = status.upload.size if status.upload.length_known else None
                metadata = status.upload.metadata
        facts |= {} if length is None else {"Upload-Length": str(length)}
        state = draft.completeness(offset == length and metadata != INCOMPLETE)
        return Response(status_code=204, headers=facts | state | {"Upload-Offset": str(offset)})

    # Appending

    async def patch(self, call: Call) -> Response:
        headers, draft, target = call.request.headers, draft_of(call.request.headers), target_of(call)
        call.claims()
        if draft.names_type and headers.get("content-type", "").partition(";")[0].strip().lower() != BYTES:
            raise UnsupportedMediaType(f"A PATCH has the Content-Type {BYTES}.")
        offset = integer_in(headers, "Upload-Offset")
        if offset is None:
            raise InvalidRequest.field("Upload-Offset", "is not one whole number that is not negative")
        complete = completes(call, draft)
        match await self.uploads.find(target):
            case Complete() as full:
                told: Appended | StillMerging | Complete = full
                is_marked = await self._append_to_full(call, target, full, offset)
            case Upload() as upload:
                is_marked = upload.metadata == INCOMPLETE
                interim = self._interim_of(call, draft) if draft.tells_progress else None
                told = await self._append(call, target, offset, interim, draft.named(), complete=complete)
        if complete and is_marked:
            await self.uploads.forget_metadata(target)
        location = {"Location": f"{PREFIX}/{target.upload_id}"} if complete else {}
        return _answer(draft, told, 201 if complete else 204, location, complete=complete)

    async def _append_to_full(self, call: Call, target: Target, full: Complete, offset: int) -> bool:
        """Whether the client has not said yet that an upload is complete which is a file: then it may, and no more. Raises
        OffsetMismatch, LengthExceeded, SizeMismatch, BadRequest."""
        size = full.file.size
        if offset != size:
            raise OffsetMismatch(offset=size)
        is_more = await has_content(call)
        if (await self.uploads.known(target)).metadata != INCOMPLETE:
            raise (SizeMismatch("The upload is complete: it has no more bytes.", size=size) if is_more else completed())
        if is_more:
            await self.uploads.forget(target)  # the upload is invalid from now on; the file is what was announced
            raise LengthExceeded(limit=size)
        if integer_in(call.request.headers, "Upload-Length") not in (None, size):
            raise SizeMismatch("The upload has another length.", size=size)
        return True

    async def _append(
        self,
        call: Call,
        target: Target,
        offset: int,
        interim: Interim | None,
        facts: dict[str, str],
        *,
        complete: bool,
    ) -> Appended | StillMerging | Complete:
        """Append the content of a request. Raises as `Appends.append`."""
        body, claims = call.intake.body_of(call.request), call.claims()
        length = integer_in(call.request.headers, "Upload-Length")
        try:
            if claims.content_digest or claims.content_md5:
                checked = CheckedBody(body, lambda: ContentDigest(claims))
                return await self.appends.append_whole(target, offset, checked, length=length, ends=complete)
            telling = ToldBody(body, interim, facts, offset)
            return await self.appends.append(target, offset, telling, length=length, ends=complete)
        except LengthExceeded:
            await uninterrupted(self._end(target, Reason.LENGTH_EXCEEDED))
            raise

    async def _end(self, target: Target, reason: Reason = Reason.CANCELLED) -> None:
        with suppress(UploaderError):
            await self.uploads.cancel(target, reason)

    # Cancelling

    async def delete(self, call: Call) -> Response:
        await end_upload(self.uploads, self.appends, target_of(call))
        return Response(status_code=204)


# Answers


def _answer(
    draft: Draft,
    told: Appended | StillMerging | Complete,
    status: int,
    facts: dict[str, str],
    *,
    complete: bool,
) -> Response:
    """To a request that has appended: with `status`, or 202 while the file is being made."""
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
    return {"Content-Location": f"/me/files/{file.id}", "Repr-Digest": f"sha-256=:{digest}:"}
