"""Addresses of peers: which are in a list of networks, which count as one; and which are proxies that are believed, by
what address clients reach the server through them, and from which.
"""

import ipaddress
import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network

from starlette.requests import Request

from uploader.http.shared.mount import mount_of_request

# What a provider gives to one customer, of IPv6, at the least.
_PREFIX_OF_ONE = 64

_HOST = re.compile(r"[A-Za-z0-9._~:\[\]-]{1,255}")
_FORWARDED = re.compile(r"(?:^|;)\s*(for|proto|host)\s*=\s*(?:\"([^\"]*)\"|([^;,\s\"]*))", re.IGNORECASE)
_NODE = re.compile(r"\[([^\]]*)\](?::\d+)?|([0-9.]+)(?::\d+)?|([0-9A-Fa-f:.]+)")


class Proxies:
    """The proxies of the settings, as a list of networks."""

    def __init__(self, networks: Iterable[str] | None) -> None:
        self._networks = [ipaddress.ip_network(network) for network in networks or ()]
        self.are_any = bool(self._networks)

    def have(self, address: IPv4Address | IPv6Address | None) -> bool:
        return address is not None and any(address in network for network in self._networks)

    def sent(self, request: Request) -> bool:
        return self.have(parsed_address(request.client.host if request.client else ""))

    def party_behind(self, request: Request) -> str | None:
        """Return whom a request through one of them counts for; None for all others, and where that is not known."""
        if not (self.are_any and self.sent(request)):
            return None
        address = parsed_address(self.client_address(request) or "")
        return None if self.have(address) else party_of(address)

    def party(self, request: Request) -> str:
        """Return whom a request counts for, a proxy itself where nothing better is known."""
        peer = request.client.host if request.client else ""
        return self.party_behind(request) or party_of(parsed_address(peer)) or peer

    def client_address(self, request: Request) -> str | None:
        """Return the nearest address on its way that is none of theirs, or where that way begins. None where it is not
        known, also because the two headers disagree: a proxy writes one of them, and may let the other through as it
        came."""
        peer = request.client.host if request.client else ""
        if not self.sent(request):
            return str(parsed_address(peer) or peer) or None
        headers = request.headers
        said = [_forwarded(hop).get("for", "") for hop in _hops(headers.getlist("forwarded"))]
        ways = [way for way in (said, _hops(headers.getlist("x-forwarded-for"))) if any(way)]
        found = {self._origin(way) for way in ways} or {str(parsed_address(peer))}
        return found.pop() if len(found) == 1 else None

    def _origin(self, way: list[str]) -> str | None:
        """Return the last one on a way that is no proxy of ours; the first if all are."""
        address = None
        for hop in reversed(way):
            address = _node(hop)
            if not self.have(address):
                break
        return None if address is None else str(address)

    def absolute(self, request: Request, path: str) -> str:
        """Return a path as the client reaches it: by the public URL; else by its `Host`, or as a proxy says (RFC 7239,
        `X-Forwarded-*`)."""
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
    """Return an address of IPv4 as that, though it came by IPv6; None if it is none."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def party_of(address: IPv4Address | IPv6Address | None) -> str | None:
    """Return whom an address counts for: of IPv6 a whole /64, of which one machine may take any address."""
    if isinstance(address, IPv6Address):
        return str(IPv6Network((int(address), _PREFIX_OF_ONE), strict=False))
    return None if address is None else str(address)


def _hops(lines: list[str]) -> list[str]:
    return [hop.strip() for line in lines for hop in line.split(",") if hop.strip()]


def _node(text: str) -> IPv4Address | IPv6Address | None:
    """Parse a hop, which may have a port; None if it hides itself."""
    found = _NODE.fullmatch(text)
    return None if found is None else parsed_address(next(filter(None, found.groups()), ""))


def _forwarded(hop: str) -> dict[str, str]:
    """Parse what one proxy says; of the whole header, the first is the one that the client asked."""
    return {name.lower(): quoted or plain for name, quoted, plain in _FORWARDED.findall(hop)}


def _first(header: str) -> str:
    return header.partition(",")[0].strip()
