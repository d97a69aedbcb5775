"""Uploads know what their clients say of them beside name and size, byte by byte.

Revision: 0005
"""

import sqlalchemy as sa

from uploader.database import migrate

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    migrate.add_column("upload", sa.Column("metadata", sa.VARBINARY(4096).with_variant(sa.LargeBinary(), "sqlite")))


def downgrade() -> None:
    migrate.drop_column("upload", "metadata")
