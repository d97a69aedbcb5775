"""Who may use the server: users, their quotas and their tokens. A token is stored only as its SHA-256."""

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

from uploader.clock import Clock
from uploader.crashpoints import crash_point
from uploader.database import queries
from uploader.database.engine import Database, Duplicate
from uploader.database.queries import Token
from uploader.database.transactions import users
from uploader.domain.names import check_user_id
from uploader.domain.quota import Usage
from uploader.errors import InvalidRequest, Unauthenticated

# How long a token is believed, and a user known to be there, without asking the database: a revocation takes effect
# within it.
_BELIEVED_SECONDS = 15.0
_MAX_BELIEVED = 10_000
LOCAL_USER = "local"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Identity:
    """Who is calling."""

    user_id: str
    admin: bool


class _Believed(Generic[T]):
    """What is believed for a while, of a bounded number of keys."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, tuple[float, T]] = OrderedDict()

    def get(self, key: str) -> T | None:
        until, value = self._entries.get(key, (0.0, None))
        return value if until > time.monotonic() else None

    def put(self, key: str, value: T) -> None:
        self._entries[key] = (time.monotonic() + _BELIEVED_SECONDS, value)
        self._entries.move_to_end(key)
        if len(self._entries) > _MAX_BELIEVED:
            self._entries.popitem(last=False)

    def drop(self, key: str) -> None:
        self._entries.pop(key, None)


class Accounts:
    """Users and tokens."""

    def __init__(self, database: Database, clock: Clock, *, default_total_space_bytes: int) -> None:
        self._database = database
        self._clock = clock
        self._default_total_space = default_total_space_bytes
        self._believed: _Believed[Identity] = _Believed()
        self._met: _Believed[bool] = _Believed()

    # Callers

    async def authenticate(self, token: str) -> Identity:
        """Whose token this is. Raises Unauthenticated, Unavailable."""
        token_sha256 = _hash(token)
        believed = self._believed.get(token_sha256)
        if believed is not None:
            return believed
        row = await self._database.read(lambda connection: queries.token_by_hash(connection, token_sha256), brief=True)
        # The look-up is by hash; the comparison in constant time keeps an index from telling how near a guess was.
        if (
            row is None
            or not hmac.compare_digest(row.token_sha256.encode(), token_sha256.encode())
            or row.revoked_at is not None
        ):
            self._believed.drop(token_sha256)
            raise Unauthenticated()
        await self.ensure_user(row.user_id)
        identity = Identity(row.user_id, row.admin)
        self._believed.put(token_sha256, identity)
        return identity

    async def admit(self, user_id: str, total_space: int | None = None) -> None:
        """Make a user whom somebody else has authenticated, at first sight with this quota; one that is there keeps its
        own. Raises Unavailable."""
        if self._met.get(user_id) is None:
            await self.ensure_user(user_id, total_space)
            self._met.put(user_id, True)

    # Users

    async def ensure_user(self, user_id: str, total_space: int | None = None) -> bool:
        """Make a user unless it is there; whether it was made. Raises InvalidRequest for an id that can't be."""
        _check(user_id)
        if await self._database.read(lambda connection: queries.usage(connection, user_id), brief=True) is not None:
            return False
        space = self._default_total_space if total_space is None else total_space
        try:
            await self._database.transact(lambda connection: users.create_user(connection, user_id, space))
        except Duplicate:
            return False
        crash_point("user.after_commit")
        return True

    async def set_total_space(self, user_id: str, total_space: int) -> Usage:
        """Set a user's quota, making the user if need be; what is used already stays. Raises InvalidRequest."""
        await self.ensure_user(user_id, total_space)
        await self._database.transact(lambda connection: users.set_total_space(connection, user_id, total_space))
        usage = await self._database.read(lambda connection: queries.usage(connection, user_id))
        assert usage is not None
        return usage

    # Tokens

    async def create_token(self, user_id: str, *, admin: bool, total_space: int | None = None) -> str:
        """A new token for a user, who is made if need be; a user that is there keeps its quota."""
        token = new_token()
        await self.add_token(token, user_id, admin=admin, total_space=total_space)
        return token

    async def add_token(self, token: str, user_id: str, *, admin: bool, total_space: int | None = None) -> None:
        """Put a token into force. Raises Duplicate if it is there already."""
        await self.ensure_user(user_id, total_space)
        row = Token(
            token_sha256=_hash(token), user_id=user_id, admin=admin, created_at=self._clock.now(), revoked_at=None
        )
        await self._database.transact(lambda connection: users.create_token(connection, row))

    async def tokens(self, user_id: str | None = None) -> list[Token]:
        return await self._database.read(lambda connection: queries.tokens(connection, user_id))

    async def revoke(self, token_or_id: str) -> int:
        """Revoke the token itself or those with this id (as `token list` shows); how many were in force before."""
        hashes = [
            token.token_sha256
            for token in await self.tokens()
            if token_or_id == token.token_id or token.token_sha256 == _hash(token_or_id)
        ]
        revoked = 0
        for token_sha256 in hashes:
            revoked += await self._revoke_one(token_sha256)
        return revoked

    async def _revoke_one(self, token_sha256: str) -> bool:
        return await self._database.transact(
            lambda connection: users.revoke_token(connection, token_sha256, self._clock.now())
        )


def new_token() -> str:
    """256 random bits behind a prefix that secret scanners can look for."""
    return f"upl_{secrets.token_urlsafe(32)}"


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _check(user_id: str) -> None:
    try:
        check_user_id(user_id)
    except ValueError as error:
        raise InvalidRequest.field("user_id", str(error)) from error
