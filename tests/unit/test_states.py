"""Saved states of digests: what was sealed is believed, and nothing else; and what a follower of a disk does next."""

from dataclasses import replace

import pytest

from tests.support.content import Content
from tests.support.rows import upload_row
from uploader.domain.ledger import SavedDigest
from uploader.storage.base import Digests
from uploader.storage.hashes import PrefixHashes
from uploader.storage.local import digests
from uploader.storage.local.digests import Follower
from uploader.storage.s3.digests import fence_of, finished, restored, sealed

CONTENT = Content(1000)
UPLOAD = upload_row(size=CONTENT.size, md5=CONTENT.md5)
DIGESTS = Digests(CONTENT.md5, CONTENT.sha256)


def hashes(*, with_md5: bool = True) -> PrefixHashes:
    made = PrefixHashes(with_md5=with_md5)
    made.update(memoryview(CONTENT.data)[:700])
    return made


def test_the_hashes_go_on_from_what_was_sealed() -> None:
    saved = sealed(UPLOAD.id, 3, hashes())
    assert fence_of(saved, UPLOAD.id) == 3
    found = restored(saved, UPLOAD, 3)
    assert found is not None
    found.update(memoryview(CONTENT.data)[700:])
    assert (found.position, found.is_restored, found.digests()) == (1000, True, DIGESTS)
    assert not hashes().is_restored
    assert found.copy().is_restored


def test_what_is_of_another_fence_or_upload_is_not_believed() -> None:
    saved = sealed(UPLOAD.id, 3, hashes(), DIGESTS)
    assert restored(saved, UPLOAD, 4) is None
    assert finished(saved, UPLOAD, 4) is None
    assert fence_of(saved, upload_row().id) is None
    assert restored(None, UPLOAD, 3) is None
    assert finished(None, UPLOAD, 3) is None


@pytest.mark.parametrize("with_digests", [True, False])
def test_not_one_bit_may_be_another(with_digests: bool) -> None:
    saved = sealed(UPLOAD.id, 3, hashes(), DIGESTS if with_digests else None)
    damaged = [SavedDigest(saved.position, saved.state[:length], saved.digests) for length in (0, 11, 12, 100)]
    damaged += [replace(saved, position=701), replace(saved, digests=(None, "0" * 64))]
    for bit in range(len(saved.state) * 8):
        state = bytearray(saved.state)
        state[bit // 8] ^= 1 << bit % 8
        damaged.append(replace(saved, state=bytes(state)))
    assert all(fence_of(each, UPLOAD.id) is None for each in damaged)


def test_digests_are_believed_if_they_are_what_is_needed() -> None:
    sha256 = Digests(None, CONTENT.sha256)
    assert finished(sealed(UPLOAD.id, 3, hashes(), DIGESTS), UPLOAD, 3) == DIGESTS
    assert finished(sealed(UPLOAD.id, 3, hashes()), UPLOAD, 3) is None
    alone = sealed(UPLOAD.id, 3, hashes(with_md5=False), sha256)
    assert finished(alone, UPLOAD, 3) is None
    assert restored(alone, UPLOAD, 3) is None
    without = replace(UPLOAD, md5=None, computes_md5=False)
    assert finished(alone, without, 3) == sha256
    assert restored(alone, without, 3) is not None


@pytest.fixture
def follower() -> Follower:
    return Follower(upload_row())


def test_small_chunks_are_gathered_until_there_are_enough_of_them(follower: Follower) -> None:
    follower.grow(digests.GATHERED_BYTES - 1)
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


def test_a_sender_waits_for_near_digests(follower: Follower) -> None:
    far, near = 1 << 40, 7 + digests.NEAR_BYTES
    for position, offset, begun, waits in (
        (None, far, 0, False),  # nothing brings them there
        (0, far, 0, True),
        (digests.NEARER_BYTES - 1, far, 0, True),
        (digests.NEARER_BYTES, far, 0, False),  # much nearer than when it began
        (7, near, 7, False),
        (7, near + 1, 7, True),
    ):
        follower.position = position
        assert follower.keeps_waiting(offset, begun, digests.NEAR_BYTES) == waits
