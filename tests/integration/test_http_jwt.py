"""`UPLOADER_AUTH=jwt`: whom a token lets in, and every broken one that lets nobody in and leaves nothing behind."""

import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from tests.conftest import MakeStack
from tests.support.clock import ManualClock
from tests.support.content import KIB, Content
from tests.support.jwts import (
    SECRET,
    Signer,
    b64,
    ec_signer,
    ed_signer,
    encoded,
    hmac_sha256,
    hmac_signer,
    key_set,
    rsa_signer,
)
from tests.support.problems import problem
from tests.support.stack import Stack
from tests.support.statements import statements
from uploader.service.reports import Order

ISSUER, AUDIENCE = "https://login.example.com", "uploader"
SIGNERS: dict[str, Callable[[], Signer]] = {
    "HS256": hmac_signer,
    "RS256": rsa_signer,
    "ES256": ec_signer,
    "EdDSA": ed_signer,
}
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


def settings_for(signer: Signer, **more: Any) -> dict[str, Any]:
    """Settings that believe one signer."""
    key = {"jwt_secret": SECRET} if signer.algorithm == "HS256" else {"jwt_public_key": signer.public_pem}
    # How many wrong ones are too many is told elsewhere.
    return {"auth": "jwt", "max_wrong_tokens": 10**6, **key, **more}


def claims_at(clock: ManualClock, **more: Any) -> dict[str, Any]:
    """Good claims of `mallory`; those that are None are left out."""
    now = int(clock.now().timestamp())
    claims = {"sub": "mallory", "exp": now + 300, "iss": ISSUER, "aud": AUDIENCE, **more}
    return {name: value for name, value in claims.items() if value is not None}


async def ask(stack: Stack, token: str, path: str = "/me/usage") -> httpx2.Response:
    return await stack.anonymous().get(path, headers={b"Authorization": f"Bearer {token}".encode("latin-1")})


# Who is let in


@pytest.mark.parametrize("algorithm", SIGNERS)
async def test_a_good_token_lets_its_subject_in(make_stack: MakeStack, clock: ManualClock, algorithm: str) -> None:
    signer = SIGNERS[algorithm]()
    async with make_stack(clock=clock, **settings_for(signer)) as stack:
        token = signer.token(claims_at(clock, sub="auth0|5f7c"))
        assert (await ask(stack, token)).status_code == 200
        assert await stack.services.accounts.ensure_user("auth0|5f7c") is False
        problem(await ask(stack, token, "/admin/usage"), 403, "forbidden")


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


async def test_the_scope_admin_makes_an_administrator(make_stack: MakeStack, clock: ManualClock) -> None:
    signer = hmac_signer()
    async with make_stack(clock=clock, **settings_for(signer)) as stack:
        for scope in ("admin", "files admin x"):
            response = await ask(stack, signer.token(claims_at(clock, scope=scope)), "/admin/usage")
            assert response.status_code == 200, scope
        for other in ("administrator", "Admin", "admin,files", "-admin", "", None):
            token = signer.token(claims_at(clock, scope=other))
            problem(await ask(stack, token, "/admin/usage"), 403, "forbidden")


async def test_the_scope_metrics_is_good_for_the_metrics_alone(make_stack: MakeStack, clock: ManualClock) -> None:
    signer = hmac_signer()
    async with make_stack(clock=clock, **settings_for(signer)) as stack:
        for scope, metrics, usage in (
            ("metrics", 200, 403),
            ("files metrics", 200, 403),
            ("admin metrics", 200, 200),
            ("admin", 200, 200),
            ("Metrics", 403, 200),
            ("metrics,files", 403, 200),
            (None, 403, 200),
        ):
            token = signer.token(claims_at(clock, scope=scope))
            answers = [(await ask(stack, token, path)).status_code for path in ("/metrics", "/me/usage")]
            assert answers == [metrics, usage], scope


async def test_what_a_token_may_hold_besides_does_no_harm(make_stack: MakeStack, clock: ManualClock) -> None:
    signer = hmac_signer()
    claims: list[dict[str, Any]] = [
        {"aud": [AUDIENCE, "others"]},
        {"nbf": 0, "iat": 0},
        {"exp": 1e12 + 0.5},
        {"exp": 10**30},
        {"exp": int(sys.float_info.max), "nbf": -int(sys.float_info.max)},
        {"name": "Mallory", "nested": {"a": [1]}},
        {"total_space": 0},
    ]
    headers = [{"typ": "at+JWT"}, {"kid": "x", "x5t": "y"}]
    async with make_stack(clock=clock, **settings_for(signer, jwt_issuer=ISSUER, jwt_audience=AUDIENCE)) as stack:
        for more in claims:
            for header in headers:
                response = await ask(stack, signer.token(claims_at(clock, **more), header))
                assert response.status_code == 200, (more, header)


