"""Bad bodies, paths and queries over all endpoints, each with the answer it has to get.

In targets and bodies `{md5}` and `{id}` are an open upload of two chunks, `{file}` is a file, all of them alice's.
"""

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
            (b"{}", first),
            (b"{" + good[1:-1] + b", " + good[1:], first),
            *((good[:-1] + b', "%s": {}}' % name.encode(), name) for name in ("more", "__proto__", first.upper())),
            (b'{"more": ' + b"[" * 50_000, "more"),
            (b'{"a":' * 50_000, "a"),
        ]
        for content, blamed in shapes:
            yield Bad(method, target, 422, "invalid-request", content, names=blamed, user=_user_of(target))


# Paths

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
    for name, values in (("limit", numbers), ("after", cursors)):
        for value in values:
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
        for value in ("", "now", "2026", "2026-01-01", "2026-01-01T00:00:00", "0", "2026-13-01T00:00:00Z", "%00"):
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
