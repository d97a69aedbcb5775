"""The facts that decide what a follower does next."""

import pytest

from tests.support.rows import upload_row
from uploader.storage.local import digests
from uploader.storage.local.digests import Follower

GATHERED = digests.GATHERED_BYTES


@pytest.fixture
def follower() -> Follower:
    return Follower(upload_row())


def test_small_chunks_are_gathered_until_there_are_enough_of_them(follower: Follower) -> None:
    follower.grow(GATHERED - 1)
    assert not follower.has_enough()
    follower.grow(1)
    assert follower.has_enough()
    follower.begin_round()
    assert not follower.has_enough()


def test_a_follower_that_the_merge_waits_for_has_always_enough_and_does_not_watch_for_long(follower: Follower) -> None:
    follower.hurry()
    assert follower.has_enough()
    follower.begin_round()
    assert follower.has_enough()
    assert not follower.look(1)


def test_digests_of_another_process_are_watched_until_they_stand_still(follower: Follower) -> None:
    looks = [follower.look(position) for position in (0, 5, *[5] * digests.LOOKS_IN_VAIN)]
    assert looks == [True] * (len(looks) - 1) + [False]
    assert follower.look(6), "they move again"


@pytest.mark.parametrize(
    ("position", "offset", "begun", "waits"),
    [
        (None, 1 << 40, 0, False),  # nothing brings them there
        (0, 1 << 40, 0, True),
        (digests.NEARER_BYTES - 1, 1 << 40, 0, True),
        (digests.NEARER_BYTES, 1 << 40, 0, False),
        (7, 7 + digests.NEAR_BYTES, 7, False),
        (7, 8 + digests.NEAR_BYTES, 7, True),
    ],
)
def test_a_sender_waits_for_near_digests(
    follower: Follower, position: int | None, offset: int, begun: int, waits: bool
) -> None:
    follower.position = position
    assert follower.keeps_waiting(offset=offset, begun=begun) == waits
