"""The types of requests and answers; they also define the OpenAPI document. Field names are part of the contract. Types are
strict: missing and unknown fields, `null`, and `"12"` or `1e3` for a number are refused.
"""

import unicodedata
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from uploader.domain.digest import ALGORITHM, Challenge
from uploader.domain.links import Caller as Calling
from uploader.domain.links import Link as SharingLink
from uploader.domain.names import MAX_NAME_BYTES, Folder, Selection
from uploader.domain.upload import File, IfExists, TrashedFile, chunk_count
from uploader.errors import InvalidRequest
from uploader.http.shared.operation import (
    MAX_ID_LENGTH,
    MAX_SIZE_BYTES,
    MD5_PATTERN,
    SEGMENTS,
    SHA256_PATTERN,
    Size,
    Time,
    public_path,
)
from uploader.http.shared.problem import Problem
from uploader.service.results import Complete, StillMerging, UploadStatus
from uploader.units import parse_rfc_3339

Name = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_NAME_BYTES,
        extra_json_schema=SEGMENTS,
        description="A relative path in segments of at most 255 bytes, separated by `/`; normalised to NFC.",
    ),
]
# `max_length` is needed, because in Python `$` also matches before a final line feed.
Md5 = Annotated[str, Meta(pattern=MD5_PATTERN, max_length=32, description="32 hexadecimal digits.")]
Sha256 = Annotated[str, Meta(pattern=SHA256_PATTERN, max_length=64, description="64 hexadecimal digits.")]
FileId = Annotated[str, Meta(max_length=MAX_ID_LENGTH)]
ChunkSize = Annotated[int, Meta(ge=1, le=MAX_SIZE_BYTES, description="Bytes; clamped to the server's bounds.")]
# Omitted when an upload is resumed: the first choice stays valid.
Choice = Annotated[
    IfExists, Meta(description="What happens to your other files of this name; `keep` if it is not said.")
]
# A string, because `datetime` has no leap seconds; `moment_of` parses it.
Moment = Annotated[
    str,
    Meta(
        description="When the person's own file was changed, as RFC 3339 has it, with its offset.",
        extra_json_schema={"format": "date-time"},
    ),
]


Label = Annotated[str, Meta(max_length=250, description="What those who come by it see first.")]
Password = Annotated[str, Meta(min_length=1, max_length=250)]
Limit = Annotated[int, Meta(ge=1, le=MAX_SIZE_BYTES)]

# Limits per request. Archives allow more, because they only read.
_MAX_SELECTED, _MAX_ARCHIVED = 5000, 10_000
# Each prefix is a separate search.
MAX_PREFIXES = 100


class OpenUpload(Struct, forbid_unknown_fields=True):
    """Open an upload whose digests are not known yet."""

    name: Name
    size: Size
    chunk_size: ChunkSize | UnsetType = UNSET
    if_exists: Choice | UnsetType = UNSET
    modified_at: Moment | UnsetType = UNSET


class OpenFile(OpenUpload, forbid_unknown_fields=True):
    """Open, resume or finish at once."""

    sha256: Sha256 | UnsetType = UNSET
    instant: bool = True


class TellDigests(Struct, forbid_unknown_fields=True):
    """The digests of an upload, as soon as they are known."""

    md5: Md5
    sha256: Sha256 | UnsetType = UNSET


class Prove(Struct, forbid_unknown_fields=True):
    """The answer to a challenge."""

    id: Annotated[str, Meta(min_length=1, max_length=MAX_ID_LENGTH, description="The id of the challenge.")]
    name: Name
    proof: Sha256


class Rename(Struct, forbid_unknown_fields=True):
    """A new name."""

    name: Name
    if_exists: Choice | UnsetType = UNSET


class Restore(Struct, forbid_unknown_fields=True):
    """Another name for a deleted file, and the action if you already have a file of that name (default: `fail`)."""

    name: Name | UnsetType = UNSET
    if_exists: IfExists | UnsetType = UNSET


class RestoreMany(Struct, forbid_unknown_fields=True):
    """Deleted files by their ids."""

    ids: Annotated[list[FileId], Meta(max_length=_MAX_SELECTED)]


class Move(Struct, forbid_unknown_fields=True):
    """A move of files: the new prefix of their names."""

    prefix: Annotated[str, Meta(max_length=MAX_NAME_BYTES)]
    if_exists: Choice | UnsetType = UNSET


