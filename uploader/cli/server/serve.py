"""`serve` and `work`, the commands that keep running. Once the server answers, `serve` prints the addresses and the way to
sign in.
"""

import asyncio
import gc
import http.client
import os
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from typing import NoReturn

import click

from uploader import __version__
from uploader.cli.server.services import EXIT_FAILED, embedded_redis, load_settings, make_data_directory, run_to_end
from uploader.cli.terminal import EXIT_CONFIGURATION, fail, fail_lines, say
from uploader.errors import ConfigurationError
from uploader.settings import Settings
from uploader.units import split_host_and_port

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
# Documentation addresses (RFC 5737, RFC 3849): packets to them would take the default route.
_ANYWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
_DISCARD_PORT = 9
# How long the end of the command waits for the thread of the first moments.
_PATIENCE_SECONDS = 5.0


@click.command()
@click.option("--host", help="Listen on this address.  [default: UPLOADER_HOST, 127.0.0.1]")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Listen on this port; 0: a free one.  [default: UPLOADER_PORT, 8000]"
)
@click.option(
    "--workers", type=click.IntRange(1, 256), help="Run so many server processes.  [default: UPLOADER_WORKERS, 1]"
)
@click.option("--jobs/--no-jobs", default=None, help="Run the background jobs too.  [default: UPLOADER_JOBS, true]")
def serve(host: str | None, port: int | None, workers: int | None, jobs: bool | None) -> None:
    """Run the server, and the background jobs with it.

    Without UPLOADER_REDIS_URL and UPLOADER_DATABASE_URL it runs an embedded Valkey and SQLite under UPLOADER_DATA. The first
    start makes the user `owner`, and writes the token to `owner.token` there.
    """
    if host == "":
        fail("--host must not be empty; 0.0.0.0 is all addresses", EXIT_CONFIGURATION)
    settings = load_settings(host=host, port=port, workers=workers, jobs=jobs)
    # The server processes read their settings from the environment.
    in_force = {"HOST": settings.host, "WORKERS": str(settings.workers), "JOBS": str(settings.jobs).lower()}
    os.environ.update({f"UPLOADER_{name}": value for name, value in in_force.items()})
    make_data_directory(settings)
    with embedded_redis(settings) as wait_for_redis:
        _serve(settings, wait_for_redis)


def _serve(settings: Settings, wait_for_redis: Callable[[], None]) -> None:
    with _without_collecting():
        from uploader import bootstrap
        from uploader.bootstrap.processes import ServerProcesses, SingleServer

    try:
        bootstrap.check_settings(settings)
        # Only ends this function: uvicorn installs its own handler, shuts down, and raises the signal again.
        signal.signal(signal.SIGTERM, _leave)
        token = run_to_end(_prepare(settings, wait_for_redis))
        listener = _listen(settings.host, settings.port, "--host and --port choose")
    except ConfigurationError as error:
        fail_lines(error.detail.split("\n"), EXIT_CONFIGURATION)
    config = bootstrap.server_config(settings)
    host, port = listener.getsockname()[:2]
    first = _FirstMoments(settings, host, port, token)
    first.start()
    try:
        if settings.workers > 1:
            processes = ServerProcesses(config, [listener], settings.drain_time_seconds)
            processes.run()
            if processes.has_failed:
                sys.exit(EXIT_FAILED)
        else:
            server = SingleServer(config, settings.drain_time_seconds)
            server.run([listener])
            if not server.started:
                sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        pass
    finally:
        listener.close()
        first.end()
        if settings.workers == 1 and (failure := bootstrap.failure_of(config)) is not None:
            fail_lines(failure.split("\n"), EXIT_CONFIGURATION)


