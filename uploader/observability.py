"""Logs as one JSON object a line (or plain text), and the Prometheus metrics of the process.

Records carry the request id of the context they are written in. No token, body or path of a user goes in here.
"""

import asyncio
import json
import logging
import sys
import time
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

import msgspec
from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics

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
REBUILDS = Counter("uploader_hydrations", "Uploads rebuilt in Redis from the disk.")
REQUESTS = Counter("uploader_http_requests", "Requests by method, route and status.", ["method", "route", "status"])
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
EVENT_DELIVERIES = Counter(
    "uploader_event_deliveries", "Attempts to tell a sink of an event, by outcome.", ["sink", "outcome"]
)
EVENT_DELIVERY_SECONDS = Histogram(
    "uploader_event_delivery_duration_seconds", "How long a sink took for the events it was told of at once.", ["sink"]
)
# Asked of the stores when somebody looks; every process says the same.
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

WAITING_EVENTS = Gauge("uploader_waiting_events", "Events that a sink is still to be told of.", ["sink"])
DEAD_EVENTS = Gauge("uploader_dead_events", "Events that a sink was told of in vain until the last attempt.", ["sink"])
EVENT_LAG_SECONDS = Gauge(
    "uploader_event_lag_seconds", "How old the oldest event is that a sink is still to be told of.", ["sink"]
)

DRIFTS = Gauge("uploader_drifts", "Figures that differed from their definitions when the reconciler last looked.")
# Gauges that some process sets when it has looked: of several processes the largest counts.
LARGEST_GAUGES = frozenset({"uploader_drifts"})

# The attributes every log record has; the others were passed in `extra` and belong to the message.
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
    """As JSON, in printable ASCII; what JSON has no word for as text."""
    if isinstance(value, str):
        return _encode_all(value)
    try:
        text = _encode(value).decode()
    except (TypeError, ValueError, OverflowError):
        return _encode_all(value)
    # It escapes only what it must, in a quarter of the time.
    return text if text.isascii() and text.isprintable() else _encode_all(value)


class JsonFormatter(logging.Formatter):
    """One JSON object a line; JSON's escapes keep input from forging lines."""

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
    """For a person at a terminal: time, level, message, then what else is known, escaped."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.gmtime(record.created))
        extra = " ".join(f"{name}={_spelt(value)}" for name, value in _extra_of(record).items())
        line = f"{clock} {record.levelname.lower():7} {_printable(record.getMessage())} {extra}".rstrip()
        if not record.exc_info:
            return line
        # Indented, so that no error's text looks like a line of the log.
        trace = self.formatException(record.exc_info).split("\n")
        return "\n".join([line, *(f"    {_printable(part)}" for part in trace)])


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


class LineHandler(logging.Handler):
    """Writes lines to a stream: those of one turn of the event loop together, warnings and all that is worse at once.

    With each write a thread may take the interpreter's lock, and the loop has to get it back: one for each request cost more
    than all else about its line. A kill takes the lines of its turn along, none of which told of anything wrong.
    """

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
            with suppress(OSError, ValueError):  # nobody reads it any more, and there is nowhere to say so
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
    """Send all logs of the process to standard error."""
    # What no line shows need not be found out (https://docs.python.org/3/howto/logging.html#optimization).
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = LineHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