async def test_issuer_and_audience_are_checked_only_where_they_are_set(
    make_stack: MakeStack, clock: ManualClock
) -> None:
    signer = hmac_signer()
    async with make_stack(clock=clock, **settings_for(signer)) as stack:
        for more in ({}, {"iss": "else", "aud": "else"}, {"iss": None, "aud": None}):
            assert (await ask(stack, signer.token(claims_at(clock, **more)))).status_code == 200


async def test_a_token_ends_when_it_says_and_not_before_also_once_it_was_believed(
    make_stack: MakeStack, clock: ManualClock
) -> None:
    signer = hmac_signer()
    async with make_stack(clock=clock, **settings_for(signer, jwt_leeway_seconds=20.0)) as stack:
        now = int(clock.now().timestamp())
        token = signer.token(claims_at(clock, exp=now + 60, nbf=now + 30))
        for passed, status in ((0, 401), (15, 200), (60, 200), (4, 200), (2, 401)):
            clock.advance(passed)
            assert (await ask(stack, token)).status_code == status


async def test_a_chunk_costs_no_statement_with_a_token_of_its_own(make_stack: MakeStack, clock: ManualClock) -> None:
    signer, content = ec_signer(), Content(20 * 64 * KIB)
    async with make_stack(clock=clock, **settings_for(signer)) as stack:

        def bearer(number: int) -> dict[str, str]:
            return {"Authorization": f"Bearer {signer.token(claims_at(clock, jti=str(number)))}"}

        anonymous = stack.anonymous()
        await stack.open(content, await _with(anonymous, bearer(0)))
        await stack.put(content, 0, anonymous)
        with statements(stack.services.database) as sql:
            for number in range(1, 19):
                response = await stack.put(content, number, anonymous, headers=bearer(number))
                assert response.status_code == 200
        assert sql == []


async def _with(client: httpx2.AsyncClient, headers: dict[str, str]) -> httpx2.AsyncClient:
    client.headers.update(headers)
    return client


async def test_tokens_of_the_server_are_nothing_where_callers_have_jwts(
    make_stack: MakeStack, clock: ManualClock
) -> None:
    async with make_stack(clock=clock, **settings_for(hmac_signer())) as stack:
        problem(await stack.client.get("/me/usage"), 401, "unauthenticated")


# Key sets


async def test_the_keys_of_a_set_are_told_apart_by_kid_and_kind(
    make_stack: MakeStack, clock: ManualClock, tmp_path: Path
) -> None:
    a, b, c = rsa_signer("a"), ec_signer("b"), ed_signer("c")
    (tmp_path / "jwks").write_bytes(key_set(a.jwk("a"), b.jwk("b"), c.jwk("c")))
    async with make_stack(clock=clock, auth="jwt", jwt_jwks=str(tmp_path / "jwks")) as stack:
        for signer, kid in ((a, "a"), (b, "b"), (c, "c")):
            assert (await ask(stack, signer.token(claims_at(clock), kid=kid))).status_code == 200
            assert (await ask(stack, signer.token(claims_at(clock)))).status_code == 200
            problem(await ask(stack, signer.token(claims_at(clock), kid="b" if kid == "a" else "a")), 401, _CODE)
            problem(await ask(stack, signer.token(claims_at(clock), kid="unknown")), 401, _CODE)


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
        problem(await ask(stack, before), 401, _CODE)
        (tmp_path / "jwks").write_bytes(key_set(old.jwk("old")))
        clock.advance(30)
        problem(await ask(stack, new.token(claims_at(clock), kid="new")), 401, _CODE)
        assert (await ask(stack, before)).status_code == 200
        (tmp_path / "jwks").unlink()
        clock.advance(60)
        assert (await ask(stack, before)).status_code == 200, "the last good keys stay"


# Broken tokens: each is made from a signer whose key is in force, and the clock

_CODE = "unauthenticated"
Broken = Callable[[Signer, ManualClock], str]


def with_claims(**claims: Any) -> Broken:
    return lambda signer, clock: signer.token(claims_at(clock, **claims))


def with_header(**header: Any) -> Broken:
    return lambda signer, clock: signer.token(claims_at(clock), header)


