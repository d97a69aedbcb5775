"""The handlers of uploads and files: each turns a request into one call of the service, and its answer into HTTP."""

import asyncio
import hashlib
import hmac
import re
import unicodedata
from dataclasses import dataclass
from typing import TypeVar

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from uploader.domain.chunks import chunk_length
from uploader.domain.digest import parse_content_digest, parse_content_md5
from uploader.domain.proof import Challenge
from uploader.domain.upload import Upload
from uploader.errors import (
    BadRequest,
    ChunkLengthMismatch,
    DigestMismatch,
    InvalidRequest,
    UnsupportedMediaType,
    UploadNotFound,
)
from uploader.http.bodies.intake import Intake
from uploader.http.bodies.source import source_of
from uploader.http.native import schemas as wire
from uploader.http.native.download import download
from uploader.http.shared.operation import Call, checked_name
from uploader.service.access.links import Links
from uploader.service.files import Files
from uploader.service.ids import is_id
from uploader.service.uploads.instant import Instant
from uploader.service.uploads.opening import Openings
from uploader.service.uploads.receiving import Chunks
from uploader.service.uploads.results import Acknowledged, Answer, Complete, Opening, Stored, Target, UploadStatus
from uploader.service.uploads.status import Uploads
from uploader.storage.base import Body
from uploader.tasks import uninterrupted

T = TypeVar("T")

_MAX_ID_LENGTH = 64
_RETRY_AFTER_MERGING_SECONDS = "1"
_PYTHON_NAMES = {"md5": "md5", "sha-256": "sha256"}


