"""Uploads say whether their MD5 is computed as their bytes come.

The way back leaves MD5s that nobody has computed: files and blobs may be without since 0004.

Revision: 0009
"""

import sqlalchemy as sa

from uploader.database import migrate

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    migrate.add_column("upload", sa.Column("computes_md5", sa.Boolean, nullable=False, server_default=sa.text("1")))


def downgrade() -> None:
    migrate.drop_column("upload", "computes_md5")