class MakeFolder(Struct, forbid_unknown_fields=True):
    """A folder to make. A trailing slash changes nothing."""

    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME_BYTES + 1)]


class MadeFolder(Struct):
    """A folder, with a slash at the end of its name."""

    name: str


class EmptyFolders(Struct):
    """A page of empty folders, by name; `next` is the cursor of the following page."""

    folders: list[MadeFolder]
    next: str | None


class MakeLink(Struct, forbid_unknown_fields=True):
    """A link to make, with its lifetime."""

    expires_in: (
        Annotated[int, Meta(ge=1, le=2592000, description="Seconds, 300 if not said; the server may give less.")]
        | UnsetType
    ) = UNSET


class BeginSession(Struct, forbid_unknown_fields=True):
    """The password of a link, if it has one."""

    password: Password | UnsetType = UNSET


class SessionSchema(Struct):
    """A token that is good for this link alone."""

    token: str
    expires_at: datetime


class ShareWith(Struct, forbid_unknown_fields=True):
    """A link for strangers: to get a file or a folder, or to upload into a folder. A folder's name ends with a slash."""

    kind: Literal["download", "upload"]
    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME_BYTES + 1)]
    label: Label | UnsetType = UNSET
    expires_at: Moment | UnsetType = UNSET
    password: Password | UnsetType = UNSET
    max_downloads: Limit | UnsetType = UNSET
    max_files: Limit | UnsetType = UNSET
    max_bytes: Limit | UnsetType = UNSET


class ChangeShare(Struct, forbid_unknown_fields=True):
    """Changes to a link; `null` takes a password or a limit away."""

    label: Label | UnsetType = UNSET
    expires_at: Moment | UnsetType = UNSET
    password: Password | UnsetType | None = UNSET
    max_downloads: Limit | UnsetType | None = UNSET
    max_files: Limit | UnsetType | None = UNSET
    max_bytes: Limit | UnsetType | None = UNSET


class ShareSchema(Struct):
    """A link. `downloads`, `files` and `bytes` count its use so far."""

    id: str
    kind: Literal["download", "upload"]
    url: str
    name: str
    label: str
    has_password: bool
    created_at: datetime
    expires_at: datetime
    downloads: int
    files: int
    bytes: int
    max_downloads: int | None
    max_files: int | None
    max_bytes: int | None


class ShareList(Struct):
    """Your links, newest first."""

    links: list[ShareSchema]


class SharedSchema(Struct):
    """A link as visitors see it. With a password, name and limits are hidden."""

    kind: Literal["download", "upload"]
    label: str
    has_password: bool
    expires_at: datetime
    name: str | UnsetType = UNSET
    max_files: int | UnsetType | None = UNSET
    max_bytes: int | UnsetType | None = UNSET


class AskForUrl(Struct, forbid_unknown_fields=True):
    """A file, or an archive: of all files, or of the files whose names begin with `prefix`."""

    id: FileId | UnsetType = UNSET
    format: Literal["zip", "tar"] | UnsetType = UNSET
    prefix: str | UnsetType = UNSET


class SignedUrl(Struct):
    """A URL that works for a minute without a token."""

    url: str


class AskStates(Struct, forbid_unknown_fields=True):
    """The MD5s of a whole folder."""

    md5s: Annotated[list[Md5], Meta(max_length=1000)]


class UploadSchema(Struct):
    """An open upload."""

    id: str
    md5: str | None
    name: str
    size: int
    chunk_size: int
    chunk_count: int
    received_bytes: int
    missing: list[tuple[int, int]]
    state: Literal["uploading", "merging"]
    created_at: Time
    expires_at: Time
    merged_bytes: int | UnsetType = UNSET
    length_known: bool | UnsetType = UNSET


class FileSchema(Struct):
    """A finished file. `md5` is null until somebody computes it. `damaged` is present, and true, if its bytes were found
    bad."""

    id: str
    name: str
    md5: str | None
    sha256: str
    size: int
    created_at: Time
    modified_at: Time | None
    instant: bool
    damaged: bool | UnsetType = UNSET


class FileOrHeld(FileSchema, kw_only=True):
    """A file. While gates check it, `state` is `held` and `file` repeats the file, as in other answers."""

    state: Literal["held"] | UnsetType = UNSET
    file: FileSchema | UnsetType = UNSET


