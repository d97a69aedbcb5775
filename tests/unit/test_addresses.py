"""The URLs of Redis, MySQL and S3: what each part means, and the one line that says what is wrong with one."""

from pathlib import Path

import pytest

from tests.support.certificates import Authority
from uploader.addresses import (
    BucketAddress,
    RedisKind,
    Tls,
    parse_endpoint,
    parse_mysql_url,
    parse_redis_url,
    parse_storage_url,
)
from uploader.errors import ConfigurationError
from uploader.settings import Settings


def complaint(**settings: str) -> str:
    """The one line with which a start is refused."""
    with pytest.raises(ConfigurationError) as caught:
        Settings(**settings)  # type: ignore[arg-type]
    (line,) = caught.value.detail.splitlines()
    return line


@pytest.mark.parametrize(
    ("url", "kind", "hosts"),
    [
        ("redis://", RedisKind.SERVER, (("localhost", 6379),)),
        ("redis://cache", RedisKind.SERVER, (("cache", 6379),)),
        ("rediss://me:secret@[::1]:7000/3", RedisKind.SERVER, (("::1", 7000),)),
        ("unix:///run/redis.sock?db=2", RedisKind.SOCKET, ()),
        ("redis+cluster://a,b:7001", RedisKind.CLUSTER, (("a", 6379), ("b", 7001))),
        ("rediss+cluster://:p@ss@a:1", RedisKind.CLUSTER, (("a", 1),)),
        ("redis+sentinel://a,b:1/main?db=4", RedisKind.SENTINEL, (("a", 26379), ("b", 1))),
        ("rediss+sentinel://a/main", RedisKind.SENTINEL, (("a", 26379),)),
    ],
)
def test_a_url_of_redis_names_its_kind_and_hosts(url: str, kind: RedisKind, hosts: tuple[tuple[str, int], ...]) -> None:
    address = parse_redis_url(url)
    assert (address.kind, address.hosts) == (kind, hosts)
    assert address.tls == (Tls() if url.startswith("rediss") else None)


def test_the_parts_of_a_url_of_redis() -> None:
    assert parse_redis_url("redis://me:a%2Fb%40@cache/3").password == "a/b@"
    assert parse_redis_url("redis://me:x@cache/3").username == "me"
    assert parse_redis_url("redis://cache?password=x&username=me").password == "x"
    assert [parse_redis_url(f"redis://cache{more}").database for more in ("", "/", "/3", "?db=3")] == [0, 0, 3, 3]
    assert parse_redis_url("unix:///run/a%20b.sock?db=2").path == "/run/a b.sock"
    address = parse_redis_url("redis+sentinel://:x@a/main?db=4&sentinel_username=me&sentinel_password=y")
    assert (address.service, address.database, address.password) == ("main", 4, "x")
    assert (address.sentinel_username, address.sentinel_password) == ("me", "y")


def test_files_that_hold_something_else_are_refused(tmp_path: Path) -> None:
    mine = Authority(tmp_path).issue("me")
    (tmp_path / "empty").touch()
    empty = complaint(redis_url=f"rediss://cache?ssl_ca={tmp_path}/empty")
    assert empty.startswith(f"UPLOADER_REDIS_URL: ssl_ca: {tmp_path}/empty: is not what it should be")
    swapped = complaint(redis_url=f"rediss://cache?ssl_cert={mine.key}&ssl_key={mine.certificate}")
    assert swapped.startswith(f"UPLOADER_REDIS_URL: ssl_cert: {mine.key} with {mine.certificate}: ")


