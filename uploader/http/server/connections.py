"""The connections of this process: how many each address has, which of them wait for a request, and which are
beyond the limits and here only to be told so.

Newcomers have precedence over those that wait: a flood of connections that ask for nothing pushes out its own.
"""

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable
from itertools import islice
from typing import Protocol

from uploader.errors import TooManyRequests, Unavailable, UploaderError
from uploader.http.server.process import ConnectionLimits
from uploader.http.shared.proxies import Networks, parsed_address, party_of
from uploader.observability import REFUSED_CONNECTIONS

# Under this name the application's lifespan state carries the connections to the protocol.
CONNECTIONS_STATE = "connections"

# Of those that wait longest, how many are looked at for one whose answer has left.
_LOOKED_AT = 16


class Connected(Protocol):
    """What the limits need of a connection."""

    def is_sending(self) -> bool:
        """Return whether the system has not yet taken all that was written."""

    def dismiss(self, error: UploaderError) -> None:
        """End it, which waits for a request, to make room."""

    def cut(self) -> None:
        """End it, which is beyond the limits, at once; what it is to be told is told before."""


class Connections:
    """Those of a process. What is beyond the limits goes into a reserve, where the oldest give way to the newest."""

    def __init__(self, limits: ConnectionLimits, proxies: Networks) -> None:
        """`proxies`: their connections are those of many, and count for no address."""
        self.limits = limits
        self._proxies = proxies
        # Those that are served, with whom they count for, and how many that makes.
        self._served: dict[Connected, str | None] = {}
        self._counts: Counter[str | None] = Counter()
        # Of them, those that wait for a request, the longest first: all, and by whom they count for.
        self._waiting: OrderedDict[Connected, None] = OrderedDict()
        self._waiting_of: defaultdict[str | None, OrderedDict[Connected, None]] = defaultdict(OrderedDict)
        self._reserve: OrderedDict[Connected, None] = OrderedDict()
        self._probing: set[Connected] = set()

    def enter(self, connection: Connected, host: str) -> UploaderError | None:
        """Let a new one in from this address. Return None if it is served; else what all but probes are answered."""
        address = parsed_address(host)
        party = None if self._proxies.have(address) else party_of(address)
        error = self._lack_of_room(party)
        if error is None:
            self._served[connection] = party
            self._counts[party] += 1
            self.wait(connection)
        else:
            self._retire(connection)
        return error

    def wait(self, connection: Connected) -> None:
        """It waits for a request from now on."""
        if connection in self._served:
            self._waiting[connection] = None
            self._waiting_of[self._served[connection]][connection] = None

    def work(self, connection: Connected) -> None:
        """It has a request."""
        if connection in self._waiting:
            del self._waiting[connection]
            party = self._served[connection]
            waiting = self._waiting_of[party]
            del waiting[connection]
            if not waiting:
                del self._waiting_of[party]

    def probe(self, connection: Connected) -> bool:
        """It is in the reserve and has a probe; whether that may be answered."""
        if connection in self._reserve and len(self._probing) < max(1, self.limits.reserved_connections // 2):
            del self._reserve[connection]
            self._probing.add(connection)
        return connection in self._probing

    def refuse(self, connection: Connected) -> None:
        """It was told that it is refused, and stays for a while so that its client can read why."""
        if connection in self._served:
            self._end_service(connection)
            self._retire(connection)

    def leave(self, connection: Connected) -> None:
        """It is closed."""
        if connection in self._served:
            self._end_service(connection)
        self._reserve.pop(connection, None)
        self._probing.discard(connection)

    def _lack_of_room(self, party: str | None) -> UploaderError | None:
        """Make room for a connection of this party where there is none; what is wrong if that can't be."""
        if party is not None and self._counts[party] >= self.limits.max_connections_per_address:
            error: UploaderError = TooManyRequests("There are too many connections from your address; close some.")
            if not self._dismiss_one(self._waiting_of.get(party, ()), error, "address"):
                return error
        if len(self._served) >= self.limits.max_connections:
            error = Unavailable("The server has too many connections; try again soon.")
            if not self._dismiss_one(self._waiting, error, "process"):
                return error
        return None

    def _dismiss_one(self, waiting: Iterable[Connected], error: UploaderError, limit: str) -> bool:
        """Return whether one of these could go. Either way somebody is refused."""
        REFUSED_CONNECTIONS.labels(limit).inc()
        found = next((one for one in islice(waiting, _LOOKED_AT) if not one.is_sending()), None)
        if found is None:
            return False
        found.dismiss(error)
        if found in self._served:
            self._end_service(found)
        return True

    def _end_service(self, connection: Connected) -> None:
        self.work(connection)
        party = self._served.pop(connection)
        self._counts[party] -= 1
        if not self._counts[party]:
            del self._counts[party]

    def _retire(self, connection: Connected) -> None:
        self._reserve[connection] = None
        if len(self._reserve) > self.limits.reserved_connections:
            oldest, _ = self._reserve.popitem(last=False)
            oldest.cut()
