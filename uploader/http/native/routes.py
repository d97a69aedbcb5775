"""The routes of `/files`, `/uploads` and `/me`."""

from uploader.domain.upload import IfExists
from uploader.http.native import schemas
from uploader.http.native.uploads import UploadHandlers
from uploader.http.native.whole import WholeHandlers
from uploader.http.shared.operation import Operation, Parameter

_STRING = {"type": "string"}
_ID_OF_UPLOAD = Parameter(name="id", schema=_STRING, about="The id of the upload that is meant.")
_IDEMPOTENCY = Parameter(
    name="Idempotency-Key",
    schema={"type": "string", "pattern": "^[!-~]{1,128}$"},
    about="A repeated call with it gives the same upload.",
    place="header",
)
_BASE = Parameter(
    name="base", schema=_STRING, about="A file of yours that the chunk is made from: the body is instructions."
)
_CHUNK_HEADERS = (
    Parameter(name="Content-MD5", schema=_STRING, about="RFC 1864.", place="header"),
    Parameter(name="Content-Digest", schema=_STRING, about="RFC 9530, `md5` or `sha-256`.", place="header"),
)
_IF_EXISTS = Parameter(
    name="if_exists",
    schema={"type": "string", "enum": list(IfExists), "default": IfExists.KEEP},
    about="What happens to your other files of this name.",
)
_WHOLE_PARAMETERS = (
    Parameter(name="name", schema={"type": "string", "maxLength": 1024}, about="The name of the file.", required=True),
    Parameter(name="sha256", schema={"type": "string", "pattern": "^[0-9a-fA-F]{64}$"}, about="SHA-256 of the file."),
    _IF_EXISTS,
    Parameter(
        name="modified_at",
        schema={"type": "string", "format": "date-time"},
        about="When the person's own file was changed.",
    ),
)
_TO = Parameter(name="to", schema=_STRING, about="The folder that the names of the members are below.")

_PUT_CHUNK = {200: (schemas.ChunkState, schemas.FileState), 201: schemas.FileState, 202: schemas.UploadState}
_PUT_CHUNK_PROBLEMS = (
    "forbidden",
    "upload-not-found",
    "file-not-found",
    "base-unusable",
    "length-unknown",
    "body-timeout",
    "name-taken",
    "chunks-missing",
    "upload-gone",
    "unsupported-media-type",
    "invalid-request",
    "chunk-number-out-of-range",
    "chunk-length-mismatch",
    "digest-mismatch",
    "invalid-delta",
    "bytes-conflict",
    "md5-mismatch",
    "sha256-mismatch",
    "too-many-requests",
    "storage-full",
)
_MERGE = {200: schemas.FileState, 201: schemas.FileState, 202: schemas.UploadState}
_MERGE_PROBLEMS = (
    "forbidden",
    "upload-not-found",
    "name-taken",
    "chunks-missing",
    "upload-gone",
    "md5-mismatch",
    "sha256-mismatch",
    "invalid-request",
    "storage-full",
)
_OPEN = {200: (schemas.UploadState, schemas.FileState), 201: (schemas.UploadState, schemas.FileState)}
_OPEN_FILE = {**_OPEN, 200: (schemas.UploadState, schemas.FileState, schemas.ChallengeState)}
_OPEN_PROBLEMS = (
    "refused",
    "name-taken",
    "quota-exceeded",
    "file-too-large",
    "invalid-request",
    "md5-mismatch",
    "sha256-mismatch",
    "too-many-uploads",
    "storage-full",
)
_WHOLE = {200: schemas.FileState, 201: schemas.FileState}
_WHOLE_PROBLEMS = (
    "refused",
    "body-timeout",
    "name-taken",
    "quota-exceeded",
    "file-too-large",
    "unsupported-media-type",
    "invalid-request",
    "chunk-length-mismatch",
    "digest-mismatch",
    "md5-mismatch",
    "sha256-mismatch",
    "too-many-requests",
    "storage-full",
)
_BATCH_PROBLEMS = (
    "body-timeout",
    "unsupported-media-type",
    "invalid-request",
    "invalid-archive",
    "too-many-requests",
    "storage-full",
)
_STATUS = {200: (schemas.UploadState, schemas.FileState)}
_FIND_PROBLEMS = ("upload-not-found", "upload-gone", "invalid-request")


