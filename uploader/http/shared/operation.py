"""Operations and routing. An operation is a method and a path, with access rule, input and answers; a `Call` is one request
of an operation; `Routing` finds the operations of a path.

The OpenAPI document is built from the same operations, and therefore cannot drift from them. Starlette's router tries one
path after another and wraps each request in a layer of its own; `Routing` looks the first segment up in a dict.
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
# The paths of all declared operations.
DECLARED_PATHS: set[str] = set()
# The media type of unspecified bytes.
OCTETS = "application/octet-stream"
# The attribute of a handler with the list of its operations.
_DECLARED = "operations"
_MAX_FORM_FIELDS = 8
_MAX_DEPTH = 64
# Decoding this much JSON takes about a millisecond; larger bodies are decoded in a thread.
_MAX_BYTES_ON_LOOP = 64 << 10
MAX_SIZE_BYTES = 2**63 - 1
Size = Annotated[int, Meta(ge=0, le=MAX_SIZE_BYTES, description="Bytes.")]
# RFC 3339.
Time = Annotated[datetime, Meta(extra_json_schema={"format": "date-time"})]
# The rules for names that a JSON schema can express; `normalise_name` checks the others.
_SEGMENT = r"[^/\\\u0000-\u001f\u007f-\u009f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]+"
SEGMENTS = {"pattern": f"^{_SEGMENT}(/{_SEGMENT})*$"}
MAX_ID_LENGTH = 64
MD5_PATTERN, SHA256_PATTERN = "^[0-9a-fA-F]{32}$", "^[0-9a-fA-F]{64}$"
_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{}\]]')

# - "open": everybody; "user": a user; "admin": an administrator.
# - "uploader": the user, or a visitor of a link that collects files.
# - "visitor": a visitor of a link that shares files, or the holder of a URL that is signed for a visitor.
# - "reader", "reader of deleted": the user, or the holder of a signed URL (the two have different signatures).
# - "metrics", "worker": an administrator, or a token with this scope; for "worker" the scope names the queue of the path.
Access = Literal["open", "user", "uploader", "visitor", "reader", "reader of deleted", "admin", "metrics", "worker"]
READERS = ("reader", "reader of deleted")
# The access rules under which a signature can replace the token.
SIGNED = (*READERS, "visitor")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the query, or a header."""

    name: str
    about: str
    schema: dict[str, Any] = field(default_factory=lambda: {"type": "string"})
    _: KW_ONLY
    place: Literal["query", "header"] = "query"
    required: bool = False


def whole_number(name: str, minimum: int, maximum: int, default: int, about: str) -> Parameter:
    return Parameter(name, about, {"type": "integer", "minimum": minimum, "maximum": maximum, "default": default})


header = partial(Parameter, place="header")
# Parameters of lists.
LIMIT = whole_number("limit", 1, 1000, 100, "Return so many at the most.")
AFTER = Parameter("after", "The cursor: `next` of the page before.")
SEARCH = Parameter("q", "Only names that contain this.")
PREFIX = Parameter("prefix", "Only names that start with this.")


async def _unbound(_call: "Call") -> Response:
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation, declared by decorating its handler. `responses` maps a status to the type of its body, to several
    types, or to None (no JSON). `problems` lists the error codes beyond those that access, body and path already imply."""

    # Method and path, for example "GET /me/files".
    route: str
    summary: str
    _: KW_ONLY
    tag: str
    access: Access = "user"
    # True if the operation's transactions must read the caller's rows (token, administrator's right), although its access is
    # not "admin" or "worker".
    on_rights: bool = False
    takes: type | None = None
    takes_optional: bool = False
    # The form field that may hold the JSON body.
    takes_form: str | None = None
    # Documented media types of a body of bytes. Other types are accepted too, unless a protocol demands one.
    takes_bytes: tuple[str, ...] = ()
    responses: dict[int, Any] = field(default_factory=lambda: {200: None})
    # Media types of answers other than JSON; an operation may also answer JSON.
    media_types: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    # Problems with a status other than their usual one.
    said: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    parameters: tuple[Parameter, ...] = ()
    # Returns None if there is nothing to answer: status 204.
    handler: Callable[["Call"], Awaitable[Response | None]] = _unbound

    @property
    def acts_on_rights(self) -> bool:
        """Return True if the transactions must read the caller's rows, so that a revoked right ends them."""
        return self.on_rights or self.access in ("admin", "worker")

    def needs_admin(self, identity: Identity) -> bool:
        """Return True if the caller needs an administrator's right here: the access demands it, or the caller uses that
        right to do more than users may."""
        if self.access in ("admin", "metrics", "worker"):
            return identity.scope is None
        return self.on_rights and identity.admin

    def __call__(self, handler: H) -> H:
        vars(handler).setdefault(_DECLARED, []).insert(0, self)
        DECLARED_PATHS.add(self.route.partition(" ")[2])
        return handler


def operations_of(*handlers: object) -> list[Operation]:
    """Return the operations declared on the methods of these objects, in order of declaration."""
    return [
        replace(operation, handler=getattr(each, name))
        for each in handlers
        for name, method in vars(type(each)).items()
        for operation in getattr(method, _DECLARED, ())
    ]


