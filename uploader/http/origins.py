"""Which web pages may call: CORS for the origins of the settings, and no other page for callers that need no token."""

import ipaddress

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_ALLOW_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
_ALLOW_HEADERS = (
    "Authorization, Content-Digest, Content-MD5, Content-Type, Idempotency-Key, If-None-Match, If-Range, "
    "Range, X-Request-ID"
)
_EXPOSE_HEADERS = (
    "Accept-Ranges, Content-Disposition, Content-Length, Content-Range, ETag, Location, Repr-Digest, Retry-After, "
    "WWW-Authenticate, X-Request-ID"
)
_MAX_AGE_SECONDS = "600"
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class Origins:
    """The origins whose pages may call."""

    def __init__(self, allowed: tuple[str, ...] | None) -> None:
        self._allowed = frozenset(allowed or ())
        self.any = bool(self._allowed)
        self.all = "*" in self._allowed

    def allows(self, origin: str | None) -> bool:
        return origin is not None and (self.all or origin in self._allowed)

    def is_foreign_page(self, request: Request) -> bool:
        """Whether a page of somebody else makes a request that could change something.

        Browsers say so themselves; those that do not yet still name the page's origin.
        """
        if request.method in _SAFE_METHODS:
            return False
        origin = request.headers.get("origin")
        if self.allows(origin):
            return False
        site = request.headers.get("sec-fetch-site")
        if site is not None:
            return site not in ("same-origin", "none")
        return origin is not None and origin.partition("://")[2] != request.headers.get("host")


def is_local_host(host: str, listening_on: str) -> bool:
    """Whether a `Host` header names this machine: a name that somebody else's DNS leads here does not."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    name = name.strip("[]").lower()
    if name in ("localhost", listening_on.lower()):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class Cors:
    """Answers preflights and marks answers, for pages of allowed origins. There are no cookies, so no credentials."""

    def __init__(self, app: ASGIApp, origins: Origins) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._origins.any:
            await self._app(scope, receive, send)
            return
        request = Headers(scope=scope)
        origin = request.get("origin")
        allowed = self._origins.allows(origin)

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if not self._origins.all:
                    headers.add_vary_header("Origin")
                if allowed and origin is not None:
                    headers["Access-Control-Allow-Origin"] = "*" if self._origins.all else origin
                    headers["Access-Control-Expose-Headers"] = _EXPOSE_HEADERS
            await send(message)

        if allowed and scope["method"] == "OPTIONS" and "access-control-request-method" in request:
            await _preflight(send_marked)
        else:
            await self._app(scope, receive, send_marked)


async def _preflight(send: Send) -> None:
    headers = {
        "Access-Control-Allow-Methods": _ALLOW_METHODS,
        "Access-Control-Allow-Headers": _ALLOW_HEADERS,
        "Access-Control-Max-Age": _MAX_AGE_SECONDS,
    }
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": 204, "headers": raw})
    await send({"type": "http.response.body", "body": b""})
