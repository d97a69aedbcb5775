"""How many requests one user, or one client behind a proxy, may have at once: it is as many connections."""

from collections import Counter
from functools import partial

from starlette.requests import Request

from uploader.errors import TooManyRequests
from uploader.http.auth.proxies import Proxies
from uploader.http.shared.exchange import PROBES, Exchange
from uploader.settings import Settings


class AtOnce:
    """The requests that have no whole answer yet, by whom they are."""

    def __init__(self, settings: Settings, proxies: Proxies) -> None:
        self._proxies = proxies
        self._by_address = _Limited(settings.max_connections_per_address, "your address")
        self._by_user = _Limited(settings.max_connections_per_user, "you")

    def admit_address(self, request: Request, exchange: Exchange) -> None:
        """Count a request by where it comes from, if that is behind a proxy: else its connection counts.

        Raises TooManyRequests, but never for a probe.
        """
        party = self._proxies.party_behind(request)
        if party is not None and exchange.route not in PROBES:
            self._by_address.admit(party, exchange)

    def admit_user(self, user_id: str, exchange: Exchange) -> None:
        """Count a request by whose it is, nobody's excepted. Raises TooManyRequests."""
        if user_id:
            self._by_user.admit(user_id, exchange)


class _Limited:
    def __init__(self, most: int, whose: str) -> None:
        self._most = most
        self._whose = whose
        self._counts: Counter[str] = Counter()

    def admit(self, party: str, exchange: Exchange) -> None:
        if self._counts[party] >= self._most:
            raise TooManyRequests(f"There are too many requests of {self._whose} at once: wait for one to be answered.")
        self._counts[party] += 1
        exchange.at_end.append(partial(self._release, party))

    def _release(self, party: str) -> None:
        self._counts[party] -= 1
        if not self._counts[party]:
            del self._counts[party]
