"""Two servers of one installation: what runs on one of them ends within two seconds after the other one revoked the right
of its caller."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.support.consumer import events_file
from tests.support.content import KIB, MIB, Content
from tests.support.process import Server, ended, owner_token
from tests.support.sockets import Connection
from tests.support.waiting import SERVER_SECONDS

# Two seconds, and what a busy machine takes.
WITHIN_SECONDS = 5.0
# More than lies between a server and a client that does not read.
LARGE_BYTES = 64 * MIB
CHUNK = Content(2 * MIB, chunk_size=2 * MIB)
WHOLE, TAIL = (Content(MIB, seed=seed) for seed in (1, 2))
QUEUE = '[queues.scan]\ntypes = ["file.finished"]\n'
TUS = ("Tus-Resumable: 1.0.0", "Upload-Offset: 0", "Content-Type: application/offset+octet-stream")
RUFH = ("Upload-Draft-Interop-Version: 6", "Upload-Complete: ?1")


class Place:
    """Two servers on one data directory, database and Redis; `owner` calls one of them, all others the other one."""

    def __init__(self, one: Server, other: Server, owner: httpx2.AsyncClient) -> None:
        self.one, self.other, self.owner = one, other, owner
        self._clients, self._connections = list[httpx2.AsyncClient](), list[Connection]()

    async def token(self, user_id: str, **more: Any) -> tuple[str, str]:
        made = (await self.owner.post(f"/admin/users/{user_id}/tokens", json=more)).json()
        return made["token"], made["id"]

    def client(self, token: str) -> httpx2.AsyncClient:
        headers = {"Authorization": f"Bearer {token}"}
        client = httpx2.AsyncClient(base_url=self.other.url, headers=headers, timeout=SERVER_SECONDS)
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()
        for client in self._clients:
            await client.aclose()

    async def begin(
        self, token: str, method: str, path: str, *headers: str, body: bytes = b"", length: int = 0
    ) -> Connection:
        """Send a request whose body stops in the middle."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.other.port)
        connection = Connection(reader, writer, f"Bearer {token}")
        self._connections.append(connection)
        await connection.request(method, path, *headers, *([f"Content-Length: {length}"] if length else []))
        await connection.send(body)
        return connection


@asynccontextmanager
async def place(tmp_path: Path, database_url: str, redis_url: str) -> AsyncIterator[Place]:
    settings = {
        "DATA": str(tmp_path / "data"),
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "FREE_SPACE_FLOOR": "0",
        "EVENTS": str(events_file(tmp_path / "events", QUEUE)),
    }
    one = await asyncio.to_thread(Server, tmp_path / "one.log", settings)
    with ended(one):
        other = await asyncio.to_thread(Server, tmp_path / "other.log", settings)
        with ended(other):
            headers = {"Authorization": f"Bearer {owner_token(tmp_path / 'data')}"}
            async with httpx2.AsyncClient(base_url=one.url, headers=headers, timeout=SERVER_SECONDS) as owner:
                made = Place(one, other, owner)
                try:
                    yield made
                finally:
                    await made.close()


async def begun_by_a_user(place: Place, token: str) -> dict[str, Connection]:
    """What sends, each with half of its body; none has an answer yet."""
    client = place.client(token)
    opened = await client.post(f"/files/{CHUNK.md5}", json={"name": "chunk", "size": CHUNK.size, "chunk_size": 2 * MIB})
    assert opened.status_code == 201, opened.text
    tus = await client.post("/resumable", headers={"Tus-Resumable": "1.0.0", "Upload-Length": str(TAIL.size)})
    half: dict[str, Any] = {"body": CHUNK.data[:MIB], "length": CHUNK.size}
    whole: dict[str, Any] = {"body": WHOLE.data[: 64 * KIB], "length": WHOLE.size}
    tail: dict[str, Any] = {"body": TAIL.data[:KIB], "length": TAIL.size}
    number = opened.json()["upload"]["id"]
    return {
        "chunk": await place.begin(token, "PUT", f"/uploads/{number}/chunks/0", **half),
        "whole file": await place.begin(token, "PUT", f"/files/{WHOLE.md5}?name=whole", **whole),
        "new file": await place.begin(token, "POST", "/me/files?name=new", **whole),
        "batch": await place.begin(token, "POST", "/files/batch", body=bytes(512), length=10240),
        "tus": await place.begin(token, "PATCH", tus.headers["location"], *TUS, **tail),
        "upload of HTTP": await place.begin(token, "POST", "/resumable", *RUFH, **tail),
        "json": await place.begin(token, "POST", "/me/folders", body=b'{"name": ', length=20),
    }


