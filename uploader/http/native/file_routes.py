"""The routes of `/me`: what is stored, and the caller's accounts."""

from uploader.http.native import schemas
from uploader.http.native.files import FileHandlers
from uploader.http.shared.operation import AFTER, LIMIT, PREFIX, SEARCH, Operation, Parameter

_STRING = {"type": "string"}
_LINK_PARAMETERS = tuple(
    Parameter(name=name, schema=_STRING, about="Of a signed link: see `POST /me/files/{id}/link`.")
    for name in ("user", "expires")
)
_DELIMITER = Parameter(
    name="delimiter", schema={"enum": ["/"]}, about="One level, by name: its files, and what lies deeper as `folders`."
)
_SOME = Parameter(name="prefix", schema=_STRING, about="Files whose names start with this.", required=True)
_FORMAT = Parameter(name="format", schema={"enum": ["zip", "tar"], "default": "zip"}, about="What is made of it.")


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
            responses={200: None, 206: None, 304: None},
            problems=("file-not-found", "range-not-satisfiable", "content-damaged"),
            parameters=_LINK_PARAMETERS,
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
