"""Health, metrics, configuration and documentation, and the static files of the web pages. Changes nothing, renders no page,
and knows no users.
"""

import gzip
import hashlib
import re
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from anyio.to_thread import run_sync
from msgspec import UNSET, Struct, UnsetType
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

import uploader
from uploader.diagnosis.health import Gauges, Health
from uploader.domain.upload import MAX_CHUNK_COUNT
from uploader.errors import NotFound
from uploader.http.shared.exchange import UNREADY_STATE
from uploader.http.shared.mount import mount_of_request
from uploader.http.shared.operation import Call, Operation, operations_of, public_path
from uploader.http.shared.problem import explain
from uploader.http.shared.responses import Json, is_not_modified
from uploader.runtime.observability import Exposition
from uploader.service.open import Openings
from uploader.settings import Settings

_STATIC = Path(uploader.__file__).parent / "web"
_KINDS = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".svg": "image/svg+xml",
    ".ts": "text/plain",
}
# Served even without the web pages: the documentation, and the client and the element for other sites.
_ALWAYS = (
    *("docs.js", "swagger-ui/", "pages/client/", "pages/drop/", "vendor/hash-wasm/"),
    *(f"pages/{name}.js" for name in ("dom", "format", "i18n", "problems", "words")),
)

CLIENT, CLIENT_TYPES = "client.js", "client.d.ts"
DROP, DROP_TYPES = "drop.js", "drop.d.ts"
# Files with an address of their own, for other sites.
_OF_OTHERS = (CLIENT, CLIENT_TYPES, DROP, DROP_TYPES)

# No inline scripts or styles, nothing from other hosts, no framing.
_OWN = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; worker-src 'self'"
_NOWHERE = "base-uri 'none'; frame-ancestors 'none'"
PAGE_POLICY = f"{_OWN}; form-action 'none'; {_NOWHERE}"
# The page of files shows videos and PDF, and posts a selection to get an archive.
HOME_POLICY = f"{_OWN}; media-src 'self'; frame-src 'self'; form-action 'self'; {_NOWHERE}"
# A link's page shows videos and PDF, too, but posts nothing.
LINK_POLICY = f"{_OWN}; media-src 'self'; frame-src 'self'; form-action 'none'; {_NOWHERE}"
# Whole-line comments, comments after code (unless they contain a quote), and indentation: a fifth of the size of a page's
# scripts.
_COMMENTS = re.compile(
    rb"^[ \t]*(?:/\*.*?\*/[ \t]*\n|//[^\n]*\n)|^[ \t]+|[ \t]+//[^\"'`\n]*$", re.MULTILINE | re.DOTALL
)
# Workers have policies of their own. The hash worker compiles WebAssembly and makes no requests.
_WORKER = "pages/client/hash-worker.js"
_WORKER_POLICY = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'"

