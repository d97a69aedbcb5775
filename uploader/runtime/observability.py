"""Logs as one JSON object per line (or plain text), and the Prometheus metrics of the process.

Log records carry the request id of their context. No token, body or path of a user is logged.
"""

import asyncio
import contextlib
import fcntl
import json
import logging
import math
import os
import sys
import threading
import time
from collections import defaultdict
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO
from weakref import WeakSet

import msgspec
from prometheus_client import REGISTRY, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import CollectorRegistry

from uploader import __version__

request_id: ContextVar[str] = ContextVar("request_id", default="")
user_id: ContextVar[str] = ContextVar("user_id", default="")

disable_created_metrics()  # type: ignore[no-untyped-call]  # before the first one is made

BYTES_RECEIVED = Counter("uploader_received_bytes", "Bytes of acknowledged chunks, and of files that came whole.")
WHOLE_FILES = Counter("uploader_whole_files", "Files that came whole, by outcome.", ["outcome"])
CHUNKS = Counter("uploader_chunks", "Chunk requests by outcome.", ["outcome"])
CHUNK_SECONDS = Histogram("uploader_chunk_duration_seconds", "From a chunk's last byte to its acknowledgement.")
MERGES = Counter("uploader_merges", "Merges by outcome.", ["outcome"])
MERGE_SECONDS = Histogram(
    "uploader_merge_duration_seconds",
    "From the start of a merge to its end.",
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800),
)
FLUSHED_UPLOADS = Counter("uploader_flushed_uploads", "Uploads whose received bytes were written to the database.")
INSTANT_UPLOADS = Counter("uploader_instant_uploads", "Files that were finished without sending their bytes.")
LINK_SESSIONS = Counter("uploader_link_sessions", "Visitors of links who came, by the kind of the link.", ["kind"])
REBUILDS = Counter("uploader_hydrations", "Uploads rebuilt in Redis from the disk.")
REQUESTS = Counter("uploader_http_requests", "Requests by method, route and status.", ["method", "route", "status"])
COST_SECONDS = Counter("uploader_cost_seconds", "CPU seconds that were charged to requests, by what for.", ["kind"])
TURNS = Counter("uploader_turns", "Requests that waited for others to have their turn, by outcome.", ["outcome"])
TURN_SECONDS = Counter("uploader_turn_seconds", "For how long they waited in all.")
REFUSED_CONNECTIONS = Counter(
    "uploader_refused_connections", "Connections refused, or closed for a newer one, by limit.", ["limit"]
)
LOST_UPLOADS = Counter("uploader_lost_uploads", "Open uploads that lost their files and began anew.")
DAMAGED_CONTENTS = Counter("uploader_damaged_contents", "Contents that were found to be damaged.")
HEALED_CONTENTS = Counter("uploader_healed_contents", "Damaged contents that are whole again.")
QUOTA_REFUSALS = Counter("uploader_quota_refusals", "Openings refused for lack of quota.")
FLUSH_BATCH_UPLOADS = Histogram(
    "uploader_flush_batch_uploads", "Uploads claimed by one flush.", buckets=(1, 3, 10, 30, 100, 300, 1000, 1500)
)
FLUSH_LAG_SECONDS = Histogram(
    "uploader_flush_lag_seconds",
    "From when the earliest upload of a flush was due to their commit in the database.",
    buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)
