"""Uploads may be parts, and wholes that are made of them.

Revision: 0008
"""

import sqlalchemy as sa
from sqlalchemy.dialects.mysql import DATETIME

from uploader.database import migrate

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

MOMENT = sa.DateTime().with_variant(DATETIME(fsp=6), "mysql", "mariadb")


def bytewise(length: int) -> sa.types.TypeEngine[bytes]:
    return sa.VARBINARY(length).with_variant(sa.LargeBinary(), "sqlite")


def upgrade() -> None:
    migrate.add_column("upload", sa.Column("kind", bytewise(8)))
    migrate.create_table(
        "concatenation",
        sa.Column("id", bytewise(32), primary_key=True),
        sa.Column("user_id", bytewise(255), nullable=False),
        sa.Column("name", bytewise(1024), nullable=False),
        sa.Column("metadata", bytewise(4096)),
        sa.Column("ordered", bytewise(16384), nullable=False),
        sa.Column("parts_sha256", bytewise(64), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("open_flag", sa.SmallInteger()),
        sa.UniqueConstraint("user_id", "parts_sha256", name="uq_concatenation_parts"),
    )
    migrate.create_index("ix_concatenation_open", "concatenation", "open_flag", "id")
    migrate.create_table(
        "concatenation_part",
        sa.Column("concatenation_id", bytewise(32), primary_key=True),
        sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("part_id", bytewise(32), nullable=False),
    )
    migrate.create_index("ix_concatenation_part", "concatenation_part", "part_id")


def downgrade() -> None:
    migrate.drop_table("concatenation_part")
    migrate.drop_table("concatenation")
    migrate.drop_column("upload", "kind")
