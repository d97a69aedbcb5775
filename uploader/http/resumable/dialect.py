"""The routes of `/resumable`; each request goes to the handlers of its protocol, tus or RUFH."""

from dataclasses import dataclass
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from uploader.errors import NotFound, UploaderError
from uploader.http.resumable.request import PREFIX
from uploader.http.resumable.rufh import BYTES as PARTIAL_BYTES
from uploader.http.resumable.rufh import MARKS, RufhHandlers
from uploader.http.resumable.tus import BYTES, TusHandlers
from uploader.http.shared.operation import OCTETS, Call, Operation, header

# The address with a slash, which some clients use in their examples.
ALIASES = {f"{PREFIX}/": PREFIX}
# Headers that only tus has. A request that has one but no `Tus-Resumable` is told the supported version.
_OF_TUS = ("Upload-Metadata", "Upload-Defer-Length", "Upload-Concat", "Upload-Checksum")

_NUMBER = {"type": "integer", "minimum": 0}
_FLAG = {"type": "string", "enum": ["?0", "?1"]}
_DIGESTS = {"type": "string", "pattern": "^((md5=:[A-Za-z0-9+/]{22}==:|sha-256=:[A-Za-z0-9+/]{43}=:)(, )?)+$"}
_VERSIONS = (
    header("Tus-Resumable", "With tus, its version.", {"type": "string", "enum": ["1.0.0"]}),
    header(
        "Upload-Draft-Interop-Version",
        "With resumable uploads of HTTP, the version of the draft; without it, the current one.",
        {"type": "integer", "minimum": 3, "maximum": 9},
    ),
)
_COMPLETE = header("Upload-Complete", "With resumable uploads of HTTP: whether the body is the last of it.", _FLAG)
_LENGTH = header("Upload-Length", "Its size.", _NUMBER)
_CHECKSUM = header(
    "Upload-Checksum",
    "With tus: an algorithm, and the checksum of the body in Base64.",
    {
        "type": "string",
        "pattern": "^(md5 [A-Za-z0-9+/]{22}==|sha1 [A-Za-z0-9+/]{27}=|sha256 [A-Za-z0-9+/]{43}=|crc32 [A-Za-z0-9+/]{6}==)$",
    },
)
_CONTENT_DIGEST = header("Content-Digest", "What the body has to have; else nothing of it counts.", _DIGESTS)
_CREATION = (
    *(*_VERSIONS, _COMPLETE, _LENGTH),
    header("Upload-Defer-Length", "With tus: its size is told later.", {"type": "string", "enum": ["1"]}),
    # A schema cannot express that two headers exclude each other.
    header(
        "Upload-Concat",
        "Of a partial upload. That of a final one is `final;` and the addresses of its partial uploads, with spaces between "
        "them, and goes without `Upload-Length`.",
        {"type": "string", "enum": ["partial"]},
    ),
    header(
        "Upload-Metadata",
        "Different keys, each with its value in Base64.",
        {"type": "string", "pattern": r"^([!-+\--~]+( [A-Za-z0-9+/]+=*)?(, ?[!-+\--~]+( [A-Za-z0-9+/]+=*)?)*)?$"},
    ),
    _CHECKSUM,
    header(
        "Content-Disposition",
        "With resumable uploads of HTTP: the name of the file, as `filename*` or `filename`.",
    ),
    _CONTENT_DIGEST,
    header("Repr-Digest", "What the file has to have; else there is none.", _DIGESTS),
)
_APPENDING = (
    *(*_VERSIONS, _COMPLETE),
    header("Upload-Offset", "Where it ends.", _NUMBER, required=True),
    *(_LENGTH, _CHECKSUM, _CONTENT_DIGEST),
)
_ONE = f"{PREFIX}/{{id}}"
_FINDING = ("upload-not-found", "upload-gone")
_APPEND = ("chunks-missing", "file-too-large", "md5-mismatch", "name-taken", "size-mismatch")
# Only tus: unsupported version.
_OF_ANY = {412: None}
# Codes with another status than elsewhere. tus clients retry after 423: another request still holds the upload, or a store
# is away. 460: the checksum is wrong. 404: the upload has ended.
_SAID = {400: ("invalid-request", "size-mismatch"), 404: ("upload-gone",), 423: ("unavailable",)}
_SAID_OF_BYTES = {**_SAID, 400: (*_SAID[400], "digest-mismatch"), 460: ("digest-mismatch",)}