def with_raw_claims(template: str) -> Broken:
    """Claims as text, of a good issuer and for a good audience; `EXP` stands for a good end."""

    def made(signer: Signer, clock: ManualClock) -> str:
        text = template.replace('{"sub"', f'{{"iss": "{ISSUER}", "aud": "{AUDIENCE}", "sub"')
        text = text.replace("EXP", str(int(clock.now().timestamp()) + 300))
        return signer.token(text.encode("utf-8", "surrogatepass"))

    return made


def with_raw_header(template: str) -> Broken:
    return lambda signer, clock: signer.token(claims_at(clock), template.replace("ALG", signer.algorithm).encode())


def with_relative(name: str, seconds: float) -> Broken:
    return lambda signer, clock: signer.token(claims_at(clock, **{name: int(clock.now().timestamp()) + seconds}))


def changed(change: Callable[[list[str]], str]) -> Broken:
    """A good token, and what is made of its three parts."""
    return lambda signer, clock: change(signer.token(claims_at(clock)).split("."))


def unsigned(algorithm: str, signature: str = "") -> Broken:
    return lambda _signer, clock: f"{encoded({'alg': algorithm})}.{encoded(claims_at(clock))}.{signature}"


def with_public_key_as_secret(signer: Signer, clock: ManualClock) -> str:
    """The confusion of RS256 with HS256."""
    secret = signer.public_pem if signer.algorithm != "HS256" else "x"
    message = f"{encoded({'alg': 'HS256'})}.{encoded(claims_at(clock))}"
    return f"{message}.{b64(hmac_sha256(secret.encode(), message.encode()))}"


def with_secret(secret: bytes, **header: Any) -> Broken:
    def made(_signer: Signer, clock: ManualClock) -> str:
        message = f"{encoded({'alg': 'HS256', **header})}.{encoded(claims_at(clock))}"
        return f"{message}.{b64(hmac_sha256(secret, message.encode()))}"

    return made


def signed_by_another(**header: Any) -> Broken:
    """By a key of the same kind that is in force nowhere, which the header may bring along."""

    def made(signer: Signer, clock: ManualClock) -> str:
        another = {"RS256": rsa_signer, "ES256": ec_signer, "EdDSA": ed_signer}.get(signer.algorithm)
        forger = another("forger") if another else hmac_signer("another secret that is long enough ...")
        given = {name: forger.jwk() if value == "JWK" else value for name, value in header.items()}
        return forger.token(claims_at(clock), given)

    return made


def with_other_case(parts: list[str]) -> str:
    flipped = "".join(c.lower() if c.isupper() else c.upper() for c in parts[2])
    return ".".join([*parts[:2], flipped])


