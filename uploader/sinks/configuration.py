"""The file of UPLOADER_EVENTS: a table for each sink and each queue, and at most one for the pre-create hook.

Each error message names the file, the table and the key, and never shows a secret.
"""

import base64
import binascii
import hmac
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from uploader.addresses import parse_redis_url
from uploader.domain.events import MAX_LEASE_SECONDS, MIN_LEASE_SECONDS, EventType, OnFailure
from uploader.errors import ConfigurationError
from uploader.units import duration_within

_PREFIX = "whsec_"
_MIN_BYTES, _MAX_BYTES = 24, 64


def parse_secret(text: str) -> bytes:
    """Return the key of a webhook secret. Raises ValueError, which never shows the secret."""
    try:
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True) if text.startswith(_PREFIX) else b""
    except (binascii.Error, ValueError):
        key = b""
    if not _MIN_BYTES <= len(key) <= _MAX_BYTES:
        raise ValueError(f"holds no secret: {_PREFIX} and the base64 of {_MIN_BYTES} to {_MAX_BYTES} bytes")
    return key


def signed_headers(secrets: Sequence[bytes], message_id: str, at: datetime, body: bytes) -> dict[str, str]:
    """Make the three headers of Standard Webhooks: HMAC-SHA256 over id, time and body, with each valid secret, so that
    a secret can be replaced without a gap.

    https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
    """
    timestamp = str(int(at.timestamp()))
    message = b".".join((message_id.encode(), timestamp.encode(), body))
    signatures = [base64.b64encode(hmac.digest(secret, message, "sha256")).decode() for secret in secrets]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


_SETTING = "UPLOADER_EVENTS"
# Fits into the row of a delivery and into a label of a metric.
SINK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,47}")
_MAX_SECRETS = 2
# How often a task is handed out.
_MAX_ATTEMPTS = 100
# Entries of a stream. The server's own Redis has few, because it holds accounts and refuses writes when its memory is
# full.
_MAXLEN, _OWN_MAXLEN = 1_000_000, 20_000
_ALL_TYPES = tuple(EventType)

_Types = Annotated[tuple[EventType, ...], Meta(min_length=1)]
_Word = Annotated[str, Meta(min_length=1)]
_SecretFiles = str | Annotated[tuple[str, ...], Meta(min_length=1, max_length=_MAX_SECRETS)]


class _Table(Struct, forbid_unknown_fields=True, kw_only=True):
    """The base of all tables."""


class WebhookTable(_Table, tag="webhook", tag_field="type"):
    url: str
    secret_file: _SecretFiles
    types: _Types = _ALL_TYPES


class RedisTable(_Table, tag="redis", tag_field="type"):
    url: str | None = None
    url_file: str | None = None  # a file with a URL that has a password
    stream: _Word = "uploader:events"
    maxlen: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    types: _Types = _ALL_TYPES


class KafkaTable(_Table, tag="kafka", tag_field="type"):
    """The table of a Kafka sink. `options` go to librdkafka unchanged; `option_files`: options whose values are in
    files."""

    servers: _Word
    topic: _Word
    options: dict[str, str | int | bool] = {}
    option_files: dict[str, str] = {}
    types: _Types = _ALL_TYPES


class QueueTable(_Table):
    types: _Types
    lease: _Word = "10m"
    max_attempts: Annotated[int, Meta(ge=1, le=_MAX_ATTEMPTS)] = 5
    gate: bool = False
    on_failure: OnFailure | UnsetType = UNSET


class PreCreateTable(_Table):
    url: str
    secret_file: _SecretFiles
    on_failure: Literal["refuse", "allow"] = "refuse"


