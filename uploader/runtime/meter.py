"""Charges each request to its user, and lets users take turns where not all can be served at once, however many requests
each of them has.

The currency is seconds of CPU. In threads they are measured; on the event loop, where a look at the clock would cost as much
as many a step, they are reckoned from bytes and rows. Each user has a little credit, which comes back with time. A request
begins at once where its user has credit, or where little is under way; else it waits. Those who wait are served by deficit
round robin (Shreedhar and Varghese, SIGCOMM 1995): a credit may fall below zero by what was under way, and a round gives
each user who waits the same. Users with credit go before them, as new flows do in FQ-CoDel (RFC 8290, section 4.1).

All of this is in the memory of one process: several have a share of the load each, and a crash forgives.
"""

import asyncio
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import chain
from math import ceil

from uploader.runtime.bell import Bell


class Kind(StrEnum):
    """The kinds of work that are charged."""

    REQUESTS = "requests"
    THREADS = "threads"
    RECEIVED = "received"
    MADE = "made"
    SENT = "sent"
    JSON = "json"
    ROWS = "rows"


# CPU seconds of the event loop: a request; a byte that comes, is made or goes; a byte of JSON; a statement of MySQL, whose
# driver runs there, and a row of it.
REQUEST_SECONDS = 2e-4
BYTE_SECONDS = 4e-10
JSON_BYTE_SECONDS = 2e-8
STATEMENT_SECONDS = 2e-4
ROW_SECONDS = 1e-5

# What a user may spend at once, and what comes back of it in a second.
CREDIT_SECONDS = 0.02
CREDIT_RATE = 0.1
# How much may be under way before those without credit wait: a core is kept busy by that, and who comes next waits for no
# more than that.
WINDOW_SECONDS = 0.02
# What is under way for so long waits for something else than the CPU, and keeps nobody waiting.
CLAIM_TIMEOUT_SECONDS = 1.0
# For how long a request waits for its turn, and for how long its sender is told to stay away at the most.
TURN_TIMEOUT_SECONDS = 10.0
_MAX_RETRY_AFTER_SECONDS = 60
# Of an operation that nobody has asked for yet; and of one piece of a long body or answer.
_FIRST_CLAIM_SECONDS = 1e-2
_PIECE_CLAIM_SECONDS = 1e-3
_LEAST_CLAIM_SECONDS = 1e-4
# After so long without a request a process is quiet.
QUIET_SECONDS = 10.0
# The weight of the newest request in what the next one is expected to cost.
_NEWEST = 0.125


class NotYourTurn(Exception):
    """A request has waited for its turn in vain; all that its user asks for is likely to be done after so many seconds."""

    def __init__(self, retry_after_seconds: int) -> None:
        super().__init__(retry_after_seconds)
        self.retry_after_seconds = retry_after_seconds


