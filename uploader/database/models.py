"""The tables, as the migrations make them (a test compares the two).

Ids, hashes and names compare byte by byte: VARBINARY, because collations fold case and pad spaces, and long utf8mb4 keys
fit MariaDB but not MySQL. Times are UTC, from the application's clock.

SQLite keeps no checksums, so a byte of a row may flip on the disk, and its value be one that was never stored. Such a value
is read as one that matches nothing (U+FFFD, the epoch, 0): what is wrong with one row is no error of a query over many.
`recount.py` names it.
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
        """Process as `process_result_value` alone: what the bytes would go through before leaves them as they are."""
        return partial(self.process_result_value, dialect=dialect)


class PathWord(Bytewise):
    """A word that paths are made of, so without the NUL that a damaged row may have."""

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
    """A whole number, and a sum of such."""

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
    """The default of a text that is empty: a string of SQLite equals no bytes."""

    inherit_cache = True


@compiles(NoBytes)
def _no_bytes(_element: NoBytes, compiler: SQLCompiler, **_options: Any) -> str:
    return "X''" if compiler.dialect.name == "sqlite" else "''"


def _session() -> Column[str]:
    """The visitor of a link who sent it; empty of the user's own."""
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
    # Of files, open uploads, empty folders and files in the trash, how many.
    _figure("files"),
    # Whether the user is an administrator; NULL: nobody has said so far.
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
    # 1 while open, NULL after: NULLs repeat freely in a unique key, so a caller has one open upload of an MD5.
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
    # For the open ones of a caller, and for the closed ones by their ends.
    Index("ix_upload_caller", "user_id", "session", "open_flag", "closed_at"),
    Index("ix_upload_open_updated", "open_flag", "updated_at"),
    Index("ix_upload_closed", "closed_at"),
)

# How a whole is made of parts: its id is the upload's that it becomes, once all of them are complete.
concatenation = _table(
    "concatenation",
    Column("id", Bytewise(32), primary_key=True),
    Column("user_id", Bytewise(MAX_USER_ID_BYTES), nullable=False),
    Column("name", Bytewise(MAX_NAME_BYTES), nullable=False),
    Column("metadata", Bytewise(4096)),
    # As it was ordered in the protocol of its client.
    Column("ordered", Bytewise(16384), nullable=False),
    # Of the ids of its parts, in their order: who lost the answer gets the same whole.
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
    # Since when these very bytes are there: whatever takes their place renews it.
    Column("created_at", UtcDateTime, nullable=False),
    # Where a store that is no local disk keeps them.
    Column("location", PathWord(255)),
    Column("damaged", Boolean, nullable=False, server_default=text("0")),
    # When they were last read back from the disk, or that failed; NULL: not since they were placed.
    Column("scrubbed_at", UtcDateTime),
    # When that is tried again; NULL: they could be read.
    Column("reread_at", UtcDateTime),
    # The gates that have let these bytes pass, by their names, with spaces between.
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
        # Of the person's own file, as its client told.
        Column("modified_at", UtcDateTime),
        _session(),
        # By that visitor, below the folder of the link.
        Column("asked_name", Bytewise(MAX_NAME_BYTES)),
    ]


file = _table(
    "file",
    *_file_columns(),
    Index("ix_file_user_md5", "user_id", "md5", "id"),
    Index("uq_file_name", "user_id", "name", unique=True),
    UniqueConstraint("user_id", "sha256", "name", name="uq_file_content_name"),
    Index("ix_file_md5", "md5"),
    # For a recount of refs, which would walk over all files for each.
    Index("ix_file_sha256", "sha256"),
    Index("ix_file_user", "user_id", "id"),
)

# A file that nobody sees before its gates let it pass: then it gets a name, if possible the one that it has here, and is one
# of `file`. It holds a ref, and counts as a file does.
held_file = _table(
    "held_file",
    *_file_columns(),
    Column("if_exists", Bytewise(16), nullable=False),
    # Whose deliveries are the tasks of the gates.
    Column("event_id", Bytewise(32), nullable=False),
    Index("ix_held_file_user", "user_id", "id"),
    Index("ix_held_file_name", "user_id", "name"),
    # For those of a caller, and of all visitors of a link.
    Index("ix_held_file_session", "user_id", "session", "md5", "id"),
    Index("ix_held_file_sha256", "sha256"),
    Index("uq_held_file_event", "event_id", unique=True),
)

# A file that was deleted or replaced, until its owner's trash is emptied of it. It holds no ref: where its content has no
# other file, the trash of the store has the bytes.
trashed_file = _table(
    "trashed_file",
    *_file_columns(),
    Column("deleted_at", UtcDateTime, nullable=False),
    Column("reason", Bytewise(16), nullable=False),
    # Not where it was held when it went; and why a gate refused it.
    Column("passed", Boolean, nullable=False, server_default=text("1")),
    Column("detail", Bytewise(1024)),
    Index("ix_trashed_file_user", "user_id", "deleted_at", "id"),
    Index("ix_trashed_file_name", "user_id", "name", "deleted_at"),
    # For what a gate refused of a visitor.
    Index("ix_trashed_file_session", "user_id", "session", "md5"),
    Index("ix_trashed_file_deleted", "deleted_at"),
    Index("ix_trashed_file_sha256", "sha256", "deleted_at"),
)

# An empty folder, with a slash at the end of its name; one in which something lies has no row.
folder = _table(
    "folder",
    Column("user_id", Bytewise(MAX_USER_ID_BYTES), primary_key=True),
    Column("name", Bytewise(MAX_NAME_BYTES + 1), primary_key=True),
    Column("created_at", UtcDateTime, nullable=False),
    # By its user; one that was left when its last file went gives way where the user may have no more files.
    Column("made", Boolean, nullable=False),
    Index("ix_folder_made", "user_id", "made", "created_at"),
)

