"""nginx and Caddy before the server, by the configurations of docs/tls.md, word for word but for ports and paths."""

import asyncio
import json
import re
import socket
import ssl
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.certificates import Authority
from tests.support.consumer import SECRETS, consuming
from tests.support.content import KIB, MIB, Content
from tests.support.process import Server, ended, owner_token, wait_for
from tests.support.proxies import HOST, PROXIES, running_proxy

FORGED = "203.0.113.66"
# Of a client, which is none of the proxies that are believed.
CLIENT = "127.0.0.2"
CHUNKS = Content(3 * MIB, seed=1, chunk_size=MIB)
TUS = Content(2 * MIB, seed=2)
WHOLE = Content(MIB, seed=3)
TOLD = Content(2 * MIB, seed=4)
# Their addresses are more than 8 KiB, which is what nginx has for a header of a request by itself.
PARTS = 130
PREFIX = "/store"


def with_headers(*lines: str) -> list[str]:
    """Arguments of curl."""
    return [word for line in lines for word in ("-H", line)]


def tus(*lines: str) -> list[str]:
    return with_headers("Tus-Resumable: 1.0.0", *lines)


@dataclass
class Curl:
    """A client of the host, elsewhere than the proxy, which speaks HTTP/2 and tells lies of where it comes from."""

    directory: Path
    authority: Path
    port: int
    token: str
    prefix: str = ""

    async def __call__(self, path: str, *arguments: str) -> tuple[str, dict[str, str], bytes]:
        """Version and status of the answer, its head and its body."""
        to = ("--resolve", f"{HOST}:{self.port}:127.0.0.1", "--interface", CLIENT, "--cacert", str(self.authority))
        lies = [f"X-Forwarded-For: {FORGED}", f"Forwarded: for={FORGED};host=evil.example;proto=http"]
        said = with_headers(*lies, "X-Forwarded-Host: evil.example", f"Authorization: Bearer {self.token}")
        head = self.directory / "head"
        url = f"https://{HOST}:{self.port}{self.prefix}{path}"
        command = ("curl", "-sS", "--http2", "-D", str(head), *to, *said, *arguments, url)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
        body, errors = await process.communicate()
        assert process.returncode == 0, errors
        status, *lines = head.read_text().strip().split("\n\n")[-1].splitlines()
        fields = dict(line.rstrip().split(": ", 1) for line in lines if ": " in line)
        return status.strip(), {name.lower(): value for name, value in fields.items()}, body


def secure(port: int, authority: Path) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=authority)
    plain = socket.create_connection(("127.0.0.1", port), timeout=300)
    return context.wrap_socket(plain, server_hostname=HOST)


