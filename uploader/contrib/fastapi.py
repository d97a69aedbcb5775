"""The finished files of an `Uploader` as parameters of FastAPI's operations: found by the ids that clients send, among
the files of the calling user."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

from fastapi import Depends, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.params import Path

from uploader.asgi import File, FileHeld, FileNotFound, Uploader, UploadUnfinished

__all__ = ["File", "finished_file", "finished_files"]

T = TypeVar("T")
_MOST_FILES = 1000


def finished_file(uploads: Uploader, source: Any, user_id: Callable[..., Any] | None = None) -> Any:
    """Make a dependency that is a `File` of the caller: `Annotated[File, finished_file(uploads, Form(alias="film"))]`.

    `source`: the place of the id of the file, or of its upload: `Form`, `Body`, `Query`, `Header` or `Path` of FastAPI,
    with an `alias`. `user_id`: a dependency that returns the id of the user; by default the uploader's `identify` does,
    and an unknown caller gets 401. If the user has no such file, the answer is 422 like for other invalid values; for a
    `Path` it is 404, or 409 while a gate holds the file. Raises ValueError for a source without an alias.
    """
    _check_alias(source)

    async def find(
        told_id: Annotated[str, source],
        caller: Annotated[str, Depends(user_id or _identified(uploads))],
    ) -> File:
        return await _find(uploads, source, caller, told_id)

    return Depends(find)


def finished_files(uploads: Uploader, source: Any, user_id: Callable[..., Any] | None = None) -> Any:
    """Make a dependency for a list of `File`s, like `finished_file`."""
    _check_alias(source)

    async def find(
        told_ids: Annotated[list[str], source],
        caller: Annotated[str, Depends(user_id or _identified(uploads))],
    ) -> list[File]:
        if len(told_ids) > _MOST_FILES:
            raise _refusal(source, "too_long", f"At most {_MOST_FILES} files can be told", len(told_ids))
        return [await _find(uploads, source, caller, each) for each in dict.fromkeys(told_ids)]

    return Depends(find)


def _check_alias(source: Any) -> None:
    if not source.alias:
        raise ValueError(f"{type(source).__name__} needs an `alias`: the name by which clients tell the file")


def _identified(uploads: Uploader) -> Callable[[Request], Awaitable[str]]:
    async def user_id(request: Request) -> str:
        identity = await uploads.identity(request.scope)
        if identity is None:
            raise HTTPException(401, "Not authenticated")
        return identity.user_id

    return user_id


async def _find(uploads: Uploader, source: Any, user_id: str, told_id: str) -> File:
    try:
        return await uploads.files.find(user_id, told_id)
    except FileNotFound as error:
        raise _refusal(source, "file_not_found", error.detail, told_id) from error
    except UploadUnfinished as error:
        raise _refusal(source, "upload_unfinished", "This upload is not finished.", told_id) from error
    except FileHeld as error:
        raise _refusal(source, "file_held", "This file is being checked.", told_id, 409) from error


def _refusal(source: Any, kind: str, message: str, told: Any, status_of_path: int = 404) -> Exception:
    if isinstance(source, Path):
        return HTTPException(status_of_path, message)
    # A form counts as a body.
    place = getattr(getattr(source, "in_", None), "value", "body")
    return RequestValidationError([{"type": kind, "loc": (place, source.alias), "msg": message, "input": told}])
