"""An index for the files of a content: refs are recounted by it.

Revision: 0003
"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_file_sha256", "file", ["sha256"], if_not_exists=True)


def downgrade() -> None:
    op.drop_index("ix_file_sha256", "file")
