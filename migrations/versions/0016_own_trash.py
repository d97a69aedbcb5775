"""Give each user a trash of their own, for deleted and for replaced files.

Revision: 0016
"""

import sqlalchemy as sa
from sqlalchemy.dialects.mysql import DATETIME

from uploader.database import migrate

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None
# An older program counts a user's files otherwise, and would find a drift in each that deleted any.
compatible = False

MOMENT = sa.DateTime().with_variant(DATETIME(fsp=6), "mysql", "mariadb")


def bytewise(length: int) -> sa.types.TypeEngine[bytes]:
    return sa.VARBINARY(length).with_variant(sa.LargeBinary(), "sqlite")


# Without what is in the trash.
_COUNT = """
UPDATE user_info SET files = (SELECT COUNT(*) FROM file WHERE file.user_id = user_info.user_id)
  + (SELECT COUNT(*) FROM folder WHERE folder.user_id = user_info.user_id)
  + (SELECT COUNT(*) FROM upload WHERE upload.user_id = user_info.user_id AND upload.open_flag = 1)
WHERE {range}
"""


def upgrade() -> None:
    size = sa.Column(
        "size", sa.BigInteger, sa.CheckConstraint("size >= 0"), nullable=False, server_default=sa.text("0")
    )
    migrate.create_table(
        "trashed_file",
        sa.Column("id", bytewise(32), primary_key=True),
        sa.Column("user_id", bytewise(255), nullable=False),
        sa.Column("md5", bytewise(32)),
        sa.Column("sha256", bytewise(64), nullable=False),
        sa.Column("name", bytewise(1024), nullable=False),
        size,
        sa.Column("instant", sa.Boolean, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("modified_at", MOMENT),
        sa.Column("deleted_at", MOMENT, nullable=False),
        sa.Column("reason", bytewise(16), nullable=False),
    )
    migrate.create_index("ix_trashed_file_user", "trashed_file", "user_id", "deleted_at", "id")
    migrate.create_index("ix_trashed_file_name", "trashed_file", "user_id", "name", "deleted_at")
    migrate.create_index("ix_trashed_file_deleted", "trashed_file", "deleted_at")
    migrate.create_index("ix_trashed_file_sha256", "trashed_file", "sha256", "deleted_at")


def downgrade() -> None:
    if migrate.columns("trashed_file"):
        migrate.change_in_ranges("user_info", _COUNT)
    migrate.drop_table("trashed_file")
