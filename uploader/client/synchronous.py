"""`Client`: the public API for programs without an event loop: an `AsyncClient` in a thread of its own, and no logic."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Generic, Self, TypeVar

import httpx2

from uploader.client.asynchronous import AsyncClient
from uploader.client.fetching.targets import Wanted
from uploader.client.many.files import LocalFile, Outcome, Watcher
from uploader.client.model import File, FilePage, Folder, IfExists, Upload, Usage
from uploader.client.transfers import plan
from uploader.client.transfers.progress import OnProgress, Progress
from uploader.client.transfers.source import Uploadable
from uploader.client.transfers.transfer import AsyncTransfer
from uploader.client.transport import OnRetry, Patience, Token

T = TypeVar("T")

_AT_ONCE = 1000


class _Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="uploader-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_seconds: float | None = None) -> T:
        """Run it there and wait here; whatever interrupts the waiting ends the work first."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_seconds)
        except BaseException:
            future.cancel()
            raise

    def stop(self, last: Coroutine[Any, Any, None]) -> None:
        """End everything that runs there, do one thing more, then end the thread."""
        self.run(_end_all_others())
        self.run(last)
        self.run(self._loop.shutdown_asyncgens())
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end_all_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _call(function: Callable[[], T]) -> T:
    """An event loop's own things are used in its thread only."""
    return function()


async def _next_of(found: AsyncIterator[T]) -> list[T]:
    """A page or so, because the way between two threads is long. Empty at the end."""
    some = []
    async for each in found:
        some.append(each)
        if len(some) == _AT_ONCE:
            break
    return some


class Transfer(Generic[T]):
    """An upload or a download that runs in the background."""

    def __init__(self, loop: _Loop, transfer: AsyncTransfer[T]) -> None:
        self._loop = loop
        self._transfer = transfer

    @property
    def progress(self) -> Progress:
        return self._loop.run(_call(lambda: self._transfer.progress))

    @property
    def done(self) -> bool:
        return self._transfer.done

    def pause(self) -> None:
        """Begin no further chunk; those that are on their way arrive."""
        self._loop.run(_call(self._transfer.pause))

    def resume(self) -> None:
        self._loop.run(_call(self._transfer.resume))

    def stop(self) -> None:
        """End it and keep what has arrived: the same call goes on from there, also elsewhere."""
        self._loop.run(self._transfer.stop())

    def cancel(self) -> None:
        """End it and keep nothing. Does nothing if it has ended."""
        self._loop.run(self._transfer.cancel())

    def result(self, timeout_seconds: float | None = None) -> T:
        """Wait for what comes of it. Raises Stopped, Cancelled, ClientError; TimeoutError, and then it goes on."""
        self._loop.run(self._transfer.wait(), timeout_seconds)
        return self._loop.run(self._transfer.result())