def upload_operations(handlers: UploadHandlers) -> list[Operation]:
    """Uploads by MD5, and by id."""
    operations = [
        Operation(
            method="POST",
            path="/files/status",
            handler=handlers.ask_states,
            summary="The state of many MD5s",
            tag="uploading",
            takes=schemas.AskStates,
            responses={200: dict[str, schemas.StateSchema]},
            problems=("invalid-request",),
        ),
        Operation(
            method="POST",
            path="/files/{md5}",
            handler=handlers.open_file,
            summary="Open, resume or finish at once",
            tag="uploading",
            takes=schemas.OpenFile,
            responses=_OPEN_FILE,
            problems=("invalid-md5", "size-mismatch", "sha256-conflict", *_OPEN_PROBLEMS),
        ),
        Operation(
            method="GET",
            path="/uploads",
            handler=handlers.list_uploads,
            summary="Your open uploads",
            tag="uploading",
            responses={200: schemas.UploadList},
        ),
        Operation(
            method="POST",
            path="/uploads",
            handler=handlers.open_upload,
            summary="Open an upload whose digests are not known yet",
            tag="uploading",
            takes=schemas.OpenUpload,
            responses=_OPEN,
            problems=("upload-not-found", "upload-gone", *_OPEN_PROBLEMS),
            parameters=(_IDEMPOTENCY,),
        ),
        Operation(
            method="PATCH",
            path="/uploads/{id}",
            handler=handlers.tell_digests,
            summary="Tell the digests of an upload",
            tag="uploading",
            takes=schemas.TellDigests,
            responses={200: (schemas.UploadTold, schemas.FileState, schemas.ChallengeState), 201: schemas.FileState},
            problems=(
                *_FIND_PROBLEMS,
                "length-unknown",
                "forbidden",
                "md5-conflict",
                "sha256-conflict",
                "upload-exists",
                "name-taken",
                "quota-exceeded",
            ),
        ),
    ]
    for path, syntax, query in (
        ("/files/{md5}", ("invalid-md5",), (_ID_OF_UPLOAD,)),
        ("/uploads/{id}", (), ()),
    ):
        operations += [
            Operation(
                method="GET",
                path=path,
                handler=handlers.get_upload,
                summary="Where it stands",
                tag="uploading",
                responses=_STATUS,
                problems=(*_FIND_PROBLEMS, *syntax),
                parameters=query,
            ),
            Operation(
                method="DELETE",
                path=path,
                handler=handlers.cancel,
                summary="Cancel",
                tag="uploading",
                responses={204: None},
                problems=(*_FIND_PROBLEMS, *syntax),
                parameters=query,
            ),
            Operation(
                method="PUT",
                path=f"{path}/chunks/{{n}}",
                handler=handlers.put_chunk,
                summary="Send one chunk",
                tag="uploading",
                takes_bytes=True,
                responses=_PUT_CHUNK,
                problems=(*_PUT_CHUNK_PROBLEMS, *syntax),
                parameters=(*query, _BASE, *_CHUNK_HEADERS),
            ),
            Operation(
                method="POST",
                path=f"{path}/merge",
                handler=handlers.merge,
                summary="Ask for the merge again",
                tag="uploading",
                responses=_MERGE,
                problems=(*_MERGE_PROBLEMS, *syntax),
                parameters=query,
            ),
            Operation(
                method="POST",
                path=f"{path}/proof",
                handler=handlers.prove,
                summary="Prove that you hold the content",
                tag="uploading",
                takes=schemas.Prove,
                responses={200: schemas.FileState, 201: schemas.FileState},
                problems=("proof-failed", "refused", "name-taken", "quota-exceeded", *_FIND_PROBLEMS, *syntax),
                parameters=query,
            ),
        ]
    return operations


def whole_operations(handlers: WholeHandlers) -> list[Operation]:
    """Files that come whole, in one request."""
    return [
        Operation(
            method="PUT",
            path="/files/{md5}",
            handler=handlers.put_file,
            summary="Send a whole file",
            tag="uploading",
            takes_bytes=True,
            responses=_WHOLE,
            problems=("invalid-md5", *_WHOLE_PROBLEMS),
            parameters=(*_WHOLE_PARAMETERS, *_CHUNK_HEADERS),
        ),
        Operation(
            method="POST",
            path="/me/files",
            handler=handlers.post_file,
            summary="Send a whole file whose MD5 is not known",
            tag="uploading",
            takes_bytes=True,
            responses=_WHOLE,
            problems=_WHOLE_PROBLEMS,
            parameters=(*_WHOLE_PARAMETERS, *_CHUNK_HEADERS),
        ),
        Operation(
            method="POST",
            path="/files/batch",
            handler=handlers.post_batch,
            summary="Send many small files as a tar archive",
            tag="uploading",
            takes_bytes=True,
            responses={200: schemas.BatchResults},
            problems=_BATCH_PROBLEMS,
            parameters=(_TO, _IF_EXISTS),
        ),
    ]
