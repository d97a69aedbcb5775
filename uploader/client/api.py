"""The HTTP contract as typed calls, one for each need of the client. Decides nothing."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import msgspec
from msgspec.json import Decoder

from uploader.client import model
from uploader.client.errors import BadAnswer, NotFound, ServerProblem, ServerTooOld
from uploader.client.pace import Retrying

if TYPE_CHECKING:
    import httpx2

    from uploader.client.transport import Transport

T = TypeVar("T")
P = TypeVar("P", model.FilePage, model.DeletedPage, model.EmptyFolders)

# How long a server may take to change all files of a folder, or to read a large file.
_MANY_FILES_SECONDS = 600.0
# An archive without members: the two blocks of zeros at its end.
EMPTY_ARCHIVE = bytes(1024)
_OCTETS = {"Content-Type": "application/octet-stream"}
# tus 1.0.0
_TUS = {"Tus-Resumable": "1.0.0"}
_TUS_OCTETS = {"Content-Type": "application/offset+octet-stream"}
_TAR = {"Content-Type": "application/x-tar"}
_OPENED: Decoder[model.Opened] = Decoder(model.Opened)
_STANDING: Decoder[model.UploadStatus] = Decoder(model.UploadStatus)
_SENT: Decoder[model.Sent] = Decoder(model.Sent)
_COMPLETE = Decoder(model.Complete | model.Held)
_UPLOADS = Decoder(model.UploadList)
_FILE = Decoder(model.File)
_DELETED_PAGE = Decoder(model.DeletedPage)
_PAGE = Decoder(model.FilePage)
_EMPTY_FOLDER = Decoder(model.EmptyFolder)
_EMPTY_FOLDERS = Decoder(model.EmptyFolders)
_CHANGED = Decoder(model.Changed)
_USAGE = Decoder(model.Usage)
_CONFIG = Decoder(model.Config)
_LINES = Decoder(model.Lines)
_RESTORE_LINES = Decoder(model.RestoreLines)
_LINK = Decoder(model.Link)
_LINKS = Decoder(model.LinkList)
_LINK_FACTS = Decoder(model.LinkFacts)
_LINK_SESSION = Decoder(model.LinkSession)
_STATES = Decoder(dict[str, model.State])


class Api:
    # True if the caller has a quota to ask for.
    has_account = True
    # The path of the caller's files.
    files_path = "/me/files"

    def __init__(self, transport: "Transport") -> None:
        self._transport = transport

    def retrying(self) -> Retrying:
        return self._transport.retrying()

    async def close(self) -> None:
        await self._transport.close()

    # Uploading

    async def config(self) -> model.Config:
        return await self._call("GET", "/config", _CONFIG)

    async def takes_batches(self) -> bool:
        """Return whether the server takes batches, files in one request, `if_exists` and `modified_at` (0.2.0)."""
        try:
            await self._transport.request("POST", "/files/batch", content=EMPTY_ARCHIVE, headers=_TAR)
        except (ServerProblem, BadAnswer) as error:
            # An older server takes `batch` for an invalid MD5, or lacks the path.
            if lacks(error) or error.code == "invalid-md5":
                return False
            raise
        return True

    async def open_file(
        self,
        digests: model.Digests,
        name: str,
        size: int,
        chunk_size: int | None,
        *,
        instant: bool,
        wishes: Mapping[str, str],
    ) -> model.Opened:
        body = _without_none(name=name, size=size, chunk_size=chunk_size, sha256=digests.sha256, instant=instant)
        return await self._call("POST", f"/files/{digests.md5}", _OPENED, body=body | dict(wishes))

    async def open_upload(
        self, name: str, size: int, chunk_size: int | None, key: str, wishes: Mapping[str, str]
    ) -> model.UploadStatus:
        body = _without_none(name=name, size=size, chunk_size=chunk_size)
        return await self._call(
            "POST", "/uploads", _STANDING, body=body | dict(wishes), headers={"Idempotency-Key": key}
        )

    async def put_file_once(
        self, digests: model.Digests, name: str, wishes: Mapping[str, str], length: int, pieces: AsyncIterator[bytes]
    ) -> tuple[model.File, bool]:
        """Try once to send a whole file. Return the file, and True if the file existed already."""
        params = {"name": name, "sha256": digests.sha256, **wishes}
        headers = {"Content-Length": str(length), **_OCTETS}
        path = f"/files/{digests.md5}"
        response = await self._transport.request_once("PUT", path, content=pieces, headers=headers, params=params)
        return _decode(response, _COMPLETE).file, response.status_code == 200

    async def put_batch_once(
        self, wishes: Mapping[str, str], length: int, pieces: AsyncIterator[bytes]
    ) -> Sequence[model.Line]:
        """Try once to send an archive. Return the outcomes of the members that arrived."""
        headers = {"Content-Length": str(length), **_TAR}
        try:
            response = await self._transport.request_once(
                "POST", "/files/batch", content=pieces, headers=headers, params=wishes
            )
        except ServerProblem as error:
            if error.code != "invalid-archive" or not error.fields.get("results"):
                raise
            try:
                return msgspec.convert(error.fields["results"], list[model.Line])
            except msgspec.ValidationError:
                raise error from None
        return _decode(response, _LINES).results

    async def states(self, md5s: Sequence[str]) -> dict[str, model.State]:
        return await self._call("POST", "/files/status", _STATES, body={"md5s": md5s})

    async def tell(self, upload_id: str, digests: model.Digests) -> model.Opened:
        body = {"md5": digests.md5, "sha256": digests.sha256}
        return await self._call("PATCH", f"/uploads/{_segment(upload_id)}", _OPENED, body=body)

    async def prove(self, upload_id: str | None, md5: str, challenge_id: str, name: str, proof: str) -> model.Complete:
        place = f"/files/{md5}" if upload_id is None else f"/uploads/{_segment(upload_id)}"
        body = {"id": challenge_id, "name": name, "proof": proof}
        return await self._call("POST", f"{place}/proof", _COMPLETE, body=body)

    async def status(self, upload_id: str) -> model.UploadStatus:
        return await self._call("GET", f"/uploads/{_segment(upload_id)}", _STANDING)

    async def put_chunk_once(
        self, upload_id: str, number: int, length: int, pieces: AsyncIterator[bytes], *, base_id: str | None = None
    ) -> model.Sent:
        """Try once to send a chunk, because the caller decides after a failure. With `base_id`, send instructions."""
        params = _without_none(base=base_id)
        headers = {"Content-Length": str(length), **_OCTETS}
        path = f"/uploads/{_segment(upload_id)}/chunks/{number}"
        return _decode(
            await self._transport.request_once("PUT", path, content=pieces, headers=headers, params=params), _SENT
        )

    async def offset(self, upload_id: str) -> int:
        """Return how many bytes of an upload have arrived before the first gap."""
        return self._offset_of(await self._transport.request("HEAD", _tus(upload_id), headers=_TUS))

    async def append_once(self, upload_id: str, offset: int, length: int, pieces: AsyncIterator[bytes]) -> int:
        """Try once to append bytes, which need not end with a chunk. Return the new offset."""
        headers = {"Content-Length": str(length), "Upload-Offset": str(offset), **_TUS, **_TUS_OCTETS}
        path = _tus(upload_id)
        return self._offset_of(await self._transport.request_once("PATCH", path, content=pieces, headers=headers))

    @staticmethod
    def _offset_of(response: "httpx2.Response") -> int:
        try:
            return int(response.headers["Upload-Offset"])
        except (KeyError, ValueError):
            raise BadAnswer(f"{response.url} is not answered as an upload server does") from None

    async def merge(self, upload_id: str) -> model.UploadStatus:
        return await self._call("POST", f"/uploads/{_segment(upload_id)}/merge", _STANDING)

    async def cancel(self, upload_id: str) -> None:
        await self._delete(f"/uploads/{_segment(upload_id)}")

    async def uploads(self) -> list[model.Upload]:
        return (await self._call("GET", "/uploads", _UPLOADS)).uploads

    # Files

    async def page(
        self, after: str | None, prefix: str | None, limit: int, *, part: str | None = None, one_level: bool = False
    ) -> model.FilePage:
        """Return a page of files. An older server ignores `one_level` and `part`."""
        delimiter = "/" if one_level else None
        params = _without_none(limit=str(limit), after=after, prefix=prefix, q=part, delimiter=delimiter)
        return await self._call("GET", self.files_path, _PAGE, params=params)

    def pages(
        self, prefix: str | None, limit: int, *, part: str | None = None, one_level: bool = False
    ) -> AsyncIterator[model.FilePage]:
        """Yield page after page. Raises BadAnswer for a list that repeats a cursor or goes on after an empty page."""
        return _all_pages(lambda after: self.page(after, prefix, limit, part=part, one_level=one_level))

    async def make_folder(self, name: str) -> bool:
        """Make an empty folder. Return False if it exists. Raises ServerTooOld."""
        with _needing("keep empty folders"):
            response = await self._transport.request("POST", "/me/folders", body={"name": name})
        _decode(response, _EMPTY_FOLDER)
        return response.status_code == 201

    async def empty_folders(self, prefix: str | None, limit: int) -> AsyncIterator[str]:
        """Yield the names of empty folders, by name. Raises as `pages`; ServerTooOld."""

        async def ask(after: str | None) -> model.EmptyFolders:
            params = _without_none(limit=str(limit), prefix=prefix, after=after)
            with _needing("keep empty folders"):
                return await self._call("GET", "/me/folders", _EMPTY_FOLDERS, params=params)

        async for page in _all_pages(ask):
            for folder in page.folders:
                yield folder.name

    async def delete_below(self, prefix: str) -> int:
        """Delete all files below a prefix. Return their number. Raises ServerTooOld."""
        return await self._change("delete", "DELETE", {"prefix": prefix})

    async def move_below(self, prefix: str, new_prefix: str, if_exists: model.IfExists) -> int:
        """Move all files below a prefix. Return their number. Raises ServerTooOld."""
        body = {"prefix": new_prefix} | _unless_taken(if_exists)
        return await self._change("move", "PATCH", {"prefix": prefix}, body=body)

    async def file(self, file_id: str) -> model.File:
        return await self._call("GET", f"/me/files/{_segment(file_id)}", _FILE)

    async def signature(self, file_id: str) -> bytes:
        """Return the checksums of a file's pieces. A server that has to compute them may take long."""
        path = f"/me/files/{_segment(file_id)}/signature"
        return (await self._transport.request("GET", path, timeout_seconds=_MANY_FILES_SECONDS)).content

    async def rename(self, file_id: str, name: str, if_exists: model.IfExists) -> model.File:
        body = {"name": name} | _unless_taken(if_exists)
        return await self._call("PATCH", f"/me/files/{_segment(file_id)}", _FILE, body=body)

    async def delete(self, file_id: str) -> None:
        await self._delete(f"/me/files/{_segment(file_id)}")

    def deleted_pages(self, name: str | None, limit: int) -> AsyncIterator[model.DeletedPage]:
        """Yield the pages of the trash. Raises as `pages`; ServerTooOld."""

        async def ask(after: str | None) -> model.DeletedPage:
            params = _without_none(limit=str(limit), after=after, name=name)
            return _decode(await self._of_trash("GET", "", params=params), _DELETED_PAGE)

        return _all_pages(ask)

    async def restore(self, file_id: str, name: str | None, if_exists: model.IfExists) -> model.File | None:
        """Restore a deleted file. Return None while the server still works on it. Raises ServerTooOld."""
        body = _without_none(name=name, if_exists=if_exists)
        response = await self._of_trash("POST", f"/{_segment(file_id)}/restore", body=body)
        return None if response.status_code == 202 else _decode(response, _FILE)

    async def restore_many(self, ids: list[str]) -> list[model.RestoreLine]:
        """Restore deleted files. Return a line for each, in order. Raises ServerTooOld."""
        response = await self._of_trash("POST", "/restore", body={"ids": ids}, timeout_seconds=_MANY_FILES_SECONDS)
        lines = _decode(response, _RESTORE_LINES).results
        if [line.id for line in lines] != ids:
            raise BadAnswer("the server's answer tells of other files than those that are to be restored")
        return lines

    async def forget(self, file_id: str) -> None:
        await self._delete(f"/me/trash/{_segment(file_id)}")

    async def empty_trash(self) -> None:
        await self._of_trash("DELETE", "", timeout_seconds=_MANY_FILES_SECONDS)

    async def _of_trash(self, method: str, path: str, **more: Any) -> "httpx2.Response":
        try:
            return await self._transport.request(method, f"/me/trash{path}", **more)
        except ServerProblem as error:
            if error.code in ("not-found", "method-not-allowed"):
                raise ServerTooOld("the server is too old to have a trash") from error
            raise

    async def usage(self) -> model.Usage:
        return await self._call("GET", "/me/usage", _USAGE)

    def content_once(self, file_id: str, headers: dict[str, str]) -> "AbstractAsyncContextManager[httpx2.Response]":
        return self._transport.stream(f"{self.files_path}/{_segment(file_id)}/content", headers)

    def archive_once(self, file_ids: Sequence[str]) -> "AbstractAsyncContextManager[httpx2.Response]":
        """Try once to get a tar archive of files, in this order."""
        return self._transport.stream("/me/archive", {}, "POST", {"ids": file_ids, "format": "tar"})

    def blocks(self, response: "httpx2.Response", most_bytes: int) -> AsyncIterator[bytes]:
        return self._transport.blocks(response, most_bytes)

    # Links

    async def make_link(self, facts: Mapping[str, Any]) -> model.Link:
        """Raises ServerTooOld."""
        with _having_links():
            return self._reachable(await self._call("POST", "/me/links", _LINK, body=dict(facts)))

    async def links(self) -> list[model.Link]:
        """Raises ServerTooOld."""
        with _having_links():
            return list(map(self._reachable, (await self._call("GET", "/me/links", _LINKS)).links))

    async def change_link(self, link_id: str, facts: Mapping[str, Any]) -> model.Link:
        return self._reachable(await self._call("PATCH", f"/me/links/{_segment(link_id)}", _LINK, body=dict(facts)))

    def _reachable(self, link: model.Link) -> model.Link:
        return msgspec.structs.replace(link, url=self._transport.absolute(link.url))

    async def revoke_link(self, link_id: str) -> None:
        await self._delete(f"/me/links/{_segment(link_id)}")

    async def link(self) -> model.LinkFacts | None:
        """Return the facts of the link that the caller uses; None with an account."""
        return None

    async def link_facts(self, path: str) -> model.LinkFacts:
        return await self._call("GET", path, _LINK_FACTS, headers={"Accept": "application/json"})

    async def open_session(self, path: str, password: str | None) -> model.LinkSession:
        return await self._call("POST", f"{path}/session", _LINK_SESSION, body=_without_none(password=password))

    # All calls

    async def _call(self, method: str, path: str, decoder: Decoder[T], **more: Any) -> T:
        return _decode(await self._transport.request(method, path, **more), decoder)

    async def _change(self, verb: str, method: str, params: dict[str, str], **more: Any) -> int:
        """Change all files of a folder, which may take long."""
        more |= {"params": params, "timeout_seconds": _MANY_FILES_SECONDS}
        with _needing(f"{verb} folders"):
            return (await self._call(method, "/me/files", _CHANGED, **more)).files

    async def _delete(self, path: str) -> None:
        try:
            await self._transport.request("DELETE", path)
        except NotFound as error:
            if not error.after_retry:  # otherwise an earlier attempt succeeded, and its answer was lost
                raise


