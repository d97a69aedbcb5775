"""Every setting of the server, read once from `UPLOADER_*` environment variables, typed, frozen, and passed in.

Parser, default and line of docs/configuration.md of a setting stand together. No other module reads a setting from the
environment. Unknown names, unreadable values and contradictions stop the start, with one line for each.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from uploader import units
from uploader.addresses import BucketAddress, parse_endpoint, parse_mysql_url, parse_redis_url, parse_storage_url
from uploader.errors import ConfigurationError

PREFIX = "UPLOADER_"
JWT_ALGORITHMS = ("HS256", "RS256", "ES256", "EdDSA")

# Read by the client and the tests, not by the server. These names do not stop a server.
FOREIGN_NAMES = frozenset(
    f"UPLOADER_{name}"
    for name in ("URL", "TOKEN", "LINK_PASSWORD", "TASK", "NAME", "PATH")  # of clients and workers
)
FOREIGN_PREFIXES = ("UPLOADER_TEST_",)

# RFC 7518, section 3.2: as long as the hash of HS256. The secret that signs URLs has the same minimum.
_MIN_SECRET_BYTES = 32
# The smallest part of a multipart upload that AWS and Ceph take. On S3 a chunk is a part.
_USUAL_PART_BYTES = 5 << 20
_DATABASE_SCHEMES = ("mysql+asyncmy://", "sqlite:", "sqlite+aiosqlite:")


def _setting(parse: Callable[[str], Any], default: str | None, about: str, *, secret: bool = False) -> Any:
    """Declare a setting. `default` is spelt as in the environment (None: unset); `about` is its line in
    docs/configuration.md."""
    metadata = {"parse": parse, "default": default, "about": about, "secret": secret}
    return field(default=None if default is None else parse(default), metadata=metadata)


def _secret(about: str) -> Any:
    return _setting(units.text_of, None, about, secret=True)


def variable_of(setting: "Field[Any]") -> str:
    """Return the environment variable of a field. The name has no unit, because the value has a unit."""
    return PREFIX + setting.name.removesuffix("_seconds").removesuffix("_bytes").upper()


_duration, _size = units.positive(units.parse_duration), units.positive(units.parse_size)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings in force. Make them by `Settings.load()`; tests may construct them directly."""

    data: Path = _setting(Path, "./data", "where temp, blobs and the embedded servers live")
    database_url: str | None = _secret(
        "`mysql+asyncmy://user:password@host/name?charset=utf8mb4`; unset: embedded SQLite"
    )
    redis_url: str | None = _secret(
        "`redis://`, `rediss://`, `unix://`, `redis+cluster://` or `redis+sentinel://`; unset: embedded"
    )
    database_connections: int = _setting(
        units.integer(4, 1000), "22", "connections to MySQL or MariaDB, per process, at most"
    )
    database_timeout_seconds: float = _setting(
        units.duration_within(1, 60),
        "5s",
        "how long MySQL or MariaDB may be silent, to a hello, too, or a row be locked, before the answer is 503",
    )
    redis_connections: int = _setting(
        units.integer(4, 10000),
        "64",
        "connections to Redis, per process, at most (to each of a Cluster), beside the one of all scripts",
    )
    redis_timeout_seconds: float = _setting(
        units.duration_within(1, 60), "5s", "how long Redis may take to answer before the answer is 503"
    )
    secret: str | None = _secret(
        "the secret from which links and signed URLs derive, at least 32 bytes; unset: the file `secret` in "
        "`UPLOADER_DATA`, which the first start makes. With an external database `uploader db upgrade` and several nodes "
        "need it"
    )
    storage: str | None = _setting(units.text_of, None, "`s3://bucket/prefix`; unset: below `UPLOADER_DATA`")
    s3_endpoint: str | None = _setting(units.text_of, None, "`https://host:port` of that bucket; unset: AWS")
    s3_region: str | None = _setting(units.text_of, None, "its region; unset: as the SDK of AWS finds it")
    s3_access_key_id: str | None = _secret("the key id for it; unset: the key that the SDK of AWS finds")
    s3_secret_access_key: str | None = _secret("the secret that belongs to it")
    s3_path_style: bool = _setting(
        units.boolean, "false", "`http://host/bucket`: what an endpoint of your own usually wants"
    )
    s3_presigned_downloads: bool = _setting(
        units.boolean, "false", "downloads are sent on (307) to the bucket, by signed URLs of a minute"
    )
    events: Path | None = _setting(Path, None, "a TOML file that names the sinks of events (docs/events.md)")
    host: str = _setting(units.text_of, "127.0.0.1", "address to listen on (`serve --host`)")
    port: int = _setting(units.integer(0, 65535), "8000", "port to listen on, 0 for a free one (`serve --port`)")
    work_listen: str | None = _setting(
        units.text_of,
        None,
        "`HOST:PORT` for `/livez`, `/readyz` and `/metrics` of `work` (`work --listen`); unset: none",
    )
    public_url: str | None = _setting(
        units.public_url, None, "`https://host/path` by which clients see the server; unset: as they ask for it"
    )
    tls_certificate: Path | None = _setting(
        units.path_of, None, "a file with the server's certificate and those above it, in PEM; unset: no TLS"
    )
    tls_key: Path | None = _setting(units.path_of, None, "the file with its key; both are read anew at `SIGHUP`")
    workers: int = _setting(units.integer(1, 256), "1", "server processes (`serve --workers`)")
    cpu_affinity: str = _setting(units.one_of("auto", "off"), "auto", "`auto`: short work on one core; `off`")
    jobs: bool = _setting(units.boolean, "true", "`serve` runs the background jobs too, beside `work`")
    auth: str = _setting(units.one_of("token", "jwt", "none"), "token", "`token`, `jwt`, or `none` (loopback only)")
    jwt_secret: str | None = _secret("the secret of HS256, 32 bytes or more")
    jwt_public_key: str | None = _secret("or a public key in PEM: RSA, EC P-256 or Ed25519")
    jwt_jwks: str | None = _setting(units.text_of, None, "or a file or an `http(s)://` URL with a JWK set")
    jwt_algorithms: tuple[str, ...] = _setting(
        units.list_of(units.one_of(*JWT_ALGORITHMS)),
        ",".join(JWT_ALGORITHMS),
        "accepted algorithms; a key accepts only the one of its kind",
    )
    jwt_issuer: str | None = _setting(units.text_of, None, "the `iss` that tokens need; unset: not checked")
    jwt_audience: str | None = _setting(units.text_of, None, "the `aud` that tokens need; unset: not checked")
    jwt_leeway_seconds: float = _setting(
        units.duration_within(0, 30), "10s", "by how much clocks may differ for `exp` and `nbf`, at most 30s"
    )
    trusted_header: str | None = _setting(
        units.header_name, None, "the header in which a proxy names the user, such as `X-Remote-User`"
    )
    trusted_proxies: tuple[str, ...] | None = _setting(
        units.list_of(units.network),
        None,
        "proxies whose `UPLOADER_TRUSTED_HEADER`, `Forwarded` and `X-Forwarded-*` are believed",
    )
    cors_origins: tuple[str, ...] | None = _setting(
        units.list_of(units.origin), None, "origins whose pages may call the server, or `*`; unset: none"
    )
    link_lifetime_seconds: float = _setting(
        units.duration_within(1, 2592000), "7d", "how long a signed link works at the most, up to 30d"
    )
    link_secret: str | None = _secret("the former name of `UPLOADER_SECRET`, for this release")
    links: str = _setting(
        units.one_of("on", "off"), "on", "whether users may share with strangers, and collect from them, by links"
    )
    share_lifetime_seconds: float = _setting(
        units.duration_within(60, 315360000),
        "30d",
        "how long such a link works where its maker does not say, and at most",
    )
    max_links: int = _setting(units.integer(1, 10**6), "1000", "links of one user that work")
    instant: str = _setting(
        units.one_of("off", "own", "proof", "trust"),
        "proof",
        "instant upload: `off`, `own` (own files only), `proof` (others' content against a proof), `trust` (MD5 is enough)",
    )
    proof_ranges: int = _setting(units.integer(1, 1024), "64", "ranges of 4 KiB that a proof of possession is about")
    proof_min_size_bytes: int = _setting(_size, "4KiB", "smallest content of others that a proof of possession gives")
    proof_max_probes: int = _setting(
        units.integer(0, 10**9), "1000", "openings of one user in an hour that may lead to a challenge"
    )
    proof_max_failures: int = _setting(
        units.integer(0, 10**9), "100", "challenges of one user in an hour without a good answer"
    )
    durability: str = _setting(
        units.one_of("power", "process"),
        "power",
        "an acknowledged chunk survives `power` cuts, or only the end of a `process`",
    )
    default_total_space_bytes: int = _setting(
        units.parse_size, "10GiB", "total space of a user seen for the first time"
    )
    max_file_size_bytes: int = _setting(_size, "625GiB", "largest file")
    chunk_size_bytes: int = _setting(_size, "8MiB", "chunk size where the client asks for none")
    min_chunk_size_bytes: int = _setting(_size, "64KiB", "smallest chunk size (on S3: `5MiB`)")
    max_chunk_size_bytes: int = _setting(_size, "64MiB", "largest chunk size")
    max_append_size_bytes: int | None = _setting(
        _size,
        None,
        "largest body of one request of HTTP's resumable uploads, told to their clients: the limit of a proxy before the "
        "server; unset: none",
    )
    max_files: int = _setting(units.integer(1, 10**12), "1000000", "files and open uploads of one user")
    max_open_uploads: int = _setting(units.integer(1, 10**9), "100", "open uploads of one user")
    max_concurrent_chunks: int = _setting(
        units.integer(1, 10**6), "16", "chunk bodies of one user at once, per process"
    )
    quiet_interval_seconds: float = _setting(
        _duration, "5s", "how long an upload is quiet before its bytes are written to the database"
    )
    max_delay_seconds: float = _setting(_duration, "60s", "the longest that bytes wait for that while more arrive")
    max_pending_bytes: int = _setting(_size, "64MiB", "pending bytes of one upload that do not wait")
    claim_lease_seconds: float = _setting(_duration, "30s", "how long a claimed task is its worker's alone")
    shards: int = _setting(units.integer(1, 100), "1", "shards of the Redis keys (more for Cluster)")
    merge_wait_seconds: float = _setting(
        units.parse_duration, "10s", "how long a request waits for its merge before the answer is 202"
    )
    upload_expiry_seconds: float = _setting(_duration, "7d", "when an idle upload expires")
    closed_retention_seconds: float = _setting(
        _duration, "30d", "how long the end of an upload is remembered; of a user the newest 1,000"
    )
    audit_retention_seconds: float = _setting(
        units.parse_duration, "400d", "how long the audit log keeps an entry; `0s`: for ever"
    )
    trash_retention_seconds: float = _setting(
        units.parse_duration, "7d", "how long deleted content stays in the trash; `0s`: not at all"
    )
    scrub: str | None = _setting(
        units.one_of("all", "sample"),
        None,
        "`all`: all content is read back, within the times that follow; `sample`: one content an hour; unset: `all` on a "
        "disk, `sample` on S3, where each reading is paid for",
    )
    scrub_first_seconds: float = _setting(
        _duration, "24h", "the time within which new content is read back from the disk"
    )
    scrub_every_seconds: float = _setting(_duration, "30d", "the time within which all content is read back again")
    verify_reads: str = _setting(
        units.one_of("on", "off"),
        "on",
        "whether content on a disk is compared with its checksums while it is read; `off` where the filesystem does that",
    )
    scrub_rate_bytes: int = _setting(
        units.parse_rate, "50MiB/s", "bytes a second at which content is read back, per installation"
    )
    free_space_floor_bytes: int | None = _setting(
        units.parse_size, None, "free disk that new uploads leave; unset: the larger of 5 % and 1 GiB"
    )
    body_idle_timeout_seconds: float = _setting(
        _duration, "30s", "how long a body may stand still before 408, or an answer before the end"
    )
    min_body_rate_bytes: int = _setting(
        units.parse_rate, "1KiB/s", "bytes a second that a body must reach after its first 10 s"
    )
    header_timeout_seconds: float = _setting(_duration, "15s", "how long the headers of a request may take")
    max_connections: int = _setting(
        units.integer(1, 10**6), "4096", "connections, per process; those beyond are answered 503"
    )
    max_connections_per_address: int = _setting(
        units.integer(1, 10**6),
        "2048",
        "of one address (IPv6: one /64), per process; through a trusted proxy its requests at once",
    )
    max_connections_per_user: int = _setting(
        units.integer(1, 10**6), "2048", "requests of one user at once, per process"
    )
    max_wrong_tokens: int = _setting(
        units.integer(1, 10**6),
        "20",
        "wrong tokens of one address in a minute, per process; each beyond takes a quarter of a second",
    )
    body_budget_bytes: int = _setting(
        _size, "512MiB", "memory for chunk bodies, per process; a user gets a quarter of it"
    )
    shutdown_timeout_seconds: float = _setting(
        _duration, "30s", "how long requests in flight may take to end at a stop"
    )
    drain_time_seconds: float = _setting(
        units.parse_duration, "0s", "how long a server that stops takes new requests, with `/readyz` 503"
    )
    metrics: str = _setting(
        units.one_of("open", "admin"),
        "admin",
        "who may read `/metrics`: `admin` (also tokens of `--metrics`) or `open`, to everybody",
    )
    web_pages: bool = _setting(units.boolean, "true", "whether the web pages at `/` and `/admin/` are served")
    interim_responses: bool = _setting(
        units.boolean, "true", "whether 104s tell of resumable uploads early; old proxies break on them"
    )
    log_level: str = _setting(
        units.one_of("debug", "info", "warning", "error"), "info", "`debug`, `info`, `warning` or `error`"
    )
    log_format: str = _setting(units.one_of("text", "json"), "text", "`text`, or `json` lines")

    def __post_init__(self) -> None:
        problems = []
        if not self.min_chunk_size_bytes <= self.chunk_size_bytes <= self.max_chunk_size_bytes:
            problems.append("UPLOADER_CHUNK_SIZE: not between UPLOADER_MIN_CHUNK_SIZE and UPLOADER_MAX_CHUNK_SIZE")
        if self.quiet_interval_seconds > self.max_delay_seconds:
            problems.append("UPLOADER_QUIET_INTERVAL: longer than UPLOADER_MAX_DELAY")
        if self.max_chunk_size_bytes > 2**30:
            problems.append("UPLOADER_MAX_CHUNK_SIZE: larger than 1GiB")
        if (self.tls_certificate is None) != (self.tls_key is None):
            given, missing = ("KEY", "CERTIFICATE") if self.tls_certificate is None else ("CERTIFICATE", "KEY")
            problems.append(f"UPLOADER_TLS_{given}: needs UPLOADER_TLS_{missing}")
        problems += self._problems_of_addresses()
        problems += self._problems_of_the_bucket()
        problems += self._problems_of_authentication()
        if problems:
            raise ConfigurationError("\n".join(problems))

    def _problems_of_addresses(self) -> list[str]:
        problems = []
        if self.database_url is not None and not self.database_url.startswith(_DATABASE_SCHEMES):
            problems.append("UPLOADER_DATABASE_URL: does not start with mysql+asyncmy:// or sqlite:")
        elif self.database_url is not None and self.database_url.startswith("mysql"):
            problems += _problem("DATABASE_URL", parse_mysql_url, self.database_url)
        if self.redis_url is not None:
            problems += _problem("REDIS_URL", parse_redis_url, self.redis_url)
        if self.work_listen is not None:
            problems += _problem("WORK_LISTEN", units.split_host_and_port, self.work_listen)
        return problems

    def _problems_of_the_bucket(self) -> list[str]:
        problems = []
        if self.storage is not None:
            problems += _problem("STORAGE", parse_storage_url, self.storage)
        if self.s3_endpoint is not None:
            problems += _problem("S3_ENDPOINT", parse_endpoint, self.s3_endpoint)
        if (self.s3_access_key_id is None) != (self.s3_secret_access_key is None):
            halves = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")
            given, missing = halves if self.s3_secret_access_key is None else halves[::-1]
            problems.append(f"UPLOADER_S3_{given}: needs UPLOADER_S3_{missing}")
        for name, value in (("ENDPOINT", self.s3_endpoint), ("ACCESS_KEY_ID", self.s3_access_key_id)):
            # A forgotten UPLOADER_STORAGE would fill the disk.
            if value is not None and self.storage is None:
                problems.append(f"UPLOADER_S3_{name}: needs UPLOADER_STORAGE")
        return problems

    def _problems_of_authentication(self) -> list[str]:
        problems = []
        for name, secret in (
            *(("JWT_SECRET", self.jwt_secret), ("SECRET", self.secret)),
            ("LINK_SECRET", self.link_secret),
        ):
            if secret is not None and len(secret.encode()) < _MIN_SECRET_BYTES:
                problems.append(f"UPLOADER_{name}: shorter than {_MIN_SECRET_BYTES} bytes")
        keys = [self.jwt_secret, self.jwt_public_key, self.jwt_jwks]
        if self.auth == "jwt" and keys.count(None) != len(keys) - 1:
            problems.append(
                "UPLOADER_AUTH: 'jwt' needs one of UPLOADER_JWT_SECRET, UPLOADER_JWT_PUBLIC_KEY and UPLOADER_JWT_JWKS"
            )
        if self.trusted_header is not None and self.trusted_proxies is None:
            problems.append("UPLOADER_TRUSTED_HEADER: needs UPLOADER_TRUSTED_PROXIES")
        if self.auth == "none" and self.trusted_header is not None:
            problems.append(
                "UPLOADER_TRUSTED_HEADER: a request without it would be an administrator's, by UPLOADER_AUTH=none"
            )
        if "*" in (self.cors_origins or ()) and (self.auth == "none" or self.trusted_header is not None):
            problems.append("UPLOADER_CORS_ORIGINS: '*' would let any page act for a user who needs no token")
        return problems

    @classmethod
    def load(cls, environment: Mapping[str, str] | None = None, **overrides: Any) -> "Settings":
        """Read the environment; `overrides` win. Raises ConfigurationError with a line for each bad name or value."""
        environment = os.environ if environment is None else environment
        known = {variable_of(setting): setting for setting in fields(cls)}
        given = {name: text for name, text in environment.items() if name.startswith(PREFIX)}
        problems: list[str] = []
        values: dict[str, Any] = {}
        for name, text in given.items():
            try:
                if name in known:
                    values[known[name].name] = known[name].metadata["parse"](text)
                elif (base := _file_variant_of(name, known)) is not None:
                    values.setdefault(known[base].name, known[base].metadata["parse"](Path(text).read_text().strip()))
                elif name not in FOREIGN_NAMES and not name.startswith(FOREIGN_PREFIXES):
                    problems.append(f"{name}: no such setting")
            except (ValueError, OSError) as error:
                shown = "" if name in known and known[name].metadata["secret"] else f" {text!r}:"
                problems.append(f"{name}:{shown} {error}")
        if problems:
            raise ConfigurationError("\n".join(sorted(problems)))
        if values.get("storage") is not None:
            values.setdefault("min_chunk_size_bytes", _USUAL_PART_BYTES)
        return cls(**{**values, **{name: value for name, value in overrides.items() if value is not None}})

    def bucket(self) -> BucketAddress | None:
        if self.storage is None:
            return None
        bucket, prefix = parse_storage_url(self.storage)
        return BucketAddress(
            bucket=bucket,
            prefix=prefix,
            endpoint=None if self.s3_endpoint is None else parse_endpoint(self.s3_endpoint),
            region=self.s3_region,
            access_key_id=self.s3_access_key_id,
            secret_access_key=self.s3_secret_access_key,
            path_style=self.s3_path_style,
        )

    @property
    def installation_secret(self) -> str | None:
        """The secret of the installation; None: it is in the file of the data directory."""
        given = self.link_secret if self.secret is None else self.secret
        return given and given.strip()

    @property
    def sqlite_path(self) -> Path | None:
        """The file of a SQLite database; None for another database."""
        if self.database_url is None:
            return self.data.absolute() / "uploader.db"
        name = self.database_url.removeprefix("sqlite:///")
        return None if name in (self.database_url, "", ":memory:") else Path(name)

    def shown(self) -> dict[str, str]:
        """Return every setting by the name of its variable, for display, with secrets masked."""
        return {variable_of(setting): _spell(setting, getattr(self, setting.name)) for setting in fields(self)}


def secret_files(environment: Mapping[str, str] | None = None) -> dict[str, Path]:
    """Return the files that secrets are read from, by the names of their variables."""
    environment = os.environ if environment is None else environment
    known = {variable_of(setting): setting for setting in fields(Settings)}
    return {name: Path(text) for name, text in environment.items() if _file_variant_of(name, known) is not None}


def _problem(name: str, parse: Callable[[str], Any], text: str) -> list[str]:
    try:
        parse(text)
    except ValueError as error:
        return [f"{PREFIX}{name}: {error}"]
    return []


def _file_variant_of(name: str, known: Mapping[str, Any]) -> str | None:
    base = name.removesuffix("_FILE")
    return base if base != name and base in known and known[base].metadata["secret"] else None


def _spell(setting: "Field[Any]", value: Any) -> str:
    if value is None:
        return "(unset)"
    if setting.metadata["secret"]:
        return units.mask_password(value) if setting.name.endswith("_url") else "***"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    if setting.name.endswith("_bytes"):
        return units.format_size(value)
    if setting.name.endswith("_seconds"):
        return units.format_duration(value)
    return str(value)
