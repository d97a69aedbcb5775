"""The handlers for those who run the server or write a client for it: health, metrics, configuration, documents."""

from dataclasses import dataclass

from msgspec import UNSET
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import HTMLResponse, Response

from uploader.domain.upload import MAX_CHUNK_COUNT
from uploader.http.ops import schemas
from uploader.http.shared.operation import Call
from uploader.http.shared.problem import explain
from uploader.http.shared.responses import Json
from uploader.observability import Exposition
from uploader.service.health import Gauges, Health
from uploader.service.open import Openings
from uploader.settings import Settings

_DOCS = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>uploader: the HTTP API</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="/static/swagger-ui/swagger-ui.css"></head>
<body><div id="swagger-ui"></div>
<script src="/static/swagger-ui/swagger-ui-bundle.js"></script><script src="/static/docs.js"></script></body></html>
"""
# Swagger UI sets styles from its script, and shows its icons from data URLs.
_DOCS_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'"
)


@dataclass(frozen=True, slots=True)
class OpsHandlers:
    """What is open to everybody."""

    settings: Settings
    openings: Openings
    health: Health
    gauges: Gauges
    exposition: Exposition

    async def live(self, _call: Call) -> Response:
        return Json(schemas.HealthSchema({"process": schemas.Check(True)}))

    async def ready(self, _call: Call) -> Response:
        checks = {name: schemas.Check(found.ok, found.reason) for name, found in (await self.health.check()).items()}
        ok = all(check.ok for check in checks.values())
        return Json(schemas.HealthSchema(checks), 200 if ok else 503, {} if ok else {"Retry-After": "2"})

    async def metrics(self, _call: Call) -> Response:
        await self.gauges.observe()
        return Response(await self.exposition.render(), media_type=CONTENT_TYPE_LATEST)

    async def config(self, _call: Call) -> Response:
        sizes = self.openings.chunk_sizes
        return Json(
            schemas.ClientConfig(
                chunk_size=schemas.ChunkSizeBounds(sizes.default, sizes.minimum, sizes.maximum),
                max_file_size=self.openings.max_file_size_bytes,
                max_chunks=MAX_CHUNK_COUNT,
                instant=self.settings.instant,
                upload_expiry_seconds=self.settings.upload_expiry_seconds,
                link_lifetime_seconds=self.settings.link_lifetime_seconds,
                auth=UNSET if self.settings.auth == "token" else self.settings.auth,
            )
        )

    async def docs(self, _call: Call) -> Response:
        return HTMLResponse(_DOCS, headers={"Content-Security-Policy": _DOCS_POLICY})

    async def explain_problem(self, call: Call) -> Response:
        return await explain(call.request)
