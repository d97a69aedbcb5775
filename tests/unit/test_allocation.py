"""How a server process treats memory."""

import gc
from collections.abc import Iterator

import pytest

from uploader.http.server.process import collect_seldom


@pytest.fixture
def as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.usefixtures("as_before")
def test_garbage_is_looked_for_seldom_but_it_is_and_not_in_what_was_there_at_the_start() -> None:
    at_start = gc.get_freeze_count()
    collect_seldom()
    assert gc.get_freeze_count() > at_start
    looks = gc.get_stats()[0]["collections"]
    kept: list[list[None]] = []
    for _ in range(5000):
        kept.append([])
    assert gc.get_stats()[0]["collections"] == looks
    for _ in range(50_000):
        kept.append([])
    assert gc.get_stats()[0]["collections"] > looks
