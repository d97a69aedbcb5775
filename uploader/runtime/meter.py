"""Charges the cost of each request to its user, and lets users take turns when the server is busy, however many
requests each user has.

Costs are seconds of CPU. In threads they are measured. On the event loop they are estimated from bytes and rows,
because a look at the clock would cost as much as many steps. Each user has a small credit, which recovers with time. A
request begins at once if its user has credit or little work is under way; else it waits. Waiting users are served by
deficit round robin (Shreedhar and Varghese, SIGCOMM 1995): a credit may fall below zero by the work under way, and each
round gives all waiting users the same credit. Users with credit go first, like new flows in FQ-CoDel (RFC 8290, section
4.1).

All state is in the memory of one process: each of several processes has a share of the load, and a crash resets all
credits.
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


# CPU seconds on the event loop: for a request; for a byte received, made or sent; for a byte of JSON; for a MySQL
# statement and a row, because the MySQL driver runs on the event loop.
REQUEST_SECONDS = 2e-4
BYTE_SECONDS = 4e-10
JSON_BYTE_SECONDS = 2e-8
STATEMENT_SECONDS = 2e-4
ROW_SECONDS = 1e-5

# The seconds that a user may spend at once, and the seconds that recover in each second.
CREDIT_SECONDS = 0.02
CREDIT_RATE = 0.1
# The work that may be under way before users without credit wait: enough to keep a core busy, and short enough for the
# next request to wait for.
WINDOW_SECONDS = 0.02
# Work that is under way for longer waits for something other than the CPU, and blocks no other request.
CLAIM_TIMEOUT_SECONDS = 1.0
# How long a request waits for its turn, and the longest time in `Retry-After`.
TURN_TIMEOUT_SECONDS = 10.0
_MAX_RETRY_AFTER_SECONDS = 60
# Expected costs: of an operation before its first request, and of one piece of a long body or answer; and the minimum.
_FIRST_CLAIM_SECONDS = 1e-2
_PIECE_CLAIM_SECONDS = 1e-3
_LEAST_CLAIM_SECONDS = 1e-4
# A process without requests for this long is quiet.
QUIET_SECONDS = 10.0
# The weight of the latest request in the expected cost of an operation.
_NEWEST = 0.125


class NotYourTurn(Exception):
    """A request has waited too long for its turn. All requests of its user are likely to be done after
    `retry_after_seconds`."""

    def __init__(self, retry_after_seconds: int) -> None:
        super().__init__(retry_after_seconds)
        self.retry_after_seconds = retry_after_seconds


class Lines:
    """The waiting requests of a party, in lines. The oldest request of a line goes first, and the lines take turns."""

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
    """A user with requests under way, or without full credit."""

    user_id: str
    credit_seconds: float
    # When the credit was last updated.
    seen_at: float
    under_way: int = 0
    # The expected cost of the requests that have a turn.
    claimed_seconds: float = 0.0
    # The charges since the last `Meter.take`.
    spent_seconds: float = 0.0
    waiting: Lines = field(default_factory=Lines)

    @property
    def spare_seconds(self) -> float:
        return self.credit_seconds - self.claimed_seconds


@dataclass(eq=False, slots=True)
class Turn:
    """The turn of a request that waits or is under way. `begin` is called once, when the turn comes."""

    party: Party
    # Returns the expected cost, as known when the turn begins.
    expect: Callable[[], float]
    begin: Callable[[], None]
    # The line of the party in which the turn waits.
    line: str = ""
    # True: the client is gone, or the request has waited too long.
    is_void: bool = False
    began_at: float = 0.0
    claim_seconds: float = 0.0


class Turns:
    """Decides whose turn it is: a state machine without a clock."""

    def __init__(self) -> None:
        # The sum of the claims under way.
        self.claimed_seconds: float = 0.0
        self._under_way: OrderedDict[Turn, None] = OrderedDict()
        # The waiting parties. The first is served until its credit is spent.
        self._round: deque[Party] = deque()

    @property
    def are_waited_for(self) -> bool:
        return bool(self._round)

    @property
    def parties_waiting(self) -> int:
        return len(self._round)

    def enter(self, turn: Turn, now: float) -> bool:
        """Begin the turn and return True, or let it wait and return False."""
        party = turn.party
        self.recover(party, now)
        if not party.waiting:
            if party.spare_seconds > 0:
                self._begin(turn, now)
                return True
            if not self._round and self.claimed_seconds < WINDOW_SECONDS:
                party.credit_seconds = max(party.credit_seconds, 0.0)  # no other user needs the overdraft
                self._begin(turn, now)
                return True
            self._round.append(party)
        party.waiting.append(turn)
        return False

    def leave(self, turn: Turn) -> None:
        """End a turn under way, or a turn that timed out. The cost is charged separately."""
        if turn in self._under_way:
            del self._under_way[turn]
            self.claimed_seconds = self.claimed_seconds - turn.claim_seconds if self._under_way else 0.0
            turn.party.claimed_seconds -= turn.claim_seconds

    def serve(self, now: float) -> None:
        """Begin waiting turns while the window has space."""
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
        """Take the first request of the first party with credit. Return None if its client is gone."""
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
            # As many rounds at once as the party with the highest credit needs.
            lacking = max(0.0, -max(party.spare_seconds for party in self._round))
            given = (int(lacking / CREDIT_SECONDS) + 1) * CREDIT_SECONDS
            for party in self._round:
                party.credit_seconds += given
            self._round.rotate(-1)  # the party that was served last
        while self._round[0].spare_seconds <= 0:
            self._round.rotate(-1)
        return self._round[0]

    def _begin(self, turn: Turn, now: float) -> None:
        turn.began_at, turn.claim_seconds = now, turn.expect()
        turn.party.claimed_seconds += turn.claim_seconds
        self.claimed_seconds += turn.claim_seconds
        self._under_way[turn] = None


class Cost:
    """The cost of a request so far, and its turn."""

    __slots__ = ("_has_begun", "_line", "_meter", "_operation", "_party", "sent_bytes", "spent_seconds", "turn")

    def __init__(self, meter: "Meter", party: Party, operation: str, line: str) -> None:
        self.spent_seconds = 0.0
        # Bytes of the answer that were not charged yet.
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
        """Charge seconds of CPU."""
        self.spent_seconds += seconds
        self._party.spent_seconds += seconds
        self._party.credit_seconds -= seconds
        self._meter.spent_seconds[kind] += seconds

    async def begin(self, *, pauses: bool = False) -> None:
        """Wait for the turn of the request, and begin. `pauses`: the request waits for its client next. Raises
        NotYourTurn."""
        if not pauses or self._meter.turns.are_waited_for:
            await self._take_turn(self._expect, TURN_TIMEOUT_SECONDS)
            if pauses:
                self.pause()
        self._has_begun = True
        self.add(Kind.REQUESTS, REQUEST_SECONDS)

    async def go_on(self) -> None:
        """Wait for the turn of the next piece of a body or an answer."""
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
        """End the turn, because the request waits for its client next."""
        turn, self.turn = self.turn, None
        if turn is not None:
            self._meter.turns.leave(turn)
            if self._meter.turns.are_waited_for:
                self._meter.serve()

    def answered(self, json_bytes: int) -> None:
        """End the turn, because the answer is known. The cost so far updates the expected cost of the operation."""
        self.add(Kind.JSON, json_bytes * JSON_BYTE_SECONDS)
        self.pause()
        expected = self._expect()
        expected += (self.spent_seconds - expected) * _NEWEST
        self._meter.expected_seconds[self._operation] = max(_LEAST_CLAIM_SECONDS, expected)

    def apart(self) -> "Cost":
        """Return the cost of work that the request starts and does not wait for. Call `end` on the result."""
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
    """The charges of a period, and the waits for turns: their number, the number in vain, and their seconds."""

    by_kind: dict[Kind, float] = field(default_factory=dict)
    by_user: dict[str, float] = field(default_factory=dict)
    turns: int = 0
    refusals: int = 0
    turn_seconds: float = 0.0


class Meter:
    """The costs and turns of one process."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.turns = Turns()
        # The expected cost of an operation until its answer begins, by route.
        self.expected_seconds: dict[str, float] = {}
        # The charges since the last `take`.
        self.spent_seconds: defaultdict[Kind, float] = defaultdict(float)
        self._taken = Taken()
        self._parties: dict[str, Party] = {}
        self._looking: asyncio.TimerHandle | None = None
        self.under_way = 0
        self.ended_at = now()
        # Rung by the first request after a quiet period.
        self.bell = Bell()

    @property
    def is_quiet(self) -> bool:
        return not self.under_way and self.now() - self.ended_at >= QUIET_SECONDS

    def open(self, user_id: str, operation: str, line: str = "") -> Cost:
        """Begin to charge a request; call `end` on the result. `line`: the line of the party in which the request
        waits."""
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
        """Return the charges since the last call, and forget parties with full credit."""
        taken, self._taken = self._taken, Taken()
        taken.by_kind, self.spent_seconds = self.spent_seconds, defaultdict(float)
        now = self.now()
        for party in list(self._parties.values()):
            if party.spent_seconds:
                # Uploads and downloads by links are a party of their own; the owner of the links pays for them.
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
        self.serve()  # else the turn waits for the next look
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
                self.turns.leave(turn)  # the turn may have begun just now

    def _retry_after_seconds(self, party: Party) -> int:
        """Return the seconds after which all waiting requests of this party are likely to be done."""
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


# None outside of a request.
cost_of_request: ContextVar[Cost | None] = ContextVar("cost", default=None)


def charge(kind: Kind, seconds: float) -> None:
    """Charge the current request for work on the event loop."""
    cost = cost_of_request.get()
    if cost is not None:
        cost.add(kind, seconds)


@contextmanager
def charged_apart() -> Iterator[None]:
    """Charge the current request for work that it starts but does not wait for."""
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
    """End the turn of the current request, because it waits for the client."""
    cost = cost_of_request.get()
    if cost is not None:
        cost.pause()


async def go_on(kind: Kind, count_bytes: int) -> None:
    """Charge the current request for bytes that came or are about to be made, and wait for its next turn."""
    cost = cost_of_request.get()
    if cost is not None:
        cost.add(kind, count_bytes * BYTE_SECONDS)
        cost.pause()
        await cost.go_on()
