"""Handlers of `/me`: files, folders, archives, and the caller's accounts."""

import base64
import unicodedata
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import msgspec
from starlette.responses import Response

from uploader.domain.creations import MOVE
from uploader.domain.names import Folder, Place, Selection
from uploader.domain.upload import File, IfExists
from uploader.errors import InvalidRequest, Unauthenticated
from uploader.http.native import schemas
from uploader.http.native.archive import MEDIA_TYPES as ARCHIVE_TYPES
from uploader.http.native.archive import archive
from uploader.http.native.download import MEDIA_TYPE, MEDIA_TYPES, download
from uploader.http.native.schemas import ArchiveSchema, MoveInto, SelectionSchema, selection_of
from uploader.http.shared.operation import (
    AFTER,
    LIMIT,
    PREFIX,
    SEARCH,
    Call,
    Operation,
    Parameter,
    checked_name,
    public_path,
)
from uploader.http.shared.responses import Json
from uploader.runtime.tasks import in_thread
from uploader.service.bulk import BulkOperations
from uploader.service.delta import DeltaBases
from uploader.service.files import Files, Folders
from uploader.service.signed_urls import SignedUrls, file_subject, selection_subject

FORM_FIELD = "selection"
# The most ids and the longest prefixes of an archive, as JSON.
_MAX_ARCHIVE_JSON_BYTES = 512 << 10

_SELECTION = Parameter("selection", "Of a signed link: the digest of what it is to.")
SHOW = Parameter(
    "show",
    "To be shown, not saved: images, sound, films and PDF have their type then. All else stays a download.",
    {"type": "string", "enum": ["inline"]},
)
DELIMITER = Parameter(
    "delimiter", "One level, by name: its files, and what lies deeper as `folders`.", {"type": "string", "enum": ["/"]}
)
_STATE = Parameter(
    "state", "Those that are held, until gates have let them pass.", {"type": "string", "enum": ["held"]}
)
_SOME = Parameter("prefix", "Files whose names start with this.", {"type": "string", "minLength": 1}, required=True)
_OPEN = Parameter(
    "open",
    "`cancel`: open uploads below the prefix are cancelled, and held files deleted. Else these files arrive later.",
    {"type": "string", "enum": ["cancel"]},
)
FORMAT = Parameter("format", "What is made of it.", {"type": "string", "enum": ["zip", "tar"], "default": "zip"})

_files = partial(Operation, tag="files")


def link_parameters(maker: str) -> tuple[Parameter, ...]:
    return tuple(Parameter(name, f"Of a signed link: see `{maker}`.") for name in ("user", "expires"))


