"""Operations: a method of a path, who may call it, what it takes and what it answers; the call of one; and the routing of a
path to its operations.

The OpenAPI document is made from them, too, so neither can drift from the other. Starlette's router tries one path after the
other, with a layer of its own around each request; this one looks the first segment up.
"""

import json
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypeVar
from urllib.parse import parse_qs

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path

from uploader.domain.digest import ClaimedDigests, parse_hex
from uploader.domain.links import Caller
from uploader.domain.names import normalise_name
from uploader.errors import BadRequest, InvalidMd5, InvalidRequest, UnsupportedMediaType
from uploader.http.bodies.intake import MAX_JSON_BYTES, Intake
from uploader.http.shared.mount import mount_of_request
from uploader.runtime.meter import Cost
from uploader.runtime.tasks import in_thread
from uploader.service.access import Identity

T = TypeVar("T")
H = TypeVar("H", bound=Callable[..., Awaitable[Response | None]])

FORM = "application/x-www-form-urlencoded"
# The paths of all operations that are declared.
DECLARED_PATHS: set[str] = set()
# Of bytes that are nothing in particular.
OCTETS = "application/octet-stream"
# Of a handler: the operations that are declared on it.
_DECLARED = "operations"
_MAX_FORM_FIELDS = 8
_MAX_DEPTH = 64
# Of what is decoded on the event loop: it takes a millisecond or so.
_MAX_BYTES_ON_LOOP = 64 << 10
MAX_SIZE_BYTES = 2**63 - 1
Size = Annotated[int, Meta(ge=0, le=MAX_SIZE_BYTES, description="Bytes.")]
# Encoded as RFC 3339 has it.
Time = Annotated[datetime, Meta(extra_json_schema={"format": "date-time"})]
# What a schema can say of a name: the rest is for `normalise_name`.
_SEGMENT = r"[^/\\\u0000-\u001f\u007f-\u009f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]+"
SEGMENTS = {"pattern": f"^{_SEGMENT}(/{_SEGMENT})*$"}
MAX_ID_LENGTH = 64
MD5_PATTERN, SHA256_PATTERN = "^[0-9a-fA-F]{32}$", "^[0-9a-fA-F]{64}$"
_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{}\]]')

