"""Logs as one JSON object a line (or plain text), and the Prometheus metrics of the process.

Records carry the request id of the context they are written in. No token, body or path of a user goes in here.
"""

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime

from prometheus_client import Counter, Gauge, Histogram

request_id: ContextVar[str] = ContextVar("request_id", default="")

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
QUOTA_REFUSALS = Counter("uploader_quota_refusals", "Openings refused for lack of quota.")
DRIFTS = Gauge("uploader_drifts", "Figures that differed from their definitions when the reconciler last looked.")

# The attributes every log record has; the others were passed in `extra` and belong to the message.
_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


def _extra_of(record: logging.LogRecord) -> dict[str, object]:
    extra = {name: value for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES}
    if context := request_id.get():
        extra.setdefault("request_id", context)
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
        message = "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in record.getMessage())
        line = f"{time} {record.levelname.lower():7} {message} {extra}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure_logging(level: str, log_format: str) -> None:
    """Send all logs of the process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("aiosqlite").setLevel(logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
