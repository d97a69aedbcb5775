"""One long PATCH over real connections to two server processes: cut off, displaced, stopped and killed at any moment, it
loses nothing that was acknowledged, and goes on where the server says."""

import random
import socket
from pathlib import Path

import httpx2

from tests.support.content import MIB, Content
from tests.support.process import Server, client_of_owner, ended, owner_token, wait_for
from tests.support.waiting import PATIENCE_SECONDS

CHUNK = MIB
CONTENT = Content(20 * MIB + 4321, seed=21, chunk_size=CHUNK, name="stream.bin")
TUS = {"Tus-Resumable": "1.0.0"}


class Uploading:
    """A client of tus that sends all that is left in one request, and may break off."""

    def __init__(self, url: str, data: Path, path: str) -> None:
        self._http = client_of_owner(url, data)
        self._token = owner_token(data)
        self._port = int(url.rpartition(":")[2])
        self._path = path
        self.connections: list[socket.socket] = []

    def offset(self) -> int:
        answer = self._http.head(self._path, headers=TUS)
        assert answer.status_code == 200, answer.headers
        return int(answer.headers["upload-offset"])

    def received(self) -> int:
        """As the native API tells it, which ends no request."""
        answer = self._http.get(self._path.replace("/resumable/", "/uploads/")).json()
        return int(answer["upload"]["received_bytes"])

    def close(self) -> None:
        self._http.close()
        for connection in self.connections:
            connection.close()

    def begin(self, offset: int, length: int) -> socket.socket:
        """A request for all that is left, of which so much is sent."""
        connection = socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE_SECONDS)
        self.connections.append(connection)
        head = [f"PATCH {self._path} HTTP/1.1", "Host: test", f"Authorization: Bearer {self._token}"]
        head += ["Tus-Resumable: 1.0.0", "Content-Type: application/offset+octet-stream", f"Upload-Offset: {offset}"]
        head += [f"Content-Length: {CONTENT.size - offset}", "", ""]
        connection.sendall("\r\n".join(head).encode() + CONTENT.data[offset : offset + length])
        return connection


def test_a_long_request_goes_on_after_whatever_ends_it(tmp_path: Path) -> None:
    data, chance = tmp_path / "data", random.Random(1)
    settings = {"DATA": str(data), "CHUNK_SIZE": "1MiB", "FREE_SPACE_FLOOR": "0", "SHUTDOWN_TIMEOUT": "1s"}
    processes = [Server(tmp_path / "log", settings, "--workers", "2")]

    def some() -> int:
        return chance.randrange(CHUNK // 2, 2 * CHUNK)

    with client_of_owner(processes[-1].url, data) as http:
        said = {**TUS, "Upload-Length": str(CONTENT.size), "Upload-Metadata": "filename c3RyZWFtLmJpbg=="}
        path = http.post("/resumable", headers=said).headers["location"].removeprefix(processes[-1].url)
    try:
        client, offset = Uploading(processes[-1].url, data, path), 0
        for _ in range(3):  # the connection breaks: what came stays
            sent = some()
            client.begin(offset, sent).close()
            wait_for(lambda: client.received() == offset + sent)  # noqa: B023
            offset += sent
            assert client.offset() == offset
        for _ in range(
            4
        ):  # it hangs, and another request comes, to whatever process: at most what is in flight is lost
            client.begin(offset, some())
            wait_for(lambda: client.received() >= (offset // CHUNK) * CHUNK)  # noqa: B023
            after = client.offset()
            assert after >= offset
            offset = after
        sent = some()
        client.begin(offset, sent)
        wait_for(lambda: client.received() > offset or sent < CHUNK)
        assert processes[-1].stop() == 0
        for round_number in range(3):
            client.close()
            processes.append(Server(tmp_path / "log", settings, "--workers", "2"))
            client = Uploading(processes[-1].url, data, path)
            after = client.offset()
            lost = offset + sent - after
            assert after >= offset, "acknowledged bytes are lost"
            assert lost <= 2 * CHUNK
            offset, sent = after, some()
            if round_number < 2:
                connection = client.begin(offset, sent)
                wait_for(lambda: client.received() > offset or offset % CHUNK + sent < CHUNK)  # noqa: B023
                with ended(processes[-1]):  # SIGKILL to all of it
                    pass
                connection.close()
        connection = client.begin(offset, CONTENT.size - offset)
        connection.settimeout(PATIENCE_SECONDS)
        assert connection.recv(4096).startswith(b"HTTP/1.1 204 ")
        with client_of_owner(processes[-1].url, data) as http:
            (file,) = http.get("/me/files").json()["files"]
            assert (file["name"], file["sha256"], file["size"]) == ("stream.bin", CONTENT.sha256, CONTENT.size)
            usage: httpx2.Response = http.get("/me/usage")
            assert (usage.json()["use_space_unfinished"], usage.json()["reserved"]) == (0, 0)
    finally:
        client.close()
        with ended(*processes):
            pass
