"""The transactions of links: made, changed and ended; visitors, and what they take, send and have open.

What comes by a link is promised by its row, and then by that of its owner: a link is locked after uploads, contents and
files, and before its sessions and its user.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from uploader.database import levels, links, models, queries
from uploader.database.audit_log import note
from uploader.database.connection import AsyncConnection
from uploader.database.links import LINKS, SESSIONS
from uploader.database.rights import note_revocation
from uploader.database.transactions import rows
from uploader.database.transactions.names import deepest, make_folder, put_folders
from uploader.domain.audit_log import Act
from uploader.domain.links import LINK_ID_LENGTH, Caller, Link, LinkEnd, LinkKind, Visit, link_of
from uploader.domain.upload import File, Upload
from uploader.errors import FileNotFound, InvalidRequest, LinkExhausted, LinkNotFound, TooManyLinks, TooManyRequests

_OF_LINK = sa.update(models.link).where(LINKS.id == sa.bindparam("of_link"))
_MORE = {name: sa.bindparam(f"more_{name}", type_=sa.BigInteger) for name in ("files", "bytes")}
_RESERVED = {name: sa.bindparam(f"more_reserved_{name}", type_=sa.BigInteger) for name in ("files", "bytes")}
_SETTLE = _OF_LINK.values(
    files=LINKS.files + _MORE["files"],
    bytes=LINKS.bytes + _MORE["bytes"],
    reserved_files=LINKS.reserved_files + _RESERVED["files"],
    reserved_bytes=LINKS.reserved_bytes + _RESERVED["bytes"],
)
# Never below 0, whatever earlier versions counted.
_COUNT = _OF_LINK.values(
    {name: sa.case((LINKS[name] + more > 0, LINKS[name] + more), else_=0) for name, more in _MORE.items()}
)
_USE = sa.update(models.link_session).where(SESSIONS.id == sa.bindparam("of_session"), SESSIONS.used == sa.false())
_USE = _USE.values(used=sa.true())
_GUESSES_A_MINUTE = 10
_MINUTE = timedelta(minutes=1)


async def make_link(
    connection: AsyncConnection,
    link: Link,
    *,
    max_links: int,
    max_files: int,
    act: Act | None,
    is_allowed: bool,
) -> Link:
    """Make a link to the file or folder that has its name now, and return it; a collecting link makes its folder if the
    pre-create hook allows the name. Whoever deletes or moves files and folders locks the user's row, too. Raises
    FileNotFound, NameTaken, TooManyFiles, TooManyLinks, NotAsked. Only the
    hash of a derived slug is stored."""
    await _lock_and_count(connection, link.user_id, link.created_at, max_links)
    if link.kind is LinkKind.UPLOAD:
        name, created_at = link.name, link.created_at
        await make_folder(connection, link.user_id, name, max_files, created_at, is_allowed=is_allowed)
    elif link.name.endswith("/"):
        if not await levels.prefixes_in_use(connection, link.user_id, [link.name]):
            raise FileNotFound("You have no such folder.")
    else:
        found = await queries.files_of_names(connection, link.user_id, [link.name])
        if not found:
            raise FileNotFound()
        link = replace(link, file_id=found[0].id)
    values = {name: getattr(link, name) for name in links.COLUMNS} | {"kind": link.kind.value, "slug": ""}
    await connection.execute(sa.insert(models.link).values(**values))
    await note(connection, act, kind=link.kind.value, name=link.name)
    return link


async def _lock_and_count(connection: AsyncConnection, user_id: str, now: datetime, max_links: int) -> None:
    """Lock the row of the user, so that callers count one after the other. Raises TooManyLinks if no more links may work."""
    await rows.lock_user(connection, user_id)
    if await links.count_of_user(connection, user_id, now) >= max_links:
        raise TooManyLinks(limit=max_links)


async def change_link(
    connection: AsyncConnection,
    link_id: str,
    changes: Mapping[str, Any],
    act: Act | None,
    *,
    now: datetime,
    max_links: int,
) -> bool:
    """Return whether there is such a link that has not ended before its time. A new password ends all sessions of the link.
    If a limit of a link that collects is used up then, the sessions that sent nothing end. Raises TooManyLinks for a link
    that the change revives."""
    link = await links.locked(connection, link_id)
    if link is None or link.ended is not None:
        return False
    if link.expires_at <= now < changes.get("expires_at", now):
        await _lock_and_count(connection, link.user_id, now, max_links)
    await connection.execute(sa.update(models.link).where(LINKS.id == link_id).values(**changes))
    link = replace(link, **changes)
    sessions = SESSIONS.link_id == link_id
    if changes.get("password") is not None:
        await connection.execute(sa.delete(models.link_session).where(sessions))
    elif changes.keys() & {"max_files", "max_bytes"} and not link.takes(1, 1):
        await connection.execute(sa.delete(models.link_session).where(sessions, SESSIONS.used == sa.false()))
    if "expires_at" in changes:  # visitors of before stay as long as later ones
        await connection.execute(
            sa.update(models.link_session).where(sessions).values(expires_at=changes["expires_at"])
        )
    if changes.keys() - {"label"}:
        note_revocation(connection)
    await note(connection, act, changed=sorted(changes))
    return True


async def end_link(
    connection: AsyncConnection, link_id: str, end: LinkEnd, now: datetime, act: Act | None = None
) -> bool:
    """Return whether it had not ended before its time."""
    ended = await _end(connection, [LINKS.id == link_id], end, now)
    if ended:
        await note(connection, act)
    return bool(ended)


async def end_of_files(connection: AsyncConnection, file_ids: Collection[str], now: datetime) -> None:
    """End links to files that were deleted: if one comes back its link does not."""
    await _end(connection, [LINKS.file_id.in_(file_ids)], LinkEnd.DELETED, now)


async def end_below(connection: AsyncConnection, user_id: str, prefix: str, now: datetime) -> None:
    """End links to the folders below a prefix."""
    await end_all(connection, [link.id for link in await _to_folders_below(connection, user_id, prefix)], now)


async def end_all(connection: AsyncConnection, link_ids: Collection[str], now: datetime) -> None:
    """End links whose folders go."""
    if link_ids:
        await _end(connection, [LINKS.id.in_(link_ids)], LinkEnd.DELETED, now)


class LinksBelow(Exception):
    """Links were made meanwhile to folders that are not there any more; the arguments are their ids."""


async def expect_folders_below(connection: AsyncConnection, user_id: str, prefix: str) -> None:
    """Raises LinksBelow. The user's row is locked, so no link is made meanwhile."""
    if found := await links.below(connection, user_id, prefix):
        there = await levels.prefixes_in_use(connection, user_id, sorted({name for _, name in found}))
        if outlived := [link_id for link_id, name in found if name not in there]:
            raise LinksBelow(*outlived)


