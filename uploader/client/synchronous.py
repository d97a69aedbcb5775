"""`Client`: the public API for programs without an event loop. Runs an `AsyncClient` in a thread."""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, get_args

from uploader.client.asynchronous import AsyncClient
from uploader.client.transfer import AsyncTransfer, Progress

if TYPE_CHECKING:
    from uploader.client.links import Password

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_AT_ONCE = 1000


class Loop:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="uploader-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_seconds: float | None = None) -> T:
        """Run a coroutine in the loop's thread, and wait here. If the wait is interrupted, cancel the coroutine."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_seconds)
        except BaseException:
            future.cancel()
            raise

    def stop(self, last: Coroutine[Any, Any, None]) -> None:
        """Cancel everything that runs in the loop, run `last`, then end the thread."""
        self.run(_end_all_others())
        self.run(last)
        self.run(self._loop.shutdown_asyncgens())
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _nothing() -> None:
    """The last step of `stop` when there is nothing left to close."""


async def _end_all_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def call(function: Callable[[], T]) -> T:
    """Call a function in the thread of the event loop."""
    return function()


async def next_of(found: AsyncIterator[T]) -> list[T]:
    """Return the next items, up to 1000, because a switch of threads is slow. Empty at the end."""
    some = []
    async for each in found:
        some.append(each)
        if len(some) == _AT_ONCE:
            break
    return some


class Transfer(Generic[T]):
    """An upload or a download that runs in the background."""

    def __init__(self, loop: Loop, transfer: AsyncTransfer[T]) -> None:
        self._loop = loop
        self._transfer = transfer

    @property
    def progress(self) -> Progress:
        return self._loop.run(call(lambda: self._transfer.progress))

    @property
    def done(self) -> bool:
        return self._transfer.done

    def pause(self) -> None:
        """Begin no further chunk; chunks on their way arrive."""
        self._loop.run(call(self._transfer.pause))

    def resume(self) -> None:
        self._loop.run(call(self._transfer.resume))

    def stop(self) -> None:
        """End the transfer and keep the received bytes: the same call resumes it, also elsewhere."""
        self._loop.run(self._transfer.stop())

    def cancel(self) -> None:
        """End the transfer and keep nothing. Does nothing if the transfer has ended."""
        self._loop.run(self._transfer.cancel())

    def result(self, timeout_seconds: float | None = None) -> T:
        """Wait for the result. Raises Stopped, Cancelled, ClientError; TimeoutError, after which the transfer goes on."""
        self._loop.run(self._transfer.wait(), timeout_seconds)
        return self._loop.run(self._transfer.result())


# The methods of `Client` take arguments and docstrings from the methods of `AsyncClient`, and return the results.


def _taking(
    _init: Callable[Concatenate[AsyncClient, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate["Client", P], None]]:
    return wraps(_init)


def _documented(method: Any) -> Callable[[F], F]:
    def copy(function: F) -> F:
        function.__doc__ = method.__doc__
        return function

    return copy


def _returning(kind: Any, wrapper: Callable[P, T], method: Callable[..., Any]) -> Callable[P, T]:
    """Give a wrapper the signature of `method`, with `kind` in place of the asynchronous return type."""
    signature = inspect.signature(method)
    returned = kind[get_args(signature.return_annotation)]
    wrapper.__signature__ = signature.replace(return_annotation=returned)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {**method.__annotations__, "return": returned}
    return wrapper


def _result(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["Client", P], T]:
    @wraps(method)
    def wait(self: "Client", /, *args: P.args, **options: P.kwargs) -> T:
        return self._loop.run(method(self._client, *args, **options))

    return wait


def _each(
    method: Callable[Concatenate[AsyncClient, P], AsyncIterator[T]],
) -> Callable[Concatenate["Client", P], Iterator[T]]:
    @wraps(method)
    def iterate(self: "Client", /, *args: P.args, **options: P.kwargs) -> Iterator[T]:
        found = method(self._client, *args, **options)
        while some := self._loop.run(next_of(found)):
            yield from some

    return _returning(Iterator, iterate, method)


def _transfer(
    method: Callable[Concatenate[AsyncClient, P], AsyncTransfer[T]],
) -> Callable[Concatenate["Client", P], Transfer[T]]:
    @wraps(method)
    def begin(self: "Client", /, *args: P.args, **options: P.kwargs) -> Transfer[T]:
        return Transfer(self._loop, self._loop.run(call(partial(method, self._client, *args, **options))))

    return _returning(Transfer, begin, method)


class Client:
    """Uploads, downloads and files of one user on one server. Use it as a context manager, from any thread.

    Methods, arguments and results are those of `AsyncClient`. Callbacks are called in the client's own thread, and must
    not call the client.
    """

    @_taking(AsyncClient.__init__)
    def __init__(self, *args: Any, **options: Any) -> None:
        self._client = AsyncClient(*args, **options)
        self._loop = Loop()

    @classmethod
    @_documented(AsyncClient.from_link)
    def from_link(cls, url: str, password: "Password | None" = None, *, remember: bool = True, **options: Any) -> Self:
        made, loop = cls.__new__(cls), Loop()
        try:
            made._client = loop.run(AsyncClient.from_link(url, password, remember=remember, **options))
        except BaseException:
            loop.stop(_nothing())
            raise
        made._loop = loop
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the running transfers, and close the connections."""
        self._loop.stop(self._client.close())

    upload = _result(AsyncClient.upload)
    start = _transfer(AsyncClient.start)
    go_on = _transfer(AsyncClient.go_on)
    upload_many = _result(AsyncClient.upload_many)
    start_many = _transfer(AsyncClient.start_many)
    uploads = _result(AsyncClient.uploads)
    cancel = _result(AsyncClient.cancel)
    can_replace = _result(AsyncClient.can_replace)

    download = _result(AsyncClient.download)
    start_download = _transfer(AsyncClient.start_download)
    download_into = _result(AsyncClient.download_into)
    download_many = _result(AsyncClient.download_many)
    start_download_many = _transfer(AsyncClient.start_download_many)
    download_folder = _result(AsyncClient.download_folder)

    files = _each(AsyncClient.files)
    page = _result(AsyncClient.page)
    level = _each(AsyncClient.level)
    named = _result(AsyncClient.named)
    empty_folders = _each(AsyncClient.empty_folders)
    make_folder = _result(AsyncClient.make_folder)
    has_folder = _result(AsyncClient.has_folder)
    delete_folder = _result(AsyncClient.delete_folder)
    move_folder = _result(AsyncClient.move_folder)
    file = _result(AsyncClient.file)
    rename = _result(AsyncClient.rename)
    delete = _result(AsyncClient.delete)
    deleted = _each(AsyncClient.deleted)
    restore = _result(AsyncClient.restore)
    restore_many = _each(AsyncClient.restore_many)
    forget = _result(AsyncClient.forget)
    empty_trash = _result(AsyncClient.empty_trash)
    link = _result(AsyncClient.link)
    make_link = _result(AsyncClient.make_link)
    links = _result(AsyncClient.links)
    change_link = _result(AsyncClient.change_link)
    revoke_link = _result(AsyncClient.revoke_link)
    usage = _result(AsyncClient.usage)
