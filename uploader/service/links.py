"""The use cases of links: owners make, change and revoke links; each visitor has a session.

The token of a session works for one link only, and ends with the link (`revocations.py`). A new password ends all sessions
of a link.
"""

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from uploader import errors
from uploader.database import links, queries, transactions
from uploader.database.engine import Connection, Database
from uploader.domain.audit_log import Action
from uploader.domain.creations import Creation
from uploader.domain.links import Caller, Limits, Link, LinkEnd, LinkKind, Visit, hash_slug, is_slug_of
from uploader.domain.names import Folder, Place, Selection, place_of
from uploader.domain.secret import SEALED, Secret, Use
from uploader.domain.upload import File, Reason
from uploader.runtime.clock import Clock
from uploader.runtime.observability import LINK_SESSIONS
from uploader.runtime.tasks import in_thread
from uploader.service.audit_log import act
from uploader.service.close import Closers
from uploader.service.files import Files, Folders
from uploader.service.ids import ID, new_id
from uploader.service.precreate import Allowed, PreCreateHook, Question, with_folder
from uploader.service.revocations import Remembered, Revocations, SlowDown
from uploader.service.secret import InstallationSecret

TOKEN_PREFIX = "upls_"  # noqa: S105 (what tokens of visitors begin with)
# The clock of the client may be ahead.
_SLACK = timedelta(minutes=1)
# The longest session of a download link. A page left open for a day begins a new session.
_DOWNLOAD_SECONDS = 86400.0
_MAX_SESSIONS = 10_000
_ATTEMPTS = 10
_MOVING = "The folder of this link moves at this moment; try again."
T = TypeVar("T")
_BELIEVED_SECONDS = 0.5


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


# A guess takes 50 ms and 16 MiB (RFC 7914, section 2).
_COST, _BLOCKS, _LANES = 2**14, 8, 1
_SALT_BYTES = 16


def hash_password(password: str) -> str:
    salt = secrets.token_bytes(_SALT_BYTES)
    return f"scrypt${base64.b64encode(salt).decode()}${base64.b64encode(_scrypt(password, salt)).decode()}"


def is_password(password: str, stored: str) -> bool:
    """Compare in constant time. With a damaged row, no password is right."""
    kind, _, rest = stored.partition("$")
    salt, _, wanted = rest.partition("$")
    try:
        found = _scrypt(password, base64.b64decode(salt, validate=True))
        return kind == "scrypt" and hmac.compare_digest(found, base64.b64decode(wanted, validate=True))
    except ValueError:
        return False


def _scrypt(password: str, salt: bytes) -> bytes:
    raw = password.encode(errors="surrogatepass")
    return hashlib.scrypt(raw, salt=salt, n=_COST, r=_BLOCKS, p=_LANES, dklen=32)


