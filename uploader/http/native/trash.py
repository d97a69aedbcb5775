"""`/me/trash`: lists, downloads, restores and removes the caller's deleted and replaced files."""

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.responses import Response

from uploader.domain.creations import RESTORE
from uploader.domain.upload import File, TrashedFile, TrashReason
from uploader.errors import FileHeld, UploaderError
from uploader.http.native import schemas
from uploader.http.native.download import MEDIA_TYPE, download
from uploader.http.native.files import link_parameters
from uploader.http.shared.operation import AFTER, LIMIT, Call, Operation, Parameter, checked_name, or_none, public_path
from uploader.http.shared.problem import STATUS, problem_of
from uploader.http.shared.responses import Json
from uploader.service.deleted import DeletedFiles, Outcome
from uploader.service.signed_urls import SignedUrls, deleted_subject

_RETRY_AFTER: Mapping[str, str] = {"Retry-After": "2"}
_NAME = Parameter("name", "Only the earlier versions of this name.")

_trash = partial(Operation, tag="trash")


@dataclass(frozen=True, slots=True)
class TrashHandlers:
    deleted_files: DeletedFiles
    signed_urls: SignedUrls

    @_trash(
        "GET /me/trash",
        "Your deleted files, the latest deletions first",
        responses={200: schemas.TrashedFileList},
        parameters=(LIMIT, AFTER, _NAME),
    )
    async def list_files(self, call: Call) -> Response:
        limit, name = call.query_int(LIMIT), call.query("name")
        if name is not None:
            name = unicodedata.normalize("NFC", name)
        page, cursor = await self.deleted_files.page(call.user_id, limit=limit, after=call.query("after"), name=name)
        files = [schemas.trashed_of(file, self.deleted_files.expires_at(file)) for file in page]
        return Json(schemas.TrashedFileList(files, cursor))

    @_trash(
        "GET /me/trash/{id}/content",
        "Download a deleted file, whole or in ranges",
        access="reader of deleted",
        parameters=link_parameters("POST /me/trash/{id}/link"),
        responses={200: None, 206: None, 304: None},
        media_types=(MEDIA_TYPE,),
        problems=("file-not-found", "file-held", "content-gone", "content-damaged", "range-not-satisfiable"),
    )
    async def get_content(self, call: Call) -> Response:
        file = await self._readable(call.user_id, call.in_path("id"))
        return await download(call.request, file, self.deleted_files)

    @_trash(
        "POST /me/trash/{id}/link",
        "Make a link that downloads a deleted file without a token, for a while",
        responses={200: schemas.Link},
        problems=("file-not-found", "file-held"),
    )
    async def make_link(self, call: Call) -> Response:
        file = await self._readable(call.user_id, call.in_path("id"))
        query, end = self.signed_urls.make(call.user_id, deleted_subject(file.id))
        return Json(schemas.Link(public_path(f"/me/trash/{file.id}/content?{query}"), end))

    async def _readable(self, user_id: str, file_id: str) -> TrashedFile:
        """Raises FileNotFound, FileHeld."""
        file = await self.deleted_files.get(user_id, file_id)
        if file.reason == TrashReason.REFUSED or not file.passed:
            raise FileHeld()
        return file

    @_trash(
        "POST /me/trash/{id}/restore",
        "Restore a deleted file",
        on_rights=True,  # administrators may restore refused files
        takes=schemas.Restore,
        takes_optional=True,
        responses={200: schemas.FileOrHeld, 202: schemas.RestoringState},
        problems=("refused", "file-not-found", "file-held", "name-taken", "quota-exceeded", "content-gone"),
    )
    async def restore(self, call: Call) -> Response:
        body = await call.json(schemas.Restore, optional=True)
        told = or_none(body.name)
        name = None if told is None else checked_name(told)
        if_exists = or_none(body.if_exists) or RESTORE.if_exists
        restore = partial(self.deleted_files.restore, refused=call.identity.admin)
        return _restored(await restore(call.user_id, call.in_path("id"), name, if_exists))

    @_trash(
        "POST /me/trash/restore",
        "Restore many deleted files",
        takes=schemas.RestoreMany,
        responses={200: schemas.RestoreResults},
        problems=("refused",),
    )
    async def restore_many(self, call: Call) -> Response:
        body = await call.json(schemas.RestoreMany)
        outcomes = await self.deleted_files.restore_many(call.user_id, body.ids)
        return Json({"results": [_line(file_id, outcomes[file_id]) for file_id in body.ids]})

    @Operation(
        "POST /admin/trash/{id}/restore",
        "Give a deleted file back to its owner, also what a gate refused, which goes through the gates once more",
        tag="administration",
        access="admin",
        responses={200: schemas.FileOrHeld, 202: schemas.RestoringState},
        problems=("refused", "file-not-found", "name-taken", "quota-exceeded", "content-gone"),
    )
    async def restore_of_anybody(self, call: Call) -> Response:
        return _restored(await self.deleted_files.restore_of_anybody(call.in_path("id")))

    @_trash(
        "DELETE /me/trash/{id}",
        "Remove a deleted file for good",
        responses={204: None},
        problems=("file-not-found",),
    )
    async def forget(self, call: Call) -> None:
        await self.deleted_files.forget(call.user_id, call.in_path("id"))

    @_trash("DELETE /me/trash", "Remove all your deleted files for good", responses={204: None})
    async def forget_all(self, call: Call) -> None:
        await self.deleted_files.forget_all(call.user_id)


def _restored(file: File | None) -> Response:
    """Answer with the restored file, held or not. `file` is None while the content is being examined."""
    if file is None:
        return Json(schemas.RestoringState("restoring"), 202, dict(_RETRY_AFTER))
    return Json(schemas.seen_or_held(file))


def _line(file_id: str, outcome: Outcome) -> dict[str, Any]:
    match outcome:
        case None:
            return {"id": file_id, "status": 202, "state": "restoring"}
        case File():
            return {"id": file_id, "status": 200, **schemas.line_of(outcome)}
        case UploaderError():
            return {"id": file_id, "status": STATUS[outcome.code], "problem": problem_of(outcome)}
