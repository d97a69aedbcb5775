"""Bad bodies, paths, queries, headers, callers and bytes over all endpoints, each with the answer it has to get.

In targets and bodies `{md5}` and `{id}` are an open upload of two chunks, `{file}` is a file, all of them alice's.
"""

import base64
import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

ZEROS = "0" * 32


@dataclass(frozen=True)
class Bad:
    """One request and its answer. `names` is the field that the answer blames, where it blames one."""

    method: str
    target: str
    status: int
    code: str
    body: bytes = b""
    headers: tuple[str, ...] = ()
    names: str | None = None
    user: str | None = "alice"
    raw: bytes | None = field(default=None, repr=False)  # instead of a well-formed request

    def __str__(self) -> str:
        shown = self.raw if self.raw is not None else self.body
        return f"{self.method} {self.target} {' '.join(self.headers)} {shown[:80]!r}"


Endpoint = tuple[str, str, dict[str, object]]

# The endpoints that take JSON, each with a good body, its fields, and who may call it.
OPEN_FILE: Endpoint = ("POST", f"/files/{ZEROS}", {"name": "a", "size": 1, "chunk_size": 65536, "sha256": "0" * 64})
OPEN_UPLOAD: Endpoint = ("POST", "/uploads", {"name": "a", "size": 1, "chunk_size": 65536})
TELL: Endpoint = ("PATCH", "/uploads/{id}", {"md5": ZEROS, "sha256": "0" * 64})
STATES: Endpoint = ("POST", "/files/status", {"md5s": [ZEROS]})
RENAME: Endpoint = ("PATCH", "/me/files/{file}", {"name": "b"})
PROVE: Endpoint = ("POST", f"/files/{ZEROS}/proof", {"id": "c", "name": "a", "proof": "0" * 64})
PROVE_BY_ID: Endpoint = ("POST", "/uploads/{id}/proof", {"id": "c", "name": "a", "proof": "0" * 64})
SET_SPACE: Endpoint = ("PUT", "/admin/users/bob", {"total_space": 1})
JSON_ENDPOINTS = (OPEN_FILE, OPEN_UPLOAD, TELL, STATES, RENAME, PROVE, PROVE_BY_ID, SET_SPACE)