@dataclass(frozen=True, slots=True)
class Call:
    """One request for its handler: the caller, and methods that return checked parts of the request."""

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
        """Return the MD5 in the path, in lower case. Raises InvalidMd5."""
        try:
            return parse_hex(self.request.path_params["md5"], 32)
        except ValueError as error:
            raise InvalidMd5() from error

    def query_int(self, parameter: Parameter) -> int:
        """Return an integer parameter, or its default. Raises InvalidRequest."""
        name, schema = parameter.name, parameter.schema
        minimum, maximum, default = schema["minimum"], schema["maximum"], schema["default"]
        text = self.query(name)
        if text is None:
            return int(default)
        if not re.fullmatch(r"[0-9]{1,10}", text) or not minimum <= int(text) <= maximum:
            raise InvalidRequest.field(name, f"is not a whole number from {minimum} to {maximum}")
        return int(text)

    def query_word(self, name: str, default: str, words: tuple[str, ...]) -> str:
        """Return a parameter that must be one of `words`. Raises InvalidRequest."""
        text = self.query(name)
        if text is None:
            return default
        if text not in words:
            raise InvalidRequest.field(name, f"is not one of {', '.join(words)}")
        return text

    def query(self, name: str) -> str | None:
        """Return a query parameter. Raises InvalidRequest if it is repeated."""
        values = self.request.query_params.getlist(name)
        if len(values) > 1:
            raise InvalidRequest.field(name, "is given more than once")
        return values[0] if values else None

    def claims(self, *, chunk: bool = False) -> ClaimedDigests:
        """Return the digests that the client claims for the bytes. Raises UnsupportedMediaType for a content encoding. If
        the body is a whole file (not a chunk), also raises UnsupportedMediaType for a multipart form and BadRequest for a
        `Content-Range`, because either would be stored as the file."""
        headers = self.request.headers
        if not chunk and headers.get("content-type", "").strip().lower().startswith("multipart/form-data"):
            raise UnsupportedMediaType("The body is the file itself, not a form.")
        if not chunk and "content-range" in headers:
            raise BadRequest("The body is not a range of the file: send no Content-Range.")
        if any(coding.strip().lower() not in ("", "identity") for coding in headers.getlist("content-encoding")):
            raise UnsupportedMediaType()
        return ClaimedDigests(headers.getlist("content-digest"), headers.getlist("content-md5"))

    async def json(self, kind: type[T], *, optional: bool = False, most_bytes: int = MAX_JSON_BYTES) -> T:
        """Decode a JSON body strictly. With `optional`, an empty body counts as `{}`. Raises InvalidRequest, BodyTimeout,
        TooManyRequests, NotYourTurn."""
        content = await self.intake.receive_json(self.request.receive, self._crowd(), most_bytes)
        await self._begin()
        if len(content) > _MAX_BYTES_ON_LOOP:
            return await in_thread(decode_json, content, kind)
        return decode_json(content or (b"{}" if optional else b""), kind)

    async def json_or_form(self, kind: type[T], field: str, *, most_bytes: int = MAX_JSON_BYTES) -> T:
        """Decode a JSON body, or a form with the JSON in the field `field`: a browser that submits a form saves the answer
        as a file."""
        if not self.request.headers.get("content-type", "").startswith(FORM):
            return await self.json(kind, most_bytes=most_bytes)
        # Percent-encoding triples most characters of JSON.
        content = await self.intake.receive_json(self.request.receive, self._crowd(), 3 * most_bytes)
        await self._begin()
        # Decoding a large form takes a tenth of a second.
        return await in_thread(_decode_form, content, field, kind)

    def _crowd(self) -> Caller:
        """Return the caller for whom memory for JSON is counted: the visitors of a user share one budget."""
        return self.caller.crowd if self.caller.session else self.caller

    async def _begin(self) -> None:
        """Wait for the user's turn to use CPU. Called when the body is complete, so that no turn is spent waiting for a
        client. Raises NotYourTurn."""
        if self.cost is not None:
            await self.cost.begin()


def decode_json(content: bytes, kind: type[T]) -> T:
    """Decode strictly: no duplicate keys, no unknown fields, no conversions, at most 64 levels. Raises InvalidRequest."""
    try:
        decoded = msgspec.json.decode(content, type=kind)
        if _depth(content) > _MAX_DEPTH:
            raise InvalidRequest.field("body", "is nested too deep")
        # msgspec accepts duplicate keys and keeps the last; json.loads finds them.
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
    """Return a path as the client of the current request sees it."""
    return mount_of_request.get().prefix + path


def or_none(value: T | UnsetType) -> T | None:
    return None if value is UNSET else value


def _depth(content: bytes) -> int:
    """Return the nesting depth. Parsers have their own limits, which differ between Python versions."""
    if content.count(b"[") + content.count(b"{") <= _MAX_DEPTH:
        return 0  # too few brackets to exceed the limit
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
    """Split msgspec's message into field and reason. The message ends with a path (`$.size`), or names a missing or unknown
    field."""
    reason, _, path = message.partition(" - at `")
    name = path.rstrip("`").removeprefix("$").lstrip(".")
    mentioned = re.search(r"(missing required|unknown) field `(.*)`", reason)
    if mentioned:
        name = f"{name}.{mentioned[2]}".lstrip(".")
        reason = "is missing" if mentioned[1] == "missing required" else "is not a known field"
    return name or "body", reason


def checked_name(name: str, field: str = "name") -> str:
    """Return the file name in NFC. Raises InvalidRequest."""
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
    """Finds the place (path pattern and its operations) of a request path. The first segment of each route is a fixed word.
    `aliases` maps further paths to routes."""

    def __init__(self, operations: list[Operation], aliases: Mapping[str, str] | None = None) -> None:
        self._aliases = aliases or {}
        by_path: dict[str, dict[str, Operation]] = defaultdict(dict)
        for operation in operations:
            method, _, path = operation.route.partition(" ")
            by_path[path][method] = operation
            if method == "GET":
                by_path[path]["HEAD"] = operation
        self._by_first_segment: dict[str, list[Place]] = defaultdict(list)
        # Fixed words win over parameters.
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
