"""Kills processes at random moments and starts them again; cuts, empties and freezes what it can reach, and lets the disk
fail."""

import os
import random
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.soak.installation import LEASE_SECONDS, Installation, Member
from tests.soak.pair import Pair
from tests.support.gateways import PrivateGateway
from tests.support.servers import PrivateRedis
from tests.support.switching import Left

# How often each is done, relative to one another. A start of a server or a worker costs most of a second of CPU.
_WEIGHTS = {"valkey": 48, "database": 14, "worker": 16, "server": 12, "process": 6}
_WEIGHTS |= {"flushall": 5, "freeze": 5, "jump": 5, "unreadable": 3, "full": 3}
# Who fails over kills less: a store that is away most of the time does nothing, and a replica needs time to come back.
_FAILOVER_WEIGHTS = _WEIGHTS | {"valkey": 16, "database": 4, "fail_over_valkey": 4, "fail_over_database": 6}
# Where a start takes longer, and the gateway can be away, too.
_GATEWAY_WEIGHTS = _WEIGHTS | {"valkey": 24, "gateway": 14, "freeze_gateway": 5}
# Where events are told. A clock that jumps would have retries that take hours at once, until none is left.
_SINK_WEIGHTS = {"worker": 1, "server": 1, "sink": 1}
_ACTS_PER_SECOND = 4.0
# Where a start asks the gateway for a dozen things, which is away, too; where nothing but starts is done.
_ACTS_PER_SECOND_ON_S3, _ACTS_PER_SECOND_OF_SINKS = 0.8, 1.0
_HARMS = {
    "valkey": "append-only files cut",
    "flushall": "FLUSHALL",
    "jump": "jumps of a clock",
    "freeze": "stops",
    "freeze_gateway": "stops of the gateway",
    "unreadable": "read errors",
    "full": "full disks",
}
_AOF_CUTS = 0.4
# Of the failovers, those that nobody dies at.
_PLANNED = 0.4
_SETTLED_SECONDS = 1.5
_RESTART_SECONDS = 0.3
# Beyond the expiry, but two clocks are never so far apart that what was closed is forgotten.
MAX_JUMP_SECONDS = 10 * 86_400
# What can't be read, or written to: contents, unfinished uploads, or all in the data directories.
_PLACES = ("/blobs/", "/temp/", "")
_DISK_FAILS_SECONDS = (0.3, 2.0)


@dataclass
class Tally:
    """What was done."""

    kills: Counter[str] = field(default_factory=Counter)
    harms: Counter[str] = field(default_factory=Counter)  # that kill nobody
    longest_act_seconds: float = 0.0  # whoever is stopped meanwhile stays so