async def move_below(connection: AsyncConnection, user_id: str, prefix: str, new_prefix: str, now: datetime) -> None:
    """Let links follow the folders below a prefix, which move after this transaction. A link ends if something exists below
    its new name already, also what nobody sees so far: the owner never gave this away. The new folder of each link is made
    at once, so that the link has a folder also if the move breaks off. Raises InvalidRequest for a collecting link whose
    folder would have too long a name."""
    moving = await _to_folders_below(connection, user_id, prefix)
    if not moving:
        return
    usage = await rows.lock_user(connection, user_id)
    names = await _new_names(connection, user_id, moving, prefix, new_prefix)
    made = await put_folders(connection, usage, deepest(names.values()), now)
    for link in moving:
        name = names.get(link.id)
        if name is None or not any(folder.startswith(name) for folder in made):
            await _end(connection, [LINKS.id == link.id], LinkEnd.DELETED, now)
        else:
            await connection.execute(sa.update(models.link).where(LINKS.id == link.id).values(name=name))


async def check_move_below(connection: AsyncConnection, user_id: str, prefix: str, new_prefix: str) -> None:
    """Raises InvalidRequest as `move_below` would, which decides."""
    found = [await links.by_id(connection, link_id) for link_id, _ in await links.below(connection, user_id, prefix)]
    if moving := [link for link in found if link is not None]:
        await _new_names(connection, user_id, moving, prefix, new_prefix)


async def _new_names(
    connection: AsyncConnection, user_id: str, moving: Sequence[Link], prefix: str, new_prefix: str
) -> dict[str, str]:
    """Return the new names of those links that follow their folders, by their ids. Raises InvalidRequest."""
    targets = {link.id: new_prefix + link.name[len(prefix) :] for link in moving}
    folders = sorted({name for name in targets.values() if name.endswith("/") and not prefix.startswith(name)})
    taken = set(await levels.prefixes_in_use(connection, user_id, folders, unseen=True))
    names = {link_id: name for link_id, name in targets.items() if name in folders and name not in taken}
    if not all(replace(link, name=names.get(link.id, "")).has_room_for_names for link in moving):
        raise InvalidRequest.field("prefix", "makes a name that is too long for a folder in which a link collects")
    return names


