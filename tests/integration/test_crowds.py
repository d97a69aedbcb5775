"""Too many at once: of one address, of one user, of everybody; what they are told, and who is answered all the same."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.support.background import becomes
from tests.support.content import KIB, Content
from tests.support.jwts import SECRET, hmac_signer
from tests.support.problems import problem
from tests.support.sockets import Answer, Connection, Server, on_both_loops, serving_stack
from tests.support.stack import Stack
from tests.support.waiting import eventually
from uploader.http.auth import authenticator
from uploader.http.auth.authenticator import WrongTokens
from uploader.http.server import connections, http11

GET = b"GET /config HTTP/1.1\r\nHost: test\r\n\r\n"
CONTENT = Content(64 * KIB, chunk_size=64 * KIB)


async def ask(connection: Connection, path: str = "/config") -> Answer:
    await connection.request("GET", path)
    return await connection.answer()


async def answered(server: Server, path: str = "/config", source: str = "127.0.0.1") -> int:
    async with server.connection(source=source) as connection:
        return (await ask(connection, path)).status


async def refused_for(connection: Connection) -> tuple[int, str]:
    """How a connection was refused, read to its end."""
    answer = await connection.answer()
    assert answer.headers["connection"] == "close"
    assert int(answer.headers["retry-after"]) > 0
    assert await connection.is_closed()
    return answer.status, answer.code


@asynccontextmanager
async def working(server: Server, count: int, source: str = "127.0.0.1") -> AsyncIterator[list[Connection]]:
    """Connections whose requests wait for their bodies."""
    async with AsyncExitStack() as stack:
        made = []
        for _ in range(count):
            connection = await stack.enter_async_context(server.connection(source=source))
            await connection.request("POST", "/files/status", "Content-Length: 11", "Expect: 100-continue")
            assert b"100 Continue" in await connection.take(25)
            made.append(connection)
        yield made


async def end(connection: Connection) -> int:
    await connection.send(b'{"md5s":[]}')
    return (await connection.answer()).status


# Connections that ask for nothing


@on_both_loops
async def test_idle_connections_of_an_address_push_out_their_own(make_stack: MakeStack) -> None:
    async with serving_stack(make_stack, max_connections_per_address=20) as server, AsyncExitStack() as stack:
        other = await stack.enter_async_context(server.connection(source="127.0.0.2"))
        flood = [await stack.enter_async_context(server.connection()) for _ in range(60)]
        assert [await refused_for(connection) for connection in flood[:40]] == [(429, "too-many-requests")] * 40
        assert await answered(server) == 200
        assert (await ask(flood[-1])).status == 200
        assert (await ask(other)).status == 200


async def test_idle_connections_push_out_each_other_where_no_address_has_many(make_stack: MakeStack) -> None:
    async with serving_stack(make_stack, max_connections=3) as server, AsyncExitStack() as stack:
        kept = [await stack.enter_async_context(server.connection(source=f"127.0.0.{n}")) for n in (2, 3, 4)]
        assert (await ask(kept[0])).status == 200  # so that the second waits longest
        assert await answered(server) == 200
        assert await refused_for(kept[1]) == (503, "unavailable")
        assert (await ask(kept[0])).status == 200


async def test_one_that_was_kept_since_its_answer_is_closed_without_another(make_stack: MakeStack) -> None:
    async with serving_stack(make_stack, max_connections=1) as server, server.connection() as kept:
        assert (await ask(kept)).status == 200
        assert await answered(server) == 200
        assert await kept.is_closed()


async def test_half_a_head_keeps_nobody_out(make_stack: MakeStack) -> None:
    async with serving_stack(make_stack, max_connections=2) as server, AsyncExitStack() as stack:
        slow = [await stack.enter_async_context(server.connection()) for _ in range(2)]
        for connection in slow:
            await connection.send(GET[:20])
        assert await answered(server) == 200
        assert await refused_for(slow[0]) == (503, "unavailable")


# Connections that are all at work


@on_both_loops
async def test_where_all_are_at_work_others_are_refused_and_probes_answered(make_stack: MakeStack) -> None:
    async with serving_stack(make_stack, max_connections=3) as server, working(server, 3) as busy:
        for path in ("/livez", "/readyz?x=1"):
            async with server.connection() as probe:
                answer = await ask(probe, path)
                assert (answer.status, answer.headers["connection"]) == (200, "close")
                assert await probe.is_closed()
        async with server.connection() as beyond:
            await beyond.request("PUT", f"/files/{CONTENT.md5}/chunks/0", f"Content-Length: {CONTENT.size}")
            await beyond.send(CONTENT.data)
            assert await refused_for(beyond) == (503, "unavailable")
        assert 'uploader_refused_connections_total{limit="process"}' in await server.stack.metrics()
        assert await end(busy[0]) == 200
        await eventually(lambda: _is_served(server))


async def _is_served(server: Server) -> bool:
    return await answered(server) == 200


async def test_an_address_whose_connections_are_all_at_work_has_no_more(make_stack: MakeStack) -> None:
    async with serving_stack(make_stack, max_connections_per_address=2) as server, working(server, 2):
        async with server.connection() as beyond:
            await beyond.send(GET)
            assert await refused_for(beyond) == (429, "too-many-requests")
        assert await answered(server, "/livez") == 200
        assert await answered(server, source="127.0.0.2") == 200


async def test_the_connections_of_a_proxy_are_not_those_of_an_address(make_stack: MakeStack) -> None:
    settings: dict[str, Any] = {"max_connections_per_address": 1, "trusted_proxies": ("127.0.0.2/32",)}
    async with serving_stack(make_stack, **settings) as server, working(server, 2, "127.0.0.2") as busy:
        assert await answered(server, source="127.0.0.2") == 200
        assert await end(busy[0]) == 200


async def test_those_beyond_the_limits_do_not_pile_up(make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_RESERVED_CONNECTIONS", 10)
    monkeypatch.setattr(http11, "_LINGER_SECONDS", 600.0)
    async with serving_stack(make_stack, max_connections=1) as server, working(server, 1), AsyncExitStack() as stack:
        beyond = [await stack.enter_async_context(server.connection()) for _ in range(40)]
        await eventually(lambda: _has_at_most(server, 1 + 10))
        assert await answered(server, "/livez") == 200
        for connection in beyond[-9:]:
            await connection.send(GET)
        assert [await refused_for(connection) for connection in beyond] == [(503, "unavailable")] * 40


async def _has_at_most(server: Server, count: int) -> bool:
    return len(server.uvicorn.server_state.connections) <= count


# Requests at once


async def test_a_user_has_so_many_requests_at_once(make_stack: MakeStack) -> None:
    async with serving_stack(make_stack, max_connections_per_user=2) as server, AsyncExitStack() as stack:
        busy = await stack.enter_async_context(working(server, 2))
        async with server.connection() as connection:
            answer = await ask(connection, "/me/usage")
            assert (answer.status, answer.code) == (429, "too-many-requests")
            assert int(answer.headers["retry-after"]) > 0
            bob = await server.stack.client_of("bob")
            assert (await bob.get("/me/usage")).status_code == 200
            assert (await ask(connection)).status == 200  # it is nobody's
            assert await end(busy[0]) == 200
            assert (await ask(connection, "/me/usage")).status == 200


async def test_a_client_behind_a_proxy_has_so_many_requests_at_once(make_stack: MakeStack) -> None:
    settings: dict[str, Any] = {"max_connections_per_address": 1, "trusted_proxies": ("127.0.0.1/32",)}
    async with serving_stack(make_stack, **settings) as server, server.connection() as held:
        await held.request("POST", "/files/status", "Content-Length: 11", "X-Forwarded-For: 2001:db8::1")
        async with server.connection() as connection:

            async def status_from(address: str, path: str = "/config") -> int:
                await connection.request("GET", path, f"X-Forwarded-For: {address}")
                return (await connection.answer()).status

            await becomes(lambda: status_from("2001:db8::2"), 429)  # of the same /64
            assert await status_from("2001:db8::2", "/livez") == 200
            assert await status_from("2001:db8:0:1::1") == 200
            assert await status_from("203.0.113.7") == 200
            assert await status_from("127.0.0.1") == 200
            assert await end(held) == 200
            assert await status_from("2001:db8::1") == 200


# Wrong tokens


@asynccontextmanager
async def client_from(stack: Stack, peer: str, token: str, **headers: str) -> AsyncIterator[httpx2.AsyncClient]:
    headers["Authorization"] = f"Bearer {token}"
    transport = httpx2.ASGITransport(app=stack.app, client=(peer, 1))
    async with httpx2.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
        yield client


async def status(stack: Stack, peer: str, token: str, **headers: str) -> int:
    async with client_from(stack, peer, token, **headers) as client:
        return (await client.get("/me/usage")).status_code


class Slowed:
    """Of which parties wrong tokens had to wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parties: list[str] = []
        slow_down = WrongTokens.slow_down

        async def noted(tokens: WrongTokens, party: str) -> None:
            if tokens.are_too_many(party):
                self.parties.append(party)
            await slow_down(tokens, party)

        monkeypatch.setattr(WrongTokens, "slow_down", noted)

    def taken(self) -> list[str]:
        parties, self.parties = self.parties, []
        return parties


