"""The table of what a follower does, and the facts that decide what it does next."""

import itertools

import pytest

from uploader.storage.local import digests
from uploader.storage.local.digests import TRANSITIONS, FollowerProgress, FollowerState, is_gathered

GATHERED = digests.GATHERED_BYTES
# The shortest way to each state.
WAYS: dict[FollowerState, tuple[FollowerState, ...]] = {
    FollowerState.GATHERING: (),
    FollowerState.HASHING: (FollowerState.HASHING,),
    FollowerState.WATCHING: (FollowerState.HASHING, FollowerState.WATCHING),
    FollowerState.ENDED: (FollowerState.ENDED,),
}


def in_state(state: FollowerState) -> FollowerProgress:
    progress = FollowerProgress()
    for step in WAYS[state]:
        progress.enter(step)
    assert progress.state is state
    return progress


def test_the_table_knows_every_state_and_each_but_the_last_may_end() -> None:
    assert set(TRANSITIONS) == set(FollowerState)
    for state, following in TRANSITIONS.items():
        assert (FollowerState.ENDED in following) == (state is not FollowerState.ENDED)


@pytest.mark.parametrize(("state", "following"), list(itertools.product(FollowerState, FollowerState)))
def test_a_follower_enters_the_states_of_the_table_and_no_others(
    state: FollowerState, following: FollowerState
) -> None:
    progress = in_state(state)
    if following in TRANSITIONS[state]:
        progress.enter(following)
        assert progress.state is following
    else:
        with pytest.raises(AssertionError, match=f"{state} -> {following}"):
            progress.enter(following)


def test_small_chunks_are_gathered_until_there_are_enough_of_them() -> None:
    assert is_gathered(GATHERED - 1)
    assert not is_gathered(GATHERED)
    progress = FollowerProgress()
    progress.grow(GATHERED - 1)
    assert not progress.has_enough()
    progress.grow(1)
    assert progress.has_enough()
    progress.enter(FollowerState.HASHING)
    assert not progress.has_enough()


def test_a_follower_that_the_merge_waits_for_has_always_enough() -> None:
    progress = FollowerProgress()
    progress.hurried = True
    assert progress.has_enough()
    progress.enter(FollowerState.HASHING)
    assert progress.has_enough()


def test_after_hashing_it_goes_on_only_for_chunks_that_came_meanwhile() -> None:
    progress = FollowerProgress()
    progress.grow(1)
    progress.enter(FollowerState.HASHING)
    assert progress.after_hashing(had_digests=True) is FollowerState.ENDED
    progress.grow(1)
    assert progress.after_hashing(had_digests=True) is FollowerState.GATHERING


def test_digests_of_another_process_are_watched_until_they_stand_still() -> None:
    progress = in_state(FollowerState.HASHING)
    assert progress.after_hashing(had_digests=False) is FollowerState.WATCHING
    looks = [progress.look(position) for position in (0, 5, *[5] * digests.LOOKS_IN_VAIN)]
    assert looks == [True] * (len(looks) - 1) + [False]
    assert progress.look(6), "they move again"
    assert progress.after_watching(once_more=True) is FollowerState.HASHING
    assert progress.after_watching(once_more=False) is FollowerState.ENDED
    progress.grow(1)
    assert progress.after_watching(once_more=False) is FollowerState.GATHERING


def test_a_follower_that_the_merge_waits_for_does_not_watch_for_long() -> None:
    progress = in_state(FollowerState.WATCHING)
    progress.hurried = True
    assert not progress.look(1)


@pytest.mark.parametrize(
    ("position", "waits"),
    [
        (None, False),  # nothing brings them there
        (0, True),
        (digests.NEARER_BYTES - 1, True),
        (digests.NEARER_BYTES, False),
    ],
)
def test_a_sender_waits_until_the_digests_are_much_nearer(position: int | None, waits: bool) -> None:
    progress = FollowerProgress()
    progress.position = position
    assert progress.keeps_waiting(offset=1 << 40, begun=0) == waits


@pytest.mark.parametrize(("ahead", "waits"), [(0, False), (1, True)])
def test_a_sender_waits_until_the_digests_are_near(ahead: int, waits: bool) -> None:
    progress = FollowerProgress()
    progress.position = 7
    assert progress.keeps_waiting(offset=7 + digests.NEAR_BYTES + ahead, begun=7) == waits
