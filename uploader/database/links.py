"""Queries of links and their visitors, on the caller's connection.

A link to a file has the file's present name. When the file is deleted, the link has ended.
"""

from collections.abc import Collection, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from uploader.database import models, queries
from uploader.database.connection import AsyncConnection
from uploader.domain.bulk import beyond
from uploader.domain.links import Caller, Link, LinkEnd, LinkKind, Visit, end_of
from uploader.domain.names import begin_of_numbered
from uploader.errors import LinkGone

LINKS, SESSIONS = models.link.c, models.link_session.c
_FILES, _UPLOADS = models.file.c, models.upload.c
# Figures of a link: existing files, and open uploads in full size.
FIGURES = ("files", "bytes", "reserved_files", "reserved_bytes")
COLUMNS = [field.name for field in fields(Link) if field.name != "ended"]
_LINK_COLUMNS = [*(LINKS[name] for name in COLUMNS), LINKS.end_reason]
_TARGETS = models.link.outerjoin(models.file, _FILES.id == LINKS.file_id)
_LINK = sa.select(*_LINK_COLUMNS, _FILES.name.label("file_name")).select_from(_TARGETS)
_LOCKED_LINK = sa.select(*_LINK_COLUMNS).where(LINKS.id == sa.bindparam("link_id")).with_for_update()
_VISIT = sa.select(
    *_LINK_COLUMNS,
    _FILES.name.label("file_name"),
    *(SESSIONS[name].label(f"session_{name}") for name in ("id", "token_sha256", "used", "created_at", "expires_at")),
).select_from(_TARGETS.join(models.link_session, SESSIONS.link_id == LINKS.id))


def link_of(**row: Any) -> Link:
    ended, file_name = end_of(row.pop("end_reason")), row.pop("file_name", row["name"])
    if row["file_id"] is not None:
        ended = ended or (LinkEnd.DELETED if file_name is None else None)
        row["name"] = file_name or row["name"]
    kind = LinkKind.UPLOAD if row["kind"] == LinkKind.UPLOAD else LinkKind.DOWNLOAD
    return Link(**{**row, "kind": kind, "ended": ended})


def _visit_of(**row: Any) -> tuple[str, Visit]:
    """Return the SHA-256 of the session's token and the visit."""
    session = {name: row.pop(f"session_{name}") for name in ("id", "token_sha256", "used", "created_at", "expires_at")}
    times = {name: session[name] for name in ("created_at", "expires_at")}
    visit = Visit(session_id=session["id"], link=link_of(**row), is_used=session["used"], **times)
    return session["token_sha256"], visit


def gone(end: LinkEnd | None) -> LinkGone:
    """`end`: None if the row of the link or of the visitor is gone."""
    return LinkGone(reason=(end or LinkEnd.REVOKED).value)


async def by_slug(connection: AsyncConnection, slug_sha256: str) -> Link | None:
    return await queries.first_of(connection, link_of, _LINK.where(LINKS.slug_sha256 == slug_sha256))


async def by_id(connection: AsyncConnection, link_id: str) -> Link | None:
    return await queries.first_of(connection, link_of, _LINK.where(LINKS.id == link_id))


async def locked(connection: AsyncConnection, link_id: str) -> Link | None:
    """Lock a link and return it. A link to a file has the name that the file had when the link was made."""
    return await queries.first_of(connection, link_of, _LOCKED_LINK, link_id=link_id)


async def of_user(connection: AsyncConnection, user_id: str) -> list[Link]:
    """Return the links of a user that have not ended early and whose target exists, newest first."""
    query = _LINK.where(LINKS.user_id == user_id, LINKS.end_reason.is_(None)).order_by(LINKS.id.desc())
    return [link for link in await queries.all_of(connection, link_of, query) if link.ended is None]


async def count_of_user(connection: AsyncConnection, user_id: str, now: datetime) -> int:
    """Count the links of a user that have neither ended nor expired."""
    return await queries.count(connection, LINKS.user_id == user_id, LINKS.end_reason.is_(None), LINKS.expires_at > now)


async def visit_by_token(connection: AsyncConnection, token_sha256: str) -> tuple[str, Visit] | None:
    return await queries.first_of(connection, _visit_of, _VISIT.where(SESSIONS.token_sha256 == token_sha256))