@pytest.mark.parametrize("proxy", PROXIES)
async def test_a_proxy_as_it_is_printed(proxy: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    data, events = tmp_path / "data", tmp_path / "events.toml"
    (tmp_path / "may.secret").write_text(SECRETS[0])
    async with consuming() as asked:
        events.write_text(f'[pre_create]\nurl = "{asked.url}"\nsecret_file = "may.secret"\n')
        settings = {"DATA": str(data), "EVENTS": str(events), "TRUSTED_PROXIES": "127.0.0.1", "MIN_CHUNK_SIZE": "64KiB"}
        settings |= {"MAX_OPEN_UPLOADS": str(2 * PARTS), "CHUNK_SIZE": "64KiB"}
        settings["INTERIM_RESPONSES"] = "false" if proxy == "nginx" else "true"
        server = await asyncio.to_thread(Server, tmp_path / "log", settings)
        certified = authority.issue("proxy", HOST)
        with ended(server), running_proxy(proxy, tmp_path / proxy, certified, server.port) as port:
            curl = Curl(tmp_path, authority.file, port, owner_token(data))
            await chunks_arrive(curl)
            await whole_files_arrive(curl)
            await tus_goes_on_whatever_its_metadata(curl)
            await tus_puts_many_parts_together(curl, server)
            location = await tus_is_told_the_address_of_the_proxy(curl)
            said = {json.loads(request.body)["client_address"] for request in asked.requests}
            assert said == {CLIENT}
            with secure(port, authority.file) as connection:
                await asyncio.to_thread(a_body_goes_through_as_it_comes, connection, server, location, curl.token)
            if proxy == "nginx":  # the other one waits
                server.kill()
                status, head, _ = await curl(location, "-I")
                assert (status, head["retry-after"]) == ("HTTP/2 423", "1")


@pytest.mark.parametrize("way", ["kept", "stripped"])
@pytest.mark.parametrize("proxy", PROXIES)
async def test_a_path_that_is_kept_and_one_that_is_stripped(proxy: str, way: str, tmp_path: Path) -> None:
    authority, public_url = Authority(tmp_path / "authority"), f"https://{HOST}{PREFIX}"
    settings = {"DATA": str(tmp_path / "data"), "PUBLIC_URL": public_url, "TRUSTED_PROXIES": "127.0.0.1"}
    settings |= {"MIN_CHUNK_SIZE": "64KiB", "INTERIM_RESPONSES": "false"}
    server = await asyncio.to_thread(Server, tmp_path / "log", settings)
    certified = authority.issue("proxy", HOST)
    with ended(server), running_proxy(proxy, tmp_path / proxy, certified, server.port, way) as port:
        assert f"Web page:           {public_url}/\n" in server.output()
        curl = Curl(tmp_path, authority.file, port, owner_token(tmp_path / "data"), PREFIX)
        await chunks_arrive(curl)
        await whole_files_arrive(curl)
        status, head, _ = await curl("/resumable/", "-X", "POST", *tus(f"Upload-Length: {TUS.size}"))
        location = head["location"]
        assert (status, location[: len(public_url) + 11]) == ("HTTP/2 201", f"{public_url}/resumable/")
        status, asked, _ = await curl(location.removeprefix(public_url), "-I", *tus())
        assert (status, asked.get("upload-offset")) == ("HTTP/2 200", "0")
        for path in ("/", "/admin/"):
            _, _, page = await curl(path)
            (script,) = re.findall(rf'type="module" src="{PREFIX}(/static/[^"]+)"', page.decode())
            status, head, _ = await curl(script)
            assert (status, head["content-type"]) == ("HTTP/2 200", "text/javascript; charset=utf-8")
        status, _, refused = await curl("/me/files/nothing")
        assert json.loads(refused)["type"] == f"{PREFIX}/problems/file-not-found"


async def chunks_arrive(curl: Curl) -> None:
    opening = json.dumps({"name": "chunks", "size": CHUNKS.size, "chunk_size": CHUNKS.chunk_size})
    status, _, _ = await curl(f"/files/{CHUNKS.md5}", "-d", opening)
    assert status == "HTTP/2 201"
    statuses = []
    for number in range(CHUNKS.chunk_count):
        chunk = curl.directory / "chunk"
        chunk.write_bytes(CHUNKS.chunk(number))
        status, _, answer = await curl(f"/files/{CHUNKS.md5}/chunks/{number}", "-T", str(chunk))
        statuses.append(status)
    assert statuses == ["HTTP/2 200", "HTTP/2 200", "HTTP/2 201"]
    _, _, body = await curl(f"/me/files/{json.loads(answer)['file']['id']}/content")
    assert body == CHUNKS.data


async def whole_files_arrive(curl: Curl) -> None:
    """As the resumable uploads of HTTP, of which a 104 tells before the answer."""
    file = curl.directory / "whole"
    file.write_bytes(WHOLE.data)
    told = with_headers("Upload-Draft-Interop-Version: 8", "Upload-Complete: ?1")
    status, _, _ = await curl("/resumable", *told, "-X", "POST", "--data-binary", f"@{file}")
    assert status == "HTTP/2 201"
    _, _, listed = await curl("/me/files")
    assert WHOLE.sha256 in {found["sha256"] for found in json.loads(listed)["files"]}


async def tus_goes_on_whatever_its_metadata(curl: Curl) -> None:
    """What a client told of its file, 4 KiB at the most, is in each answer to its question how far it is."""
    metadata = f"filename {b64encode(b'told.bin').decode()},note "
    metadata += b64encode(b"x" * ((4096 - len(metadata)) // 4 * 3)).decode()
    assert 4090 <= len(metadata) <= 4096
    told = tus(f"Upload-Length: {TOLD.size}", f"Upload-Metadata: {metadata}")
    _, created, _ = await curl("/resumable", "-X", "POST", *told)
    path = created["location"].partition(str(curl.port))[2]
    chunk = curl.directory / "told"
    for offset in (0, MIB):
        status, asked, _ = await curl(path, "-I", *tus())
        assert (status, asked.get("upload-offset")) == ("HTTP/2 200", str(offset))
        assert asked.get("upload-metadata") == metadata
        chunk.write_bytes(TOLD.data[offset : offset + MIB])
        fields = (f"Upload-Offset: {offset}", "Content-Type: application/offset+octet-stream")
        status, _, _ = await curl(path, "-X", "PATCH", "--data-binary", f"@{chunk}", *tus(*fields))
        assert status == "HTTP/2 204"
    _, _, listed = await curl("/me/files")
    assert ("told.bin", TOLD.sha256) in {(found["name"], found["sha256"]) for found in json.loads(listed)["files"]}


async def tus_puts_many_parts_together(curl: Curl, server: Server) -> None:
    headers = {"Authorization": f"Bearer {curl.token}", "Tus-Resumable": "1.0.0"}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=300) as client:
        made = [
            await client.post("/resumable", headers={"Upload-Concat": "partial", "Upload-Length": "1"})
            for _ in range(PARTS)
        ]
    paths = [response.headers["location"].partition(str(server.port))[2] for response in made]
    parts = "final;" + " ".join(f"https://{HOST}:{curl.port}{path}" for path in paths)
    assert 8 * KIB < len(parts) < 16 * KIB
    status, created, _ = await curl("/resumable", "-X", "POST", *tus(f"Upload-Concat: {parts}"))
    assert status == "HTTP/2 201"
    status, asked, _ = await curl(created["location"].partition(str(curl.port))[2], "-I", *tus())
    assert (status, asked.get("upload-concat")) == ("HTTP/2 200", parts)


async def tus_is_told_the_address_of_the_proxy(curl: Curl) -> str:
    status, head, _ = await curl("/resumable", "-X", "POST", *tus(f"Upload-Length: {TUS.size}"))
    assert status == "HTTP/2 201"
    found = re.fullmatch(rf"https://{re.escape(HOST)}:{curl.port}(/resumable/.+)", head["location"])
    assert found is not None, head
    return found[1]


def a_body_goes_through_as_it_comes(connection: ssl.SSLSocket, server: Server, path: str, token: str) -> None:
    """The server has the first bytes before the client has sent the last ones."""
    fields = {"Host": HOST, "Authorization": f"Bearer {token}", "Tus-Resumable": "1.0.0", "Upload-Offset": "0"}
    fields |= {"Content-Type": "application/offset+octet-stream", "Content-Length": str(TUS.size)}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    connection.sendall(f"PATCH {path} HTTP/1.1\r\n{head}\r\n".encode() + TUS.data[:MIB])
    client: Any = httpx2.Client(base_url=server.url, headers={"Authorization": f"Bearer {token}"}, timeout=300)
    with client:
        status = path.replace("resumable", "uploads")
        wait_for(lambda: client.get(status).json()["upload"]["received_bytes"] >= MIB - 64 * KIB)
        connection.sendall(TUS.data[MIB:])
        assert connection.recv(64 * KIB).startswith(b"HTTP/1.1 204")
        files = client.get("/me/files").json()["files"]
    assert TUS.sha256 in {found["sha256"] for found in files}