@dataclass(eq=False, repr=False)
class Sharing:
    """Makes, changes and ends links, for their owners."""

    database: Database
    pre_create_hook: PreCreateHook
    secret: InstallationSecret
    clock: Clock
    _: KW_ONLY
    max_lifetime_seconds: float
    max_links: int
    max_files: int

    async def make(
        self,
        user_id: str,
        kind: LinkKind,
        name: str,
        *,
        label: str = "",
        expires_at: datetime | None = None,
        password: str | None = None,
        limits: Limits,
    ) -> Link:
        """Make a link to a file, or to a folder whose name ends in a slash. A collecting link makes its folder. Raises
        InvalidRequest, FileNotFound, NameTaken, TooManyFiles, TooManyLinks, NotAllowed, Unavailable."""
        now = self.clock.now()
        _check_limits(kind, limits)
        expires_at = self._checked_end(expires_at, now)
        if kind is LinkKind.UPLOAD and not name.endswith("/"):
            raise errors.InvalidRequest.field("name", "is no folder: one that collects has `/` at its end")
        link_id = new_id()
        slug = self.secret.value.slug(link_id)
        link = Link(
            id=link_id,
            user_id=user_id,
            slug=slug,
            slug_sha256=hash_slug(slug),
            kind=kind,
            name=name,
            file_id=None,
            label=label,
            password=await in_thread(hash_password, password) if password else None,
            created_at=now,
            expires_at=expires_at,
            ended=None,
            **dict.fromkeys(("downloads", "files", "bytes", "reserved_files", "reserved_bytes"), 0),
            max_downloads=limits.max_downloads,
            max_files=limits.max_files,
            max_bytes=limits.max_bytes,
        )
        told = act(Action.LINK_CREATED, now, subject=link.id, user_id=user_id)
        make = partial(transactions.links.make_link, max_links=self.max_links, max_files=self.max_files, act=told)

        async def work(folder: str, is_allowed: bool) -> Link:
            named = replace(link, name=f"{folder}/") if kind is LinkKind.UPLOAD else link
            if not named.has_room_for_names:
                raise errors.InvalidRequest.field("name", "is too long for a folder in which a link collects")
            return await self.database.transact(partial(make, is_allowed=is_allowed), named)

        if kind is LinkKind.DOWNLOAD:
            return await work("", True)
        return await with_folder(self.pre_create_hook, user_id, name.rstrip("/"), work)

    def _checked_end(self, expires_at: datetime | None, now: datetime) -> datetime:
        """Raises InvalidRequest."""
        latest = now + timedelta(seconds=self.max_lifetime_seconds)
        if expires_at is None:
            return latest
        if expires_at <= now:
            raise errors.InvalidRequest.field("expires_at", "is not in the future")
        if expires_at > latest + _SLACK:
            raise errors.InvalidRequest.field("expires_at", f"is later than {latest:%Y-%m-%dT%H:%M:%SZ}, the latest")
        return min(expires_at, latest)

    async def list(self, user_id: str) -> list[Link]:
        return await _with_slugs(await self.database.read(links.of_user, user_id), self.secret.value)

    async def get(self, user_id: str, link_id: str) -> Link:
        """Raises LinkNotFound."""
        link = await self.database.read(links.by_id, link_id) if ID.fullmatch(link_id) else None
        if link is None or link.user_id != user_id or link.ended is not None:
            raise errors.LinkNotFound()
        return (await _with_slugs([link], self.secret.value))[0]

    async def change(self, user_id: str, link_id: str, changes: Mapping[str, Any]) -> Link:
        """Change label, expires_at, password or limits of a link. Raises LinkNotFound, TooManyLinks, InvalidRequest."""
        link, values = await self.get(user_id, link_id), dict(changes)
        _check_limits(link.kind, Limits(**{name: values[name] for name in _LIMITS if name in values}))
        if "expires_at" in values:
            values["expires_at"] = self._checked_end(values["expires_at"], self.clock.now())
        if values.get("password") is not None:
            values["password"] = await in_thread(hash_password, values["password"])
        if values:
            told = act(Action.LINK_CHANGED, self.clock.now(), subject=link.id, user_id=user_id)
            change = partial(transactions.links.change_link, now=self.clock.now(), max_links=self.max_links)
            if not await self.database.transact(change, link.id, values, told):
                raise errors.LinkNotFound()
        return await self.get(user_id, link_id)

    async def revoke(self, user_id: str, link_id: str) -> None:
        """Raises LinkNotFound."""
        link, now = await self.get(user_id, link_id), self.clock.now()
        told = act(Action.LINK_REVOKED, now, subject=link.id, user_id=user_id)
        await self.database.transact(transactions.links.end_link, link.id, LinkEnd.REVOKED, now, told)


async def _with_slugs(found: Sequence[Link], secret: Secret) -> list[Link]:
    """Return links with their slugs in plain text, for the owner."""

    def add_slugs() -> list[Link]:
        return [replace(link, slug=_slug_of(link, secret)) for link in found]

    return await in_thread(add_slugs) if any(link.slug for link in found) else add_slugs()


def _slug_of(link: Link, secret: Secret) -> str:
    """Return the slug of a link; empty if the slug was encrypted with another secret, which means that the link has
    ended."""
    if not link.slug:
        return secret.slug(link.id)
    if not link.slug.startswith(SEALED):
        return link.slug  # just made by a node of an earlier version
    return secret.open_sealed(Use.SLUG_STORE, link.slug, link.id) or ""


_LIMITS = ("max_downloads", "max_files", "max_bytes")


