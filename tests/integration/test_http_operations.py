"""What is open to everybody: health, metrics, configuration, documents."""

import errno
import re

import pytest

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.faults import failing_call, recorded_calls
from tests.support.problems import problem
from tests.support.servers import PrivateRedis
from tests.support.stack import Stack
from uploader.service import health


async def test_a_live_and_ready_server_says_so(stack: Stack) -> None:
    live = await stack.anonymous().get("/livez")
    assert (live.status_code, live.json()) == (200, {"checks": {"process": {"ok": True, "reason": None}}})
    ready = await stack.anonymous().get("/readyz")
    assert ready.status_code == 200
    checks = ready.json()["checks"]
    assert {name: check["ok"] for name, check in checks.items()} == dict.fromkeys(checks, True)
    assert checks.keys() == {"database", "redis", "storage"}


async def test_without_redis_the_server_lives_and_is_not_ready(make_stack: MakeStack, own_redis: PrivateRedis) -> None:
    async with make_stack(redis_url=own_redis.url) as stack:
        own_redis.kill()
        assert (await stack.anonymous().get("/livez")).status_code == 200
        ready = await stack.anonymous().get("/readyz")
        assert ready.status_code == 503
        assert int(ready.headers["retry-after"]) > 0
        checks = ready.json()["checks"]
        assert [name for name, check in checks.items() if not check["ok"]] == ["redis"]
        assert checks["redis"]["reason"]
        assert own_redis.url not in ready.text
        own_redis.start()
        assert (await stack.anonymous().get("/readyz")).status_code == 200


async def test_while_the_disk_fails_the_server_is_not_ready_and_recovers_by_itself(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_STORAGE_CHECK_SECONDS", -1)
    with failing_call("fdatasync", errno.EIO, times=None):
        failing = await stack.anonymous().get("/readyz")
    assert (failing.status_code, failing.json()["checks"]["storage"]["ok"]) == (503, False)
    with failing_call("open", errno.ENOSPC, times=None) as fault:
        full = await stack.anonymous().get("/readyz")
    assert fault.hits == 1
    assert full.status_code == 200, "while the disk is full, files can be read and deleted"
    assert (await stack.anonymous().get("/readyz")).status_code == 200


async def test_whoever_asks_often_does_not_make_the_disk_busy(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_STORAGE_CHECK_SECONDS", 3600)
    with recorded_calls("fdatasync") as calls:
        for _ in range(3):
            assert (await stack.anonymous().get("/readyz")).status_code == 200
    assert len(calls) == 1


async def test_metrics_are_in_the_format_of_prometheus(stack: Stack) -> None:
    await stack.upload(Content(100 * KIB))
    response = await stack.anonymous().get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    assert re.search(r"^uploader_\w+(\{.*\})? [0-9.e+]+$", response.text, re.MULTILINE)


async def test_a_setting_closes_the_metrics(make_stack: MakeStack) -> None:
    async with make_stack(metrics="admin") as stack:
        problem(await stack.anonymous().get("/metrics"), 401, "unauthenticated")
        problem(await stack.client.get("/metrics"), 403, "forbidden")
        root = await stack.client_of("root", admin=True)
        assert (await root.get("/metrics")).status_code == 200


async def test_the_configuration_says_what_a_client_needs(make_stack: MakeStack) -> None:
    sizes = {"chunk_size_bytes": 256 * KIB, "min_chunk_size_bytes": 128 * KIB, "max_chunk_size_bytes": 512 * KIB}
    async with make_stack(**sizes, max_file_size_bytes=10**6, instant="own", upload_expiry_seconds=60.0) as stack:
        response = await stack.anonymous().get("/config")
        assert response.status_code == 200
        assert response.json() == {
            "chunk_size": {"default": 256 * KIB, "min": 128 * KIB, "max": 512 * KIB},
            "max_file_size": 10**6,
            "max_chunks": 10_000,
            "instant": "own",
            "upload_expiry_seconds": 60,
        }


async def test_the_openapi_document_describes_every_path_of_the_contract(stack: Stack) -> None:
    response = await stack.anonymous().get("/openapi.json")
    assert response.status_code == 200
    document = response.json()
    assert document["openapi"].startswith("3.1.")
    described = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert described >= {
        "POST /files/{md5}",
        "GET /files/{md5}",
        "DELETE /files/{md5}",
        "PUT /files/{md5}/chunks/{n}",
        "POST /files/{md5}/merge",
        "POST /files/status",
        "GET /uploads",
        "POST /uploads",
        "GET /uploads/{id}",
        "PATCH /uploads/{id}",
        "DELETE /uploads/{id}",
        "PUT /uploads/{id}/chunks/{n}",
        "POST /uploads/{id}/merge",
        "GET /me/files",
        "GET /me/files/{id}",
        "PATCH /me/files/{id}",
        "DELETE /me/files/{id}",
        "GET /me/files/{id}/content",
        "GET /me/usage",
        "GET /admin/usage",
        "PUT /admin/users/{user_id}",
        *(f"GET {path}" for path in ("/livez", "/readyz", "/metrics", "/openapi.json", "/docs", "/config")),
    }
    chunk = document["paths"]["/files/{md5}/chunks/{n}"]["put"]["responses"]
    statuses = {"200", "201", "202", "404", "408", "409", "410", "415", "422", "429", "503", "507"}
    assert chunk.keys() >= statuses
    opening = document["paths"]["/files/{md5}"]["post"]["responses"]
    assert opening.keys() >= {"200", "201", "401", "409", "413", "422", "429", "503", "507"}


async def test_the_documentation_loads_nothing_from_elsewhere(stack: Stack) -> None:
    anonymous = stack.anonymous()
    page = await anonymous.get("/docs")
    assert page.status_code == 200
    assert "http" not in page.text.replace("<title>uploader: the HTTP API</title>", "")
    parts = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(parts) >= 3
    for part in parts:
        response = await anonymous.get(part)
        assert response.status_code == 200
        assert response.content


@pytest.mark.parametrize(
    "path", ["/static/nothing.js", "/static/", "/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd"]
)
async def test_nothing_but_the_parts_of_the_pages_is_static(stack: Stack, path: str) -> None:
    problem(await stack.anonymous().get(f"http://test{path}"), 404, "not-found")


async def test_the_start_leads_to_the_documentation(stack: Stack) -> None:
    response = await stack.anonymous().get("/")
    assert (response.status_code, response.headers["location"]) == (307, "/docs")