class Client:
    """Uploads, downloads and files of one user of one server. Use it as a context manager, from any thread.

    Everything means what it means in `AsyncClient`. Callbacks are called in the client's own thread, and must not call
    the client.
    """

    def __init__(
        self,
        url: str,
        token: Token | None = None,
        *,
        connections: int = 4,
        chunk_size: int | None = None,
        hash_first_bytes: int = plan.HASH_FIRST_BYTES,
        patience: Patience | None = None,
        on_retry: OnRetry | None = None,
        http_transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """Raises ValueError for a URL that is none."""
        self._client = AsyncClient(
            url,
            token,
            connections=connections,
            chunk_size=chunk_size,
            hash_first_bytes=hash_first_bytes,
            patience=patience,
            on_retry=on_retry,
            http_transport=http_transport,
        )
        self._loop = _Loop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the transfers that run, and close the connections."""
        self._loop.stop(self._client.close())

    # Uploading

    def upload(
        self,
        source: Uploadable,
        name: str | None = None,
        *,
        if_exists: IfExists = "keep",
        on_progress: OnProgress | None = None,
    ) -> File:
        """Upload a path, bytes or a seekable binary file object, and wait for the file it becomes."""
        return self._loop.run(self._client.upload(source, name, if_exists=if_exists, on_progress=on_progress))

    def start(
        self,
        source: Uploadable,
        name: str | None = None,
        *,
        if_exists: IfExists = "keep",
        on_progress: OnProgress | None = None,
    ) -> Transfer[File]:
        """Begin an upload that can be paused, stopped and cancelled."""

        def begin() -> AsyncTransfer[File]:
            return self._client.start(source, name, if_exists=if_exists, on_progress=on_progress)

        return Transfer(self._loop, self._loop.run(_call(begin)))

    def upload_many(
        self,
        files: Iterable[LocalFile],
        *,
        if_exists: IfExists = "keep",
        checksum: bool = False,
        watcher: Watcher | None = None,
    ) -> list[Outcome]:
        """Upload many files, small ones in batches; what became of each that was begun."""
        return self._loop.run(self._client.upload_many(files, if_exists=if_exists, checksum=checksum, watcher=watcher))

    def start_many(
        self,
        files: Iterable[LocalFile],
        *,
        if_exists: IfExists = "keep",
        checksum: bool = False,
        watcher: Watcher | None = None,
    ) -> Transfer[list[Outcome]]:
        """Begin many uploads that can be paused, stopped and cancelled together."""

        def begin() -> AsyncTransfer[list[Outcome]]:
            return self._client.start_many(files, if_exists=if_exists, checksum=checksum, watcher=watcher)

        return Transfer(self._loop, self._loop.run(_call(begin)))

    def uploads(self) -> list[Upload]:
        """The open uploads, newest first, also those of other devices."""
        return self._loop.run(self._client.uploads())

    def cancel(self, upload_id: str) -> None:
        """Cancel an open upload: its bytes are freed and its quota is given back."""
        self._loop.run(self._client.cancel(upload_id))

    # Downloading

    def download(
        self,
        file: File,
        target: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        on_progress: OnProgress | None = None,
    ) -> Path:
        """Download a file to a path, or into a directory under the last part of its name; returns the path."""
        return self._loop.run(self._client.download(file, target, overwrite=overwrite, on_progress=on_progress))

    def start_download(
        self,
        file: File,
        target: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        on_progress: OnProgress | None = None,
    ) -> Transfer[Path]:
        """Begin a download that can be paused and stopped."""

        def begin() -> AsyncTransfer[Path]:
            return self._client.start_download(file, target, overwrite=overwrite, on_progress=on_progress)

        return Transfer(self._loop, self._loop.run(_call(begin)))

    def download_into(self, file: File, opened: BinaryIO, *, on_progress: OnProgress | None = None) -> None:
        """Write a file into a binary file object while it comes."""
        self._loop.run(self._client.download_into(file, opened, on_progress=on_progress))

    def download_many(
        self,
        wanted: Iterable[Wanted],
        target: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        checksum: bool = False,
        watcher: Watcher | None = None,
    ) -> list[Outcome]:
        """Download many files into a directory, each to a path below it; what became of each that was begun."""
        return self._loop.run(
            self._client.download_many(wanted, target, overwrite=overwrite, checksum=checksum, watcher=watcher)
        )

    def start_download_many(
        self,
        wanted: Iterable[Wanted],
        target: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        checksum: bool = False,
        watcher: Watcher | None = None,
    ) -> Transfer[list[Outcome]]:
        """Begin many downloads that can be paused and stopped together."""

        def begin() -> AsyncTransfer[list[Outcome]]:
            return self._client.start_download_many(
                wanted, target, overwrite=overwrite, checksum=checksum, watcher=watcher
            )

        return Transfer(self._loop, self._loop.run(_call(begin)))

    def download_folder(
        self,
        folder: str,
        target: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        checksum: bool = False,
        watcher: Watcher | None = None,
    ) -> list[Outcome]:
        """Download all that is below a folder into a directory, as `download_many` does."""
        return self._loop.run(
            self._client.download_folder(folder, target, overwrite=overwrite, checksum=checksum, watcher=watcher)
        )

    # Files and folders

    def files(self, prefix: str | None = None, *, part: str | None = None) -> Iterator[File]:
        """All files whose name begins with `prefix`, and has `part` anywhere in it, newest first."""
        return self._each(self._client.files(prefix, part=part))

    def level(self, folder: str = "") -> Iterator[Folder | File]:
        """The folders and files right below a folder, by name."""
        return self._each(self._client.level(folder))

    def _each(self, found: AsyncIterator[T]) -> Iterator[T]:
        while some := self._loop.run(_next_of(found)):
            yield from some

    def named(self, name: str) -> list[File]:
        """All files of exactly this name, newest first."""
        return self._loop.run(self._client.named(name))

    def delete_folder(self, folder: str) -> int:
        """Delete all that is below a folder; how many files."""
        return self._loop.run(self._client.delete_folder(folder))

    def move_folder(self, folder: str, new_folder: str) -> int:
        """Give all that is below a folder another one, `""` for none; how many files."""
        return self._loop.run(self._client.move_folder(folder, new_folder))

    def page(self, after: str | None = None, *, prefix: str | None = None, limit: int = 1000) -> FilePage:
        """One page of files; its `next` is `after` for the following one."""
        return self._loop.run(self._client.page(after, prefix=prefix, limit=limit))

    def file(self, file_id: str) -> File:
        """One file, by its id."""
        return self._loop.run(self._client.file(file_id))

    def rename(self, file_id: str, name: str) -> File:
        """Give a file another name."""
        return self._loop.run(self._client.rename(file_id, name))

    def delete(self, file_id: str) -> None:
        """Delete a file."""
        self._loop.run(self._client.delete(file_id))

    def usage(self) -> Usage:
        """How much is used, and how much is left."""
        return self._loop.run(self._client.usage())
