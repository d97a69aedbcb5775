"""The command line. Imports are inside the commands, so that `--help` and the start of the server are quick."""

import asyncio
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from uploader import __version__
from uploader.embedded import EmbeddedRedis
from uploader.errors import ConfigurationError, UploaderError
from uploader.settings import Settings, format_duration, format_size, parse_duration, parse_size

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from uploader.bootstrap import Services
    from uploader.service.cleanup import Cleaned, Reset
    from uploader.service.reconciling import Findings

T = TypeVar("T")

EXIT_CONFIGURATION = 2
EXIT_FAILED = 1


class _SizeType(click.ParamType[int]):
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_size(value)
        except ValueError as error:
            self.fail(f"{value!r} is {error}", param, ctx)


class _DurationType(click.ParamType[float]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = parse_duration(value)
        except ValueError as error:
            self.fail(f"{value!r} is {error}", param, ctx)
        return seconds or self.fail("must be greater than 0", param, ctx)


class _MonthType(click.ParamType[str]):
    name = "YYYY-MM"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not re.fullmatch(r"[0-9]{4}[-/](0[1-9]|1[0-2])", value):
            self.fail(f"{value!r} is not a month such as 2026-11", param, ctx)
        return str(value).replace("-", "/")


_SIZE, _DURATION, _MONTH = _SizeType(), _DurationType(), _MonthType()


def _fail(message: str, code: int) -> NoReturn:
    for line in message.splitlines():
        click.echo(f"uploader: {line}", err=True)
    sys.exit(code)


def _settings(**overrides: Any) -> Settings:
    try:
        return Settings.load(**overrides)
    except ConfigurationError as error:
        _fail(error.detail, EXIT_CONFIGURATION)


def _run(work: Awaitable[T]) -> T:
    """Run to the end; errors with a name end the command with one line each."""

    async def run() -> T:
        return await work

    try:
        return asyncio.run(run())
    except ConfigurationError as error:
        _fail(error.detail, EXIT_CONFIGURATION)
    except UploaderError as error:
        _fail(error.detail, EXIT_FAILED)


def _with_services(settings: Settings, work: "Callable[[Services], Awaitable[T]]") -> T:
    """Run a short command on the database, which it migrates if it is the embedded one."""
    from uploader import bootstrap

    async def run() -> T:
        await bootstrap.prepare_database(settings)
        services = bootstrap.create_services(settings)
        try:
            return await work(services)
        finally:
            await services.close()

    _make_data_directory(settings)
    return _run(run())


def _with_everything(settings: Settings, work: "Callable[[Services], Awaitable[T]]") -> T:
    """Run a command that needs Redis and the disk, too."""
    from uploader import bootstrap
    from uploader.observability import configure_logging

    configure_logging(settings.log_level, settings.log_format)

    async def run() -> T:
        await bootstrap.prepare_database(settings)
        wait_for_redis()
        services = bootstrap.create_services(settings)
        async with bootstrap.running(services, jobs=False):
            return await work(services)

    _make_data_directory(settings)
    with _redis(settings) as wait_for_redis:
        return _run(run())


def _make_data_directory(settings: Settings) -> None:
    try:
        settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        _fail(f"UPLOADER_DATA: {settings.data} can't be made: {error.strerror}", EXIT_CONFIGURATION)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="uploader")
def main() -> None:
    """A resumable chunked-upload server.

    Settings are UPLOADER_* environment variables: `uploader config` shows what is in force, the README explains each.
    Every command can run while a server runs on the same data directory.

    \b
    Exit codes: 0 ok, 1 failed, 2 bad usage or configuration.
    """


# Serving


@main.command()
@click.option("--host", help="Address to listen on.  [default: UPLOADER_HOST, 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port, 0 for a free one.  [default: UPLOADER_PORT, 8000]")
@click.option("--workers", type=click.IntRange(1, 256), help="Server processes.  [default: UPLOADER_WORKERS, 1]")
@click.option("--jobs/--no-jobs", default=None, help="Run the background jobs too.  [default: UPLOADER_JOBS, true]")
def serve(host: str | None, port: int | None, workers: int | None, jobs: bool | None) -> None:
    """Run the server, and by default the background jobs with it.

    Without UPLOADER_REDIS_URL and UPLOADER_DATABASE_URL it brings its own: an embedded Valkey and SQLite under
    UPLOADER_DATA. The first start makes the user `owner`, whose token lies there in `owner.token`.
    """
    settings = _settings(host=host, port=port, workers=workers, jobs=jobs)
    # The server processes read their settings from the environment.
    os.environ["UPLOADER_JOBS"] = str(settings.jobs).lower()
    with _redis(settings) as wait_for_redis:
        _serve(settings, wait_for_redis)


