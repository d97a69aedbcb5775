"""The server as an ASGI application: mounted in another application, or served alone by any ASGI server.

Owns what surrounds the server: the data directory, the embedded Valkey, migrations, background jobs. Leaves TLS to the
ASGI server. Refuses `UPLOADER_AUTH=none`, because the clients of the ASGI server are unknown.
"""

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, TypeVar
from unicodedata import normalize

from uploader import bootstrap
from uploader.domain.events import EventType
from uploader.domain.links import owner
from uploader.domain.names import Folder, Place, check_user_id, normalise_name
from uploader.domain.upload import File, State
from uploader.errors import ConfigurationError, FileHeld, FileNotFound, Unavailable, UploadGone, UploadNotFound
from uploader.http.app import Application
from uploader.http.server.http11 import HttpConnection
from uploader.runtime.embedded import EmbeddedRedis
from uploader.runtime.tasks import uninterrupted
from uploader.service import access
from uploader.service.ids import ID
from uploader.service.results import Target
from uploader.service.signed_urls import file_subject
from uploader.settings import PREFIX, Settings
from uploader.sinks.configuration import SINK_NAME, HandlerSettings
from uploader.storage.ballast import Ballast
from uploader.storage.disk import PASSING

if TYPE_CHECKING:
    from uploader.client import IfExists
    from uploader.client.source import Uploadable

__all__ = [
    "File",
    "FileHeld",
    "FileNotFound",
    "FinishedFiles",
    "Folder",
    "HttpConnection",
    "Identity",
    "UploadUnfinished",
    "Uploader",
]

logger = logging.getLogger(__name__)

_NOT_RUNNING = "the uploader does not run: enter `running()` in the lifespan of the application that it is a part of"
_PIECE_BYTES = 256 << 10
# The base URL of in-process requests of our own client, and the key of their user in the scope.
_IN_PROCESS, _NAMED = "http://uploader", "uploader.identity"
# How long the end of the application waits for the thread that looks at the database.
_PATIENCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Identity:
    """A user of the application. `admin`: an administrator of the uploader. Raises TypeError for other types, because a
    framework's value for "no" may be true in Python."""

    user_id: str
    admin: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.user_id, str):
            raise TypeError(f"Identity: user_id is a str, not {self.user_id!r}")
        if not isinstance(self.admin, bool):
            raise TypeError(f"Identity: admin is True or False, not {self.admin!r}")


# Returns the user of a request from its ASGI scope; each framework has its own type for a scope. None: unknown.
Identify = Callable[[Any], Identity | Awaitable[Identity | None] | None]

T = TypeVar("T")
H = TypeVar("H", bound=Callable[[dict[str, Any]], Any])


class UploadUnfinished(Exception):
    """The upload is not finished, so there is no file yet."""


