"""The server as an application of ASGI: mounted in another one, or served alone by any server that speaks ASGI.

Owns what `uploader serve` does around it: the data directory, the embedded engine, migrations, background jobs. Refuses what
the server below it has to do (TLS), and to let everybody in, as it does not know who can reach it.
"""

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from inspect import isawaitable
from typing import Any, TypeVar

from uploader import bootstrap
from uploader.domain.events import EventType
from uploader.domain.links import owner
from uploader.domain.upload import File
from uploader.embedded import EmbeddedRedis
from uploader.errors import ConfigurationError, FileNotFound
from uploader.http.app import Application
from uploader.http.server.http11 import HttpConnection
from uploader.service import access
from uploader.service.files import Files
from uploader.settings import PREFIX, Settings
from uploader.sinks.configuration import SINK_NAME, HandlerSettings
from uploader.storage.ballast import Ballast
from uploader.tasks import uninterrupted

__all__ = ["File", "FileNotFound", "FinishedFiles", "HttpConnection", "Identity", "Uploader"]

logger = logging.getLogger(__name__)

_NOT_RUNNING = "the uploader does not run: enter `running()` in the lifespan of the application that it is a part of"
_PIECE_BYTES = 256 << 10
# What looks at the database is waited for, when the application ends.
_PATIENCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Identity:
    """A user of the application, and whether they are an administrator here."""

    user_id: str
    admin: bool = False


# Returns who makes the request of a scope of ASGI, for which each framework has its own type; None: nobody that is known.
Identify = Callable[[Any], Identity | Awaitable[Identity | None] | None]

H = TypeVar("H", bound=Callable[[dict[str, Any]], Any])


@dataclass(frozen=True, slots=True)
class FinishedFiles:
    """The files of users, in this process."""

    _files: Files

    async def get(self, user_id: str, file_id: str) -> File:
        """Return a finished file of the user. Raises FileNotFound."""
        return await self._files.get(user_id, file_id)

    async def list(
        self, user_id: str, *, prefix: str = "", after: str | None = None, limit: int = 100
    ) -> tuple[list[File], str | None]:
        """Return a page of files whose names start with `prefix`, the newest first, and the cursor of the next page."""
        return await self._files.list(user_id, limit=limit, after=after, prefix=prefix)

    async def read(self, file: File, offset: int = 0) -> AsyncIterator[bytes]:
        """Yield the content of a file, from `offset` on, compared with its checksums as it is read. Raises FileNotFound,
        ContentDamaged, Unavailable."""
        content = await self._files.open(file)
        try:
            while offset < file.size:
                async with self._files.noting(file):
                    piece = await content.read(min(_PIECE_BYTES, file.size - offset), offset)
                offset += len(piece)
                yield piece
        finally:
            await uninterrupted(content.close())


