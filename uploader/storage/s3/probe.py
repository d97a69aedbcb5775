"""Tests the server at the start: a server that lies loses data later. Errors name the setting to look at."""

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from uploader.domain.diagnosis import Diagnosis, Subject, error, warning
from uploader.errors import ConfigurationError, StorageFailed, StorageFull
from uploader.storage.base import BytesBody, Gone
from uploader.storage.s3.bucket import SIGNATURES, Bucket, NoSuchMultipart, PartsChanged, code_of

logger = logging.getLogger(__name__)

# AWS demands this size of all parts but the last one.
_USUAL_PART_BYTES = 5 << 20
_FIRST, _SECOND = b"what was sent at first", b"what has overwritten it"
_PROBED_BYTES = 64
_PLACE = "probe/"
# Objects of this age were left by an interrupted probe.
_LEFTOVER_AGE = timedelta(hours=1)

_KEY_ID, _SECRET = "UPLOADER_S3_ACCESS_KEY_ID", "UPLOADER_S3_SECRET_ACCESS_KEY"
_BUCKET_SETTING, _ENDPOINT, _REGION = "UPLOADER_STORAGE", "UPLOADER_S3_ENDPOINT", "UPLOADER_S3_REGION"
_REFUSALS = {
    "NoSuchBucket": (_BUCKET_SETTING, "there is no such bucket"),
    "404": (_BUCKET_SETTING, "there is no such bucket"),
    "InvalidBucketName": (_BUCKET_SETTING, "the server takes no bucket of this name"),
    "AccessDenied": (_KEY_ID, "it may not do this: the store reads, writes, lists and deletes"),
    "403": (_KEY_ID, "it may not do this: the store reads, writes, lists and deletes"),
    "InvalidAccessKeyId": (_KEY_ID, "the server knows no such key"),
    "SignatureDoesNotMatch": (_SECRET, "it is not the one of UPLOADER_S3_ACCESS_KEY_ID"),
    "AuthorizationHeaderMalformed": (_REGION, "the bucket is in another region"),
    "PermanentRedirect": (_REGION, "the bucket is in another region, or behind another endpoint"),
    "301": (_REGION, "the bucket is in another region, or behind another endpoint"),
    "IllegalLocationConstraintException": (_REGION, "the bucket is in another region"),
    "InvalidRegionError": (_REGION, "there is no such region"),
    "NoRegionError": (_REGION, "is not set, and neither is the region of the SDK"),
    "NoCredentialsError": (_KEY_ID, "is not set, and the SDK finds no credentials by itself"),
    "PartialCredentialsError": (_KEY_ID, "is not set, and the SDK finds half of the credentials by itself"),
    "ProfileNotFound": (_KEY_ID, "is not set, and the SDK does not find the profile of AWS_PROFILE"),
    "RequestTimeTooSkewed": (_ENDPOINT, "its clock and the one here differ too much"),
    "SSLError": (_ENDPOINT, "TLS fails"),
    "EndpointConnectionError": (_ENDPOINT, "it can't be reached"),
    "ConnectTimeoutError": (_ENDPOINT, "it can't be reached"),
    "ProxyConnectionError": (_ENDPOINT, "the proxy before it can't be reached"),
    "ReadTimeoutError": (_ENDPOINT, "it does not answer"),
    "ConnectionClosedError": (_ENDPOINT, "it hangs up: does it speak S3, and http or https?"),
    "ResponseParserError": (_ENDPOINT, "what answers there does not speak S3"),
}


# Errors that the SDK raises by itself, for any server.
_SETTINGS = frozenset(
    {
        *("InvalidBucketName", "InvalidRegionError", "NoRegionError"),
        *("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"),
    }
)


class _Changing:
    """A body with other bytes at each reading, so the sent bytes never have the signed digest."""

    length = _PROBED_BYTES

    def pieces(self) -> Sequence[memoryview]:
        return [memoryview(secrets.token_bytes(self.length))]

    def keep(self) -> None:
        """Do nothing: the bytes are made when they are read."""

    def close(self) -> None:
        """Do nothing, for the same reason."""


def probe(bucket: Bucket) -> int | None:
    """Return the least size of a part other than the last one, in bytes. None if the server is full: then no test is
    possible, but blobs can be read and deleted. Blocks for a dozen calls. Raises ConfigurationError if the server can't be
    trusted with bytes, and StorageFailed, which names the setting to look at."""
    try:
        return _Probing(bucket).min_part_bytes()
    except StorageFull as error:
        logger.warning("the store could not be tried: %s", error.reason)
        return None
    except StorageFailed as error:
        setting, why = _REFUSALS.get(code_of(error), ("UPLOADER_STORAGE", "the server refuses"))
        reason = f"{setting}: {why} ({error.reason})"
        if code_of(error) in _SETTINGS:
            raise ConfigurationError(reason) from error
        raise type(error)(inside=reason) from error


