"""Every Redis key of an upload lies in the slot of its shard."""

import re
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uploader.accounting.keys import FLUSH_QUEUE, MERGE_QUEUE, QueueKeys, shard_of, upload_keys, upload_queue_keys
from uploader.service.ids import new_id

UPLOAD = "00064a5f0c9d7e0123456789abcdef01"


@given(st.text(), st.integers(1, 100))
def test_an_upload_has_one_shard_within_the_number_of_shards(upload_id: str, shards: int) -> None:
    assert 0 <= shard_of(upload_id, shards) < shards
    assert shard_of(upload_id, shards) == crc32(upload_id.encode()) % shards


def test_uploads_spread_over_all_shards() -> None:
    assert {shard_of(new_id(), 16) for _ in range(1000)} == set(range(16))


def test_the_keys_are_those_of_the_design() -> None:
    assert list(upload_keys(7, UPLOAD)) == [
        f"up:{{s07}}:{UPLOAD}",
        f"chunks:{{s07}}:{UPLOAD}",
        "era:{s07}",
        "due:{s07}:flush",
        "minutes:{s07}:flush",
        "due:{s07}:merge",
        "minutes:{s07}:merge",
    ]


@pytest.mark.parametrize("shard", [0, 9, 10, 99])
def test_all_keys_of_a_script_share_one_hash_tag(shard: int) -> None:
    tags = {re.findall(r"\{(.*?)\}", key)[0] for key in upload_keys(shard, UPLOAD)}
    assert tags == {f"s{shard:02d}"}


def test_no_two_keys_are_equal() -> None:
    keys = [*upload_keys(0, UPLOAD), *upload_keys(1, UPLOAD)]
    assert len(set(keys)) == len(keys)


def test_a_queue_finds_the_hash_of_a_task_by_its_prefix() -> None:
    for name in (FLUSH_QUEUE, MERGE_QUEUE):
        queue: QueueKeys = upload_queue_keys(3, name)
        assert queue.task_prefix + UPLOAD == upload_keys(3, UPLOAD).up
