"""Uploads whose length nobody has told yet: what they have as their size is what is reserved for them.

Revision: 0007
"""

import sqlalchemy as sa

from uploader.database import migrate

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    migrate.add_column("upload", sa.Column("length_known", sa.Boolean, nullable=False, server_default=sa.text("1")))


def downgrade() -> None:
    migrate.drop_column("upload", "length_known")