class TrashedFileSchema(FileSchema, kw_only=True):
    """A deleted file, with the reason and the end of its time in the trash. `detail`: the reason of a gate that
    refused it."""

    deleted_at: Time
    expires_at: Time
    reason: Literal["deleted", "replaced", "refused", "admin"]
    detail: str | UnsetType = UNSET


class TrashedFileList(Struct):
    """A page of deleted files, the latest deletions first; `next` is the cursor of the following page."""

    files: list[TrashedFileSchema]
    next: str | None


class RestoringState(Struct):
    """The content of a deleted file is being read and compared: ask again."""

    state: Literal["restoring"]


class RestoreLine(Struct):
    """The outcome of one file: 200 and the file, 202 while its content is examined, or the reason for a failure."""

    id: str
    status: int
    state: Literal["restoring", "held"] | UnsetType = UNSET
    file: FileSchema | UnsetType = UNSET
    problem: Problem | UnsetType = UNSET


class RestoreResults(Struct):
    """One line for each file, in order."""

    results: list[RestoreLine]


class OpenState(Struct):
    """The upload is open."""

    state: Literal["uploading", "merging"]
    upload: UploadSchema


class UploadTold(UploadSchema, kw_only=True):
    """The upload; repeated under `upload`, as in all other answers about uploads."""

    upload: UploadSchema


class FileState(Struct):
    """The upload is complete; or its file is held, until gates have let it pass."""

    state: Literal["complete", "held"]
    file: FileSchema


class BatchLine(Struct):
    """The outcome of one member of an archive, under its name there: its file, or the problem."""

    name: str
    status: int
    state: Literal["held"] | UnsetType = UNSET
    file: FileSchema | UnsetType = UNSET
    problem: Problem | UnsetType = UNSET


class BatchResults(Struct):
    """One line for each member, in order."""

    results: list[BatchLine]


class ChallengeSchema(Struct):
    """A request to prove that you have the content, by an HMAC over some of its ranges (see `POST /files/{md5}/proof`)."""

    id: str
    nonce: bytes
    user_id: str
    ranges: list[tuple[int, int]]
    algorithm: Literal["hmac-sha256"]
    expires_at: Time


class ChallengeState(Struct):
    """The server has the content. Prove that you have it, too, or send the bytes with `"instant": false`."""

    state: Literal["challenge"]
    challenge: ChallengeSchema


class ChunkState(Struct):
    """A chunk is acknowledged."""

    state: Literal["uploading"]
    received_bytes: int
    received_chunks: int
    chunk_count: int
    duplicate: bool


class UploadList(Struct):
    """Open uploads, newest first."""

    uploads: list[UploadSchema]


class StateSchema(Struct):
    """The state of one MD5."""

    state: Literal["complete", "held", "uploading", "merging", "absent"]


class FolderSchema(Struct, omit_defaults=True):
    """A folder, with the number and size of its files; `at_least`: there are more than a page can count."""

    name: str
    files: int
    bytes: int
    at_least: bool = False


class FileList(Struct):
    """A page of files; `next` is the cursor of the following page. `folders` is present if the request asked for one
    level."""

    files: list[FileSchema]
    next: str | None
    folders: list[FolderSchema] | UnsetType = UNSET


class Changed(Struct):
    """The number of files that were changed."""

    files: int


class Link(Struct):
    """A link that downloads a file without a token, and its expiry."""

    url: str
    expires_at: Time


class Caller(Struct):
    """The caller; `admin` is true for an administrator."""

    user_id: str
    admin: bool


class UsageSchema(Struct):
    """The caller's account, in bytes."""

    total_space: int
    use_space_finished: int
    use_space_unfinished: int
    reserved: int
    available: int


def moment_of(told: str | UnsetType | None, field: str = "modified_at") -> datetime | None:
    """Return the time in UTC; None if omitted. Raises InvalidRequest."""
    try:
        return parse_rfc_3339(told) if isinstance(told, str) else None
    except ValueError as error:
        raise InvalidRequest.field(field, "has to be a date and time of RFC 3339, with an offset") from error


