"""The facts that decide what a follower does next."""

import pytest

from tests.support.rows import upload_row
from uploader.storage.local import digests
from uploader.storage.local.digests import Follower

GATHERED = digests.GATHERED_BYTES
UPLOAD = upload_row()


def test_small_chunks_are_gathered_until_there_are_enough_of_them() -> None:
    follower = Follower(UPLOAD)
    follower.grow(GATHERED - 1)
    assert not follower.has_enough()
    follower.grow(1)
    assert follower.has_enough()
    follower.begin_round()
    assert not follower.has_enough()


def test_a_follower_that_the_merge_waits_for_has_always_enough() -> None:
    follower = Follower(UPLOAD)
    follower.hurry()
    assert follower.has_enough()
    follower.begin_round()
    assert follower.has_enough()


def test_digests_of_another_process_are_watched_until_they_stand_still() -> None:
    follower = Follower(UPLOAD)
    looks = [follower.look(position) for position in (0, 5, *[5] * digests.LOOKS_IN_VAIN)]
    assert looks == [True] * (len(looks) - 1) + [False]
    assert follower.look(6), "they move again"


def test_a_follower_that_the_merge_waits_for_does_not_watch_for_long() -> None:
    follower = Follower(UPLOAD)
    follower.hurry()
    assert not follower.look(1)


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
    follower = Follower(UPLOAD)
    follower.position = position
    assert follower.keeps_waiting(offset=1 << 40, begun=0) == waits


@pytest.mark.parametrize(("ahead", "waits"), [(0, False), (1, True)])
def test_a_sender_waits_until_the_digests_are_near(ahead: int, waits: bool) -> None:
    follower = Follower(UPLOAD)
    follower.position = 7
    assert follower.keeps_waiting(offset=7 + digests.NEAR_BYTES + ahead, begun=7) == waits