def _serve(settings: Settings, wait_for_redis: "Callable[[], None]") -> None:
    import uvicorn
    from uvicorn.supervisors import Multiprocess

    from uploader import bootstrap
    from uploader.http.protocol import TimedProtocol
    from uploader.observability import configure_logging

    configure_logging(settings.log_level, settings.log_format)
    bootstrap.warn_of_settings(settings)
    try:
        bootstrap.check_settings(settings)
    except ConfigurationError as error:
        _fail(error.detail, EXIT_CONFIGURATION)
    token = _run(bootstrap.prepare_installation(settings))
    listener = _listen(settings)
    try:
        wait_for_redis()
    except ConfigurationError as error:
        _fail(error.detail, EXIT_CONFIGURATION)
    config = uvicorn.Config(
        "uploader.bootstrap:create_app",
        factory=True,
        workers=settings.workers,
        http=TimedProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=max(1, round(settings.shutdown_timeout_seconds)),
    )
    threading.Thread(target=_announce, args=(settings, listener.getsockname(), token), daemon=True).start()
    # uvicorn ends in its own order on these, then raises them again; here they only lead out of this function.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
    try:
        if settings.workers > 1:
            Multiprocess(config, [listener]).run()
        else:
            server = uvicorn.Server(config)
            server.run([listener])
            if not server.started:
                sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        pass
    finally:
        listener.close()


def _listen(settings: Settings) -> "socket.socket":
    import socket

    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.set_inheritable(True)
    except OSError as error:
        _fail(f"can't listen on {settings.host}:{settings.port}: {error.strerror}", EXIT_CONFIGURATION)
    return listener


def _announce(settings: Settings, address: Any, token: str | None) -> None:
    """When the server answers, say what to do next. The token itself is for terminals only: elsewhere output is kept."""
    import http.client

    host, port = address[0], address[1]
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    shown = f"[{reachable}]" if ":" in reachable else reachable
    while True:
        try:
            connection = http.client.HTTPConnection(reachable, port, timeout=1)
            connection.request("GET", "/livez")
            if connection.getresponse().status == 200:
                break
        except OSError:
            time.sleep(0.02)
    url = f"http://{shown}:{port}"
    click.echo(f"uploader {__version__} listens on {url}, data in {settings.data.absolute()}")
    click.echo(f"  API documentation:  {url}/docs")
    if settings.auth == "none":
        click.echo(f"  Try:  curl {url}/me/usage")
    elif token is not None:
        path = settings.data.absolute() / "owner.token"
        bearer = token if sys.stdout.isatty() else f"$(cat {path})"
        click.echo(f'  Try:  curl -H "Authorization: Bearer {bearer}" {url}/me/usage')
        click.echo(f"  Your token (user owner) lies in {path}")
    else:
        click.echo("  Make a token:  uploader token create USER")
    sys.stdout.flush()


@contextmanager
def _redis(settings: Settings) -> "Iterator[Callable[[], None]]":
    """Run the embedded Valkey, if none is given; yields a function that waits until it answers."""
    if settings.redis_url is not None:
        yield lambda: None
        return
    _make_data_directory(settings)
    embedded = EmbeddedRedis(settings.data / "redis")
    embedded.start()
    try:
        yield embedded.wait_until_ready
    finally:
        embedded.stop()