def _check_limits(kind: LinkKind, limits: Limits) -> None:
    """Raises InvalidRequest for a limit of the other kind of link."""
    others = ("max_files", "max_bytes") if kind is LinkKind.DOWNLOAD else ("max_downloads",)
    for name in others:
        if getattr(limits, name) is not None:
            raise errors.InvalidRequest.field(name, f"is not for a link of the kind {kind.value}")


@dataclass(eq=False, repr=False)
class Visitors:
    """Strangers who come by links."""

    database: Database
    clock: Clock
    revocations: Revocations

    def __post_init__(self) -> None:
        # By SHA-256 of the token. Only for a moment, because links change with their files and folders.
        self._known: Remembered[Visit] = Remembered(self.revocations, _BELIEVED_SECONDS, confirmed=False)
        self._guesses = asyncio.Semaphore(2)

    # Coming

    async def find(self, slug: str) -> Link:
        """Return a working link. Raises LinkNotFound, LinkGone."""
        link = await self.database.read(links.by_slug, hash_slug(slug), brief=True)
        if link is None or not is_slug_of(slug, link):
            raise errors.LinkNotFound()
        if (end := link.end(self.clock.now())) is not None:
            raise links.gone(end)
        return link

    async def begin(self, slug: str, password: str | None) -> tuple[str, datetime]:
        """Begin a session; return its token and its end. Raises LinkNotFound, LinkGone, WrongPassword, TooManyRequests."""
        link = await self.find(slug)
        if link.password is not None:
            await self._check(link, link.password, password)
        now = self.clock.now()
        end = link.expires_at
        if link.kind is LinkKind.DOWNLOAD:
            end = min(end, now + timedelta(seconds=_DOWNLOAD_SECONDS))
        token = f"{TOKEN_PREFIX}{secrets.token_urlsafe(32)}"
        visit = Visit(session_id=new_id(), link=link, is_used=False, created_at=now, expires_at=end)
        await self.database.transact(transactions.links.begin_visit, visit, _sha256(token), _MAX_SESSIONS)
        LINK_SESSIONS.labels(link.kind.value).inc()
        return token, end

    async def _check(self, link: Link, stored: str, password: str | None) -> None:
        """Raises WrongPassword, TooManyRequests."""
        if not password:
            raise errors.WrongPassword("This link asks for a password.")
        await self.database.transact(transactions.links.guess, link.id, self.clock.now())
        async with self._guesses:
            is_right = await in_thread(is_password, password, stored)
        if not is_right:
            raise errors.WrongPassword()
        await self.database.transact(transactions.links.was_right, link.id)

    # Being there

    async def authenticate(self, token: str, slow_down: SlowDown) -> Visit:
        """Return the visit of a token. Call `slow_down` first, unless this process knows the token. Raises Unauthenticated,
        LinkGone, Unavailable, and as `slow_down`."""
        token_sha256, generation = _sha256(token), self.revocations.generation
        visit = self._known.get(token_sha256)
        if visit is None:
            if not self._known.knows(token_sha256):
                await slow_down()
            found = await self.database.read(links.visit_by_token, token_sha256, brief=True)
            if found is None or not hmac.compare_digest(found[0].encode(), token_sha256.encode()):
                self._known.drop(token_sha256)
                raise errors.Unauthenticated()
            visit = found[1]
            self._known.put(token_sha256, visit, generation)
        return self._checked(visit)

    async def by_id(self, session_id: str) -> Visit:
        """Return the visit that a signed URL names. Raises Unauthenticated, LinkGone, Unavailable."""
        found = await self.database.read(links.visits, [session_id], brief=True)
        if session_id not in found:
            raise errors.Unauthenticated("The link is not valid.")
        return self._checked(found[session_id])

    def _checked(self, visit: Visit) -> Visit:
        """Raises LinkGone."""
        if (end := visit.end(self.clock.now())) is not None:
            raise links.gone(end)
        return visit

    async def count_download(self, visit: Visit) -> None:
        """Raises LinkGone."""
        if not visit.is_used:
            await self.database.transact(transactions.links.count_download, visit)

    # Sending

    async def refuse_early(self, caller: Caller, name: str, size: int, md5: str | None = None) -> None:
        """Refuse early, before anything is written. The transaction decides. Raises LinkGone, LinkExhausted."""
        if caller.link_id is not None:
            await self.database.read(_refuse, caller, name, size, md5, self.clock.now())

    async def ask(
        self,
        hook: PreCreateHook,
        creation: Creation,
        caller: Caller,
        name: str,
        size: int | None,
        md5: str | None = None,
        sha256: str | None = None,
    ) -> Allowed:
        """Ask the hook about the name that the owner will see. The hook cannot rename a visitor's file. Raises NotAllowed,
        Unavailable."""
        if not hook.is_on:
            return Allowed(name)
        link = None if caller.link_id is None else await self.database.read(links.by_id, caller.link_id, brief=True)
        full_name = name if link is None else link.name + name
        allowed = await hook.ask(Question(creation, caller.user_id, (full_name,), size, md5, sha256))
        return allowed if caller.link_id is None else replace(allowed, name=name)


