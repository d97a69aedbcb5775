"""The traces of the installation's secret in a database: a value that recognises the secret; and, encrypted under the
secret, the slugs of links and the former secret, which earlier versions kept in plain text.
"""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import sqlalchemy as sa

from uploader.database import models
from uploader.database.connection import AsyncConnection
from uploader.database.damage import opened
from uploader.database.meta import fact, forget_fact, replace_fact
from uploader.domain.links import LinkEnd
from uploader.domain.secret import SEALED, Secret, Use
from uploader.errors import ConfigurationError

CHECK = "secret check"
_FORMER = "former secret"
# The fact in which versions before 0.3.0 kept their secret.
_PLAIN = "link_secret"
# A fact: the files of the database have to be rewritten, because free pages still hold replaced plain text.
REWRITE = "to be rewritten"
FORMER_DAYS = 30
# A longer former secret, encrypted, would not fit into a fact.
_MAX_FORMER_BYTES = 512
_BUSY_MS = 30_000
# Slugs that are encrypted in one transaction.
_SLUGS = 1000

_META = models.meta
# Defined anew, as in a migration: later changes of the models have no effect here.
_LINK = sa.table("link", sa.column("id", sa.LargeBinary()), sa.column("slug", sa.LargeBinary()))
_PLAIN_SLUGS = sa.select(_LINK.c.id, _LINK.c.slug).where(
    _LINK.c.slug != b"", sa.func.substr(_LINK.c.slug, 1, len(SEALED)) != sa.literal(SEALED.encode(), sa.LargeBinary())
)
_SEAL_SLUG = (
    sa.update(_LINK)
    .where(_LINK.c.id == sa.bindparam("of_link", type_=sa.LargeBinary()))
    .values(slug=sa.bindparam("sealed", type_=sa.LargeBinary()))
)


@dataclass(frozen=True, slots=True)
class Former:
    """The secret by which versions before 0.3.0 signed URLs. These URLs are good until they expire, at the latest until
    `until`."""

    text: str
    until: datetime


def needs_secret(connection: sa.Connection) -> bool:
    """Return whether a database of an earlier version has anything to encrypt."""
    plain = sa.select(_META.c.name).where(_META.c.name == _PLAIN)
    return any(connection.execute(each.limit(1)).first() is not None for each in (_PLAIN_SLUGS, plain))


def is_begun(connection: sa.Connection, secret: Secret) -> bool:
    """Return whether a database belongs to this secret already. Raises ConfigurationError if it belongs to another
    secret."""
    stored = _fact(connection, CHECK)
    if stored is not None:
        _refuse_other(stored, secret)
    return stored is not None


def begin_upgrade(connection: sa.Connection, secret: Secret, now: datetime) -> None:
    """Let a database belong to a secret, and keep the former secret encrypted. Raises ConfigurationError if the database
    belongs to another secret."""
    _refuse_other(_fact(connection, CHECK) or _store(connection, CHECK, secret.check_value), secret)
    former = secret.former or _fact(connection, _PLAIN)
    if former is not None and len(former.encode()) <= _MAX_FORMER_BYTES and _fact(connection, _FORMER) is None:
        _store(connection, _FORMER, secret.seal(Use.FORMER, json.dumps([former, now.isoformat()])))


def protect(connection: sa.Connection, secret: Secret, *, after: bytes = b"", rewrites: bool = False) -> bytes | None:
    """Encrypt the next plain slugs, of links with ids above `after`, and return the last of these ids. If there is none,
    delete the plain secret and return None. `rewrites`: note that the files of the database have to be rewritten, if
    anything was replaced. May be repeated: a node of an earlier version may write more plain text meanwhile."""
    some = _PLAIN_SLUGS.where(_LINK.c.id > after).order_by(_LINK.c.id).limit(_SLUGS)
    values = [
        {"of_link": bytes(link_id), "sealed": secret.seal(Use.SLUG_STORE, _text(slug), _text(link_id)).encode()}
        for link_id, slug in connection.execute(some).all()
    ]
    if values:
        connection.execute(_SEAL_SLUG, values)
    else:
        forgotten = connection.execute(sa.delete(_META).where(_META.c.name == _PLAIN)).rowcount
    if rewrites and (values or forgotten) and _fact(connection, REWRITE) is None:
        _store(connection, REWRITE, "")
    return values[-1]["of_link"] if values else None


