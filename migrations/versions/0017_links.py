"""Strangers get and give files by links: each visitor is a session, a stranger to the others and to the user.

Revision: 0017
"""

import sqlalchemy as sa
from sqlalchemy.dialects.mysql import DATETIME

from uploader.database import migrate, models

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None
# An older program would take the uploads of a visitor for the user's own.
compatible = False

MOMENT = sa.DateTime().with_variant(DATETIME(fsp=6), "mysql", "mariadb")
UPLOADS = ("upload", "concatenation")
FILES = ("file", "trashed_file")


def bytewise(length: int) -> sa.types.TypeEngine[bytes]:
    return sa.VARBINARY(length).with_variant(sa.LargeBinary(), "sqlite")


def session() -> "sa.Column[bytes]":
    return sa.Column("session", bytewise(64), nullable=False, server_default=models.NoBytes())


def limit(name: str) -> "sa.Column[int]":
    return sa.Column(name, sa.BigInteger, sa.CheckConstraint(f"{name} >= 0"))


def figure(name: str) -> "sa.Column[int]":
    checked = sa.CheckConstraint(f"{name} >= 0")
    return sa.Column(name, sa.BigInteger, checked, nullable=False, server_default=sa.text("0"))


def upgrade() -> None:
    for table in (*UPLOADS, *FILES):
        migrate.add_column(table, session())
    for table in FILES:
        migrate.add_column(table, sa.Column("asked_name", bytewise(1024)))
    migrate.create_index("uq_upload_open_md5", "upload", "user_id", "session", "md5", "open_flag", unique=True)
    migrate.create_index("uq_upload_key", "upload", "user_id", "session", "idempotency_key", unique=True)
    migrate.create_index("uq_concatenation", "concatenation", "user_id", "session", "parts_sha256", unique=True)
    migrate.create_index("ix_upload_caller", "upload", "user_id", "session", "open_flag", "closed_at")
    migrate.drop_index("ix_upload_user", "upload")
    for name in ("uq_upload_open", "uq_upload_idempotency"):
        migrate.drop_unique("upload", name)
    migrate.drop_unique("concatenation", "uq_concatenation_parts")
    migrate.create_table(
        "link",
        sa.Column("id", bytewise(32), primary_key=True),
        sa.Column("user_id", bytewise(255), nullable=False),
        sa.Column("slug", bytewise(64), nullable=False),
        sa.Column("slug_sha256", bytewise(64), nullable=False),
        sa.Column("kind", bytewise(8), nullable=False),
        sa.Column("name", bytewise(1025), nullable=False),
        sa.Column("file_id", bytewise(32)),
        sa.Column("label", bytewise(1024), nullable=False),
        sa.Column("password", bytewise(255)),
        *(limit(name) for name in ("max_downloads", "max_files", "max_bytes")),
        *(figure(name) for name in ("downloads", "files", "bytes", "reserved_files", "reserved_bytes")),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("expires_at", MOMENT, nullable=False),
        sa.Column("ended_at", MOMENT),
        sa.Column("end_reason", bytewise(16)),
        figure("wrong_passwords"),
        sa.Column("wrong_since", MOMENT),
    )
    migrate.create_index("uq_link_slug", "link", "slug_sha256", unique=True)
    migrate.create_index("ix_link_user", "link", "user_id", "id")
    migrate.create_index("ix_link_file", "link", "file_id")
    migrate.create_index("ix_link_expires", "link", "expires_at")
    migrate.create_index("ix_link_ended", "link", "ended_at")
    migrate.create_index("ix_link_reserved", "link", "reserved_files")
    migrate.create_table(
        "link_session",
        sa.Column("id", bytewise(32), primary_key=True),
        sa.Column("link_id", bytewise(32), nullable=False),
        sa.Column("token_sha256", bytewise(64), nullable=False),
        sa.Column("used", sa.Boolean, nullable=False, server_default=sa.text("0")),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("expires_at", MOMENT, nullable=False),
    )
    migrate.create_index("uq_link_session_token", "link_session", "token_sha256", unique=True)
    migrate.create_index("ix_link_session_link", "link_session", "link_id", "used", "id")
    migrate.create_index("ix_link_session_expires", "link_session", "expires_at")


def downgrade() -> None:
    """Give up what visitors are in the middle of: an older version could not tell it from what is the user's."""
    if "session" in migrate.columns("upload"):
        forget = "UPDATE upload SET md5 = NULL, idempotency_key = NULL WHERE {range} AND session <> X''"
        migrate.change_in_ranges("upload", forget)
        migrate.change_in_ranges("concatenation", "DELETE FROM concatenation WHERE {range} AND session <> X''")
    migrate.add_unique("upload", "uq_upload_open", "user_id", "md5", "open_flag")
    migrate.add_unique("upload", "uq_upload_idempotency", "user_id", "idempotency_key")
    migrate.add_unique("concatenation", "uq_concatenation_parts", "user_id", "parts_sha256")
    migrate.create_index("ix_upload_user", "upload", "user_id", "open_flag", "closed_at")
    for name, table in (
        ("ix_upload_caller", "upload"),
        *(("uq_upload_open_md5", "upload"), ("uq_upload_key", "upload")),
        ("uq_concatenation", "concatenation"),
    ):
        migrate.drop_index(name, table)
    for table in FILES:
        migrate.drop_column(table, "asked_name")
    for table in (*UPLOADS, *FILES):
        migrate.drop_column(table, "session")
    migrate.drop_table("link_session")
    migrate.drop_table("link")
