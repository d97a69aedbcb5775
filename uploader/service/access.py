"""Access to the server: users, their quotas and their tokens.

A token is stored only as its SHA-256. This module does not know how a request carries a token.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path

import aiofiles

from uploader.database import queries, rights
from uploader.database.engine import Connection, Database, Duplicate
from uploader.database.transactions import users
from uploader.domain.audit_log import Action, Actor
from uploader.domain.links import Caller, Visit, owner
from uploader.domain.names import check_user_id
from uploader.domain.upload import Usage
from uploader.errors import InvalidRequest, NotFound, TokenInUse, Unauthenticated
from uploader.runtime.clock import Clock
from uploader.runtime.crashpoints import crash_point
from uploader.service.audit_log import act, actor
from uploader.service.revocations import Authority, Remembered, Revocations, SlowDown, authority_of_context
from uploader.service.secret import write_secret

# A token is believed for this long after the last look for revocations, so that callers stay in while the database is
# away.
_BELIEVED_SECONDS = 15.0
LOCAL_USER = "local"
# Words of a scope: the caller may read /metrics; the caller may take tasks of the queue whose name follows.
METRICS_SCOPE, QUEUE_SCOPE = "metrics", "queue:"
# The HTTP layer imports the type from here.
Token = queries.Token
# Hexadecimal digits of the SHA-256.
TOKEN_ID_LENGTH = 16


@dataclass(frozen=True, slots=True)
class Identity:
    caller: Caller
    admin: bool = False
    # Of the token that was shown; None if another server authenticated the caller.
    token_sha256: str | None = field(default=None, repr=False)
    token_made_by: str | None = None
    # The words that say what the token is good for; None: everything that the user may do.
    scope: str | None = None
    # Of a visitor of a link.
    visit: Visit | None = None

    @property
    def user_id(self) -> str:
        return self.caller.user_id

    @property
    def token_id(self) -> str | None:
        return self.token_sha256 and self.token_sha256[:TOKEN_ID_LENGTH]

    def authority(self, *, as_admin: bool) -> Authority | None:
        """Return the rows that give the caller their rights; None if there are no such rows."""
        if self.visit is not None or (self.token_sha256 is None and not as_admin):
            return None
        return Authority(self.user_id, self.token_sha256, as_admin)

    @property
    def party(self) -> str:
        """Return the party that is charged. Requests through a user's links have a share of their own, apart from the
        user's. (No user id contains a slash.)"""
        return self.user_id if self.visit is None else f"{self.user_id}/links"

    @property
    def may_read_metrics(self) -> bool:
        return self._may(METRICS_SCOPE)

    def may_work_for(self, queue: str) -> bool:
        return self._may(f"{QUEUE_SCOPE}{queue}")

    def _may(self, word: str) -> bool:
        return self.admin if self.scope is None else word in self.scope.split(" ")


def narrowed(scopes: Iterable[str]) -> str | None:
    """Return the words of `scopes` that restrict a token; None if there are none."""
    words = [word for word in scopes if word == METRICS_SCOPE or word.startswith(QUEUE_SCOPE)]
    return " ".join(words) or None


def spelled(scope: str) -> str:
    """Describe for a person what a token of this scope is good for."""
    queues = [word.removeprefix(QUEUE_SCOPE) for word in scope.split(" ") if word.startswith(QUEUE_SCOPE)]
    return " and ".join(f"the tasks of {queue}" for queue in queues) or f"/{scope}"