@main.command()
def work() -> None:
    """Run the background jobs only: flush, merge, expire, collect, clean up. Several workers at once are safe."""
    settings = _settings()
    _make_data_directory(settings)
    with _redis(settings) as wait_for_redis:
        from uploader import bootstrap
        from uploader.observability import configure_logging

        configure_logging(settings.log_level, settings.log_format)

        async def run() -> None:
            await bootstrap.prepare_database(settings)
            wait_for_redis()
            stop = asyncio.Event()
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, stop.set)
            async with bootstrap.running(bootstrap.create_services(settings), jobs=True):
                click.echo("uploader worker runs; Ctrl-C ends it")
                sys.stdout.flush()
                await stop.wait()

        _run(run())


# Cleaning


@main.command()
@click.option("--before", type=_MONTH, help="Clean the months before this one.  [default: the present one, in UTC]")
@click.option("--idle", type=_DURATION, help="Expire uploads idle for so long.  [default: UPLOADER_UPLOAD_EXPIRY, 7d]")
@click.option("--dry-run", is_flag=True, help="Remove nothing, only say what would be.")
def cleanup(before: str | None, idle: float | None, dry_run: bool) -> None:
    """Give back what past months hold for nothing: idle uploads, and what crashes left on the disk.

    Expires idle uploads that were opened in these months; removes upload directories that no open upload has, and blobs
    that no row names, once nothing touched them for an hour. Servers and workers do the same once a month.
    """
    settings = _settings()
    idle_seconds = idle or settings.upload_expiry_seconds

    async def run(services: "Services") -> "Cleaned":
        return await services.cleanup.clean(before=before, idle_seconds=idle_seconds, dry_run=dry_run)

    cleaned = _with_everything(settings, run)
    would = "would be " if dry_run else ""
    click.echo(f"uploads idle for {format_duration(idle_seconds)} {would}expired: {cleaned.expired_uploads}")
    click.echo(f"directories without an open upload {would}removed: {cleaned.directories}")
    click.echo(f"blobs without a row {would}removed: {cleaned.blobs}")
    click.echo(f"disk {would}given back: {_readable(cleaned.disk_bytes)}")
    click.echo(f"quota {would}given back: {_readable(cleaned.quota_bytes)}")
    _fail_if_left(cleaned.left)


@main.command("reset-unfinished")
@click.option("--yes", is_flag=True, help="Really do it.")
def reset_unfinished(yes: bool) -> None:
    """Cancel every open upload of every user, as its user would; their bytes are lost. Finished files stay."""
    if not yes:
        _fail("this cancels every open upload of every user; say --yes", EXIT_CONFIGURATION)

    async def run(services: "Services") -> "Reset":
        return await services.cleanup.reset_unfinished()

    reset = _with_everything(_settings(), run)
    click.echo(f"uploads cancelled: {reset.uploads}")
    click.echo(f"quota given back: {_readable(reset.quota_bytes)}")
    _fail_if_left(reset.left)


