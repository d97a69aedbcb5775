"""What is open to everybody: health, metrics, configuration, documents."""

import errno
import re
import signal

import pytest
from prometheus_client.metrics import MetricWrapperBase
from sqlalchemy import text

from tests.conftest import MakeStack
from tests.integration.test_outages import gauges
from tests.support.content import KIB, Content
from tests.support.faults import failing_call, recorded_calls
from tests.support.problems import problem
from tests.support.servers import PrivateRedis
from tests.support.stack import Stack
from tests.support.waiting import eventually
from uploader.diagnosis import health
from uploader.domain import reasons
from uploader.domain.reasons import spell
from uploader.runtime import observability


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_PATIENCE_SECONDS", "_GAUGES_PATIENCE_SECONDS"):
        monkeypatch.setattr(health, name, 60.0)


async def test_a_live_and_ready_server_says_so(stack: Stack) -> None:
    live = await stack.anonymous().get("/livez")
    assert (live.status_code, live.json()) == (200, {"checks": {"process": {"ok": True, "reason": None}}})
    ready = await stack.anonymous().get("/readyz")
    assert ready.status_code == 200
    checks = ready.json()["checks"]
    assert {name: check["ok"] for name, check in checks.items()} == dict.fromkeys(checks, True)
    assert checks.keys() == {"database", "redis", "storage", "content"}


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


