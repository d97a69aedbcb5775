"""How long the head of a request may take, where one timer serves all heads of a connection."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from tests.support.waiting import PATIENCE_SECONDS
from tests.unit import test_direct
from tests.unit.test_direct import GET, LIMITS, Echo, Wire
from uploader.http.server.http11 import HttpConnection


@pytest.fixture
async def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    monkeypatch.setattr(test_direct, "LIMITS", replace(LIMITS, header_timeout_seconds=0.05))
    return Wire(HttpConnection, Echo())


async def is_closed(wire: Wire) -> bool:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not wire.closing:
            await asyncio.sleep(0.01)
    return True


async def rang(wire: Wire) -> None:
    """The timer that was set for an earlier head has run out."""
    timer: Any = wire.protocol._http._head_timer
    async with asyncio.timeout(PATIENCE_SECONDS):
        while timer is not None and wire.protocol._http._head_timer is timer:
            await asyncio.sleep(0.01)


async def test_between_two_requests_no_head_is_late(wire: Wire) -> None:
    await wire.feed(GET)
    await wire.turns()
    await rang(wire)
    assert not wire.closing
    await wire.end()


async def test_a_head_has_its_own_time_whatever_those_before_it_took(wire: Wire) -> None:
    await wire.feed(GET)
    await wire.turns()
    await wire.feed(GET[:-1])
    wire.protocol._http._head_late_at += 60
    await rang(wire)
    assert not wire.closing
    await wire.end()


async def test_a_head_that_is_late_after_others_were_in_time_closes_the_connection(wire: Wire) -> None:
    await wire.feed(GET)
    await wire.turns()
    await rang(wire)
    await wire.feed(GET[:-1])
    assert await is_closed(wire)
    await wire.end()


async def test_a_head_that_never_ends_does_not_cost_the_request_before_it_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(test_direct, "LIMITS", replace(LIMITS, header_timeout_seconds=0.05))
    go_on = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await go_on.wait()
        await Echo()(scope, receive, send)

    wire = Wire(HttpConnection, app)
    await wire.feed(GET + GET[:-1])
    assert wire.protocol.eof_received() is True
    await rang(wire)
    assert not wire.closing
    go_on.set()
    assert await is_closed(wire)
    assert wire.answers.count(b"HTTP/1.1 200") == 1
    await wire.end()
