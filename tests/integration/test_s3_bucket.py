"""A bucket on a real server that speaks S3: what each call does, and what becomes of what goes wrong."""

import hashlib
import io
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders, get_current_datetime
from botocore.exceptions import ClientError
from botocore.loaders import JSONFileLoader
from urllib3 import HTTPResponse

from tests.support.bodies import Changing, InPieces
from tests.support.buckets import requests
from tests.support.certificates import Authority
from tests.support.gateways import Gateway, JuiceGateway
from tests.support.relay import relaying
from uploader.addresses import BucketAddress
from uploader.errors import ConfigurationError, StorageAway, StorageFailed, StorageFull
from uploader.runtime import breaker
from uploader.storage.base import BytesBody, Gone
from uploader.storage.s3 import bucket as s3_bucket
from uploader.storage.s3.bucket import Bucket, NoSuchMultipart, PartsChanged, make_client
from uploader.storage.s3.probe import diagnoses_of, probe

# What every server takes as a part that is not the last one.
PART = secrets.token_bytes(5 << 20)
SECRET = "a-secret-that-nobody-sees"
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def bucket(s3_address: BucketAddress) -> Iterator[Bucket]:
    opened = Bucket(s3_address)
    yield opened
    opened.close()


def keys_of(bucket: Bucket, prefix: str = "", after: str = "") -> list[str]:
    return [stat.key for batch in bucket.list_keys(prefix, after) for stat in batch]


def multiparts_of(bucket: Bucket) -> list[tuple[str, str]]:
    return [(key, multipart_id) for batch in bucket.list_multiparts() for key, multipart_id, _ in batch]


def reading(url: str) -> tuple[bytes, dict[str, str]]:
    with urllib.request.urlopen(url) as answer:
        return answer.read(), dict(answer.headers)


# Objects


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (3 << 20) + 1])
def test_an_object_is_what_was_put(bucket: Bucket, size: int) -> None:
    content = secrets.token_bytes(size)
    body = InPieces(content)
    bucket.put("u/a", BytesBody(b"before"))
    etag = bucket.put("u/a", body)
    assert etag and '"' not in etag
    assert bucket.get("u/a", 0, size) == content
    found = bucket.head("u/a")
    assert found is not None
    assert (found.key, found.size) == ("u/a", size)
    assert abs(found.modified_at - bucket.clock()) < timedelta(minutes=1)
    assert body.keepers == 1


def test_there_may_be_nothing_under_a_key(bucket: Bucket) -> None:
    assert bucket.head("a") is None
    for length in (0, 1):
        with pytest.raises(Gone):
            bucket.get("a", 0, length)
        with pytest.raises(Gone):
            bucket.stream("a", 0, length)


def test_exactly_the_range_that_was_asked_for_is_read(bucket: Bucket) -> None:
    bucket.put("a", BytesBody(b"0123456789"))
    assert bucket.get("a", 0, 10) == b"0123456789"
    assert bucket.get("a", 3, 4) == b"3456"
    assert bucket.get("a", 9, 1) == b"9"
    assert bucket.get("a", 5, 0) == b""
    for offset, length in ((8, 4), (10, 1), (100, 1)):
        with pytest.raises(StorageFailed):
            bucket.get("a", offset, length)


def test_a_range_is_read_as_it_comes(bucket: Bucket) -> None:
    bucket.put("a", BytesBody(PART))
    reader = bucket.stream("a", 7, 1 << 20)
    read = b"".join(iter(lambda: reader.read(100_000), b""))
    reader.close()
    reader.close()
    assert read == PART[7 : 7 + (1 << 20)]


def test_what_nobody_reads_to_its_end_hinders_nobody(bucket: Bucket) -> None:
    bucket.put("a", BytesBody(PART))
    for _ in range(s3_bucket.MAX_CONNECTIONS + 2):
        reader = bucket.stream("a", 0, len(PART))
        reader.read(1)
        reader.close()
    assert bucket.get("a", 0, 1) == PART[:1]


