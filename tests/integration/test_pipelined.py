"""The one connection that all scripts of a process share: each caller gets its own reply, or an error within bounded time,
whatever becomes of the server, the connection and the other callers."""

import asyncio
import signal
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, OutOfMemoryError, RedisError

from tests.support.background import stopped, until
from tests.support.certificates import self_signed
from tests.support.crowds import many_of_whom_some_give_up
from tests.support.servers import PrivateRedis
from tests.support.waiting import PATIENCE_SECONDS, eventually
from uploader.accounting.keys import Shards
from uploader.accounting.pending import Pending
from uploader.accounting.redis import Script, connect
from uploader.errors import Unavailable
from uploader.settings import Settings

ECHO = "return ARGV[1]"
WRITE = "return redis.call('SET', KEYS[1], ARGV[1])"
DELAYS = Settings(quiet_interval_seconds=5, max_delay_seconds=60, max_pending_bytes=1 << 30, claim_lease_seconds=30)


@pytest.fixture(scope="module")
def anyio_backend() -> Any:
    """The event loop of the server; all other tests run on that of the standard library."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateRedis]:
    """A Redis for all tests of this file; one that kills it starts it again."""
    server = PrivateRedis(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.kill()


@pytest.fixture
async def client(server: PrivateRedis, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """A client, after which no connection and no task is left; a parameter is its time-out in seconds."""
    before = _sockets()
    async with aclosing(connect(server.url, timeout_seconds=getattr(request, "param", 60))) as connected:
        yield connected
    await until(
        lambda: _sockets() == before and "connecting to redis" not in {task.get_name() for task in asyncio.all_tasks()}
    )


impatient = pytest.mark.parametrize("client", [0.3], indirect=True, ids=["impatient"])


def _sockets() -> int:
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            count += str(descriptor.readlink()).startswith("socket:")
    return count


class Echo:
    """Calls whose replies are known."""

    def __init__(self, client: Redis, sha: str) -> None:
        self._client = client
        self._sha = sha

    @classmethod
    async def of(cls, client: Any) -> "Echo":
        return cls(client, await client.script_load(ECHO))

    async def __call__(self, text: object) -> None:
        assert await self._client.evalsha(self._sha, 0, str(text)) == str(text).encode()


async def test_hundreds_of_callers_of_whom_many_give_up_each_get_their_own_reply(client: Any) -> None:
    echo = await Echo.of(client)
    for first in range(0, 100_000, 20_000):
        await many_of_whom_some_give_up(echo, first, callers=300, giving_up=100)


async def test_calls_are_run_in_the_order_in_which_they_were_made(client: Any) -> None:
    push = await client.script_load("return redis.call('RPUSH', KEYS[1], ARGV[1])")
    assert await asyncio.gather(*(client.evalsha(push, 1, "list", n) for n in range(500))) == list(range(1, 501))
    assert await client.lrange("list", 0, -1) == [b"%d" % n for n in range(500)]


async def test_all_calls_share_one_connection(client: Any) -> None:
    echo = await Echo.of(client)
    await asyncio.gather(*(echo(n) for n in range(2000)))

    async def there_is_one_beside_that_of_other_commands() -> bool:
        return len(await client.client_list()) == 2

    await eventually(there_is_one_beside_that_of_other_commands)


async def test_a_connection_that_the_server_closed_is_replaced_and_nobody_learns_of_it(
    client: Any, server: PrivateRedis
) -> None:
    echo = await Echo.of(client)
    await echo("before")
    server.raw("CLIENT", "KILL", "TYPE", "normal")  # idle
    await echo("after")
    for _ in range(3):
        calls = [asyncio.create_task(echo(n)) for n in range(100)]
        await asyncio.sleep(0)
        server.raw("CLIENT", "KILL", "TYPE", "normal")  # with calls under way
        await asyncio.gather(*calls)


async def test_without_a_server_calls_fail_soon_and_when_it_is_back_they_work(
    client: Any, server: PrivateRedis
) -> None:
    pending = Pending(client, shards=Shards(1), settings=DELAYS)
    await pending.read("upload")
    server.send_signal(signal.SIGSTOP)
    under_way = [asyncio.create_task(pending.read("upload")) for _ in range(50)]
    await asyncio.sleep(0)
    server.kill()
    results = await asyncio.gather(*under_way, return_exceptions=True)
    assert {type(result) for result in results} == {Unavailable}
    for _ in range(3):
        with pytest.raises(Unavailable):
            await pending.read("upload")
    server.start()
    await pending.read("upload")


@impatient
async def test_a_server_that_hangs_is_given_up_in_bounded_time_and_its_late_replies_reach_nobody(
    client: Any, server: PrivateRedis
) -> None:
    echo = await Echo.of(client)
    await echo("before")
    with stopped(server):
        async with asyncio.timeout(PATIENCE_SECONDS):
            results = await asyncio.gather(*(echo(n) for n in range(50)), return_exceptions=True)
        assert all(isinstance(result, RedisError) for result in results), results
        hopeless = [asyncio.create_task(echo(n)) for n in range(50)]
        await asyncio.sleep(0.05)
        for call in hopeless:
            call.cancel()
        await asyncio.gather(*hopeless, return_exceptions=True)

    async def answers() -> bool:
        with suppress(RedisError):
            await echo("again")
            return True
        return False

    await eventually(answers)
    await asyncio.gather(*(echo(f"after {n}") for n in range(50)))


async def test_a_server_that_is_slow_but_not_too_slow_is_waited_for(client: Any, server: PrivateRedis) -> None:
    echo = await Echo.of(client)
    server.command("CLIENT", "PAUSE", 200)
    await asyncio.gather(*(echo(n) for n in range(20)))


async def test_errors_of_the_server_reach_the_caller_that_caused_them(client: Any, server: PrivateRedis) -> None:
    echo, write = await Echo.of(client), await client.script_load(WRITE)
    server.command("CONFIG", "SET", "maxmemory", 1)
    results = await asyncio.gather(
        echo(1), client.evalsha(write, 1, "key", 2), client.evalsha("0" * 40, 0), echo(3), return_exceptions=True
    )
    server.command("CONFIG", "SET", "maxmemory", 0)
    assert [type(result) for result in results] == [type(None), OutOfMemoryError, NoScriptError, type(None)]
    assert await client.evalsha(write, 1, "key", 4) == b"OK"


async def test_a_script_that_the_server_forgot_is_sent_again(client: Any, server: PrivateRedis) -> None:
    for _ in range(2):
        _, known = await asyncio.gather(*(Script("read_upload").run(client, ["up", "era"], ["x"]) for _ in range(2)))
        assert known[1] == b""
        server.command("SCRIPT", "FLUSH")


async def test_it_logs_in_and_selects_the_database_of_its_url(server: PrivateRedis) -> None:
    server.command("ACL", "SETUSER", "bob", "on", ">se:cret", "~*", "+@all")
    address = f"127.0.0.1:{server.port}"
    for user, whole in (("bob:se%3Acret@", True), ("bob:other@", False)):
        async with aclosing(connect(f"redis://{user}{address}/3")) as client:
            if whole:
                write = await client.script_load(WRITE)
                assert await client.evalsha(write, 1, "key", "in 3") == b"OK"
            else:
                with pytest.raises(RedisError, match=r"WRONGPASS|invalid username"):
                    await client.evalsha("0" * 40, 0)
    async with aclosing(connect(f"redis://{address}?db=3")) as client:
        assert await client.get("key") == b"in 3"


async def test_whoever_waits_when_it_is_closed_is_told_and_nobody_is_let_in_after(
    client: Any, server: PrivateRedis
) -> None:
    echo = await Echo.of(client)
    await echo("before")
    with stopped(server):
        calls = [asyncio.create_task(echo(n)) for n in range(10)]
        await asyncio.sleep(0)
        await client.aclose()
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(result) for result in results} == {RedisConnectionError}
    with pytest.raises(RedisConnectionError):
        await echo("after")


@pytest.mark.parametrize("connects", [True, False])
async def test_one_that_nobody_used_or_that_connects_lets_nobody_in_after_it_is_closed(
    client: Any, server: PrivateRedis, connects: bool
) -> None:
    with stopped(server):  # so that nobody answers the log-in
        call = asyncio.create_task(client.evalsha("0" * 40, 0)) if connects else client.evalsha("0" * 40, 0)
        await asyncio.sleep(0.05)
        await client.aclose()
        with pytest.raises(RedisConnectionError):
            await call


@asynccontextmanager
async def relay(port: int, context: ssl.SSLContext) -> AsyncIterator[int]:
    """A port that speaks TLS, from which every byte is passed on to another and back for itself."""

    async def pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while content := await source.read(1):
            target.write(content)
            await target.drain()
        target.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pass_on(reader, server_writer), pass_on(server_reader, writer), return_exceptions=True)

    async with await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context) as listener:
        yield listener.sockets[0].getsockname()[1]


async def test_it_speaks_tls_and_replies_may_come_byte_by_byte(server: PrivateRedis, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path, "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    async with relay(server.port, context) as port:
        url = f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate}"
        async with aclosing(connect(url)) as client:
            echo = await Echo.of(client)
            await asyncio.gather(*(echo(n) for n in range(50)))


@pytest.mark.parametrize(
    "garbage", [b"?\r\n", b"+OK\r\n+OK\r\n+nobody asked\r\n"], ids=["no reply", "a reply too many"]
)
async def test_a_connection_that_carries_something_else_is_dropped(garbage: bytes) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while command := await reader.read(1 << 16):
            writer.write(garbage if b"EVALSHA" in command else b"+OK\r\n" * command.count(b"CLIENT"))
        writer.close()

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        async with aclosing(connect(f"redis://127.0.0.1:{port}")) as client:
            if garbage.startswith(b"+"):
                assert await client.evalsha("0" * 40, 0) == b"OK"
            else:
                with pytest.raises(RedisConnectionError):
                    await client.evalsha("0" * 40, 0)
