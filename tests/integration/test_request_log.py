"""One line in the log for each request: who, what, how it ended; and nothing that is nobody's business."""

import json
import logging
from collections.abc import Iterator
from typing import Any
from unittest.mock import AsyncMock
from urllib.parse import quote, urlsplit

import pytest

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.faults import failing_call
from tests.support.servers import PrivateRedis
from tests.support.stack import Stack
from uploader.runtime.observability import JsonFormatter, TextFormatter

CONTENT = Content(100 * KIB, name="a name of nobody's business")
URL = f"/files/{CONTENT.md5}"


class Lines(logging.Handler):
    """What goes to standard error, in both formats."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.json: list[dict[str, Any]] = []
        self.all: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = JsonFormatter().format(record)
        self.json.append(json.loads(line))
        self.all += [line, TextFormatter().format(record)]

    def requests(self) -> list[dict[str, Any]]:
        return [line for line in self.json if line["event"] == "request"]


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, log = Lines(), logging.getLogger("uploader")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    yield handler
    log.removeHandler(handler)
    log.setLevel(level)


async def test_each_request_is_one_line_with_user_route_outcome_and_id(stack: Stack, lines: Lines) -> None:
    await stack.client.get("/me/usage", headers={"X-Request-ID": "the-request"})
    await stack.anonymous().get("/config")
    line, following = lines.requests()
    assert "user_id" not in following
    assert following["request_id"] != "the-request"
    assert line.pop("duration_ms") >= 0
    assert line.pop("time")
    assert line == {
        "level": "info",
        "logger": "uploader.http.shared.exchange",
        "event": "request",
        "method": "GET",
        "route": "/me/usage",
        "status": 200,
        "outcome": "ok",
        "peer": "127.0.0.1",
        "user_id": "alice",
        "request_id": "the-request",
    }


async def test_the_log_says_which_host_is_away_and_the_client_is_not_told(
    make_stack: MakeStack, own_redis: PrivateRedis, lines: Lines
) -> None:
    async with make_stack(redis_url=own_redis.url) as stack:
        await stack.open(CONTENT)
        own_redis.kill()
        address = urlsplit(own_redis.url).netloc
        answer = await stack.put(CONTENT, 0)
        assert answer.status_code == 503
        assert address not in answer.text
        assert f"Redis at {address} (UPLOADER_REDIS_URL) is away: " in lines.requests()[-1]["reason"]
        ready = await stack.anonymous().get("/readyz")
        assert ready.status_code == 503
        assert address not in ready.text


async def test_the_outcome_of_an_error_is_its_code(stack: Stack, lines: Lines) -> None:
    anonymous = stack.anonymous()
    for client, method, path, *told in (
        (anonymous, "GET", "/me/usage", "GET", "/me/usage", 401, "unauthenticated", None),
        (stack.client, "GET", "/admin/usage", "GET", "/admin/usage", 403, "forbidden", "alice"),
        (stack.client, "GET", "/nothing", "GET", "", 404, "not-found", None),
        (stack.client, "PATCH", "/livez", "PATCH", "/livez", 405, "method-not-allowed", None),
        (stack.client, "PROPFIND", URL, "other", "/files/{md5}", 405, "method-not-allowed", None),
        (stack.client, "GET", URL, "GET", "/files/{md5}", 404, "upload-not-found", "alice"),
        (stack.client, "GET", "/files/zzz", "GET", "/files/{md5}", 422, "invalid-md5", "alice"),
        (stack.client, "GET", "/files/a%2fb", "GET", "", 404, "not-found", None),
    ):
        await client.request(method, path)
        line = lines.requests()[-1]
        assert [line.get(name) for name in ("method", "route", "status", "outcome", "user_id")] == told


async def test_probes_are_quiet_and_failures_are_loud(stack: Stack, lines: Lines) -> None:
    for path in ("/livez", "/readyz", "/metrics", "/config"):
        await stack.anonymous().get(path)
    assert [line["level"] for line in lines.requests()] == ["debug", "debug", "debug", "info"]
    await stack.open(CONTENT)
    with failing_call("fdatasync"):
        assert (await stack.put(CONTENT, 0)).status_code == 503
    failed = lines.requests()[-1]
    assert (failed["level"], failed["status"], failed["outcome"]) == ("warning", 503, "unavailable")


async def test_what_else_is_logged_in_a_request_carries_its_user_and_id(
    stack: Stack, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stack.open(CONTENT)
    headers = {"X-Request-ID": "the-request"}
    with failing_call("fdatasync"):
        await stack.put(CONTENT, 0, headers=headers)
    monkeypatch.setattr(stack.services.uploads, "find", AsyncMock(side_effect=RuntimeError("not a map")))
    await stack.client.get(URL, headers=headers)
    for event in ("the disk reports an error", "request failed"):
        (failure,) = [line for line in lines.json if line["event"] == event]
        assert (failure["user_id"], failure["request_id"]) == ("alice", "the-request")


FORGERIES = (
    *("\n12:00:00 info    request outcome=ok", '"} {"event": "forged'),
    *("\r\n{}", "\u2028x", "\x1b[2K", "\x85", "\t\0"),
)


async def test_nothing_that_is_sent_makes_a_line_of_its_own(make_stack: MakeStack, lines: Lines) -> None:
    proxy = {"trusted_header": "X-Remote-User", "trusted_proxies": ("127.0.0.1",)}
    async with make_stack(**proxy) as stack:
        anonymous = stack.anonymous()
        for forged in FORGERIES:
            raw = forged.encode()
            await anonymous.get("/me/usage", headers={b"X-Remote-User": b"bob" + raw})
            await anonymous.get("/me/usage", headers={b"X-Request-ID": raw, b"User-Agent": raw, b"Referer": raw})
            await anonymous.get("/me/files", params={"prefix": forged, forged: "x"}, headers={"X-Remote-User": "bob"})
            await anonymous.get(f"/nothing/{quote(forged)}")
            await stack.client.post(URL, json={"name": forged, "size": 1})
            await stack.client.put(f"/admin/users/{quote(forged, safe='')}", json={})
    assert len(lines.requests()) >= 5 * len(FORGERIES)
    assert all(line.isprintable() for line in lines.all)
    users = {line["user_id"] for line in lines.requests() if "user_id" in line}
    assert users <= {"alice", "bob", 'bob"}{"event":"forged'}


async def test_no_name_hash_id_or_query_is_in_the_log(stack: Stack, lines: Lines) -> None:
    file = (await stack.upload(CONTENT)).json()["file"]
    url = (await stack.client.post(f"/me/files/{file['id']}/link")).json()["url"]
    assert (await stack.anonymous().get(url)).status_code == 200
    await stack.client.get("/me/files", params={"prefix": "secret-prefix"})
    token = stack.client.headers["authorization"].split()[1]
    of_requests = [json.dumps(line) for line in lines.requests()]
    assert lines.requests()[-2]["user_id"] == "alice", "whoever has a link reads as its user"
    for told in (CONTENT.name, CONTENT.md5, CONTENT.sha256, file["id"], "secret-prefix", "signature", token):
        assert not any(told in line for line in of_requests), told
    everything = "\n".join(lines.all)
    for secret in (token, url.rpartition("=")[2], "secret-prefix", CONTENT.name):
        assert secret not in everything
