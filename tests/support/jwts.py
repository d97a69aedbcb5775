"""JWTs as an identity provider makes them, and as nobody should: every part can be given as it is to be on the wire."""

import base64
import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import get_default_algorithms

from tests.support.clock import ManualClock

ISSUER, AUDIENCE = "https://login.example.com", "uploader"
SECRET = "a secret that is long enough for HS256"


def b64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def encoded(part: dict[str, Any] | bytes) -> str:
    return b64(part if isinstance(part, bytes) else json.dumps(part).encode())


@dataclass(frozen=True)
class Signer:
    """A private key, or a secret, and the algorithm it is for."""

    algorithm: str
    private: Any

    def sign(self, message: bytes) -> bytes:
        signature: bytes = get_default_algorithms()[self.algorithm].sign(message, self.private)
        return signature

    def token(self, claims: dict[str, Any] | bytes, header: dict[str, Any] | bytes | None = None, **more: Any) -> str:
        """A signed token; `more` are members of the header."""
        if not isinstance(header, bytes):
            header = {"alg": self.algorithm, "typ": "JWT"} | (header or {}) | more
        message = f"{encoded(header)}.{encoded(claims)}"
        return f"{message}.{b64(self.sign(message.encode()))}"

    @property
    def public_pem(self) -> str:
        return public_pem(self.private)

    def jwk(self, kid: str | None = None, **more: Any) -> dict[str, Any]:
        """The public half."""
        key = self.private if isinstance(self.private, bytes) else self.private.public_key()
        jwk: dict[str, Any] = get_default_algorithms()[self.algorithm].to_jwk(key, as_dict=True)
        return jwk | ({} if kid is None else {"kid": kid}) | more


def public_pem(private: Any) -> str:
    return str(private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode())


def hmac_sha256(secret: bytes, message: bytes) -> bytes:
    return hmac.digest(secret, message, "sha256")


def key_set(*jwks: dict[str, Any]) -> bytes:
    return json.dumps({"keys": jwks}).encode()


@cache
def rsa_signer(name: str = "") -> Signer:
    """One key for each name: making them takes a while."""
    return Signer("RS256", rsa.generate_private_key(public_exponent=65537, key_size=2048))


@cache
def ec_signer(name: str = "") -> Signer:
    return Signer("ES256", ec.generate_private_key(ec.SECP256R1()))


@cache
def ed_signer(name: str = "") -> Signer:
    return Signer("EdDSA", ed25519.Ed25519PrivateKey.generate())


def hmac_signer(secret: str = SECRET) -> Signer:
    return Signer("HS256", secret.encode())


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


SIGNERS: dict[str, Callable[..., Signer]] = {
    "HS256": hmac_signer,
    "RS256": rsa_signer,
    "ES256": ec_signer,
    "EdDSA": ed_signer,
}
on_each_algorithm = pytest.mark.parametrize("signer", [make() for make in SIGNERS.values()], ids=SIGNERS)


def forger_like(signer: Signer) -> Signer:
    """Of the same kind, with a key that is in force nowhere."""
    if signer.algorithm == "HS256":
        return hmac_signer("another secret that is long enough ...")
    return SIGNERS[signer.algorithm]("forger")
