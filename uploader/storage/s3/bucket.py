"""A bucket of an S3-compatible server: one method for each call of the store, for use in threads.

The SDK is boto3: a part costs less CPU time than with aiobotocore. The SDK is loaded with the first call: a server without
S3 neither needs nor loads it.

A request waits for S3 at most 15 s. After such a silence, this request does not ask again, and others do not ask for a while
(`breaker.py`). Reading, writing and removing have a breaker each, because a full store may answer one of them and not
another. Joining parts may take longer, because only workers wait for it. The SDK has time-outs for each client, so there are
several clients.
"""

import base64
import hashlib
import io
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from functools import cache, partial
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from uploader.addresses import BucketAddress
from uploader.errors import ConfigurationError, StorageAway, StorageFailed, StorageFull, UploaderError
from uploader.runtime.breaker import Breaker, Silent
from uploader.runtime.observability import S3_REQUESTS, Trouble
from uploader.runtime.wait_budget import wait_budget
from uploader.storage.base import Body, BytesBody, Found, Gone

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_ABORT_ATTEMPTS = 5
# S3 lists this many keys in an answer and deletes this many by a call; other servers would list more.
_AT_ONCE = 1000
_PROBED_BYTES = 64

# Also the time for the server to take some of the bytes that are sent.
CONNECT_TIMEOUT_SECONDS = 5.0
# How long a server may be silent: in general, while it joins parts, and when a silent server is tried again.
TIMEOUT_SECONDS, JOIN_TIMEOUT_SECONDS, TRY_TIMEOUT_SECONDS = 8.0, 60.0, 4.0
# A failed call is repeated if it failed this soon, after a pause of at most a second; never after a silence.
_ATTEMPTS, _AGAIN_WITHIN_SECONDS = 2, 1.0
# This many threads can call at once without a new connection for each call.
MAX_CONNECTIONS = 64

# Translates the errors between here and an S3-compatible server, in one place for all calls. A server that does not answer,
# or can't answer now, says nothing about its bytes: that is StorageAway. The SDK is not imported here: its errors come only
# after its import.