def test_objects_are_deleted_whether_they_are_there_or_not(bucket: Bucket) -> None:
    for key in ("a", "b/c", "d"):
        bucket.put(key, BytesBody(b"x"))
    bucket.delete([])
    bucket.delete(["a"])
    bucket.delete(["a"])
    assert keys_of(bucket) == ["b/c", "d"]
    bucket.delete(["a", "b/c", "d"])
    bucket.delete(["a", "b/c", "d"])
    assert keys_of(bucket) == []


def test_keys_are_listed_in_order_below_the_prefix(bucket: Bucket, s3_address: BucketAddress) -> None:
    written = ["t/a", "u/a", "u/a.tail", "u/b", "u0"]
    other = Bucket(replace(s3_address, prefix=f"{s3_address.prefix}-other"))
    for key in reversed(written):
        bucket.put(key, BytesBody(key.encode()))
    other.put("u/c", BytesBody(b""))
    assert keys_of(bucket) == written
    assert keys_of(bucket, "u/") == ["u/a", "u/a.tail", "u/b"]
    assert keys_of(bucket, "u/", after="u/a") == ["u/a.tail", "u/b"]
    assert keys_of(bucket, "u/", after="u/aa") == ["u/b"]
    assert keys_of(bucket, after="u/b") == ["u0"]
    assert keys_of(bucket, "v/") == []
    (found,) = [stat for batch in bucket.list_keys("u/b") for stat in batch]
    assert (found.size, found.modified_at.tzinfo) == (3, UTC)
    assert keys_of(other) == ["u/c"]
    other.close()


def test_a_bucket_may_have_no_prefix(s3_gateway: Gateway) -> None:
    whole, key = Bucket(s3_gateway.address()), f"whole/{secrets.token_hex(8)}"
    whole.put(key, BytesBody(b"x"))
    assert keys_of(whole, key) == [key]
    assert whole.get(key, 0, 1) == b"x"
    whole.delete([key])
    whole.close()


def test_more_objects_than_an_answer_holds_are_listed_and_deleted(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_bucket, "_AT_ONCE", 7)
    written = [f"u/{number:02}" for number in range(30)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda key: bucket.put(key, BytesBody(b"")), written))
    assert [len(batch) for batch in bucket.list_keys("u/")] == [7, 7, 7, 7, 2]
    assert keys_of(bucket) == written
    assert keys_of(bucket, "u/", after="u/19") == written[20:]
    bucket.delete(written)
    assert keys_of(bucket) == []


# Links


