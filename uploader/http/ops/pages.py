"""The web pages and everything they load, as static files from the package. Makes no page and knows no user."""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

import uploader
from uploader.errors import NotFound
from uploader.http.shared.operation import Call
from uploader.settings import Settings

_STATIC = Path(uploader.__file__).parent / "web"
_KINDS = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".ts": "text/plain",
}
# What is there without the pages for people: the documentation, and the client of other pages.
_ALWAYS = ("docs.js", "swagger-ui/", "pages/client/", "vendor/hash-wasm/")

CLIENT = "client.js"
CLIENT_TYPES = "client.d.ts"

# No inline script, no inline style, nothing from elsewhere, and no other page around it.
_OWN = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; worker-src 'self'"
_NOWHERE = "base-uri 'none'; frame-ancestors 'none'"
PAGE_POLICY = f"{_OWN}; form-action 'none'; {_NOWHERE}"
# The page of files shows films and PDF, and posts what is selected to where its archive comes from.
HOME_POLICY = f"{_OWN}; media-src 'self'; frame-src 'self'; form-action 'self'; {_NOWHERE}"
# A worker has a policy of its own: the one that hashes compiles WebAssembly, and talks to nobody.
_WORKER = "pages/client/hash-worker.js"
_WORKER_POLICY = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'"


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that is served as it is."""

    content: bytes
    media_type: str
    etag: str


@cache
def _assets() -> dict[str, Path]:
    """The files that may be asked for, by name: they are few and known, so no path can lead elsewhere."""
    return {path.relative_to(_STATIC).as_posix(): path for path in _STATIC.rglob("*") if path.suffix in _KINDS}


@cache
def _read(name: str) -> Asset:
    path = _assets()[name]
    content = path.read_bytes()
    return Asset(content, _KINDS[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')


@dataclass(frozen=True, slots=True)
class PageHandlers:
    """The page at `/`, the one at `/admin/`, the client at `/client.js`, and their parts. The pages can be switched off."""

    settings: Settings

    async def home(self, call: Call) -> Response:
        if not self.settings.web_pages:
            return RedirectResponse("/docs")
        return await _answer(call.request, "pages/home/index.html", HOME_POLICY)

    async def administration(self, call: Call) -> Response:
        if not self.settings.web_pages:
            raise NotFound()
        return await _answer(call.request, "pages/admin/index.html", PAGE_POLICY)

    async def client(self, call: Call) -> Response:
        return await _answer(call.request, CLIENT, PAGE_POLICY)

    async def client_types(self, call: Call) -> Response:
        return await _answer(call.request, CLIENT_TYPES, PAGE_POLICY)

    async def part(self, call: Call) -> Response:
        name = call.request.path_params["path"]
        if name not in _assets() or name.endswith(".html") or name in (CLIENT, CLIENT_TYPES):
            raise NotFound()
        if not self.settings.web_pages and not name.startswith(_ALWAYS):
            raise NotFound()
        return await _answer(call.request, name, _WORKER_POLICY if name == _WORKER else PAGE_POLICY)


async def _answer(request: Request, name: str, policy: str) -> Response:
    """The file, or 304: browsers ask each time whether theirs is still the one, so an upgrade shows at once."""
    asset = await run_sync(_read, name)
    headers = {"Cache-Control": "no-cache", "ETag": asset.etag, "Content-Security-Policy": policy}
    if asset.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(asset.content, media_type=asset.media_type, headers=headers)