# A move or a deletion of many names that is under way.
bulk_operation = _table(
    "bulk_operation",
    Column("id", Bytewise(32), primary_key=True),
    Column("user_id", Bytewise(MAX_USER_ID_BYTES), nullable=False),
    # Of the call: what it asks for, as JSON, with 5,000 ids and 100 prefixes; and its SHA-256.
    Column("work", LargeBinary().with_variant(MEDIUMBLOB(), "mysql", "mariadb"), nullable=False),
    Column("digest", Bytewise(64), nullable=False),
    # How far it has come.
    *(_figure(name) for name in ("part", "place", "files")),
    Column("created_at", UtcDateTime, nullable=False),
    Index("uq_bulk_operation_call", "user_id", "digest", unique=True),
)

# By which strangers get a user's files, or give some.
link = _table(
    "link",
    Column("id", Bytewise(32), primary_key=True),
    Column("user_id", Bytewise(MAX_USER_ID_BYTES), nullable=False),
    # What its URL ends in: encrypted, or empty where it is derived from the id; and its hash, by which it is found.
    Column("slug", Bytewise(64), nullable=False),
    Column("slug_sha256", Bytewise(64), nullable=False),
    Column("kind", Bytewise(8), nullable=False),
    # A folder, with a slash at its end; or the name that a file had when it was made, which has the other ones by its id.
    Column("name", Bytewise(MAX_NAME_BYTES + 1), nullable=False),
    Column("file_id", Bytewise(32)),
    Column("label", Bytewise(1024), nullable=False),
    # A hash of it, with its salt.
    Column("password", Bytewise(255)),
    *(_limit(name) for name in ("max_downloads", "max_files", "max_bytes")),
    # What came by it; and of those of its uploads that are open, in full.
    *(_figure(name) for name in ("downloads", "files", "bytes", "reserved_files", "reserved_bytes")),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    # Before its time, and why.
    Column("ended_at", UtcDateTime),
    Column("end_reason", Bytewise(16)),
    # In the minute that began then.
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
    # It has sent something, or its first download has counted.
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
    # All that it is good for, as words; NULL: for whatever its user may do.
    Column("scope", Bytewise(255)),
    # NULL if it was made before this was kept.
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

# What others are to be told. The ids grow with time.
outbox = _table(
    "outbox",
    Column("id", Bytewise(32), primary_key=True),
    Column("type", Bytewise(32), nullable=False),
    # The id of the upload or file that it is about.
    Column("subject", Bytewise(32), nullable=False),
    Column("user_id", Bytewise(MAX_USER_ID_BYTES), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    # JSON, as it is told.
    Column("data", LargeBinary, nullable=False),
)

# Who is to be told of each, and whether they were; or the task of a queue, whose name stands for the sink's.
delivery = _table(
    "delivery",
    Column("outbox_id", Bytewise(32), primary_key=True),
    Column("sink", Bytewise(64), primary_key=True),
    # How many have failed; of a task, how often it was claimed.
    Column("attempt", Integer64, nullable=False, server_default=text("0")),
    # When the next one is to be; of one under way, when it is given up; of one that has ended, when that was.
    Column("due_at", UtcDateTime, nullable=False),
    Column("state", Bytewise(16), nullable=False),
    Column("last_error", Bytewise(1024)),
    # Of a task: the last claim, whose it was and whether it holds the task; and how many there were, ever.
    Column("lease", Bytewise(32)),
    Column("worker", Bytewise(MAX_USER_ID_BYTES)),
    Column("held", Boolean, nullable=False, server_default=text("0")),
    Column("fence", Integer64, nullable=False, server_default=text("0")),
    # Of a gate's, as long as a file waits for it: what becomes of that where the task is dead.
    Column("on_failure", Bytewise(8)),
    Index("ix_delivery_due", "state", "sink", "due_at"),
)

# Who did what to whom. The ids grow with time; no row is ever changed.
audit_log = _table(
    "trail",
    Column("id", Bytewise(32), primary_key=True),
    Column("created_at", UtcDateTime, nullable=False),
    Column("action", Bytewise(32), nullable=False),
    # How somebody came to act, and who: a user, one of the operating system, or a job.
    Column("via", Bytewise(16), nullable=False),
    Column("actor", Bytewise(MAX_USER_ID_BYTES)),
    Column("token_id", Bytewise(16)),
    Column("address", Bytewise(64)),
    # Whose the subject is.
    Column("user_id", Bytewise(MAX_USER_ID_BYTES)),
    Column("subject", Bytewise(255), nullable=False),
    # JSON.
    Column("details", LargeBinary, nullable=False),
    # Who made the token, as `token` has it.
    Column("token_made_by", Bytewise(280)),
    Index("ix_trail_created", "created_at", "id"),
)

# What a store on S3 has of an open upload. A writer of its chunks has its row locked.
multipart = _table(
    "multipart",
    Column("upload_id", Bytewise(32), primary_key=True),
    # As S3 calls its multipart upload; NULL if it is a single object.
    Column("multipart_id", Bytewise(1024)),
    # Grows with each freeze and each withdrawal.
    Column("fence", Integer64, nullable=False, server_default=text("0")),
    Column("frozen", Boolean, nullable=False, server_default=text("0")),
    # Who appends.
    Column("appender", Bytewise(32)),
    Column("tail_key", Bytewise(255)),
    Column("tail_number", Integer64),
    Column("tail_length", Integer64),
    # How far its digests have come, from what they go on, and what they are.
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

# A chunk that S3 has. What has no row was never received.
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

# The trash of a store that has locations: objects in which no content lies any more.
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