def upload_of(status: UploadStatus) -> UploadSchema:
    upload = status.upload
    return UploadSchema(
        id=upload.id,
        md5=upload.md5,
        name=upload.name,
        size=upload.size,
        chunk_size=upload.chunk_size,
        chunk_count=chunk_count(upload.size, upload.chunk_size),
        received_bytes=status.received_bytes,
        missing=status.missing,
        state="merging" if status.merging else "uploading",
        created_at=upload.created_at,
        expires_at=status.expires_at,
        merged_bytes=status.merged_bytes if status.merging else UNSET,
        length_known=UNSET if upload.length_known else False,
    )


def file_of(file: File, caller: Calling | None = None) -> FileSchema:
    """`caller`: a visitor sees the name that the visitor chose."""
    name = file.name if caller is None else file.name_for(caller)
    damaged = True if file.damaged else UNSET
    times = file.created_at, file.modified_at
    return FileSchema(file.id, name, file.md5, file.sha256, file.size, *times, file.instant, damaged)


def seen_or_held(file: File) -> FileSchema:
    told = file_of(file)
    return FileOrHeld(**structs.asdict(told), state="held", file=told) if file.held else told


def line_of(file: File, caller: Calling | None = None) -> dict[str, Any]:
    """Return the part of a batch's line that describes the file."""
    return ({"state": "held"} if file.is_held_for(caller) else {}) | {"file": file_of(file, caller)}


def trashed_of(file: TrashedFile, expires_at: datetime) -> TrashedFileSchema:
    told = structs.asdict(file_of(file))
    reason: Any = file.reason
    detail = file.detail or UNSET
    return TrashedFileSchema(**told, deleted_at=file.deleted_at, expires_at=expires_at, reason=reason, detail=detail)


def share_of(link: SharingLink) -> ShareSchema:
    counts = link.downloads, link.files, link.bytes
    limits = link.max_downloads, link.max_files, link.max_bytes
    times = link.created_at, link.expires_at
    url = public_path(f"/s/{link.slug}")
    has_password = link.password is not None
    return ShareSchema(link.id, link.kind.value, url, link.name, link.label, has_password, *times, *counts, *limits)


def shared_of(link: SharingLink) -> SharedSchema:
    told = SharedSchema(link.kind.value, link.label, link.password is not None, link.expires_at)
    if link.password is None:
        told.name = link.name.rstrip("/").rpartition("/")[2]
        told.max_files, told.max_bytes = link.max_files, link.max_bytes
    return told


def folder_of(folder: Folder) -> FolderSchema:
    return FolderSchema(folder.name, folder.files, folder.bytes, folder.at_least)


def state_of(
    result: UploadStatus | StillMerging | Complete | Challenge, caller: Calling
) -> OpenState | FileState | ChallengeState:
    match result:
        case (UploadStatus() as status) | StillMerging(status):
            upload = upload_of(status)
            return OpenState(upload.state, upload)
        case Complete(file=file):
            return FileState("held" if file.is_held_for(caller) else "complete", file_of(file, caller))
        case Challenge(id=id_, nonce=nonce, user_id=user_id, ranges=ranges, expires_at=end):
            return ChallengeState("challenge", ChallengeSchema(id_, nonce, user_id, ranges, ALGORITHM, end))


class SelectionSchema(Struct, forbid_unknown_fields=True):
    """Files by their ids, and all files below the prefixes. Ids of other users' files are ignored."""

    ids: Annotated[list[FileId], Meta(max_length=_MAX_SELECTED)] = []
    prefixes: Annotated[list[Annotated[str, Meta(max_length=MAX_NAME_BYTES)]], Meta(max_length=MAX_PREFIXES)] = []


class ArchiveSchema(SelectionSchema, forbid_unknown_fields=True):
    """The files of an archive, and its format."""

    ids: Annotated[list[FileId], Meta(max_length=_MAX_ARCHIVED)] = []
    format: Literal["zip", "tar"] = "zip"


class MoveInto(SelectionSchema, forbid_unknown_fields=True, kw_only=True):
    """Files and folders to move into a folder, which is made if missing; `""` is the top."""

    to: Annotated[
        str,
        Meta(max_length=MAX_NAME_BYTES, pattern="^(.*/)?$", description="A prefix that ends with a slash, or nothing."),
    ]
    if_exists: Choice | UnsetType = UNSET


def selection_of(told: SelectionSchema) -> Selection:
    """Return the selection, with prefixes normalised to NFC like names."""
    return Selection.of(told.ids, (unicodedata.normalize("NFC", prefix) for prefix in told.prefixes))
