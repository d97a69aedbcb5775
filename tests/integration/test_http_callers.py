"""Callers without a token: whom a proxy names, and the local user; and the pages of others that would act for them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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


@asynccontextmanager
async def connecting_from(stack: Stack, peer: str, **headers: str) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=stack.app, client=(peer, 1234))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
        yield client


@pytest.fixture
async def behind_proxy(make_stack: MakeStack) -> AsyncIterator[Stack]:
    async with make_stack(**PROXY) as stack:
        yield stack


async def openers(stack: Stack) -> list[str]:
    """Who has open uploads."""
    found, _ = await stack.services.reports.usage(
        Order(sort="user_id", descending=False), limit=10, after=None, containing=None
    )
    return [user.user_id for user in found if user.open_uploads]


async def test_a_listed_proxy_names_the_user(behind_proxy: Stack) -> None:
    for peer in ("10.1.2.3", "::ffff:10.1.2.3", "::1"):
        async with connecting_from(behind_proxy, peer) as client:
            headers = {b"X-Remote-User": "zoë".encode()}
            assert (await client.post(f"/files/{MD5}", json=BODY, headers=headers)).status_code in (200, 201)
            problem(await client.get("/admin/usage", headers=headers), 403, "forbidden")
    assert await openers(behind_proxy) == ["zoë"]


async def test_from_anybody_else_the_header_is_nothing(behind_proxy: Stack) -> None:
    spoofed = {"X-Remote-User": "root", "X-Forwarded-For": "10.1.2.3", "Forwarded": "for=10.1.2.3"}
    with_token = spoofed | {"Authorization": behind_proxy.client.headers["authorization"]}
    for peer in ("10.1.3.3", "::ffff:10.1.3.3", "::2", "127.0.0.1", "unix"):
        async with connecting_from(behind_proxy, peer) as client:
            problem(await client.get("/me/usage", headers=spoofed), 401, "unauthenticated")
            assert (await client.post(f"/files/{MD5}", json=BODY, headers=with_token)).status_code in (200, 201)
    assert await openers(behind_proxy) == ["alice"]


async def test_a_proxy_that_names_nobody_needs_a_token_and_one_that_names_no_user_is_refused(
    behind_proxy: Stack,
) -> None:
    async with connecting_from(behind_proxy, "10.1.2.3") as client:
        problem(await client.get("/me/usage"), 401, "unauthenticated")
        token = (b"Authorization", behind_proxy.client.headers["authorization"].encode())
        assert (await client.get("/me/usage", headers=[token])).status_code == 200
        wrong = (b"", b"a b", b"../root", b"a/b", b"\xff", b"a\xe2\x80\xae", b"x" * 256)
        for names in (*([name] for name in wrong), [b"bob", b"bob"]):
            headers = [token, *((b"X-Remote-User", name) for name in names)]
            problem(await client.get("/me/usage", headers=headers), 401, "unauthenticated")


async def test_a_chunk_of_a_user_whom_a_proxy_names_costs_no_statement(behind_proxy: Stack) -> None:
    content = Content(6 * 64 * KIB)
    async with connecting_from(behind_proxy, "::1", **{"X-Remote-User": "bob"}) as client:
        await behind_proxy.open(content, client)
        await behind_proxy.put(content, 0, client)
        with statements(behind_proxy.services.database) as sql:
            for number in range(1, 5):
                assert (await behind_proxy.put(content, number, client)).status_code == 200
        assert sql == []


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
