"""Services → the HTTP application, and how uvicorn is to serve it."""

import asyncio
import logging
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, closing
from typing import TYPE_CHECKING, Any

from uploader.bootstrap.reloading import certificate_in_force
from uploader.bootstrap.running import running
from uploader.bootstrap.services import Services, create_services
from uploader.clock import Clock
from uploader.cores import run_anywhere, share_a_core
from uploader.embedded import end_with_parent
from uploader.http.admin.events import EventHandlers
from uploader.http.admin.handlers import AdminHandlers
from uploader.http.admin.routes import admin_operations
from uploader.http.admin.tokens import TokenHandlers
from uploader.http.admin.trail import TrailHandlers
from uploader.http.app import Application, Lifespan
from uploader.http.auth.at_once import AtOnce
from uploader.http.auth.authenticator import Authenticator
from uploader.http.auth.origins import Origins
from uploader.http.auth.proxies import Proxies
from uploader.http.bodies.intake import Intake
from uploader.http.native import file_routes
from uploader.http.native import routes as native
from uploader.http.native.files import FileHandlers
from uploader.http.native.selections import SelectionHandlers
from uploader.http.native.uploads import UploadHandlers
from uploader.http.native.whole import WholeHandlers
from uploader.http.ops import routes as ops
from uploader.http.ops.handlers import OpsHandlers
from uploader.http.ops.pages import PageHandlers
from uploader.http.resumable.dialect import ResumableDialect
from uploader.http.resumable.routes import resumable_operations
from uploader.http.resumable.rufh.dialect import RufhDialect
from uploader.http.resumable.rufh.handlers import RufhHandlers
from uploader.http.resumable.tus import TusDialect, TusHandlers
from uploader.http.resumable.wholes import TusWholes
from uploader.http.server.allocation import collect_seldom, keep_freed_memory
from uploader.http.server.connections import CONNECTIONS_STATE, Connections
from uploader.http.server.limits import connection_limits
from uploader.http.server.sendfile import SENDERS_STATE, Senders
from uploader.http.shared.exchange import is_news
from uploader.http.shared.networks import Networks
from uploader.observability import configure_logging
from uploader.settings import Settings

if TYPE_CHECKING:
    import uvicorn

    from uploader.http.auth.jwt import Verifier

# What each server process makes and runs, as uvicorn names it.
APPLICATION = "uploader.bootstrap:create_app"


def build_application(services: Services, lifespan: Lifespan | None = None) -> Application:
    """The HTTP application over services."""
    settings = services.settings
    origins = Origins(settings.cors_origins)
    verifier = create_verifier(settings, services.clock)
    authenticator = Authenticator(settings, services.accounts, services.links, origins, verifier)
    intake = Intake(settings, services.spool)
    proxies = Proxies(settings.trusted_proxies)
    uploads = UploadHandlers(services.openings, services.receiving, services.uploads, services.instant, services.bases)
    operations = [
        *native.upload_operations(uploads),
        *native.whole_operations(WholeHandlers(services.whole)),
        *resumable_operations(
            TusHandlers(
                services.openings,
                services.appends,
                services.uploads,
                TusWholes(services.concatenations, proxies),
                proxies,
            ),
            RufhHandlers(
                services.openings,
                services.appends,
                services.uploads,
                services.clock,
                sends_interim=settings.interim_responses,
            ),
        ),
        *file_routes.file_operations(
            FileHandlers(
                services.files,
                services.folders,
                services.links,
                services.bases,
                sends_on=settings.s3_presigned_downloads,
            )
        ),
        *file_routes.selection_operations(SelectionHandlers(services.files, services.folders, services.links)),
        *admin_operations(
            AdminHandlers(
                services.reports,
                services.overview,
                services.recounting,
                services.accounts,
                services.uploads,
                services.queues,
                services.clock,
            ),
            TokenHandlers(services.accounts, settings.auth),
            EventHandlers(services.watching, services.reviewing, services.clock),
            TrailHandlers(services.trail_reports, services.clock),
        ),
        *ops.open_operations(
            OpsHandlers(settings, services.openings, services.health, services.gauges, services.exposition),
            settings,
        ),
        *ops.page_operations(PageHandlers(settings)),
    ]
    max_size_bytes = services.openings.max_file_size_bytes
    dialect = ResumableDialect(TusDialect(max_size_bytes), RufhDialect(max_size_bytes, settings.upload_expiry_seconds))
    return Application(
        operations,
        authenticator,
        lifespan,
        origins=origins,
        at_once=AtOnce(settings, proxies),
        intake=intake,
        proxies=proxies,
        asks=services.asking.is_on,
        dialect=dialect,
    )


def create_connections(settings: Settings) -> Connections:
    """Those of this process, none yet."""
    return Connections(connection_limits(settings), Networks(settings.trusted_proxies))


def create_verifier(settings: Settings, clock: Clock) -> "Verifier | None":
    """Raises ConfigurationError."""
    if settings.auth != "jwt":
        return None
    # Here, because who does without JWTs does without the memory that cryptography takes.
    from uploader.http.auth.jwt import Verifier
    from uploader.http.auth.keys import keys_in_force

    return Verifier(settings, keys_in_force(settings, clock), clock)


def server_config(settings: Settings) -> "uvicorn.Config":
    """What each server process makes and runs, and how."""
    import uvicorn

    from uploader.http.server.http11 import HttpConnection
    from uploader.http.server.tls import Handshake

    return uvicorn.Config(
        APPLICATION,
        factory=True,
        workers=settings.workers,
        http=HttpConnection if settings.tls_certificate is None else Handshake,  # type: ignore[arg-type]
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=max(1, round(settings.shutdown_timeout_seconds)),
    )


@asynccontextmanager
async def listening_state(settings: Settings) -> AsyncIterator[dict[str, Any]]:
    """What connections find in the application's lifespan state. Raises ConfigurationError."""
    from uploader.http.server.tls import HANDSHAKES_STATE, Handshakes

    state: dict[str, Any] = {CONNECTIONS_STATE: create_connections(settings)}
    with ExitStack() as stack:
        certificate = stack.enter_context(certificate_in_force(settings))
        state[SENDERS_STATE] = stack.enter_context(closing(Senders()))
        if certificate is not None:
            state[HANDSHAKES_STATE] = stack.enter_context(closing(Handshakes(certificate)))
        yield state


def _follow_parent() -> None:
    """A server process of several ends with the one that started them, or the port would stay taken."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    end_with_parent(signal.SIGKILL)
    if os.getppid() != parent.pid:  # it ended before the kernel was asked
        raise SystemExit(1)


def create_app() -> Application:
    """For uvicorn, in each server process: an application that starts and ends its services, set up by the environment."""
    _follow_parent()
    keep_freed_memory()
    collect_seldom()
    settings = Settings.load()
    if settings.cpu_affinity == "auto":
        share_a_core(settings.data)
    configure_logging(settings.log_level, settings.log_format)
    logging.getLogger("uvicorn.error").addFilter(is_news)
    services = create_services(settings)

    @asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[dict[str, Any]]:
        asyncio.get_running_loop().set_default_executor(
            ThreadPoolExecutor(thread_name_prefix="default", initializer=run_anywhere)
        )
        async with running(services, jobs=settings.jobs), listening_state(settings) as state:
            yield state

    return build_application(services, lifespan)