@dataclass(frozen=True, slots=True)
class FinishedFiles:
    """The finished files of all users, for code in this process."""

    _services: bootstrap.Services
    # A second instance of the server, for requests whose user this process names.
    _application: Application

    def check_started(self) -> None:
        """Raises Unavailable while the start waits."""
        if (reason := self._services.start.waits_for) is not None:
            raise Unavailable("The uploader starts: try again soon.", inside=f"the start waits: {reason}")

    async def get(self, user_id: str, file_id: str) -> File:
        """Return a finished file of the user. Raises FileNotFound, FileHeld."""
        return await self._services.files.get(user_id, file_id)

    async def find(self, user_id: str, told_id: str) -> File:
        """Return a finished file of the user by an id from a form: of the file or of its upload. Raises FileNotFound,
        FileHeld, UploadUnfinished."""
        if not ID.fullmatch(told_id):
            raise FileNotFound()
        try:
            return await self.get(user_id, told_id)
        except FileNotFound as unknown:
            uploads = self._services.uploads
            try:
                upload = await uploads.known(Target(owner(user_id), upload_id=told_id))
                if upload.state is State.OPEN:
                    raise UploadUnfinished()
                file = (await uploads.ended(upload)).file
            except (UploadNotFound, UploadGone):
                raise unknown from None
        if file.held:
            raise FileHeld()
        return file

    async def named(self, user_id: str, name: str) -> File | None:
        """Return the finished file of the user with this name; None if there is none."""
        try:
            return await self._services.files.named(check_user_id(user_id), normalise_name(name))
        except ValueError:
            return None

    async def level(
        self, user_id: str, prefix: str = "", *, after: Place | None = None, limit: int = 1000
    ) -> tuple[list[Folder | File], Place | None]:
        """Return a page of the folders and files directly in a folder, by name, and the place of the next page.
        `prefix`: the folder, with a slash at its end."""
        prefix = normalize("NFC", prefix)
        return await self._services.folders.level(user_id, prefix, limit=limit, after=after)

    async def list(
        self, user_id: str, *, prefix: str = "", after: str | None = None, limit: int = 100
    ) -> tuple[list[File], str | None]:
        """Return a page of files whose names start with `prefix`, the newest first, and the cursor of the next page."""
        return await self._services.files.list(user_id, limit=limit, after=after, prefix=prefix)

    async def read(self, file: File, offset: int = 0) -> AsyncIterator[bytes]:
        """Yield the content of a file from `offset`, compared with its checksums. Raises FileNotFound, ContentDamaged,
        Unavailable."""
        files = self._services.files
        content = await files.open(file)
        try:
            while offset < file.size:
                async with files.noting(file):
                    piece = await content.read(min(_PIECE_BYTES, file.size - offset), offset)
                offset += len(piece)
                yield piece
        finally:
            await uninterrupted(content.close())

    async def link(self, file: File, lifetime_seconds: int = 300) -> str:
        """Return a path below the server's, by which anybody may download the file for `lifetime_seconds`, at most for
        UPLOADER_LINK_LIFETIME."""
        query, _ = self._services.signed_urls.make(file.user_id, file_subject(file.id), lifetime_seconds)
        return f"/me/files/{file.id}/content?{query}"

    async def upload(self, user_id: str, source: "Uploadable", name: str, *, if_exists: "IfExists" = "keep") -> File:
        """Upload a path, bytes or a seekable binary file object for the user, as a client would: quota, limits and
        hooks apply. The file may be `held` by a gate. Raises ClientError."""
        # Imported here, because only uploads need the client.
        import httpx2

        from uploader.client import AsyncClient

        async def as_user(scope: Any, receive: Any, send: Any) -> None:
            await self._application({**scope, _NAMED: access.Identity(owner(user_id))}, receive, send)

        transport = httpx2.ASGITransport(as_user)
        async with AsyncClient(_IN_PROCESS, http_transport=transport) as client:
            made = await client.upload(source, name, if_exists=if_exists)
        return await self._services.files.get(user_id, made.id, held=True)

    async def delete(self, user_id: str, file_id: str) -> None:
        await self._services.files.delete(user_id, file_id)