class Uploader:
    """An upload server as a part of an application. Its settings are `Settings`; or keywords, named and spelt as the
    environment variables, such as `data="/srv/uploads", max_file_size="10GiB"`, which go before those.

    `identify` takes the place of tokens: it is given the scope of a request, with all that the application around has put
    there, and returns who asks; None is nobody."""

    def __init__(self, settings: Settings | None = None, *, identify: Identify | None = None, **keywords: Any) -> None:
        """Raises ConfigurationError."""
        settings = _settings_of(keywords) if settings is None else settings
        if settings.auth == "none" or (identify is not None and settings.auth != "token"):
            raise ConfigurationError(
                f"UPLOADER_AUTH: {settings.auth!r} is not for a part of an application: `identify` is"
            )
        if settings.tls_certificate is not None:
            raise ConfigurationError("UPLOADER_TLS_CERTIFICATE: TLS is for the server that runs the application")
        if identify is not None and "*" in (settings.cors_origins or ()):
            raise ConfigurationError("UPLOADER_CORS_ORIGINS: '*' would let any page act for whoever `identify` knows")
        bootstrap.check_settings(settings)
        # How many processes the application has, nobody tells: so each counts for one of several.
        self.settings = replace(settings, workers=max(2, settings.workers))
        self._identify = identify
        self._handlers: dict[str, HandlerSettings] = {}
        self._application: Application | None = None
        self._files: FinishedFiles | None = None

    # In process

    @property
    def files(self) -> FinishedFiles:
        if self._files is None:
            raise RuntimeError(_NOT_RUNNING)
        return self._files

    def on(self, *types: str, name: str | None = None) -> Callable[[H], H]:
        """Decorate a function, which may be asynchronous, that is told of events of these types, as docs/events.md has them:
        at least once each, in some process of the application, and again later where it raises. Its `name`, by default that
        of the function, is what the database knows it by."""
        kinds = tuple(EventType(each) for each in types)
        if not kinds:
            raise ValueError("name the types of events")

        def register(handler: H) -> H:
            known_as = name or str(getattr(handler, "__name__", ""))
            if self._application is not None:
                raise RuntimeError("handlers have to be there before the uploader runs")
            if not SINK_NAME.fullmatch(known_as) or known_as in self._handlers:
                raise ValueError(f"{known_as!r} is no name for a handler, or that of another one: give it a `name`")
            self._handlers[known_as] = HandlerSettings(handler, kinds)
            return handler

        return register

    # As an application

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Mapping[str, Any]]:
        """Serve within. Yields the state of the lifespan, for `HttpConnection`. Raises ConfigurationError, Unavailable."""
        settings = self.settings
        if self._application is not None:
            raise RuntimeError("the uploader runs already")
        if self._handlers and not settings.jobs:
            raise ConfigurationError(
                "UPLOADER_JOBS: what handlers are told of comes about in the jobs: they run with them"
            )
        await asyncio.to_thread(_make_directory, settings)
        async with _engine(settings) as wait_for_engine, _looked_after(settings) as look_again:
            if self._identify is None:
                await bootstrap.prepare_installation(settings)
            else:  # nobody needs the token of an owner
                await bootstrap.begin_installation(settings)
            await wait_for_engine()
            await bootstrap.check_redis(settings)
            services = bootstrap.Services(settings, handlers=self._handlers)
            async with bootstrap.running(services, jobs=settings.jobs):
                known = None if self._identify is None else partial(_known, self._identify)
                self._application = bootstrap.build_application(services, identify=known)
                self._files = FinishedFiles(services.files)
                look_again()
                try:
                    with bootstrap.connection_state(settings) as state:
                        yield state
                finally:
                    self._application = self._files = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000, "reason": None})
        elif self._application is None:
            raise RuntimeError(_NOT_RUNNING)
        else:
            await self._application(scope, receive, send)

    async def _live(self, scope: Any, receive: Any, send: Any) -> None:
        """Run as an application that is not mounted, from the server's `lifespan.startup` to its `lifespan.shutdown`."""
        await receive()
        step = "startup"
        try:
            async with self.running() as state:
                scope.get("state", {}).update(state)
                await send({"type": "lifespan.startup.complete"})
                await receive()
                step = "shutdown"
        except Exception as error:
            await send({"type": f"lifespan.{step}.failed", "message": str(error)})
            raise
        await send({"type": "lifespan.shutdown.complete"})


def _settings_of(keywords: Mapping[str, Any]) -> Settings:
    """Raises ConfigurationError."""
    given = {f"{PREFIX}{name.upper()}": _spelt(value) for name, value in keywords.items() if value is not None}
    return Settings.load({**os.environ, **given})


def _spelt(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _make_directory(settings: Settings) -> None:
    """Raises ConfigurationError."""
    try:
        settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"UPLOADER_DATA: {settings.data} can't be made: {error.strerror}") from error
    Ballast.beside(settings.data.absolute(), settings.sqlite_path).make_room()


@asynccontextmanager
async def _engine(settings: Settings) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Run the embedded Valkey, if no Redis is given; of several processes one owns it. Yields a wait until it answers."""
    engine = None if settings.redis_url is not None else EmbeddedRedis(bootstrap.redis_directory(settings))

    async def wait() -> None:
        if engine is not None:
            await asyncio.to_thread(engine.wait_until_ready)

    if engine is not None:
        engine.start()
    try:
        yield wait
    finally:
        if engine is not None:
            await uninterrupted(asyncio.to_thread(engine.stop))


@asynccontextmanager
async def _looked_after(settings: Settings) -> AsyncIterator[Callable[[], None]]:
    """Yield what begins to look, in a thread, at what a start need not wait for."""
    ended = threading.Event()

    def look() -> None:
        try:
            bootstrap.look_again(settings, ended.is_set)
        except ConfigurationError as error:
            logger.critical("the database is damaged: end the application", extra={"reason": error.detail})

    thread = threading.Thread(target=look, name="first moments", daemon=True)
    try:
        yield thread.start
    finally:
        ended.set()
        if thread.ident is not None:
            await asyncio.to_thread(thread.join, _PATIENCE_SECONDS)


async def _known(identify: Identify, scope: Any) -> access.Identity | None:
    told = identify(scope)
    identity = await told if isawaitable(told) else told
    return None if identity is None else access.Identity(owner(identity.user_id), identity.admin)