def lacks(error: ServerProblem | BadAnswer) -> bool:
    return isinstance(error, BadAnswer) or error.status in (404, 405, 501)


@contextmanager
def _needing(what: str) -> Iterator[None]:
    """Raises ServerTooOld for a server that lacks the call."""
    try:
        yield
    except (ServerProblem, BadAnswer) as error:
        if lacks(error):
            raise ServerTooOld(f"the server is too old to {what}") from error
        raise


@contextmanager
def _having_links() -> Iterator[None]:
    """Raises ServerTooOld for a server that lacks the path; a missing file is another error."""
    try:
        yield
    except (ServerProblem, BadAnswer) as error:
        if isinstance(error, BadAnswer) or error.code in ("not-found", "method-not-allowed"):
            raise ServerTooOld("the server has no links: it is too old, or they are switched off") from error
        raise


async def _all_pages(ask: Callable[[str | None], Awaitable[P]]) -> AsyncIterator[P]:
    after: str | None = None
    seen = set[str]()
    while True:
        page = await ask(after)
        yield page
        after = page.next
        if after is None:
            return
        if after in seen or not any((getattr(page, "files", None), getattr(page, "folders", None))):
            raise BadAnswer("the server's list has no end: it leads to what was there before, or to nothing")
        seen.add(after)


def _unless_taken(if_exists: model.IfExists) -> dict[str, str]:
    """Return the choice of a move, except for the default: servers before 0.3.0 know no other."""
    return {} if if_exists == "fail" else {"if_exists": if_exists}


def _tus(upload_id: str) -> str:
    return f"/resumable/{_segment(upload_id)}"


def _segment(text: str) -> str:
    """Make a single segment of a path from any text."""
    return quote(text, safe="")


def _without_none(**members: Any) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}


def _decode(response: "httpx2.Response", decoder: Decoder[T]) -> T:
    try:
        return decoder.decode(response.content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadAnswer(f"{response.url} is not answered as an upload server does: {error}") from error
