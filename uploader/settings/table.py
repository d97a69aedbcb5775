"""Every setting of the server: its name, how its text is parsed, its default and its line in the README."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uploader.units import (
    boolean,
    duration_within,
    header_name,
    integer,
    list_of,
    network,
    one_of,
    origin,
    parse_duration,
    parse_rate,
    parse_size,
    path_of,
    positive,
    text_of,
)

PREFIX = "UPLOADER_"
JWT_ALGORITHMS = ("HS256", "RS256", "ES256", "EdDSA")


def _setting(name: str, parse: Callable[[str], Any], default: str | None, about: str, *, secret: bool = False) -> Any:
    """One setting: `default` is spelt as in the environment (None: unset), `about` is its line in the README."""
    metadata = {"name": PREFIX + name, "parse": parse, "default": default, "about": about, "secret": secret}
    return field(default=None if default is None else parse(default), metadata=metadata)


_duration, _size = positive(parse_duration), positive(parse_size)


@dataclass(frozen=True, kw_only=True)
class SettingsTable:
    """The fields of `Settings`, in the order in which they are shown."""

    # Where temp, blobs and the embedded servers live. Default: ./data
    data: Path = _setting("DATA", Path, "./data", "where temp, blobs and the embedded servers live")
    # SQLAlchemy URL of MySQL or MariaDB. Default: unset, an embedded SQLite
    database_url: str | None = _setting(
        "DATABASE_URL",
        text_of,
        None,
        "`mysql+asyncmy://user:password@host/name?charset=utf8mb4`; unset: embedded SQLite",
        secret=True,
    )
    # URL of Redis or Valkey. Default: unset, an embedded Valkey
    redis_url: str | None = _setting(
        "REDIS_URL",
        text_of,
        None,
        "`redis://`, `rediss://`, `unix://`, `redis+cluster://` or `redis+sentinel://`; unset: embedded",
        secret=True,
    )
    # Connections to MySQL or MariaDB of one process. Default: 22
    database_connections: int = _setting(
        "DATABASE_CONNECTIONS", integer(4, 1000), "22", "connections to MySQL or MariaDB, per process, at most"
    )
    # How long MySQL or MariaDB may be silent, in seconds. Default: 5s
    database_timeout_seconds: float = _setting(
        "DATABASE_TIMEOUT",
        duration_within(1, 60),
        "5s",
        "how long MySQL or MariaDB may be silent, to a hello, too, or a row be locked, before the answer is 503",
    )
    # Connections to Redis of one process. Default: 64
    redis_connections: int = _setting(
        "REDIS_CONNECTIONS",
        integer(4, 10000),
        "64",
        "connections to Redis, per process, at most (to each of a Cluster), beside the one of all scripts",
    )
    # How long Redis may take to answer, in seconds. Default: 5s
    redis_timeout_seconds: float = _setting(
        "REDIS_TIMEOUT", duration_within(1, 60), "5s", "how long Redis may take to answer before the answer is 503"
    )
    # Where the bytes of all are, instead of below `data`. Default: unset, there
    storage: str | None = _setting("STORAGE", text_of, None, "`s3://bucket/prefix`; unset: below `UPLOADER_DATA`")
    # The S3-compatible server that has the bucket. Default: unset, AWS
    s3_endpoint: str | None = _setting("S3_ENDPOINT", text_of, None, "`https://host:port` of that bucket; unset: AWS")
    s3_region: str | None = _setting("S3_REGION", text_of, None, "its region; unset: as the SDK of AWS finds it")
    # The credentials, both or none. Default: unset, those that the SDK finds by itself
    s3_access_key_id: str | None = _setting(
        "S3_ACCESS_KEY_ID", text_of, None, "who is calling it; unset, both: as the SDK of AWS finds them", secret=True
    )
    s3_secret_access_key: str | None = _setting(
        "S3_SECRET_ACCESS_KEY", text_of, None, "the secret that belongs to it", secret=True
    )
    # Whether the bucket is named in the path of a URL, not in its host. Default: false
    s3_path_style: bool = _setting(
        "S3_PATH_STYLE", boolean, "false", "`http://host/bucket`: what an endpoint of your own usually wants"
    )
    # Whether downloads are sent on to the bucket. Default: false
    s3_presigned_downloads: bool = _setting(
        "S3_PRESIGNED_DOWNLOADS",
        boolean,
        "false",
        "downloads are sent on (307) to the bucket, by signed URLs of a minute",
    )
    # The file that says who is told of events. Default: unset, nobody
    events: Path | None = _setting("EVENTS", Path, None, "a TOML file: who is told of what happens (docs/events.md)")
    # Address to listen on. Default: 127.0.0.1
    host: str = _setting("HOST", text_of, "127.0.0.1", "address to listen on (`serve --host`)")
    # Port to listen on; 0 takes a free one. Default: 8000
    port: int = _setting("PORT", integer(0, 65535), "8000", "port to listen on, 0 for a free one (`serve --port`)")
    # The certificate that the server shows, with those that vouch for it, and its key. Default: unset, no TLS
    tls_certificate: Path | None = _setting(
        "TLS_CERTIFICATE",
        path_of,
        None,
        "a file with the server's certificate and those above it, in PEM; unset: no TLS",
    )
    tls_key: Path | None = _setting("TLS_KEY", path_of, None, "the file with its key; both are read anew at `SIGHUP`")
    # Server processes. Default: 1
    workers: int = _setting("WORKERS", integer(1, 256), "1", "server processes (`serve --workers`)")
    # Whether the short work of a server process shares a core. Default: auto
    cpu_affinity: str = _setting("CPU_AFFINITY", one_of("auto", "off"), "auto", "`auto`: short work on one core; `off`")
    # Whether `serve` runs the background jobs too. Default: true
    jobs: bool = _setting("JOBS", boolean, "true", "whether `serve` runs the background jobs too, beside `work`")
    # Who is believed: token, jwt or none. Default: token
    auth: str = _setting("AUTH", one_of("token", "jwt", "none"), "token", "`token`, `jwt`, or `none` (loopback only)")
    # Where the keys that sign JWTs are: exactly one of these three with UPLOADER_AUTH=jwt. Default: unset
    jwt_secret: str | None = _setting("JWT_SECRET", text_of, None, "the secret of HS256, 32 bytes or more", secret=True)
    jwt_public_key: str | None = _setting(
        "JWT_PUBLIC_KEY", text_of, None, "or a public key in PEM: RSA, EC P-256 or Ed25519", secret=True
    )
    jwt_jwks: str | None = _setting("JWT_JWKS", text_of, None, "or a file or an `http(s)://` URL with a JWK set")
    # Which algorithms are taken; a key takes only its own. Default: HS256,RS256,ES256,EdDSA
    jwt_algorithms: tuple[str, ...] = _setting(
        "JWT_ALGORITHMS",
        list_of(one_of(*JWT_ALGORITHMS)),
        ",".join(JWT_ALGORITHMS),
        "the algorithms that are taken; each key takes only the one of its kind",
    )
    # Who has to have issued a JWT, and for whom. Default: unset, not checked
    jwt_issuer: str | None = _setting("JWT_ISSUER", text_of, None, "what `iss` has to be; unset: not checked")
    jwt_audience: str | None = _setting("JWT_AUDIENCE", text_of, None, "what `aud` has to name; unset: not checked")
    # By how much clocks may differ, in seconds. Default: 10s
    jwt_leeway_seconds: float = _setting(
        "JWT_LEEWAY", duration_within(0, 30), "10s", "by how much clocks may differ for `exp` and `nbf`, at most 30s"
    )
    # The header in which a proxy names the user, and the peers it is taken from. Default: unset, no header is believed
    trusted_header: str | None = _setting(
        "TRUSTED_HEADER", header_name, None, "the header in which a proxy names the user, such as `X-Remote-User`"
    )
    trusted_proxies: tuple[str, ...] | None = _setting(
        "TRUSTED_PROXIES", list_of(network), None, "the proxies that it, `Forwarded` and `X-Forwarded-*` are taken from"
    )
    # Origins whose pages may call the server. Default: unset, none
    cors_origins: tuple[str, ...] | None = _setting(
        "CORS_ORIGINS", list_of(origin), None, "origins whose pages may call the server, or `*`; unset: none"
    )
    # How long a signed link may work, in seconds. Default: 7d
    link_lifetime_seconds: float = _setting(
        "LINK_LIFETIME", duration_within(1, 2592000), "7d", "how long a signed link works at the most, up to 30d"
    )
    # What signs the links. Default: unset, a random one kept in the database
    link_secret: str | None = _setting(
        "LINK_SECRET",
        text_of,
        None,
        "what signs links, at least 32 bytes; unset: made, kept in the database",
        secret=True,
    )
    # When content that is there already needs no bytes. Default: proof
    instant: str = _setting(
        "INSTANT",
        one_of("off", "own", "proof", "trust"),
        "proof",
        "instant upload: `off`, `own` (own files only), `proof` (others' content against a proof), `trust` (MD5 is enough)",
    )
    # How many ranges of 4 KiB a proof of possession is about. Default: 64
    proof_ranges: int = _setting(
        "PROOF_RANGES", integer(1, 1024), "64", "ranges of 4 KiB that a proof of possession is about"
    )
    # Smallest content of others that a proof gives, in bytes. Default: 4KiB
    proof_min_size_bytes: int = _setting(
        "PROOF_MIN_SIZE", _size, "4KiB", "smallest content of others that a proof of possession gives"
    )
    # How often a user may ask for content of others in an hour. Default: 1000
    proof_max_probes: int = _setting(
        "PROOF_MAX_PROBES", integer(0, 10**9), "1000", "openings of one user in an hour that may lead to a challenge"
    )
    # How many challenges a user may leave without a good answer in an hour. Default: 100
    proof_max_failures: int = _setting(
        "PROOF_MAX_FAILURES", integer(0, 10**9), "100", "challenges of one user in an hour without a good answer"
    )
    # What an acknowledgement survives: a power cut, or the end of a process. Default: power
    durability: str = _setting(
        "DURABILITY",
        one_of("power", "process"),
        "power",
        "what an acknowledged chunk survives: `power` cuts, or the end of a `process`",
    )
    # Space of a user the database does not know yet, in bytes. Default: 10GiB
    default_total_space_bytes: int = _setting(
        "DEFAULT_TOTAL_SPACE", parse_size, "10GiB", "total space of a user seen for the first time"
    )
    # Largest file, in bytes. Default: 625GiB
    max_file_size_bytes: int = _setting("MAX_FILE_SIZE", _size, "625GiB", "largest file")
    # Chunk size where the client asks for none, in bytes. Default: 8MiB
    chunk_size_bytes: int = _setting("CHUNK_SIZE", _size, "8MiB", "chunk size where the client asks for none")
    # Smallest chunk size, in bytes. Default: 64KiB
    min_chunk_size_bytes: int = _setting("MIN_CHUNK_SIZE", _size, "64KiB", "smallest chunk size (on S3: `5MiB`)")
    # Largest chunk size, in bytes. Default: 64MiB
    max_chunk_size_bytes: int = _setting("MAX_CHUNK_SIZE", _size, "64MiB", "largest chunk size")
    # Open uploads of one user. Default: 100
    max_open_uploads: int = _setting("MAX_OPEN_UPLOADS", integer(1, 10**9), "100", "open uploads of one user")
    # Chunk bodies of one user at once, in one process. Default: 16
    max_concurrent_chunks: int = _setting(
        "MAX_CONCURRENT_CHUNKS", integer(1, 10**6), "16", "chunk bodies of one user at once, per process"
    )
    # How long an upload is quiet before it is accounted, in seconds. Default: 5s
    quiet_interval_seconds: float = _setting(
        "QUIET_INTERVAL", _duration, "5s", "how long an upload is quiet before its bytes are written to the database"
    )
    # The longest a steady uploader stays unaccounted, in seconds. Default: 60s
    max_delay_seconds: float = _setting(
        "MAX_DELAY", _duration, "60s", "the longest that bytes of a steady uploader wait for that"
    )
    # Pending bytes of one upload that are accounted at once. Default: 64MiB
    max_pending_bytes: int = _setting("MAX_PENDING", _size, "64MiB", "pending bytes of one upload that do not wait")
    # How long a claimed task is its worker's alone, in seconds. Default: 30s
    claim_lease_seconds: float = _setting(
        "CLAIM_LEASE", _duration, "30s", "how long a claimed task is its worker's alone"
    )
    # Number of shards of the Redis keys. Default: 1
    shards: int = _setting("SHARDS", integer(1, 100), "1", "shards of the Redis keys (more for Cluster)")
    # How long a request waits for its merge before it is answered 202, in seconds. Default: 10s
    merge_wait_seconds: float = _setting(
        "MERGE_WAIT", parse_duration, "10s", "how long a request waits for its merge before the answer is 202"
    )
    # When an idle upload expires, in seconds. Default: 7d
    upload_expiry_seconds: float = _setting("UPLOAD_EXPIRY", _duration, "7d", "when an idle upload expires")
    # How long closed uploads are remembered, in seconds. Default: 30d
    closed_retention_seconds: float = _setting(
        "CLOSED_RETENTION", _duration, "30d", "how long it is remembered what became of an upload"
    )
    # How long the trail is kept, in seconds; 0 keeps it for ever. Default: 400d
    audit_retention_seconds: float = _setting(
        "AUDIT_RETENTION", parse_duration, "400d", "how long it is kept who did what to whom; `0s`: for ever"
    )
    # How long what was deleted lies in the trash, in seconds; 0 removes it at once. Default: 7d
    trash_retention_seconds: float = _setting(
        "TRASH_RETENTION", parse_duration, "7d", "how long deleted content stays in the trash; `0s`: not at all"
    )
    # What is read back: all, or a sample. Default: unset, all on a disk, a sample on S3
    scrub: str | None = _setting(
        "SCRUB",
        one_of("all", "sample"),
        None,
        "`all`: all content is read back, within the times that follow; `sample`: one content an hour; unset: `all` on a "
        "disk, `sample` on S3, where each reading is paid for",
    )
    # Within what time each content is read back from the disk for the first time, in seconds. Default: 24h
    scrub_first_seconds: float = _setting(
        "SCRUB_FIRST", _duration, "24h", "within what time new content is read back from the disk"
    )
    # Within what time each content is read back again, in seconds. Default: 30d
    scrub_every_seconds: float = _setting(
        "SCRUB_EVERY", _duration, "30d", "within what time all content is read back again"
    )
    # The bytes a second at which it is read back. Default: 50MiB/s
    scrub_rate_bytes: int = _setting(
        "SCRUB_RATE", parse_rate, "50MiB/s", "bytes a second at which content is read back, per installation"
    )
    # Free disk that openings leave, in bytes. Default: unset, the larger of 5 % and 1 GiB
    free_space_floor_bytes: int | None = _setting(
        "FREE_SPACE_FLOOR", parse_size, None, "free disk that new uploads leave; unset: the larger of 5 % and 1 GiB"
    )
    # How long a body may stand still, in seconds. Default: 30s
    body_idle_timeout_seconds: float = _setting(
        "BODY_IDLE_TIMEOUT", _duration, "30s", "how long a body may stand still before 408, or an answer before the end"
    )
    # The slowest a body may come once 10 s have passed, in bytes a second. Default: 1KiB/s
    min_body_rate_bytes: int = _setting(
        "MIN_BODY_RATE", parse_rate, "1KiB/s", "bytes a second that a body must reach after its first 10 s"
    )
    # How long a request's headers may take, in seconds. Default: 15s
    header_timeout_seconds: float = _setting(
        "HEADER_TIMEOUT", _duration, "15s", "how long the headers of a request may take"
    )
    # Connections of one process. Default: 4096
    max_connections: int = _setting(
        "MAX_CONNECTIONS", integer(1, 10**6), "4096", "connections, per process; those beyond are answered 503"
    )
    # Of them, those of one address, and a user's that have a request. Default: 2048
    max_connections_per_address: int = _setting(
        "MAX_CONNECTIONS_PER_ADDRESS",
        integer(1, 10**6),
        "2048",
        "of one address (IPv6: one /64), per process; through a trusted proxy its requests at once",
    )
    max_connections_per_user: int = _setting(
        "MAX_CONNECTIONS_PER_USER", integer(1, 10**6), "2048", "requests of one user at once, per process"
    )
    # Wrong tokens of one address in a minute. Default: 20
    max_wrong_tokens: int = _setting(
        "MAX_WRONG_TOKENS",
        integer(1, 10**6),
        "20",
        "wrong tokens of one address in a minute, per process; each beyond takes a quarter of a second",
    )
    # Memory for chunk bodies in one process, in bytes. Default: 512MiB
    body_budget_bytes: int = _setting(
        "BODY_BUDGET", _size, "512MiB", "memory for chunk bodies, per process; a user gets a quarter of it"
    )
    # How long requests in flight may take to end at a stop, in seconds. Default: 30s
    shutdown_timeout_seconds: float = _setting(
        "SHUTDOWN_TIMEOUT", _duration, "30s", "how long requests in flight may take to end at a stop"
    )
    # Who may read /metrics: administrators and tokens that are for that alone (admin), or everybody (open). Default: admin
    metrics: str = _setting(
        "METRICS",
        one_of("open", "admin"),
        "admin",
        "who may read `/metrics`: `admin` (also tokens of `--metrics`) or `open`, to everybody",
    )
    # Whether the web pages at / and /admin/ are served. Default: true
    web_pages: bool = _setting("WEB_PAGES", boolean, "true", "whether the web pages at `/` and `/admin/` are served")
    # Whether 104 (Upload Resumption Supported) is sent before an answer. Default: true
    interim_responses: bool = _setting(
        "INTERIM_RESPONSES", boolean, "true", "whether 104s tell of resumable uploads early; old proxies break on them"
    )
    # Least severe level that is logged. Default: info
    log_level: str = _setting(
        "LOG_LEVEL", one_of("debug", "info", "warning", "error"), "info", "`debug`, `info`, `warning` or `error`"
    )
    # How log lines look: text or json. Default: text
    log_format: str = _setting("LOG_FORMAT", one_of("text", "json"), "text", "`text`, or `json` lines")
