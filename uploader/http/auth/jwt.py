"""Checks a JWT and reads its claims, with a secret, a public key, or a JWK set that is reloaded regularly. Refuses
everything that it cannot check. PyJWT only does the cryptography (decision 0014). The kind of a key determines its
algorithm; the token's header never does.
"""

import asyncio
import base64
import hashlib
import json
import logging
import re
import ssl
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt.algorithms import get_default_algorithms
from jwt.exceptions import PyJWTError
from msgspec import UNSET, Struct, UnsetType

from uploader.domain.links import owner
from uploader.domain.names import check_user_id
from uploader.errors import ConfigurationError, InvalidRequest, Unauthenticated, Unavailable
from uploader.http.shared.operation import Size, decode_json, or_none
from uploader.runtime.clock import Clock
from uploader.service.access import Identity, narrowed
from uploader.settings import Settings

T = TypeVar("T")

logger = logging.getLogger(__name__)

_MIN_RSA_BITS = 2048
_MIN_SECRET_BYTES = 32
_MAX_KEYS = 64
_MAX_SET_BYTES = 256 << 10
_FETCH_SECONDS = 5.0
# A set older than `_FRESH_SECONDS` is reloaded in the background; for one older than `_STALE_SECONDS`, requests wait for the
# reload. A key that was removed from a readable set is therefore refused after 30 s at the latest.
_FRESH_SECONDS = 20.0
_STALE_SECONDS = 30.0
# The least time between two reloads, also if tokens name unknown keys.
_RETRY_SECONDS = 10.0

_ALGORITHMS = get_default_algorithms()
_KINDS = {"RSA": "RS256", "EC": "ES256", "OKP": "EdDSA", "oct": "HS256"}

_MAX_TOKEN_BYTES = 8192
_MAX_KID_LENGTH = 256
_SEGMENT = re.compile(r"[A-Za-z0-9_-]+")
_CACHE_SIZE = 10_000
_TYPES = ("jwt", "at+jwt")
_ADMIN_SCOPE = "admin"


Time = int | float


@dataclass(frozen=True, slots=True)
class Key:
    algorithm: str
    kid: str | None
    material: Any

    def signed(self, message: bytes, signature: bytes) -> bool:
        return bool(_ALGORITHMS[self.algorithm].verify(message, self.material, signature))


class FixedKey:
    """The one key of the settings, used for every `kid`."""

    def __init__(self, key: Key) -> None:
        self._keys = (key,)

    async def find(self, _kid: str | None) -> tuple[Key, ...]:
        return self._keys


class KeySet:
    """The keys of a JWK set. If the set becomes unreadable, the last good keys stay valid."""

    def __init__(self, read: Callable[[], bytes], clock: Clock, *, secrets_allowed: bool) -> None:
        """`read` may block; it raises OSError or ValueError. `secrets_allowed` permits HS256 keys in the set."""
        self._read = read
        self._clock = clock
        self._secrets_allowed = secrets_allowed
        self._keys: tuple[Key, ...] | None = None
        self._content = b""
        self._reading: asyncio.Task[None] | None = None
        self._tried_at = float("-inf")
        self._failed = False

    async def find(self, kid: str | None) -> tuple[Key, ...]:
        """Return the keys with this `kid`, or all keys for None. Raises Unavailable if the set was never read."""
        age = self._clock.monotonic() - self._tried_at
        if self._keys is None or age >= _STALE_SECONDS:
            await self._read_again()
        elif age >= _FRESH_SECONDS:
            self._start_reading()
        found = self._named(kid)
        if not found:
            await self._read_again()
            found = self._named(kid)
        return found

    def _named(self, kid: str | None) -> tuple[Key, ...]:
        if self._keys is None:
            raise Unavailable("The keys to check tokens with can't be read: try again.")
        return tuple(key for key in self._keys if kid is None or key.kid == kid)

    async def _read_again(self) -> None:
        """Reload the set and wait; return at once if the last attempt was less than `_RETRY_SECONDS` ago."""
        self._start_reading()
        if self._reading is not None:
            await asyncio.shield(self._reading)

    def _start_reading(self) -> None:
        if self._reading is None and self._clock.monotonic() - self._tried_at >= _RETRY_SECONDS:
            self._reading = asyncio.create_task(self._read_once(), name="key set")

    async def _read_once(self) -> None:
        try:
            content = await asyncio.to_thread(self._read)
            if content != self._content or self._keys is None:
                self._keys = keys_of_set(content, secrets_allowed=self._secrets_allowed)
                self._content = content
            self._failed = False
        except (OSError, ValueError) as error:
            if not self._failed:
                logger.warning("the key set can't be read; its last good keys stay", extra={"reason": str(error)})
            self._failed = True
        finally:
            self._tried_at = self._clock.monotonic()
            self._reading = None


Keys = FixedKey | KeySet


