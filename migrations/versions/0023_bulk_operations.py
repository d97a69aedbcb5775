"""Moves and deletions of many names have a row while they are under way; links are found by the names of their folders; and
held files of visitors have the names under which they come into the folders of their links.

Revision: 0023
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.mysql import DATETIME, MEDIUMBLOB

from uploader.database import migrate

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None
# An older program would move a folder, and leave the names of held files behind.
compatible = False

ROWS = 1000
MOMENT = sa.DateTime().with_variant(DATETIME(fsp=6), "mysql", "mariadb")
_HELD = """
SELECT held_file.id, link.name, held_file.asked_name, held_file.name AS former
FROM held_file JOIN link ON link.id = SUBSTR(held_file.session, 1, 32) WHERE LENGTH(held_file.session) > 0"""
_MAX_NAME_BYTES = 1024
_NAME = sa.text("UPDATE held_file SET name = :name WHERE id = :id")


def bytewise(length: int) -> sa.types.TypeEngine[bytes]:
    return sa.VARBINARY(length).with_variant(sa.LargeBinary(), "sqlite")


def figure(name: str) -> sa.Column[int]:
    at_least = sa.CheckConstraint(f"{name} >= 0")
    return sa.Column(name, sa.BigInteger, at_least, nullable=False, server_default=sa.text("0"))


def upgrade() -> None:
    migrate.create_table(
        "bulk_operation",
        sa.Column("id", bytewise(32), primary_key=True),
        sa.Column("user_id", bytewise(255), nullable=False),
        sa.Column("work", sa.LargeBinary().with_variant(MEDIUMBLOB(), "mysql", "mariadb"), nullable=False),
        sa.Column("digest", bytewise(64), nullable=False),
        *(figure(name) for name in ("part", "place", "files")),
        sa.Column("created_at", MOMENT, nullable=False),
    )
    migrate.create_index("uq_bulk_operation_call", "bulk_operation", "user_id", "digest", unique=True)
    migrate.create_index("ix_link_name", "link", "user_id", "name")
    named = []
    for file_id, folder, asked_name, former in op.get_bind().execute(sa.text(_HELD)).all():
        name = bytes(folder) + bytes(asked_name or file_id)
        name = name if len(name) <= _MAX_NAME_BYTES else bytes(folder) + bytes(file_id)
        if name != former:
            named.append({"id": file_id, "name": name})
    for first in range(0, len(named), ROWS):
        migrate.change_rows(_NAME, named[first : first + ROWS])


def downgrade() -> None:
    migrate.drop_index("ix_link_name", "link")
    migrate.drop_table("bulk_operation")
