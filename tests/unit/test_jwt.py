"""Which tokens are good, which keys they are checked with, and when a key set is read again."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.support.clock import ManualClock
from tests.support.consumer import consuming
from tests.support.jwts import (
    AUDIENCE,
    ISSUER,
    SECRET,
    Signer,
    b64,
    claims_at,
    ec_signer,
    ed_signer,
    encoded,
    forger_like,
    hmac_sha256,
    hmac_signer,
    key_set,
    on_each_algorithm,
    public_pem,
    rsa_signer,
    settings_for,
)
from tests.support.waiting import PATIENCE_SECONDS
from uploader.domain.links import owner
from uploader.errors import ConfigurationError, Unauthenticated, Unavailable
from uploader.http.auth.jwt import KeySet, Verified, Verifier, keys_in_force, keys_of_set
from uploader.service.access import Identity
from uploader.settings import Settings

SECRET_JWK = {"kty": "oct", "k": b64(SECRET.encode())}


class Source:
    """Where a set is read from; counts, and fails when told to."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.away = False
        self.reads = 0
        self.go_on = threading.Event()
        self.go_on.set()

    def read(self) -> bytes:
        self.reads += 1
        assert self.go_on.wait(PATIENCE_SECONDS)
        if self.away:
            raise OSError("away")
        return self.content


@pytest.fixture
def source() -> Source:
    return Source(key_set(ec_signer("a").jwk("a")))


@pytest.fixture
def keys(source: Source, clock: ManualClock) -> KeySet:
    return KeySet(source.read, clock, secrets_allowed=False)


async def kids(keys: KeySet, kid: str | None = None) -> list[str | None]:
    return [key.kid for key in await keys.find(kid)]


async def test_a_set_is_read_once_for_many(keys: KeySet, source: Source, clock: ManualClock) -> None:
    found = await asyncio.gather(*(kids(keys, "a") for _ in range(50)))
    clock.advance(19)
    assert await kids(keys) == ["a"]
    assert (found, source.reads) == ([["a"]] * 50, 1)


@pytest.mark.parametrize(("seconds", "at_once"), [(21, "a"), (30, "b")], ids=["nobody waits", "it is waited for"])
async def test_after_a_while_it_is_read_again(
    keys: KeySet, source: Source, clock: ManualClock, seconds: int, at_once: str
) -> None:
    await kids(keys)
    clock.advance(seconds)
    source.content = key_set(ec_signer("b").jwk("b"))
    if at_once == "a":
        source.go_on.clear()
    assert await kids(keys) == [at_once]
    source.go_on.set()
    while await kids(keys) != ["b"]:
        await asyncio.sleep(0.01)
    assert source.reads == 2


async def test_an_unknown_kid_has_the_set_read_at_most_once_in_ten_seconds(
    keys: KeySet, source: Source, clock: ManualClock
) -> None:
    await kids(keys)
    for seconds, reads in ((5, 1), (5, 2), (9, 2), (1, 3)):
        clock.advance(seconds)
        for unknown in range(20):
            assert await kids(keys, f"unknown-{unknown}") == []
        assert source.reads == reads