TASKS = Counter(
    "uploader_tasks", "Tasks that were claimed, acknowledged, released, and that died.", ["queue", "outcome"]
)
EVENT_DELIVERIES = Counter(
    "uploader_event_deliveries", "Attempts to tell a sink of an event, by outcome.", ["sink", "outcome"]
)
EVENT_DELIVERY_SECONDS = Histogram(
    "uploader_event_delivery_duration_seconds", "How long a sink took for the events it was told of at once.", ["sink"]
)
S3_REQUESTS = Counter(
    "uploader_s3_requests", "Requests to S3, with those that were tried again, by operation.", ["operation"]
)
OPEN_BREAKERS = Gauge(
    "uploader_open_breakers",
    "Stores, and slots of a Cluster, that are not asked: they have not answered, by store.",
    ["store"],
)
FAILURES = Counter(
    "uploader_failures", "Errors of the disk and of stores, by where: of those that last the log has one.", ["store"]
)
MD5_LANES = Gauge(
    "uploader_md5_lanes", "Of how many contents a process computes the MD5 at once, by kind of vectors.", ["kind"]
)
SHA256_LANES = Gauge(
    "uploader_sha256_lanes", "Of how many contents it computes the SHA-256 at once, likewise.", ["kind"]
)
# Measured in the stores at each scrape; every process reports the same.
OPEN_UPLOADS = Gauge("uploader_open_uploads", "Open uploads.")
PENDING_BYTES = Gauge("uploader_pending_bytes", "Bytes of open uploads that are not yet in the database.")
QUEUE_TASKS = Gauge("uploader_queue_tasks", "Tasks in a delay queue.", ["queue"])
QUEUE_LAG_SECONDS = Gauge(
    "uploader_queue_lag_seconds", "By how much the earliest task of a queue is overdue.", ["queue"]
)
REDIS_SET_ASIDE = Gauge(
    "uploader_redis_set_aside", "Directories of the embedded Valkey that it could not load, and that were set aside."
)
FREE_DISK_BYTES = Gauge(
    "uploader_free_disk_bytes", "Free bytes of the filesystem of UPLOADER_DATA, with those of the trash."
)
TRASH_BYTES = Gauge("uploader_trash_bytes", "Bytes on disk of what lies in the trash.")
DAMAGED_BLOBS = Gauge("uploader_damaged_blobs", "Contents that are known to be damaged.")
KEPT_STRAYS = Gauge(
    "uploader_kept_stray_blobs", "Blobs without a row that the last cleanup found too many to put away."
)
UNSCRUBBED_SECONDS = Gauge(
    "uploader_unscrubbed_seconds", "For how long the content that waits longest was not read back from the disk."
)
DRIFTS = Gauge("uploader_drifts", "Figures that differed from their definitions when the reconciler last looked.")

WAITING_EVENTS = Gauge(
    "uploader_waiting_events", "Events that a sink is still to be told of, and tasks of a queue.", ["sink"]
)
DEAD_EVENTS = Gauge(
    "uploader_dead_events", "Events that a sink, or a worker, had in vain until the last attempt.", ["sink"]
)
EVENT_LAG_SECONDS = Gauge(
    "uploader_event_lag_seconds", "How old the oldest event is that a sink is still to be told of.", ["sink"]
)

# Gauges that a single process sets after a look. Of several processes the largest value counts.
LARGEST_GAUGES = frozenset({"uploader_open_breakers"})

# The attributes of every log record. All other attributes came by `extra` and belong to the message.
_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


def _extra_of(record: logging.LogRecord) -> dict[str, object]:
    extra = {name: value for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES}
    for variable in (user_id, request_id):
        if context := variable.get():
            extra.setdefault(variable.name, context)
    return extra


_encode = msgspec.json.Encoder(enc_hook=str).encode
_encode_all = json.JSONEncoder(default=str, separators=(",", ":")).encode


def _spelt(value: object) -> str:
    """Format as JSON in printable ASCII. Values that JSON can't express become text."""
    if isinstance(value, str):
        return _encode_all(value)
    try:
        text = _encode(value).decode()
    except (TypeError, ValueError, OverflowError):
        return _encode_all(value)
    # This encoder escapes only what it must, but takes a quarter of the time.
    return text if text.isascii() and text.isprintable() else _encode_all(value)


class JsonFormatter(logging.Formatter):
    """Formats records as JSON, whose escapes keep input from forging lines."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line.update(_extra_of(record))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _spelt(line)


class TextFormatter(logging.Formatter):
    """Formats for a terminal: time, level, message, then the other facts, escaped."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.gmtime(record.created))
        extra = " ".join(f"{name}={_spelt(value)}" for name, value in _extra_of(record).items())
        line = f"{clock} {record.levelname.lower():7} {_printable(record.getMessage())} {extra}".rstrip()
        if not record.exc_info:
            return line
        # Indented, so that no text of an error looks like a line of the log.
        trace = self.formatException(record.exc_info).split("\n")
        return "\n".join([line, *(f"    {_printable(part)}" for part in trace)])


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