@dataclass(eq=False, repr=False)
class Accounts:
    database: Database
    clock: Clock
    revocations: Revocations
    _: KW_ONLY
    default_total_space_bytes: int

    def __post_init__(self) -> None:
        self._callers: Remembered[Identity] = Remembered(self.revocations, _BELIEVED_SECONDS)
        # Users whom another server authenticated; users who claim to be administrators are remembered apart.
        self._met: Remembered[bool] = Remembered(self.revocations, _BELIEVED_SECONDS)
        self._claims: Remembered[bool] = Remembered(self.revocations, _BELIEVED_SECONDS)

    # Callers

    async def authenticate(self, token: str, slow_down: SlowDown) -> Identity:
        """Return the user and the rights of a token. Call `slow_down` first, unless the token was valid when this
        process last saw it. Raises Unauthenticated, Unavailable, and what `slow_down` raises."""
        token_sha256, generation = _hash(token), self.revocations.generation
        known = self._callers.get(token_sha256)
        if known is not None:
            return known
        if not self._callers.knows(token_sha256):
            await slow_down()
        shown = await self.database.read(queries.token_by_hash, token_sha256, brief=True)
        # The look-up is by hash. The comparison in constant time hides from a caller how near a guess was.
        if (
            shown is None
            or not hmac.compare_digest(shown.token.token_sha256.encode(), token_sha256.encode())
            or shown.token.revoked_at is not None
        ):
            self._callers.drop(token_sha256)
            raise Unauthenticated()
        row = shown.token
        if not shown.has_user:
            await self.ensure_user(row.user_id)
        # An administrator needs the right twice: on the token and on the user.
        identity = Identity(owner(row.user_id), row.admin and shown.admin, token_sha256, row.made_by, row.scope)
        self._callers.put(token_sha256, identity, generation)
        return identity

    async def admit(self, user_id: str, total_space: int | None = None, *, claims_admin: bool = False) -> bool:
        """Create a user whom another server authenticated, with this quota, at first sight. Return whether the user is
        an administrator: a claim counts at first sight only. Raises Unavailable."""
        generation = self.revocations.generation
        known = (self._claims if claims_admin else self._met).get(user_id)
        if known is not None:
            return known
        here = actor()
        by = Actor(here.via, user_id, address=here.address)
        await self.ensure_user(user_id, total_space, by=by)
        if not claims_admin:
            self._met.put(user_id, False, generation)
            return False
        is_admin = await self.database.read(rights.is_admin, user_id, brief=True)
        if is_admin is None:
            told = act(Action.ADMIN_CHANGED, self.clock.now(), subject=user_id, user_id=user_id, by=by)
            is_admin = await self.database.transact(users.claim_admin, user_id, told)
        self._claims.put(user_id, is_admin, generation)
        return is_admin

    # Users

    async def ensure_user(self, user_id: str, total_space: int | None = None, *, by: Actor | None = None) -> bool:
        """Create a user unless there is one; return whether it did. `by`: the actor, if not the context's. Raises
        InvalidRequest."""
        try:
            check_user_id(user_id)
        except ValueError as error:
            raise InvalidRequest.field("user_id", str(error)) from error
        if await self.database.read(queries.usage, user_id, brief=True) is not None:
            return False
        space = self.default_total_space_bytes if total_space is None else total_space
        made = act(Action.USER_CREATED, self.clock.now(), subject=user_id, user_id=user_id, by=by)
        try:
            await self.database.transact(users.create_user, user_id, space, made)
        except Duplicate:
            return False
        crash_point("user.after_commit")
        return True

    async def change_user(self, user_id: str, *, total_space: int | None = None, admin: bool | None = None) -> Usage:
        """Set a user's quota, and grant or take the right of an administrator. Create the user if necessary. Files and
        uploads stay, even above a lower quota. Raises InvalidRequest, LastAdministrator."""
        await self.ensure_user(user_id, total_space)
        told = partial(act, now=self.clock.now(), subject=user_id, user_id=user_id)
        quota, right, keeps_one = told(Action.QUOTA_CHANGED), told(Action.ADMIN_CHANGED), _keeps_one()

        async def change(connection: Connection) -> Usage | None:
            if admin is not None:
                await users.set_admin(connection, user_id, admin, keeps_one=keeps_one, act=right)
            if total_space is not None:
                await users.set_total_space(connection, user_id, total_space, quota)
            return await queries.usage(connection, user_id)

        usage = await self.database.transact(change)
        assert usage is not None
        return usage

    async def set_total_space(self, user_id: str, total_space: int) -> Usage:
        return await self.change_user(user_id, total_space=total_space)

    # Tokens

    async def create_token(
        self, user_id: str, *, admin: bool, total_space: int | None = None, scope: str | None = None
    ) -> str:
        token = new_token()
        await self.add_token(token, user_id, admin=admin, total_space=total_space, scope=scope)
        return token

    async def add_token(
        self, token: str, user_id: str, *, admin: bool, total_space: int | None = None, scope: str | None = None
    ) -> Token:
        """Put a token into force. Create its user if necessary; an existing user keeps the quota. `scope`: the words
        that say what the token is good for. Raises Duplicate if the token exists, InvalidRequest for an invalid user id
        or for an administrator's token with a scope."""
        if admin and scope is not None:
            raise InvalidRequest.field("scope", "is not for an administrator's token")
        await self.ensure_user(user_id, total_space)
        row = Token(
            token_sha256=_hash(token),
            user_id=user_id,
            admin=admin,
            created_at=self.clock.now(),
            revoked_at=None,
            scope=scope,
            made_by=str(actor()),
        )
        made = act(Action.TOKEN_CREATED, row.created_at, subject=row.token_id, user_id=user_id)
        await self.database.transact(users.create_token, row, made)
        return row

    async def tokens(self, user_id: str | None = None) -> list[Token]:
        return await self.database.read(queries.tokens, user_id)

    async def tokens_of(self, user_id: str) -> list[Token]:
        """Return the tokens of a user, newest first. Raises NotFound."""
        if await self.database.read(queries.usage, user_id) is None:
            raise NotFound("There is no such user.")
        return (await self.tokens(user_id))[::-1]

    async def revoke(self, token_or_id: str) -> int:
        """Revoke a token, given by text or by id (see `token list`). Return how many tokens were in force before."""
        named = token_or_id if _is_id(token_or_id) else _hash(token_or_id)
        return await self._revoke(await self._tokens_by_id(named))

    async def revoke_for(self, caller: Identity, token_id: str) -> None:
        """Revoke a token. Refuse the token of the request itself, so that no request can take away the last access of
        an administrator. Does nothing if the token is revoked already. Raises NotFound, TokenInUse, LastAdministrator."""
        found = await self._tokens_by_id(token_id) if _is_id(token_id) else []
        if not found:
            raise NotFound("There is no such token.")
        if token_id == caller.token_id:
            raise TokenInUse()
        await self._revoke(found)

    async def _tokens_by_id(self, prefix: str) -> list[Token]:
        return await self.database.read(queries.tokens_by_id, prefix)

    async def _revoke(self, found: list[Token]) -> int:
        revoked = 0
        for token in found:
            now = self.clock.now()
            told = act(Action.TOKEN_REVOKED, now, subject=token.token_id, user_id=token.user_id)
            revoke = partial(users.revoke_token, keeps_one=_keeps_one(), act=told)
            revoked += await self.database.transact(revoke, token.token_sha256, now)
            self._callers.drop(token.token_sha256)
        return revoked


