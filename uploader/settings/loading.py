"""Reads the settings from the environment, refuses those that contradict each other, and shows them."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from uploader.errors import ConfigurationError
from uploader.settings.addresses import parse_endpoint, parse_mysql_url, parse_redis_url, parse_storage_url
from uploader.settings.table import PREFIX, SettingsTable
from uploader.units import format_duration, format_size, mask_password

# Read by the client, the tests and nothing here; known, so that they stop no server.
FOREIGN_NAMES = frozenset({"UPLOADER_URL", "UPLOADER_TOKEN"})
FOREIGN_PREFIXES = ("UPLOADER_TEST_",)

# RFC 7518, section 3.2: as long as the hash of HS256; and the same for what signs links.
_MIN_SECRET_BYTES = 32
# A chunk is a part of a multipart upload on S3, which AWS and Ceph take from this size on.
_USUAL_PART_BYTES = 5 << 20
_DATABASE_SCHEMES = ("mysql+asyncmy://", "sqlite:", "sqlite+aiosqlite:")


@dataclass(frozen=True, kw_only=True)
class Settings(SettingsTable):
    """What is in force. Build it with `Settings.load()`; tests may build it directly."""

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
            # Whoever forgets it would fill the disk.
            if value is not None and self.storage is None:
                problems.append(f"UPLOADER_S3_{name}: needs UPLOADER_STORAGE")
        return problems

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
        if self.trusted_header is not None and self.trusted_proxies is None:
            problems.append("UPLOADER_TRUSTED_HEADER: needs UPLOADER_TRUSTED_PROXIES")
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
        if values.get("storage") is not None:
            values.setdefault("min_chunk_size_bytes", _USUAL_PART_BYTES)
        return cls(**{**values, **{name: value for name, value in overrides.items() if value is not None}})

    def shown(self) -> dict[str, str]:
        """Every setting by the name of its variable, spelt for a person, secrets masked."""
        return {setting.metadata["name"]: _spell(setting.name, getattr(self, setting.name)) for setting in fields(self)}


def _problem(name: str, parse: Callable[[str], Any], text: str) -> list[str]:
    try:
        parse(text)
    except ValueError as error:
        return [f"{PREFIX}{name}: {error}"]
    return []


def _file_variant_of(name: str, known: Mapping[str, Any]) -> str | None:
    base = name.removesuffix("_FILE")
    return base if base != name and base in known and known[base].metadata["secret"] else None


def _spell(name: str, value: Any) -> str:
    if value is None:
        return "(unset)"
    if name in ("jwt_secret", "jwt_public_key", "link_secret", "s3_access_key_id", "s3_secret_access_key"):
        return "***"
    if isinstance(value, tuple):
        return ",".join(value)
    if name in ("database_url", "redis_url"):
        return mask_password(value)
    if isinstance(value, bool):
        return str(value).lower()
    if name.endswith("_bytes"):
        return format_size(value)
    if name.endswith("_seconds"):
        return format_duration(value)
    return str(value)