def _readable(size_bytes: int) -> str:
    """For a person, and exact."""
    if size_bytes < 1024:
        return f"{size_bytes} bytes"
    size, units = size_bytes / 1024, ["KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return f"{size:.1f} {units[0]} ({size_bytes} bytes)"


def _fail_if_left(left: int) -> None:
    if left:
        _fail(f"left for now: {left}; the log says why", EXIT_FAILED)


# Looking and setting up


@main.command()
def config() -> None:
    """Print the settings in force, secrets masked."""
    for name, value in _settings().shown().items():
        click.echo(f"{name}={value}")


@main.group()
def db() -> None:
    """The database."""


@db.command()
def upgrade() -> None:
    """Bring the database to the schema of this version. Safe to repeat, and to run twice at once."""
    from uploader import bootstrap
    from uploader.database import migrate
    from uploader.database.engine import Database

    settings = _settings()
    if settings.database_url is None:
        _make_data_directory(settings)

    async def run() -> str | None:
        # A change of a large table takes as long as it takes.
        database = Database(bootstrap.database_url(settings), read_timeout_seconds=None)
        try:
            await migrate.upgrade(database)
            return await migrate.current_revision(database)
        finally:
            await database.close()

    click.echo(f"the database is at revision {_run(run())}")


@main.group()
def redis() -> None:
    """Redis, the accounting store."""


@redis.command("reset")
@click.option("--yes", is_flag=True, help="Really do it.")
def redis_reset(yes: bool) -> None:
    """Delete all that this installation keeps in Redis; it is rebuilt from the disk and the database.

    Needed after a change of UPLOADER_SHARDS. Stop all servers and workers first. Nothing that was acknowledged is lost.
    """
    if not yes:
        _fail("this deletes all keys of the installation in Redis; say --yes", EXIT_CONFIGURATION)
    settings = _settings()

    async def run(services: "Services") -> int:
        from uploader import bootstrap

        wait_for_redis()
        return await bootstrap.reset_redis(services)

    with _redis(settings) as wait_for_redis:
        click.echo(f"{_with_services(settings, run)} keys deleted")


@main.command()
@click.option("--repair", is_flag=True, help="Mend what can be mended, each under its locks.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def reconcile(repair: bool, as_json: bool) -> None:
    """Recount every figure from its definition and print each drift. Works while the server runs.

    Exit codes: 0 no drift, 1 any drift, also if --repair mended it: run it again to see.
    """
    import json
    from dataclasses import asdict

    settings = _settings()
    _make_data_directory(settings)
    with _redis(settings) as wait_for_redis:
        from uploader import bootstrap

        async def run() -> "Findings":
            await bootstrap.prepare_database(settings)
            wait_for_redis()
            services = bootstrap.create_services(settings)
            async with bootstrap.running(services, jobs=False):
                return await services.reconciling.reconcile(repair=repair)

        found = _run(run())
    if as_json:
        facts = {"repaired": found.repaired, "checked": found.checked}
        lists = {"drifts": [asdict(drift) for drift in found.drifts], "notes": [asdict(note) for note in found.notes]}
        click.echo(json.dumps(lists | facts))
    else:
        for drift in found.drifts:
            click.echo(str(drift))
        for note in found.notes:
            click.echo(f"note: {note}")
        checked = ", ".join(f"{count} {name}" for name, count in found.checked.items())
        click.echo(f"{len(found.drifts)} drifts, {found.repaired} repaired; checked {checked}")
    sys.exit(EXIT_FAILED if found.drifts else 0)


@main.group()
def token() -> None:
    """Tokens of users."""


@token.command("create")
@click.argument("user")
@click.option("--admin", is_flag=True, help="The token may use /admin.")
@click.option("--total-space", type=_SIZE, help="Quota of a user seen for the first time, such as 10GiB.")
def token_create(user: str, admin: bool, total_space: int | None) -> None:
    """Make a token for USER, and the user if need be; print it as the last word.

    A second call adds a token and keeps the quota. Only the token's SHA-256 is stored: it can't be shown again.
    """

    async def run(services: "Services") -> str:
        return await services.accounts.create_token(user, admin=admin, total_space=total_space)

    made = _with_services(_settings(), run)
    click.echo(f"token of {user}: {made}" if sys.stdout.isatty() else made)


@token.command("list")
@click.argument("user", required=False)
def token_list(user: str | None) -> None:
    """List the tokens of USER, or of everybody: id, user, what it may do, when it was made."""

    async def run(services: "Services") -> None:
        for row in await services.accounts.tokens(user):
            kind = "revoked" if row.revoked_at else "admin" if row.admin else "user"
            click.echo(f"{row.token_id}  {row.user_id}  {kind}  {row.created_at:%Y-%m-%dT%H:%M:%SZ}")

    _with_services(_settings(), run)


@token.command("revoke")
@click.argument("token_or_id")
def token_revoke(token_or_id: str) -> None:
    """Revoke a token, named by its id (see `token list`) or by itself. Takes effect within 30 s."""

    async def run(services: "Services") -> int:
        return await services.accounts.revoke(token_or_id)

    if not _with_services(_settings(), run):
        _fail("no such token in force", EXIT_FAILED)
    click.echo("revoked")


@main.group()
def user() -> None:
    """Users."""


@user.command("set-quota")
@click.argument("user_id", metavar="USER")
@click.argument("total_space", type=_SIZE)
def user_set_quota(user_id: str, total_space: int) -> None:
    """Set the total space of USER, such as 50GiB, making the user if need be. What is used already stays."""

    async def run(services: "Services") -> int:
        return (await services.accounts.set_total_space(user_id, total_space)).total_space

    click.echo(f"{user_id} has {format_size(_with_services(_settings(), run))}")
