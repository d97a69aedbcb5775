"""Handlers of `/files` and `/uploads`. Each handler makes one call of a service and encodes the result."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from uploader.domain.digest import Challenge, ClaimedDigests
from uploader.errors import ChunkNumberOutOfRange, InvalidRequest, UploadNotFound
from uploader.http.bodies.delta import DeltaChunk
from uploader.http.native import schemas
from uploader.http.shared.operation import (
    MAX_ID_LENGTH,
    OCTETS,
    Call,
    H,
    Operation,
    Parameter,
    checked_name,
    header,
    or_none,
    public_path,
)
from uploader.http.shared.responses import Json
from uploader.service.chunk import Receiving
from uploader.service.concatenate import Concatenations
from uploader.service.delta import DeltaBases
from uploader.service.ids import ID
from uploader.service.instant import Instant
from uploader.service.open import Openings
from uploader.service.results import Acknowledged, Complete, Opening, Result, StillMerging, Target, UploadStatus
from uploader.service.status import Uploads

_ID_OF_UPLOAD = Parameter("id", "The id of the upload that is meant.")
_IDEMPOTENCY = header(
    "Idempotency-Key", "A repeated call with it gives the same upload.", {"type": "string", "pattern": "^[!-~]{1,128}$"}
)
_BASE = Parameter("base", "A file of yours that the chunk is made from: the body is instructions.")
DIGEST_HEADERS = (
    header("Content-MD5", "RFC 1864."),
    header("Content-Digest", "RFC 9530, `md5` or `sha-256`."),
)

FILE = {200: schemas.FileState, 201: schemas.FileState}
_STATUS = {200: (schemas.OpenState, schemas.FileState)}
_OPEN = {**_STATUS, 201: (schemas.OpenState, schemas.FileState)}
_OPEN_FILE = {**_OPEN, 200: (schemas.OpenState, schemas.FileState, schemas.ChallengeState)}
_MERGE = {**FILE, 202: schemas.OpenState}
_CHUNK = {**_MERGE, 200: (schemas.ChunkState, schemas.FileState)}
# Problems at the beginning of a file, and at its end.
BEGINNING = ("refused", "quota-exceeded", "too-many-files", "file-too-large")
FINISHING = ("name-taken", "md5-mismatch", "sha256-mismatch", "storage-full")
_OPENING = ("invalid-request", *BEGINNING, *FINISHING, "too-many-uploads")
_FINDING = ("upload-not-found", "upload-gone", "invalid-request")

_MAX_DIGITS = 18
_RETRY_AFTER_MERGING_SECONDS = "1"


uploading = partial(Operation, tag="uploading", access="uploader")


def _of_upload(route: str, summary: str, **declared: Any) -> Callable[[H], H]:
    by_id = uploading(route, summary, **declared)
    by_md5 = replace(
        by_id, route=route.replace("/uploads/{id}", "/files/{md5}"), parameters=(_ID_OF_UPLOAD, *by_id.parameters)
    )
    return lambda handler: by_md5(by_id(handler))


@dataclass(frozen=True, slots=True)
class UploadHandlers:
    openings: Openings
    receiving: Receiving
    uploads: Uploads
    concatenations: Concatenations
    instant: Instant
    delta_bases: DeltaBases

    @uploading(
        "POST /files/{md5}",
        "Open, resume or finish at once",
        takes=schemas.OpenFile,
        responses=_OPEN_FILE,
        problems=("invalid-md5", "size-mismatch", "sha256-conflict", *_OPENING),
    )
    async def open_file(self, call: Call) -> Response:
        md5 = call.md5()
        return answer(call, await self.openings.open(_opening(call, md5, await call.json(schemas.OpenFile))))

    @uploading(
        "POST /uploads",
        "Open an upload whose digests are not known yet",
        takes=schemas.OpenUpload,
        responses=_OPEN,
        problems=("upload-not-found", "upload-gone", *_OPENING),
        parameters=(_IDEMPOTENCY,),
    )
    async def open_upload(self, call: Call) -> Response:
        return answer(call, await self.openings.open(_opening(call, None, await call.json(schemas.OpenUpload))))

    @_of_upload(
        "PUT /uploads/{id}/chunks/{n}",
        "Send one chunk",
        takes_bytes=(OCTETS,),
        responses=_CHUNK,
        problems=(
            *("upload-not-found", "upload-gone", "file-not-found", "base-unusable", "length-unknown"),
            *("invalid-request", "chunk-number-out-of-range", "chunk-length-mismatch", "digest-mismatch"),
            "invalid-delta",
            *(*FINISHING, "chunks-missing", "bytes-conflict"),
        ),
        parameters=(_BASE, *DIGEST_HEADERS),
    )
    async def put_chunk(self, call: Call) -> Response:
        target, number, claims = _target(call), _chunk_number(call), call.claims(chunk=True)
        base = call.query("base")
        if base is None:
            body = call.intake.body_of(call.request)
            return answer(call, await self.receiving.receive(target, number, body, claims))
        made = DeltaChunk(call.intake, call.request, claims, partial(self.delta_bases.open, call.caller, base))
        return answer(call, await self.receiving.receive(target, number, made, ClaimedDigests()))

    @_of_upload("GET /uploads/{id}", "Where it stands", responses=_STATUS, problems=_FINDING)
    async def get_upload(self, call: Call) -> Response:
        return Json(schemas.state_of(await self.uploads.status(_target(call)), call.caller))

    @_of_upload(
        "POST /uploads/{id}/merge",
        "Ask for the merge again",
        responses=_MERGE,
        problems=(*FINISHING, "chunks-missing", *_FINDING),
    )
    async def merge(self, call: Call) -> Response:
        return answer(call, await self.concatenations.merge(_target(call)))

    @_of_upload("DELETE /uploads/{id}", "Cancel", responses={204: None}, problems=_FINDING)
    async def cancel(self, call: Call) -> None:
        await self.uploads.cancel(_target(call))

    @uploading(
        "PATCH /uploads/{id}",
        "Tell the digests of an upload",
        takes=schemas.TellDigests,
        responses={200: (schemas.UploadTold, schemas.FileState, schemas.ChallengeState), 201: schemas.FileState},
        problems=(
            *(*_FINDING, "length-unknown", "md5-conflict", "sha256-conflict"),
            *("upload-exists", "name-taken", "quota-exceeded"),
        ),
    )
    async def tell_digests(self, call: Call) -> Response:
        target = _target(call)
        body = await call.json(schemas.TellDigests)
        match await self.openings.tell(target, body.md5.lower(), _lower(or_none(body.sha256))):
            case UploadStatus() as status:
                upload = schemas.upload_of(status)
                return Json(schemas.UploadTold(**msgspec.structs.asdict(upload), upload=upload))
            case result:
                return answer(call, result)

    @_of_upload(
        "POST /uploads/{id}/proof",
        "Prove that you hold the content",
        takes=schemas.Prove,
        responses=FILE,
        problems=("proof-failed", "refused", "name-taken", "quota-exceeded", "too-many-files", *_FINDING),
    )
    async def prove(self, call: Call) -> Response:
        target = _target(call)
        body = await call.json(schemas.Prove)
        proof = bytes.fromhex(body.proof)
        return answer(call, await self.instant.prove(target, checked_name(body.name), body.id, proof))

    @uploading("GET /uploads", "Your open uploads", responses={200: schemas.UploadList})
    async def list_uploads(self, call: Call) -> Response:
        statuses = await self.uploads.list_open(call.caller)
        return Json(schemas.UploadList([schemas.upload_of(status) for status in statuses]))

    @uploading(
        "POST /files/status",
        "The state of many MD5s",
        takes=schemas.AskStates,
        responses={200: dict[str, schemas.StateSchema]},
    )
    async def ask_states(self, call: Call) -> Response:
        body = await call.json(schemas.AskStates)
        md5s = list(dict.fromkeys(md5.lower() for md5 in body.md5s))
        states = await self.uploads.states(call.caller, md5s)
        return Json({md5: {"state": state} for md5, state in states.items()})


def _opening(call: Call, md5: str | None, body: schemas.OpenUpload) -> Opening:
    told = body if isinstance(body, schemas.OpenFile) else None
    return Opening(
        caller=call.caller,
        md5=md5,
        sha256=None if told is None else _lower(or_none(told.sha256)),
        name=checked_name(body.name),
        size=body.size,
        chunk_size=or_none(body.chunk_size),
        instant=told is not None and told.instant,
        idempotency_key=_idempotency_key(call.request) if told is None else None,
        # A visitor must not learn which names exist.
        if_exists=None if call.caller.session else or_none(body.if_exists),
        modified_at=schemas.moment_of(body.modified_at),
    )


def _target(call: Call) -> Target:
    parameters, caller = call.request.path_params, call.caller
    if "md5" not in parameters:
        if not ID.fullmatch(parameters["id"]):
            raise UploadNotFound()
        return Target(caller, upload_id=parameters["id"])
    md5, upload_id = call.md5(), call.query("id")
    if upload_id is not None and len(upload_id) > MAX_ID_LENGTH:
        raise InvalidRequest.field("id", "is not the id of an upload")
    return Target(caller, md5, upload_id)


def _chunk_number(call: Call) -> int:
    text = call.request.path_params["n"]
    if not re.fullmatch(r"[0-9]+", text):
        raise ChunkNumberOutOfRange()
    significant = text.lstrip("0") or "0"
    return int(significant) if len(significant) <= _MAX_DIGITS else 10**_MAX_DIGITS


def answer(call: Call, result: Result) -> Response:
    """Answer 200 for a status or a stored chunk, 201 for something this call created, 202 while the merge runs."""
    match result:
        case Acknowledged():
            figures = (result.received_bytes, result.received_chunks, result.chunk_count, result.duplicate)
            return Json(schemas.ChunkState("uploading", *figures))
        case Complete(file=file, created=created):
            headers = {"Location": public_path(f"/me/files/{file.id}")} if created else {}
            return Json(schemas.state_of(result, call.caller), 201 if created else 200, headers)
        case UploadStatus(created=created):
            headers = {"Location": _place(call, result)} if created else {}
            return Json(schemas.state_of(result, call.caller), 201 if created else 200, headers)
        case StillMerging(status):
            headers = {"Location": _place(call, status), "Retry-After": _RETRY_AFTER_MERGING_SECONDS}
            return Json(schemas.state_of(result, call.caller), 202, headers)
        case Challenge():
            return Json(schemas.state_of(result, call.caller))


def _place(call: Call, status: UploadStatus) -> str:
    by_md5 = "md5" in call.request.path_params
    return public_path(f"/files/{call.md5()}" if by_md5 else f"/uploads/{status.upload.id}")


def _lower(text: str | None) -> str | None:
    return None if text is None else text.lower()


def _idempotency_key(request: Request) -> str | None:
    values = request.headers.getlist("idempotency-key")
    if not values:
        return None
    if len(values) > 1 or not re.fullmatch(r"[!-~]{1,128}", values[0]):
        raise InvalidRequest.field("Idempotency-Key", "is not 1 to 128 visible ASCII characters")
    return values[0]