_resumable = partial(Operation, tag="resumable", access="uploader")
_asking = partial(
    _resumable, responses={200: None, 204: None, **_OF_ANY}, problems=_FINDING, said=_SAID, parameters=_VERSIONS
)


def speaks_tus(request: Request) -> bool:
    """Return True if a request speaks tus, even incompletely. All other requests are RUFH, whose creation may be any
    `POST`."""
    headers = request.headers
    if "tus-resumable" in headers:
        return True
    if _speaks_rufh(request):
        return False
    if headers.get("content-type") == BYTES or any(name in headers for name in _OF_TUS):
        return True
    return request.method == "POST" and "upload-length" in headers


def _speaks_rufh(request: Request) -> bool:
    return "tus-resumable" not in request.headers and any(name in request.headers for name in MARKS)


@dataclass(frozen=True, slots=True)
class ResumableHandlers:
    """Handlers for both protocols; each request goes to the handler of its protocol."""

    tus: TusHandlers
    rufh: RufhHandlers

    # All requests and answers

    def begin(self, request: Request) -> Response | None:
        """Prepare a request before the routing, which includes a change of method. Return an answer if no handler is
        needed."""
        # For clients and proxies that only know GET and POST.
        method = (request.headers.get("x-http-method-override") or request.method).upper()
        path = request.scope["path"]
        if method in ("PATCH", "PUT") and ALIASES.get(path, path) == PREFIX and _speaks_rufh(request):
            method = "POST"  # RUFH: every method with content may create an upload
        if method != request.method:
            # Copy the scope: the server frames its answer by the original method.
            request.scope = {**request.scope, "method": method}
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=self.tus.facts() | self.rufh.facts())
        return self.tus.begin(request) if speaks_tus(request) else None

    def refuse(self, request: Request, error: UploaderError, headers: dict[str, str]) -> Response:
        """Answer a failed request. `headers` are sent with this error in every protocol."""
        return self._of(request).refuse(request, error, headers)

    def mark(self, request: Request, response: Response) -> None:
        self._of(request).mark(request, response)

    # Uploads

    @_resumable(
        f"POST {PREFIX}",
        "Open an upload, perhaps with its first bytes, or with all of them",
        takes_bytes=(BYTES, OCTETS),
        takes_optional=True,
        said=_SAID_OF_BYTES,
        responses={201: None, 202: None, **_OF_ANY},
        problems=(
            *(*_APPEND, *_FINDING, "upload-exists", "refused"),
            *("quota-exceeded", "too-many-files", "too-many-uploads"),
        ),
        parameters=_CREATION,
    )
    async def create(self, call: Call) -> Response:
        return await self._of(call.request).create(call)

    @_asking(f"GET {_ONE}", "Where it ends", problems=(*_FINDING, "not-found"))
    async def get(self, call: Call) -> Response:
        if speaks_tus(call.request):
            raise NotFound()  # tus has no GET
        return await self.rufh.head(call)

    @_asking(f"HEAD {_ONE}", "Where it ends")
    async def head(self, call: Call) -> Response:
        return await self._of(call.request).head(call)

    @_resumable(
        f"PATCH {_ONE}",
        "Append bytes",
        takes_bytes=(BYTES, PARTIAL_BYTES, OCTETS),
        takes_optional=True,
        said=_SAID_OF_BYTES,
        responses={201: None, 202: None, 204: None, **_OF_ANY},
        problems=(*_FINDING, "offset-mismatch", "size-mismatch", "quota-exceeded", *_APPEND),
        parameters=_APPENDING,
    )
    async def patch(self, call: Call) -> Response:
        return await self._of(call.request).patch(call)

    @_resumable(
        f"DELETE {_ONE}",
        "Cancel, or forget what is finished",
        responses={204: None, **_OF_ANY},
        said=_SAID,
        problems=_FINDING,
        parameters=_VERSIONS,
    )
    async def delete(self, call: Call) -> Response:
        return await self._of(call.request).delete(call)

    def _of(self, request: Request) -> TusHandlers | RufhHandlers:
        return self.tus if speaks_tus(request) else self.rufh
