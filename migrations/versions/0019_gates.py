"""Files may be held until gates have let them pass.

Revision: 0019
"""

import sqlalchemy as sa
from sqlalchemy.dialects.mysql import DATETIME

from uploader.database import migrate, models

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None
# An older program has no gates, and would count the contents of what is held as too many refs.
compatible = False

MOMENT = sa.DateTime().with_variant(DATETIME(fsp=6), "mysql", "mariadb")


def bytewise(length: int) -> sa.types.TypeEngine[bytes]:
    return sa.VARBINARY(length).with_variant(sa.LargeBinary(), "sqlite")


def upgrade() -> None:
    migrate.create_table(
        "held_file",
        sa.Column("id", bytewise(32), primary_key=True),
        sa.Column("user_id", bytewise(255), nullable=False),
        sa.Column("md5", bytewise(32)),
        sa.Column("sha256", bytewise(64), nullable=False),
        sa.Column("name", bytewise(1024), nullable=False),
        sa.Column("size", sa.BigInteger, sa.CheckConstraint("size >= 0"), nullable=False, server_default=sa.text("0")),
        sa.Column("instant", sa.Boolean, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("modified_at", MOMENT),
        sa.Column("session", bytewise(64), nullable=False, server_default=models.NoBytes()),
        sa.Column("asked_name", bytewise(1024)),
        sa.Column("if_exists", bytewise(16), nullable=False),
        sa.Column("event_id", bytewise(32), nullable=False),
    )
    migrate.create_index("ix_held_file_user", "held_file", "user_id", "id")
    migrate.create_index("ix_held_file_md5", "held_file", "user_id", "md5", "id")
    migrate.create_index("ix_held_file_sha256", "held_file", "sha256")
    migrate.create_index("uq_held_file_event", "held_file", "event_id", unique=True)
    migrate.add_column("delivery", sa.Column("on_failure", bytewise(8)))
    migrate.add_column("trashed_file", sa.Column("passed", sa.Boolean, nullable=False, server_default=sa.text("1")))
    migrate.add_column("trashed_file", sa.Column("detail", bytewise(1024)))
    migrate.add_column("blob", sa.Column("passed", bytewise(1024)))


def downgrade() -> None:
    migrate.drop_column("blob", "passed")
    for column in ("detail", "passed"):
        migrate.drop_column("trashed_file", column)
    migrate.drop_column("delivery", "on_failure")
    migrate.drop_table("held_file")
