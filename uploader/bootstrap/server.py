"""A server process: its application, the certificate in force, and the state that its connections share."""

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

# What each server process makes and runs, as uvicorn names it.
APPLICATION = "uploader.bootstrap:create_app"
# For the answers to requests that have had their time, and for clients to read them.
_LAST_ANSWERS_SECONDS = 3
# What a process that serves nothing else answers.
_SIDE_PATHS = frozenset({"/livez", "/readyz", "/metrics"})


@contextmanager
def certificate_in_force(settings: Settings) -> Iterator[CertificateInForce | None]:
    """Yield the certificate of this process, if there is one, read anew at each SIGHUP; or the server ends, where that
    says that its terminal is gone. A process that has just been started holds SIGHUP back until it can answer it, and
    reads the files only after that, so that none is left with what was before. Raises ConfigurationError."""
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


# How long a thread that computes keeps the interpreter from others: a request takes it back from them dozens of times. What
# it costs is lost in the noise of a busy machine. In turn with Python's 5 ms, a chunk of 64 KiB took 1.29 ms of CPU
# (0.91 to 1.84, 24 rounds) and 1.25 (0.97 to 1.72), one of 8 MiB 34.9 (33.1 to 44.2, eight rounds) and 36.2 (35.6 to 43.1).
_SWITCH_SECONDS = 0.0005


def server_config(settings: Settings, application: Application | None = None) -> "uvicorn.Config":
    """`application`: the one to serve; None: `create_app` makes it in the process that serves."""
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
        # A process that starts on a busy machine is slow, not hung: one in its place would be as slow, and so on for ever.
        timeout_worker_healthcheck=60,
    )


def serving_probes(services: Services, listener: socket.socket) -> AbstractAsyncContextManager[Callable[[str], None]]:
    """Answer `/livez`, `/readyz` and `/metrics` within, in a process that serves nothing else and starts within."""
    settings, services.start.waits_for = services.settings, BEGINS
    application = build_application(services, lambda _: listening_state(settings), paths=_SIDE_PATHS)
    return served(server_config(settings, application), listener)


def failure_of(config: "uvicorn.Config") -> str | None:
    """Return the reason for which the start of this process failed after it had answered."""
    application = config.loaded_app if config.loaded else None
    return application.start.failure if isinstance(application, Application) else None


@contextmanager
def connection_state(settings: Settings) -> Iterator[dict[str, Any]]:
    """Make what the connections of a process share, where it need not look after TLS."""
    limits, proxies = connections.connection_limits(settings), Proxies(settings.trusted_proxies)
    with closing(connections.Senders()) as senders:
        yield {
            connections.CONNECTIONS_STATE: connections.Connections(limits, proxies, Mount.at(settings.public_url)),
            connections.SENDERS_STATE: senders,
        }


@asynccontextmanager
async def listening_state(settings: Settings) -> AsyncIterator[dict[str, Any]]:
    """Make the lifespan state of the application, which its connections share. Raises ConfigurationError."""
    from uploader.http.server.tls import HANDSHAKES_STATE, Handshakes

    with ExitStack() as stack:
        certificate = stack.enter_context(certificate_in_force(settings))
        state = stack.enter_context(connection_state(settings))
        if certificate is not None:
            state[HANDSHAKES_STATE] = stack.enter_context(closing(Handshakes(certificate)))
        yield state


def _follow_parent() -> None:
    """End with the process that started this one, or the port would stay taken."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    end_with_parent(signal.SIGKILL)
    if os.getppid() != parent.pid:  # it ended before the kernel was asked
        raise SystemExit(1)


def create_app() -> Application:
    """Make, for uvicorn in each server process, an application that starts and ends its services, set up by the
    environment."""
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
