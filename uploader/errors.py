"""Everything that can go wrong and has a name, as one tree. Each knows its code, and nothing of HTTP (`problem.py` of
`http/shared` does). Its docstring is the message a person reads.

UploaderError
├── InvalidRequest
│   └── InvalidMd5, ChunkNumberOutOfRange, ChunkLengthMismatch, DigestMismatch, InvalidArchive, InvalidDelta
├── ConfigurationError, Unauthenticated, Forbidden, ProofFailed, NotAllowed, Md5Mismatch, Sha256Mismatch
├── NotFound
│   └── UploadNotFound, UploadGone, FileNotFound
├── Conflict
│   ├── SizeMismatch, LengthUnknown, Sha256Conflict, Md5Conflict, BytesConflict, UploadExists, UploadActive
│   └── OffsetMismatch, NameTaken, ChunksMissing, BaseUnusable, TokenInUse, TokensUnused
├── Refused
│   ├── QuotaExceeded, TooManyUploads, TooManyRequests
│   ├── FileTooLarge
│   │   └── LengthExceeded
│   └── StorageFull
│       └── StorageTooSmall
├── ContentDamaged, BodyTimeout, RangeNotSatisfiable, UnsupportedMediaType, MethodNotAllowed
├── BadRequest
│   └── TargetTooLong, HeadersTooLarge
└── Unavailable
    ├── DatabaseDamaged, UploadBusy, Unverified
    └── StorageFailed
        └── StorageAway
"""

from typing import Any, ClassVar

# What everything that can go wrong is; `errors.py` has the names. Knows nothing of HTTP.


class UploaderError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "internal-error"
    retryable: ClassVar[bool] = False

    def __init__(self, detail: str | None = None, *, inside: str | None = None, **fields: Any) -> None:
        """`inside`: which host or file it was and what that said, for the log and the commands of the server alone."""
        self.inside = inside
        self.detail = detail or message_of(type(self))
        self.fields = fields
        super().__init__(self.detail)

    @property
    def reason(self) -> str:
        """What to tell whoever runs the server."""
        return self.inside or self.detail


def message_of(error: type[UploaderError]) -> str:
    """The first line of an error's docstring: what it says when nothing more precise is known."""
    return (error.__doc__ or "").strip().splitlines()[0]


class ConfigurationError(UploaderError):
    """A setting is missing, unknown or has a bad value."""


class InvalidRequest(UploaderError):
    """The request is malformed; `errors` names each field and what is wrong with it."""

    code = "invalid-request"

    @classmethod
    def field(cls, field: str, reason: str) -> "InvalidRequest":
        return cls(f"{field}: {reason}", errors=[{"field": field, "reason": reason}])


class InvalidMd5(InvalidRequest):
    """An MD5 in a path is 32 hexadecimal digits."""

    code = "invalid-md5"


class ChunkNumberOutOfRange(InvalidRequest):
    """A chunk number is decimal digits, from 0 to one less than the number of chunks."""

    code = "chunk-number-out-of-range"


class ChunkLengthMismatch(InvalidRequest):
    """The chunk has the wrong length: each is exactly chunk_size long, the last one is the rest."""

    code = "chunk-length-mismatch"


class DigestMismatch(InvalidRequest):
    """The chunk does not match the digest sent with it: send it again."""

    code = "digest-mismatch"
    retryable = True


class InvalidArchive(InvalidRequest):
    """The body is no whole tar archive; what is in `results` stands. Send it again: what is there is answered 200."""

    code = "invalid-archive"


class InvalidDelta(InvalidRequest):
    """The body is no instructions to make the chunk from this base, or copies from too many places: send the chunk whole."""

    code = "invalid-delta"


class Unauthenticated(UploaderError):
    """A valid token is needed: `Authorization: Bearer <token>`."""

    code = "unauthenticated"


class Forbidden(UploaderError):
    """Only administrators may do this."""

    code = "forbidden"


class ProofFailed(UploaderError):
    """This proves nothing: wrong, too late, used before, or not for you. Send the bytes, with `"instant": false`."""

    code = "proof-failed"


class NotAllowed(UploaderError):
    """Whoever decides here what may be uploaded does not allow this."""

    code = "refused"


class NotFound(UploaderError):
    """There is nothing at this address."""

    code = "not-found"


class UploadNotFound(NotFound):
    """You have no such upload."""

    code = "upload-not-found"


class UploadGone(NotFound):
    """The upload has ended without a file; `reason` says why. Open it again to start anew."""

    code = "upload-gone"


class FileNotFound(NotFound):
    """You have no such file."""

    code = "file-not-found"


class Conflict(UploaderError):
    """The request contradicts the present state."""


class SizeMismatch(Conflict):
    """You have an open upload of this MD5 with another size."""

    code = "size-mismatch"


