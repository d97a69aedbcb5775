"""`usage_daily` holds one row of totals a day. Nothing has ever written to the table that it replaces.

Revision: 0002
"""

import sqlalchemy as sa
from sqlalchemy.dialects.mysql import DATETIME

from uploader.database import migrate

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

MOMENT = sa.DateTime().with_variant(DATETIME(fsp=6), "mysql", "mariadb")
FIGURES = (
    "users",
    "files",
    "blobs",
    "open_uploads",
    "total_space",
    "use_space_finished",
    "use_space_unfinished",
    "reserved",
    "logical_bytes",
    "physical_bytes",
    "free_disk_bytes",
)
FIGURES_OF_USERS = ("total_space", "use_space_finished", "use_space_unfinished", "reserved", "files")


def figure(name: str) -> sa.Column[int]:
    return sa.Column(
        name, sa.BigInteger, sa.CheckConstraint(f"{name} >= 0"), nullable=False, server_default=sa.text("0")
    )


def upgrade() -> None:
    if "user_id" in migrate.columns("usage_daily"):
        migrate.drop_table("usage_daily")
    migrate.create_table(
        "usage_daily",
        sa.Column("day", sa.Date, primary_key=True),
        sa.Column("taken_at", MOMENT, nullable=False),
        *map(figure, FIGURES),
    )


def downgrade() -> None:
    if "taken_at" in migrate.columns("usage_daily"):
        migrate.drop_table("usage_daily")
    migrate.create_table(
        "usage_daily",
        sa.Column("day", sa.Date, primary_key=True),
        sa.Column("user_id", sa.VARBINARY(255).with_variant(sa.LargeBinary(), "sqlite"), primary_key=True),
        *map(figure, FIGURES_OF_USERS),
    )