def answer(content: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON."""
    return Response(wire.encode(content), status, headers, "application/json")


def _or_none(value: T | UnsetType) -> T | None:
    return None if value is UNSET else value


@dataclass(frozen=True, slots=True)
class UploadHandlers:
    """`/files/{md5}` and `/uploads`."""

    openings: Openings
    instant: Instant
    uploads: Uploads
    chunks: Chunks
    intake: Intake

    async def open_file(self, call: Call) -> Response:
        md5 = call.md5()
        body = await call.json(wire.OpenFile)
        opening = Opening(
            user_id=call.user_id,
            md5=md5,
            sha256=_lower(_or_none(body.sha256)),
            name=checked_name(body.name),
            size=body.size,
            chunk_size=_or_none(body.chunk_size),
            instant=body.instant,
        )
        opened = await self.openings.open(opening)
        if isinstance(opened, UploadStatus):
            self.chunks.expect(opened.upload)
        return self._opened(opened, f"/files/{md5}")

    async def open_upload(self, call: Call) -> Response:
        body = await call.json(wire.OpenUpload)
        opening = Opening(
            user_id=call.user_id,
            md5=None,
            sha256=None,
            name=checked_name(body.name),
            size=body.size,
            chunk_size=_or_none(body.chunk_size),
            instant=False,
            idempotency_key=_idempotency_key(call.request),
        )
        opened = await self.openings.open(opening)
        if not isinstance(opened, UploadStatus):
            return self._opened(opened, "")
        self.chunks.expect(opened.upload)
        return self._opened(opened, f"/uploads/{opened.upload.id}")

    def _opened(self, opened: UploadStatus | Complete | Challenge, location: str) -> Response:
        if isinstance(opened, Complete):
            return _complete(opened)
        if isinstance(opened, Challenge):
            return answer(wire.challenge_of(opened))
        headers = {"Location": location} if opened.created else {}
        return answer(wire.state_of(opened), 201 if opened.created else 200, headers)

    async def put_chunk(self, call: Call) -> Response:
        target, number = self._target(call), call.chunk_number()
        codings = call.request.headers.getlist("content-encoding")
        if any(coding.strip().lower() not in ("", "identity") for coding in codings):
            raise UnsupportedMediaType()
        admitted = await self.chunks.admit(target, number, _declared_length(call.request))
        if not isinstance(admitted, Upload):
            return self._sent(call, admitted)
        self.intake.enter(call.user_id)
        try:
            stored = await self._receive_and_store(call.request, target, admitted, number)
        finally:
            self.intake.leave(call.user_id)
        # The merge may take a while: neither the body nor the user's place is held meanwhile.
        return self._sent(call, await self.chunks.answer(stored) if isinstance(stored, Stored) else stored)

    async def _receive_and_store(
        self, request: Request, target: Target, upload: Upload, number: int
    ) -> Stored | Answer:
        expected = chunk_length(number, upload.size, upload.chunk_size)
        try:
            body = await self.intake.receive(source_of(request), target.user_id, expected)
        except ChunkLengthMismatch as error:
            return await self.chunks.refuse(target, upload, number, error)
        try:
            await _check_digests(request, body)
            return await self.chunks.store(target, upload, number, body)
        except DigestMismatch as error:
            return await self.chunks.refuse(target, upload, number, error)
        finally:
            body.close()

    async def get_upload(self, call: Call) -> Response:
        standing = await self.uploads.status(self._target(call))
        return answer(wire.state_of(standing))

    async def merge(self, call: Call) -> Response:
        return self._sent(call, await self.uploads.merge(self._target(call)))

    async def cancel(self, call: Call) -> Response:
        await self.uploads.cancel(self._target(call))
        return Response(status_code=204)

    async def tell_digests(self, call: Call) -> Response:
        target = self._target(call)
        body = await call.json(wire.TellDigests)
        told = await self.openings.tell(target, body.md5.lower(), _lower(_or_none(body.sha256)))
        if isinstance(told, UploadStatus):
            return answer(wire.told_of(told))
        return self._opened(told, "")

    async def prove(self, call: Call) -> Response:
        target = self._target(call)
        body = await call.json(wire.Prove)
        proof = bytes.fromhex(body.proof)
        return _complete(await self.instant.prove(target, checked_name(body.name), body.id, proof))

    async def list_uploads(self, call: Call) -> Response:
        standings = await self.uploads.list_open(call.user_id)
        return answer(wire.UploadList([wire.upload_of(standing) for standing in standings]))

    async def ask_states(self, call: Call) -> Response:
        body = await call.json(wire.AskStates)
        md5s = list(dict.fromkeys(md5.lower() for md5 in body.md5s))
        states = await self.uploads.states(call.user_id, md5s)
        return answer({md5: {"state": state} for md5, state in states.items()})

    def _target(self, call: Call) -> Target:
        if "md5" in call.request.path_params:
            md5, upload_id = call.md5(), call.query("id")
            if upload_id is not None and len(upload_id) > _MAX_ID_LENGTH:
                raise InvalidRequest.field("id", "is not the id of an upload")
            return Target(call.user_id, md5, upload_id)
        upload_id = call.request.path_params["id"]
        if not is_id(upload_id):
            raise UploadNotFound()
        return Target(call.user_id, upload_id=upload_id)

    def _sent(self, call: Call, result: Answer) -> Response:
        """The answer to a chunk or a merge: 200 acknowledged, 201 complete, 202 merging."""
        if isinstance(result, Complete):
            return _complete(result)
        if isinstance(result, Acknowledged):
            return answer(wire.state_of(result))
        place = f"/uploads/{result.upload.id}" if "id" in call.request.path_params else f"/files/{call.md5()}"
        headers = {"Location": place, "Retry-After": _RETRY_AFTER_MERGING_SECONDS}
        return answer(wire.state_of(result), 202, headers)


@dataclass(frozen=True, slots=True)
class FileHandlers:
    """`/me`."""

    files: Files
    links: Links

    async def list_files(self, call: Call) -> Response:
        limit = call.query_int("limit", 100, 1, 1000)
        prefix = call.query("prefix")
        if prefix is not None:
            prefix = unicodedata.normalize("NFC", prefix)  # as the names are
        files, cursor = await self.files.list(call.user_id, limit=limit, after=call.query("after"), prefix=prefix)
        return answer(wire.FileList([wire.file_of(file) for file in files], cursor))

    async def get_file(self, call: Call) -> Response:
        return answer(wire.file_of(await self.files.get(call.user_id, self._id(call))))

    async def rename_file(self, call: Call) -> Response:
        body = await call.json(wire.Rename)
        return answer(wire.file_of(await self.files.rename(call.user_id, self._id(call), checked_name(body.name))))

    async def delete_file(self, call: Call) -> Response:
        await self.files.delete(call.user_id, self._id(call))
        return Response(status_code=204)

    async def get_content(self, call: Call) -> Response:
        file = await self.files.get(call.user_id, self._id(call))
        return await download(call.request, file, self.files.open)

    async def make_link(self, call: Call) -> Response:
        body = await call.json(wire.MakeLink, optional=True)
        file = await self.files.get(call.user_id, self._id(call))
        query, end = await self.links.make(call.user_id, file.id, _or_none(body.expires_in))
        return answer(wire.Link(f"/me/files/{file.id}/content?{query}", end))

    async def get_usage(self, call: Call) -> Response:
        return answer(wire.usage_of(await self.files.usage(call.user_id)))

    def _id(self, call: Call) -> str:
        file_id: str = call.request.path_params["id"]
        return file_id


def _complete(complete: Complete) -> Response:
    headers = {"Location": f"/me/files/{complete.file.id}"} if complete.created else {}
    return answer(wire.state_of(complete), 201 if complete.created else 200, headers)


def _lower(text: str | None) -> str | None:
    return None if text is None else text.lower()


def _idempotency_key(request: Request) -> str | None:
    values = request.headers.getlist("idempotency-key")
    if not values:
        return None
    if len(values) > 1 or not re.fullmatch(r"[!-~]{1,128}", values[0]):
        raise InvalidRequest.field("Idempotency-Key", "is not 1 to 128 visible ASCII characters")
    return values[0]


def _declared_length(request: Request) -> int | None:
    text = request.headers.get("content-length")
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,19}", text.strip()):
        raise BadRequest("Content-Length is not a number.")
    return int(text)


async def _check_digests(request: Request, body: Body) -> None:
    """Compare a body with the digests sent with it. Raises DigestMismatch."""
    wanted: dict[str, bytes] = {}
    try:
        for header in request.headers.getlist("content-digest"):
            wanted |= parse_content_digest(header)
        for header in request.headers.getlist("content-md5"):
            digest = parse_content_md5(header)
            if wanted.setdefault("md5", digest) != digest:
                raise ValueError("Content-MD5 and Content-Digest differ")
    except ValueError as error:
        raise DigestMismatch(f"The digest sent with the chunk {error}.") from error
    if not wanted:
        return
    # To its end in any case: the memory of the body may be used again afterwards.
    computed = await uninterrupted(asyncio.to_thread(_digests_of, body, list(wanted)))
    for algorithm, digest in wanted.items():
        if not hmac.compare_digest(computed[algorithm], digest):
            raise DigestMismatch()


def _digests_of(body: Body, algorithms: list[str]) -> dict[str, bytes]:
    hashes = {name: hashlib.new(_PYTHON_NAMES[name], usedforsecurity=False) for name in algorithms}
    for piece in body.pieces():
        for computing in hashes.values():
            computing.update(piece)
    return {name: computing.digest() for name, computing in hashes.items()}
