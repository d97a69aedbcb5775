"""A log record is one line, whatever is in it, and carries the id of its request."""

import asyncio
import io
import json
import logging
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families

from uploader.runtime.observability import (
    Exposition,
    JsonFormatter,
    LineHandler,
    TextFormatter,
    configure_logging,
    request_id,
)


def a_record(message: str, *arguments: object, **extra: object) -> logging.LogRecord:
    record = logging.makeLogRecord({"name": "uploader.test", "levelname": "WARNING", "msg": message, "created": 0.25})
    record.args = arguments
    for name, value in extra.items():
        setattr(record, name, value)
    return record


@given(st.text(), st.text())
def test_no_text_whatever_makes_a_second_line(message: str, value: str) -> None:
    record = a_record("%s", message, value=value, values=[value])
    for formatter in (JsonFormatter(), TextFormatter()):
        assert formatter.format(record).isprintable()
    assert json.loads(JsonFormatter().format(record))["event"] == message


def test_a_json_line_has_time_level_logger_event_and_extra() -> None:
    line = json.loads(JsonFormatter().format(a_record("merged %s", "it", upload_id="u", size=5)))
    assert line == {
        "time": "1970-01-01T00:00:00.250+00:00",
        "level": "warning",
        "logger": "uploader.test",
        "event": "merged it",
        "upload_id": "u",
        "size": 5,
    }
    assert TextFormatter().format(a_record("merged", size=5)) == "00:00:00 warning merged size=5"


def test_what_json_has_no_word_for_is_spelt_out() -> None:
    values = [Path("a/b"), ValueError("broken"), {1: Path("a")}, "\udcff", 1 << 70]
    line = JsonFormatter().format(a_record("event", values=values))
    assert line.isprintable()
    assert json.loads(line)["values"] == ["a/b", "broken", {"1": "a"}, "\udcff", 1 << 70]


def test_a_record_carries_the_id_of_its_request_where_there_is_one() -> None:
    assert "request_id" not in JsonFormatter().format(a_record("event"))
    token = request_id.set("the-request")
    assert json.loads(JsonFormatter().format(a_record("event")))["request_id"] == "the-request"
    assert TextFormatter().format(a_record("event")).endswith('request_id="the-request"')
    request_id.reset(token)


def test_an_exception_is_told_with_its_traceback() -> None:
    record = a_record("request failed")
    try:
        raise ValueError("broken")
    except ValueError:
        record.exc_info = sys.exc_info()
    assert json.loads(JsonFormatter().format(record))["exception"].endswith("ValueError: broken")
    text = TextFormatter().format(record)
    assert text.startswith("00:00:00 warning request failed\n    Traceback")
    assert text.endswith("    ValueError: broken")


def test_logs_go_to_standard_error_as_format_and_level_are_set(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        configure_logging("warning", "json")
        logging.getLogger("uploader.test").info("too little")
        logging.getLogger("uploader.test").warning("enough")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [json.loads(line)["event"] for line in captured.err.splitlines()] == ["enough"]


class Stream(io.StringIO):
    """Keeps each write apart."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str) -> int:
        self.writes.append(text)
        return super().write(text)


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def log(stream: Stream) -> logging.Logger:
    log = logging.Logger("uploader.test")
    log.addHandler(LineHandler(stream))
    return log


async def test_the_lines_of_one_turn_are_written_together_and_others_at_once(
    stream: Stream, log: logging.Logger
) -> None:
    log.info("one")
    log.info("two")
    assert stream.writes == []
    await asyncio.sleep(0)
    log.info("three")
    log.warning("four")
    assert stream.writes == ["one\ntwo\n", "three\nfour\n"]
    log.info("five")
    await asyncio.to_thread(log.info, "six")
    assert stream.getvalue() == "one\ntwo\nthree\nfour\nfive\nsix\n"
    written = len(stream.writes)
    await asyncio.sleep(0)
    assert len(stream.writes) == written


def test_without_a_loop_and_at_the_end_nothing_is_left(stream: Stream, log: logging.Logger) -> None:
    async def last_words() -> None:
        log.info("two")

    log.info("one")
    assert stream.writes == ["one\n"]
    asyncio.run(last_words())
    assert stream.writes == ["one\n", "two\n"]


async def test_a_line_that_nobody_reads_is_no_error(log: logging.Logger, stream: Stream) -> None:
    stream.close()
    log.warning("one")
    log.info("two")
    await asyncio.sleep(0)
    assert stream.writes == ["one\n", "two\n"]


class Metrics:
    """What one process would count, and its exposition."""

    def __init__(self, directory: Path, *, alone: bool = False) -> None:
        registry = CollectorRegistry()
        self.chunks = Counter("uploader_chunks", "Chunks.", ["outcome"], registry=registry)
        self.seconds = Histogram("uploader_seconds", "Seconds.", buckets=(0.1, 1, 10), registry=registry)
        self.drifts = Gauge("uploader_open_breakers", "Drifts.", registry=registry)
        self.open = Gauge("uploader_open", "Open.", registry=registry)
        self.memory = Gauge("process_memory_bytes", "Memory.", registry=registry)
        self.exposition = Exposition(directory, alone=alone, registry=registry)

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
            buckets = [values[f"uploader_seconds_bucket{{'le': '{le}'}}"] for le in ("0.1", "1.0", "10.0", "+Inf")]
            assert buckets == [0, 1, 2, 2]


async def test_what_is_counted_is_published_once(tmp_path: Path) -> None:
    async with process(tmp_path) as a, process(tmp_path) as b:
        a.chunks.labels("recorded").inc()
        assert [await a.exposition.publish() for _ in range(2)] == [True, False]
        assert (await b.values()).get(RECORDED) == 1


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
    async with process(tmp_path) as killed, process(tmp_path) as other:  # both slots are held
        killed.chunks.labels("recorded").inc(5)
        shown = (await killed.values())[RECORDED]
        assert (await other.values())[RECORDED] == shown == 5


async def test_of_a_gauge_that_some_process_sets_the_largest_counts_while_that_process_lives(tmp_path: Path) -> None:
    async with process(tmp_path) as a:
        async with process(tmp_path) as b:
            b.drifts.set(3)
            b.open.set(7)
            await b.values()
            values = await a.values()
            assert (values["uploader_open_breakers"], values["uploader_open"]) == (3, 0)
        assert (await a.values())["uploader_open_breakers"] == 0
        assert "process_memory_bytes" not in await a.values()
    async with process(tmp_path / "one", alone=True) as only:
        assert "process_memory_bytes" in await only.values(), "what describes a process, only where there is one"


OTHER_VERSION = '{"version": "0.0.0", "figures": [["uploader_chunks_total", {}, 9]], "gauges": []}'


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": "0"}', OTHER_VERSION])
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
