"""A server process: the application, the TLS certificate, and the state that all connections share."""

import asyncio
import logging
import math
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from uploader.bootstrap.application import build_application, closing_services, serving
from uploader.bootstrap.installation import prepare_installation
from uploader.bootstrap.processes import Terminal, served
from uploader.bootstrap.services import Services
from uploader.bootstrap.starting import BEGINS, starting
from uploader.http.app import Application
from uploader.http.server import connections
from uploader.http.server.tls import CertificateInForce
from uploader.http.shared.exchange import is_news
from uploader.http.shared.mount import Mount
from uploader.http.shared.proxies import Proxies
from uploader.runtime.clock import Clock
from uploader.runtime.cores import SharedCore, run_anywhere, share_a_core
from uploader.runtime.embedded import end_with_parent
from uploader.runtime.observability import configure_logging
from uploader.settings import Settings

if TYPE_CHECKING:
    import uvicorn

# The factory of the application, in uvicorn's notation.
APPLICATION = "uploader.bootstrap:create_app"
# Seconds to send the last answers after the shutdown timeout, and for clients to read them.
_LAST_ANSWERS_SECONDS = 3
# The paths of a process that serves no files.
_SIDE_PATHS = frozenset({"/livez", "/readyz", "/metrics"})


@contextmanager
def certificate_in_force(settings: Settings) -> Iterator[CertificateInForce | None]:
    """Yield the TLS certificate of this process; None without TLS. SIGHUP reloads the certificate, or ends the server if its
    terminal has closed. A new process blocks SIGHUP until this handler is installed, and reads the files afterwards, so no
    reload gets lost. Raises ConfigurationError."""
    loop, clock, terminal = asyncio.get_running_loop(), Clock(), Terminal()
    certificate: CertificateInForce | None = None
    reloads: set[asyncio.Task[None]] = set()

    def hang_up() -> None:
        if terminal.is_gone:
            signal.raise_signal(signal.SIGTERM)
        elif certificate is not None:
            task = loop.create_task(certificate.reload(clock.now()))
            reloads.add(task)
            task.add_done_callback(reloads.discard)

    loop.add_signal_handler(signal.SIGHUP, hang_up)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    try:
        if settings.tls_certificate is not None:
            certificate = CertificateInForce(settings)
        yield certificate
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


# How long a computing thread keeps the interpreter before other threads get a turn: a request has to get the interpreter
# back dozens of times. The cost is lost in the noise of a busy machine. Measured in turn with Python's 5 ms, a chunk of 64
# KiB took 1.29 ms of CPU (0.91 to 1.84, 24 rounds) and 1.25 (0.97 to 1.72), a chunk of 8 MiB 34.9 (33.1 to 44.2, eight
# rounds) and 36.2 (35.6 to 43.1).
_SWITCH_SECONDS = 0.0005


def server_config(settings: Settings, application: Application | None = None) -> "uvicorn.Config":
    """Return uvicorn's settings. `application`: the application to serve. None: each server process makes its own by
    `create_app`."""
    import uvicorn

    from uploader.http.server.http11 import HttpConnection
    from uploader.http.server.tls import Handshake

    return uvicorn.Config(
        application or APPLICATION,
        factory=application is None,
        workers=settings.workers,
        http=HttpConnection if settings.tls_certificate is None else Handshake,  # type: ignore[arg-type]
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        # A proxy has to close its connections sooner: docs/scaling.md.
        timeout_keep_alive=5,
        timeout_graceful_shutdown=math.ceil(settings.shutdown_timeout_seconds) + _LAST_ANSWERS_SECONDS,
        # A process that starts slowly on a busy machine does not hang. Its replacement would be as slow, and would be
        # replaced as well, for ever.
        timeout_worker_healthcheck=60,
    )


def serving_probes(services: Services, listener: socket.socket) -> AbstractAsyncContextManager[Callable[[str], None]]:
    """Answer `/livez`, `/readyz` and `/metrics` in a process that serves no files, and whose start is still to come."""
    settings, services.start.waits_for = services.settings, BEGINS
    application = build_application(services, lambda _: listening_state(settings), paths=_SIDE_PATHS)
    return served(server_config(settings, application), listener)


def failure_of(config: "uvicorn.Config") -> str | None:
    """Return why the start of this process failed after the process had begun to answer; None if it did not."""
    application = config.loaded_app if config.loaded else None
    return application.start.failure if isinstance(application, Application) else None


@contextmanager
def connection_state(settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield the state that all connections of a process share, except the state for TLS."""
    limits, proxies = connections.connection_limits(settings), Proxies(settings.trusted_proxies)
    with closing(connections.Senders()) as senders:
        yield {
            connections.CONNECTIONS_STATE: connections.Connections(limits, proxies, Mount.at(settings.public_url)),
            connections.SENDERS_STATE: senders,
        }


@asynccontextmanager
async def listening_state(settings: Settings) -> AsyncIterator[dict[str, Any]]:
    """Yield the lifespan state of the application, for all its connections. Raises ConfigurationError."""
    from uploader.http.server.tls import HANDSHAKES_STATE, Handshakes

    with ExitStack() as stack:
        certificate = stack.enter_context(certificate_in_force(settings))
        state = stack.enter_context(connection_state(settings))
        if certificate is not None:
            state[HANDSHAKES_STATE] = stack.enter_context(closing(Handshakes(certificate)))
        yield state


def _follow_parent() -> None:
    """End this process when its parent ends: otherwise the port would stay taken."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    end_with_parent(signal.SIGKILL)
    if os.getppid() != parent.pid:  # the parent had ended before
        raise SystemExit(1)


def create_app() -> Application:
    """Make the application of a server process, with the settings of the environment. uvicorn calls this function in each
    server process. The lifespan of the application starts and ends the services."""
    _follow_parent()
    connections.keep_freed_memory()
    connections.collect_seldom()
    settings = Settings.load()
    shared_core = None
    if settings.cpu_affinity == "auto" and share_a_core(settings.data) is not None:
        shared_core = SharedCore()
    configure_logging(settings.log_level, settings.log_format)
    logging.getLogger("uvicorn.error").addFilter(is_news)
    services = Services(settings)
    sys.setswitchinterval(_SWITCH_SECONDS)

    @asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[dict[str, Any]]:
        asyncio.get_running_loop().set_default_executor(
            ThreadPoolExecutor(thread_name_prefix="default", initializer=run_anywhere)
        )
        start = starting(
            services.start,
            partial(serving, services, jobs=settings.jobs, shared_core=shared_core),
            prepare=partial(prepare_installation, settings),
            is_prepared=True,
            give_up=partial(signal.raise_signal, signal.SIGTERM),
        )
        async with closing_services(services), start, listening_state(settings) as state:
            yield state

    return build_application(services, lifespan)
