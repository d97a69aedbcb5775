"""The handlers of `/files` and `/uploads`: each turns a request into one call of the service, and its result into HTTP."""

import re
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from uploader.domain.digest import Challenge, ClaimedDigests
from uploader.errors import ChunkNumberOutOfRange, InvalidRequest, UploadNotFound
from uploader.http.bodies.made import MadeChunk
from uploader.http.native import schemas
from uploader.http.shared.operation import Call, checked_name, or_none
from uploader.http.shared.responses import Json
from uploader.service.chunk import Receiving
from uploader.service.delta import DeltaBases
from uploader.service.ids import ID
from uploader.service.instant import Instant
from uploader.service.open import Openings
from uploader.service.results import Acknowledged, Complete, Opening, Result, StillMerging, Target, UploadStatus
from uploader.service.status import Uploads

_MAX_ID_LENGTH = 64
_MAX_DIGITS = 18
_RETRY_AFTER_MERGING_SECONDS = "1"


@dataclass(frozen=True, slots=True)
class UploadHandlers:
    """Everything up to the finished file."""

    openings: Openings
    receiving: Receiving
    uploads: Uploads
    instant: Instant
    bases: DeltaBases

    async def open_file(self, call: Call) -> Response:
        md5 = call.md5()
        body = await call.json(schemas.OpenFile)
        opening = Opening(
            user_id=call.user_id,
            md5=md5,
            sha256=_lower(or_none(body.sha256)),
            name=checked_name(body.name),
            size=body.size,
            chunk_size=or_none(body.chunk_size),
            instant=body.instant,
            if_exists=or_none(body.if_exists),
            modified_at=schemas.moment_of(body.modified_at),
        )
        return answer(call, await self.openings.open(opening))

    async def open_upload(self, call: Call) -> Response:
        body = await call.json(schemas.OpenUpload)
        opening = Opening(
            user_id=call.user_id,
            md5=None,
            sha256=None,
            name=checked_name(body.name),
            size=body.size,
            chunk_size=or_none(body.chunk_size),
            instant=False,
            idempotency_key=_idempotency_key(call.request),
            if_exists=or_none(body.if_exists),
            modified_at=schemas.moment_of(body.modified_at),
        )
        return answer(call, await self.openings.open(opening))

    async def put_chunk(self, call: Call) -> Response:
        target, number, claims = _target(call), _chunk_number(call), call.claims()
        base = call.query("base")
        if base is None:
            body = call.intake.body_of(call.request)
            return answer(call, await self.receiving.receive(target, number, body, claims))
        made = MadeChunk(call.intake, call.request, claims, partial(self.bases.open, call.user_id, base))
        return answer(call, await self.receiving.receive(target, number, made, ClaimedDigests()))

    async def get_upload(self, call: Call) -> Response:
        return Json(schemas.state_of(await self.uploads.status(_target(call))))

    async def merge(self, call: Call) -> Response:
        return answer(call, await self.uploads.merge(_target(call)))

    async def cancel(self, call: Call) -> Response:
        await self.uploads.cancel(_target(call))
        return Response(status_code=204)

    async def tell_digests(self, call: Call) -> Response:
        target = _target(call)
        body = await call.json(schemas.TellDigests)
        match await self.openings.tell(target, body.md5.lower(), _lower(or_none(body.sha256))):
            case UploadStatus() as status:
                return Json(schemas.told_of(status))
            case result:
                return answer(call, result)

    async def prove(self, call: Call) -> Response:
        target = _target(call)
        body = await call.json(schemas.Prove)
        proof = bytes.fromhex(body.proof)
        return answer(call, await self.instant.prove(target, checked_name(body.name), body.id, proof))

    async def list_uploads(self, call: Call) -> Response:
        statuses = await self.uploads.list_open(call.user_id)
        return Json(schemas.UploadList([schemas.upload_of(status) for status in statuses]))

    async def ask_states(self, call: Call) -> Response:
        body = await call.json(schemas.AskStates)
        md5s = list(dict.fromkeys(md5.lower() for md5 in body.md5s))
        states = await self.uploads.states(call.user_id, md5s)
        return Json({md5: {"state": state} for md5, state in states.items()})


def _target(call: Call) -> Target:
    """Raises InvalidMd5, InvalidRequest, UploadNotFound."""
    parameters, user_id = call.request.path_params, call.identity.user_id
    if "md5" not in parameters:
        if not ID.fullmatch(parameters["id"]):
            raise UploadNotFound()
        return Target(user_id, upload_id=parameters["id"])
    md5, upload_id = call.md5(), call.query("id")
    if upload_id is not None and len(upload_id) > _MAX_ID_LENGTH:
        raise InvalidRequest.field("id", "is not the id of an upload")
    return Target(user_id, md5, upload_id)


def _chunk_number(call: Call) -> int:
    """Raises ChunkNumberOutOfRange."""
    text = call.request.path_params["n"]
    if not re.fullmatch(r"[0-9]+", text):
        raise ChunkNumberOutOfRange()
    significant = text.lstrip("0") or "0"
    return int(significant) if len(significant) <= _MAX_DIGITS else 10**_MAX_DIGITS


def answer(call: Call, result: Result) -> Response:
    """200 as it was or acknowledged, 201 for what this call made, 202 while the merge goes on."""
    match result:
        case Acknowledged():
            figures = (result.received_bytes, result.received_chunks, result.chunk_count, result.duplicate)
            return Json(schemas.ChunkState("uploading", *figures))
        case Complete(file=file, created=created):
            headers = {"Location": f"/me/files/{file.id}"} if created else {}
            return Json(schemas.state_of(result), 201 if created else 200, headers)
        case UploadStatus(created=created):
            headers = {"Location": _place(call, result)} if created else {}
            return Json(schemas.state_of(result), 201 if created else 200, headers)
        case StillMerging(status):
            headers = {"Location": _place(call, status), "Retry-After": _RETRY_AFTER_MERGING_SECONDS}
            return Json(schemas.state_of(result), 202, headers)
        case Challenge():
            return Json(schemas.state_of(result))


def _place(call: Call, status: UploadStatus) -> str:
    """Where the upload is, in the words of the request."""
    return f"/files/{call.md5()}" if "md5" in call.request.path_params else f"/uploads/{status.upload.id}"


def _lower(text: str | None) -> str | None:
    return None if text is None else text.lower()


def _idempotency_key(request: Request) -> str | None:
    values = request.headers.getlist("idempotency-key")
    if not values:
        return None
    if len(values) > 1 or not re.fullmatch(r"[!-~]{1,128}", values[0]):
        raise InvalidRequest.field("Idempotency-Key", "is not 1 to 128 visible ASCII characters")
    return values[0]
