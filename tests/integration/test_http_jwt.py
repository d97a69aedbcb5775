"""`UPLOADER_AUTH=jwt`: what a caller may who shows a JWT, and that none that is broken leaves anything behind. Which ones
are good: `tests/unit/test_jwt.py`."""

from pathlib import Path
from typing import Any

import httpx2

from tests.conftest import MakeStack
from tests.support.clock import ManualClock
from tests.support.content import KIB, Content
from tests.support.jwts import (
    AUDIENCE,
    ISSUER,
    Signer,
    claims_at,
    ec_signer,
    forger_like,
    hmac_signer,
    key_set,
    on_each_algorithm,
    settings_for,
)
from tests.support.problems import problem
from tests.support.stack import Stack
from tests.support.statements import statements
from uploader.service.reports import Order


async def ask(stack: Stack, token: str, path: str = "/me/usage") -> httpx2.Response:
    return await stack.anonymous().get(path, headers=bearer(token))


def bearer(token: str) -> dict[bytes, bytes]:
    return {b"Authorization": f"Bearer {token}".encode("latin-1")}


async def assert_refused(stack: Stack, token: str) -> None:
    """401 on every kind of call, and no user, no upload, nothing on disk."""
    for method, path, body in (
        ("GET", "/me/usage", b""),
        ("POST", f"/files/{'0' * 32}", b'{"name": "a", "size": 1}'),
        ("GET", "/admin/usage", b""),
    ):
        response = await stack.anonymous().request(method, path, headers=bearer(token), content=body)
        problem(response, 401, "unauthenticated")
        assert response.headers["www-authenticate"] == "Bearer"
        assert "secret" not in response.text
    assert [row.user_id for row in await _users(stack)] == ["alice"]
    assert stack.bytes_on_disk() == []


async def _users(stack: Stack) -> list[Any]:
    reports = stack.services.reports
    users, _ = await reports.usage(Order(sort="user_id", descending=False), limit=1000, after=None, containing=None)
    return users


@on_each_algorithm
async def test_a_good_token_lets_its_subject_in_and_a_broken_one_nobody(
    make_stack: MakeStack, clock: ManualClock, signer: Signer
) -> None:
    settings = settings_for(signer, jwt_issuer=ISSUER, jwt_audience=AUDIENCE)
    async with make_stack(clock=clock, **settings) as stack:
        token = signer.token(claims_at(clock, sub="auth0|5f7c"))
        header, claims, signature = token.split(".")
        for broken in (
            *(f"{header}.{claims}.", f"{header}.{claims}.\xe9{signature}", f"{header} .{claims}.{signature}"),
            *("...", f"{token}.{signature}", forger_like(signer).token(claims_at(clock))),
            *(signer.token(claims_at(clock), {"alg": "none"}), signer.token(claims_at(clock, padding="x" * 8192))),
            *(signer.token(claims_at(clock, sub=sub)) for sub in ("../secret", "secret\n", "m" * 256)),
            *(signer.token(claims_at(clock, **{name: "secret"})) for name in ("iss", "aud", "exp", "total_space")),
        ):
            await assert_refused(stack, broken)
        assert (await ask(stack, token)).status_code == 200
        assert await stack.services.accounts.ensure_user("auth0|5f7c") is False


async def test_a_user_is_made_at_first_sight_with_the_quota_that_is_claimed(
    make_stack: MakeStack, clock: ManualClock
) -> None:
    signer = hmac_signer()
    async with make_stack(clock=clock, default_total_space_bytes=777, **settings_for(signer)) as stack:
        first = await ask(stack, signer.token(claims_at(clock, total_space=5000)))
        later = await ask(stack, signer.token(claims_at(clock, total_space=9000)))
        without = await ask(stack, signer.token(claims_at(clock, sub="trent")))
        spaces = [response.json()["total_space"] for response in (first, later, without)]
        assert spaces == [5000, 5000, 777]


async def test_a_scope_says_what_a_token_is_good_for(make_stack: MakeStack, clock: ManualClock) -> None:
    signer = hmac_signer()
    async with make_stack(clock=clock, **settings_for(signer)) as stack:
        for scope, statuses in ((None, [403, 200, 403]), ("metrics", [200, 403, 403]), ("admin", [200, 200, 200])):
            token = signer.token(claims_at(clock, scope=scope))
            answers = [await ask(stack, token, path) for path in ("/metrics", "/me/usage", "/admin/usage")]
            assert [answer.status_code for answer in answers] == statuses
            for answer in answers:
                if answer.status_code == 403:
                    problem(answer, 403, "forbidden")
        problem(await stack.client.get("/me/usage"), 401, "unauthenticated")  # by a token of the server


async def test_a_chunk_costs_no_statement_with_a_token_of_its_own(make_stack: MakeStack, clock: ManualClock) -> None:
    signer, content = ec_signer(), Content(6 * 64 * KIB)
    async with make_stack(clock=clock, **settings_for(signer)) as stack:
        anonymous = stack.anonymous()
        anonymous.headers.update(bearer(signer.token(claims_at(clock))))
        await stack.open(content, anonymous)
        await stack.put(content, 0, anonymous)
        with statements(stack.services.database) as sql:
            for number in range(1, 5):
                headers = bearer(signer.token(claims_at(clock, jti=str(number))))
                assert (await stack.put(content, number, anonymous, headers=headers)).status_code == 200
        assert sql == []


async def test_a_key_that_is_taken_out_of_the_set_is_out_of_force_within_half_a_minute(
    make_stack: MakeStack, clock: ManualClock, tmp_path: Path
) -> None:
    old, new = ec_signer("old"), ec_signer("new")
    (tmp_path / "jwks").write_bytes(key_set(old.jwk("old")))
    async with make_stack(clock=clock, auth="jwt", jwt_jwks=str(tmp_path / "jwks")) as stack:
        before = old.token(claims_at(clock), kid="old")
        assert (await ask(stack, before)).status_code == 200
        (tmp_path / "jwks").write_bytes(key_set(new.jwk("new")))
        clock.advance(11)
        assert (await ask(stack, before)).status_code == 200
        # A key that nobody knows yet has the set read again.
        assert (await ask(stack, new.token(claims_at(clock), kid="new"))).status_code == 200
        problem(await ask(stack, before), 401, "unauthenticated")
        (tmp_path / "jwks").write_bytes(key_set(old.jwk("old")))
        clock.advance(30)
        problem(await ask(stack, new.token(claims_at(clock), kid="new")), 401, "unauthenticated")
        assert (await ask(stack, before)).status_code == 200
        (tmp_path / "jwks").unlink()
        clock.advance(60)
        assert (await ask(stack, before)).status_code == 200, "the last good keys stay"
