"""The handlers of `/me`: each turns a request into one call of the service, and what it says into HTTP."""

import unicodedata
from dataclasses import dataclass

from starlette.responses import Response

from uploader.http.native import schemas
from uploader.http.native.download import download
from uploader.http.shared.operation import Call, checked_name, or_none
from uploader.http.shared.responses import Json
from uploader.service.access.links import Links
from uploader.service.files import Files


@dataclass(frozen=True, slots=True)
class FileHandlers:
    """`/me`."""

    files: Files
    links: Links

    async def list_files(self, call: Call) -> Response:
        limit = call.query_int("limit", 100, 1, 1000)
        prefix, part = _part_of_name(call, "prefix"), _part_of_name(call, "q")
        files, cursor = await self.files.list(
            call.user_id, limit=limit, after=call.query("after"), prefix=prefix, part=part
        )
        return Json(schemas.FileList([schemas.file_of(file) for file in files], cursor))

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
        return await download(call.request, file, self.files.open)

    async def make_link(self, call: Call) -> Response:
        body = await call.json(schemas.MakeLink, optional=True)
        file = await self.files.get(call.user_id, self._id(call))
        query, end = await self.links.make(call.user_id, file.id, or_none(body.expires_in))
        return Json(schemas.Link(f"/me/files/{file.id}/content?{query}", end))

    async def get_usage(self, call: Call) -> Response:
        return Json(schemas.usage_of(await self.files.usage(call.user_id)))

    def _id(self, call: Call) -> str:
        file_id: str = call.request.path_params["id"]
        return file_id


def _part_of_name(call: Call, parameter: str) -> str | None:
    """In the form that names have."""
    part = call.query(parameter)
    return None if part is None else unicodedata.normalize("NFC", part)
