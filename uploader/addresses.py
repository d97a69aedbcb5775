"""Parsers for the URLs of Redis, MySQL and S3. They report mistakes before anything connects.

No error message repeats a possible part of a password.
"""

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

REDIS_PORT = 6379
SENTINEL_PORT = 26379
_NAME = re.compile(r"[A-Za-z0-9_]{1,40}")
# redis-py's names, which 0.1.0 accepted in the URL.
_OTHER_NAMES = {"ssl_ca_certs": "ssl_ca", "ssl_certfile": "ssl_cert", "ssl_keyfile": "ssl_key"}
TLS_OPTIONS = frozenset({"ssl_ca", "ssl_cert", "ssl_key", "ssl_check_hostname"})
_REDIS_OPTIONS = frozenset({"db", "username", "password"})
_SENTINEL_OPTIONS = frozenset({"sentinel_username", "sentinel_password"})
_MYSQL_OPTIONS = frozenset({"charset", "unix_socket"})
# Options that change the meaning of SQL statements: this server sets them on each connection.
_OUR_MYSQL_OPTIONS = frozenset({"init_command", "sql_mode"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS to a server: the CA file, and the client certificate with its key, all in PEM. Without `ca` the system's CAs
    count."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    checks_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """Return the TLS context, which always verifies the server's certificate. Raises ValueError with the option and
        the file."""
        context = ssl.create_default_context()
        context.check_hostname = self.checks_hostname
        if self.ca is not None:
            try:
                context.load_verify_locations(self.ca)
            except OSError as error:  # includes ssl.SSLError
                raise ValueError(f"ssl_ca: {self.ca}: {_reason(error)}") from None
        if self.certificate is not None:
            try:
                context.load_cert_chain(self.certificate, self.key, password="")
            except OSError as error:
                files = " with ".join(file for file in (self.certificate, self.key) if file)
                raise ValueError(f"ssl_cert: {files}: {_reason(error)}") from None
        elif self.key is not None:
            raise ValueError("ssl_key: there is no ssl_cert that it could belong to")
        return context


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"is not what it should be, in PEM and without a password ({error.reason or 'no certificate'})"
    return error.strerror or str(error)


class RedisKind(StrEnum):
    SERVER = "redis"
    SOCKET = "unix"
    CLUSTER = "redis+cluster"
    SENTINEL = "redis+sentinel"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisAddress:
    """The address of a Redis or Valkey, of nodes of a Cluster, or of the Sentinels that know the master."""

    kind: RedisKind
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    database: int = 0
    service: str = ""  # the Sentinels' name for the master
    username: str | None = None
    password: str | None = None
    sentinel_username: str | None = None
    sentinel_password: str | None = None
    tls: Tls | None = None


REDIS_SCHEMES = (
    *("redis://", "rediss://", "unix://"),
    *("redis+cluster://", "rediss+cluster://", "redis+sentinel://", "rediss+sentinel://"),
)


def parse_redis_url(url: str) -> RedisAddress:
    """Parse a URL of Redis. Raises ValueError for mistakes in the URL and in the files that it names."""
    if not url.startswith(REDIS_SCHEMES):
        raise ValueError(f"does not start with {', '.join(REDIS_SCHEMES)}")
    parts, options = _split(url)
    secure = parts.scheme.startswith("rediss")
    kind = RedisKind(parts.scheme.replace("rediss", "redis"))
    allowed = _REDIS_OPTIONS | (_SENTINEL_OPTIONS if kind is RedisKind.SENTINEL else frozenset())
    plain = (
        "" if kind is RedisKind.SOCKET else f"for TLS the URL begins with {parts.scheme.replace('redis', 'rediss')}://"
    )
    _check_names(options, allowed | (TLS_OPTIONS if secure else frozenset()), plain)
    username, password = _credentials(parts)
    port = SENTINEL_PORT if kind is RedisKind.SENTINEL else REDIS_PORT
    path = unquote(parts.path)
    if kind is RedisKind.SENTINEL and not path.strip("/"):
        raise ValueError("the name of the master is missing: redis+sentinel://host:port,host:port/name")
    if kind is RedisKind.SOCKET and not path:
        raise ValueError("the path of the socket is missing: unix:///path")
    tls = _tls(options) if secure else None
    return RedisAddress(
        kind=kind,
        hosts=() if kind is RedisKind.SOCKET else _hosts(parts, port, several=kind is not RedisKind.SERVER),
        path=path if kind is RedisKind.SOCKET else "",
        database=_database(kind, options.get("db") or (path.strip("/") if kind in _NUMBERED else "")),
        service=path.strip("/") if kind is RedisKind.SENTINEL else "",
        username=options.get("username", username),
        password=options.get("password", password),
        sentinel_username=options.get("sentinel_username"),
        sentinel_password=options.get("sentinel_password"),
        tls=tls,
    )


_NUMBERED = (RedisKind.SERVER, RedisKind.CLUSTER)


def _database(kind: RedisKind, text: str) -> int:
    if not re.fullmatch(r"[0-9]{0,5}", text):
        raise ValueError("the number of the database is no number")
    if kind is RedisKind.CLUSTER and int(text or 0):
        raise ValueError("a Cluster has no numbered databases")
    return int(text or 0)


def parse_mysql_url(url: str) -> Tls | None:
    """Return the TLS of a URL of MySQL or MariaDB; None without TLS. Raises ValueError for mistakes in the URL and in
    the files that it names."""
    parts, options = _split(url)
    for_tls = "TLS is asked for by ssl_ca, the file of the certificate that vouches for the server's"
    for name in sorted(_OUR_MYSQL_OPTIONS & set(options)):
        raise ValueError(f"{name}: this server sets the SQL mode itself: leave {name} out")
    _check_names(options, _MYSQL_OPTIONS | TLS_OPTIONS, for_tls)
    if options.get("charset", "utf8mb4") != "utf8mb4":
        raise ValueError("charset: is not utf8mb4, in which this server speaks to the database")
    if not parts.path.strip("/"):
        raise ValueError("the name of the database is missing: mysql+asyncmy://user:password@host/name")
    if "unix_socket" not in options:
        _hosts(parts, 3306, several=False)
    if not TLS_OPTIONS & set(options):
        return None
    if "ssl_ca" not in options:
        raise ValueError(f"ssl_ca is missing: {for_tls}")
    return _tls(options)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketAddress:
    """A bucket of an S3-compatible server, and the prefix of all its objects."""

    bucket: str
    prefix: str = ""  # without a slash at its end
    endpoint: str | None = None  # None: AWS
    region: str | None = None
    # Both None: the SDK finds credentials itself.
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    # http://host/bucket/key instead of http://bucket.host/key
    path_style: bool = False


# The rules of AWS, which other servers relax. Dots are left out, because they break TLS.
_BUCKET = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_PREFIX = re.compile(r"[A-Za-z0-9!_.*'()-]+(?:/[A-Za-z0-9!_.*'()-]+)*")


def parse_storage_url(url: str) -> tuple[str, str]:
    """Return the bucket and the prefix of `s3://bucket/prefix`. Raises ValueError."""
    if not url.startswith("s3://"):
        raise ValueError("does not start with s3://")
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise ValueError("a bucket has 3 to 63 lower-case letters, digits and hyphens: s3://bucket/prefix")
    prefix = prefix.removesuffix("/")
    if prefix and (not _PREFIX.fullmatch(prefix) or {".", ".."} & set(prefix.split("/"))):
        raise ValueError("a prefix has letters, digits and !_.*'()-, and slashes between them: s3://bucket/prefix")
    return bucket, prefix


def parse_endpoint(url: str) -> str:
    """Return the URL of an S3 server, without a path. Raises ValueError."""
    if not url.startswith(("http://", "https://")):
        raise ValueError("does not start with http:// or https://")
    parts, _ = _split(url)
    if "@" in parts.netloc:
        raise ValueError("has a user or a password: they are told by UPLOADER_S3_ACCESS_KEY_ID and its like")
    if parts.path.strip("/") or parts.query:
        raise ValueError("has more than a host and a port: the bucket is told by UPLOADER_STORAGE")
    ((host, _),) = _hosts(parts, 443, several=False)
    # The SDK accepts no other names.
    if not parts.netloc or not (":" in host or all(_LABEL.fullmatch(label) for label in host.split("."))):
        raise ValueError("is no address of the form host:port")
    return f"{parts.scheme}://{parts.netloc}"


# Parts of a URL


def _split(url: str) -> tuple[SplitResult, Mapping[str, str]]:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError("is no URL") from None
    if "@" in parts.path + parts.query + parts.fragment or parts.fragment:
        raise ValueError(
            "a '/', '?', '#' or '%' of a password is written as %2F, %3F, %23 or %25, an '@' of a path as %40"
        )
    given = parse_qsl(parts.query, keep_blank_values=True)
    return parts, {_OTHER_NAMES.get(name, name): value for name, value in given}


def _check_names(options: Mapping[str, str], allowed: frozenset[str], for_tls: str) -> None:
    for name, value in options.items():
        if name in allowed:
            continue
        shown = name if value and _NAME.fullmatch(name) else "what follows the '?'"
        if name == "ssl_cert_reqs":
            raise ValueError(f"{shown}: a certificate is always verified: name the one that vouches for it by ssl_ca")
        if for_tls and name.startswith(("ssl", "tls")):
            raise ValueError(f"{shown}: {for_tls}")
        raise ValueError(f"{shown}: is none of {', '.join(sorted(allowed))}")


def _credentials(parts: SplitResult) -> tuple[str | None, str | None]:
    username, password = parts.username, parts.password
    return unquote(username) if username else None, unquote(password) if password else None


def _hosts(parts: SplitResult, default_port: int, *, several: bool) -> tuple[tuple[str, int], ...]:
    addresses = parts.netloc.rpartition("@")[2].split(",")
    if len(addresses) > 1 and not several:
        raise ValueError("names more than one host: only a Cluster and Sentinels have several")
    return tuple(_host(address, default_port) for address in addresses)


def _host(address: str, default_port: int) -> tuple[str, int]:
    found = re.fullmatch(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]]*))(?::(?P<port>[0-9]{1,5}))?", address)
    if found is None or int(found["port"] or default_port) not in range(1, 65536):
        raise ValueError("is no address of the form host:port")
    return unquote(found["six"] or found["name"] or "localhost"), int(found["port"] or default_port)


def _tls(options: Mapping[str, str]) -> Tls:
    checks = options.get("ssl_check_hostname", "true").lower()
    if checks not in ("true", "false"):
        raise ValueError("ssl_check_hostname: is neither true nor false")
    tls = Tls(
        ca=options.get("ssl_ca"),
        certificate=options.get("ssl_cert"),
        key=options.get("ssl_key"),
        checks_hostname=checks == "true",
    )
    tls.context()
    return tls
