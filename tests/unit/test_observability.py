"""A log record is one line, whatever is in it, and carries the id of its request."""

import asyncio
import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uploader.observability import JsonFormatter, LineHandler, TextFormatter, configure_logging, request_id

FORGED = "failed\n12:00:00 info    all is well\r\x1b[2J\u2028\u0085x"


def a_record(message: str, *arguments: object, **extra: object) -> logging.LogRecord:
    record = logging.makeLogRecord({"name": "uploader.test", "levelname": "WARNING", "msg": message, "created": 0.25})
    record.args = arguments
    for name, value in extra.items():
        setattr(record, name, value)
    return record


@pytest.fixture
def in_a_request() -> Iterator[None]:
    token = request_id.set("the-request")
    yield
    request_id.reset(token)


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()], ids=["json", "text"])
@pytest.mark.parametrize(
    "record",
    [
        a_record(FORGED),
        a_record("%s", FORGED),
        a_record("event", name_of_file=FORGED),
        a_record("event", error=[FORGED]),
    ],
    ids=["message", "argument", "extra", "nested"],
)
def test_a_forged_line_break_stays_within_one_line(formatter: logging.Formatter, record: logging.LogRecord) -> None:
    line = formatter.format(record)
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert "all is well" in line


@given(st.text(), st.text())
def test_no_text_whatever_makes_a_second_line(message: str, value: str) -> None:
    record = a_record("%s", message, value=value)
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


def test_a_text_line_is_for_a_person() -> None:
    assert TextFormatter().format(a_record("merged", size=5)) == "00:00:00 warning merged size=5"


@pytest.mark.parametrize(
    ("value", "spelt"),
    [
        (Path("a/b"), "a/b"),
        (ValueError("broken"), "broken"),
        ({1: Path("a")}, {"1": "a"}),
        ("\udcff", "\udcff"),
        (1 << 70, 1 << 70),
    ],
    ids=["path", "error", "nested", "surrogate", "huge"],
)
def test_what_json_has_no_word_for_is_spelt_out(value: object, spelt: object) -> None:
    line = JsonFormatter().format(a_record("event", value=value))
    assert line.isprintable()
    assert json.loads(line)["value"] == spelt


@pytest.mark.usefixtures("in_a_request")
def test_a_record_carries_the_id_of_its_request() -> None:
    assert json.loads(JsonFormatter().format(a_record("event")))["request_id"] == "the-request"
    assert TextFormatter().format(a_record("event")).endswith('request_id="the-request"')


def test_outside_of_a_request_there_is_no_id() -> None:
    assert "request_id" not in JsonFormatter().format(a_record("event"))


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


def test_logs_go_to_standard_error_in_the_format_and_from_the_level_that_are_set(
    capsys: pytest.CaptureFixture[str],
) -> None:
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


async def test_the_lines_of_one_turn_are_written_together(stream: Stream, log: logging.Logger) -> None:
    log.info("one")
    log.info("two")
    assert stream.writes == []
    await asyncio.sleep(0)
    log.info("three")
    await asyncio.sleep(0)
    assert stream.writes == ["one\ntwo\n", "three\n"]


async def test_a_warning_is_written_at_once_after_what_was_held(stream: Stream, log: logging.Logger) -> None:
    log.info("one")
    log.warning("two")
    assert stream.writes == ["one\ntwo\n"]
    await asyncio.sleep(0)
    assert stream.writes == ["one\ntwo\n"]


async def test_threads_write_at_once_and_in_order(stream: Stream, log: logging.Logger) -> None:
    log.info("one")
    await asyncio.to_thread(log.info, "two")
    await asyncio.sleep(0)
    assert stream.getvalue() == "one\ntwo\n"


def test_without_a_loop_and_at_the_end_nothing_is_left(stream: Stream, log: logging.Logger) -> None:
    log.info("one")
    assert stream.writes == ["one\n"]

    async def last_words() -> None:
        log.info("two")

    asyncio.run(last_words())
    assert stream.writes == ["one\n", "two\n"]


async def test_a_line_that_nobody_reads_is_no_error(log: logging.Logger, stream: Stream) -> None:
    stream.close()
    log.warning("one")
    log.info("two")
    await asyncio.sleep(0)
    assert stream.writes == ["one\n", "two\n"]
