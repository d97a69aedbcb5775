"""Authenticates callers: by a token, a JWT, a proxy's header or a signed URL, or as the local user if authentication is off.
Also decides which web pages may call: CORS allows the origins of the settings. If callers need no token, requests of all
other pages are refused.
"""

import asyncio
import ipaddress
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from uploader.domain.links import LinkKind, is_slug_of, owner
from uploader.domain.names import check_user_id
from uploader.errors import Forbidden, TooManyRequests, Unauthenticated
from uploader.http.shared.mount import mount_of_request
from uploader.http.shared.operation import READERS, Access
from uploader.http.shared.proxies import Proxies
from uploader.runtime.observability import user_id as user_of_log
from uploader.service.access import LOCAL_USER, Accounts, Identity, spelled
from uploader.service.links import TOKEN_PREFIX, Visitors
from uploader.service.signed_urls import SignedUrls, deleted_subject, file_subject, selection_subject, visit_subject
from uploader.settings import Settings

if TYPE_CHECKING:
    from uploader.http.auth.jwt import Verifier

_ALLOW_HEADERS = (
    "Authorization, Content-Digest, Content-Disposition, Content-MD5, Content-Type, Idempotency-Key, If-Match, "
    "If-None-Match, If-Range, Range, Repr-Digest, Tus-Resumable, Upload-Checksum, Upload-Complete, Upload-Concat, "
    "Upload-Defer-Length, Upload-Draft-Interop-Version, Upload-Incomplete, Upload-Length, Upload-Metadata, Upload-Offset, "
    "Want-Repr-Digest, X-HTTP-Method-Override, X-Request-ID, X-Requested-With"
)
_EXPOSE_HEADERS = (
    "Accept-Patch, Accept-Ranges, Content-Disposition, Content-Length, Content-Location, Content-Range, ETag, Location, "
    "Repr-Digest, Retry-After, Tus-Checksum-Algorithm, Tus-Extension, Tus-Max-Size, Tus-Resumable, Tus-Version, "
    "Upload-Complete, Upload-Concat, Upload-Defer-Length, Upload-Draft-Interop-Version, Upload-Expires, "
    "Upload-Incomplete, Upload-Length, Upload-Limit, Upload-Metadata, Upload-Offset, WWW-Authenticate, X-Request-ID"
)
_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, HEAD, POST, PUT, PATCH, DELETE",
    "Access-Control-Allow-Headers": _ALLOW_HEADERS,
    "Access-Control-Max-Age": "600",
}
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")

_TOO_MANY_WRONG = "Too many wrong tokens came from your address: wait before you show one that is new here."
_BAD_LINK = "The link is not valid."
_MINUTE_SECONDS = 60.0
# After too many wrong tokens, each further attempt waits this long, and only this many wait at once per party: at most 16
# database queries a second.
_WAIT_SECONDS = 0.25
_MAX_WAITING = 4
# Tolerance for rounding in sums of fractions of a minute.
_ROUNDING_SECONDS = 1e-6
# The number of parties remembered. In a larger flood, the parties whose last wrong token is oldest are forgotten.
_MAX_PARTIES = 10_000

_NOBODY = Identity(owner(""), admin=False)

# Returns the caller of a request, given its ASGI scope; None if the caller is unknown.
Identify = Callable[[Any], Awaitable[Identity | None]]


class Origins:
    """CORS: the origins whose pages may call. The server uses no cookies, so CORS allows no credentials."""

    def __init__(self, allowed: tuple[str, ...] | None) -> None:
        self._allowed = frozenset(allowed or ())
        self.are_any = bool(self._allowed)
        self._all = "*" in self._allowed

    def allows(self, origin: str | None) -> bool:
        return origin is not None and (self._all or origin in self._allowed)

    def preflight(self, request: Request) -> Response | None:
        """Answer the preflight request of an allowed page; return None for every other request."""
        asks = request.method == "OPTIONS" and "access-control-request-method" in request.headers
        if not asks or not self.allows(request.headers.get("origin")):
            return None
        return Response(status_code=204, headers=_PREFLIGHT)

    def mark(self, request: Request, response: Response) -> None:
        if not self._all:
            response.headers.add_vary_header("Origin")
        origin = request.headers.get("origin")
        if origin is not None and self.allows(origin):
            response.headers["Access-Control-Allow-Origin"] = "*" if self._all else origin
            response.headers["Access-Control-Expose-Headers"] = _EXPOSE_HEADERS

    def is_foreign_page(self, request: Request) -> bool:
        """Return True if a page of another origin makes a request that could change something. Browsers say so in
        `Sec-Fetch-Site`; older browsers send at least the page's `Origin`."""
        if request.method in _SAFE_METHODS:
            return False
        origin = request.headers.get("origin")
        if self.allows(origin):
            return False
        site = request.headers.get("sec-fetch-site")
        if site is not None:
            return site not in ("same-origin", "none")
        if origin is None:
            return False
        own = mount_of_request.get().origin
        return origin != own if own else origin.partition("://")[2] != request.headers.get("host")


