"""The main job, as its users see it: a large file, shuffled chunks, a server killed in the middle, nothing lost."""

import asyncio
import hashlib
import random
from collections.abc import Iterable
from pathlib import Path

import httpx2

from tests.support.content import MIB, Content
from tests.support.process import Process, Server, ended, run_cli
from tests.support.waiting import PATIENCE_SECONDS, eventually
from uploader.database import queries
from uploader.database.engine import Database

CONTENT = Content(64 * MIB, seed=2, chunk_size=2 * MIB, name="videos/holiday.mp4")
CONNECTIONS = 4


class Uploading:
    """What its client knows of it, and where its accounts are."""

    def __init__(self, database: Database, token: str) -> None:
        self._database = database
        self._headers = {"Authorization": f"Bearer {token}"}
        self.acknowledged: set[int] = set()

    def client(self, server: Server) -> httpx2.AsyncClient:
        limits = httpx2.Limits(max_connections=CONNECTIONS)
        return httpx2.AsyncClient(base_url=server.url, headers=self._headers, timeout=PATIENCE_SECONDS, limits=limits)

    async def send(self, client: httpx2.AsyncClient, numbers: Iterable[int], *, killed: Server | None = None) -> None:
        """Chunks over all connections. `killed`: a server that is, while others are under way."""
        queue = list(numbers)
        half = len(self.acknowledged) + len(queue) // 2

        async def connection() -> None:
            while queue:
                number = queue.pop(0)
                try:
                    response = await client.put(f"/files/{CONTENT.md5}/chunks/{number}", content=CONTENT.chunk(number))
                except httpx2.TransportError:
                    assert killed is not None
                    return
                assert response.status_code in (200, 201), response.text
                self.acknowledged.add(number)
                if killed is not None and len(self.acknowledged) == half:
                    killed.kill()

        await asyncio.gather(*(connection() for _ in range(CONNECTIONS)))

    async def are_accounted(self, **expected: int) -> None:
        """Straight from the database, as another program would see them; soon after the last chunk."""

        async def accounted() -> bool:
            usage = await self._database.read(lambda connection: queries.usage(connection, "alice"))
            assert usage is not None
            told = {"finished": usage.use_space_finished, "unfinished": usage.use_space_unfinished}
            return told | {"reserved": usage.reserved} == expected

        await eventually(accounted)


async def test_a_large_upload_survives_the_death_of_the_server(tmp_path: Path, stack_url: str, redis_url: str) -> None:
    data, log = tmp_path / "data", tmp_path / "log"
    settings = {"DATA": str(data), "DATABASE_URL": stack_url, "REDIS_URL": redis_url, "FREE_SPACE_FLOOR": "0"}
    settings["QUIET_INTERVAL"] = "1s"
    doomed, worker = Server(log, settings, "--workers", "2", "--no-jobs"), Process(log, settings, "work")
    made = run_cli(settings, "token", "create", "alice", "--total-space", "10GiB")
    database = Database(stack_url)
    uploading = Uploading(database, made.stdout.split()[-1])
    numbers = random.Random(1).sample(range(CONTENT.chunk_count), CONTENT.chunk_count)
    body = {"name": CONTENT.name, "size": CONTENT.size, "chunk_size": CONTENT.chunk_size}
    with ended(doomed, worker):
        async with uploading.client(doomed) as client:
            assert (await client.post(f"/files/{CONTENT.md5}", json=body)).status_code == 201
            await uploading.send(client, numbers[:10])
            await uploading.are_accounted(finished=0, unfinished=10 * CONTENT.chunk_size, reserved=CONTENT.size)
            await uploading.send(client, numbers[10:], killed=doomed)
        assert len(uploading.acknowledged) < CONTENT.chunk_count

        server = Server(log, settings, "--workers", "2", "--no-jobs")
        with ended(server):
            async with uploading.client(server) as client:
                upload = (await client.get(f"/files/{CONTENT.md5}")).json()["upload"]
                missing = {number for first, last in upload["missing"] for number in range(first, last + 1)}
                assert not missing & uploading.acknowledged, "an acknowledged chunk is missing"
                held = CONTENT.size - len(missing) * CONTENT.chunk_size
                assert upload["received_bytes"] == held
                await uploading.are_accounted(finished=0, unfinished=held, reserved=CONTENT.size)
                await uploading.send(client, missing)

                file = (await client.get(f"/files/{CONTENT.md5}")).json()["file"]
                assert (file["size"], file["md5"], file["sha256"]) == (CONTENT.size, CONTENT.md5, CONTENT.sha256)
                content = (await client.get(f"/me/files/{file['id']}/content")).content
                assert hashlib.sha256(content).hexdigest() == CONTENT.sha256
                await uploading.are_accounted(finished=CONTENT.size, unfinished=0, reserved=0)

                again = await client.post(f"/files/{CONTENT.md5}", json=body | {"name": "copy.mp4"})
                assert (again.status_code, again.json()["file"]["instant"]) == (201, True)
                on_disk = [path for name in ("temp", "blobs") for path in (data / name).rglob("*") if path.is_file()]
                assert sum(path.stat().st_size for path in on_disk) == CONTENT.size
            assert server.stop() == 0
    await database.close()
