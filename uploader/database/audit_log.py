"""The audit log. The transaction of an action also writes its act: a rollback removes both."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import msgspec
from sqlalchemy import CursorResult, bindparam, delete, insert, or_, select

from uploader.database import models
from uploader.database.connection import AsyncConnection
from uploader.database.queries import all_of
from uploader.database.reports import Page
from uploader.domain.audit_log import Act

_ACTS = models.audit_log.c
_INSERT = insert(models.audit_log)
_OLDEST = select(_ACTS.id).where(_ACTS.created_at < bindparam("before")).order_by(_ACTS.created_at)
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Conditions that all have to hold. `user_id`: acts by this user, or about this user."""

    since: datetime | None = None
    until: datetime | None = None
    user_id: str | None = None
    action: str | None = None


async def note(connection: AsyncConnection, act: Act | None, **details: object) -> None:
    """Write an act, with further details from its transaction. None writes nothing."""
    if act is None:
        return
    values = {name: getattr(act, name) for name in Act.__dataclass_fields__}
    await connection.execute(_INSERT, values | {"details": _encode({**act.details, **details})})


async def acts(connection: AsyncConnection, wanted: Wanted, page: Page) -> list[Act]:
    """Return a page of acts, in the order of their time."""
    query = select(models.audit_log)
    if wanted.since is not None:
        query = query.where(_ACTS.created_at >= wanted.since)
    if wanted.until is not None:
        query = query.where(_ACTS.created_at < wanted.until)
    if wanted.user_id is not None:
        query = query.where(or_(_ACTS.user_id == wanted.user_id, _ACTS.actor == wanted.user_id))
    if wanted.action is not None:
        query = query.where(_ACTS.action == wanted.action)
    return await all_of(connection, _act_of, page.of(query, _ACTS.created_at, _ACTS.id))


def _act_of(details: bytes, **facts: Any) -> Act:
    return Act(**facts, details=_decoded(details))


def _decoded(details: bytes) -> Mapping[str, Any]:
    """Return the details; nothing for a damaged row."""
    try:
        return msgspec.json.decode(details, type=dict[str, Any])
    except (TypeError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}


async def forget(connection: AsyncConnection, before: datetime, limit: int) -> int:
    """Delete the oldest acts before a moment, `limit` at most; return how many."""
    ids = (await connection.execute(_OLDEST.limit(limit), {"before": before})).scalars().all()
    if not ids:
        return 0
    result = await connection.execute(delete(models.audit_log).where(_ACTS.id.in_(ids)))
    return int(cast("CursorResult[Any]", result).rowcount)
