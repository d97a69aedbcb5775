"""Transactions of gates. Nobody sees a held file before all its gates have let the file pass.

The tasks of the file's event (`delivery`) hold the verdicts. A file passes when each task is delivered, or is dead with
`on_failure` "pass".
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

import sqlalchemy as sa

from uploader.database import models, queries
from uploader.database.connection import AsyncConnection
from uploader.database.models import UtcDateTime
from uploader.database.outbox import DEAD, DELIVERED, MAX_ERROR_BYTES, WAITING, tell
from uploader.database.transactions import links, rows
from uploader.database.transactions.files import delete_held, let_pass
from uploader.database.trash import keeps
from uploader.domain import events
from uploader.domain.events import OnFailure
from uploader.domain.names import CONTROL
from uploader.domain.upload import File, IfExists, TrashReason, if_exists_of

_HELD, _TASKS = models.held_file.c, models.delivery.c
_BY_EVENT = queries.HELD_FILE.add_columns(_HELD.if_exists).where(_HELD.event_id == sa.bindparam("of_event")).limit(1)
_LOCK = sa.select(_HELD.id).where(_HELD.event_id == sa.bindparam("of_event")).with_for_update()
_TASKS_OF_EVENT = sa.select(_TASKS.sink, _TASKS.state, _TASKS.on_failure).where(
    _TASKS.outbox_id == sa.bindparam("of_event")
)
_DECIDES = (OnFailure.PASS.value, OnFailure.REFUSE.value)
_IS_HELD = sa.exists().where(_HELD.event_id == _TASKS.outbox_id)
_OTHERS = models.delivery.alias().c
_HOLDS = sa.and_(_OTHERS.state == DEAD, _OTHERS.on_failure == OnFailure.HOLD.value)
_IS_ASKED = sa.exists().where(_OTHERS.outbox_id == _TASKS.outbox_id, sa.or_(_OTHERS.state == WAITING, _HOLDS))
# A dead task that refuses decides alone. A dead task that lets pass decides when no other gate is asked any more.
_HAS_DECIDED = sa.or_(_TASKS.on_failure == OnFailure.REFUSE.value, ~_IS_ASKED)
_FAILED = (
    sa.select(_TASKS.outbox_id)
    .where(_TASKS.state == DEAD, _TASKS.sink == sa.bindparam("of_sink"), _TASKS.on_failure.in_(_DECIDES), _IS_HELD)
    .where(_HAS_DECIDED)
    .limit(sa.bindparam("most"))
)
_PASSED = sa.update(models.blob).where(models.blob.c.sha256 == sa.bindparam("of_content"))
_PASSED = _PASSED.values(passed=sa.bindparam("by"))
_MAX_PASSED_BYTES = 1024
NO_VERDICT = "The gate {gate} has said nothing."


@dataclass(frozen=True, slots=True)
class Waiting:
    """A file that gates hold. The rows of the file and of its content are locked, also the contents and links of files with
    the same name, if the file replaces them. `locked`: the digests of these contents and the ids of these links."""

    file: File
    if_exists: IfExists
    event_id: str
    locked: frozenset[str]


async def lock_waiting(connection: AsyncConnection, event_id: str) -> Waiting | None:
    """Lock and return the file about which an event asks gates; None if the file no longer waits."""
    row = (await connection.execute(_BY_EVENT, {"of_event": event_id})).mappings().first()
    if row is None:
        return None
    facts = dict(row)
    if_exists = if_exists_of(facts.pop("if_exists"))
    file = File(**facts)
    locked, standing = {file.sha256}, list[File]()
    if if_exists is IfExists.REPLACE:
        standing = await queries.files_of_names(connection, file.user_id, [file.name])
        locked.update(other.sha256 for other in standing)
    await queries.known_blobs(connection, sorted(locked), lock=True)
    if (await connection.execute(_LOCK, {"of_event": event_id})).first() is None:
        return None
    locked |= await links.lock_of(connection, standing)
    return Waiting(file, if_exists, event_id, frozenset(locked))


async def decide(connection: AsyncConnection, waiting: Waiting, now: datetime) -> bool:
    """Decide on a held file by the states of its tasks. Return False if tasks are still open. Raises NamesChanged,
    BlobLost."""
    found = await connection.execute(_TASKS_OF_EVENT, {"of_event": waiting.event_id})
    tasks = [(gate, (state, on_failure)) for gate, state, on_failure in found]
    refusing = [gate for gate, said in tasks if said == (DEAD, OnFailure.REFUSE.value)]
    if refusing:
        await refuse(connection, waiting, NO_VERDICT.format(gate=refusing[0]), now)
        return True
    passed = [gate for gate, (state, _) in tasks if state == DELIVERED]
    silent = [gate for gate, said in tasks if said == (DEAD, OnFailure.PASS.value)]
    if not tasks or len(passed) + len(silent) < len(tasks):
        return False
    await let_pass(connection, waiting.file, waiting.if_exists, set(waiting.locked), now)
    await _note_passed(connection, waiting.file.sha256, passed)
    return True


async def refuse(connection: AsyncConnection, waiting: Waiting, reason: str | None, now: datetime) -> None:
    """Put a held file into its owner's trash, and tell of the refusal. The reason becomes one line of limited length."""
    line = CONTROL.sub(" ", reason or "").strip().encode()[:MAX_ERROR_BYTES].decode(errors="ignore") or None
    file = waiting.file
    sent = {"of_user_id": file.user_id, "of_session": file.session}
    await connection.execute(rows.REFUSE_UPLOAD, sent | {"of_closed_at": file.created_at, "of_file_id": file.id})
    await delete_held(connection, [file], now, TrashReason.REFUSED.value, line)
    await tell(connection, events.file_refused, replace(file, held=False), line)