@dataclass(frozen=True, slots=True)
class Signed:
    """A webhook: the URL to POST to, and the secrets to sign with, the newest first."""

    url: str
    secrets: tuple[bytes, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    to: Signed
    types: tuple[EventType, ...]


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """A stream in the server's own Redis, or in the Redis of `url`."""

    url: str | None = field(repr=False)
    stream: str
    maxlen: int
    types: tuple[EventType, ...]


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    topic: str
    options: Mapping[str, str | int | bool] = field(repr=False)
    types: tuple[EventType, ...]


@dataclass(frozen=True, slots=True)
class HandlerSettings:
    """A function of the surrounding application in this process."""

    handler: Callable[[dict[str, Any]], Any]
    types: tuple[EventType, ...]


@dataclass(frozen=True, slots=True)
class PreCreateSettings:
    to: Signed
    allows_on_failure: bool


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """A queue: the events that become tasks, the lease for workers that name none, and how often a task is handed out.
    `gate`: what happens to a file after that."""

    types: tuple[EventType, ...]
    lease_seconds: float
    max_attempts: int
    gate: OnFailure | None = None


SinkSettings = WebhookSettings | StreamSettings | KafkaSettings | HandlerSettings


@dataclass(frozen=True, slots=True)
class EventSettings:
    sinks: Mapping[str, SinkSettings] = field(default_factory=dict)
    pre_create: PreCreateSettings | None = None
    queues: Mapping[str, QueueSettings] = field(default_factory=dict)
    # The files that secrets were read from.
    files: tuple[Path, ...] = ()

    def with_handlers(self, handlers: Mapping[str, HandlerSettings]) -> "EventSettings":
        """Add handlers of the application. Raises ConfigurationError if a sink or a queue has the same name."""
        for kind, names in (("sinks", self.sinks.keys()), ("queues", self.queues.keys())):
            if taken := handlers.keys() & names:
                raise ConfigurationError(
                    f"{_SETTING}: [{kind}.{min(taken)}] has the name of a handler of the application"
                )
        return replace(self, sinks={**self.sinks, **handlers})

    def sinks_of(self, kind: EventType) -> tuple[str, ...]:
        """Return the sinks and queues for events of a type, without gates."""
        listeners: dict[str, SinkSettings | QueueSettings] = {**self.sinks, **self.queues}
        return tuple(name for name, listener in listeners.items() if kind in listener.types and name not in self.gates)

    @property
    def gates(self) -> Mapping[str, OnFailure]:
        """Return the queues that files have to pass before they are visible."""
        return {name: queue.gate for name, queue in self.queues.items() if queue.gate is not None}


def load_events(path: Path | None) -> EventSettings:
    """Load the file of sinks; None: no sinks. Raises ConfigurationError with a line for each mistake."""
    if path is None:
        return EventSettings()
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"{_SETTING}: {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{_SETTING}: {path}: {error}") from error
    reader = _Reader(path)
    settings = reader.read(document)
    if reader.problems:
        raise ConfigurationError("\n".join(f"{_SETTING}: {path}: {problem}" for problem in reader.problems))
    return settings


class _Mistake(Exception):
    """A mistake in a key of the current table."""


