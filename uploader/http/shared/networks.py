"""Addresses of peers: which are in a list of networks, and which count as one."""

import ipaddress
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network

# What a provider gives to one customer, of IPv6, at the least.
_PREFIX_OF_ONE = 64


class Networks:
    """A list of networks."""

    def __init__(self, networks: Iterable[str] | None) -> None:
        self._networks = [ipaddress.ip_network(network) for network in networks or ()]
        # Whether there are any.
        self.are_any = bool(self._networks)

    def have(self, address: IPv4Address | IPv6Address | None) -> bool:
        """Whether an address is in one of them."""
        return address is not None and any(address in network for network in self._networks)


def parsed_address(text: str) -> IPv4Address | IPv6Address | None:
    """An address, if it is one; of IPv4 as that, though it came by IPv6."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def party_of(address: IPv4Address | IPv6Address | None) -> str | None:
    """Whom an address counts for: of IPv6 a whole /64, of which one machine may take any address."""
    if isinstance(address, IPv6Address):
        return str(IPv6Network((int(address), _PREFIX_OF_ONE), strict=False))
    return None if address is None else str(address)
