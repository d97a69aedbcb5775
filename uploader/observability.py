"""Logs as one JSON object a line (or plain text), and the Prometheus metrics of the process.

Records carry the request id of the context they are written in. No token, body or path of a user goes in here.
"""

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime

from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics

request_id: ContextVar[str] = ContextVar("request_id", default="")
user_id: ContextVar[str] = ContextVar("user_id", default="")

disable_created_metrics()  # type: ignore[no-untyped-call]  # before the first one is made

BYTES_RECEIVED = Counter("uploader_received_bytes", "Bytes of acknowledged chunks.")
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
QUOTA_REFUSALS = Counter("uploader_quota_refusals", "Openings refused for lack of quota.")
FLUSH_BATCH_UPLOADS = Histogram(
    "uploader_flush_batch_uploads", "Uploads claimed by one flush.", buckets=(1, 3, 10, 30, 100, 300, 1000, 1500)
)
FLUSH_LAG_SECONDS = Histogram(
    "uploader_flush_lag_seconds",
    "From when the earliest upload of a flush was due to their commit in the database.",
    buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)
# Asked of the stores when somebody looks; every process says the same.
OPEN_UPLOADS = Gauge("uploader_open_uploads", "Open uploads.")
PENDING_BYTES = Gauge("uploader_pending_bytes", "Bytes of open uploads that are not yet in the database.")
QUEUE_TASKS = Gauge("uploader_queue_tasks", "Tasks in a delay queue.", ["queue"])
QUEUE_LAG_SECONDS = Gauge(
    "uploader_queue_lag_seconds", "By how much the earliest task of a queue is overdue.", ["queue"]
)
FREE_DISK_BYTES = Gauge("uploader_free_disk_bytes", "Free bytes of the filesystem of UPLOADER_DATA.")

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
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """For a person at a terminal: time, level, message, then what else is known, escaped."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S")
        extra = " ".join(f"{name}={json.dumps(value, default=str)}" for name, value in _extra_of(record).items())
        line = f"{time} {record.levelname.lower():7} {_printable(record.getMessage())} {extra}".rstrip()
        if not record.exc_info:
            return line
        # Indented, so that no error's text looks like a line of the log.
        trace = self.formatException(record.exc_info).split("\n")
        return "\n".join([line, *(f"    {_printable(part)}" for part in trace)])


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def configure_logging(level: str, log_format: str) -> None:
    """Send all logs of the process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