class _Probing:
    """One probe, with keys of its own."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        name = secrets.token_hex(16)
        self._whole, self._small = f"{_PLACE}{name}", f"{_PLACE}{name}-small"
        self._multiparts: dict[str, str] = {}

    def min_part_bytes(self) -> int:
        try:
            self._remove_leftovers()  # by a GET: the answer to a HEAD does not say what is wrong
            self._check_arriving()
            self._check_parts()
            self._check_reading()
            small = [self._upload(self._small, number, _FIRST) for number in range(2)]
            return 1 if self._completed(self._small, small) else _USUAL_PART_BYTES
        finally:
            with suppress(StorageFailed, StorageFull):  # a later probe removes the rest
                self._clean_up()

    def _remove_leftovers(self) -> None:
        stats = [stat for batch in self._bucket.list_keys(_PLACE) for stat in batch]
        multiparts = [each for batch in self._bucket.list_multiparts(_PLACE) for each in batch]
        if not stats and not multiparts:
            return
        before = self._bucket.clock() - _LEFTOVER_AGE
        self._bucket.delete([stat.key for stat in stats if stat.modified_at < before])
        for key, multipart_id, begun_at in multiparts:
            if begun_at < before:
                self._bucket.abort(key, multipart_id)

    def _check_arriving(self) -> None:
        """Check that the server refuses a body with another digest than the signed digest."""
        try:
            self._bucket.put(self._whole, _Changing())
        except StorageFailed:
            if self._bucket.head(self._whole) is None:
                return
        raise _unfit(self._bucket, "stores bytes that changed on their way")

    def _check_parts(self) -> None:
        """Check that an overwritten part does not pass for the acknowledged part."""
        first = self._upload(self._whole, 0, _FIRST)
        second = self._upload(self._whole, 0, _SECOND)
        if self._completed(self._whole, [first]):
            raise _unfit(self._bucket, "takes parts that were overwritten for those that were acknowledged")
        if not self._completed(self._whole, [second]):
            raise _unfit(self._bucket, "does not complete a multipart upload of one part")

    def _check_reading(self) -> None:
        """Check that a stored object is listed, and can be read by ranges."""
        listed = {stat.key: stat.size for batch in self._bucket.list_keys(self._whole) for stat in batch}
        if listed != {self._whole: len(_SECOND)}:
            raise _unfit(self._bucket, "does not list what was just stored")
        try:
            read = self._bucket.get(self._whole, 1, 5)
        except Gone:
            raise _unfit(self._bucket, "does not have what was just stored") from None
        if read != _SECOND[1:6]:
            raise _unfit(self._bucket, "does not read by ranges")

    def _upload(self, key: str, number: int, content: bytes) -> str:
        if key not in self._multiparts:
            self._multiparts[key] = self._bucket.create_multipart(key)
        return self._bucket.upload_part(key, self._multiparts[key], number, BytesBody(content))

    def _completed(self, key: str, etags: list[str]) -> bool:
        try:
            self._bucket.complete(key, self._multiparts[key], etags)
        except (PartsChanged, NoSuchMultipart):
            return False
        return True

    def _clean_up(self) -> None:
        for key, multipart_id in self._multiparts.items():
            self._bucket.abort(key, multipart_id)
        self._bucket.delete([self._whole, self._small])


def _unfit(bucket: Bucket, why: str) -> ConfigurationError:
    return ConfigurationError(f"UPLOADER_STORAGE: {bucket.place} {why}")


# The lifecycle rules and the public access of a bucket

_SECONDS_A_DAY = 86400


def diagnoses_of(bucket: Bucket, upload_expiry_seconds: float) -> list[Diagnosis]:
    """Ask for the lifecycle rules and for public access. Not every server knows these questions, or answers them to this
    key."""
    found = list(diagnoses_of_rules(bucket.rules(), bucket.prefix, upload_expiry_seconds))
    if bucket.is_public():
        what = f"anybody may list {bucket.place}, and perhaps read it"
        found.append(error(Subject.BUCKET, what, "take that away: all that is there is for the servers alone"))
    return found


def diagnoses_of_rules(
    rules: Sequence[Mapping[str, Any]], prefix: str, upload_expiry_seconds: float
) -> Iterator[Diagnosis]:
    """Report the lifecycle rules that remove objects while the store below `prefix` still needs them."""
    for rule in rules:
        begin = _prefix_of(rule)
        is_apart = not (prefix.startswith(begin) or begin.startswith(prefix))
        if rule.get("Status") != "Enabled" or is_apart or begin.startswith(prefix + SIGNATURES):
            continue
        name = rule.get("ID") or "without a name"
        expiration = rule.get("Expiration", {})
        if "Days" in expiration or "Date" in expiration:
            what = f"the rule {name!r} of the bucket deletes contents"
            yield error(Subject.BUCKET, what, f"take the prefix {prefix!r} out of it")
        for transition in rule.get("Transitions", ()):
            if transition.get("StorageClass") in _UNREADABLE:
                what = f"the rule {name!r} of the bucket moves contents to where they can't be read at once"
                yield error(Subject.BUCKET, what, f"take the prefix {prefix!r} out of it")
        days = rule.get("AbortIncompleteMultipartUpload", {}).get("DaysAfterInitiation")
        if days is not None and days * _SECONDS_A_DAY < upload_expiry_seconds:
            what = f"the rule {name!r} of the bucket takes the chunks of uploads that were opened {days} days ago"
            yield warning(Subject.BUCKET, what, "make it longer than UPLOADER_UPLOAD_EXPIRY, and than any upload takes")


_UNREADABLE = frozenset({"GLACIER", "DEEP_ARCHIVE"})


def _prefix_of(rule: Mapping[str, Any]) -> str:
    """Return the prefix of a rule's keys. A rule that also chooses by tags or sizes counts for all keys with its prefix."""
    chosen = rule.get("Filter", {})
    return str(chosen.get("Prefix") or chosen.get("And", {}).get("Prefix") or rule.get("Prefix") or "")