class _Reader:
    def __init__(self, path: Path) -> None:
        self._directory = path.absolute().parent
        self._files: list[Path] = []
        self.problems: list[str] = []

    def read(self, document: Mapping[str, Any]) -> EventSettings:
        self.problems += [
            f"{name}: no such table" for name in document if name not in ("sinks", "queues", "pre_create")
        ]
        sinks: dict[str, SinkSettings] = self._read_each("sinks", document, self._sink)
        queues: dict[str, QueueSettings] = self._read_each("queues", document, partial(self._queue, sinks))
        question = document.get("pre_create")
        asked = None if question is None else self._told("[pre_create]", self._pre_create, question)
        return EventSettings(sinks, asked, queues, tuple(self._files))

    def _read_each(self, kind: str, document: Mapping[str, Any], read: Callable[[str, object], Any]) -> dict[str, Any]:
        tables = document.get(kind, {})
        if not isinstance(tables, dict):
            self.problems.append(f"{kind}: is no table")
            return {}
        found = {name: self._told(f"[{kind}.{name}]", read, name, table) for name, table in tables.items()}
        return {name: settings for name, settings in found.items() if settings is not None}

    def _told(self, place: str, read: Any, *arguments: object) -> Any:
        try:
            return read(*arguments)
        except _Mistake as mistake:
            self.problems.append(f"{place} {mistake}")
            return None

    def _sink(self, name: str, table: object) -> SinkSettings:
        _check_name(name, "sink")
        match _converted(table, WebhookTable | RedisTable | KafkaTable):
            case WebhookTable() as webhook:
                return WebhookSettings(self._signed(webhook.url, webhook.secret_file), webhook.types)
            case KafkaTable() as kafka:
                options = {**kafka.options, "bootstrap.servers": kafka.servers}
                options |= {key: self._file("option_files", file) for key, file in kafka.option_files.items()}
                return KafkaSettings(kafka.topic, options, kafka.types)
            case RedisTable() as redis:
                url = self._redis_url(redis)
                default = _OWN_MAXLEN if url is None else _MAXLEN
                return StreamSettings(url, redis.stream, redis.maxlen or default, redis.types)
        raise AssertionError("unreachable")

    def _queue(self, sinks: Mapping[str, SinkSettings], name: str, table: object) -> QueueSettings:
        _check_name(name, "queue")
        if name in sinks:
            raise _Mistake("has the name of a sink: one name tells whom an event is for")
        queue = _converted(table, QueueTable)
        try:
            lease_seconds = duration_within(MIN_LEASE_SECONDS, MAX_LEASE_SECONDS)(queue.lease)
        except ValueError as error:
            raise _Mistake(f"lease: {error}") from error
        gate = None
        if queue.gate:
            if queue.types != (EventType.FILE_FINISHED,):
                raise _Mistake(f'types: a gate is asked of ["{EventType.FILE_FINISHED}"] alone')
            gate = queue.on_failure or OnFailure.HOLD
        elif queue.on_failure is not UNSET:
            raise _Mistake("on_failure: is of a gate, and this is none")
        return QueueSettings(queue.types, lease_seconds, queue.max_attempts, gate)

    def _redis_url(self, table: RedisTable) -> str | None:
        url = table.url if table.url_file is None else self._file("url_file", table.url_file)
        if url is None:
            return None
        try:
            parse_redis_url(url)
        except ValueError as error:
            raise _Mistake(f"url: {error}") from None
        return url

    def _pre_create(self, table: object) -> PreCreateSettings:
        asked = _converted(table, PreCreateTable)
        return PreCreateSettings(self._signed(asked.url, asked.secret_file), asked.on_failure == "allow")

    def _signed(self, url: str, files: str | tuple[str, ...]) -> Signed:
        if not _is_address(url):
            raise _Mistake("url: is no address of the form https://host/path")
        return Signed(url, tuple(self._secret(file) for file in ([files] if isinstance(files, str) else files)))

    def _secret(self, file: str) -> bytes:
        try:
            return parse_secret(self._file("secret_file", file))
        except ValueError as error:
            raise _Mistake(f"secret_file: {file} {error}") from error

    def _file(self, key: str, file: str) -> str:
        """Read a file. Its path is relative to the document."""
        self._files.append(self._directory / file)
        try:
            return (self._directory / file).read_text().strip()
        except OSError as error:
            raise _Mistake(f"{key}: {file}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise _Mistake(f"{key}: {file}: is no text") from error


def _check_name(name: str, kind: str) -> None:
    if not SINK_NAME.fullmatch(name):
        raise _Mistake(f"is no name of a {kind}: up to 48 letters, digits, `.`, `_` and `-`")


def _is_address(url: str) -> bool:
    if not url.isascii() or not url.isprintable() or " " in url:
        return False
    try:
        parts = urlsplit(url)
        usable = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return usable and parts.scheme in ("http", "https") and "@" not in parts.netloc and not parts.fragment


def _converted(table: object, kind: Any) -> Any:
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$")
        key = place.strip("`.")
        raise _Mistake(f"{key}: {reason}" if key else reason) from error
