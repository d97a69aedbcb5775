"""The web pages that may call: CORS for the origins of the settings, and no other page for callers that need no token."""

import ipaddress

from starlette.requests import Request
from starlette.responses import Response

_ALLOW_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
_ALLOW_HEADERS = (
    "Authorization, Content-Digest, Content-Disposition, Content-MD5, Content-Type, Idempotency-Key, If-None-Match, "
    "If-Range, Range, Repr-Digest, Tus-Resumable, Upload-Checksum, Upload-Complete, Upload-Concat, Upload-Defer-Length, "
    "Upload-Draft-Interop-Version, Upload-Incomplete, Upload-Length, Upload-Metadata, Upload-Offset, Want-Repr-Digest, "
    "X-HTTP-Method-Override, X-Request-ID, X-Requested-With"
)
_EXPOSE_HEADERS = (
    "Accept-Patch, Accept-Ranges, Content-Disposition, Content-Length, Content-Location, Content-Range, ETag, Location, "
    "Repr-Digest, Retry-After, Tus-Checksum-Algorithm, Tus-Extension, Tus-Max-Size, Tus-Resumable, Tus-Version, "
    "Upload-Complete, Upload-Concat, Upload-Defer-Length, Upload-Draft-Interop-Version, Upload-Expires, "
    "Upload-Incomplete, Upload-Length, Upload-Limit, Upload-Metadata, Upload-Offset, WWW-Authenticate, X-Request-ID"
)
_PREFLIGHT = {
    "Access-Control-Allow-Methods": _ALLOW_METHODS,
    "Access-Control-Allow-Headers": _ALLOW_HEADERS,
    "Access-Control-Max-Age": "600",
}
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class Origins:
    """The origins whose pages may call. There are no cookies, so no credentials."""

    def __init__(self, allowed: tuple[str, ...] | None) -> None:
        self._allowed = frozenset(allowed or ())
        # Whether pages of other origins may call at all.
        self.are_any = bool(self._allowed)
        self._all = "*" in self._allowed

    def allows(self, origin: str | None) -> bool:
        return origin is not None and (self._all or origin in self._allowed)

    def preflight(self, request: Request) -> Response | None:
        """Return the answer to what a browser asks before a call of an allowed page; None to all else."""
        asks = request.method == "OPTIONS" and "access-control-request-method" in request.headers
        if not asks or not self.allows(request.headers.get("origin")):
            return None
        return Response(status_code=204, headers=_PREFLIGHT)

    def mark(self, request: Request, response: Response) -> None:
        """Say in an answer which pages may read it."""
        if not self._all:
            response.headers.add_vary_header("Origin")
        origin = request.headers.get("origin")
        if origin is not None and self.allows(origin):
            response.headers["Access-Control-Allow-Origin"] = "*" if self._all else origin
            response.headers["Access-Control-Expose-Headers"] = _EXPOSE_HEADERS

    def is_foreign_page(self, request: Request) -> bool:
        """Return whether a page of somebody else makes a request that could change something.

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
    """Return whether a `Host` header names this machine: a name that somebody else's DNS leads here does not."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    name = name.strip("[]").lower()
    if name in ("localhost", listening_on.lower()):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