def keys_in_force(settings: Settings, clock: Clock) -> Keys:
    """Return the keys that the settings name. Raises ConfigurationError for an invalid or weak key."""
    try:
        if settings.jwt_secret is not None:
            return FixedKey(Key("HS256", None, settings.jwt_secret.encode()))
        if settings.jwt_public_key is not None:
            return FixedKey(_key_of_pem(settings.jwt_public_key))
    except ValueError as error:
        raise ConfigurationError(f"UPLOADER_JWT_PUBLIC_KEY: {error}") from error
    place = settings.jwt_jwks or ""
    if place.startswith(("http://", "https://")):
        return KeySet(lambda: _fetch(place), clock, secrets_allowed=False)
    try:
        keys_of_set(_read_file(place), secrets_allowed=True)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"UPLOADER_JWT_JWKS: {error}") from error
    return KeySet(lambda: _read_file(place), clock, secrets_allowed=True)


def _key_of_pem(text: str) -> Key:
    try:
        material = load_pem_public_key(text.encode())
    except Exception as error:  # the parser raises many kinds; its text may show a private key
        raise ValueError("not a public key in PEM") from error
    return Key(_algorithm_of(material), None, material)


def _algorithm_of(material: object) -> str:
    """Raises ValueError for an unsupported kind or size."""
    if isinstance(material, RSAPublicKey) and material.key_size >= _MIN_RSA_BITS:
        return "RS256"
    if isinstance(material, EllipticCurvePublicKey) and isinstance(material.curve, SECP256R1):
        return "ES256"
    if isinstance(material, Ed25519PublicKey):
        return "EdDSA"
    raise ValueError("neither RSA of 2048 bits or more, nor EC P-256, nor Ed25519")


def keys_of_set(content: bytes, *, secrets_allowed: bool) -> tuple[Key, ...]:
    """Return the usable keys of a JWK set (RFC 7517). Raises ValueError if there are none."""
    try:
        jwks = json.loads(content)["keys"]
        found = [_key_of_jwk(jwk, secrets_allowed=secrets_allowed) for jwk in jwks[:_MAX_KEYS]]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError("not a JWK set") from error
    keys = tuple(key for key in found if key is not None)
    if not keys:
        raise ValueError("the JWK set has no usable key")
    return keys


