"""Bad headers, callers and bytes, each with the answer it has to get; and all bad inputs together."""

import base64
import json
from collections.abc import Iterator

from tests.integration.bad_inputs import (
    BY_MD5,
    JSON_ENDPOINTS,
    Bad,
    bad_fields,
    bad_json,
    bad_paths,
    bad_queries,
    bad_slashes,
    bad_users,
    bad_whole_files,
)

# Headers


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
