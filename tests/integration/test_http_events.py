"""`/admin/events`: how far the sinks are, and telling them once more of what is dead."""

from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import update

from tests.conftest import MakeStack
from tests.integration.test_relaying import relay_all, rows, upload
from tests.support.clock import ManualClock
from tests.support.consumer import consuming, events_file, webhook
from tests.support.problems import problem
from tests.support.stack import Stack
from uploader.database import models
from uploader.service import events
from uploader.service.events import RETRY_SECONDS


async def sinks(root: httpx2.AsyncClient) -> dict[str, Any]:
    response = await root.get("/admin/events")
    assert response.status_code == 200
    assert set(response.json()) == {"sinks", "as_of"}
    return {each.pop("sink"): each for each in response.json()["sinks"]}


async def let_die(stack: Stack, sink: str) -> None:
    """All that waits for a sink, by one attempt more: it is the last."""
    (relay,) = [each for each in stack.services.relays if each.name == sink]
    last = update(models.delivery).where(models.delivery.c.sink == sink).values(attempt=len(RETRY_SECONDS))
    await stack.services.database.transact(lambda connection: connection.execute(last))
    await relay_all(relay)


async def test_each_sink_is_shown_with_what_is_wrong_with_it(
    make_stack_on: MakeStack, tmp_path: Path, clock: ManualClock
) -> None:
    fine = {"condition": "in-force", "waiting": 0, "dead": 0, "lag_seconds": 0.0, "last_error": None}
    async with consuming() as good, consuming() as bad:
        path = events_file(tmp_path / "events", webhook("good", good.url) + webhook("bad", bad.url))
        async with make_stack_on(events=path, clock=clock) as stack:
            root = await stack.client_of("root", admin=True)
            assert await sinks(root) == {"good": fine, "bad": fine}
            bad.status, bad.body = 400, b"an old song"
            await upload(stack, 1, 2)
            await let_die(stack, "bad")
            clock.advance(3600)
            assert await sinks(root) == {
                "good": {**fine, "condition": "late", "waiting": 2, "lag_seconds": 3600.0},
                "bad": {**fine, "dead": 2, "last_error": "400 an old song"},
            }
            for relay in stack.services.relays:
                await relay_all(relay)
            bad.status, bad.body = 410, b"moved away"
            await upload(stack, 3)
            clock.advance(1)
            for relay in stack.services.relays:
                await relay_all(relay)
            gone = {"condition": "off", "waiting": 1, "dead": 2, "lag_seconds": 1.0, "last_error": "410 moved away"}
            assert await sinks(root) == {"good": fine, "bad": gone}
        path = events_file(tmp_path / "events", webhook("good", good.url))
        async with make_stack_on(events=path, clock=clock) as stack:
            root = await stack.client_of("root", admin=True)
            assert await sinks(root) == {"good": fine, "bad": {**gone, "condition": "unnamed"}}
    async with make_stack_on(clock=clock) as stack:
        root = await stack.client_of("root", admin=True)
        assert list(await sinks(root)) == ["bad"]


async def test_dead_ones_are_told_once_more(
    make_stack_on: MakeStack, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_AT_ONCE", 2)
    async with consuming() as one, consuming() as other:
        path = events_file(tmp_path / "events", webhook("one", one.url) + webhook("other", other.url))
        async with make_stack_on(events=path, clock=clock) as stack:
            root = await stack.client_of("root", admin=True)
            one.status = other.status = 500
            await upload(stack, 1, 5)
            for sink in ("one", "other"):
                await let_die(stack, sink)
            told = len(one.requests)
            answer = await root.post("/admin/events/replay", json={"sink": "one"})
            assert (answer.status_code, answer.json()) == (200, {"deliveries": 5})
            assert {name: (each["waiting"], each["dead"]) for name, each in (await sinks(root)).items()} == {
                "one": (5, 0),
                "other": (0, 5),
            }
            one.status = 200
            clock.advance(2)  # the sink seemed to be down
            relay = stack.services.relays[0]
            found = await relay_all(relay), vars(relay), await rows(stack.services.database)
            assert len({event["id"] for event in one.events[told:]}) == 5, found
            assert (await root.post("/admin/events/replay", json={"sink": "one"})).json() == {"deliveries": 0}
            problem(await root.post("/admin/events/replay", json={"sink": "none"}), 404, "not-found")
            problem(await root.post("/admin/events/replay", json={"sinks": "one"}), 422, "invalid-request")
            problem(await stack.client.post("/admin/events/replay"), 403, "forbidden")
            problem(await stack.client.get("/admin/events"), 403, "forbidden")
        # Of a name that is no sink any more nothing becomes due: nobody would take it.
        path = events_file(tmp_path / "events", webhook("one", one.url))
        async with make_stack_on(events=path, clock=clock) as stack:
            root = await stack.client_of("root", admin=True)
            assert (await root.post("/admin/events/replay")).json() == {"deliveries": 0}
            states = sorted((row["sink"], row["state"]) for row in await rows(stack.services.database))
            assert states == [("one", "delivered")] * 5 + [("other", "dead")] * 5
