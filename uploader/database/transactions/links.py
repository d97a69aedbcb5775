"""Transactions of links and visitors: make, change and end links; count downloads, files and open uploads.

Files by a link need room in the row of the link and in the row of its owner. A link is locked after uploads, contents and
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
# Never below 0, because earlier versions may have counted wrongly.
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
    """Make a link to an existing file or folder and return the link; a collecting link makes its folder if the pre-create
    hook allows the name. The user's row is locked, as by transactions that delete or move files. Only the hash of the
    derived slug is stored. Raises FileNotFound, NameTaken, TooManyFiles, TooManyLinks, NotAsked."""
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
    """Lock the user's row and count the working links. Raises TooManyLinks."""
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
    """Change a link; return False for a missing or ended link. A new password ends all sessions of the link. If a new limit
    of a collecting link is used up already, unused sessions end. Raises TooManyLinks if the change revives an expired
    link."""
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
    if "expires_at" in changes:  # existing sessions follow the new end
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
    """End a link; return False for a missing or ended link."""
    ended = await _end(connection, [LINKS.id == link_id], end, now)
    if ended:
        await note(connection, act)
    return bool(ended)


async def end_of_files(connection: AsyncConnection, file_ids: Collection[str], now: datetime) -> None:
    """End links to deleted files. A restored file does not revive its link."""
    await _end(connection, [LINKS.file_id.in_(file_ids)], LinkEnd.DELETED, now)


async def end_below(connection: AsyncConnection, user_id: str, prefix: str, now: datetime) -> None:
    """End links to the folders below a prefix."""
    await end_all(connection, [link.id for link in await _to_folders_below(connection, user_id, prefix)], now)


async def end_all(connection: AsyncConnection, link_ids: Collection[str], now: datetime) -> None:
    """End links whose folders are gone."""
    if link_ids:
        await _end(connection, [LINKS.id.in_(link_ids)], LinkEnd.DELETED, now)


class LinksBelow(Exception):
    """Links were made to folders that are gone since. The arguments are the link ids."""


async def expect_folders_below(connection: AsyncConnection, user_id: str, prefix: str) -> None:
    """Raises LinksBelow. The caller has locked the user's row, so no link is made meanwhile."""
    if found := await links.below(connection, user_id, prefix):
        there = await levels.prefixes_in_use(connection, user_id, sorted({name for _, name in found}))
        if outlived := [link_id for link_id, name in found if name not in there]:
            raise LinksBelow(*outlived)


async def move_below(connection: AsyncConnection, user_id: str, prefix: str, new_prefix: str, now: datetime) -> None:
    """Rename links to folders below a prefix, before the folders move. If visible or unseen names exist below the new name
    of a link, end the link, because the owner never shared these names. Make the new folder of each link at once, so that
    the link has a folder even if the move breaks off. Raises InvalidRequest if the new folder name is too long for a
    collecting link."""
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
    """Raises InvalidRequest early if `move_below` would."""
    found = [await links.by_id(connection, link_id) for link_id, _ in await links.below(connection, user_id, prefix)]
    if moving := [link for link in found if link is not None]:
        await _new_names(connection, user_id, moving, prefix, new_prefix)


async def _new_names(
    connection: AsyncConnection, user_id: str, moving: Sequence[Link], prefix: str, new_prefix: str
) -> dict[str, str]:
    """Return the new names of the links that can follow their folders, by link id. Raises InvalidRequest."""
    targets = {link.id: new_prefix + link.name[len(prefix) :] for link in moving}
    folders = sorted({name for name in targets.values() if name.endswith("/") and not prefix.startswith(name)})
    taken = set(await levels.prefixes_in_use(connection, user_id, folders, unseen=True))
    names = {link_id: name for link_id, name in targets.items() if name in folders and name not in taken}
    if not all(replace(link, name=names.get(link.id, "")).has_room_for_names for link in moving):
        raise InvalidRequest.field("prefix", "makes a name that is too long for a folder in which a link collects")
    return names


async def _to_folders_below(connection: AsyncConnection, user_id: str, prefix: str) -> list[Link]:
    """Lock the links in the order of ids, and return the working links."""
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
    """Count a wrong password before the check: parallel guesses count, too. `was_right` takes the count back. Raises
    LinkNotFound, TooManyRequests."""
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
    """Take back one count of `guess`."""
    change = sa.update(models.link).where(LINKS.id == link_id, LINKS.wrong_passwords > 0)
    await connection.execute(change.values(wrong_passwords=LINKS.wrong_passwords - 1))


