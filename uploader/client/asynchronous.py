"""`AsyncClient`: the public API for programs with an event loop, and its only implementation.

Modules for HTTP, uploads and downloads are imported when needed: importing them takes as long as running a short
command.
"""

import asyncio
import os
import unicodedata
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from uploader.client import plan
from uploader.client.api import Api
from uploader.client.errors import BadAnswer, InvalidName, ServerProblem, ServerTooOld
from uploader.client.files import LocalFile, Outcome, Wanted, Watcher
from uploader.client.model import (
    DeletedFile,
    File,
    FilePage,
    Folder,
    IfExists,
    Link,
    LinkFacts,
    LinkKind,
    Upload,
    Usage,
)
from uploader.client.pace import OnRetry, Pace, Patience, error_of
from uploader.client.plan import checked_name, folder_name
from uploader.client.source import Source, Uploadable, open_source
from uploader.client.transfer import AsyncTransfer, Meter, OnProgress, Shared

if TYPE_CHECKING:
    import httpx2

    from uploader.client.links import Password
    from uploader.client.transport import Token

_RESTORING_SECONDS = 2.0
_RESTORED_AT_ONCE = 500
_PAGE = 1000


class AsyncClient:
    """Uploads, downloads and files of one user on one server. Use it as an async context manager, in one event loop.

    `token` is the bearer token, or a function that returns a token. The function is called before every request, so an
    expiring token can be replaced during a long upload. `connections` limits the chunks that all uploads of the client
    send at the same time. Files of at most `hash_first_bytes` are hashed before sending, because the server may have
    their content; larger files are hashed during the upload. `patience` says how long to repeat calls that fail for the
    moment; `on_retry` is called with each pause and its reason. `most_bytes_per_second` limits what all transfers of
    the client send and receive together; a low limit leaves fewer connections. When a large file replaces another one,
    only the changes are sent on a slow line; with `delta=True` always, with `delta=False` never.

    Every method raises `ClientError`. The error's `code` tells what went wrong; `retryable` is true if a later call may
    succeed.
    """

    def __init__(
        self,
        url: str,
        token: "Token | None" = None,
        *,
        connections: int = 4,
        chunk_size: int | None = None,
        hash_first_bytes: int = plan.HASH_FIRST_BYTES,
        patience: Patience | None = None,
        on_retry: OnRetry | None = None,
        most_bytes_per_second: float | None = None,
        delta: bool | None = None,
        http_transport: "httpx2.AsyncBaseTransport | None" = None,
    ) -> None:
        """Raises ValueError for an invalid URL or rate."""
        from uploader.client.transport import Transport

        pace = Pace(most_bytes_per_second)
        connections = pace.connections(connections)
        self._shared = Shared(connections, hash_first_bytes, chunk_size, most_bytes_per_second, delta)
        self._transport = Transport(
            url,
            token,
            patience=patience or Patience(),
            connections=connections,
            on_retry=on_retry,
            http_transport=http_transport,
            pace=pace,
        )
        self._api = Api(self._transport)

    @classmethod
    async def from_link(
        cls, url: str, password: "Password | None" = None, *, remember: bool = True, **options: Any
    ) -> Self:
        """Make a client for a link (`https://…/s/…`), without an account. `options` are those of the constructor.

        With a link to upload into, all ways of uploading work, and an interrupted run can be resumed. With a link to
        download from, the files can be listed and downloaded, by names below its folder. Other calls fail. `password`
        may be a function, which is called if the link has a password. The session is kept for the next run in
        `~/.config/uploader/links/` (or below XDG_CONFIG_HOME), unless `remember` is false: another session can't see
        the uploads of this one.

        Raises WrongPassword, NotFound and LinkGone; ValueError for a URL that is not a link's.
        """
        from uploader.client.links import enter, link_address

        address = link_address(url)
        if address is None:
            raise ValueError(f"{url!r} is not the URL of a link such as https://uploads.example.org/s/…")
        client = cls(address.server, **options)
        try:
            client._api = await enter(client._transport, address, password, remember=remember)
        except BaseException:
            await client.close()
            raise
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Await or stop running transfers first."""
        await self._api.close()

    # Uploading

    async def upload(
        self,
        source: Uploadable,
        name: str | None = None,
        *,
        if_exists: IfExists = "keep",
        on_progress: OnProgress | None = None,
    ) -> File:
        """Upload a path, bytes or a seekable binary file object, and wait for the resulting file.

        `name` is the relative path on the server, by default the name of the local file. Bytes that arrived earlier, in
        this run or another, are not sent again. Content that the server has is not sent at all, unless it is small. The
        file is compared with the source by its SHA-256. After a cancelled call, the next call resumes the upload.

        `if_exists` says what happens to your other files of this name: `keep` keeps both, `replace` removes them when
        the new file is made, `fail` fails with `name-taken`.
        """
        return await self.start(source, name, if_exists=if_exists, on_progress=on_progress)

    def start(
        self,
        source: Uploadable,
        name: str | None = None,
        *,
        if_exists: IfExists = "keep",
        on_progress: OnProgress | None = None,
    ) -> AsyncTransfer[File]:
        """Begin an upload that can be paused, stopped and cancelled; `await` it for the file. Arguments as of `upload`."""
        opened = open_source(source)
        try:
            checked = checked_name(name if name is not None else opened.name)
        except InvalidName:
            opened.close()
            raise
        return self._begin(opened, checked, if_exists, on_progress)

    def go_on(
        self, upload: Upload, source: Uploadable, *, on_progress: OnProgress | None = None
    ) -> AsyncTransfer[File]:
        """Resume an open upload of any client and protocol. If the upload turns out to be of other bytes, its bytes are
        dropped, and the source is uploaded under its name."""
        return self._begin(open_source(source), upload.name, "keep", on_progress, upload)

    def _begin(
        self,
        opened: Source,
        name: str,
        if_exists: IfExists,
        on_progress: OnProgress | None,
        upload: Upload | None = None,
    ) -> AsyncTransfer[File]:
        from uploader.client.upload import Destination, Uploading

        meter, gate = Meter(name, opened.size, on_progress), asyncio.Event()
        destination = Destination(name, if_exists, upload=upload)
        uploading = Uploading(self._api, opened, destination, meter, self._shared, gate)

        async def work() -> File:
            try:
                return await uploading.run()
            finally:
                opened.close()

        return AsyncTransfer(work(), gate, meter, uploading.discard)

    async def upload_many(
        self,
        files: Iterable[LocalFile],
        *,
        if_exists: IfExists = "keep",
        checksum: bool = False,
        watcher: Watcher | None = None,
    ) -> list[Outcome]:
        """Upload many files, small ones in batches. Return the outcomes of all files that were begun.

        A file is unchanged if the server has one with its name, size and time of modification; unchanged files are not
        read. With `checksum`, all files are read and compared by their SHA-256. A failure of one file is in its
        outcome, and does not hold up the others. If the server can't be reached, or does not know the token, the other
        files are not begun.
        """
        return await self.start_many(files, if_exists=if_exists, checksum=checksum, watcher=watcher)

    def start_many(
        self,
        files: Iterable[LocalFile],
        *,
        if_exists: IfExists = "keep",
        checksum: bool = False,
        watcher: Watcher | None = None,
    ) -> AsyncTransfer[list[Outcome]]:
        """Begin many uploads that can be paused, stopped and cancelled together. Takes the arguments of `upload_many`."""
        from uploader.client.many import ManyUploads

        chosen = list(files)
        meter, gate = Meter("", sum(local.size for local in chosen), None), asyncio.Event()
        uploads = ManyUploads(
            self._api, self._shared, watcher or Watcher(), meter, gate, if_exists=if_exists, checksum=checksum
        )
        return AsyncTransfer(uploads.run(chosen), gate, meter, uploads.discard)

    async def uploads(self) -> list[Upload]:
        """Return the open uploads of all devices, newest first."""
        return await self._api.uploads()

    async def cancel(self, upload_id: str) -> None:
        """Cancel an open upload: remove its bytes and free the reserved space."""
        await self._api.cancel(upload_id)

    async def can_replace(self) -> bool:
        """Return whether the server knows `if_exists`; servers before 0.2.0 do not. Asks the server once."""
        return await self._shared.at_once_bytes(self._api) > 0

    # Downloading

    async def download(
        self,
        file: File,
        target: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        allow_hidden: bool | None = None,
        on_progress: OnProgress | None = None,
    ) -> Path:
        """Download a file to a path, or into a directory under the last part of its name. Return the path.

        An interrupted download is resumed. The target appears when the file is whole and its SHA-256 is right, with the
        time of modification that the server knows. An existing target with this content stays; one with other content
        raises TargetExists. In a directory, hidden names and names of devices raise HiddenName if a stranger chose
        them, unless `allow_hidden`. By default, names behind a link are a stranger's, and names of an account are not.
        """
        return await self.start_download(
            file, target, overwrite=overwrite, allow_hidden=allow_hidden, on_progress=on_progress
        )

    def start_download(
        self,
        file: File,
        target: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        allow_hidden: bool | None = None,
        on_progress: OnProgress | None = None,
    ) -> AsyncTransfer[Path]:
        """Begin a download that can be paused and stopped. `await` it for its path. Takes the arguments of `download`."""
        from uploader.client.download import Downloading

        path = Path(target)
        if path.is_dir():
            path /= checked_name(file.name).rsplit("/", 1)[-1]
            if not self._allows_hidden(allow_hidden):
                plan.check_strangers_path(path.name)
        meter, gate = Meter(file.name, file.size, on_progress), asyncio.Event()

        async def work() -> Path:
            await Downloading(self._api, file, meter, gate).run(path, overwrite=overwrite)
            meter.received(file.size)
            meter.enter("complete")
            return path

        return AsyncTransfer(work(), gate, meter, _leave)

    def _allows_hidden(self, wish: bool | None) -> bool:
        """Return whether hidden names may be written. Behind a link, a stranger chose the names."""
        return self._api.has_account if wish is None else wish

    async def download_into(self, file: File, opened: BinaryIO, *, on_progress: OnProgress | None = None) -> None:
        """Write a file into a binary file object as it arrives. Raises ContentDiffers at the end for a wrong SHA-256."""
        from uploader.client.download import Downloading

        meter, gate = Meter(file.name, file.size, on_progress), asyncio.Event()
        gate.set()
        await Downloading(self._api, file, meter, gate).write(opened)
        meter.enter("complete")

    async def download_many(
        self,
        wanted: Iterable[Wanted],
        target: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        checksum: bool = False,
        allow_hidden: bool | None = None,
        watcher: Watcher | None = None,
    ) -> list[Outcome]:
        """Download many files into a directory, each to a path below it. Return the outcomes of all files that were
        begun.

        An existing file with the right size and time of modification is not downloaded; with `checksum`, existing files
        are read and compared by their SHA-256. No path leads out of the directory, whatever the server names its files.
        Behind a link, hidden paths are refused without `allow_hidden`. A failure of one file is in its outcome, and
        does not hold up the others. If the server can't be reached, or does not know the token, the other files are not
        begun.
        """
        return await self.start_download_many(
            wanted, target, overwrite=overwrite, checksum=checksum, allow_hidden=allow_hidden, watcher=watcher
        )

    def start_download_many(
        self,
        wanted: Iterable[Wanted],
        target: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        checksum: bool = False,
        allow_hidden: bool | None = None,
        watcher: Watcher | None = None,
    ) -> AsyncTransfer[list[Outcome]]:
        """Begin many downloads that can be paused and stopped together. Takes the arguments of `download_many`."""
        from uploader.client.downloads import ManyDownloads

        chosen = list(wanted)
        meter, gate = Meter("", sum(each.file.size for each in chosen), None), asyncio.Event()
        downloads = ManyDownloads(
            self._api,
            self._shared,
            watcher or Watcher(),
            meter,
            gate,
            overwrite=overwrite,
            checksum=checksum,
            allow_hidden=self._allows_hidden(allow_hidden),
        )
        return AsyncTransfer(downloads.run(chosen, Path(target)), gate, meter, _leave)

    async def download_folder(
        self,
        folder: str,
        target: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        checksum: bool = False,
        allow_hidden: bool | None = None,
        watcher: Watcher | None = None,
    ) -> list[Outcome]:
        """Download all files below a folder into a directory, as `download_many` does."""
        prefix = folder_name(folder)
        wanted = [Wanted(file, file.name.removeprefix(prefix)) async for file in self.files(prefix)]
        return await self.download_many(
            wanted, target, overwrite=overwrite, checksum=checksum, allow_hidden=allow_hidden, watcher=watcher
        )

    # Files and folders

    async def files(self, prefix: str | None = None, *, part: str | None = None) -> AsyncIterator[File]:
        """Yield all files whose names begin with `prefix` and contain `part`, newest first."""
        part = None if part is None else unicodedata.normalize("NFC", part)
        prefix = None if prefix is None else unicodedata.normalize("NFC", prefix)
        async for page in self._api.pages(prefix, _PAGE, part=part):
            for file in page.files:
                if not file.name.startswith(prefix or ""):
                    raise BadAnswer(f"asked for names that begin with {prefix!r}, the server gives {file.name!r}")
                if part is None or part in file.name:  # an older server ignores `part`
                    yield file

    async def page(self, after: str | None = None, *, prefix: str | None = None, limit: int = _PAGE) -> FilePage:
        """Return one page of files. Its `next` is the `after` of the following page."""
        return await self._api.page(after, prefix, limit)

    async def level(self, folder: str = "") -> AsyncIterator[Folder | File]:
        """Yield the folders and files directly below a folder, by name. Raises ServerTooOld."""
        async for page in self._api.pages(folder_name(folder) or None, _PAGE, one_level=True):
            if page.folders is None:
                raise ServerTooOld("the server is too old to list one level of a folder")
            found: list[Folder | File] = [*page.folders, *page.files]
            for each in sorted(found, key=lambda each: each.name.encode()):
                yield each

    async def named(self, name: str) -> list[File]:
        """Return all files of exactly this name, newest first."""
        name = unicodedata.normalize("NFC", name)
        page = await self._api.page(None, name, _PAGE, one_level=True)
        if page.folders is None:  # an older server
            return [file async for file in self.files(name) if file.name == name]
        return sorted(
            [file for file in page.files if file.name == name], key=lambda file: file.created_at, reverse=True
        )

    async def empty_folders(self, prefix: str | None = None) -> AsyncIterator[str]:
        """Yield the names of all empty folders below `prefix`, by name, each with a slash at the end. Other folders
        show in the names of their files. An older server has no empty folders."""
        prefix = None if prefix is None else unicodedata.normalize("NFC", prefix)
        with suppress(ServerTooOld):
            async for name in self._api.empty_folders(prefix, _PAGE):
                if not (name.startswith(prefix or "") and name.endswith("/")):
                    raise BadAnswer(f"asked for folders that begin with {prefix!r}, the server gives {name!r}")
                yield name

    async def make_folder(self, folder: str) -> bool:
        """Make an empty folder. Return False if it exists. Raises ServerTooOld."""
        return await self._api.make_folder(checked_name(folder.rstrip("/")))

    async def has_folder(self, folder: str) -> bool:
        """Return whether there is a folder of this name, empty or not."""
        prefix = folder_name(folder)
        if (await self._api.page(None, prefix, 1)).files:
            return True
        async for _ in self.empty_folders(prefix):
            return True
        return False

    async def delete_folder(self, folder: str) -> int:
        """Delete everything below a folder. Return the number of files. Raises ServerTooOld."""
        return await self._api.delete_below(folder_name(checked_name(folder.rstrip("/"))))

    async def move_folder(self, folder: str, new_folder: str, *, if_exists: IfExists = "fail") -> int:
        """Move everything below a folder to another one, `""` for the top. Return the number of files. If a name is
        taken, the call fails before anything is moved, unless `if_exists` says otherwise. Raises ServerTooOld."""
        old = folder_name(checked_name(folder.rstrip("/")))
        return await self._api.move_below(old, folder_name(new_folder), if_exists)

    async def file(self, file_id: str) -> File:
        """Return a file by its id."""
        return await self._api.file(file_id)

    async def rename(self, file_id: str, name: str, *, if_exists: IfExists = "fail") -> File:
        """Rename a file. If the name is taken, fail, add a number, or replace the other file, as `if_exists` says."""
        return await self._api.rename(file_id, checked_name(name), if_exists)

    async def delete(self, file_id: str) -> None:
        """Delete a file."""
        await self._api.delete(file_id)

    # Deleted files

    async def deleted(self, *, name: str | None = None) -> AsyncIterator[DeletedFile]:
        """Yield deleted and replaced files, latest first. Deleted files of the same name are earlier versions. Raises
        ServerTooOld."""
        name = None if name is None else unicodedata.normalize("NFC", name)
        async for page in self._api.deleted_pages(name, _PAGE):
            for file in page.files:
                yield file

    async def restore(self, file_id: str, *, name: str | None = None, if_exists: IfExists = "fail") -> File:
        """Restore a deleted file, under `name` if given. Wait while the server examines its content. With `replace`, a
        file that has the name goes to the trash. Raises ServerTooOld."""
        checked = None if name is None else checked_name(name)
        while True:
            file = await self._api.restore(file_id, checked, if_exists)
            if file is not None:
                return file
            await asyncio.sleep(_RESTORING_SECONDS)

    async def restore_many(self, ids: Iterable[str]) -> AsyncIterator[tuple[str, File | ServerProblem]]:
        """Restore many deleted files under their names. Yield each id with the file or the error. Files whose contents
        have to be examined come last. Raises ServerTooOld."""
        left = list(ids)
        while left:
            some, left = left[:_RESTORED_AT_ONCE], left[_RESTORED_AT_ONCE:]
            lines = await self._api.restore_many(some)
            for line in lines:
                if line.file is not None:
                    yield line.id, line.file
                elif line.problem is not None:
                    yield line.id, await self._restored(line.id, error_of(line.problem, line.status))
            examined = [line.id for line in lines if line.file is None and line.problem is None]
            if len(examined) == len(some):
                await asyncio.sleep(_RESTORING_SECONDS)
            left += examined

    async def _restored(self, file_id: str, refusal: ServerProblem) -> File | ServerProblem:
        """Restore a file alone, as patiently as any request, if another try may help."""
        try:
            return await self.restore(file_id) if refusal.retryable else refusal
        except ServerProblem as error:
            return error

    async def forget(self, file_id: str) -> None:
        """Remove a deleted file for good."""
        await self._api.forget(file_id)

    async def empty_trash(self) -> None:
        """Remove all deleted files for good."""
        await self._api.empty_trash()

    # Links

    async def link(self) -> LinkFacts | None:
        """Return the facts of the link that the client was made from; None for a client with an account."""
        return await self._api.link()

    async def make_link(
        self,
        name: str,
        kind: LinkKind = "download",
        *,
        label: str | None = None,
        expires_at: datetime | None = None,
        password: str | None = None,
        max_downloads: int | None = None,
        max_files: int | None = None,
        max_bytes: int | None = None,
    ) -> Link:
        """Make a link to download a file or a folder (with a slash at the end), or to upload into a folder, which is
        made if necessary. Without `expires_at`, the link works as long as the server allows. Raises ServerTooOld."""
        facts = {"kind": kind, "name": f"{checked_name(name.rstrip('/'))}{'/' if name.endswith('/') else ''}"}
        limits = {"max_downloads": max_downloads, "max_files": max_files, "max_bytes": max_bytes}
        until = None if expires_at is None else expires_at.isoformat()
        told = {"label": label, "expires_at": until, "password": password, **limits}
        return await self._api.make_link(facts | {name: value for name, value in told.items() if value is not None})

    async def links(self) -> list[Link]:
        """Return the user's own links, newest first. Raises ServerTooOld."""
        return await self._api.links()

    async def change_link(self, link_id: str, facts: Mapping[str, Any]) -> Link:
        """Change a link: its `label`, `expires_at`, `password`, `max_downloads`, `max_files` or `max_bytes`, in the
        server's JSON types. None removes a limit or the password."""
        return await self._api.change_link(link_id, facts)

    async def revoke_link(self, link_id: str) -> None:
        """End a link, and all its running requests."""
        await self._api.revoke_link(link_id)

    async def usage(self) -> Usage:
        """Return the used and the available space."""
        return await self._api.usage()


async def _leave() -> None:
    """Keep the received bytes of a download for the next run."""