def _key_of_jwk(jwk: dict[str, Any], *, secrets_allowed: bool) -> Key | None:
    try:
        algorithm, kid = _KINDS[jwk["kty"]], jwk.get("kid")
        for_signatures = jwk.get("use", "sig") == "sig" and "verify" in jwk.get("key_ops", ["verify"])
        if jwk.get("alg", algorithm) != algorithm or not for_signatures or not isinstance(kid, str | None):
            return None
        if "d" in jwk:
            return None  # a published private key must not be trusted
        material = _ALGORITHMS[algorithm].from_jwk(jwk)
        if algorithm != "HS256":
            return Key(_algorithm_of(material), kid, material)
    except (PyJWTError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return Key(algorithm, kid, material) if secrets_allowed and len(material) >= _MIN_SECRET_BYTES else None


def _read_file(place: str) -> bytes:
    with Path(place).open("rb") as file:
        return _bounded(file.read(_MAX_SET_BYTES + 1))


def _fetch(url: str) -> bytes:
    """Fetch the JWK set. Follows no redirect, so that only the server named in the settings is asked. Raises OSError,
    ValueError."""
    import httpx2  # imported here, because keys in a file do not need it

    deadline, content = time.monotonic() + _FETCH_SECONDS, b""
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
    trusted = ssl.create_default_context()  # the system's certificate authorities
    try:
        with httpx2.stream("GET", url, headers=headers, timeout=_FETCH_SECONDS, verify=trusted) as reply:
            reply.raise_for_status()
            for piece in reply.iter_raw():
                content = _bounded(content + piece)
                if time.monotonic() > deadline:
                    raise TimeoutError("the JWK set arrived too slowly")
    except httpx2.HTTPError as error:
        raise OSError(str(error)) from error
    return content


def _bounded(content: bytes) -> bytes:
    if len(content) > _MAX_SET_BYTES:
        raise ValueError(f"the JWK set is larger than {_MAX_SET_BYTES} bytes")
    return content


class Header(Struct):
    """The JOSE header (RFC 7515). Lists the members that would change how a token is checked, or bring a key, to refuse
    them; other members are ignored."""

    alg: str
    kid: str | UnsetType = UNSET
    typ: str | UnsetType = UNSET
    crit: object = UNSET
    jwk: object = UNSET
    jku: object = UNSET
    x5u: object = UNSET
    x5c: object = UNSET
    b64: object = UNSET
    enc: object = UNSET
    zip: object = UNSET

    def is_plain(self) -> bool:
        refused = (self.crit, self.jwk, self.jku, self.x5u, self.x5c, self.b64, self.enc, self.zip)
        return all(member is UNSET for member in refused) and (self.typ is UNSET or self.typ.lower() in _TYPES)


class Payload(Struct):
    """The claims that are read (RFC 7519); others are ignored."""

    sub: str
    exp: Time
    nbf: Time | UnsetType = UNSET
    iat: Time | UnsetType = UNSET
    iss: str | UnsetType = UNSET
    aud: str | list[str] | UnsetType = UNSET
    scope: str | UnsetType = UNSET
    total_space: Size | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class Verified:
    identity: Identity
    total_space: int | None
    expires_at: float
    key: Key


class Verifier:
    """Verifies tokens, and caches verified ones while the key that signed them is valid."""

    def __init__(self, settings: Settings, keys: Keys, clock: Clock) -> None:
        self._algorithms = settings.jwt_algorithms
        self._issuer = settings.jwt_issuer
        self._audience = settings.jwt_audience
        self._leeway_seconds = settings.jwt_leeway_seconds
        self._keys = keys
        self._clock = clock
        self._verified: OrderedDict[bytes, Verified] = OrderedDict()

    async def verify(self, token: str) -> Verified:
        """Raises Unauthenticated, or Unavailable if the keys cannot be read."""
        if len(token) > _MAX_TOKEN_BYTES:
            raise Unauthenticated(f"The token is longer than {_MAX_TOKEN_BYTES:,} bytes.")
        token_sha256 = hashlib.sha256(token.encode()).digest()
        verified = self._verified.get(token_sha256)
        if verified is not None:
            if self._now() < verified.expires_at and verified.key in await self._keys.find(verified.key.kid):
                return verified
            self._verified.pop(token_sha256, None)
        verified = await self._verify(token)
        self._verified[token_sha256] = verified
        if len(self._verified) > _CACHE_SIZE:
            self._verified.popitem(last=False)
        return verified

    async def _verify(self, token: str) -> Verified:
        parts = token.split(".")
        if len(parts) != 3:
            raise _invalid()
        header = _decode(parts[0], Header)
        signature = _decode_base64(parts[2])
        if header.alg not in self._algorithms or not header.is_plain():
            raise _invalid()
        if header.kid is not UNSET and len(header.kid) > _MAX_KID_LENGTH:
            raise Unauthenticated(f"The `kid` of the token is longer than {_MAX_KID_LENGTH} characters.")
        message = f"{parts[0]}.{parts[1]}".encode()
        for key in await self._keys.find(or_none(header.kid)):
            if key.algorithm == header.alg and key.signed(message, signature):
                return self._heed(_decode(parts[1], Payload), key)
        raise _invalid()

    def _heed(self, payload: Payload, key: Key) -> Verified:
        """Check the claims. Raises Unauthenticated with the reason, because the signature shows that the issuer made the
        token."""
        now, leeway = self._now(), self._leeway_seconds
        times = (payload.exp, payload.nbf, payload.iat)
        # JSON allows numbers larger than any double. Comparing them works, but arithmetic with them raises.
        if not all(time is UNSET or abs(time) <= sys.float_info.max for time in times):
            raise _invalid()
        if payload.exp + leeway <= now:
            raise Unauthenticated("The token is expired.")
        if any(time is not UNSET and time - leeway > now for time in (payload.nbf, payload.iat)):
            raise Unauthenticated("The token is not valid yet.")
        if self._issuer is not None and payload.iss != self._issuer:
            raise Unauthenticated("The token is of another issuer.")
        audiences = [payload.aud] if isinstance(payload.aud, str) else or_none(payload.aud) or []
        if self._audience is not None and self._audience not in audiences:
            raise Unauthenticated("The token is for another audience.")
        try:
            user_id = check_user_id(payload.sub)
        except ValueError as error:
            raise Unauthenticated(f"The token's subject {error}.") from error
        scopes = [] if payload.scope is UNSET else payload.scope.split(" ")
        admin = _ADMIN_SCOPE in scopes
        scope = None if admin else narrowed(scopes)
        return Verified(
            Identity(owner(user_id), admin, scope=scope), or_none(payload.total_space), payload.exp + leeway, key
        )

    def _now(self) -> float:
        return self._clock.now().timestamp()


def _decode(segment: str, kind: type[T]) -> T:
    try:
        return decode_json(_decode_base64(segment), kind)
    except InvalidRequest as error:
        raise _invalid() from error


def _decode_base64(segment: str) -> bytes:
    """Decode base64url without padding (RFC 7515); accept only the canonical spelling."""
    if not _SEGMENT.fullmatch(segment) or len(segment) % 4 == 1:
        raise _invalid()
    content = base64.urlsafe_b64decode(segment + "=" * (-len(segment) % 4))
    if base64.urlsafe_b64encode(content).rstrip(b"=") != segment.encode():
        raise _invalid()
    return content


def _invalid() -> Unauthenticated:
    return Unauthenticated("The token is not valid.")
