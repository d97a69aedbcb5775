"""The table of what a follower does, and the facts that decide what it does next."""

import itertools

import pytest

from tests.support.rows import upload_row
from uploader.storage import followers
from uploader.storage.followers import TRANSITIONS, Follower, FollowerState, is_gathered

GATHERED = followers.GATHERED_BYTES
UPLOAD = upload_row()
# The shortest way to each state.
WAYS: dict[FollowerState, tuple[FollowerState, ...]] = {
    FollowerState.GATHERING: (),
    FollowerState.HASHING: (FollowerState.HASHING,),
    FollowerState.WATCHING: (FollowerState.HASHING, FollowerState.WATCHING),
    FollowerState.ENDED: (FollowerState.ENDED,),
}


def in_state(state: FollowerState) -> Follower:
    follower = Follower(UPLOAD)
    for step in WAYS[state]:
        follower.enter(step)
    assert follower.state is state
    return follower


def test_the_table_knows_every_state_and_each_but_the_last_may_end() -> None:
    assert set(TRANSITIONS) == set(FollowerState)
    for state, following in TRANSITIONS.items():
        assert (FollowerState.ENDED in following) == (state is not FollowerState.ENDED)


@pytest.mark.parametrize(("state", "following"), list(itertools.product(FollowerState, FollowerState)))
def test_a_follower_enters_the_states_of_the_table_and_no_others(
    state: FollowerState, following: FollowerState
) -> None:
    follower = in_state(state)
    if following in TRANSITIONS[state]:
        follower.enter(following)
        assert follower.state is following
    else:
        with pytest.raises(AssertionError, match=f"{state} -> {following}"):
            follower.enter(following)


def test_small_chunks_are_gathered_until_there_are_enough_of_them() -> None:
    assert is_gathered(GATHERED - 1)
    assert not is_gathered(GATHERED)
    follower = Follower(UPLOAD)
    follower.grow(GATHERED - 1)
    assert not follower.has_enough()
    follower.grow(1)
    assert follower.has_enough()
    follower.enter(FollowerState.HASHING)
    assert not follower.has_enough()


def test_a_follower_that_the_merge_waits_for_has_always_enough() -> None:
    follower = Follower(UPLOAD)
    follower.hurry()
    assert follower.has_enough()
    follower.enter(FollowerState.HASHING)
    assert follower.has_enough()


def test_after_hashing_it_goes_on_only_for_chunks_that_came_meanwhile() -> None:
    follower = Follower(UPLOAD)
    follower.grow(1)
    follower.enter(FollowerState.HASHING)
    assert follower.after_hashing(had_digests=True) is FollowerState.ENDED
    follower.grow(1)
    assert follower.after_hashing(had_digests=True) is FollowerState.GATHERING


def test_digests_of_another_process_are_watched_until_they_stand_still() -> None:
    follower = in_state(FollowerState.HASHING)
    assert follower.after_hashing(had_digests=False) is FollowerState.WATCHING
    looks = [follower.look(position) for position in (0, 5, *[5] * followers.LOOKS_IN_VAIN)]
    assert looks == [True] * (len(looks) - 1) + [False]
    assert follower.look(6), "they move again"
    assert follower.after_watching(once_more=True) is FollowerState.HASHING
    assert follower.after_watching(once_more=False) is FollowerState.ENDED
    follower.grow(1)
    assert follower.after_watching(once_more=False) is FollowerState.GATHERING


def test_a_follower_that_the_merge_waits_for_does_not_watch_for_long() -> None:
    follower = in_state(FollowerState.WATCHING)
    follower.hurry()
    assert not follower.look(1)


@pytest.mark.parametrize(
    ("position", "waits"),
    [
        (None, False),  # nothing brings them there
        (0, True),
        (followers.NEARER_BYTES - 1, True),
        (followers.NEARER_BYTES, False),
    ],
)
def test_a_sender_waits_until_the_digests_are_much_nearer(position: int | None, waits: bool) -> None:
    follower = Follower(UPLOAD)
    follower.position = position
    assert follower.keeps_waiting(offset=1 << 40, begun=0) == waits


@pytest.mark.parametrize(("ahead", "waits"), [(0, False), (1, True)])
def test_a_sender_waits_until_the_digests_are_near(ahead: int, waits: bool) -> None:
    follower = Follower(UPLOAD)
    follower.position = 7
    assert follower.keeps_waiting(offset=7 + followers.NEAR_BYTES + ahead, begun=7) == waits
