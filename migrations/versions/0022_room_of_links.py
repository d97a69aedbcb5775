"""Held files are found by name and by session, refused ones by session; links count only the files that are there; and links
end that have outlived their folders.

Revision: 0022
"""

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

from uploader.database import migrate, models

revision = "0022"
down_revision = "0021"
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
_FOLDERS = "SELECT id, user_id, name FROM link WHERE end_reason IS NULL AND file_id IS NULL"
_BELOW = "SELECT 1 FROM {table} WHERE user_id = :user_id AND name >= :name AND name < :beyond LIMIT 1"
_END = sa.text("UPDATE link SET ended_at = :now, end_reason = :reason WHERE id = :id")
_END = _END.bindparams(sa.bindparam("now", type_=models.UtcDateTime()))


def upgrade() -> None:
    migrate.create_index("ix_held_file_name", "held_file", "user_id", "name")
    migrate.create_index("ix_held_file_session", "held_file", "user_id", "session", "md5", "id")
    migrate.drop_index("ix_held_file_md5", "held_file")
    migrate.create_index("ix_trashed_file_session", "trashed_file", "user_id", "session", "md5")
    _count()
    _end()


def _count() -> None:
    """Until now the files counted, too, that their owner had deleted."""
    links = [{"id": link_id, "files": 0, "bytes": 0} for (link_id,) in op.get_bind().execute(sa.text(_COUNTED))]
    by_id = {link["id"]: link for link in links}
    for table in ("file", "held_file") if links else ():
        for link_id, files, size in op.get_bind().execute(sa.text(_THERE.format(table=table))):
            if link_id in by_id:
                by_id[link_id]["files"] += int(files)
                by_id[link_id]["bytes"] += int(size)
    for first in range(0, len(links), ROWS):
        migrate.change_rows(_COUNT, links[first : first + ROWS])


def _end() -> None:
    """A link that was made while its folder was deleted would share what comes under that name later."""
    ended = []
    for link_id, user_id, name in op.get_bind().execute(sa.text(_FOLDERS)).all():
        asked = {"user_id": user_id, "name": name, "beyond": name[:-1] + b"0"}  # the byte after the slash
        below = (op.get_bind().execute(sa.text(_BELOW.format(table=table)), asked) for table in ("file", "folder"))
        if not any(found.first() for found in below):
            ended.append({"id": link_id, "now": datetime.now(UTC), "reason": b"deleted"})
    for first in range(0, len(ended), ROWS):
        migrate.change_rows(_END, ended[first : first + ROWS])


def downgrade() -> None:
    migrate.drop_index("ix_trashed_file_session", "trashed_file")
    migrate.create_index("ix_held_file_md5", "held_file", "user_id", "md5", "id")
    migrate.drop_index("ix_held_file_session", "held_file")
    migrate.drop_index("ix_held_file_name", "held_file")
