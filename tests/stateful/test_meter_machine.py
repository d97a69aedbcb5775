"""Turns in any order, with clients that give up and work that costs more than was expected: nobody starves, nobody waits
while there is room, and what was only claimed is given back."""

from functools import partial

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from uploader.runtime.meter import (
    CLAIM_TIMEOUT_SECONDS,
    CREDIT_RATE,
    CREDIT_SECONDS,
    WINDOW_SECONDS,
    Party,
    Turn,
    Turns,
)

USERS = ("alice", "bob", "carol")
claims = st.sampled_from((0.0001, 0.001, 0.01, 0.03, 0.5))


class MeterMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.turns = Turns()
        self.parties = {user: Party(user, CREDIT_SECONDS, self.now) for user in USERS}
        self.waiting: list[Turn] = []
        self.begun: list[Turn] = []
        # What each has spent in all.
        self.spent = dict.fromkeys(USERS, 0.0)

    @rule(user=st.sampled_from(USERS), claim=claims)
    def ask(self, user: str, claim: float) -> None:
        turn = Turn(self.parties[user], lambda: claim, lambda: None)
        turn.begin = partial(self._begin, turn)
        had_credit = self.parties[user].spare_seconds > 0 and not self.parties[user].waiting
        if self.turns.enter(turn, self.now):
            self.begun.append(turn)
        else:
            assert not had_credit
            self.waiting.append(turn)
            self.turns.serve(self.now)

    def _begin(self, turn: Turn) -> None:
        mine = [other for other in self.waiting if other.party is turn.party and not other.is_void]
        assert mine[0] is turn  # in the order of one's own requests
        self.waiting.remove(turn)
        self.begun.append(turn)

    @precondition(lambda self: self.begun)
    @rule(which=st.integers(0, 1000), cost=claims)
    def end(self, which: int, cost: float) -> None:
        turn = self.begun.pop(which % len(self.begun))
        turn.party.credit_seconds -= cost
        self.spent[turn.party.user_id] += cost
        self.turns.leave(turn)
        self.turns.serve(self.now)

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 1000))
    def give_up(self, which: int) -> None:
        self.waiting[which % len(self.waiting)].is_void = True

    @rule(seconds=st.sampled_from((0.001, 0.05, CLAIM_TIMEOUT_SECONDS)))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.turns.serve(self.now)

    @invariant()
    def nobody_waits_while_there_is_room(self) -> None:
        if any(not turn.is_void for turn in self.waiting):
            assert self.turns.claimed_seconds >= WINDOW_SECONDS

    @invariant()
    def claims_are_those_of_what_is_under_way(self) -> None:
        claimed = sum(turn.claim_seconds for turn in self.begun)
        assert self.turns.claimed_seconds <= claimed + 1e-9  # some had their time
        if not self.begun:
            assert self.turns.claimed_seconds == 0.0

    @invariant()
    def no_credit_is_more_than_full(self) -> None:
        for party in self.parties.values():
            # A round gives as much as makes up for what is claimed.
            assert party.spare_seconds <= 2 * CREDIT_SECONDS + sum(turn.claim_seconds for turn in self.begun)

    def teardown(self) -> None:
        """All that wait have their turn, and time forgives what is owed."""
        for _ in range(len(self.waiting) + len(self.begun) + 1):
            for turn in list(self.begun):
                self.begun.remove(turn)
                self.turns.leave(turn)
            self.turns.serve(self.now)
        assert not self.begun
        assert not [turn for turn in self.waiting if not turn.is_void]
        assert not self.turns.are_waited_for
        self.now += (CREDIT_SECONDS + sum(self.spent.values())) / CREDIT_RATE
        for party in self.parties.values():
            self.turns.recover(party, self.now)
            assert party.credit_seconds >= CREDIT_SECONDS - 1e-9


TestMeter = MeterMachine.TestCase
