"""Links that work for a while without a token, to a file's content or to some files as one archive: bound to what they are
to, its user and their end.

Nothing is kept of a link but the secret that signs all of them, made once for the installation or given by its settings.
"""

import hashlib
import hmac
import secrets
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from uploader.clock import Clock
from uploader.database import meta
from uploader.database.engine import Database
from uploader.errors import Unauthenticated

_FACT = "link_secret"
# Of a link whose maker does not say: it is followed at once.
_ORDINARY_LIFETIME_SECONDS = 300.0


def selection_subject(digest: str) -> str:
    """What a link to a selection is bound to; no id of a file has a slash."""
    return f"selection/{digest}"


class Links:
    """Makes links, and tells whether one is good."""

    def __init__(self, database: Database, clock: Clock, secret: str | None, *, lifetime_seconds: float) -> None:
        self._database = database
        self._clock = clock
        self._secret = secret
        self._max_lifetime_seconds = lifetime_seconds

    async def make(self, user_id: str, subject: str, lifetime_seconds: int | None = None) -> tuple[str, datetime]:
        """What is to be put behind the path of what is linked to, and until when it works. `subject` is the id of a file, or
        `selection_subject`. Raises Unavailable."""
        asked = _ORDINARY_LIFETIME_SECONDS if lifetime_seconds is None else lifetime_seconds
        lifetime = min(self._max_lifetime_seconds, asked)
        end = int((self._clock.now() + timedelta(seconds=lifetime)).timestamp())
        signature = await self._sign(user_id, subject, str(end))
        query = urlencode({"user": user_id, "expires": end, "signature": signature})
        return query, datetime.fromtimestamp(end, UTC)

    async def check(self, user_id: str, subject: str, expires: str, signature: str) -> None:
        """Raises Unauthenticated for a link that was not made here, for something else, or that has expired."""
        expected = await self._sign(user_id, subject, expires)
        if not hmac.compare_digest(expected.encode(), signature.encode()):
            raise Unauthenticated("The link is not valid.")
        if int(expires) <= self._clock.now().timestamp():
            raise Unauthenticated("The link has expired.")

    async def _sign(self, user_id: str, subject: str, expires: str) -> str:
        # No part can hold a line feed: user ids have no white space, and the rest is compared with what was made here.
        message = f"uploader/link/1\n{user_id}\n{subject}\n{expires}"
        return hmac.new(await self._key(), message.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()

    async def _key(self) -> bytes:
        if self._secret is None:
            self._secret = await meta.remember(self._database, _FACT, secrets.token_hex(32))
        return self._secret.encode()