class Lines:
    """The requests of a party that wait, in lines: of each the oldest goes first, and the lines take turns."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[Turn]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __iter__(self) -> "Iterator[Turn]":
        return chain.from_iterable(self._lines.values())

    def append(self, turn: "Turn") -> None:
        self._lines.setdefault(turn.line, deque()).append(turn)

    def popleft(self) -> "Turn":
        line, turns = next(iter(self._lines.items()))
        turn = turns.popleft()
        if turns:
            self._lines.move_to_end(line)
        else:
            del self._lines[line]
        return turn


@dataclass(eq=False, slots=True)
class Party:
    """A user who has something under way, or no full credit."""

    user_id: str
    credit_seconds: float
    # When the credit was last brought up to date.
    seen_at: float
    under_way: int = 0
    # What they are expected to cost, as far as they have a turn.
    claimed_seconds: float = 0.0
    # What was charged since somebody took it.
    spent_seconds: float = 0.0
    waiting: Lines = field(default_factory=Lines)

    @property
    def spare_seconds(self) -> float:
        return self.credit_seconds - self.claimed_seconds


@dataclass(eq=False, slots=True)
class Turn:
    """A request that waits, or goes on. `begin` is called once, when it is its turn."""

    party: Party
    # What it is expected to cost, as far as that is known when it begins.
    expect: Callable[[], float]
    begin: Callable[[], None]
    # In which of its party's lines it waits.
    line: str = ""
    # Its sender is gone, or has waited too long.
    is_void: bool = False
    began_at: float = 0.0
    claim_seconds: float = 0.0


class Turns:
    """Decide whose turn it is: a state machine without a clock of its own."""

    def __init__(self) -> None:
        # The claims of all that is under way.
        self.claimed_seconds: float = 0.0
        self._under_way: OrderedDict[Turn, None] = OrderedDict()
        # Who waits; the first one is served until its credit is spent.
        self._round: deque[Party] = deque()

    @property
    def are_waited_for(self) -> bool:
        return bool(self._round)

    @property
    def parties_waiting(self) -> int:
        return len(self._round)

    def enter(self, turn: Turn, now: float) -> bool:
        """Return whether it begins at once; else it waits."""
        party = turn.party
        self.recover(party, now)
        if not party.waiting:
            if party.spare_seconds > 0:
                self._begin(turn, now)
                return True
            if not self._round and self.claimed_seconds < WINDOW_SECONDS:
                party.credit_seconds = max(party.credit_seconds, 0.0)  # nobody else wants what it has used
                self._begin(turn, now)
                return True
            self._round.append(party)
        party.waiting.append(turn)
        return False

    def leave(self, turn: Turn) -> None:
        """End one that is under way, or had its time. What it cost was charged apart."""
        if turn in self._under_way:
            del self._under_way[turn]
            self.claimed_seconds = self.claimed_seconds - turn.claim_seconds if self._under_way else 0.0
            turn.party.claimed_seconds -= turn.claim_seconds

    def serve(self, now: float) -> None:
        """Begin as many of those who wait as there is room for."""
        while self._round and self._has_room(now):
            turn = self._next(now)
            if turn is not None:
                self._begin(turn, now)
                turn.begin()

    def recover(self, party: Party, now: float) -> None:
        if party.credit_seconds < CREDIT_SECONDS:
            earned = (now - party.seen_at) * CREDIT_RATE
            party.credit_seconds = min(CREDIT_SECONDS, party.credit_seconds + earned)
        party.seen_at = now

    def _has_room(self, now: float) -> bool:
        while self._under_way and self.claimed_seconds >= WINDOW_SECONDS:
            oldest = next(iter(self._under_way))
            if now - oldest.began_at < CLAIM_TIMEOUT_SECONDS:
                return False
            self.leave(oldest)
        return True

    def _next(self, now: float) -> Turn | None:
        """Take the first request of the first party that has credit; None: its sender is gone."""
        if len(self._round) == 1:
            party = self._round[0]
            self.recover(party, now)
            party.credit_seconds = max(party.credit_seconds, 0.0)
        else:
            party = self._first_with_credit(now)
        turn = party.waiting.popleft()
        if not party.waiting:
            self._round.remove(party)
        return None if turn.is_void else turn

    def _first_with_credit(self, now: float) -> Party:
        if all(party.spare_seconds <= 0 for party in self._round):
            for party in self._round:
                self.recover(party, now)
            # As many rounds at once as one of them needs.
            lacking = max(0.0, -max(party.spare_seconds for party in self._round))
            given = (int(lacking / CREDIT_SECONDS) + 1) * CREDIT_SECONDS
            for party in self._round:
                party.credit_seconds += given
            self._round.rotate(-1)  # the one that was served last
        while self._round[0].spare_seconds <= 0:
            self._round.rotate(-1)
        return self._round[0]

    def _begin(self, turn: Turn, now: float) -> None:
        turn.began_at, turn.claim_seconds = now, turn.expect()
        turn.party.claimed_seconds += turn.claim_seconds
        self.claimed_seconds += turn.claim_seconds
        self._under_way[turn] = None


class Cost:
    """The cost of one request so far, and its turn."""

    __slots__ = ("_has_begun", "_line", "_meter", "_operation", "_party", "sent_bytes", "spent_seconds", "turn")

    def __init__(self, meter: "Meter", party: Party, operation: str, line: str) -> None:
        self.spent_seconds = 0.0
        # Of the answer, those that were not charged yet.
        self.sent_bytes = 0
        self._has_begun = False
        self._meter = meter
        self._party = party
        self._operation = operation
        self._line = line
        self.turn: Turn | None = None

    def _expect(self) -> float:
        return self._meter.expected_seconds.get(self._operation, _FIRST_CLAIM_SECONDS)

    def add(self, kind: Kind, seconds: float) -> None:
        """Charge so many seconds of CPU."""
        self.spent_seconds += seconds
        self._party.spent_seconds += seconds
        self._party.credit_seconds -= seconds
        self._meter.spent_seconds[kind] += seconds

    async def begin(self, *, pauses: bool = False) -> None:
        """Begin when it is its turn. `pauses`: it waits for its client next. Raises NotYourTurn."""
        if not pauses or self._meter.turns.are_waited_for:
            await self._take_turn(self._expect, TURN_TIMEOUT_SECONDS)
            if pauses:
                self.pause()
        self._has_begun = True
        self.add(Kind.REQUESTS, REQUEST_SECONDS)

    async def go_on(self) -> None:
        """Wait for a turn of the next piece of a body or an answer."""
        self._charge_sent()
        if self._has_begun and self.turn is None:
            await self._take_turn(_expect_of_piece, None)

    async def _take_turn(self, expect: Callable[[], float], timeout_seconds: float | None) -> None:
        meter = self._meter
        self.turn = turn = Turn(self._party, expect, _nothing, self._line)
        now = meter.now()
        if not meter.turns.enter(turn, now):
            await meter.wait(turn, now, timeout_seconds)

    def pause(self) -> None:
        """End the turn: what comes next is its client's to wait for, not others'."""
        turn, self.turn = self.turn, None
        if turn is not None:
            self._meter.turns.leave(turn)
            if self._meter.turns.are_waited_for:
                self._meter.serve()

    def answered(self, json_bytes: int) -> None:
        """End the turn: the answer is known. What it has cost until now is expected of those that ask for the same."""
        self.add(Kind.JSON, json_bytes * JSON_BYTE_SECONDS)
        self.pause()
        expected = self._expect()
        expected += (self.spent_seconds - expected) * _NEWEST
        self._meter.expected_seconds[self._operation] = max(_LEAST_CLAIM_SECONDS, expected)

    def apart(self) -> "Cost":
        """Begin to charge what this request has begun and does not wait for; it is to `end`."""
        cost = self._meter.open(self._party.user_id, self._operation, self._line)
        cost._has_begun = True
        return cost

    def _charge_sent(self) -> None:
        if self.sent_bytes:
            self.add(Kind.SENT, self.sent_bytes * BYTE_SECONDS)
            self.sent_bytes = 0

    def end(self) -> None:
        if self.turn is not None:
            self.pause()
        self._charge_sent()
        self._party.under_way -= 1
        self._meter.under_way -= 1
        self._meter.ended_at = self._meter.now()


@dataclass(eq=False, slots=True)
class Taken:
    """The charges of a while, and the turns that were waited for: how many, how many in vain, and for how long in all."""

    by_kind: dict[Kind, float] = field(default_factory=dict)
    by_user: dict[str, float] = field(default_factory=dict)
    turns: int = 0
    refusals: int = 0
    turn_seconds: float = 0.0


class Meter:
    """The costs and the turns of one process."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.turns = Turns()
        # What an operation costs until its answer begins, by its route.
        self.expected_seconds: dict[str, float] = {}
        # What was charged since somebody took it.
        self.spent_seconds: defaultdict[Kind, float] = defaultdict(float)
        self._taken = Taken()
        self._parties: dict[str, Party] = {}
        self._looking: asyncio.TimerHandle | None = None
        self.under_way = 0
        self.ended_at = now()
        # Rung by the first request after a quiet while.
        self.bell = Bell()

    @property
    def is_quiet(self) -> bool:
        return not self.under_way and self.now() - self.ended_at >= QUIET_SECONDS

    def open(self, user_id: str, operation: str, line: str = "") -> Cost:
        """Begin to charge a request; it is to `end`. `line`: in which of its party's it waits."""
        if not self.under_way and self.is_quiet:
            self.bell.ring()
        self.under_way += 1
        party = self._parties.get(user_id)
        if party is None:
            party = self._parties[user_id] = Party(user_id, CREDIT_SECONDS, self.now())
        party.under_way += 1
        return Cost(self, party, operation, line)

    def serve(self) -> None:
        self.turns.serve(self.now())
        if self.turns.are_waited_for and self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(CLAIM_TIMEOUT_SECONDS, self._look)

    def take(self) -> "Taken":
        """Return what was charged since this was last called, and forget who has full credit."""
        taken, self._taken = self._taken, Taken()
        taken.by_kind, self.spent_seconds = self.spent_seconds, defaultdict(float)
        now = self.now()
        for party in list(self._parties.values()):
            if party.spent_seconds:
                # What comes by links is a party of its own, and paid for by their owner.
                user_id = party.user_id.partition("/")[0]
                taken.by_user[user_id] = taken.by_user.get(user_id, 0.0) + party.spent_seconds
                party.spent_seconds = 0.0
            self.turns.recover(party, now)
            if not party.under_way and party.credit_seconds >= CREDIT_SECONDS:
                del self._parties[party.user_id]
        return taken

    async def wait(self, turn: Turn, since: float, timeout_seconds: float | None) -> None:
        """Wait for a turn. Raises NotYourTurn."""
        begun = asyncio.get_running_loop().create_future()
        turn.begin = partial(_set, begun)
        self.serve()  # or somebody looks again later
        try:
            async with asyncio.timeout(timeout_seconds):
                await begun
        except TimeoutError:
            self._taken.refusals += 1
            raise NotYourTurn(self._retry_after_seconds(turn.party)) from None
        finally:
            self._taken.turns += 1
            self._taken.turn_seconds += self.now() - since
            if not begun.done() or begun.cancelled():
                turn.is_void = True
                self.turns.leave(turn)  # it may have begun just now

    def _retry_after_seconds(self, party: Party) -> int:
        """Return when all that this party has asked for is likely to be done."""
        waiting = sum(turn.expect() for turn in party.waiting if not turn.is_void)
        seconds = waiting * self.turns.parties_waiting - party.credit_seconds
        return min(_MAX_RETRY_AFTER_SECONDS, max(1, ceil(seconds)))

    def _look(self) -> None:
        self._looking = None
        self.serve()


