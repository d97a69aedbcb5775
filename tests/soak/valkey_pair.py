"""Two Valkey and the Sentinel that watches them. Who asks it finds the primary, and so does who goes by the address."""

import time
from pathlib import Path

from tests.soak.pair import Pair
from tests.support.servers import PrivateRedis, PrivateSentinel
from tests.support.switching import Left
from tests.support.waiting import PATIENCE_SECONDS

# Longer than a freeze of the monkey, and than a restart.
_DOWN_MS = 3000


class ValkeyPair(Pair):
    """What is called `primary` is what the Sentinel calls so."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._sentinel = PrivateSentinel(directory, down_after_ms=_DOWN_MS)
        self.primary, self._replica = self._sentinel.master, self._sentinel.replica
        self.sentinel_url = self._sentinel.url
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self.begin(self._sentinel.start)
        self.wait()
        self._serve_address(self.primary.port)

    def stop(self) -> None:
        self._sentinel.stop()
        self._end()

    def follow(self) -> None:
        """What the Sentinel did by itself."""
        if self.is_whole and self._promoted() is not self.primary:
            self.failovers["Valkey by its Sentinel"] += 1
            self._lead(Left.KEPT)

    def switch_over(self, left: Left) -> None:
        """The Sentinel is told to. It refuses as long as its replica is no good one, and gives up what takes too long."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._promoted() is self.primary:
            assert time.monotonic() < deadline, "the Sentinel has promoted nobody, though it was told to"
            self._sentinel.sentinel.raw("SENTINEL", "FAILOVER", "accounts", "COORDINATED")
            time.sleep(0.2)
        self._lead(left)
        self.failovers[f"Valkey switched over, connections {left}"] += 1

    def fail_over(self, left: Left) -> None:
        old = self.primary
        if left is Left.SILENT:
            self.switch.lead_to(old.port, left)
        old.kill()
        self._await_promotion()
        self._lead(left)
        old.start("--replicaof", "127.0.0.1", str(self.primary.port))
        self.failovers["Valkey gone" if left is Left.SILENT else "Valkey killed"] += 1

    def _await_promotion(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._promoted() is self.primary:
            assert time.monotonic() < deadline, "the Sentinel has promoted nobody"
            time.sleep(0.05)

    def _lead(self, left: Left) -> None:
        self.primary, self._replica = self._replica, self.primary
        self.switch.lead_to(self.primary.port, left)

    def _promoted(self) -> PrivateRedis:
        port = self._sentinel.master_port()
        return self.primary if port == self.primary.port else self._replica
