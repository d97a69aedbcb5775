"""Metrics of several processes: what each has counted is added up, and no counter falls when one ends."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families

from uploader import observability as module
from uploader.observability import Exposition


class Metrics:
    """What one process would count, and its exposition."""

    def __init__(self, directory: Path, *, alone: bool = False) -> None:
        self.registry = CollectorRegistry()
        self.chunks = Counter("uploader_chunks", "Chunks.", ["outcome"], registry=self.registry)
        self.seconds = Histogram("uploader_seconds", "Seconds.", buckets=(0.1, 1, 10), registry=self.registry)
        self.drifts = Gauge("uploader_drifts", "Drifts.", registry=self.registry)
        self.open = Gauge("uploader_open", "Open.", registry=self.registry)
        self.memory = Gauge("process_memory_bytes", "Memory.", registry=self.registry)
        self.exposition = Exposition(directory, alone=alone, registry=self.registry)

    async def values(self) -> dict[str, float]:
        text = (await self.exposition.render()).decode()
        return {
            f"{sample.name}{sample.labels or ''}": sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@asynccontextmanager
async def process(directory: Path, *, alone: bool = False) -> AsyncIterator[Metrics]:
    metrics = Metrics(directory, alone=alone)
    async with metrics.exposition:
        yield metrics


RECORDED, DUPLICATE = "uploader_chunks_total{'outcome': 'recorded'}", "uploader_chunks_total{'outcome': 'duplicate'}"


async def test_whoever_is_asked_answers_for_all(tmp_path: Path) -> None:
    async with process(tmp_path) as a, process(tmp_path) as b:
        a.chunks.labels("recorded").inc(3)
        b.chunks.labels("recorded").inc(4)
        b.chunks.labels("duplicate").inc()
        a.seconds.observe(0.5)
        b.seconds.observe(5)
        await a.values()  # which publishes what it shows
        await b.values()
        for asked in (a, b):
            values = await asked.values()
            assert (values[RECORDED], values[DUPLICATE]) == (7, 1)
            assert (values["uploader_seconds_count"], values["uploader_seconds_sum"]) == (2, 5.5)
            assert [values[f"uploader_seconds_bucket{{'le': '{le}'}}"] for le in ("0.1", "1.0", "10.0", "+Inf")] == [
                0,
                1,
                2,
                2,
            ]


async def test_what_is_counted_is_published_without_being_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PUBLISH_SECONDS", 0.01)
    async with process(tmp_path) as a, process(tmp_path) as b:
        a.chunks.labels("recorded").inc()
        while (await b.values()).get(RECORDED) != 1:
            pass


async def test_no_counter_falls_when_a_process_ends_or_is_replaced(tmp_path: Path) -> None:
    async with process(tmp_path) as watching:
        for round_number in range(1, 4):
            async with process(tmp_path) as comes_and_goes:
                comes_and_goes.chunks.labels("recorded").inc()
            assert (await watching.values())[RECORDED] == round_number
    assert len(list(tmp_path.glob("*.json"))) == 2, "a slot that is free is taken again"
    async with process(tmp_path) as restarted:
        assert (await restarted.values())[RECORDED] == 3


async def test_a_process_that_was_killed_is_counted_as_far_as_it_was_shown(tmp_path: Path) -> None:
    killed = Metrics(tmp_path)
    await killed.exposition.__aenter__()
    killed.chunks.labels("recorded").inc(5)
    shown = (await killed.values())[RECORDED]
    async with process(tmp_path) as other:
        assert (await other.values())[RECORDED] == shown == 5
    await killed.exposition.__aexit__(None, None, None)


async def test_of_a_gauge_that_some_process_sets_the_largest_counts_while_that_process_lives(tmp_path: Path) -> None:
    async with process(tmp_path) as a:
        async with process(tmp_path) as b:
            b.drifts.set(3)
            b.open.set(7)
            await b.values()
            values = await a.values()
            assert (values["uploader_drifts"], values["uploader_open"]) == (3, 0)
        assert (await a.values())["uploader_drifts"] == 0


async def test_what_describes_a_process_is_shown_only_where_there_is_one(tmp_path: Path) -> None:
    async with process(tmp_path / "one", alone=True) as only, process(tmp_path / "more") as one_of_several:
        assert "process_memory_bytes" in await only.values()
        assert "process_memory_bytes" not in await one_of_several.values()


BROKEN = ("", "{", "[]", '{"version": "0"}')
OTHER_VERSION = '{"version": "0.0.0", "figures": [["uploader_chunks_total", {}, 9]], "gauges": []}'


@pytest.mark.parametrize("content", [*BROKEN, OTHER_VERSION])
async def test_a_slot_that_is_broken_or_of_another_version_counts_for_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "0.json").write_text(content)
    (tmp_path / "7.json").write_text(content)
    async with process(tmp_path) as metrics:
        metrics.chunks.labels("recorded").inc()
        values = await metrics.values()
        assert values[RECORDED] == 1
        assert "uploader_chunks_total" not in values


async def test_a_full_disk_stops_nothing(tmp_path: Path) -> None:
    async with process(tmp_path) as metrics:
        metrics.chunks.labels("recorded").inc()
        draft_taken = tmp_path / "0.draft"
        draft_taken.mkdir()
        assert (await metrics.values())[RECORDED] == 1
        draft_taken.rmdir()
        await metrics.values()
        assert re.search(r'"recorded"}, 1.0', (tmp_path / "0.json").read_text())
