"""The page of the events: its example, its table, its code and its schema are true."""

import base64
import hmac
import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator, ValidationError

from tests.support.consumer import SECRETS, events_file
from tests.support.rows import NOW, file_row, upload_row
from uploader.domain import events
from uploader.domain.events import EventType, Message, News
from uploader.domain.upload import Reason
from uploader.service.events import RETRY_SECONDS
from uploader.service.ids import new_id
from uploader.sinks.base import envelope_of
from uploader.sinks.configuration import load_events, parse_secret, signed_headers
from uploader.units import parse_duration

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "events.md").read_text()
VALIDATOR = Draft202012Validator(json.loads((DOCS / "cloudevents.schema.json").read_text()))

FILE, UPLOAD = file_row(modified_at=NOW), upload_row()
NEWS = [
    events.upload_created(UPLOAD, NOW),
    events.upload_created(replace(UPLOAD, md5=None, size=0), NOW),
    *(events.upload_closed(UPLOAD, reason) for reason in Reason),
    events.file_finished(FILE),
    events.file_finished(replace(FILE, md5=None)),
    events.file_deleted(replace(FILE, damaged=True)),
    events.file_deleted(FILE, events.REPLACED),
    events.content_damaged(FILE),
    events.content_healed(FILE),
    events.content_damaged(FILE, True),
]


def block(language: str, containing: str) -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    (one,) = [text for text in found if containing in text]
    return str(one)


def as_told(news: News) -> Any:
    data = msgspec.json.encode(news.data)
    message = Message(new_id(), news.type.value, news.subject, news.user_id, NOW, data)
    return json.loads(envelope_of(message, f"/uploader/{'0' * 32}").body)


@pytest.mark.parametrize("news", NEWS, ids=lambda news: str(news.type.value))
def test_every_event_is_as_the_schema_says(news: News) -> None:
    event = as_told(news)
    VALIDATOR.validate(event)
    for broken in (event | {"type": "file.moved"}, event | {"data": {**event["data"], "secret": 1}}):
        with pytest.raises(ValidationError):
            VALIDATOR.validate(broken)


def test_the_page_names_every_type_and_no_other() -> None:
    table = PAGE.split("| type | when |", 1)[1].split("\n\n", 1)[0]
    assert re.findall(r"^\| `([a-z.]+)`", table, flags=re.MULTILINE) == [kind.value for kind in EventType]
    assert {news.type for news in NEWS} == set(EventType)


def test_the_example_of_an_event_is_one() -> None:
    VALIDATOR.validate(json.loads(block("json", "file.finished")))


def test_the_example_of_a_file_can_be_read(tmp_path: Path) -> None:
    path = events_file(tmp_path, block("toml", "[sinks.scan]"))
    (tmp_path / "scan.secret").write_text(SECRETS[0])
    (tmp_path / "lake.password").write_text("x")
    assert list(load_events(path).sinks) == ["scan", "log", "lake"]


def test_the_command_that_makes_a_secret_does(tmp_path: Path) -> None:
    subprocess.run(["bash", "-ec", block("bash", "whsec_")], cwd=tmp_path, check=True)
    assert len(parse_secret((tmp_path / "scan.secret").read_text().strip())) == 32


def test_the_plan_of_the_retries_is_that_of_the_page() -> None:
    told = re.search(r"again after (.*?), each", PAGE)
    assert told is not None
    delays = [each.replace(" ", "").replace("min", "m") for each in re.split(", | and ", told[1])]
    assert [parse_duration(delay) for delay in delays] == list(RETRY_SECONDS)


def by_python(headers: dict[str, str], body: bytes) -> bool:
    names: dict[str, Any] = {"base64": base64, "hmac": hmac, "time": time}
    exec(block("python", "def is_genuine"), names)
    return bool(names["is_genuine"](headers, body, SECRETS[0]))


def by_node(headers: dict[str, str], body: bytes) -> bool:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node here")
    code = f"""const {{ createHmac }} = require("crypto");
    {block("javascript", "function isGenuine")}
    console.log(isGenuine({json.dumps(headers)}, {json.dumps(body.decode())}, {json.dumps(SECRETS[0])}));"""
    return subprocess.run([node, "-e", code], capture_output=True, check=True).stdout == b"true\n"


@pytest.mark.parametrize("is_genuine", [by_python, by_node])
def test_the_code_of_the_page_tells_what_is_genuine(is_genuine: Callable[[dict[str, str], bytes], bool]) -> None:
    body = '{"a": "ä"}'.encode()
    keys = [parse_secret(secret) for secret in SECRETS]
    headers = signed_headers(keys, "1", datetime.now(UTC), body)
    assert is_genuine(headers, body)
    assert not is_genuine(headers, body + b" ")
    assert not is_genuine(headers | {"webhook-id": "2"}, body)
    assert not is_genuine(signed_headers(keys[1:], "1", datetime.now(UTC), body), body)
    assert not is_genuine(signed_headers(keys, "1", NOW, body), body)