async def _note_passed(connection: AsyncConnection, sha256: str, gates: list[str]) -> None:
    """Add these gates to the gates that have let the content pass."""
    blob = await queries.blob_by_sha256(connection, sha256)
    if blob is None or not gates or blob.has_passed(gates):
        return
    passed = " ".join(sorted({*(blob.passed or "").split(), *gates}))
    if len(passed) <= _MAX_PASSED_BYTES:
        await connection.execute(_PASSED, {"of_content": sha256, "by": passed})


async def hold_any(connection: AsyncConnection) -> bool:
    return (await connection.execute(sa.select(_HELD.id).limit(1))).first() is not None


async def failed(connection: AsyncConnection, gate: str, limit: int) -> list[str]:
    """Return events with a dead task of this gate, if the dead task decides on a file that still waits."""
    return list((await connection.execute(_FAILED, {"of_sink": gate, "most": limit})).scalars())


async def give_up(
    connection: AsyncConnection,
    gate: str,
    error: str,
    now: datetime,
    limit: int,
    is_over: Callable[[str | None], bool],
) -> bool:
    """End at most `limit` tasks of a gate that nobody asks any more, where the end decides on a file. A task under a lease
    ends only after the lease, by the clock and by `is_over`. Return whether tasks of the gate are still held. Without a
    trash no file is refused here, because the owner could not restore it."""
    decides = _DECIDES if keeps(connection) else _DECIDES[:1]
    waiting = (_TASKS.state == WAITING, _TASKS.sink == gate, _TASKS.on_failure.in_(decides))
    ended = sa.or_(_TASKS.held == sa.false(), _TASKS.due_at <= now)
    found = await connection.execute(
        sa.select(_TASKS.outbox_id, _TASKS.held, _TASKS.lease).where(*waiting, ended).limit(limit)
    )
    ids = [task_id for task_id, held, lease in found if not held or is_over(lease)]
    change = sa.update(models.delivery).where(*waiting, ended, _TASKS.outbox_id.in_(ids))
    values = {"state": DEAD, "held": False, "last_error": error, "due_at": sa.bindparam("now", now, UtcDateTime)}
    if ids:
        await rows.changed(connection, change.values(**values))
    return (
        await connection.execute(sa.select(_TASKS.outbox_id).where(*waiting, _TASKS.held).limit(1))
    ).first() is not None
