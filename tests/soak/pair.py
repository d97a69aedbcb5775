"""A primary, its replica and the address that leads to the primary: what a failover of either kind of store needs."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from tests.support.servers import free_port
from tests.support.switching import Left, SwitchProcess


class Pair(ABC):
    """Works on its two servers in a thread of its own, with which they end; one thing at a time."""

    def __init__(self) -> None:
        self.port = free_port()  # of the address
        self.failovers: Counter[str] = Counter()
        self._thread = ThreadPoolExecutor(1)
        self._under_way: Future[None] | None = None
        self._switch: SwitchProcess | None = None

    @property
    def is_whole(self) -> bool:
        """Whether both serve, and nothing is under way. Raises what went wrong."""
        if self._under_way is None:
            return True
        if not self._under_way.done():
            return False
        self._under_way.result()
        return True

    def begin(self, work: Callable[[], None]) -> None:
        assert self.is_whole
        self._under_way = self._thread.submit(work)

    @abstractmethod
    def switch_over(self, left: Left) -> None:
        """As planned, by whoever runs it. `left`: what becomes of the connections through the address. To `begin`."""

    @abstractmethod
    def fail_over(self, left: Left) -> None:
        """The primary is killed. `left`: SILENT, as a machine that is gone. To `begin`."""

    def wait(self) -> None:
        """Until what is under way has ended. Raises what went wrong."""
        if self._under_way is not None:
            self._under_way.result()

    @property
    def switch(self) -> SwitchProcess:
        assert self._switch is not None
        return self._switch

    def _serve_address(self, target: int) -> None:
        self._switch = SwitchProcess(self.port, target)

    def _end(self) -> None:
        """After the servers were killed."""
        self._thread.shutdown(wait=True)
        if self._switch is not None:
            self._switch.stop()