def with_noncanonical_end(parts: list[str]) -> str:
    """The same bytes in another spelling: bits that base64 leaves unused are set."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    last = alphabet[alphabet.index(parts[2][-1]) | 1]
    assert last != parts[2][-1], "the bits are unused and 0"
    return ".".join([*parts[:2], parts[2][:-1] + last])


BROKEN: dict[str, Broken] = {
    # No signature, or none that counts
    "none": unsigned("none"),
    "None": unsigned("None"),
    "NONE": unsigned("NONE"),
    "nOnE with a signature": unsigned("nOnE", "eA"),
    "none with two dots": unsigned("none", "."),
    "empty signature": changed(lambda parts: f"{parts[0]}.{parts[1]}."),
    "no signature": changed(lambda parts: f"{parts[0]}.{parts[1]}"),
    "short signature": changed(lambda parts: f"{parts[0]}.{parts[1]}.{parts[2][:-8]}"),
    "long signature": changed(lambda parts: f"{parts[0]}.{parts[1]}.{parts[2]}AAAA"),
    "null signature": changed(lambda parts: f"{parts[0]}.{parts[1]}.{b64(bytes(64))}"),
    "signature in another case": changed(with_other_case),
    "another signer": signed_by_another(),
    "signature of another token": lambda signer, clock: ".".join(
        [*signer.token(claims_at(clock, sub="root")).split(".")[:2], signer.token(claims_at(clock)).split(".")[2]]
    ),
    # Algorithms
    "HS256 with the public key": with_public_key_as_secret,
    "HS256 with an empty secret": with_secret(b""),
    "HS256 with null bytes": with_secret(bytes(32)),
    "HS256 with the kid": with_secret(b"kid", kid="kid"),
    "algorithm in lower case": lambda signer, clock: signer.token(claims_at(clock), alg=signer.algorithm.lower()),
    "algorithm with a space": lambda signer, clock: signer.token(claims_at(clock), alg=f"{signer.algorithm} "),
    "HS384": with_header(alg="HS384"),
    "HS512": with_header(alg="HS512"),
    "RS512": with_header(alg="RS512"),
    "PS256": with_header(alg="PS256"),
    "ES256K": with_header(alg="ES256K"),
    "ES384": with_header(alg="ES384"),
    "Ed448": with_header(alg="Ed448"),
    "empty algorithm": with_header(alg=""),
    "algorithm null": with_header(alg=None),
    "algorithm a number": with_header(alg=256),
    "algorithm a list": with_header(alg=["HS256", "RS256", "ES256", "EdDSA"]),
    "no algorithm": with_raw_header('{"typ": "JWT"}'),
    # Keys that the token brings, or says where to find
    "embedded jwk": signed_by_another(jwk="JWK"),
    "embedded jwk of a good token": with_header(jwk={"kty": "oct", "k": ""}),
    "jku": with_header(jku="https://attacker.example/jwks.json"),
    "jku of another signer": signed_by_another(jku="https://attacker.example/jwks.json"),
    "x5u": with_header(x5u="https://attacker.example/cert.pem"),
    "x5c": with_header(x5c=["MIIB"]),
    "kid a path": signed_by_another(kid="../../../../dev/null"),
    "kid SQL": signed_by_another(kid="' UNION SELECT 'secret' --"),
    "kid a command": signed_by_another(kid="|whoami"),
    "kid a number": with_header(kid=1),
    "kid null": with_header(kid=None),
    "kid a list": with_header(kid=["a"]),
    "kid too long": with_header(kid="k" * 257),
    # What changes how a token is read
    "crit": with_header(crit=["exp"]),
    "empty crit": with_header(crit=[]),
    "crit b64": with_header(crit=["b64"], b64=False),
    "b64 false": with_header(b64=False),
    "zip": with_header(zip="DEF"),
    "enc": with_header(enc="A128GCM"),
    "another type": with_header(typ="JOSE"),
    "type a number": with_header(typ=1),
    # Encoding
    "one part": changed(lambda parts: parts[0]),
    "four parts": changed(lambda parts: ".".join([*parts, parts[2]])),
    "five parts": changed(lambda parts: ".".join([*parts, "", ""])),
    "three dots": lambda *_: "...",
    "two dots": lambda *_: "..",
    "padded base64": changed(lambda parts: f"{parts[0]}==.{parts[1]}.{parts[2]}"),
    "plain base64": changed(lambda parts: ".".join([*parts[:2], f"+/{parts[2][2:]}"])),
    "base64 with a line feed": changed(lambda parts: f"{parts[0]}.{parts[1]}.{parts[2][:4]}%0a{parts[2][4:]}"),
    "base64 with a space": changed(lambda parts: f"{parts[0]} .{parts[1]}.{parts[2]}"),
    "base64 of a length that is none": changed(lambda parts: f"{parts[0]}.{parts[1]}.A"),
    "base64 in another spelling": changed(with_noncanonical_end),
    "not ASCII": changed(lambda parts: f"{parts[0]}.{parts[1]}.\xe9{parts[2]}"),
    "header no JSON": with_raw_header("alg"),
    "header a list": with_raw_header("[]"),
    "header empty": with_raw_header(" "),
    "header not UTF-8": lambda signer, clock: signer.token(claims_at(clock), b'{"alg": "\xff"}'),
    "header nested deep": with_raw_header('{"alg": "ALG", "x": ' + "[" * 2000 + "]" * 2000 + "}"),
    "duplicate alg": with_raw_header('{"alg": "ALG", "alg": "ALG"}'),
    "duplicate alg none": with_raw_header('{"alg": "none", "alg": "ALG"}'),
    "duplicate kid": with_raw_header('{"alg": "ALG", "kid": "a", "kid": "a"}'),
    "too large": with_claims(padding="x" * 8192),
    # Claims
    "claims no JSON": with_raw_claims("sub=mallory"),
    "claims a list": with_raw_claims('[{"sub": "mallory", "exp": EXP}]'),
    "claims null": with_raw_claims("null"),
    "claims twice": with_raw_claims('{"sub": "mallory", "exp": EXP}{"sub": "root", "exp": EXP}'),
    "claims with a byte order mark": with_raw_claims('\ufeff{"sub": "mallory", "exp": EXP}'),
    "duplicate sub": with_raw_claims('{"sub": "root", "sub": "mallory", "exp": EXP}'),
    "duplicate sub, escaped": with_raw_claims('{"sub": "root", "s\\u0075b": "mallory", "exp": EXP}'),
    "duplicate exp": with_raw_claims('{"sub": "mallory", "exp": 1, "exp": EXP}'),
    "duplicate in a nested claim": with_raw_claims('{"sub": "mallory", "exp": EXP, "x": {"a": 1, "a": 2}}'),
    "expired": with_relative("exp", -11),
    "expired long ago": with_claims(exp=0),
    "expired before time": with_claims(exp=-(10**12)),
    "no exp": with_claims(exp=None),
    "exp null": with_raw_claims('{"sub": "mallory", "exp": null}'),
    "exp text": lambda signer, clock: signer.token(claims_at(clock, exp=str(int(clock.now().timestamp()) + 300))),
    "exp true": with_claims(exp=True),
    "exp a list": with_claims(exp=[4102444800]),
    "exp an object": with_claims(exp={"$gt": 0}),
    "exp NaN": with_raw_claims('{"sub": "mallory", "exp": NaN}'),
    "exp infinite": with_raw_claims('{"sub": "mallory", "exp": Infinity}'),
    "exp beyond a double": with_raw_claims('{"sub": "mallory", "exp": 1e999}'),
    "exp a whole number just beyond a double": with_claims(exp=int(sys.float_info.max) * 2),
    "exp of 400 digits": with_claims(exp=10**400),
    "exp of 400 digits, negative": with_claims(exp=-(10**400)),
    "exp of 5000 digits": with_raw_claims('{"sub": "mallory", "exp": 1' + "0" * 5000 + "}"),
    "not yet": with_relative("nbf", 11),
    "nbf text": with_claims(nbf="0"),
    "nbf null": with_raw_claims('{"sub": "mallory", "exp": EXP, "nbf": null}'),
    "nbf of 400 digits": with_claims(nbf=10**400),
    "nbf of 400 digits, negative": with_claims(nbf=-(10**400)),
    "issued in the future": with_relative("iat", 11),
    "iat text": with_claims(iat="yesterday"),
    "iat of 400 digits": with_claims(iat=10**400),
    "iat of 400 digits, negative": with_claims(iat=-(10**400)),
    "another issuer": with_claims(iss=f"{ISSUER}/"),
    "issuer in another case": with_claims(iss=ISSUER.upper()),
    "issuer a list": with_claims(iss=[ISSUER]),
    "no issuer": with_claims(iss=None),
    "another audience": with_claims(aud="downloader"),
    "audience that holds ours": with_claims(aud=f"{AUDIENCE}-admin"),
    "audience in a list of others": with_claims(aud=["a", "b"]),
    "no audience": with_claims(aud=None),
    "empty audience": with_claims(aud=[]),
    "audience an object": with_claims(aud={AUDIENCE: True}),
    "audience of mixed types": with_claims(aud=[AUDIENCE, 1]),
    "no subject": with_claims(sub=None),
    "empty subject": with_claims(sub=""),
    "subject a number": with_claims(sub=1),
    "subject a list": with_claims(sub=["mallory"]),
    "subject with a slash": with_claims(sub="../root"),
    "subject with a space": with_claims(sub="mallory root"),
    "subject with a line feed": with_claims(sub="mallory\nroot"),
    "subject with a NUL": with_claims(sub="mallory\0"),
    "subject with a mark of direction": with_claims(sub="mallory\u202e"),
    "subject half a surrogate": with_raw_claims('{"sub": "\\ud800", "exp": EXP}'),
    "subject too long": with_claims(sub="m" * 256),
    "scope a list": with_claims(scope=["admin"]),
    "scope true": with_claims(scope=True),
    "quota text": with_claims(total_space="10GiB"),
    "quota negative": with_claims(total_space=-1),
    "quota a fraction": with_claims(total_space=1.5),
    "quota true": with_claims(total_space=True),
    "quota beyond the database": with_claims(total_space=2**63),
    "quota of 400 digits": with_claims(total_space=10**400),
}


async def assert_refused(stack: Stack, token: str) -> None:
    """401 on every kind of call, and no user, no upload, nothing on disk."""
    headers = {b"Authorization": b"Bearer " + token.encode("latin-1")}
    md5 = "0" * 32
    for method, path, body in (
        ("GET", "/me/usage", b""),
        ("POST", f"/files/{md5}", b'{"name": "a", "size": 1}'),
        ("GET", "/admin/usage", b""),
    ):
        response = await stack.anonymous().request(method, path, headers=headers, content=body)
        problem(response, 401, _CODE)
        assert response.headers["www-authenticate"] == "Bearer"
    assert [row.user_id for row in await _users(stack)] == ["alice"]
    assert stack.bytes_on_disk() == []


async def _users(stack: Stack) -> list[Any]:
    reports = stack.services.reports
    users, _ = await reports.usage(Order(sort="user_id", descending=False), limit=1000, after=None, containing=None)
    return users


@pytest.mark.parametrize("algorithm", SIGNERS)
async def test_no_broken_token_lets_anybody_in_or_leaves_anything_behind(
    make_stack: MakeStack, clock: ManualClock, algorithm: str
) -> None:
    assert len(BROKEN) >= 60
    signer = SIGNERS[algorithm]()
    settings = settings_for(signer, jwt_issuer=ISSUER, jwt_audience=AUDIENCE, jwt_leeway_seconds=10.0)
    async with make_stack(clock=clock, **settings) as stack:
        for name, broken in BROKEN.items():
            if name == "base64 in another spelling" and algorithm == "RS256":
                continue  # 256 bytes leave no bits unused; 32 and 64 do
            token = broken(signer, clock)
            try:
                await assert_refused(stack, token)
            except AssertionError as error:
                raise AssertionError(f"{name}: {token}") from error
        for good in (with_claims(), with_raw_claims('{"sub": "mallory", "exp": EXP}')):
            response = await ask(stack, good(signer, clock))
            assert response.status_code == 200, "what all of them were made from is good"


def _raw(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(32, "big") for number in numbers)


async def test_no_signature_of_a_curve_is_taken_but_r_and_s_within_the_order(
    make_stack: MakeStack, clock: ManualClock
) -> None:
    signer = ec_signer()
    message = f"{encoded({'alg': 'ES256'})}.{encoded(claims_at(clock))}"
    good = signer.sign(message.encode())
    r, s = int.from_bytes(good[:32], "big"), int.from_bytes(good[32:], "big")
    der = signer.private.sign(message.encode(), ec.ECDSA(_sha256()))
    assert decode_dss_signature(der)
    forged = [
        *(_raw(0, 0), _raw(0, s), _raw(r, 0), _raw(1, 1), _raw(P256_ORDER, s), _raw(r, P256_ORDER)),
        *(_raw(P256_ORDER, P256_ORDER), _raw(0, P256_ORDER), _raw(P256_ORDER, 0), _raw(s, r)),
        *(_raw(P256_ORDER - r, s), der, good + b"\0", b"\0" + good, good[:32], good + good, b"\xff" * 64),
    ]
    forged += [_raw(r + P256_ORDER, s)] if r + P256_ORDER < 2**256 else []
    async with make_stack(clock=clock, **settings_for(signer)) as stack:
        for signature in forged:
            await assert_refused(stack, f"{message}.{b64(signature)}")
        assert (await ask(stack, f"{message}.{b64(good)}")).status_code == 200


def _sha256() -> Any:
    from cryptography.hazmat.primitives.hashes import SHA256

    return SHA256()


@pytest.mark.parametrize("allowed", ["RS256", "ES256"])
async def test_the_settings_narrow_what_a_key_set_would_allow(
    make_stack: MakeStack, clock: ManualClock, tmp_path: Path, allowed: str
) -> None:
    (tmp_path / "jwks").write_bytes(key_set(rsa_signer().jwk(), ec_signer().jwk()))
    settings = {"auth": "jwt", "jwt_jwks": str(tmp_path / "jwks"), "jwt_algorithms": (allowed,)}
    async with make_stack(clock=clock, **settings) as stack:
        for signer in (rsa_signer(), ec_signer()):
            status = (await ask(stack, signer.token(claims_at(clock)))).status_code
            assert status == (200 if signer.algorithm == allowed else 401)


async def test_a_refusal_repeats_nothing_of_the_token(make_stack: MakeStack, clock: ManualClock) -> None:
    signer = hmac_signer()
    async with make_stack(clock=clock, **settings_for(signer, jwt_audience=AUDIENCE)) as stack:
        for claims in ({"sub": "../secret"}, {"aud": "secret"}, {"exp": "secret"}):
            response = await ask(stack, signer.token(claims_at(clock, **claims)))
            assert "secret" not in response.text
            assert json.loads(base64.urlsafe_b64decode(signer.token({}).split(".")[0] + "=="))["alg"] == "HS256"
