"""The tree of errors. Each has its code, and knows nothing of HTTP (`problem.py` in `http/shared` does)."""

import re
from typing import Any, ClassVar

_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class UploaderError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "internal-error"
    retryable: ClassVar[bool] = False
    # True: the log has the lasting fault behind this error already.
    is_told = False

    def __init_subclass__(cls, *, code: str | None = None, retryable: bool | None = None) -> None:
        """`code`: by default from the name of the class; `retryable`: by default as in the parent."""
        cls.code = code or _WORD.sub("-", cls.__name__).lower()
        cls.retryable = cls.retryable if retryable is None else retryable

    def __init__(self, detail: str | None = None, *, inside: str | None = None, **fields: Any) -> None:
        """`inside`: the host or file with its answer, only for the log and for commands of the server."""
        self.inside = inside
        self.detail = detail or message_of(type(self))
        self.fields = fields
        super().__init__(self.detail)

    @property
    def reason(self) -> str:
        """The reason, for operators."""
        return self.inside or self.detail


def message_of(error: type[UploaderError]) -> str:
    """Return the first line of an error's docstring: the message, unless the caller has a more precise text."""
    return (error.__doc__ or "").strip().splitlines()[0]


class ConfigurationError(UploaderError, code=UploaderError.code):
    """A setting is missing, unknown or has a bad value."""


class SchemaBehind(ConfigurationError, code=UploaderError.code):
    """The database has the schema of an earlier version."""


class InvalidRequest(UploaderError):
    """The request is malformed; `errors` names each field and what is wrong with it."""

    @classmethod
    def field(cls, field: str, reason: str) -> "InvalidRequest":
        return cls(f"{field}: {reason}", errors=[{"field": field, "reason": reason}])


class InvalidMd5(InvalidRequest):
    """An MD5 in a path is 32 hexadecimal digits."""


class ChunkNumberOutOfRange(InvalidRequest):
    """A chunk number is decimal digits, from 0 to one less than the number of chunks."""


class ChunkLengthMismatch(InvalidRequest):
    """The chunk has the wrong length: each is exactly chunk_size long, the last one is the rest."""


class DigestMismatch(InvalidRequest, retryable=True):
    """The chunk does not match the digest sent with it: send it again."""


class InvalidArchive(InvalidRequest):
    """The body is not a complete tar archive; files in `results` are stored. Send it again: they are answered 200."""


class InvalidDelta(InvalidRequest):
    """The instructions to make the chunk are malformed, or copy from too many places: send the chunk whole."""


class Unauthenticated(UploaderError):
    """A valid token is needed: `Authorization: Bearer <token>`."""


class Forbidden(UploaderError):
    """Only administrators may do this."""


class WrongPassword(UploaderError):
    """This is not the password of the link."""


class ProofFailed(UploaderError):
    """The proof is wrong, too late, used before, or not for you. Send the bytes, with `"instant": false`."""


class NotAllowed(UploaderError, code="refused"):
    """The application that is asked before each new name does not allow this one."""


class NotFound(UploaderError):
    """There is nothing at this address."""


class UploadNotFound(NotFound):
    """You have no such upload."""


class UploadGone(NotFound):
    """The upload has ended without a file; `reason` says why. Open it again to start anew."""


class FileNotFound(NotFound):
    """You have no such file."""


class LinkNotFound(NotFound):
    """There is no such link."""


class LinkGone(NotFound):
    """This link works no more; `reason` says why."""


class ContentGone(NotFound):
    """The bytes of this deleted file are not there any more: the disk was short, or they went bad."""


class Conflict(UploaderError, code=UploaderError.code):
    """The request contradicts the present state."""


class LeaseLost(Conflict):
    """You do not hold this task any more: your lease ended and somebody else has it, or it has ended."""


class SizeMismatch(Conflict):
    """You have an open upload of this MD5 with another size."""


class LengthUnknown(Conflict):
    """The length of this upload is not known yet: it takes no chunks and no digests, only what is appended to it."""


class Sha256Conflict(Conflict):
    """You have an open upload of this MD5 that was claimed with another SHA-256."""


class Md5Conflict(Conflict):
    """This upload has another MD5 already."""


class BytesConflict(Conflict):
    """Other bytes were appended to this upload: the chunk begins differently."""


class UploadExists(Conflict):
    """You have another open upload of this MD5; `id` names it."""


class UploadActive(Conflict):
    """The upload is complete, or was not idle for so long: it does not expire."""


