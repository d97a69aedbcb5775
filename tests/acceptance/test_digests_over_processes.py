"""Several server processes take chunks of one upload in turn, and one is killed: the digests go on where they were."""

import json
from pathlib import Path

import httpx2

from tests.support.content import KIB, Content
from tests.support.process import Server, ended, wait_for
from uploader.storage.local import chunks
from uploader.storage.local.chunks import SavedProgress

CONTENT = Content(20 * 64 * KIB + 7)
SETTINGS = {"AUTH": "none", "FREE_SPACE_FLOOR": "0", "CLAIM_LEASE": "2s"}


class Sender:
    """Sends chunks to servers in turn, and looks at the digest file."""

    def __init__(self, data: Path) -> None:
        self._data = data

    def open(self, server: Server) -> None:
        body = {"name": CONTENT.name, "size": CONTENT.size, "chunk_size": CONTENT.chunk_size}
        assert httpx2.post(f"{server.url}/files/{CONTENT.md5}", json=body).status_code == 201

    def put(self, server: Server, number: int) -> httpx2.Response:
        url = f"{server.url}/files/{CONTENT.md5}/chunks/{number}"
        return httpx2.put(url, content=CONTENT.chunk(number), timeout=30)

    def saved(self) -> SavedProgress | None:
        (path,) = (self._data / "temp").glob("*/*/*/digest")
        record = chunks.parse_digest_record(path.read_bytes())
        assert record is None or isinstance(record, SavedProgress)
        return record

    def has_come_to(self, count: int) -> bool:
        saved = self.saved()
        return saved is not None and saved.position == count * CONTENT.chunk_size


async def test_the_digests_go_on_over_processes_of_which_one_is_killed(tmp_path: Path) -> None:
    data, log = tmp_path / "data", tmp_path / "log"
    settings = SETTINGS | {"DATA": str(data)}
    sender = Sender(data)
    first, second = Server(log, settings), Server(log, settings, "--no-jobs")
    with ended(first, second):
        sender.open(first)
        for number in range(8):
            assert sender.put((first, second)[number % 2], number).status_code == 200
            wait_for(lambda count=number + 1: sender.has_come_to(count))  # type: ignore[misc]
        second.kill()
        assert sender.saved() is not None
        third = Server(log, settings, "--no-jobs")
        with ended(third):
            for number in range(8, CONTENT.chunk_count):
                answer = sender.put((first, third)[number % 2], number)
            assert answer.status_code == 201, answer.text
            file = json.loads(answer.text)["file"]
            assert (file["md5"], file["sha256"]) == (CONTENT.md5, CONTENT.sha256)
            assert httpx2.get(f"{third.url}/me/files/{file['id']}/content").content == CONTENT.data