async def visits(connection: AsyncConnection, session_ids: Collection[str]) -> dict[str, Visit]:
    """Return the known visits by session id."""
    found = await queries.all_of(connection, _visit_of, _VISIT.where(SESSIONS.id.in_(session_ids)))
    return {visit.session_id: visit for _, visit in found}


async def count_sessions(connection: AsyncConnection, link_id: str) -> int:
    return await queries.count(connection, SESSIONS.link_id == link_id)


_FOLDER_LINKS_BELOW = (
    sa.select(LINKS.id, LINKS.name)
    .where(LINKS.user_id == sa.bindparam("user_id"), LINKS.name >= sa.bindparam("prefix"))
    .where(LINKS.name < sa.bindparam("beyond", type_=sa.LargeBinary))
    .where(LINKS.file_id.is_(None), LINKS.end_reason.is_(None))
    .order_by(LINKS.id)
)


async def below(connection: AsyncConnection, user_id: str, prefix: str) -> list[tuple[str, str]]:
    """Return ids and folders of the links to folders below a prefix, in the order of ids. The prefix is not empty."""
    asked = {"user_id": user_id, "prefix": prefix, "beyond": beyond(prefix.encode())}
    return [tuple(row) for row in await connection.execute(_FOLDER_LINKS_BELOW, asked)]


def of_link(table: sa.Table, user_id: str, link_id: str) -> list[sa.ColumnElement[bool]]:
    """Return the conditions for rows that came by a link. `session` begins with the id of the link."""
    column = table.c.session
    return [table.c.user_id == user_id, column >= link_id, column < f"{link_id}g"]


async def open_uploads(connection: AsyncConnection, link: Link, limit: int) -> Sequence[str]:
    """Return the ids of open uploads that came by a link."""
    conditions = [*of_link(models.upload, link.user_id, link.id), _UPLOADS.open_flag == 1]
    return list((await connection.execute(sa.select(_UPLOADS.id).where(*conditions).limit(limit))).scalars())


async def ended_with_uploads(connection: AsyncConnection, now: datetime | None, limit: int) -> list[Link]:
    """Return ended links with reserved room for open uploads. Without `now`, links that only expired are left out."""
    has_ended: sa.ColumnElement[bool] = LINKS.ended_at.is_not(None)
    if now is not None:
        has_ended = sa.or_(has_ended, LINKS.expires_at <= now)
    query = _LINK.where(has_ended, LINKS.reserved_files > 0).limit(limit)
    return await queries.all_of(connection, link_of, query)


async def may_have_sent(connection: AsyncConnection, caller: Caller, name: str, size: int, md5: str | None) -> bool:
    """Return whether a visitor may have sent or opened this file before. Then the file needs no room. Without an MD5,
    compare the size, the requested name and the names that the file may have now."""
    if md5 is not None:
        sent = await queries.newest_file(connection, caller, md5, size=size, name=name)
        sent = sent or await queries.newest_held(connection, caller, md5=md5, size=size, name=name)
        opened = None if sent is not None else await queries.open_upload_by_md5(connection, caller, md5)
        return sent is not None or (opened is not None and opened.size == size)
    link = await by_id(connection, caller.link_id or "")
    if link is None:
        return False
    if await queries.newest_held(connection, caller, size=size, name=name) is not None:
        return True
    full = link.name + name
    begin = begin_of_numbered(full)
    query = sa.select(_FILES.id).where(
        *(_FILES.user_id == caller.user_id, _FILES.session == caller.session),
        *(_FILES.asked_name == name, _FILES.size == size),
        sa.or_(_FILES.name == full, sa.and_(_FILES.name >= begin, _FILES.name < f"{begin}\U0010ffff")),
    )
    return (await connection.execute(query.limit(1))).first() is not None


async def file_of_visitor(connection: AsyncConnection, caller: Caller, sha256: str, asked_name: str) -> str | None:
    """Return the id of the visitor's file with this content and requested name."""
    query = sa.select(_FILES.id).where(
        _FILES.user_id == caller.user_id,
        _FILES.sha256 == sha256,
        _FILES.session == caller.session,
        _FILES.asked_name == asked_name,
    )
    found: str | None = (await connection.execute(query.limit(1))).scalar()
    return found
