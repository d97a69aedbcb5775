"""The handlers of what concerns many files of `/me` at once: archives, deleting, moving."""

import unicodedata
from dataclasses import dataclass

from starlette.responses import Response

from uploader.domain.names import Selection
from uploader.errors import InvalidRequest, Unauthenticated
from uploader.http.native import schemas
from uploader.http.native.archive import archive
from uploader.http.native.selection_schemas import ArchiveSchema, MoveInto, SelectionSchema, selection_of
from uploader.http.shared.operation import Call
from uploader.http.shared.responses import Json
from uploader.service.access import Links, selection_subject
from uploader.service.files import Files, Folders

FORM_FIELD = "selection"


@dataclass(frozen=True, slots=True)
class SelectionHandlers:
    """`/me/archive`, and `/me/files` by prefixes and by ids."""

    files: Files
    folders: Folders
    links: Links

    async def get_archive(self, call: Call) -> Response:
        kind = call.query_word("format", "zip", ("zip", "tar"))
        prefix = unicodedata.normalize("NFC", call.query("prefix") or "")
        folder = prefix[: prefix.rfind("/") + 1]
        return await self._archive(call.user_id, Selection((), (prefix,)), [folder], kind)

    async def make_archive(self, call: Call) -> Response:
        """With a link, only of what that was made for."""
        told = await call.json_or_form(ArchiveSchema, FORM_FIELD)
        selection = selection_of(told)
        if call.query("selection") not in (None, selection.digest):
            raise Unauthenticated("The link is not valid.")
        names = await self.folders.names(call.user_id, selection)
        return await self._archive(call.user_id, selection, names, told.format)

    async def make_archive_link(self, call: Call) -> Response:
        """What could not be answered later, where nobody may see it, is refused here."""
        selection = selection_of(await call.json(ArchiveSchema))
        await self.folders.names(call.user_id, selection)
        await self.folders.check(call.user_id, selection)
        query, end = await self.links.make(call.user_id, selection_subject(selection.digest))
        return Json(schemas.Link(f"/me/archive?selection={selection.digest}&{query}", end))

    async def delete_selection(self, call: Call) -> Response:
        selection = _of_some(await call.json(SelectionSchema))
        return Json(schemas.Changed(await self.folders.delete(call.user_id, selection)))

    async def move_selection(self, call: Call) -> Response:
        told = await call.json(MoveInto)
        to = unicodedata.normalize("NFC", told.to)
        return Json(schemas.Changed(await self.folders.move_into(call.user_id, _of_some(told), to)))

    async def delete_files(self, call: Call) -> Response:
        selection = Selection((), (_prefix_of_some(call),))
        return Json(schemas.Changed(await self.folders.delete(call.user_id, selection)))

    async def move_files(self, call: Call) -> Response:
        prefix = _prefix_of_some(call)
        body = await call.json(schemas.Move)
        new_prefix = unicodedata.normalize("NFC", body.prefix)
        return Json(schemas.Changed(await self.folders.move(call.user_id, prefix, new_prefix)))

    async def _archive(self, user_id: str, selection: Selection, names: list[str], kind: str) -> Response:
        await self.folders.check(user_id, selection)
        return archive(self.folders.read(user_id, selection), names, kind, self.files.open)


def _of_some(told: SelectionSchema) -> Selection:
    """What is to be changed; all files are never meant by nothing. Raises InvalidRequest."""
    selection = selection_of(told)
    if "" in selection.prefixes:
        raise InvalidRequest.field("prefixes", "has an empty one")
    return selection


def _prefix_of_some(call: Call) -> str:
    """As `_of_some`."""
    prefix = call.query("prefix")
    if not prefix:
        raise InvalidRequest.field("prefix", "is missing or empty")
    return unicodedata.normalize("NFC", prefix)