# Addresses begin with a slash, and `_below_prefix` puts the prefix before it.
_DOCS = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>uploader: the HTTP API</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="/static/swagger-ui/swagger-ui.css"></head>
<body><div id="swagger-ui"></div>
<script src="/static/swagger-ui/swagger-ui-bundle.js"></script><script src="/static/docs.js"></script></body></html>
"""
# Swagger UI sets styles from scripts, and shows icons from data URLs.
_DOCS_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'"
)


_open = partial(Operation, tag="operations", access="open")


class ChunkSizeBounds(Struct):
    """Chunk sizes, in bytes."""

    default: int
    min: int
    max: int


class ClientConfig(Struct):
    """Facts for clients. `auth` is present unless callers show tokens of this server: `jwt` or `none`. `trash` is present,
    and false, if deleted files cannot be restored."""

    chunk_size: ChunkSizeBounds
    max_file_size: int
    max_append_size: int | None
    max_chunks: int
    max_files: int
    instant: str
    upload_expiry_seconds: float
    link_lifetime_seconds: float
    links: bool
    public_url: str | None
    auth: str | UnsetType = UNSET
    trash: bool | UnsetType = UNSET


class Check(Struct):
    """The health of one thing that the server depends on."""

    ok: bool
    reason: str | None = None


class HealthSchema(Struct):
    """All checks."""

    checks: dict[str, Check]


_MOST_PACKED_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Asset:
    content: bytes
    packed: bytes | None  # gzip
    media_type: str
    etag: str


@cache
def _assets() -> dict[str, Path]:
    """List the files that may be served. A request cannot reach any other path."""
    return {path.relative_to(_STATIC).as_posix(): path for path in _STATIC.rglob("*") if path.suffix in _KINDS}


@cache
def _read(name: str) -> Asset:
    path = _assets()[name]
    content = path.read_bytes()
    if name.startswith("pages/") and path.suffix == ".js":
        content = _COMMENTS.sub(b"", content)
    return _asset(content, _KINDS[path.suffix], packs=len(content) < _MOST_PACKED_BYTES)


def _asset(content: bytes, media_type: str, *, packs: bool) -> Asset:
    """`packs`: large files are served unpacked, because packing them takes a tenth of a second."""
    packed = gzip.compress(content, mtime=0) if packs else None
    return Asset(content, packed, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def _below_prefix(page: bytes) -> bytes:
    return re.sub(rb'( (?:href|src)=")/', rb"\1" + public_path("/").encode(), page)


@dataclass(frozen=True, slots=True)
class PageHandlers:
    """Serves `/`, `/admin/`, `/client.js`, `/drop.js` and their files. The pages can be switched off."""

    settings: Settings

    @_open("GET /", "The web page", responses={200: None, 307: None}, media_types=("text/html",))
    async def home(self, call: Call) -> Response:
        if not self.settings.web_pages:
            return RedirectResponse(public_path("/docs"))
        return await _answer(call.request, "pages/home/index.html", HOME_POLICY)

    @_open("GET /admin/", "The administrators' web page", problems=("not-found",), media_types=("text/html",))
    async def administration(self, call: Call) -> Response:
        if not self.settings.web_pages:
            raise NotFound()
        return await _answer(call.request, "pages/admin/index.html", PAGE_POLICY)

    @_open("GET /client.js", "The client of the web page, for other pages", media_types=("text/javascript",))
    async def client(self, call: Call) -> Response:
        return await _answer(call.request, CLIENT, PAGE_POLICY)

    @_open("GET /client.d.ts", "Its types", media_types=("text/plain",))
    async def client_types(self, call: Call) -> Response:
        return await _answer(call.request, CLIENT_TYPES, PAGE_POLICY)

    @_open("GET /drop.js", "The element <uploader-drop>, for other pages", media_types=("text/javascript",))
    async def drop(self, call: Call) -> Response:
        return await _answer(call.request, DROP, PAGE_POLICY)

    @_open("GET /drop.d.ts", "Its types", media_types=("text/plain",))
    async def drop_types(self, call: Call) -> Response:
        return await _answer(call.request, DROP_TYPES, PAGE_POLICY)

    @_open("GET /static/{path:path}", "Parts of the pages", problems=("not-found",))
    async def part(self, call: Call) -> Response:
        name = call.in_path("path")
        if name not in _assets() or name.endswith(".html") or name in _OF_OTHERS:
            raise NotFound()
        if not self.settings.web_pages and not name.startswith(_ALWAYS):
            raise NotFound()
        return await _answer(call.request, name, _WORKER_POLICY if name == _WORKER else PAGE_POLICY)


async def _answer(request: Request, name: str, policy: str, status: int = 200) -> Response:
    """Serve a file, with 304 for a browser's valid copy. Browsers revalidate each time and thus see upgrades at once."""
    asset = await run_sync(_read, name)
    if name.endswith(".html") and mount_of_request.get().prefix:
        asset = _asset(_below_prefix(asset.content), asset.media_type, packs=False)
    headers = {"Cache-Control": "no-cache", "Content-Security-Policy": policy, "Vary": "Accept-Encoding"}
    content, etag = asset.content, asset.etag
    if asset.packed is not None and _takes_gzip(request):
        content, etag = asset.packed, f'{etag[:-1]}-gzip"'
        headers["Content-Encoding"] = "gzip"
    headers["ETag"] = etag
    if status == 200 and is_not_modified(request, etag):
        headers.pop("Content-Encoding", None)
        return Response(status_code=304, headers=headers)
    return Response(content, status, media_type=asset.media_type, headers=headers)


