"""Handlers for files that come in one request: one file as the body, or many files in a tar archive."""

from collections import deque
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from uploader.domain import creations
from uploader.domain.archive import Member
from uploader.domain.digest import parse_hex
from uploader.domain.links import Caller
from uploader.domain.names import MAX_NAME_BYTES
from uploader.domain.upload import IfExists
from uploader.errors import FileTooLarge, InvalidMd5, InvalidRequest, UploaderError
from uploader.http.bodies.archive import Unpacking
from uploader.http.bodies.intake import source_of
from uploader.http.native import schemas
from uploader.http.native.uploads import BEGINNING, DIGEST_HEADERS, FILE, FINISHING, uploading
from uploader.http.shared.operation import OCTETS, SEGMENTS, SHA256_PATTERN, Call, Parameter, checked_name, public_path
from uploader.http.shared.problem import STATUS, as_told, problem_of
from uploader.http.shared.responses import Json, Results
from uploader.service.results import Complete, NewFile
from uploader.service.whole import WholeFiles

_IF_EXISTS = Parameter(
    "if_exists",
    "What happens to your other files of this name.",
    {"type": "string", "enum": list(IfExists), "default": creations.FILE.if_exists},
)
_NAME = {"type": "string", "minLength": 1, "maxLength": MAX_NAME_BYTES, **SEGMENTS}
_TO = Parameter("to", "The folder that the names of the members are below.")
_PARAMETERS = (
    Parameter("name", "The name of the file.", _NAME, required=True),
    Parameter("sha256", "SHA-256 of the file.", {"type": "string", "pattern": SHA256_PATTERN}),
    _IF_EXISTS,
    Parameter("modified_at", "When the person's own file was changed.", {"type": "string", "format": "date-time"}),
    *DIGEST_HEADERS,
)
_PROBLEMS = ("invalid-request", "chunk-length-mismatch", "digest-mismatch", *BEGINNING, *FINISHING)


@dataclass(frozen=True, slots=True)
class WholeFileHandlers:
    whole: WholeFiles

    @uploading(
        "PUT /files/{md5}",
        "Send a whole file",
        takes_bytes=(OCTETS,),
        responses=FILE,
        problems=("invalid-md5", *_PROBLEMS),
        parameters=_PARAMETERS,
    )
    async def put_file(self, call: Call) -> Response:
        return await self._receive(call, call.md5())

    @uploading(
        "POST /me/files",
        "Send a whole file whose MD5 is not known",
        takes_bytes=(OCTETS,),
        responses=FILE,
        problems=_PROBLEMS,
        parameters=_PARAMETERS,
    )
    async def post_file(self, call: Call) -> Response:
        return await self._receive(call, None)

    async def _receive(self, call: Call, md5: str | None) -> Response:
        name = call.query("name")
        if name is None:
            raise InvalidRequest.field("name", "is missing")
        new = NewFile(
            caller=call.caller,
            name=checked_name(name),
            md5=md5,
            sha256=_sha256_of("sha256", call.query("sha256")),
            if_exists=_if_exists(call),
            modified_at=schemas.moment_of(call.query("modified_at")),
        )
        claims = call.claims()
        made = await self.whole.receive(new, call.intake.body_of(call.request), claims)
        headers = {"Location": public_path(f"/me/files/{made.file.id}")} if made.created else {}
        return Json(schemas.state_of(made, call.caller), 201 if made.created else 200, headers)

    @uploading(
        "POST /files/batch",
        "Send many small files as a tar archive",
        takes_bytes=(OCTETS,),
        responses={200: schemas.BatchResults},
        problems=("invalid-request", "invalid-archive"),
        parameters=(_TO, _IF_EXISTS),
    )
    async def post_batch(self, call: Call) -> Response:
        batch = _Batch(call.caller, _folder(call), _if_exists(call), self.whole.storing.max_bytes)
        call.claims()
        unpacking = Unpacking(call.intake, source_of(call.request), call.caller, batch.admit)
        results = Results(call.intake, call.caller)
        try:
            async with (
                aclosing(unpacking.entries()) as entries,
                aclosing(self.whole.receive_many(call.caller, entries)) as outcomes,
            ):
                async for outcome in outcomes:
                    await results.add(_line(batch.names.popleft(), outcome, call.caller))
            await results.end()
            if isinstance(unpacking.failure, ClientDisconnect):
                raise unpacking.failure
        except BaseException:
            results.close()
            raise
        if unpacking.failure is None:
            return results.answer({}, 200, {}, Json.media_type)
        unpacking.failure.fields["results"] = results
        raise unpacking.failure


@dataclass(frozen=True, slots=True)
class _Batch:
    """The settings that all members of an archive share, and the names of the members that have no result yet."""

    caller: Caller
    folder: str
    if_exists: IfExists
    max_file_bytes: int
    names: deque[str] = field(default_factory=deque, init=False)

    def admit(self, member: Member) -> NewFile:
        """Raises InvalidRequest, FileTooLarge."""
        name = member.path.decode(errors="replace")
        self.names.append(name.encode()[:MAX_NAME_BYTES].decode(errors="ignore"))
        if member.refused is not None:
            raise InvalidRequest.field("name", member.refused)
        try:
            member.path.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest.field("name", "is not valid UTF-8") from error
        new = NewFile(
            caller=self.caller,
            name=checked_name(self.folder + name.removeprefix("./")),
            md5=_md5_of(member.md5),
            sha256=_sha256_of("uploader.sha256", member.sha256),
            if_exists=self.if_exists,
            modified_at=member.modified_at,
        )
        if member.size > self.max_file_bytes:
            raise FileTooLarge(limit=self.max_file_bytes)
        return new


def _line(name: str, result: Complete | UploaderError, caller: Caller) -> dict[str, Any]:
    match result:
        case Complete(file=file, created=created):
            return {"name": name, "status": 201 if created else 200, **schemas.line_of(file, caller)}
        case error:
            error = as_told(error, caller)
            return {"name": name, "status": STATUS[error.code], "problem": problem_of(error)}


def _folder(call: Call) -> str:
    """Return the prefix of the members' names. Raises InvalidRequest."""
    folder = (call.query("to") or "").removesuffix("/")
    return f"{checked_name(folder, 'to')}/" if folder else ""


def _if_exists(call: Call) -> IfExists:
    told = IfExists(call.query_word("if_exists", creations.FILE.if_exists, tuple(IfExists)))
    # A visitor must not learn which names exist.
    return IfExists.KEEP if call.caller.session else told


def _md5_of(text: str | None) -> str | None:
    try:
        return None if text is None else parse_hex(text, 32)
    except ValueError as error:
        raise InvalidMd5(f"uploader.md5 {error}.") from error


def _sha256_of(field: str, text: str | None) -> str | None:
    try:
        return None if text is None else parse_hex(text, 64)
    except ValueError as error:
        raise InvalidRequest.field(field, str(error)) from error