# "reader": the user, or the holder of a signed link, which is another for a deleted file; "metrics", and "worker" of the
# queue in the path: an administrator, or a token that is good for that alone.
# "uploader": the user, or a visitor of a link that collects; "visitor": one of a link that shares, or the holder of a link
# that is signed for them.
Access = Literal["open", "user", "uploader", "visitor", "reader", "reader of deleted", "admin", "metrics", "worker"]
READERS = ("reader", "reader of deleted")
# Who may show a signature in place of a token.
SIGNED = (*READERS, "visitor")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One of the query or of a header."""

    name: str
    about: str
    schema: dict[str, Any] = field(default_factory=lambda: {"type": "string"})
    _: KW_ONLY
    place: Literal["query", "header"] = "query"
    required: bool = False


def whole_number(name: str, minimum: int, maximum: int, default: int, about: str) -> Parameter:
    return Parameter(name, about, {"type": "integer", "minimum": minimum, "maximum": maximum, "default": default})


header = partial(Parameter, place="header")
# Of lists.
LIMIT = whole_number("limit", 1, 1000, 100, "Return so many at the most.")
AFTER = Parameter("after", "The cursor: `next` of the page before.")
SEARCH = Parameter("q", "Only names that contain this.")
PREFIX = Parameter("prefix", "Only names that start with this.")


async def _unbound(_call: "Call") -> Response:
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Operation:
    """Declared on its handler, as a decorator. `responses` maps a status to the type of its body, to several, or to None:
    no JSON. `problems` are those that neither the access nor the body nor the path makes possible."""

    # Its method and its path, as in "GET /me/files".
    route: str
    summary: str
    _: KW_ONLY
    tag: str
    access: Access = "user"
    # The transactions of what users may do read the rows of the caller, as those of administrators and workers do.
    on_rights: bool = False
    takes: type | None = None
    takes_optional: bool = False
    # The field of a form that may hold what is taken, as JSON.
    takes_form: str | None = None
    # Media types that a client may give bytes, which are taken whatever it says unless a protocol wants one.
    takes_bytes: tuple[str, ...] = ()
    responses: dict[int, Any] = field(default_factory=lambda: {200: None})
    # Media types that the body of an answer may have where it is no JSON, or beside it.
    media_types: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    # Problems by other statuses than their own.
    said: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    parameters: tuple[Parameter, ...] = ()
    # Of an operation without an answer to tell, it returns None.
    handler: Callable[["Call"], Awaitable[Response | None]] = _unbound

    @property
    def acts_on_rights(self) -> bool:
        """Return whether the transactions read the rows of the caller."""
        return self.on_rights or self.access in ("admin", "worker")

    def needs_admin(self, identity: Identity) -> bool:
        """Return whether it is a right of administrators that lets this caller in, or more than users may is done by it."""
        if self.access in ("admin", "metrics", "worker"):
            return identity.scope is None
        return self.on_rights and identity.admin

    def __call__(self, handler: H) -> H:
        vars(handler).setdefault(_DECLARED, []).insert(0, self)
        DECLARED_PATHS.add(self.route.partition(" ")[2])
        return handler


def operations_of(*handlers: object) -> list[Operation]:
    """Return the operations that are declared on the methods, in order."""
    return [
        replace(operation, handler=getattr(each, name))
        for each in handlers
        for name, method in vars(type(each)).items()
        for operation in getattr(method, _DECLARED, ())
    ]


@dataclass(frozen=True, slots=True)
class Call:
    """A request on its way to its handler: who calls, and the checked parts of what was sent."""

    request: Request
    identity: Identity
    intake: Intake
    cost: Cost | None = None

    @property
    def user_id(self) -> str:
        return self.identity.user_id

    @property
    def caller(self) -> Caller:
        return self.identity.caller

    def in_path(self, name: str) -> str:
        value: str = self.request.path_params[name]
        return value

    def md5(self) -> str:
        """Raises InvalidMd5."""
        try:
            return parse_hex(self.request.path_params["md5"], 32)
        except ValueError as error:
            raise InvalidMd5() from error

    def query_int(self, parameter: Parameter) -> int:
        """Raises InvalidRequest."""
        name, schema = parameter.name, parameter.schema
        minimum, maximum, default = schema["minimum"], schema["maximum"], schema["default"]
        text = self.query(name)
        if text is None:
            return int(default)
        if not re.fullmatch(r"[0-9]{1,10}", text) or not minimum <= int(text) <= maximum:
            raise InvalidRequest.field(name, f"is not a whole number from {minimum} to {maximum}")
        return int(text)

    def query_word(self, name: str, default: str, words: tuple[str, ...]) -> str:
        """Raises InvalidRequest."""
        text = self.query(name)
        if text is None:
            return default
        if text not in words:
            raise InvalidRequest.field(name, f"is not one of {', '.join(words)}")
        return text

    def query(self, name: str) -> str | None:
        """Raises InvalidRequest if there are several."""
        values = self.request.query_params.getlist(name)
        if len(values) > 1:
            raise InvalidRequest.field(name, "is given more than once")
        return values[0] if values else None

    def claims(self, *, chunk: bool = False) -> ClaimedDigests:
        """Return the digests that are told of the bytes of a file. Raises UnsupportedMediaType for a body that is encoded.
        Unless it is a chunk, raises that for a form, too, and BadRequest for a range: both would be stored as the file."""
        headers = self.request.headers
        if not chunk and headers.get("content-type", "").strip().lower().startswith("multipart/form-data"):
            raise UnsupportedMediaType("The body is the file itself, not a form.")
        if not chunk and "content-range" in headers:
            raise BadRequest("The body is not a range of the file: send no Content-Range.")
        if any(coding.strip().lower() not in ("", "identity") for coding in headers.getlist("content-encoding")):
            raise UnsupportedMediaType()
        return ClaimedDigests(headers.getlist("content-digest"), headers.getlist("content-md5"))

    async def json(self, kind: type[T], *, optional: bool = False, most_bytes: int = MAX_JSON_BYTES) -> T:
        """Decode strictly; with `optional`, an empty body stands for `{}`. Raises InvalidRequest, BodyTimeout,
        TooManyRequests."""
        content = await self.intake.receive_json(self.request.receive, self._crowd(), most_bytes)
        await self._begin()
        if len(content) > _MAX_BYTES_ON_LOOP:
            return await in_thread(decode_json, content, kind)
        return decode_json(content or (b"{}" if optional else b""), kind)

    async def json_or_form(self, kind: type[T], field: str, *, most_bytes: int = MAX_JSON_BYTES) -> T:
        """Decode as `json`; or that JSON as a field of a form, which is how a browser saves the answer."""
        if not self.request.headers.get("content-type", "").startswith(FORM):
            return await self.json(kind, most_bytes=most_bytes)
        # A form has three bytes for most of JSON's.
        content = await self.intake.receive_json(self.request.receive, self._crowd(), 3 * most_bytes)
        await self._begin()
        # A large one takes a tenth of a second.
        return await in_thread(_decode_form, content, field, kind)

    def _crowd(self) -> Caller:
        """Return with whom a share of memory for JSON is had."""
        return self.caller.crowd if self.caller.session else self.caller

    async def _begin(self) -> None:
        """Wait for the turn of a request whose body has come: nobody else waits for its client. Raises NotYourTurn."""
        if self.cost is not None:
            await self.cost.begin()


def decode_json(content: bytes, kind: type[T]) -> T:
    """Decode strictly: no duplicate keys, no unknown fields, no conversions, no depths. Raises InvalidRequest."""
    try:
        decoded = msgspec.json.decode(content, type=kind)
        if _depth(content) > _MAX_DEPTH:
            raise InvalidRequest.field("body", "is nested too deep")
        # msgspec lets the last of several equal keys win; look for them apart.
        json.loads(content, object_pairs_hook=_refuse_duplicates)
    except msgspec.ValidationError as error:
        raise InvalidRequest.field(*_field_and_reason(str(error))) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise InvalidRequest.field("body", "is not valid JSON in UTF-8") from error
    return decoded


def _decode_form(content: bytes, field: str, kind: type[T]) -> T:
    try:
        values = parse_qs(content.decode("ascii"), max_num_fields=_MAX_FORM_FIELDS)[field]
    except (ValueError, KeyError) as error:
        raise InvalidRequest.field(field, "is missing") from error
    return decode_json(values[0].encode(errors="surrogatepass"), kind)


def public_path(path: str) -> str:
    """Return the path of an operation as the client of this request reaches it."""
    return mount_of_request.get().prefix + path


def or_none(value: T | UnsetType) -> T | None:
    return None if value is UNSET else value


def _depth(content: bytes) -> int:
    """Parsers give up at depths of their own, which differ from one Python to the next."""
    if content.count(b"[") + content.count(b"{") <= _MAX_DEPTH:
        return 0  # not too deep in any case
    depth = deepest = 0
    for token in _STRING_OR_BRACKET.findall(content):
        depth += (token in b"[{") - (token in b"]}")
        deepest = max(deepest, depth)
    return deepest


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest.field(twice, "is given more than once")
    return found


def _field_and_reason(message: str) -> tuple[str, str]:
    """Split msgspec's message, which names a path (`$.size`), or in its text a missing or unknown field."""
    reason, _, path = message.partition(" - at `")
    name = path.rstrip("`").removeprefix("$").lstrip(".")
    mentioned = re.search(r"(missing required|unknown) field `(.*)`", reason)
    if mentioned:
        name = f"{name}.{mentioned[2]}".lstrip(".")
        reason = "is missing" if mentioned[1] == "missing required" else "is not a known field"
    return name or "body", reason


