"""Callers without a token: whom a proxy names, and the local user; and the pages of others that would act for them."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.problems import problem
from tests.support.stack import Stack
from tests.support.statements import statements
from uploader.service.reports import Order

PROXY = {"trusted_header": "X-Remote-User", "trusted_proxies": ("10.1.2.0/24", "::1")}
FOREIGN = ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"})
BODY = {"name": "a", "size": 1}
MD5 = "0" * 32
# Names that somebody else's DNS may lead to this machine, and what is no name.
LED_HERE = (
    *("", "evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "::2"),
    *("0.0.0.0", "[::]", "2130706433", "localhost@evil.example", "evil.example:127.0.0.1", "xn--localhost-"),
)

ConnectFrom = Callable[..., AbstractAsyncContextManager[httpx2.AsyncClient]]


@asynccontextmanager
async def connecting_from(stack: Stack, peer: str, **headers: str) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=stack.app, client=(peer, 1234))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
        yield client


async def openers(stack: Stack) -> list[str]:
    """Who has open uploads."""
    found, _ = await stack.services.reports.usage(
        Order(sort="user_id", descending=False), limit=10, after=None, containing=None
    )
    return [user.user_id for user in found if user.open_uploads]


# A proxy


async def test_a_listed_proxy_names_the_user(make_stack: MakeStack) -> None:
    async with make_stack(**PROXY) as stack:
        for peer in ("10.1.2.3", "::ffff:10.1.2.3", "::1"):
            async with connecting_from(stack, peer) as client:
                headers = {b"X-Remote-User": "zoë".encode()}
                assert (await client.post(f"/files/{MD5}", json=BODY, headers=headers)).status_code in (200, 201)
                problem(await client.get("/admin/usage", headers=headers), 403, "forbidden")
        assert await openers(stack) == ["zoë"]


async def test_from_anybody_else_the_header_is_nothing(make_stack: MakeStack) -> None:
    spoofed = {"X-Remote-User": "root", "X-Forwarded-For": "10.1.2.3", "Forwarded": "for=10.1.2.3"}
    async with make_stack(**PROXY) as stack:
        with_token = spoofed | {"Authorization": stack.client.headers["authorization"]}
        for peer in ("10.1.3.3", "::ffff:10.1.3.3", "::2", "127.0.0.1", "unix"):
            async with connecting_from(stack, peer) as client:
                problem(await client.get("/me/usage", headers=spoofed), 401, "unauthenticated")
                assert (await client.post(f"/files/{MD5}", json=BODY, headers=with_token)).status_code in (200, 201)
        assert await openers(stack) == ["alice"]


async def test_through_the_proxy_without_the_header_a_token_is_needed(make_stack: MakeStack) -> None:
    async with make_stack(**PROXY) as stack, connecting_from(stack, "10.1.2.3") as client:
        problem(await client.get("/me/usage"), 401, "unauthenticated")
        token = {"Authorization": stack.client.headers["authorization"]}
        assert (await client.get("/me/usage", headers=token)).status_code == 200


async def test_a_proxy_that_names_nobody_is_refused_also_with_a_token(make_stack: MakeStack) -> None:
    async with make_stack(**PROXY) as stack, connecting_from(stack, "10.1.2.3") as client:
        token = stack.client.headers["authorization"].encode()
        for name in (b"", b"a b", b"../root", b"a/b", b"\xff", b"a\xe2\x80\xae", b"x" * 256):
            headers = {b"X-Remote-User": name, b"Authorization": token}
            problem(await client.get("/me/usage", headers=headers), 401, "unauthenticated")


async def test_a_header_given_twice_names_nobody(make_stack: MakeStack) -> None:
    async with make_stack(**PROXY) as stack, connecting_from(stack, "10.1.2.3") as client:
        headers = [("X-Remote-User", "bob"), ("x-remote-user", "bob")]
        problem(await client.get("/me/usage", headers=headers), 401, "unauthenticated")


async def test_a_chunk_of_a_user_whom_a_proxy_names_costs_no_statement(make_stack: MakeStack) -> None:
    content = Content(20 * 64 * KIB)
    async with make_stack(**PROXY) as stack, connecting_from(stack, "::1", **{"X-Remote-User": "bob"}) as client:
        await stack.open(content, client)
        await stack.put(content, 0, client)
        with statements(stack.services.database) as sql:
            for number in range(1, 10):
                assert (await stack.put(content, number, client)).status_code == 200
        assert sql == []


# Nobody


async def test_without_authentication_only_a_local_host_name_is_answered(make_stack: MakeStack) -> None:
    async with make_stack(auth="none") as stack:
        for host in ("localhost", "LOCALHOST:8000", "127.0.0.1", "127.9.9.9:1", "[::1]", "[::1]:8000"):
            response = await stack.anonymous().get("/admin/usage", headers={"Host": host})
            assert response.status_code == 200, host
        for host in LED_HERE:
            for method, path in (("GET", "/me/usage"), ("POST", f"/files/{MD5}"), ("GET", "/admin/usage")):
                response = await stack.anonymous().request(method, path, headers={"Host": host}, json=BODY)
                problem(response, 401, "unauthenticated")


@pytest.mark.parametrize(
    ("settings", "headers"),
    [({"auth": "none"}, {}), (PROXY, {"X-Remote-User": "bob"})],
    ids=["none", "proxy"],
)
async def test_a_page_of_somebody_else_changes_nothing_for_a_caller_without_a_token(
    make_stack: MakeStack, settings: dict[str, Any], headers: dict[str, str]
) -> None:
    async with make_stack(**settings) as stack, connecting_from(stack, "::1", **headers) as client:
        for foreign in (*FOREIGN, {"Sec-Fetch-Site": "same-site", "Origin": "https://evil.localhost"}):
            problem(await client.post(f"/files/{MD5}", json=BODY, headers=foreign), 401, "unauthenticated")
            problem(await client.put(f"/files/{MD5}/chunks/0", headers=foreign), 401, "unauthenticated")
            problem(await client.delete("/me/files/x", headers=foreign), 401, "unauthenticated")
        assert (await client.get("/uploads")).json() == {"uploads": []}
        for own in ({"Origin": "http://localhost"}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {}):
            assert (await client.post(f"/files/{MD5}", json=BODY, headers=own)).status_code in (200, 201)


async def test_a_page_that_the_settings_allow_may_act_for_the_local_user(make_stack: MakeStack) -> None:
    async with (
        make_stack(auth="none", cors_origins=("https://app.example",)) as stack,
        connecting_from(stack, "::1") as client,
    ):
        allowed = {"Origin": "https://app.example", "Sec-Fetch-Site": "cross-site"}
        assert (await client.post(f"/files/{MD5}", json=BODY, headers=allowed)).status_code == 201


async def test_with_a_token_it_does_not_matter_whose_page_it_is(stack: Stack) -> None:
    for number, foreign in enumerate(FOREIGN):
        response = await stack.client.post(f"/files/{number:032x}", json=BODY, headers=foreign)
        assert response.status_code == 201