class LineHandler(logging.Handler):
    """Writes lines to a stream: the lines of one turn of the event loop together, warnings and worse at once. During
    each write a thread may take the interpreter's lock, and the loop has to wait for it: a write per request cost more
    than the rest of its line. A kill loses the lines of its turn, but no warnings."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._held: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._held.append(f"{self.format(record)}\n")
        except Exception:
            self.handleError(record)
            return
        loop = _running_loop() if record.levelno < logging.WARNING else None
        if loop is None:
            self.flush()
        elif len(self._held) == 1:
            loop.call_soon(self.flush)

    def flush(self) -> None:
        self.acquire()
        try:
            held, self._held = self._held, []
            if not held:
                return
            with suppress(OSError, ValueError):  # the reader is gone, and there is no other place to log
                self._stream.write("".join(held))
                self._stream.flush()
        finally:
            self.release()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def configure_logging(level: str, log_format: str) -> None:
    # Facts that no line shows are not collected (https://docs.python.org/3/howto/logging.html#optimization).
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = LineHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)


# A fault has ended when nothing has failed for this long, and something has worked since. If the fault comes back soon,
# the time doubles, up to the maximum, so that a fault that comes and goes leaves few lines.
_QUIET_SECONDS, _MAX_QUIET_SECONDS, _SOON_SECONDS = 5.0, 600.0, 60.0
# Kinds of failures that are logged for a fault, and failures whose consequences are logged.
_MAX_KINDS, _SPELT_OUT = 4, 2
_open_troubles: "WeakSet[Trouble]" = WeakSet()
# Commands, and a starting server, report a failure in their own last line instead.
_tells_beginnings = threading.Event()


def tell_beginnings_of_troubles() -> None:
    """Log the beginnings of faults from now on, in this process."""
    _tells_beginnings.set()


class Trouble:
    """A lasting fault of the disk or of a store: logged once, then counted, then logged when it has ended.
    Thread-safe."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._failures = FAILURES.labels(store)
        self._lock = threading.Lock()
        self._kinds: set[str] = set()
        self._count = 0
        self._began_at = self._failed_at = self._ended_at = -math.inf
        self._worked_at = -math.inf
        self._quiet_seconds = _QUIET_SECONDS
        # A plain attribute, for callers who ask after each successful call.
        self.is_open = False

    def note(
        self,
        message: str,
        *,
        kind: str,
        level: int = logging.WARNING,
        trace: BaseException | None = None,
        **facts: object,
    ) -> bool:
        """Record a failure, and log the first of each kind. Return whether the caller need not log the
        consequence."""
        self._failures.inc()
        self.tell_end()
        with self._lock:
            now = time.monotonic()
            if not self.is_open:
                is_back = now - self._ended_at < _SOON_SECONDS
                self._quiet_seconds = min(2 * self._quiet_seconds, _MAX_QUIET_SECONDS) if is_back else _QUIET_SECONDS
                self._began_at, self._count, self.is_open = now, 0, True
                _open_troubles.add(self)
            self._failed_at = now
            self._count += 1
            is_told, is_news = self._count > _SPELT_OUT, kind not in self._kinds and len(self._kinds) < _MAX_KINDS
            if is_news:
                self._kinds.add(kind)
        if is_news:
            level = level if _tells_beginnings.is_set() else logging.DEBUG
            logger.log(level, message, extra={"store": self._store, **facts}, exc_info=trace)
        return is_told

    def worked(self) -> None:
        """Record a success that the fault would have prevented."""
        self._worked_at = time.monotonic()

    def tell_end(self) -> None:
        """Log the end, if the fault has ended."""
        with self._lock:
            now = time.monotonic()
            if not self.is_open or self._worked_at < self._failed_at or now - self._failed_at < self._quiet_seconds:
                return
            self.is_open, self._ended_at = False, now
            self._kinds.clear()
            _open_troubles.discard(self)
            facts = {"failures": self._count, "seconds": round(self._failed_at - self._began_at, 1)}
        logger.warning("a store works again", extra={"store": self._store, **facts})


def tell_ended_troubles() -> None:
    for trouble in [*_open_troubles]:
        trouble.tell_end()


def level_of(error: Exception, level: int = logging.WARNING) -> int:
    """Return the level for logging a consequence of an error: DEBUG if the log has the fault already."""
    return logging.DEBUG if getattr(error, "is_told", False) else level


# The counts of all processes of an installation, summed at each scrape.
#
# Each process holds a *slot* of a directory, by a lock, and writes its figures into the slot's file. A slot outlives
# its process, and the next holder continues from the figures: no counter falls when a process ends or is replaced.


logger = logging.getLogger(__name__)

_PREFIX = "uploader_"
_ADDED = ("counter", "histogram")

# The name and the labels of a sample, such as ("uploader_chunks_total", (("outcome", "recorded"),)).
Sample = tuple[str, tuple[tuple[str, str], ...]]
Figures = dict[Sample, float]