def checked_name(name: str, field: str = "name") -> str:
    """Return a file name in NFC. Raises InvalidRequest."""
    try:
        return normalise_name(name)
    except ValueError as error:
        raise InvalidRequest.field(field, str(error)) from error


@dataclass(frozen=True, slots=True)
class Place:
    path: str
    pattern: re.Pattern[str]
    by_method: dict[str, Operation]

    @property
    def allow(self) -> str:
        return ", ".join(sorted(self.by_method))


class Match(NamedTuple):
    place: Place
    path_params: dict[str, str]


class Routing:
    """The places of a route table. Each path begins with a segment that is no parameter. `aliases` are other paths of
    places."""

    def __init__(self, operations: list[Operation], aliases: Mapping[str, str] | None = None) -> None:
        self._aliases = aliases or {}
        by_path: dict[str, dict[str, Operation]] = defaultdict(dict)
        for operation in operations:
            method, _, path = operation.route.partition(" ")
            by_path[path][method] = operation
            if method == "GET":
                by_path[path]["HEAD"] = operation
        self._by_first_segment: dict[str, list[Place]] = defaultdict(list)
        # A word goes before a parameter.
        for path, by_method in sorted(by_path.items(), key=lambda place: "{" in place[0]):
            self._by_first_segment[_first_segment(path)].append(Place(path, compile_path(path)[0], by_method))

    @property
    def paths(self) -> list[str]:
        return [place.path for places in self._by_first_segment.values() for place in places]

    def find(self, path: str) -> Match | None:
        path = self._aliases.get(path, path)
        for place in self._by_first_segment.get(_first_segment(path), ()):
            if match := place.pattern.fullmatch(path):
                return Match(place, match.groupdict())
        return None


def _first_segment(path: str) -> str:
    return path[1:].partition("/")[0]
