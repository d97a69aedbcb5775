"""The server dies at every line between two durable effects, is started again, and its client finishes as if nothing
had been: no acknowledged byte is lost, none is counted twice."""

import contextlib
import shutil
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from redis.asyncio import Redis

from tests.support.at_rest import check_at_rest, rests_within
from tests.support.content import KIB, Content
from tests.support.invariants import Account, checked_accounts
from tests.support.process import Process, Server, answers, ended
from tests.support.servers import free_port
from tests.support.waiting import eventually
from uploader.crashpoints import NAMES
from uploader.database.engine import Database
from uploader.embedded import socket_path

KEPT = Content(160 * KIB, seed=1, name="kept.bin")
LEFT_OPEN = Content(100 * KIB, seed=2, name="open.bin")
CANCELLED = Content(100 * KIB, seed=3, name="cancelled.bin")
DELETED = Content(70 * KIB, seed=4, name="deleted.bin")
EXPECTED = Account(finished=2 * KEPT.size, unfinished=64 * KIB, reserved=LEFT_OPEN.size)

# Which passing of a point kills, where the first is not the only one of interest.
LATER = {
    "chunk.after_record": (5,),  # the last chunk of a file, which settles
    "discard.after_unlink": (2, 3),
}
CASES = [*NAMES, *(f"{name}:{nth}" for name, passings in LATER.items() for nth in passings)]
# After these there is a directory in temp that nobody asks for any more: it goes when it is an hour old.
ORPHANED = ("open.after_", "clear.after_forget", "discard.after_unlink")

SETTINGS = {"QUIET_INTERVAL": "300ms", "CLAIM_LEASE": "1s", "FREE_SPACE_FLOOR": "0"}


@dataclass
class Client:
    """Does all that can be done, in a fixed order; told to do it again, it comes to the same end."""

    acknowledged: dict[str, set[int]] = field(default_factory=dict)

    async def run(self, url: str, token: str) -> None:
        async with httpx2.AsyncClient(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=15
        ) as self.http:
            await self._open(LEFT_OPEN)
            await self._put(LEFT_OPEN, 0)
            await self._open(CANCELLED)
            await self._put(CANCELLED, 0)
            await eventually(self._is_flushed)  # while nothing else is under way
            await self._upload(KEPT, [2, 0, 1])
            file = await self._upload(DELETED, [1, 0])
            self.acknowledged.pop(DELETED.md5, None)
            await self._expect("DELETE", f"/me/files/{file['id']}", {204})
            await self._finish_instantly()
            self.acknowledged.pop(CANCELLED.md5)
            await self._expect("DELETE", f"/files/{CANCELLED.md5}", {204})
            await self._compare_files()

    async def _expect(self, method: str, path: str, statuses: set[int], **more: Any) -> Any:
        response = await self.http.request(method, path, **more)
        assert response.status_code in statuses, response.text
        return response.json() if response.content else None

    async def _open(self, content: Content) -> Any:
        body = {"name": content.name, "size": content.size, "chunk_size": content.chunk_size}
        answer = await self._expect("POST", f"/files/{content.md5}", {200, 201}, json=body)
        acknowledged = self.acknowledged.setdefault(content.md5, set())
        if answer["state"] == "uploading":
            missing = {n for first, last in answer["upload"]["missing"] for n in range(first, last + 1)}
            assert not missing & acknowledged, f"acknowledged chunks of {content.name} are missing"
        return answer

    async def _put(self, content: Content, number: int) -> Any:
        path = f"/files/{content.md5}/chunks/{number}"
        answer = await self._expect("PUT", path, {200, 201}, content=content.chunk(number))
        self.acknowledged[content.md5].add(number)
        return answer

    async def _upload(self, content: Content, order: list[int]) -> Any:
        answer = await self._open(content)
        for number in order if answer["state"] == "uploading" else []:
            answer = await self._put(content, number)
        if answer["state"] != "complete":
            answer = await self._expect("POST", f"/files/{content.md5}/merge", {200, 201})
        return answer["file"]

    async def _finish_instantly(self) -> None:
        """An upload that is opened by id, and turns out to be content that is there already."""
        body = {"name": "copy.bin", "size": KEPT.size, "chunk_size": KEPT.chunk_size}
        answer = await self._expect("POST", "/uploads", {200, 201}, json=body, headers={"Idempotency-Key": "copy"})
        if answer["state"] == "complete":
            return
        path = f"/uploads/{answer['upload']['id']}"
        await self._expect("PUT", f"{path}/chunks/0", {200}, content=KEPT.chunk(0))
        await self._expect("PATCH", path, {200, 201}, json={"md5": KEPT.md5})

    async def _is_flushed(self) -> bool:
        usage = await self._expect("GET", "/me/usage", {200})
        return bool(usage["use_space_unfinished"] >= 128 * KIB)

    async def _compare_files(self) -> None:
        files = (await self._expect("GET", "/me/files", {200}))["files"]
        assert sorted(file["name"] for file in files) == ["copy.bin", "kept.bin"]
        for file in files:
            downloaded = await self.http.get(f"/me/files/{file['id']}/content")
            assert downloaded.content == KEPT.data


def _prepare(data: Path, template: Path) -> None:
    """A migrated database, and bytes without a row where a blob is to be, as a merge leaves them that was cancelled."""
    shutil.copy(template, data / "uploader.db")
    stray = data / "blobs" / KEPT.sha256[:2] / KEPT.sha256[2:4] / KEPT.sha256
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"stray")


@pytest.mark.parametrize("armed", CASES)
async def test_a_death_between_two_durable_effects_loses_and_invents_nothing(
    armed: str, tmp_path: Path, sqlite_template: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    _prepare(data, sqlite_template)
    database = Database(f"sqlite+aiosqlite:///{data / 'uploader.db'}")
    settings = SETTINGS | {"DATA": str(data)}
    client, log, port = Client(), tmp_path / "log", free_port()

    doomed = Process(log, settings | {"TEST_CRASH_AT": armed}, "serve", "--port", str(port))
    with ended(doomed):
        await eventually(lambda: is_dead_or_ready(doomed, port))
        with contextlib.suppress(httpx2.TransportError):
            await client.run(f"http://127.0.0.1:{port}", _token(data))
        assert doomed.process.wait(timeout=10) == -signal.SIGKILL, "the point was not passed"
    await checked_accounts(database)

    server = Server(log, settings)
    orphans = armed.startswith(ORPHANED) and armed != "open.after_commit"
    with ended(server):
        await client.run(server.url, _token(data))
        async with Redis(unix_socket_path=socket_path(data / "redis")) as redis:
            accounts = await rests_within(5, lambda: check_at_rest(database, redis, data, orphans=orphans))
    await database.close()
    assert accounts == {"owner": EXPECTED}


def _token(data: Path) -> str:
    return (data / "owner.token").read_text().strip()


async def is_dead_or_ready(process: Process, port: int) -> bool:
    return process.process.poll() is not None or answers(port)