async def test_a_redis_that_hangs_is_named(
    make_stack: MakeStack, own_redis: PrivateRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_PATIENCE_SECONDS", 0.2)
    async with make_stack(redis_url=own_redis.url) as stack:
        failing: dict[str, str] = {}

        async def it_alone_fails() -> bool:  # on a busy machine others may take as long, once
            ready = await stack.anonymous().get("/readyz")
            assert ready.status_code == 503
            checks = ready.json()["checks"].items()
            failing.clear()
            failing.update({name: check["reason"] for name, check in checks if not check["ok"]})
            return failing.keys() == {"redis"}

        own_redis.send_signal(signal.SIGSTOP)
        try:
            await eventually(it_alone_fails)
        finally:
            own_redis.send_signal(signal.SIGCONT)
        assert "did not answer" in failing["redis"]


async def warnings_of(stack: Stack) -> dict[str, str]:
    ready = await stack.anonymous().get("/readyz")
    assert ready.status_code == 200, "a warning is no failure"
    checks = ready.json()["checks"]
    assert all(check["ok"] for check in checks.values())
    return {name: check["reason"] for name, check in checks.items() if check["reason"]}


async def test_settings_of_redis_that_could_lose_data_are_named(make_stack: MakeStack, own_redis: PrivateRedis) -> None:
    async with make_stack(redis_url=own_redis.url) as stack:
        assert await warnings_of(stack) == {}
    for name, value in (("appendonly", "no"), ("appendfsync", "no"), ("maxmemory-policy", "allkeys-lru")):
        own_redis.command("CONFIG", "SET", name, value)
    async with make_stack(redis_url=own_redis.url) as stack:
        assert await warnings_of(stack) == {
            "redis": spell(
                [
                    reasons.REDIS_FORGETS(setting="appendonly is no, not yes"),
                    reasons.REDIS_FORGETS(setting="appendfsync is no, not everysec or always"),
                    reasons.REDIS_EVICTS(setting="maxmemory-policy is allkeys-lru, not noeviction"),
                ]
            )
        }
    own_redis.command("ACL", "SETUSER", "default", "-config")
    async with make_stack(redis_url=own_redis.url) as stack:
        assert await warnings_of(stack) == {}, "one that does not tell its settings is not blamed"


async def test_settings_of_the_database_that_could_lose_data_are_named(make_stack: MakeStack, mariadb_url: str) -> None:
    async with make_stack(database_url=mariadb_url) as stack:
        engine = stack.services.database.engine
        try:
            async with engine.connect() as connection:
                await connection.execute(text("SET GLOBAL innodb_flush_log_at_trx_commit = 2"))
            reason = (await warnings_of(stack))["database"]
        finally:
            async with engine.connect() as connection:
                await connection.execute(text("SET GLOBAL innodb_flush_log_at_trx_commit = 1"))
        assert "innodb_flush_log_at_trx_commit is 2, not 1" in reason


async def test_what_waits_can_be_seen_in_the_gauges(make_stack: MakeStack, redis_url: str) -> None:
    content = Content(300 * KIB)
    async with make_stack() as stack:
        await stack.open(content)
        for number in range(3):
            await stack.put(content, number)
        values = await gauges(stack)
        assert values["uploader_open_uploads"] == 1
        assert values["uploader_pending_bytes"] == 3 * 64 * KIB
        assert values['uploader_queue_tasks{queue="flush"}'] == 1
        assert values['uploader_queue_tasks{queue="merge"}'] == 0
        assert values['uploader_queue_lag_seconds{queue="flush"}'] == 0
    async with make_stack(jobs=True, quiet_interval_seconds=0.05) as stack:
        await stack.put(content, 3)

        async def flushed() -> bool:
            values = await gauges(stack)
            return values["uploader_pending_bytes"] == 0 and values["uploader_flush_lag_seconds_count"] >= 1

        await eventually(flushed)
        values = await gauges(stack)
        assert values["uploader_flush_batch_uploads_count"] >= 1
        assert values["uploader_received_bytes_total"] == 4 * 64 * KIB, "counted on after the restart"


async def test_every_documented_metric_is_exposed_and_none_names_a_user(stack: Stack) -> None:
    await stack.upload(Content(100 * KIB))
    root = await stack.client_of("root", admin=True)
    response = await root.get("/metrics")
    assert (response.status_code, response.headers["content-type"].split(";")[0]) == (200, "text/plain")
    exposed = response.text
    assert re.search(r"^uploader_\w+(\{.*\})? [0-9.e+]+$", exposed, re.MULTILINE)
    for metric in vars(observability).values():
        if isinstance(metric, MetricWrapperBase):
            for family in metric.describe():
                suffix = "_total" if family.type == "counter" else ""
                assert f"# TYPE {family.name}{suffix} {family.type}\n" in exposed
    assert "alice" not in exposed
    labels = {label for line in exposed.splitlines() for label in re.findall(r'[{,](\w+)="', line)}
    assert labels <= {"outcome", "le", "queue", "method", "route", "status", "implementation", "major", "minor"} | {
        *("patchlevel", "version", "generation", "sink", "limit", "kind", "store", "operation")
    }


async def test_nobody_learns_from_the_metrics_that_others_hold_a_content(stack: Stack) -> None:
    """Whoever could read them would store a guess, delete it, and see whether its bytes are in the trash."""
    bob, guess = await stack.client_of("bob"), Content(100 * KIB)
    await stack.upload(guess, bob)
    await stack.upload(guess)
    file_id = (await stack.client.get(f"/files/{guess.md5}")).json()["file"]["id"]
    assert (await stack.client.delete(f"/me/files/{file_id}")).status_code == 204
    for method in ("GET", "HEAD"):
        refused = await stack.anonymous().request(method, "/metrics")
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    problem(await stack.client.get("/metrics"), 403, "forbidden")
    root = await stack.client_of("root", admin=True)
    assert (await root.get("/metrics")).status_code == 200


async def test_a_token_for_the_metrics_is_good_for_nothing_else(stack: Stack) -> None:
    token = await stack.services.accounts.create_token("prometheus", admin=False, scope="metrics")
    scraper = stack.anonymous()
    scraper.headers["Authorization"] = f"Bearer {token}"
    for _ in range(2):  # the second time it is believed
        assert "uploader_trash_bytes" in (await scraper.get("/metrics")).text
        problem(await scraper.get("/me/usage"), 403, "forbidden")
    described = (await stack.anonymous().get("/openapi.json")).json()["paths"]
    operations = [(method, path) for path, item in described.items() for method in item if "security" in item[method]]
    assert len(operations) > 50
    for method, path in operations:
        place = path.replace("{md5}", "0" * 32).replace("{", "").replace("}", "")
        response = await scraper.request(method, place, headers={"Tus-Resumable": "1.0.0"})
        if path == "/metrics":
            assert response.status_code == 200
        elif method == "head":
            assert response.status_code == 403, path
        else:
            problem(response, 403, "forbidden")
    assert (await scraper.get("/config")).status_code == 200
    assert (await stack.services.accounts.revoke(token)) == 1
    problem(await scraper.get("/metrics"), 401, "unauthenticated")


async def test_who_reads_the_metrics_is_set(make_stack: MakeStack) -> None:
    async with make_stack(metrics="open") as stack:
        assert "uploader_trash_bytes" in (await stack.anonymous().get("/metrics")).text
    async with make_stack(auth="none") as stack:
        assert (await stack.anonymous().get("http://localhost/metrics")).status_code == 200
        problem(await stack.anonymous().get("http://evil.example/metrics"), 401, "unauthenticated")


async def test_the_configuration_says_what_a_client_needs(make_stack: MakeStack) -> None:
    sizes = {"chunk_size_bytes": 256 * KIB, "min_chunk_size_bytes": 128 * KIB, "max_chunk_size_bytes": 512 * KIB}
    limits = {"max_file_size_bytes": 10**6, "max_files": 7, "upload_expiry_seconds": 60.0}
    async with make_stack(**sizes, **limits, instant="own") as stack:
        response = await stack.anonymous().get("/config")
        assert response.status_code == 200
        assert response.json() == {
            "chunk_size": {"default": 256 * KIB, "min": 128 * KIB, "max": 512 * KIB},
            "max_file_size": 10**6,
            "max_append_size": None,
            "max_chunks": 10_000,
            "max_files": 7,
            "instant": "own",
            "upload_expiry_seconds": 60,
            "link_lifetime_seconds": 604800,
            "links": True,
            "public_url": None,
        }


async def test_the_openapi_document_tells_the_answers_and_parameters_of_the_contract(stack: Stack) -> None:
    response = await stack.anonymous().get("/openapi.json")
    assert response.status_code == 200
    document = response.json()
    assert document["openapi"].startswith("3.1.")
    chunk = document["paths"]["/files/{md5}/chunks/{n}"]["put"]["responses"]
    statuses = {"200", "201", "202", "404", "408", "409", "410", "415", "422", "429", "503", "507"}
    assert chunk.keys() >= statuses
    for whole in (document["paths"]["/files/{md5}"]["put"], document["paths"]["/me/files"]["post"]):
        assert whole["responses"].keys() >= {"200", "201", "408", "409", "413", "415", "422", "429", "503", "507"}
        required = {parameter["name"]: parameter.get("required", False) for parameter in whole["parameters"]}
        assert [name for name in required if required[name]] in (["md5", "name"], ["name"])
        assert required.keys() >= {"sha256", "if_exists", "modified_at", "Content-Digest"}
    batch = document["paths"]["/files/batch"]["post"]
    assert [parameter["name"] for parameter in batch["parameters"]] == ["to", "if_exists"]
    assert list(batch["requestBody"]["content"]) == ["application/octet-stream"]
    assert batch["responses"].keys() >= {"200", "408", "415", "422", "429", "503"}
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
