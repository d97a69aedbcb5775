"""A disk without a free byte, and with nothing in the trash: those who filled it can empty it."""

from pathlib import Path

import httpx2
import pytest

from tests.support.content import KIB, MIB, Content
from tests.support.mounted import SmallDisk, small_disk
from tests.support.process import Server, client_of_owner, ended, wait_for
from tests.support.sending import put, send
from uploader.domain import reasons
from uploader.storage.ballast import Ballast

LARGE, OPEN = Content(24 * MIB, chunk_size=MIB), Content(6 * 64 * KIB - 100, seed=1)
OTHERS = [Content(2 * 64 * KIB, seed=seed, name=f"{seed}") for seed in range(2, 5)]

pytestmark = pytest.mark.usefixtures("mounts")


def started(tmp_path: Path, disk: SmallDisk) -> Server:
    settings = {"DATA": str(disk.inside / "data"), "FREE_SPACE_FLOOR": "0"}
    return Server(tmp_path / "log", settings, program=disk.program)


def reason_of(client: httpx2.Client) -> object:
    ready = client.get("/readyz")
    assert ready.status_code == 200, ready.text
    return ready.json()["checks"]["storage"]["reason"]


def test_what_gives_space_back_goes_on_and_bytes_wait(tmp_path: Path) -> None:
    used, full = (reasons.spell([reason()]) for reason in (reasons.BALLAST_USED, reasons.DISK_FULL))
    with small_disk(tmp_path / "disk", 96 * MIB) as disk:
        data = disk.here / "data"
        server = started(tmp_path, disk)
        with ended(server), client_of_owner(server.url, data) as client:
            client.timeout = 60
            file = send(client, LARGE).json()["file"]
            for content in (OPEN, *OTHERS):
                send(client, content, (0,))
            ballast = Ballast(data / "ballast")
            assert ballast.fill()
            filler = disk.fill()
            assert client.put(f"/files/{OPEN.md5}/chunks/1", content=OPEN.chunk(1)).status_code == 507
            wait_for(lambda: reason_of(client) in (full, used))

            for content in OTHERS[:2]:
                assert client.delete(f"/files/{content.md5}").status_code == 204
            assert ballast.is_used
            assert reason_of(client) == used
            assert client.put(f"/files/{OPEN.md5}/chunks/1", content=OPEN.chunk(1)).status_code == 507
            server.kill()

        # A start has to write, too, before anybody can delete.
        filler.unlink()
        assert ballast.fill()
        disk.fill()
        server = started(tmp_path, disk)
        with ended(server), client_of_owner(server.url, data) as client:
            client.timeout = 60
            assert reason_of(client) == used
            assert client.delete(f"/files/{OTHERS[2].md5}").status_code == 204
            assert client.delete(f"/me/files/{file['id']}").status_code == 204
            wait_for(lambda: not ballast.is_used)
            wait_for(lambda: reason_of(client) is None)
            assert not list((data / "trash" / "blobs").glob("*/*")), "it gave way"
            put(client, OPEN, range(1, OPEN.chunk_count))
            assert server.stop() == 0


def test_server_without_free_inodes_starts_after_a_crash_and_deletes(tmp_path: Path) -> None:
    used = reasons.spell([reasons.BALLAST_USED()])
    with small_disk(tmp_path / "disk", 96 * MIB, inodes=1000) as disk:
        data = disk.here / "data"
        server = started(tmp_path, disk)
        with ended(server), client_of_owner(server.url, data) as client:
            client.timeout = 60
            file = send(client, LARGE).json()["file"]
            send(client, OPEN, (0,))
            assert Ballast(data / "ballast").fill()
            server.kill()
        disk.take_inodes()
        server = started(tmp_path, disk)
        with ended(server), client_of_owner(server.url, data) as client:
            client.timeout = 60
            assert reason_of(client) == used
            assert client.put(f"/files/{OPEN.md5}/chunks/1", content=OPEN.chunk(1)).status_code == 507
            assert client.delete(f"/me/files/{file['id']}").status_code == 204
            disk.give_inodes_back()
            wait_for(lambda: reason_of(client) is None)
            put(client, OPEN, range(1, OPEN.chunk_count))
            assert server.stop() == 0
