"""The row of a user says whether the user is an administrator.

Revision: 0020
"""

import sqlalchemy as sa

from uploader.database import migrate

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None
# An older program obeys the token of a demoted administrator, and counts no revocation: the others would not hear of it.
compatible = False

_WITH_TOKENS = """
UPDATE user_info SET admin = 1
WHERE {range} AND admin IS NULL AND EXISTS (
  SELECT 1 FROM token WHERE token.user_id = user_info.user_id AND token.admin = 1 AND token.revoked_at IS NULL)
"""


def upgrade() -> None:
    migrate.add_column("user_info", sa.Column("admin", sa.Boolean))
    migrate.create_index("ix_user_info_admin", "user_info", "admin")
    migrate.change_in_ranges("user_info", _WITH_TOKENS)


def downgrade() -> None:
    migrate.drop_index("ix_user_info_admin", "user_info")
    migrate.drop_column("user_info", "admin")