@dataclass(frozen=True, slots=True)
class FileHandlers:
    files: Files
    folders: Folders
    bulk_operations: BulkOperations
    signed_urls: SignedUrls
    delta_bases: DeltaBases
    sends_on: bool = False

    @_files(
        "GET /me/files",
        "Your files, newest first",
        responses={200: schemas.FileList},
        parameters=(LIMIT, AFTER, PREFIX, SEARCH, DELIMITER, _STATE),
    )
    async def list_files(self, call: Call) -> Response:
        limit = call.query_int(LIMIT)
        prefix, part = part_of_name(call, "prefix"), part_of_name(call, "q")
        held = call.query_word("state", "", ("", "held")) == "held"
        if held and call.query("delimiter"):
            raise InvalidRequest.field("delimiter", "is of files that have their names: those that are held have none")
        if call.query_word("delimiter", "", ("", "/")):
            if part:
                raise InvalidRequest.field("q", "searches all levels: ask without a delimiter")
            return await list_level(call, prefix or "", partial(self.folders.level, call.user_id))
        files, cursor = await self.files.list(
            call.user_id, limit=limit, after=call.query("after"), prefix=prefix, part=part, held=held
        )
        return Json(schemas.FileList([schemas.file_of(file) for file in files], cursor))

    @_files(
        "GET /me/files/{id}",
        "One file, and whether a gate holds it",
        responses={200: schemas.FileOrHeld},
        problems=("file-not-found",),
    )
    async def get_file(self, call: Call) -> Response:
        return Json(schemas.seen_or_held(await self.files.get(call.user_id, call.in_path("id"), held=True)))

    @_files(
        "PATCH /me/files/{id}",
        "Rename a file",
        takes=schemas.Rename,
        responses={200: schemas.FileSchema},
        problems=("refused", "file-not-found", "file-held", "name-taken"),
    )
    async def rename_file(self, call: Call) -> Response:
        body = await call.json(schemas.Rename)
        name, if_exists = checked_name(body.name), _if_exists(body)
        return Json(schemas.file_of(await self.folders.rename(call.user_id, call.in_path("id"), name, if_exists)))

    @_files("DELETE /me/files/{id}", "Delete a file", responses={204: None}, problems=("file-not-found",))
    async def delete_file(self, call: Call) -> None:
        await self.files.delete(call.user_id, call.in_path("id"))

    @_files(
        "GET /me/files/{id}/content",
        "Download a file, whole or in ranges",
        access="reader",
        responses={200: None, 206: None, 304: None, 307: None},
        media_types=MEDIA_TYPES,
        problems=("file-not-found", "file-held", "range-not-satisfiable", "content-damaged"),
        parameters=(*link_parameters("POST /me/files/{id}/link"), SHOW),
    )
    async def get_content(self, call: Call) -> Response:
        file = await self.files.get(call.user_id, call.in_path("id"))
        # Files sent by visitors of links are never shown inline.
        inline = call.query_word("show", "", ("", "inline")) == "inline" and not file.session
        return await download(call.request, file, self.files, inline=inline, sends_on=self.sends_on)

    @_files(
        "GET /me/files/{id}/signature",
        "The pieces of a file, so that only what changed need be sent",
        media_types=(MEDIA_TYPE,),
        problems=("file-not-found", "file-held", "base-unusable", "storage-full"),
    )
    async def get_signature(self, call: Call) -> Response:
        signature = await self.delta_bases.read_signature(call.user_id, call.in_path("id"))
        headers = {"Cache-Control": "private, no-cache", "X-Content-Type-Options": "nosniff"}
        return Response(signature, headers=headers, media_type=MEDIA_TYPE)

    @_files(
        "POST /me/files/{id}/link",
        "Make a link that downloads a file without a token, for a while",
        takes=schemas.MakeLink,
        takes_optional=True,
        responses={200: schemas.Link},
        problems=("file-not-found", "file-held"),
    )
    async def make_link(self, call: Call) -> Response:
        body = await call.json(schemas.MakeLink, optional=True)
        file = await self.files.get(call.user_id, call.in_path("id"))
        query, end = self.signed_urls.make(call.user_id, file_subject(file.id), body.expires_in or None)
        return Json(schemas.Link(public_path(f"/me/files/{file.id}/content?{query}"), end))

    @_files("GET /me/usage", "Your accounts", responses={200: schemas.UsageSchema})
    async def get_usage(self, call: Call) -> Response:
        usage = await self.files.usage(call.user_id)
        return Json(msgspec.convert(usage, schemas.UsageSchema, from_attributes=True))

    @_files("GET /me/identity", "Who you are here", responses={200: schemas.Caller})
    async def get_caller(self, call: Call) -> Response:
        return Json(schemas.Caller(call.user_id, call.identity.admin))

    # Many at once

    @_files(
        "GET /me/archive",
        "Download a folder as one zip or tar",
        media_types=ARCHIVE_TYPES,
        parameters=(PREFIX, FORMAT),
    )
    async def get_archive(self, call: Call) -> Response:
        kind = call.query_word("format", "zip", ("zip", "tar"))
        prefix = unicodedata.normalize("NFC", call.query("prefix") or "")
        folder = prefix[: prefix.rfind("/") + 1]
        return self._archive(call.user_id, Selection((), (prefix,)), [folder], kind)

    @_files(
        "POST /me/archive",
        "Download files and folders as one zip or tar, named from what they have in common on",
        access="reader",
        takes=ArchiveSchema,
        takes_form=FORM_FIELD,
        media_types=ARCHIVE_TYPES,
        problems=("file-not-found",),
        parameters=(*link_parameters("POST /me/archive/link"), _SELECTION),
    )
    async def make_archive(self, call: Call) -> Response:
        """Make an archive. A signed link works only for the original selection."""
        told = await call.json_or_form(ArchiveSchema, FORM_FIELD, most_bytes=_MAX_ARCHIVE_JSON_BYTES)
        selection = await in_thread(selection_of, told)
        linked = call.query("selection")
        if linked is not None and linked != selection.digest:
            raise Unauthenticated("The link is not valid.")
        names = await self.folders.names(call.user_id, selection)
        return self._archive(call.user_id, selection, names, told.format)

    @_files(
        "POST /me/archive/link",
        "Make a link to which a form can post this selection without a token, for five minutes",
        takes=ArchiveSchema,
        responses={200: schemas.Link},
        problems=("file-not-found",),
    )
    async def make_archive_link(self, call: Call) -> Response:
        """Refuse an empty selection here: a form that posts to the link may have nobody to see an error."""
        told = await call.json(ArchiveSchema, most_bytes=_MAX_ARCHIVE_JSON_BYTES)
        selection = await in_thread(selection_of, told)
        await self.folders.names(call.user_id, selection)
        query, end = self.signed_urls.make(call.user_id, selection_subject(selection.digest))
        return Json(schemas.Link(public_path(f"/me/archive?selection={selection.digest}&{query}"), end))

    @_files(
        "POST /me/files/delete",
        "Delete files, and what is below prefixes",
        takes=SelectionSchema,
        responses={200: schemas.Changed},
    )
    async def delete_selection(self, call: Call) -> Response:
        selection = _of_some(await call.json(SelectionSchema))
        return Json(schemas.Changed(await self.bulk_operations.delete(call.user_id, selection)))

    @_files(
        "POST /me/files/move",
        "Put files, and folders, into a folder",
        takes=MoveInto,
        responses={200: schemas.Changed},
        problems=("refused", "name-taken"),
    )
    async def move_selection(self, call: Call) -> Response:
        told = await call.json(MoveInto)
        to = unicodedata.normalize("NFC", told.to)
        moved = await self.bulk_operations.move_into(call.user_id, _of_some(told), to, _if_exists(told))
        return Json(schemas.Changed(moved))

    @_files(
        "DELETE /me/files",
        "Delete what is below a prefix",
        responses={200: schemas.Changed},
        parameters=(_SOME, _OPEN),
    )
    async def delete_files(self, call: Call) -> Response:
        selection = Selection((), (_prefix_of_some(call),))
        cancels = call.query_word("open", "", ("", "cancel")) == "cancel"
        return Json(schemas.Changed(await self.bulk_operations.delete(call.user_id, selection, cancels=cancels)))

    @_files(
        "PATCH /me/files",
        "Move what is below a prefix",
        takes=schemas.Move,
        responses={200: schemas.Changed},
        problems=("refused", "name-taken"),
        parameters=(_SOME,),
    )
    async def move_files(self, call: Call) -> Response:
        prefix = _prefix_of_some(call)
        body = await call.json(schemas.Move)
        new_prefix = unicodedata.normalize("NFC", body.prefix)
        moved = await self.bulk_operations.move(call.user_id, prefix, new_prefix, _if_exists(body))
        return Json(schemas.Changed(moved))

    @_files(
        "GET /me/folders",
        "Your empty folders, of all levels, by name",
        responses={200: schemas.EmptyFolders},
        parameters=(LIMIT, AFTER, PREFIX),
    )
    async def list_folders(self, call: Call) -> Response:
        """List empty folders. Other folders appear in the names of files."""
        limit, prefix = call.query_int(LIMIT), part_of_name(call, "prefix")
        names = await self.folders.list_empty(call.user_id, prefix or "", limit=limit, after=call.query("after") or "")
        cursor = names[-1] if len(names) == limit else None
        return Json(schemas.EmptyFolders([schemas.MadeFolder(name) for name in names], cursor))

    @_files(
        "POST /me/folders",
        "Make an empty folder",
        takes=schemas.MakeFolder,
        responses={200: schemas.MadeFolder, 201: schemas.MadeFolder},
        problems=("refused", "name-taken", "too-many-files"),
    )
    async def make_folder(self, call: Call) -> Response:
        body = await call.json(schemas.MakeFolder)
        name = checked_name(body.name.removesuffix("/"))
        name, is_new = await self.folders.make(call.user_id, name)
        return Json(schemas.MadeFolder(name), 201 if is_new else 200)

    def _archive(self, user_id: str, selection: Selection, names: list[str], kind: str) -> Response:
        files = self.folders.read(user_id, selection)
        return archive(files, names, kind, self.files, tells_ids=bool(selection.ids))


