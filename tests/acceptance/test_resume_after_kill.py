"""The main job, as its users see it: a large file, shuffled chunks, a server killed in the middle, nothing lost."""

import asyncio
import contextlib
import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest

from tests.support.content import MIB, Content
from tests.support.process import Process, Server, ended, run_cli
from tests.support.servers import PrivateRedis
from uploader.database import queries
from uploader.database.engine import Database

QUIET_SECONDS = 1.0
CONTENT = Content(256 * MIB, seed=2, chunk_size=8 * MIB, name="videos/holiday.mp4")
CONNECTIONS = 4


@dataclass
class Installation:
    """How the server is started, and where its accounts are."""

    data: Path
    database_url: str
    settings: dict[str, str]
    arguments: tuple[str, ...] = ()
    start_worker: bool = False
    processes: list[Process] = field(default_factory=list)

    def start(self) -> Server:
        log = self.data.parent / "server.log"
        server = Server(log, self.settings, *self.arguments)
        self.processes.append(server)
        if self.start_worker and not any(type(process) is Process for process in self.processes):
            self.processes.append(Process(self.data.parent / "worker.log", self.settings, "work"))
        return server

    async def accounts(self, user_id: str) -> dict[str, int]:
        """Straight from the database, as another program would see them."""
        database = Database(self.database_url)
        usage = await database.read(lambda connection: queries.usage(connection, user_id))
        await database.close()
        assert usage is not None
        return {
            "finished": usage.use_space_finished,
            "unfinished": usage.use_space_unfinished,
            "reserved": usage.reserved,
        }


def _settings(data: Path, **more: str) -> dict[str, str]:
    return {"DATA": str(data), "QUIET_INTERVAL": f"{QUIET_SECONDS}s", "FREE_SPACE_FLOOR": "0", **more}


@pytest.fixture
def embedded(tmp_path: Path) -> Installation:
    data = tmp_path / "data"
    return Installation(data, f"sqlite:///{data / 'uploader.db'}", _settings(data))


def _external(tmp_path: Path, database_url: str, redis: PrivateRedis) -> Installation:
    data = tmp_path / "data"
    settings = _settings(data, DATABASE_URL=database_url, REDIS_URL=redis.url)
    return Installation(data, database_url, settings, ("--workers", "2", "--no-jobs"), start_worker=True)


@pytest.fixture
def mariadb(tmp_path: Path, mariadb_url: str, own_redis: PrivateRedis) -> Installation:
    return _external(tmp_path, mariadb_url, own_redis)


@pytest.fixture
def mysql(tmp_path: Path, mysql_url: str, own_redis: PrivateRedis) -> Installation:
    return _external(tmp_path, mysql_url, own_redis)


@pytest.fixture(params=["embedded", "mariadb", "mysql"])
def installation(request: pytest.FixtureRequest) -> Iterator[Installation]:
    made: Installation = request.getfixturevalue(request.param)
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: _end_all(made))
        yield made


def _end_all(installation: Installation) -> None:
    with ended(*installation.processes):
        pass


async def test_a_large_upload_survives_the_death_of_the_server(installation: Installation) -> None:
    server = installation.start()
    token = _token(installation, "alice")
    numbers = list(range(CONTENT.chunk_count))
    random.Random(1).shuffle(numbers)

    async with _client(server, token) as client:
        opened = await client.post(f"/files/{CONTENT.md5}", json={"name": CONTENT.name, "size": CONTENT.size})
        assert opened.status_code == 201
        acknowledged = await _send(client, numbers[:10])
        assert acknowledged == set(numbers[:10])
        # What was acknowledged is in the accounts, to the byte, soon after the last chunk.
        await _eventually(installation, {"finished": 0, "unfinished": 10 * 8 * MIB, "reserved": CONTENT.size})
        # Killed while four connections send.
        sending = asyncio.create_task(_send(client, numbers[10:]))
        await asyncio.sleep(0.3)
        server.kill()
        acknowledged |= await sending
    assert len(acknowledged) < CONTENT.chunk_count

    server = installation.start()
    async with _client(server, token) as client:
        status = (await client.get(f"/files/{CONTENT.md5}")).json()
        missing = {number for first, last in status["upload"]["missing"] for number in range(first, last + 1)}
        assert not missing & acknowledged, "an acknowledged chunk is missing"
        held = CONTENT.size - len(missing) * 8 * MIB
        assert status["upload"]["received_bytes"] == held
        await _eventually(installation, {"finished": 0, "unfinished": held, "reserved": CONTENT.size})
        assert await _send(client, sorted(missing)) == missing

        file = (await client.get(f"/files/{CONTENT.md5}")).json()["file"]
        assert (file["size"], file["md5"], file["sha256"]) == (CONTENT.size, CONTENT.md5, CONTENT.sha256)
        assert await _download_sha256(client, file["id"]) == CONTENT.sha256
        assert await installation.accounts("alice") == {"finished": CONTENT.size, "unfinished": 0, "reserved": 0}

        on_disk = _bytes_on_disk(installation.data)
        again = await client.post(f"/files/{CONTENT.md5}", json={"name": "copy.mp4", "size": CONTENT.size})
        assert again.status_code == 201
        assert again.json()["file"]["instant"] is True
        assert _bytes_on_disk(installation.data) == on_disk == CONTENT.size
    assert server.stop() == 0


def _token(installation: Installation, user: str) -> str:
    made = run_cli(installation.settings, "token", "create", user, "--total-space", "10GiB")
    assert made.returncode == 0, made.stderr
    return made.stdout.split()[-1]


def _client(server: Server, token: str) -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=CONNECTIONS)
    return httpx2.AsyncClient(
        base_url=server.url, headers={"Authorization": f"Bearer {token}"}, timeout=60, limits=limits
    )


async def _send(client: httpx2.AsyncClient, numbers: list[int]) -> set[int]:
    """Send chunks over all connections; those that were acknowledged, when the server may die meanwhile."""
    acknowledged: set[int] = set()
    queue = list(reversed(numbers))

    async def connection() -> None:
        while queue:
            number = queue.pop()
            try:
                url = f"/files/{CONTENT.md5}/chunks/{number}"
                response = await client.put(url, content=CONTENT.chunk(number))
            except httpx2.TransportError:
                return
            assert response.status_code in (200, 201), response.text
            acknowledged.add(number)

    await asyncio.gather(*(connection() for _ in range(CONNECTIONS)))
    return acknowledged


async def _eventually(installation: Installation, expected: dict[str, int]) -> None:
    """The accounts become `expected` within the quiet interval and 2 s; polling may take a little longer."""
    deadline = asyncio.get_running_loop().time() + QUIET_SECONDS + 2
    accounts = await installation.accounts("alice")
    while accounts != expected and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.1)
        accounts = await installation.accounts("alice")
    assert accounts == expected


async def _download_sha256(client: httpx2.AsyncClient, file_id: str) -> str:
    digest = hashlib.sha256()
    async with client.stream("GET", f"/me/files/{file_id}/content") as response:
        assert response.status_code == 200
        async for piece in response.aiter_bytes():
            digest.update(piece)
    return digest.hexdigest()


def _bytes_on_disk(data: Path) -> int:
    return sum(path.stat().st_size for name in ("temp", "blobs") for path in (data / name).rglob("*") if path.is_file())