_FULL_CODES = frozenset({"QuotaExceeded", "InsufficientStorage", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded"})
_FULL_STATUS = 507
# Messages of file systems, which gateways pass on as an internal error.
_FULL_MESSAGES = ("no space left on device", "disk quota exceeded")
# The answer to a HEAD has no body with a code.
_NOT_FOUND_CODES = frozenset({"404", "NotFound", "NoSuchKey"})
_CHANGED_CODES = frozenset({"InvalidPart", "InvalidPartOrder", "EntityTooSmall"})
_NO_MULTIPART_CODE = "NoSuchUpload"
# The server knows or trusts no caller now, or has too much to do. A status from 500 on means the same.
_AWAY_STATUSES = frozenset({401, 403, 408, 429})
_SERVER_ERROR_STATUS = 500
# For these calls, Ceph reports a missing multipart upload as a missing key.
_OF_MULTIPARTS = frozenset({"UploadPart", "ListParts", "CompleteMultipartUpload", "AbortMultipartUpload"})
# The longest message of a server that is shown.
_MAX_MESSAGE_CHARACTERS = 200


class NoSuchMultipart(Exception):
    """The multipart upload does not exist (any more): it was completed, or aborted, or never begun."""


class PartsChanged(Exception):
    """The parts are not the named ones: a part is missing, was overwritten, or is too small."""


class NoSuchObject(Exception):
    """There is no object at this key; after a HEAD, perhaps no such bucket."""


@contextmanager
def translated(place: str, operation: str) -> Iterator[None]:
    """Translate the error of a call into NoSuchMultipart, PartsChanged, NoSuchObject, StorageFull, StorageAway, or else
    StorageFailed. The message names the `place`, the `operation`, and the error code of S3."""
    try:
        yield
    except Exception as error:
        module = type(error).__module__.partition(".")[0]
        if not isinstance(error, OSError) and module not in ("botocore", "boto3", "urllib3"):
            raise
        raise _translation(error, operation, f"{place}: {operation}") from error


def failed(place: str, reason: str) -> StorageFailed:
    """Return the error of a failed call. The log names the place, the answer to the user does not."""
    message = "The store reports an error; nothing was acknowledged. Try again later."
    return StorageFailed(message, inside=f"{place}: {reason}")


def away(place: str, reason: str) -> StorageAway:
    return StorageAway(inside=f"{place}: {reason}")


def code_of(error: BaseException) -> str:
    """Return S3's code behind a translated error, or else the name of the SDK's error; empty if there is none."""
    cause = error.__cause__
    if cause is None:
        return ""
    return _response(cause)[0] or type(cause).__name__


def _response(error: BaseException) -> tuple[str, int, str]:
    """Return the code, the status and the message of an error response; empty and 0 if there was no response."""
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


_TIMED_OUT = frozenset({"ReadTimeoutError", "ConnectTimeoutError"})


def _silence(error: BaseException | None) -> str | None:
    """Return the name of an SDK error if it means that no answer came; None for any other error."""
    kinds = [kind.__name__ for kind in type(error).__mro__]
    return kinds[0] if "HTTPClientError" in kinds else None


def _told_by_the_sdk(error: BaseException) -> str:
    """Return the name of the error, and the last message of the operating system. Messages in between contain addresses in
    memory."""
    last: BaseException | None = error
    while last is not None:
        if isinstance(last, OSError) and last.strerror:
            return f"{type(error).__name__}: {_shown(last.strerror)}"
        last = last.__cause__ or last.__context__ or getattr(last, "kwargs", {}).get("error")
    return f"{type(error).__name__}: {_shown(str(error))}"


def _shown(text: str) -> str:
    return re.sub(r"[^\x20-\x7e]+", " ", text)[:_MAX_MESSAGE_CHARACTERS].strip()


# Bytes on their way to an S3-compatible server and back, a piece at a time


@dataclass(eq=False)
class BodyReader:
    """A body as the file object for the SDK. It can be read from its start any number of times, and is never copied."""

    _body: Body
    _position: int = 0
    _pieces: Iterator[memoryview] | None = None
    _piece: memoryview = memoryview(b"")

    def read(self, size: int = -1) -> memoryview:
        """Return the next bytes without a copy: at most `size`, and at most one piece; none at the end."""
        if self._pieces is None:
            self._pieces, self._piece, left = iter(self._body.pieces()), memoryview(b""), self._position
            while left > len(self._piece):
                left -= len(self._piece)
                self._piece = next(self._pieces)
            self._piece = self._piece[left:]
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


class Kind(StrEnum):
    """The kinds of calls. A server may answer one kind and not another. The value is the name of the kind's breaker."""

    READ = "s3 read"
    WRITE = "s3 write"
    REMOVE = "s3 remove"


# All others read.
_KINDS = dict.fromkeys(("PutObject", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"), Kind.WRITE)
_KINDS |= dict.fromkeys(("DeleteObject", "DeleteObjects", "AbortMultipartUpload"), Kind.REMOVE)
# The key to write or remove when a silent server is tried.
_TRIED_KEY = "probe/silent"


class Streaming(Protocol):
    def read(self, amt: int | None = None) -> bytes: ...

    def close(self) -> None: ...


@dataclass(eq=False)
class ObjectReader:
    """A range of an object, received while it is read. Holds a connection until `close`."""

    _place: str
    # None: there is nothing to read.
    _body: Streaming | None
    _left: int

    def read(self, size: int) -> bytes:
        """Read the next bytes: `size` of them, fewer at the end, and none after it. Raises StorageAway, also if the server
        ends too early."""
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
        if self._body is not None:
            self._body.close()


@dataclass(frozen=True, slots=True)
class Stat:
    """The facts of a bucket about an object."""

    key: str
    size: int
    modified_at: datetime


class Bucket:
    """A bucket, below a prefix: keys are relative to the prefix.

    All methods block, and many threads may call them at once. They raise StorageAway if the server, the network or the
    rights are to blame, StorageFull if the server has no space, and StorageFailed for any other error.
    """

    def __init__(self, address: BucketAddress) -> None:
        """Connect to nothing. Raises ConfigurationError if the SDK is not installed."""
        if find_spec("boto3") is None:
            raise ConfigurationError("UPLOADER_STORAGE: a store on S3 needs boto3: pip install boto3")
        self.address = address
        self._name = address.bucket
        self._prefix = f"{address.prefix}/" if address.prefix else ""
        # The name of the bucket in messages.
        self.place = f"s3://{address.bucket} at {address.endpoint or 'AWS'}"
        self._lock = Lock()
        self._made: dict[float, S3Client] = {}  # by time-out
        self._breakers = {kind: Breaker(kind) for kind in Kind}
        self._troubles = {kind: Trouble(kind) for kind in Kind}

    @property
    def url(self) -> str:
        """The bucket as UPLOADER_STORAGE names it."""
        return f"s3://{self._name}/{self._prefix}".removesuffix("/")

    # Objects

    def put(self, key: str, body: Body) -> str:
        """Store an object, or replace it. Return its ETag."""
        with self._calling("PutObject") as s3:
            stored = s3.put_object(**self._at(key), Body=_file_of(body), ContentLength=body.length)
        return _unquoted(stored["ETag"])

    def head(self, key: str) -> Stat | None:
        try:
            with self._calling("HeadObject") as s3:
                found = s3.head_object(**self._at(key))
        except NoSuchObject:
            self._head_bucket()  # raises an error if the bucket is missing
            return None
        return Stat(key, found["ContentLength"], found["LastModified"].astimezone(UTC))

    def get(self, key: str, offset: int, length: int) -> bytes:
        """Return exactly these bytes of an object. Raises Gone."""
        reader = self.stream(key, offset, length)
        try:
            return reader.read(length)
        finally:
            reader.close()

    def stream(self, key: str, offset: int, length: int) -> ObjectReader:
        """Return a reader of these bytes; the caller closes it. Raises Gone."""
        if not length:
            if self.head(key) is None:
                raise Gone
            return ObjectReader(self.place, None, 0)
        last = offset + length - 1
        try:
            with self._calling("GetObject") as s3:
                found = s3.get_object(**self._at(key), Range=f"bytes={offset}-{last}")
        except NoSuchObject:
            raise Gone from None
        reader = ObjectReader(self.place, found["Body"], length)
        told = found.get("ContentRange", "").partition("/")[0]
        # A server without ranges sends the whole object.
        if found["ContentLength"] == length and (told == f"bytes {offset}-{last}" or not (told or offset)):
            return reader
        reader.close()
        raise failed(self.place, f"GetObject: {offset}-{last} was asked for, {told or 'all'} is what came")

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects. Missing ones are no error."""
        if len(keys) == 1:
            with self._calling("DeleteObject") as s3:
                s3.delete_object(**self._at(keys[0]))
            return
        for first in range(0, len(keys), _AT_ONCE):
            named: Any = [{"Key": self._prefix + key} for key in keys[first : first + _AT_ONCE]]
            with self._calling("DeleteObjects") as s3:
                answer = s3.delete_objects(Bucket=self._name, Delete={"Objects": named, "Quiet": True})
            for error in answer.get("Errors", []):
                if error.get("Code") != "NoSuchKey":
                    raise failed(self.place, f"DeleteObjects: {error.get('Code')}")

    def list_keys(self, prefix: str, after: str = "") -> Iterator[list[Stat]]:
        """Yield the objects whose keys begin with `prefix` and come after `after`, by key, in batches."""
        more = {"StartAfter": self._prefix + after} if after else {}
        pages = self._pages("list_objects_v2", Prefix=self._prefix + prefix, **more)
        for page in pages:
            yield [
                Stat(self._relative(found["Key"]), found["Size"], found["LastModified"].astimezone(UTC))
                for found in page.get("Contents", [])
                if not found["Key"].endswith("/")  # gateways of file systems list directories, too
            ]

    def presign_get(self, key: str, seconds: int, disposition: str, content_type: str) -> str:
        """Return a URL by which anybody may read an object for `seconds`. The response has these headers."""
        headers = {"ResponseContentDisposition": disposition, "ResponseContentType": content_type}
        with translated(self.place, "presigning"):
            return self._client().generate_presigned_url(
                "get_object", Params=self._at(key) | headers, ExpiresIn=seconds
            )

    # Multipart uploads

    def create_multipart(self, key: str) -> str:
        """Begin an object in parts. Return the id of its multipart upload."""
        with self._calling("CreateMultipartUpload") as s3:
            return s3.create_multipart_upload(**self._at(key))["UploadId"]

    def upload_part(self, key: str, multipart_id: str, number: int, body: Body) -> str:
        """Store the part `number`, from 0, or replace it. Return its ETag. Raises NoSuchMultipart."""
        with self._calling("UploadPart") as s3:
            stored = s3.upload_part(
                **self._at(key),
                UploadId=multipart_id,
                PartNumber=number + 1,
                Body=_file_of(body),
                ContentLength=body.length,
            )
        return _unquoted(stored["ETag"])

    def list_parts(self, key: str, multipart_id: str) -> dict[int, tuple[str, int]]:
        """Return the ETag and the size of each part, by its number. Raises NoSuchMultipart."""
        pages = self._pages("list_parts", Key=self._prefix + key, UploadId=multipart_id)
        return {
            part["PartNumber"] - 1: (_unquoted(part["ETag"]), part["Size"])
            for page in pages
            for part in page.get("Parts", [])
        }

    def complete(self, key: str, multipart_id: str, etags: Sequence[str]) -> None:
        """Make the object from its parts, from part 0 on, with these ETags. Raises PartsChanged, NoSuchMultipart."""
        parts: Any = [{"PartNumber": number, "ETag": f'"{etag}"'} for number, etag in enumerate(etags, start=1)]
        try:
            # The SDK also raises an error that stands in the body of a response with status 200.
            with self._calling("CompleteMultipartUpload") as s3:
                s3.complete_multipart_upload(**self._at(key), UploadId=multipart_id, MultipartUpload={"Parts": parts})
        except NoSuchMultipart as error:
            # JuiceFS reports a missing part with the same error.
            self.list_parts(key, multipart_id)
            raise PartsChanged(str(error)) from error
        except StorageFailed as error:
            if code_of(error) == "InternalError":
                # Ceph answers this for ever if the multipart upload is gone, as if it were being completed.
                self.list_parts(key, multipart_id)
            raise

    def abort(self, key: str, multipart_id: str) -> None:
        """Give up a multipart upload and all of its parts. Repeatable. A part on its way may survive an Abort, so this
        repeats the Abort until nothing is left."""
        for _ in range(_ABORT_ATTEMPTS):
            try:
                with self._calling("AbortMultipartUpload") as s3:
                    s3.abort_multipart_upload(**self._at(key), UploadId=multipart_id)
                if not self.list_parts(key, multipart_id):
                    return
            except NoSuchMultipart:
                return
        raise failed(self.place, f"AbortMultipartUpload: parts are left after {_ABORT_ATTEMPTS} of them")

    def list_multiparts(self, prefix: str = "") -> Iterator[list[tuple[str, str, datetime]]]:
        """Yield the key, the id and the beginning of all multipart uploads under `prefix` that were neither completed nor
        aborted, in batches."""
        for page in self._pages("list_multipart_uploads", Prefix=self._prefix + prefix):
            yield [
                (self._relative(found["Key"]), found["UploadId"], found["Initiated"].astimezone(UTC))
                for found in page.get("Uploads", [])
            ]

    # The server

    def clock(self) -> datetime:
        headers = self._head_bucket()
        try:
            return parsedate_to_datetime(headers["date"]).astimezone(UTC)
        except (KeyError, ValueError):
            raise failed(self.place, "HeadBucket: has no Date") from None

    def check(self) -> None:
        """Store an object, read it back, and delete the object."""
        key, content = f"probe/{secrets.token_hex(16)}", secrets.token_bytes(_PROBED_BYTES)
        self.put(key, BytesBody(content))
        try:
            read = self.get(key, 0, len(content))
        except Gone:
            raise failed(self.place, "what was just stored is not there") from None
        if read != content:
            raise failed(self.place, "what was just stored is something else")
        self.delete([key])

    def rules(self) -> list[Mapping[str, Any]]:
        """Return the lifecycle rules; none if the server has no such rules, or does not tell this key."""
        with suppress(NoSuchObject, StorageFailed), translated(self.place, "GetBucketLifecycleConfiguration"):
            return list(self._client().get_bucket_lifecycle_configuration(Bucket=self._name)["Rules"])
        return []

    def is_public(self) -> bool:
        """Return whether anybody may list the objects without a key."""
        with suppress(NoSuchObject, StorageFailed), translated(self.place, "ListObjectsV2"):
            anybody = make_client(self.address, signs=False)
            try:
                anybody.list_objects_v2(Bucket=self._name, Prefix=self._prefix, MaxKeys=1)
            finally:
                anybody.close()
            return True
        return False

    @property
    def prefix(self) -> str:
        """The prefix of all keys, as rules name it."""
        return self._prefix

    def close(self) -> None:
        with self._lock:
            for made in self._made.values():
                made.close()

    # A server that does not answer

    def is_to_be_tried(self) -> bool:
        """Return whether the caller should call `try_writing`. Does not block. Raises StorageAway if the server is known not
        to answer writes."""
        with self._silence_told():
            self._breakers[Kind.WRITE].check()
        return self._breakers[Kind.WRITE].is_open

    def try_writing(self) -> None:
        """Raises StorageAway if the server still does not answer."""
        self._try(Kind.WRITE)

    @contextmanager
    def _silence_told(self) -> Iterator[None]:
        try:
            yield
        except Silent as silent:
            raise StorageAway(f"The store {silent}.", inside=f"{self.place} {silent}") from None

    @contextmanager
    def _calling(self, operation: str) -> "Iterator[S3Client]":
        """Make one call with the yielded client. Raises as `translated`; StorageAway at once if the server is known not to
        answer."""
        kind = _KINDS.get(operation, Kind.READ)
        breaker, own = self._breakers[kind], wait_budget()
        if not own.left(kind, TIMEOUT_SECONDS):
            error = away(self.place, f"{operation}: it did not answer this request before")
            error.is_told = breaker.is_open
            raise error
        if breaker.is_open:
            self._try(kind)
        try:
            with translated(self.place, operation):
                yield self._client(JOIN_TIMEOUT_SECONDS if operation == "CompleteMultipartUpload" else None)
        except Exception as error:
            silence = _silence(error.__cause__)
            if silence is None:
                breaker.answered()
            else:
                breaker.unanswered(str(error.reason if isinstance(error, StorageFailed) else error))
                if silence in _TIMED_OUT:
                    own.give_up(kind)
            if isinstance(error, (StorageFailed, StorageFull)):
                # The breaker logs the silence of a server.
                error.is_told = breaker.is_open if silence else self._note(kind, error)
            raise
        breaker.answered()
        if self._troubles[kind].is_open:
            self._troubles[kind].worked()

    def _note(self, kind: Kind, error: UploaderError) -> bool:
        note = partial(self._troubles[kind].note, reason=error.reason)
        return note("a store fails", kind=f"{type(error).__name__} {code_of(error)}")

    def _try(self, kind: Kind) -> None:
        """Send a cheap call of this kind to a silent server. An error is an answer, too."""
        s3, at = self._client(TRY_TIMEOUT_SECONDS), self._at(_TRIED_KEY)
        asks: dict[Kind, tuple[str, Callable[[], object]]] = {
            Kind.READ: ("HeadBucket", lambda: s3.head_bucket(Bucket=self._name)),
            Kind.WRITE: ("PutObject", lambda: s3.put_object(**at, Body=b"")),
            Kind.REMOVE: ("DeleteObject", lambda: s3.delete_object(**at)),
        }
        operation, ask = asks[kind]
        with self._silence_told(), self._breakers[kind].trying():
            try:
                with translated(self.place, operation):
                    ask()
            except Exception as error:
                if _silence(error.__cause__) is not None:
                    raise self._breakers[kind].silent() from error

    def _client(self, timeout_seconds: float | None = None) -> "S3Client":
        """Return the client for a time-out, made when first used: the first one of a process takes a third of a second."""
        seconds = timeout_seconds or TIMEOUT_SECONDS
        with self._lock:
            if seconds not in self._made:
                with translated(self.place, "the SDK"):
                    self._made[seconds] = make_client(self.address, timeout_seconds=seconds)
            return self._made[seconds]

    def _pages(self, operation: Any, **arguments: Any) -> Iterator[Any]:
        pages = (
            self._client()
            .get_paginator(operation)
            .paginate(Bucket=self._name, PaginationConfig={"PageSize": _AT_ONCE}, **arguments)
        )
        turning = iter(pages)
        name = operation.title().replace("_", "")
        while True:
            with self._calling(name):
                page = next(turning, None)
            if page is None:
                return
            yield page

    def _head_bucket(self) -> dict[str, str]:
        """Return the headers of the answer. Raises StorageFailed if the bucket does not exist."""
        try:
            with self._calling("HeadBucket") as s3:
                return s3.head_bucket(Bucket=self._name)["ResponseMetadata"]["HTTPHeaders"]
        except NoSuchObject as error:
            raise failed(self.place, "HeadBucket: NoSuchBucket (404)") from error.__cause__

    def _at(self, key: str) -> dict[str, Any]:
        return {"Bucket": self._name, "Key": self._prefix + key}

    def _relative(self, key: str) -> str:
        return key.removeprefix(self._prefix)


def _unquoted(etag: str) -> str:
    return etag.strip('"')


def _file_of(body: Body) -> Any:
    """Wrap a body as the file that the SDK reads. The SDK's types demand more than that."""
    return BodyReader(body)


# The SDK


def make_client(address: BucketAddress, *, timeout_seconds: float = TIMEOUT_SECONDS, signs: bool = True) -> "S3Client":
    """Make a client that many threads may use. `timeout_seconds`: how long the server may be silent. `signs`: with the key,
    or as anybody. Raises errors of the SDK."""
    import boto3
    import botocore.session
    from botocore import UNSIGNED
    from botocore.config import Config

    options: Any = {
        "addressing_style": "path" if address.path_style else "auto",
        # The server compares the received bytes with the signed SHA-256. With TLS the SDK would leave this out; an MD5 in
        # its place costs more if the processor knows SHA-256.
        "payload_signing_enabled": True,
    }
    config = Config(
        signature_version="s3v4" if signs else UNSIGNED,
        s3=options,
        # Servers other than AWS don't know the checksums that the SDK would add in trailers.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        connect_timeout=CONNECT_TIMEOUT_SECONDS,
        read_timeout=timeout_seconds,
        max_pool_connections=MAX_CONNECTIONS,
        tcp_keepalive=True,
    )
    # A session of its own: several threads may not use the session that boto3 shares.
    core = botocore.session.Session()
    core.register_component("data_loader", _loader())
    session = boto3.session.Session(
        botocore_session=core,
        aws_access_key_id=address.access_key_id,
        aws_secret_access_key=address.secret_access_key,
        region_name=address.region,
    )
    client = session.client("s3", endpoint_url=address.endpoint, config=config)
    # All servers but AWS demand an MD5 here, and the SDK leaves it out.
    client.meta.events.register("before-call.s3.DeleteObjects", _add_md5)
    client.meta.events.register("before-call.s3", _begin)
    client.meta.events.register("before-send.s3", _count)
    client.meta.events.register_first("needs-retry.s3", _end_in_time)
    return client


@cache
def _loader() -> Any:
    """Load the SDK's service models once: reading them takes most of the time of making a client."""
    import botocore.session

    return botocore.session.Session().get_component("data_loader")


_BEGAN = "uploader_began"


def _begin(context: dict[str, Any], **_: Any) -> None:
    context[_BEGAN] = time.monotonic()


def _end_in_time(
    request_dict: dict[str, Any], operation: Any, response: Any, caught_exception: Exception | None, **_: Any
) -> None:
    """Keep the SDK from repeating a call that took too long or got no answer in time."""
    took = time.monotonic() - request_dict["context"].get(_BEGAN, 0.0)
    if caught_exception is not None:
        if took > _AGAIN_WITHIN_SECONDS or _silence(caught_exception) in _TIMED_OUT:
            raise caught_exception
    elif took > _AGAIN_WITHIN_SECONDS and response[0].status_code >= _SERVER_ERROR_STATUS:
        from botocore.exceptions import ClientError

        raise ClientError(response[1], operation.name)


def _count(event_name: str, **_: Any) -> None:
    S3_REQUESTS.labels(event_name.rpartition(".")[2]).inc()


def _add_md5(params: dict[str, Any], **_: Any) -> None:
    digest = hashlib.md5(params["body"], usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = base64.b64encode(digest).decode()


# The keys of objects, below the prefix of the store. No key is ever used twice.
#
#   u/<upload id>.<random>   an object of an upload: a multipart upload, an only chunk, a tail; later perhaps a blob
#   w/<random>               a whole file
#   s/<key of a blob>        the signature of the blob, which goes with it
#   marks/…  probe/…         the mark of the installation; tests of the server

UPLOADS, WHOLES, SIGNATURES = "u/", "w/", "s/"


def key_of_upload(upload_id: str) -> str:
    """Return the key of a new object of an upload."""
    return f"{UPLOADS}{upload_id}.{secrets.token_hex(8)}"


def key_of_whole() -> str:
    return f"{WHOLES}{secrets.token_hex(16)}"


def key_of_signature(key: str) -> str:
    return f"{SIGNATURES}{key}"


def key_of_empty(upload_id: str) -> str:
    return f"{UPLOADS}{upload_id}.empty"


def upload_of_key(key: str) -> str:
    """Return the id of the upload that made an object; empty if none did."""
    return key.removeprefix(UPLOADS).partition(".")[0] if key.startswith(UPLOADS) else ""


def found_at_key(
    key: str, *, name: str | None, changed_at: float, size: int, is_draft: bool = False, in_trash: bool = False
) -> Found:
    """Return an object as an entry of a list. Without a known content, its name is the SHA-256 of the key, which no content
    has."""
    hashed = hashlib.sha256(key.encode()).hexdigest()
    # No key is used twice: the key tells these bytes from all others.
    return Found(name or hashed, key, int(hashed[:15], 16), changed_at, size, is_draft, in_trash, size)