async def _prepare(settings: Settings, wait_for_redis: Callable[[], None]) -> str | None:
    """Prepare the start once. On an error that waiting may solve, return None: the server processes try again, and answer
    probes meanwhile."""
    from uploader import bootstrap

    try:
        return await bootstrap.prepare_start(settings, wait_for_redis)
    except Exception as error:
        if bootstrap.is_final(error):
            raise
        return None


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Load modules without garbage collection: they make many objects and no garbage, and collecting takes a tenth of a
    start."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class _FirstMoments:
    """In a thread: announces the server once it answers, then does the checks that the start need not wait for."""

    def __init__(self, settings: Settings, host: str, port: int, token: str | None) -> None:
        self._announcement = (settings, host, port, token)
        self._ended = threading.Event()
        self._refusal: str | None = None
        self._thread = threading.Thread(target=self._run, name="first moments", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """End the thread. If the thread has stopped the server, exit with the reason."""
        self._ended.set()
        self._thread.join(_PATIENCE_SECONDS)
        if self._refusal is not None:
            fail_lines(self._refusal.split("\n"), EXIT_CONFIGURATION)

    def _run(self) -> None:
        from uploader import bootstrap
        from uploader.bootstrap.systemd import READY, notify

        if not announce(*self._announcement, self._ended.is_set):
            return
        _, host, port, _ = self._announcement
        notify(READY, f"STATUS=listens on {host}, port {port}", timeout_seconds=_PATIENCE_SECONDS)
        try:
            bootstrap.look_again(self._announcement[0], self._ended.is_set)
        except ConfigurationError as error:
            self._refusal = error.detail
            os.kill(os.getpid(), signal.SIGTERM)


def _leave(_number: int, _frame: object) -> NoReturn:
    sys.exit(0)


def _listen(host: str, port: int, how: str) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.set_inheritable(True)
        return listener
    except OSError as error:
        fail(f"can't listen on {host}:{port}: {error.strerror}; {how} another address", EXIT_CONFIGURATION)


@click.command()
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Answer /livez, /readyz and /metrics here.  [default: UPLOADER_WORK_LISTEN, nowhere]",
)
def work(listen: str | None) -> None:
    """Run the background jobs only. They flush, merge, expire, collect and clean up; several workers at once are safe."""
    settings = load_settings(work_listen=listen)
    make_data_directory(settings)
    listener = None
    if settings.work_listen is not None:
        listener = _listen(*split_host_and_port(settings.work_listen), "--listen chooses")
    with embedded_redis(settings) as wait_for_redis:
        from uploader import bootstrap
        from uploader.bootstrap.systemd import READY, STOPPING, notify, watched_loop

        def probes() -> AbstractAsyncContextManager[Callable[[str], None]]:
            if listener is None:
                return nullcontext(lambda _reason: None)
            bootstrap.check_settings(settings)
            return bootstrap.serving_probes(services, listener)

        async def prepare() -> None:
            await bootstrap.prepare_start(settings, wait_for_redis, makes_owner=False)
            await bootstrap.tell_worst(settings)

        @asynccontextmanager
        async def serving() -> AsyncIterator[None]:
            async with bootstrap.serving(services, jobs=True):
                await asyncio.to_thread(notify, READY, "STATUS=runs the jobs", timeout_seconds=_PATIENCE_SECONDS)
                say("uploader worker runs; Ctrl-C ends it")
                yield

        async def run() -> None:
            stop = asyncio.Event()
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, stop.set)
            start = bootstrap.starting(services.start, serving, prepare=prepare, give_up=stop.set)
            with watched_loop():
                async with bootstrap.closing_services(services), probes() as tell_unready, start:
                    await stop.wait()
                    tell_unready("the worker stops")
                    await asyncio.to_thread(
                        notify, STOPPING, "STATUS=lets the jobs end", timeout_seconds=_PATIENCE_SECONDS
                    )
            if services.start.failure is not None:
                raise ConfigurationError(services.start.failure)

        services = bootstrap.Services(settings)
        signal.signal(signal.SIGTERM, _leave)  # until the worker runs
        run_to_end(run())


def announce(settings: Settings, host: str, port: int, token: str | None, gives_up: Callable[[], bool]) -> bool:
    """Print the addresses and the next steps once the server answers. Return False if the command ends before. The token is
    only shown on terminals, because other output is stored."""
    reachable = _LOOPBACK.get(host, host)
    scheme = "http" if settings.tls_certificate is None else "https"
    if not _becomes_live(scheme, reachable, port, gives_up):
        return False
    where = f"all addresses, port {port}" if host in _LOOPBACK else _url(scheme, host, port)
    say(f"uploader {__version__} listens on {where}, data in {settings.data.absolute()}")
    for line in _lines(settings, settings.public_url or _url(scheme, reachable, port), token):
        say(line)
    for name in _names_elsewhere(host) if settings.public_url is None else ():
        say(f"  From elsewhere:     {_url(scheme, name, port)}/")
    return True


def _lines(settings: Settings, url: str, token: str | None) -> Iterator[str]:
    if settings.web_pages:
        yield f"  Web page:           {url}/"
        yield f"  Administration:     {url}/admin/"
    yield f"  API documentation:  {url}/docs"
    if settings.auth == "none":
        yield f"  Try:                curl {url}/me/usage"
    elif settings.auth == "jwt":
        yield "  Tokens:             JWTs, as the UPLOADER_JWT settings have it"
    elif not (path := settings.data.absolute() / "owner.token").exists():
        yield "  Make a token:       uploader token create USER"
    else:
        shown = sys.stdout.isatty() and token is not None
        yield f"  Your token:         in {path} (user owner)"
        if shown and settings.web_pages:
            yield f"  Sign in with it:    {url}/#token={token}"
        bearer = token if shown else f"$(cat {path})"
        yield f'  Try:                curl -H "Authorization: Bearer {bearer}" {url}/me/usage'


def _becomes_live(scheme: str, host: str, port: int, gives_up: Callable[[], bool]) -> bool:
    while not gives_up():
        try:
            connection = http.client.HTTPConnection(host, port, timeout=1)
            if scheme == "https":
                context = ssl.create_default_context()
                # The request goes to this machine, by an address that the certificate need not contain.
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                connection = http.client.HTTPSConnection(host, port, timeout=1, context=context)
            connection.request("GET", "/livez")
            if connection.getresponse().status == 200:
                return True
        except OSError:
            time.sleep(0.02)
    return False


def _url(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _names_elsewhere(host: str) -> list[str]:
    """For a server that listens on all addresses: return this machine's addresses, preceded by its name if the name resolves
    to one of them."""
    families = {"0.0.0.0": [socket.AF_INET], "::": [socket.AF_INET6, socket.AF_INET]}.get(host, [])  # noqa: S104
    addresses = [address for family in families for address in outward_address(family)]
    name = socket.gethostname()
    with suppress(OSError):
        if {found[4][0] for found in socket.getaddrinfo(name, None)} & set(addresses):
            return [name, *addresses]
    return addresses


def outward_address(family: socket.AddressFamily) -> list[str]:
    """Return the address from which this machine would send packets to others. Sends nothing."""
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((_ANYWHERE[family], _DISCARD_PORT))
        return [probe.getsockname()[0]]
    return []
