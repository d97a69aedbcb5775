"""Who is calling: by a token, a JWT, a proxy's header or a signed link; or the local user where authentication is off."""

from typing import TYPE_CHECKING

from starlette.requests import Request

from uploader.domain.names import check_user_id
from uploader.errors import Forbidden, Unauthenticated
from uploader.http.auth.origins import Origins, is_local_host
from uploader.http.auth.proxies import Proxies
from uploader.http.auth.wrong_tokens import WrongTokens
from uploader.http.shared.operation import Access
from uploader.observability import user_id as user_of_log
from uploader.service.access import LOCAL_USER, Accounts, Identity, Links, selection_subject
from uploader.settings import Settings

if TYPE_CHECKING:
    from uploader.http.auth.jwt import Verifier

_NOBODY = Identity("", admin=False)


class Authenticator:
    """Tells who is calling, as the settings have it."""

    def __init__(
        self, settings: Settings, accounts: Accounts, links: Links, origins: Origins, verifier: "Verifier | None"
    ) -> None:
        """`verifier`: where tokens are JWTs."""
        self._mode = settings.auth
        self._host = settings.host
        self._trusted_header = settings.trusted_header
        self._proxies = Proxies(settings.trusted_proxies)
        self._accounts = accounts
        self._links = links
        self._origins = origins
        self._verifier = verifier
        self._wrong_tokens = WrongTokens(settings.max_wrong_tokens)

    async def identify(self, access: Access, request: Request) -> Identity:
        """Who calls, as far as `access` asks. Raises Unauthenticated, TooManyRequests, Forbidden, Unavailable."""
        match access:
            case "open":
                return _NOBODY
            case "user":
                return await self.user(request)
            case "reader":
                return await self.reader(request)
            case "admin":
                return await self.admin(request)
            case "metrics":
                return await self.metrics(request)

    async def user(self, request: Request) -> Identity:
        """Raises Unauthenticated, TooManyRequests, Unavailable; Forbidden where the token is good for something else."""
        identity = await self._known(request)
        if identity.scope is not None:
            raise Forbidden(f"This token is good for /{identity.scope}, and for nothing else.")
        return identity

    async def admin(self, request: Request) -> Identity:
        """Raises as `identify`."""
        identity = await self.user(request)
        if not identity.admin:
            raise Forbidden()
        return identity

    async def metrics(self, request: Request) -> Identity:
        """Raises as `identify`."""
        identity = await self._known(request)
        if not identity.may_read_metrics:
            raise Forbidden()
        return identity

    async def reader(self, request: Request) -> Identity:
        """Who may read a file or a selection: the user, or whoever has a signed link to it. Raises as `user`."""
        query = request.query_params
        if "signature" not in query:
            return await self.user(request)
        values = [query.getlist(name) for name in ("user", "expires", "signature")]
        if any(len(given) != 1 for given in values):
            raise Unauthenticated("The link is not valid.")
        owner, expires, signature = (given[0] for given in values)
        await self._links.check(owner, _subject_of(request), expires, signature)
        user_of_log.set(owner)
        return Identity(owner, admin=False)

    async def _known(self, request: Request) -> Identity:
        identity = await self._identity(request)
        user_of_log.set(identity.user_id)
        return identity

    async def _identity(self, request: Request) -> Identity:
        named = self._named_by_proxy(request)
        if named is not None:
            self._refuse_foreign_pages(request)
            await self._accounts.admit(named)
            return Identity(named, admin=False)
        if self._mode == "none":
            return await self._local_user(request)
        token = _bearer_token(request)
        # One that was right here before is let in at once though its neighbours guess; any other one is a question to the
        # database. A JWT is checked without, and only its refusal waits.
        if self._verifier is None and not self._accounts.knows(token):
            await self._wrong_tokens.slow_down(self._proxies.party(request))
        try:
            return await self._bearer(token)
        except Unauthenticated:
            party = self._proxies.party(request)
            if self._verifier is not None:
                await self._wrong_tokens.slow_down(party)
            self._wrong_tokens.count(party)
            raise

    async def _bearer(self, token: str) -> Identity:
        if self._verifier is None:
            return await self._accounts.authenticate(token)
        claims = await self._verifier.verify(token)
        await self._accounts.admit(claims.user_id, claims.total_space)
        return Identity(claims.user_id, claims.admin, scope=claims.scope)

    def _named_by_proxy(self, request: Request) -> str | None:
        """The user that a proxy names; None where the header is not there, or comes from anybody else."""
        if self._trusted_header is None or not self._proxies.sent(request):
            return None
        values = request.headers.getlist(self._trusted_header)
        if not values:
            return None
        try:
            (value,) = values
            return check_user_id(value.encode("latin-1").decode())
        except ValueError as error:
            raise Unauthenticated("The proxy names no user.") from error

    async def _local_user(self, request: Request) -> Identity:
        if not is_local_host(request.headers.get("host", ""), self._host):
            raise Unauthenticated("Without authentication only requests to a local host name are answered.")
        self._refuse_foreign_pages(request)
        await self._accounts.admit(LOCAL_USER)
        return Identity(LOCAL_USER, admin=True)

    def _refuse_foreign_pages(self, request: Request) -> None:
        """Who needs no token could be made to call by any page that their browser shows."""
        if self._origins.is_foreign_page(request):
            raise Unauthenticated("Pages of other origins can't call without a token.")


def _subject_of(request: Request) -> str:
    """What a link is to: the file of the path, or the selection whose digest the query tells. Whether that is the digest of
    what is asked for shows with the body."""
    if "id" in request.path_params:
        return str(request.path_params["id"])
    return selection_subject(request.query_params.get("selection", ""))


def _bearer_token(request: Request) -> str:
    values = request.headers.getlist("authorization")
    scheme, _, token = (values[0] if len(values) == 1 else "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated()
    return token.strip()
