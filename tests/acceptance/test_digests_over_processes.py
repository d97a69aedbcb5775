"""Several server processes take chunks of one upload in turn, and one is killed: the digests go on where they were."""

from pathlib import Path

import httpx2

from tests.support.content import KIB, Content
from tests.support.process import Server, ended, wait_for
from tests.support.waiting import PATIENCE_SECONDS
from uploader.storage.local import chunks
from uploader.storage.local.chunks import SavedProgress

CONTENT = Content(20 * 64 * KIB + 7)
SETTINGS = {"AUTH": "none", "FREE_SPACE_FLOOR": "0", "CLAIM_LEASE": "2s"}


def put(server: Server, number: int) -> httpx2.Response:
    url = f"{server.url}/files/{CONTENT.md5}/chunks/{number}"
    return httpx2.put(url, content=CONTENT.chunk(number), timeout=PATIENCE_SECONDS)


def saved(data: Path) -> int:
    """How far the digests have come, by the digest file."""
    (path,) = (data / "temp").glob("*/*/*/digest")
    record = chunks.parse_digest_record(path.read_bytes())
    assert record is None or isinstance(record, SavedProgress)
    return 0 if record is None else record.position


async def test_the_digests_go_on_over_processes_of_which_one_is_killed(tmp_path: Path) -> None:
    data, log = tmp_path / "data", tmp_path / "log"
    settings = SETTINGS | {"DATA": str(data)}
    first, second = Server(log, settings), Server(log, settings, "--no-jobs")
    with ended(first, second):
        body = {"name": CONTENT.name, "size": CONTENT.size, "chunk_size": CONTENT.chunk_size}
        assert httpx2.post(f"{first.url}/files/{CONTENT.md5}", json=body).status_code == 201
        for number in range(8):
            assert put((first, second)[number % 2], number).status_code == 200
            wait_for(lambda end=(number + 1) * CONTENT.chunk_size: saved(data) == end)  # type: ignore[misc]
        second.kill()
        third = Server(log, settings, "--no-jobs")
        with ended(third):
            for number in range(8, CONTENT.chunk_count):
                answer = put((first, third)[number % 2], number)
            assert answer.status_code == 201, answer.text
            file = answer.json()["file"]
            assert (file["md5"], file["sha256"]) == (CONTENT.md5, CONTENT.sha256)
            assert httpx2.get(f"{third.url}/me/files/{file['id']}/content").content == CONTENT.data