async def _refuse(connection: Connection, caller: Caller, name: str, size: int, md5: str | None, now: datetime) -> None:
    link = await links.by_id(connection, caller.link_id or "")
    end = None if link is None else link.end(now)
    if link is None or end is not None:
        raise links.gone(end)
    if not link.takes(size, 1) and not await links.may_have_sent(connection, caller, name, size, md5):
        raise errors.LinkExhausted()


@dataclass(eq=False, repr=False)
class LinkKeeping:
    """Closes open uploads of ended links; forgets old links and expired sessions."""

    database: Database
    closers: Closers
    secret: InstallationSecret
    clock: Clock
    _: KW_ONLY
    retention_seconds: float

    async def close_ended(self, limit: int, *, expired: bool) -> int:
        """Close open uploads of links that were ended early and, with `expired`, of expired links; return the number."""
        closed = 0
        now = self.clock.now() if expired else None
        for link in await self.database.read(links.ended_with_uploads, now, limit):
            reason = Reason.EXPIRED if link.end(self.clock.now()) is LinkEnd.EXPIRED else Reason.CANCELLED
            for upload_id in await self.database.read(links.open_uploads, link, limit):
                upload = await self.database.read(queries.upload_by_id, upload_id)
                if upload is not None:
                    try:
                        await self.closers.close(upload, reason)
                    except transactions.rows.NotOpen:
                        continue  # it ended by itself
                    closed += 1
        return closed

    async def forget(self, limit: int) -> int:
        """Forget old links, expired sessions, and in time the former secret. Return the number of links and sessions."""
        now = self.clock.now()
        before = now - timedelta(seconds=self.retention_seconds)
        await self.secret.forget_former()
        sessions = await self.database.transact(transactions.links.forget_sessions, now, limit)
        return sessions + await self.database.transact(transactions.links.forget_links, before, limit)