class Uploader:
    """An upload server inside another application. Settings are a `Settings`, or keywords named and spelt like the
    environment variables, such as `data="/srv/uploads", max_file_size="10GiB"`, which override the environment.

    `identify` replaces tokens. It gets the ASGI scope of a request, with everything that the surrounding application
    put there, and returns the user; None: unknown.
    """

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
        # The number of processes is unknown, so each process assumes that there are several.
        self.settings = replace(settings, workers=max(2, settings.workers))
        self._identify = identify
        self._handlers: dict[str, HandlerSettings] = {}
        self._application: Application | None = None
        self._files: FinishedFiles | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # In process

    @property
    def files(self) -> FinishedFiles:
        """The finished files. Raises RuntimeError outside of `running()`, Unavailable while the start waits."""
        if self._files is None:
            raise RuntimeError(_NOT_RUNNING)
        self._files.check_started()
        return self._files

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the event loop of the uploader and return its result. For threads without an event loop. Raises
        RuntimeError in an event loop, or outside of `running()`."""
        try:
            if self._loop is None:
                raise RuntimeError(_NOT_RUNNING)
            if _is_in_loop():
                raise RuntimeError("an event loop can't wait: `await` it there, or wait in a thread")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise
        try:
            return future.result()
        finally:
            future.cancel()  # if the thread was interrupted

    async def identity(self, scope: Any) -> Identity | None:
        """Return the user of a request by `identify`. Raises TypeError if `identify` returns another type."""
        told = None if self._identify is None else self._identify(scope)
        found = await told if isawaitable(told) else told
        if found is not None and not isinstance(found, Identity):
            raise TypeError(f"`identify` returns an Identity or None, not {found!r}")
        return found

    def on(self, *types: str, name: str | None = None) -> Callable[[H], H]:
        """Decorate a function, also an asynchronous one, to be told of events of these types (docs/events.md): each
        event at least once, in one process of the application, and again later if the function raises. `name`: the name
        of the function in the database, by default its own."""
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
        """Serve inside. A start that has to wait for the database, the store or the disk continues in the background,
        and requests get 503 until then. Yields the state of the lifespan, for `HttpConnection`. Raises
        ConfigurationError."""
        settings = self.settings
        if self._application is not None:
            raise RuntimeError("the uploader runs already")
        if self._handlers and not settings.jobs:
            raise ConfigurationError(
                "UPLOADER_JOBS: what handlers are told of comes about in the jobs: they run with them"
            )
        await asyncio.to_thread(_make_directory, settings)
        async with _engine(settings) as wait_for_engine, _looked_after(settings) as look_again:
            services = bootstrap.Services(settings, handlers=self._handlers)
            # With `identify` nobody needs the token of the owner.
            prepare = partial(bootstrap.prepare_start, settings, wait_for_engine, makes_owner=self._identify is None)
            serving = partial(bootstrap.serving, services, jobs=settings.jobs)
            start = bootstrap.starting(services.start, serving, prepare=prepare, give_up=lambda: None)
            async with bootstrap.closing_services(services), start:
                known = None if self._identify is None else self._known
                self._application = bootstrap.build_application(services, identify=known)
                self._files = FinishedFiles(services, bootstrap.build_application(services, identify=_named))
                self._loop = asyncio.get_running_loop()
                look_again()
                try:
                    with bootstrap.connection_state(settings) as state:
                        yield state
                finally:
                    self._application = self._files = self._loop = None

    async def _known(self, scope: Any) -> access.Identity | None:
        identity = await self.identity(scope)
        return None if identity is None else access.Identity(owner(identity.user_id), identity.admin)

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
        """Run unmounted: from the server's `lifespan.startup` to its `lifespan.shutdown`."""
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


async def _named(scope: Any) -> access.Identity | None:
    found: access.Identity | None = scope.get(_NAMED)
    return found


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


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
        if error.errno in PASSING:  # the start waits
            return
        raise ConfigurationError(f"UPLOADER_DATA: {settings.data} can't be made: {error.strerror}") from error
    Ballast.beside(settings.data.absolute(), settings.sqlite_path).make_room()


@asynccontextmanager
async def _engine(settings: Settings) -> AsyncIterator[Callable[[], None]]:
    """Run the embedded Valkey, if no Redis is configured; one of several processes owns it. Yields a function that
    waits for the first answer."""
    if settings.redis_url is not None:
        yield lambda: None
        return
    engine = EmbeddedRedis(bootstrap.redis_directory(settings))
    engine.start()
    try:
        yield engine.wait_until_ready
    finally:
        await uninterrupted(asyncio.to_thread(engine.stop))


@asynccontextmanager
async def _looked_after(settings: Settings) -> AsyncIterator[Callable[[], None]]:
    """Yield a function that starts the checks, in a thread, for which a start need not wait."""
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
