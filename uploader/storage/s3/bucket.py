"""A bucket of an S3-compatible server: one method for each thing the store wants of it, called from threads.

The SDK is boto3: a part costs it less of the processor than aiobotocore. It is loaded with the first call, so that a server
without S3 neither needs nor loads it.
"""

import hashlib
import io
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from uploader.addresses import BucketAddress
from uploader.errors import StorageAway, StorageFailed, StorageFull
from uploader.storage.base import Body, BytesBody, Found, Gone
from uploader.storage.s3 import client

# What goes wrong between here and an S3-compatible server, said in the server's own errors: in one place, for all
# calls.
#
# A server that does not answer, or that says it can't, says nothing of the bytes it has: that is StorageAway.
#
# The SDK is not imported here: an error of it can only come where it is loaded.


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


# Bytes on their way to an S3-compatible server and back, a piece at a time.


class BodyReader:
    """A body as the file that the SDK wants: read from its start as often as it has to be, and never copied."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._position = 0
        self._pieces: Iterator[memoryview] | None = None
        self._piece = memoryview(b"")

    def read(self, size: int = -1) -> memoryview:
        """The next bytes, as they lie in memory, at most so many, and at most those of one piece; none at the end."""
        if self._pieces is None:
            self._pieces, self._piece = iter(self._body.pieces()), memoryview(b"")
            self._skip(self._position)
        while not self._piece:
            piece = next(self._pieces, None)
            if piece is None:
                return memoryview(b"")
            self._piece = piece
        end = len(self._piece) if size < 0 else size
        found, self._piece = self._piece[:end], self._piece[end:]
        self._position += len(found)
        return found

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._body.length}[whence]
        self._position = min(max(start + offset, 0), self._body.length)
        self._pieces = None
        return self._position

    def tell(self) -> int:
        return self._position

    def _skip(self, left: int) -> None:
        assert self._pieces is not None
        while left > len(self._piece):
            left -= len(self._piece)
            self._piece = next(self._pieces)
        self._piece = self._piece[left:]


class Streaming(Protocol):
    """The body of an answer, as the SDK has it."""

    def read(self, amt: int | None = None) -> bytes: ...

    def close(self) -> None: ...


class ObjectReader:
    """A range of an object, which comes as it is read. It holds a connection until `close`."""

    def __init__(self, place: str, body: Streaming | None, length: int) -> None:
        """`body`: None if there is nothing to read."""
        self._place = place
        self._body = body
        self._left = length

    def read(self, size: int) -> bytes:
        """The next bytes: as many as asked for, but at the end, where there are none. Raises StorageAway, also where the
        server ends too early."""
        wanted = min(size, self._left)
        if self._body is None or not wanted:
            return b""
        with translated(self._place, "GetObject"):
            content = self._body.read(wanted)
        if len(content) != wanted:
            raise away(self._place, f"GetObject: ended {self._left - len(content)} bytes too early")
        self._left -= wanted
        return content

    def close(self) -> None:
        """Give the connection up; repeatable."""
        if self._body is not None:
            self._body.close()


if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_ABORT_ATTEMPTS = 5
# As many as S3 lists in an answer, and deletes by a call; other servers would list more.
_AT_ONCE = 1000
_PROBED_BYTES = 64


@dataclass(frozen=True, slots=True)
class Stat:
    """What a bucket says of an object."""

    key: str
    size: int
    modified_at: datetime


class Bucket:
    """A bucket below a prefix: keys are relative to it.

    All methods block. They raise StorageAway where the server, the network or the rights are to blame, StorageFailed for any
    other error, StorageFull where the server has no room. They can be called by many threads at once.
    """

    def __init__(self, address: BucketAddress) -> None:
        """Connects to nothing. Raises ConfigurationError if the SDK is not installed."""
        client.check_installed()
        self.address = address
        self._name = address.bucket
        self._prefix = f"{address.prefix}/" if address.prefix else ""
        self._place = f"s3://{address.bucket} at {address.endpoint or 'AWS'}"
        self._lock = Lock()
        self._made: dict[bool, S3Client] = {}  # by whether they are brief

    @property
    def place(self) -> str:
        """What it is called in messages."""
        return self._place

    @property
    def url(self) -> str:
        """As UPLOADER_STORAGE has it."""
        return f"s3://{self._name}/{self._prefix}".removesuffix("/")

    # Objects

    def put(self, key: str, body: Body) -> str:
        """Store an object, or replace it; returns its ETag."""
        with translated(self._place, "PutObject"):
            stored = self._s3.put_object(
                Bucket=self._name,
                Key=self._prefix + key,
                Body=_file_of(body),
                ContentLength=body.length,
            )
        return _unquoted(stored["ETag"])

    def head(self, key: str) -> Stat | None:
        """What there is under a key."""
        try:
            with translated(self._place, "HeadObject"):
                found = self._asked.head_object(Bucket=self._name, Key=self._prefix + key)
        except NoSuchObject:
            self._head_bucket()  # it might be the bucket that is missing
            return None
        return Stat(key, found["ContentLength"], found["LastModified"].astimezone(UTC))

    def get(self, key: str, offset: int, length: int) -> bytes:
        """Exactly these bytes of an object. Raises Gone."""
        reader = self.stream(key, offset, length)
        try:
            return reader.read(length)
        finally:
            reader.close()

    def stream(self, key: str, offset: int, length: int) -> ObjectReader:
        """The same, as they come; whoever asks closes it. Raises Gone."""
        if not length:
            if self.head(key) is None:
                raise Gone
            return ObjectReader(self._place, None, 0)
        last = offset + length - 1
        try:
            with translated(self._place, "GetObject"):
                found = self._asked.get_object(
                    Bucket=self._name, Key=self._prefix + key, Range=f"bytes={offset}-{last}"
                )
        except NoSuchObject:
            raise Gone from None
        reader = ObjectReader(self._place, found["Body"], length)
        told = found.get("ContentRange", "").partition("/")[0]
        # A server that knows no ranges sends all of it.
        if found["ContentLength"] == length and (told == f"bytes {offset}-{last}" or not (told or offset)):
            return reader
        reader.close()
        raise failed(self._place, f"GetObject: {offset}-{last} was asked for, {told or 'all'} is what came")

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects, whether they are there or not."""
        if len(keys) == 1:
            with translated(self._place, "DeleteObject"):
                self._s3.delete_object(Bucket=self._name, Key=self._prefix + keys[0])
            return
        for first in range(0, len(keys), _AT_ONCE):
            self._delete_many(keys[first : first + _AT_ONCE])

    def _delete_many(self, keys: Sequence[str]) -> None:
        named: Any = {"Objects": [{"Key": self._prefix + key} for key in keys], "Quiet": True}
        with translated(self._place, "DeleteObjects"):
            errors = self._s3.delete_objects(Bucket=self._name, Delete=named).get("Errors", [])
        for error in errors:
            if error.get("Code") != "NoSuchKey":
                raise failed(self._place, f"DeleteObjects: {error.get('Code')}")

    def list_keys(self, prefix: str, after: str = "") -> Iterator[list[Stat]]:
        """All objects whose keys begin so, by key, after the key `after`, in batches."""
        more = {"StartAfter": self._prefix + after} if after else {}
        pages = self._pages("list_objects_v2", Prefix=self._prefix + prefix, **more)
        for page in pages:
            yield [
                Stat(self._relative(found["Key"]), found["Size"], found["LastModified"].astimezone(UTC))
                for found in page.get("Contents", [])
                if not found["Key"].endswith("/")  # gateways of file systems list directories, too
            ]

    def presign_get(self, key: str, seconds: int, disposition: str, content_type: str) -> str:
        """A URL by which anybody may read an object for so long; it is answered with these headers."""
        wanted = {
            "Bucket": self._name,
            "Key": self._prefix + key,
            "ResponseContentDisposition": disposition,
            "ResponseContentType": content_type,
        }
        with translated(self._place, "presigning"):
            return self._asked.generate_presigned_url("get_object", Params=wanted, ExpiresIn=seconds)

    # Multipart uploads

    def create_multipart(self, key: str) -> str:
        """Begin an object that comes in parts; returns the id of its multipart upload."""
        with translated(self._place, "CreateMultipartUpload"):
            return self._asked.create_multipart_upload(Bucket=self._name, Key=self._prefix + key)["UploadId"]

    def upload_part(self, key: str, multipart_id: str, number: int, body: Body) -> str:
        """Store the part `number`, from 0, or replace it; returns its ETag. Raises NoSuchMultipart."""
        with translated(self._place, "UploadPart"):
            stored = self._s3.upload_part(
                Bucket=self._name,
                Key=self._prefix + key,
                UploadId=multipart_id,
                PartNumber=number + 1,
                Body=_file_of(body),
                ContentLength=body.length,
            )
        return _unquoted(stored["ETag"])

    def list_parts(self, key: str, multipart_id: str) -> dict[int, tuple[str, int]]:
        """The ETag and the size of each part, by its number. Raises NoSuchMultipart."""
        pages = self._pages("list_parts", Key=self._prefix + key, UploadId=multipart_id)
        return {
            part["PartNumber"] - 1: (_unquoted(part["ETag"]), part["Size"])
            for page in pages
            for part in page.get("Parts", [])
        }

    def complete(self, key: str, multipart_id: str, etags: Sequence[str]) -> None:
        """Make the object of its parts, from 0 on, which have these ETags. Raises PartsChanged, NoSuchMultipart."""
        parts: Any = [{"PartNumber": number, "ETag": f'"{etag}"'} for number, etag in enumerate(etags, start=1)]
        try:
            # An error that a 200 hides in its body is one for the SDK, too.
            with translated(self._place, "CompleteMultipartUpload"):
                self._s3.complete_multipart_upload(
                    Bucket=self._name,
                    Key=self._prefix + key,
                    UploadId=multipart_id,
                    MultipartUpload={"Parts": parts},
                )
        except NoSuchMultipart as error:
            # JuiceFS says so of a part that is missing, too.
            self.list_parts(key, multipart_id)
            raise PartsChanged(str(error)) from error
        except StorageFailed as error:
            if code_of(error) == "InternalError":
                # So says Ceph, for ever, of a multipart upload that is gone, as if it were being completed.
                self.list_parts(key, multipart_id)
            raise

    def abort(self, key: str, multipart_id: str) -> None:
        """Give a multipart upload up, and all of its parts. Repeatable. A part that was on its way may survive an Abort,
        so it is done until nothing is left."""
        for _ in range(_ABORT_ATTEMPTS):
            try:
                with translated(self._place, "AbortMultipartUpload"):
                    self._s3.abort_multipart_upload(Bucket=self._name, Key=self._prefix + key, UploadId=multipart_id)
            except NoSuchMultipart:
                return
            try:
                if not self.list_parts(key, multipart_id):
                    return
            except NoSuchMultipart:
                return
        raise failed(self._place, f"AbortMultipartUpload: parts are left after {_ABORT_ATTEMPTS} of them")

    def list_multiparts(self, prefix: str = "") -> Iterator[list[tuple[str, str, datetime]]]:
        """The key, the id and the beginning of all multipart uploads whose keys begin so and that were neither completed nor
        aborted, in batches."""
        for page in self._pages("list_multipart_uploads", Prefix=self._prefix + prefix):
            yield [
                (self._relative(found["Key"]), found["UploadId"], found["Initiated"].astimezone(UTC))
                for found in page.get("Uploads", [])
            ]

    # The server

    def clock(self) -> datetime:
        """What time it is there."""
        headers = self._head_bucket()
        try:
            return parsedate_to_datetime(headers["date"]).astimezone(UTC)
        except (KeyError, ValueError):
            raise failed(self._place, "HeadBucket: has no Date") from None

    def check(self) -> None:
        """Store something, read it back, and remove it."""
        key, content = f"probe/{secrets.token_hex(16)}", secrets.token_bytes(_PROBED_BYTES)
        self.put(key, BytesBody(content))
        try:
            read = self.get(key, 0, len(content))
        except Gone:
            raise failed(self._place, "what was just stored is not there") from None
        if read != content:
            raise failed(self._place, "what was just stored is something else")
        self.delete([key])

    def close(self) -> None:
        """Give the connections up."""
        with self._lock:
            for made in self._made.values():
                made.close()

    @property
    def _s3(self) -> "S3Client":
        """To store, join and remove."""
        return self._client(brief=False)

    @property
    def _asked(self) -> "S3Client":
        """For questions, of which nobody waits long for the answer."""
        return self._client(brief=True)

    def _client(self, *, brief: bool) -> "S3Client":
        """Made where it is first used: the first one of a process takes a third of a second."""
        with self._lock:
            if brief not in self._made:
                with translated(self._place, "the SDK"):
                    self._made[brief] = client.make_client(self.address, brief=brief)
            return self._made[brief]

    def _pages(self, operation: Any, **arguments: Any) -> Iterator[Any]:
        """The answers of a call that lists, one after the other."""
        pages = self._asked.get_paginator(operation).paginate(
            Bucket=self._name, PaginationConfig={"PageSize": _AT_ONCE}, **arguments
        )
        turning = iter(pages)
        name = operation.title().replace("_", "")
        while True:
            with translated(self._place, name):
                page = next(turning, None)
            if page is None:
                return
            yield page

    def _head_bucket(self) -> dict[str, str]:
        """The headers of the answer. Raises StorageFailed where there is no such bucket."""
        try:
            with translated(self._place, "HeadBucket"):
                return self._asked.head_bucket(Bucket=self._name)["ResponseMetadata"]["HTTPHeaders"]
        except NoSuchObject as error:
            raise failed(self._place, "HeadBucket: NoSuchBucket (404)") from error.__cause__

    def _relative(self, key: str) -> str:
        return key.removeprefix(self._prefix)