@dataclass(eq=False, repr=False)
class Shared:
    """The files that a visitor may download, by the names that the visitor sees.

    The link in memory may be outdated, and an archive takes long. So the name of the folder is read again after the files
    below the folder: when the folder has moved, files that nobody shared may have the former name. While a folder moves, its
    files are below two names.
    """

    database: Database
    files: Files
    folders: Folders

    async def get(self, link: Link, file_id: str) -> File:
        """Raises FileNotFound, also for a held file, which only the owner may know. Raises LinkGone, Unavailable."""

        async def ask(folders: list[str]) -> File:
            try:
                return _seen(link, folders, await self.files.get(link.user_id, file_id))
            except errors.FileHeld as error:
                raise errors.FileNotFound() from error

        return await self._in_folders(link, ask)

    async def page(self, link: Link, prefix: str, *, limit: int, after: str | None) -> tuple[list[File], str | None]:
        """Return a page of the files below a prefix in the folder of the link, newest first. Raises InvalidRequest,
        LinkGone, Unavailable."""

        async def ask(folders: list[str]) -> tuple[list[File], str | None]:
            found, has_more = list[File](), False
            for folder in folders:
                page, cursor = await self.files.list(link.user_id, limit=limit, after=after, prefix=folder + prefix)
                found, has_more = found + page, has_more or cursor is not None
            found.sort(key=lambda file: file.id, reverse=True)
            shown = found[:limit]
            cursor = shown[-1].id if has_more or len(found) > limit else None
            return [_seen(link, folders, file) for file in shown], cursor

        return await self._in_folders(link, ask)

    async def level(
        self, link: Link, prefix: str, *, limit: int, after: Place | None
    ) -> tuple[list[Folder | File], Place | None]:
        """Return a page of one level of the folder, like `Folders.level`. Raises LinkGone, Unavailable."""

        async def ask(folders: list[str]) -> tuple[list[Folder | File], Place | None]:
            found, has_more = dict[str, Folder | File](), False
            for folder in folders:
                begin = None if after is None else (folder + after[0], after[1])
                page, place = await self.folders.level(link.user_id, folder + prefix, limit=limit, after=begin)
                has_more = has_more or place is not None
                for each in page:
                    seen = _seen(link, folders, each) if isinstance(each, File) else _without(folder, each)
                    other = found.get(seen.name)
                    both = isinstance(seen, Folder) and isinstance(other, Folder)
                    found[seen.name] = _added_up(seen, other) if both else seen
            names = sorted(found, key=str.encode)
            shown = [found[name] for name in names[:limit]]
            return shown, place_of(shown[-1]) if has_more or len(names) > limit else None

        return await self._in_folders(link, ask)

    async def read(self, link: Link, selection: Selection) -> AsyncIterator[File]:
        """Yield selected files, each once, with the owner's names (while the folder moves: the new names). Raises LinkGone,
        Unavailable."""
        read, folders = set[str](), await self._folders_of(link)
        for folder in folders:
            prefixes = tuple(folder + prefix.removeprefix(link.name) for prefix in selection.prefixes)
            selected = selection if folder == link.name else replace(selection, ids=(), prefixes=prefixes)
            async for files in self.folders.selected(link.user_id, selected):
                if folder not in await self._folders_of(link):
                    break  # the folder moved: files with these names now were never shared
                for file in files:
                    if file.id not in read:
                        yield file if folder == link.name else replace(file, name=link.name + file.name[len(folder) :])
                if len(folders) > 1:
                    read.update(file.id for file in files)

    async def _in_folders(self, link: Link, ask: Callable[[list[str]], Awaitable[T]]) -> T:
        """Call `ask` with the folder's names: two while the folder moves. Ask again if the names changed meanwhile. Raises
        LinkGone, Unavailable."""
        folders = [link.name]
        for _ in range(_ATTEMPTS):
            found: T | errors.FileNotFound
            try:
                found = await ask(folders)
            except errors.FileNotFound as error:
                found = error
            before, folders = folders, await self._folders_of(link)
            if folders == before:
                if isinstance(found, errors.FileNotFound):
                    raise found
                return found
        raise errors.Unavailable(_MOVING)

    async def _folders_of(self, link: Link) -> list[str]:
        """Return the name of the folder, after the former name while the folder moves. Raises LinkGone, and Unavailable if
        the folder has another name now."""
        if link.folder is None:
            return [link.name]
        found, former = await self.database.read(_link_and_former, link, brief=True)
        if found is None or found.ended is not None:
            raise links.gone(None if found is None else found.ended)
        if found.name != link.name:
            raise errors.Unavailable(_MOVING)
        return [link.name] if former is None else [former, link.name]


async def _link_and_former(connection: Connection, link: Link) -> tuple[Link | None, str | None]:
    former = await transactions.bulk.former_folder(connection, link.user_id, link.name)
    return await links.by_id(connection, link.id), former


def _seen(link: Link, folders: Sequence[str], file: File) -> File:
    """Return a file with the visitor's name. Raises FileNotFound if the link does not share the file."""
    if link.file_id is not None:
        if file.id != link.file_id:
            raise errors.FileNotFound()
        return replace(file, name=file.name.rpartition("/")[2])
    for folder in folders:
        if file.name.startswith(folder):
            return replace(file, name=file.name[len(folder) :])
    raise errors.FileNotFound()


def _without(above: str, folder: Folder) -> Folder:
    return replace(folder, name=folder.name[len(above) :])


def _added_up(one: Folder | File, two: Folder | File | None) -> Folder:
    assert isinstance(one, Folder)
    assert isinstance(two, Folder)
    return replace(one, files=one.files + two.files, bytes=one.bytes + two.bytes, at_least=one.at_least or two.at_least)
