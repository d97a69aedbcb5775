"""Requests are decoded strictly, and a refusal names the field and the reason."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import Response

from uploader.errors import InvalidRequest
from uploader.http.native.schemas import AskStates, OpenFile, TellDigests
from uploader.http.shared.operation import Call, Operation, Routing, checked_name, decode_json, operations_of

MD5 = "d41d8cd98f00b204e9800998ecf8427e"

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "size", "x"]), inner),
    max_leaves=10,
)


def refusal(content: bytes, kind: type = OpenFile) -> tuple[str, str]:
    with pytest.raises(InvalidRequest) as caught:
        decode_json(content, kind)
    (error,) = caught.value.fields["errors"]
    assert caught.value.detail == f"{error['field']}: {error['reason']}"
    return error["field"], error["reason"]


def test_a_proper_body_is_decoded() -> None:
    for size in (12, 2**63 - 1):
        body = decode_json(f'{{"name": "dö/a", "size": {size}, "instant": false}}'.encode(), OpenFile)
        assert (body.name, body.size, body.instant) == ("dö/a", size, False)


@pytest.mark.parametrize("spelling", ['"12"', "true", "1e3", "1.0", "null", "[1]", "{}", "-1", str(2**63), "1" * 5000])
def test_what_is_no_whole_number_within_bounds_is_refused(spelling: str) -> None:
    assert refusal(f'{{"name": "a", "size": {spelling}}}'.encode())[0] == "size"


@pytest.mark.parametrize(
    ("content", "field", "reason"),
    [
        (b'{"name": "a"}', "size", "is missing"),
        (b'{"name": "a", "size": 1, "chunkSize": {"a": 1}}', "chunkSize", "is not a known field"),
        (b'{"name": "a", "size": 1, "x`y": {"a": 1}}', "x`y", "is not a known field"),
        (b'{"name": "a", "size": 1, "$.size": {"a": 1}}', "$.size", "is not a known field"),
        (b'{"name": "a", "size": 1, "size": 1}', "size", "is given more than once"),
        (b'{"name": "a", "name": "b", "size": 1}', "name", "is given more than once"),
        (b'{"name": "a", "n\\u0061me": "b", "size": 1}', "name", "is given more than once"),
    ],
)
def test_a_field_that_is_missing_unknown_or_given_twice_is_named(content: bytes, field: str, reason: str) -> None:
    assert refusal(content) == (field, reason)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b" ", b"{", b"\xff"),
        b'{"name": "\xed\xa0\x80", "size": 1}',
        b'{"name": "\\ud800", "size": 1}',
        b'{"name": "a", "size": 1} x',
        b'{"name": "a", "size": 01}',
        b'{"name": "a", "size": NaN}',
        b"{'name': 'a', 'size': 1}",
        b'{"name": "a", "size": 1,}',
        b'\xef\xbb\xbf{"name": "a", "size": 1}',
        '{"name": "a", "size": 1}'.encode("utf-16"),
    ],
)
def test_what_is_not_json_in_utf_8_is_refused(content: bytes) -> None:
    assert refusal(content) == ("body", "is not valid JSON in UTF-8")


class Tolerant(msgspec.Struct):
    """Lets others be."""

    name: str


def test_what_is_nested_too_deep_is_refused_whatever_the_parser_bears() -> None:
    for nested in ("[" * 64 + "]" * 64, '{"x":' * 64 + "1" + "}" * 64, "[[]," * 64 + "1" + "]" * 64):
        content = f'{{"name": "a", "other": {nested}}}'
        assert refusal(content.encode(), Tolerant) == ("body", "is nested too deep")
    # Brackets side by side or in strings are no depth.
    content = json.dumps({"name": "a", "other": [{"a": ["[", '"{', "\\["]}] * 100})
    assert decode_json(content.encode(), Tolerant) == Tolerant("a")


def test_what_is_of_another_type_is_named_by_its_place() -> None:
    for content in (b"null", b"[]", b'"text"', b"12", b"[" * 100_000):
        assert refusal(content)[0] == "body"
    assert refusal(json.dumps({"md5s": [MD5, "x"]}).encode(), AskStates)[0].startswith("md5s")
    for digest in (MD5 + "\n", MD5[:-1], MD5 + "0", "g" * 32, ""):
        assert refusal(json.dumps({"md5": digest}).encode(), TellDigests)[0] == "md5"
        assert refusal(json.dumps({"md5": MD5, "sha256": digest * 2}).encode(), TellDigests)[0] == "sha256"


@given(json_values.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=60))
def test_whatever_is_sent_is_decoded_or_refused_with_a_field_and_a_reason(content: bytes) -> None:
    try:
        decoded = decode_json(content, OpenFile)
    except InvalidRequest as error:
        assert all(entry["field"] and entry["reason"] for entry in error.fields["errors"])
    else:
        assert isinstance(decoded, OpenFile)


def test_a_name_is_normalised_or_refused_as_a_field() -> None:
    assert checked_name("e\u0301") == "é"
    with pytest.raises(InvalidRequest) as caught:
        checked_name("../a")
    assert caught.value.fields["errors"][0]["field"] == "name"


TABLE = [
    ("GET", "/"),
    ("POST", "/files/{md5}"),
    ("POST", "/files/status"),
    ("GET", "/files/{md5}"),
    ("PUT", "/files/{md5}/chunks/{n}"),
    ("GET", "/static/{path:path}"),
    ("GET", "/admin/"),
]


async def handler(_call: Call) -> Response:
    raise AssertionError


@pytest.fixture
def routing() -> Routing:
    return Routing([Operation(f"{method} {path}", handler=handler, summary="", tag="") for method, path in TABLE])


@pytest.mark.parametrize(
    ("path", "place", "params"),
    [
        ("/", "/", {}),
        ("/files/status", "/files/status", {}),
        ("/files/abc", "/files/{md5}", {"md5": "abc"}),
        ("/files/abc/chunks/7", "/files/{md5}/chunks/{n}", {"md5": "abc", "n": "7"}),
        ("/static/a/b.js", "/static/{path:path}", {"path": "a/b.js"}),
        ("/admin/", "/admin/", {}),
    ],
)
def test_a_path_leads_to_its_place(routing: Routing, path: str, place: str, params: dict[str, str]) -> None:
    found = routing.find(path)
    assert found is not None
    assert (found.place.path, found.path_params) == (place, params)
    if path == "/files/abc":  # all methods of the path, and HEAD where there is GET
        assert found.place.allow == "GET, HEAD, POST"
        assert found.place.by_method["HEAD"] is found.place.by_method["GET"]


def test_what_is_no_path_of_the_table_leads_nowhere(routing: Routing) -> None:
    paths = ["", "files", "//", "/files", "/files/", "/files//chunks/7", "/files/abc/", "/admin", "/admin/\n", "/é"]
    assert [path for path in (*paths, "/files/a/b") if routing.find(path)] == []


class Handlers:
    @Operation("GET /b", "", tag="")
    @Operation("GET /c", "", tag="")
    async def second(self, _call: Call) -> Response:
        raise AssertionError

    @Operation("PUT /a", "", tag="")
    async def first(self, _call: Call) -> Response:
        raise AssertionError


def test_operations_are_those_that_handlers_declare_in_order() -> None:
    handlers = Handlers()
    found = operations_of(handlers)
    assert [each.route for each in found] == ["GET /b", "GET /c", "PUT /a"]
    assert [each.handler for each in found] == [handlers.second, handlers.second, handlers.first]
