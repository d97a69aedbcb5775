"""What browsers are told: which pages may call, and what no page may do with an answer."""

import httpx2

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.problems import problem
from tests.support.stack import Stack
from uploader.http.native.download import disposition
from uploader.http.shared.exchange import SECURITY_HEADERS

APP, OTHER = "https://app.example", "https://evil.example"
CONTENT = Content(100 * KIB)
URL = f"/files/{CONTENT.md5}"
PREFLIGHT = {
    "Access-Control-Request-Method": "PUT",
    "Access-Control-Request-Headers": "authorization,content-digest,content-type",
}


def cors_headers(response: httpx2.Response) -> set[str]:
    return {name for name in response.headers if name.startswith("access-control-")}


async def preflight(stack: Stack, origin: str, path: str = f"{URL}/chunks/0") -> httpx2.Response:
    return await stack.anonymous().options(path, headers={"Origin": origin, **PREFLIGHT})


async def test_no_page_may_call_by_default(stack: Stack) -> None:
    problem(await preflight(stack, APP), 405, "method-not-allowed")
    for path in ("/config", "/me/usage", "/nothing"):
        response = await stack.client.get(path, headers={"Origin": APP})
        assert cors_headers(response) == set()
        assert "vary" not in response.headers


async def test_a_page_of_an_allowed_origin_may_call_and_no_other(make_stack: MakeStack) -> None:
    async with make_stack(cors_origins=(APP, "http://localhost:5173")) as stack:
        allowed = await preflight(stack, APP)
        assert (allowed.status_code, allowed.content) == (204, b"")
        headers = allowed.headers
        assert headers["access-control-allow-origin"] == APP
        assert "Origin" in headers["vary"]
        methods = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"}
        assert set(headers["access-control-allow-methods"].split(", ")) >= methods
        assert set(headers["access-control-allow-headers"].lower().split(", ")) >= {
            *("authorization", "content-type", "content-digest", "content-md5", "idempotency-key"),
            *("if-match", "if-none-match", "if-range", "range", "x-request-id"),
        }
        assert int(headers["access-control-max-age"]) > 0
        assert "access-control-allow-credentials" not in headers
        # A plain question is none before a call.
        problem(await stack.anonymous().options(URL, headers={"Origin": APP}), 405, "method-not-allowed")
        for origin in (OTHER, f"{APP}.evil.example", APP.upper(), f"{APP}:444", "http://app.example", "null", ""):
            refused = await preflight(stack, origin)
            problem(refused, 405, "method-not-allowed")
            assert cors_headers(refused) == set()
            assert "Origin" in refused.headers["vary"]


async def test_every_answer_to_an_allowed_page_can_be_read_errors_too(make_stack: MakeStack) -> None:
    async with make_stack(cors_origins=(APP,)) as stack:
        file = (await stack.upload(CONTENT)).json()["file"]
        for client, path, status in (
            (stack.client, "/me/usage", 200),
            (stack.client, f"/me/files/{file['id']}/content", 200),
            (stack.anonymous(), "/me/usage", 401),
            (stack.client, "/nothing", 404),
            (stack.client, "/files/zzz", 422),
        ):
            response = await client.get(path, headers={"Origin": APP})
            assert response.status_code == status
            assert response.headers["access-control-allow-origin"] == APP
            exposed = set(response.headers["access-control-expose-headers"].lower().split(", "))
            assert exposed >= {
                *("location", "retry-after", "etag", "x-request-id", "content-range", "content-disposition"),
                *("repr-digest", "accept-ranges", "content-length"),
            }
            stranger = await client.get(path, headers={"Origin": OTHER})
            assert cors_headers(stranger) == set()


async def test_all_origins_may_be_allowed_because_there_are_no_cookies(make_stack: MakeStack) -> None:
    async with make_stack(cors_origins=("*",)) as stack:
        assert (await preflight(stack, OTHER)).headers["access-control-allow-origin"] == "*"
        response = await stack.client.get("/me/usage", headers={"Origin": OTHER})
        assert response.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in response.headers


async def answers(stack: Stack) -> dict[str, httpx2.Response]:
    """One of every kind."""
    file = (await stack.upload(CONTENT)).json()["file"]
    content = f"/me/files/{file['id']}/content"
    client, anonymous = stack.client, stack.anonymous()
    root = await stack.client_of("root", admin=True)
    return {
        "JSON": await client.get("/me/usage"),
        "created": await client.post("/uploads", json={"name": "a", "size": 1}),
        "no content": await client.delete(f"/me/files/{(await stack.upload(Content(9))).json()['file']['id']}"),
        "download": await client.get(content),
        "part": await client.get(content, headers={"Range": "bytes=0-1"}),
        "parts": await client.get(content, headers={"Range": "bytes=0-1,4-5"}),
        "not modified": await client.get(content, headers={"If-None-Match": "*"}),
        "not satisfiable": await client.get(content, headers={"Range": "bytes=999999-"}),
        "unauthenticated": await anonymous.get("/me/usage"),
        "forbidden": await client.get("/admin/usage"),
        "not found": await anonymous.get("/nothing"),
        "not allowed": await anonymous.put("/livez"),
        "invalid": await client.post(URL, content=b"["),
        "CSV": await root.get("/admin/usage?format=csv"),
        "page": await anonymous.get("/docs"),
        "explanation": await anonymous.get("/problems/not-found"),
        "script": await anonymous.get("/static/docs.js"),
        "web page": await anonymous.get("/"),
        "part of the web page": await anonymous.get("/static/pages/early.js"),
        "metrics": await root.get("/metrics"),
        "document": await anonymous.get("/openapi.json"),
        "health": await anonymous.get("/livez"),
    }


async def test_every_answer_has_the_security_headers(stack: Stack) -> None:
    given = await answers(stack)
    for kind, response in given.items():
        for name, value in SECURITY_HEADERS.items():
            assert name in response.headers, f"{kind} lacks {name}"
            if name not in ("Content-Security-Policy", "Cache-Control"):
                assert response.headers.get_list(name) == [value], kind
        policy = response.headers["content-security-policy"]
        assert policy.startswith(("default-src 'none'", "sandbox")), kind
        assert "unsafe-eval" not in policy
        assert "script-src 'unsafe-inline'" not in policy
        assert "server" not in response.headers
    private = ("JSON", "created", "unauthenticated", "invalid", "CSV", "metrics")
    assert {given[kind].headers["cache-control"] for kind in private} == {"no-store"}


async def test_a_download_never_renders(stack: Stack) -> None:
    for seed, name in enumerate(
        ("page.html", "image.svg", "script.js", "x.pdf", 'a".html', "a;b=c.html", "dir/ünï 文")
    ):
        content = Content(100 * KIB, seed=seed, name=name)
        file = (await stack.upload(content)).json()["file"]
        path = f"/me/files/{file['id']}/content"
        known = {"If-None-Match": f'"{content.sha256}"'}
        for asked in ({}, {"Range": "bytes=0-9"}, {"Range": "bytes=0-9,20-29"}, known):
            response = await stack.client.get(path, headers={**asked, "Accept": "text/html"})
            assert response.headers["content-disposition"] == disposition(name)
            assert response.headers["content-security-policy"] == "sandbox"
            assert response.headers["x-content-type-options"] == "nosniff"
            kind = response.headers.get("content-type", "application/octet-stream")
            assert kind.startswith(("application/octet-stream", "multipart/byteranges"))
        assert (await stack.client.head(path)).headers["content-disposition"] == disposition(name)