async def test_the_last_good_keys_stay_where_the_set_can_not_be_read(
    keys: KeySet, source: Source, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    await kids(keys)
    for content in (b"", b"not json", b"[]", b'{"keys": 1}', b'{"keys": []}', key_set({"kty": "RSA"})):
        source.content = content
        clock.advance(30)
        assert await kids(keys, "a") == ["a"]
    source.away = True
    clock.advance(30)
    assert await kids(keys, "a") == ["a"]
    assert source.reads == 8
    assert [record.message for record in caplog.records] == ["the key set can't be read; its last good keys stay"]
    source.away, source.content = False, key_set(ec_signer("b").jwk("b"))
    clock.advance(10)
    assert await kids(keys, "b") == ["b"]


async def test_without_any_keys_the_answer_is_try_again(keys: KeySet, source: Source, clock: ManualClock) -> None:
    source.away = True
    for _ in range(5):
        with pytest.raises(Unavailable):
            await keys.find(None)
    assert source.reads == 1
    source.away = False
    clock.advance(10)
    assert await kids(keys) == ["a"]


def _jwk(algorithm: Any, private: Any) -> dict[str, Any]:
    jwk: dict[str, Any] = algorithm.to_jwk(private.public_key(), as_dict=True)
    return jwk


@pytest.mark.parametrize(
    "jwk",
    [
        {},
        {"kty": "RSA"},
        {"kty": ["RSA"]},
        "RSA",
        None,
        SECRET_JWK,
        _jwk(RSAAlgorithm, rsa.generate_private_key(public_exponent=65537, key_size=1024)),
        _jwk(ECAlgorithm, ec.generate_private_key(ec.SECP384R1())),
        _jwk(OKPAlgorithm, ed448.Ed448PrivateKey.generate()),
        *(rsa_signer().jwk("k") | wrong for wrong in ({"alg": "RS512"}, {"alg": "HS256"}, {"use": "enc"}, {"kid": 1})),
        *(rsa_signer().jwk("k") | wrong for wrong in ({"key_ops": ["sign"]}, {"key_ops": 1}, {"n": "AA"}, {"d": "AA"})),
        *(ec_signer().jwk("k") | wrong for wrong in ({"x": b64(bytes(32))}, {"crv": "secp256k1"})),
        ed_signer().jwk("k", x="AA"),
    ],
    ids=lambda _: "key",
)
def test_a_key_that_is_weak_private_or_for_something_else_is_left_out(jwk: Any) -> None:
    good = ed_signer().jwk("good")
    assert [key.kid for key in keys_of_set(key_set(jwk, good), secrets_allowed=False)] == ["good"]


def test_a_secret_is_taken_from_a_file_only_and_only_if_it_is_long() -> None:
    short = {"kty": "oct", "k": b64(bytes(31))}
    (key,) = keys_of_set(key_set(SECRET_JWK, short), secrets_allowed=True)
    assert (key.algorithm, key.material) == ("HS256", SECRET.encode())
    with pytest.raises(ValueError, match="no usable key"):
        keys_of_set(key_set(SECRET_JWK), secrets_allowed=False)


@on_each_algorithm
async def test_the_key_of_the_settings_has_the_algorithm_of_its_kind(signer: Signer, clock: ManualClock) -> None:
    (key,) = await keys_in_force(Settings(**settings_for(signer)), clock).find("whatever")
    assert key.algorithm == signer.algorithm


@pytest.mark.parametrize(
    "pem",
    [
        "nonsense",
        rsa_signer().private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
        public_pem(rsa.generate_private_key(public_exponent=65537, key_size=1024)),
        public_pem(ec.generate_private_key(ec.SECP384R1())),
    ],
    ids=["nonsense", "private", "RSA of 1024 bits", "another curve"],
)
def test_a_bad_public_key_stops_the_start_and_is_not_repeated(pem: str, clock: ManualClock) -> None:
    with pytest.raises(ConfigurationError) as caught:
        keys_in_force(Settings(auth="jwt", jwt_public_key=pem), clock)
    assert caught.value.detail.startswith("UPLOADER_JWT_PUBLIC_KEY: ")
    assert pem.splitlines()[-1] not in caught.value.detail


def test_a_file_without_keys_stops_the_start(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "empty").write_bytes(b"{}")
    for name in ("empty", "missing"):
        with pytest.raises(ConfigurationError, match="UPLOADER_JWT_JWKS"):
            keys_in_force(Settings(auth="jwt", jwt_jwks=str(tmp_path / name)), clock)


async def test_a_set_is_fetched_from_a_url(clock: ManualClock) -> None:
    async with consuming() as server:
        server.status, server.body = 200, key_set(rsa_signer().jwk("k"))
        keys = keys_in_force(Settings(auth="jwt", jwt_jwks=server.url), clock)
        assert [key.kid for key in await keys.find("k")] == ["k"]
        assert len(server.requests) == 1
    clock.advance(60)
    assert [key.kid for key in await keys.find("k")] == ["k"], "the server is away"


async def test_a_set_that_is_too_large_or_elsewhere_or_an_error_is_not_taken(clock: ManualClock) -> None:
    good = key_set(rsa_signer().jwk("k"))
    async with consuming() as server, consuming() as elsewhere:
        elsewhere.status, elsewhere.body = 200, good
        for status, body, head in (
            (200, good + b" " * (256 << 10), ""),
            (500, good, ""),
            (302, b"", f"Location: {elsewhere.url}\r\n"),
            (200, key_set(SECRET_JWK), ""),  # a secret is no key there
        ):
            server.status, server.body, server.head = status, body, head
            server.requests.clear()
            with pytest.raises(Unavailable):
                await keys_in_force(Settings(auth="jwt", jwt_jwks=server.url), clock).find(None)
            assert len(server.requests) == 1
        assert elsewhere.requests == []


def verifier_of(clock: ManualClock, signer: Signer | None = None, **settings: Any) -> Verifier:
    in_force = Settings(**({"auth": "jwt"} if signer is None else settings_for(signer)) | settings)
    return Verifier(in_force, keys_in_force(in_force, clock), clock)


def strict_of(clock: ManualClock, signer: Signer) -> Verifier:
    return verifier_of(clock, signer, jwt_issuer=ISSUER, jwt_audience=AUDIENCE, jwt_leeway_seconds=10.0)


async def is_good(verifier: Verifier, token: str) -> bool:
    try:
        return isinstance(await verifier.verify(token), Verified)
    except Unauthenticated as error:
        assert "secret" not in error.detail
        return False


@pytest.mark.parametrize(
    ("scope", "admin", "of_token"),
    [
        *((scope, True, None) for scope in ("admin", "files admin x", "admin metrics")),
        *((scope, False, "metrics") for scope in ("metrics", "files metrics")),
        *((scope, False, None) for scope in ("administrator", "Admin", "admin,files", "-admin", "", None)),
        *((scope, False, None) for scope in ("Metrics", "metrics,files")),
    ],
)
async def test_what_a_token_is_good_for(
    clock: ManualClock, scope: str | None, admin: bool, of_token: str | None
) -> None:
    token = hmac_signer().token(claims_at(clock, scope=scope, sub="auth0|5f7c", total_space=0))
    verified = await verifier_of(clock, hmac_signer()).verify(token)
    assert verified.identity == Identity(owner("auth0|5f7c"), admin, scope=of_token)
    assert verified.total_space == 0


@pytest.mark.parametrize("header", [{"typ": "at+JWT"}, {"kid": "x", "x5t": "y"}])
@pytest.mark.parametrize(
    "claims",
    [
        {"aud": [AUDIENCE, "others"]},
        {"nbf": 0, "iat": 0},
        {"exp": 1e12 + 0.5},
        {"exp": 10**30},
        {"exp": int(sys.float_info.max), "nbf": -int(sys.float_info.max)},
        {"name": "Mallory", "nested": {"a": [1]}},
    ],
)
async def test_what_a_token_may_hold_besides_does_no_harm(
    clock: ManualClock, claims: dict[str, Any], header: dict[str, Any]
) -> None:
    assert await is_good(strict_of(clock, hmac_signer()), hmac_signer().token(claims_at(clock, **claims), header))


@pytest.mark.parametrize("claims", [{}, {"iss": "else", "aud": "else"}, {"iss": None, "aud": None}])
async def test_issuer_and_audience_are_checked_only_where_they_are_set(
    clock: ManualClock, claims: dict[str, Any]
) -> None:
    assert await is_good(verifier_of(clock, hmac_signer()), hmac_signer().token(claims_at(clock, **claims)))


async def test_a_token_ends_when_it_says_and_not_before_also_once_it_was_believed(clock: ManualClock) -> None:
    verifier, now = verifier_of(clock, hmac_signer(), jwt_leeway_seconds=20.0), int(clock.now().timestamp())
    token = hmac_signer().token(claims_at(clock, exp=now + 60, nbf=now + 30))
    for passed, good in ((0, False), (15, True), (60, True), (4, True), (2, False)):
        clock.advance(passed)
        assert await is_good(verifier, token) is good


async def test_the_keys_of_a_set_are_told_apart_by_kid_and_kind(clock: ManualClock, tmp_path: Path) -> None:
    signers = {"a": rsa_signer("a"), "b": ec_signer("b"), "c": ed_signer("c")}
    (tmp_path / "jwks").write_bytes(key_set(*(signer.jwk(kid) for kid, signer in signers.items())))
    verifier = verifier_of(clock, jwt_jwks=str(tmp_path / "jwks"))
    for own, signer in signers.items():
        assert await is_good(verifier, signer.token(claims_at(clock)))
        for kid in (*signers, "unknown"):
            assert await is_good(verifier, signer.token(claims_at(clock), kid=kid)) is (kid == own)


@pytest.mark.parametrize("allowed", ["RS256", "ES256"])
async def test_the_settings_narrow_what_a_key_set_would_allow(clock: ManualClock, tmp_path: Path, allowed: str) -> None:
    (tmp_path / "jwks").write_bytes(key_set(rsa_signer().jwk(), ec_signer().jwk()))
    verifier = verifier_of(clock, jwt_jwks=str(tmp_path / "jwks"), jwt_algorithms=(allowed,))
    for signer in (rsa_signer(), ec_signer()):
        assert await is_good(verifier, signer.token(claims_at(clock))) is (signer.algorithm == allowed)


async def test_refusal_names_the_limit_of_a_token(clock: ManualClock) -> None:
    verifier = verifier_of(clock, hmac_signer())
    for limit, token in (
        ("8,192 bytes", hmac_signer().token(claims_at(clock, padding="x" * 8192))),
        ("256 characters", hmac_signer().token(claims_at(clock), kid="k" * 257)),
    ):
        with pytest.raises(Unauthenticated, match=f"longer than {limit}"):
            await verifier.verify(token)


# Broken tokens, each of a signer whose key is in force, and good but for one thing. Of the three parts of a good one:
SPELLINGS = (
    *("{0}.{1}.", "{0}.{1}", "{0}.{1}.{2}AAAA", f"{{0}}.{{1}}.{b64(bytes(64))}", "{0}.{1}.A"),
    *("{0}", "{0}.{1}.{2}.{2}", "{0}.{1}.{2}..", "...", ".."),
    *("{0}==.{1}.{2}", "{0} .{1}.{2}", "{0}.{1}.\xe9{2}"),
)
HEADERS: tuple[dict[str, Any], ...] = (
    *({"alg": alg} for alg in ("HS384", "HS512", "RS512", "PS256", "ES256K", "ES384", "Ed448", "", None, 256)),
    {"alg": ["HS256", "RS256", "ES256", "EdDSA"]},
    *({"kid": kid} for kid in (1, None, ["a"], "k" * 257)),
    *({"crit": ["exp"]}, {"crit": []}, {"crit": ["b64"], "b64": False}, {"b64": False}),
    *({"zip": "DEF"}, {"enc": "A128GCM"}, {"typ": "JOSE"}, {"typ": 1}),
    # Keys that the token brings, or says where to find
    *({"jwk": {"kty": "oct", "k": ""}}, {"x5c": ["MIIB"]}),
    *({"jku": "https://attacker.example/jwks.json"}, {"x5u": "https://attacker.example/cert.pem"}),
)
FORGED_HEADERS: tuple[dict[str, Any], ...] = (
    *({}, {"jwk": "JWK"}, {"jku": "https://attacker.example/jwks.json"}),
    *({"kid": kid} for kid in ("../../../../dev/null", "' UNION SELECT 'secret' --", "|whoami")),
)
RAW_HEADERS = (
    *(b'{"typ": "JWT"}', b"alg", b"[]", b" ", b'{"alg": "\xff"}'),
    b'{"alg": "ALG", "x": ' + b"[" * 2000 + b"]" * 2000 + b"}",
    *(b'{"alg": "ALG", "alg": "ALG"}', b'{"alg": "none", "alg": "ALG"}', b'{"alg": "ALG", "kid": "a", "kid": "a"}'),
)
CLAIMS: tuple[dict[str, Any], ...] = (
    {"padding": "x" * 8192},
    *({"exp": exp} for exp in (0, -(10**12), None, True, [4102444800], {"$gt": 0}, int(sys.float_info.max) * 2)),
    *({name: sign * 10**400} for name in ("exp", "nbf", "iat") for sign in (1, -1)),
    *({"nbf": "0"}, {"iat": "yesterday"}),
    *({"iss": iss} for iss in (f"{ISSUER}/", ISSUER.upper(), [ISSUER], None)),
    *({"aud": aud} for aud in ("secret", f"{AUDIENCE}-admin", ["a", "b"], None, [], {AUDIENCE: True}, [AUDIENCE, 1])),
    *({"sub": sub} for sub in (None, "", 1, ["mallory"], "../secret", "mallory root", "mallory\nroot", "mallory\0")),
    *({"sub": "mallory\u202e"}, {"sub": "m" * 256}, {"scope": ["admin"]}, {"scope": True}),
    *({"total_space": space} for space in ("10GiB", -1, 1.5, True, 2**63, 10**400)),
)
# Of a good issuer and for a good audience; `EXP` stands for a good end.
RAW_CLAIMS = (
    *(b"sub=mallory", b'[{"sub": "mallory", "exp": EXP}]', b"null", b'\xef\xbb\xbf{"sub": "mallory", "exp": EXP}'),
    b'{"sub": "mallory", "exp": EXP}{"sub": "root", "exp": EXP}',
    b'{"sub": "root", "sub": "mallory", "exp": EXP}',
    b'{"sub": "root", "s\\u0075b": "mallory", "exp": EXP}',
    b'{"sub": "mallory", "exp": 1, "exp": EXP}',
    b'{"sub": "mallory", "exp": EXP, "x": {"a": 1, "a": 2}}',
    *(b'{"sub": "mallory", "exp": %s}' % exp for exp in (b"null", b"NaN", b"Infinity", b"1e999", b"1" + b"0" * 5000)),
    *(b'{"sub": "mallory", "exp": EXP, "nbf": null}', b'{"sub": "\\ud800", "exp": EXP}'),
)


def raw_token(signer: Signer, template: bytes, now: int) -> str:
    told = b'{"iss": "%s", "aud": "%s", "sub"' % (ISSUER.encode(), AUDIENCE.encode())
    return signer.token(template.replace(b'{"sub"', told).replace(b"EXP", b"%d" % (now + 300)))


def hs256(claims: dict[str, Any], secret: bytes, **header: Any) -> str:
    message = f"{encoded({'alg': 'HS256', **header})}.{encoded(claims)}"
    return f"{message}.{b64(hmac_sha256(secret, message.encode()))}"


def noncanonical(signature: str) -> str:
    """The same bytes in another spelling: bits that base64 leaves unused are set."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    last = alphabet[alphabet.index(signature[-1]) | 1]
    assert last != signature[-1], "the bits are unused and 0"
    return signature[:-1] + last


def broken_tokens(signer: Signer, clock: ManualClock) -> Iterator[tuple[Any, str]]:
    """What is wrong, and the token."""
    good, now, forger = claims_at(clock), int(clock.now().timestamp()), forger_like(signer)
    header, claims, signature = parts = signer.token(good).split(".")
    yield from ((spelling, spelling.format(*parts)) for spelling in SPELLINGS)
    other_signatures = [
        signature[:-8],
        signature.swapcase(),
        f"+/{signature[2:]}",
        f"{signature[:4]}%0a{signature[4:]}",
    ]
    if signer.algorithm != "RS256":  # 256 bytes leave no bits unused; 32 and 64 do
        other_signatures.append(noncanonical(signature))
    other_signatures.append(signer.token(claims_at(clock, sub="root")).rpartition(".")[2])
    yield from ((other, f"{header}.{claims}.{other}") for other in other_signatures)
    for alg, unsigned in (("none", ""), ("None", ""), ("NONE", ""), ("nOnE", "eA"), ("none", ".")):
        yield alg, f"{encoded({'alg': alg})}.{claims}.{unsigned}"
    for alg in (signer.algorithm.lower(), f"{signer.algorithm} "):
        yield alg, signer.token(good, alg=alg)
    yield from ((each, signer.token(good, each)) for each in HEADERS)
    yield from ((raw, signer.token(good, raw.replace(b"ALG", signer.algorithm.encode()))) for raw in RAW_HEADERS)
    for each in FORGED_HEADERS:
        yield each, forger.token(good, each | ({"jwk": forger.jwk()} if "jwk" in each else {}))
    # The confusion of RS256 with HS256
    public = signer.public_pem if signer.algorithm != "HS256" else "x"
    yield from ((secret, hs256(good, secret)) for secret in (public.encode(), b"", bytes(32)))
    yield "the kid as secret", hs256(good, b"kid", kid="kid")
    yield from ((each, signer.token(claims_at(clock, **each))) for each in CLAIMS)
    for each in ({"exp": now - 11}, {"exp": str(now + 300)}, {"nbf": now + 11}, {"iat": now + 11}):
        yield each, signer.token(claims_at(clock, **each))
    yield from ((raw, raw_token(signer, raw, now)) for raw in RAW_CLAIMS)


@on_each_algorithm
async def test_no_broken_token_is_good(clock: ManualClock, signer: Signer) -> None:
    verifier = strict_of(clock, signer)
    broken = list(broken_tokens(signer, clock))
    assert len(broken) >= 110
    assert [wrong for wrong, token in broken if await is_good(verifier, token)] == []
    assert await is_good(verifier, signer.token(claims_at(clock))), "what all of them were made from is good"
    raw = raw_token(signer, b'{"sub": "mallory", "exp": EXP}', int(clock.now().timestamp()))
    assert await is_good(verifier, raw)


P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


def _raw(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(32, "big") for number in numbers)


async def test_no_signature_of_a_curve_is_taken_but_r_and_s_within_the_order(clock: ManualClock) -> None:
    signer = ec_signer()
    message = f"{encoded({'alg': 'ES256'})}.{encoded(claims_at(clock))}"
    good = signer.sign(message.encode())
    r, s = int.from_bytes(good[:32], "big"), int.from_bytes(good[32:], "big")
    der = signer.private.sign(message.encode(), ec.ECDSA(SHA256()))
    assert decode_dss_signature(der)
    forged = [
        *(_raw(0, 0), _raw(0, s), _raw(r, 0), _raw(1, 1), _raw(P256_ORDER, s), _raw(r, P256_ORDER)),
        *(_raw(P256_ORDER, P256_ORDER), _raw(0, P256_ORDER), _raw(P256_ORDER, 0), _raw(s, r)),
        *(_raw(P256_ORDER - r, s), der, good + b"\0", b"\0" + good, good[:32], good + good, b"\xff" * 64),
    ]
    forged += [_raw(r + P256_ORDER, s)] if r + P256_ORDER < 2**256 else []
    verifier = verifier_of(clock, signer)
    assert not [each for each in forged if await is_good(verifier, f"{message}.{b64(each)}")]
    assert await is_good(verifier, f"{message}.{b64(good)}")
