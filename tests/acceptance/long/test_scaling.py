"""nginx before several servers, by the configuration of docs/scaling.md: what belongs to one upload goes to one of them, and
no request is lost while one after the other is started anew."""

import asyncio
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest

from tests.support.content import KIB, Content
from tests.support.process import Server, ended, owner_token
from tests.support.proxies import HOST, printed, running_nginx
from tests.support.resumable import path_of
from tests.support.servers import PrivateRedis, free_port
from tests.support.waiting import SERVER_SECONDS

SCALING = Path(__file__).parents[3] / "docs" / "scaling.md"
NODES = ("10.0.0.11:8000", "10.0.0.12:8000")
UPLOADS = 40
CLIENTS = 4  # of each kind
COUNTED = "log_format counted '$status $upstream_addr';\n"
TLS = r" +ssl_\w+ [^;]+;\n| ssl http2"


def upstream(ports: list[int]) -> str:
    """The configuration of the page, with servers of this machine."""
    (configuration,) = re.findall(r"```nginx\n(.*?)```", SCALING.read_text(), flags=re.DOTALL)
    for node, port in zip(NODES, ports, strict=True):
        assert node in configuration
        configuration = configuration.replace(node, f"127.0.0.1:{port}")
    return str(configuration)


@pytest.mark.parametrize("proxy", ["nginx"])
def test_an_upload_stays_on_a_node_and_many_are_spread(proxy: str, tmp_path: Path) -> None:
    ports = [free_port() for _ in NODES]
    configuration = upstream(ports)
    for node, port in zip(NODES, ports, strict=True):
        configuration += f'server {{ listen 127.0.0.1:{port}; return 200 "{node}"; }}\n'
    configuration += "server { listen 127.0.0.1:PORT; location / { proxy_pass http://uploader; } }\n"
    with (
        running_nginx(configuration, tmp_path / "nginx") as port,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        spread: Counter[str] = Counter()
        for form in ("/uploads/{}", "/uploads/{}/chunks/7?id=1", "/resumable/{}", "/files/{}", "/files/{}/chunks/0"):
            for _ in range(UPLOADS):
                path = form.format(uuid4().hex)
                nodes = {client.get(path).text for _ in range(3)}
                assert len(nodes) == 1
                spread.update(nodes)
        assert set(spread) == set(NODES)
        assert min(spread.values()) > UPLOADS
        assert {client.get("/me/usage").text for _ in range(40)} == set(NODES)
        upload = uuid4().hex
        assert client.get(f"/uploads/{upload}").text == client.put(f"/uploads/{upload}/chunks/3").text


class Load:
    """Clients that go on until they are stopped; what they asked for, and what was not answered with a success."""

    def __init__(self, url: str, token: str) -> None:
        self._client = httpx2.AsyncClient(
            base_url=url, headers={"Authorization": f"Bearer {token}", "Host": HOST}, timeout=SERVER_SECONDS
        )
        self._seeds = iter(range(1 << 30))
        self._stopping = False
        self.requests: Counter[str] = Counter()
        self.failures: list[tuple[str, object]] = []
        kinds = (self._chunks, self._whole_files, self._patches, self._downloads)
        self._tasks = [asyncio.create_task(self._go_on(kind)) for kind in kinds for _ in range(CLIENTS)]

    async def stop(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)
        await self._client.aclose()

    async def _go_on(self, kind: Callable[[Content], Awaitable[None]]) -> None:
        while not self._stopping:
            content = Content(random.randrange(100, 300) * KIB, seed=next(self._seeds), name=f"{uuid4().hex}.bin")
            try:
                await kind(content)
            except (httpx2.HTTPError, AssertionError) as error:
                self.failures.append((kind.__name__, repr(error)))

    async def _ask(self, kind: str, method: str, path: str, **how: object) -> httpx2.Response:
        self.requests[kind] += 1
        response = await self._client.request(method, path, **how)  # type: ignore[arg-type]
        assert response.is_success, (kind, response.status_code, response.text)
        return response

    async def _chunks(self, content: Content) -> None:
        told = {"name": content.name, "size": content.size, "chunk_size": 64 * KIB}
        opened = (await self._ask("open", "POST", "/uploads", json=told)).json()["upload"]
        for number in range(opened["chunk_count"]):
            path, chunk = f"/uploads/{opened['id']}/chunks/{number}", content.chunk(number)
            length = {"Content-Length": str(len(chunk))}
            await self._ask("chunk", "PUT", path, content=slowly(chunk), headers=length)

    async def _whole_files(self, content: Content) -> None:
        await self._ask("whole file", "POST", f"/me/files?name={content.name}", content=content.data)

    async def _patches(self, content: Content) -> None:
        tus = {"Tus-Resumable": "1.0.0"}
        told = tus | {"Upload-Length": str(content.size)}
        path = path_of(await self._ask("create", "POST", "/resumable", headers=told))
        tus["Content-Type"] = "application/offset+octet-stream"
        for offset, end in ((0, 70_001), (70_001, content.size)):
            said = tus | {"Upload-Offset": str(offset)}
            await self._ask("PATCH", "PATCH", path, headers=said, content=content.data[offset:end])

    async def _downloads(self, content: Content) -> None:
        made = await self._ask("whole file", "POST", f"/me/files?name={content.name}", content=content.data)
        for _ in range(5):
            got = await self._ask("download", "GET", f"/me/files/{made.json()['file']['id']}/content")
            assert got.content == content.data


async def slowly(data: bytes) -> AsyncIterator[bytes]:
    """Some are on their way at any moment."""
    yield data[:1000]
    await asyncio.sleep(0.05)
    yield data[1000:]


@pytest.mark.parametrize("proxy", ["nginx"])
@pytest.mark.parametrize(("workers", "rounds"), [(1, 5), (2, 2)])
async def test_no_request_is_lost_while_one_server_after_the_other_is_started_anew(
    workers: int, rounds: int, proxy: str, mariadb_url: str, own_redis: PrivateRedis, tmp_path: Path
) -> None:
    ports, data = [free_port() for _ in NODES], tmp_path / "data"
    settings = {"DATA": str(data), "DATABASE_URL": mariadb_url, "REDIS_URL": own_redis.url, "FREE_SPACE_FLOOR": "0"}
    settings |= {"TRUSTED_PROXIES": "127.0.0.1", "INTERIM_RESPONSES": "false", "WORKERS": str(workers)}
    settings |= {"DEFAULT_TOTAL_SPACE": "1TiB", "MAX_CONNECTIONS_PER_USER": "1000"}
    before = re.sub(TLS, "", printed(proxy)).replace("listen 443", "access_log requests counted;\n    listen PORT")
    assert before.count("http://127.0.0.1:8000;") == 2
    configuration = upstream(ports) + COUNTED + before.replace("http://127.0.0.1:8000;", "http://uploader;")
    servers: list[Server] = []

    def start(number: int) -> Server:
        return Server(tmp_path / f"log-{number}", settings, port=ports[number])

    servers = [await asyncio.to_thread(start, number) for number in range(len(NODES))]
    try:
        with running_nginx(configuration, tmp_path / "nginx") as port:
            load = Load(f"http://127.0.0.1:{port}", owner_token(data))
            for number in list(range(len(NODES))) * rounds:
                assert await asyncio.to_thread(servers[number].stop) == 0
                servers[number] = await asyncio.to_thread(start, number)
            await load.stop()
    finally:
        with ended(*servers):
            pass
    asked = [line.split(" ", 1) for line in (tmp_path / "nginx" / "requests").read_text().splitlines()]
    moved = sum("," in addresses for _, addresses in asked)
    print(f"{workers=}: {load.requests.total()} requests, {moved} went to the other server: {dict(load.requests)}")
    assert load.failures == []
    assert {status[0] for status, _ in asked} == {"2"}
    assert len(asked) == load.requests.total()
    assert moved > 0
    assert min(load.requests.values()) > 10
