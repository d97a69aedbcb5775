"""The tables, as the migrations make them (a test compares the two).

Ids, hashes and names compare byte by byte: VARBINARY, because collations fold case and pad spaces, and long utf8mb4 keys fit
MariaDB but not MySQL. Times are UTC, from the application's clock.

SQLite keeps no checksums: a flipped byte on the disk changes the value of a column. An unreadable value becomes U+FFFD, the
epoch or 0. So a query over many rows works in spite of a damaged row. `recount.py` reports damaged rows.
"""

from collections.abc import Callable
from datetime import UTC, date, datetime
from functools import partial
from typing import Any

from sqlalchemy import (
    VARBINARY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    DateTime,
    Dialect,
    Index,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    TypeDecorator,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.mysql import DATETIME, MEDIUMBLOB
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import SchemaItem
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

from uploader.domain.names import MAX_NAME_BYTES, MAX_USER_ID_BYTES
from uploader.domain.reports import Totals

_NO_TEXT = "\ufffd"
_NO_MOMENT = datetime(1970, 1, 1)  # noqa: DTZ001 (the databases keep no zone)


class Bytewise(TypeDecorator[str]):
    """Text that is compared byte by byte: UTF-8 in a VARBINARY of `length` bytes."""

    impl = LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        length = self.impl.length
        return dialect.type_descriptor(LargeBinary() if dialect.name == "sqlite" else VARBINARY(length))

    def process_bind_param(self, value: str | None, dialect: Dialect) -> bytes | None:
        return None if value is None else value.encode()

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        if value is None:
            return None
        if not isinstance(value, (bytes, bytearray)):
            return _NO_TEXT
        return value.decode(errors="replace")

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], str | None]:
        """Skip the processor of the base type, which returns the bytes unchanged."""
        return partial(self.process_result_value, dialect=dialect)


class PathWord(Bytewise):
    """A word used in paths. A NUL from a damaged row is replaced."""

    cache_ok = True

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        word = super().process_result_value(value, dialect)
        return word and word.replace("\0", _NO_TEXT)


class Octets(TypeDecorator[bytes]):
    impl = LargeBinary
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Dialect) -> bytes | None:
        return value if value is None or isinstance(value, bytes) else b""


class _SqliteDateTime(sqlite.DATETIME):
    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        return _or_else(super().result_processor(dialect, coltype), _NO_MOMENT)


class _SqliteDate(sqlite.DATE):
    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        return _or_else(super().result_processor(dialect, coltype), _NO_MOMENT.date())


def _or_else(parse: Callable[[Any], Any] | None, fallback: date) -> Callable[[Any], Any]:
    assert parse is not None

    def process(value: Any) -> Any:
        try:
            return parse(value)
        except (TypeError, ValueError):
            return fallback

    return process