class Monkey:
    """Kills until told to heal, then only watches that all runs. Servers started by its thread end with that thread."""

    def __init__(self, installation: Installation, seed: int, acts_per_second: float = _ACTS_PER_SECOND) -> None:
        self._thread = threading.Thread(target=self._run, name="monkey", daemon=True)
        self._installation = installation
        self._random = random.Random(seed)
        self._started_at: dict[Member, float] = {}
        self._database_started_at = 0.0
        self.pairs = [pair for pair in (installation.valkeys, installation.databases) if pair is not None]
        self._weights = _FAILOVER_WEIGHTS if self.pairs else _WEIGHTS
        if installation.gateway is not None:
            self._weights, acts_per_second = _GATEWAY_WEIGHTS, _ACTS_PER_SECOND_ON_S3
        elif installation.sink is not None:
            self._weights, acts_per_second = _SINK_WEIGHTS, _ACTS_PER_SECOND_OF_SINKS
        absent = {"database"} if installation.database is None else set()
        absent |= {"unreadable", "full"} if installation.disk is None else set()
        self._weights = {act: weight for act, weight in self._weights.items() if act not in absent}
        self._pause_seconds = 1 / acts_per_second
        self._frozen: dict[Member | PrivateRedis | PrivateGateway, float] = {}
        self._disk_fails_until = 0.0
        self._stopping, self._healed, self._ending = threading.Event(), threading.Event(), threading.Event()
        self.tally = Tally()
        self.error: BaseException | None = None

    @property
    def times(self) -> dict[str, int]:
        """How often each act was done."""
        pairs = {"fail_over_valkey": self._installation.valkeys, "fail_over_database": self._installation.databases}
        moved = {act: pair.failovers.total() for act, pair in pairs.items() if pair is not None}
        tally = self.tally
        return {act: tally.kills[act] + tally.harms[_HARMS.get(act, "")] for act in self._weights} | moved

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self._rage()
            self._heal()
        except BaseException as error:
            self.error = error
        finally:
            self._healed.set()
        while not self._ending.wait(_RESTART_SECONDS):
            self._revive()

    def heal(self) -> None:
        """End the killing; returns when everything runs again."""
        self._stopping.set()
        self._healed.wait()
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        self._stopping.set()
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def _rage(self) -> None:
        next_at = time.monotonic()
        while not self._stopping.wait(max(0.0, next_at - time.monotonic())):
            # What takes long, on a machine that is slow, is not made up for: nothing would run any more.
            next_at = max(next_at, time.monotonic()) + self._random.expovariate(1 / self._pause_seconds)
            self._thaw(time.monotonic())
            self._revive()
            if self._installation.valkeys is not None:
                self._installation.valkeys.follow()
            began = time.monotonic()
            getattr(self, f"_{self._next_act()}")()
            self.tally.longest_act_seconds = max(self.tally.longest_act_seconds, time.monotonic() - began)

    def _next_act(self) -> str:
        """By chance; every second time one that has not come to pass yet."""
        undone = [act for act, times in self.times.items() if not times]
        if undone and self._random.random() < 0.5:
            return self._random.choice(undone)
        return self._random.choices(list(self._weights), list(self._weights.values()))[0]

    def _heal(self) -> None:
        self._thaw(float("inf"))
        for pair in self.pairs:
            pair.wait()
        self._revive()

    def _thaw(self, now: float) -> None:
        for frozen in [each for each, until in self._frozen.items() if until <= now]:
            del self._frozen[frozen]
            frozen.send_signal(signal.SIGCONT)
        if self._installation.disk is not None and self._disk_fails_until <= now:
            self._installation.disk.heal()

    def _revive(self) -> None:
        """Start what has ended by itself, such as a server that found no database."""
        for member in self._installation.members:
            if not member.alive and time.monotonic() - self._started_at.get(member, 0.0) > _RESTART_SECONDS:
                self._start(member)

    def _start(self, member: Member) -> None:
        self._frozen.pop(member, None)
        self._started_at[member] = time.monotonic()
        member.start()

    def _settled(self, members: list[Member]) -> Member | None:
        """One that has run for a while: to kill what is only starting would prove little."""
        oldest = time.monotonic() - _SETTLED_SECONDS
        settled = [each for each in members if each.alive and self._started_at.get(each, 0.0) < oldest]
        return self._random.choice(settled) if settled else None

    # What it does

    def _server(self) -> None:
        self._kill(self._settled(self._installation.servers))

    def _process(self) -> None:
        """Kill one process of a server, and at once a store: another process starts in its place during the outage."""
        processes = [pid for each in self._installation.servers if each.alive for pid in each.processes]
        if processes:
            os.kill(self._random.choice(processes), signal.SIGKILL)
            self.tally.kills["process"] += 1
        if "database" in self._weights and self._random.random() < 0.5:
            self._database()
        else:
            self._valkey()

    def _worker(self) -> None:
        self._kill(self._settled(self._installation.workers))

    def _kill(self, member: Member | None) -> None:
        if member is None:
            if "valkey" in self._weights:
                self._valkey()
            return
        member.kill()
        self.tally.kills[member.kind] += 1
        self._start(member)

    def _valkey(self) -> None:
        if not self._is_whole(self._installation.valkeys):
            return
        redis = self._installation.redis
        redis.kill()
        self._frozen.pop(redis, None)
        self.tally.kills["valkey"] += 1
        if not self.tally.harms[_HARMS["valkey"]] or self._random.random() < _AOF_CUTS:
            self._cut_tail()
        redis.start()

    def _cut_tail(self) -> None:
        """What a power cut leaves of an append-only file: any part of its beginning."""
        newest = self._installation.redis.append_only_files()[-1]
        size = newest.stat().st_size
        with newest.open("r+b") as file:
            file.truncate(self._random.randint(size * self._random.randint(0, 1), size))
        self.tally.harms[_HARMS["valkey"]] += 1

    def _database(self) -> None:
        is_settled = self._database_started_at < time.monotonic() - _SETTLED_SECONDS
        if not (is_settled and self._is_whole(self._installation.databases)):
            self._valkey()
            return
        self.tally.kills["database"] += 1
        self._installation.restart_database()
        self._database_started_at = time.monotonic()

    def _gateway(self) -> None:
        gateway = self._installation.gateway
        assert gateway is not None
        self._frozen.pop(gateway, None)
        self.tally.kills["gateway"] += 1
        self._installation.restart_gateway()

    def _sink(self) -> None:
        sink = self._installation.sink
        assert sink is not None
        sink.kill()
        self.tally.kills["sink"] += 1
        self._ending.wait(self._random.uniform(0, 0.5))
        sink.start()

    def _fail_over_valkey(self) -> None:
        if self._installation.redis not in self._frozen:
            self._fail_over(self._installation.valkeys)

    def _fail_over_database(self) -> None:
        self._fail_over(self._installation.databases)

    def _fail_over(self, pair: Pair | None) -> None:
        if pair is None or not pair.is_whole:
            return
        if self._random.random() < _PLANNED:
            left = self._random.choice([Left.KEPT, Left.CUT])
            pair.begin(lambda: pair.switch_over(left))
        else:
            left = self._random.choice([Left.CUT, Left.SILENT])
            pair.begin(lambda: pair.fail_over(left))

    @staticmethod
    def _is_whole(pair: Pair | None) -> bool:
        return pair is None or pair.is_whole

    def _flushall(self) -> None:
        self._installation.flush_all()
        self.tally.harms[_HARMS["flushall"]] += 1

    def _freeze(self) -> None:
        """SIGSTOP for longer than the lease: whoever wakes up finds that others have taken over."""
        anybody: list[Member | PrivateRedis] = [self._installation.redis, *self._installation.members]
        chosen = self._random.choice(anybody)
        if chosen is self._installation.redis and not self._is_whole(self._installation.valkeys):
            return
        if chosen in self._frozen or (isinstance(chosen, Member) and not chosen.alive):
            return
        self._stop(chosen)

    def _freeze_gateway(self) -> None:
        gateway = self._installation.gateway
        assert gateway is not None
        if gateway not in self._frozen:
            self._stop(gateway)
            self.tally.harms[_HARMS["freeze_gateway"]] += 1

    def _stop(self, chosen: Member | PrivateRedis | PrivateGateway) -> None:
        chosen.send_signal(signal.SIGSTOP)
        self._frozen[chosen] = time.monotonic() + LEASE_SECONDS * self._random.uniform(1.2, 2.5)
        self.tally.harms[_HARMS["freeze"]] += 1

    def _unreadable(self) -> None:
        self._fail("unreadable")

    def _full(self) -> None:
        self._fail("full")

    def _fail(self, how: str) -> None:
        """For some while all that is opened is there, but not its bytes; or nothing has room."""
        disk, data = self._installation.disk, str(self._installation.data)
        assert disk is not None
        place = self._random.choice(_PLACES)
        paths = (f"{data}{place}" if self._installation.gateway is None else data,)
        if how == "full":
            disk.fail(writes=paths)
        else:
            disk.fail(reads=paths)
        self._disk_fails_until = time.monotonic() + self._random.uniform(*_DISK_FAILS_SECONDS)
        self.tally.harms[_HARMS[how]] += 1

    def _jump(self) -> None:
        """The clock is set; accounts must not depend on it, and expiry must pause."""
        seconds = self._random.uniform(-MAX_JUMP_SECONDS, MAX_JUMP_SECONDS)
        self._random.choice(self._installation.members).set_clock(seconds)
        self.tally.harms[_HARMS["jump"]] += 1
