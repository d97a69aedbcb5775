"""Contents that could not be read say when they are read again. Earlier versions called them damaged, as what was altered:
each that is called so is read again soon.

Revision: 0013
"""

import sqlalchemy as sa
from sqlalchemy.dialects.mysql import DATETIME

from uploader.database import migrate

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

MOMENT = sa.DateTime().with_variant(DATETIME(fsp=6), "mysql", "mariadb")


def upgrade() -> None:
    migrate.add_column("blob", sa.Column("reread_at", MOMENT))
    migrate.create_index("ix_blob_reread", "blob", "reread_at")
    migrate.change_in_ranges("blob", "UPDATE `blob` SET reread_at = created_at WHERE {range} AND damaged = 1")


def downgrade() -> None:
    migrate.drop_index("ix_blob_reread", "blob")
    migrate.drop_column("blob", "reread_at")
