"""Deliveries may be tasks, which a worker holds for a while.

Revision: 0018
"""

import sqlalchemy as sa

from uploader.database import migrate

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None
compatible = True


def bytewise(length: int) -> sa.types.TypeEngine[bytes]:
    return sa.VARBINARY(length).with_variant(sa.LargeBinary(), "sqlite")


def upgrade() -> None:
    migrate.add_column("delivery", sa.Column("lease", bytewise(32)))
    migrate.add_column("delivery", sa.Column("worker", bytewise(255)))
    migrate.add_column("delivery", sa.Column("held", sa.Boolean, nullable=False, server_default=sa.text("0")))
    migrate.add_column("delivery", sa.Column("fence", sa.BigInteger, nullable=False, server_default=sa.text("0")))


def downgrade() -> None:
    for column in ("fence", "held", "worker", "lease"):
        migrate.drop_column("delivery", column)