class OffsetMismatch(Conflict):
    """The upload has another offset: `offset` says where the next bytes belong."""


class NameTaken(Conflict):
    """You have something else of this name: `taken` is the file or folder in the way."""


class FileHeld(Conflict):
    """A gate has not let this file pass so far, or has refused it: then only an administrator can give it back."""


class ChunksMissing(Conflict):
    """The upload is not complete yet; `missing` holds the ranges of chunks that are still to be sent."""


class BaseUnusable(Conflict):
    """The content of the base is damaged or missing: send the chunk whole."""


class TokenInUse(Conflict):
    """This is the token that you call with: revoke it with another one, or by `uploader token revoke`."""


class LastAdministrator(Conflict):
    """No other administrator could sign in then. Make another one first, or use the commands of the server."""


class TokensUnused(Conflict):
    """This server does not use tokens of its own (UPLOADER_AUTH): it has none to show, make or revoke."""


class Md5Mismatch(UploaderError):
    """The bytes do not have the MD5 that was claimed; the upload was discarded and its quota given back."""


class Sha256Mismatch(UploaderError):
    """The bytes do not have the SHA-256 that was claimed; the upload was discarded and its quota given back."""


class Refused(UploaderError, code=UploaderError.code):
    """A limit does not allow this."""


class QuotaExceeded(Refused):
    """The file does not fit into your total space beside your files and your open uploads."""


class TooManyFiles(Refused):
    """You have as many files and open uploads as a user may have: delete or cancel some first; `limit` is their number."""


class LinkExhausted(Refused):
    """This link takes no more files, or none of this size."""


class TooManyLinks(Refused):
    """You have as many links as a user may have: revoke some first; `limit` is their number."""


class FileTooLarge(Refused):
    """The file is larger than this server takes; `limit` is in bytes."""


class LengthExceeded(FileTooLarge, code=FileTooLarge.code):
    """The body is longer than the upload; `limit` is its length."""


class TooManyUploads(Refused, retryable=True):
    """You have too many open uploads: finish or cancel one first."""


class TooManyRequests(Refused, retryable=True):
    """You are sending too many chunks at once: wait for one to be answered."""


class StorageFull(Refused, retryable=True):
    """The store is full; nothing that was acknowledged is lost. Try again later."""


class StorageTooSmall(StorageFull, code=StorageFull.code, retryable=False):
    """The file is larger than the disk of this server; `limit` is in bytes."""


class ContentDamaged(UploaderError):
    """The stored bytes of this file are damaged. Upload the same content again to heal it."""


class BodyTimeout(UploaderError, retryable=True):
    """The body came too slowly; nothing of it was counted. Send the chunk again."""


class PreconditionFailed(UploaderError):
    """The content has another ETag than `If-Match` names."""


class RangeNotSatisfiable(UploaderError):
    """None of the ranges asked for lies within the file."""


class UnsupportedMediaType(UploaderError):
    """Bodies are taken as they are: send no Content-Encoding."""


class Unavailable(UploaderError, retryable=True):
    """A store that the server depends on is away; nothing was acknowledged. Try again soon."""

    # True: the log has this fault already.
    is_told = False


class DatabaseDamaged(Unavailable, code=Unavailable.code):
    """The database is damaged; nothing was acknowledged. `uploader reconcile` says where."""


class DatabaseFull(Unavailable, code=Unavailable.code):
    """The disk of the database is full; nothing was acknowledged. Try again later."""


class ServerBusy(Unavailable, code=Unavailable.code):
    """The server is busy; nothing was acknowledged. Try again soon."""


class UploadBusy(Unavailable, code=Unavailable.code):
    """Another request appends to this upload: try again."""


class StorageFailed(Unavailable, code=Unavailable.code):
    """The store reports an error; nothing was acknowledged. Try again later."""


class StorageReadOnly(StorageFailed, code=Unavailable.code):
    """The store can only be read; nothing was acknowledged. Try again later."""


class StorageAway(StorageFailed, code=Unavailable.code):
    """The store is away; nothing was acknowledged. Try again soon."""


class Unverified(Unavailable, code=Unavailable.code):
    """The server still checks this upload, after a restart of the machine or damage: try again."""


class BadRequest(UploaderError):
    """The request is malformed."""


class TargetTooLong(BadRequest):
    """The address of the request is too long."""


class HeadersTooLarge(BadRequest):
    """The headers of the request are too large, or too many."""


class MethodNotAllowed(UploaderError):
    """This address does not take this method; `Allow` names those it takes."""
