"""The routes of `/me`: what is stored, and the caller's accounts."""

from uploader.http.native import schemas
from uploader.http.native.files import FileHandlers
from uploader.http.native.selection_schemas import ArchiveSchema, MoveInto, SelectionSchema
from uploader.http.native.selections import FORM_FIELD, SelectionHandlers
from uploader.http.shared.operation import AFTER, LIMIT, PREFIX, SEARCH, Operation, Parameter

_STRING = {"type": "string"}
_SELECTION = Parameter(name="selection", schema=_STRING, about="Of a signed link: the digest of what it is to.")
_SHOW = Parameter(
    name="show",
    schema={"enum": ["inline"]},
    about="To be shown, not saved: images, sound, films and PDF have their type then. All else stays a download.",
)
_DELIMITER = Parameter(
    name="delimiter", schema={"enum": ["/"]}, about="One level, by name: its files, and what lies deeper as `folders`."
)
_SOME = Parameter(name="prefix", schema=_STRING, about="Files whose names start with this.", required=True)
_FORMAT = Parameter(name="format", schema={"enum": ["zip", "tar"], "default": "zip"}, about="What is made of it.")


def _link_parameters(maker: str) -> tuple[Parameter, ...]:
    about = f"Of a signed link: see `{maker}`."
    return tuple(Parameter(name=name, schema=_STRING, about=about) for name in ("user", "expires"))


def selection_operations(handlers: SelectionHandlers) -> list[Operation]:
    """Many files at once."""
    return [
        Operation(
            method="DELETE",
            path="/me/files",
            handler=handlers.delete_files,
            summary="Delete what is below a prefix",
            tag="files",
            responses={200: schemas.Changed},
            problems=("invalid-request",),
            parameters=(_SOME,),
        ),
        Operation(
            method="PATCH",
            path="/me/files",
            handler=handlers.move_files,
            summary="Move what is below a prefix",
            tag="files",
            takes=schemas.Move,
            responses={200: schemas.Changed},
            problems=("invalid-request",),
            parameters=(_SOME,),
        ),
        Operation(
            method="POST",
            path="/me/files/delete",
            handler=handlers.delete_selection,
            summary="Delete files, and what is below prefixes",
            tag="files",
            takes=SelectionSchema,
            responses={200: schemas.Changed},
            problems=("invalid-request",),
        ),
        Operation(
            method="POST",
            path="/me/files/move",
            handler=handlers.move_selection,
            summary="Put files, and folders, into a folder",
            tag="files",
            takes=MoveInto,
            responses={200: schemas.Changed},
            problems=("invalid-request",),
        ),
        Operation(
            method="GET",
            path="/me/archive",
            handler=handlers.get_archive,
            summary="Download a folder as one zip or tar",
            tag="files",
            responses={200: None},
            problems=("invalid-request", "content-damaged"),
            parameters=(PREFIX, _FORMAT),
        ),
        Operation(
            method="POST",
            path="/me/archive",
            handler=handlers.make_archive,
            summary="Download files and folders as one zip or tar, named from what they have in common on",
            tag="files",
            access="reader",
            takes=ArchiveSchema,
            takes_form=FORM_FIELD,
            responses={200: None},
            problems=("invalid-request", "file-not-found", "content-damaged"),
            parameters=(*_link_parameters("POST /me/archive/link"), _SELECTION),
        ),
        Operation(
            method="POST",
            path="/me/archive/link",
            handler=handlers.make_archive_link,
            summary="Make a link to which a form can post this selection without a token, for five minutes",
            tag="files",
            takes=ArchiveSchema,
            responses={200: schemas.Link},
            problems=("invalid-request", "file-not-found", "content-damaged"),
        ),
    ]


def file_operations(handlers: FileHandlers) -> list[Operation]:
    """Finished files and the caller's accounts."""
    return [
        Operation(
            method="GET",
            path="/me/files",
            handler=handlers.list_files,
            summary="Your files, newest first",
            tag="files",
            responses={200: schemas.FileList},
            problems=("invalid-request",),
            parameters=(LIMIT, AFTER, PREFIX, SEARCH, _DELIMITER),
        ),
        Operation(
            method="GET",
            path="/me/files/{id}",
            handler=handlers.get_file,
            summary="One file",
            tag="files",
            responses={200: schemas.FileSchema},
            problems=("file-not-found",),
        ),
        Operation(
            method="PATCH",
            path="/me/files/{id}",
            handler=handlers.rename_file,
            summary="Rename a file",
            tag="files",
            takes=schemas.Rename,
            responses={200: schemas.FileSchema},
            problems=("file-not-found", "name-taken", "invalid-request"),
        ),
        Operation(
            method="DELETE",
            path="/me/files/{id}",
            handler=handlers.delete_file,
            summary="Delete a file",
            tag="files",
            responses={204: None},
            problems=("file-not-found",),
        ),
        Operation(
            method="GET",
            path="/me/files/{id}/content",
            handler=handlers.get_content,
            summary="Download a file, whole or in ranges",
            tag="files",
            access="reader",
            responses={200: None, 206: None, 304: None, 307: None},
            problems=("file-not-found", "range-not-satisfiable", "content-damaged", "invalid-request"),
            parameters=(*_link_parameters("POST /me/files/{id}/link"), _SHOW),
        ),
        Operation(
            method="GET",
            path="/me/files/{id}/signature",
            handler=handlers.get_signature,
            summary="The pieces of a file, so that only what changed need be sent",
            tag="files",
            responses={200: None},
            problems=("file-not-found", "base-unusable", "storage-full"),
        ),
        Operation(
            method="POST",
            path="/me/files/{id}/link",
            handler=handlers.make_link,
            summary="Make a link that downloads a file without a token, for a while",
            tag="files",
            takes=schemas.MakeLink,
            takes_optional=True,
            responses={200: schemas.Link},
            problems=("file-not-found", "invalid-request"),
        ),
        Operation(
            method="GET",
            path="/me/usage",
            handler=handlers.get_usage,
            summary="Your accounts",
            tag="files",
            responses={200: schemas.UsageSchema},
        ),
        Operation(
            method="GET",
            path="/me/identity",
            handler=handlers.get_caller,
            summary="Who you are here",
            tag="files",
            responses={200: schemas.Caller},
        ),
    ]
