"""Services → the HTTP application, and how uvicorn is to serve it."""

import asyncio
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any

from uploader.bootstrap.running import running
from uploader.bootstrap.services import Services, create_services
from uploader.clock import Clock
from uploader.cores import run_anywhere, share_a_core
from uploader.embedded import end_with_parent
from uploader.http.admin.handlers import AdminHandlers
from uploader.http.admin.routes import admin_operations
from uploader.http.app import Application, Lifespan
from uploader.http.auth.authenticator import Authenticator
from uploader.http.auth.origins import Origins
from uploader.http.bodies.intake import Intake
from uploader.http.native import file_routes
from uploader.http.native import routes as native
from uploader.http.native.files import FileHandlers
from uploader.http.native.uploads import UploadHandlers
from uploader.http.native.whole import WholeHandlers
from uploader.http.ops import routes as ops
from uploader.http.ops.handlers import OpsHandlers
from uploader.http.ops.pages import PageHandlers
from uploader.http.server.allocation import collect_seldom, keep_freed_memory
from uploader.http.server.limits import LIMITS_STATE, connection_limits
from uploader.http.server.sendfile import SENDERS_STATE, Senders
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
    uploads = UploadHandlers(services.openings, services.receiving, services.uploads, services.instant)
    operations = [
        *native.upload_operations(uploads),
        *native.whole_operations(WholeHandlers(services.whole)),
        *file_routes.file_operations(FileHandlers(services.files, services.folders, services.links)),
        *admin_operations(
            AdminHandlers(
                services.reports,
                services.overview,
                services.recounting,
                services.accounts,
                services.uploads,
                services.clock,
            )
        ),
        *ops.open_operations(
            OpsHandlers(settings, services.openings, services.health, services.gauges, services.exposition),
            settings,
        ),
        *ops.page_operations(PageHandlers(settings)),
    ]
    return Application(operations, authenticator, lifespan, origins=origins, intake=intake)


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

    return uvicorn.Config(
        APPLICATION,
        factory=True,
        workers=settings.workers,
        http=HttpConnection,  # type: ignore[arg-type]
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=max(1, round(settings.shutdown_timeout_seconds)),
    )


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
    services = create_services(settings)

    @asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[dict[str, Any]]:
        asyncio.get_running_loop().set_default_executor(
            ThreadPoolExecutor(thread_name_prefix="default", initializer=run_anywhere)
        )
        async with running(services, jobs=settings.jobs):
            with closing(Senders()) as senders:
                yield {LIMITS_STATE: connection_limits(settings), SENDERS_STATE: senders}

    return build_application(services, lifespan)