def test_a_signed_url_reads_one_object_for_a_while(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("a", "b"):
        bucket.put(key, BytesBody(b"content"))
    wanted = ('attachment; filename="a b.txt"', "text/plain")
    url = bucket.presign_get("a", 60, *wanted)
    content, headers = reading(url)
    assert content == b"content"
    assert (headers["Content-Disposition"], headers["Content-Type"]) == wanted
    with pytest.raises(urllib.error.HTTPError, match="403"):
        reading(url.replace("/a?", "/b?"))
    clock = "botocore.auth.get_current_datetime"
    now = get_current_datetime()
    monkeypatch.setattr(clock, lambda: now - timedelta(minutes=2))
    assert reading(bucket.presign_get("a", 3600, *wanted))[0] == b"content"
    with pytest.raises(urllib.error.HTTPError, match="403"):
        reading(bucket.presign_get("a", 60, *wanted))


# Multipart uploads


def test_parts_in_any_order_become_an_object(bucket: Bucket) -> None:
    contents = [PART, PART[::-1], b"the last one"]
    multipart_id = bucket.create_multipart("u/a")
    etags = {}
    for number in (2, 0, 1):
        etags[number] = bucket.upload_part("u/a", multipart_id, number, InPieces(contents[number]))
    assert bucket.list_parts("u/a", multipart_id) == {
        number: (etags[number], len(contents[number])) for number in range(3)
    }
    assert bucket.head("u/a") is None
    assert multiparts_of(bucket) == [("u/a", multipart_id)]
    bucket.complete("u/a", multipart_id, [etags[number] for number in range(3)])
    found = bucket.head("u/a")
    assert found is not None
    assert found.size == sum(map(len, contents))
    assert hashlib.sha256(bucket.get("u/a", 0, found.size)).digest() == hashlib.sha256(b"".join(contents)).digest()
    assert multiparts_of(bucket) == []


def test_a_part_that_was_overwritten_or_is_missing_is_told(bucket: Bucket) -> None:
    multipart_id = bucket.create_multipart("a")
    first = bucket.upload_part("a", multipart_id, 0, BytesBody(b"first"))
    second = bucket.upload_part("a", multipart_id, 0, BytesBody(b"second"))
    for etags in ([first], [second, second]):
        with pytest.raises(PartsChanged):
            bucket.complete("a", multipart_id, etags)
    assert bucket.head("a") is None
    assert bucket.list_parts("a", multipart_id) == {0: (second, 6)}
    bucket.complete("a", multipart_id, [second])
    assert bucket.get("a", 0, 6) == b"second"


def test_a_second_complete_never_makes_another_object(bucket: Bucket) -> None:
    multipart_id = bucket.create_multipart("a")
    etag = bucket.upload_part("a", multipart_id, 0, BytesBody(b"content"))
    bucket.complete("a", multipart_id, [etag])
    with suppress(NoSuchMultipart):  # JuiceFS; Ceph answers as before
        bucket.complete("a", multipart_id, [etag])
    bucket.abort("a", multipart_id)
    assert bucket.get("a", 0, 7) == b"content"
    bucket.delete(["a"])
    with pytest.raises(NoSuchMultipart):
        bucket.complete("a", multipart_id, [etag])
    assert bucket.head("a") is None


def test_what_was_aborted_is_gone_and_may_be_aborted_again(bucket: Bucket) -> None:
    multipart_id = bucket.create_multipart("a")
    etag = bucket.upload_part("a", multipart_id, 0, BytesBody(b"content"))
    bucket.abort("a", multipart_id)
    bucket.abort("a", multipart_id)
    assert multiparts_of(bucket) == []
    for call in (
        lambda: bucket.upload_part("a", multipart_id, 1, BytesBody(b"late")),
        lambda: bucket.list_parts("a", multipart_id),
        lambda: bucket.complete("a", multipart_id, [etag]),
    ):
        with pytest.raises(NoSuchMultipart):
            call()
    assert bucket.head("a") is None


def test_one_key_may_have_several_multipart_uploads(bucket: Bucket) -> None:
    before = bucket.clock()
    ids = {bucket.create_multipart("a"), bucket.create_multipart("a")}
    assert len(ids) == 2
    listed = [found for batch in bucket.list_multiparts() for found in batch]
    assert {(key, multipart_id) for key, multipart_id, _ in listed} == {("a", multipart_id) for multipart_id in ids}
    assert all(began - before > timedelta(seconds=-2) for _, _, began in listed)
    for multipart_id in ids:
        bucket.abort("a", multipart_id)


def test_more_parts_and_uploads_than_an_answer_holds_are_listed(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_bucket, "_AT_ONCE", 3)
    ids = [(f"u/{number // 2}", bucket.create_multipart(f"u/{number // 2}")) for number in range(7)]
    key, multipart_id = ids[0]
    etags = [bucket.upload_part(key, multipart_id, number, BytesBody(b"x")) for number in range(10)]
    assert bucket.list_parts(key, multipart_id) == {number: (etag, 1) for number, etag in enumerate(etags)}
    assert sorted(multiparts_of(bucket)) == sorted(ids)
    for key, multipart_id in ids:
        bucket.abort(key, multipart_id)
    assert multiparts_of(bucket) == []


# The server


def test_the_clock_is_that_of_the_server_and_a_check_leaves_nothing(bucket: Bucket) -> None:
    assert abs(bucket.clock() - datetime.now(UTC)) < timedelta(minutes=5)
    bucket.check()
    assert keys_of(bucket) == []


def test_a_probe_finds_out_what_the_server_does_and_leaves_nothing(bucket: Bucket) -> None:
    assert probe(bucket) in ((1, 5 << 20) if os.environ.get("UPLOADER_TEST_S3_URL") else (1,))
    assert keys_of(bucket) == []
    assert multiparts_of(bucket) == []


def test_what_an_interrupted_probe_left_is_removed_by_one_that_comes_hours_later(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put("probe/object", BytesBody(b"x"))
    begun = bucket.create_multipart("probe/multipart")
    probe(bucket)  # it may be of a probe that is under way
    assert keys_of(bucket) == ["probe/object"]
    assert [multipart_id for _, multipart_id in multiparts_of(bucket)] == [begun]
    clock = Bucket.clock
    monkeypatch.setattr(Bucket, "clock", lambda self: clock(self) + timedelta(hours=2))
    probe(bucket)
    assert keys_of(bucket) == []
    assert multiparts_of(bucket) == []


def test_a_server_that_takes_overwritten_parts_is_refused(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of those at hand does: its Complete is told the ETags that the parts have."""
    complete = Bucket.complete

    def careless(self: Bucket, key: str, multipart_id: str, _etags: list[str]) -> None:
        parts = self.list_parts(key, multipart_id)
        complete(self, key, multipart_id, [parts[number][0] for number in sorted(parts)])

    monkeypatch.setattr(Bucket, "complete", careless)
    with pytest.raises(ConfigurationError, match=r"^UPLOADER_STORAGE: .* takes parts that were overwritten"):
        probe(bucket)
    monkeypatch.undo()
    assert keys_of(bucket) == []


def test_a_server_that_stores_what_changed_on_its_way_is_refused(
    s3_address: BucketAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of those at hand does, if it is told what the digest is."""
    real = s3_bucket.make_client

    def unsigned(address: BucketAddress, **more: Any) -> Any:
        made = real(address, **more)
        config: Any = made.meta.config
        config.s3["payload_signing_enabled"] = False
        return made

    monkeypatch.setattr(s3_bucket, "make_client", unsigned)
    bucket = Bucket(s3_address)
    with pytest.raises(ConfigurationError, match=r"^UPLOADER_STORAGE: .* stores bytes that changed on their way"):
        probe(bucket)
    assert keys_of(bucket) == []
    bucket.close()


def test_a_probe_that_has_to_ask_twice_refuses_no_server(
    s3_address: BucketAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent again is signed again."""
    real = s3_bucket.make_client
    refused: list[str] = []

    def refuse_once(request: Any, **_: Any) -> Any:
        if refused:
            return None
        refused.append(request.url)
        return AWSResponse(request.url, 503, HTTPHeaders(), HTTPResponse(io.BytesIO()))

    def busy_at_first(address: BucketAddress, **more: Any) -> Any:
        made = real(address, **more)
        made.meta.events.register("before-send.s3.PutObject", refuse_once)
        return made

    monkeypatch.setattr(s3_bucket, "make_client", busy_at_first)
    bucket = Bucket(s3_address)
    probe(bucket)
    assert refused
    bucket.close()


def test_what_the_sdk_knows_of_its_services_is_read_once(
    s3_address: BucketAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_bucket.make_client(s3_address)
    monkeypatch.setattr(JSONFileLoader, "load_file", None)
    for seconds in (8.0, 60.0):
        s3_bucket.make_client(s3_address, timeout_seconds=seconds)


def test_nothing_of_the_sdk_is_loaded_before_the_first_call(s3_address: BucketAddress) -> None:
    script = (
        "import sys\n"
        "from uploader.addresses import BucketAddress\n"
        "from uploader.storage.s3 import probe\n"
        f"bucket = probe.Bucket({s3_address!r})\n"
        "assert not {'boto3', 'botocore', 'urllib3'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


# What goes wrong

CALLS: dict[str, Callable[[Bucket], object]] = {
    "put": lambda bucket: bucket.put("a", BytesBody(b"x")),
    "head": lambda bucket: bucket.head("a"),
    "get": lambda bucket: bucket.get("a", 0, 1),
    "stream": lambda bucket: bucket.stream("a", 0, 1),
    "delete": lambda bucket: bucket.delete(["a"]),
    "delete many": lambda bucket: bucket.delete(["a", "b"]),
    "list keys": keys_of,
    "create": lambda bucket: bucket.create_multipart("a"),
    "part": lambda bucket: bucket.upload_part("a", "id", 0, BytesBody(b"x")),
    "list parts": lambda bucket: bucket.list_parts("a", "id"),
    "complete": lambda bucket: bucket.complete("a", "id", ["x"]),
    "abort": lambda bucket: bucket.abort("a", "id"),
    "list multiparts": multiparts_of,
    "clock": lambda bucket: bucket.clock(),
    "check": lambda bucket: bucket.check(),
}
# Without a bucket there is no multipart upload: JuiceFS' gateway tells the one, Ceph the other.
OF_PARTS = ("part", "list parts", "complete", "abort")


@pytest.mark.parametrize(
    ("changed", "reason", "calls"),
    [
        ({"bucket": "no-such-bucket"}, "NoSuchBucket", [call for call in CALLS if call not in OF_PARTS]),
        ({"secret_access_key": SECRET}, "403", CALLS),
        # Those that are not told in one way; that each fails is shown where a server was killed.
        (
            {"endpoint": NOWHERE, "secret_access_key": SECRET},
            "Connection refused",
            ["put", "head", "list keys", "complete", "clock"],
        ),
    ],
)
def test_every_call_says_what_is_wrong(
    s3_address: BucketAddress, changed: dict[str, Any], reason: str, calls: Iterable[str]
) -> None:
    """It tells no secret, and whoever uploads nothing of the place."""
    for call in calls:
        bucket = Bucket(replace(s3_address, **changed))
        with pytest.raises(StorageFailed) as caught:
            CALLS[call](bucket)
        place, told = bucket.address, caught.value
        bucket.close()
        assert reason in told.reason, call
        assert f"s3://{place.bucket} at {place.endpoint}" in told.reason
        assert place.bucket not in told.detail
        assert SECRET not in told.reason + told.detail


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"bucket": "no-such-bucket"}, "UPLOADER_STORAGE: there is no such bucket"),
        ({"secret_access_key": SECRET}, "UPLOADER_S3_SECRET_ACCESS_KEY: it is not the one of"),
        ({"access_key_id": "nobody"}, "UPLOADER_S3_ACCESS_KEY_ID: the server knows no such key"),
        ({"access_key_id": None, "secret_access_key": None}, "UPLOADER_S3_ACCESS_KEY_ID: is not set"),
        ({"endpoint": NOWHERE}, "UPLOADER_S3_ENDPOINT: it can't be reached"),
        ({"endpoint": "http://nowhere.invalid"}, "UPLOADER_S3_ENDPOINT: it can't be reached"),
        ({"endpoint": "https:"}, "UPLOADER_S3_ENDPOINT: TLS fails"),
        ({"region": "no region"}, "UPLOADER_S3_REGION: there is no such region"),
    ],
)
def test_a_probe_names_the_setting_that_is_wrong(
    s3_address: BucketAddress, changed: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    if changed.get("endpoint") == "https:":  # where there is no TLS
        changed = {"endpoint": str(s3_address.endpoint).replace("http:", "https:")}
    bucket = Bucket(replace(s3_address, **changed))
    with pytest.raises((ConfigurationError, StorageFailed)) as caught:
        probe(bucket)
    bucket.close()
    assert caught.value.reason.startswith(reason)
    assert isinstance(caught.value, ConfigurationError) == reason.endswith(("is not set", "no such region"))
    assert SECRET not in caught.value.reason


def test_the_sdk_finds_credentials_by_itself(s3_address: BucketAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    assert s3_address.access_key_id is not None
    assert s3_address.secret_access_key is not None
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_address.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_address.secret_access_key)
    bucket = Bucket(replace(s3_address, access_key_id=None, secret_access_key=None))
    bucket.check()
    bucket.close()


def test_a_body_is_sent_from_its_start_again_where_the_connection_breaks(
    s3_gateway: Gateway, s3_address: BucketAddress
) -> None:
    port = urlsplit(s3_gateway.endpoint).port
    assert port is not None
    with relaying(port, cut_at_bytes=2 << 20) as relay:
        bucket = Bucket(replace(s3_address, endpoint=relay.url))
        bucket.put("a", InPieces(PART))
        assert relay.is_cut
        bucket.close()
    bucket = Bucket(s3_address)
    assert bucket.get("a", 0, len(PART)) == PART
    bucket.close()


def check_that_changed_bytes_are_refused(bucket: Bucket) -> None:
    with pytest.raises(StorageFailed) as put:
        bucket.put("changed", Changing(PART))
    assert bucket.head("changed") is None
    multipart_id = bucket.create_multipart("changed")
    with pytest.raises(StorageFailed) as sent:
        bucket.upload_part("changed", multipart_id, 0, Changing(PART))
    assert bucket.list_parts("changed", multipart_id) == {}
    assert "PutObject" in put.value.reason and "UploadPart" in sent.value.reason


def test_bytes_that_change_on_their_way_are_not_stored(bucket: Bucket) -> None:
    check_that_changed_bytes_are_refused(bucket)


# TLS


@pytest.mark.usefixtures("own_gateway")
def test_over_tls_the_payload_is_signed_as_well_and_the_certificate_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "authority")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.file))
    with JuiceGateway(tmp_path / "gateway", authority) as started:
        bucket = Bucket(started.gateway.address("a"))
        assert bucket.put("a", InPieces(PART)) == hashlib.md5(PART).hexdigest()
        assert bucket.get("a", 0, len(PART)) == PART
        multipart_id = bucket.create_multipart("b")
        etag = bucket.upload_part("b", multipart_id, 0, InPieces(PART))
        bucket.complete("b", multipart_id, [etag])
        bucket.delete(["a", "b"])
        check_that_changed_bytes_are_refused(bucket)
        bucket.close()
        monkeypatch.delenv("AWS_CA_BUNDLE")
        bucket = Bucket(started.gateway.address("a"))
        with pytest.raises(StorageAway) as caught:
            probe(bucket)
        assert re.match(r"UPLOADER_S3_ENDPOINT: TLS fails .*CERTIFICATE_VERIFY_FAILED", caught.value.reason)
        bucket.close()


# A gateway that dies


def test_a_server_that_was_killed_is_told_soon_and_used_again_when_it_is_back(
    own_gateway: JuiceGateway, own_address: BucketAddress
) -> None:
    bucket = Bucket(own_address)
    bucket.put("a", BytesBody(PART))
    reader = bucket.stream("a", 0, len(PART))
    reader.read(1)
    own_gateway.kill()
    with pytest.raises(StorageFailed):
        while reader.read(1 << 20):
            pass
    reader.close()
    for call in CALLS.values():
        with pytest.raises(StorageFailed):
            call(bucket)
    own_gateway.start_again()
    bucket.check()
    assert bucket.get("a", 0, len(PART)) == PART
    bucket.close()


def test_a_server_that_hangs_is_told_within_its_time_outs(
    own_gateway: JuiceGateway, own_address: BucketAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for each call, not again by the SDK; those who join parts are told later."""
    monkeypatch.setattr(s3_bucket, "JOIN_TIMEOUT_SECONDS", 60.0)
    monkeypatch.setattr(s3_bucket, "TIMEOUT_SECONDS", 0.2)
    own_gateway.send_signal(signal.SIGSTOP)
    for name in set(CALLS) - {"complete", "check"}:
        bucket = Bucket(own_address)
        with requests() as asked, pytest.raises(StorageAway) as caught:
            CALLS[name](bucket)
        assert "ReadTimeoutError" in caught.value.reason
        assert asked.total() == 1
        bucket.close()
    bucket = Bucket(own_address)
    with pytest.raises(StorageAway) as caught:
        probe(bucket)
    assert caught.value.reason.startswith("UPLOADER_S3_ENDPOINT: it does not answer")
    own_gateway.send_signal(signal.SIGCONT)
    bucket.close()


@pytest.mark.parametrize(("silent", "others"), [("put", ("get", "delete")), ("get", ("put", "delete"))])
def test_a_server_that_was_silent_is_tried_by_one_call_a_second_until_it_answers(
    own_gateway: JuiceGateway,
    own_address: BucketAddress,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    silent: str,
    others: list[str],
) -> None:
    """What it may still do it is asked for."""
    for name in ("TIMEOUT_SECONDS", "TRY_TIMEOUT_SECONDS"):
        monkeypatch.setattr(s3_bucket, name, 0.2)
    monkeypatch.setattr(breaker, "_TRY_SECONDS", 60.0)
    bucket = Bucket(own_address)
    bucket.put("a", BytesBody(b"x"))
    own_gateway.send_signal(signal.SIGSTOP)
    for number in range(6):
        with requests() as asked, pytest.raises(StorageAway) as caught:
            CALLS[silent](bucket)
        # The fourth tries it by something cheap, and those after it do not wait.
        assert asked.total() == (number < 4), f"call {number}"
    assert "has not answered since" in caught.value.detail
    assert bucket.address.bucket not in caught.value.detail
    for name in others:
        with pytest.raises(StorageAway) as caught:
            CALLS[name](bucket)
        assert "ReadTimeoutError" in caught.value.reason, "this was tried"
    own_gateway.send_signal(signal.SIGCONT)
    with pytest.raises(StorageAway, match="has not answered since"):
        CALLS[silent](bucket)
    monkeypatch.setattr(s3_bucket, "TRY_TIMEOUT_SECONDS", 60.0)
    bucket._breakers[s3_bucket.Kind.READ if silent == "get" else s3_bucket.Kind.WRITE]._try_at = 0.0
    CALLS["clock" if silent == "get" else silent](bucket)
    bucket.close()
    told = [record.getMessage() for record in caplog.records if record.name == "uploader.runtime.breaker"]
    assert told == ["a store does not answer, and is not asked", "a store answers again"]


@pytest.mark.usefixtures("own_gateway")
def test_a_server_without_room_is_full(tmp_path: Path) -> None:
    with JuiceGateway(tmp_path / "gateway") as limited:
        bucket = Bucket(limited.gateway.address("a"))
        bucket.put("a", BytesBody(b"content"))
        limited.limit_files(10)
        limited.kill()
        limited.start_again()  # it would hear of the limit by and by
        with pytest.raises(StorageFull) as caught:
            for number in range(10_000):
                with suppress(StorageFailed):  # of what it began, and can't end
                    bucket.put(f"b{number}", BytesBody(b"x"))
        assert bucket.address.bucket in caught.value.reason
        assert bucket.address.bucket not in caught.value.detail
        assert probe(bucket) is None
        assert bucket.get("a", 0, 7) == b"content"
        bucket.delete(["a"])
        bucket.close()


def test_rules_and_rights_that_the_doctor_tells_of(s3_address: BucketAddress) -> None:
    """JuiceFS has neither: nothing is told of it, and nothing goes wrong."""
    address = replace(s3_address, bucket=f"doctor-{secrets.token_hex(4)}", prefix="files")
    bucket, client = Bucket(address), make_client(address)
    rule = {"ID": "old", "Status": "Enabled", "Filter": {"Prefix": "files/"}, "Expiration": {"Days": 30}}
    allowed = {"Effect": "Allow", "Principal": "*", "Action": "s3:ListBucket"}
    policy = {"Version": "2012-10-17", "Statement": [allowed | {"Resource": f"arn:aws:s3:::{address.bucket}"}]}
    expected: list[str] = []
    with suppress(ClientError):
        client.create_bucket(Bucket=address.bucket)
        assert diagnoses_of(bucket, 7 * 86400) == []
        rules: Any = {"Rules": [rule]}
        client.put_bucket_lifecycle_configuration(Bucket=address.bucket, LifecycleConfiguration=rules)
        expected.append("the rule 'old' of the bucket deletes contents")
        client.put_bucket_policy(Bucket=address.bucket, Policy=json.dumps(policy))
        expected.append(f"anybody may list {bucket.place}, and perhaps read it")
    assert [each.what for each in diagnoses_of(bucket, 7 * 86400)] == expected
    client.close()
    bucket.close()
