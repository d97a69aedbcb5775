"""A server of its own, with users, a file to download, and what the kernel says of its memory."""

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.slow_clients.slow import SLOW_BYTES, SLOW_MD5
from tests.support.content import MIB, Content
from tests.support.process import UPLOADER, Server, ended
from uploader.bootstrap import Services
from uploader.settings import Settings

FILE = Content(64 * MIB, chunk_size=64 * MIB)


@dataclass(frozen=True)
class Installation:
    """A running server and the tokens of its users."""

    server: Server
    honest: str
    slow: list[str]
    file_id: str

    def memory_bytes(self) -> int:
        """What the server's process holds now."""
        status = Path(f"/proc/{self.server.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024


@contextmanager
def running_installation(directory: Path, slow_users: int) -> Iterator[Installation]:
    data = directory / "data"
    # All of them come from one address.
    settings = {"DATA": str(data), "MAX_CONNECTIONS_PER_ADDRESS": "4096"}
    server = Server(directory / "log", settings, program=(UPLOADER,))
    with ended(server):
        honest, *slow = asyncio.run(_make_users(data, 1 + slow_users))
        for token in slow:
            _open(server.url, token, SLOW_MD5, SLOW_BYTES)
        yield Installation(server, honest, slow, _upload(server.url, slow[0]))
        server.stop()


async def _make_users(data: Path, count: int) -> list[str]:
    services = Services(Settings(data=data))
    try:
        return [
            await services.accounts.create_token(f"user-{number}", admin=False, total_space=1 << 40)
            for number in range(count)
        ]
    finally:
        await services.close()


def _upload(url: str, token: str) -> str:
    _open(url, token, FILE.md5, FILE.size)
    file_id: str = _send("PUT", f"{url}/files/{FILE.md5}/chunks/0", token, FILE.data)["file"]["id"]
    return file_id


def _open(url: str, token: str, md5: str, size: int) -> None:
    opening = {"name": "a", "size": size, "chunk_size": size}
    _send("POST", f"{url}/files/{md5}", token, json.dumps(opening).encode())


def _send(method: str, url: str, token: str, body: bytes) -> dict[str, dict[str, str]]:
    request = urllib.request.Request(url, body, {"Authorization": f"Bearer {token}"}, method=method)
    with urllib.request.urlopen(request, timeout=60) as response:
        answer: dict[str, dict[str, str]] = json.load(response)
        return answer
