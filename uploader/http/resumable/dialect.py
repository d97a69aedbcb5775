"""Which protocol a request at `/resumable` speaks."""

from starlette.requests import Request
from starlette.responses import Response

from uploader.errors import UploaderError
from uploader.http.resumable.common import PREFIX, override_method, take_off_slash
from uploader.http.resumable.rufh.dialect import RufhDialect
from uploader.http.resumable.rufh.drafts import MARKS
from uploader.http.resumable.tus import BYTES, TusDialect

# What tus alone has. Its clients are told which version is spoken.
_OF_TUS = ("Upload-Metadata", "Upload-Defer-Length", "Upload-Concat", "Upload-Checksum")


def speaks_tus(request: Request) -> bool:
    """Whether a request speaks tus, if only badly; all else are resumable uploads of HTTP, which begin as any `POST`."""
    headers = request.headers
    if "tus-resumable" in headers:
        return True
    if any(name in headers for name in MARKS):
        return False
    if headers.get("content-type") == BYTES or any(name in headers for name in _OF_TUS):
        return True
    return request.method == "POST" and "upload-length" in headers


class ResumableDialect:
    """Both protocols, at the same addresses."""

    prefix = PREFIX

    def __init__(self, tus: TusDialect, rufh: RufhDialect) -> None:
        self._tus = tus
        self._rufh = rufh

    def begin(self, request: Request) -> Response | None:
        override_method(request)
        take_off_slash(request)
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=self._tus.facts() | self._rufh.facts())
        return self._of(request).begin(request)

    def refuse(self, request: Request, error: UploaderError, headers: dict[str, str]) -> Response:
        return self._of(request).refuse(request, error, headers)

    def mark(self, request: Request, response: Response) -> None:
        self._of(request).mark(request, response)

    def _of(self, request: Request) -> TusDialect | RufhDialect:
        return self._tus if speaks_tus(request) else self._rufh