def _keeps_one() -> bool:
    """Return True if an administrator with a token has to remain: not for commands, or users of another server."""
    by = authority_of_context.get()
    return by is not None and by.token_sha256 is not None


def new_token() -> str:
    """Return 256 random bits behind a prefix that secret scanners can look for."""
    return f"upl_{secrets.token_urlsafe(32)}"


def _is_id(text: str) -> bool:
    return re.fullmatch(rf"[0-9a-f]{{{TOKEN_ID_LENGTH}}}", text) is not None


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


OWNER = "owner"
OWNER_TOKEN_FILE = "owner.token"  # noqa: S105 (a file name)


async def owner_token(directory: Path, accounts: Accounts) -> str | None:
    """Return the owner's token from its file in `directory`. Create the token if the database has no tokens at all.

    The file is written first: after a crash before the row, the next start puts the token of the file into force.
    """
    path = directory / OWNER_TOKEN_FILE
    if await accounts.tokens():
        return await _read_secret(path) if path.exists() else None
    if not path.exists():
        write_secret(path, f"{new_token()}\n")
    crash_point("owner.after_token_file")
    token = await _read_secret(path)
    with suppress(Duplicate):  # another process starts at the same moment
        await accounts.add_token(token, OWNER, admin=True)
    return token


async def _read_secret(path: Path) -> str:
    async with aiofiles.open(path) as file:
        return (await file.read()).strip()