def is_local_host(host: str, listening_on: str) -> bool:
    """Return True if the `Host` header names this machine. A foreign DNS name that resolves to this machine does not (DNS
    rebinding)."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    name = name.strip("[]").lower()
    if name in ("localhost", listening_on.lower()):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class WrongTokens:
    """Limits wrong tokens per party: `most` at once, then `most` per minute, evenly."""

    def __init__(self, most: int) -> None:
        self._seconds_for_one = _MINUTE_SECONDS / most
        # Per party: the monotonic time when all wrong tokens are worked off.
        self._busy_until: OrderedDict[str, float] = OrderedDict()
        self._waiting: Counter[str] = Counter()

    def are_too_many(self, party: str) -> bool:
        left_seconds = self._busy_until.get(party, 0.0) - time.monotonic()
        return left_seconds + self._seconds_for_one > _MINUTE_SECONDS + _ROUNDING_SECONDS

    async def slow_down(self, party: str) -> None:
        """Wait if the party showed too many wrong tokens. Raises TooManyRequests if too many of the party already wait."""
        if not self.are_too_many(party):
            return
        if self._waiting[party] >= _MAX_WAITING:
            raise TooManyRequests(_TOO_MANY_WRONG)
        self._waiting[party] += 1
        try:
            await asyncio.sleep(_WAIT_SECONDS)
        finally:
            self._waiting[party] -= 1
            if not self._waiting[party]:
                del self._waiting[party]

    def count(self, party: str) -> None:
        now = time.monotonic()
        busy_until = max(self._busy_until.get(party, 0.0), now) + self._seconds_for_one
        self._busy_until[party] = min(busy_until, now + _MINUTE_SECONDS)
        self._busy_until.move_to_end(party)
        if len(self._busy_until) > _MAX_PARTIES:
            self._busy_until.popitem(last=False)


class Authenticator:
    def __init__(
        self,
        settings: Settings,
        accounts: Accounts,
        signed_urls: SignedUrls,
        visitors: Visitors,
        origins: Origins,
        verifier: "Verifier | None",
        identify: Identify | None = None,
    ) -> None:
        """`verifier` is set if tokens are JWTs. `identify` is set if the surrounding application authenticates callers."""
        self._visitors = visitors if settings.links == "on" else None
        self._mode = settings.auth
        self._host = settings.host
        self._trusted_header = settings.trusted_header
        self._proxies = Proxies(settings.trusted_proxies)
        self._accounts = accounts
        self._signed_urls = signed_urls
        self._origins = origins
        self._verifier = verifier
        self._identify = identify
        self._wrong_tokens = WrongTokens(settings.max_wrong_tokens)

    async def identify(self, access: Access, request: Request) -> Identity:
        """Return the caller. Raises Unauthenticated, TooManyRequests, Forbidden, Unavailable."""
        if access == "open":
            return _NOBODY
        if access in READERS and "signature" in request.query_params:
            return await self._by_link(request, of_deleted=access == "reader of deleted")
        if access == "visitor" and "signature" in request.query_params:
            identity = await self._by_link_of_visitor(request)
        else:
            identity = await self._identity(request)
        user_of_log.set(identity.user_id)
        if identity.visit is not None or access == "visitor":
            _check_visit(identity, access, request)
        elif access == "metrics":
            if not identity.may_read_metrics:
                raise Forbidden()
        elif access == "worker":
            if not identity.may_work_for(request.path_params["name"]):
                raise Forbidden("Only an administrator, or a token of this queue, may take its tasks.")
        elif identity.scope is not None:
            raise Forbidden(f"This token is valid for {spelled(identity.scope)} alone.")
        elif access == "admin" and not identity.admin:
            raise Forbidden()
        return identity

    async def _by_link(self, request: Request, *, of_deleted: bool) -> Identity:
        query = request.query_params
        told, expires, signature = _signed(request, "user")
        user_id = self._signed_urls.user_in(told)
        # The signature covers the file in the path, or the digest of a selection in the query. The handler compares that
        # digest with the selection in the body.
        file_id = request.path_params.get("id")
        if file_id is None:
            subject = selection_subject(query.get("selection", ""))
        else:
            subject = deleted_subject(file_id) if of_deleted else file_subject(file_id)
        self._signed_urls.check(user_id, subject, expires, signature)
        user_of_log.set(user_id)
        return Identity(owner(user_id), admin=False)

    async def _by_link_of_visitor(self, request: Request) -> Identity:
        """Raises Unauthenticated, LinkGone."""
        query = request.query_params
        session_id, expires, signature = _signed(request, "visitor")
        if self._visitors is None:
            raise Unauthenticated(_BAD_LINK)
        visit = await self._visitors.by_id(session_id)
        file_id, kind, prefix = request.path_params.get("id"), query.get("format", "zip"), query.get("prefix", "")
        subject = visit_subject(session_id, file_id, kind, prefix)
        self._signed_urls.check(visit.link.user_id, subject, expires, signature)
        return Identity(visit.caller, admin=False, visit=visit)

    async def _by_token_of_visitor(self, visitors: Visitors, token: str, request: Request) -> Identity:
        try:
            visit = await visitors.authenticate(token, partial(self._slow_down, request))
        except Unauthenticated:
            self._wrong_tokens.count(self._proxies.party(request))
            raise
        return Identity(visit.caller, admin=False, visit=visit)

    async def _slow_down(self, request: Request) -> None:
        await self._wrong_tokens.slow_down(self._proxies.party(request))

    async def _identity(self, request: Request) -> Identity:
        # A visitor's token comes first: its caller wants to be a visitor even where callers need no token.
        token = _bearer_token(request)
        if self._visitors is not None and token is not None and token.startswith(TOKEN_PREFIX):
            return await self._by_token_of_visitor(self._visitors, token, request)
        if self._identify is not None:
            return await self._known_to_application(self._identify, request)
        named = None if self._trusted_header is None else self._named_by_proxy(self._trusted_header, request)
        if named is not None:
            self._refuse_foreign_pages(request)
            await self._accounts.admit(named)
            return Identity(owner(named), admin=False)
        if self._mode == "none":
            if not is_local_host(request.headers.get("host", ""), self._host):
                raise Unauthenticated("Without authentication the server answers requests to a local host name alone.")
            self._refuse_foreign_pages(request)
            is_admin = await self._accounts.admit(LOCAL_USER, claims_admin=True)
            return Identity(owner(LOCAL_USER), is_admin)
        if token is None:
            raise Unauthenticated()
        # A token that was right before is accepted at once, even while neighbours guess tokens. A new token needs a database
        # query, and waits. A JWT needs no query, and only its refusal waits.
        try:
            if self._verifier is None:
                return await self._accounts.authenticate(token, partial(self._slow_down, request))
            verified = await self._verifier.verify(token)
            return await self._admitted(verified.identity, verified.total_space)
        except Unauthenticated:
            if self._verifier is not None:
                await self._slow_down(request)
            self._wrong_tokens.count(self._proxies.party(request))
            raise

    async def _known_to_application(self, identify: Identify, request: Request) -> Identity:
        identity = await identify(request.scope)
        if identity is None:
            raise Unauthenticated("The application does not know who calls.")
        self._refuse_foreign_pages(request)  # the application may know callers by a cookie
        return await self._admitted(identity)

    async def _admitted(self, identity: Identity, total_space: int | None = None) -> Identity:
        """Admit a caller whom somebody else authenticated. Administrators also need the right in their user row."""
        claims = identity.admin
        is_admin = await self._accounts.admit(identity.user_id, total_space, claims_admin=claims)
        return identity if is_admin is claims else replace(identity, admin=is_admin)

    def _named_by_proxy(self, header: str, request: Request) -> str | None:
        values = request.headers.getlist(header) if self._proxies.sent(request) else []
        if not values:
            return None
        try:
            (value,) = values
            return check_user_id(value.encode("latin-1").decode())
        except ValueError as error:
            raise Unauthenticated("The proxy names no user.") from error

    def _refuse_foreign_pages(self, request: Request) -> None:
        """Refuse pages of other origins: any page could make a browser call on behalf of a caller without a token."""
        if self._origins.is_foreign_page(request):
            raise Unauthenticated("Pages of other origins can't call without a token.")


def _check_visit(identity: Identity, access: Access, request: Request) -> None:
    """Check that a visitor's token fits the operation and the link, and that an operation for visitors has one. Raises
    Forbidden."""
    visit = identity.visit
    if visit is None:
        raise Forbidden("This is for those who came by the link: begin a session.")
    kind, slug = visit.link.kind, request.path_params.get("slug", "")
    is_theirs = access == "visitor" and kind is LinkKind.DOWNLOAD and is_slug_of(slug, visit.link)
    if not is_theirs and not (access == "uploader" and kind is LinkKind.UPLOAD):
        raise Forbidden("The link that you came by is not for this.")


def _signed(request: Request, who: str) -> list[str]:
    """Return user or session, expiry and signature of a signed URL. Raises Unauthenticated."""
    values = [request.query_params.getlist(name) for name in (who, "expires", "signature")]
    if any(len(given) != 1 for given in values):
        raise Unauthenticated(_BAD_LINK)
    return [given[0] for given in values]


def _bearer_token(request: Request) -> str | None:
    values = request.headers.getlist("authorization")
    scheme, _, token = (values[0] if len(values) == 1 else "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None
