"""Requests that wait for others to have their turn, through the whole server: who is refused and in which words, what is
charged to whom, and who is told of it."""

import asyncio
import io
import tarfile
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner

from tests.support.content import Content
from tests.support.stack import Stack
from uploader.cli import main
from uploader.runtime import meter
from uploader.runtime.meter import Cost, Kind

pytestmark = pytest.mark.anyio

FILE = Content(100_000)
TUS = {"Tus-Resumable": "1.0.0"}


@pytest.fixture
async def crowded(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Cost:
    """Somebody's request is under way that takes all there is, and nobody is waited for for long."""
    monkeypatch.setattr(meter, "TURN_TIMEOUT_SECONDS", 0.01)
    monkeypatch.setattr(meter, "CLAIM_TIMEOUT_SECONDS", 1000.0)
    owner = stack.services.meter.open("somebody", "GET /me/files")
    stack.services.meter.expected_seconds["GET /me/files"] = 1.0
    await owner.begin()
    return owner


def owe(stack: Stack, user_id: str) -> None:
    """Let a user have no credit left."""
    cost = stack.services.meter.open(user_id, "")
    cost.add(Kind.THREADS, 30.0)
    cost.end()


REQUESTS: list[tuple[str, str, dict[str, Any], int]] = [
    ("GET", "/me/files", {}, 429),
    ("POST", f"/files/{FILE.md5}", {"json": {"name": "a", "size": FILE.size}}, 429),
    ("POST", "/me/archive", {"data": {"selection": '{"ids": []}'}}, 429),
    # What clients of tus ask again after, and those of HTTP's own resumable uploads.
    ("HEAD", "/resumable/0123456789abcdef0123456789abcdef", {"headers": TUS}, 423),
    ("HEAD", "/resumable/0123456789abcdef0123456789abcdef", {}, 503),
    ("GET", "/me/archive", {}, 429),
]


async def test_who_is_beyond_and_waits_too_long_is_told_when_to_come_again(stack: Stack, crowded: Cost) -> None:
    owe(stack, "alice")
    for number, (method, path, more, status) in enumerate(REQUESTS):
        refused = await stack.client.request(method, path, **more)
        assert refused.status_code == status
        assert int(refused.headers["Retry-After"]) > 25  # what is owed
        if method != "HEAD":
            problem = refused.json()
            assert (problem["code"], problem["retryable"]) == ("too-many-requests", True)
            assert "turn" in problem["detail"]
        bob = await stack.client_of(f"bob{number}")
        assert (await bob.request(method, path, **more)).status_code != status  # who has credit waits for nobody
    crowded.end()
    for method, path, more, status in REQUESTS:
        assert (await stack.client.request(method, path, **more)).status_code != status


async def test_bytes_that_wait_for_nobody_are_received_though_their_user_owes(stack: Stack) -> None:
    owe(stack, "alice")
    await stack.client.post(f"/files/{FILE.md5}", json={"name": "a", "size": FILE.size})
    assert (await stack.client.put(f"/files/{FILE.md5}/chunks/0", content=FILE.data)).status_code == 201


async def test_everything_is_charged_to_the_user_who_asks(stack: Stack) -> None:
    spent = await charged(
        stack, lambda: stack.client.put(f"/files/{FILE.md5}", params={"name": "a"}, content=FILE.data)
    )
    assert spent[Kind.RECEIVED] == pytest.approx(FILE.size * meter.BYTE_SECONDS)
    assert spent[Kind.THREADS] > 0
    (file,) = (await stack.client.get("/me/files")).json()["files"]
    content = f"/me/files/{file['id']}/content"
    assert (await charged(stack, lambda: stack.client.get(content)))[Kind.SENT] == pytest.approx(
        FILE.size * meter.BYTE_SECONDS
    )
    archived = await charged(stack, lambda: stack.client.get("/me/archive", params={"format": "tar"}))
    assert archived[Kind.SENT] > FILE.size * meter.BYTE_SECONDS
    listed = await charged(stack, lambda: stack.client.get("/me/files"))
    assert listed[Kind.JSON] > 0
    assert listed[Kind.REQUESTS] == meter.REQUEST_SECONDS
    batch = await charged(stack, lambda: stack.client.post("/files/batch", content=_tar(50)))
    assert batch[Kind.REQUESTS] > 50 * 1e-5


async def charged(stack: Stack, ask: Callable[[], Any]) -> dict[Kind, float]:
    """Return what a request is charged for."""
    stack.services.meter.take()
    answer: httpx2.Response = await ask()
    assert answer.is_success
    taken = stack.services.meter.take()
    assert set(taken.by_user) == {"alice"}
    return dict(taken.by_kind)


def _tar(members: int) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for number in range(members):
            tar.addfile(tarfile.TarInfo(f"{number}"))
    return archive.getvalue()


async def test_the_heaviest_users_are_told_to_administrators(stack: Stack) -> None:
    for user, seconds in (("alice", 1.5), ("bob", 0.25), ("carol", 3.0)):
        cost = stack.services.meter.open(user, "")
        cost.add(Kind.THREADS, seconds)
        cost.end()
    await stack.services.costs.tell()
    root = await stack.client_of("root", admin=True)
    told = (await root.get("/admin/cost", params={"limit": 2})).json()
    assert told["hours"] == 24
    assert [(user["user_id"], round(user["cpu_seconds"], 2)) for user in told["users"]] == [
        ("carol", 3.0),
        ("alice", 1.5),
    ]
    assert (await stack.client.get("/admin/cost")).status_code == 403
    settings = stack.services.settings
    environment = {
        "UPLOADER_DATA": str(stack.data),
        "UPLOADER_DATABASE_URL": settings.database_url,
        "UPLOADER_REDIS_URL": settings.redis_url,
    }
    for option, words in (([], " 3.000 │"), (["--csv"], "cost,carol,cpu_seconds,3"), (["--json"], '"carol"')):
        run = CliRunner(env=environment).invoke
        result = await asyncio.to_thread(run, main, ["report", "--cost", *option])
        assert result.exit_code == 0, result.output
        assert words in result.stdout
