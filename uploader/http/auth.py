"""Who is calling: the bearer token of a request, or the local user where authentication is off."""

from starlette.requests import Request

from uploader.errors import Forbidden, Unauthenticated
from uploader.service.accounts import LOCAL_USER, Accounts, Identity


class Authenticator:
    """Tells who is calling by `UPLOADER_AUTH`."""

    def __init__(self, accounts: Accounts, mode: str) -> None:
        self._accounts = accounts
        self._mode = mode
        self._local: Identity | None = None

    async def user(self, request: Request) -> Identity:
        """Raises Unauthenticated, Unavailable."""
        if self._mode == "none":
            return await self._local_user()
        values = request.headers.getlist("authorization")
        scheme, _, token = (values[0] if len(values) == 1 else "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Unauthenticated()
        return await self._accounts.authenticate(token.strip())

    async def admin(self, request: Request) -> Identity:
        """Raises Unauthenticated, Forbidden, Unavailable."""
        identity = await self.user(request)
        if not identity.admin:
            raise Forbidden()
        return identity

    async def _local_user(self) -> Identity:
        if self._local is None:
            await self._accounts.ensure_user(LOCAL_USER)
            self._local = Identity(LOCAL_USER, admin=True)
        return self._local
