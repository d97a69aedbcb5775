"""The tables of an upload's states agree with one another."""

from uploader.domain.upload import REDIS_WORDS, STATE_OF_REASON, TRANSITIONS, Reason, State

# A part that is consumed has not ended in vain.
ENDED_WITHOUT_FILE = frozenset(State) - {State.OPEN, State.DONE, State.CONSUMED}


def test_every_state_has_its_transitions() -> None:
    assert set(TRANSITIONS) == set(State)


def test_only_open_moves_and_can_reach_every_other_state() -> None:
    assert TRANSITIONS[State.OPEN] == frozenset(State) - {State.OPEN}
    assert not any(TRANSITIONS[state] for state in State if state is not State.OPEN)


def test_every_reason_leads_to_an_end_without_a_file_and_every_such_end_has_a_reason() -> None:
    assert set(STATE_OF_REASON) == set(Reason)
    assert set(STATE_OF_REASON.values()) == ENDED_WITHOUT_FILE


def test_redis_has_a_word_of_its_own_for_every_closed_state() -> None:
    assert set(REDIS_WORDS) == TRANSITIONS[State.OPEN]
    words = set(REDIS_WORDS.values())
    assert len(words) == len(REDIS_WORDS)
    assert not words & {"open", "merging"}
