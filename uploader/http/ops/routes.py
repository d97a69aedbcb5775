"""The routes of those who run the server or write a client for it, and of the web pages."""

from collections.abc import Awaitable, Callable

from starlette.responses import Response

from uploader.http.ops import schemas
from uploader.http.ops.handlers import OpsHandlers
from uploader.http.ops.pages import PageHandlers
from uploader.http.shared.operation import Call, Operation
from uploader.settings import Settings


def open_operations(handlers: OpsHandlers, settings: Settings) -> list[Operation]:
    """What needs no token."""
    get = _open_get
    metrics_access = "open" if settings.metrics == "open" else "metrics"
    return [
        get("/livez", handlers.live, "Whether the process lives", responses={200: schemas.HealthSchema}),
        get(
            "/readyz",
            handlers.ready,
            "Whether it can serve",
            responses={200: schemas.HealthSchema, 503: schemas.HealthSchema},
        ),
        get("/metrics", handlers.metrics, "Prometheus metrics", access=metrics_access),
        get("/config", handlers.config, "What a client needs to know", responses={200: schemas.ClientConfig}),
        get("/docs", handlers.docs, "This documentation"),
        get("/problems/{code}", handlers.explain_problem, "What an error means", problems=("not-found",)),
    ]


def page_operations(handlers: PageHandlers) -> list[Operation]:
    """What browsers show."""
    return [
        _open_get("/", handlers.home, "The web page", responses={200: None, 307: None}),
        _open_get("/admin/", handlers.administration, "The administrators' web page", problems=("not-found",)),
        _open_get("/client.js", handlers.client, "The client of the web page, for other pages"),
        _open_get("/client.d.ts", handlers.client_types, "Its types"),
        _open_get("/static/{path:path}", handlers.part, "Parts of the pages", problems=("not-found",)),
    ]


def _open_get(path: str, handler: Callable[[Call], Awaitable[Response]], summary: str, **more: object) -> Operation:
    fields = {"access": "open", "tag": "operations", "responses": {200: None}, **more}
    return Operation(method="GET", path=path, handler=handler, summary=summary, **fields)  # type: ignore[arg-type]