class UtcDateTime(TypeDecorator[datetime]):
    """A moment in UTC, to the microsecond; the databases keep no zone."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(DATETIME(fsp=6) if dialect.name != "sqlite" else _SqliteDateTime())  # type: ignore[no-untyped-call]

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC)


class UtcDay(TypeDecorator[date]):
    impl = Date
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Date() if dialect.name != "sqlite" else _SqliteDate())  # type: ignore[no-untyped-call]


class Integer64(TypeDecorator[int]):
    """A whole number, or a sum of whole numbers."""

    impl = BigInteger
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Dialect) -> int | None:
        if value is None or type(value) is int:
            return value
        try:
            return int(value)
        except (TypeError, ValueError, OverflowError):
            return 0


class NoBytes(FunctionElement[str]):
    """The default of an empty text. In SQLite, a string never equals a blob."""

    inherit_cache = True


@compiles(NoBytes)
def _no_bytes(_element: NoBytes, compiler: SQLCompiler, **_options: Any) -> str:
    return "X''" if compiler.dialect.name == "sqlite" else "''"


def _session() -> Column[str]:
    """The visitor of a link who sent the row's file or upload; empty for the user's own."""
    return Column("session", Bytewise(64), nullable=False, server_default=NoBytes())


def _limit(name: str) -> Column[int]:
    return Column(name, Integer64, CheckConstraint(f"{name} >= 0"))


def _figure(name: str) -> Column[int]:
    return Column(name, Integer64, CheckConstraint(f"{name} >= 0"), nullable=False, server_default=text("0"))


metadata = MetaData()


def _table(name: str, *items: SchemaItem) -> Table:
    return Table(name, metadata, *items, mysql_engine="InnoDB")


user_info = _table(
    "user_info",
    Column("user_id", Bytewise(MAX_USER_ID_BYTES), primary_key=True),
    _figure("total_space"),
    _figure("use_space_finished"),
    _figure("use_space_unfinished"),
    _figure("reserved"),
    # The number of files, open uploads, empty folders and deleted files.
    _figure("files"),
    # NULL: nobody has decided yet if the user is an administrator.
    Column("admin", Boolean),
    Index("ix_user_info_admin", "admin"),
)

upload = _table(
    "upload",
    Column("id", PathWord(32), primary_key=True),
    Column("user_id", Bytewise(MAX_USER_ID_BYTES), nullable=False),
    Column("md5", Bytewise(32)),
    Column("sha256", Bytewise(64)),
    Column("name", Bytewise(MAX_NAME_BYTES), nullable=False),
    _figure("size"),
    _figure("chunk_size"),
    _figure("flushed_bytes"),
    Column("flushed_generation", Integer64, nullable=False, server_default=text("0")),
    Column("generation", Integer64, nullable=False, server_default=text("0")),
    Column("state", Bytewise(16), nullable=False),
    Column("close_reason", Bytewise(32)),
    Column("file_id", Bytewise(32)),
    Column("temp_path", PathWord(255), nullable=False),
    Column("idempotency_key", Bytewise(128)),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    Column("closed_at", UtcDateTime),
    # 1 while open, then NULL. A unique key allows many NULLs, so a caller has at most one open upload per MD5.
    Column("open_flag", SmallInteger),
    Column("if_exists", Bytewise(16)),
    Column("modified_at", UtcDateTime),
    Column("metadata", Bytewise(4096)),
    Column("length_known", Boolean, nullable=False, server_default=text("1")),
    Column("computes_md5", Boolean, nullable=False, server_default=text("1")),
    Column("kind", Bytewise(8)),
    _session(),
    Index("uq_upload_open_md5", "user_id", "session", "md5", "open_flag", unique=True),
    Index("uq_upload_key", "user_id", "session", "idempotency_key", unique=True),
    # For the open uploads of a caller, and for the closed ones by `closed_at`.
    Index("ix_upload_caller", "user_id", "session", "open_flag", "closed_at"),
    Index("ix_upload_open_updated", "open_flag", "updated_at"),
    Index("ix_upload_closed", "closed_at"),
)

# The order of a whole. When all parts are complete, the whole becomes an upload with the same id.
concatenation = _table(
    "concatenation",
    Column("id", Bytewise(32), primary_key=True),
    Column("user_id", Bytewise(MAX_USER_ID_BYTES), nullable=False),
    Column("name", Bytewise(MAX_NAME_BYTES), nullable=False),
    Column("metadata", Bytewise(4096)),
    # The text of the order in the client's protocol.
    Column("ordered", Bytewise(16384), nullable=False),
    # Hash of the part ids in order. A client that lost the answer and asks again gets the same whole.
    Column("parts_sha256", Bytewise(64), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    # 1 until its upload is closed, NULL after.
    Column("open_flag", SmallInteger),
    _session(),
    Index("uq_concatenation", "user_id", "session", "parts_sha256", unique=True),
    Index("ix_concatenation_open", "open_flag", "id"),
)

concatenation_part = _table(
    "concatenation_part",
    Column("concatenation_id", Bytewise(32), primary_key=True),
    Column("position", Integer64, primary_key=True, autoincrement=False),
    Column("part_id", Bytewise(32), nullable=False),
    Index("ix_concatenation_part", "part_id"),
)

blob = _table(
    "blob",
    Column("sha256", PathWord(64), primary_key=True),
    Column("md5", Bytewise(32)),
    _figure("size"),
    _figure("refs"),
    # When these bytes were placed. Placing bytes again renews the time.
    Column("created_at", UtcDateTime, nullable=False),
    # The key of the object, in a store with locations.
    Column("location", PathWord(255)),
    Column("damaged", Boolean, nullable=False, server_default=text("0")),
    # When the bytes were last read back, with or without success; NULL: never since they were placed.
    Column("scrubbed_at", UtcDateTime),
    # When to read unreadable bytes again; NULL: no failed reading.
    Column("reread_at", UtcDateTime),
    # Names of the gates that have passed these bytes, separated by spaces.
    Column("passed", Bytewise(1024)),
    Index("ix_blob_damaged", "damaged"),
    Index("ix_blob_scrubbed", "scrubbed_at", "created_at"),
    Index("ix_blob_reread", "reread_at"),
    Index("ix_blob_md5", "md5"),
    Index("ix_blob_refs", "refs"),
    Index("ix_blob_location", "location"),
)


def _file_columns() -> list[Column[Any]]:
    return [
        Column("id", Bytewise(32), primary_key=True),
        Column("user_id", Bytewise(MAX_USER_ID_BYTES), nullable=False),
        Column("md5", Bytewise(32)),
        Column("sha256", PathWord(64), nullable=False),
        Column("name", Bytewise(MAX_NAME_BYTES), nullable=False),
        _figure("size"),
        Column("instant", Boolean, nullable=False),
        Column("created_at", UtcDateTime, nullable=False),
        # The time of the user's local file, as the client reported it.
        Column("modified_at", UtcDateTime),
        _session(),
        # The name that the visitor asked for, below the folder of the link.
        Column("asked_name", Bytewise(MAX_NAME_BYTES)),
    ]


file = _table(
    "file",
    *_file_columns(),
    Index("ix_file_user_md5", "user_id", "md5", "id"),
    Index("uq_file_name", "user_id", "name", unique=True),
    UniqueConstraint("user_id", "sha256", "name", name="uq_file_content_name"),
    Index("ix_file_md5", "md5"),
    # For a recount of refs, which would otherwise scan all files for each blob.
    Index("ix_file_sha256", "sha256"),
    Index("ix_file_user", "user_id", "id"),
)

# A held file: invisible until all gates pass it. Then it moves to `file` and gets a name, if possible the one in this row. A
# held file counts as a ref and as a file of its user.
held_file = _table(
    "held_file",
    *_file_columns(),
    Column("if_exists", Bytewise(16), nullable=False),
    # The deliveries of this event are the tasks of the gates.
    Column("event_id", Bytewise(32), nullable=False),
    Index("ix_held_file_user", "user_id", "id"),
    Index("ix_held_file_name", "user_id", "name"),
    # For the held files of a caller, and of all visitors of a link.
    Index("ix_held_file_session", "user_id", "session", "md5", "id"),
    Index("ix_held_file_sha256", "sha256"),
    Index("uq_held_file_event", "event_id", unique=True),
)

# A deleted or replaced file in its owner's trash. It counts no ref: if no other file has the content, the bytes are in the
# trash of the store.
trashed_file = _table(
    "trashed_file",
    *_file_columns(),
    Column("deleted_at", UtcDateTime, nullable=False),
    Column("reason", Bytewise(16), nullable=False),
    # `passed`: false if a gate still held the file when it was deleted. `detail`: why a gate refused the file.
    Column("passed", Boolean, nullable=False, server_default=text("1")),
    Column("detail", Bytewise(1024)),
    Index("ix_trashed_file_user", "user_id", "deleted_at", "id"),
    Index("ix_trashed_file_name", "user_id", "name", "deleted_at"),
    # For the files of a visitor that a gate refused.
    Index("ix_trashed_file_session", "user_id", "session", "md5"),
    Index("ix_trashed_file_deleted", "deleted_at"),
    Index("ix_trashed_file_sha256", "sha256", "deleted_at"),
)

# An empty folder; its name ends in a slash. A folder that holds files or folders has no row.
folder = _table(
    "folder",
    Column("user_id", Bytewise(MAX_USER_ID_BYTES), primary_key=True),
    Column("name", Bytewise(MAX_NAME_BYTES + 1), primary_key=True),
    Column("created_at", UtcDateTime, nullable=False),
    # True: the user made the folder. False: the folder remained after its last file, and is removed when the user reaches
    # the limit of files.
    Column("made", Boolean, nullable=False),
    Index("ix_folder_made", "user_id", "made", "created_at"),
)

# A move or a deletion of many names that is under way.
bulk_operation = _table(
    "bulk_operation",
    Column("id", Bytewise(32), primary_key=True),
    Column("user_id", Bytewise(MAX_USER_ID_BYTES), nullable=False),
    # The request as JSON, with up to 5,000 ids and 100 prefixes; and the SHA-256 of the request.
    Column("work", LargeBinary().with_variant(MEDIUMBLOB(), "mysql", "mariadb"), nullable=False),
    Column("digest", Bytewise(64), nullable=False),
    # The progress.
    *(_figure(name) for name in ("part", "place", "files")),
    Column("created_at", UtcDateTime, nullable=False),
    Index("uq_bulk_operation_call", "user_id", "digest", unique=True),
)

# A link: strangers download a user's files or send files to the user.
link = _table(
    "link",
    Column("id", Bytewise(32), primary_key=True),
    Column("user_id", Bytewise(MAX_USER_ID_BYTES), nullable=False),
    # The end of the URL: encrypted, or empty if derived from the id. Links are looked up by the hash.
    Column("slug", Bytewise(64), nullable=False),
    Column("slug_sha256", Bytewise(64), nullable=False),
    Column("kind", Bytewise(8), nullable=False),
    # A folder with a slash at the end, or the name of the file when the link was made. `file_id` leads to the present name.
    Column("name", Bytewise(MAX_NAME_BYTES + 1), nullable=False),
    Column("file_id", Bytewise(32)),
    Column("label", Bytewise(1024), nullable=False),
    # Hash with salt.
    Column("password", Bytewise(255)),
    *(_limit(name) for name in ("max_downloads", "max_files", "max_bytes")),
    # Figures of downloads, existing files, and open uploads in full size.
    *(_figure(name) for name in ("downloads", "files", "bytes", "reserved_files", "reserved_bytes")),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    # Set when the link ended before `expires_at`.
    Column("ended_at", UtcDateTime),
    Column("end_reason", Bytewise(16)),
    # Wrong passwords in the minute that began at `wrong_since`.
    _figure("wrong_passwords"),
    Column("wrong_since", UtcDateTime),
    Index("uq_link_slug", "slug_sha256", unique=True),
    Index("ix_link_user", "user_id", "id"),
    Index("ix_link_name", "user_id", "name"),
    Index("ix_link_file", "file_id"),
    Index("ix_link_expires", "expires_at"),
    Index("ix_link_ended", "ended_at"),
    Index("ix_link_reserved", "reserved_files"),
)

# A visitor of a link.
link_session = _table(
    "link_session",
    Column("id", Bytewise(32), primary_key=True),
    Column("link_id", Bytewise(32), nullable=False),
    Column("token_sha256", Bytewise(64), nullable=False),
    # True if the visitor has begun to send a file, or the first download was counted.
    Column("used", Boolean, nullable=False, server_default=text("0")),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    Index("uq_link_session_token", "token_sha256", unique=True),
    Index("ix_link_session_link", "link_id", "used", "id"),
    Index("ix_link_session_expires", "expires_at"),
)

token = _table(
    "token",
    Column("token_sha256", Bytewise(64), primary_key=True),
    Column("user_id", Bytewise(MAX_USER_ID_BYTES), nullable=False),
    Column("admin", Boolean, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("revoked_at", UtcDateTime),
    # Scopes, separated by spaces; NULL: no restriction.
    Column("scope", Bytewise(255)),
    # Who made the token; NULL for tokens older than this column.
    Column("made_by", Bytewise(280)),
    Index("ix_token_user", "user_id"),
)

# Totals only: with 100,000 users, a row for each of them would make 36 million a year.
usage_daily = _table(
    "usage_daily",
    Column("day", UtcDay, primary_key=True),
    Column("taken_at", UtcDateTime, nullable=False),
    *(_figure(name) for name in Totals.__struct_fields__),
    _figure("free_disk_bytes"),
)

# Events to be told to sinks. The ids grow with time.
outbox = _table(
    "outbox",
    Column("id", Bytewise(32), primary_key=True),
    Column("type", Bytewise(32), nullable=False),
    # The id of the upload or file.
    Column("subject", Bytewise(32), nullable=False),
    Column("user_id", Bytewise(MAX_USER_ID_BYTES), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    # JSON, as sent to sinks.
    Column("data", LargeBinary, nullable=False),
)

# The delivery of an event to a sink; or a task of a queue, with the name of the queue in `sink`.
delivery = _table(
    "delivery",
    Column("outbox_id", Bytewise(32), primary_key=True),
    Column("sink", Bytewise(64), primary_key=True),
    # The number of failed attempts; for a task, the number of claims.
    Column("attempt", Integer64, nullable=False, server_default=text("0")),
    # The time of the next attempt; during an attempt, its deadline; after the end, the time of the end.
    Column("due_at", UtcDateTime, nullable=False),
    Column("state", Bytewise(16), nullable=False),
    Column("last_error", Bytewise(1024)),
    # For a task: the last claim, its worker, if this claim still holds the task, and the number of all claims.
    Column("lease", Bytewise(32)),
    Column("worker", Bytewise(MAX_USER_ID_BYTES)),
    Column("held", Boolean, nullable=False, server_default=text("0")),
    Column("fence", Integer64, nullable=False, server_default=text("0")),
    # For the task of a gate, while a file waits: what happens to the file if the task is dead.
    Column("on_failure", Bytewise(8)),
    Index("ix_delivery_due", "state", "sink", "due_at"),
)

# Who did what to whom. The ids grow with time; no row is ever changed.
audit_log = _table(
    "trail",
    Column("id", Bytewise(32), primary_key=True),
    Column("created_at", UtcDateTime, nullable=False),
    Column("action", Bytewise(32), nullable=False),
    # The way in, and the actor: a user, a user of the operating system, or a job.
    Column("via", Bytewise(16), nullable=False),
    Column("actor", Bytewise(MAX_USER_ID_BYTES)),
    Column("token_id", Bytewise(16)),
    Column("address", Bytewise(64)),
    # The owner of the subject.
    Column("user_id", Bytewise(MAX_USER_ID_BYTES)),
    Column("subject", Bytewise(255), nullable=False),
    # JSON.
    Column("details", LargeBinary, nullable=False),
    # Copy of `token.made_by`.
    Column("token_made_by", Bytewise(280)),
    Index("ix_trail_created", "created_at", "id"),
)

# S3 ledger: an open upload in a bucket. A writer of chunks locks the row.
multipart = _table(
    "multipart",
    Column("upload_id", Bytewise(32), primary_key=True),
    # The id of the multipart upload in S3; NULL if the upload is a single object.
    Column("multipart_id", Bytewise(1024)),
    # Grows with each freeze and each withdrawal.
    Column("fence", Integer64, nullable=False, server_default=text("0")),
    Column("frozen", Boolean, nullable=False, server_default=text("0")),
    # The present appender.
    Column("appender", Bytewise(32)),
    Column("tail_key", Bytewise(255)),
    Column("tail_number", Integer64),
    Column("tail_length", Integer64),
    # Digest progress in bytes, the state to continue from, and the digests.
    Column("digest_position", Integer64),
    Column("digest_state", Octets),
    Column("digest_md5", Bytewise(32)),
    Column("digest_sha256", Bytewise(64)),
    Column("opened_at", UtcDateTime, nullable=False),
    Column("written_at", UtcDateTime, nullable=False),
    Index("ix_multipart_opened", "opened_at", "upload_id"),
    Index("ix_multipart_tail", "tail_key"),
)

# The objects of the parts of a whole, in order, until it is merged.
piece = _table(
    "piece",
    Column("whole_id", Bytewise(32), primary_key=True),
    Column("position", Integer64, primary_key=True, autoincrement=False),
    Column("object_key", Bytewise(255), nullable=False),
    Column("size", Integer64, nullable=False),
    Index("ix_piece_key", "object_key"),
)

# A chunk in S3. A chunk without a row does not count as received.
chunk = _table(
    "chunk",
    Column("upload_id", Bytewise(32), primary_key=True),
    Column("number", Integer64, primary_key=True, autoincrement=False),
    Column("etag", Bytewise(255), nullable=False),
    # NULL if it is a part of the multipart upload.
    Column("object_key", Bytewise(255)),
    Column("created_at", UtcDateTime, nullable=False),
    Index("ix_chunk_key", "object_key"),
)

# The trash of a store with locations: objects that are no content any more.
put_away = _table(
    "put_away",
    Column("object_key", Bytewise(255), primary_key=True),
    # The SHA-256 of the content.
    Column("name", Bytewise(64), nullable=False),
    Column("size", Integer64, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Index("ix_put_away_name", "name"),
)

meta = _table(
    "meta",
    Column("name", Bytewise(64), primary_key=True),
    Column("value", Bytewise(1024), nullable=False),
)
