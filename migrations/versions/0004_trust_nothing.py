"""Contents may be damaged, lie elsewhere, and have an MD5 that nobody has computed yet; files know when they were changed.

Revision: 0004
"""

import sqlalchemy as sa
from sqlalchemy.dialects.mysql import DATETIME

from uploader.database import migrate

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

MOMENT = sa.DateTime().with_variant(DATETIME(fsp=6), "mysql", "mariadb")


def bytewise(length: int) -> sa.types.TypeEngine[bytes]:
    return sa.VARBINARY(length).with_variant(sa.LargeBinary(), "sqlite")


def upgrade() -> None:
    migrate.add_column("blob", sa.Column("location", bytewise(255)))
    migrate.add_column("blob", sa.Column("damaged", sa.Boolean, nullable=False, server_default=sa.text("0")))
    # When its bytes were last read back from the disk; NULL: not since they were placed.
    migrate.add_column("blob", sa.Column("scrubbed_at", MOMENT))
    migrate.add_column("upload", sa.Column("if_exists", bytewise(16)))
    migrate.add_column("upload", sa.Column("modified_at", MOMENT))
    migrate.add_column("file", sa.Column("modified_at", MOMENT))
    migrate.set_nullable("blob", "md5", bytewise(32), nullable=True)
    migrate.set_nullable("file", "md5", bytewise(32), nullable=True)
    migrate.create_index("ix_blob_damaged", "blob", "damaged")
    migrate.create_index("ix_blob_scrubbed", "blob", "scrubbed_at", "created_at")
    migrate.create_index("ix_file_user_md5", "file", "user_id", "md5", "id")
    migrate.create_index("ix_file_user_name", "file", "user_id", "name")


def downgrade() -> None:
    for name, table in (("user_name", "file"), ("user_md5", "file"), ("scrubbed", "blob"), ("damaged", "blob")):
        migrate.drop_index(f"ix_{table}_{name}", table)
    for table in ("file", "blob"):
        migrate.set_nullable(table, "md5", bytewise(32), nullable=False)
    for table, columns in (
        ("file", ("modified_at",)),
        ("upload", ("modified_at", "if_exists")),
        ("blob", ("scrubbed_at", "damaged", "location")),
    ):
        for column in columns:
            migrate.drop_column(table, column)
