"""Errors as `application/problem+json` (RFC 9457): each code's status, and its page for a person."""

import html
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from uploader import errors
from uploader.errors import UploaderError, message_of
from uploader.http.shared.responses import Results
from uploader.observability import request_id

STATUS: dict[str, int] = {
    "bad-request": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "proof-failed": 403,
    "refused": 403,
    "not-found": 404,
    "upload-not-found": 404,
    "file-not-found": 404,
    "method-not-allowed": 405,
    "body-timeout": 408,
    "size-mismatch": 409,
    "length-unknown": 409,
    "sha256-conflict": 409,
    "md5-conflict": 409,
    "bytes-conflict": 409,
    "upload-exists": 409,
    "upload-active": 409,
    "offset-mismatch": 409,
    "name-taken": 409,
    "chunks-missing": 409,
    "base-unusable": 409,
    "token-in-use": 409,
    "tokens-unused": 409,
    "upload-gone": 410,
    "quota-exceeded": 413,
    "file-too-large": 413,
    "target-too-long": 414,
    "unsupported-media-type": 415,
    "range-not-satisfiable": 416,
    "invalid-request": 422,
    "invalid-md5": 422,
    "chunk-number-out-of-range": 422,
    "chunk-length-mismatch": 422,
    "digest-mismatch": 422,
    "invalid-archive": 422,
    "invalid-delta": 422,
    "md5-mismatch": 422,
    "sha256-mismatch": 422,
    "too-many-uploads": 429,
    "too-many-requests": 429,
    "headers-too-large": 431,
    "internal-error": 500,
    "content-damaged": 500,
    "unavailable": 503,
    "storage-full": 507,
}

_MEDIA_TYPE = "application/problem+json"
_RETRY_AFTER_SECONDS = {423: "1", 429: "1", 503: "2"}


def _errors_of(error: type[UploaderError]) -> dict[str, type[UploaderError]]:
    found = {error.code: error}
    for child in error.__subclasses__():
        for code, kind in _errors_of(child).items():
            found.setdefault(code, kind)
    return found


# The error that stands for each code; the first class of the tree that has it explains it.
ERRORS: dict[str, type[UploaderError]] = _errors_of(errors.UploaderError)


def title_of(code: str) -> str:
    words = code.replace("-", " ").replace("md5", "MD5").replace("sha256", "SHA-256")
    return words[0].upper() + words[1:]


def problem_of(error: UploaderError, status: int | None = None) -> dict[str, Any]:
    """What is said of an error, whatever it is an answer to; with another status, where a protocol has one for it."""
    return {
        "type": f"/problems/{error.code}",
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
    """The answer to a request that failed with `error`; `members` go before its own."""
    status = status or STATUS[error.code]
    all_headers = dict(headers or {})
    if status in _RETRY_AFTER_SECONDS:
        all_headers["Retry-After"] = _RETRY_AFTER_SECONDS[status]
    if status == 401:
        all_headers["WWW-Authenticate"] = "Bearer"
    said = problem_of(error, status) | members
    results = said.get("results")
    if isinstance(results, Results):
        del said["results"]
        return results.answer(said, status, all_headers, _MEDIA_TYPE)
    return Response(msgspec.json.encode(said), status, all_headers, _MEDIA_TYPE)


async def explain(request: Request) -> Response:
    """`GET /problems/{code}`, for a person."""
    code = request.path_params["code"]
    error = ERRORS.get(code)
    if error is None or code not in STATUS:
        raise errors.NotFound()
    retry = "Trying again later may help." if error.retryable else "Trying again as it is will not help."
    title, message = html.escape(title_of(code)), html.escape(message_of(error))
    return HTMLResponse(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<h1>{title}</h1><p>{message}</p><p>HTTP status {STATUS[code]}. {retry}</p></html>"
    )