@pytest.fixture
def slowed(monkeypatch: pytest.MonkeyPatch) -> Slowed:
    return Slowed(monkeypatch)


async def test_wrong_tokens_of_an_address_slow_down_after_a_while(make_stack: MakeStack, slowed: Slowed) -> None:
    async with make_stack(max_wrong_tokens=3) as stack:
        for _ in range(4):
            problem(await stack.anonymous().get("/me/usage"), 401, "unauthenticated")  # no token is none that is wrong
        known = stack.client.headers["authorization"].removeprefix("Bearer ")
        assert await status(stack, "203.0.113.7", known) == 200
        new = await stack.services.accounts.create_token("bob", admin=False)
        for number in range(3):
            assert await status(stack, "203.0.113.7", f"wrong-{number}") == 401
        assert slowed.taken() == []
        assert await status(stack, "::ffff:203.0.113.7", "wrong") == 401
        assert slowed.taken() == ["203.0.113.7"]
        assert await status(stack, "203.0.113.7", known) == 200  # it was right here before
        assert await status(stack, "203.0.113.8", "wrong") == 401
        assert slowed.taken() == []
        assert await status(stack, "203.0.113.7", new) == 200  # nobody knows without asking
        assert slowed.taken() == ["203.0.113.7"]
        assert await status(stack, "203.0.113.7", new) == 200
        assert slowed.taken() == []