class LengthUnknown(Conflict):
    """The length of this upload is not known yet: it takes no chunks and no digests, only what is appended to it."""

    code = "length-unknown"


class Sha256Conflict(Conflict):
    """You have an open upload of this MD5 that was claimed with another SHA-256."""

    code = "sha256-conflict"


class Md5Conflict(Conflict):
    """Another MD5 was told for this upload before."""

    code = "md5-conflict"


class BytesConflict(Conflict):
    """Other bytes were appended to this upload: the chunk begins differently."""

    code = "bytes-conflict"


class UploadExists(Conflict):
    """You have another open upload of this MD5; `id` names it."""

    code = "upload-exists"


class UploadActive(Conflict):
    """The upload is not idle for so long, or it is complete: it is not expired."""

    code = "upload-active"


class OffsetMismatch(Conflict):
    """The upload ends somewhere else: `offset` says where the next bytes belong."""

    code = "offset-mismatch"


class NameTaken(Conflict):
    """You have the same content under this name already."""

    code = "name-taken"


class ChunksMissing(Conflict):
    """The upload is not complete yet; `missing` holds the ranges of chunks that are still to be sent."""

    code = "chunks-missing"


class BaseUnusable(Conflict):
    """The content of the base is damaged or missing: send the chunk whole."""

    code = "base-unusable"


class TokenInUse(Conflict):
    """This is the token that you call with: revoke it with another one, or by `uploader token revoke`."""

    code = "token-in-use"


class TokensUnused(Conflict):
    """This server is told by others who is calling (UPLOADER_AUTH): it has no tokens to show, make or revoke."""

    code = "tokens-unused"


class Md5Mismatch(UploaderError):
    """The bytes do not have the MD5 that was claimed; the upload was discarded and its quota given back."""

    code = "md5-mismatch"


class Sha256Mismatch(UploaderError):
    """The bytes do not have the SHA-256 that was claimed; the upload was discarded and its quota given back."""

    code = "sha256-mismatch"


class Refused(UploaderError):
    """A limit does not allow this."""


class QuotaExceeded(Refused):
    """The file does not fit into your total space beside your files and your open uploads."""

    code = "quota-exceeded"


class FileTooLarge(Refused):
    """The file is larger than this server takes; `limit` is in bytes."""

    code = "file-too-large"


class LengthExceeded(FileTooLarge):
    """More bytes came than the upload has; `limit` is its length."""


class TooManyUploads(Refused):
    """You have too many open uploads: finish or cancel one first."""

    code = "too-many-uploads"
    retryable = True


class TooManyRequests(Refused):
    """You are sending too many chunks at once: wait for one to be answered."""

    code = "too-many-requests"
    retryable = True


class StorageFull(Refused):
    """The store is full; nothing that was acknowledged is lost. Try again later."""

    code = "storage-full"
    retryable = True


class StorageTooSmall(StorageFull):
    """The disk of this server could not hold this file if it were empty; `limit` is in bytes."""

    retryable = False


class ContentDamaged(UploaderError):
    """The stored bytes of this file went bad. Send the same content again, and it is whole again."""

    code = "content-damaged"


class BodyTimeout(UploaderError):
    """The body came too slowly; nothing of it was counted. Send the chunk again."""

    code = "body-timeout"
    retryable = True


class RangeNotSatisfiable(UploaderError):
    """None of the ranges asked for lies within the file."""

    code = "range-not-satisfiable"


class UnsupportedMediaType(UploaderError):
    """Bodies are taken as they are: send no Content-Encoding."""

    code = "unsupported-media-type"


class Unavailable(UploaderError):
    """Something the server depends on is away for the moment; nothing was acknowledged. Try again soon."""

    code = "unavailable"
    retryable = True


class DatabaseDamaged(Unavailable):
    """The database is damaged; nothing was acknowledged. `uploader reconcile` says where."""


class UploadBusy(Unavailable):
    """Another request appends to this upload, and does not let go; try again."""


class StorageFailed(Unavailable):
    """The store reports an error; nothing was acknowledged. Try again later."""


class StorageAway(StorageFailed):
    """The store is away for the moment; nothing was acknowledged. Try again soon."""


class Unverified(Unavailable):
    """What this upload has stored is checked first, after a restart of the machine or damage to its files. Try again."""


class BadRequest(UploaderError):
    """The request could not be understood."""

    code = "bad-request"


class TargetTooLong(BadRequest):
    """The address of the request is too long."""

    code = "target-too-long"


class HeadersTooLarge(BadRequest):
    """The headers of the request are too large, or too many."""

    code = "headers-too-large"


class MethodNotAllowed(UploaderError):
    """This address does not take this method; `Allow` names those it takes."""

    code = "method-not-allowed"
