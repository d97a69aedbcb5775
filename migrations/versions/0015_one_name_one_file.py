"""A name is of one file, and never of a file and a folder; empty folders have rows.

Revision: 0015

Of several files of one name the oldest keeps it, and so does a folder that has the name of a file: the others get the first
free numbers, as new files do. Each batch is looked for anew, so who was killed goes on where that was. An older version
that runs meanwhile may make such files again; they are numbered, too, until the index is there. From then on it refuses
them: uploads of such names end in 503 there.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.mysql import DATETIME
from sqlalchemy.exc import IntegrityError

from uploader.database import migrate
from uploader.domain.names import FIRST_NUMBER, MAX_NAME_BYTES, begin_of_numbered, numbered

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None
compatible = False

MOMENT = sa.DateTime().with_variant(DATETIME(fsp=6), "mysql", "mariadb")
ROWS = 5000
ATTEMPTS = 5

Row = tuple[bytes, bytes, bytes]
_TABLE = sa.table("file", *(sa.column(name, sa.LargeBinary()) for name in ("id", "user_id", "name")))
_FILE = _TABLE.c
_RENAME = (
    sa.update(_TABLE)
    .where(_FILE.id == sa.bindparam("renamed"))
    .values(name=sa.bindparam("new_name", type_=sa.LargeBinary()))
)


def bytewise(length: int) -> sa.types.TypeEngine[bytes]:
    return sa.VARBINARY(length).with_variant(sa.LargeBinary(), "sqlite")


def upgrade() -> None:
    migrate.create_table(
        "folder",
        sa.Column("user_id", bytewise(255), primary_key=True),
        sa.Column("name", bytewise(1025), primary_key=True),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("made", sa.Boolean, nullable=False),
    )
    migrate.create_index("ix_folder_made", "folder", "user_id", "made", "created_at")
    for attempt in range(ATTEMPTS):
        _number_twins(op.get_bind())
        try:
            migrate.create_index("uq_file_name", "file", "user_id", "name", unique=True)
            break
        except IntegrityError:  # an older version made one at this moment
            if attempt == ATTEMPTS - 1:
                raise
    migrate.drop_index("ix_file_user_name", "file")


def downgrade() -> None:
    migrate.create_index("ix_file_user_name", "file", "user_id", "name")
    migrate.drop_index("uq_file_name", "file")
    migrate.drop_table("folder")


def _number_twins(bind: sa.Connection) -> None:
    for (user_id, name), ids in _twins(bind):
        _number(bind, user_id, name, ids)


def _twins(bind: sa.Connection) -> list[tuple[tuple[bytes, bytes], list[bytes]]]:
    """Return, by user and name, the files that have to give it up."""
    found: dict[tuple[bytes, bytes], list[bytes]] = defaultdict(list)
    for user_id, of_user in groupby(_rows(bind), key=lambda row: row[0]):
        above: list[tuple[bytes, list[bytes]]] = []  # names with which the name at hand begins, each with its files
        for name, of_name in groupby(of_user, key=lambda row: row[1]):
            ids = [file_id for _, _, file_id in of_name]
            while above and not name.startswith(above[-1][0]):
                above.pop()
            for folder, files in above:
                if name.startswith(folder + b"/"):
                    found[user_id, folder] = files
            if len(ids) > 1 and (user_id, name) not in found:
                found[user_id, name] = ids[1:]
            above.append((name, ids))
    return list(found.items())


def _rows(bind: sa.Connection) -> Iterator[Row]:
    """Yield user, name and id of all files, in this order."""
    found = _page(bind)
    while found:
        yield from found
        user_id, name, file_id = found[-1]
        # One search of the index each.
        found = (
            _page(bind, _FILE.user_id == user_id, _FILE.name == name, _FILE.id > file_id)
            or _page(bind, _FILE.user_id == user_id, _FILE.name > name)
            or _page(bind, _FILE.user_id > user_id)
        )


def _page(bind: sa.Connection, *conditions: sa.ColumnElement[bool]) -> list[Row]:
    order = (_FILE.user_id, _FILE.name, _FILE.id)
    found = bind.execute(sa.select(*order).where(*conditions).order_by(*order).limit(ROWS))
    return [(bytes(user_id), bytes(name), bytes(file_id)) for user_id, name, file_id in found]


def _number(bind: sa.Connection, user_id: bytes, raw: bytes, ids: list[bytes]) -> None:
    name = raw.decode(errors="replace")
    taken = _names_below(bind, user_id, begin_of_numbered(name).encode())
    number, renamed = FIRST_NUMBER, []
    for file_id in ids:
        while (target := numbered(name, number).encode()) in taken:
            number += 1
        if len(target) > MAX_NAME_BYTES:  # in a folder whose name leaves no room
            target = file_id
        taken.add(target)
        renamed.append({"renamed": file_id, "new_name": target})
    for first in range(0, len(renamed), ROWS):
        migrate.change_rows(_RENAME, renamed[first : first + ROWS])


def _names_below(bind: sa.Connection, user_id: bytes, prefix: bytes) -> set[bytes]:
    """Return the names of files and of folders that begin so."""
    beyond = prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else b"\xff"
    query = sa.select(_FILE.name).where(_FILE.user_id == user_id, _FILE.name >= prefix, _FILE.name < beyond)
    names: set[bytes] = set()
    for (found,) in bind.execute(query):
        name = bytes(found)
        names.add(name)
        slash = name.find(b"/", len(prefix))
        while slash >= 0:
            names.add(name[:slash])
            slash = name.find(b"/", slash + 1)
    return names