# As they stand in the JSON; those that are no JSON at all spoil the whole body.
_INTEGERS = b'-1 9223372036854775808 18446744073709551616 -9223372036854775809 1e3 1E3 1.0 1.5 "12" "" true false null'
BAD_INTEGERS = [*_INTEGERS.split(), b"[]", b"{}", b"[1]", b"1" * 40]
NO_JSON_INTEGERS = ["٣".encode(), *b"01 +1 0x10 1_000 NaN Infinity - '1'".split(), b"1 2", b""]
BAD_TEXTS = (b"null", b"1", b"true", b"[]", b"{}", b'["a"]')
NO_JSON_TEXTS = (b"a", b"'a'", b'"a', b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\xaf"', b'"\\ud800"', b'"\\x41"', b'"\t"')
BAD_NAMES = ('""', '"/a"', '"a/"', '"a//b"', '"."', '".."', '"a/../b"', '"a\\\\b"', '"a\\u0000"', '"a\\n"', '"\\u202e"')


def _bad_digests(length: int) -> tuple[str, ...]:
    good = "0" * length
    shapes = ["", good[1:], good + "0", "g" + good[1:], good + "\n", "\n" + good[1:], " " + good[1:], good[1:] + " "]
    return (*shapes, "0x" + good[2:], "٠" * length, "０" * length, good[1:] + "\0", "-" + good[1:], good * 100)


def _body_with(body: dict[str, object], name: str, value: bytes) -> bytes:
    """The JSON of `body` with the bytes `value` for one field."""
    members = [
        json.dumps(key).encode() + b": " + (value if key == name else json.dumps(known).encode())
        for key, known in body.items()
    ]
    return b"{" + b", ".join(members) + b"}"


def _user_of(target: str) -> str:
    return "root" if target.startswith("/admin") else "alice"


def _fields(endpoint: Endpoint, name: str, values: Iterable[bytes | str], blamed: str | None) -> Iterator[Bad]:
    """`blamed` is None where it depends on the parser what it notices first: a bad field, or that this is no JSON."""
    method, target, body = endpoint
    for value in values:
        content = _body_with(body, name, value if isinstance(value, bytes) else value.encode())
        yield Bad(method, target, 422, "invalid-request", content, names=blamed, user=_user_of(target))


def bad_fields() -> Iterator[Bad]:
    """Every field of every JSON body."""
    for endpoint in JSON_ENDPOINTS:
        for name in endpoint[2]:
            if name in ("size", "chunk_size", "total_space"):
                yield from _fields(endpoint, name, BAD_INTEGERS, name)
                yield from _fields(endpoint, name, NO_JSON_INTEGERS, None)
            else:
                yield from _fields(endpoint, name, NO_JSON_TEXTS, None)
            if name == "chunk_size":
                yield from _fields(endpoint, name, [b"0"], name)
            if name in ("md5", "sha256", "proof"):
                yield from _fields(endpoint, name, map(json.dumps, _bad_digests(32 if name == "md5" else 64)), name)
            if name == "name":
                yield from _fields(endpoint, name, BAD_NAMES, name)
            if name in ("name", "md5", "sha256", "proof", "id"):
                yield from _fields(endpoint, name, BAD_TEXTS, name)
    too_many = json.dumps([ZEROS] * 1001)
    yield from _fields(STATES, "md5s", ["null", "1", "{}", f'"{ZEROS}"', too_many], "md5s")
    yield from _fields(STATES, "md5s", (json.dumps([text]) for text in _bad_digests(32)), None)
    for endpoint in (PROVE, PROVE_BY_ID):
        yield from _fields(endpoint, "id", ['""', json.dumps("c" * 65)], "id")
    for method, target, body in (OPEN_FILE, OPEN_UPLOAD):
        more = (method, target, {**body, "if_exists": "keep", "modified_at": "2026-01-02T03:04:05Z"})
        yield from _fields(more, "if_exists", ['"Keep"', '""', "null", "true"], "if_exists")
        times = ['"2026-01-02T03:04:05"', '"2026-01-02"', '"soon"', "1767225600", "null", '"0001-01-01T00:00:00+14:00"']
        yield from _fields(more, "modified_at", times, "modified_at")
    instant = (*OPEN_FILE[:2], {"name": "a", "size": 1, "instant": True})
    yield from _fields(instant, "instant", ["1", "0", '"true"', "null", "[]"], "instant")


def bad_json() -> Iterator[Bad]:
    """Every JSON body as a whole."""
    for method, target, body in JSON_ENDPOINTS:
        good, first = json.dumps(body).encode(), next(iter(body))
        no_json = [b"", b"null", b"[]", b'"a"', b"1", b"[" * 50_000]
        no_json += [good[:-1], good + b"}", good + good, good[:-1] + b",}", good + b"\0", good + b" " * (256 << 10)]
        no_json += [b"\xef\xbb\xbf" + good, good.decode().encode("utf-16"), gzip.compress(good, mtime=0)]
        shapes = [
            *((content, "body") for content in (*no_json, good.replace(b'"', b"'"))),
            # All fields of a user are optional.
            *([] if (method, target, body) == SET_SPACE else [(b"{}", first)]),
            (b"{" + good[1:-1] + b", " + good[1:], first),
            *((good[:-1] + b', "%s": {}}' % name.encode(), name) for name in ("more", "__proto__", first.upper())),
            (b'{"more": ' + b"[" * 50_000, "more"),
            (b'{"a":' * 50_000, "a"),
        ]
        for content, blamed in shapes:
            yield Bad(method, target, 422, "invalid-request", content, names=blamed, user=_user_of(target))


_BAD_MD5S = (
    *("0", "0" * 31, "0" * 33, "g" * 32, "0" * 32 + "%0A", "%00" * 32, "%D9%A0" * 32, "-1", "*", "%FF" * 32),
    *("0" * 32 + "%20", "..%5C" + "0" * 27, "'OR'1'='1", "%3Cscript%3E"),
)
_NUMBERS = (
    "-1 +1 %201 1%20 1.0 1e3 0x1 %D9%A3 %EF%BC%91 1%0A %00 a 1,2 NaN 2 02 10000 9223372036854775808 --1 %2D1 %E2%85%A3"
)
_BAD_NUMBERS = [*_NUMBERS.split(), "9" * 400]
_BAD_IDS = ("x", "0" * 31, "0" * 32, "0" * 33, "G" * 32, "%00", "%0A", "..", "%FF", "*", "a" * 300, "%E2%80%AE", "null")
BY_MD5 = (("GET", ""), ("DELETE", ""), ("PUT", "/chunks/0"), ("POST", "/merge"))
# Files that come whole, with what of their query is good.
WHOLE = (("PUT", f"/files/{ZEROS}?name=a"), ("POST", "/me/files?name=a"))
_TWICE_ENCODED = ("%252F", "%252e%252e", "%2500")


def bad_paths() -> Iterator[Bad]:
    for md5 in _BAD_MD5S:
        for method, more in BY_MD5:
            yield Bad(method, f"/files/{md5}{more}", 422, "invalid-md5")
        yield Bad("POST", f"/files/{md5}", 422, "invalid-md5", b'{"name": "a", "size": 1}')
        yield Bad("POST", f"/files/{md5}/proof", 422, "invalid-md5", b"{}")
        yield Bad("PUT", f"/files/{md5}?name=a", 422, "invalid-md5", b"x")
    for number in _BAD_NUMBERS:
        for place in ("/files/{md5}", "/uploads/{id}"):
            yield Bad("PUT", f"{place}/chunks/{number}", 422, "chunk-number-out-of-range", b"x")
    for upload_id in _BAD_IDS:
        for method, more in BY_MD5:
            yield Bad(method, f"/uploads/{upload_id}{more}", 404, "upload-not-found")
        yield Bad("PATCH", f"/uploads/{upload_id}", 404, "upload-not-found", b'{"md5": "%s"}' % ZEROS.encode())
        for method, more in (("GET", ""), ("DELETE", ""), ("GET", "/content")):
            yield Bad(method, f"/me/files/{upload_id}{more}", 404, "file-not-found")
        yield Bad("PATCH", f"/me/files/{upload_id}", 404, "file-not-found", b'{"name": "b"}')
    for text in _TWICE_ENCODED:
        yield Bad("GET", f"/files/{text}", 422, "invalid-md5")
        yield Bad("GET", f"/me/files/{text}", 404, "file-not-found")


def bad_slashes() -> Iterator[Bad]:
    """An encoded slash separates nothing, dots lead nowhere, and nothing follows a path."""
    targets = """
        /me%2Fusage /me%2fusage /files%2F{md5} /files/{md5}%2Fchunks%2F0 /files/{md5}%2Fmerge /me/files/{file}%2Fcontent
        /me/files/%2e%2e%2Fusage /admin%2Fusage /admin/users/a%2Fb /static/..%2F..%2Fapp.py /static/%2e%2e/%2e%2e/app.py
        /static/..%5C..%5Capp.py /static/swagger-ui/../../../app.py /static/%00 /problems/../livez /problems/%00
        /problems/no-such-code /me/../me/usage /./me/usage //me/usage /me//usage /me/usage/ /me/usage%00 /me/usage%20
        /me/usage;x=1 /ME/USAGE /files /files/ /files/{md5}/ /files/{md5}/chunks /files/{md5}/chunks/ /files/{md5}/chunks/0/1
        /uploads/ /uploads/{id}/chunks/ /me /me/ /admin /admin/users/ /nothing /% /%zz /%2
    """
    for target in targets.split():
        yield Bad("GET", target, 404, "not-found")


def bad_queries() -> Iterator[Bad]:
    numbers = ("", "0", "-1", "1001", "1e3", "1.0", "+1", "%201", "0x1", "%D9%A3", "9" * 30, "a", "%00", "1&limit=1")
    cursors = ("x", "", "%00", "0", "%FF", "'", "a" * 1000)
    for name, wrong in (("limit", numbers), ("after", cursors)):
        for value in wrong:
            for target, user in (("/me/files", "alice"), ("/admin/usage", "root")):
                yield Bad("GET", f"{target}?{name}={value}", 422, "invalid-request", names=name, user=user)
    for name, values in (
        ("sort", ("", "password", "user_id;", "USER_ID", "1", "%00")),
        ("order", ("", "up", "DESC", "desc,asc", "%00")),
        ("format", ("", "xml", "CSV", "json,csv", "%00")),
    ):
        for value in values:
            target = f"/admin/usage?{name}={value}"
            yield Bad("GET", target, 422, "invalid-request", names=name, user="root")
    for name in ("sort=user_id", "order=asc", "q=a", "format=csv", "after=x"):
        target = f"/admin/usage?{name}&{name}"
        yield Bad("GET", target, 422, "invalid-request", names=name.partition("=")[0], user="root")
    for name in ("prefix=a", "after=a", "q=a"):
        yield Bad("GET", f"/me/files?{name}&{name}", 422, "invalid-request", names=name.partition("=")[0])
    for method, more in BY_MD5:
        yield Bad(method, f"/files/{{md5}}{more}?id=a&id=b", 422, "invalid-request", names="id")
        yield Bad(method, f"/files/{{md5}}{more}?id={'a' * 65}", 422, "invalid-request", names="id")
        yield Bad(method, f"/files/{{md5}}{more}?id={ZEROS}", 410, "upload-gone")


def bad_whole_files() -> Iterator[Bad]:
    """What stands in the query of files that come whole, and archives that are none."""
    for value in ("", "Keep", "keep,fail", "%00", "1", "null"):
        for method, target in (*WHOLE, ("POST", "/files/batch?to=a")):
            yield Bad(method, f"{target}&if_exists={value}", 422, "invalid-request", b"x", names="if_exists")
    for method, target in WHOLE:
        for value in (
            "",
            "now",
            "2026",
            "2026-01-01",
            "2026-01-01T00:00:00",
            "0",
            "0001-01-01T00:00:00%2B14:00",
            "2026-13-01T00:00:00Z",
            "2026-01-01T12:00:60Z",
            "%00",
        ):
            yield Bad(method, f"{target}&modified_at={value}", 422, "invalid-request", b"x", names="modified_at")
        for value in ("", "x", "0" * 63, "0" * 65, "%D9%A0" * 64, "0" * 64 + "%0A", "%20" + "0" * 63):
            yield Bad(method, f"{target}&sha256={value}", 422, "invalid-request", b"x", names="sha256")
        yield Bad(method, f"{target}&name=b", 422, "invalid-request", b"x", names="name")
        for name in ("", "name=", "name=%2Fa", "name=a%2F", "name=..", "name=a%5Cb", "name=%00", "name=" + "a" * 256):
            yield Bad(method, f"{target.partition('?')[0]}?{name}", 422, "invalid-request", b"x", names="name")
        yield Bad(method, target, 415, "unsupported-media-type", b"x", ("Content-Encoding: gzip",))
    for folder in ("%2Fa", "a%2F%2Fb", "..", ".", "%00", "a%5Cb", "a" * 256, "a&to=b"):
        yield Bad("POST", f"/files/batch?to={folder}", 422, "invalid-request", bytes(1024), names="to")
    blocks = (bytes(512), bytes(1023), bytes(512) + b"x" * 512, bytes(1024) + b"x")
    for content in (b"", b"x", *blocks, gzip.compress(b"", mtime=0)):
        yield Bad("POST", "/files/batch", 422, "invalid-archive", content)


def bad_users() -> Iterator[Bad]:
    user_ids = ("a%20b", "%20", "%00", "a%0Ab", "%09", "%E2%80%A8", "%E2%80%AE", "%C2%A0", "a" * 256, "%C3%A9" * 128)
    for user_id in user_ids:
        target, body = f"/admin/users/{user_id}", b'{"total_space": 1}'
        yield Bad("PUT", target, 422, "invalid-request", body, names="user_id", user="root")


def bad_headers() -> Iterator[Bad]:
    body = b'{"name": "a", "size": 1}'
    for keys in (*((key,) for key in ("", "a b", "é", "a" * 129, "\t")), ("a", "a")):
        headers = tuple(f"Idempotency-Key: {key}" for key in keys)
        yield Bad("POST", "/uploads", 422, "invalid-request", body, headers, names="Idempotency-Key")
    chunk = bytes(65536)
    good = base64.b64encode(bytes(16)).decode()
    for place in ("/files/{md5}", "/uploads/{id}"):
        target = f"{place}/chunks/0"
        for coding in ("gzip", "br", "deflate", "identity, gzip", "x", "GZIP"):
            yield Bad("PUT", target, 415, "unsupported-media-type", chunk, (f"Content-Encoding: {coding}",))
        both = ("Content-Encoding: identity", "Content-Encoding: gzip")
        yield Bad("PUT", target, 415, "unsupported-media-type", chunk, both)
        for digest in ("x", "", "====", good, good[:-4], good + "AAAA", "AA" * 16, "é", f" {good} {good}"):
            yield Bad("PUT", target, 422, "digest-mismatch", chunk, (f"Content-MD5: {digest}",))
        for digest in (
            *("md5", "md5=", "md5=::", f"md5={good}", f"md5=:{good}", f"md5=:{good}:", "md5=:x:", "sha-256=:AAAA:"),
            *("sha-256=1", "=:AAAA:", ",", "md5=:AAAA:;x, md5", f"sha-256=:{base64.b64encode(bytes(32)).decode()}:"),
        ):
            yield Bad("PUT", target, 422, "digest-mismatch", chunk, (f"Content-Digest: {digest}",))
        differing = (f"Content-MD5: {good}", f"Content-MD5: {base64.b64encode(bytes([1] * 16)).decode()}")
        yield Bad("PUT", target, 422, "digest-mismatch", chunk, differing)
        for length in (0, 1, 65535, 65537):
            yield Bad("PUT", target, 422, "chunk-length-mismatch", bytes(length))
    for ranges in ("bytes=-0", "bytes=102400-", "bytes=102400-102401", "bytes=" + ",".join(["0-0"] * 101)):
        header = (f"Range: {ranges}",)
        yield Bad("GET", "/me/files/{file}/content", 416, "range-not-satisfiable", headers=header)
    for authorization in ("", "Bearer", "Bearer ", "Basic YTpi", "Bearer x", "Bearer a b", "token", "Bearer \xff"):
        header = (f"Authorization: {authorization}",)
        for method, target in (("GET", "/me/usage"), ("PUT", "/files/{md5}/chunks/0"), ("GET", "/admin/usage")):
            yield Bad(method, target, 401, "unauthenticated", headers=header, user=None)


def bad_callers() -> Iterator[Bad]:
    """Everything that needs a token or an administrator."""
    for method, target, body in JSON_ENDPOINTS:
        yield Bad(method, target, 401, "unauthenticated", json.dumps(body).encode(), user=None)
    for method, target in (
        *(("GET", "/uploads"), ("GET", "/me/files"), ("GET", "/me/usage"), ("GET", "/admin/usage")),
        *((method, f"/files/{{md5}}{more}") for method, more in BY_MD5),
        *((method, f"/uploads/{{id}}{more}") for method, more in BY_MD5),
        *((method, f"/me/files/{{file}}{more}") for method, more in (("GET", ""), ("DELETE", ""), ("GET", "/content"))),
    ):
        yield Bad(method, target, 401, "unauthenticated", user=None)
    yield Bad("GET", "/admin/usage", 403, "forbidden")
    yield Bad("PUT", "/admin/users/bob", 403, "forbidden", b'{"total_space": 1}')
    elsewhere = """
        PATCH /livez POST /me/usage PUT /me/files OPTIONS /files/{md5} GET /files/{md5}/chunks/0 GET /files/status
        TRACE /uploads DELETE /uploads PUT /uploads/{id} POST /uploads/{id} GET /files/{md5}/proof POST /openapi.json
        PROPFIND /uploads LOCK /uploads/{id} DELETE /me/files/{file}/content
    """
    for method, target in zip(elsewhere.split()[::2], elsewhere.split()[1::2], strict=True):
        yield Bad(method, target, 405, "method-not-allowed")


# What only raw bytes can say. `{token}` is alice's.

_HEAD = b"PUT /files/{md5}/chunks/0 HTTP/1.1\r\nHost: a\r\nAuthorization: {token}\r\n"
_GET = b"GET /me/usage HTTP/1.1\r\nHost: a\r\nAuthorization: {token}\r\n"


def bad_bytes() -> Iterator[Bad]:
    lengths = [*b"-1 +3 3,3 0x3 1e3 3.0 3; three".split(), b"", b"3, 3", b"3 3", b"9" * 30, "٣".encode()]
    codings = (
        b"gzip, chunked",
        b"gzip",
        b"identity",
        b"xchunked",
        b"",
        b"chunked, chunked",
        b"chunked;q=1",
        b"chunked, x",
    )
    bodies = (b"-3\r\nabc", b"fffffffffffffffff\r\nabc", b"3\nabc\n0\n\n", b"3\r\nabcd\r\n", b"g\r\n", b"\r\n")
    fields = (
        b" folded: 3",
        b"X: a\r\n b",
        b"X: a\0b",
        b"X: a\rb",
        b"X\xe9: a",
        b": a",
        b"NoColon",
        b"X y: a",
        b"Host: b",
    )
    versions = (b"HTTP/2.0", b"HTTP/1.2", b"HTTP/3", b"http/1.1", b"HTTP/1.1 x", b"HTTP/1.", b"FTP/1.1")
    methods = (b"get", b"FOO", b"G\0T", b"GET\t", b"\xff", b"G ET")
    targets = (b"/\xc3\xa9", b"/\0", b"/a b", b"me/usage", b"http://a", b"a:80", b"?x", b"/\x7f", b"\\me")
    chunked = b"Transfer-Encoding: chunked\r\n"
    heads = [
        *(_HEAD + b"Content-Length: %s\r\n\r\nabc" % length for length in lengths),
        *(_HEAD + b"Transfer-Encoding: %s\r\n\r\n3\r\nabc\r\n0\r\n\r\n" % coding for coding in codings),
        _HEAD + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        _HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        _HEAD + b"Content-Length: 3\r\n" + chunked + b"\r\n3\r\nabc\r\n0\r\n\r\n",
        _HEAD + chunked + b"Content-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        _HEAD + chunked + chunked + b"\r\n3\r\nabc\r\n0\r\n\r\n",
        _HEAD.replace(b"1.1", b"1.0") + chunked + b"\r\n3\r\nabc\r\n0\r\n\r\n",
        *(_HEAD + chunked + b"\r\n%s" % body for body in bodies),
        _HEAD + b"Content-Length : 3\r\n\r\nabc",
        *(_GET + b"%s\r\n\r\n" % field for field in fields),
        b"GET /me/usage HTTP/1.1\r\nAuthorization: {token}\r\n\r\n",
        b"GET /me/usage HTTP/1.1\nHost: a\n\n",
        *(b"GET /me/usage %s\r\nHost: a\r\n\r\n" % version for version in versions),
        b"GET /me/usage\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        *(b"%s /me/usage HTTP/1.1\r\nHost: a\r\n\r\n" % method for method in methods),
        *(b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n" % target for target in targets),
        b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\0" * 100,
    ]
    for raw in heads:
        yield Bad("RAW", "", 400, "bad-request", raw=raw)
    long, many = b"a" * 9000, b"".join(b"X-%d: a\r\n" % number for number in range(200))
    for target in (b"/" + long, b"/me/files?prefix=" + long):
        yield Bad("RAW", "", 414, "target-too-long", raw=b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n" % target)
    for rest in (many, b"X: %s\r\n" % (b"a" * 40_000), b"%s: a\r\n" % (b"a" * 40_000), b"X: %s" % (b"a" * 200_000)):
        yield Bad("RAW", "", 431, "headers-too-large", raw=_GET + rest + (b"\r\n" if rest.endswith(b"\n") else b""))


def bad_inputs() -> dict[str, list[Bad]]:
    """All of them, by kind."""
    kinds = (
        *(bad_fields, bad_json, bad_paths, bad_slashes, bad_queries, bad_users, bad_whole_files),
        *(bad_headers, bad_callers, bad_bytes),
    )
    return {kind.__name__: list(kind()) for kind in kinds}
