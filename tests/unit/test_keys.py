"""Every Redis key of an upload lies in the slot of its shard, and the slots of a Cluster's shards lie apart."""

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from uploader.accounting import keys
from uploader.accounting.keys import FLUSH_QUEUE, MERGE_QUEUE, Shards, shard_of, tag_of, upload_keys
from uploader.domain.names import check_user_id
from uploader.service.ids import new_id

UPLOAD = "00064a5f0c9d7e0123456789abcdef01"


@given(st.text(), st.integers(1, 100))
def test_an_upload_has_one_shard_within_the_number_of_shards(upload_id: str, shards: int) -> None:
    assert 0 <= shard_of(upload_id, shards) < shards
    assert shard_of(upload_id, shards) == crc32(upload_id.encode()) % shards


def test_the_keys_are_those_of_the_design_and_share_the_tag_of_their_shard() -> None:
    assert {shard_of(new_id(), 16) for _ in range(1000)} == set(range(16)), "uploads spread over all"
    for shard, tag in ((7, "{s07}"), (0, "{s00}"), (99, "{s99}")):
        queues = [f"{kind}:{tag}:{queue}" for queue in ("flush", "merge") for kind in ("due", "minutes")]
        assert list(upload_keys(shard, UPLOAD)) == [
            f"up:{tag}:{UPLOAD}",
            f"chunks:{tag}:{UPLOAD}",
            f"era:{tag}",
            *queues,
        ]
    for name in (FLUSH_QUEUE, MERGE_QUEUE):
        assert keys.upload_queue_keys(3, name).task_prefix + UPLOAD == upload_keys(3, UPLOAD).up


@pytest.mark.parametrize("shards", [2, 3, 8, 16, 32, 100])
def test_every_number_of_masters_has_its_part_of_the_shards(shards: int) -> None:
    slots = [key_slot(tag_of(shard, shards).encode()) for shard in range(shards)]
    for masters in range(1, shards + 1):
        # As `valkey-cli --cluster create` divides them.
        per_master = [0] * masters
        for slot in slots:
            per_master[min(round((slot + 0.5) * masters / keys.SLOTS - 0.5), masters - 1)] += 1
        assert max(per_master) - min(per_master) <= 1, (masters, per_master)


@pytest.mark.parametrize("shards", [1, 16])
def test_the_keys_of_an_installation_are_in_the_slots_of_its_shards(shards: int) -> None:
    plain, spread = Shards(shards), Shards(shards)
    spread.spread()
    shard = spread.of(UPLOAD)
    assert plain.upload(UPLOAD) == upload_keys(shard, UPLOAD)
    for family, tag in ((plain, tag_of(shard)), (spread, tag_of(shard, shards))):
        queue = family.queue(shard, FLUSH_QUEUE)
        made = [*family.upload(UPLOAD), *family.sweep(shard), queue.task_prefix, queue.due, queue.wake]
        assert all(tag in key for key in made)
        assert queue.task_prefix + UPLOAD == family.upload(UPLOAD).up
    assert not set(plain.upload(UPLOAD)) & set(spread.upload(UPLOAD))
    challenge = spread.challenge("alice", "c")
    assert len({key_slot(key.encode()) for key in challenge}) == 1


USERS = st.text(st.sampled_from("ab:{}|;.-_@~"), min_size=1, max_size=6)
WORDS = st.text(st.sampled_from("ab:/{}\n"), max_size=6)


@given(USERS, WORDS, USERS, WORDS)
def test_no_key_of_a_user_is_that_of_another(user: str, word: str, other: str, other_word: str) -> None:
    """Whatever characters their ids have: no id has a slash, which parts it from what follows."""
    assert check_user_id(user) == user
    one, another = keys.challenge_keys(0, user, word), keys.challenge_keys(0, other, other_word)
    assert (one.challenge == another.challenge) is ((user, word) == (other, other_word))
    assert {one.probes, one.unproven}.isdisjoint({another.probes, another.unproven}) is (user != other)
