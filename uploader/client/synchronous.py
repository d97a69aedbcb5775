"""`Client`: the public API for programs without an event loop: an `AsyncClient` in a thread of its own, and no logic."""

import os
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Generic, Self, TypeVar

import httpx2

from uploader.client.asynchronous import AsyncClient
from uploader.client.fetching.targets import Wanted
from uploader.client.looping import Loop, call, next_of
from uploader.client.many.files import LocalFile, Outcome, Watcher
from uploader.client.model import File, FilePage, Folder, IfExists, Upload, Usage
from uploader.client.transfers import plan
from uploader.client.transfers.progress import OnProgress, Progress
from uploader.client.transfers.source import Uploadable
from uploader.client.transfers.transfer import AsyncTransfer
from uploader.client.transport import OnRetry, Patience, Token

T = TypeVar("T")


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
        """Begin no further chunk; those that are on their way arrive."""
        self._loop.run(call(self._transfer.pause))

    def resume(self) -> None:
        self._loop.run(call(self._transfer.resume))

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
        most_bytes_per_second: float | None = None,
        delta: bool = True,
        http_transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """Raises ValueError for a URL that is none, or a rate that is none."""
        self._client = AsyncClient(
            url,
            token,
            connections=connections,
            chunk_size=chunk_size,
            hash_first_bytes=hash_first_bytes,
            patience=patience,
            on_retry=on_retry,
            most_bytes_per_second=most_bytes_per_second,
            delta=delta,
            http_transport=http_transport,
        )
        self._loop = Loop()

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

        return Transfer(self._loop, self._loop.run(call(begin)))

    def go_on(self, upload: Upload, source: Uploadable, *, on_progress: OnProgress | None = None) -> Transfer[File]:
        """Go on with an open upload, whoever began it."""

        def begin() -> AsyncTransfer[File]:
            return self._client.go_on(upload, source, on_progress=on_progress)

        return Transfer(self._loop, self._loop.run(call(begin)))

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

        return Transfer(self._loop, self._loop.run(call(begin)))

    def can_replace(self) -> bool:
        """Whether the server knows `if_exists`."""
        return self._loop.run(self._client.can_replace())

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

        return Transfer(self._loop, self._loop.run(call(begin)))

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

        return Transfer(self._loop, self._loop.run(call(begin)))

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
        while some := self._loop.run(next_of(found)):
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
