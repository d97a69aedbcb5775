"""A Ceph that is full takes connections, and answers no write: nobody waits long for it, and all goes on by itself once it
has room again."""

import asyncio
import http.client
import json
import os
import subprocess
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.background import becomes
from tests.support.content import MIB, Content
from tests.support.gateways import GIVEN_S3, given_gateway
from tests.support.process import Server, client_of_owner, ended, owner_token
from tests.support.waiting import eventually

CONTENT = Content(100 * MIB, chunk_size=5 * MIB)
# As docs/s3.md has it.
LONGEST_SECONDS = 15.0


def ceph(*arguments: str) -> str:
    """Run a command of the administrator of the Ceph of `CEPH_CONF`."""
    return subprocess.run(["ceph", *arguments], check=True, capture_output=True, text=True).stdout


def fill() -> None:
    """Let it be full where a bit of its room is taken; the ratios have an order."""
    for ratio in ("nearfull", "backfillfull", "full"):
        ceph("osd", f"set-{ratio}-ratio", "0.0001")


def make_room() -> None:
    ceph("osd", "set-full-ratio", "0.95")


async def is_full() -> bool:
    return "OSD_FULL" in await asyncio.to_thread(ceph, "health", "detail")


class Sender:
    """Sends the chunks of one upload."""

    def __init__(self, server: Server, data: Path) -> None:
        self._port, self._bearer = server.port, f"Bearer {owner_token(data)}"
        self.longest_seconds = 0.0
        with client_of_owner(server.url, data) as client:
            opening = {"name": "film", "size": CONTENT.size, "chunk_size": CONTENT.chunk_size}
            self._path = f"/uploads/{client.post('/uploads', json=opening).json()['upload']['id']}/chunks"

    async def is_stored(self, number: int) -> bool:
        status, _ = await self.put(number)
        return status < 300

    async def put(self, number: int) -> tuple[int, Any]:
        """Return the status and what was answered; the body is sent if the server wants it."""
        return await asyncio.to_thread(self._put, number)

    def _put(self, number: int) -> tuple[int, Any]:
        began = time.monotonic()
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)) as connection:
            connection.putrequest("PUT", f"{self._path}/{number}")
            headers = {"Authorization": self._bearer, "Content-Length": CONTENT.chunk_size, "Expect": "100-continue"}
            for name, value in headers.items():
                connection.putheader(name, str(value))
            connection.endheaders()
            assert connection.sock is not None
            if b" 100 " in connection.sock.recv(25, 2):
                connection.send(CONTENT.chunk(number))
            answer = connection.getresponse()
            told = json.loads(answer.read())
        self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)
        assert answer.status < 300 or answer.headers["Retry-After"], told
        return answer.status, told


@pytest.mark.skipif("CEPH_CONF" not in os.environ, reason="tests/ceph/run starts one")
async def test_a_full_ceph_holds_nobody_for_long_and_is_used_again_once_it_has_room(tmp_path: Path) -> None:
    assert GIVEN_S3 is not None
    data, gateway = tmp_path / "data", given_gateway(GIVEN_S3).make_bucket()
    server = Server(tmp_path / "log", gateway.environment("full") | {"DATA": str(data)})
    with ended(server):
        sender = Sender(server, data)
        numbers = iter(range(CONTENT.chunk_count))
        try:
            fill()
            await asyncio.gather(*(sender.put(next(numbers)) for _ in range(3)))
            await becomes(is_full, True)
            while 200 in {status for status, _ in await asyncio.gather(*(sender.put(next(numbers)) for _ in range(3)))}:
                pass  # radosgw has not heard of it
            for _ in range(3):
                began = time.monotonic()
                status, told = await sender.put(CONTENT.chunk_count - 1)
                assert (status, told["code"]) == (503, "unavailable")
                assert "has not answered since" in told["detail"]
                ready = httpx2.get(f"{server.url}/readyz", timeout=60).json()["checks"]["storage"]
                assert "has not answered since" in ready["reason"]
                assert time.monotonic() - began < LONGEST_SECONDS
            assert sender.longest_seconds < LONGEST_SECONDS
        finally:
            make_room()

        for number in range(CONTENT.chunk_count - 1):
            await eventually(partial(sender.is_stored, number))
        status, told = await sender.put(CONTENT.chunk_count - 1)
        assert (status, told["file"]["sha256"]) == (201, CONTENT.sha256)