def forget(connection: sa.Connection) -> None:
    """Delete all traces of the secret, except the slugs."""
    connection.execute(sa.delete(_META).where(_META.c.name.in_((CHECK, _FORMER, REWRITE))))


def _text(raw: bytes) -> str:
    return bytes(raw).decode(errors="replace")


def _fact(connection: sa.Connection, name: str) -> str | None:
    stored: str | None = connection.execute(sa.select(_META.c.value).where(_META.c.name == name)).scalar()
    return stored


def _store(connection: sa.Connection, name: str, value: str) -> str:
    connection.execute(sa.insert(_META).values(name=name, value=value))
    return value


def rewrite_tables(connection: sa.Connection, change: Callable[..., object]) -> None:
    """Rebuild the tables of a MySQL or MariaDB, if the fact `REWRITE` asks for that. Each table is a commit."""
    if connection.dialect.name == "sqlite" or _fact(connection, REWRITE) is None:
        return
    for table in (_LINK.name, _META.name):
        change(connection.execute, sa.text(f"ALTER TABLE `{table}` ENGINE=InnoDB"))
    connection.execute(sa.delete(_META).where(_META.c.name == REWRITE))


def rewrite(path: Path) -> bool:
    """Rewrite all of a SQLite, without the free pages, and empty the log. Blocks. Return False if other connections were in
    the way: the next start tries again. Raises sqlite3.Error."""
    with closing(opened(path, "rw")) as database:
        database.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
        # Temporary files go here, because /tmp may be in memory.
        directory = str(path.resolve().parent).replace("'", "''")
        database.execute(f"PRAGMA temp_store_directory = '{directory}'")
        try:
            database.execute("VACUUM")
            if database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                return False
        except sqlite3.OperationalError as error:
            if (error.sqlite_errorcode & 0xFF) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                return False
            raise
        finally:
            database.execute("PRAGMA temp_store_directory = ''")
        database.execute("DELETE FROM meta WHERE CAST(name AS TEXT) = ?", (REWRITE,))
    return True


# In force


def _refuse_other(stored: str, secret: Secret) -> None:
    if stored != secret.check_value:
        raise ConfigurationError(OTHER)


OTHER = (
    "UPLOADER_SECRET, or the file `secret` in UPLOADER_DATA, is not the secret of this database: set the one that the other "
    "nodes have; or, to end all links and signed URLs, stop all servers and run `uploader adopt --yes`"
)


async def belong(connection: AsyncConnection, secret: Secret) -> None:
    """Compare the secret with the secret of the database. A database without a secret belongs to this one from now on.
    Raises ConfigurationError, Duplicate."""
    stored = await fact(connection, CHECK)
    if stored is None:
        await connection.execute(sa.insert(_META).values(name=CHECK, value=secret.check_value))
    else:
        _refuse_other(stored, secret)


async def former(connection: AsyncConnection, secret: Secret) -> Former | None:
    """Return the former secret, if the database has it and the secret decrypts it."""
    stored = await fact(connection, _FORMER)
    opened_ = None if stored is None else secret.open_sealed(Use.FORMER, stored)
    if opened_ is None:
        return None
    text, since = json.loads(opened_)
    return Former(text, datetime.fromisoformat(since).astimezone(UTC) + timedelta(days=FORMER_DAYS))


async def forget_former(connection: AsyncConnection) -> None:
    await forget_fact(connection, _FORMER)


async def replace(connection: AsyncConnection, secret: Secret, now: datetime) -> int:
    """Let a database belong to another secret. All links end, because nobody can decrypt their slugs any more. Return how
    many."""
    link = models.link
    ends = sa.update(link).where(link.c.end_reason.is_(None)).values(ended_at=now, end_reason=LinkEnd.REVOKED.value)
    ended = int(cast("sa.CursorResult[Any]", await connection.execute(ends)).rowcount)
    await connection.execute(sa.update(link).values(slug=""))
    await forget_former(connection)
    await replace_fact(connection, CHECK, secret.check_value)
    return ended
