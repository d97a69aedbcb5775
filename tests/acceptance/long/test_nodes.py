"""Real nodes before one bucket, with one MariaDB and one Valkey. A file goes through several of them, one of which ends."""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.nodes import Scale, Sending, sent, through_all_but_one, watched
from tests.support.content import MIB
from tests.support.fleet import Fleet
from tests.support.gateways import Gateway
from uploader.addresses import BucketAddress


def in_order_through_two(sending: Sending, _scale: Scale) -> None:
    """The first one is stopped in the middle, as whoever runs it does."""
    sending.through(1, until=sending.content.chunk_count // 2)
    assert sending.fleet.servers[1].stop() == 0
    sending.through(0)


@pytest.mark.parametrize(
    ("way", "scale", "most_read_bytes"),
    [
        (through_all_but_one, Scale(file_bytes=64 * MIB), 64 * MIB),
        (in_order_through_two, Scale(file_bytes=64 * MIB), 0),
    ],
    ids=["in parallel, one killed", "in order, one stopped"],
)
def test_a_file_that_goes_through_nodes_of_which_one_ends(
    way: Callable[[Sending, Scale], None],
    scale: Scale,
    most_read_bytes: int,
    s3_gateway: Gateway,
    s3_address: BucketAddress,
    tmp_path: Path,
) -> None:
    with (
        watched(s3_gateway, tmp_path / "nginx") as (gateway, requests),
        Fleet(tmp_path / "fleet", gateway, s3_address.prefix, count=3) as fleet,
    ):
        outcome = sent(fleet, requests, scale, way)
        assert outcome.is_right
        assert outcome.read_bytes <= most_read_bytes
        assert fleet.drifts() == []
