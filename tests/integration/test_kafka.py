"""Events in a topic of Kafka, read by a consumer in another process, over the mock cluster of librdkafka."""

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeStack
from tests.integration.test_relaying import rows
from tests.support.archives import Entry, archive
from tests.support.clock import ManualClock
from tests.support.consumer import events_file
from tests.support.content import Content
from tests.support.waiting import PATIENCE_SECONDS
from uploader.sinks import stream

# Three brokers inside of this process; it prints where they are, and ends with its input.
_CLUSTER = """
import sys
from confluent_kafka import Producer
producer = Producer({"test.mock.num.brokers": 3})
metadata = producer.list_topics(timeout=30)
print(",".join(f"{broker.host}:{broker.port}" for broker in metadata.brokers.values()), flush=True)
sys.stdin.read()
"""
_CONSUMER = """
import json, sys
from confluent_kafka import Consumer
servers, count = sys.argv[1], int(sys.argv[2])
consumer = Consumer({"bootstrap.servers": servers, "group.id": "lake", "auto.offset.reset": "earliest"})
consumer.subscribe(["uploads"])
while count:
    message = consumer.poll(30)
    if message is None or message.error():
        continue
    headers = {name: value.decode() for name, value in message.headers()}
    print(json.dumps([message.key().decode(), headers, json.loads(message.value())]), flush=True)
    count -= 1
consumer.close()
"""


@pytest.fixture
def kafka_servers() -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, "-c", _CLUSTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as cluster:
        assert cluster.stdout is not None
        yield cluster.stdout.readline().strip()
        cluster.kill()


async def consume(servers: str, count: int) -> list[Any]:
    consumer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _CONSUMER, servers, str(count)), stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await asyncio.wait_for(consumer.communicate(), PATIENCE_SECONDS)
    return [json.loads(line) for line in printed.splitlines()]


async def test_what_happens_is_read_from_a_topic(make_stack: MakeStack, tmp_path: Path, kafka_servers: str) -> None:
    table = f'[sinks.lake]\ntype = "kafka"\nservers = "{kafka_servers}"\ntopic = "uploads"\n'
    content = Content(1000, seed=1)
    async with make_stack(events=events_file(tmp_path / "events", table), jobs=True) as stack:
        file = (await stack.upload(content)).json()["file"]
        told = await consume(kafka_servers, 2)
        source = f"/uploader/{stack.services.installation.id}"
    by_type = {headers["ce_type"]: (key, headers, data) for key, headers, data in told}
    key, headers, data = by_type["file.finished"]
    assert key == "alice"
    assert data == {"user_id": "alice", "file": file}
    assert {name: headers[name] for name in ("ce_specversion", "ce_source", "ce_subject", "content-type")} == {
        "ce_specversion": "1.0",
        "ce_source": source,
        "ce_subject": file["id"],
        "content-type": "application/json",
    }
    assert {"ce_id", "ce_time"} < set(headers)
    assert set(by_type) == {"upload.created", "file.finished"}


async def test_what_kafka_does_not_take_is_told_again_by_a_new_producer_if_need_be(
    make_stack: MakeStack, tmp_path: Path, kafka_servers: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    import confluent_kafka
    from confluent_kafka import KafkaError, KafkaException, Producer

    table = f'[sinks.lake]\ntype = "kafka"\nservers = "{kafka_servers}"\ntopic = "uploads"\n'
    table += 'options = { "message.max.bytes" = 1000 }\n'
    made = itertools.count(1)

    class Failing(Producer):
        """The first one fails for good, as one does that lost its place in the order of its messages."""

        def __init__(self, options: Any, **more: Any) -> None:
            super().__init__(options, **more)
            self._is_first = next(made) == 1

        def produce(self, *arguments: Any, **more: Any) -> None:
            if self._is_first:
                raise KafkaException(KafkaError(KafkaError._FATAL))
            super().produce(*arguments, **more)

    monkeypatch.setattr(confluent_kafka, "Producer", Failing)
    async with make_stack(events=events_file(tmp_path / "events", table), clock=clock) as stack:
        assert next(made) == 1, "none is made before there is anything to tell"
        made = itertools.count(1)
        (relay,) = stack.services.relays
        body = archive(Entry("short", b"1"), Entry("/".join(["long" * 50] * 5), b"2"))
        assert (await stack.client.post("/files/batch", content=body)).status_code == 200
        await relay.relay_due()
        told = await rows(stack.services.database)
        assert [(row["state"], row["attempt"]) for row in told] == [("waiting", 1)] * 2
        clock.advance(6)
        await relay.relay_due()
        told = sorted(await rows(stack.services.database), key=lambda row: str(row["state"]))
        assert [(row["state"], row["attempt"]) for row in told] == [("delivered", 1), ("waiting", 2)]
        assert "MSG_SIZE_TOO_LARGE" in told[1]["last_error"]
        assert next(made) == 3


async def test_what_its_client_says_stands_in_the_log(
    make_stack: MakeStack,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And nowhere else: a line that is no JSON is lost, or breaks what reads the log."""
    monkeypatch.setitem(stream._PROMISED, "delivery.timeout.ms", 1000)
    table = '[sinks.lake]\ntype = "kafka"\nservers = "127.0.0.1:9"\ntopic = "uploads"\n'
    async with make_stack(events=events_file(tmp_path / "events", table)) as stack:
        assert await stack.services.reviewing.test("lake") is not None
    assert "Connection refused" in caplog.text
    assert "rdkafka" not in capfd.readouterr().err


@pytest.mark.usefixtures("kafka_servers")
async def test_a_mistake_in_the_options_is_told_by_the_first_delivery(make_stack: MakeStack, tmp_path: Path) -> None:
    table = '[sinks.lake]\ntype = "kafka"\nservers = "127.0.0.1:9"\ntopic = "uploads"\noptions = { "no.such" = 1 }\n'
    async with make_stack(events=events_file(tmp_path / "events", table)) as stack:
        refusal = await stack.services.reviewing.test("lake")
    assert refusal is not None
    assert "no.such" in refusal