@dataclass(eq=False, repr=False)
class Exposition:
    """The metrics of this process and of other processes with the same directory. Use by `async with`."""

    # `alone`: this is the only server process, so that metrics of a single process can be shown.
    directory: Path
    _: KW_ONLY
    alone: bool
    registry: CollectorRegistry = REGISTRY
    # The counts of this registry before, and of the slot when it was taken.
    _before: Figures = field(default_factory=dict, init=False)
    _inherited: Figures = field(default_factory=dict, init=False)
    _published: Figures | None = field(default=None, init=False)
    _slot: Path | None = field(default=None, init=False)
    _lock: int | None = field(default=None, init=False)
    _writing: threading.Lock = field(default_factory=threading.Lock, init=False)

    async def __aenter__(self) -> "Exposition":
        await asyncio.to_thread(self._take_slot)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._publish)
        if self._lock is not None:
            os.close(self._lock)

    async def render(self) -> bytes:
        """Return all metrics in the format of Prometheus. Publishes the metrics first, so that no shown count is ever
        lost."""
        return await asyncio.to_thread(self._render)

    async def publish(self) -> bool:
        """Publish the figures for other processes; called about once a second. Return whether anything was new."""
        return await asyncio.to_thread(self._publish)

    # Slots

    def _take_slot(self) -> None:
        self._before, _ = self._collected()
        self.directory.mkdir(mode=0o700, exist_ok=True)
        number = 0
        while self._lock is None:
            self._lock = _try_lock(self.directory / f"{number}.lock", fcntl.LOCK_EX)
            number += 1
        self._slot = self.directory / f"{number - 1}.json"
        self._inherited, _ = _read(self._slot)

    def _publish(self) -> bool:
        with self._writing:
            figures, gauges = self._own()
            if self._slot is None or figures | gauges == self._published:
                return False
            content = {"version": __version__, "figures": _spell(figures), "gauges": _spell(gauges)}
            draft = self._slot.with_suffix(".draft")
            try:
                draft.write_text(json.dumps(content))
                draft.replace(self._slot)
                self._published = figures | gauges
            except OSError as error:  # a full disk: the counts stay in memory
                logger.debug("metrics are not shared for now", extra={"reason": str(error)})
            return True

    # Figures

    def _collected(self) -> tuple[Figures, Figures]:
        figures, gauges = {}, {}
        for family in self.registry.collect():
            for sample in family.samples if family.name.startswith(_PREFIX) else ():
                key = (sample.name, tuple(sorted(sample.labels.items())))
                if family.type in _ADDED:
                    figures[key] = sample.value
                elif family.name in LARGEST_GAUGES:
                    gauges[key] = sample.value
        return figures, gauges

    def _own(self) -> tuple[Figures, Figures]:
        """Return the counts of this process and of earlier holders of its slot, and the gauges of this process."""
        collected, gauges = self._collected()
        own = dict(self._inherited)
        for key, value in collected.items():
            own[key] = value - self._before.get(key, 0.0) + own.get(key, 0.0)
        return own, gauges

    def _render(self) -> bytes:
        self._publish()
        figures, gauges = self._own()
        for path in self.directory.glob("*.json"):
            if path == self._slot:
                continue
            others, others_gauges = _read(path)
            for key, value in others.items():
                figures[key] = figures.get(key, 0.0) + value
            for key, value in others_gauges.items() if _is_held(path) else ():
                gauges[key] = max(gauges.get(key, value), value)
        return generate_latest(_Summed(self._families(figures | gauges)))

    def _families(self, figures: Figures) -> list[Metric]:
        by_name: dict[str, list[Sample]] = defaultdict(list)
        for key in figures:
            by_name[key[0]].append(key)
        families = []
        for family in self.registry.collect():
            if not family.name.startswith(_PREFIX):
                families += [family] if self.alone else []
                continue
            if family.type in _ADDED or family.name in LARGEST_GAUGES:
                names = [family.name, *(f"{family.name}_{part}" for part in ("total", "bucket", "sum", "count"))]
                summed = Metric(family.name, family.documentation, family.type)
                for key in sorted((key for name in names for key in by_name[name]), key=_order):
                    summed.add_sample(key[0], dict(key[1]), figures[key])
                families.append(summed)
            else:
                families.append(family)
        return families


class _Summed:
    """The part of a registry that `generate_latest` needs."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def _order(key: Sample) -> tuple[object, ...]:
    """Order by labels; the buckets of a histogram by their bounds, then its sum and count."""
    name, labels = key
    bound = dict(labels).get("le")
    rest = tuple(label for label in labels if label[0] != "le")
    return (rest, bound is None, float(bound or 0), name)


# Files


def _try_lock(path: Path, kind: int) -> int | None:
    """Return the locked descriptor; None if another process holds the lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _is_held(slot: Path) -> bool:
    descriptor = _try_lock(slot.with_suffix(".lock"), fcntl.LOCK_SH)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None


def _spell(figures: Figures) -> list[Any]:
    return [[name, dict(labels), value] for (name, labels), value in figures.items()]


def _read(path: Path) -> tuple[Figures, Figures]:
    """Return the figures and gauges of a file; empty if the file is missing, broken or of another version."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        content = json.loads(path.read_text())
        if content["version"] == __version__:
            return _figures(content["figures"]), _figures(content["gauges"])
    return {}, {}


def _figures(spelt: list[Any]) -> Figures:
    return {(name, tuple(sorted(labels.items()))): float(value) for name, labels, value in spelt}