def _expect_of_piece() -> float:
    return _PIECE_CLAIM_SECONDS


def _nothing() -> None:
    """Do nothing: nobody waits."""


def _set(begun: "asyncio.Future[None]") -> None:
    if not begun.done():
        begun.set_result(None)


# None: nobody's request.
cost_of_request: ContextVar[Cost | None] = ContextVar("cost", default=None)


def charge(kind: Kind, seconds: float) -> None:
    """Charge the request in whose context this runs, on the event loop."""
    cost = cost_of_request.get()
    if cost is not None:
        cost.add(kind, seconds)


@contextmanager
def charged_apart() -> Iterator[None]:
    """Let the request that has begun this task pay for it, though it does not wait for it."""
    cost = cost_of_request.get()
    if cost is None:
        yield
        return
    apart = cost.apart()
    token = cost_of_request.set(apart)
    try:
        yield
    finally:
        cost_of_request.reset(token)
        apart.end()


def pause() -> None:
    """End the turn of the request in whose context this runs: it waits for its client."""
    cost = cost_of_request.get()
    if cost is not None:
        cost.pause()


async def go_on(kind: Kind, count_bytes: int) -> None:
    """Charge the request in whose context this runs for bytes that came, or are made next, and wait for its next turn."""
    cost = cost_of_request.get()
    if cost is not None:
        cost.add(kind, count_bytes * BYTE_SECONDS)
        cost.pause()
        await cost.go_on()
