"""What goes wrong between here and an S3-compatible server, said in the server's own errors: in one place, for all calls.

A server that does not answer, or that says it can't, says nothing of the bytes it has: that is StorageAway.

The SDK is not imported here: an error of it can only come where it is loaded.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from uploader.errors import StorageAway, StorageFailed, StorageFull

_FULL_CODES = frozenset({"QuotaExceeded", "InsufficientStorage", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded"})
_FULL_STATUS = 507
# What file systems say, and the gateways before them pass on as an internal error.
_FULL_MESSAGES = ("no space left on device", "disk quota exceeded")
# Of a HEAD there is no body that could say more.
_NOT_FOUND_CODES = frozenset({"404", "NotFound", "NoSuchKey"})
_CHANGED_CODES = frozenset({"InvalidPart", "InvalidPartOrder", "EntityTooSmall"})
_NO_MULTIPART_CODE = "NoSuchUpload"
# It knows or trusts nobody now, or has too much to do; so has every status from 500 on.
_AWAY_STATUSES = frozenset({401, 403, 408, 429})
_SERVER_ERROR_STATUS = 500
# Of these Ceph says of a multipart upload that is no more that there is no such key.
_OF_MULTIPARTS = frozenset({"UploadPart", "ListParts", "CompleteMultipartUpload", "AbortMultipartUpload"})
# A server may say what it wants; so much of it is shown.
_MAX_MESSAGE_CHARACTERS = 200


class NoSuchMultipart(Exception):
    """There is no such multipart upload (any more): it was completed, or aborted, or never was."""


class PartsChanged(Exception):
    """The parts are not those that were named: one is missing, was overwritten, or is too small."""


class NoSuchObject(Exception):
    """There is nothing under this key; after a HEAD: or there is no such bucket."""


@contextmanager
def translated(place: str, operation: str) -> Iterator[None]:
    """Raise what goes wrong with a call as NoSuchMultipart, PartsChanged, NoSuchObject, StorageFull, StorageAway, or else
    StorageFailed, which names the `place`, the `operation`, and what S3 calls it."""
    try:
        yield
    except Exception as error:
        if not _is_of_the_network(error):
            raise
        raise _translation(error, operation, f"{place}: {operation}") from error


def failed(place: str, reason: str) -> StorageFailed:
    """Whoever sent bytes is not told of the place; the log is."""
    message = "The store reports an error; nothing was acknowledged. Try again later."
    return StorageFailed(message, inside=f"{place}: {reason}")


def away(place: str, reason: str) -> StorageAway:
    """The same, of a server that can't be asked at all."""
    return StorageAway(inside=f"{place}: {reason}")


def code_of(error: BaseException) -> str:
    """What S3, or else the SDK, calls what is behind an error that was translated; empty if nothing is."""
    cause = error.__cause__
    if cause is None:
        return ""
    return _response(cause)[0] or type(cause).__name__


def _is_of_the_network(error: Exception) -> bool:
    """Whether it comes out of the SDK, or of a connection that it has."""
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in ("botocore", "boto3", "urllib3")


def _response(error: BaseException) -> tuple[str, int, str]:
    """The code, the status and the message of an answer that was an error; empty and 0 if there was no answer."""
    response: dict[str, Any] = getattr(error, "response", None) or {}
    told = response.get("Error", {})
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return str(told.get("Code", "")), int(status), str(told.get("Message", ""))


def _translation(error: Exception, operation: str, what: str) -> Exception:
    code, status, message = _response(error)
    if code == _NO_MULTIPART_CODE or (code in _NOT_FOUND_CODES and operation in _OF_MULTIPARTS):
        return NoSuchMultipart(what)
    if code in _CHANGED_CODES:
        return PartsChanged(f"{what}: {code}")
    if code in _NOT_FOUND_CODES:
        return NoSuchObject(what)
    if not code:
        return away(what, _told_by_the_sdk(error))
    reason = f"{code} ({status}): {_shown(message)}" if message else f"{code} ({status})"
    if code in _FULL_CODES or status == _FULL_STATUS or any(full in message.lower() for full in _FULL_MESSAGES):
        full = "The store is full; nothing that was acknowledged is lost. Try again later."
        return StorageFull(full, inside=f"{what}: {reason}")
    return away(what, reason) if status >= _SERVER_ERROR_STATUS or status in _AWAY_STATUSES else failed(what, reason)


def _told_by_the_sdk(error: BaseException) -> str:
    """The name of the error, and of the operating system what it said at last: in between there are addresses in memory."""
    last: BaseException | None = error
    while last is not None:
        if isinstance(last, OSError) and last.strerror:
            return f"{type(error).__name__}: {_shown(last.strerror)}"
        last = last.__cause__ or last.__context__ or getattr(last, "kwargs", {}).get("error")
    return f"{type(error).__name__}: {_shown(str(error))}"


def _shown(text: str) -> str:
    return re.sub(r"[^\x20-\x7e]+", " ", text)[:_MAX_MESSAGE_CHARACTERS].strip()