def _unquoted(etag: str) -> str:
    return etag.strip('"')


def _file_of(body: Body) -> Any:
    """What the SDK takes for a file, though its types want more of one."""
    return BodyReader(body)


# The names of objects, below the prefix of the store. None is ever used twice.
#
# u/<upload id>.<random> what an upload makes: its multipart upload, its only chunk, a tail; a content, once it is one
# w/<random> a content that came whole s/<key of a content> its signature, which goes with it marks/… probe/… of which
# installation the store is; what tries it


UPLOADS, WHOLES, SIGNATURES = "u/", "w/", "s/"


def key_of_upload(upload_id: str) -> str:
    """Of a new object of an upload."""
    return f"{UPLOADS}{upload_id}.{secrets.token_hex(8)}"


def key_of_whole() -> str:
    """Of a new content that came whole."""
    return f"{WHOLES}{secrets.token_hex(16)}"


def key_of_signature(key: str) -> str:
    """Of the signature of the content at `key`."""
    return f"{SIGNATURES}{key}"


def key_of_empty(upload_id: str) -> str:
    """Of the content of an upload without bytes."""
    return f"{UPLOADS}{upload_id}.empty"


def upload_of_key(key: str) -> str:
    """The upload that an object was made by; empty if by none."""
    return key.removeprefix(UPLOADS).partition(".")[0] if key.startswith(UPLOADS) else ""


def found_at_key(
    key: str, *, name: str | None, changed_at: float, size: int, is_draft: bool = False, in_trash: bool = False
) -> Found:
    """An object as lists give it. One whose content nobody knows goes by the digest of its key, which is that of none."""
    hashed = hashlib.sha256(key.encode()).hexdigest()
    # A key is never used again: it tells its bytes from all others.
    return Found(name or hashed, key, int(hashed[:15], 16), changed_at, size, is_draft, in_trash, size)