async def test_of_those_who_guess_at_once_most_are_refused(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authenticator, "_WAIT_SECONDS", 2.0)
    async with make_stack(max_wrong_tokens=1) as stack:
        assert await status(stack, "203.0.113.7", "wrong") == 401
        statuses = await asyncio.gather(*(status(stack, "203.0.113.7", f"wrong-{number}") for number in range(10)))
        assert sorted(statuses) == [401] * 4 + [429] * 6


async def test_wrong_tokens_through_a_proxy_are_those_of_its_client(make_stack: MakeStack, slowed: Slowed) -> None:
    async with make_stack(max_wrong_tokens=1, trusted_proxies=("10.0.0.0/8",)) as stack:
        behind = {"X-Forwarded-For": "2001:db8::1"}
        neighbour = {"X-Forwarded-For": "2001:db8::2"}
        assert await status(stack, "10.0.0.1", "wrong", **behind) == 401
        assert await status(stack, "10.0.0.2", "wrong", **neighbour) == 401
        assert slowed.taken() == ["2001:db8::/64"]
        assert await status(stack, "10.0.0.1", "wrong", **{"X-Forwarded-For": "2001:db8:0:1::1"}) == 401
        assert slowed.taken() == []
        # Who is no proxy says nothing of others.
        assert await status(stack, "203.0.113.7", "wrong", **behind) == 401
        assert await status(stack, "203.0.113.7", "wrong", **{"X-Forwarded-For": "198.51.100.1"}) == 401
        assert slowed.taken() == ["203.0.113.7"]


async def test_right_jwts_are_let_in_at_once_though_others_are_wrong(make_stack: MakeStack, slowed: Slowed) -> None:
    signer = hmac_signer()
    async with make_stack(auth="jwt", jwt_secret=SECRET, max_wrong_tokens=2) as stack:
        assert [await status(stack, "203.0.113.7", f"a.b.{number}") for number in range(3)] == [401] * 3
        assert slowed.taken() == ["203.0.113.7"]
        assert await status(stack, "203.0.113.7", signer.token({"sub": "bob", "exp": time.time() + 300})) == 200
        assert slowed.taken() == []