async def begin_visit(connection: AsyncConnection, visit: Visit, token_sha256: str, max_sessions: int) -> None:
    """Begin a session of a visitor. If the link has too many sessions, end the oldest unused session. Raises
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
    """Count the first download of a visitor. Raises LinkGone if the limit of downloads is reached."""
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
    """Delete expired sessions. Sessions of an ended link stay until they expire, so that visitors learn about the end."""
    over = sa.select(SESSIONS.id).where(SESSIONS.expires_at <= now).limit(limit)
    ids = list((await connection.execute(over)).scalars())
    if ids:
        await connection.execute(sa.delete(models.link_session).where(SESSIONS.id.in_(ids)))
    return len(ids)


async def forget_links(connection: AsyncConnection, before: datetime, limit: int) -> int:
    """Forget links that ended or expired before a time and have no open uploads."""
    over = sa.or_(LINKS.ended_at < before, LINKS.expires_at < before)
    query = sa.select(LINKS.id).where(over, LINKS.reserved_files == 0).limit(limit)
    ids = list((await connection.execute(query)).scalars())
    if ids:
        await connection.execute(sa.delete(models.link).where(LINKS.id.in_(ids)))
        await connection.execute(sa.delete(models.link_session).where(SESSIONS.link_id.in_(ids)))
    return len(ids)


# What they send


async def lock_of(connection: AsyncConnection, files: Sequence[File]) -> set[str]:
    """Lock the links by which files came, and return the ids. Call before locking the user's row."""
    ids = sorted(ids_of(files))
    if ids:
        await connection.execute(sa.select(LINKS.id).where(LINKS.id.in_(ids)).order_by(LINKS.id).with_for_update())
    return {*ids}


def ids_of(files: Sequence[File]) -> set[str]:
    """Return the ids of the links by which files came."""
    return {file.session[:LINK_ID_LENGTH] for file in files if file.session}


async def count(connection: AsyncConnection, *, come: Sequence[File] = (), gone: Sequence[File] = ()) -> None:
    """Update the counts of the links by which files came. `come`: restored files; `gone`: removed files. Files in the trash
    take no room of a link. The links are locked."""
    for link_id in sorted(ids_of([*come, *gone])):
        of_link = [(file.size, 1) for file in come if file.session.startswith(link_id)]
        of_link += [(-file.size, -1) for file in gone if file.session.startswith(link_id)]
        more = {"more_bytes": sum(size for size, _ in of_link), "more_files": sum(number for _, number in of_link)}
        await connection.execute(_COUNT, {"of_link": link_id, **more})


async def lock_for(connection: AsyncConnection, caller: Caller, now: datetime) -> Link | None:
    """Lock the link of a visitor; return None if the caller is a user. Raises LinkGone."""
    if caller.link_id is None:
        return None
    link = await links.locked(connection, caller.link_id)
    end = None if link is None else link.end(now)
    if link is None or end is not None:
        raise links.gone(end)
    return link


async def promise(connection: AsyncConnection, upload: Upload, now: datetime, *, more: int, files: int) -> Upload:
    """Reserve room in the link for a visitor's upload, and return the upload with the owner's name. Raises LinkGone,
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
    """Release the reservation of an ended upload in its link, and count the files made. Return the upload with the owner's
    name."""
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
    """Replace the reservations of parts by the reservation of their whole. Raises LinkGone, LinkExhausted."""
    link = await lock_for(connection, whole.caller, now)
    if link is None:
        return
    if not link.takes(more, 0):
        raise LinkExhausted()
    await _settle(connection, link.id, reserved_files=1 - parts, reserved_bytes=more)


async def add(connection: AsyncConnection, caller: Caller, made: Sequence[File]) -> None:
    """Count whole files in the link of a visitor. The link is locked."""
    if caller.link_id is not None and made:
        await _settle(connection, caller.link_id, files=len(made), bytes=sum(file.size for file in made))
        await connection.execute(_USE, {"of_session": caller.session[len(caller.link_id) :]})


def named(upload: Upload, link: Link) -> Upload:
    return replace(upload, name=link.name + upload.name)


async def _settle(connection: AsyncConnection, link_id: str, **more: int) -> None:
    values = {f"more_{name}": more.get(name, 0) for name in links.FIGURES}
    await connection.execute(_SETTLE, {"of_link": link_id, **values})
