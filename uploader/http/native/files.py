"""The handlers of `/me`: each turns a request into one call of the service, and what it says into HTTP."""

import base64
import unicodedata
from dataclasses import dataclass

import msgspec
from starlette.responses import Response

from uploader.domain.names import Folder, Place
from uploader.domain.upload import File
from uploader.errors import InvalidRequest
from uploader.http.native import schemas
from uploader.http.native.download import download, send_signature
from uploader.http.shared.operation import Call, checked_name, or_none
from uploader.http.shared.responses import Json
from uploader.service.access import Links
from uploader.service.delta import DeltaBases
from uploader.service.files import Files, Folders


@dataclass(frozen=True, slots=True)
class FileHandlers:
    """`/me`."""

    files: Files
    folders: Folders
    links: Links
    bases: DeltaBases
    # Whether downloads are sent on to where the bytes are.
    sends_on: bool = False

    async def list_files(self, call: Call) -> Response:
        limit = call.query_int("limit", 100, 1, 1000)
        prefix, part = _part_of_name(call, "prefix"), _part_of_name(call, "q")
        if call.query_word("delimiter", "", ("", "/")):
            if part:
                raise InvalidRequest.field("q", "searches all levels: ask without a delimiter")
            return await self._list_level(call, prefix or "", limit)
        files, cursor = await self.files.list(
            call.user_id, limit=limit, after=call.query("after"), prefix=prefix, part=part
        )
        return Json(schemas.FileList([schemas.file_of(file) for file in files], cursor))

    async def _list_level(self, call: Call, prefix: str, limit: int) -> Response:
        after = _place_of(call.query("after"))
        page, place = await self.folders.level(call.user_id, prefix, limit=limit, after=after)
        files = [schemas.file_of(found) for found in page if isinstance(found, File)]
        folders = [schemas.folder_of(found) for found in page if isinstance(found, Folder)]
        return Json(schemas.FileList(files, None if place is None else _cursor_of(place), folders))

    async def get_file(self, call: Call) -> Response:
        return Json(schemas.file_of(await self.files.get(call.user_id, self._id(call))))

    async def rename_file(self, call: Call) -> Response:
        body = await call.json(schemas.Rename)
        return Json(schemas.file_of(await self.files.rename(call.user_id, self._id(call), checked_name(body.name))))

    async def delete_file(self, call: Call) -> Response:
        await self.files.delete(call.user_id, self._id(call))
        return Response(status_code=204)

    async def get_content(self, call: Call) -> Response:
        file = await self.files.get(call.user_id, self._id(call))
        shown = call.query_word("show", "", ("", "inline")) == "inline"
        return await download(call.request, file, self.files, shown=shown, sends_on=self.sends_on)

    async def get_signature(self, call: Call) -> Response:
        opened = await self.bases.open_signature(call.user_id, self._id(call))
        return await send_signature(call.request, opened)

    async def make_link(self, call: Call) -> Response:
        body = await call.json(schemas.MakeLink, optional=True)
        file = await self.files.get(call.user_id, self._id(call))
        query, end = await self.links.make(call.user_id, file.id, or_none(body.expires_in))
        return Json(schemas.Link(f"/me/files/{file.id}/content?{query}", end))

    async def get_usage(self, call: Call) -> Response:
        return Json(schemas.usage_of(await self.files.usage(call.user_id)))

    async def get_caller(self, call: Call) -> Response:
        return Json(schemas.Caller(call.user_id, call.identity.admin))

    def _id(self, call: Call) -> str:
        file_id: str = call.request.path_params["id"]
        return file_id


def _part_of_name(call: Call, parameter: str) -> str | None:
    """In the form that names have."""
    part = call.query(parameter)
    return None if part is None else unicodedata.normalize("NFC", part)


def _cursor_of(place: Place) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def _place_of(cursor: str | None) -> Place | None:
    """Raises InvalidRequest."""
    if cursor is None:
        return None
    try:
        place: Place = msgspec.json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=Place)
    except (ValueError, msgspec.MsgspecError) as error:
        raise InvalidRequest.field("after", "is not a cursor of this list") from error
    return place
