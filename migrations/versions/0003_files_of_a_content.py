"""An index for the files of a content: refs are recounted by it.

Revision: 0003
"""

from uploader.database import migrate

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    migrate.create_index("ix_file_sha256", "file", "sha256")


def downgrade() -> None:
    migrate.drop_index("ix_file_sha256", "file")
