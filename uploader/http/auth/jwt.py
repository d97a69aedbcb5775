"""Checks a JWT and reads its claims. Refuses everything it does not know how to check; PyJWT does the cryptography, and no
more (decision 0014)."""

import base64
import hashlib
import re
import sys
from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

from uploader.clock import Clock
from uploader.domain.names import check_user_id
from uploader.errors import InvalidRequest, Unauthenticated
from uploader.http.auth.keys import Key, Keys
from uploader.http.shared.operation import decode_json
from uploader.http.shared.schemas import Size
from uploader.service.access import METRICS_SCOPE
from uploader.settings import Settings

_MAX_TOKEN_BYTES = 8192
_SEGMENT = re.compile(r"[A-Za-z0-9_-]+")
_CACHE_SIZE = 10_000
_TYPES = ("jwt", "at+jwt")
_ADMIN_SCOPE = "admin"

T = TypeVar("T")

Time = int | float


class Header(Struct):
    """The JOSE header (RFC 7515). What would change how a token is checked, or bring a key of its own, is named here to be
    refused; other members tell nothing that is used."""

    alg: str
    kid: Annotated[str, Meta(max_length=256)] | UnsetType = UNSET
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
    """The claims that are read (RFC 7519); others are left alone."""

    sub: str
    exp: Time
    nbf: Time | UnsetType = UNSET
    iat: Time | UnsetType = UNSET
    iss: str | UnsetType = UNSET
    aud: str | list[str] | UnsetType = UNSET
    scope: str | UnsetType = UNSET
    total_space: Size | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class Claims:
    """What a token says of its bearer, once it is verified."""

    user_id: str
    admin: bool
    total_space: int | None
    # All that the token is good for; None: for whatever the user may do.
    scope: str | None = None


@dataclass(frozen=True, slots=True)
class _Verified:
    claims: Claims
    expires_at: float
    key: Key


class Verifier:
    """Verifies tokens, and remembers those that it has verified while the key that signed them is in force."""

    def __init__(self, settings: Settings, keys: Keys, clock: Clock) -> None:
        self._algorithms = settings.jwt_algorithms
        self._issuer = settings.jwt_issuer
        self._audience = settings.jwt_audience
        self._leeway_seconds = settings.jwt_leeway_seconds
        self._keys = keys
        self._clock = clock
        self._verified: OrderedDict[bytes, _Verified] = OrderedDict()

    async def verify(self, token: str) -> Claims:
        """Raises Unauthenticated; Unavailable where the keys can't be read."""
        if len(token) > _MAX_TOKEN_BYTES:
            raise _invalid()
        token_sha256 = hashlib.sha256(token.encode()).digest()
        verified = self._verified.get(token_sha256)
        if verified is not None:
            if self._now() < verified.expires_at and verified.key in await self._keys.find(verified.key.kid):
                return verified.claims
            self._verified.pop(token_sha256, None)
        verified = await self._verify(token)
        self._verified[token_sha256] = verified
        if len(self._verified) > _CACHE_SIZE:
            self._verified.popitem(last=False)
        return verified.claims

    async def _verify(self, token: str) -> _Verified:
        parts = token.split(".")
        if len(parts) != 3:
            raise _invalid()
        header = _decode(parts[0], Header)
        signature = _decode_base64(parts[2])
        if header.alg not in self._algorithms or not header.is_plain():
            raise _invalid()
        message = f"{parts[0]}.{parts[1]}".encode()
        for key in await self._keys.find(None if header.kid is UNSET else header.kid):
            if key.algorithm == header.alg and key.signed(message, signature):
                payload = _decode(parts[1], Payload)
                return _Verified(self._claims_of(payload), payload.exp + self._leeway_seconds, key)
        raise _invalid()

    def _claims_of(self, payload: Payload) -> Claims:
        """Raises Unauthenticated, saying why: whoever signed the token may know."""
        now, leeway = self._now(), self._leeway_seconds
        times = (payload.exp, payload.nbf, payload.iat)
        # JSON has numbers that no double holds, and arithmetic with them raises; to compare them does not.
        if not all(time is UNSET or abs(time) <= sys.float_info.max for time in times):
            raise _invalid()
        if payload.exp + leeway <= now:
            raise Unauthenticated("The token is expired.")
        if any(time is not UNSET and time - leeway > now for time in (payload.nbf, payload.iat)):
            raise Unauthenticated("The token is not valid yet.")
        if self._issuer is not None and payload.iss != self._issuer:
            raise Unauthenticated("The token is of another issuer.")
        if self._audience is not None and self._audience not in _audiences(payload):
            raise Unauthenticated("The token is for another audience.")
        try:
            user_id = check_user_id(payload.sub)
        except ValueError as error:
            raise Unauthenticated(f"The token's subject {error}.") from error
        scopes = [] if payload.scope is UNSET else payload.scope.split(" ")
        space = None if payload.total_space is UNSET else payload.total_space
        admin = _ADMIN_SCOPE in scopes
        return Claims(user_id, admin, space, METRICS_SCOPE if METRICS_SCOPE in scopes and not admin else None)

    def _now(self) -> float:
        return self._clock.now().timestamp()


def _audiences(payload: Payload) -> list[str]:
    if payload.aud is UNSET:
        return []
    return [payload.aud] if isinstance(payload.aud, str) else payload.aud


def _decode(segment: str, kind: type[T]) -> T:
    try:
        return decode_json(_decode_base64(segment), kind)
    except InvalidRequest as error:
        raise _invalid() from error


def _decode_base64(segment: str) -> bytes:
    """Base64url without padding (RFC 7515), in the one spelling that encoding makes. Raises Unauthenticated."""
    if not _SEGMENT.fullmatch(segment) or len(segment) % 4 == 1:
        raise _invalid()
    content = base64.urlsafe_b64decode(segment + "=" * (-len(segment) % 4))
    if base64.urlsafe_b64encode(content).rstrip(b"=") != segment.encode():
        raise _invalid()
    return content


def _invalid() -> Unauthenticated:
    return Unauthenticated("The token is not valid.")
