"""Held files are found by name, refused files of visitors by session, and links count only the files that are there.

Revision: 0022
"""

import sqlalchemy as sa
from alembic import op

from uploader.database import migrate

revision = "0022"
down_revision = "0019"
branch_labels = None
depends_on = None
# An older program gives no room back to a link when files are deleted.
compatible = False

ROWS = 1000
_COUNTED = "SELECT id FROM link WHERE files > 0 OR bytes > 0"
# Once over each table, whose rows no index has by their links.
_THERE = """
SELECT SUBSTR(session, 1, 32) AS link_id, COUNT(*) AS files, SUM(size) AS bytes
FROM {table} WHERE LENGTH(session) > 0 GROUP BY SUBSTR(session, 1, 32)"""
_COUNT = sa.text("UPDATE link SET files = :files, bytes = :bytes WHERE id = :id")


def upgrade() -> None:
    migrate.create_index("ix_held_file_name", "held_file", "user_id", "name")
    migrate.create_index("ix_trashed_file_session", "trashed_file", "user_id", "session", "md5")
    links = [{"id": link_id, "files": 0, "bytes": 0} for (link_id,) in op.get_bind().execute(sa.text(_COUNTED))]
    by_id = {link["id"]: link for link in links}
    for table in ("file", "held_file") if links else ():
        for link_id, files, size in op.get_bind().execute(sa.text(_THERE.format(table=table))):
            if link_id in by_id:
                by_id[link_id]["files"] += int(files)
                by_id[link_id]["bytes"] += int(size)
    for first in range(0, len(links), ROWS):
        migrate.change_rows(_COUNT, links[first : first + ROWS])


def downgrade() -> None:
    migrate.drop_index("ix_trashed_file_session", "trashed_file")
    migrate.drop_index("ix_held_file_name", "held_file")