async def _to_folders_below(connection: AsyncConnection, user_id: str, prefix: str) -> list[Link]:
    """Lock them, by their ids."""
    found = [link_id for link_id, _ in await links.below(connection, user_id, prefix)]
    locked = [await links.locked(connection, link_id) for link_id in found]
    return [link for link in locked if link is not None and link.ended is None and link.name.startswith(prefix)]


async def _end(
    connection: AsyncConnection, conditions: Sequence[sa.ColumnElement[bool]], end: LinkEnd, now: datetime
) -> int:
    statement = sa.update(models.link).where(*conditions, LINKS.end_reason.is_(None))
    ended = await rows.changed(connection, statement.values(ended_at=now, end_reason=end.value))
    if ended:
        note_revocation(connection)
    return ended


# Visitors


async def guess(connection: AsyncConnection, link_id: str, now: datetime) -> None:
    """Count a password as wrong before it is looked at, so that no more are tried at once. Raises LinkNotFound,
    TooManyRequests."""
    query = sa.select(LINKS.wrong_passwords, LINKS.wrong_since).where(LINKS.id == link_id).with_for_update()
    found = (await connection.execute(query)).first()
    if found is None:
        raise LinkNotFound()
    wrong, since = found
    if since is None or not timedelta() <= now - since < _MINUTE:
        wrong, since = 0, now
    if wrong >= _GUESSES_A_MINUTE:
        left = (since + _MINUTE - now).total_seconds()
        raise TooManyRequests("Too many wrong passwords: wait a minute.", retry_after_seconds=max(1, round(left)))
    change = sa.update(models.link).where(LINKS.id == link_id)
    await connection.execute(change.values(wrong_passwords=wrong + 1, wrong_since=since))


async def was_right(connection: AsyncConnection, link_id: str) -> None:
    """Take back what `guess` has counted."""
    change = sa.update(models.link).where(LINKS.id == link_id, LINKS.wrong_passwords > 0)
    await connection.execute(change.values(wrong_passwords=LINKS.wrong_passwords - 1))


async def begin_visit(connection: AsyncConnection, visit: Visit, token_sha256: str, max_sessions: int) -> None:
    """Let a visitor in. Where a link has too many, the oldest of those that did nothing gives way. Raises
    TooManyRequests, LinkGone."""
    link = await links.locked(connection, visit.link.id)
    if link is None or link.ended is not None:
        raise links.gone(None if link is None else link.ended)
    if await links.count_sessions(connection, link.id) >= max_sessions:
        idle = sa.select(SESSIONS.id).where(SESSIONS.link_id == link.id, SESSIONS.used == sa.false())
        oldest = (await connection.execute(idle.order_by(SESSIONS.id).limit(1))).scalar()
        if oldest is None:
            raise TooManyRequests("This link has as many visitors as it may have.", retry_after_seconds=60)
        await connection.execute(sa.delete(models.link_session).where(SESSIONS.id == oldest))
    row = {"id": visit.session_id, "link_id": link.id, "token_sha256": token_sha256, "used": visit.is_used}
    row |= {"created_at": visit.created_at, "expires_at": visit.expires_at}
    await connection.execute(sa.insert(models.link_session).values(**row))


async def count_download(connection: AsyncConnection, visit: Visit) -> None:
    """Count the first download of a visitor. Raises LinkGone where as many have as may."""
    link = await links.locked(connection, visit.link.id)
    if link is None or link.ended is not None:
        raise links.gone(None if link is None else link.ended)
    if await rows.changed(connection, _USE, of_session=visit.session_id) == 0:
        return
    if link.max_downloads is not None and link.downloads >= link.max_downloads:
        raise links.gone(LinkEnd.EXHAUSTED)
    more = sa.update(models.link).where(LINKS.id == link.id)
    await connection.execute(more.values(downloads=LINKS.downloads + 1))
    if link.max_downloads == link.downloads + 1:
        note_revocation(connection)  # of all sessions that have not counted


async def forget_sessions(connection: AsyncConnection, now: datetime, limit: int) -> int:
    """Forget visitors whose time is over. Those of a link that was revoked hear of that until then."""
    over = sa.select(SESSIONS.id).where(SESSIONS.expires_at <= now).limit(limit)
    ids = list((await connection.execute(over)).scalars())
    if ids:
        await connection.execute(sa.delete(models.link_session).where(SESSIONS.id.in_(ids)))
    return len(ids)


