"""The trail: who did what to whom, and when.

Revision: 0010
"""

import sqlalchemy as sa
from sqlalchemy.dialects.mysql import DATETIME

from uploader.database import migrate

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

MOMENT = sa.DateTime().with_variant(DATETIME(fsp=6), "mysql", "mariadb")


def bytewise(length: int) -> sa.types.TypeEngine[bytes]:
    return sa.VARBINARY(length).with_variant(sa.LargeBinary(), "sqlite")


def upgrade() -> None:
    migrate.create_table(
        "trail",
        sa.Column("id", bytewise(32), primary_key=True),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("action", bytewise(32), nullable=False),
        sa.Column("via", bytewise(16), nullable=False),
        sa.Column("actor", bytewise(255)),
        sa.Column("token_id", bytewise(16)),
        sa.Column("address", bytewise(64)),
        sa.Column("user_id", bytewise(255)),
        sa.Column("subject", bytewise(255), nullable=False),
        sa.Column("details", sa.LargeBinary, nullable=False),
    )
    migrate.create_index("ix_trail_created", "trail", "created_at", "id")


def downgrade() -> None:
    migrate.drop_table("trail")
