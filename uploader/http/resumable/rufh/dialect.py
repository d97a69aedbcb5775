"""What is around requests and answers of resumable uploads of HTTP, and its words for what went wrong."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from uploader.errors import (
    BadRequest,
    DigestMismatch,
    InvalidRequest,
    LengthExceeded,
    Md5Mismatch,
    NameTaken,
    OffsetMismatch,
    Sha256Mismatch,
    SizeMismatch,
    UnsupportedMediaType,
    UploaderError,
)
from uploader.http.resumable.rufh.drafts import BYTES, CURRENT, draft_of, integer_in
from uploader.http.shared.problem import problem_response

_STATUS: dict[type[UploaderError], int] = {
    DigestMismatch: 400,
    InvalidRequest: 400,
    LengthExceeded: 400,
    SizeMismatch: 400,
}
# What became of an upload that came whole.
_OF_THE_FILE = (Md5Mismatch, Sha256Mismatch, NameTaken)
_TYPES = "https://iana.org/assignments/http-problem-types#"
_PROBLEMS: dict[type[UploaderError], tuple[str, str]] = {
    OffsetMismatch: ("mismatching-upload-offset", "Mismatching Upload Offset"),
    SizeMismatch: ("inconsistent-upload-length", "Inconsistent Upload Length Values"),
    LengthExceeded: ("inconsistent-upload-length", "Inconsistent Upload Length Values"),
}


class RufhDialect:
    """What every request and answer has."""

    def __init__(self, max_size_bytes: int, expiry_seconds: float) -> None:
        self._max_size_bytes = max_size_bytes
        self._expiry_seconds = expiry_seconds

    def facts(self) -> dict[str, str]:
        """What is spoken."""
        return {"Accept-Patch": BYTES, **CURRENT.limits(self._max_size_bytes, self._expiry_seconds)}

    def begin(self, _request: Request) -> Response | None:
        return None

    def refuse(self, request: Request, error: UploaderError, headers: dict[str, str]) -> Response:
        draft = draft_of(request.headers)
        status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), None)
        kind = next((kind for kind in _PROBLEMS if isinstance(error, kind)), None)
        members: dict[str, Any] = (
            {} if kind is None else {"type": _TYPES + _PROBLEMS[kind][0], "title": _PROBLEMS[kind][1]}
        )
        if request.method in ("POST", "PATCH"):
            complete = isinstance(error, _OF_THE_FILE) and draft.completes(request.headers) is not False
            headers |= draft.completeness(complete)
        if isinstance(error, OffsetMismatch):
            headers["Upload-Offset"] = str(error.fields["offset"])
            members["expected-offset"] = error.fields["offset"]
            members["provided-offset"] = integer_in(request.headers, "Upload-Offset")
        if isinstance(error, UnsupportedMediaType):
            headers["Accept-Patch"] = BYTES
        return problem_response(error, headers, status, **members)

    def mark(self, request: Request, response: Response) -> None:
        draft = draft_of(request.headers)
        response.headers.update(draft.named())
        if "upload-limit" not in response.headers:
            response.headers.update(draft.limits(self._max_size_bytes))


def completed() -> BadRequest:
    """What it is to append nothing to what is complete."""
    return BadRequest("The upload is complete already.", type=f"{_TYPES}completed-upload", title="Upload Is Completed")
