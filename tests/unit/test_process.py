"""How a server process treats memory."""

import gc
import logging
import resource

import pytest

from uploader.http.server.connections import collect_seldom, connection_limits
from uploader.settings import Settings


def test_garbage_is_looked_for_seldom_but_it_is_and_not_in_what_was_there_at_the_start() -> None:
    before, at_start = gc.get_threshold(), gc.get_freeze_count()
    try:
        collect_seldom()
        assert gc.get_freeze_count() > at_start
        looks = gc.get_stats()[0]["collections"]
        kept = [list[None]() for _ in range(5000)]
        assert gc.get_stats()[0]["collections"] == looks
        kept += [[] for _ in range(50_000)]
        assert gc.get_stats()[0]["collections"] > looks
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


INFINITE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("limited", "raised_to", "connections", "reserved"),
    [
        ((1024, 1024), None, 192, 128),
        ((1024, 4096), 4096, 1536, 512),
        ((1024, 524_288), 65_536, 4096, 1024),
        ((1024, INFINITE), 65_536, 4096, 1024),
        ((100_000, 524_288), None, 4096, 1024),
        ((INFINITE, INFINITE), None, 4096, 1024),
        ((100, 100), None, 1, 12),
    ],
)
def test_the_limit_on_open_files_is_raised_and_kept(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    limited: tuple[int, int],
    raised_to: int | None,
    connections: int,
    reserved: int,
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _what: limited)
    monkeypatch.setattr(resource, "setrlimit", lambda _what, limits: asked.append(limits))
    limits = connection_limits(Settings(max_connections=4096))
    assert asked == ([] if raised_to is None else [(raised_to, limited[1])])
    assert (limits.max_connections, limits.reserved_connections) == (connections, reserved)
    assert any(record.levelno == logging.WARNING for record in caplog.records) == (connections < 4096)
