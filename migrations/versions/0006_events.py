"""Events that are to be told, and to whom each was.

Revision: 0006
"""

import sqlalchemy as sa
from sqlalchemy.dialects.mysql import DATETIME

from uploader.database import migrate

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

MOMENT = sa.DateTime().with_variant(DATETIME(fsp=6), "mysql", "mariadb")


def bytewise(length: int) -> sa.types.TypeEngine[bytes]:
    return sa.VARBINARY(length).with_variant(sa.LargeBinary(), "sqlite")


def upgrade() -> None:
    migrate.create_table(
        "outbox",
        sa.Column("id", bytewise(32), primary_key=True),
        sa.Column("type", bytewise(32), nullable=False),
        sa.Column("subject", bytewise(32), nullable=False),
        sa.Column("user_id", bytewise(255), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    migrate.create_table(
        "delivery",
        sa.Column("outbox_id", bytewise(32), primary_key=True),
        sa.Column("sink", bytewise(64), primary_key=True),
        sa.Column("attempt", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("due_at", MOMENT, nullable=False),
        sa.Column("state", bytewise(16), nullable=False),
        sa.Column("last_error", bytewise(1024)),
    )
    migrate.create_index("ix_delivery_due", "delivery", "state", "sink", "due_at")


def downgrade() -> None:
    migrate.drop_table("delivery")
    migrate.drop_table("outbox")