def test_the_names_of_files_are_the_same_for_both_and_those_of_0_1_0_are_known(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    mine = authority.issue("me")
    tls = Tls(ca=str(authority.file), certificate=str(mine.certificate), key=str(mine.key), checks_hostname=False)
    options = f"ssl_ca={authority.file}&ssl_cert={mine.certificate}&ssl_key={mine.key}&ssl_check_hostname=false"
    assert parse_mysql_url(f"mysql+asyncmy://host/name?charset=utf8mb4&{options}") == tls
    assert parse_redis_url(f"rediss://cache?{options}").tls == tls
    before = options.replace("ssl_ca=", "ssl_ca_certs=").replace("ssl_cert=", "ssl_certfile=")
    assert parse_redis_url(f"rediss://cache?{before.replace('ssl_key=', 'ssl_keyfile=')}").tls == tls


def test_the_storage_is_a_bucket_and_what_its_keys_begin_with_and_an_endpoint_a_host_and_a_port() -> None:
    assert parse_storage_url("s3://bucket") == parse_storage_url("s3://bucket/") == ("bucket", "")
    assert parse_storage_url("s3://my-bucket-1/uploads") == ("my-bucket-1", "uploads")
    assert parse_storage_url("s3://bucket/a/B_2/c.d/") == ("bucket", "a/B_2/c.d")
    for url in ("http://127.0.0.1:9000", "https://store.example", "http://[::1]:80"):
        assert parse_endpoint(url) == parse_endpoint(f"{url}/") == url


REDIS = [
    ("http://cache", "does not start with redis://, rediss://, unix://, redis+cluster://"),
    ("redis://cache?ssl=true", "ssl: for TLS the URL begins with rediss://"),
    ("redis+cluster://cache?ssl_ca=/ca.pem", "ssl_ca: for TLS the URL begins with rediss+cluster://"),
    ("redis+sentinel://cache/main?tls=1", "tls: for TLS the URL begins with rediss+sentinel://"),
    ("rediss://cache?ssl_cert_reqs=none", "ssl_cert_reqs: a certificate is always verified"),
    ("rediss://cache?ssl_check_hostname=no", "ssl_check_hostname: is neither true nor false"),
    ("rediss://cache?ssl_ca=/nowhere/ca.pem", "ssl_ca: /nowhere/ca.pem: No such file or directory"),
    ("rediss://cache?ssl_key=/nowhere/key.pem", "ssl_key: there is no ssl_cert that it could belong to"),
    ("redis://cache?timeout=5", "timeout: is none of db, password, username"),
    ("redis://a,b", "names more than one host"),
    ("redis://cache:port", "is no address of the form host:port"),
    ("redis://cache:65536", "is no address of the form host:port"),
    ("redis://cache/main", "the number of the database is no number"),
    ("redis+cluster://cache/1", "a Cluster has no numbered databases"),
    ("redis+sentinel://cache", "the name of the master is missing"),
    ("unix://", "the path of the socket is missing"),
    *((f"redis://{rest}", "") for rest in (":open/sesame@a", ":open#sesame@a", ":open?sesame@a", ":open?sesame")),
    *((f"redis://{rest}", "") for rest in ("open:sesame", "[open:sesame@a", ":open?ses ame=1")),
]
MYSQL = [
    ("host/name?ssl=true", "ssl: TLS is asked for by ssl_ca"),
    ("host/name?ssl_mode=REQUIRED", "ssl_mode: TLS is asked for by ssl_ca"),
    ("host/name?ssl_cert=/cert.pem", "ssl_ca is missing: TLS is asked for by ssl_ca"),
    ("host/name?ssl_ca=/nowhere/ca.pem", "ssl_ca: /nowhere/ca.pem: No such file or directory"),
    ("host/name?read_timeout=5", "read_timeout: is none of charset, ssl_ca, "),
    ("host/name?sql_mode=ANSI_QUOTES", "sql_mode: this server sets the SQL mode itself: leave sql_mode out"),
    ("host/name?charset=utf8mb4&init_command=SET+x", "init_command: this server sets the SQL mode itself"),
    ("host/name?charset=gbk", "charset: is not utf8mb4"),
    *((leads_nowhere, "") for leads_nowhere in ("host", "a,b/name", "host:port/name")),
]
STORAGE = [
    *((url, "does not start with s3://") for url in ("/srv/data", "https://bucket.s3.amazonaws.com")),
    *((f"s3://{bucket}", "a bucket has 3 to 63 lower-case letters") for bucket in ("", "me:sesame@bucket", "Bucket")),
    *((f"s3://bucket/{rest}", "a prefix has letters") for rest in ("/a", "a//b", "a b", "a/../b", "a?region=x")),
]
ENDPOINT = [
    ("store:9000", "does not start with http:// or https://"),
    ("https://me:sesame@store", "has a user or a password"),
    *((f"https://store{more}", "has more than a host and a port") for more in ("/bucket", "?sesame=1")),
    *((f"https://{host}", "is no address of the form host:port") for host in ("", "store:port", "my_store", "a..b")),
    ("https://a,b", "names more than one host"),
]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        *(({"redis_url": url}, reason) for url, reason in REDIS),
        *(({"database_url": f"mysql+asyncmy://me:sesame@{rest}"}, reason) for rest, reason in MYSQL),
        *(({"storage": url}, reason) for url, reason in STORAGE),
        *(({"storage": "s3://bucket", "s3_endpoint": url}, reason) for url, reason in ENDPOINT),
    ],
)
def test_what_is_wrong_with_an_address_is_one_line_without_its_password(settings: dict[str, str], reason: str) -> None:
    line = complaint(**settings)
    assert line.startswith(f"UPLOADER_{list(settings)[-1].upper()}: {reason}")
    assert "sesame" not in line
    assert "ses ame" not in line
    assert ":open" not in line


def test_the_address_of_a_bucket_is_what_the_settings_say_and_does_not_show_its_secret(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hidden\n")
    environment = {
        "UPLOADER_STORAGE": "s3://bucket/a",
        "UPLOADER_S3_ENDPOINT": "http://store:9000/",
        "UPLOADER_S3_REGION": "here",
        "UPLOADER_S3_ACCESS_KEY_ID": "me",
        "UPLOADER_S3_SECRET_ACCESS_KEY_FILE": str(tmp_path / "secret"),
        "UPLOADER_S3_PATH_STYLE": "true",
    }
    address = Settings.load(environment).bucket()
    assert address == BucketAddress(
        bucket="bucket",
        prefix="a",
        endpoint="http://store:9000",
        region="here",
        access_key_id="me",
        secret_access_key="hidden",
        path_style=True,
    )
    assert "hidden" not in repr(address)
    assert Settings().bucket() is None
    assert Settings(storage="s3://bucket").bucket() == BucketAddress(bucket="bucket")