async def begun_by_readers(place: Place, token: str, file_id: str, shared: tuple[str, str]) -> dict[str, Connection]:
    """Downloads of more than is on its way, of which the head has come."""
    url, visitor = shared
    found = {
        "download": await place.begin(token, "GET", f"/me/files/{file_id}/content"),
        "range": await place.begin(token, "GET", f"/me/files/{file_id}/content", f"Range: bytes=1-{LARGE_BYTES - 1}"),
        "tar": await place.begin(token, "GET", "/me/archive?prefix=&format=tar"),
        "zip": await place.begin(token, "GET", "/me/archive?prefix=&format=zip"),
        "download by link": await place.begin(visitor, "GET", f"{url}/files/{file_id}/content"),
        "tar by link": await place.begin(visitor, "GET", f"{url}/archive?format=tar"),
    }
    for name, connection in found.items():
        assert (await connection.take(12)).startswith(b"HTTP/1.1 20"), name
    return found


async def session(place: Place, kind: str, name: str) -> tuple[str, str, str]:
    link = (await place.owner.post("/me/links", json={"kind": kind, "name": name})).json()
    begun = await place.client("nobody").post(f"{link['url']}/session", json={})
    return link["id"], link["url"], begun.json()["token"]


async def refused(connection: Connection, since: float) -> tuple[int, float]:
    """The status of the answer, and after how many seconds it came."""
    while (answer := await connection.answer()).status < 200:  # how far it is
        pass
    return answer.status, time.monotonic() - since


async def test_all_that_runs_ends_where_another_server_revokes_the_right(
    tmp_path: Path, stack_url: str, redis_url: str
) -> None:
    async with place(tmp_path, stack_url, redis_url) as made:
        opened = await made.owner.post(
            "/uploads", json={"name": "s/large", "size": LARGE_BYTES, "chunk_size": LARGE_BYTES}
        )
        sent = await made.owner.put(f"/uploads/{opened.json()['upload']['id']}/chunks/0", content=bytes(LARGE_BYTES))
        file_id = sent.json()["file"]["id"]
        (reading, reading_id), (working, working_id), (sending, sending_id) = [
            await made.token(user_id, **more)
            for user_id, more in (("owner", {}), ("worker", {"scope": "queue:scan"}), ("alice", {}))
        ]
        share, url, visitor = await session(made, "download", "s/")
        drop, _, stranger = await session(made, "upload", "drop/")
        # All tasks that there are.
        await made.client(working).post("/queues/scan/claim", json={"max": 100})
        senders = await begun_by_a_user(made, sending)
        visited = {
            f"{name} by link": each for name, each in (await begun_by_a_user(made, stranger)).items() if name != "json"
        }
        readers = await begun_by_readers(made, reading, file_id, (url, visitor))
        asked = json.dumps({"wait_seconds": 30}).encode()
        claim = await made.begin(working, "POST", "/queues/scan/claim", body=asked, length=len(asked))
        await asyncio.sleep(1.0)  # all of it is under way

        since = time.monotonic()
        for token_id in (reading_id, working_id, sending_id):
            assert (await made.owner.delete(f"/admin/tokens/{token_id}")).status_code == 204
        for link_id in (share, drop):
            assert (await made.owner.delete(f"/me/links/{link_id}")).status_code == 204
        # A task for whoever waits still.
        assert (await made.owner.post("/me/files?name=secret", content=b"of others")).status_code == 201
        waited = {**senders, **visited, "claim": claim}
        answers = await asyncio.gather(*(refused(each, since) for each in waited.values()))
        for (name, _), (status, seconds) in zip(waited.items(), answers, strict=True):
            assert status == (410 if "by link" in name else 401), name
            assert seconds < WITHIN_SECONDS, name
        await asyncio.sleep(max(0.0, since + WITHIN_SECONDS - time.monotonic()))
        lengths = await asyncio.gather(*(each.rest() for each in readers.values()))
        for name, rest in zip(readers, lengths, strict=True):
            assert len(rest) < LARGE_BYTES - 20 * MIB, name
        # Nothing came of it, and what was not acknowledged is not there.
        names = [each["name"] for each in (await made.owner.get("/me/files")).json()["files"]]
        assert sorted(names) == ["s/large", "secret"]
        assert (await made.owner.get("/admin/users/alice/files")).json()["files"] == []
        figures = (await made.owner.get("/admin/work")).json()["queues"][0]
        assert [each["attempt"] for each in figures["holders"]] == [1], "of the first file alone"
