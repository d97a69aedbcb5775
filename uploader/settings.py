"""Every setting of the server, read once from `UPLOADER_*` environment variables, typed, frozen, and passed in.

Nothing else in the package reads the environment, but for the crash points of the tests. A name that is not listed
here, and a value that does not parse, stop the start with one line each.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from uploader.errors import ConfigurationError
from uploader.units import (
    boolean,
    duration_within,
    format_duration,
    format_size,
    header_name,
    integer,
    list_of,
    network,
    one_of,
    origin,
    parse_duration,
    parse_rate,
    parse_size,
    positive,
    text_of,
)

PREFIX = "UPLOADER_"
# Read by the client, the tests and nothing here; known, so that they stop no server.
FOREIGN_NAMES = frozenset({"UPLOADER_URL", "UPLOADER_TOKEN"})
FOREIGN_PREFIXES = ("UPLOADER_TEST_",)

_REDIS_SCHEMES = ("redis://", "rediss://", "unix://", "redis+cluster://", "redis+sentinel://")
# RFC 7518, section 3.2: as long as the hash of HS256; and the same for what signs links.
_MIN_SECRET_BYTES = 32
JWT_ALGORITHMS = ("HS256", "RS256", "ES256", "EdDSA")


def _setting(name: str, parse: Callable[[str], Any], default: str | None, about: str, *, secret: bool = False) -> Any:
    """One setting: `default` is spelt as in the environment (None: unset), `about` is its line in the README."""
    metadata = {"name": PREFIX + name, "parse": parse, "default": default, "about": about, "secret": secret}
    return field(default=None if default is None else parse(default), metadata=metadata)


_duration, _size = positive(parse_duration), positive(parse_size)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is in force. Build it with `Settings.load()`; tests may build it directly."""

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
    # Address to listen on. Default: 127.0.0.1
    host: str = _setting("HOST", text_of, "127.0.0.1", "address to listen on (`serve --host`)")
    # Port to listen on; 0 takes a free one. Default: 8000
    port: int = _setting("PORT", integer(0, 65535), "8000", "port to listen on, 0 for a free one (`serve --port`)")
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
        "TRUSTED_PROXIES", list_of(network), None, "the addresses or networks of the proxies it is taken from"
    )
    # Origins whose pages may call the server. Default: unset, none
    cors_origins: tuple[str, ...] | None = _setting(
        "CORS_ORIGINS", list_of(origin), None, "origins whose pages may call the server, or `*`; unset: none"
    )
    # How long a signed link works unless its maker asks for less, in seconds. Default: 5m
    link_lifetime_seconds: float = _setting(
        "LINK_LIFETIME", duration_within(1, 86400), "5m", "how long a signed link works at the most, up to 24h"
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
    min_chunk_size_bytes: int = _setting("MIN_CHUNK_SIZE", _size, "64KiB", "smallest chunk size")
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
    # How long what was deleted lies in the trash, in seconds; 0 removes it at once. Default: 7d
    trash_retention_seconds: float = _setting(
        "TRASH_RETENTION", parse_duration, "7d", "how long deleted content stays in the trash; `0s`: not at all"
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
    # Memory for chunk bodies in one process, in bytes. Default: 512MiB
    body_budget_bytes: int = _setting(
        "BODY_BUDGET", _size, "512MiB", "memory for chunk bodies, per process; a user gets a quarter of it"
    )
    # How long requests in flight may take to end at a stop, in seconds. Default: 30s
    shutdown_timeout_seconds: float = _setting(
        "SHUTDOWN_TIMEOUT", _duration, "30s", "how long requests in flight may take to end at a stop"
    )
    # Who may read /metrics: open or admin. Default: open
    metrics: str = _setting("METRICS", one_of("open", "admin"), "open", "who may read `/metrics`: `open` or `admin`")
    # Whether the web pages at / and /admin/ are served. Default: true
    web_pages: bool = _setting("WEB_PAGES", boolean, "true", "whether the web pages at `/` and `/admin/` are served")
    # Least severe level that is logged. Default: info
    log_level: str = _setting(
        "LOG_LEVEL", one_of("debug", "info", "warning", "error"), "info", "`debug`, `info`, `warning` or `error`"
    )
    # How log lines look: text or json. Default: text
    log_format: str = _setting("LOG_FORMAT", one_of("text", "json"), "text", "`text`, or `json` lines")

    def __post_init__(self) -> None:
        problems = []
        if not self.min_chunk_size_bytes <= self.chunk_size_bytes <= self.max_chunk_size_bytes:
            problems.append("UPLOADER_CHUNK_SIZE: not between UPLOADER_MIN_CHUNK_SIZE and UPLOADER_MAX_CHUNK_SIZE")
        if self.quiet_interval_seconds > self.max_delay_seconds:
            problems.append("UPLOADER_QUIET_INTERVAL: longer than UPLOADER_MAX_DELAY")
        if self.max_chunk_size_bytes > 2**30:
            problems.append("UPLOADER_MAX_CHUNK_SIZE: larger than 1GiB")
        if self.database_url is not None and not self.database_url.startswith(
            ("mysql+asyncmy://", "sqlite:", "sqlite+aiosqlite:")
        ):
            problems.append("UPLOADER_DATABASE_URL: does not start with mysql+asyncmy:// or sqlite:")
        if self.redis_url is not None and not self.redis_url.startswith(_REDIS_SCHEMES):
            problems.append(f"UPLOADER_REDIS_URL: does not start with {', '.join(_REDIS_SCHEMES)}")
        problems += self._problems_of_authentication()
        if problems:
            raise ConfigurationError("\n".join(problems))

    def _problems_of_authentication(self) -> list[str]:
        problems = []
        for name, secret in (("JWT_SECRET", self.jwt_secret), ("LINK_SECRET", self.link_secret)):
            if secret is not None and len(secret.encode()) < _MIN_SECRET_BYTES:
                problems.append(f"UPLOADER_{name}: shorter than {_MIN_SECRET_BYTES} bytes")
        keys = [self.jwt_secret, self.jwt_public_key, self.jwt_jwks]
        if self.auth == "jwt" and keys.count(None) != len(keys) - 1:
            problems.append(
                "UPLOADER_AUTH: 'jwt' needs one of UPLOADER_JWT_SECRET, UPLOADER_JWT_PUBLIC_KEY and UPLOADER_JWT_JWKS"
            )
        if (self.trusted_header is None) != (self.trusted_proxies is None):
            problems.append("UPLOADER_TRUSTED_HEADER: has to be set together with UPLOADER_TRUSTED_PROXIES")
        if self.auth == "none" and self.trusted_header is not None:
            problems.append(
                "UPLOADER_TRUSTED_HEADER: whoever lacks it would be an administrator, by UPLOADER_AUTH=none"
            )
        if "*" in (self.cors_origins or ()) and (self.auth == "none" or self.trusted_header is not None):
            problems.append("UPLOADER_CORS_ORIGINS: '*' would let any page act for a user who needs no token")
        return problems

    @classmethod
    def load(cls, environment: Mapping[str, str] | None = None, **overrides: Any) -> "Settings":
        """Read the environment; `overrides` (from the command line) win over it.

        Raises ConfigurationError with one line for each unknown name and bad value.
        """
        environment = os.environ if environment is None else environment
        known = {setting.metadata["name"]: setting for setting in fields(cls)}
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
        return cls(**{**values, **{name: value for name, value in overrides.items() if value is not None}})

    def shown(self) -> dict[str, str]:
        """Every setting by the name of its variable, spelt for a person, secrets masked."""
        return {setting.metadata["name"]: _spell(setting.name, getattr(self, setting.name)) for setting in fields(self)}


def _file_variant_of(name: str, known: Mapping[str, Any]) -> str | None:
    base = name.removesuffix("_FILE")
    return base if base != name and base in known and known[base].metadata["secret"] else None


def _spell(name: str, value: Any) -> str:
    if value is None:
        return "(unset)"
    if name in ("jwt_secret", "jwt_public_key", "link_secret"):
        return "***"
    if isinstance(value, tuple):
        return ",".join(value)
    if name in ("database_url", "redis_url"):
        # To the last `@`, because a password may hold one; what is masked beyond the password does no harm.
        masked = re.sub(r"(://[^:]*):.*@", r"\1:***@", value, flags=re.DOTALL)
        return re.sub(r"([?&]pass(?:word|wd)?=)[^&]*", r"\1***", masked, flags=re.IGNORECASE)
    if isinstance(value, bool):
        return str(value).lower()
    if name.endswith("_bytes"):
        return format_size(value)
    if name.endswith("_seconds"):
        return format_duration(value)
    return str(value)
