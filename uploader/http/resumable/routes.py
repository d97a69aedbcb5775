"""The routes of `/resumable`, for both protocols."""

from collections.abc import Awaitable, Callable

from starlette.responses import Response

from uploader.errors import NotFound
from uploader.http.resumable.common import PREFIX
from uploader.http.resumable.dialect import speaks_tus
from uploader.http.resumable.rufh.handlers import RufhHandlers
from uploader.http.resumable.tus import TusHandlers
from uploader.http.shared.operation import Call, Operation, Parameter

Handler = Callable[[Call], Awaitable[Response]]

_NUMBER = {"type": "integer", "minimum": 0}
_FLAG = {"type": "string", "enum": ["?0", "?1"]}
_DIGESTS = {"type": "string", "pattern": "^((md5=:[A-Za-z0-9+/]{22}==:|sha-256=:[A-Za-z0-9+/]{43}=:)(, )?)+$"}
_VERSION = Parameter(name="Tus-Resumable", schema={"const": "1.0.0"}, about="With tus, its version.", place="header")
_DRAFT = Parameter(
    name="Upload-Draft-Interop-Version",
    schema={"type": "integer", "minimum": 3, "maximum": 8},
    about="With resumable uploads of HTTP, the version of the draft; without it, the current one.",
    place="header",
)
_COMPLETE = Parameter(
    name="Upload-Complete",
    schema=_FLAG,
    about="With resumable uploads of HTTP: whether the body is the last of it.",
    place="header",
)
_OFFSET = Parameter(name="Upload-Offset", schema=_NUMBER, about="Where it ends.", place="header", required=True)
_LENGTH = Parameter(name="Upload-Length", schema=_NUMBER, about="Its size.", place="header")
_DEFERRED = Parameter(
    name="Upload-Defer-Length", schema={"const": "1"}, about="With tus: its size is told later.", place="header"
)
# No schema can say that one header goes without another.
_CONCAT = Parameter(
    name="Upload-Concat",
    schema={"const": "partial"},
    about="Of a partial upload. That of a final one is `final;` and the addresses of its partial uploads, with spaces "
    "between them, and goes without `Upload-Length`.",
    place="header",
)
_METADATA = Parameter(
    name="Upload-Metadata",
    schema={"type": "string", "pattern": r"^([!-+\--~]+( [A-Za-z0-9+/]+=*)?(, ?[!-+\--~]+( [A-Za-z0-9+/]+=*)?)*)?$"},
    about="Different keys, each with its value in Base64.",
    place="header",
)
_CHECKSUM = Parameter(
    name="Upload-Checksum",
    schema={
        "type": "string",
        "pattern": "^(md5 [A-Za-z0-9+/]{22}==|sha1 [A-Za-z0-9+/]{27}=|sha256 [A-Za-z0-9+/]{43}=|crc32 [A-Za-z0-9+/]{6}==)$",
    },
    about="With tus: an algorithm, and the checksum of the body in Base64.",
    place="header",
)
_DISPOSITION = Parameter(
    name="Content-Disposition",
    schema={"type": "string"},
    about="With resumable uploads of HTTP: the name of the file, as `filename*` or `filename`.",
    place="header",
)
_CONTENT_DIGEST = Parameter(
    name="Content-Digest",
    schema=_DIGESTS,
    about="What the body has to have; else nothing of it counts.",
    place="header",
)
_REPR_DIGEST = Parameter(
    name="Repr-Digest", schema=_DIGESTS, about="What the file has to have; else there is none.", place="header"
)
_ONE = f"{PREFIX}/{{id}}"
_FIND_PROBLEMS = ("upload-not-found", "upload-gone")
_APPEND_PROBLEMS = (
    "body-timeout",
    "chunks-missing",
    "file-too-large",
    "unsupported-media-type",
    "md5-mismatch",
    "name-taken",
    "size-mismatch",
    "too-many-requests",
    "storage-full",
)


def resumable_operations(tus: TusHandlers, rufh: RufhHandlers) -> list[Operation]:
    """For clients that speak tus 1.0.0 or resumable uploads of HTTP. Of tus alone: 412: another version, 423: another
    request does not let go, or something is away for the moment, 460: not the checksum that was told."""
    return [
        Operation(
            method="POST",
            path=PREFIX,
            handler=_either(tus.create, rufh.create),
            summary="Open an upload, perhaps with its first bytes, or with all of them",
            tag="resumable",
            takes_bytes=True,
            takes_optional=True,
            responses={201: None, 202: None, 412: None, 423: None, 460: None},
            problems=(
                *(*_APPEND_PROBLEMS, *_FIND_PROBLEMS),
                *("upload-exists", "quota-exceeded", "refused", "too-many-uploads"),
            ),
            parameters=(
                *(_VERSION, _DRAFT, _COMPLETE, _LENGTH, _DEFERRED, _CONCAT, _METADATA, _CHECKSUM),
                *(_DISPOSITION, _CONTENT_DIGEST, _REPR_DIGEST),
            ),
        ),
        *(
            Operation(
                method=method,
                path=_ONE,
                handler=_either(handler, rufh.head),
                summary="Where it ends",
                tag="resumable",
                responses={200: None, 204: None, 412: None, 423: None},
                problems=_FIND_PROBLEMS,
                parameters=(_VERSION, _DRAFT),
            )
            for method, handler in (("GET", _nothing), ("HEAD", tus.head))
        ),
        Operation(
            method="PATCH",
            path=_ONE,
            handler=_either(tus.patch, rufh.patch),
            summary="Append bytes",
            tag="resumable",
            takes_bytes=True,
            takes_optional=True,
            responses={201: None, 202: None, 204: None, 412: None, 423: None, 460: None},
            problems=(
                *(*_FIND_PROBLEMS, "forbidden", "offset-mismatch", "size-mismatch", "quota-exceeded"),
                *_APPEND_PROBLEMS,
            ),
            parameters=(_VERSION, _DRAFT, _COMPLETE, _OFFSET, _LENGTH, _CHECKSUM, _CONTENT_DIGEST),
        ),
        Operation(
            method="DELETE",
            path=_ONE,
            handler=_either(tus.delete, rufh.delete),
            summary="Cancel, or forget what is finished",
            tag="resumable",
            responses={204: None, 412: None, 423: None},
            problems=_FIND_PROBLEMS,
            parameters=(_VERSION, _DRAFT),
        ),
    ]


def _either(tus: Handler, rufh: Handler) -> Handler:
    """The handler of the protocol that the request speaks."""

    async def handle(call: Call) -> Response:
        return await (tus if speaks_tus(call.request) else rufh)(call)

    return handle


async def _nothing(_call: Call) -> Response:
    """tus has no GET."""
    raise NotFound()
