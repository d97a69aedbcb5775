"""`serve` and `work`: the commands that stay."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import click

from uploader.cli.exits import EXIT_CONFIGURATION, fail
from uploader.cli.server.banner import announce
from uploader.cli.server.running import (
    EXIT_FAILED,
    embedded_redis,
    load_settings,
    make_data_directory,
    run_to_end,
)
from uploader.errors import ConfigurationError
from uploader.settings import Settings

if TYPE_CHECKING:
    import socket


@click.command()
@click.option("--host", help="Address to listen on.  [default: UPLOADER_HOST, 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port, 0 for a free one.  [default: UPLOADER_PORT, 8000]")
@click.option("--workers", type=click.IntRange(1, 256), help="Server processes.  [default: UPLOADER_WORKERS, 1]")
@click.option("--jobs/--no-jobs", default=None, help="Run the background jobs too.  [default: UPLOADER_JOBS, true]")
def serve(host: str | None, port: int | None, workers: int | None, jobs: bool | None) -> None:
    """Run the server, and the background jobs with it.

    Without UPLOADER_REDIS_URL and UPLOADER_DATABASE_URL it brings its own: an embedded Valkey and SQLite under
    UPLOADER_DATA. The first start makes the user `owner`, whose token lies there in `owner.token`.
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


def _serve(settings: Settings, wait_for_redis: "Callable[[], None]") -> None:
    import uvicorn

    from uploader import bootstrap
    from uploader.bootstrap.application import ServerProcesses

    bootstrap.warn_of_settings(settings)
    try:
        bootstrap.check_settings(settings)
    except ConfigurationError as error:
        fail(error.detail, EXIT_CONFIGURATION)
    # Here it only leads out of this function: uvicorn ends in its own order, then raises it again.
    signal.signal(signal.SIGTERM, _leave)
    token = run_to_end(bootstrap.prepare_installation(settings))
    listener = _listen(settings)
    try:
        wait_for_redis()
    except ConfigurationError as error:
        fail(error.detail, EXIT_CONFIGURATION)
    run_to_end(bootstrap.check_redis(settings))
    config = bootstrap.server_config(settings)
    host, port = listener.getsockname()[:2]
    threading.Thread(target=announce, args=(settings, host, port, token), daemon=True).start()
    try:
        if settings.workers > 1:
            ServerProcesses(config, [listener]).run()
        else:
            server = uvicorn.Server(config)
            server.run([listener])
            if not server.started:
                sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        pass
    finally:
        listener.close()


def _leave(_number: int, _frame: object) -> NoReturn:
    sys.exit(0)


def _listen(settings: Settings) -> "socket.socket":
    import socket

    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.set_inheritable(True)
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        fail(f"can't listen on {where}: {error.strerror}; --host and --port choose another address", EXIT_CONFIGURATION)
    return listener


@click.command()
def work() -> None:
    """Run the background jobs only. They flush, merge, expire, collect and clean up; several workers at once are safe."""
    settings = load_settings()
    make_data_directory(settings)
    with embedded_redis(settings) as wait_for_redis:
        from uploader import bootstrap

        async def run() -> None:
            await bootstrap.begin_installation(settings)
            wait_for_redis()
            await bootstrap.check_redis(settings)
            stop = asyncio.Event()
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, stop.set)
            async with bootstrap.running(bootstrap.create_services(settings), jobs=True):
                click.echo("uploader worker runs; Ctrl-C ends it")
                sys.stdout.flush()
                await stop.wait()

        signal.signal(signal.SIGTERM, _leave)  # until the worker runs
        run_to_end(run())
