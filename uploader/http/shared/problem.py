"""Errors as `application/problem+json` (RFC 9457): the status of each code, and a page that explains the code to people."""

import html
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from uploader import errors
from uploader.domain.links import Caller
from uploader.errors import UploaderError, message_of
from uploader.http.shared.operation import public_path
from uploader.http.shared.responses import Results
from uploader.runtime.observability import request_id

# The status of an error class; subclasses inherit it unless listed themselves.
_STATUS: dict[type[UploaderError], int] = {
    UploaderError: 500,
    errors.BadRequest: 400,
    errors.Unauthenticated: 401,
    errors.Forbidden: 403,
    errors.ProofFailed: 403,
    errors.WrongPassword: 403,
    errors.NotAllowed: 403,
    errors.NotFound: 404,
    errors.MethodNotAllowed: 405,
    errors.BodyTimeout: 408,
    errors.Conflict: 409,
    errors.UploadGone: 410,
    errors.ContentGone: 410,
    errors.LinkGone: 410,
    errors.PreconditionFailed: 412,
    errors.QuotaExceeded: 413,
    errors.TooManyFiles: 413,
    errors.LinkExhausted: 413,
    errors.TooManyLinks: 413,
    errors.FileTooLarge: 413,
    errors.TargetTooLong: 414,
    errors.UnsupportedMediaType: 415,
    errors.RangeNotSatisfiable: 416,
    errors.InvalidRequest: 422,
    errors.Md5Mismatch: 422,
    errors.Sha256Mismatch: 422,
    errors.TooManyUploads: 429,
    errors.TooManyRequests: 429,
    errors.HeadersTooLarge: 431,
    errors.Unavailable: 503,
    errors.StorageFull: 507,
}
_MEDIA_TYPE = "application/problem+json"
_RETRY_AFTER_SECONDS = {423: "1", 429: "1", 503: "2"}


class FieldError(Struct):
    """A field of the request, and the reason why it is refused."""

    field: str
    reason: str


def _errors_of(error: type[UploaderError]) -> dict[str, type[UploaderError]]:
    found = {error.code: error}
    for child in error.__subclasses__():
        for code, kind in _errors_of(child).items():
            found.setdefault(code, kind)
    return found


# The class for each code. If several classes share a code, the first in the tree explains it.
ERRORS: dict[str, type[UploaderError]] = _errors_of(errors.UploaderError)
STATUS: dict[str, int] = {
    code: next(_STATUS[kind] for kind in error.__mro__ if kind in _STATUS) for code, error in ERRORS.items()
}


class Problem(Struct, kw_only=True):
    """Any error (RFC 9457). Some codes come with further members."""

    type: str
    title: str
    status: int
    detail: str
    code: Annotated[str, Meta(extra_json_schema={"enum": sorted(STATUS)})]
    retryable: bool
    request_id: str
    errors: list[FieldError] | UnsetType = UNSET


def title_of(code: str) -> str:
    words = code.replace("-", " ").replace("md5", "MD5").replace("sha256", "SHA-256")
    return words[0].upper() + words[1:]


def as_told(error: UploaderError, caller: Caller) -> UploaderError:
    """Return the error to show to this caller. Visitors of a link do not learn the limits of its owner or of the disk, nor
    which names exist."""
    match error:
        case errors.QuotaExceeded() | errors.TooManyFiles() | errors.StorageFull() if caller.session:
            return errors.LinkExhausted()
        case errors.NameTaken() if caller.session:
            return errors.InvalidRequest.field("name", "is too long for this link")
        case _:
            return error


def problem_of(error: UploaderError, status: int | None = None) -> dict[str, Any]:
    return {
        "type": public_path(f"/problems/{error.code}"),
        "title": title_of(error.code),
        "status": status or STATUS[error.code],
        "detail": error.detail,
        "code": error.code,
        "retryable": error.retryable,
        "request_id": request_id.get(),
        **error.fields,
    }


def problem_response(
    error: UploaderError, headers: dict[str, str] | None = None, status: int | None = None, **members: Any
) -> Response:
    """Answer a failed request; `members` override the error's own members."""
    status = status or STATUS[error.code]
    all_headers = dict(headers or {})
    if status in _RETRY_AFTER_SECONDS:
        all_headers["Retry-After"] = str(error.fields.get("retry_after_seconds", _RETRY_AFTER_SECONDS[status]))
    if status == 401:
        all_headers["WWW-Authenticate"] = "Bearer"
    said = problem_of(error, status) | members
    results = said.get("results")
    if isinstance(results, Results):
        del said["results"]
        return results.answer(said, status, all_headers, _MEDIA_TYPE)
    return Response(msgspec.json.encode(said), status, all_headers, _MEDIA_TYPE)


async def explain(request: Request) -> Response:
    """Answer `GET /problems/{code}` with a page for people."""
    code = request.path_params["code"]
    error = ERRORS.get(code)
    if error is None:
        raise errors.NotFound()
    retry = "Trying again later may help." if error.retryable else "Trying again as it is will not help."
    title, message = html.escape(title_of(code)), html.escape(message_of(error))
    return HTMLResponse(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<h1>{title}</h1><p>{message}</p><p>HTTP status {STATUS[code]}. {retry}</p></html>"
    )
