"""The first schema.

Revision: 0001
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.mysql import DATETIME

from uploader.database import migrate

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

MOMENT = sa.DateTime().with_variant(DATETIME(fsp=6), "mysql", "mariadb")


def bytewise(length: int) -> Any:
    return sa.VARBINARY(length).with_variant(sa.LargeBinary(), "sqlite")


def bytes_column(name: str) -> sa.Column[int]:
    return sa.Column(
        name, sa.BigInteger, sa.CheckConstraint(f"{name} >= 0"), nullable=False, server_default=sa.text("0")
    )


def upgrade() -> None:
    migrate.create_table(
        "user_info",
        sa.Column("user_id", bytewise(255), primary_key=True),
        bytes_column("total_space"),
        bytes_column("use_space_finished"),
        bytes_column("use_space_unfinished"),
        bytes_column("reserved"),
    )
    migrate.create_table(
        "upload",
        sa.Column("id", bytewise(32), primary_key=True),
        sa.Column("user_id", bytewise(255), nullable=False),
        sa.Column("md5", bytewise(32)),
        sa.Column("sha256", bytewise(64)),
        sa.Column("name", bytewise(1024), nullable=False),
        bytes_column("size"),
        bytes_column("chunk_size"),
        bytes_column("flushed_bytes"),
        sa.Column("flushed_generation", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("generation", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("state", bytewise(16), nullable=False),
        sa.Column("close_reason", bytewise(32)),
        sa.Column("file_id", bytewise(32)),
        sa.Column("temp_path", bytewise(255), nullable=False),
        sa.Column("idempotency_key", bytewise(128)),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("updated_at", MOMENT, nullable=False),
        sa.Column("closed_at", MOMENT),
        sa.Column("open_flag", sa.SmallInteger),
        sa.UniqueConstraint("user_id", "md5", "open_flag", name="uq_upload_open"),
        sa.UniqueConstraint("user_id", "idempotency_key", name="uq_upload_idempotency"),
    )
    migrate.create_index("ix_upload_user_open", "upload", "user_id", "open_flag")
    migrate.create_index("ix_upload_open_updated", "upload", "open_flag", "updated_at")
    migrate.create_index("ix_upload_closed", "upload", "closed_at")
    migrate.create_table(
        "blob",
        sa.Column("sha256", bytewise(64), primary_key=True),
        sa.Column("md5", bytewise(32), nullable=False),
        bytes_column("size"),
        bytes_column("refs"),
        sa.Column("created_at", MOMENT, nullable=False),
    )
    migrate.create_index("ix_blob_md5", "blob", "md5")
    migrate.create_index("ix_blob_refs", "blob", "refs")
    migrate.create_table(
        "file",
        sa.Column("id", bytewise(32), primary_key=True),
        sa.Column("user_id", bytewise(255), nullable=False),
        sa.Column("md5", bytewise(32), nullable=False),
        sa.Column("sha256", bytewise(64), nullable=False),
        sa.Column("name", bytewise(1024), nullable=False),
        bytes_column("size"),
        sa.Column("instant", sa.Boolean, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.UniqueConstraint("user_id", "sha256", "name", name="uq_file_content_name"),
    )
    migrate.create_index("ix_file_md5", "file", "md5")
    migrate.create_index("ix_file_user", "file", "user_id", "id")
    migrate.create_table(
        "token",
        sa.Column("token_sha256", bytewise(64), primary_key=True),
        sa.Column("user_id", bytewise(255), nullable=False),
        sa.Column("admin", sa.Boolean, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("revoked_at", MOMENT),
    )
    migrate.create_index("ix_token_user", "token", "user_id")
    migrate.create_table(
        "usage_daily",
        sa.Column("day", sa.Date, primary_key=True),
        sa.Column("user_id", bytewise(255), primary_key=True),
        bytes_column("total_space"),
        bytes_column("use_space_finished"),
        bytes_column("use_space_unfinished"),
        bytes_column("reserved"),
        bytes_column("files"),
    )
    migrate.create_table(
        "meta",
        sa.Column("name", bytewise(64), primary_key=True),
        sa.Column("value", bytewise(1024), nullable=False),
    )


def downgrade() -> None:
    for name in ("meta", "usage_daily", "token", "file", "blob", "upload", "user_info"):
        migrate.drop_table(name)
