"""Key sets: which keys are usable, and when the set is read again."""

import asyncio
import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.support.clock import ManualClock
from tests.support.jwts import SECRET, b64, ec_signer, ed_signer, key_set, public_pem, rsa_signer
from uploader.errors import ConfigurationError, Unavailable
from uploader.http.auth.jwt import KeySet, keys_in_force, keys_of_set
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
        assert self.go_on.wait(30)
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


async def test_after_a_while_it_is_read_again_and_nobody_waits(
    keys: KeySet, source: Source, clock: ManualClock
) -> None:
    await kids(keys)
    clock.advance(21)
    source.content = key_set(ec_signer("b").jwk("b"))
    source.go_on.clear()
    assert await kids(keys) == ["a"]
    source.go_on.set()
    while await kids(keys) != ["b"]:
        await asyncio.sleep(0.01)
    assert source.reads == 2


async def test_after_a_longer_while_the_new_keys_are_waited_for(
    keys: KeySet, source: Source, clock: ManualClock
) -> None:
    await kids(keys)
    clock.advance(30)
    source.content = key_set(ec_signer("b").jwk("b"))
    assert await kids(keys) == ["b"]


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
        rsa_signer().jwk("k", alg="RS512"),
        rsa_signer().jwk("k", alg="HS256"),
        rsa_signer().jwk("k", use="enc"),
        rsa_signer().jwk("k", key_ops=["sign"]),
        rsa_signer().jwk("k", key_ops=1),
        rsa_signer().jwk() | {"kid": 1},
        rsa_signer().jwk("k", n="AA"),
        rsa_signer().jwk("k", d="AA"),
        ec_signer().jwk("k", x=b64(bytes(32))),
        ec_signer().jwk("k", crv="secp256k1"),
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


@pytest.mark.parametrize("signer", [rsa_signer(), ec_signer(), ed_signer()], ids=lambda signer: signer.algorithm)
async def test_a_public_key_has_the_algorithm_of_its_kind(signer: Any, clock: ManualClock) -> None:
    settings = Settings(auth="jwt", jwt_public_key=signer.public_pem)
    (key,) = await keys_in_force(settings, clock).find("whatever")
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


# URLs


class _Handler(BaseHTTPRequestHandler):
    reply: bytes
    status = 200
    headers_to_send: tuple[tuple[str, str], ...] = ()
    asked: int

    def do_GET(self) -> None:
        type(self).asked += 1
        self.send_response(self.status)
        for name, value in self.headers_to_send:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(self.reply)))
        self.end_headers()
        self.wfile.write(self.reply)

    def log_message(self, *_: Any) -> None:
        """Nothing to standard error."""


@contextmanager
def served(reply: bytes, status: int = 200, *headers: tuple[str, str]) -> Iterator[tuple[str, type[_Handler]]]:
    """The URL of a server that says this to everybody, and who counts."""
    handler = type("Handler", (_Handler,), {"reply": reply, "status": status, "headers_to_send": headers, "asked": 0})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/jwks", handler
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def test_a_set_is_fetched_from_a_url(clock: ManualClock) -> None:
    with served(key_set(rsa_signer().jwk("k"))) as (url, handler):
        keys = keys_in_force(Settings(auth="jwt", jwt_jwks=url), clock)
        assert [key.kid for key in await keys.find("k")] == ["k"]
        assert handler.asked == 1
    clock.advance(60)
    assert [key.kid for key in await keys.find("k")] == ["k"], "the server is away"


async def test_a_set_that_is_too_large_or_elsewhere_or_an_error_is_not_taken(clock: ManualClock) -> None:
    good = key_set(rsa_signer().jwk("k"))
    with served(good) as (elsewhere, asked_elsewhere):
        for reply, status, headers in (
            (good + b" " * (256 << 10), 200, ()),
            (good, 500, ()),
            (b"", 302, (("Location", elsewhere),)),
        ):
            with served(reply, status, *headers) as (url, handler):
                with pytest.raises(Unavailable):
                    await keys_in_force(Settings(auth="jwt", jwt_jwks=url), clock).find("k")
                assert handler.asked == 1
        assert asked_elsewhere.asked == 0


async def test_a_secret_in_a_set_of_a_url_is_no_key(clock: ManualClock) -> None:
    with served(key_set(SECRET_JWK)) as (url, _handler), pytest.raises(Unavailable):
        await keys_in_force(Settings(auth="jwt", jwt_jwks=url), clock).find(None)
    assert base64.urlsafe_b64decode(SECRET_JWK["k"] + "==") == SECRET.encode()