async def forget_links(connection: AsyncConnection, before: datetime, limit: int) -> int:
    """Forget links that ended before a moment, and have nothing open."""
    over = sa.or_(LINKS.ended_at < before, LINKS.expires_at < before)
    query = sa.select(LINKS.id).where(over, LINKS.reserved_files == 0).limit(limit)
    ids = list((await connection.execute(query)).scalars())
    if ids:
        await connection.execute(sa.delete(models.link).where(LINKS.id.in_(ids)))
        await connection.execute(sa.delete(models.link_session).where(SESSIONS.link_id.in_(ids)))
    return len(ids)


# What they send


async def lock_of(connection: AsyncConnection, files: Sequence[File]) -> set[str]:
    """Lock the links by which files came, before the row of their user, and return the ids."""
    ids = sorted(ids_of(files))
    if ids:
        await connection.execute(sa.select(LINKS.id).where(LINKS.id.in_(ids)).order_by(LINKS.id).with_for_update())
    return {*ids}


def ids_of(files: Sequence[File]) -> set[str]:
    """Return the ids of the links by which files came."""
    return {file.session[:LINK_ID_LENGTH] for file in files if file.session}


async def count(connection: AsyncConnection, *, come: Sequence[File] = (), gone: Sequence[File] = ()) -> None:
    """Count files that their owner has again, or has no more, in the links by which the files came, which are locked. Files
    in the trash take no room of a link."""
    for link_id in sorted(ids_of([*come, *gone])):
        of_link = [(file.size, 1) for file in come if file.session.startswith(link_id)]
        of_link += [(-file.size, -1) for file in gone if file.session.startswith(link_id)]
        more = {"more_bytes": sum(size for size, _ in of_link), "more_files": sum(number for _, number in of_link)}
        await connection.execute(_COUNT, {"of_link": link_id, **more})


async def lock_for(connection: AsyncConnection, caller: Caller, now: datetime) -> Link | None:
    """Lock the link of a visitor who sends; None: it is a user who does. Raises LinkGone."""
    if caller.link_id is None:
        return None
    link = await links.locked(connection, caller.link_id)
    end = None if link is None else link.end(now)
    if link is None or end is not None:
        raise links.gone(end)
    return link


async def promise(connection: AsyncConnection, upload: Upload, now: datetime, *, more: int, files: int) -> Upload:
    """Let an upload of a visitor hold so much more, and return it by the name that its owner sees. Raises LinkGone,
    LinkExhausted."""
    link = await lock_for(connection, upload.caller, now)
    if link is None:
        return upload
    if not link.takes(more, files):
        raise LinkExhausted()
    await _settle(connection, link.id, reserved_files=files, reserved_bytes=more)
    await connection.execute(_USE, {"of_session": upload.session[len(link.id) :]})
    return named(upload, link)


async def give_back(connection: AsyncConnection, upload: Upload, made: Sequence[File] = ()) -> Upload:
    """Take an upload that ends out of what its link has open, and add the files that were made; return it by the name that
    its owner sees."""
    link_id = link_of(upload.session)
    link = None if link_id is None else await links.locked(connection, link_id)
    if link is None:
        return upload
    await _settle(
        connection,
        link.id,
        files=len(made),
        bytes=sum(file.size for file in made),
        reserved_files=-1,
        reserved_bytes=-upload.size,
    )
    return named(upload, link)


async def give_back_bytes(connection: AsyncConnection, upload: Upload, less: int) -> None:
    if (link_id := link_of(upload.session)) is not None:
        await _settle(connection, link_id, reserved_bytes=-less)


async def exchange(connection: AsyncConnection, whole: Upload, parts: int, more: int, now: datetime) -> None:
    """Let a whole take the place of its parts. Raises LinkGone, LinkExhausted."""
    link = await lock_for(connection, whole.caller, now)
    if link is None:
        return
    if not link.takes(more, 0):
        raise LinkExhausted()
    await _settle(connection, link.id, reserved_files=1 - parts, reserved_bytes=more)


async def add(connection: AsyncConnection, caller: Caller, made: Sequence[File]) -> None:
    """Add files that came whole to what came by a link, whose row is locked."""
    if caller.link_id is not None and made:
        await _settle(connection, caller.link_id, files=len(made), bytes=sum(file.size for file in made))
        await connection.execute(_USE, {"of_session": caller.session[len(caller.link_id) :]})


def named(upload: Upload, link: Link) -> Upload:
    return replace(upload, name=link.name + upload.name)


async def _settle(connection: AsyncConnection, link_id: str, **more: int) -> None:
    values = {f"more_{name}": more.get(name, 0) for name in links.FIGURES}
    await connection.execute(_SETTLE, {"of_link": link_id, **values})