def part_of_name(call: Call, parameter: str) -> str | None:
    """Return a query parameter in NFC, the form of names."""
    part = call.query(parameter)
    return None if part is None else unicodedata.normalize("NFC", part)


# Returns a page of the entries right below a prefix, and the place where the next page begins.
Level = Callable[..., Awaitable[tuple[list[Folder | File], Place | None]]]


async def list_level(call: Call, prefix: str, level: Level) -> Response:
    page, place = await level(prefix, limit=call.query_int(LIMIT), after=_place_of(call.query("after")))
    files = [schemas.file_of(found) for found in page if isinstance(found, File)]
    folders = [schemas.folder_of(found) for found in page if isinstance(found, Folder)]
    return Json(schemas.FileList(files, None if place is None else _cursor_of(place), folders))


def _cursor_of(place: Place) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def _place_of(cursor: str | None) -> Place | None:
    if cursor is None:
        return None
    try:
        place: Place = msgspec.json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=Place)
    except (ValueError, msgspec.MsgspecError) as error:
        raise InvalidRequest.field("after", "is not a cursor of this list") from error
    return place


def _if_exists(told: schemas.Rename | schemas.Move | MoveInto) -> IfExists:
    """Return the client's choice for taken names, or the default of a move."""
    return IfExists(told.if_exists) if told.if_exists else MOVE.if_exists


def _of_some(told: SelectionSchema) -> Selection:
    """Return the selection to change. Raises InvalidRequest for an empty prefix, which would select all files."""
    selection = selection_of(told)
    if "" in selection.prefixes:
        raise InvalidRequest.field("prefixes", "contains an empty name")
    return selection


def _prefix_of_some(call: Call) -> str:
    prefix = call.query("prefix")
    if not prefix:
        raise InvalidRequest.field("prefix", "is missing or empty")
    return unicodedata.normalize("NFC", prefix)
