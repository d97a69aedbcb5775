"""Addresses of clients. Knows the trusted proxies, reads the client's address and the requested host from the headers of
trusted proxies only, and groups the addresses of one customer.
"""

import ipaddress
import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network

from starlette.requests import Request

from uploader.http.shared.mount import mount_of_request

# IPv6 providers assign each customer a /64 or more.
_PREFIX_OF_ONE = 64

_HOST = re.compile(r"[A-Za-z0-9._~:\[\]-]{1,255}")
_FORWARDED = re.compile(r"(?:^|;)\s*(for|proto|host)\s*=\s*(?:\"([^\"]*)\"|([^;,\s\"]*))", re.IGNORECASE)
_NODE = re.compile(r"\[([^\]]*)\](?::\d+)?|([0-9.]+)(?::\d+)?|([0-9A-Fa-f:.]+)")


class Proxies:
    """The trusted proxies of the settings, as networks."""

    def __init__(self, networks: Iterable[str] | None) -> None:
        self._networks = [ipaddress.ip_network(network) for network in networks or ()]
        self.are_any = bool(self._networks)

    def have(self, address: IPv4Address | IPv6Address | None) -> bool:
        return address is not None and any(address in network for network in self._networks)

    def sent(self, request: Request) -> bool:
        return self.have(parsed_address(request.client.host if request.client else ""))

    def party_behind(self, request: Request) -> str | None:
        """Return the party (address or /64) that a request through a trusted proxy counts for. None for direct requests, and
        if the client's address is unknown."""
        if not (self.are_any and self.sent(request)):
            return None
        address = parsed_address(self.client_address(request) or "")
        return None if self.have(address) else party_of(address)

    def party(self, request: Request) -> str:
        """Return the party that a request counts for; the proxy itself if the client's address is unknown."""
        peer = request.client.host if request.client else ""
        return self.party_behind(request) or party_of(parsed_address(peer)) or peer

    def client_address(self, request: Request) -> str | None:
        """Return the client's address. Behind a trusted proxy, return the last forwarded address that is not a trusted
        proxy, or the first one if all are. None if unknown, or if `Forwarded` and `X-Forwarded-For` disagree: a proxy writes
        one of the two, and may pass a forged other one through."""
        peer = request.client.host if request.client else ""
        if not self.sent(request):
            return str(parsed_address(peer) or peer) or None
        headers = request.headers
        said = [_forwarded(hop).get("for", "") for hop in _hops(headers.getlist("forwarded"))]
        ways = [way for way in (said, _hops(headers.getlist("x-forwarded-for"))) if any(way)]
        found = {self._origin(way) for way in ways} or {str(parsed_address(peer))}
        return found.pop() if len(found) == 1 else None

    def _origin(self, way: list[str]) -> str | None:
        """Return the last hop that is not a trusted proxy; the first hop if all are."""
        address = None
        for hop in reversed(way):
            address = _node(hop)
            if not self.have(address):
                break
        return None if address is None else str(address)

    def absolute(self, request: Request, path: str) -> str:
        """Return the full URL of a path: below the public URL; otherwise with the host of the `Host` header, or of a trusted
        proxy's headers (RFC 7239, `X-Forwarded-*`). Return the path alone if the host is invalid."""
        mount = mount_of_request.get()
        path = mount.prefix + path
        if mount.origin:
            return mount.origin + path
        headers = request.headers
        scheme, host = request.scope.get("scheme", "http"), headers.get("host", "")
        if self.sent(request):
            said = _forwarded(headers.get("forwarded", "").partition(",")[0])
            scheme = said.get("proto") or _first(headers.get("x-forwarded-proto", "")) or scheme
            host = said.get("host") or _first(headers.get("x-forwarded-host", "")) or host
        if scheme.lower() not in ("http", "https") or not _HOST.fullmatch(host):
            return path
        return f"{scheme.lower()}://{host}{path}"


def parsed_address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an address; return an IPv4-mapped IPv6 address as IPv4, and None for anything else."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def party_of(address: IPv4Address | IPv6Address | None) -> str | None:
    """Return the party of an address. An IPv6 address counts for its /64, because one machine may use all addresses of a
    /64."""
    if isinstance(address, IPv6Address):
        return str(IPv6Network((int(address), _PREFIX_OF_ONE), strict=False))
    return None if address is None else str(address)


def _hops(lines: list[str]) -> list[str]:
    return [hop.strip() for line in lines for hop in line.split(",") if hop.strip()]


def _node(text: str) -> IPv4Address | IPv6Address | None:
    """Parse a hop with an optional port; None for an obfuscated identifier (RFC 7239)."""
    found = _NODE.fullmatch(text)
    return None if found is None else parsed_address(next(filter(None, found.groups()), ""))


def _forwarded(hop: str) -> dict[str, str]:
    """Parse one element of `Forwarded`. The first element of the header describes the client's own request."""
    return {name.lower(): quoted or plain for name, quoted, plain in _FORWARDED.findall(hop)}


def _first(header: str) -> str:
    return header.partition(",")[0].strip()
