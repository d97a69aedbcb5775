"""Users have the number of their files and open uploads; closed uploads are found by their user and their end.

Revision: 0014
"""

import sqlalchemy as sa

from uploader.database import migrate

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_COUNT = """
UPDATE user_info SET files = (SELECT COUNT(*) FROM file WHERE file.user_id = user_info.user_id)
  + (SELECT COUNT(*) FROM upload WHERE upload.user_id = user_info.user_id AND upload.open_flag = 1)
WHERE {range}
"""


def upgrade() -> None:
    at_least_none = sa.CheckConstraint("files >= 0")
    migrate.add_column(
        "user_info", sa.Column("files", sa.BigInteger, at_least_none, nullable=False, server_default=sa.text("0"))
    )
    migrate.change_in_ranges("user_info", _COUNT)
    migrate.create_index("ix_upload_user", "upload", "user_id", "open_flag", "closed_at")
    migrate.drop_index("ix_upload_user_open", "upload")


def downgrade() -> None:
    migrate.create_index("ix_upload_user_open", "upload", "user_id", "open_flag")
    migrate.drop_index("ix_upload_user", "upload")
    migrate.drop_column("user_info", "files")