def _takes_gzip(request: Request) -> bool:
    """Return True if the client accepts gzip (a weight of 0 refuses it)."""
    named = [each.replace(" ", "") for each in request.headers.get("accept-encoding", "").lower().split(",")]
    return any(each == "gzip" or (each.startswith("gzip;q=") and each[7:].strip("0.")) for each in named)


async def answer_link_page(request: Request, status: int) -> Response:
    """Answer with the page for visitors of a link. All links have the same page; its script loads the details."""
    response = await _answer(request, "pages/link/index.html", LINK_POLICY, status)
    response.headers.add_vary_header("Accept")
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["X-Robots-Tag"] = "noindex"
    return response


@dataclass(frozen=True, slots=True)
class OpsHandlers:
    settings: Settings
    openings: Openings
    health: Health
    gauges: Gauges
    exposition: Exposition

    @_open("GET /livez", "Whether the process lives", responses={200: HealthSchema})
    async def live(self, _call: Call) -> Response:
        return Json(HealthSchema({"process": Check(True)}))

    @_open("GET /readyz", "Whether it can serve", responses={200: HealthSchema, 503: HealthSchema})
    async def ready(self, call: Call) -> Response:
        if (reason := call.request.scope.get("state", {}).get(UNREADY_STATE)) is not None:
            return Json(HealthSchema({"process": Check(False, reason)}), 503, {"Retry-After": "2"})
        checks = {name: Check(found.ok, found.reason) for name, found in (await self.health.check()).items()}
        ok = all(check.ok for check in checks.values())
        return Json(HealthSchema(checks), 200 if ok else 503, {} if ok else {"Retry-After": "2"})

    @_open("GET /metrics", "Prometheus metrics", access="metrics", media_types=("text/plain",))
    async def metrics(self, _call: Call) -> Response:
        await self.gauges.observe()
        return Response(await self.exposition.render(), media_type=CONTENT_TYPE_LATEST)

    @_open("GET /config", "What a client needs to know", responses={200: ClientConfig})
    async def config(self, _call: Call) -> Response:
        sizes = self.openings.chunk_sizes
        return Json(
            ClientConfig(
                chunk_size=ChunkSizeBounds(sizes.default, sizes.minimum, sizes.maximum),
                max_file_size=self.openings.max_file_size_bytes,
                max_append_size=self.settings.max_append_size_bytes,
                max_chunks=MAX_CHUNK_COUNT,
                max_files=self.settings.max_files,
                instant=self.settings.instant,
                upload_expiry_seconds=self.settings.upload_expiry_seconds,
                link_lifetime_seconds=self.settings.link_lifetime_seconds,
                links=self.settings.links == "on",
                public_url=self.settings.public_url,
                auth=UNSET if self.settings.auth == "token" else self.settings.auth,
                trash=UNSET if self.settings.trash_retention_seconds else False,
            )
        )

    @_open("GET /docs", "This documentation", media_types=("text/html",))
    async def docs(self, _call: Call) -> Response:
        return HTMLResponse(_below_prefix(_DOCS), headers={"Content-Security-Policy": _DOCS_POLICY})

    @_open("GET /problems/{code}", "What an error means", problems=("not-found",), media_types=("text/html",))
    async def explain_problem(self, call: Call) -> Response:
        return await explain(call.request)


def ops_operations(handlers: OpsHandlers, pages: PageHandlers, settings: Settings) -> list[Operation]:
    found = operations_of(handlers, pages)
    if settings.metrics != "open":
        return found
    return [replace(each, access="open") if each.access == "metrics" else each for each in found]
