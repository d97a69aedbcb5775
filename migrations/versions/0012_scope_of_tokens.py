"""Tokens know what alone they are good for, and who made them; acts, who made the token that was shown.

Revision: 0012
"""

import sqlalchemy as sa

from uploader.database import migrate

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def bytewise(length: int) -> sa.types.TypeEngine[bytes]:
    return sa.VARBINARY(length).with_variant(sa.LargeBinary(), "sqlite")


def upgrade() -> None:
    migrate.add_column("token", sa.Column("scope", bytewise(255)))
    migrate.add_column("token", sa.Column("made_by", bytewise(280)))
    migrate.add_column("trail", sa.Column("token_made_by", bytewise(280)))


def downgrade() -> None:
    migrate.drop_column("trail", "token_made_by")
    migrate.drop_column("token", "made_by")
    if "scope" in migrate.columns("token"):  # they would be good for everything
        migrate.change_in_ranges("token", "DELETE FROM token WHERE {range} AND scope IS NOT NULL")
    migrate.drop_column("token", "scope")
